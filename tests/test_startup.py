"""What a process loads: the library, the command, and a store each load what they need and nothing else.

Every claim is read from the modules of a fresh process. How long it takes is told by ``benchmarks/startup.py``.
"""

from __future__ import annotations

import ast
import functools
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.processes import PATIENCE
from support.shell import tape_command

import tape
from tape.command.registry import SECTIONS, app, declared
from tape.db.schema.tables import Tables

ROOT = Path(__file__).resolve().parent.parent

STORE = {"sqlalchemy", "sqlite3", "tape.db", "tape.store", "tape.handles", "tape.aio"}
RARE = {"alembic", "rich.console", "structlog", "psycopg", "pydantic", "sqlalchemy.dialects.postgresql"}
"""What no command that succeeds on SQLite needs, printing to no terminal."""


class Ended(NamedTuple):
    """What a process printed, and the modules it had when it ended."""

    out: str
    modules: set[str]


def ended(code: str, *arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> Ended:
    """Run code in a fresh process and return how it ended."""
    last = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TAPE_", "_TAPE_"))}
    done = subprocess.run(
        [sys.executable, "-c", last + code, *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Ended(done.stdout, set(done.stderr.split()))


def command(*arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> Ended:
    """Run the command as its script does."""
    return ended("from tape.command import main; sys.exit(main())", *arguments, cwd=cwd, environment=environment)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small store."""
    folder = tmp_path_factory.mktemp("small")
    with tape.open(folder / "tape.db") as store:
        store.create("chat", messages=[{"role": "user", "content": "Plan the trip"}])
    return folder


class TestLibrary:
    def test_the_import_loads_nothing(self) -> None:
        """Of the library, ``import tape`` loads the package alone, and nothing that others wrote."""
        found = ended("import tape").modules
        assert {name for name in found if name.split(".")[0] == "tape"} == {"tape"}
        assert not {"sqlalchemy", "msgspec", "structlog", "alembic", "typing", "asyncio"} & found

    def test_a_store_loads_its_own_dialect(self, small: Path) -> None:
        """Opening, writing and reading a store on SQLite needs no other engine, no migration, no log, no terminal."""
        code = """import tape
with tape.open("tape.db") as store:
    chat = store.get("chat")
    chat.append(role="user", content="Book it")
    chat.context(budget=1_000).to_openai()
"""
        found = ended(code, cwd=small).modules
        assert {"sqlalchemy.dialects.sqlite", "tape.store"} <= found
        assert not (RARE | {"typer", "tape.command", "tape.transcripts"}) & found
        assert not {name for name in found if name.startswith(("tape.db.transfer.", "tape.db.maintain."))}

    def test_an_event_that_nobody_wants_loads_no_log(self, small: Path) -> None:
        """Only an event that is wanted is made into a line."""
        code = "import logging, tape\nlogging.basicConfig(level={!r})\ntape.open('tape.db').list()\n"
        assert "structlog" not in ended(code.format("WARNING"), cwd=small).modules
        assert "structlog" in ended(code.format("INFO"), cwd=small).modules


class TestNames:
    """The names of the package, each of which is loaded when it is first used."""

    def test_the_table_of_names_is_what_type_checkers_see(self) -> None:
        """A name comes at run time from the module that the import for type checkers names, and is public."""
        source = ast.parse(Path(tape.__file__).read_text(encoding="utf-8"))
        (seen,) = [node for node in source.body if isinstance(node, ast.If)]
        imports = [node for node in seen.body if isinstance(node, ast.ImportFrom)]
        assert len(imports) == len(seen.body)
        named = {alias.asname or alias.name: node.module for node in imports for alias in node.names}
        # The one module that programs reach through the package is no name of its own.
        assert named.pop("payloads") == "tape"
        assert vars(tape)["_HOME_OF"] == named
        assert sorted(named) == sorted(tape.__all__)

    def test_each_is_the_one_of_its_module(self) -> None:
        """A name of the package is the same object as that of the module it lives in."""
        for name, home in vars(tape)["_HOME_OF"].items():
            assert getattr(tape, name) is getattr(sys.modules[home], name), name

    def test_the_package_tells_its_names(self) -> None:
        """In a fresh process ``dir`` has every name, ``import *`` brings them in, and others are AttributeErrors."""
        code = """import tape
assert set(tape.__all__) <= set(dir(tape)), dir(tape)
assert not {"TYPE_CHECKING", "annotations"} & set(dir(tape))
assert tape.errors.TapeError is tape.TapeError
assert not hasattr(tape, "nothing")
from tape import *
assert Store is tape.Store and open is tape.open
try:
    tape.opne
except AttributeError as error:
    print(error)
"""
        assert ended(code).out == "module 'tape' has no attribute 'opne'\n"

    def test_a_pickle_is_read_by_a_process_that_used_nothing(self, tmp_path: Path) -> None:
        """A value and an error travel to a process that has only imported the package."""
        values = [tape.Receipt("chat", 3, "k", "m", "00"), tape.TapeNotFound("chat")]
        (tmp_path / "values").write_bytes(pickle.dumps(values))
        code = """import pickle, tape
receipt, error = pickle.load(open("values", "rb"))
assert type(receipt) is tape.Receipt and type(error) is tape.TapeNotFound
print(receipt.seq, error.tape)
"""
        assert ended(code, cwd=tmp_path).out == "3 chat\n"

    def test_threads_may_ask_at_once(self, tmp_path: Path) -> None:
        """Threads that all use the package for the first time at one moment get the same objects."""
        code = f"""import tape, threading
begin, found = threading.Barrier(8), []
def ask(number):
    begin.wait({PATIENCE})
    with tape.open(f"{{number}}.db") as store:
        store.tape("chat").append(role="user", content="x")
        found.append((tape.Store, tape.Message, type(store), store.get("chat").messages()[0].role))
crowd = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
for one in crowd: one.start()
for one in crowd: one.join({PATIENCE})
print(len(found), len(set(found)))
"""
        assert ended(code, cwd=tmp_path).out == "8 1\n"


class TestTables:
    def test_a_table_is_made_once(self) -> None:
        """Threads that ask for the same tables at one moment get the same ones, and all of them can be had together."""
        for _ in range(20):
            tables, begin = Tables("sqlite"), threading.Barrier(4)
            found: list[tuple[Any, ...]] = []

            def ask(tables: Tables, begin: threading.Barrier, found: list[tuple[Any, ...]]) -> None:
                begin.wait(PATIENCE)
                found.append((tables.entries, tables.live, tables.view, tables.metadata))

            crowd = [threading.Thread(target=ask, args=(tables, begin, found)) for _ in range(4)]
            for one in crowd:
                one.start()
            for one in crowd:
                one.join(PATIENCE)
            assert len(found) == 4
            assert all(one is first for asked in found for one, first in zip(asked[:2], found[0], strict=False))
            assert len(tables.metadata.tables) == 25

    def test_only_those_in_use_are_made(self) -> None:
        """A table comes alone."""
        tables = Tables("postgresql", "somewhere")
        assert list(tables.made.tables) == []
        assert tables.heads.fullname == "somewhere.tape_heads"
        assert list(tables.made.tables) == ["somewhere.tape_heads"]


class TestCommand:
    def test_the_version_needs_nothing(self) -> None:
        """``tape --version`` loads neither what reads the command line nor what reads a distribution's metadata."""
        done = command("--version")
        assert done.out == f"tape {tape.__version__}\n"
        assert not (STORE | RARE | {"typer", "rich", "msgspec", "importlib.metadata", "typing"}) & done.modules
        assert {name for name in done.modules if name.startswith("tape")} == {
            "tape",
            "tape.command",
            "tape.command.loading",
        }

    def test_other_ways_to_ask_for_it_say_the_same(self) -> None:
        """Among other options it is Typer that answers."""
        assert tape_command("--version") == tape_command("--store", "x.db", "--version")

    @pytest.mark.parametrize("arguments", [["--help"], [], *([name, "--help"] for name in ("ls", "log", "doctor"))])
    def test_help_loads_no_store(self, arguments: list[str]) -> None:
        """No text of help needs the store, nor Pydantic."""
        code = "from tape.command.app import run; run(sys.argv[1:])"
        done = ended(code, *arguments)
        assert "Options:" in done.out
        assert not (STORE | RARE) & done.modules

    @pytest.mark.parametrize(
        ("line", "offered"),
        [
            ("tape re", "rebuild replay report rerun retain retract"),
            ("tape log chat --ki", "--kind"),
            ("tape log chat --kind re", "restore retract revise"),
            ("tape import --from co", "codex codex-exec"),
        ],
    )
    def test_completion_loads_no_store(self, line: str, offered: str) -> None:
        """Names of commands, options and fixed values are completed without the store."""
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        done = command(environment={"_TAPE_COMPLETE": "complete_bash", **words})
        assert " ".join(sorted(done.out.split())) == offered
        assert not (STORE | RARE) & done.modules

    def test_a_command_loads_what_it_needs(self, small: Path) -> None:
        """``tape ls`` loads its own module and the store, no other verb's, and nothing rare."""
        done = command("ls", "-n", "5", "--status", "active", cwd=small)
        assert done.out.splitlines()[1].startswith("chat ")
        assert {name for name in done.modules if name.startswith("tape.command.verbs.")} == {"tape.command.verbs.find"}
        assert not RARE & done.modules

    def test_every_module_declares_what_the_help_lists(self) -> None:
        """A command is declared by the module that the list names, and no module declares another one."""
        listed = {name: module for section in SECTIONS.values() for name, module in section.items()}
        found = {name: declared(name).run.__module__ for name in listed}
        assert found == {name: f"tape.command.verbs.{module}" for name, module in listed.items()}
        modules = {path.stem for path in (ROOT / "tape/command/verbs").glob("*.py")} - {"__init__"}
        assert modules == set(listed.values())


class TestCollector:
    def test_it_works_again_when_the_command_does(self, small: Path) -> None:
        """While modules load the collector rests; the work itself is done with it."""
        code = """import gc
from tape.command import main, verbs
from tape.command.verbs import find
seen = []
kept = find.moment
find.moment = lambda *given: seen.append((gc.isenabled(), gc.get_freeze_count() > 1_000)) or kept(*given)
try:
    main()
finally:
    print(seen)
"""
        assert ended(code, "ls", cwd=small).out.splitlines()[-1] == "[(True, True)]"

    def test_a_program_keeps_its_own(self, small: Path) -> None:
        """A program that calls the command keeps its collector as it is, on or off."""
        before = gc.get_freeze_count()
        assert tape_command("--store", str(small / "tape.db"), "ls").code == 0
        assert (gc.isenabled(), gc.get_freeze_count()) == (True, before)
        gc.disable()
        try:
            assert tape_command("--store", str(small / "tape.db"), "ls").code == 0
            assert not gc.isenabled()
        finally:
            gc.enable()


class TestValues:
    """What is taken as it was typed is what Typer makes of it."""

    TYPED = ["0", "1", "7", "007", "50", "1000", "1001", "-1", "+5", " 5", "5 ", "1_0", "1e3", "1.0", "", "x", "²", "٣"]

    @pytest.mark.parametrize("typed", [*TYPED, "9" * 18, "9" * 19, "9" * 5_000, None])
    @pytest.mark.parametrize("name", ["limit", "agent", "order", "status"])
    def test_plain_values(self, name: str, typed: str | None) -> None:
        """A number within its bounds, a number beyond them, a text, and nothing at all."""
        assert _outcome("ls", name, typed, plain=True) == _outcome("ls", name, typed, plain=False)

    @pytest.mark.parametrize("typed", [*TYPED, None])
    def test_plain_arguments(self, typed: str | None) -> None:
        """An argument that must be given, and one that must be a number."""
        params = ("show", "seq"), ("show", "tape_"), ("append", "text"), ("retract", "messages"), ("log", "kind")
        for command, name in params:
            assert _outcome(command, name, typed, plain=True) == _outcome(command, name, typed, plain=False)


@functools.cache
def _whole() -> Any:
    """Return the command with all its verbs: making it takes longer than what it is asked."""
    from typer.main import get_command

    return get_command(app)


def _outcome(command: str, name: str, typed: str | None, *, plain: bool) -> Any:
    """Return what a parameter of a command makes of a text, or what it complains of."""
    one = _whole().commands[command]
    context = one.make_context(command, [], resilient_parsing=True)
    context.resilient_parsing = False
    (param,) = [param for param in one.get_params(context) if param.name == name]
    value: Any = (typed,) if typed is not None and (param.multiple or param.nargs == -1) else typed
    try:
        return param.process_value(context, value) if plain else type(param).process_value(param, context, value)
    except Exception as error:
        return type(error), str(getattr(error, "format_message", error.__str__)())
