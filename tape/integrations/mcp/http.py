"""Streamable HTTP on the loopback interface, behind a token."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import EventStore
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from tape.integrations.mcp.events import App, TapeEventStore

__all__ = ["http_app", "serve_http"]

_NAMES = ("127.0.0.1", "localhost")


def http_app(server: MCPServer[Any], port: int, token: str | None, events: EventStore | None = None) -> App:
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
                refusal = PlainTextResponse("a token is needed", 401, {"WWW-Authenticate": "Bearer"})
                return await refusal(scope, receive, send)
        return await app(scope, receive, send)

    return guarded


def serve_http(
    server: MCPServer[Any],
    token: str,
    *,
    port: int = 0,
    events: EventStore | None = None,
    listening: Callable[[str], object] = print,
) -> None:
    """Serve on the loopback interface until the process is interrupted; ``listening`` is told the URL."""
    with socket.create_server((_NAMES[0], port)) as bound:
        taken = bound.getsockname()[1]
        app = http_app(server, taken, token, events)
        listening(f"http://{_NAMES[0]}:{taken}/mcp")
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[bound])
