"""S9, S10, F12: purging tapes and keeping only what is young enough."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import history
from support.backends import Backend
from support.filling import filled
from test_list import Clock

import tape
from tape.core.search import tokenizer
from tape.db.engine.transaction import Transaction
from tape.db.read.catalog import Catalog
from tape.db.schema.tables import Tables


def rows(backend: Backend, table: str, number: int | None = None, *, but: int | None = None) -> list[str]:
    """Return the rows of a table, of one tape or of all but one, as text."""
    connection = backend.raw()
    try:
        where = (
            "" if number is None and but is None else f" WHERE tape_id {'=' if but is None else '<>'} {number or but}"
        )
        return sorted(repr(tuple(row)) for row in connection.execute(f"SELECT * FROM {table}{where}").fetchall())
    finally:
        connection.close()


def number_of(backend: Backend, name: str) -> int:
    connection = backend.raw()
    try:
        [(number,)] = connection.execute(f"SELECT id FROM tape_tapes WHERE tape = '{name}'").fetchall()
        return int(number)
    finally:
        connection.close()


TABLES = [table.name for table in Tables("sqlite").metadata.sorted_tables if "tape_id" in table.c]


class TestPurge:
    def test_s9_removes_every_row_and_nothing_else(self, backend: Backend) -> None:
        """No row of the tape is left but the tombstone, and every other row is as it was."""
        store = filled(backend, history.write_checked_and_indexed)
        number = number_of(backend, "plan")
        before = {table: rows(backend, table, but=number) for table in TABLES}
        held = {table for table in TABLES if rows(backend, table, number)}
        assert len(held) >= 8
        report = store.purge("plan")
        assert (report.tapes, report.dry_run) == (["plan"], False)
        left = {table: len(rows(backend, table, number)) for table in TABLES}
        assert {table: count for table, count in left.items() if count} == {
            "tape_heads": 1,
            "tape_entries": 1,
            "tape_tombstones": 1,
        }
        assert {table: rows(backend, table, but=number) for table in TABLES} == before
        assert store.verify().problems == []

    def test_s9_the_search_index_forgets_it(self, backend: Backend, store: tape.Store) -> None:
        """Not one word of the tape is left in the index, also where it needed several batches, and others are found."""
        texts = [{"role": "user", "content": f"pelican {n}"} for n in range(1_200)]
        store.create("a", owner="ann", messages=texts)
        store.create("b", owner="ann", messages=[{"role": "user", "content": "pelican b"}])
        assert len(store.search("pelican", limit=2_000)) == 1_201
        number = number_of(backend, "a")
        asked = "SELECT count(*) FROM tape_texts WHERE words @@ '{}'::tsquery"
        if not backend.postgres:
            asked = "SELECT count(*) FROM tape_words WHERE tape_words MATCH '\"{}\"'"
        connection = backend.raw()

        def count(word: str) -> int:
            [(found,)] = connection.execute(asked.format(word)).fetchall()
            return int(found)

        of_tape, of_owner = tokenizer.tape_word(number), tokenizer.owner_word("ann")
        assert [count(word) for word in ("pelican", of_tape, of_owner)] == [1_201, 1_200, 1_201]
        store.purge("a")
        assert [count(word) for word in ("pelican", of_tape, of_owner)] == [1, 0, 1]
        connection.close()
        assert (len(rows(backend, "tape_texts", number)), [hit.tape for hit in store.search("pelican")]) == (0, ["b"])

    def test_s9_a_batch_read_before_the_purge_is_not_indexed_after_it(
        self, backend: Backend, store: tape.Store
    ) -> None:
        """An indexer that read the tape's texts before it was purged does not put them into the index afterwards."""
        store.create("a", messages=[{"role": "user", "content": "pelican"}])
        store.create("b", messages=[{"role": "user", "content": "pelican"}])
        index = store._searcher.index
        place, read, ready = store._db.read(index._batch)
        assert len(ready) == 2
        number = number_of(backend, "a")
        store.purge("a")
        assert store._db.write("index", lambda tx: index._store(tx, place, ready, read[-1]))
        assert (len(rows(backend, "tape_texts", number)), len(rows(backend, "tape_texts"))) == (0, 1)

    def test_s9_a_broken_index_does_not_hold_a_purge_up(self, backend: Backend, store: tape.Store) -> None:
        """Where the index is damaged a purge makes it anew, and the next search fills it."""
        store.create("a", messages=[{"role": "user", "content": "pelican"}])
        store.create("b", messages=[{"role": "user", "content": "pelican"}])
        assert len(store.search("pelican")) == 2
        connection = backend.raw()
        connection.execute(f"DROP TABLE {'tape_texts' if backend.postgres else 'tape_words'}")
        connection.close()
        store.purge("a")
        assert [hit.tape for hit in store.search("pelican")] == ["b"]

    def test_s9_the_feed_shows_the_tombstone_and_nothing_else(self, backend: Backend, store: tape.Store) -> None:
        """Before its rows are gone, after they are, and when another tape has the id: one entry, under the old id."""
        store.create("a", messages=[{"role": "user", "content": "x"}]).complete()
        number = number_of(backend, "a")
        fork = store.create("b", messages=[{"role": "user", "content": "x"}]).fork("c")

        class Boom(Exception):
            pass

        commits = 0

        def fault(point: str) -> None:
            nonlocal commits
            commits += point == "commit"
            if commits == 2:
                raise Boom

        store._db.fault = fault
        with pytest.raises(Boom):
            store.purge("a")
        store._db.fault = None
        store.purge(fork.id)

        def told(name: str) -> list[tuple[str, int]]:
            return [(entry.kind, entry.seq) for entry in store.feed() if entry.tape == name]

        assert len(rows(backend, "tape_entries", number)) == 4
        assert (told("a"), told("c")) == ([("status", 4)], [("status", 2)])
        store.retain(older_than=timedelta(days=1), dry_run=False)
        assert len(rows(backend, "tape_entries", number)) == 1
        assert (told("a"), told("c"), len(told("b"))) == ([("status", 4)], [("status", 2)], 3)
        store.create("a", reuse=True)
        assert told("a") == [("status", 4), ("open", 1)]

    def test_s9_the_tombstone_keeps_id_head_and_hash(self, backend: Backend) -> None:
        """The last entry says "purged", continues the chain, and holds nothing of what the tape said."""
        store = filled(backend, history.write_checked_and_indexed)
        number, info = number_of(backend, "plan"), store.get("plan").info()
        store.purge("plan")
        connection = backend.raw()
        columns = "name, agent, labels, meta, reason, redirect, status"
        [facts] = connection.execute(f"SELECT {columns} FROM tape_tapes WHERE id = {number}").fetchall()
        assert tuple(facts) == (None, None, None, None, None, None, "purged")
        columns = "seq, kind, payload, hash"
        [entry] = connection.execute(f"SELECT {columns} FROM tape_entries WHERE tape_id = {number}").fetchall()
        assert (entry[0], entry[1], bytes(entry[2])) == (info.head + 1, "status", b'{"status":"purged"}')
        columns = "tape, owner, seq, hash, emptied"
        [stone] = connection.execute(f"SELECT {columns} FROM tape_tombstones").fetchall()
        connection.close()
        assert (*stone[:3], bytes(stone[3]), stone[4]) == ("plan", None, info.head + 1, bytes(entry[3]), 1)

    def test_s9_the_tape_is_gone_for_every_call(self, backend: Backend) -> None:
        """A purged tape is not found, lists nowhere, and cannot come back by a write."""
        store = filled(backend, history.write_checked_and_indexed)
        handle = store.get("plan")
        entries = store.stats().entries
        head = handle.info().head
        store.purge("plan")
        assert (handle.messages(), handle.info().head, list(handle.entries())) == ([], 0, [])
        assert "plan" not in [info.id for info in store.list()]
        assert store.stats().entries == entries - head
        for call in (
            lambda: store.get("plan"),
            lambda: handle.append(role="user", content="x"),
            lambda: handle.event("x"),
            lambda: handle.at(1).messages(),
            lambda: handle.fork(),
            lambda: store.verify("plan"),
            lambda: store.rebuild("plan"),
            lambda: store.purge("plan"),
            lambda: store.split("plan", summary="s"),
            lambda: store.health("plan"),
        ):
            with pytest.raises(tape.TapeNotFound):
                call()
        assert store.rebuild() == len(store.list())

    def test_s9_the_id_comes_back_only_on_purpose(self, backend: Backend) -> None:
        """Creating a tape with the id of a purged one is TapeExists, and works with ``reuse``, more than once."""
        store = filled(backend, history.write_checked_and_indexed)
        for turn in range(3):
            store.purge("plan")
            with pytest.raises(tape.TapeExists) as caught:
                store.create("plan")
            assert caught.value.purged
            with pytest.raises(tape.TapeExists):
                store.get("chat").fork("plan")
            chat = store.create("plan", reuse=True, messages=[{"role": "user", "content": f"turn {turn}"}])
            assert [message.content for message in chat.messages()] == [f"turn {turn}"]
            assert chat.append(role="user", content="x").seq == 3
        assert len(rows(backend, "tape_tombstones")) == 3
        assert store.verify().problems == []

    def test_s9_reuse_changes_nothing_for_a_living_tape(self, store: tape.Store) -> None:
        """``reuse`` does not replace a tape that is there."""
        store.create("a")
        with pytest.raises(tape.TapeExists) as caught:
            store.create("a", reuse=True)
        assert not caught.value.purged

    def test_s9_a_writer_that_knew_the_tape_is_refused(self, backend: Backend) -> None:
        """Another store that still remembers the tape's head cannot append to what was purged, nor reused."""
        mine, other = backend.open(), backend.open()
        chat = other.tape("a")
        chat.append(role="user", content="x")
        mine.purge("a")
        with pytest.raises(tape.TapeNotFound):
            chat.append(role="user", content="y")
        mine.create("a", reuse=True)
        assert chat.append(role="user", content="z").seq == 2
        assert [message.content for message in chat.messages()] == ["z"]

    def test_s9_positions_are_not_given_away_again(self, backend: Backend, store: tape.Store) -> None:
        """After the newest tape is purged, a new entry still comes behind everything that ever was."""
        store.tape("old").append(role="user", content="x")
        store.tape("new").append(role="user", content="x")
        (*_, last) = store.tape("new").entries()
        store.purge("new")
        store.tape("old").event("x")
        (*_, newest) = store.tape("old").entries()
        assert (newest.position or 0) > (last.position or 0) + 1

    def test_s9_vanishes_in_one_transaction(self, backend: Backend, store: tape.Store) -> None:
        """A failure before the commit leaves the tape whole; one after it leaves a tombstone that retain empties."""
        chat = store.create("a", messages=[{"role": "user", "content": "x"}])

        class Boom(Exception):
            pass

        def fault_at(number: int) -> None:
            def fault(point: str) -> None:
                nonlocal number
                number -= point == "commit"
                if number == 0:
                    raise Boom

            store._db.fault = fault

        fault_at(1)
        with pytest.raises(Boom):
            store.purge("a")
        store._db.fault = None
        assert (len(chat.messages()), store.verify().problems) == (1, [])
        number = number_of(backend, "a")
        fault_at(2)
        with pytest.raises(Boom):
            store.purge("a")
        store._db.fault = None
        assert (chat.messages(), store.list().items) == ([], [])
        assert len(rows(backend, "tape_entries", number)) == 3
        store.retain(older_than=timedelta(days=1), dry_run=False)
        assert len(rows(backend, "tape_entries", number)) == 1
        assert len(rows(backend, "tape_live", number)) == 0

    @pytest.mark.parametrize("forks", [False, True])
    def test_s9_an_interrupted_purge_is_finished_by_the_next(self, backend: Backend, forks: bool) -> None:
        """Purging a tape that is gone but for its rows takes those away; then there is no such tape."""
        store = backend.open()
        chat = store.create("a", owner="ann", messages=[{"role": "user", "content": "x"}] * 20)
        if forks:
            chat.fork("b").fork("c")
        numbers = [number_of(backend, name) for name in ("a", "b", "c")[: 3 if forks else 1]]

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        store._services.purging.empty = interrupted  # type: ignore[method-assign,assignment]
        with pytest.raises(KeyboardInterrupt):
            store.purge("a", forks=forks)
        store = backend.open()
        for other in (backend.open(owner="bob"), store):
            with pytest.raises(tape.TapeNotFound):
                other.purge("a" if other is not store else "nobody", forks=forks)
        done = backend.open(owner="ann").purge("a", forks=forks)
        assert (sorted(done.tapes), done.dry_run) == (["a", "b", "c"][: len(numbers)], False)
        assert done.entries >= 21
        assert [len(rows(backend, "tape_entries", number)) for number in numbers] == [1] * len(numbers)
        with pytest.raises(tape.TapeNotFound):
            store.purge("a", forks=forks)

    def test_s9_is_an_audit_event(self, store: tape.Store, caplog: pytest.LogCaptureFixture) -> None:
        """Each purge is logged with tape, owner, seq and hash."""
        chat = store.create("a", owner="ann")
        with caplog.at_level(logging.INFO, "tape"):
            store.purge(chat.id)
        (event,) = [record.getMessage() for record in caplog.records if "tape.purged" in record.getMessage()]
        assert "tape='a' owner='ann' seq=2" in event

    def test_s9_large_tapes_go_in_batches(self, backend: Backend, store: tape.Store) -> None:
        """A tape of more rows than one batch is emptied in several transactions."""
        chat = store.create("a")
        chat.extend([{"role": "user", "content": str(n)} for n in range(4_100)])
        number = number_of(backend, "a")
        commits = 0

        def count(point: str) -> None:
            nonlocal commits
            commits += point == "commit"

        store._db.fault = count
        report = store.purge("a")
        store._db.fault = None
        assert report.entries == 4_101
        assert commits >= 1 + 3 + 3
        assert len(rows(backend, "tape_entries", number)) == 1

    def test_s9_async_twin(self, backend: Backend) -> None:
        """The async store purges, retains and reuses alike."""

        async def go() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                await store.create("a")
                assert (await store.retain(older_than=timedelta())).tapes == ["a"]
                assert (await store.purge("a")).tapes == ["a"]
                assert (await (await store.create("a", reuse=True)).info()).head == 1

        asyncio.run(go())


class TestFamilies:
    def test_f12_a_parent_with_forks_is_refused(self, store: tape.Store) -> None:
        """The error names the forks that inherit from the tape; nothing is gone."""
        chat = store.create("chat")
        chat.fork("one")
        chat.fork("two").fork("three")
        for name, by in (("chat", ["one", "two"]), ("two", ["three"])):
            with pytest.raises(tape.TapeInUse) as caught:
                store.purge(name)
            assert (caught.value.tape, caught.value.by) == (name, by)
        assert len(store.list()) == 4

    def test_f12_explicitly_with_all_of_them(self, store: tape.Store) -> None:
        """``forks=True`` purges the tape and everything that descends from it, and no other tape."""
        chat = store.create("chat")
        chat.fork("one")
        chat.fork("two").fork("three")
        store.create("other").fork("kept")
        assert sorted(store.purge("two", forks=True).tapes) == ["three", "two"]
        assert sorted(store.purge("chat", forks=True).tapes) == ["chat", "one"]
        assert [info.id for info in store.list()] == ["kept", "other"]
        assert store.verify().problems == []

    def test_f12_children_first_is_fine(self, store: tape.Store) -> None:
        """Once its forks are purged, a tape can be, and the family verifies at every step."""
        chat = store.create("chat", messages=[{"role": "user", "content": "x"}])
        fork = chat.fork("fork")
        fork.append(role="assistant", content="y")
        chat.merge(fork)
        store.purge("fork")
        assert ([message.content for message in chat.messages()], store.verify().problems) == (["x", "y"], [])
        assert chat.lineage().descendants == []
        with pytest.raises(tape.TapeNotFound):
            chat.merge("fork")
        store.purge("chat")
        assert store.list().items == []

    def test_f12_a_linked_fork_is_refused(self, store: tape.Store) -> None:
        """A fork that its parent links to stays readable there, so it is not purged alone."""
        chat = store.create("chat")
        fork = chat.fork("fork")
        fork.append(role="assistant", content="y")
        chat.merge(fork, strategy="link")
        fork.append(role="assistant", content="z")
        chat.merge(fork)
        with pytest.raises(tape.TapeInUse) as caught:
            store.purge("fork", forks=True)
        assert caught.value.by == ["chat"]
        assert sorted(store.purge("chat", forks=True).tapes) == ["chat", "fork"]

    def test_f12_the_id_of_a_purged_fork_can_be_used_again(self, store: tape.Store) -> None:
        """What a parent says of a purged fork is not held against another tape of its name."""
        chat = store.create("chat")
        fork = chat.fork("fork")
        fork.append(role="assistant", content="y")
        chat.merge(fork)
        store.purge("fork")
        store.create("fork", reuse=True, messages=[{"role": "user", "content": str(n)} for n in range(5)])
        assert store.verify().problems == []

    def test_f12_forks_made_meanwhile_go_too(self, backend: Backend) -> None:
        """While others fork, purging with forks leaves no fork whose parent is gone."""
        store = backend.open()
        chat = store.create("chat")
        started = threading.Barrier(5)
        odd: list[BaseException] = []

        def fork(n: int) -> None:
            started.wait(timeout=30)
            try:
                for k in range(20):
                    chat.fork(f"f{n}-{k}")
            except tape.TapeNotFound:
                pass
            except BaseException as error:
                odd.append(error)

        threads = [threading.Thread(target=fork, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        started.wait(timeout=30)
        store.purge("chat", forks=True)
        for thread in threads:
            thread.join(timeout=60)
        assert (odd, store.list().items) == ([], [])


class TestRetain:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def store(self, backend: Backend, clock: Clock) -> tape.Store:
        """Tapes of which each is ten days younger than the one before."""
        store = backend.open(clock=clock)
        for n, status in enumerate(("active", "completed", "abandoned", "active", "completed")):
            chat = store.create(f"t{n}", messages=[{"role": "user", "content": "x"}])
            if status == "completed":
                chat.complete()
            if status == "abandoned":
                chat.abandon()
            clock.go(10)
        return store

    def test_s10_tells_before_it_does(self, store: tape.Store) -> None:
        """By default nothing is purged; the report is the one that the real run gives."""
        told = store.retain(older_than=timedelta(days=25))
        assert (told.dry_run, told.tapes, told.entries, told.kept) == (True, ["t0", "t1", "t2"], 8, {})
        assert len(store.list()) == 5
        done = store.retain(older_than=timedelta(days=25), dry_run=False)
        assert (done.dry_run, done.tapes, done.entries) == (False, told.tapes, told.entries)
        assert [info.id for info in store.list()] == ["t4", "t3"]
        assert store.retain(older_than=timedelta(days=25), dry_run=False).tapes == []

    def test_s10_by_status_and_by_moment(self, store: tape.Store, clock: Clock) -> None:
        """Only tapes of the status go; an age can be given as a moment."""
        assert store.retain(older_than=timedelta(days=5), status="completed").tapes == ["t1", "t4"]
        assert store.retain(older_than=clock.now - timedelta(days=35)).tapes == ["t0", "t1"]
        assert store.retain(older_than=clock.now, status="nothing").tapes == []

    def test_s10_a_write_makes_a_tape_young(self, store: tape.Store) -> None:
        """The age is that of the last entry."""
        store.get("t0").event("seen")
        assert store.retain(older_than=timedelta(days=25)).tapes == ["t1", "t2"]

    def test_s10_families_go_whole_or_stay(self, store: tape.Store, clock: Clock) -> None:
        """A tape with a young fork stays and the report says so; when the fork is old too, both go."""
        store.get("t0").fork("young")
        clock.go(10)
        told = store.retain(older_than=timedelta(days=5), status="active")
        assert (told.tapes, told.kept) == (["t0", "young", "t3"], {})
        store.get("young").event("seen")
        told = store.retain(older_than=timedelta(days=5), status="active", dry_run=False)
        assert (told.tapes, told.kept) == (["t3"], {"t0": "its fork 'young' must be kept"})
        assert store.verify().problems == []

    def test_s10_linked_forks_stay_with_their_parent(self, store: tape.Store, clock: Clock) -> None:
        """An old fork that a young parent links to stays; with the parent it goes."""
        parent = store.get("t3")
        fork = parent.fork("linked")
        parent.merge(fork, strategy="link")
        clock.go(10)
        parent.event("seen")
        assert store.retain(older_than=timedelta(days=5)).kept == {"linked": "tape 't3' links to it"}
        clock.go(10)
        assert store.retain(older_than=timedelta(days=5)).tapes == ["t0", "t1", "t2", "t3", "linked", "t4"]

    def test_s10_each_tape_of_a_family_is_looked_at_once(
        self, backend: Backend, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A long chain of forks with a young end costs a few statements per tape, not the rest of the chain each."""
        store = backend.open(clock=clock, durability="normal")
        chat = store.create("c0")
        for n in range(1, 40):
            chat = chat.fork(f"c{n}")
        clock.go(10)
        chat.event("seen")
        looked: list[Any] = []
        one = Transaction.one

        def counting(self: Transaction, *args: Any) -> Any:
            looked.append(args)
            return one(self, *args)

        monkeypatch.setattr(Transaction, "one", counting)
        told = store.retain(older_than=timedelta(days=5))
        assert told.kept == {f"c{n}": "its fork 'c39' must be kept" for n in range(39)}
        assert len(looked) < 3 * 40

    def test_s10_old_branches_of_a_family_that_stays_go(self, backend: Backend, clock: Clock) -> None:
        """Of a family with one young tape only that one and its ancestors stay; every other branch goes whole."""
        store = backend.open(clock=clock)
        root = store.create("root")
        left, right = root.fork("left"), root.fork("right")
        left.fork("left/old").fork("left/old/deep")
        young = left.fork("left/young")
        right.fork("right/deep")
        young.fork("left/young/old")
        clock.go(10)
        young.event("seen")
        for dry_run in (True, False):
            told = store.retain(older_than=timedelta(days=5), dry_run=dry_run)
            assert sorted(told.tapes) == ["left/old", "left/old/deep", "left/young/old", "right", "right/deep"]
            assert told.kept == dict.fromkeys(("root", "left"), "its fork 'left/young' must be kept")
        assert sorted(info.id for info in store.list()) == ["left", "left/young", "root"]
        assert store.verify().problems == []

    def test_s10_more_than_a_page(self, backend: Backend, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """More tapes than are listed at once go in one call, each in a transaction of its own."""
        monkeypatch.setattr(Catalog.oldest_first, "__defaults__", (20,))
        store = backend.open(clock=clock, durability="normal")
        for n in range(43):
            store.create(f"many-{n}")
        clock.go(10)
        assert len(store.retain(older_than=timedelta(days=1), dry_run=False).tapes) == 43
        assert store.list().items == []

    @pytest.mark.parametrize("wrong", [7, datetime(2026, 1, 1), "7 days", None])
    def test_s10_an_age_must_be_one(self, store: tape.Store, wrong: Any) -> None:
        """Neither numbers nor naive moments are taken for an age."""
        with pytest.raises(tape.InvalidEntry):
            store.retain(older_than=wrong)
        assert store.retain(older_than=datetime(1999, 1, 1, tzinfo=UTC)).tapes == []
