"""Writers that share a transaction fail, are interrupted, give up, or lose their store: each of them alone.

Everybody gets a result or an error of their own. A result means that all of the call is stored, once. An error means
that nothing of it is, whoever else wrote at the same moment.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import random
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from support import crowd, interrupting, programs
from support.backends import Backend
from support.crowd import Step
from support.processes import PATIENCE, Crew
from support.sizes import heavy, size

import tape

WRITERS = 8
SEED = 12


class Injected(Exception):
    """A failure that nobody expects."""


class Interrupted(BaseException):
    """What a signal makes of a call, as KeyboardInterrupt is."""


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make all calls at one moment, each in a thread of its own; returns what each returned or raised."""
    begin = threading.Barrier(len(calls))
    outcomes: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        begin.wait(PATIENCE)
        try:
            outcomes[number] = calls[number]()
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE)
        assert not one.is_alive(), "a call hangs"
    return outcomes


class Work:
    """Calls of many writers on a store, and what they were told."""

    def __init__(self, store: tape.Store) -> None:
        self.store = store
        self._steps: dict[str, Step] = {}
        self._told: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count()
        self.known = Step("append", "a", "known", "known")
        self.write(self.known)

    def steps(self) -> list[Step]:
        """Return calls for eight writers: on one tape and on others, new ones too, of one entry and of several."""
        round = next(self._numbers)
        made = [
            Step("append", "a", f"{round}.append"),
            Step("extend", "a", f"{round}.extend"),
            Step("event", "a", f"{round}.event"),
            Step("put", "a", f"{round}.put"),
            Step("revise", "a", f"{round}.revise", self.known.id),
            Step("extend", "b", f"{round}.other"),
            Step("append", f"new-{round}", f"{round}.new"),
        ]
        child = f"child-{round}"
        fork, fill = Step("fork", "a", f"{round}.fork", child), Step("extend", child, f"{round}.fill")
        if round % 2:
            return [*made, fork]
        self.write(fork)
        self.write(fill)
        return [*made, Step("merge", "a", f"{round}.merge", child)]

    def call(self, step: Step) -> Callable[[], Any]:
        """Return the call of a step."""
        return lambda: crowd.call(self.store.tape(step.tape), step, 0)

    def write(self, step: Step) -> None:
        """Make a call that must succeed."""
        self.note([step], [self.call(step)()])

    def note(self, steps: list[Step], outcomes: list[Any]) -> None:
        """Keep what became of calls; of one that was interrupted nothing is known."""
        for step, outcome in zip(steps, outcomes, strict=True):
            self._steps[step.key] = step
            if isinstance(outcome, Exception):
                self._told[step.key] = crowd.refused(step, outcome)
            elif not isinstance(outcome, BaseException):
                self._told[step.key] = crowd.answered(step, outcome)

    def check(self) -> None:
        """Require that what is stored is what was told."""
        plans = [[step] for step in self._steps.values()]
        assert crowd.faults_of(self.store, plans, list(self._told.values())) == []

    def again(self, steps: list[Step]) -> None:
        """Make the calls once more: those that are stored are found, the others are written, none is doubled."""
        for step in steps:
            self.write(step)


class Points:
    """Raises inside writes: at the points, counted over all threads, that ``when`` picks."""

    def __init__(self, store: tape.Store, when: Callable[[int], bool], error: Callable[[], BaseException]) -> None:
        self._store, self._when, self._error = store, when, error
        self._turn = threading.Lock()
        self.passed = self.raised = 0

    def __enter__(self) -> Points:
        self._store._db.fault = self._pass
        return self

    def __exit__(self, *_: object) -> None:
        self._store._db.fault = None

    def _pass(self, _: str) -> None:
        with self._turn:
            self.passed += 1
            raises = self._when(self.passed)
            self.raised += raises
        if raises:
            raise self._error()


def broken_driver(postgres: bool) -> BaseException:
    """Return what the driver raises when the database refuses a statement for no fault of the caller's."""
    if postgres:
        return psycopg.errors.DiskFull("no space left on device")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


@pytest.fixture
def work(backend: Backend) -> Work:
    return Work(backend.open(durability="normal"))


def failing_in_turn(work: Work, error: Callable[[], BaseException]) -> Iterator[tuple[list[BaseException], int]]:
    """Let eight writers meet an error at the first point, at the next, and so on until there are no more points.

    Yields the errors that they were told, and how many were raised; then what they wrote is checked.
    """
    for number in itertools.count(1, size(4, 1)):
        steps = work.steps()
        with Points(work.store, partial(operator.eq, number), error) as points:
            outcomes = together([work.call(step) for step in steps])
        yield [outcome for outcome in outcomes if isinstance(outcome, BaseException)], points.raised
        work.note(steps, outcomes)
        if number % 5 == 1 or not points.raised:
            work.check()
        work.again(steps)
        if not points.raised:
            break
    assert number > 4
    work.check()


class TestFaults:
    """A failure inside the writes of eight threads."""

    @heavy
    @pytest.mark.parametrize("kind", ["unexpected", "driver"])
    def test_e12_a_failure_at_each_point_in_turn(self, backend: Backend, work: Work, kind: str) -> None:
        """Whichever point of whoever's write fails, whoever gets a result has all of it, and nobody else anything."""
        expected = Injected if kind == "unexpected" else tape.StoreFailed
        error: Callable[[], BaseException] = (
            Injected if kind == "unexpected" else lambda: broken_driver(backend.postgres)
        )
        for failed, raised in failing_in_turn(work, error):
            assert all(isinstance(one, expected) for one in failed), failed
            # One failure is one caller's, or with a second try nobody's.
            assert len(failed) <= raised

    @heavy
    @pytest.mark.parametrize("every", [1, 3, 7, 13])
    def test_e12_failures_all_the_time(self, work: Work, every: int) -> None:
        """Whatever fails again and again, also when a write is tried alone, leaves nothing of that write."""
        raised = 0
        for _ in range(size(2, 8)):
            steps = work.steps()
            with Points(work.store, lambda passed: passed % every == 0, Injected) as points:
                outcomes = together([work.call(step) for step in steps])
            raised += points.raised
            failed = [one for one in outcomes if isinstance(one, BaseException)]
            assert all(isinstance(one, Injected) for one in failed), failed
            if every == 1:
                assert len(failed) == WRITERS
            work.note(steps, outcomes)
            work.check()
            work.again(steps)
        work.check()
        assert raised > 0

    def test_e12_one_that_always_fails_takes_nobody_along(self, work: Work) -> None:
        """One writer of nine is refused whenever it is tried, for what it asks; the others all get their results."""
        for _ in range(5):
            steps = work.steps()
            bad = Step("append", "a", "known", "other")
            outcomes = together([*map(work.call, steps), work.call(bad)])
            assert isinstance(outcomes.pop(), tape.ProvenanceConflict)
            assert [one for one in outcomes if isinstance(one, BaseException)] == []
            work.note(steps, outcomes)
        work.check()

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_e12_no_room_for_anybody(self, backend: Backend, crew: Crew) -> None:
        """When no file can grow every writer is StoreFailed; stored is what was acknowledged, and all go on later."""
        worker = crew.start(backend, programs.fill_together, opening={"durability": "normal"}, name="t", threads=8)
        worker.tell("go")
        (told,) = worker.finish()
        assert told["odd"] == []
        assert told["full"] == 8
        store = backend.open()
        assert store.verify().problems == []
        stored = Counter(message.content for message in store.tape("t").messages())
        assert set(stored.values()) == {1}
        assert set(stored) == set(told["acknowledged"])
        assert sum(content.startswith("later") for content in stored) == 16
        assert len(stored) > 50


PSYCOPG = ("connection", "cursor", "_pipeline", "_pipeline_base")
"""Modules of psycopg in which a call may be interrupted."""


class TestInterrupts:
    """A signal's exception in the thread of one of eight writers."""

    @heavy
    def test_e12_interrupted_at_each_point_in_turn(self, work: Work) -> None:
        """Whoever is interrupted alone learns of it, its call is whole or absent, and the others get their results."""
        for failed, raised in failing_in_turn(work, Interrupted):
            assert [type(one) for one in failed] == [Interrupted] * raised

    def test_e12_a_signal_at_any_moment(self, backend: Backend, crew: Crew) -> None:
        """A signal whose handler raises, at any moment of a call: the other writers go on, and so does this one."""
        print("seed", SEED)
        worker = crew.start(backend, interrupting.interrupted_often, name="t", seed=SEED, count=50)
        worker.tell("go")
        (told,) = worker.finish()
        assert told["odd"] == []
        assert told["interrupted"] == 50
        store = backend.open()
        assert store.verify().problems == []
        stored = Counter(message.content for message in store.tape("t").messages())
        assert set(stored.values()) == {1}
        assert set(told["acknowledged"]) <= set(stored)
        # Of what was interrupted some may be there; of the others' work there is just what they know of.
        assert all(content.startswith("main.") for content in set(stored) - set(told["acknowledged"]))

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    @pytest.mark.parametrize("call", ["write", "read", "transact"])
    @pytest.mark.parametrize("error", [Injected, Interrupted])
    def test_e12_interrupted_in_a_pipeline(self, backend: Backend, call: str, error: type[BaseException]) -> None:
        """Where a signal leaves a pipeline open nobody waits for what never comes, and the connection is given up."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="before")
        database: Any = store._db

        def half(tx: Any) -> None:
            tx.lock("t")
            tx.connection.pgconn.enter_pipeline_mode()
            tx.connection.pgconn.send_query_params(b"SELECT 1", None)
            raise error

        run = partial(database.write, "t") if call == "write" else getattr(database, call)
        (outcome,) = together([partial(run, half)])
        assert isinstance(outcome, error)
        assert not database._connections.idle
        chat.append(role="user", content="after")
        assert [message.content for message in chat.messages()] == ["before", "after"]

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    @pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
    def test_e12_interrupted_at_each_point(self, backend: Backend, crew: Crew, error: type[BaseException]) -> None:
        """Wherever a signal interrupts a call, at the store's connections or in psycopg, the next one works."""
        files = ("postgres/connections.py", "postgres/database.py", *(f"psycopg/{name}.py" for name in PSYCOPG))
        worker = crew.start(backend, interrupting.interrupted_at_each_point, name="t", files=files, error=error)
        worker.tell("go")
        (told,) = worker.finish()
        assert told["odd"] == []
        assert told["interrupted"] > 100
        assert backend.open().verify().problems == []


class Gate:
    """Holds the first write that comes to a point inside it, until it is let go."""

    def __init__(self, store: tape.Store, point: str) -> None:
        self._point = point
        self._first = threading.Lock()
        self._there = threading.Event()
        self._go = threading.Event()
        store._db.fault = self._pass

    def _pass(self, name: str) -> None:
        if name == self._point and self._first.acquire(blocking=False):
            self._there.set()
            assert self._go.wait(PATIENCE)

    def reached(self) -> None:
        """Wait until a write stands at the point."""
        assert self._there.wait(PATIENCE)

    def open(self) -> None:
        """Let it go on."""
        self._go.set()


class TestGivingUp:
    """Writers that wait behind another one for longer than they may."""

    def test_e12_who_gave_up_is_not_written_later(self, backend: Backend) -> None:
        """While one write is stuck those behind it are StoreBusy in time, and they do not happen when it goes on."""
        work = Work(backend.open(timeout=0.3))
        steps = work.steps()
        held = Step("append", "a", "held")
        gate = Gate(work.store, "commit")
        outcomes: list[Any] = []
        holder = threading.Thread(target=lambda: outcomes.append(work.call(held)()), daemon=True)
        holder.start()
        gate.reached()
        waiting = together([work.call(step) for step in steps])
        gate.open()
        holder.join(PATIENCE)
        for step, outcome in zip(steps, waiting, strict=True):
            # On PostgreSQL tapes do not wait for each other.
            if step.tape == "a" or not backend.postgres:
                assert isinstance(outcome, tape.StoreBusy), (step, outcome)
        work.note([held, *steps], [*outcomes, *waiting])
        work.check()
        work.again(steps)
        work.check()

    def test_e12_tasks_behind_another_process(self, backend: Backend, crew: Crew) -> None:
        """While a stopped process holds the tape every task is StoreBusy in time; later each is written once."""
        backend.open().tape("t").append(role="user", content="first")
        stopped = crew.start(backend, programs.stop_inside, name="t")
        stopped.tell("go")
        assert stopped.next() == "inside"

        async def run() -> tuple[list[Any], list[Any]]:
            async with tape.open_async(backend.url, timeout=0.3, **backend.options) as store:

                async def all() -> list[Any]:
                    writes = [store.tape("t").append(role="user", content=n, key=f"k{n}") for n in range(24)]
                    gathered = asyncio.gather(*writes, return_exceptions=True)
                    return list(await asyncio.wait_for(gathered, PATIENCE))

                blocked = await all()
                assert (await store.tape("t").info()).head == 2
                os.kill(stopped.pid, signal.SIGCONT)
                await asyncio.to_thread(stopped.finish)
                return blocked, await all()

        blocked, later = asyncio.run(run())
        assert {type(one) for one in blocked} == {tape.StoreBusy}
        chat = backend.open().tape("t")
        assert sorted(receipt.seq for receipt in later) == list(range(4, 28))
        assert [receipt for receipt in later if receipt.duplicate] == []
        assert Counter(message.content for message in chat.messages()) == Counter(["first", "stopped", *range(24)])
        assert chat.verify().ok


class TestClosing:
    """The store is closed, or the process forks, while many write."""

    @pytest.mark.parametrize("point", ["entry", "commit"])
    def test_s1_closed_behind_a_write_that_is_stuck(self, backend: Backend, point: str) -> None:
        """Closed while eight wait behind one, every call ends: with a result that is stored, or as StoreFailed."""
        work = Work(backend.open())
        held, steps = Step("append", "a", "held"), work.steps()
        gate = Gate(work.store, point)
        closing = threading.Event()

        def close() -> None:
            gate.reached()
            closing.set()
            work.store.close()

        def let_go() -> None:
            assert closing.wait(PATIENCE)
            gate.open()

        def write(step: Step) -> Callable[[], Any]:
            def call() -> Any:
                gate.reached()
                return work.call(step)()

            return call

        outcomes = together([work.call(held), *map(write, steps), close, let_go])
        assert outcomes[-2:] == [None, None]
        failed = [one for one in outcomes if isinstance(one, BaseException)]
        assert [one for one in failed if not isinstance(one, tape.StoreFailed)] == []
        work.note([held, *steps], outcomes[:-2])
        work.store = backend.open()
        work.check()
        work.again([held, *steps])
        work.check()

    def test_e1_forked_while_many_write(self, backend: Backend, crew: Crew) -> None:
        """A forked process writes what is its own, not what its parent's threads are waiting to write."""
        worker = crew.start(backend, programs.divide_often, name="t", threads=16, forks=4)
        worker.tell("go")
        (told,) = worker.finish()
        assert told["odd"] == []
        assert told["children"] == [0] * 4
        store = backend.open()
        assert store.verify().problems == []
        stored = Counter(message.content for message in store.tape("t").messages())
        assert set(stored.values()) == {1}
        theirs = {f"child.{child}.{index}" for child in range(4) for index in range(5)}
        assert set(stored) == set(told["acknowledged"]) | theirs


class TestCancelled:
    """Async writes that are cancelled while they share a transaction, or wait for one."""

    @pytest.mark.parametrize("point", ["entry", "view", "head", "commit"])
    def test_e1_cancelled_in_the_middle_of_a_group(self, backend: Backend, point: str) -> None:
        """Half of the tasks are cancelled while one is stuck inside its write: each is there wholly or not at all."""
        print("seed", SEED)
        pick = random.Random(f"{SEED} {point}")
        steps = [Step("extend", pick.choice(crowd.TAPES), f"k{number}") for number in range(24)]
        cancelled = {step.key for step in pick.sample(steps, 12)}
        too_late: set[str | None] = set()

        async def run() -> list[Any]:
            async with tape.open_async(backend.url, **backend.options) as store:
                gate = Gate(store._inner, point)
                tasks = {step.key: asyncio.ensure_future(crowd.call(store.tape(step.tape), step, 0)) for step in steps}
                await asyncio.to_thread(gate.reached)
                # On PostgreSQL a tape that nobody is stuck on may have its entries by now.
                too_late.update(key for key in cancelled if not tasks[key].cancel())
                await asyncio.sleep(0)
                gate.open()
                gathered = asyncio.gather(*tasks.values(), return_exceptions=True)
                return list(await asyncio.wait_for(gathered, PATIENCE))

        work = Work(backend.open())
        for name in crowd.TAPES:
            work.write(Step("event", name, f"{name} is there"))
        outcomes = asyncio.run(run())
        assert len(too_late) < len(cancelled)
        for step, outcome in zip(steps, outcomes, strict=True):
            expected = asyncio.CancelledError if step.key in cancelled - too_late else list
            assert isinstance(outcome, expected), (step, outcome)
        work.note(steps, outcomes)
        work.check()
        work.again(steps)
        work.check()
