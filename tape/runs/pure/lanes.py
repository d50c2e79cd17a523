"""Lanes: where in a run a call is made, so that parallel calls keep their places. Pure, but for the context variable.

The lane of a run's own thread or task is ``0``. A thread or a task that was started from a lane and makes calls gets
one of its own: ``0.1``, ``0.2`` … in the order of their first calls, or ``0.name`` where the program names it. What a
call does inside itself is in the lane of that call: ``0/3`` for the third call of ``0``.
"""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["ROOT", "Lane", "Lanes", "lanes_inside_calls", "parallel_parent"]

ROOT = "0"
_CALL = re.compile(r"/[0-9]+")

_CURRENT: ContextVar[Mapping[Lanes, Lane] | None] = ContextVar("tape_lanes", default=None)
"""The lane of each run in this context, also of two that resume one run. A copied context starts from it."""


def _running() -> Any:
    """Return the task that is running, or the thread where there is none."""
    # Asked for first, since current_task() raises where there is no loop, which takes longer than all the rest.
    loop = asyncio._get_running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    return threading.current_thread() if task is None else task


class Lane:
    """One line of calls that follow each other."""

    def __init__(self, path: str, owner: Any, parent: Lane | None = None) -> None:
        self.path = path
        self.parent = parent
        self.calls = 0
        self.children: dict[str, int] = {}
        self.taken: set[str] = set()
        """The recorded lanes beside this one that lanes of now are matched with."""
        self.bound: str | None = None
        """The recorded lane that this one is matched with; None before its first call in a replay."""
        self.nested = False
        """Whether it is inside a call."""
        self.live: bool = parent is not None and parent.live
        """Whether its calls are made, and no longer looked for in the recording."""
        self._owner = weakref.ref(owner)

    def belongs_to(self, owner: Any) -> bool:
        """Whether calls of this thread or task are in this lane."""
        return self._owner() is owner

    def child(self, owner: Any, name: str | None = None) -> Lane:
        """Return a lane that runs beside this one."""
        count = self.children[name or ""] = self.children.get(name or "", 0) + 1
        label = str(count) if name is None else name if count == 1 else f"{name}~{count}"
        return Lane(f"{self.path}.{label}", owner, self)

    def inside(self, n: int, owner: Any) -> Lane:
        """Return the lane of what the call ``n`` does itself."""
        lane = Lane(f"{self.path}/{n}", owner, self)
        lane.nested = True
        return lane


class _Entered:
    """A lane while calls in this context are in it."""

    __slots__ = ("_before", "_lane", "_lanes")

    def __init__(self, lanes: Lanes, lane: Lane) -> None:
        self._lanes = lanes
        self._lane = lane

    def __enter__(self) -> None:
        self._before = _CURRENT.get()
        _CURRENT.set({**(self._before or {}), self._lanes: self._lane})

    def __exit__(self, *_: object) -> None:
        # Not by a token: a generator may be closed from another context than it was started in.
        _CURRENT.set(self._before)


class Lanes:
    """The lanes of one run. Threads share it; its caller holds a lock."""

    def __init__(self) -> None:
        self.root = Lane(ROOT, _running())

    def current(self) -> Lane:
        """Return the lane of this thread or task; it is made with its first call."""
        running = _running()
        lane = (_CURRENT.get() or {}).get(self)
        if (lane or self.root).belongs_to(running):
            return lane or self.root
        child = (lane or self.root).child(running)
        if lane is not None or isinstance(running, asyncio.Task):
            self._set(child)
        # A thread that did not copy the context may be one of a pool, which does other work next: each of its calls is
        # a lane, so that no place depends on which thread was free.
        return child

    def belong_here(self) -> None:
        """Let the first lane be that of this thread or task."""
        self.root = Lane(ROOT, _running())

    def begin(self) -> None:
        """Let this context, and those that are copied from it, be in the lanes of this run."""
        self._set(self.root)

    def end(self) -> None:
        """Forget the run in this context."""
        _CURRENT.set({lanes: lane for lanes, lane in (_CURRENT.get() or {}).items() if lanes is not self})

    def entered(self, lane: Lane) -> _Entered:
        """Let calls in this context be in ``lane``, inside a ``with`` statement."""
        return _Entered(self, lane)

    def inside(self, lane: Lane, n: int) -> Lane:
        """Return the lane of what a call of ``lane`` does itself, in this thread or task."""
        return lane.inside(n, _running())

    def at(self, path: str) -> Lane:
        """Return a lane of this path for one call of this thread or task."""
        return Lane(path, _running(), self.root)

    def named(self, name: str) -> Lane:
        """Return a new lane of this name beside the current one."""
        return self.current().child(_running(), name)

    def _set(self, lane: Lane) -> None:
        _CURRENT.set({**(_CURRENT.get() or {}), self: lane})


def parallel_parent(path: str) -> str | None:
    """Return the lane that a parallel lane was started from; None for the root and for lanes inside a call."""
    cut = max(path.rfind("."), path.rfind("/"))
    return path[:cut] if cut > 0 and path[cut] == "." else None


def lanes_inside_calls(paths: Iterable[str], calls: Iterable[str]) -> dict[str, list[str]]:
    """Return which lanes are inside which calls: that of the call ``0/3``, and those that were started from there."""
    inside: dict[str, list[str]] = {}
    places = set(calls)
    for path in paths:
        for match in _CALL.finditer(path):
            if (call := path[: match.end()]) in places:
                inside.setdefault(call, []).append(path)
    return inside
