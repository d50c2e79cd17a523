"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio

import tape
from integrations.hostile import outcomes
from tape.integrations.agent_framework import TapeHistoryProvider


def test_a_hostile_file_runs_no_code() -> None:
    """Whatever is kept beside a message is a message, or Corrupt."""
    id = tape.as_id("agent-framework", "s")

    def read(store: tape.Store) -> object:
        return asyncio.run(TapeHistoryProvider(store).get_messages("s"))

    assert outcomes(read, id, "agent-framework") == {"Corrupt"}
