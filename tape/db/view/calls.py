"""Tool calls in the index: ids of any length come from models and frameworks."""

from __future__ import annotations

from hashlib import blake2b

from tape.core.strict import MAX_ID

__all__ = ["call_key"]


def call_key(call: str) -> str:
    """Return a tool call's id as the index holds it."""
    if len(call) <= MAX_ID and "\0" not in call:
        return call
    return "#" + blake2b(call.encode(), digest_size=32).hexdigest()
