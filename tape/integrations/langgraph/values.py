"""The values of channels as JSON. What is plain JSON stays readable; anything else is up to the graph's serializer."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

__all__ = ["SERIALIZER", "chained", "is_open", "pack", "unpack"]

SERIALIZER = JsonPlusSerializer()


def is_open(serde: SerializerProtocol) -> bool:
    """Whether values may stand on the tape as they are. A serializer that is not LangGraph's own may encrypt."""
    return type(serde) is JsonPlusSerializer


def pack(value: Any, serde: SerializerProtocol) -> dict[str, Any]:
    """Return a value as JSON."""
    kind, raw = serde.dumps_typed(value)
    if is_open(serde):
        try:
            plain = msgspec.json.decode(msgspec.json.encode(value))
            if serde.dumps_typed(plain) == (kind, raw):
                return {"json": plain}
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass
    return {"serde": kind, "base64": base64.b64encode(raw).decode()}


def unpack(packed: dict[str, Any], serde: SerializerProtocol) -> Any:
    """Return the value that was packed."""
    if "json" in packed:
        return packed["json"]
    return serde.loads_typed((packed["serde"], base64.b64decode(packed["base64"])))


def chained(items: Iterable[bytes], root: str) -> list[str]:
    """Return an id for each item of a list that says what it is, and all before it: equal ids, equal beginnings."""
    ids, last = [], root
    for item in items:
        last = hashlib.blake2b(item, digest_size=16, key=last.encode()).hexdigest()
        ids.append(last)
    return ids
