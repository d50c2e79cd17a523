"""The stepper: the machine by itself, and the whole of it in a real terminal."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shell import family

import tape
from tape.command.show.stepper import HELP, Shown, Stepper

ROOT = Path(__file__).resolve().parent.parent


class TestMachine:
    def test_starts_at_the_first_entry_or_where_it_is_told(self) -> None:
        """It begins at the start of its range, at a given seq, or at the nearest one in the range."""
        assert [Stepper(3, 9).seq, Stepper(3, 9, 5).seq, Stepper(3, 9, 1).seq, Stepper(3, 9, 99).seq] == [3, 5, 3, 9]
        assert Stepper(3, 9, 5).prompt == "[5/9] "

    @pytest.mark.parametrize(
        ("typed", "seq"),
        [
            *((typed, 6) for typed in ("", "n", "NEXT", "  n  ")),
            *((typed, 4) for typed in ("b", "back", "-1")),
            *((typed, 7) for typed in ("7", "j 7", "jump 7", "+2")),
            ("first", 1),
            ("last", 9),
        ],
    )
    def test_moves(self, typed: str, seq: int) -> None:
        """Every way to move leads where it says and shows the entry there."""
        stepper = Stepper(1, 9, 5)
        assert (stepper.do(typed), stepper.seq) == (Shown("entry"), seq)

    @pytest.mark.parametrize(
        ("typed", "what"),
        [("s", "show"), ("v", "view"), ("c", "context"), ("d", "diff"), ("a", "anchor"), ("?", "help"), ("q", "quit")],
    )
    def test_looks(self, typed: str, what: str) -> None:
        """A look moves nothing; the short and the long name are the same."""
        stepper = Stepper(1, 9, 5)
        assert (stepper.do(typed).what, stepper.do(what).what, stepper.seq) == (what, what, 5)

    @pytest.mark.parametrize(
        "typed", ["99", "0", "-9", "+9", "j", "j x", "j 1 2", "n 3", "what", "²", "1e3", "--", "q!"]
    )
    def test_stays_where_it_is_when_it_does_not_understand(self, typed: str) -> None:
        """What leads nowhere is answered with words."""
        stepper = Stepper(1, 9, 5)
        shown = stepper.do(typed)
        assert (shown.what, bool(shown.text), stepper.seq) == ("say", True, 5)

    def test_the_ends_are_told(self) -> None:
        """Beyond the first and the last entry there is nothing."""
        assert Stepper(1, 9, 9).do("n") == Shown("say", "this is the last entry")
        assert Stepper(1, 9).do("b") == Shown("say", "this is the first entry")

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.text(max_size=8) | st.integers(-20, 20).map(str)), st.integers(1, 5), st.integers(0, 10))
    def test_never_leaves_its_range(self, typed: list[str], first: int, more: int) -> None:
        """Whatever is typed, it stays between the first and the last entry."""
        stepper = Stepper(first, first + more)
        for line in typed:
            stepper.do(line)
            assert first <= stepper.seq <= first + more

    def test_help_names_every_command(self) -> None:
        """The list that h shows has all that can be typed."""
        for name in (
            "next",
            "back",
            "jump",
            "first",
            "last",
            "show",
            "view",
            "context",
            "diff",
            "anchor",
            "help",
            "quit",
        ):
            assert re.search(rf"\b{name}\b", HELP)


@pytest.fixture
def store(tmp_path: Path) -> str:
    with tape.open(tmp_path / "a.db") as made:
        family(made)
    return str(tmp_path / "a.db")


@pytest.fixture
def terminal(store: str) -> Iterator[pexpect.spawn[str]]:
    """``tape replay --step`` in a terminal of 100 columns."""
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    arguments = ["-m", "tape.command", "--store", store, "replay", "chat", "--step"]
    ran = pexpect.spawn(
        sys.executable,
        arguments,
        env=environment,
        encoding="utf-8",
        timeout=20,
        dimensions=(40, 100),
        echo=False,
        # A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    yield ran
    ran.close(force=True)


def plain(text: str) -> str:
    """Return what a terminal shows of it, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")


class TestTerminal:
    def test_a_session(self, terminal: pexpect.spawn[str]) -> None:
        """A person steps on and back, jumps, looks at the view, the context and the difference, and leaves."""

        def typed(line: str) -> str:
            terminal.sendline(line)
            terminal.expect(r"\[\d+/13\] $")
            return plain(str(terminal.before))

        terminal.expect(r"\[1/13\] $")
        begun = str(terminal.before)
        assert plain(begun).splitlines() == ["replay chat from 1 to 13; h for help, q to leave", "1 open Lisbon"]
        assert "\x1b[" in begun
        assert typed("") == "2 append user: Plan two days in Lisbon.\n"
        assert typed("8").splitlines()[0] == "8 revise m -> user: By night train, please."
        assert typed("d").splitlines() == ["- 7 user: By train, please.", "+ 7 user: By night train, please."]
        assert typed("b") == "7 append user: By train, please.\n"
        assert typed("v").splitlines()[0] == "view chat:7  3 messages"
        assert typed("c").splitlines()[0].startswith("context about ")
        assert typed("a") == "13 handoff booking: Night train; hotel open.\n"
        assert typed("n") == "this is the last entry\n"
        assert typed("s").splitlines()[0].startswith("entry chat:13  ")
        assert typed("huh") == "'huh' is no command; h for help\n"
        assert typed("h").splitlines() == HELP.splitlines()
        terminal.sendline("q")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0

    def test_the_end_of_input_leaves(self, terminal: pexpect.spawn[str]) -> None:
        """Ctrl-D ends the session as q does."""
        terminal.expect(r"\[1/13\] $")
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0

    def test_an_interrupt_leaves(self, terminal: pexpect.spawn[str]) -> None:
        """Ctrl-C ends it with 130 and no traceback."""
        terminal.expect(r"\[1/13\] $")
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        assert "Traceback" not in str(terminal.before)
        terminal.close()
        assert terminal.exitstatus == 130


def in_terminal(store: str, *arguments: str, **environment: str) -> tuple[int | None, str]:
    """Run a command in a terminal to its end; returns its exit code and all that it sent."""
    ran = pexpect.spawn(
        sys.executable,
        ["-m", "tape.command", "--store", store, *arguments],
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment},
        encoding="utf-8",
        timeout=30,
        dimensions=(40, 100),
    )
    ran.expect(pexpect.EOF)
    sent = str(ran.before)
    ran.close()
    return ran.exitstatus, sent


class TestColours:
    def test_a_terminal_gets_colours_and_the_same_text(self, store: str) -> None:
        """In a terminal the graph is coloured; without the colours it is what a pipe gets."""
        from support.shell import tape_command

        code, sent = in_terminal(store, "log", "chat", "--graph")
        assert (code, "\x1b[" in sent) == (0, True)
        assert plain(sent) == tape_command("--store", store, "log", "chat", "--graph").out

    def test_progress_is_shown_and_gone_afterwards(self, store: str) -> None:
        """In a terminal verify shows a bar, which it takes away; NO_COLOR leaves the text plain."""
        code, sent = in_terminal(store, "verify", NO_COLOR="1")
        assert (code, "verifying" in sent) == (0, True)
        assert plain(sent).splitlines()[-1] == "22 entries of 4 tapes: nothing wrong"
        assert "\x1b[2K" in sent

    def test_purge_asks_a_person(self, store: str) -> None:
        """In a terminal purge asks; no is no."""
        ran = pexpect.spawn(
            sys.executable,
            ["-m", "tape.command", "--store", store, "purge", "spare"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            encoding="utf-8",
            timeout=30,
        )
        ran.expect(r"Purge tape 'spare', 3 entries\? \[y/N\]: ")
        ran.sendline("n")
        ran.expect(pexpect.EOF)
        assert "nothing was purged" in str(ran.before)
        ran.close()
        assert ran.exitstatus == 1
        with tape.open(store) as opened:
            assert opened.get("spare").info().entry_count == 3
