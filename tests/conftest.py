"""Backends as fixtures: every test that takes ``backend`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from integrations.groups import group_of, told
from support.backends import TURN, Backend, MakeBackend, folder_in_memory, new_backend, start_postgres, take_turn
from support.pool import EmptyFile, SchemaPool
from support.processes import Crew
from support.proxy import Proxy
from support.shell import Shell, family
from support.sizes import heavy, size
from support.turns import needs_postgres

import tape

if (_folder := folder_in_memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _folder)

# The programs that tests start are compiled once and not once per program, also where the environment says otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Whoever runs the tests may have a store, a pager, colours and prices of their own; pytest's workers have a width.
_OWN = "TAPE_STORE TAPE_SCHEMA TAPE_OWNER TAPE_PAGER TAPE_PRICES PAGER NO_COLOR FORCE_COLOR COLUMNS LINES"
for _name in _OWN.split():
    os.environ.pop(_name, None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off what collecting makes: to go through it again and again takes a twentieth."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the run at full size what is ``full``, and five of six cases on PostgreSQL of what is ``alike``."""
    seen: Counter[str] = Counter()
    left = []
    for item in items:
        case = getattr(item, "callspec", None)
        values = set() if case is None else {value for value in case.params.values() if isinstance(value, str)}
        later = any(not mark.args or mark.args[0] in values for mark in item.iter_markers("full"))
        if "postgresql" in values and item.get_closest_marker("alike") is not None:
            name = item.nodeid.partition("[")[0]
            later = later or seen[name] % 6 > 0
            seen[name] += 1
        if later:
            item.add_marker(heavy)
            left.append(item)
    if size(left, []):
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the tests of other processes on the same server."""
    if needs_postgres(item):
        take_turn()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Let another process have its turn, when all that the test leaves is put away."""
    try:
        return (yield)
    finally:
        if TURN is not None:
            TURN.leave()


def pytest_unconfigure() -> None:
    if TURN is not None:
        TURN.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which groups of adapters were tested, and which were left out because their packages are not installed."""
    reports = [report for kind in ("passed", "failed", "error") for report in terminalreporter.stats.get(kind, [])]
    ran = {group.name for report in reports if (group := group_of(report.nodeid)) is not None}
    for line in told(ran):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def postgres_url() -> sa.URL:
    return start_postgres()


@pytest.fixture(scope="session")
def schemas(postgres_url: sa.URL) -> Iterator[SchemaPool]:
    with closing(SchemaPool(postgres_url)) as pool:
        yield pool


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> EmptyFile:
    return EmptyFile(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def make_backend(request: pytest.FixtureRequest) -> MakeBackend:
    """Return a maker of databases, for tests that need several."""

    def make(name: str, folder: Path, *, blank: bool = False) -> Backend:
        given = request.getfixturevalue
        if blank:
            return new_backend(folder, given("postgres_url") if name == "postgresql" else None)
        if name == "postgresql":
            return cast(SchemaPool, given("schemas")).lend(folder)
        return cast(EmptyFile, given("empty_file")).copy(folder)

    return make


def _blank(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("blank") is not None


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest, make_backend: MakeBackend, tmp_path: Path) -> Iterator[Backend]:
    """A database with an empty store; for tests marked ``blank`` one that nobody has opened."""
    with make_backend(request.param, tmp_path, blank=_blank(request)) as made:
        yield made


@pytest.fixture
def other(
    request: pytest.FixtureRequest, backend: Backend, make_backend: MakeBackend, tmp_path: Path
) -> Iterator[Backend]:
    """A second such database on the same engine."""
    with make_backend(backend.name, tmp_path, blank=_blank(request)) as made:
        yield made


@pytest.fixture
def proxy(backend: Backend) -> Iterator[Proxy]:
    """A way to the PostgreSQL server on which replies get lost."""
    with closing(Proxy(backend.url)) as made:
        yield made


@pytest.fixture
def elsewhere_of(backend: Backend, make_backend: MakeBackend, tmp_path: Path) -> Iterator[Callable[[], tape.Store]]:
    """What opens stores on new databases of the same engine."""
    with ExitStack() as made:

        def open() -> tape.Store:
            return made.enter_context(make_backend(backend.name, tmp_path)).open(durability="normal")

        yield open


@pytest.fixture
def quick(make_backend: MakeBackend, tmp_path: Path) -> Iterator[Backend]:
    """An SQLite database, for what has nothing to do with the engine."""
    with make_backend("sqlite", tmp_path) as made:
        yield made


@pytest.fixture
def pair(make_backend: MakeBackend, tmp_path: Path) -> Iterator[list[tape.Store]]:
    """The same store on both engines."""
    with make_backend("sqlite", tmp_path) as one, make_backend("postgresql", tmp_path) as two:
        yield [one.open(), two.open()]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def standing(
    request: pytest.FixtureRequest,
    make_backend: MakeBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Backend]:
    """A database for all tests of a module, which use tapes of their own: making one per test takes too long."""
    with make_backend(request.param, tmp_path_factory.mktemp("standing")) as made:
        yield made


@pytest.fixture(scope="module")
def guest(standing: Backend) -> Iterator[tape.Store]:
    """A store on the module's database, for tests that leave it as they found it."""
    with standing.open(durability="normal") as opened:
        yield opened


@pytest.fixture(scope="module")
def elsewhere(
    standing: Backend, make_backend: MakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tape.Store]:
    """Another store on the same engine, for tests whose tapes have ids of their own."""
    with make_backend(standing.name, tmp_path_factory.mktemp("elsewhere")) as made:
        yield made.open(durability="normal")


@pytest.fixture(scope="module")
def scratch() -> Iterator[tape.Store]:
    """A store in memory, for tests of many examples, each on a tape of its own: a new store takes longer."""
    with tape.open(":memory:") as opened:
        yield opened


@pytest.fixture
def store(backend: Backend) -> tape.Store:
    return backend.open()


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    return store.tape("chat")


@pytest.fixture(scope="module")
def shell(standing: Backend) -> Shell:
    """The command on a store with a family of tapes, which the tests that use it leave as it is."""
    family(standing.open())
    return Shell(standing)


@pytest.fixture
def fresh(backend: Backend) -> Shell:
    """The command on a store of the test's own."""
    backend.open()
    return Shell(backend)


@pytest.fixture
def lite(quick: Backend) -> Shell:
    """The command on an SQLite store of the test's own, for what has nothing to do with the engine."""
    quick.open()
    return Shell(quick)


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Crew]:
    made = Crew()
    yield made
    made.close()


@pytest.fixture
def crew(interpreters: Crew) -> Iterator[Crew]:
    """Other processes to work beside the test."""
    yield interpreters
    interpreters.dismiss()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser for the tests of a module, which run no event loop of their own."""
    from playwright.sync_api import sync_playwright
    from support.browsing import chromium

    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
