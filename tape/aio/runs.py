"""A run, awaited: the same as ``tape.runs.run`` for a tape of an AsyncStore."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from tape.aio.tape import AsyncTape
from tape.core.context.build import Context
from tape.errors import ProvenanceConflict
from tape.handles.tape import Tape
from tape.runs.events import RunEvent
from tape.runs.preparing import Plan, Prepared, prepare, scratch_tape
from tape.runs.run import RunBase
from tape.runs.wrapping import Calls

__all__ = ["AsyncRun", "in_thread"]

R = TypeVar("R")


class AsyncRun(RunBase):
    """A run of an agent on a tape, awaited; see ``Run``. Every function that it wraps is awaited or iterated with
    ``async for``; a plain one runs in a thread."""

    def __init__(self, chat: AsyncTape, plan: Plan) -> None:
        super().__init__(plan)
        self._chat = chat
        self._target: AsyncTape = plan.into or chat
        self._scratch: AsyncTape | None = None

    async def __aenter__(self) -> AsyncRun:
        chat, plan = self._chat, self._plan
        into, base = _inner(plan.into), _inner(plan.base)
        port = _AsyncTapePort(self._target)

        async def begin() -> Prepared:
            prepared = await chat._read(lambda: prepare(chat._inner, plan, into, base))
            for event in prepared.opening:
                await port.write(event)
            return prepared

        try:
            prepared = await begin()
        except ProvenanceConflict:
            # Another worker has started the run in between.
            prepared = await begin()
        # Made in a worker thread; the lanes belong to this task.
        prepared.journal.lanes.belong_here()
        self._prepared = prepared
        self._calls = Calls(prepared.journal, port)
        self._begin(self._target._inner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        event = self._finish(error)
        if event is not None:
            # Also when the task is being cancelled: that the run ended is a fact.
            await asyncio.shield(asyncio.ensure_future(self._calls.drive_async(self._end(event))))
        self._raise_divergence(error)

    @property
    def tape(self) -> AsyncTape:
        """The tape that the agent works on: the recorded one, the fork of a replay, or a copy in memory."""
        if self._journal.writes:
            return self._target
        if self._scratch is None:
            self._scratch = AsyncTape(scratch_tape(self._chat._inner, self._ready), self._chat._threads)
        return self._scratch

    async def context(self, **options: Any) -> Context:
        """Return a context of the run's tape, recorded so that requests can point to it; see ``Run.context``."""
        if not self._journal.writes:
            return await self.tape.context(**options)
        context, _ = await self.tape.recorded_context(**options)
        context._listeners = (self._listen,)
        return context

    async def snapshot(self, digest: str, uri: str) -> None:
        """Note that the workspace is kept elsewhere at this step: a git tree, an image. Nothing is restored by it."""
        if self._journal.writes:
            await self.tape.event("run.snapshot", self._snapshot(digest, uri))


async def in_thread(chat: AsyncTape, read: Callable[[Tape], R]) -> R:
    """Run a read of several steps with the synchronous tape, in one hop to a worker thread."""
    return await chat._read(lambda: read(chat._inner))


def _inner(chat: AsyncTape | None) -> Tape | None:
    return None if chat is None else chat._inner


class _AsyncTapePort:
    """Writes the events of a run to a tape that is awaited."""

    waits = True

    def __init__(self, tape: AsyncTape) -> None:
        self._tape = tape

    def write(self, event: RunEvent) -> Any:
        claim = event.claimed
        claimed = None if claim is None else (claim.event, claim, claim.entry_key)
        return self._tape._event_of_run(event.event, event, event.entry_key, claimed)

    def find(self, key: str) -> Any:
        return self._tape.find_entry(key=key)

    def settle(self, store: Any, event: RunEvent) -> Any:
        return store.tape(self._tape.id)._event_of_run(event.event, event, event.entry_key)
