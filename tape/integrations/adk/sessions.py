"""The session service: sessions of an agent of ADK, their events and their state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast
from uuid import uuid4
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from pydantic import PrivateAttr

import tape
from tape.integrations.adk.events import Held, Written, event_of, json_of, kept_beside, newest
from tape.integrations.adk.places import APP, TEMP, USER, Place, put_states, states_of
from tape.integrations.histories import readable
from tape.integrations.opening import AsyncAdapter, StoreLike, awaited, delete

__all__ = ["TapeSessionService"]

Names = tuple[str, str, str]
"""An app, a user and a session."""
_ABOUT = "adk"
"""The name under which a session's tape tells what it is."""


class TapeSessionService(AsyncAdapter, BaseSessionService):
    """Sessions of ADK on tapes: ``Runner(…, session_service=TapeSessionService("agent.db"))``.

    ``store`` is a Store, an AsyncStore or a URL. A session's tape belongs to its user, or to the owner of the store if
    it has one. An event and all that it changes is written in one step. An event is refused with StaleSessionError
    when another one was written since its session was read, and with SessionNotFoundError when that is gone.
    """

    def __init__(self, store: StoreLike) -> None:
        super().__init__(store)
        self._turns: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()

    @awaited
    def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session. Raises AlreadyExistsError for an id that the user has in this app."""
        names, initial = (app_name, user_id, _trimmed(session_id) or str(uuid4())), json_of(state or {})
        store, key, now = self._connected.store, str(uuid4()), time.time()
        place, about = Place(store, *names), {_ABOUT: {"names": list(names), "created": now}}

        def create(together: tape.Store) -> int:
            chat = together.create(place.session, owner=place.owner, agent=place.agent, meta=about, key=key, reuse=True)
            _put_deltas(together, place, chat, initial)
            return chat.info().head

        try:
            head = store.transaction(create)
        except tape.TapeExists as error:
            raise AlreadyExistsError(f"Session with id {names[2]} already exists.") from error
        return _made(names, _own(initial) | _shared(store, place), now, []).note(head)

    @awaited
    def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or None; ``config`` asks for the last of them or those since a moment."""
        names, store = (app_name, user_id, _trimmed(session_id)), self._connected.store
        place = Place(store, *names)
        info = store.tape(place.session).info()
        if (about := (info.meta or {}).get(_ABOUT)) is None:
            return None
        try:
            # All that is read is of one moment: what comes later is not seen, and so makes the session stale.
            chat = store.tape(place.session).at(info.head)
            with readable(chat.id, info.head):
                last, events = _events(chat, config or GetSessionConfig())
                state = states_of(chat) | _shared(store, place)
                updated, seen = (about["created"], info.head) if last is None else (last[1]["timestamp"], last[0].seq)
                return _made(names, state, updated, events).note(seen)
        except tape.TapeNotFound:
            return None

    @awaited
    def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without their events; the one that was used last at last."""
        store, sessions = self._connected.store, []
        place = Place(store, app_name, user_id or "")
        for info in store.tapes(agent=place.agent, owner=None if user_id is None else place.owner):
            about = (info.meta or {}).get(_ABOUT)
            # Other tapes may have the same agent, and all users the same owner.
            if about is None:
                continue
            with readable(info.id, info.head):
                names = cast(Names, tuple(about["names"]))
                app, user, _ = names
                if app != app_name or user_id not in (None, user):
                    continue
                chat = store.tape(info.id)
                last = next(newest(chat, 1), None)
                updated = about["created"] if last is None else last[1]["timestamp"]
                sessions.append(_made(names, states_of(chat) | _shared(store, Place(store, *names)), updated, []))
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=list(sessions))

    @awaited
    def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Purge a session. A session that forks still read is hidden until the last of them is deleted."""
        store, id = self._connected.store, self.tape_id(app_name, user_id, session_id)
        with suppress(tape.TapeNotFound):
            delete(store, id)

    @awaited
    def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without ``user:``."""
        store = self._connected.store
        return states_of(store.tape(Place(store, app_name, user_id).user))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Write an event of a session. Raises StaleSessionError, SessionNotFoundError or an error of the store.

        The same event again writes nothing; another one with its id is a ProvenanceConflict.
        """
        if event.partial:
            return event
        # One event after the other, as one session knows what it has written itself.
        turn = (id(asyncio.get_running_loop()), self.tape_id(session.app_name, session.user_id, session.id))
        async with self._turns.setdefault(turn, asyncio.Lock()):
            written = Written(event)
            receipt = await self._connected.run(lambda store: _append(store, session, written))
            if isinstance(session, _Session):
                session.note(receipt.seq)
        session.last_update_time = event.timestamp
        if receipt.duplicate and any(known.id == event.id for known in session.events):
            return event
        return await super().append_event(session, event)

    def tape_id(self, app_name: str, user_id: str, session_id: str) -> str:
        """Return the id of a session's tape, to search it, to fork it or to look at it as it was."""
        return Place(self._connected.store, app_name, user_id, _trimmed(session_id)).session


class _Session(Session):
    """A session that knows the last entry of its tape that it was read from, or has written."""

    _seen: int = PrivateAttr(default=0)

    def note(self, seen: int) -> _Session:
        self._seen = seen
        return self

    def noted(self) -> int:
        return self._seen


def _made(names: Names, state: dict[str, Any], updated: float, events: list[Event]) -> _Session:
    app, user, session = names
    return _Session(app_name=app, user_id=user, id=session, state=state, events=events, last_update_time=updated)


def _trimmed(session_id: str | None) -> str:
    return (session_id or "").strip()


def _events(chat: tape.Snapshot, config: GetSessionConfig) -> tuple[Held | None, list[Event]]:
    """Return the last event as it is held, and the events that are asked for."""
    since, most = config.after_timestamp or float("-inf"), config.num_recent_events
    last: Held | None = None
    wanted: list[Event] = []
    for held in newest(chat, None if most is None else max(most, 1)):
        last = last or held
        if len(wanted) == most:
            break
        if held[1]["timestamp"] >= since:
            wanted.append(event_of(*held))
    return last, wanted[::-1]


# -- state


def _shared(store: tape.Store, place: Place) -> dict[str, Any]:
    """Return the state that a session shares with others."""
    of_user, of_app = states_of(store.tape(place.user)), states_of(store.tape(place.app))
    return {USER + key: value for key, value in of_user.items()} | {APP + key: value for key, value in of_app.items()}


def _put_deltas(store: tape.Store, place: Place, chat: tape.Tape, state: Mapping[str, Any]) -> None:
    """Put what changed in the state where it belongs."""
    put_states(chat, _own(state))
    for prefix, id, owner in ((USER, place.user, place.owner), (APP, place.app, store.owner)):
        changed = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        if changed:
            put_states(store.create(id, owner=owner, key="adk", exists_ok=True, reuse=True), changed)


def _own(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that is of a session alone."""
    return {key: value for key, value in state.items() if not key.startswith((APP, USER, TEMP))}


# -- events


def _append(store: tape.Store, session: Session, written: Written) -> tape.Receipt:
    """Write an event and, before it, what it changes."""
    place = Place(store, session.app_name, session.user_id, _trimmed(session.id))
    seen = session.noted() if isinstance(session, _Session) else 0
    if seen and written.alone:
        with suppress(tape.HeadMoved, tape.TapeNotFound):
            return written.put(store.tape(place.session), seen)

    def append(together: tape.Store) -> tape.Receipt:
        chat = together.get(place.session)
        if chat.find_entry(key=written.key) is None:
            if _is_stale(chat, session, seen):
                raise StaleSessionError(
                    f"Session {session.id} was modified in storage after it was read. Read it again."
                )
            _put_deltas(together, place, chat, written.state)
            _follow(together, chat, written)
        return written.put(chat)

    try:
        return store.transaction(append)
    except tape.TapeNotFound as error:
        raise SessionNotFoundError(f"Session {session.id} not found.") from error


def _is_stale(chat: tape.Tape, session: Session, seen: int) -> bool:
    """Whether there is an event that a session does not know. What others write on its tape does not count."""
    last = next(newest(chat, 1), None)
    if last is None or seen:
        return last is not None and last[0].seq > seen
    # Not one that this service has made: what it says must do.
    known = bool(session.events) and tape.as_id(session.events[-1].id) == last[0].key
    return not known and bool(last[1]["timestamp"] > session.last_update_time)


def _follow(store: tape.Store, chat: tape.Tape, written: Written) -> None:
    """Do on the tape what an event means there: count its usage, leave a branch that it rewinds, sum up."""
    if usage := written.usage:
        chat.record_usage(
            input_tokens=usage.prompt_token_count or 0,
            output_tokens=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
            cached_tokens=usage.cached_content_token_count or 0,
        )
    if not (written.rewind or written.compaction):
        return
    said = [(message.id, kept_beside(message.meta)) for message in chat.messages()]
    if written.rewind:
        begun = [data.get("invocation_id") for _, data in said]
        if written.rewind in begun:
            index = begun.index(written.rewind)
            chat.switch(said[index - 1][0] if index else None)
    if compaction := written.compaction:
        first, last = compaction.start_timestamp, compaction.end_timestamp
        covered = {id for summary in chat.summaries() for id in summary.covers}
        run = [id for id, data in said if data and first <= data["timestamp"] <= last and id not in covered]
        text = "\n".join(part.text for part in compaction.compacted_content.parts or () if part.text)
        if run and text.strip():
            # Refused where it would part a tool call from its result. ADK's own summary is its event.
            with suppress(tape.InvalidEntry):
                store.transaction(lambda _: chat.set_summary(text, first=run[0], last=run[-1], expected=chat.summary()))
