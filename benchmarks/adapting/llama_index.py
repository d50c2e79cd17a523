"""LlamaIndex: its own store of chats in SQLite, which uses SQLAlchemy's sessions and aiosqlite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.adapters import Side, answer, question
from benchmarks.peers import Place

PACKAGE = "llama-index-core"
THEIRS = "SQLAlchemyChatStore"
BAR = 2.0

KEY = "chat"


def turn(number: int) -> list[Any]:
    """Return a turn as a memory hands it over."""
    from llama_index.core.llms import ChatMessage

    return [ChatMessage(question(number)), ChatMessage(answer(number), role="assistant")]


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both. Ours takes a message at a time, as the interface for chat stores has it; theirs takes a turn."""
    from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

    from tape.integrations.llama_index import TapeChatStore

    ours = TapeChatStore(place.path)
    theirs = SQLAlchemyChatStore("chat", f"sqlite+aiosqlite:///{place.path.with_suffix('.theirs')}")

    async def add(number: int) -> None:
        for message in turn(number):
            await ours.async_add_message(KEY, message)

    def all_turns(turns: int) -> list[Any]:
        return [message for number in range(turns) for message in turn(number)]

    yield (
        Side(add, lambda: ours.aget_messages(KEY), fill=lambda turns: ours.aset_messages(KEY, all_turns(turns))),
        Side(
            lambda number: theirs.add_messages(KEY, turn(number)),
            lambda: theirs.get_messages(KEY),
            fill=lambda turns: theirs.set_messages(KEY, all_turns(turns)),
        ),
    )
    ours.close()
