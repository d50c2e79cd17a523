"""LlamaIndex: a ``BaseChatStore`` on tapes, for ``ChatMemoryBuffer`` and the chat engines and agents that use one."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.storage.chat_store.base import BaseChatStore
from pydantic import PrivateAttr

from tape import Message, Tape, from_strict
from tape.integrations.histories import Histories, Pair, copying, keep, readable, unzipped
from tape.integrations.opening import Connected, StoreLike

__all__ = ["TapeChatStore"]

_NAME = "llama-index"
_ROLES = {role.value: role for role in MessageRole}
_message, _text = copying(ChatMessage()), copying(TextBlock(text=""))
_KNOWN = ChatMessage.model_fields.keys() == {"role", "additional_kwargs", "blocks"}
"""Whether a message is made of these alone, as in the releases that there are."""


class TapeChatStore(Histories, BaseChatStore):
    """Chat histories by key, each on a tape: ``ChatMemoryBuffer.from_defaults(chat_store=TapeChatStore("agent.db"))``.

    ``store`` is a Store, an AsyncStore or a URL. What is deleted leaves the history and stays on the tape. Messages
    that are set behind those that are there are only appended.
    """

    _framework = _NAME
    _connected: Connected = PrivateAttr()
    _known: set[str] = PrivateAttr()

    def __init__(self, store: StoreLike) -> None:
        BaseChatStore.__init__(self)
        Histories.__init__(self, store)

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex knows the class."""
        return "TapeChatStore"

    def tape(self, key: str) -> Tape:
        """Return the tape of a key: to search, fork, look at, or build a context from."""
        return self._tape(key)

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replace the messages of a key, in one step."""
        self._write(lambda chat: _set(chat, messages), key)

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return the messages of a key."""
        chat = self.tape(key)
        with readable(chat.id, 0):
            return [_to_llama(data, meta) for data, meta in chat.bodies()]

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Write a message behind the others of a key."""
        self._extend(key, [_from_llama(message)])

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Take every message of a key out of its history; returns them, or None if there are none."""
        return self._write(_clear, key) if self.tape(key).info().head else None

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Take one message out of a history; returns it, or None if there is no such."""
        return self._write(lambda chat: _drop(chat, idx), key) if self.tape(key).info().head else None

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Take the last message out of a history; returns it, or None if there is none."""
        return self.delete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Return the keys that have messages, and those of forks, oldest first."""
        return [name for name, info in self._names() if info.message_count or info.parent][::-1]


def _set(chat: Tape, messages: list[ChatMessage]) -> None:
    held = chat.messages()
    if [_to_llama(message.data, message.meta) for message in held] == messages[: len(held)]:
        chat.extend(**unzipped([_from_llama(message) for message in messages[len(held) :]]))
    elif messages:
        chat.replace_history(**unzipped([_from_llama(message) for message in messages]))
    else:
        chat.clear()


def _clear(chat: Tape) -> list[ChatMessage] | None:
    if held := chat.messages():
        chat.clear()
    return [_to_llama(message.data, message.meta) for message in held] or None


def _drop(chat: Tape, index: int) -> ChatMessage | None:
    held = chat.messages()
    if not -len(held) <= index < len(held):
        return None
    gone = held.pop(index)
    if any(isinstance(part, dict) and part.get("block_type") == "tool_call" for part in gone.content or ()):
        # Retracted, the results of its calls would go with it, which LlamaIndex has not asked for.
        chat.replace_history([message.to_dict() for message in held], metas=[message.meta for message in held])
    else:
        chat.retract(gone.id)
    return _to_llama(gone.data, gone.meta)


def _from_llama(message: ChatMessage) -> Pair:
    """Return a message with its text or its blocks as they are, and beside it all else that LlamaIndex says of it."""
    try:
        whole = message.model_dump(mode="json")
    except ValueError:
        # Halves of characters, or bytes that are no text: not for JSON as pydantic understands it.
        whole = message.model_dump()
    # In its JSON mode pydantic makes None of infinities.
    whole |= {"role": message.role.value, "additional_kwargs": message.model_dump()["additional_kwargs"]}
    whole["content"] = whole.pop("blocks")
    if len(message.blocks) == 1 and whole["content"] == [TextBlock(text=message.content or "").model_dump()]:
        whole["content"] = message.content
    if not whole["additional_kwargs"]:
        del whole["additional_kwargs"]
    said: dict[str, Any] = {"role": whole["role"], "content": whole["content"]}
    if isinstance(answered := message.additional_kwargs.get("tool_call_id"), str):
        said["tool_call_id"] = answered
    return keep(_NAME, said, whole)


def _to_llama(data: dict[str, Any], meta: dict[str, Any] | None) -> ChatMessage:
    rest = (meta or {}).get(_NAME)
    if rest is None:
        # Of another program: what every message tells of itself.
        message = Message("", "", data, None, 0, 0, 0)
        return ChatMessage(message.text, role=_ROLES.get(message.role or "", "user"))
    role, content = data["role"], data["content"]
    if not rest and _KNOWN and role in _ROLES and isinstance(content, str):
        # A plain text: nothing else to check.
        return _message({"role": _ROLES[role], "additional_kwargs": {}, "blocks": [_text({"text": content})]})
    whole = {"role": role, "content": content, **from_strict(rest)}
    if not isinstance(whole["content"], str | None):
        whole["blocks"] = whole.pop("content")
    return ChatMessage(**whole)
