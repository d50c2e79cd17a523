"""Which tool calls a message makes and which it answers, in the shapes that models and frameworks use.

Read once, when the message is recorded, and stored in the entry. Known shapes: OpenAI chat (``tool_calls``,
``tool_call_id``), OpenAI Responses items (``call_id``), Anthropic blocks (``tool_use``, ``tool_result``), AI-SDK parts
(``tool-call``, ``tool-result``, ``tool-<name>``, ``dynamic-tool``), and the dialects of ``dialects``. Calls and results
without ids are numbered in their message, by tool. A result inside the message that makes the call needs no binding,
because both are shown or hidden together.
"""

from __future__ import annotations

from typing import Any

from tape.core.messages.dialects import translated

__all__ = ["find", "waiting"]

_NONE: tuple[list[str], list[str]] = ([], [])
_TEXTS = ("text", "input_text", "output_text")


def find(message: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the ids of the calls that ``message`` makes, and of those of other messages that it answers."""
    kind = message.get("type")
    content = message.get("content")
    if (
        (kind is None or kind == "message")
        and "tool_calls" not in message
        and "tool_call_id" not in message
        and "parts" not in message
        and (type(content) is str or (type(content) is list and all(map(_is_text, content))))
    ):
        return _NONE
    made, answered = _read(message)
    return list(made), [call for call in answered if call not in made]


def _is_text(part: Any) -> bool:
    return type(part) is dict and part.get("type") in _TEXTS


def waiting(message: dict[str, Any]) -> list[str]:
    """Return the calls that ``message`` makes and does not carry the result of itself."""
    made, answered = _read(message)
    for parts in (message.get("content"), message.get("parts")):
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and _has_output(part):
                _note(answered, part.get("toolCallId"))
    return [call for call in made if call not in answered]


def _has_output(part: dict[str, Any]) -> bool:
    """Whether an AI-SDK part, which is call and result in one, has its result."""
    state = part.get("state")
    return state in ("output-available", "output-error", "output-denied") or (state is None and "output" in part)


def _read(message: dict[str, Any]) -> tuple[dict[str, None], dict[str, None]]:
    """Return the calls that a message makes, and all that it answers, its own among them."""
    message = translated(message)
    kind = message.get("type")
    made: dict[str, None] = {}
    answered: dict[str, None] = {}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            if isinstance(call, dict):
                _note(made, call.get("id"))
    _note(answered, message.get("tool_call_id"))
    if isinstance(kind, str):
        _item(message, kind, made, answered)
    for parts in (message.get("content"), message.get("parts")):
        if isinstance(parts, list):
            for part in parts:
                if isinstance(part, dict) and isinstance(part.get("type"), str):
                    _item(part, part["type"], made, answered)
    return made, answered


def _note(into: dict[str, None], call: Any) -> None:
    if isinstance(call, str) and call:
        into[call] = None


def _item(part: dict[str, Any], kind: str, made: dict[str, None], answered: dict[str, None]) -> None:
    """Read one block, part or item."""
    if kind.endswith("tool_use"):
        _note(made, part.get("id"))
    elif kind.endswith("tool_result"):
        _note(answered, part.get("tool_use_id"))
    elif kind in ("tool-result", "tool-error"):
        _note(answered, part.get("toolCallId"))
    elif kind.startswith("tool-") or kind == "dynamic-tool":
        _note(made, part.get("toolCallId"))
    elif kind.endswith("_call_output"):
        _note(answered, part.get("call_id"))
    elif kind.endswith("_call"):
        _note(made, part.get("call_id"))
