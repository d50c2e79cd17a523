"""The form in which a Citus coordinator is spoken to, run on plain PostgreSQL, which takes it as well.

What only a cluster can show (where a function is answered, what is refused) is held by ``test_statement_shapes.py``,
and by this suite with ``TAPE_TEST_CITUS_URL``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.backends import Backend, MakeBackend

import tape
from tape.db.engine.postgres import citus
from tape.db.engine.postgres.database import PostgresDatabase


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, make_backend: MakeBackend, tmp_path: Path) -> Iterator[Backend]:
    """A PostgreSQL that every store takes for a coordinator."""
    with make_backend("postgresql", tmp_path) as made:
        monkeypatch.setattr(citus, "is_sharded", lambda run, schema: True)
        yield made


def names(entries: Any) -> list[tuple[str, int]]:
    return [(entry.tape, entry.seq) for entry in entries]


class TestWriting:
    def test_what_is_written_reads_the_same_in_the_form_of_plain_postgresql(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Appends, batches, forks, merges and memory leave the rows that they leave on plain PostgreSQL."""
        store = backend.open()
        chat = store.create("t", labels=["l"])
        for n in range(3):
            chat.append(role="user", content=f"{n}", id=f"m{n}", meta={"n": n})
        chat.extend([{"role": "user", "content": f"b{n}"} for n in range(250)])
        chat.revise("m1", content="other")
        chat.retract("m0")
        chat.patch("plan", {"a": 1})
        fork = chat.fork("f")
        fork.append(role="assistant", content="in the fork", id="x")
        with pytest.raises(tape.ProvenanceConflict):
            fork.append(role="user", content="taken", id="m2")
        fork.append(role="assistant", content="more")
        chat.merge(fork)
        assert store.verify("t").ok
        assert store.verify("f").ok
        wrote = [(m.id, m.content) for m in chat.messages()]
        monkeypatch.setattr(citus, "is_sharded", lambda run, schema: False)
        plain = backend.open()
        assert [(m.id, m.content) for m in plain.tape("t").messages()] == wrote
        assert plain.verify("t").ok
        assert names(plain.feed()) == names(store.feed())

    def test_an_append_and_an_event_are_one_trip_each(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """Behind a head that is known everything is sent together, and nothing is asked before it."""
        chat = backend.open().tape("t")
        chat.append(role="user", content="0")
        chat.append(role="user", content="1")
        sent: list[bool] = []
        stamps: list[int] = []
        whole = citus.hot_append

        def counted(*args: Any, **options: Any) -> None:
            sent.append(bool(options["whole"]))
            whole(*args, **options)

        def clock() -> int:
            stamps.append(1)
            return 1_700_000_000_000_000

        monkeypatch.setattr("tape.db.engine.postgres.transaction.hot_append", counted)
        chat.append(role="user", content="2")
        assert sent == [True]
        timed = backend.open(clock=clock).tape("t")
        timed.append(role="user", content="3")
        del sent[:], stamps[:]
        timed.event("score", {"n": 1})
        # An attempt that had to be made again would have asked for the time again.
        assert (sent, len(stamps)) == ([True], 1)
        assert [entry.kind for entry in timed.entries(name="score")] == ["event"]
        assert timed.verify().ok

    def test_writers_that_do_not_know_of_each_other_stay_in_order(self, backend: Backend) -> None:
        """Each has the head of its own last append, which the other has moved since."""
        stores = [backend.open(), backend.open()]
        for n in range(20):
            stores[n % 2].tape("t").append(role="user", content=f"{n}")
        assert [m.content for m in stores[0].tape("t").messages()] == [f"{n}" for n in range(20)]
        assert stores[0].verify("t").ok
        assert names(stores[1].feed()) == [("t", n) for n in range(1, 22)]

    def test_an_append_waits_for_a_row_no_longer_than_its_timeout(self, backend: Backend) -> None:
        """What the session says of it does not reach the worker: each transaction says it."""
        store = backend.open(timeout=0.3)
        chat = store.tape("t")
        chat.append(role="user", content="0")
        chat.append(role="user", content="1")
        # Would a wait end by the session's setting, it would end too late.
        database = store._services.database
        assert isinstance(database, PostgresDatabase)
        database.read(lambda tx: tx.execute("SELECT set_config('lock_timeout', '20s', false)").fetchone())
        with backend.raw() as foreign:
            foreign.execute("BEGIN")
            foreign.execute("SELECT * FROM tape_heads FOR UPDATE")
            writes: list[Callable[[], Any]] = [
                lambda: chat.append(role="user", content="2"),
                lambda: chat.event("e", {}),
            ]
            for write in writes:
                began = time.monotonic()
                with pytest.raises(tape.StoreBusy):
                    write()
                assert time.monotonic() - began < 10
            foreign.execute("ROLLBACK")
        assert chat.append(role="user", content="3").seq == 4

    def test_a_tape_that_is_gone_is_not_written(self, backend: Backend) -> None:
        """Where a backup without the tape was restored under an open store, nothing is left behind by its append."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="0")
        with backend.raw() as connection:
            connection.execute("DELETE FROM tape_heads")
            (before,) = connection.execute("SELECT count(*) FROM tape_entries").fetchone()
            with pytest.raises(tape.TapeError):
                chat.append(role="user", content="1")
            assert connection.execute("SELECT count(*) FROM tape_entries").fetchone() == (before,)
            assert connection.execute("SELECT count(*) FROM tape_live").fetchone() == (1,)

    def test_a_key_that_is_taken_is_a_duplicate_or_a_conflict(self, backend: Backend) -> None:
        chat = backend.open().tape("t")
        first = chat.append(role="user", content="0", key="k")
        chat.append(role="user", content="1")
        assert chat.append(role="user", content="0", key="k").seq == first.seq
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(role="user", content="2", key="k")

    def test_several_calls_in_one_transaction(self, backend: Backend) -> None:
        store = backend.open()
        store.tape("a").append(role="user", content="0")

        def work(inside: tape.Store) -> None:
            for name in ("a", "b", "a"):
                inside.tape(name).append(role="user", content=name)

        store.transaction(work)
        with pytest.raises(ZeroDivisionError):
            store.transaction(lambda inside: inside.tape("a").append(role="user", content=f"{1 // 0}"))
        assert [m.content for m in store.tape("a").messages()] == ["0", "a", "a"]
        assert store.verify("a").ok

    def test_an_import_comes_through_the_client(self, backend: Backend, tmp_path: Path) -> None:
        """More entries than are moved at a time arrive in order, in one transaction of the feed."""
        store = backend.open()
        store.create("t").extend([{"role": "user", "content": f"{n}"} for n in range(450)])
        store.export("t", tmp_path / "t.jsonl")
        store.purge("t")
        store.import_(tmp_path / "t.jsonl", reuse=True)
        assert [m.content for m in store.tape("t").messages()] == [f"{n}" for n in range(450)]
        assert store.verify("t").ok
        *_, last = store.feed()
        assert names([last]) == [("t", 451)]


class TestFeed:
    def test_a_late_commit_is_not_skipped(self, backend: Backend) -> None:
        """Behind a transaction that is still running nothing is shown, as the coordinator knows."""
        store, engine = backend.open(), backend.engine()
        store.tape("late").append(role="user", content="1")
        place = [entry.position for entry in store.feed()][-1] or 0
        with engine.connect() as connection:
            store.bind(connection).tape("late").append(role="user", content="2")
            store.tape("quick").append(role="user", content="3")
            assert names(store.feed(place)) == []
            connection.commit()
        engine.dispose()
        assert names(store.feed(place)) == [("late", 3), ("quick", 1), ("quick", 2)]

    def test_ids_taken_in_the_other_order_keep_the_order_of_the_tape(self, backend: Backend) -> None:
        store, engine = backend.open(), backend.engine()
        store.tape("t").append(role="user", content="0")
        with engine.connect() as first, engine.connect() as second:
            first.execute(sa.text("SELECT pg_current_xact_id()"))
            second.execute(sa.text("SELECT pg_current_xact_id()"))
            for connection in (second, first):
                store.bind(connection).tape("t").append(role="user", content="x")
                connection.commit()
        engine.dispose()
        assert names(store.feed()) == [("t", 1), ("t", 2), ("t", 3), ("t", 4)]

    def test_a_base_that_was_raised_under_an_open_store_is_noticed(self, backend: Backend) -> None:
        """It is raised where a backup was restored, hence on a server that runs for less long."""
        store = backend.open()
        chat = store.tape("t")
        for n in range(3):
            chat.append(role="user", content=f"{n}")
        database = store._services.database
        assert isinstance(database, PostgresDatabase)
        shards = database._shards
        assert shards is not None
        assert shards.base == 0
        with backend.raw() as connection:
            connection.execute("UPDATE tape_epoch SET base = 2000000000")
            shards.since = "another server's"
            chat.append(role="user", content="3")
            chat.append(role="user", content="4")
            rows = connection.execute("SELECT xid > 2000000000 FROM tape_entries ORDER BY seq").fetchall()
        assert rows == [(False,)] * 4 + [(True,)] * 2
        assert names(store.feed()) == [("t", n) for n in range(1, 7)]

    def test_nothing_is_missed_or_doubled_while_many_write(self, backend: Backend) -> None:
        store = backend.open()
        writers, each, done = 6, 25, threading.Event()
        seen: list[tuple[str, int]] = []

        def follow() -> None:
            place = 0
            while True:
                last = done.is_set()
                for entry in store.feed(place):
                    place = entry.position or 0
                    seen.append((entry.tape, entry.seq))
                if last:
                    return

        def write(writer: int) -> None:
            for n in range(each):
                store.tape(f"t{(writer + n) % 3}").append(role="user", content=f"{writer} {n}")

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            with ThreadPoolExecutor(writers) as pool:
                list(pool.map(write, range(writers)))
        finally:
            done.set()
            follower.join(60)
        assert set(Counter(seen).values()) == {1}
        assert len(seen) == writers * each + 3
        for name in ("t0", "t1", "t2"):
            assert [seq for tape_name, seq in seen if tape_name == name] == sorted(s for t, s in seen if t == name)
            assert store.verify(name).ok

    def test_a_search_indexes_what_is_final(self, backend: Backend) -> None:
        store = backend.open()
        store.tape("t").append(role="user", content="the quick brown fox")
        assert [hit.tape for hit in store.search("fox")] == ["t"]
        store.purge("t")
        assert list(store.search("fox")) == []
