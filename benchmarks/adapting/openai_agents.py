"""OpenAI Agents SDK: against the SQLite session that it brings along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.adapters import Side, answer, question
from benchmarks.peers import Place

PACKAGE = "openai-agents"
THEIRS = "SQLiteSession"
BAR = 1.0


def turn(number: int) -> list[Any]:
    """Return a turn as the Runner writes it."""
    content = [{"type": "output_text", "text": answer(number), "annotations": []}]
    said = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": content, "status": "completed"}
    return [{"role": "user", "content": question(number)}, said]


def side(session: Any) -> Side:
    """Return a session's calls."""

    def fill(turns: int) -> Any:
        return session.add_items([item for number in range(turns) for item in turn(number)])

    return Side(lambda number: session.add_items(turn(number)), session.get_items, session.get_items, fill=fill)


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both."""
    from agents import SQLiteSession

    from tape.integrations.openai_agents import TapeSession

    ours, theirs = TapeSession("chat", place.path), SQLiteSession("chat", place.path.with_suffix(".stock"))
    yield side(ours), side(theirs)
    theirs.close()
    ours.close()
