"""LangChain: a ``BaseChatMessageHistory`` on a tape, for ``RunnableWithMessageHistory`` and whatever else takes one.

What a person or a model reads of a message (role, content, tool calls, which call it answers) is the message on the
tape, the rest is its meta. What is read equals what was given. LangGraph's checkpoints keep their messages so as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from langchain_core import messages as langchain
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage

from tape import Message, Tape
from tape.integrations.histories import Histories, Pair, keep, kept, readable
from tape.integrations.opening import StoreLike, awaited

__all__ = ["TapeChatMessageHistory", "made", "role_of", "taken_apart"]

_NAME = "langchain"
_ROLES = {"human": "user", "ai": "assistant"}
_KINDS: tuple[type[BaseMessage], ...] = (AIMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage)
_FIELDS = {
    kind: {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}
    for kind in _KINDS
}
_CLASSES = {_ROLES.get(fields["type"], fields["type"]): kind for kind, fields in _FIELDS.items()}
_MADE = {
    kind: [(name, type(value)) for name, value in fields.items() if isinstance(value, list | dict)]
    for kind, fields in _FIELDS.items()
}
_SHARED = ("content", "name", "tool_call_id")
"""The fields that are the same on both sides."""
_set = object.__setattr__


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
            self._write(Tape.clear, self.session_id)

    @awaited
    def aget_messages(self) -> list[BaseMessage]:
        """Return the messages of the session."""
        return self.messages

    aadd_messages = awaited(add_messages)
    aclear = awaited(clear)


def _from_langchain(message: BaseMessage) -> Pair:
    """Return a message in OpenAI's chat format, and its other LangChain fields."""
    if (pair := taken_apart(message)) is not None:
        return pair
    dump = langchain.message_to_dict(message)
    whole: dict[str, Any] = {"type": dump["type"], **dump["data"]}
    return keep(_NAME, {"role": role_of(message), "content": whole["content"]}, whole)


def _to_langchain(message: Message) -> BaseMessage:
    with readable(message.tape, message.seq):
        whole = kept(_NAME, message, "content")
        try:
            if whole is None:
                return langchain.convert_to_messages([message.to_dict()])[0]
            if "type" not in whole:
                return made(message.data, (message.meta or {})[_NAME])
            return langchain.messages_from_dict([{"type": whole["type"], "data": whole}])[0]
        except (ValueError, NotImplementedError, RecursionError):
            # A message in a format that LangChain does not know, or of a custom class.
            return langchain.ChatMessage(role=message.role or "user", content=message.text)


# -- messages as the tape has them


def role_of(message: BaseMessage) -> str:
    """Return the role that a message has on a tape."""
    role = getattr(message, "role", None) or message.type.removesuffix("MessageChunk").lower()
    return str(_ROLES.get(role, role))


def taken_apart(message: BaseMessage) -> Pair | None:
    """Return a message as it stands on the tape, and the rest of it as meta; None if it would not come back equal."""
    try:
        said, rest = msgspec.json.decode(msgspec.json.encode(_taken_apart(message)))
        return (said, {_NAME: rest}) if made(said, rest) == message else None
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError):
        return None


def _taken_apart(message: BaseMessage) -> Pair:
    defaults = _FIELDS[type(message)]
    fields = {**message.__dict__, **(message.__pydantic_extra__ or {})}
    said = {name: fields.pop(name) for name in _SHARED if fields.get(name) is not None}
    parts = said["content"] if isinstance(said["content"], list) else ()
    # Where the content names the calls itself, as Anthropic's does, they are not said twice.
    if fields.get("tool_calls") and not any(part.get("type") == "tool_use" for part in parts if isinstance(part, dict)):
        said["tool_calls"] = fields.pop("tool_calls")
    rest = {name: value for name, value in fields.items() if name not in defaults or defaults[name] != value}
    return {"role": _ROLES.get(message.type, message.type), **said}, rest


def made(said: dict[str, Any], rest: dict[str, Any]) -> BaseMessage:
    """Return the message that was taken apart."""
    kind = _CLASSES[said["role"]]
    defaults = _FIELDS[kind]
    fields = {**defaults, **{name: make() for name, make in _MADE[kind]}, **rest}
    fields |= {name: value for name, value in said.items() if name != "role"}
    more = {} if len(fields) == len(defaults) else {name: fields.pop(name) for name in rest if name not in defaults}
    # It was checked before it was written; to check it again would take most of the time of a load.
    message: BaseMessage = object.__new__(kind)
    _set(message, "__dict__", fields)
    _set(message, "__pydantic_extra__", more)
    _set(message, "__pydantic_fields_set__", {"content", *rest})
    _set(message, "__pydantic_private__", None)
    return message
