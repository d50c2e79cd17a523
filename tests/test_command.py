"""The ``tape`` command as a whole: its help, what it refuses and how, and where it finds its store."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backends import MakeBackend
from support.shell import Done, Shell, family, tape_command

import tape
from tape.command.app import run
from tape.command.exit_codes import judge, words
from tape.command.registry import SECTIONS, declared
from tape.core.entries.payloads import KINDS

ROOT = Path(__file__).resolve().parent.parent
TRANSCRIPT = str(ROOT / "tests" / "data" / "transcripts" / "codex-old.jsonl")
NAMES = [name for names in SECTIONS.values() for name in names]
ASKED = """
    demo ls info log show cat context replay diff search tree anchors fork merge discard handoff append retract follow
    verify rebuild export import backup purge retain stats doctor migrate hide unhide mcp help
    blame runs rerun check bisect serve open report
"""


class TestHelp:
    def test_every_command_asked_for_is_there(self) -> None:
        """The command has exactly the commands that were asked for."""
        assert sorted(NAMES) == sorted(ASKED.split())

    @pytest.mark.parametrize("name", NAMES)
    def test_every_command_has_help_examples_and_a_place_in_the_page(self, name: str) -> None:
        """Its help has a sentence and an example, every option has a text, and docs/command.md tells of it."""
        done = tape_command(name, "--help")
        assert done.code == 0
        body = done.out.split("Examples:")
        assert len(body) == 2
        assert body[0].split("\n\n")[1].strip().endswith(".")
        assert f"tape {name}" in body[1] or f"{name} " in body[1]
        options = [line for line in body[0].split("Options:")[1].splitlines() if line.strip().startswith("-")]
        assert len(options) >= 2
        page = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
        assert f"\n### tape {name}\n" in page

    @pytest.mark.parametrize(("name", "example"), [(name, one) for name in NAMES for one in declared(name).examples])
    def test_every_example_can_be_typed(self, name: str, example: str) -> None:
        """An example calls the command, with options that it has."""
        words = shlex.split(next(part for part in example.replace("&&", "|").split("|") if "tape " in part))
        assert words[0] == "tape"
        offered = tape_command(name, "--help").out + tape_command("--help").out
        for word in words:
            if word.startswith("--"):
                assert f" {word}" in offered, word
        assert name in words

    def test_every_printing_command_offers_json(self) -> None:
        """All commands print JSON when asked, but those that serve, that write a page, or that tell a story."""
        silent = [name for name in NAMES if "--json" not in tape_command(name, "--help").out]
        assert sorted(silent) == ["demo", "help", "mcp", "open", "report", "serve"]

    def test_without_a_command_it_shows_them_all(self) -> None:
        """The bare command lists every command by sections and ends as a wrong usage does."""
        done = tape_command()
        assert (done.code, done.err) == (2, "")
        for name in NAMES:
            assert f"\n  {name} " in done.out

    def test_version(self) -> None:
        """--version prints it."""
        assert tape_command("--version").out == f"tape {tape.__version__}\n"


def tape_of(file: Path) -> str:
    """Return the id of the tape in a demo's store that is no fork."""
    with tape.open(file) as store:
        return next(info.id for info in store.list() if info.parent is None)


READING = [
    ["ls"],
    ["info", "x"],
    ["log", "x"],
    ["show", "x", "1"],
    ["cat", "x"],
    ["context", "x"],
    ["replay", "x"],
    ["diff", "x", "x"],
    ["search", "x"],
    ["tree", "x"],
    ["anchors", "x"],
    ["follow", "--timeout", "0"],
    ["verify"],
    ["export", "x", "-"],
    ["stats"],
    ["doctor"],
]
WRITING = [
    ["fork", "x"],
    ["merge", "x", "y"],
    ["discard", "x"],
    ["hide", "x"],
    ["unhide", "x"],
    ["handoff", "x", "h", "--summary", "s"],
    ["append", "x", "text"],
    ["retract", "x", "m"],
    ["rebuild"],
    ["purge", "x", "--yes"],
    ["retain", "--older-than", "1d"],
    ["migrate"],
]


@pytest.fixture(scope="module")
def known(make_backend: MakeBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The command on a family in SQLite, for what has nothing to do with the engine."""
    with make_backend("sqlite", tmp_path_factory.mktemp("known")) as made:
        family(made.open())
        yield Shell(made)


class TestBadInput:
    @pytest.mark.parametrize("command", [*READING, *WRITING], ids=lambda command: command[0])
    def test_a_missing_store_is_an_error(self, command: list[str], tmp_path: Path) -> None:
        """No command but one that is told to creates a store: one line, exit code 3, no file."""
        done = tape_command("--store", str(tmp_path / "no.db"), *command)
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
        assert done.err.startswith(f"tape: there is no store at {str(tmp_path / 'no.db')!r}; ")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("command", [["ls"], ["doctor"], ["append", "x", "y", "--create"], ["import", TRANSCRIPT]])
    def test_another_programs_database_is_left_alone(self, command: list[str], tmp_path: Path) -> None:
        """A database without a store in it, and an empty file, are no store, and get no tables."""
        file, empty = tmp_path / "app.db", tmp_path / "empty.db"
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.close()
        empty.touch()
        for path in (file, empty):
            before = path.read_bytes()
            done = tape_command("--store", str(path), *command)
            assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
            assert path.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["app.db", "empty.db"]

    @pytest.mark.parametrize("command", [["ls"], ["doctor"], ["migrate"], ["append", "x", "y", "--create"]])
    def test_a_file_that_is_not_a_database(self, command: list[str], tmp_path: Path) -> None:
        """Another file at the path of the store is reported as damage, and stays unchanged."""
        file = tmp_path / "notes.txt"
        file.write_bytes(b"these are notes, not a database" * 100)
        done = tape_command("--store", str(file), *command)
        assert (done.code, file.read_bytes()[:9]) == (4, b"these are")
        assert "is not a SQLite database, or its first page is damaged" in done.out + done.err
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

    @pytest.mark.parametrize(
        ("url", "code", "says"),
        [
            ("mysql://host/db", 2, "use SQLite or PostgreSQL"),
            ("://", 2, "url"),
            ("postgres://nobody:secret@host/db", 2, "write it as postgresql://"),
            ("sqlite:///x.db?mode=ro", 2, "SQLite URLs take no parameters such as 'mode'; remove '?' and all after it"),
            ("post gres://nobody:secret@host/db", 2, "url"),
            ("postgresql://nobody:secret@127.0.0.1:1/none?connect_timeout=2", 6, "cannot connect"),
            (":memory:", 3, "there is no store"),
            (".", 2, "is a folder; name a file in it"),
            ("/dev/null", 2, "is not a file"),
            ("no/such.db", 3, "/no' does not exist; create the folder first"),
            ("", 3, "there is no store at 'tape.db'"),
        ],
    )
    def test_a_wrong_url(self, url: str, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A wrong URL prints one line, which never contains the password."""
        monkeypatch.chdir(tmp_path)
        done = tape_command("--store", url, "ls")
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
        assert says in done.err
        assert "secret" not in done.err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("command", [["ls"], ["append", "c", "Hello", "--create"], ["migrate", "--create"]])
    def test_a_broken_link(self, command: list[str], tmp_path: Path) -> None:
        """A link to a missing file is not a store, and no command creates a store through it."""
        (tmp_path / "link.db").symlink_to(tmp_path / "gone.db")
        done = tape_command("--store", str(tmp_path / "link.db"), *command)
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
        assert "; repair the link, or remove it" in done.err
        assert [path.name for path in tmp_path.iterdir()] == ["link.db"]

    @pytest.mark.parametrize(
        ("command", "code", "says"),
        [
            (["info", "nobody"], 3, "there is no tape 'nobody'; see: tape ls"),
            (["log", "nobody"], 3, "there is no tape 'nobody'"),
            (["diff", "chat@2", "nobody@3"], 3, "there is no tape 'nobody'"),
            (["diff", "chat@", "chat"], 2, "'chat@' has nothing after the @; write it as TAPE@SEQ"),
            (["show", "chat", "99"], 3, "tape 'chat' has no seq 99: its last entry is 13; see: tape log chat"),
            (["show", "chat", "0"], 2, "SEQ"),
            (["cat", "chat", "--at", "99"], 3, "has no seq 99"),
            (["cat", "chat", "--at", "nowhere"], 3, "has no anchor or message 'nowhere'"),
            (["cat", "chat", "--at", "2026-99-99"], 2, "'2026-99-99' is not a valid date"),
            (["cat", "chat", "--branch", "nothing"], 3, "tape 'chat' has no message 'nothing'; see: tape cat chat"),
            (["replay", "chat", "--from", "9", "--to", "3"], 2, "--from 9 comes after --to 3; swap them"),
            (["replay", "chat", "--to", "99"], 3, "has no seq 99"),
            (["replay", "chat", "--step", "--json"], 2, "--step is interactive and cannot print JSON"),
            (["fork", "chat", "--at", "99"], 3, "has no seq 99"),
            (["log", "chat", "--kind", "noise"], 2, "--kind: unknown kind 'noise'; choose one of: open, append, "),
            (["log", "chat", "--since", "soon"], 2, "--since: 'soon' is not a date or a duration"),
            (["retain", "--older-than", "old"], 2, "'old' is not a duration"),
            (["retain", "--older-than", "999999999w"], 2, "'999999999w' is too long a duration"),
            (["log", "chat", "--since", "999999999d"], 2, "'999999999d' ago is before the year 1"),
            (["ls", "--order", "size"], 2, "order"),
            (["ls", "--cursor", "x"], 2, "cursor"),
            (["context", "chat", "--budget", "1"], 1, "raise --budget"),
            (
                ["context", "chat", "--format", "xml"],
                2,
                "--format: invalid value 'xml'; choose one of: openai, anthropic, text",
            ),
            (["context", "chat", "--recorded", "2"], 2, "seq"),
            (["append", "chat"], 2, "append needs either TEXT or --message"),
            (["append", "chat", "--message", "{"], 2, "--message: invalid JSON"),
            (["append", "chat", "--message", "[1]"], 2, "--message: the JSON must be an object"),
            (["append", "chat", "x", "--meta", "NaN"], 2, "--meta: the JSON must be an object"),
            (["retract", "chat", "nothing"], 3, "tape 'chat' has no message 'nothing'; see: tape cat chat"),
            (["merge", "chat", "hotels", "--strategy", "rebase"], 2, "choose one of: replay, squash, link"),
            (["merge", "chat", "hotels", "--fields", "[1]"], 2, "--fields: the JSON must be an object"),
            (["fork", "chat", "--id", "hotels", "--at", "1"], 1, "tape 'hotels' already exists; choose another id"),
            (["merge", "hotels", "chat"], 2, "tape: 'chat' is not a fork"),
            (["discard", "chat"], 2, "tape: 'chat' is not a fork"),
            (["discard", "hotels"], 1, "merged"),
            (["export", "chat", "-", "--json"], 2, "goes to stdout"),
            (["export", "chat", "/no/such/folder/x"], 3, "the folder of '/no/such/folder/x' does not exist"),
            (["import", "/no/such/file"], 3, "cannot read"),
            (["import", ".", "-"], 2, "import that file on its own"),
            (["follow", "--after", "-1"], 2, "--after"),
            (
                ["follow", "--after", "9" * 30, "--timeout", "0"],
                2,
                "--after: 999999999999999999999999999999 is out of range",
            ),
            (
                ["follow", "--timeout", "inf", "--all", "-n", "1"],
                2,
                "--timeout: inf is out of range; use at most 9223372036854775807",
            ),
            (["show", "chat", str(2**63)], 2, "SEQ: 9223372036854775808 is out of range"),
            (["log", "chat", "-n", "1" + "0" * 4000], 2, "--limit: 10000000000000000000... is out of range"),
            (["search", "x", "-n", str(2**63)], 2, "--limit: 9223372036854775808 is out of range"),
            (
                ["append", "chat", "x", "--expected-head", str(2**64)],
                2,
                "--expected-head: 18446744073709551616 is out of range",
            ),
            (["append", "chat", "x", "--meta", '{"a": ' * 100_000], 2, "--meta: the JSON is nested too deeply"),
            (["append", "chat", "--message", '{"a": ' * 900 + "1" + "}" * 900], 2, ""),
            (["context", "chat", "--recorded", "2", "--format", "openai"], 2, "leave out all other options but --json"),
            (["context", "chat", "--recorded", "2", "--manifest"], 2, "leave out all other options but --json"),
            (["context", "chat", "--recorded", "2", "--at", "3"], 2, "leave out all other options but --json"),
            (["context", "chat", "--manifest", "--format", "openai"], 2, "leave out one of them"),
            (["replay", "chat", "--at", "3", "--from", "2"], 2, "leave it out, or add --step"),
            (["tree", "chat", "--forks", "--at", "3"], 2, "leave out --at"),
            (["follow", "--all", "--after", "3", "--timeout", "0"], 2, "--all and --after cannot be combined"),
            (["ls", "--status", "bogus"], 2, "choose one of: active, abandoned, completed, discarded, ended"),
            (
                ["retain", "--older-than", "1d", "--status", "bogus"],
                2,
                "--status: invalid value 'bogus'; choose one of: active, ",
            ),
            (["rerun", "chat", "--agent", "nothing"], 2, "--agent: 'nothing' does not name a function"),
            (
                ["bisect", "chat", "1", "--agent", "json:loads", "--check", "nothing"],
                2,
                "--check: 'nothing' does not name a function",
            ),
            (
                ["bisect", "chat", "1", "--agent", "json:loads", "--check", "json:no"],
                3,
                "--check: cannot load 'json:no': module 'json' has no attribute 'no'; ",
            ),
            (["info", "..otel"], 3, "there is no tape '..otel'"),
            (["log"], 2, "Missing argument"),
            (["log", "chat", "--what"], 2, "--what"),
            (["rewind"], 2, "No such command 'rewind'"),
        ],
        ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
    )
    def test_wrong_input_is_one_line_and_changes_nothing(
        self, command: list[str], code: int, says: str, known: Shell
    ) -> None:
        """Wrong input prints one line on stderr and nothing on stdout, and the exit code names the kind of error."""
        before = known.state()
        done = known(*command)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done.err
        assert done.err.startswith("tape: ")
        assert says in done.err
        assert known.state() == before

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_closed_streams(self, closed: str, tmp_path: Path) -> None:
        """A command whose input or output is closed does its work, and writes into no file of the store."""
        store = str(tmp_path / "new.db")
        words = [sys.executable, "-m", "tape.command", "-s", store, "append", "c", "-", "--create"]
        done = subprocess.run(
            ["sh", "-c", f"{shlex.join(words)} {closed}"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert tape_command("-s", store, "verify").out == "2 entries of 1 tape: no problems\n"

    def test_no_name_forges_a_line(self, lite: Shell) -> None:
        """What somebody named stays on its line, and characters that break or turn one are shown as escapes."""
        chat = lite.backend.open().create("c", name="a\nstatus    completed\u2028b\u2029c\u061cd")
        chat.append({"role": "user\nforged\x1b[2J", "content": "word"})
        lines = lite("info", "c").lines
        assert lines[1] == r"name      a\nstatus    completed\u2028b\u2029c\u061cd"
        assert sum(line.startswith("status") for line in lines) == 1
        for command in (["search", "word"], ["cat", "c"], ["context", "c"]):
            assert [line for line in lite(*command).lines if line.startswith("forged") or "\x1b" in line] == []

    def test_the_end_of_an_id_names_a_tape(self, lite: Shell) -> None:
        """What is printed for a long id can be given back; if several end so, it names none."""
        store = lite.backend.open()
        chat = store.create("0199b2f0-0000-7000-8000-00004f3fd2cd", messages=[{"role": "user", "content": "x"}])
        store.create("another-long-identifier-of-4f3fd2cd")
        told = lite("follow", "--all", "--timeout", "0").out.split()
        (shown,) = {word.partition(":")[0] for word in told if word.startswith("..")}
        assert shown == "..4f3fd2cd"
        assert lite("info", shown).code == 3
        assert lite("info", "..00004f3fd2cd", "--json").json["id"] == chat.id
        assert lite("diff", "..00004f3fd2cd@1", "@2").code == 0
        assert lite("info", "..cd").code == 3

    def test_suggested_commands_can_be_typed(self, tmp_path: Path) -> None:
        """The next step names the store if this command did, and quotes what a shell would take apart."""
        file = tmp_path / "my store.db"
        with tape.open(file) as store:
            store.create("it's; a tape")
            store.create("b")
        where, quoted = f"--store {shlex.quote(str(file))}", shlex.quote("it's; a tape")
        done = tape_command("-s", str(file), "show", "it's; a tape", "9")
        assert done.err.endswith(f"see: tape log {quoted} {where}\n")
        assert tape_command("info", "no", "-s", str(file)).err.endswith(f"see: tape ls {where}\n")
        more = tape_command("-s", str(file), "--owner", "", "ls", "-n", "1").err
        assert tape_command(*shlex.split(more.partition(": tape ")[2])).lines[1].startswith("it's; a tape")
        assert tape_command("-s", str(file), "append", "b").err.endswith("see: tape append --help\n")

    def test_debug_shows_the_traceback(self, known: Shell) -> None:
        """With --debug, and only then, there is a traceback in front of the line."""
        plain, debug = known("info", "nobody"), known("info", "nobody", "--debug")
        assert (plain.code, debug.code) == (3, 3)
        assert "Traceback" not in plain.err
        assert "Traceback" in debug.err
        assert debug.err.endswith(plain.err)

    def test_an_unexpected_error_is_one_line(self, known: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bug is reported in one line, which says how to report it."""
        monkeypatch.setattr(tape.Store, "stats", lambda self: 1 / 0)
        done = known("stats")
        hint = "run it again with --debug and report the traceback"
        assert (done.code, done.err) == (1, f"tape: unexpected error: ZeroDivisionError: division by zero; {hint}\n")

    def test_an_interrupt_is_quiet(self, known: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C ends with 130 and without a word."""

        def interrupt(self: tape.Store) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(tape.Store, "stats", interrupt)
        assert known("stats") == Done(130, "", "")


class TestEnvironment:
    def test_the_store_of_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """TAPE_STORE names the store; --store, before or behind the command, goes first; tape.db is the last resort."""
        monkeypatch.chdir(tmp_path)
        for name in ("env", "option", "tape"):
            with tape.open(f"{name}.db") as store:
                store.create(name)

        def ids(*arguments: str) -> list[str]:
            return [one["id"] for one in tape_command(*arguments, "--json").json["tapes"]]

        assert ids("ls") == ["tape"]
        monkeypatch.setenv("TAPE_STORE", "env.db")
        assert ids("ls") == ["env"]
        assert ids("--store", "option.db", "ls") == ids("ls", "-s", "option.db") == ["option"]
        monkeypatch.setenv("TAPE_OWNER", "ann")
        assert ids("ls") == []

    @pytest.mark.parametrize("missing", ["typer", "rich"])
    def test_without_the_extra_it_says_how_to_get_it(self, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without typer or rich the command is one line and exit code 1."""
        monkeypatch.setitem(sys.modules, missing, None)
        line = f"tape: the package {missing!r} is not installed; run: pip install 'tape-store[cli]'\n"
        assert tape_command("ls") == Done(1, "", line)

    def test_the_library_does_without_the_extra(self) -> None:
        """``import tape`` loads neither typer nor the command."""
        code = "import sys, tape; print({'typer', 'tape.command'} & set(sys.modules))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "set()\n"

    def test_stops_quietly_when_its_reader_does(self, tmp_path: Path) -> None:
        """``tape log | head`` is no error."""
        with tape.open(tmp_path / "a.db") as store:
            store.create("c", messages=[{"role": "user", "content": "x" * 2_000}] * 200)
        command = [sys.executable, "-m", "tape.command", "-s", str(tmp_path / "a.db"), "log", "c", "--json"]
        ran = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert ran.stdout is not None
        assert ran.stderr is not None
        ran.stdout.readline()
        ran.stdout.close()
        assert (ran.wait(60), ran.stderr.read()) == (0, b"")
        ran.stderr.close()

    def test_a_terminal_without_unicode(self, tmp_path: Path) -> None:
        """What stdout cannot encode is escaped; JSON stays JSON."""
        with tape.open(tmp_path / "a.db") as store:
            store.create("c", messages=[{"role": "user", "content": "grün 你好"}])

        where = ("-s", str(tmp_path / "a.db"))
        assert "gr\\xfcn" in tape_command(*where, "cat", "c", encoding="ascii").out
        found = tape_command(*where, "cat", "c", "--json", encoding="ascii").json
        assert found[0]["message"]["content"] == "grün 你好"

    def test_completion(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        """The shell completes commands, and the ids of tapes in the store."""
        if shell.backend.postgres:
            monkeypatch.setenv("TAPE_SCHEMA", shell.backend.schema or "")
        monkeypatch.setenv("TAPE_STORE", shell.backend.address)
        monkeypatch.setenv("_TAPE_COMPLETE", "complete_bash")

        def complete(line: str) -> list[str]:
            monkeypatch.setenv("COMP_WORDS", line)
            monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
            return tape_command().out.split()

        assert sorted(complete("tape re")) == ["rebuild", "replay", "report", "rerun", "retain", "retract"]
        assert complete("tape log h") == ["hotels"]
        assert complete("tape log chat --kind re") == ["revise", "retract", "restore"]
        monkeypatch.setenv("TAPE_STORE", "/no/such/store.db")
        assert complete("tape log h") == []

    def test_the_demo(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The demo writes to its own file, whatever store the environment names."""
        monkeypatch.setenv("TAPE_STORE", str(tmp_path / "real.db"))
        done = tape_command("demo", str(tmp_path / "demo.db"))
        assert done.code == 0
        assert "10. Verify" in done.out
        assert not (tmp_path / "real.db").exists()
        assert len(tape_command("-s", str(tmp_path / "demo.db"), "log", "Lisbon", "--graph").lines) == 16
        assert f"now try:  tape --store {tmp_path}/demo.db log {tape_of(tmp_path / 'demo.db')} --graph\n" in done.err
        assert tape_command("demo", str(tmp_path / "no" / "demo.db")).code == 3

    def test_the_demo_needs_a_new_file(self, tmp_path: Path, fresh: Shell) -> None:
        """The demo refuses a file or a store that already exists, and changes nothing."""
        (tmp_path / "notes.txt").write_text("mine")
        before = fresh.state()
        for place in (str(tmp_path / "notes.txt"), fresh.backend.address):
            schema = ["--schema", fresh.backend.schema] if fresh.backend.schema and "://" in place else []
            done = tape_command("demo", place, *schema)
            assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
            assert "already exists; name a new file for the demo" in done.err
        assert (tape_command("demo", str(tmp_path)).code, tape_command("demo", ":memory:").code) == (2, 2)
        assert (fresh.state(), (tmp_path / "notes.txt").read_text()) == (before, "mine")

    def test_warnings_of_the_log_stay_out_of_the_output(self, lite: Shell) -> None:
        """A purge is logged as a warning, which the user has not asked to see."""
        lite.backend.open().create("c")
        assert lite("purge", "c", "--yes").err == "purged 1 tape, 1 entry\n"

    def test_kinds_are_those_of_the_library(self, known: Shell) -> None:
        """--kind takes every kind there is."""
        kinds = [word for kind in KINDS for word in ("--kind", kind)]
        assert len(known("log", "chat", *kinds, "--json").json) == 13


def test_the_command_is_a_thin_face() -> None:
    """It asks the library: no statement of SQL is in it, and no transaction."""
    forbidden = re.compile(r"SELECT .* FROM|UPDATE .* SET|\.execute\(|\.(read|write)\(lambda")
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tape" / "command").rglob("*.py")}
    assert len(sources) > 10
    assert [name for name, source in sources.items() if forbidden.search(source)] == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (tape.StoreBusy(5.0), "the store was busy for 5.0 s"),
        (tape.TablesTaken(["tape_entries"]), "tables of another program have the store's names (tape_entries)"),
        (tape.TapeInUse("c", ["f"]), "tape 'c' is used by 'f'"),
        (tape.TapeExists("c", purged=True), "tape 'c' was purged"),
        (tape.TapeExists("c", hidden=True), "tape 'c' already exists, but is hidden"),
        (tape.TapeHidden("c", "a; b"), "tape 'c' is hidden (a; b)"),
        (
            tape.CommitUnknown("c", "k"),
            "it is unknown whether the entry with key 'k' of tape 'c' was recorded",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_the_hint_replaces_the_advice_of_the_library(error: tape.TapeError, message: str) -> None:
    """Where the command has a hint with its own options, it leaves out the advice for callers of the library."""
    assert str(error).startswith(f"{message}; ")
    assert (words(error), judge(error)[1] is None) == (message, False)


def test_run_returns_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """``run`` never raises, whatever it is given."""
    assert run(["no-such-command"]) == 2
    assert capsys.readouterr().err.startswith("tape: ")


class TestCommand:
    """What the command prints can be sent to a terminal."""

    def test_json_holds_no_control_character(self, lite: Shell) -> None:
        """C1, DEL and what turns a line around are escapes in JSON, and read back as they were."""
        said = "".join(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x200E, 0x2028, 0x202E, 0x2066, 0xFEFF])) + "é"
        with lite.backend.open() as store:
            chat = store.create("a", messages=[{"role": "user", "content": said}])
            chat.event("score", {said: said})
        for command in (("log", "a", "--json"), ("show", "a", "2", "--json"), ("context", "a", "--json")):
            printed = lite(*command).out
            shown = [char for char in printed if unicodedata.category(char) in ("Cc", "Cf", "Zl") and char != "\n"]
            assert (command, shown) == (command, [])
        [message] = [entry["payload"]["message"] for entry in lite("log", "a", "--json").json if entry["seq"] == 2]
        assert message["content"] == said
