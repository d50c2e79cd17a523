"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

import tape
from integrations.hostile import outcomes
from tape.integrations.adk import TapeMemoryService, TapeSessionService


def test_a_hostile_file_runs_no_code() -> None:
    """Sessions, lists of them and memories of any content are read, or Corrupt."""
    id, session = tape.as_id("adk", "a", "u", "s"), {"app_name": "a", "user_id": "u", "session_id": "s"}

    def named(value: Any) -> Any:
        return {"names": ["a", "u", "s"], "created": 1.0, **(value if isinstance(value, dict) else {"x": value})}

    for wrap in (lambda value: value, named):
        for read in (
            lambda store: asyncio.run(TapeSessionService(store).get_session(**session)),
            lambda store: asyncio.run(TapeSessionService(store).list_sessions(app_name="a")),
        ):
            events, slots = ("adk.event",), ("adk:x", "adk~")
            assert outcomes(read, id, "adk", agent="a", events=events, slots=slots, wrap=wrap) == {"Corrupt"}
    memory = tape.as_id("adk", "a", "u", "", "memory")

    def search(store: tape.Store) -> object:
        return asyncio.run(TapeMemoryService(store).search_memory(app_name="a", user_id="u", query="x"))

    assert outcomes(search, memory, "adk") == {"Corrupt"}
