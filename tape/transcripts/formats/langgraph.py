"""LangGraph and LangChain: messages and states with a ``messages`` channel, as JSON or as JSON lines. Pure.

A message may be written as by ``dumps`` (``{"lc": 1, "type": "constructor", …}``), as by ``messages_to_dict``
(``{"type", "data"}``), or plainly. A state may be the channels themselves, a checkpoint, or a snapshot as
``get_state`` gives it; a list of snapshots is read from the oldest to the newest. All states of a file are on one
tape, that of their thread: each adds what is new in it, and one in which earlier messages were changed branches off.

Messages become chat messages, because LangChain's role names and tool calls have no meaning elsewhere. Fields that a
chat message does not have are kept in the meta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, Conversations, each_value, tool_call, without
from tape.transcripts.formats.lines import Reading, nonblank
from tape.transcripts.steps import Step

__all__ = ["parse"]

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "function",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "HumanMessageChunk": "user",
    "AIMessageChunk": "assistant",
    "SystemMessageChunk": "system",
    "ToolMessageChunk": "tool",
    "FunctionMessageChunk": "function",
    "chat": "",
    "ChatMessage": "",
    "remove": "",
    "RemoveMessage": "",
}


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a file of messages or states."""
    conversations = Conversations("langgraph")

    def steps(line: int, where: str, value: dict[str, Any]) -> Iterator[Step]:
        if _type(value) is not None:
            start, conversation = conversations.shared(line)
            yield from start
            yield from _message(line, conversation, value, where)
            return
        state = _channels(value)
        if state is None:
            raise ImportFailed(line, f"{where} is neither a LangChain message nor a state with messages")
        start, conversation = conversations.shared(line, _thread(value))
        yield from start
        conversation.restart()
        channels, rest = state
        for index, message in enumerate(channels["messages"]):
            yield from _message(line, conversation, message, f"messages[{index}]")
        rest = {**rest, "channels": without(channels, "messages")}
        if rest != {"channels": {}}:
            yield conversation.event(line, "state", rest)

    return each_value(lines, reading, steps, _arranged)


def _arranged(values: list[Any]) -> list[Any]:
    """Return a list of states from the oldest to the newest, and any other list as it is."""
    return _oldest_first(values) if all(_channels(value) is not None for value in values) else values


def _type(value: Any) -> str | None:
    """Return LangChain's name of a message's type, or None for anything else."""
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind == "constructor" and isinstance(value.get("id"), list) and isinstance(value.get("kwargs"), dict):
        kind = value["id"][-1] if value["id"] else None
    elif "content" not in value and not isinstance(value.get("data"), dict) and kind not in ("remove", "RemoveMessage"):
        return None
    return kind if isinstance(kind, str) and kind in _ROLES else None


def _channels(value: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the channels of a state that has messages, and what else is in it."""
    if not isinstance(value, dict):
        return None
    for name in ("channel_values", "values", "checkpoint", "state"):
        inner = value.get(name)
        if isinstance(inner, dict):
            deeper = _channels(inner)
            if deeper is not None:
                channels, rest = deeper
                return channels, {**without(value, name), **({name: rest} if rest else {})}
    return (value, {}) if isinstance(value.get("messages"), list) else None


def _thread(value: dict[str, Any]) -> str | None:
    """Return the id of the thread that a snapshot is of."""
    config = value.get("config")
    settings = config.get("configurable") if isinstance(config, dict) else None
    return nonblank(settings.get("thread_id")) if isinstance(settings, dict) else None


def _oldest_first(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return snapshots in the order of their times: ``get_state_history`` gives the newest first."""
    times = [state.get("created_at", state.get("ts")) for state in states]
    if not all(isinstance(time, str) for time in times):
        return states
    order = sorted(range(len(states)), key=lambda index: str(times[index]))
    return [states[index] for index in order]


def _message(line: int, conversation: Conversation, value: Any, where: str) -> Iterator[Step]:
    kind = _type(value)
    if kind is None:
        raise ImportFailed(line, f"{where} is not a LangChain message")
    if value.get("type") == "constructor":
        fields, wrapping = value["kwargs"], without(value, "kwargs")
    elif isinstance(value.get("data"), dict) and "content" not in value:
        fields, wrapping = value["data"], without(value, "data")
    else:
        fields, wrapping = value, {}
    if kind in ("remove", "RemoveMessage"):
        yield conversation.event(line, "remove", value)
        return
    role = _ROLES[kind] or nonblank(fields.get("role")) or "user"
    message: dict[str, Any] = {"role": role, "content": fields.get("content")}
    calls = fields.get("tool_calls")
    in_message = ["content"]
    if isinstance(calls, list) and calls and all(isinstance(call, dict) for call in calls):
        message["tool_calls"] = [tool_call(call.get("id"), call.get("name"), call.get("args") or {}) for call in calls]
    for name in ("tool_call_id", "name", "id"):
        if nonblank(fields.get(name)) is not None:
            message[name] = fields[name]
            in_message.append(name)
    meta = without(fields, *in_message)
    if wrapping:
        meta["langchain"] = wrapping
    yield conversation.message(line, message, meta, where=where, original=value)
    model = fields.get("response_metadata")
    model = model.get("model_name", model.get("model")) if isinstance(model, dict) else None
    yield from conversation.usage(line, fields.get("usage_metadata"), model)
