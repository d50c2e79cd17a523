"""Google ADK: its own store for files and servers is ``DatabaseSessionService``, on an ORM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.adapters import Side, answer, question
from benchmarks.peers import Place

PACKAGE = "google-adk"
THEIRS = "DatabaseSessionService"
BAR = 2.0

NAMES: dict[str, Any] = {"app_name": "shop", "user_id": "ana", "session_id": "chat"}


def side(service: Any, session: Any) -> Side:
    """Return a service's calls, on one session."""
    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.genai import types

    def event(author: str, role: str, text: str, number: int) -> Event:
        content = types.Content(role=role, parts=[types.Part(text=text)])
        return Event(author=author, invocation_id=f"e-{number}", content=content)

    async def turn(number: int) -> None:
        await service.append_event(session, event("user", "user", question(number), number))
        await service.append_event(session, event("clerk", "model", answer(number), number))

    async def load(most: int | None = None) -> list[Any]:
        loaded = await service.get_session(**NAMES, config=GetSessionConfig(num_recent_events=most))
        events: list[Any] = loaded.events
        return events

    return Side(turn, load, load)


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both."""
    from google.adk.sessions.database_session_service import DatabaseSessionService

    from tape.integrations.adk import TapeSessionService

    ours = TapeSessionService(place.path)
    theirs = DatabaseSessionService(f"sqlite+aiosqlite:///{place.path.with_suffix('.orm')}")
    ours_session, theirs_session = (place.run(service.create_session(**NAMES)) for service in (ours, theirs))
    yield side(ours, ours_session), side(theirs, theirs_session)
    place.run(theirs.close())
    place.run(ours.close())
