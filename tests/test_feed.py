"""S12: all entries of all tapes in an order that never skips one, followed live, and readers that resume."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from support import programs
from support.backends import Backend
from support.processes import PATIENCE, Crew
from support.sizes import heavy, size

import tape
from tape.core.entries import payloads

ENTRIES = int(os.environ.get("TAPE_TEST_FEED_ENTRIES", size(900, 9_000)))
"""How many entries the storm writes; all of them take half a minute."""
WRITERS = 8


def names(entries: Any) -> list[tuple[str, int]]:
    return [(entry.tape, entry.seq) for entry in entries]


class TestFeed:
    def test_s12_yields_every_entry_of_every_tape_in_order(self, store: tape.Store) -> None:
        """The feed has all entries in the order in which they were committed, with rising positions."""
        for n in range(10):
            store.tape(f"t{n % 3}").append(role="user", content=f"{n}")
        entries = list(store.feed())
        assert len(entries) == 13
        positions = [entry.position for entry in entries]
        assert positions == sorted(set(positions))  # type: ignore[type-var]
        written = [e.payload.message["content"] for e in entries if isinstance(e.payload, payloads.Append)]
        assert written == [str(n) for n in range(10)]
        for name in ("t0", "t1", "t2"):
            assert [e.seq for e in entries if e.tape == name] == [e.seq for e in store.tape(name).entries()]

    def test_s12_a_tape_s_entries_have_the_same_positions(self, store: tape.Store) -> None:
        """An entry has one position wherever it is read, so that a reader of a tape can go on in the feed."""
        chat = store.tape("a")
        chat.append(role="user", content="x", id="m")
        store.tape("b").append(role="user", content="y")
        chat.append(role="user", content="z")
        told = {(entry.tape, entry.seq): entry.position for entry in store.feed()}
        assert {("a", entry.seq): entry.position for entry in chat.entries()}.items() <= told.items()
        again = chat.append(role="user", content="x", id="m")
        assert (again.duplicate, again.position) == (True, told["a", 2])
        assert [(entry.tape, entry.seq) for entry in store.feed(again.position or 0)] == [("b", 1), ("b", 2), ("a", 3)]

    def test_s12_a_repeated_discard_has_the_position_of_the_first(self, store: tape.Store) -> None:
        """The receipt of a discard that was made before names the place of its entry in the feed."""
        fork = store.create("a").fork("b")
        fork.discard(key="k")
        again = fork.discard(key="k")
        told = {(entry.tape, entry.seq): entry.position for entry in store.feed()}
        assert (again.duplicate, again.position) == (True, told["b", again.seq])

    def test_s12_resumes_behind_any_position(self, store: tape.Store) -> None:
        """Reading on from the position of any entry gives exactly those after it; a limit stops early."""
        for n in range(7):
            store.tape(f"t{n % 2}").append(role="user", content=f"{n}")
        entries = list(store.feed())
        for index, entry in enumerate(entries):
            assert entry.position is not None
            assert names(store.feed(entry.position)) == names(entries[index + 1 :])
        assert names(store.feed(limit=3)) == names(entries[:3])
        assert names(store.feed(limit=0)) == []

    def test_s12_pages_are_seamless(self, store: tape.Store) -> None:
        """A feed longer than a page has nothing twice and misses nothing."""
        chat = store.tape("t")
        for _ in range(3):
            chat.extend([{"role": "user", "content": "x"} for _ in range(500)])
        assert [entry.seq for entry in store.feed()] == list(range(1, 1502))

    def test_s12_forks_and_merges_are_in_the_feed(self, store: tape.Store) -> None:
        """Entries of a fork tell where the head stands in its ancestor, as they do on the tape."""
        parent = store.tape("parent")
        parent.append(role="user", content="start")
        child = parent.fork("child")
        child.append(role="user", content="more")
        parent.merge(child)
        seen = {(entry.tape, entry.seq): entry for entry in store.feed()}
        own = [entry for name in ("parent", "child") for entry in store.tape(name).entries()]
        assert len(seen) == len(own)
        for entry in own:
            assert (seen[entry.tape, entry.seq].hash, seen[entry.tape, entry.seq].head) == (entry.hash, entry.head)

    def test_e2_a_duplicate_is_in_the_feed_once(self, store: tape.Store) -> None:
        """The same append twice is one item of the feed."""
        for _ in range(2):
            store.tape("t").append(role="user", content="x", key="k")
        assert names(store.feed()) == [("t", 1), ("t", 2)]

    def test_s12_what_is_not_committed_is_not_there(self, backend: Backend) -> None:
        """Entries of an open transaction are not in the feed, and after a rollback never were."""
        store, engine = backend.open(), backend.engine()
        store.tape("t").append(role="user", content="x")
        with engine.connect() as connection:
            store.bind(connection).tape("t").append(role="user", content="y")
            assert len(list(backend.open().feed())) == 2
            connection.rollback()
        engine.dispose()
        assert len(list(store.feed())) == 2

    def test_s12_a_late_commit_is_not_skipped(self, backend: Backend) -> None:
        """An entry whose transaction began first and commits last still comes behind what was read before it."""
        store, engine = backend.open(), backend.engine()
        late = store.tape("late")
        late.append(role="user", content="1")
        place = [entry.position for entry in store.feed()][-1] or 0
        with engine.connect() as connection:
            store.bind(connection).tape("late").append(role="user", content="2")
            if backend.postgres:
                store.tape("quick").append(role="user", content="3")
            before = list(store.feed(place))
            connection.commit()
        engine.dispose()
        if not backend.postgres:
            store.tape("quick").append(role="user", content="3")
        place = before[-1].position or 0 if before else place
        after = list(store.feed(place))
        assert sorted(names([*before, *after])) == [("late", 3), ("quick", 1), ("quick", 2)]

    def test_s12_a_row_written_first_in_the_same_transaction_keeps_the_order(self, backend: Backend) -> None:
        """Two transactions that took their ids in one order and wrote the tape in the other stay in order of seq."""
        store, engine = backend.open(), backend.engine()
        chat = store.tape("t")
        chat.append(role="user", content="0")
        if backend.postgres:
            with engine.connect() as first, engine.connect() as second:
                first.execute(sa.text("SELECT pg_current_xact_id()"))
                second.execute(sa.text("SELECT pg_current_xact_id()"))
                store.bind(second).tape("t").append(role="user", content="1")
                second.commit()
                store.bind(first).tape("t").append(role="user", content="2")
                first.commit()
        else:
            for n in (1, 2):
                chat.append(role="user", content=f"{n}")
        engine.dispose()
        assert names(store.feed()) == [("t", 1), ("t", 2), ("t", 3), ("t", 4)]

    def test_s4_a_scoped_feed_has_only_its_owners_tapes(self, backend: Backend) -> None:
        """The feed of an owner has all of the owner's entries and no others, and a follower of it neither."""
        store, ann = backend.open(), backend.open(owner="ann")
        for n in range(1_200):
            if n % 400 == 0:
                store.create(f"a{n}", owner="ann")
            if n % 3 == 0:
                store.tape("others").append(role="user", content="x")
        assert names(ann.feed()) == [("a0", 1), ("a400", 1), ("a800", 1)]
        assert names(ann.follow(timeout=0.0)) == [("a0", 1), ("a400", 1), ("a800", 1)]
        assert len(list(store.feed())) == 404

    @pytest.mark.parametrize("wrong", [-1, 1.5, "1", True, None, 2**200])
    def test_s12_a_wrong_position_is_refused(self, store: tape.Store, wrong: Any) -> None:
        """What cannot be a position is refused by name."""
        with pytest.raises(tape.InvalidEntry) as caught:
            store.feed(wrong)
        assert caught.value.field == "after"

    def test_s12_a_restored_database_goes_on(self, backend: Backend) -> None:
        """In a server whose transaction ids are lower than those stored, readers go on where they were."""
        if not backend.postgres:
            # Rowids come along with the file.
            store = backend.open()
            store.tape("t").append(role="user", content="x")
            store.close()
            assert len(list(backend.open().feed())) == 2
            return
        store = backend.open()
        connection = backend.raw()
        # As if what is written now came from a server two billion transactions older.
        connection.execute("UPDATE tape_epoch SET base = 2000000000")
        store.tape("t").append(role="user", content="x")
        before = list(store.feed())
        consumer = store.consumer("c")
        consumer.commit(before[-1].position or 0)
        connection.execute("UPDATE tape_epoch SET base = 0")
        store.close()
        restored = backend.open()
        restored.tape("t").append(role="user", content="y")
        restored.tape("u").append(role="user", content="z")
        assert names(restored.feed()) == [("t", 1), ("t", 2), ("t", 3), ("u", 1), ("u", 2)]
        assert names(restored.consumer("c")) == [("t", 3), ("u", 1), ("u", 2)]
        connection.close()


@heavy
class TestStorm:
    """Writers with pauses inside their transactions, and one reader that follows."""

    def test_s12_nothing_is_missed_doubled_or_out_of_order(self, backend: Backend, crew: Crew) -> None:
        """Eight writers with random delays inside their transactions: the follower sees every entry once, in order."""
        seed = random.SystemRandom().randrange(10**6)
        print(f"seed {seed}, {ENTRIES} entries")
        store = backend.open()
        for name in [f"shared{n}" for n in range(3)] + [f"own{n}" for n in range(WRITERS)]:
            store.create(name)
        order = {"opening": {"durability": "normal"}, "seed": seed, "count": ENTRIES // WRITERS}
        writers = [crew.start(backend, programs.storm, index=n, **order) for n in range(WRITERS)]
        for writer in writers:
            writer.tell("go")
        expected = ENTRIES // WRITERS * WRITERS + 3 + WRITERS
        seen: list[tuple[str, int]] = []
        positions: list[int] = []
        missed_by_number = 0
        highest = 0
        for entry in store.follow(timeout=PATIENCE):
            seen.append((entry.tape, entry.seq))
            positions.append(entry.position or 0)
            number = (entry.position or 0) & (2**40 - 1)
            missed_by_number += number < highest
            highest = max(highest, number)
            if len(seen) == expected:
                break
        for writer in writers:
            writer.finish()
        print(f"{missed_by_number} entries became final behind a greater number")
        assert [one for one, times in Counter(seen).items() if times > 1] == []
        assert len(seen) == expected
        assert positions == sorted(positions)
        for name in {name for name, _ in seen}:
            assert [seq for of, seq in seen if of == name] == list(range(1, store.tape(name).info().head + 1))
        assert list(store.feed(positions[-1])) == []

    def test_s12_control_a_plain_sequence_misses_entries(self, backend: Backend) -> None:
        """Going by the drawn number instead misses entries on PostgreSQL, so the storm is able to find a fault."""
        store, engine = backend.open(), backend.engine()
        for n in range(2):
            store.create(f"t{n}")
        tail, seen = 0, []
        query = "SELECT position FROM tape_entries WHERE position > {} ORDER BY position"
        raw = backend.raw()

        def look() -> None:
            nonlocal tail
            for (position,) in raw.execute(query.format(tail)).fetchall():
                seen.append(position)
                tail = position

        with engine.connect() as connection:
            store.bind(connection).tape("t0").append(role="user", content="begun first")
            if backend.postgres:
                store.tape("t1").append(role="user", content="committed first")
            look()
            connection.commit()
        if not backend.postgres:
            store.tape("t1").append(role="user", content="committed first")
        look()
        raw.close()
        engine.dispose()
        assert len(seen) == (3 if backend.postgres else 4)
        assert len(list(store.feed())) == 4


class TestFollow:
    def test_s12_waits_for_new_entries_and_ends_after_the_timeout(self, store: tape.Store) -> None:
        """A follower gets what is there, then ends when nothing came for the timeout."""
        store.tape("t").append(role="user", content="x")
        began = time.monotonic()
        assert names(store.follow(timeout=0.2)) == [("t", 1), ("t", 2)]
        assert 0.2 <= time.monotonic() - began < 10

    @pytest.mark.parametrize("through", ["the same store", "another store", "a bound transaction"])
    def test_s12_is_woken_by_a_write(self, backend: Backend, through: str) -> None:
        """A follower that waits gets a new entry soon, from the same store, another one, or a bound transaction."""
        store, other, engine = backend.open(), backend.open(), backend.engine()
        store.create("t")
        delays = []
        committed = 0.0
        go = threading.Semaphore(0)

        def write() -> None:
            nonlocal committed
            for n in range(5):
                assert go.acquire(timeout=PATIENCE)
                if through == "a bound transaction":
                    with engine.connect() as connection:
                        other.bind(connection).tape("t").append(role="user", content=f"{n}")
                        committed = time.monotonic()
                        connection.commit()
                else:
                    writer = store if through == "the same store" else other
                    committed = time.monotonic()
                    writer.tape("t").append(role="user", content=f"{n}")

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            following = store.follow(timeout=PATIENCE)
            next(following)
            for _ in range(5):
                go.release()
                next(following)
                delays.append(time.monotonic() - committed)
            writing.result(PATIENCE)
            following.close()  # type: ignore[attr-defined]
        engine.dispose()
        print([round(delay, 4) for delay in delays])
        assert sorted(delays)[2] < 1.0

    def test_s12_closing_the_store_ends_a_follower(self, backend: Backend) -> None:
        """A follower of a store that is closed ends without an error."""
        store = backend.open()
        store.create("t")
        following = store.follow()
        assert next(following).seq == 1
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(lambda: next(following, None))
            store.close()
            assert ended.result(PATIENCE) is None

    def test_s12_async_followers_share_no_thread_while_they_wait(self, backend: Backend) -> None:
        """More async followers than threads wait at once, and each gets every entry."""

        async def follower(store: tape.AsyncStore, count: int) -> list[tuple[str, int]]:
            seen = []
            async for entry in store.follow(timeout=PATIENCE):
                seen.append((entry.tape, entry.seq))
                if len(seen) == count:
                    break
            return seen

        async def run() -> list[list[tuple[str, int]]]:
            async with tape.open_async(backend.url, threads=2, **backend.options) as store:
                tasks = [asyncio.create_task(follower(store, 4)) for _ in range(6)]
                for n in range(3):
                    await store.tape("t").append(role="user", content=f"{n}")
                seen = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
                assert [e.seq async for e in store.feed()] == [1, 2, 3, 4]
                assert [e.seq async for e in store.follow(timeout=0.05)] == [1, 2, 3, 4]
                return seen

        assert asyncio.run(run()) == [[("t", n) for n in range(1, 5)]] * 6


class TestConsumers:
    def test_s12_resumes_where_it_committed(self, backend: Backend) -> None:
        """A named consumer goes on behind the position it committed, also after reopening; others are not moved."""
        store = backend.open()
        store.tape("t").extend([{"role": "user", "content": f"{n}"} for n in range(4)])
        consumer = store.consumer("mailer")
        assert (consumer.name, consumer.position) == ("mailer", 0)
        assert len(list(consumer)) == 5
        assert len(list(consumer)) == 5
        third = list(consumer)[2]
        consumer.commit(third.position or 0)
        store.close()
        again = backend.open().consumer("mailer")
        assert again.position == third.position
        assert names(again) == [("t", 4), ("t", 5)]
        assert names(again.follow(timeout=0.0)) == [("t", 4), ("t", 5)]
        assert len(list(backend.open().consumer("other"))) == 5
        again.commit(0)
        assert len(list(again)) == 5

    def test_s12_commits_with_the_callers_transaction(self, backend: Backend) -> None:
        """A position committed through a bound store comes and goes with the caller's rows."""
        store, engine = backend.open(), backend.engine()
        store.tape("t").append(role="user", content="x")
        last = list(store.feed())[-1].position or 0
        with engine.connect() as connection:
            connection.execute(sa.text("CREATE TABLE mails (seq INTEGER)"))
            connection.commit()
            for finish, rows, left in ((connection.rollback, 0, 2), (connection.commit, 2, 0)):
                bound = store.bind(connection).consumer("mailer")
                for entry in bound:
                    connection.execute(sa.text("INSERT INTO mails VALUES (:seq)"), {"seq": entry.seq})
                bound.commit(last)
                finish()
                assert connection.execute(sa.text("SELECT count(*) FROM mails")).scalar() == rows
                connection.rollback()
                assert len(list(store.consumer("mailer"))) == left
        engine.dispose()
        assert store.consumer("mailer").position == last

    def test_s4_owners_have_consumers_of_their_own(self, backend: Backend) -> None:
        """The same name under two owners is two consumers."""
        ann, bob = backend.open(owner="ann"), backend.open(owner="bob")
        ann.tape("a").append(role="user", content="x")
        bob.tape("b").append(role="user", content="x")
        ann.consumer("c").commit(list(ann.feed())[-1].position or 0)
        assert names(ann.consumer("c")) == []
        assert names(bob.consumer("c")) == [("b", 1), ("b", 2)]

    def test_s12_the_async_twin(self, backend: Backend) -> None:
        """A consumer can be awaited and iterated asynchronously."""

        async def run() -> tuple[int, int, int]:
            async with tape.open_async(backend.url, **backend.options) as store:
                await store.tape("t").append(role="user", content="x")
                consumer = store.consumer("c")
                entries = [entry async for entry in consumer]
                await consumer.commit(entries[0].position or 0)
                followed = [entry async for entry in consumer.follow(timeout=0.0)]
                return len(entries), len(followed), await consumer.position - (entries[0].position or 0)

        assert asyncio.run(run()) == (2, 1, 0)

    def test_s12_a_wrong_name_or_position_is_refused(self, store: tape.Store) -> None:
        """Names follow the rules of ids, positions those of the feed."""
        with pytest.raises(tape.InvalidEntry):
            store.consumer("\x01index")
        with pytest.raises(tape.InvalidEntry):
            store.consumer("c").commit(-1)
