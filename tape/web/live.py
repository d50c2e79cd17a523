"""Work that concurrent requests share, and the limits of each owner.

Each owner has a few threads for pages and a limited number of live streams, so one owner cannot hold up the others. An
examination of a store runs once for all of its listeners, and ends when the last of them leaves.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

import tape

__all__ = ["Live"]

_PAUSE = 0.25
"""Seconds between two polls of a tape's head, or of an examination's findings."""
_QUIET = 15.0
"""Seconds after which a comment keeps the connection open."""
_LINGER = 1.0
"""Seconds that an examination waits for a new listener, such as a page that reloads."""
_STREAMS = 64
"""The most live streams of one owner."""
_THREADS = 4
"""The most pages of one owner that are rendered concurrently."""

Value = TypeVar("Value")
Events = AsyncGenerator[bytes, None]


class Live:
    """The threads, streams and examinations of one server."""

    def __init__(self) -> None:
        self._limiters: WeakValueDictionary[str | None, anyio.CapacityLimiter] = WeakValueDictionary()
        self._open: Counter[str | None] = Counter()
        self._examinations: dict[tuple[str, str | None], _Examination] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self, owner: str | None, call: Callable[[], Value]) -> Value:
        """Run a call on a thread of an owner's, as soon as one is free."""
        limiter = self._limiters.get(owner)
        if limiter is None:
            limiter = self._limiters[owner] = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(call, limiter=limiter)

    def heads(self, owner: str | None, chat: tape.Tape, after: int, request: Request) -> Response:
        """Send the head of a tape whenever it has moved."""
        return _Stream(self._heads(owner, chat, after, request), self._open, owner)

    async def _heads(self, owner: str | None, chat: tape.Tape, after: int, request: Request) -> Events:
        quiet = 0.0
        yield b": open\n\n"
        while not await request.is_disconnected():
            head = (await self.run(owner, chat.info)).head
            if head != after:
                after, quiet = head, 0.0
                yield _event("head", {"head": head})
            elif (quiet := quiet + _PAUSE) >= _QUIET:
                quiet = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(_PAUSE)

    def findings(self, owner: str | None, name: str, store: tape.Store, request: Request) -> Response:
        """Examine a store, or join its examination, and send what it finds and how far it is."""
        return _Stream(self._findings((name, owner), store, request), self._open, owner)

    async def _findings(self, key: tuple[str, str | None], store: tape.Store, request: Request) -> Events:
        examination = self._examinations.get(key)
        if examination is None or examination.given_up:
            examination = self._examinations[key] = _Examination(store)
            examination.task = asyncio.create_task(self._examine(key, examination))
        examination.listeners += 1
        try:
            sent, progress = 0, None
            while not await request.is_disconnected():
                over = examination.over
                for finding in examination.findings[sent:]:
                    sent += 1
                    yield _event("finding", finding)
                if examination.progress != progress:
                    progress = examination.progress
                    yield _event("progress", progress)
                if over:
                    yield _event("end", {})
                    return
                await asyncio.sleep(_PAUSE)
        finally:
            examination.listeners -= 1
            asyncio.get_running_loop().call_later(_LINGER, examination.left)

    async def _examine(self, key: tuple[str, str | None], examination: _Examination) -> None:
        """Examine on a thread that no page needs, after the other examinations of the store."""
        try:
            async with self._turns[key[0]]:
                await anyio.to_thread.run_sync(examination.run, limiter=anyio.CapacityLimiter(1))
        finally:
            examination.over = True
            if self._examinations.get(key) is examination:
                del self._examinations[key]


class _GivenUp(Exception):
    """Ends an examination that has no listeners."""


class _Examination:
    """One examination of a store, for all of its listeners."""

    def __init__(self, store: tape.Store) -> None:
        self._store = store
        self.findings: list[dict[str, Any]] = []
        self.progress: dict[str, int] | None = None
        self.listeners = 0
        self.given_up = False
        self.over = False
        self.task: asyncio.Task[None] | None = None

    def left(self) -> None:
        """Give up if no listener is left."""
        self.given_up = self.given_up or not self.listeners

    def _report(self, done: int, total: int) -> None:
        if self.given_up:
            raise _GivenUp
        self.progress = {"done": done, "total": total}

    def run(self) -> None:
        """Examine the store, on a thread."""
        if self.given_up:
            return
        try:
            self.findings += map(msgspec.structs.asdict, self._store.doctor(progress=self._report))
        except tape.TapeError as error:
            self.findings.append({"check": "store", "level": "error", "what": str(error), "mend": None})
        except _GivenUp:
            return


class _Stream(StreamingResponse):
    """Events, or a refusal when their owner has too many streams open."""

    def __init__(self, events: Events, open_: Counter[str | None], owner: str | None) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._events = events
        self._open = open_
        self._owner = owner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events until they end or the client is gone."""
        if self._open[self._owner] >= _STREAMS:
            full = PlainTextResponse("too many pages are open; close some", 503, {"retry-after": "30"})
            await full(scope, receive, send)
            return
        self._open[self._owner] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open[self._owner] -= 1
            if not self._open[self._owner]:
                del self._open[self._owner]
            await self._events.aclose()


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()
