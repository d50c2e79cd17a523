"""Serving a store to other programs: mcp."""

from __future__ import annotations

import os
import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tape.command.exit_codes import USAGE, Failure, listening_on
from tape.command.registry import command

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["mcp"]

_TOKEN = "TAPE_MCP_TOKEN"


@command(
    "tape mcp",
    "tape --owner alice mcp --write",
    "tape mcp --http --port 8321",
    data=False,
)
def mcp(
    session: Session,
    write: Annotated[bool, typer.Option("--write", help="Also offer tools that write.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Serve HTTP on 127.0.0.1 instead of stdin and stdout.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port for --http; 0 picks a free one.")] = 8321,
    events: Annotated[
        str | None,
        typer.Option(
            metavar="TAPE", help="Store the event streams of --http on this tape, so that clients can resume."
        ),
    ] = None,
) -> None:
    """Serve the store to MCP clients, read-only unless --write is given.

    With --http, every request needs the token in $TAPE_MCP_TOKEN. If it is not set, the command makes and prints one.
    """
    if events is not None and not (http and write):
        raise Failure("--events needs --http and --write", "add both", USAGE)
    try:
        from tape.integrations.mcp import TapeEventStore, mcp_server, serve_http
    except ModuleNotFoundError as error:
        raise Failure(f"the package {error.name!r} is not installed", "run: pip install 'tape-store[mcp]'") from error
    with session.open(read_only=not write) as store:
        server = mcp_server(store, write=write)
        if not http:
            server.run("stdio")
            return
        token = os.environ.get(_TOKEN) or secrets.token_urlsafe(32)

        def listening(url: str) -> None:
            header = "" if os.environ.get(_TOKEN) else f"\nAuthorization: Bearer {token}"
            print(f"{url}{header}", file=sys.stderr, flush=True)

        event_store = None if events is None else TapeEventStore(store, events)
        with listening_on("127.0.0.1", port):
            serve_http(server, token, port=port, events=event_store, listening=listening)
