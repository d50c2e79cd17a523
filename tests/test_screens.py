"""Screens: what a person sees in a terminal of 80x24, 120x40 and 200x60, kept as files and compared.

``TAPE_WRITE_SCREENS=1`` writes the files anew; look at what changed before keeping it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.agent_story import agent_story
from support.screens import SIZES, Terminal, steady
from support.sizes import heavy, size

import tape
from tape.command.output import width

KEPT = Path(__file__).parent / "data" / "screens"
# Each starts a program of its own; the narrowest is where least fits.
TRIED = SIZES if os.environ.get("TAPE_WRITE_SCREENS") else size(SIZES[:1], SIZES)
each_size = pytest.mark.parametrize(("columns", "rows"), TRIED, ids=[f"{columns}x{rows}" for columns, rows in TRIED])
pytestmark = pytest.mark.skipif(shutil.which("less") is None, reason="the screens are those of less")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a store that holds a session of an agent."""
    path = tmp_path_factory.mktemp("screens") / "a.db"
    with tape.open(path) as made:
        agent_story(made)
    return str(path)


def compare(name: str, terminal: Terminal, columns: int, rows: int) -> None:
    """Hold that the screen becomes the one that is kept."""
    file = KEPT / f"{name}-{columns}x{rows}.txt"
    if os.environ.get("TAPE_WRITE_SCREENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(steady(terminal.settled()), encoding="utf-8")
    kept = file.read_text(encoding="utf-8")
    assert all(width(row) <= columns for row in kept.splitlines())
    assert "\x1b" not in kept
    shown = terminal.becomes(lambda screen: steady(screen) == kept)
    assert steady(shown) == kept


@heavy
@each_size
class TestPrinted:
    @pytest.mark.parametrize(
        ("name", "command"),
        [
            ("ls", ["ls"]),
            ("log", ["log", "Plan the release", "--oneline"]),
            ("cat", ["cat", "0199c5f0"]),
            ("diff", ["diff", "0199c5f0:9", "-U", "2"]),
        ],
    )
    def test_what_a_command_prints(self, name: str, command: list[str], columns: int, rows: int, store: str) -> None:
        """A command uses the width of the terminal, keeps to it, and hands what is longer than it to the pager."""
        with Terminal("--store", store, *command, columns=columns, rows=rows) as terminal:
            terminal.wait(lambda screen: bool(terminal.ended or screen[-1].startswith(":")))
            compare(name, terminal, columns, rows)


@heavy
@each_size
class TestStepper:
    def test_a_session(self, columns: int, rows: int, store: str) -> None:
        """A person steps to an error, to the revision and its difference, searches, jumps, and leaves."""
        with Terminal("--store", store, "replay", "0199c5f0", "--step", columns=columns, rows=rows) as terminal:
            terminal.wait("> 1 open")
            terminal.type("e")
            terminal.wait("> 8 ")
            compare("step-error", terminal, columns, rows)
            terminal.type("rd")
            terminal.wait("[diff]")
            compare("step-diff", terminal, columns, rows)
            terminal.type(" ")
            terminal.wait("Tuesday")
            assert terminal.style("Tuesday")[0] == "green"
            assert terminal.style("Monday") == ("red", False, True)
            terminal.type("v/drop_old\r")
            terminal.wait("no other match in that direction")
            terminal.type("<m")
            terminal.wait("> 4 ")
            terminal.type("greview\r")
            terminal.wait(">13 ")
            compare("step-view", terminal, columns, rows)
            terminal.type("q")
            assert terminal.end() == 0
