"""The server: tools with their hints, every tape as a resource; and HTTP on the loopback interface, behind a token."""

from __future__ import annotations

import functools
import hmac
import socket
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias
from urllib.parse import quote

import msgspec
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.server.mcpserver.resources import ResourceSecurity
from mcp.server.streamable_http import EventStore
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import Resource, ToolAnnotations
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

import tape
from tape.integrations.mcp.events import App, TapeEventStore
from tape.integrations.opening import Connected, StoreLike

__all__ = ["http_app", "mcp_server", "serve_http"]

P = ParamSpec("P")
Events: TypeAlias = EventStore | None
Listening = Callable[[str], object]
_JSON = "application/json"
_NAMES = ("127.0.0.1", "localhost")
_LISTED = 100
_MESSAGES = 1_000
_BYTES = 200_000
"""How many tapes are listed, and about how much of one is read."""
_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_SETS = _ADDS.model_copy(update={"idempotent_hint": True})
_TAKES = _SETS.model_copy(update={"destructive_hint": True})
_HINTS = {"reads": _READS, "adds": _ADDS, "sets": _SETS, "takes": _TAKES}
_INSTRUCTIONS = (
    "Agent histories on append-only tapes. Find a tape with search or list_tapes. Then call read_around with the seq of"
    " a hit, or read messages and context, now or as of any earlier seq."
)


def mcp_server(store: StoreLike, *, write: bool = False, name: str = "tape") -> MCPServer[Any]:
    """Return an MCP server of a store's tapes: ``mcp_server("agent.db").run()`` serves standard input and output.

    It reads, and a URL is opened to be read only, unless ``write`` is true. A store of an owner shows that owner's
    tapes alone.
    """
    return _Server(Connected(store, read_only=not write), name, write=write)


class _Server(MCPServer[Any]):
    """A server that lists the newest tapes as resources, and reads any of them."""

    def __init__(self, connected: Connected, name: str, *, write: bool) -> None:
        instructions = _INSTRUCTIONS if write else f"{_INSTRUCTIONS} This server is read-only."
        super().__init__(name, instructions=instructions, version=tape.__version__, log_level="WARNING")
        self._connected = connected
        self._tools = connected.store.tools("write" if write else "read", actor="mcp", room=_BYTES)
        for tool in self._tools:
            self.add_tool(_refusing(tool.run, ToolError), name=tool.name, annotations=_HINTS[tool.effect])
        # Ids are no paths: one that looks like one is an id all the same.
        how: Any = {"mime_type": _JSON, "security": ResourceSecurity(exempt_params={"id", "seq"})}
        self.resource("tape://{id}@{seq}", name="tape-at", **how)(self._read_at)
        self.resource("tape://{id}", name="tape", **how)(self._read)

    async def list_resources(self) -> list[Resource]:
        """Return the newest tapes."""
        page = await self._connected.run(lambda store: store.list(limit=_LISTED))
        return [_resource(info) for info in page]

    def _read(self, id: str) -> str:
        """A tape as it is now: its facts and its messages; of a long tape, only the last messages."""
        return self._shown(id)

    def _read_at(self, id: str, seq: str) -> str:
        """A tape as of a seq."""
        if not (seq.isascii() and seq.isdigit() and len(seq) < 19):
            raise ResourceNotFoundError(f"{seq!r} is not a seq")
        return self._shown(id, int(seq))

    def _shown(self, id: str, at: int = -1) -> str:
        info, messages = (_refusing(self._tools[name].run, ResourceNotFoundError) for name in ("tape_info", "messages"))
        page = messages(tape=id, at=at, limit=_MESSAGES)
        value = {"info": info(tape=id, at=at), "messages": page["items"], "truncated": page["truncated"]}
        return msgspec.json.encode(value).decode()


def _refusing(work: Callable[P, Any], refusal: Callable[[str], Exception]) -> Callable[P, Any]:
    """Return a function whose refusals reach the client with their type. Anything else is a crash, shown to nobody."""

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return work(*args, **kwargs)
        except tape.TapeError as error:
            raise refusal(f"{type(error).__name__}: {error}") from error

    return call


def _resource(info: tape.TapeInfo) -> Resource:
    told = f"{info.message_count} messages, seq {info.head}, {info.status}"
    return Resource(
        uri=f"tape://{quote(info.id, safe='')}", name=info.name or info.id, description=told, mime_type=_JSON
    )


# -- HTTP


def http_app(server: MCPServer[Any], port: int, token: str | None, events: Events = None) -> App:
    """Return the ASGI application of a server that is reached at ``http://127.0.0.1:port/mcp``.

    A request needs the token as a bearer, unless that is None, and the Host of a loopback address with this port: a
    page elsewhere whose name was made to lead here is refused, and so is one of another Origin.
    """
    hosts = [f"{name}:{port}" for name in _NAMES]
    origins = [f"http://{host}" for host in hosts]
    app: App = server.streamable_http_app(
        event_store=events, transport_security=TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)
    )
    if isinstance(events, TapeEventStore):
        app = events.scoped(app)
    return app if token is None else _guarded(app, token)


def _guarded(app: App, token: str) -> App:
    wanted = f"bearer {token}".encode()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            kind, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
            if not hmac.compare_digest(f"{kind.lower()} {shown.strip()}".encode(), wanted):
                refusal = PlainTextResponse("a bearer token is required", 401, {"WWW-Authenticate": "Bearer"})
                return await refusal(scope, receive, send)
        return await app(scope, receive, send)

    return guarded


def serve_http(
    server: MCPServer[Any], token: str, *, port: int = 0, events: Events = None, listening: Listening = print
) -> None:
    """Serve on the loopback interface until the process is interrupted; ``listening`` is told the URL."""
    with socket.create_server((_NAMES[0], port)) as bound:
        taken = bound.getsockname()[1]
        app = http_app(server, taken, token, events)
        listening(f"http://{_NAMES[0]}:{taken}/mcp")
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[bound])
