"""What the command does for a person at a terminal: the pager, colours, widths, and text that can be trusted."""

from __future__ import annotations

import json
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.agent_story import AFTER, BEFORE, agent_story
from support.screens import Terminal
from support.shell import Shell, tape_command
from support.sizes import full, size

import tape
from tape.command.output import cut, money, plain, width, wrapped
from tape.command.show.differences import changes
from tape.command.show.events import event_sentence
from tape.command.show.messages import Look
from tape.core.messages.thinking import thinking
from tape.core.worddiff import spans

needs_less = pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
SESSION = "0199c5f0"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a store that holds a session of an agent."""
    path = tmp_path_factory.mktemp("story") / "a.db"
    with tape.open(path) as made:
        agent_story(made)
    return str(path)


class TestPager:
    @needs_less
    def test_what_fits_is_printed_and_what_does_not_waits(self, story: str) -> None:
        """less ends by itself where all fits, waits where it does not, and q leaves without a word."""
        with Terminal("--store", story, "ls") as terminal:
            assert terminal.end() == 0
        with Terminal("--store", story, "cat", SESSION) as terminal:
            terminal.wait(lambda rows: rows[-1].startswith(":"))
            terminal.type("q")
            assert terminal.end() == 0
            assert "Traceback" not in terminal.sent

    @pytest.mark.parametrize(
        ("environment", "option", "paged"),
        [
            ({"TAPE_PAGER": "sed s/^/A:/", "PAGER": "sed s/^/B:/"}, [], "A:"),
            ({"PAGER": "sed s/^/B:/"}, [], "B:"),
            ({"PAGER": "sed s/^/B:/"}, ["--no-pager"], ""),
            ({"TAPE_PAGER": "", "PAGER": "sed s/^/B:/"}, [], ""),
            ({"PAGER": "cat"}, [], ""),
        ],
    )
    def test_which_pager(self, story: str, environment: dict[str, str], option: list[str], paged: str) -> None:
        """TAPE_PAGER comes before PAGER, cat and nothing are none, and --no-pager is none either."""
        with Terminal(
            "--store", story, *option, "ls", "--color", "never", columns=120, rows=24, **environment
        ) as terminal:
            assert terminal.end() == 0
            assert terminal.screen[0].startswith(f"{paged}TAPE ")

    def test_a_note_comes_after_the_pager(self, story: str) -> None:
        """A note on stderr appears below the output of the pager, not inside it."""
        with Terminal("--store", story, "ls", "-n", "1", "--color", "never", PAGER="sed s/^../A:/") as terminal:
            assert terminal.end() == 0
            rows = [row for row in terminal.screen if row]
        assert [row[:2] for row in rows[:2]] == ["A:", "A:"]
        assert rows[2].startswith("next page: tape ls --cursor")

    def test_a_pipe_has_none(self, story: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Output to a program or a file is never paged."""
        monkeypatch.setenv("PAGER", "false")
        assert tape_command("--store", story, "ls").lines[0].startswith("TAPE ")


class TestColours:
    @pytest.mark.parametrize(
        ("environment", "option", "colours"),
        [
            ({}, [], False),
            ({}, ["--color", "always"], True),
            ({"FORCE_COLOR": "1"}, [], True),
            ({"FORCE_COLOR": "0"}, [], False),
            ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
            ({"FORCE_COLOR": "1"}, ["--color", "never"], False),
            ({"NO_COLOR": "1"}, ["--color", "always"], True),
            ({"FORCE_COLOR": "1"}, ["--color", "auto"], True),
        ],
    )
    def test_in_a_pipe(
        self,
        story: str,
        environment: dict[str, str],
        option: list[str],
        colours: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The option comes first, then NO_COLOR, then FORCE_COLOR; a pipe has no colours by itself."""
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert ("\x1b[" in tape_command("--store", story, "ls", *option).out) is colours

    def test_an_invalid_color(self, story: str) -> None:
        """--color takes auto, always or never."""
        done = tape_command("--store", story, "--color", "red", "ls")
        assert (done.code, done.err) == (2, "tape: --color: invalid value 'red'; choose one of: auto, always, never\n")


class TestWidths:
    @pytest.mark.parametrize("columns", ["60", "80", "200"])
    @pytest.mark.parametrize(
        "command",
        [
            ["ls"],
            ["info", SESSION],
            ["log", SESSION],
            ["log", SESSION, "--oneline"],
            ["log", SESSION, "--graph"],
            ["cat", SESSION, "--full"],
            ["tree", SESSION],
            ["anchors", SESSION],
            ["search", "plan"],
            ["context", SESSION],
            ["diff", f"{SESSION}:2"],
            ["diff", f"{SESSION}:9", "--stat"],
            ["replay", SESSION],
            ["replay", f"{SESSION}:11"],
            ["show", f"{SESSION}:10"],
            ["show", f"{SESSION}:3"],
            ["show", f"{SESSION}:5"],
        ],
        ids=lambda command: "-".join(word.strip("-") for word in command),
    )
    def test_no_line_is_longer(
        self, story: str, command: list[str], columns: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every command keeps to the width it is given, and sends no control character of a message."""
        monkeypatch.setenv("COLUMNS", columns)
        done = tape_command("--store", story, *command)
        assert [line for line in done.lines if width(line) > int(columns)] == []
        assert done.lines
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.out)

    def test_a_wide_terminal_is_used(self, story: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """With more room more is shown: ids, titles and texts whole."""
        shown = {}
        for columns in ("80", "200"):
            monkeypatch.setenv("COLUMNS", columns)
            shown[columns] = tape_command("--store", story, "ls").out
        assert "A question in passing about a much longer title" in shown["200"]
        assert "A question in passing about a much longer title" not in shown["80"]
        assert "0199c5f0-7a3e-7d52-9c1f-4b1f3f5f8a11" in shown["200"]

    def test_rows_keep_to_columns(self) -> None:
        """Wide characters count twice, marks not at all, and a word longer than a row is broken."""
        for text in ("a b " * 30, "漢字" * 40, "e\u0301" * 90, "x" * 200, "- item " + "word " * 30, " " * 90 + "x", ""):
            rows = wrapped(text, 40, "    ")
            assert all(width(plain(row)) <= 40 for row in rows)
            assert "".join("".join(plain(row) for row in rows).split()) == "".join(text.split())
        assert [width(cut("漢字" * 40, most)) <= most for most in range(4, 20)] == [True] * 16

    def test_money(self) -> None:
        """Money has a currency, and as many digits as it needs."""
        amounts = [0, 42, 8_700, 999_999, 1_250_000, 1_996_000, 12_345_678_901, -5_000_000]
        shown = ["$0.00", "$0.000042", "$0.0087", "$0.999999", "$1.25", "$2.00", "$12,345.68", "-$5.00"]
        assert [money(amount) for amount in amounts] == shown
        assert money(1_500_000, "EUR") == "€1.50"
        assert money(1_500_000, "CHF") == "CHF 1.50"


class TestMessages:
    def test_thinking_is_text_and_folded(self, story: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Thinking prints as its text without a signature; on a terminal a few rows of it, with --full all."""
        monkeypatch.setenv("COLUMNS", "80")
        folded, whole = (tape_command("--store", story, "cat", SESSION, *more).out for more in ([], ["--full"]))
        assert ("[7 more rows of thinking: --full]" in folded, "more rows" in whole) == (True, False)
        assert (folded.count("wants a plan"), whole.count("user wants a"), "c2lnbmF0" in whole) == (9, 28, False)

    @pytest.mark.parametrize(
        ("part", "text"),
        [
            ({"type": "thinking", "thinking": "Hm.", "signature": "x"}, "Hm."),
            (
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "x"},
                "Hm.",
            ),
            ({"type": "reasoning", "text": "Hm."}, "Hm."),
            ({"thought": True, "text": "Hm."}, "Hm."),
            ({"type": "redacted_thinking", "data": "x"}, ""),
            ({"type": "text", "text": "Hm."}, None),
        ],
    )
    def test_thinking_of_every_api(self, part: dict[str, object], text: str | None) -> None:
        """What a model thought is read from the part of any API."""
        assert thinking(part) == text

    def test_tools_are_named(self, story: str) -> None:
        """A result stands under the name of its tool, and an error is one."""
        lines = tape_command("--store", story, "log", SESSION, "--oneline", "--tool", "Bash", "--reverse").lines
        assert [re.sub(r"^(\d+) \S+ \S+ append ", r"\1 ", line)[:33] for line in lines] == [
            "3 assistant: calls Bash(ls migrat",
            "4 tool: result of Bash: 0001_star",
            "7 assistant: calls Bash(command=p",
            "8 tool: error of Bash: ERROR: rel",
        ]

    @pytest.mark.parametrize(
        ("name", "data", "sentence"),
        [
            ("run.started", None, "run started"),
            ("note", "see above", "note: see above"),
            ("codex.state", {"record_type": "state"}, "codex state"),
            (
                "claude-code.summary",
                {"type": "summary", "summary": "Done.", "leafUuid": "x"},
                "claude code summary: Done.",
            ),
            ("score", {"value": 0.5, "passed": True}, "score: value 0.5, passed yes"),
            ("codex.tokens", {"info": {"total": {"input_tokens": 1234}}}, "codex tokens: input tokens 1,234"),
            ("tape.compaction", {"state": "failed", "why": "no answer"}, "compaction failed: no answer"),
        ],
    )
    def test_events_are_sentences(self, name: str, data: object, sentence: str) -> None:
        """An event is told in words, without braces and ids."""
        assert event_sentence(name, data) == sentence


class TestLog:
    @pytest.mark.parametrize(
        ("options", "seqs"),
        [
            (["--errors"], [8]),
            (["--grep", "migration"], [13, 10, 7, 3, 2]),
            (["--grep", "Migration"], []),
            (["--grep", "old_orders|Tuesday"], [10, 8]),
            (["--actor", "assistant"], [9, 7, 3]),
            (["--actor", "user", "-n", "2"], [11, 10]),
            (["--tool", "Bash"], [8, 7, 4, 3]),
            (["--tool", "Bash", "--errors"], [8]),
            (["--kind", "event"], [6]),
            (["-n", "3", "--reverse"], [11, 12, 13]),
            (["--until", "2026-03-02T09:01:00Z"], [3, 2]),
            (["--since", "2026-03-02T09:02:00Z", "--until", "2026-03-03", "--no-events"], [11, 9, 8]),
        ],
        ids=lambda value: "-".join(map(str, value)),
    )
    def test_choosing(self, story: str, options: list[str], seqs: list[int]) -> None:
        """Entries are chosen by what they say, who caused them, their tool, that they failed, and when it happened."""
        done = tape_command("--store", story, "log", SESSION, *options, "--json")
        assert [entry["seq"] for entry in done.json] == seqs

    def test_a_wrong_expression(self, story: str) -> None:
        """An invalid regular expression gives one line on stderr."""
        done = tape_command("--store", story, "log", SESSION, "--grep", "(")
        assert (done.code, done.err[:46]) == (2, "tape: --grep: invalid regular expression '(': ")

    def test_the_same_on_both_engines(self, shell: Shell) -> None:
        """What is chosen does not depend on the database."""
        assert [entry["seq"] for entry in shell("log", "chat", "--grep", "train", "--json").json] == [
            13,
            11,
            10,
            8,
            7,
            4,
        ]
        assert [entry["seq"] for entry in shell("log", "chat@8", "--actor", "user", "--reverse", "--json").json] == [2]
        assert shell("log", "chat", "--reverse", "--json").json == shell("log", "chat", "--json").json[::-1]

    @full
    @needs_less
    def test_the_first_screen_of_a_long_tape(self, tmp_path: Path) -> None:
        """The first screen of a tape of 100 000 entries is there as soon as that of a tape of two."""
        with tape.open(tmp_path / "a.db") as store:
            store.create("short").append(role="user", content="only")
            long = store.create("long")
            for _ in range(size(5, 100)):
                long.extend([{"role": "user", "content": f"message {number}"} for number in range(1_000)])

        def first(id: str, shown: str, *command: str) -> float:
            """Return the seconds of work until it is shown, which others who share the machine do not add to."""
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with Terminal("--store", str(tmp_path / "a.db"), *command, id) as terminal:
                terminal.wait(shown)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        for command, shown in ((("log",), "entry "), (("cat",), "user"), (("replay", "--step"), "[entry]")):
            behind = 1.0
            rounds: list[tuple[float, float]] = []
            # Each round starts two programs: others follow only when the machine was busy with something else.
            while behind >= 0.3 and len(rounds) < 3:
                rounds.append((first("long", shown, *command), first("short", shown, *command)))
                behind = min(long for long, _ in rounds) - min(short for _, short in rounds)
            assert behind < 0.3


class TestDifferences:
    def test_nothing_that_changed_is_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """However long a text and narrow the terminal, every word that came or went is printed, and little else."""
        words = [f"word{number}" for number in range(20_000)]
        changed = [*words[:10_000], "HERE", *words[10_001:-1], "THERE " * 50]
        with tape.open(tmp_path / "a.db") as store:
            chat = store.create("c", messages=[{"role": "assistant", "content": " ".join(words), "id": "m"}])
            chat.revise("m", content=" ".join(changed))
        monkeypatch.setenv("COLUMNS", "80")
        for command in (["diff", "c:2"], ["show", "c:3"], ["replay", "c", "--from", "3"]):
            out = tape_command("--store", str(tmp_path / "a.db"), *command).out
            assert (out.count("HERE"), out.count("THERE"), out.count("word10000")) == (51, 50, 1)
            assert len(out) < 4_000

    def test_lines_around_and_counts(self, story: str) -> None:
        """-U says how many equal lines stand around a change, and --stat counts the words instead."""
        lines = {
            n: tape_command("--store", story, "diff", f"{SESSION}:9", f"{SESSION}:10", "-U", n).lines for n in "015"
        }
        assert [len(lines[n]) for n in "015"] == [7, 10, 22]
        stat = tape_command("--store", story, "diff", f"{SESSION}:9", f"{SESSION}:10", "--stat").lines
        assert stat[-1] == "1 message, 7 words added, 6 words removed"
        assert sum(span.kind != "equal" for span in spans(BEFORE, AFTER)) == 4

    def test_a_change_beside_the_text(self, tmp_path: Path) -> None:
        """A member that no text shows, a role or a break of a line is seen when it changes."""
        cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            ({"content": "a", "name": "x"}, {"content": "a", "name": "y"}, '"name": "[-x-]{+y+}"'),
            ({"content": "a\nb"}, {"content": "a b"}, "[-\\n-]"),
            (
                {"content": [{"type": "text", "text": "a", "cache": 1}]},
                {"content": [{"type": "text", "text": "a"}]},
                "cache",
            ),
        ]
        with tape.open(tmp_path / "a.db") as store:
            for number, (before, after, shown) in enumerate(cases):
                chat = store.create(f"c{number}")
                chat.append({"role": "user", "id": "m", **before})
                chat.revise("m", {"role": "user", "id": "m", **after})
                lines = [plain(line) for line in changes(chat.diff(2, 3), Look(80))]
                assert any(shown in line for line in lines), lines

    def test_json_stays_whole(self, story: str) -> None:
        """For programs a difference is data, and says it all."""
        done = tape_command("--store", story, "diff", f"{SESSION}:9", f"{SESSION}:10", "--json")
        (change,) = done.json["revised"]
        assert [change[side]["message"]["content"] for side in ("before", "after")] == [BEFORE, AFTER]
        assert json.loads(done.out) == done.json
