"""The role of a message without one: items of OpenAI's Responses API other than messages have no role. Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["role_of"]


def role_of(message: dict[str, Any]) -> str | None:
    """Return the role that a message has, or that its type implies; None if neither does."""
    role = message.get("role")
    if isinstance(role, str):
        return role
    kind = message.get("type")
    if not isinstance(kind, str):
        return None
    if kind.endswith("_output"):
        return "tool"
    return "assistant" if kind == "reasoning" or kind.endswith("_call") else None
