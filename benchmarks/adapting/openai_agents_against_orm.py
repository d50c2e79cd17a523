"""OpenAI Agents SDK: against the session that it has for every database of SQLAlchemy, an ORM away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.adapters import Side
from benchmarks.adapting.openai_agents import side
from benchmarks.peers import Place

PACKAGE = "openai-agents"
THEIRS = "SQLAlchemySession"
BAR = 2.0


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both."""
    from agents.extensions.memory import SQLAlchemySession

    from tape.integrations.openai_agents import TapeSession

    url = f"sqlite+aiosqlite:///{place.path.with_suffix('.stock')}"
    ours, theirs = TapeSession("chat", place.path), SQLAlchemySession.from_url("chat", url=url, create_tables=True)
    yield side(ours), side(theirs)
    place.run(theirs.engine.dispose())
    ours.close()
