"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tape
from integrations.hostile import DEEP, VALUES, imported, watched
from tape.integrations.mcp import TapeEventStore, mcp_server

NAME = tape.as_id("mcp.stream", "", "st")


@pytest.mark.parametrize("value", [*VALUES, "a deep text"])
def test_a_hostile_file_runs_no_code(value: str) -> None:
    """Events of any content are sent, or Corrupt; the server shows a tape of any content."""
    held = VALUES.get(value, DEEP)

    def fill(source: tape.Store) -> None:
        chat = source.create("mcp/events")
        for message in (None, held):
            chat.event(NAME, {"stream": "st", "message": message})
        chat.event(NAME, held)
        chat.append(role="user", content=held)
        chat.append({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": DEEP}}]})

    async def read(store: tape.Store) -> Any:
        async def send(message: Any) -> None:
            sent.append(message)

        server = mcp_server(store)
        assert await server.read_resource("tape://mcp%2Fevents")
        events = TapeEventStore(store)
        for number in range(1, 5):
            try:
                await events.replay_events_after(str(number), send)
            except tape.Corrupt:
                refused.append(number)

    sent: list[Any] = []
    refused: list[int] = []
    with tape.open(":memory:") as store:
        imported(store, fill)
        with watched():
            asyncio.run(read(store))
    assert sent == []
