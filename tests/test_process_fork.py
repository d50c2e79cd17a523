"""Forks of the process: what a child writes is kept, or refused at once."""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import forking
from support.backends import Backend
from support.forking import answer, in_child
from support.processes import PATIENCE, Crew, until
from support.sizes import heavy, size

import tape
from tape import TapeInfo
from tape.core import typed
from tape.db.engine import process_fork
from tape.db.engine.transaction import Transaction
from tape.db.schema.tables import Tables

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

SEED = int(os.environ.get("TAPE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)


def forks(backend: Backend, crew: Crew, **order: Any) -> list[dict[str, Any]]:
    """Fork often, hold what is stored against what was acknowledged, and return what each round tells."""
    print("seed", SEED)
    worker = crew.start(backend, forking.fork_often, opened=False, seed=SEED, **order)
    worker.tell("go")
    told: list[dict[str, Any]] = worker.finish()
    assert [(one["ways"], one["engine"], odd) for one in told for odd in one["odd"]] == []
    assert [one["status"] for one in told] == [0] * len(told)
    store = backend.open()
    assert store.verify().problems == []
    stored = Counter(str(message.content) for info in store.tapes() for message in store.get(info.id).messages())
    acknowledged = [content for one in told for content in one["acknowledged"]]
    assert [content for content in acknowledged if stored[content] != 1] == []
    assert max(one["fork"] for one in told) < 3
    return told


@heavy
def test_what_a_child_writes_is_there_or_was_refused(backend: Backend, crew: Crew) -> None:
    """Threads follow, wait, read, write and hold transactions at the fork, beside an engine: no write is lost."""
    told = forks(backend, crew, rounds=size(8, 200))
    print(Counter((one["engine"], one["refused"]) for one in told))
    for one in told:
        # A file that an engine has open is refused to all calls. A server knows its connections apart.
        assert one["refused"] == 8 or backend.name != "sqlite" or one["engine"] != "bound"
        assert one["refused"] in (0, 8) if backend.name == "sqlite" else not one["refused"]


@pytest.mark.parametrize("way", ["follow", "follow pool", "lease", "decision", "decision async"])
def test_whoever_waits_does_not_keep_a_child_from_the_store(backend: Backend, crew: Crew, way: str) -> None:
    """A thread that waits for an entry, a lease or a decision has no connection open that a child would inherit."""
    told = forks(backend, crew, rounds=3, ways=[way], engines=False)
    assert [one["refused"] for one in told] == [0] * 3


@contextmanager
def in_thread(work: Callable[[threading.Event, threading.Event], object]) -> Iterator[None]:
    """Run ``work`` in another thread, which tells by the first event where it is, until the second one is set."""
    inside, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=work, args=(inside, over), daemon=True)
    thread.start()
    assert inside.wait(PATIENCE)
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def contents(store: tape.Store) -> list[str]:
    return [str(message.content) for message in store.tape("t").messages()]


def say(store: tape.Store, content: str) -> int:
    return store.tape("t").append(role="user", content=content).seq


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_fork_holds_no_lock_that_a_read_needs(backend: Backend) -> None:
    """A read that is under way can end, also if it is the first to use a table or a type: the child is not refused."""
    store = backend.open()
    say(store, "before")

    def read(inside: threading.Event, _: threading.Event) -> None:
        def work(tx: Transaction) -> None:
            inside.set()
            until(lambda: process_fork._forking, "the process forks")
            assert Tables("sqlite").entries.name == "tape_entries"
            assert typed.decode("[]", list[TapeInfo]) == []

        store._db.read(work)

    with in_thread(read):
        assert in_child(lambda: contents(store)) == (0, ["before"])


class TestRefused:
    """What a child cannot use safely it refuses with one error, and at once."""

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_a_file_that_the_application_has_open(self, backend: Backend, tmp_path: Path) -> None:
        """With an engine of the application on the file at the fork, the child refuses every call on that file."""
        store, shared, reading = backend.open(), backend.open(shared=True), backend.open(read_only=True)
        say(store, "before")
        engine = backend.engine()

        def bind() -> None:
            with engine.connect() as connection:
                say(store.bind(connection), "bound")

        def open_anew(**options: Any) -> None:
            tape.open(backend.url, **options)

        async def open_async() -> None:
            async with tape.open_async(backend.url) as own:
                await own.list()

        bind()
        calls: list[Callable[[], object]] = [
            lambda: say(store, "child"),
            lambda: contents(store),
            lambda: store.verify(),
            lambda: store.transaction(lambda own: say(own, "child")),
            lambda: list(store.follow(timeout=0)),
            lambda: store.backup(tmp_path / "copy.db"),
            lambda: say(shared, "child"),
            lambda: contents(reading),
            bind,
            open_anew,
            lambda: open_anew(read_only=True),
            lambda: open_anew(shared=True),
            lambda: asyncio.run(open_async()),
        ]
        began = time.monotonic()
        calls_of_all = [*calls, store.close, shared.close, reading.close]
        refusals = (0, ["ProcessForked"] * len(calls) + [None] * 3)
        assert in_child(lambda: [answer(call) for call in calls_of_all]) == refusals
        assert time.monotonic() - began < PATIENCE
        say(store, "parent")
        engine.dispose()
        assert in_child(lambda: say(store, "child")) == (0, 4)
        assert contents(store) == ["before", "parent", "child"]
        assert store.verify().ok

    def test_a_transaction_of_another_thread(self, backend: Backend) -> None:
        """The fork does not wait for it. On SQLite the child refuses at once, even when it opens the store again."""
        store = backend.open(timeout=30.0)
        say(store, "before")

        def hold(inside: threading.Event, over: threading.Event) -> None:
            def work(own: tape.Store) -> None:
                say(own, "held")
                inside.set()
                over.wait(PATIENCE)

            store.transaction(work)

        def work() -> Any:
            calls: list[Callable[[], object]] = [
                lambda: say(store, "child"),
                lambda: contents(store),
                lambda: backend.open(timeout=30.0),
            ]
            began = time.monotonic()
            answers = [answer(call) for call in calls] if backend.name == "sqlite" else contents(store)
            return [answers, time.monotonic() - began < 5]

        began = time.monotonic()
        with in_thread(hold):
            code, (answers, quick) = in_child(work)
            assert time.monotonic() - began < 10
        assert (code, quick) == (0, True)
        assert answers == (["ProcessForked"] * 3 if backend.name == "sqlite" else ["before"])
        assert contents(store) == ["before", "held"]
        assert store.verify().ok

    @pytest.mark.parametrize("reads", [False, True])
    def test_a_transaction_of_the_thread_that_forks(self, backend: Backend, reads: bool) -> None:
        """The child cannot go on with it nor commit it; the parent can."""
        store = backend.open()
        say(store, "before")
        children = []

        def work(own: tape.Store) -> None:
            say(own, "first")
            child = os.fork()
            if child:
                children.append(os.waitpid(child, 0)[1])
                say(own, "second")
            elif reads:
                contents(own)
            else:
                os.environ["TAPE_TEST_CHILD"] = "1"

        code = 0
        try:
            store.transaction(work)
        except tape.ProcessForked:
            code = 3
        if not children:
            try:
                # A server tells connections apart: with a new one the child goes on.
                later = answer(lambda: contents(store))
                code += later != (["before"] if backend.name != "sqlite" else "ProcessForked")
                store.close()
            finally:
                os._exit(code)
        assert [os.waitstatus_to_exitcode(status) for status in children] == [3]
        assert contents(store) == ["before", "first", "second"]
        assert store.verify().ok

    def test_a_bound_connection(self, backend: Backend) -> None:
        """A store on a connection of the application is the parent's: the child does not speak on it."""
        store, engine = backend.open(), backend.engine()
        with engine.begin() as connection:
            bound = store.bind(connection)
            say(bound, "bound")
            assert in_child(lambda: say(bound, "child")) == (0, "ProcessForked")
            say(bound, "parent")
        assert contents(store) == ["bound", "parent"]
        engine.dispose()

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_half_a_transaction_in_memory(self, backend: Backend) -> None:
        """The child's copy of a store in memory is whole, or the child refuses it."""
        with tape.open(":memory:") as store:
            say(store, "before")
            assert in_child(lambda: [say(store, "child"), contents(store)]) == (0, [3, ["before", "child"]])

            def hold(inside: threading.Event, over: threading.Event) -> None:
                def work(own: tape.Store) -> None:
                    say(own, "held")
                    inside.set()
                    over.wait(PATIENCE)

                store.transaction(work)

            with in_thread(hold):
                assert in_child(lambda: contents(store)) == (0, "ProcessForked")
            assert contents(store) == ["before", "held"]


class TestChildren:
    """What programs do in children works as in the parent."""

    def test_an_async_store_goes_on_in_a_child(self, backend: Backend) -> None:
        """Its threads stay in the parent; the child starts its own, whatever those were doing."""

        async def write(store: tape.AsyncStore, label: str) -> list[str]:
            chat = store.tape("t")
            for number in range(3):
                await chat.append(role="user", content=f"{label}.{number}")
            return [str(message.content) for message in await chat.messages()]

        async def opened() -> tape.AsyncStore:
            return await tape.open_async(backend.url, **backend.options)

        store = asyncio.run(opened())
        acknowledged: list[str] = []

        def busy(inside: threading.Event, over: threading.Event) -> None:
            async def work() -> None:
                while not over.is_set():
                    name = f"parent.{len(acknowledged)}"
                    await store.tape("t").append(role="user", content=name)
                    acknowledged.append(name)
                    inside.set()

            asyncio.run(work())

        with in_thread(busy):
            for number in range(5):
                code, said = in_child(lambda number=number: asyncio.run(write(store, f"child.{number}")))  # type: ignore[misc]
                assert code == 0
                assert said == "ProcessForked" or said[-1].startswith(("child", "parent"))
                if said != "ProcessForked":
                    acknowledged += [f"child.{number}.{index}" for index in range(3)]
        assert sorted(contents(store.sync)) == sorted(acknowledged)
        assert store.sync.verify().ok
        asyncio.run(store.close())

    def test_a_pool_of_processes(self, backend: Backend, tmp_path: Path) -> None:
        """Workers of ``multiprocessing`` that are forked, from any thread, write with the store that they inherit."""
        count = size(60, 600)
        assert run(POOL, backend, tmp_path, str(count)) == "[0, 0, 0]\n"
        store = backend.open()
        assert Counter(contents(store)) == Counter(["first", *map(str, range(count + 3)), "last"])
        assert store.verify().ok

    def test_the_end_of_a_child_leaves_the_transaction_of_its_parent(self, backend: Backend, tmp_path: Path) -> None:
        """A child that ends as programs do, with its objects collected, undoes nothing that the parent writes."""
        assert run(ENDING, backend, tmp_path) == "child\n0\n"
        store = backend.open()
        begins = [content.partition(".")[0] for content in contents(store)]
        assert begins == ["first", *map(str, range(25)), "last"]
        assert store.verify().ok

    @pytest.mark.parametrize("disposed", [True, False])
    def test_gunicorn_with_preload(self, backend: Backend, tmp_path: Path, disposed: bool) -> None:
        """Workers of a preloaded application keep what they acknowledge; with an engine left open they refuse."""
        folder, address = tmp_path / "app", tmp_path / "socket"
        folder.mkdir()
        (folder / "preloaded.py").write_text(PRELOADED)
        environment = {**os.environ, "STORE": backend.address, "OPTIONS": repr(backend.options)}
        command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", f"unix:{address}", "preloaded:app"]
        server = subprocess.Popen(
            command, cwd=folder, env={**environment, "DISPOSED": str(int(disposed))}, stderr=subprocess.PIPE
        )
        try:
            until(lambda: answers(address), "gunicorn answers")
            acknowledged, refused = [], 0
            for number in range(size(30, 300)):
                status, worker = ask(address, f"/{number}")
                if status == 200:
                    acknowledged.append(str(number))
                refused += status == 503
                if number % 10 == 4:
                    # Another process closes the file last, and the master forks again while its follower runs.
                    with backend.open() as other:
                        contents(other)
                    os.kill(worker, signal.SIGKILL)
                    until(lambda: answers(address), "gunicorn answers again")
        finally:
            server.terminate()
            _, log = server.communicate(timeout=PATIENCE)
        assert len(acknowledged) + refused == size(30, 300), log.decode()
        assert refused == 0 if disposed or backend.name != "sqlite" else not acknowledged
        store = backend.open()
        assert Counter(contents(store)) == Counter(["loaded", *acknowledged])
        assert store.verify().ok


def run(program: str, backend: Backend, folder: Path, *arguments: str) -> str:
    """Run a program on a store in a subprocess, and return its output."""
    script = folder / "program.py"
    script.write_text(program)
    command = [sys.executable, str(script), backend.address, repr(backend.options), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def ask(address: Path, path: str) -> tuple[int, int]:
    """Return the status of an answer and which process gave it."""
    connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
    with closing(connection):
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(address))
        connection.request("GET", path)
        answered = connection.getresponse()
        return answered.status, int(answered.read())


def answers(address: Path) -> bool:
    try:
        return ask(address, "/")[0] == 200
    except OSError:
        return False


PRELOADED = """
import os, threading, sqlalchemy as sa, tape

url, options = os.environ["STORE"], eval(os.environ["OPTIONS"])
store = tape.open(url, timeout=10.0, **options)
engine = sa.create_engine(url)
if "schema" in options:
    @sa.event.listens_for(engine, "connect")
    def path(connection, record):
        connection.execute(f'SET search_path TO "{options["schema"]}"')
        connection.commit()
with engine.begin() as connection:
    store.bind(connection).tape("t").append(role="user", content="loaded")
if os.environ["DISPOSED"] == "1":
    engine.dispose()
threading.Thread(target=lambda: list(store.follow()), daemon=True).start()

def app(environ, start):
    content, status = environ["PATH_INFO"][1:], "200 OK"
    try:
        if content:
            store.tape("t").append(role="user", content=content)
    except tape.ProcessForked:
        status = "503 Service Unavailable"
    start(status, [])
    return [str(os.getpid()).encode()]
"""
"""An application that opens a store, binds it, and follows it in a thread when it is loaded."""

POOL = """
import multiprocessing, sys, threading, tape

store = tape.open(sys.argv[1], timeout=10.0, **eval(sys.argv[2]))
count = int(sys.argv[3])

def write(content):
    store.tape("t").append(role="user", content=str(content))

if __name__ == "__main__":
    write("first")
    threading.Thread(target=lambda: list(store.follow()), daemon=True).start()
    context = multiprocessing.get_context("fork")
    # A thread of the pool forks a new worker whenever one has done its tasks.
    with context.Pool(3, maxtasksperchild=5) as workers:
        workers.map(write, range(count), chunksize=1)
    processes = [context.Process(target=write, args=(count + number,)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    write("last")
    print([process.exitcode for process in processes])
    store.close()
"""
"""A program whose processes write with the store that it has open and follows."""

ENDING = """
import gc, os, sys, tape

store = tape.open(sys.argv[1], **eval(sys.argv[2]))
chat = store.tape("t")
chat.append(role="user", content="first")

def work(own):
    if not own._db.postgres:
        # So little memory that some of the transaction is in the log before the commit.
        own._db._transaction.execute("PRAGMA cache_size = 10")
    for number in range(25):
        own.tape("t").append(role="user", content=f"{number}.{os.urandom(20_000).hex()}")
    sys.stdout.flush()
    child = os.fork()
    return child and os.waitpid(child, 0)

try:
    _, status = store.transaction(work)
except tape.ProcessForked:
    status = None
if status is None:
    # The error held the connection until here.
    gc.collect()
    print("child")
    sys.exit(0)
chat.append(role="user", content="last")
print(status)
store.close()
"""
"""A program that forks inside its transaction, and whose child ends in the usual way."""
