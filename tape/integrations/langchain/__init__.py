"""LangChain: a ``BaseChatMessageHistory`` on a tape, for ``RunnableWithMessageHistory`` and whatever else takes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core import messages as langchain
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

import tape
from tape import Tape
from tape.integrations.histories import Histories, Pair, keep, kept
from tape.integrations.langchain.messages import made, role_of, taken_apart
from tape.integrations.opening import StoreLike, awaited

__all__ = ["TapeChatMessageHistory"]

_NAME = "langchain"


class TapeChatMessageHistory(Histories, BaseChatMessageHistory):
    """The messages of one session: ``RunnableWithMessageHistory(chain, lambda id: TapeChatMessageHistory(id, store))``.

    ``store`` is a Store, an AsyncStore or a URL. The messages of a call are written in one step, behind whatever others
    have written. ``clear`` empties the history; on the tape all of it stays.
    """

    _framework = _NAME

    def __init__(self, session_id: str, store: StoreLike) -> None:
        super().__init__(store)
        self.session_id = session_id

    @property
    def tape(self) -> Tape:
        """The tape of the session: to search, fork, look at, or build a context from."""
        return self._tape(self.session_id)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The messages of the session."""
        return [_to_langchain(message) for message in self.tape.messages()]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Write messages, all of them or none."""
        self._extend(self.session_id, [_from_langchain(message) for message in messages])

    def clear(self) -> None:
        """Take every message out of the history."""
        if self.tape.messages(limit=1):
            self._write(self.session_id, lambda chat: chat.clear())

    @awaited
    def aget_messages(self) -> list[BaseMessage]:
        """Return the messages of the session."""
        return self.messages

    aadd_messages = awaited(add_messages)
    aclear = awaited(clear)


def _from_langchain(message: BaseMessage) -> Pair:
    """Return a message in the form of OpenAI's chats, and beside it all else that LangChain says of it."""
    if (pair := taken_apart(message)) is not None:
        return pair[0], {_NAME: pair[1]}
    dump = langchain.message_to_dict(message)
    whole: dict[str, Any] = {"type": dump["type"], **dump["data"]}
    return keep(_NAME, {"role": role_of(message), "content": whole["content"]}, whole)


def _to_langchain(message: tape.Message) -> BaseMessage:
    whole = kept(_NAME, message, "content")
    try:
        if whole is None:
            return langchain.convert_to_messages([message.to_dict()])[0]
        if "type" not in whole:
            return made(message.data, (message.meta or {})[_NAME])
        return langchain.messages_from_dict([{"type": whole["type"], "data": whole}])[0]
    except (ValueError, NotImplementedError):
        # Not LangChain's, and in no form that it knows; or of a class that somebody made.
        return langchain.ChatMessage(role=message.role or "user", content=message.text)
