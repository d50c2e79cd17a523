"""The pager: long output goes to ``less``, or to the program that the user named, as in git."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from typing import IO

__all__ = ["Pager", "pager_command"]

_EVERY = 0.05
"""Seconds between flushes, so that a slow search shows its results as they come."""


def pager_command() -> str | None:
    """Return the command of the pager: ``TAPE_PAGER``, ``PAGER``, or less; None for none, which ``cat`` stands for."""
    for name in ("TAPE_PAGER", "PAGER"):
        if name in os.environ:
            named = os.environ[name].strip()
            return None if named in ("", "cat") else named
    return "less -FRX" if shutil.which("less") and os.environ.get("TERM") != "dumb" else None


class Pager:
    """A running pager. It shows output while more is still being read."""

    def __init__(self, command: str) -> None:
        environment = {"LESS": "FRX", "LV": "-c", **os.environ}
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.flush()
        self._process = subprocess.Popen(
            command, shell=True, stdin=subprocess.PIPE, env=environment, text=True, encoding=encoding
        )
        stream = self._process.stdin
        assert stream is not None
        self._stream: IO[str] = stream
        self._sent = 0.0

    def write(self, text: str) -> None:
        """Write text. Raises BrokenPipeError when the reader has left."""
        self._stream.write(text)
        if (now := time.monotonic()) - self._sent > _EVERY:
            self.flush()
            self._sent = now

    def flush(self) -> None:
        """Send what was written."""
        self._stream.flush()

    def close(self) -> None:
        """Wait until the user quits. An interrupt is left to the pager to handle."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.close()
        while True:
            try:
                self._process.wait()
                return
            except KeyboardInterrupt:
                continue
