"""Messages of LangChain as messages of a tape, and back: what is read equals what was given.

What a person or a model reads of one (role, content, tool calls, which call it answers) is the message, the rest is its
meta. One that would not come back equal is kept by the graph's serializer as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from langchain_core import messages as langchain
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

import tape
from tape.integrations.langgraph.values import SERIALIZER, chained, pack, unpack

__all__ = ["are_messages", "chain", "from_tape", "to_tape"]

_ROLES = {"human": "user", "ai": "assistant"}
_CLASSES: dict[str, type[BaseMessage]] = {
    "user": langchain.HumanMessage,
    "assistant": langchain.AIMessage,
    "system": langchain.SystemMessage,
    "tool": langchain.ToolMessage,
    "function": langchain.FunctionMessage,
}
_FIELDS = {
    kind: {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}
    for kind in _CLASSES.values()
}
_MADE = {
    kind: [(name, type(value)) for name, value in fields.items() if isinstance(value, list | dict)]
    for kind, fields in _FIELDS.items()
}
_SHARED = ("content", "name", "tool_call_id")
"""The fields that are the same on both sides."""
_ENCODER = msgspec.msgpack.Encoder(order="sorted", enc_hook=SERIALIZER.dumps_typed)
_set = object.__setattr__


def are_messages(value: Any) -> bool:
    """Whether a channel holds a list of messages."""
    return type(value) is list and bool(value) and all(isinstance(item, BaseMessage) for item in value)


def chain(messages: Iterable[BaseMessage], root: str) -> list[str]:
    """Return the ids of messages on the tape. One that was changed in place has another, and so have all behind it."""
    return chained(map(_encoded, messages), root)


def _encoded(message: BaseMessage) -> bytes:
    try:
        return _ENCODER.encode((type(message).__name__, message.__dict__, message.__pydantic_extra__))
    except (TypeError, ValueError, OverflowError):
        return bytes(SERIALIZER.dumps_typed(message)[1])


def to_tape(message: BaseMessage, serde: SerializerProtocol) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a message as it stands on the tape, and its meta."""
    try:
        said, kept = msgspec.json.decode(msgspec.json.encode(_taken_apart(message)))
        if _made(said, kept) == message:
            return said, {"langchain": kept}
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError):
        pass
    role = getattr(message, "role", None) or message.type.removesuffix("MessageChunk").lower()
    clean, _ = tape.lenient({"role": _ROLES.get(role, role), "content": message.content})
    return clean, {"langchain": {"value": pack(message, serde)}}


def from_tape(message: tape.Message, serde: SerializerProtocol) -> Any:
    """Return the message of LangChain that a message of the tape was made of."""
    kept = (message.meta or {}).get("langchain", {})
    return unpack(kept["value"], serde) if "value" in kept else _made(message.data, kept)


def _taken_apart(message: BaseMessage) -> tuple[dict[str, Any], dict[str, Any]]:
    defaults = _FIELDS[type(message)]
    fields = {**message.__dict__, **(message.__pydantic_extra__ or {})}
    said = {name: fields.pop(name) for name in _SHARED if fields.get(name) is not None}
    parts = said["content"] if isinstance(said["content"], list) else ()
    # Where the content names the calls itself, as Anthropic's does, they are not said twice.
    if fields.get("tool_calls") and not any(part.get("type") == "tool_use" for part in parts if isinstance(part, dict)):
        said["tool_calls"] = [_call(call) for call in fields.pop("tool_calls")]
    kept = {name: value for name, value in fields.items() if name not in defaults or defaults[name] != value}
    return {"role": _ROLES.get(message.type, message.type), **said}, kept


def _made(said: dict[str, Any], kept: dict[str, Any]) -> BaseMessage:
    kind = _CLASSES[said["role"]]
    defaults = _FIELDS[kind]
    fields = defaults.copy()
    for name, make in _MADE[kind]:
        fields[name] = make()
    fields.update(kept)
    for name in said:
        if name == "tool_calls":
            fields[name] = [_called(call) for call in said[name]]
        elif name != "role":
            fields[name] = said[name]
    more = {} if len(fields) == len(defaults) else {name: fields.pop(name) for name in kept if name not in defaults}
    # It was checked before it was written; to check it again would take most of the time of a load.
    message: BaseMessage = object.__new__(kind)
    _set(message, "__dict__", fields)
    _set(message, "__pydantic_extra__", more)
    _set(message, "__pydantic_fields_set__", {"content", *kept})
    _set(message, "__pydantic_private__", None)
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call in the shape of a chat message."""
    function = {"name": call["name"], "arguments": msgspec.json.encode(call["args"]).decode()}
    return {"id": call["id"], "type": "function", "function": function}


def _called(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call as LangChain has it."""
    arguments = msgspec.json.decode(call["function"]["arguments"])
    return {"name": call["function"]["name"], "args": arguments, "id": call["id"], "type": "tool_call"}
