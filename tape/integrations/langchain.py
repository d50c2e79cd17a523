"""LangChain: a ``BaseChatMessageHistory`` on a tape, for ``RunnableWithMessageHistory`` and whatever else takes one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    convert_to_messages,
    message_to_dict,
    messages_from_dict,
)

import tape
from tape import Tape
from tape.integrations.histories import Pair, Shelf, keep, kept
from tape.integrations.opening import Adapter, StoreLike, awaited

__all__ = ["TapeChatMessageHistory"]

_NAME = "langchain"
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
_SHARED = ("content", "name", "tool_call_id")


class TapeChatMessageHistory(Adapter, BaseChatMessageHistory):
    """The messages of one session: ``RunnableWithMessageHistory(chain, lambda id: TapeChatMessageHistory(id, store))``.

    ``store`` is a Store, an AsyncStore or a URL. The messages of a call are written in one step, behind whatever others
    have written. ``clear`` empties the history; on the tape all of it stays.
    """

    def __init__(self, session_id: str, store: StoreLike) -> None:
        self.session_id = session_id
        self._connected = self._shelf = Shelf(store, _NAME)

    @property
    def tape(self) -> Tape:
        """The tape of the session: to search, fork, look at, or build a context from."""
        return self._shelf.tape(self.session_id)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The messages of the session."""
        return [_to_langchain(message) for message in self.tape.messages()]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Write messages, all of them or none."""
        self._shelf.extend(self.session_id, [_from_langchain(message) for message in messages])

    def clear(self) -> None:
        """Take every message out of the history."""
        if self.tape.messages(limit=1):
            self._shelf.write(self.session_id, lambda chat: chat.clear())

    @awaited
    def aget_messages(self) -> list[BaseMessage]:
        """Return the messages of the session."""
        return self.messages

    aadd_messages = awaited(add_messages)
    aclear = awaited(clear)


def _from_langchain(message: BaseMessage) -> Pair:
    """Return a message in the form of OpenAI's chats, and beside it all that LangChain says of it."""
    dump = message_to_dict(message)
    whole: dict[str, Any] = {"type": dump["type"], **dump["data"]}
    role = getattr(message, "role", None) or _ROLES.get(dump["type"].removesuffix("MessageChunk").lower(), dump["type"])
    said = {"role": role, "content": whole["content"]}
    said |= {field: whole[field] for field in ("name", "tool_call_id") if whole.get(field) is not None}
    if isinstance(message, AIMessage) and message.tool_calls and not _calls_inside(message.content):
        said["tool_calls"] = [_call(call) for call in message.tool_calls]
    return keep(_NAME, said, whole)


def _call(call: Any) -> dict[str, Any]:
    arguments = json.dumps(tape.lenient(call["args"])[0], ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _calls_inside(content: Any) -> bool:
    """Whether the content itself has the calls, as with Anthropic's models."""
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_use" for part in content
    )


def _to_langchain(message: tape.Message) -> BaseMessage:
    whole = kept(_NAME, message, *_SHARED)
    try:
        if whole is None:
            return convert_to_messages([message.to_dict()])[0]
        return messages_from_dict([{"type": whole["type"], "data": whole}])[0]
    except (ValueError, NotImplementedError):
        # Not LangChain's, and in no form that it knows; or of a class that somebody made.
        return ChatMessage(role=message.role or "user", content=message.text)
