"""A transaction of the caller's: reads and writes on several tapes, all of them or none, and nobody in between."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support import transacting
from support.backends import Backend
from support.damage import contents
from support.processes import PATIENCE, Crew
from support.sizes import heavy, size
from support.verbs import Verb, each_verb

import tape

THREADS, PROCESSES = 8, 4


def texts(chat: tape.Tape) -> list[Any]:
    return [message.content for message in chat.messages()]


def add_one(store: tape.Store, name: str = "counter") -> int:
    """Read a number, and write the next: what loses counts when two do it at once."""
    chat = store.tape(name)
    number: int = (chat.state("n") or 0) + 1
    chat.put("n", number)
    return number


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make all calls at one moment, each in a thread of its own; returns what each returned or raised."""
    begin = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        begin.wait(PATIENCE)
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return [one.result(PATIENCE) for one in [threads.submit(run, call) for call in calls]]


class TestAllOrNothing:
    """What a transaction writes is there as a whole."""

    def test_several_tapes_commit_together(self, store: tape.Store, backend: Backend) -> None:
        """Reads inside see what was written; others see nothing of it before the commit, and all of it after."""
        old = store.create("old", messages=[{"role": "user", "content": "before"}])
        other = backend.open()

        def fn(inside: tape.Store) -> str:
            chat = inside.get("old")
            chat.append(role="user", content="one")
            made = inside.create("made", name="Made", messages=[{"id": "m", "role": "user", "content": "two"}])
            child = made.fork("child")
            child.append(role="assistant", content="three")
            made.merge(child)
            made.put("slot", {"n": 1})
            following = inside.split("old", summary="so far")
            assert texts(inside.get("old")) == ["before", "one"]
            assert texts(made) == ["two", "three"]
            assert made.state("slot") == {"n": 1}
            assert [hit.tape for hit in inside.search("three", tape="made")] == ["made"]
            assert sorted(info.id for info in inside.list().items) == sorted(["old", "made", "child", following.id])
            assert texts(other.get("old")) == ["before"]
            assert other.tape("made").info().entry_count == 0
            return following.id

        following = store.transaction(fn)
        assert texts(other.get("old")) == texts(old) == ["before", "one"]
        assert texts(other.get("made")) == ["two", "three"]
        assert other.get("old").info().redirect == following
        assert store.verify().problems == []

    def test_an_exception_undoes_all(self, store: tape.Store, backend: Backend) -> None:
        """Every table is as before, heads that are kept included: the next appends continue densely."""
        for name in ("a", "b"):
            store.tape(name).append(role="user", content="before")
        before = contents(backend)

        def fn(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="lost")
            inside.tape("b").extend([{"content": "lost"}, {"content": "lost"}])
            inside.tape("a").fork("child").append(role="user", content="lost")
            inside.create("new")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            store.transaction(fn)
        assert caught.value.__cause__ is None
        assert contents(backend) == before
        assert [store.tape(name).append(role="user", content="after").seq for name in ("a", "b")] == [3, 3]
        assert store.create("new").info().head == 1
        assert store.verify().problems == []

    @each_verb
    @pytest.mark.alike
    def test_every_write_can_be_part_of_it(self, store: tape.Store, backend: Backend, verb: Verb) -> None:
        """Undone it leaves nothing, committed it is there, and the tape goes on behind it."""
        chat = verb.start(store)
        head = chat.info().head
        before = contents(backend)

        def fail(inside: tape.Store) -> None:
            verb.call(inside.get(chat.id))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.transaction(fail)
        assert contents(backend) == before
        store.transaction(lambda inside: verb.call(inside.get(chat.id)))
        assert chat.info().head == head + verb.entries
        chat.event("after")
        assert chat.info().head == head + verb.entries + 1
        assert store.verify().problems == []

    def test_a_refused_call_leaves_the_rest(self, store: tape.Store) -> None:
        """A call that is refused undoes itself; the function goes on as it likes."""
        store.tape("a").append(role="user", content="x", id="m")

        def fn(inside: tape.Store) -> None:
            chat = inside.tape("a")
            chat.append(role="user", content="y")
            with pytest.raises(tape.UnknownMessage):
                chat.revise("nobody", content="z")
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend([{"content": "lost"}, {"id": "m", "content": "other"}])
            with pytest.raises(tape.HeadMoved):
                chat.append(role="user", content="lost", expected_head=9)
            with pytest.raises(tape.TapeExists):
                inside.create("a")
            with pytest.raises(tape.TapeNotFound):
                inside.get("nothing")
            assert chat.append(role="user", content="z").seq == 4

        store.transaction(fn)
        assert texts(store.tape("a")) == ["x", "y", "z"]
        assert store.verify().problems == []

    def test_errors_of_other_databases_are_the_functions_own(self, store: tape.Store) -> None:
        """What looks like an error of the store's driver, but is not its own, is raised as it is and once."""
        runs = []

        def fn(inside: tape.Store) -> None:
            runs.append(inside)
            inside.tape("a").append(role="user", content="lost")
            raise sqlite3.IntegrityError("of an application's own file")

        with pytest.raises(sqlite3.IntegrityError):
            store.transaction(fn)
        assert len(runs) == 1
        assert store.tape("a").info().head == 0

    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
    @pytest.mark.parametrize("point", ["entry", "view", "head", "commit"])
    def test_a_failure_inside_undoes_all(
        self, store: tape.Store, backend: Backend, point: str, error: type[BaseException]
    ) -> None:
        """Wherever a write or the commit fails or is interrupted, nothing is there, and the store goes on."""
        store.tape("a").append(role="user", content="before")
        before = contents(backend)

        def fault(name: str) -> None:
            if name == point:
                raise error

        def fn(inside: tape.Store) -> None:
            inside.tape("b").append(role="user", content="lost")
            inside.tape("a").extend([{"content": "lost"}, {"content": "lost"}])

        store._db.fault = fault
        with pytest.raises(error):
            store.transaction(fn)
        store._db.fault = None
        assert contents(backend) == before
        store.transaction(fn)
        assert store.tape("a").info().head == 4
        assert store.verify().problems == []


class TestReadCheckWrite:
    """Between what the function reads and what it writes nobody comes."""

    def test_threads_lose_no_count(self, store: tape.Store) -> None:
        """Eight threads count in one slot, beside appends that share commits: the sum is right."""
        chat = store.tape("counter")

        def count() -> list[int]:
            return [store.transaction(add_one) for _ in range(10)]

        def append() -> list[int]:
            return [chat.append(role="user", content="beside").seq for _ in range(10)]

        told = together([count] * THREADS + [append] * 2)
        numbers = sorted(number for one in told[:THREADS] for number in one)
        assert numbers == list(range(1, 10 * THREADS + 1))
        assert chat.state("n") == 10 * THREADS
        assert len(chat.messages()) == 20
        assert store.verify().problems == []

    @heavy
    def test_processes_lose_no_count(self, store: tape.Store, backend: Backend, crew: Crew) -> None:
        """Four processes count in slots of two tapes, in opposite order."""
        count = size(6, 15)
        given = [{"index": index, "count": count} for index in range(PROCESSES)]
        told = crew.race(backend, transacting.count_in_transactions, given)
        assert sorted(number for one in told for number in one) == list(range(1, count * PROCESSES + 1))
        assert [store.tape(name).state("n") for name in ("left", "right")] == [count * PROCESSES] * 2
        assert store.verify().problems == []

    def test_opposite_order_ends(self, store: tape.Store) -> None:
        """Two that lock each other's tapes both end, whoever had to begin again."""
        met = threading.Barrier(2)
        runs: list[str] = []

        def fn(first: str, second: str, inside: tape.Store) -> None:
            runs.append(first)
            add_one(inside, first)
            if store._db.postgres and runs.count(first) == 1:
                met.wait(PATIENCE)
            add_one(inside, second)

        told = together(
            [
                lambda: store.transaction(lambda inside: fn("a", "b", inside)),
                lambda: store.transaction(lambda inside: fn("b", "a", inside)),
            ]
        )
        assert told == [None, None]
        assert [store.tape(name).state("n") for name in ("a", "b")] == [2, 2]
        assert len(runs) == (3 if store._db.postgres else 2)
        assert store.verify().problems == []

    def test_an_error_that_is_swallowed_commits_nothing(self, store: tape.Store) -> None:
        """A function that catches what a deadlock raised is run again all the same; it cannot commit a half."""
        met = threading.Barrier(2)
        runs: list[str] = []

        def fn(first: str, second: str, inside: tape.Store) -> None:
            runs.append(first)
            add_one(inside, first)
            if store._db.postgres and runs.count(first) == 1:
                met.wait(PATIENCE)
            try:
                add_one(inside, second)
            except Exception:
                runs.append("caught")

        told = together(
            [
                lambda: store.transaction(lambda inside: fn("a", "b", inside)),
                lambda: store.transaction(lambda inside: fn("b", "a", inside)),
            ]
        )
        assert told == [None, None]
        assert [store.tape(name).state("n") for name in ("a", "b")] == [2, 2]
        assert runs.count("caught") == (1 if store._db.postgres else 0)

    def test_what_is_only_read_is_locked(self, store: tape.Store, backend: Backend) -> None:
        """Another store cannot write a tape that the function has read, nor create one that it found absent."""
        store.tape("read").append(role="user", content="x")
        other = backend.open(timeout=0.1)
        readings: list[Callable[[tape.Store], Any]] = [
            lambda inside: inside.tape("read").messages(),
            lambda inside: inside.get("read"),
            lambda inside: inside.tape("read").info(),
            lambda inside: inside.tape("read").state("n"),
            lambda inside: list(inside.tape("read").entries()),
            lambda inside: inside.tape("read").context(),
            lambda inside: inside.tape("read").lineage(),
            lambda inside: inside.search("x", tape="read"),
        ]
        for read in readings:

            def fn(inside: tape.Store, read: Callable[[tape.Store], Any] = read) -> None:
                read(inside)
                for name in ("read", "absent") if inside.tape("absent").info().head == 0 else ():
                    with pytest.raises(tape.StoreBusy):
                        other.tape(name).append(role="user", content="refused")

            store.transaction(fn)
        assert texts(other.tape("read")) == ["x"]
        other.tape("absent").append(role="user", content="free again")

    def test_a_refusal_unlocks_nothing(self, store: tape.Store, backend: Backend) -> None:
        """A tape stays locked after a write of it that was refused, also if it was the first thing done to it."""
        other = backend.open(timeout=0.2)
        store.tape("a").fork("b").append(role="user", content="x")

        def fn(inside: tape.Store) -> None:
            with pytest.raises(tape.HeadMoved):
                inside.tape("a").append(role="user", content="refused", expected_head=9)
            with pytest.raises(tape.HeadMoved):
                inside.tape("a").merge("b", expected_head=9)
            for name in ("a", "b"):
                with pytest.raises(tape.StoreBusy):
                    other.tape(name).event("refused")

        store.transaction(fn)

    # SQLite has one writer.
    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_other_tapes_go_on(self, store: tape.Store, backend: Backend) -> None:
        """On PostgreSQL a transaction holds up nobody who writes other tapes."""

        def fn(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="x")
            assert together([lambda: store.tape("b").append(role="user", content="beside").seq]) == [2]

        store.transaction(fn)
        assert texts(store.tape("b")) == ["beside"]


class TestHeads:
    """What is kept of heads in memory stays right."""

    def test_other_handles_go_on(self, store: tape.Store) -> None:
        """Handles of the store, of a store of one owner and of others find the heads that a transaction left."""
        scoped = store.scoped("me")
        store.create("a", owner="me")
        handles = [store.tape("a"), scoped.tape("a"), store.scoped("me").tape("a")]
        for round in range(3):
            for chat in handles:
                chat.append(role="user", content="beside")
            for owner in (store, scoped):
                owner.transaction(lambda inside: [inside.tape("a").append(role="user", content=n) for n in range(2)])
                with pytest.raises(ZeroDivisionError):
                    owner.transaction(lambda inside: inside.tape("a").append(role="user", content="x").seq / 0)
            assert store.tape("a").info().head == 1 + 7 * (round + 1)
        assert [entry.seq for entry in store.tape("a").entries()] == list(range(1, 23))
        assert store.verify().problems == []

    def test_the_next_append_reads_nothing(self, store: tape.Store) -> None:
        """An append after a transaction needs no second look: the head that it left is known."""
        chat = store.tape("a")
        chat.append(role="user", content="x")
        store.transaction(lambda inside: inside.tape("a").append(role="user", content="y"))
        number, head, _ = store._db.heads[None, "a"]
        assert (head.seq, number) == (3, 1) if not store._db.postgres else head.seq == 3
        store.transaction(lambda inside: inside.tape("a").fork("child"))
        assert (None, "a") not in store._db.heads or store._db.heads[None, "a"][1].seq == 4
        assert chat.append(role="user", content="z").seq == 5


class TestConnections:
    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_a_function_that_raises_costs_no_connection(self, backend: Backend) -> None:
        """What a caller's function raises says nothing of the connection: it is used again."""
        store = backend.open()
        store.create("t")
        database: Any = store._db
        before = list(database._connections.idle)

        def fail(inner: tape.Store) -> None:
            inner.tape("t").event("x")
            raise KeyError("no")

        for _ in range(3):
            with pytest.raises(KeyError):
                store.transaction(fail)
        assert list(database._connections.idle) == before


class TestReadOnly:
    """On a store that is opened to be read only it is a transaction that reads."""

    def test_it_reads(self, backend: Backend) -> None:
        """It sees one state while others write, plain, nested, bound and awaited; a write in it is ReadOnly."""

        backend.open().create("chat", messages=[{"role": "user", "content": "first"}])

        def fn(inside: tape.Store) -> list[Any]:
            seen = [message.id for message in inside.get("chat").messages()]
            writer.get("chat").append(role="user", content="meanwhile")
            with pytest.raises(tape.ReadOnly):
                inside.get("chat").anchor("a")
            with pytest.raises(ZeroDivisionError):
                inside.transaction(lambda again: 1 / len(again.get("chat").messages()[:0]))
            assert [message.id for message in inside.transaction(lambda again: again.get("chat").messages())] == seen
            assert {hit.message_id for hit in inside.search("meanwhile")} <= set(seen)
            return seen

        async def awaited() -> None:
            async with tape.open_async(backend.url, read_only=True, **backend.options) as store:

                async def read(inside: tape.AsyncStore) -> int:
                    with pytest.raises(tape.ReadOnly):
                        await inside.tape("chat").anchor("a")
                    return len(await (await inside.get("chat")).messages())

                assert await store.transaction(read) == len(await store.transaction(fn)) == first + 2

        with backend.open() as writer, tape.open(backend.url, read_only=True, **backend.options) as store:
            # From now on SQLite reads beside a log; a file without one is read again when it was changed.
            writer.get("chat").event("begun")
            first = len(store.get("chat").messages())
            assert [len(store.transaction(fn)) for _ in range(2)] == [first, first + 1]
            engine = backend.engine()
            with engine.connect() as connection:
                bound = store.bind(connection)
                assert bound.transaction(lambda inside: len(inside.get("chat").messages())) == first + 2
                with pytest.raises(tape.ReadOnly):
                    bound.transaction(lambda inside: inside.get("chat").anchor("a"))
            engine.dispose()
            asyncio.run(awaited())


class TestRefusals:
    """What cannot be done in a transaction is told, and leaves it usable."""

    def test_calls_that_can_have_no_part_in_it(self, store: tape.Store, backend: Backend, tmp_path: Path) -> None:
        """Each is NotInTransaction, before it did anything."""
        store.create("a")
        engine = backend.engine()
        calls: list[Callable[[tape.Store, Any], Any]] = [
            lambda inside, _: inside.purge("a"),
            lambda inside, _: inside.retain(older_than=timedelta(days=1)),
            lambda inside, _: inside.import_(tmp_path / "none"),
            lambda inside, _: inside.export("a", tmp_path / "none"),
            lambda inside, _: inside.backup(tmp_path / "none"),
            lambda inside, _: inside.feed(),
            lambda inside, _: inside.follow(),
            lambda inside, _: inside.consumer("c"),
            lambda inside, _: inside.rebuild(),
            lambda inside, _: inside.doctor(),
            lambda inside, connection: inside.bind(connection),
            lambda inside, _: inside.get("a").lease("l", 1, wait=1),
            lambda inside, _: inside.get("a").decision("r", wait=1),
        ]
        named = (
            "purge retain import_ export backup feed follow consumer rebuild doctor bind lease(wait=) decision(wait=)"
        )
        told: list[str] = []

        def fn(inside: tape.Store) -> None:
            for call in calls:
                with pytest.raises(tape.NotInTransaction) as caught:
                    call(inside, connection)
                told.append(caught.value.call)
            assert told == named.split()
            inside.tape("a").event("done")
            inside.close()
            inside.tape("a").event("still open")

        with engine.connect() as connection:
            store.transaction(fn)
        engine.dispose()
        assert list(tmp_path.glob("none*")) == []
        assert store.tape("a").info().head == 3

    def test_after_its_end(self, store: tape.Store) -> None:
        """The store that the function was given, and its handles, are of no use afterwards."""
        kept: list[Any] = []

        def fn(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="x")
            kept.extend([inside, inside.tape("a"), inside.tape("a").entries()])
            next(kept[2])

        store.transaction(fn)
        inside, chat, entries = kept
        for call in (
            lambda: chat.append(role="user", content="late"),
            chat.messages,
            chat.fork,
            lambda: inside.create("late"),
            inside.list,
            lambda: inside.transaction(add_one),
            inside.feed,
        ):
            with pytest.raises(tape.StoreFailed, match="has ended"):
                call()
        assert len(list(entries)) == 1
        assert store.tape("a").info().head == 2

    def test_another_thread(self, store: tape.Store) -> None:
        """The store that the function was given is for its thread; another one is refused, and harms nothing."""

        def fn(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="x")
            calls = [lambda: inside.tape("a").append(role="user", content="lost"), lambda: inside.tape("a").messages()]
            assert [type(one) for one in together(calls)] == [tape.StoreFailed] * 2

        store.transaction(fn)
        assert texts(store.tape("a")) == ["x"]

    def test_the_store_itself_inside(self, store: tape.Store) -> None:
        """A function that writes with the store it closes over is told so at once, instead of waiting for itself."""
        for call in (
            lambda: store.tape("a").append(role="user", content="lost"),
            lambda: store.tape("b").extend([{"content": "lost"}]),
            lambda: store.tape("b").fork("c"),
            lambda: store.transaction(add_one),
        ):

            def fn(inside: tape.Store, call: Callable[[], Any] = call) -> None:
                inside.tape("a").append(role="user", content="x")
                with pytest.raises(
                    tape.StoreFailed, match="call the store that the transaction passes to your function"
                ):
                    call()

            store.transaction(fn)
        assert texts(store.tape("a")) == ["x"] * 4
        assert store.tape("b").info().head == 0

    def test_closing_inside(self, store: tape.Store) -> None:
        """A function that closes the store is told that it cannot, and can go on."""

        def fn(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="x")
            with pytest.raises(tape.StoreFailed, match="closed from inside"):
                store.close()
            inside.tape("a").append(role="user", content="y")

        store.transaction(fn)
        assert texts(store.tape("a")) == ["x", "y"]

    def test_in_memory(self) -> None:
        """In memory there is one connection: a function that fails takes nothing else along."""
        with tape.open(":memory:") as store:
            store.tape("a").append(role="user", content="x")

            def fail(inside: tape.Store) -> None:
                inside.tape("a").append(role="user", content="lost")
                assert len(store.tape("a").messages()) == 2
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                store.transaction(fail)
            assert store.transaction(add_one) == 1
            assert texts(store.tape("a")) == ["x"]
            assert store.verify().problems == []

    def test_no_function(self, store: tape.Store) -> None:
        """What cannot be called is InvalidEntry."""
        for wrong in (None, "fn", 1):
            with pytest.raises(tape.InvalidEntry):
                store.transaction(wrong)  # type: ignore[arg-type]

    def test_a_tape_that_stays_locked(self, store: tape.Store, backend: Backend) -> None:
        """A lock that is not to be had is StoreBusy and undoes everything, also if the function swallows it."""
        other = backend.open(timeout=0.2)
        for swallow in (False, True):

            def fn(inside: tape.Store, swallow: bool = swallow) -> None:
                inside.tape("b").append(role="user", content="lost")
                try:
                    inside.tape("a").messages()
                except tape.StoreBusy:
                    if not swallow:
                        raise

            def holding(inside: tape.Store, fn: Callable[[tape.Store], None] = fn) -> None:
                inside.tape("a").append(role="user", content="held")
                with pytest.raises(tape.StoreBusy):
                    other.transaction(fn)

            store.transaction(holding)
        assert store.tape("b").info().head == 0
        assert store.verify().problems == []


class TestRetries:
    """What is run again is the same."""

    def test_ids_are_the_same_in_every_run(self, store: tape.Store) -> None:
        """Generated ids of tapes, messages and entries come from one sequence."""
        from tape.db.engine.failures import Undone

        runs: list[list[str]] = []

        def fn(inside: tape.Store) -> None:
            chat = inside.create()
            receipt = chat.append(role="user", content="x")
            child = chat.fork()
            event = chat.event("e")
            runs.append([chat.id, str(receipt.message_id), receipt.key, child.id, event.key])
            if len(runs) < 3:
                inside._db.doomed = Undone("as if the database had done so")  # type: ignore[attr-defined]

        store.transaction(fn)
        assert len(runs) == 3
        assert runs[0] == runs[1] == runs[2]
        assert len(store.list().items) == 2
        assert len(set(runs[0])) >= 4

    def test_killed_in_the_middle(self, store: tape.Store, backend: Backend, crew: Crew) -> None:
        """A process that dies between two writes, or before the commit, leaves nothing, and frees the locks."""
        store.tape("a").append(role="user", content="before")
        for stage in ("first", "second", "commit"):
            assert crew.launch(backend, transacting.die_in_transaction, stage=stage).killed()
            store.transaction(lambda inside: [add_one(inside, name) for name in ("a", "b")])
        assert [store.tape(name).state("n") for name in ("a", "b")] == [3, 3]
        assert texts(store.tape("a")) == ["before"]
        assert store.tape("made").info().head == 0
        assert store.verify().problems == []
