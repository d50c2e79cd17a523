"""Messages that are long enough to be compacted, and what a compaction recorded."""

from __future__ import annotations

from typing import Any

import tape

__all__ = ["WORDS", "call", "result", "say", "states", "talk"]

WORDS = "word " * 20


def say(id: str, role: str = "user", content: Any = WORDS, **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content, **more}


def call(id: str, *calls: str) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in calls]
    return say(id, "assistant", WORDS, tool_calls=made)


def result(id: str, answered: str) -> dict[str, Any]:
    return say(id, "tool", WORDS, tool_call_id=answered)


def talk(chat: tape.Tape, *ids: str) -> None:
    chat.extend(say(id) for id in ids)


def states(chat: tape.Tape) -> list[str]:
    events = chat.entries(kinds=["event"])
    return [entry.payload.data["state"] for entry in events]  # type: ignore[union-attr]
