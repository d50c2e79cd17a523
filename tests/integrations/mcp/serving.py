"""The command ``tape mcp`` in a process of its own, and the SDK's client beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import httpx2
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from support.backends import Backend
from support.processes import PATIENCE

__all__ = ["TOKEN", "command", "http_client", "serve_http", "stdio", "within"]

TOKEN = "a-token-of-this-test"


def command(backend: Backend, *options: str) -> list[str]:
    """Return the command line of the server on a test's store."""
    place = ["--store", backend.address, *(["--schema", backend.schema] if backend.schema else [])]
    return [sys.executable, "-m", "tape.command", *place, "mcp", *options]


def within(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine to its end, which comes within the usual patience."""

    async def bounded() -> None:
        with anyio.fail_after(PATIENCE):
            await work()

    anyio.run(bounded)


@asynccontextmanager
async def stdio(backend: Backend, *options: str) -> AsyncIterator[Client]:
    """Start the server on pipes, with a client at their other end."""
    program, *arguments = command(backend, *options)
    parameters = StdioServerParameters(command=program, args=arguments, env={**os.environ})
    async with Client(stdio_client(parameters)) as client:
        yield client


@contextmanager
def serve_http(backend: Backend, *options: str) -> Iterator[str]:
    """Start the server on a free port; yields its URL."""
    server = subprocess.Popen(
        command(backend, "--http", "--port", "0", *options),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TAPE_MCP_TOKEN": TOKEN},
    )
    assert server.stderr is not None
    timer = threading.Timer(PATIENCE, server.kill)
    timer.start()
    try:
        url = server.stderr.readline().strip()
        assert url.startswith("http://127.0.0.1:"), url
        # Nobody reads what else it says: a full pipe must not stop it.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield url
    finally:
        timer.cancel()
        server.terminate()
        server.wait(PATIENCE)


@asynccontextmanager
async def http_client(url: str, token: str = TOKEN) -> AsyncIterator[Client]:
    """Connect the SDK's client with a token."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client
