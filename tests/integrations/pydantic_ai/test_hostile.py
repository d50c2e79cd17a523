"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

import tape
from integrations.hostile import outcomes
from tape.integrations.pydantic_ai import TapeConversationStore as Conversations


def test_a_hostile_file_runs_no_code() -> None:
    """Histories and records of any content are read, or Corrupt."""
    id = tape.as_id("pydantic-ai", "s")
    slot = "pydantic-ai.record"

    def record(value: Any) -> Any:
        return {"tape": id, "record": value}

    history = outcomes(lambda store: asyncio.run(Conversations(store).read_history("0")), id, "pydantic-ai")
    assert history == {"Corrupt"}
    for wrap in (lambda value: value, record):
        for read in (
            lambda store: asyncio.run(Conversations(store).read_record("s")),
            lambda store: asyncio.run(Conversations(store).read_records()),
        ):
            assert outcomes(read, id, "pydantic-ai", slots=(slot,), agent="pydantic-ai", wrap=wrap) == {"Corrupt"}
