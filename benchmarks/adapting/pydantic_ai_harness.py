"""Pydantic AI Harness: snapshots of a run that grows by a turn, on ours and on its SqliteStepStore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.adapters import Side, answer, question
from benchmarks.peers import Place

PACKAGE = "pydantic-ai-harness"
THEIRS = "SqliteStepStore"
BAR = 1.0


def side(store: Any) -> Side:
    """Return a store's calls. The harness always saves and loads the whole history."""
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
    from pydantic_ai_harness.step_persistence import ContinuableSnapshot

    history: list[ModelMessage] = []

    def say(number: int) -> None:
        history.append(ModelRequest(parts=[UserPromptPart(question(number))]))
        history.append(ModelResponse(parts=[TextPart(answer(number))]))

    async def save(number: int) -> None:
        key = f"{number}:{number}:complete"
        snapshot = ContinuableSnapshot(run_id="run", step_index=number, messages=list(history), idempotency_key=key)
        await store.save_snapshot(snapshot)

    async def turn(number: int) -> None:
        say(number)
        await save(number)

    async def fill(turns: int) -> None:
        for number in range(turns):
            say(number)
        await save(turns - 1)

    async def load() -> Any:
        return (await store.latest_snapshot(run_id="run")).messages

    return Side(turn, load, fill=fill)


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both."""
    from pydantic_ai_harness.step_persistence import SqliteStepStore

    from tape.integrations.pydantic_ai_harness import TapeStepStore

    ours = TapeStepStore(place.path)
    yield side(ours), side(SqliteStepStore(database=place.path.with_suffix(".steps")))
    place.run(ours.close())
