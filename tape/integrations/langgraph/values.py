"""The values of channels as JSON, and messages among them as messages of the tape.

What is plain JSON stays readable; anything else is up to the graph's serializer, as is a message that would not come
back equal.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import tape
from tape.integrations.langchain.messages import made, role_of, taken_apart

__all__ = ["are_messages", "chain", "from_tape", "is_open", "pack", "to_tape", "unpack"]

_SERIALIZER = JsonPlusSerializer()
_ENCODER = msgspec.msgpack.Encoder(order="sorted", enc_hook=_SERIALIZER.dumps_typed)
_NAME = "langchain"


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


def are_messages(value: Any) -> bool:
    """Whether a channel holds a list of messages."""
    return type(value) is list and bool(value) and all(isinstance(item, BaseMessage) for item in value)


def to_tape(message: BaseMessage, serde: SerializerProtocol) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a message as it stands on the tape, and its meta."""
    if (pair := taken_apart(message)) is not None:
        return pair[0], {_NAME: pair[1]}
    clean, _ = tape.lenient({"role": role_of(message), "content": message.content})
    return clean, {_NAME: {"value": pack(message, serde)}}


def from_tape(said: dict[str, Any], meta: dict[str, Any] | None, serde: SerializerProtocol) -> Any:
    """Return the message of LangChain that a message of the tape was made of."""
    kept = (meta or {}).get(_NAME, {})
    return unpack(kept["value"], serde) if "value" in kept else made(said, kept)


def chain(items: Iterable[Any], root: str) -> list[str]:
    """Return an id for each item of a list that says what it is, and all before it: equal ids, equal beginnings."""
    ids, last = [], root
    for item in items:
        last = hashlib.blake2b(_encoded(item), digest_size=16, key=last.encode()).hexdigest()
        ids.append(last)
    return ids


def _encoded(item: Any) -> bytes:
    if isinstance(item, BaseMessage):
        try:
            return _ENCODER.encode((type(item).__name__, item.__dict__, item.__pydantic_extra__))
        except (TypeError, ValueError, OverflowError):
            pass
    return bytes(_SERIALIZER.dumps_typed(item)[1])
