"""What is sent while a page is open: that a tape has grown, and what an examination of the store finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

import tape
from tape.web.page_request import PageRequest

__all__ = ["findings", "heads"]

_PAUSE = 0.25
"""Seconds between two looks at the head of a tape."""
_QUIET = 15.0
"""Seconds after which a comment keeps the connection open."""
_MOST = 64
_open = asyncio.Semaphore(_MOST)


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()


async def heads(page_request: PageRequest, request: Request) -> Response:
    """Send the head of a tape whenever it has moved."""
    chat = await run_in_threadpool(page_request.chat)
    after = page_request.number("after", 0, 0, 2**53)
    return _stream(_heads(chat, after, request))


def _stream(events: AsyncIterator[bytes]) -> Response:
    if _open.locked():
        return PlainTextResponse("too many pages are open; close some", 503, {"retry-after": "30"})
    return StreamingResponse(_counted(events), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _counted(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with _open:
        async for event in events:
            yield event


async def _heads(chat: tape.Tape, after: int, request: Request) -> AsyncIterator[bytes]:
    quiet = 0.0
    yield b": open\n\n"
    while not await request.is_disconnected():
        head = (await run_in_threadpool(chat.info)).head
        if head != after:
            after, quiet = head, 0.0
            yield _event("head", {"head": head})
        elif (quiet := quiet + _PAUSE) >= _QUIET:
            quiet = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(_PAUSE)


async def findings(store: tape.Store) -> Response:
    """Examine the store and send every finding and how far the check is."""
    return _stream(_findings(store))


async def _findings(store: tape.Store) -> AsyncIterator[bytes]:
    loop, events = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def send(event: bytes | None) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    def progress(done: int, total: int) -> None:
        send(_event("progress", {"done": done, "total": total}))

    def examine() -> None:
        try:
            for finding in store.doctor(progress=progress):
                send(_event("finding", msgspec.structs.asdict(finding)))
        except tape.TapeError as error:
            send(_event("finding", {"check": "store", "level": "error", "what": str(error), "mend": None}))
        finally:
            send(None)

    examining = asyncio.ensure_future(run_in_threadpool(examine))
    while (event := await events.get()) is not None:
        yield event
    await examining
    yield _event("end", {})
