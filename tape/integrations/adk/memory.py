"""The memory service: what a user said in earlier sessions, found by its words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session

import tape
from tape.integrations.adk.events import content_of, json_of, kept_beside, message_of
from tape.integrations.adk.places import Place
from tape.integrations.histories import readable
from tape.integrations.opening import AsyncAdapter, awaited

__all__ = ["TapeMemoryService"]

Facts = Mapping[str, object] | None
Written = tuple[str, dict[str, Any], dict[str, Any]]
"""The key of a memory, its message, and what is told beside it."""
_MOST = 10
"""How many memories a search gives: they go into a prompt."""
_WORDS = 32
_HITS = 50


class TapeMemoryService(AsyncAdapter, BaseMemoryService):
    """Memories of ADK on a tape for each user of an app: ``Runner(…, memory_service=TapeMemoryService("agent.db"))``.

    ``store`` is a Store, an AsyncStore or a URL. Every event with a text is one memory, whatever session service it
    comes from. It is written once, however often its session is added, and not again when it was deleted.
    """

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember the events of a session that are not remembered yet."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    @awaited
    def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Facts = None,
    ) -> None:
        """Remember some events."""
        memories = [
            MemoryEntry(id=event.id, content=event.content, author=event.author, timestamp=_moment(event))
            for event in events
            if event.content and any(part.text for part in event.content.parts or ())
        ]
        self._add(app_name, user_id, [_written(memory, custom_metadata, session_id) for memory in memories])

    @awaited
    def add_memory(
        self, *, app_name: str, user_id: str, memories: Sequence[MemoryEntry], custom_metadata: Facts = None
    ) -> None:
        """Remember what is not in any session."""
        self._add(app_name, user_id, [_written(memory, custom_metadata, None) for memory in memories])

    @awaited
    def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories that have most of the words of ``query``, the newest first among equals."""
        chat = self._tape(app_name, user_id)
        words: Counter[str] = Counter()
        newest: dict[str, int] = {}
        for word in list(dict.fromkeys(re.findall(r"\w+", query.casefold())))[:_WORDS]:
            for hit in chat.search(word, limit=_HITS):
                words[hit.message_id] += 1
                newest[hit.message_id] = hit.seq
        best = sorted(words, key=lambda id: (-words[id], -newest[id]))[:_MOST]
        return SearchMemoryResponse(memories=[_memory(message) for message in map(chat.find, best) if message])

    @awaited
    def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Retract a memory: it is not found again. On the tape it stays."""
        if memory_id:
            with suppress(tape.UnknownMessage, tape.TapeNotFound):
                self._tape(app_name, user_id).retract(tape.as_id(memory_id))

    def _tape(self, app: str, user: str) -> tape.Tape:
        store = self._connected.store
        return store.tape(Place(store, app, user).memory)

    def _add(self, app: str, user: str, new: list[Written]) -> None:
        store = self._connected.store
        place = Place(store, app, user)

        def add(together: tape.Store) -> None:
            facts: Any = {"owner": place.owner, "agent": place.agent, "key": "adk"}
            chat = together.create(place.memory, exists_ok=True, reuse=True, **facts)
            for key, message, beside in new:
                if chat.find_entry(key=key) is None:
                    chat.append(message, id=key, key=key, meta={"adk": beside})

        if new:
            store.transaction(add)


def _moment(event: Event) -> str:
    return datetime.fromtimestamp(event.timestamp, UTC).isoformat()


def _written(memory: MemoryEntry, said: Facts, session: str | None) -> Written:
    dump = memory.model_dump(mode="json", exclude_none=True, exclude={"content", "id"})
    id = memory.id or str(uuid4())
    dump |= {"id": id, "custom_metadata": {**memory.custom_metadata, **(said or {})}}
    if session is not None:
        dump["session"] = session
    content = json_of(memory.content.model_dump(mode="json", exclude_none=True))
    message, dump["content"] = message_of({"parts": [], **content})
    return tape.as_id(id), message, json_of(dump)


def _memory(message: tape.Message) -> MemoryEntry:
    with readable(message.tape, message.seq):
        beside = kept_beside(message.meta)
        return MemoryEntry(
            content=content_of(message.to_dict(), beside.get("content")),
            **{name: beside[name] for name in ("id", "author", "timestamp", "custom_metadata") if name in beside},
        )
