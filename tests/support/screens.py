"""Screens: a command in a real terminal of a size, and what a person sees there."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

__all__ = ["SIZES", "Terminal", "steady"]

ROOT = Path(__file__).resolve().parent.parent.parent
SIZES = [(80, 24), (120, 40), (200, 60)]
"""Columns and rows of the screens that are kept."""
PATIENCE = 20.0


class Terminal:
    """A command that runs in a terminal of its own; ``screen`` is what stands there."""

    def __init__(self, *arguments: str, columns: int = 80, rows: int = 24, **environment: str) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT") if name in os.environ}
        self._display = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._display)
        self.sent = ""
        self.ended = False
        self._run = pexpect.spawn(
            sys.executable,
            ["-m", "tape.command", *arguments],
            env={**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), **environment},
            encoding="utf-8",
            dimensions=(rows, columns),
            # A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        # On a busy machine a polite end takes longer than anybody waits for it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._run.pid, signal.SIGKILL)
        self._run.delayafterterminate = self._run.ptyproc.delayafterterminate = 2
        self._run.close(force=True)

    @property
    def screen(self) -> list[str]:
        """The rows of the screen, without the blanks at their ends."""
        return [row.rstrip() for row in self._display.display]

    def style(self, text: str) -> tuple[str, bool, bool]:
        """Return how the first occurrence of a text on the screen looks: its colour, reversed, struck through."""
        for number, row in enumerate(self._display.display):
            if text in row:
                cell = self._display.buffer[number][row.index(text)]
                return cell.fg, cell.reverse, cell.strikethrough
        raise AssertionError(f"{text!r} is not on the screen")

    def type(self, keys: str) -> None:
        """Press keys."""
        self._run.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Make the terminal another size."""
        self._display.resize(rows, columns)
        self._run.setwinsize(rows, columns)

    def wait(self, shown: str | Callable[[list[str]], bool]) -> list[str]:
        """Wait until a text is on the screen, or something holds of it; returns the screen."""
        holds = shown if callable(shown) else lambda rows: any(shown in row for row in rows)
        self._read(lambda: holds(self.screen))
        return self.screen

    def becomes(self, holds: Callable[[list[str]], bool]) -> list[str]:
        """Return the screen once something holds of it, or as it is when the time for that is over."""
        with contextlib.suppress(AssertionError):
            self._read(lambda: holds(self.screen))
        return self.screen

    def settled(self) -> list[str]:
        """Return the screen when nothing more has come for a while: for whoever writes the kept ones anew."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            while True:
                self._feed(self._run.read_nonblocking(65536, timeout=2))
        return self.screen

    def _feed(self, part: str) -> None:
        self.sent += part
        self._stream.feed(part)

    def end(self) -> int | None:
        """Wait until the command ends; returns its exit code."""
        self._read(lambda: False)
        self._run.close()
        code: int | None = self._run.exitstatus
        return code

    def _read(self, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not enough():
            assert time.monotonic() < until, "\n".join(self.screen)
            try:
                part = self._run.read_nonblocking(65536, timeout=1)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                self.ended = True
                enough()
                return
            self._feed(part)


def steady(rows: list[str]) -> str:
    """Return a screen as it is kept: what differs from run to run has its digits and letters replaced."""
    text = "\n".join(rows).rstrip() + "\n"
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\dZ)?", lambda match: re.sub(r"\d", "0", match[0]), text)
    return re.sub(r"\b[0-9a-f]{16,64}\b", lambda match: "f" * len(match[0]), text)
