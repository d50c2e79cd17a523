"""The channels of a checkpoint: how each value is written to the tape of its thread, and read.

- A list of messages is messages of the tape, written behind the last that the tape has already. The checkpoint names
  the last one. Where a message was changed or removed, a branch begins.
- Another list that grew is its new end, and the keys of the checkpoints that hold the parts before. Parts are joined
  as they grow, so that there are few.
- A value that did not change is the key of the checkpoint that holds it. Any other is there by value.

What is plain JSON stays readable; anything else is up to the graph's serializer, as is a message that would not come
back equal.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import tape
from tape.integrations.histories import Pair, unzipped
from tape.integrations.langchain import made, role_of, taken_apart
from tape.integrations.langgraph.records import Record, Thread

__all__ = ["Channels", "Held", "conversation", "pack", "prepared", "strict", "unpack"]

_LONG, _SMALL = 8, 64
"""How many items a list has that is kept in parts; how many characters a string that is repeated, not looked up."""
_KINDS = frozenset({"null", "bytes", "bytearray", "msgpack"})
"""The kinds of values that LangGraph's serializer writes."""
_SERIALIZER = JsonPlusSerializer(allowed_msgpack_modules=None)
_ENCODER = msgspec.msgpack.Encoder(order="sorted", enc_hook=_SERIALIZER.dumps_typed)
_NAME = "langchain"

Held = dict[str, Any]
"""What a checkpoint says of one channel."""


def prepared(value: Any, serde: SerializerProtocol) -> Held | list[str]:
    """Do what takes time before the tape is locked: name the items of a list, and pack any other value."""
    if type(value) is list and _is_open(serde) and (len(value) >= _LONG or _are_messages(value)):
        return _chain(value, "")
    return pack(value, serde)


def conversation(channels: dict[str, Held]) -> str | None:
    """Return the last message of the conversation: of the channel ``messages``, or of the first that holds some."""
    ends = {name: held["messages"] for name, held in channels.items() if "messages" in held}
    return ends.get("messages") or next((ends[name] for name in sorted(ends)), None)


class Channels:
    """The channels of the checkpoints of a thread."""

    def __init__(self, thread: Thread, serde: SerializerProtocol) -> None:
        self._thread, self._serde = thread, serde
        self.written: str | None = None
        """The last message that was written, which is the tape's head then."""

    def value(self, record: Record, name: str) -> Any:
        """Return what a channel has in a checkpoint."""
        _, held = self._holder(record, name)
        if "messages" in held:
            # As of then: the messages of a tape may be revised or retracted, a checkpoint may not.
            bodies = self._thread.chat.at(record.seq).bodies(branch=held["messages"])
            return [_from_tape(said, meta, self._serde) for said, meta in bodies]
        if "parts" not in held:
            return unpack(held, self._serde)
        parts = [self._at(record, key)[name]["end"] for key, _ in held["parts"]]
        return [unpack(item, self._serde) for part in (*parts, held["end"]) for item in part]

    def write(
        self, checkpoint: Checkpoint, before: Record | None, ready: dict[str, Held | list[str]]
    ) -> dict[str, Held]:
        """Write what changed since a checkpoint; returns what the next one says of each channel."""
        earlier = {} if before is None else unpack(before.data["checkpoint"], self._serde)["channel_versions"]
        versions, written = checkpoint["channel_versions"], {}
        for name, value in checkpoint["channel_values"].items():
            old = {} if before is None else before.data["channels"].get(name, {})
            if before is not None and old and name not in ready and earlier.get(name) == versions.get(name):
                written[name] = old if _is_small(old) else {"same": before.key}
                continue
            new = ready.get(name) or prepared(value, self._serde)
            key, held = self._holder(before, name) if before is not None and old else ("", {})
            if isinstance(new, dict):
                written[name] = new
            elif _are_messages(value):
                written[name] = self._write_messages(value, new, held)
            else:
                written[name] = self._write_end(value, new, key, held)
        return written

    def _write_messages(self, messages: list[Any], ids: list[str], held: Held) -> Held:
        if root := held.get("root", ""):
            ids = _chain(messages, root)
        try:
            self._extend(messages, ids, held["count"] if _begins(ids, held, "messages") else 0)
        except (tape.UnknownMessage, tape.ProvenanceConflict):
            # Somebody took messages out of the tape's view. The checkpoint has them still, so they are written anew.
            root = tape.new_id()
            ids = _chain(messages, root)
            self._extend(messages, ids, 0)
        return {"messages": ids[-1], "count": len(ids), **({"root": root} if root else {})}

    def _extend(self, messages: list[Any], ids: list[str], start: int) -> None:
        """Write the messages that the tape does not have: another branch or a subgraph may have written some."""
        chat = self._thread.chat
        start += bisect.bisect_left(ids[start:], True, key=lambda id: chat.find(id) is None)
        if start < len(ids):
            pairs = [_to_tape(message, self._serde) for message in messages[start:]]
            chat.extend(**unzipped(pairs), ids=ids[start:], parent=ids[start - 1] if start else None)
            self.written = ids[-1]

    def _write_end(self, items: list[Any], ids: list[str], key: str, held: Held) -> Held:
        parts = [*held["parts"], [key, len(held["end"])]] if _begins(ids, held, "digest") else []
        start = sum(count for _, count in parts)
        while parts and parts[-1][1] <= len(items) - start:
            start -= parts.pop()[1]
        end = [pack(item, self._serde) for item in items[start:]]
        return {"parts": parts, "end": end, "count": len(ids), "digest": ids[-1]}

    def _holder(self, record: Record, name: str) -> tuple[str, Held]:
        """Return the key of the checkpoint that holds what a channel has in another, and what it says of it."""
        held = record.data["channels"][name]
        return (held["same"], self._at(record, held["same"])[name]) if "same" in held else (record.key, held)

    def _at(self, record: Record, key: str) -> dict[str, Held]:
        holder = self._thread.by_key(record.ns, key)
        if holder is None:
            raise tape.Corrupt(
                self._thread.chat.id, record.seq, f"the checkpoint {key!r}, on which it builds, is missing"
            )
        return holder.data["channels"]


def _begins(ids: list[str], held: Held, last: str) -> bool:
    """Whether a list begins with the one that a checkpoint holds, which names its last item under ``last``."""
    count = held.get("count", 0)
    return 0 < count <= len(ids) and ids[count - 1] == held.get(last)


def _is_small(held: Held) -> bool:
    value = held.get("json", held)
    small = len(value) <= _SMALL if isinstance(value, str) else not isinstance(value, list | dict)
    return small or "messages" in held or "same" in held


# -- values


def _is_open(serde: SerializerProtocol) -> bool:
    """Whether values may stand on the tape as they are. A serializer that is not LangGraph's own may encrypt."""
    return type(serde) is JsonPlusSerializer


def strict(serde: SerializerProtocol | None, classes: list[type | tuple[str, str]]) -> SerializerProtocol:
    """Return a serializer that makes objects of LangGraph's safe types and of these classes alone.

    Raises InvalidEntry for one of LangGraph's that calls whatever a checkpoint names.
    """
    if serde is None:
        return JsonPlusSerializer(allowed_msgpack_modules=classes or None)
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, strict(serde.serde, classes))
    if not isinstance(serde, JsonPlusSerializer):
        return serde
    # One that allows everything has nothing to add to.
    if serde.pickle_fallback or serde.with_msgpack_allowlist([("tape", "any")]) is serde:
        why = "calls whatever a checkpoint names; make it JsonPlusSerializer(allowed_msgpack_modules=None)"
        raise tape.InvalidEntry("serde", f"{why}, and name your own classes with classes=")
    return serde.with_msgpack_allowlist(classes)


def pack(value: Any, serde: SerializerProtocol) -> Held:
    """Return a value as JSON."""
    kind, raw = serde.dumps_typed(value)
    if _is_open(serde):
        with suppress(TypeError, ValueError, OverflowError, RecursionError):
            plain = msgspec.json.decode(msgspec.json.encode(value))
            if serde.dumps_typed(plain) == (kind, raw):
                return {"json": plain}
    return {"serde": kind, "base64": base64.b64encode(raw).decode()}


def unpack(packed: Held, serde: SerializerProtocol) -> Any:
    """Return the value that was packed."""
    if "json" in packed:
        return packed["json"]
    kind = packed["serde"]
    if isinstance(serde, JsonPlusSerializer | EncryptedSerializer) and kind.partition("+")[0] not in _KINDS:
        # LangGraph's serializer still reads others, which make objects of LangChain or are pickles.
        raise ValueError(f"a value of the kind {kind!r} is refused")
    return serde.loads_typed((kind, base64.b64decode(packed["base64"])))


def _are_messages(value: Any) -> bool:
    return type(value) is list and bool(value) and all(isinstance(item, BaseMessage) for item in value)


def _to_tape(message: BaseMessage, serde: SerializerProtocol) -> Pair:
    """Return a message as it stands on the tape, and its meta."""
    if (pair := taken_apart(message)) is not None:
        return pair
    clean, _ = tape.lenient({"role": role_of(message), "content": message.content})
    return clean, {_NAME: {"value": pack(message, serde)}}


def _from_tape(said: Held, meta: Held | None, serde: SerializerProtocol) -> Any:
    """Return the message of LangChain that a message of the tape was made of."""
    kept = (meta or {}).get(_NAME, {})
    return unpack(kept["value"], serde) if "value" in kept else made(said, kept)


def _chain(items: Iterable[Any], root: str) -> list[str]:
    """Return an id for each item of a list that says what it is, and all before it: equal ids, equal beginnings."""
    ids = [root]
    for item in items:
        ids.append(hashlib.blake2b(_encoded(item), digest_size=16, key=ids[-1].encode()).hexdigest())
    return ids[1:]


def _encoded(item: Any) -> bytes:
    if isinstance(item, BaseMessage):
        try:
            return _ENCODER.encode((type(item).__name__, item.__dict__, item.__pydantic_extra__))
        except (TypeError, ValueError, OverflowError):
            pass
    return bytes(_SERIALIZER.dumps_typed(item)[1])
