"""S7, S15: the search index beside other writers, under damage, and while it is made anew."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.backends import Backend

import tape
from tape.db.engine.file_lock import Turn
from tape.db.engine.transaction import lock_key


def filled(backend: Backend, texts: int = 10, **options: Any) -> tape.Store:
    """Return a store with some indexed texts."""
    store = backend.open(**options)
    store.tape("t").extend([{"role": "user", "content": f"zebra {n}"} for n in range(texts)])
    assert len(store.search("zebra", limit=100)) == texts
    return store


class TestRemaking:
    def test_s7_a_search_beside_it_finds_everything(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """A search that began before the index was emptied goes on with the index as it was."""
        store, other = filled(backend), backend.open()
        found = store._searcher._found

        def late(*args: Any) -> list[tape.Hit]:
            other._searcher.index.remake()
            return found(*args)

        monkeypatch.setattr(store._searcher, "_found", late)
        assert len(store.search("zebra")) == 10

    @pytest.mark.parametrize("spoilt", [False, True])
    def test_s4_keeps_who_may_read_the_table(self, backend: Backend, spoilt: bool) -> None:
        """On PostgreSQL row-level security and grants outlive a new index, also when the old one was damaged."""
        store = filled(backend)
        raw = backend.raw()
        query = "SELECT relrowsecurity, relacl::text FROM pg_class WHERE oid = 'tape_texts'::regclass"
        if backend.postgres:
            raw.execute("ALTER TABLE tape_texts ENABLE ROW LEVEL SECURITY")
            raw.execute("GRANT SELECT ON tape_texts TO PUBLIC")
            before = raw.execute(query).fetchone()
        store._searcher.index.remake(spoilt=spoilt)
        assert raw.execute("SELECT count(*) FROM tape_texts").fetchone()[0] == 0
        store.rebuild()
        assert len(store.search("zebra")) == 10
        if backend.postgres:
            assert before[0]
            assert raw.execute(query).fetchone() == before
        raw.close()

    def test_s4_a_scoped_store_leaves_the_index_of_all_owners(self, backend: Backend) -> None:
        """A rebuild of one owner's tapes does not touch the index, which is one for all."""
        store = filled(backend)
        raw = backend.raw()
        raw.execute("DELETE FROM tape_texts")
        raw.close()
        backend.open(owner="ann").rebuild()
        assert store.search("zebra") == []
        store.rebuild()
        assert len(store.search("zebra")) == 10


class TestFaults:
    # SQLite cancels no statement.
    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_s7_a_search_that_takes_too_long_leaves_the_index(self, backend: Backend) -> None:
        """A statement that the server cancels says nothing of the index: the search fails, and the index stays."""
        filled(backend)
        hasty = backend.open()
        for connection in hasty._db._idle:  # type: ignore[attr-defined]
            connection.execute("SET statement_timeout = 100")
        raw, blocker = backend.raw(), backend.raw()
        before = raw.execute("SELECT seq, xmin::text FROM tape_texts").fetchall()
        blocker.execute("BEGIN")
        blocker.execute("LOCK TABLE tape_live IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(tape.StoreFailed, match="statement timeout"):
            hasty.search("zebra")
        blocker.close()
        after = raw.execute("SELECT seq, xmin::text FROM tape_texts").fetchall()
        assert after == before
        assert len(hasty.search("zebra")) == 10
        raw.close()

    def test_s7_a_query_of_any_length_is_answered(self, backend: Backend) -> None:
        """A query of very many words is no failure: it finds the text that has them all, and no other."""
        store = filled(backend)
        text = " ".join(f"word{n}" for n in range(300))
        store.tape("t").append(role="user", content=text, id="long")
        assert [hit.message_id for hit in store.search(text)] == ["long"]
        assert store.search(f"{text} zebra") == []
        assert store.search(" ".join(f"absent{n}" for n in range(20_000))) == []
        assert store._searcher.index.lag() == 0

    def test_s7_an_index_that_cannot_be_asked_is_done_without(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When the index cannot be read the texts are, and the index stays as it is."""
        store = filled(backend)

        def refused(*args: Any, **options: Any) -> None:
            raise tape.StoreFailed("too much")

        monkeypatch.setattr(store._searcher, "_found", refused)
        monkeypatch.setattr(store._searcher.index, "remake", refused)
        assert len(store.search("zebra")) == 10

    def test_s7_an_index_that_cannot_be_filled_is_done_without(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When the index cannot be written what it lacks is scanned, and what it has is kept."""
        store = filled(backend)
        store.tape("t").append(role="user", content="zebra more")

        def full(*args: Any, **options: Any) -> None:
            raise tape.StoreFailed("the disk is full")

        monkeypatch.setattr(store._searcher.index, "_store", full)
        monkeypatch.setattr(store._searcher.index, "_remake", full)
        assert len(store.search("zebra")) == 11
        monkeypatch.undo()
        raw = backend.raw()
        assert raw.execute("SELECT count(*) FROM tape_texts").fetchone()[0] == 10
        raw.close()


@contextlib.contextmanager
def writing(backend: Backend, by: str) -> Iterator[None]:
    """Hold what a writer of the index needs: the lock of the database, or the turn of another process."""
    raw = backend.raw()
    if backend.postgres:
        raw.execute("BEGIN")
        raw.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("\0index"),))
    elif by == "lock":
        raw.execute("BEGIN IMMEDIATE")
    turn = Turn(f"{backend.url.database}-writer" if by == "turn" and not backend.postgres else None)
    assert turn.take(1.0)
    yield
    turn.give()
    turn.close()
    raw.close()


class TestBesideWriters:
    @pytest.mark.parametrize("by", ["lock", "turn"])
    @pytest.mark.parametrize("damaged", [False, True])
    def test_s7_a_search_does_not_wait_for_them(self, backend: Backend, by: str, damaged: bool) -> None:
        """While another writer keeps the index from being filled or mended, a search reads what it lacks, at once."""
        store = filled(backend)
        store.tape("t").append(role="user", content="zebra more")
        if damaged:
            raw = backend.raw()
            raw.execute("DROP TABLE tape_texts")
            raw.close()
        with writing(backend, by):
            began = time.monotonic()
            assert len(store.search("zebra")) == 11
            assert time.monotonic() - began < 10
            assert store._searcher.index.lag() > 0
        assert len(store.search("zebra")) == 11
        assert store._searcher.index.lag() == 0

    def test_s7_a_write_after_it_waits_as_before(self, backend: Backend) -> None:
        """The short wait of a search is not that of the next write."""
        store = filled(backend)
        store.tape("t").append(role="user", content="zebra more")
        with writing(backend, "lock"):
            store.search("zebra")
            if backend.postgres:
                return
            late = threading.Thread(target=lambda: store.tape("t").append(role="user", content="zebra late"))
            late.start()
            late.join(0.3)
            assert late.is_alive()
        late.join(30)
        assert len(store.search("zebra")) == 12
