"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent

import tape
from integrations.hostile import outcomes
from tape.integrations.openai_agents import TapeSession


def test_a_hostile_file_runs_no_code() -> None:
    """Items and paused runs of any content are read, or Corrupt, or refused by the SDK as a run of another version."""
    agent: Agent[Any] = Agent(name="a")

    def run(store: tape.Store) -> object:
        return asyncio.run(TapeSession("s", store).load_run_state(agent))

    raw, slot = "openai-agents.raw", "openai-agents.run"
    assert outcomes(lambda store: asyncio.run(TapeSession("s", store).get_items()), "s", raw) == {"Corrupt"}
    shown = outcomes(lambda store: asyncio.run(TapeSession("s", store, budget=100_000).get_items()), "s", raw)
    assert shown == set()
    assert outcomes(run, "s", slot, slots=(slot,)) == {"Corrupt"}
    assert outcomes(run, "s", slot, slots=(slot,), wrap=lambda value: {"state": value}) == {"Corrupt", "UserError"}
