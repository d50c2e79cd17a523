"""Shared commits: callers that write at the same moment are run by one of them, in one transaction.

Who finds the gate open goes through at once and alone. Who comes meanwhile queues. The one inside, when it is done,
lets the first of the queue lead: that one takes all who wait along into one transaction, which is one sync of the
disk, and hands each its own outcome. Nobody else runs anything, so there is no thread that has to be kept.

A leader waits for callers who took part in the transactions just before, since most of them are about to come back:
for a part of what such a transaction takes, and only while they do come back. A caller who is alone never waits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tape.db.engine.failures import Again, Collision, Lost
from tape.errors import StoreBusy, TapeError

__all__ = ["Gate", "Named", "Ticket", "Together", "run_together", "share"]

T = TypeVar("T")
R = TypeVar("R")

Together = Callable[[Sequence[T], bool, Any], list[R | Exception]]
"""What runs tasks of several callers in a transaction: returns the result of each, or the error that is its own.

It is told whether a first try collided with something.
"""


class Writer(Protocol):
    """What runs a transaction."""

    timeout: float

    def write(self, tape: str, work: Callable[[Any], R], *, again: Callable[[Any], R] | None = None) -> R:
        """Run ``work`` in a transaction that excludes other writers of ``tape``, and commit it; see ``Database``."""


_MOST_TASKS = 512
"""How many tasks go into one transaction, so that writers in other processes have their turn."""
_PART = 0.25
"""How much a leader waits for others, of what a shared transaction takes; who comes later comes during its sync."""
_LONGEST_WAIT = 0.005
"""Seconds that a leader waits for others at most."""


class Ticket:
    """One caller at a gate, with what it wants done."""

    __slots__ = ("outcomes", "tasks", "thread", "woken")

    def __init__(self, tasks: Sequence[Any]) -> None:
        self.tasks = tasks
        self.thread = threading.get_ident()
        self.outcomes: Sequence[Any] | Exception | None = None
        """What came of each task, once another caller has run it; one error if the whole transaction failed."""
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Let its caller go on; to do so twice is no harm."""
        with contextlib.suppress(RuntimeError):
            self.woken.release()


class Gate:
    """Lets one caller through at a time, with all who wait behind it.

    A signal may interrupt a caller between any two steps. So ``leave`` is called whatever happened, finds out by itself
    how far its caller came, and can be called once more where it was interrupted itself.
    """

    def __init__(self) -> None:
        self._change = threading.Lock()
        self._leader: Ticket | None = None
        """Whose caller is inside. When there is none, the queue is empty."""
        self._group: list[Ticket] = []
        """Those whom the leader has taken along."""
        self._queue: deque[Ticket] = deque()
        self._recent: set[int] = set()
        """The threads of the last transaction."""
        self._expected = 1
        """How many callers a leader waits for, itself included."""
        self._room_for = 0
        """How long the queue has to be until a leader that waits now goes on; 0 when none waits."""
        self._complete = threading.Lock()
        self._complete.acquire()
        self._alone = Ticket(())
        """Stands for a caller who found nobody else."""
        self._began = self._took = 0.0
        """When the last shared transaction began, and how long it took, in seconds."""

    def pass_alone(self) -> bool:
        """Go in at once if nobody is about; ``leave`` must follow, whatever happens."""
        if self._expected != 1:
            return False
        with self._change:
            if self._leader is not None:
                return False
            self._alone.thread = threading.get_ident()
            self._leader = self._alone
        return True

    def enter(self, ticket: Ticket, patience: float) -> bool:
        """Queue until the ticket leads (True), or was run by another caller (False); StoreBusy after ``patience``."""
        with self._change:
            if self._leader is None:
                self._leader = ticket
                return True
            self._queue.append(ticket)
            if self._room_for and len(self._queue) >= self._room_for:
                self._room_for = 0
                self._complete.release()
        if not ticket.woken.acquire(timeout=patience):
            with self._change:
                if ticket in self._queue and self._leader is not ticket:
                    raise StoreBusy(patience)
            # It leads by now, or it is being run, and what came of it is known when that is over.
            ticket.woken.acquire()
        return self._leader is ticket

    def gather(self, ticket: Ticket) -> list[Ticket]:
        """Return the tickets that the leader takes along."""
        waits = False
        with self._change:
            if self._queue and self._queue[0] is ticket:
                self._queue.popleft()
            if len(self._queue) + 1 < self._expected:
                self._room_for, waits = self._expected - 1, True
        came = not waits or self._complete.acquire(timeout=min(self._took * _PART, _LONGEST_WAIT))
        with self._change:
            if waits and not came and not self._room_for:
                # They were complete just after the wait was over.
                came = self._complete.acquire()
            self._room_for = 0
            tasks = len(ticket.tasks)
            while self._queue and tasks < _MOST_TASKS:
                tasks += len(self._queue[0].tasks)
                self._group.append(self._queue[0])
                self._queue.popleft()
            threads = {ticket.thread, *(one.thread for one in self._group)}
            # Two halves may take turns without ever meeting; then one waits for the other. Not for those who stay away.
            self._expected = len(threads | self._recent) if came else len(threads)
            self._recent = threads
            self._began = time.monotonic()
        return self._group

    def leave(self, ticket: Ticket | None) -> None:
        """Go away: who led lets its group go on and the next caller in, who waited leaves the queue.

        Without a ticket it is the caller who passed alone, if that is the one inside.
        """
        if ticket is None:
            with self._change:
                if self._leader is self._alone and self._alone.thread == threading.get_ident():
                    self._recent.clear()
                    self._leader = self._queue[0] if self._queue else None
                if self._leader is not None:
                    # Also if it was let in before: this may be called again because a signal came before the wake.
                    self._leader.wake()
            return
        with self._change:
            if self._leader is ticket:
                if self._group:
                    self._took = time.monotonic() - self._began
                self._room_for = 0
                # Those who were waited for may have come when the wait had been interrupted.
                self._complete.acquire(blocking=False)
                while self._group:
                    self._out_of_queue(self._group[-1])
                    self._group[-1].wake()
                    self._group.pop()
            self._out_of_queue(ticket)
            if self._leader is ticket:
                self._leader = self._queue[0] if self._queue else None
            if self._leader is not None:
                self._leader.wake()

    def _out_of_queue(self, ticket: Ticket) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(ticket)


def share(database: Writer, gate: Gate, tape: str, tasks: Sequence[T], together: Together[T, R]) -> list[R | Exception]:
    """Run ``tasks`` in one transaction, together with those of others who come to the gate at the same moment."""
    ticket: Ticket | None = None
    settled = False
    interrupted: BaseException | None = None
    try:
        if gate.pass_alone():
            return run_together(database, tape, tasks, together)
        ticket = Ticket(tasks)
        if gate.enter(ticket, database.timeout):
            return _lead(database, gate, ticket, tape, together)
        settled = True
    finally:
        # However often a signal interrupts it, here and in no function of its own: it would be interrupted on its way.
        while not settled:
            try:
                gate.leave(ticket)
                settled = True
            except BaseException as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted
    if ticket.outcomes is None:
        raise Lost("the thread that ran this write was interrupted")
    if isinstance(ticket.outcomes, Exception):
        raise ticket.outcomes
    return list(ticket.outcomes)


def _lead(database: Writer, gate: Gate, ticket: Ticket, tape: str, together: Together[T, R]) -> list[R | Exception]:
    """Run the tasks of all who wait, and deal out what came of them."""
    group = gate.gather(ticket)
    if not group:
        return run_together(database, tape, ticket.tasks, together)
    tasks = [task for one in (ticket, *group) for task in one.tasks]
    try:
        outcomes = run_together(database, tape, tasks, together)
    except Exception as error:
        for one in group:
            one.outcomes = _told_to_each(error)
        raise
    end = len(ticket.tasks)
    for one in group:
        begin, end = end, end + len(one.tasks)
        one.outcomes = outcomes[begin:end]
    return outcomes[: len(ticket.tasks)]


def run_together(database: Writer, tape: str, tasks: Sequence[T], together: Together[T, R]) -> list[R | Exception]:
    """Run tasks in one transaction. A collision may be that of one of them: a second try looks at each closely."""
    try:
        return database.write(tape, partial(together, tasks, False), again=partial(together, tasks, True))
    except (Collision, Again, TapeError, Lost) as error:
        if len(tasks) == 1:
            raise
        raise _told_to_each(error) from error


def _told_to_each(error: Exception) -> Exception:
    """Return what a failed transaction means to those who shared it."""
    if isinstance(error, StoreBusy):
        return StoreBusy(error.waited)
    if isinstance(error, Collision | Again | TapeError):
        # Nothing was committed, and it may be true of one task only.
        return Again(str(error))
    return Lost(str(error))


class Named(Generic[T]):
    """One of a kind per name, for as long as somebody uses it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._change = threading.Lock()
        self._used: dict[str, tuple[T, int]] = {}

    def take(self, name: str) -> T:
        """Return what has this name; ``give`` it back afterwards."""
        with self._change:
            one, users = self._used.get(name) or (self._make(), 0)
            self._used[name] = (one, users + 1)
            return one

    def __getitem__(self, name: str) -> T | None:
        """Return what has this name, if somebody uses it."""
        with self._change:
            one = self._used.get(name)
            return None if one is None else one[0]

    def give(self, name: str) -> None:
        """Say that one who took it does not need it any more."""
        with self._change:
            one, users = self._used[name]
            if users == 1:
                del self._used[name]
            else:
                self._used[name] = (one, users - 1)
