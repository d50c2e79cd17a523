"""A model's thinking before its answer, as text, under the name that each API gives it. Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["thinking"]

_KINDS = frozenset({"thinking", "redacted_thinking", "reasoning"})


def thinking(part: dict[str, Any]) -> str | None:
    """Return the text of a part that is thinking, without signatures; None for a part that is something else.

    It is empty when the provider sent it encrypted.
    """
    if part.get("type") not in _KINDS and part.get("thought") is not True:
        return None
    texts: list[str] = []
    for field in ("thinking", "text", "summary", "content"):
        value = part.get(field)
        for item in value if isinstance(value, list) else [value]:
            text = item.get("text") if isinstance(item, dict) else item
            if isinstance(text, str) and text.strip():
                texts.append(text.strip())
    return "\n\n".join(dict.fromkeys(texts))
