"""docs/command.md: every command on the page prints what stands below it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.consoles import commands, differs, shown
from support.pages import run
from support.shell import Shell, tape_command
from test_readme import ROOT

import tape
from tape.command import exit_codes
from tape.command.registry import SECTIONS
from tape.command.show import json_shapes

PAGE = ROOT / "docs" / "command.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the store of the examples, made by the page's own code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAPE_STORE", "trip.db")
    run(PAGE, TEXT)
    return tmp_path


class TestOutputs:
    def test_the_page_shows_the_real_outputs(self, folder: Path) -> None:
        """Every command of the page, in order, prints the output that the page shows below it."""
        found = list(commands(TEXT))
        assert len(found) > 50
        wrong = [f"$ {command}\n{how}" for command, said in found if (how := differs(said, shown(command, said)))]
        assert wrong == [], "\n".join(wrong)

    def test_a_wrong_output_is_noticed(self) -> None:
        """A page that does not tell the truth is not taken for true."""
        assert differs("a ... c\n", "a b c\n") is None
        assert differs("a\n", "b\n") is not None


class TestLists:
    def test_sections_and_commands_are_those_of_the_help(self) -> None:
        """The page has the sections of the help, with the same commands, each with an example."""
        for title, names in SECTIONS.items():
            section = re.split(r"^## ", TEXT[TEXT.index(f"\n## {title}\n") + 4 :], flags=re.M)[0]
            assert sorted(re.findall(r"^### tape ([\w-]+)$", section, re.M)) == sorted(names)
            for name in names:
                part = re.split(r"^##", section[section.index(f"### tape {name}\n") + 4 :], flags=re.M)[0]
                assert re.search(rf"^\$ (echo .* \| )?tape (--store \S+ )?{name}\b", part, re.M), name

    def test_exit_codes(self) -> None:
        """The table has every exit code, and no other."""
        listed = [int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.M)]
        assert listed == sorted(
            value for name, value in vars(exit_codes).items() if name.isupper() and type(value) is int
        )

    def test_json_by_command(self) -> None:
        """The table tells of every command that prints JSON."""
        start = TEXT.index("| command | prints |")
        named = re.findall(r"^\| ((?:`\w+` ?)+)\|", TEXT[start : TEXT.index("\n\n", start)], re.M)
        listed = [name for names in named for name in re.findall(r"\w+", names)]
        quiet = ["demo", "help", "mcp", "open", "report", "serve"]
        assert sorted([*listed, *quiet]) == sorted(name for names in SECTIONS.values() for name in names)


class TestShapes:
    @pytest.fixture
    def members(self) -> dict[str, set[str]]:
        """The members of every shape, as the page lists them."""
        start = TEXT.index("| shape | members |")
        rows = re.findall(r"^\| ([\w ]+) \| (`.*`) \|$", TEXT[start : TEXT.index("\n\n", start)], re.M)
        return {name: set(re.findall(r"`(\w+)`", listed)) for name, listed in rows}

    def test_what_is_printed_has_the_members_listed(self, fresh: Shell, members: dict[str, set[str]]) -> None:
        """Each shape, taken from the output of a command, has exactly the members of its row."""
        chat = fresh.backend.open().create("c", messages=[{"id": "a", "content": "x"}, {"id": "b", "content": "y"}])
        chat.fork("f").append(role="user", content="z")
        found = {
            "tape": fresh("ls", "--json").json["tapes"][0],
            "entry": fresh("log", "c", "--json").json[0],
            "message": fresh("cat", "c", "--json").json[0],
            "hit": fresh("search", "x", "--json").json[0],
            "receipt": fresh("handoff", "c", "h", "--summary", "s", "--json").json,
            "anchor": fresh("anchors", "c", "--json").json[0],
            "merge receipt": fresh("merge", "c", "f", "--json").json,
            "lineage": fresh("info", "c", "--json").json["lineage"],
            "diff": fresh("diff", "c@1", "c", "--json").json,
            "finding": fresh("doctor", "--quick", "--json").json["findings"][0],
            "run": json_shapes.run(tape.RunInfo(id="r", tape="c", name=None, input=None, seq=1, status="open")),
            "call": json_shapes.call(
                tape.RecordedCall(run="r", tape="c", seq=1, lane="0", n=1, kind="tool", name="t", digest="")
            ),
            "checked": json_shapes.checked(
                tape.Checked(tape="c", run="r", name=None, status="same", calls=1, matched=1)
            ),
            "bisection": json_shapes.bisection(
                tape.Bisection(
                    tape="c",
                    run="r",
                    calls=1,
                    point=1,
                    bounds=(1, 1),
                    curve=[],
                    continuations=1,
                    rescued=None,
                    rescued_run=None,
                    change=None,
                    diff=None,
                )
            ),
            "summary": json_shapes.summary(tape.Summary("t", 1, "a", "b", [], False, "c", (1, 2), 1, 2)),
        }
        assert {name: set(one) for name, one in found.items()} == members

    def test_objects_have_the_members_listed(self, fresh: Shell, members: dict[str, set[str]], tmp_path: Path) -> None:
        """What a command prints as one object has the members that its row lists."""
        fresh.backend.open().create("c", messages=[{"id": "a", "content": "x"}])
        printed = {
            "info": fresh("info", "c", "--json").json.keys() - members["tape"],
            "stats": fresh("stats", "--json").json.keys(),
            "context": fresh("context", "c", "--json").json.keys(),
            "blame": fresh("blame", "c", "--json").json.keys(),
            "verify": fresh("verify", "--json").json.keys(),
            "rebuild": fresh("rebuild", "--json").json.keys(),
            "purge": fresh("retain", "--older-than", "1d", "--json").json.keys(),
            "migrate": fresh("migrate", "--check", "--json").json.keys(),
            "doctor": fresh("doctor", "--quick", "--json").json.keys(),
            "export": fresh("export", "c", str(tmp_path / "c"), "--json").json.keys(),
            "replay": fresh("replay", "c", "--at", "1", "--json").json.keys(),
        }
        for name, keys in printed.items():
            (row,) = re.findall(rf"^\| (?:`\w+` )*`{name}`(?: `\w+`)* \| (.*) \|$", TEXT, re.M)
            if name == "replay":
                row = row.partition("--at`")[2]
            listed = re.findall(r"`(\w+)`", row.partition(";")[0])
            assert sorted(keys) == sorted(listed), name


def test_environment_is_left_as_it_was() -> None:
    """The page's export stays within its test."""
    assert "TAPE_STORE" not in os.environ
    assert tape_command("--version").code == 0
