"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tape
from integrations.hostile import outcomes
from tape.integrations.pydantic_ai_harness import TapeStepStore

NAMES: Any = {
    "slots": ("pydantic-ai.run", "pydantic-ai.effect/c"),
    "events": ("pydantic-ai.event.x", "pydantic-ai.snapshot.complete"),
}


def snapshot(value: Any) -> Any:
    return {"head": None, "high": 1, **(value if isinstance(value, dict) else {"x": value})}


@pytest.mark.parametrize("wrap", [lambda value: value, snapshot], ids=["values", "snapshots"])
def test_a_hostile_file_runs_no_code(wrap: Any) -> None:
    """Runs, events, effects and snapshots of any content are read, or Corrupt."""
    id = tape.as_id("pydantic-ai-run", "s")
    for name in ("get_run", "list_events", "list_unresolved_tool_effects", "latest_snapshot", "list_snapshots"):

        def read(store: tape.Store, name: str = name) -> Any:
            return asyncio.run(getattr(TapeStepStore(store), name)(run_id="s"))

        assert outcomes(read, id, "pydantic-ai", wrap=wrap, **NAMES) == {"Corrupt"}, name
    runs = outcomes(
        lambda store: asyncio.run(TapeStepStore(store).list_runs()),
        id,
        "pydantic-ai",
        wrap=wrap,
        labels=["pydantic-ai-run"],
        **NAMES,
    )
    assert runs == {"Corrupt"}
