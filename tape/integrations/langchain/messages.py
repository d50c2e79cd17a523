"""Messages of LangChain as messages of a tape, and back, for its chat history and for LangGraph's checkpoints.

What a person or a model reads of one (role, content, tool calls, which call it answers) is the message, the rest is its
meta. What is read equals what was given.
"""

from __future__ import annotations

from typing import Any

import msgspec
from langchain_core import messages as langchain
from langchain_core.messages import BaseMessage

from tape.integrations.histories import tool_call

__all__ = ["made", "role_of", "taken_apart"]

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
_set = object.__setattr__


def role_of(message: BaseMessage) -> str:
    """Return the role that a message has on a tape."""
    role = getattr(message, "role", None) or message.type.removesuffix("MessageChunk").lower()
    return str(_ROLES.get(role, role))


def taken_apart(message: BaseMessage) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return a message as it stands on the tape, and the rest of it; None if it would not come back equal."""
    try:
        said, kept = msgspec.json.decode(msgspec.json.encode(_taken_apart(message)))
        return (said, kept) if made(said, kept) == message else None
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError):
        return None


def _taken_apart(message: BaseMessage) -> tuple[dict[str, Any], dict[str, Any]]:
    defaults = _FIELDS[type(message)]
    fields = {**message.__dict__, **(message.__pydantic_extra__ or {})}
    said = {name: fields.pop(name) for name in _SHARED if fields.get(name) is not None}
    parts = said["content"] if isinstance(said["content"], list) else ()
    # Where the content names the calls itself, as Anthropic's does, they are not said twice.
    if fields.get("tool_calls") and not any(part.get("type") == "tool_use" for part in parts if isinstance(part, dict)):
        calls = fields.pop("tool_calls")
        said["tool_calls"] = [tool_call(call["id"], call["name"], call["args"]) for call in calls]
    kept = {name: value for name, value in fields.items() if name not in defaults or defaults[name] != value}
    return {"role": _ROLES.get(message.type, message.type), **said}, kept


def made(said: dict[str, Any], kept: dict[str, Any]) -> BaseMessage:
    """Return the message that was taken apart."""
    kind = _CLASSES[said["role"]]
    defaults = _FIELDS[kind]
    fields = {**defaults, **{name: make() for name, make in _MADE[kind]}, **kept}
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


def _called(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call as LangChain has it."""
    arguments = msgspec.json.decode(call["function"]["arguments"])
    return {"name": call["function"]["name"], "args": arguments, "id": call["id"], "type": "tool_call"}
