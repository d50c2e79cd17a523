"""Resumable streams: the events of MCP streams on a tape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from starlette.datastructures import Headers, MutableHeaders

import tape
from tape.integrations.histories import readable, tape_id
from tape.integrations.opening import Adapter, StoreLike

__all__ = ["TapeEventStore"]

_SESSION = "mcp-session-id"
_KEPT = 10_000
"""Of how many sessions it is known which streams are theirs."""

_session: ContextVar[str] = ContextVar("session", default="")

App = Callable[[Any, Any, Any], Awaitable[None]]


class TapeEventStore(Adapter, EventStore):
    """The events of an MCP server's streams on a tape, so that a client that was cut off gets what it missed.

    ``app = events.scoped(server.streamable_http_app(event_store=events))``: a server gives the streams of each session
    the same ids, and this keeps them apart. Without it the store is good for one session. Without a ``tape`` the events
    are on ``mcp/events``, or on a tape of the store's owner.
    """

    def __init__(self, store: StoreLike, tape: str | None = None) -> None:
        super().__init__(store)
        self._tape = tape_id(self._connected.store, "mcp", "events") if tape is None else tape
        self._scopes: OrderedDict[str, str] = OrderedDict()

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Record an event; returns its id, the seq."""
        text = None if message is None else message.model_dump_json(by_alias=True, exclude_unset=True)
        name, data = _name(_session.get(), stream_id), {"stream": stream_id, "message": text}
        return str(await self._connected.run(lambda store: store.tape(self._tape).event(name, data).seq))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send the events of the same stream behind an event; returns the stream, or None if it is not known."""
        session = _session.get()
        with readable(self._tape, 0):
            stream, events = await self._connected.run(
                lambda store: _behind(store.tape(self._tape), session, last_event_id)
            )
            messages = [EventMessage(jsonrpc_message_adapter.validate_json(text), seq) for seq, text in events]
        for message in messages:
            await send_callback(message)
        return stream

    def scoped(self, app: App) -> App:
        """Return an ASGI application that tells this store to which session the events of a request belong."""

        async def scoped(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            named = Headers(scope=scope).get(_SESSION)
            # Its own tasks inherit this from the request that opens a session, before it has an id.
            ours = tape.new_id() if named is None else self._scopes.get(named, "gone")
            token = _session.set(ours)

            async def sent(event: Any) -> None:
                if event["type"] == "http.response.start" and named is None:
                    if (new := MutableHeaders(scope=event).get(_SESSION)) is not None:
                        self._scopes[new] = ours
                    if len(self._scopes) > _KEPT:
                        self._scopes.popitem(last=False)
                await send(event)

            try:
                return await app(scope, receive, sent)
            finally:
                _session.reset(token)

        return scoped


def _name(session: str, stream: str) -> str:
    """Return the name of a stream's events, by which they are found. A client may have chosen any id."""
    return tape.as_id("mcp.stream", session, stream)


def _behind(chat: tape.Tape, session: str, event: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the stream of an event of this session, or None, and the messages behind it."""
    seq = int(event) if event.isascii() and event.isdigit() and len(event) < 19 else 0
    entry = chat.find_entry(seq=seq) if seq else None
    # Only events have a name and data.
    data = getattr(entry and entry.payload, "data", None)
    stream = data.get("stream") if isinstance(data, dict) else None
    if not isinstance(stream, str) or getattr(entry and entry.payload, "name", None) != _name(session, stream):
        return None, []
    behind: list[Any] = [*chat.entries(after=seq, name=_name(session, stream))]
    pairs = [(str(later.seq), later.payload.data["message"]) for later in behind]
    return stream, [(at, text) for at, text in pairs if text is not None]
