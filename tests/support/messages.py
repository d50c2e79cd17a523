"""Plain messages, by their ids."""

from __future__ import annotations

from typing import Any

__all__ = ["CALL", "RESULT", "say"]


def say(*ids: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"I am {id}", "id": id} for id in ids]


CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function"}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
