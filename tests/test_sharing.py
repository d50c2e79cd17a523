"""``tape.open(…, shared=True)``: the stores of a process on one database share its connections."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
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
        others: list[dict[str, Any]] = [{"durability": "normal"}, {"timeout": 7}, {"prefix": "other_"}]
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
        for wrong in ({"shared": 1}, {"durability": []}, {"durability": "none"}, {"schema": ["x"]}, {"prefix": {}}):
            with pytest.raises(tape.InvalidEntry):
                opened(backend, **wrong)
        for _ in range(2):
            with pytest.raises(tape.StoreFailed):
                tape.open(tmp_path / "no" / "such.db", shared=True)
        assert sharing._opened == {}

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
