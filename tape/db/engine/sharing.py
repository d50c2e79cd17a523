"""Shared commits: callers that write at the same moment are run by one of them, in one transaction.

Who finds the gate open goes through at once and alone. Who comes meanwhile queues. The one inside, when it is done,
lets the first of the queue lead: that one takes all who wait along into one transaction, which is one sync of the
disk, and hands each its own outcome. Nobody else runs anything, so there is no thread that has to be kept.

A leader waits for callers who took part in the transactions just before, since most of them are about to come back:
no longer than such a transaction takes, and only while they do come back. A caller who is alone never waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tape.errors import StoreBusy

__all__ = ["Gate", "Named", "Ticket"]

T = TypeVar("T")

_MOST_TASKS = 512
"""How many tasks go into one transaction, so that writers in other processes have their turn."""
_LONGEST_WAIT = 0.005
"""Seconds that a leader waits for others at most."""


class Ticket:
    """One caller at a gate, with what it wants done."""

    __slots__ = ("leads", "outcomes", "tasks", "thread", "woken")

    def __init__(self, tasks: Sequence[Any]) -> None:
        self.tasks = tasks
        self.thread = threading.get_ident()
        self.leads = False
        """Whether its caller is to run it, with all who wait."""
        self.outcomes: Sequence[Any] | BaseException | None = None
        """What came of each task, once another caller has run it; one error if the whole transaction failed."""
        self.woken = threading.Lock()
        self.woken.acquire()


class Gate:
    """Lets one caller through at a time, with all who wait behind it."""

    def __init__(self) -> None:
        self._change = threading.Lock()
        self._leader = 0
        """The thread that is inside; 0 when there is none, and then the queue is empty."""
        self._queue: deque[Ticket] = deque()
        self._recent: set[int] = set()
        """The threads of the last transaction."""
        self._expected = 1
        """How many callers a leader waits for, itself included."""
        self._room_for = 0
        """How long the queue has to be until a leader that waits now goes on; 0 when none waits."""
        self._complete = threading.Lock()
        self._complete.acquire()
        self._took = 0.0
        """How long the last shared transaction took, in seconds."""

    @property
    def leads(self) -> bool:
        """Whether the calling thread is the one inside."""
        return self._leader == threading.get_ident()

    def enter(self, ticket: Ticket, patience: float) -> bool:
        """Queue until the ticket leads (True), or was run by another caller (False); StoreBusy after ``patience``."""
        with self._change:
            if not self._leader:
                self._leader = ticket.thread
                return True
            self._queue.append(ticket)
            if self._room_for and len(self._queue) >= self._room_for:
                self._room_for = 0
                self._complete.release()
        try:
            if not ticket.woken.acquire(timeout=patience):
                with self._change:
                    if ticket in self._queue:
                        self._queue.remove(ticket)
                        raise StoreBusy(patience)
                # It leads by now, or it is being run, and what came of it is known when that is over.
                ticket.woken.acquire()
        except StoreBusy:
            raise
        except BaseException:
            self._interrupted(ticket)
            raise
        return ticket.leads

    def _interrupted(self, ticket: Ticket) -> None:
        """Leave without having been told anything: a signal ended the wait."""
        with self._change:
            if ticket in self._queue:
                self._queue.remove(ticket)
            elif ticket.leads:
                self._pass_on()

    def gather(self, ticket: Ticket) -> list[Ticket]:
        """Return the tickets to run together, that of the leader first."""
        if self._expected == 1 and not self._queue:
            self._recent = {ticket.thread}
            return [ticket]
        waits = False
        with self._change:
            if len(self._queue) + 1 < self._expected:
                self._room_for, waits = self._expected - 1, True
        came = not waits or self._complete.acquire(timeout=min(self._took, _LONGEST_WAIT))
        with self._change:
            if waits and not came and not self._room_for:
                # They were complete just after the wait was over.
                came = self._complete.acquire()
            self._room_for = 0
            group, tasks = [ticket], len(ticket.tasks)
            while self._queue and tasks < _MOST_TASKS:
                group.append(self._queue.popleft())
                tasks += len(group[-1].tasks)
            threads = {one.thread for one in group}
            # Two halves may take turns without ever meeting; then one waits for the other. Not for those who stay away.
            self._expected = len(threads | self._recent) if came else len(threads)
            self._recent = threads
        return group

    def leave(self, group: Sequence[Ticket], began: float) -> None:
        """Let everyone of a group go on, and the next caller in."""
        if len(group) > 1:
            self._took = time.monotonic() - began
            for ticket in group[1:]:
                ticket.woken.release()
        with self._change:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._queue:
            following = self._queue.popleft()
            following.leads, self._leader = True, following.thread
            following.woken.release()
        else:
            self._leader = 0


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

    def give(self, name: str) -> None:
        """Say that one who took it does not need it any more."""
        with self._change:
            one, users = self._used[name]
            if users == 1:
                del self._used[name]
            else:
                self._used[name] = (one, users - 1)
