"""The stepper: the machine by itself, and the whole of it in a real terminal."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pexpect
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.screens import Terminal
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

    def test_the_ends_are_reported(self) -> None:
        """A step beyond the first or the last entry says so."""
        assert Stepper(1, 9, 9).do("n") == Shown("say", "already at the last entry")
        assert Stepper(1, 9).do("b") == Shown("say", "already at the first entry")

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


def plain(text: str) -> str:
    """Return what a terminal shows of it, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")


class TestTerminal:
    def test_what_is_no_screen_gets_lines(self, store: str) -> None:
        """In a terminal that cannot be drawn on, it asks for a line at a time."""
        with Terminal("--store", store, "replay", "chat", "--step", rows=40, TERM="dumb") as terminal:
            terminal.wait("[1/13]")
            terminal.type("8\n")
            terminal.wait("    ~ 7 user: By {+night +}train, please.")
            terminal.type("q\n")
            assert terminal.end() == 0

    def test_the_end_of_input_leaves(self, store: str) -> None:
        """Ctrl-D ends the session as q does."""
        with Terminal("--store", store, "replay", "chat", "--step") as terminal:
            terminal.wait("> 1 open")
            terminal.type("\x04")
            assert terminal.end() == 0

    def test_an_interrupt_leaves(self, store: str) -> None:
        """Ctrl-C ends it with 130 and no traceback, and the screen is given back."""
        with Terminal("--store", store, "replay", "chat", "--step") as terminal:
            terminal.wait("> 1 open")
            terminal.type("\x03")
            assert terminal.end() == 130
            assert "Traceback" not in terminal.sent
            assert "\x1b[?1049l" in terminal.sent

    def test_another_size(self, store: str) -> None:
        """When the terminal changes its size, what is drawn does, too."""
        with Terminal("--store", store, "replay", "chat", "--step", columns=120, rows=30) as terminal:
            terminal.wait("> 1 open")
            terminal.resize(60, 12)
            rows = terminal.wait(lambda rows: rows[-1].startswith("n b step") and len(rows) == 12)
            assert all(len(row) <= 60 for row in rows)


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

        code, sent = in_terminal(store, "--no-pager", "log", "chat", "--graph")
        assert (code, "\x1b[" in sent) == (0, True)
        assert plain(sent) == tape_command("--store", store, "log", "chat", "--graph").out

    def test_progress_is_shown_and_gone_afterwards(self, store: str) -> None:
        """In a terminal verify shows a bar, which it takes away; NO_COLOR leaves the text plain."""
        code, sent = in_terminal(store, "verify", NO_COLOR="1")
        assert (code, "verifying" in sent) == (0, True)
        assert plain(sent).splitlines()[-1] == "22 entries of 4 tapes: no problems"
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
