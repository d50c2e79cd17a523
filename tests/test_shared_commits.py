"""Callers who write at the same moment share one commit, and each has its own receipt or its own error."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from support import programs
from support.backends import Backend
from support.processes import PATIENCE, Crew, until

import tape
from tape.db.engine.sharing import Gate, Ticket


class Together:
    """Lets one write into a store, and holds it until others wait behind it: those then share a transaction."""

    def __init__(self, store: tape.Store) -> None:
        self.store = store
        self.commits = 0
        self._inside, self._go = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(32)
        self._first: Future[Any] | None = None
        self._calls: list[Future[Any]] = []
        store._db.fault = self._point

    def _point(self, name: str) -> None:
        if name == "head":
            # Each transaction that is more than one statement moves heads once.
            self.commits += 1
        if name == "entry" and not self._inside.is_set():
            self._inside.set()
            assert self._go.wait(PATIENCE)

    def hold(self, call: Callable[[], Any]) -> None:
        """Begin the call behind which the others queue."""
        self._first = self._threads.submit(call)
        assert self._inside.wait(PATIENCE)

    def add(self, call: Callable[[], Any], *, gate: Gate) -> None:
        """Add a call, and wait until it is in the queue, so that the order is known."""
        before = len(gate._queue)
        self._calls.append(self._threads.submit(call))
        until(lambda: len(gate._queue) > before, "a caller in the queue")

    def run(self) -> list[Any]:
        """Let everyone go on; returns what came of each call, errors too."""
        self.commits = 0
        self._go.set()
        assert self._first is not None
        self._first.result(PATIENCE)
        outcomes = []
        for call in self._calls:
            error = call.exception(PATIENCE)
            outcomes.append(call.result() if error is None else error)
        return outcomes

    def close(self) -> None:
        """End the threads."""
        self._go.set()
        self._threads.shutdown(wait=True)
        self.store._db.fault = None


@contextmanager
def together(store: tape.Store) -> Iterator[Together]:
    group = Together(store)
    try:
        yield group
    finally:
        group.close()


def gate_of(store: tape.Store, name: str) -> Gate:
    database: Any = store._db
    gate: Gate = database._gates._used[name][0] if database.postgres else database._sharing
    return gate


def hello(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def contents(chat: tape.Tape) -> list[Any]:
    return [message.content for message in chat.messages()]


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    """A tape whose head is kept, as after any write."""
    chat = store.tape("t")
    chat.append(hello("first"))
    return chat


class TestTogether:
    def test_they_share_one_transaction_in_their_order(self, store: tape.Store, chat: tape.Tape) -> None:
        """Eight who wait are written by one transaction, each with a receipt of its own entry."""
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            for n in range(8):
                group.add(lambda n=n: chat.append(hello(f"m{n}")), gate=gate_of(store, "t"))  # type: ignore[misc]
            receipts = group.run()
            shared = group.commits
        assert contents(chat) == ["first", "held", *(f"m{n}" for n in range(8))]
        assert [receipt.seq for receipt in receipts] == list(range(4, 12))
        entries = {entry.seq: entry for entry in chat.entries()}
        assert [entries[receipt.seq].hash for receipt in receipts] == [receipt.hash for receipt in receipts]
        # The one that was held, and the one for all others; on PostgreSQL the first is a single statement.
        assert shared == (1 if store._db.postgres else 2)
        assert store.verify().problems == []

    def test_each_has_its_own_refusal(self, store: tape.Store, chat: tape.Tape) -> None:
        """A moved head, a conflict, a duplicate, a missing message: told to those who asked, and to nobody else."""
        first = chat.append(hello("known"), key="k")
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            gate = gate_of(store, "t")
            calls: list[Callable[[], Any]] = [
                lambda: chat.append(hello("a")),
                lambda: chat.append(hello("b"), expected_head=1),
                lambda: chat.append(hello("other"), key="k"),
                lambda: chat.append(hello("known"), key="k"),
                lambda: chat.retract("no such message"),
                lambda: chat.extend([hello("c"), hello("d")]),
                lambda: chat.extend([hello("e"), {**hello("f"), "id": first.message_id}]),
                lambda: chat.append(hello("g")),
            ]
            for call in calls:
                group.add(call, gate=gate)
            a, moved, conflict, duplicate, missing, batch, taken, g = group.run()
        assert isinstance(moved, tape.HeadMoved)
        assert isinstance(conflict, tape.ProvenanceConflict)
        assert (duplicate.duplicate, duplicate.seq) == (True, first.seq)
        assert isinstance(missing, tape.UnknownMessage)
        assert isinstance(taken, tape.ProvenanceConflict)
        assert sorted(contents(chat)) == ["a", "c", "d", "first", "g", "held", "known"]
        assert len({a.seq, g.seq, *(one.seq for one in batch)}) == 4
        assert store.verify().problems == []

    def test_other_kinds_of_entries(self, store: tape.Store, chat: tape.Tape) -> None:
        """Revisions, retractions, tool calls and their results, state, events and anchors go together as well."""
        asked = chat.append({"role": "assistant", "content": "", "tool_calls": [_call("c1")]})
        victim = chat.append(hello("goes"))
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            gate = gate_of(store, "t")
            for call in (
                lambda: chat.append({"role": "tool", "tool_call_id": "c1", "content": "done"}),
                lambda: chat.revise(asked.message_id or "", content="let me see"),
                lambda: chat.retract(victim.message_id or ""),
                lambda: chat.put("plan", {"steps": 3}),
                lambda: chat.event("score", 1),
                lambda: chat.anchor("checkpoint"),
                lambda: chat.append(hello("end")),
            ):
                group.add(call, gate=gate)
            outcomes = group.run()
        assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
        assert contents(chat) == ["first", "let me see", "held", "done", "end"]
        assert chat.state("plan") == {"steps": 3}
        assert store.verify().problems == []

    def test_a_batch_lands_in_one_piece(self, store: tape.Store, chat: tape.Tape) -> None:
        """Nothing of a call comes between the messages of another's batch."""
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            for n in range(4):
                batch = [hello(f"{n}.{i}") for i in range(3)]
                group.add(lambda batch=batch: chat.extend(batch), gate=gate_of(store, "t"))  # type: ignore[misc]
            group.run()
        assert contents(chat)[2:] == [f"{n}.{i}" for n in range(4) for i in range(3)]

    def test_a_batch_that_is_refused_halfway_leaves_nothing(self, store: tape.Store, chat: tape.Tape) -> None:
        """What was planned of it before the refusal goes, and what others planned before it stays."""
        chat.append({**hello("taken"), "id": "same"})
        batch = [{**hello("x"), "id": "new"}, {**hello("y"), "id": "same"}]
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            for call in (
                lambda: chat.append(hello("a")),
                lambda: chat.extend(batch, key="k"),
                lambda: chat.append(hello("b")),
            ):
                group.add(call, gate=gate_of(store, "t"))
            a, refused, b = group.run()
        assert isinstance(refused, tape.ProvenanceConflict)
        assert isinstance(a, tape.Receipt)
        assert isinstance(b, tape.Receipt)
        assert sorted(contents(chat)) == ["a", "b", "first", "held", "taken"]
        assert store.verify().problems == []

    # On PostgreSQL only writers of one tape go together.
    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_a_tape_that_is_made_by_one_of_them(self, store: tape.Store, chat: tape.Tape) -> None:
        """Tapes that nobody knew begin in a shared transaction; of two that create the same one, one is told so."""
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            gate = gate_of(store, "t")
            for call in (
                lambda: store.tape("new").append(hello("a")),
                lambda: store.tape("new").append(hello("b")),
                lambda: store.create("made"),
                lambda: store.create("made"),
                lambda: store.tape("made").append(hello("c")),
            ):
                group.add(call, gate=gate)
            outcomes = group.run()
        assert isinstance(outcomes[3], tape.TapeExists)
        assert [type(outcome).__name__ for outcome in outcomes if isinstance(outcome, Exception)] == ["TapeExists"]
        assert contents(store.tape("new")) == ["a", "b"]
        assert contents(store.tape("made")) == ["c"]
        assert store.verify().problems == []

    def test_an_error_of_a_callback_is_its_callers_own(self, backend: Backend) -> None:
        """A counter that fails inside the transaction fails the call that uses it, whoever leads."""

        def counter(text: str) -> int:
            if "poison" in text:
                raise ZeroDivisionError(text)
            return len(text)

        store = backend.open(counter=counter, blocks=[tape.BlockSpec("notes", max_tokens=1_000)])
        chat = store.tape("t")
        chat.append(hello("first"))
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            gate = gate_of(store, "t")
            group.add(lambda: chat.append(hello("leads")), gate=gate)
            group.add(lambda: chat.set_block("notes", "poison"), gate=gate)
            group.add(lambda: chat.set_block("notes", "fine"), gate=gate)
            leads, poisoned, fine = group.run()
        assert isinstance(leads, tape.Receipt)
        assert isinstance(fine, tape.Receipt)
        assert isinstance(poisoned, ZeroDivisionError)
        assert [block.text for block in chat.blocks()] == ["fine"]
        assert store.verify().problems == []

    # On PostgreSQL only writers of one tape go together.
    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_owners_stay_apart(self, store: tape.Store) -> None:
        """A group that serves several owners shows none of them another's tape."""
        mine, yours = store.scoped("me"), store.scoped("you")
        mine.tape("m").append(hello("mine"))
        yours.tape("y").append(hello("yours"))
        with together(store) as group:
            group.hold(lambda: mine.tape("m").append(hello("held")))
            gate = gate_of(store, "m")
            group.add(lambda: mine.tape("m").append(hello("more")), gate=gate)
            group.add(lambda: yours.tape("m").append(hello("stolen")), gate=gate)
            group.add(lambda: yours.tape("y").append(hello("more")), gate=gate)
            group.add(lambda: mine.tape("y").append(hello("stolen")), gate=gate)
            outcomes = group.run()
        assert [isinstance(outcome, tape.TapeNotFound) for outcome in outcomes] == [False, True, False, True]
        assert contents(mine.tape("m")) == ["mine", "held", "more"]
        assert contents(yours.tape("y")) == ["yours", "more"]
        assert store.verify().problems == []

    def test_what_another_process_wrote_undoes_the_group_and_each_is_run_by_itself(
        self, backend: Backend, crew: Crew
    ) -> None:
        """The kept head is out of date for all of them: none is lost, none is doubled."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(hello("first"))
        crew.race(backend, programs.append, [{"name": "t", "label": "p", "count": 1}])
        with ThreadPoolExecutor(8) as threads:
            begin = threading.Barrier(8)

            def write(n: int) -> tape.Receipt:
                begin.wait(PATIENCE)
                return chat.append(hello(f"m{n}"))

            receipts = list(threads.map(write, range(8)))
        assert len({receipt.seq for receipt in receipts}) == 8
        assert sorted(contents(chat)[2:]) == [f"m{n}" for n in range(8)]
        assert store.verify().problems == []

    def test_the_feed_keeps_the_order_of_each_tape(self, store: tape.Store, chat: tape.Tape) -> None:
        """Entries with and without an actor go into the table by different statements, in the order of their seqs."""
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            for n in range(6):
                actor = "me" if n % 2 else None
                call = lambda n=n, actor=actor: chat.append(hello(f"m{n}"), actor=actor)  # noqa: E731
                group.add(call, gate=gate_of(store, "t"))
            group.run()
        assert [entry.seq for entry in store.feed()] == list(range(1, 10))

    def test_one_repeated_call_does_not_undo_the_others(self, store: tape.Store, chat: tape.Tape) -> None:
        """A key that is taken makes the group run once more, still as one transaction."""
        chat.append(hello("known"), key="k")
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            for n in range(6):
                text, key = (f"m{n}", None) if n != 3 else ("known", "k")
                call = lambda text=text, key=key: chat.append(hello(text), key=key)  # noqa: E731
                group.add(call, gate=gate_of(store, "t"))
            commits = [0]
            usual = store._db.fault

            def count(name: str) -> None:
                commits[0] += name == "commit"
                if usual is not None:
                    usual(name)

            store._db.fault = count
            receipts = group.run()
        assert [receipt.duplicate for receipt in receipts] == [False, False, False, True, False, False]
        # The one that was held commits, too, but for PostgreSQL, where it is one statement.
        assert commits[0] == (1 if store._db.postgres else 2)
        assert store.verify().problems == []


class TestKeptHeads:
    def test_a_scoped_store_finds_what_another_of_its_owner_left(self, store: tape.Store) -> None:
        """A store that is scoped for one request need not read the head that the last request wrote."""
        store.scoped("me").tape("t").append(hello("first"))
        assert store.scoped("me")._recorder.shared.kept("t") is not None
        assert store.scoped("you")._recorder.shared.kept("t") is None
        store.scoped("me").tape("t").append(hello("second"))
        with pytest.raises(tape.TapeNotFound):
            store.scoped("you").tape("t").append(hello("stolen"))
        assert contents(store.tape("t")) == ["first", "second"]

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_one_that_is_out_of_date_costs_no_second_turn(self, backend: Backend, store: tape.Store) -> None:
        """Who finds that another process wrote decides afresh at once, and does not queue behind all others again."""
        chat, other = store.tape("t"), backend.open().tape("t")
        chat.append(hello("first"))
        other.append(hello("theirs"))
        database: Any = store._db
        take, turns = database._turn.take, []

        def counted(patience: float) -> bool:
            turns.append(patience)
            return bool(take(patience))

        database._turn.take = counted
        chat.append(hello("second"))
        assert len(turns) == 1
        assert contents(chat) == ["first", "theirs", "second"]


class TestFailures:
    def test_a_group_that_fails_is_run_one_by_one(self, store: tape.Store, chat: tape.Tape) -> None:
        """An error at any point of the shared transaction undoes it, and then each call is made by itself."""
        for point in ("entry", "view", "head", "commit"):
            with together(store) as group:
                group.hold(lambda: chat.append(hello("held")))
                for n in range(4):
                    text = f"{point}.{n}"
                    group.add(lambda text=text: chat.append(hello(text)), gate=gate_of(store, "t"))  # type: ignore[misc]
                failed = [0]
                usual = group._point

                def fault(name: str, point: str = point, failed: list[int] = failed, usual: Any = usual) -> None:
                    usual(name)
                    # The held one is past its entry; what comes next at this point is the group.
                    if name == point and group.commits + (point != "head") >= 1 and not failed[0] and held_is_over():
                        failed[0] += 1
                        raise store._db.driver_error("broken")

                def held_is_over() -> bool:
                    return group._first is not None and group._first.done()

                store._db.fault = fault
                outcomes = group.run()
            assert [type(outcome) for outcome in outcomes] == [tape.Receipt] * 4
            assert sorted(contents(chat)[-4:]) == [f"{point}.{n}" for n in range(4)]
        assert store.verify().problems == []

    def test_a_leader_interrupted_after_the_commit_doubles_nobody(
        self, store: tape.Store, chat: tape.Tape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those whom it took along cannot know that they are recorded, look for their keys, and find them."""

        class Interrupted(BaseException):
            pass

        rings = [0]

        def ring() -> None:
            rings[0] += 1
            # The first is that of the held one, the second that of the group, which is committed by then.
            if rings[0] == 2:
                raise Interrupted

        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            for n in range(4):
                group.add(lambda n=n: chat.append(hello(f"m{n}")), gate=gate_of(store, "t"))  # type: ignore[misc]
            monkeypatch.setattr(store._db.wakeup, "ring", ring)
            monkeypatch.setattr(store._db.wakeup, "waiting", 1)
            leader, *others = group.run()
        assert isinstance(leader, Interrupted)
        assert [(type(one), one.seq) for one in others] == [(tape.Receipt, seq) for seq in (5, 6, 7)]
        assert contents(chat) == ["first", "held", "m0", "m1", "m2", "m3"]
        assert store.verify().problems == []

    def test_one_who_waits_too_long_is_told_and_writes_nothing(self, backend: Backend) -> None:
        """StoreBusy after the store's timeout, and the queue goes on without that caller."""
        store = backend.open(timeout=0.3)
        chat = store.tape("t")
        chat.append(hello("first"))
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            with pytest.raises(tape.StoreBusy):
                chat.append(hello("late"))
            group.run()
        chat.append(hello("next"))
        assert contents(chat) == ["first", "held", "next"]

    def test_one_who_is_interrupted_leaves_the_queue(self) -> None:
        """A signal ends the wait: whoever was to lead next is not the one who left."""
        gate = Gate()
        leader, gone, last = Ticket(()), Ticket(()), Ticket(())
        assert gate.enter(leader, 1)
        waiting = [threading.Thread(target=gate.enter, args=(ticket, PATIENCE)) for ticket in (gone, last)]
        for number, thread in enumerate(waiting, 1):
            thread.start()
            until(lambda number=number: len(gate._queue) == number, "a caller in the queue")  # type: ignore[misc]
        gate.leave(gone)
        gate.leave(leader)
        waiting[1].join(PATIENCE)
        assert gate._leader is last
        # The one that left may as well have been given the lead at that very moment; then it passes it on.
        gate.leave(last)
        assert gate.enter(Ticket(()), 1)
        gone.wake()
        waiting[0].join(PATIENCE)

    def test_one_who_is_interrupted_while_it_leads_is_told_of_by_nobody(self) -> None:
        """Whoever was taken along learns that it is not known what came of it, and the next caller is let in."""
        gate = Gate()
        leader, taken, waits = Ticket(()), Ticket(()), Ticket(())
        assert gate.enter(leader, 1)
        threads = [threading.Thread(target=gate.enter, args=(ticket, PATIENCE)) for ticket in (taken, waits)]
        threads[0].start()
        until(lambda: len(gate._queue) == 1, "a caller in the queue")
        assert gate.gather(leader) == [taken]
        threads[1].start()
        until(lambda: len(gate._queue) == 1, "a caller in the queue")
        gate.leave(leader)
        for thread in threads:
            thread.join(PATIENCE)
        assert taken.outcomes is None
        assert gate._leader is waits

    @pytest.mark.parametrize("alone", [True, False], ids=["alone", "leading"])
    def test_one_who_is_interrupted_before_it_wakes_the_next_does_so_when_it_leaves_again(self, alone: bool) -> None:
        """A signal may come when the next caller has the lead already and sleeps on."""

        class Sleeper(Ticket):
            __slots__ = ("signals",)
            signals: int

            def wake(self) -> None:
                self.signals -= 1
                if self.signals == 0:
                    raise KeyboardInterrupt
                super().wake()

        gate, leader, sleeper = Gate(), None if alone else Ticket(()), Sleeper(())
        sleeper.signals = 1
        assert gate.pass_alone() if leader is None else gate.enter(leader, 1)
        thread = threading.Thread(target=gate.enter, args=(sleeper, PATIENCE))
        thread.start()
        until(lambda: len(gate._queue) == 1, "a caller in the queue")
        with pytest.raises(KeyboardInterrupt):
            gate.leave(leader)
        assert gate._leader is sleeper
        gate.leave(leader)
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_a_caller_alone_never_waits(self) -> None:
        """With nobody else about, a leader has nothing to gather, however long transactions take."""
        gate = Gate()
        gate._took = 10.0
        for _ in range(3):
            ticket = Ticket(())
            assert gate.enter(ticket, 1)
            began = time.monotonic()
            assert gate.gather(ticket) == []
            assert time.monotonic() - began < 5
            gate.leave(ticket)

    def test_who_stays_away_is_not_waited_for_again(self) -> None:
        """A leader waits once for callers of the transaction before; after that only for those who came."""
        gate = Gate()
        gate._expected, gate._took = 3, 0.001
        ticket = Ticket(())
        assert gate.enter(ticket, 1)
        assert gate.gather(ticket) == []
        assert gate._expected == 1
        gate.leave(ticket)


class TestTapes:
    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_writers_of_different_tapes_do_not_wait_for_each_other(self, backend: Backend) -> None:
        """On PostgreSQL a writer that is held up holds up nobody on another tape, whatever the names are."""
        store = backend.open(timeout=5)
        chat = store.tape("t")
        chat.append(hello("first"))
        with together(store) as group:
            group.hold(lambda: chat.append(hello("held")))
            for n in range(200):
                store.tape(f"other-{n}").append(hello("free"))
            group.run()
        assert contents(chat) == ["first", "held"]


class TestInside:
    def test_a_write_inside_a_write_is_refused_at_once(self, backend: Backend) -> None:
        """A callback that writes where its own thread writes is told so, and others are not held up by it."""
        told: list[Exception] = []

        def counter(text: str) -> int:
            if text == "nested":
                try:
                    store.tape("t").append(hello("inner"))
                except tape.StoreFailed as error:
                    told.append(error)
            return len(text)

        store = backend.open(counter=counter, timeout=20, blocks=[tape.BlockSpec("notes", max_tokens=100)])
        chat: tape.Tape = store.tape("t")
        chat.append(hello("first"))
        began = time.monotonic()
        chat.set_block("notes", "nested")
        assert time.monotonic() - began < 10
        assert told
        assert contents(chat) == ["first"]


class TestTasks:
    def test_tasks_share_commits_in_the_order_they_wrote(self, backend: Backend) -> None:
        """A hundred tasks that write at once need a few transactions, and land in the order of their calls."""

        async def work() -> tuple[int, list[Any]]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("t")
                await chat.append(hello("first"))
                heads = [0]

                def count(name: str) -> None:
                    heads[0] += name == "head"

                store._inner._db.fault = count
                await asyncio.gather(*(chat.append(hello(f"m{n:03}")) for n in range(100)))
                store._inner._db.fault = None
                return heads[0], [message.content for message in await chat.messages()]

        heads, found = asyncio.run(asyncio.wait_for(work(), PATIENCE))
        assert found == ["first", *(f"m{n:03}" for n in range(100))]
        assert heads == 1

    def test_reads_do_not_queue_behind_writes(self, backend: Backend) -> None:
        """With every thread for writes held up, a read is answered."""

        async def work() -> list[Any]:
            async with tape.open_async(backend.url, threads=1, **backend.options) as store:
                chat = store.tape("t")
                await chat.append(hello("first"))
                inside, go = threading.Event(), threading.Event()

                def hold(name: str) -> None:
                    inside.set()
                    assert go.wait(PATIENCE)

                store._inner._db.fault = hold
                writing = asyncio.create_task(chat.append(hello("held")))
                await asyncio.to_thread(inside.wait, PATIENCE)
                found = [message.content for message in await chat.messages()]
                store._inner._db.fault = None
                go.set()
                await writing
                return found

        assert asyncio.run(asyncio.wait_for(work(), PATIENCE)) == ["first"]

    def test_close_waits_for_writes_that_were_just_asked_for(self, backend: Backend) -> None:
        """What a task has asked for before the close is recorded."""

        async def work() -> None:
            store = await tape.open_async(backend.url, **backend.options)
            chat = store.tape("t")
            writing = [asyncio.create_task(chat.append(hello(f"m{n}"))) for n in range(5)]
            await asyncio.sleep(0)
            await store.close()
            await asyncio.gather(*writing)
            with pytest.raises(tape.StoreFailed):
                await chat.append(hello("late"))

        asyncio.run(asyncio.wait_for(work(), PATIENCE))
        assert contents(backend.open().tape("t")) == [f"m{n}" for n in range(5)]

    def test_loops_do_not_wait_for_each_other(self, backend: Backend) -> None:
        """A loop that is busy, or gone, holds up no write of another loop on the same store."""
        inside, go = threading.Event(), threading.Event()

        async def opened() -> tape.AsyncStore:
            return await tape.open_async(backend.url, **backend.options)

        store = asyncio.run(opened())

        async def busy() -> None:
            writing = asyncio.create_task(store.tape("t").append(hello("busy")))
            await asyncio.sleep(0)
            inside.set()
            assert go.wait(PATIENCE)
            await writing

        other = threading.Thread(target=lambda: asyncio.run(busy()))
        other.start()
        assert inside.wait(PATIENCE)

        async def free() -> None:
            await store.tape("t").append(hello("free"))

        asyncio.run(asyncio.wait_for(free(), PATIENCE))
        go.set()
        other.join(PATIENCE)
        asyncio.run(store.close())
        assert sorted(contents(backend.open().tape("t"))) == ["busy", "free"]

    def test_whatever_a_callback_raises_ends_its_own_call(self, backend: Backend) -> None:
        """SystemExit and StopIteration of a counter leave nobody waiting."""

        def counter(text: str) -> int:
            if text == "exit":
                raise SystemExit(text)
            if text == "stop":
                raise StopIteration(text)
            return len(text)

        async def work() -> None:
            blocks = [tape.BlockSpec("notes", max_tokens=100)]
            async with tape.open_async(backend.url, counter=counter, blocks=blocks, **backend.options) as store:
                chat = store.tape("t")
                await chat.append(hello("first"))
                calls = chat.set_block("notes", "stop"), chat.append(hello("a"))
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [RuntimeError, tape.Receipt]
                with pytest.raises(SystemExit):
                    await chat.set_block("notes", "exit")
                await chat.append(hello("b"))

        asyncio.run(asyncio.wait_for(work(), PATIENCE))
        assert contents(backend.open().tape("t")) == ["first", "a", "b"]

    def test_errors_are_told_to_the_task_that_made_them(self, backend: Backend) -> None:
        """A message that cannot be recorded, a wrong keyword and a moved head: the others are recorded."""

        async def work() -> Any:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("t")
                await chat.append(hello("first"))
                return await asyncio.gather(
                    chat.append(hello("a")),
                    chat.append({"role": "user", "content": object()}),
                    chat.append(hello("b"), expected_head=1),
                    chat.append(hello("c"), no_such_option=1),  # type: ignore[call-arg]
                    chat.extend([]),
                    chat.append(hello("d")),
                    return_exceptions=True,
                )

        a, wrong, moved, keyword, nothing, d = asyncio.run(asyncio.wait_for(work(), PATIENCE))
        assert isinstance(wrong, tape.InvalidEntry)
        assert isinstance(moved, tape.HeadMoved)
        assert isinstance(keyword, TypeError)
        assert nothing == []
        assert (a.seq, d.seq) == (3, 4)


def _call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
