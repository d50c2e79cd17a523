"""``tape.open(…, shared=True)``: the stores of a process on one database share its connections."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.interrupting import interrupted_at
from test_conditions import PATIENCE, crowd

import tape
from tape import sharing
from tape.db.engine.guests import open_database


def opened(backend: Backend, **options: Any) -> tape.Store:
    return tape.open(backend.url, **{**backend.options, "shared": True, **options})


def connections(store: tape.Store) -> Any:
    """Return what has the connections of a store."""
    return store._db.engine


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    """Every database is released when its stores are closed or gone."""
    yield
    gc.collect()
    assert sharing._opened == {}


class TestSharing:
    """Who shares with whom."""

    def test_stores_of_one_url_share_their_connections(self, backend: Backend) -> None:
        """What one has written the other has at hand; each has its own owner, clock and slots."""
        slot = tape.Slot("n", int)
        with opened(backend) as a, opened(backend, owner="ann", clock=lambda: 7_000_000, slots=[slot]) as b:
            assert connections(a) is connections(b)
            assert (a.owner, b.owner) == (None, "ann")
            a.create("chat", owner="ann")
            assert b.get("chat").entry(seq=1).kind == "open"
            b.create("old")
            with pytest.raises(tape.InvalidEntry):
                b.get("old").put("n", "text")
            a.get("chat").put("n", "text")
            assert [entry.recorded_at.timestamp() for entry in b.get("old").entries()] == [7.0]
            assert sorted(info.id for info in a.tapes()) == ["chat", "old"]
            assert a.verify().ok
            assert [finding.level for finding in a.doctor() if finding.level == "error"] == []

    def test_other_options_have_other_connections(self, backend: Backend) -> None:
        """What decides how a connection works has to be equal; a store that was not to be shared shares with none."""
        others: list[dict[str, Any]] = [{"durability": "normal"}, {"timeout": 7}]
        with opened(backend) as a:
            for options in (*others, {"read_only": True}, {"shared": False}):
                with opened(backend, **options) as b:
                    assert connections(a) is not connections(b)
            with opened(backend, timeout=30) as b:
                assert connections(a) is connections(b)
            with opened(backend, read_only=True) as b, opened(backend, read_only=True) as c:
                assert connections(b) is connections(c)
                with pytest.raises(tape.ReadOnly):
                    b.create("t")

    def test_a_file_has_many_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A relative path, an absolute one, a URL and a link lead to the same connections."""
        monkeypatch.chdir(tmp_path)
        os.symlink("a.db", "link.db")
        with tape.open("a.db", shared=True) as a:
            for url in (tmp_path / "a.db", f"sqlite:///{tmp_path}/a.db", "sqlite:///a.db", "./x/../a.db", "link.db"):
                with tape.open(url, shared=True) as b:
                    assert connections(a) is connections(b)
            with tape.open("b.db", shared=True) as b:
                assert connections(a) is not connections(b)

    def test_a_file_that_was_replaced_is_another(self, tmp_path: Path) -> None:
        """Who opens a path after its file is gone gets a new store, and what is written there is there."""
        old = tape.open(tmp_path / "a.db", shared=True)
        old.tape("t").append(role="user", content="old")
        for file in tmp_path.iterdir():
            file.unlink()
        new = tape.open(tmp_path / "a.db", shared=True)
        new.tape("t").append(role="user", content="new")
        assert [message.text for message in new.get("t").messages()] == ["new"]
        assert connections(tape.open(tmp_path / "a.db", shared=True)) is connections(new)
        old.close()
        new.close()
        with tape.open(tmp_path / "a.db") as again:
            assert [message.text for message in again.get("t").messages()] == ["new"]

    @pytest.mark.parametrize("url", [":memory:", "sqlite://", "sqlite:///:memory:"])
    def test_memory_is_nobody_elses(self, url: str) -> None:
        """Each is a store of its own."""
        with tape.open(url, shared=True) as a, tape.open(url, shared=True) as b:
            a.create("t")
            assert len(b.list()) == 0

    def test_wrong_arguments_are_refused_as_ever(self, backend: Backend, tmp_path: Path) -> None:
        """Nothing is left of a database that could not be opened."""
        wrong: Any
        for wrong in ({"shared": 1}, {"durability": []}, {"durability": "none"}, {"schema": ["x"]}):
            with pytest.raises(tape.InvalidEntry):
                opened(backend, **wrong)
        for _ in range(2):
            with pytest.raises(tape.StoreFailed):
                tape.open(tmp_path / "no" / "such.db", shared=True)
        assert sharing._opened == {}

    def test_each_schema_has_its_own_connections(self, backend: Backend, other: Backend) -> None:
        """Two schemas of one PostgreSQL are two stores, and so are two files."""
        there = other if not backend.postgres else backend
        with opened(backend) as a, opened(there, **other.options) as b:
            assert connections(a) is not connections(b)
            a.create("here")
            assert [info.id for info in b.tapes()] == []

    def test_the_environment_of_libpq_tells_apart(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """On PostgreSQL it gives what a URL leaves open, such as the options of a session; a file needs none."""
        with opened(backend) as a:
            monkeypatch.setenv("PGOPTIONS", "-c search_path=elsewhere")
            with opened(backend) as b, opened(backend) as c:
                assert (connections(a) is connections(b)) == (not backend.postgres)
                assert connections(b) is connections(c)

    # A file is looked for by its number.
    @pytest.mark.blank
    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_a_schema_that_was_dropped_is_made_again(self, backend: Backend) -> None:
        """Who opens it after that gets a store that works, as without ``shared``; those who had it keep theirs."""
        old = opened(backend)
        old.create("old")
        with backend.raw() as connection:
            connection.execute(f'DROP SCHEMA "{backend.schema}" CASCADE')
        with opened(backend) as new, opened(backend) as again:
            assert connections(new) is connections(again) is not connections(old)
            new.create("new")
            assert [info.id for info in again.tapes()] == ["new"]
        old.close()

    @pytest.mark.blank
    def test_one_of_a_newer_release_is_refused(self, backend: Backend) -> None:
        """Who comes after another program has upgraded the database is told so, as without ``shared``."""
        with opened(backend) as old:
            connection = backend.raw()
            connection.execute("UPDATE tape_version SET version_num = '9999'")
            connection.commit()
            connection.close()
            with pytest.raises(tape.SchemaTooNew):
                opened(backend)
            assert not old._db.closed

    def test_a_database_is_opened_once(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many threads that come at the same moment wait for the first; when that fails, the next one tries."""
        calls = []
        make = open_database

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(threading.get_ident())
            if len(calls) == 1:
                raise tape.StoreFailed("not yet")
            return make(*args, **kwargs)

        monkeypatch.setattr("tape.opening.open_database", counted)
        stores: list[tape.Store] = []
        failed: list[tape.StoreFailed] = []

        def come() -> None:
            try:
                stores.append(opened(backend))
            except tape.StoreFailed as error:
                failed.append(error)

        crowd([come] * 8)
        assert (len(stores), len(failed), len(calls)) == (7, 1, 2)
        assert len({id(connections(store)) for store in stores}) == 1
        for store in stores:
            store.close()


class TestClosing:
    """Each store is closed by itself."""

    def test_the_others_go_on(self, backend: Backend) -> None:
        """A closed one fails as every closed store does, with all that was made of it."""
        a, b = opened(backend), opened(backend)
        chat, ann, feed = a.create("chat"), a.scoped("ann"), a.feed()
        a.close()
        a.close()
        calls: list[Any] = [lambda: a.get("chat"), lambda: a.create("x"), lambda: chat.append(role="user", content="x")]
        calls += [chat.messages, lambda: list(feed), lambda: ann.list(), lambda: a.transaction(lambda inner: 1)]
        calls += [
            lambda: list(a.tapes()),
            a.verify,
            lambda: a.search("x"),
            lambda: a.retain(older_than=timedelta(days=1)),
        ]
        for call in calls:
            with pytest.raises(tape.StoreFailed, match="closed"):
                call()
        assert not a.health().ok
        assert list(a.follow(timeout=5)) == []
        b.get("chat").append(role="user", content="y")
        assert len(b.get("chat").messages()) == 1
        engine, database = connections(b), b._db._database  # type: ignore[attr-defined]
        with opened(backend) as c:
            assert connections(c) is engine
        assert not database.closed
        b.close()
        assert database.closed
        with opened(backend) as d:
            assert connections(d) is not engine
            assert len(d.get("chat").messages()) == 1

    def test_a_follower_ends_with_its_store(self, backend: Backend) -> None:
        """At once, and those of other stores go on."""
        a, b = opened(backend), opened(backend)
        began = threading.Event()

        def follow() -> None:
            began.set()
            assert list(a.follow(timeout=PATIENCE)) == []

        thread = threading.Thread(target=follow)
        thread.start()
        began.wait(PATIENCE)
        rung = b._db.wakeup.count
        a.close()
        assert b._db.wakeup.count > rung
        thread.join(10)
        assert not thread.is_alive()
        b.create("t")
        assert [entry.tape for entry in b.follow(timeout=0)] == ["t"]
        b.close()

    def test_what_nobody_holds_is_closed(self, backend: Backend) -> None:
        """A tape keeps its store open; without one the connections are released."""
        store: tape.Store | None = opened(backend)
        assert store is not None
        database = store._db._database  # type: ignore[attr-defined]
        chat: tape.Tape | None = store.create("chat")
        gone = weakref.ref(store._db)
        store = None
        gc.collect()
        assert chat is not None
        assert not database.closed
        chat.append(role="user", content="x")
        chat = None
        gc.collect()
        assert gone() is None
        assert database.closed

    def test_one_cannot_be_closed_from_inside_a_write(self, backend: Backend) -> None:
        """It is refused as ever, and can be closed afterwards."""
        store = opened(backend)

        def fn(inner: tape.Store) -> None:
            with pytest.raises(tape.StoreFailed, match="inside"):
                store.close()
            inner.create("t")

        store.transaction(fn)
        assert store.get("t").info().head == 1
        with opened(backend) as other:
            assert connections(other) is connections(store)
        store.close()
        with pytest.raises(tape.StoreFailed, match="closed"):
            store.get("t")

    def test_one_of_several_cannot_be_closed_from_inside_its_write(self, backend: Backend) -> None:
        """As if nobody shared its connections; another store of them can."""
        store, other, third = opened(backend), opened(backend), opened(backend)

        def fn(inner: tape.Store) -> None:
            inner.create("t")
            with pytest.raises(tape.StoreFailed, match="inside"):
                store.close()
            other.close()
            inner.create("u")

        store.transaction(fn)
        assert sorted(info.id for info in third.tapes()) == ["t", "u"]
        store.create("v")
        with pytest.raises(tape.StoreFailed, match="closed"):
            other.create("w")
        store.close()
        third.close()

    def test_none_is_closed_inside_a_write_that_its_own_wait_for(self, quick: Backend) -> None:
        """On SQLite the close would wait for a thread of the store, and that thread for the write."""
        store, other = opened(quick), opened(quick)
        waiting = threading.Thread(target=lambda: other.create("waited"))

        def fn(inner: tape.Store) -> None:
            waiting.start()
            while not other._db._writes._threads:  # type: ignore[attr-defined]
                assert waiting.is_alive()
            with pytest.raises(tape.StoreFailed, match="inside"):
                other.close()

        store.transaction(fn)
        waiting.join(PATIENCE)
        assert store.get("waited").info().head == 1
        other.close()
        store.close()

    def test_a_close_waits_for_the_writes_of_its_store(self, quick: Backend) -> None:
        """On SQLite, shared or not, nothing is committed after it, and what was begun before it is there."""
        for shared in (True, False):
            store, other = opened(quick, shared=shared), opened(quick, shared=shared)
            began, ended, closed = threading.Event(), threading.Event(), threading.Event()

            def fn(inner: tape.Store, shared: bool = shared, began: Any = began, ended: Any = ended) -> None:
                inner.create(f"late {shared}")
                began.set()
                assert ended.wait(PATIENCE)

            def close(store: tape.Store = store, closed: Any = closed) -> None:
                store.close()
                closed.set()

            writer = threading.Thread(target=store.transaction, args=(fn,))
            closer = threading.Thread(target=close)
            writer.start()
            assert began.wait(PATIENCE)
            closer.start()
            assert not closed.wait(0.05)
            # The others go on meanwhile.
            assert other.health().ok
            ended.set()
            closer.join(PATIENCE)
            assert closed.is_set()
            assert other.get(f"late {shared}").info().head == 1
            writer.join(PATIENCE)
            other.close()

    def test_what_vanishes_while_another_is_opened_is_closed_without_the_lock(
        self, backend: Backend, other: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Garbage collection may come at any moment, and to close a database waits for its writers."""
        store: tape.Store | None = opened(backend)
        assert store is not None
        database = store._db._database  # type: ignore[attr-defined]
        held: list[bool] = []
        close = database.close

        def closing() -> None:
            held.append(sharing._lock._is_owned())  # type: ignore[attr-defined]
            close()

        monkeypatch.setattr(database, "close", closing)
        with sharing._locked():
            store = None
            gc.collect()
            assert not database.closed
        assert database.closed
        assert held == [False]

    def test_threads_open_use_and_close(self, backend: Backend) -> None:
        """However they interleave, each has an open store, and everything is written."""

        def work(number: int) -> None:
            for turn in range(15):
                if turn % 3:
                    with opened(backend) as store:
                        store.create(f"{number}.{turn}")
                else:
                    opened(backend).create(f"{number}.{turn}")
                if turn % 5 == 4:
                    gc.collect()

        crowd([lambda n=n: work(n) for n in range(4)])  # type: ignore[misc]
        gc.collect()
        with opened(backend) as store:
            assert len(list(store.tapes())) == 60
            assert store.verify().ok

    def test_writers_of_all_share_commits(self, backend: Backend) -> None:
        """They pass one gate, so that nobody collides and every receipt is another."""
        stores = [opened(backend, durability="normal") for _ in range(4)]
        seqs: list[int] = []

        def work(store: tape.Store) -> None:
            for _ in range(25):
                seqs.append(store.tape("chat").append(role="user", content="x").seq)

        crowd([lambda store=store: work(store) for store in stores])  # type: ignore[misc]
        assert sorted(seqs) == list(range(2, 102))
        for store in stores:
            store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
class TestForked:
    """A forked process has connections of its own."""

    def test_a_child_shares_with_itself_only(self, backend: Backend) -> None:
        """It goes on with what it inherits, opens its own, and closes both; the parent is not touched."""
        store = opened(backend)
        store.create("chat")
        child = os.fork()
        if not child:
            code = 1
            try:
                with opened(backend) as own, opened(backend) as second:
                    assert connections(own) is not connections(store)
                    assert connections(own) is connections(second)
                    own.get("chat").append(role="user", content="own")
                store.get("chat").append(role="user", content="inherited")
                store.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        store.get("chat").append(role="user", content="parent")
        assert [message.content for message in store.get("chat").messages()] == ["own", "inherited", "parent"]
        with opened(backend) as again:
            assert connections(again) is connections(store)
        assert store.verify().ok
        store.close()

    def test_a_child_waits_for_no_thread_of_its_parent(self, backend: Backend) -> None:
        """Another thread opens and writes at the moment of the fork: the child can open and close all the same."""
        store, other = opened(backend), opened(backend)
        began, ended = threading.Event(), threading.Event()

        def hold() -> None:
            with sharing._locked():
                call = object()
                store._db._writes._threads[call] = threading.get_ident()  # type: ignore[attr-defined]
                began.set()
                ended.wait(PATIENCE)
                del store._db._writes._threads[call]  # type: ignore[attr-defined]

        thread = threading.Thread(target=hold)
        thread.start()
        assert began.wait(PATIENCE)
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.alarm(30)
                with opened(backend) as own:
                    own.create("own")
                store.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        ended.set()
        thread.join(PATIENCE)
        assert os.waitstatus_to_exitcode(status) == 0
        assert other.get("own").info().head == 1
        store.close()
        other.close()


AT_EXIT = """
import asyncio, atexit, sys, tape

url, options = sys.argv[1], eval(sys.argv[2])

def flush():
    store.tape("chat").append(role="user", content="goodbye")

# Before anything is opened, and so after all that opening lets run at exit.
atexit.register(flush)
store = tape.open(url, shared=True, **options)
store.create("chat")

async def main():
    global kept, tasks
    kept = await tape.open_async(url, shared=True, **options)
    writing = kept.tape("async")
    tasks = [asyncio.ensure_future(writing.append(role="user", content=str(n))) for n in range(1000)]
    for _ in range(5):
        await asyncio.sleep(0)

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""


class TestInterrupted:
    def test_a_close_that_was_interrupted_can_be_repeated(self, backend: Backend) -> None:
        """Whatever a signal has interrupted, after a second close nobody has the database any more."""
        point, reached = 0, True
        while reached:
            store = opened(backend)
            database: Any = store._db._database  # type: ignore[attr-defined]
            reached = interrupted_at(store.close, point, ("tape/sharing.py",), KeyboardInterrupt)
            store.close()
            assert database.closed, point
            point += 1
        assert point > 10


class TestAtExit:
    """A store that the program does not close."""

    def test_what_is_written_at_exit_is_there(self, backend: Backend) -> None:
        """Handlers of the exit can write, and writes that tasks have begun are waited for, as without ``shared``."""
        command = [
            sys.executable,
            "-c",
            AT_EXIT,
            backend.url.render_as_string(hide_password=False),
            repr(backend.options),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (0, "")
        assert "Traceback" not in done.stderr
        with opened(backend) as store:
            assert [message.content for message in store.get("chat").messages()] == ["goodbye"]
            assert len(store.get("async").messages()) == 1000


class TestAsync:
    """``open_async(…, shared=True)``."""

    def test_it_shares_with_plain_stores(self, backend: Backend) -> None:
        """Same connections, own threads, closed by itself."""

        async def main(plain: tape.Store) -> None:
            options = {**backend.options, "shared": True}
            async with tape.open_async(backend.url, **options) as a:
                b = await tape.open_async(backend.url, **options)
                assert connections(a.sync) is connections(b.sync) is connections(plain)
                await asyncio.gather(*(store.tape("chat").append(role="user", content="x") for store in (a, b) * 10))
                await b.close()
                with pytest.raises(tape.StoreFailed, match="closed"):
                    await b.get("chat")
                assert len(await a.tape("chat").messages()) == 20
            with pytest.raises(tape.StoreFailed, match="closed"):
                await a.get("chat")

        with opened(backend) as plain:
            asyncio.run(asyncio.wait_for(main(plain), PATIENCE))
            assert len(plain.get("chat").messages()) == 20
