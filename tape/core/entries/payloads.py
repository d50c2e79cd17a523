"""The closed set of kinds, and how their payloads are written and read.

A payload holds two sorts of facts. What the caller gave (a message, a reason, a state) is kept verbatim. What the
store decided at the time (where a message was put, which tool calls it makes, which results go with it) is kept as
well, so that folding the tape again needs no search and learning a new message shape never changes an old tape.

Each kind is declared in the module of its subject, and all are imported from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tape.core import typed
from tape.core.entries.ids import MESSAGE
from tape.core.entries.kind import Payload
from tape.core.entries.memory_kinds import Anchor, Block, Compact, Event, Handoff, State, Usage
from tape.core.entries.message_kinds import Append, Clear, Restore, Retract, Revise, Switch, is_encoded
from tape.core.entries.parts import ROOT, Answer, ForkPoint, Layer, Loosened, Place, Reopened
from tape.core.entries.tape_kinds import Discard, Erase, Fork, Label, Merge, Open, Status
from tape.errors import Corrupt, InvalidEntry

__all__ = [
    "AS_THEY_ARE",
    "BODIES",
    "KINDS",
    "ROOT",
    "UNSEEN",
    "Anchor",
    "Answer",
    "Append",
    "Block",
    "Body",
    "Clear",
    "Compact",
    "Discard",
    "Erase",
    "Event",
    "Fork",
    "ForkPoint",
    "Handoff",
    "Label",
    "Layer",
    "Loosened",
    "Merge",
    "Open",
    "Payload",
    "Place",
    "Reopened",
    "Restore",
    "Retract",
    "Revise",
    "State",
    "Status",
    "Switch",
    "Usage",
    "body_of",
    "decode",
    "decode_body",
    "encode",
    "recordable",
    "register_upcaster",
]

_MESSAGES = (Open, Append, Revise, Retract, Restore, Clear)
_MEMORY = (Anchor, Handoff, Compact, State, Block, Usage, Event)
_TAPE = (Fork, Merge, Discard, Switch, Status, Label, Erase)
_TYPES: dict[str, type[Payload]] = {cls.kind: cls for cls in (*_MESSAGES, *_MEMORY, *_TAPE)}
KINDS = tuple(_TYPES)
"""The names of all kinds. The database checks them too."""


UNSEEN = tuple(cls.kind for cls in _TYPES.values() if not cls.changes_view)
"""The kinds whose entries change nothing that readers see."""


class _Decoders(dict[str, Callable[[bytes], Payload]]):
    """What reads the payloads of each kind, made when the first of them is read."""

    def __missing__(self, kind: str) -> Callable[[bytes], Payload]:
        made = self[kind] = typed.decoder(_TYPES[kind]).decode
        return made


_decoders = _Decoders()
_Upcast = Callable[[dict[str, Any]], dict[str, Any]]
_upcasters: dict[tuple[str, int], _Upcast | None] = {("append", 1): None, ("revise", 1): None, ("switch", 1): None}
"""What brings a version up to the next one; None where that only allows more than the one before."""


class _AsTheyAre(dict[str, frozenset[int]]):
    """The versions of each kind that are read as they are: the present one, and those that it only allows more than."""

    def __missing__(self, kind: str) -> frozenset[int]:
        first = last = _TYPES[kind].version
        while _upcasters.get((kind, first - 1), _upcast) is None:
            first -= 1
        made = self[kind] = frozenset(range(first, last + 1))
        return made


AS_THEY_ARE = _AsTheyAre()
"""The versions of each kind whose payloads need no upcast."""

encode = msgspec.json.Encoder().encode
"""Return the bytes of a payload: what is stored, hashed and never rewritten."""


_WITH_MESSAGES = (Append, Revise)
BODIES = tuple(cls.kind for cls in _WITH_MESSAGES)
"""The kinds whose entries hold a message: the text that is searched and shown."""


def recordable(payload: Payload) -> bytes:
    """Return the bytes of a payload to be recorded, which decode to an equal payload.

    Raises InvalidEntry for any other: stored, it would make the tape unreadable for ever. A message that is JSON
    already was compared with what it decodes to when it was encoded, so that here only the rest is looked at.
    """
    decoder = _decoders[payload.kind]
    try:
        raw = encode(payload)
        if type(payload) is Event and type(payload.data) is msgspec.Raw and type(payload.name) is str:
            return raw
        if isinstance(payload, _WITH_MESSAGES) and is_encoded(payload.message):
            message, payload.message = payload.message, {}
            try:
                same = decoder(encode(payload)) == payload
            finally:
                payload.message = message
        else:
            decoded_again = decoder(raw)
            # Neither alone would do: 1 equals 1.0, and NaN is written like null.
            same = decoded_again == payload and encode(decoded_again) == raw
    except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidEntry(payload.kind, f"cannot be recorded: {error}") from error
    if not same:
        raise InvalidEntry(payload.kind, "does not survive a JSON round trip")
    return raw


def register_upcaster(kind: str, version: int, upcast: _Upcast) -> Callable[[], None]:
    """Teach readers to turn a payload of ``kind`` at ``version`` into ``version + 1``; returns the undo."""
    _upcasters[kind, version] = upcast
    AS_THEY_ARE.clear()

    def forget() -> None:
        _upcasters.pop((kind, version), None)
        AS_THEY_ARE.clear()

    return forget


def _upcast(kind: str, version: int, raw: bytes) -> bytes:
    """Return ``raw`` as the version that this release writes."""
    current = _TYPES[kind].version
    if version > current:
        raise ValueError(f"this release reads versions up to {current}; upgrade tape-store")
    value: dict[str, Any] | None = None
    for step in range(version, current):
        upcast = _upcasters[kind, step]
        if upcast is not None:
            value = upcast(msgspec.json.decode(raw) if value is None else value)
    return raw if value is None else msgspec.json.encode(value)


def _id_in(key: str) -> str:
    """Return the id of the message whose entry has this key; ValueError for a key that holds none."""
    message_id = key.removeprefix(MESSAGE)
    if not message_id or len(message_id) == len(key):
        raise ValueError(f"neither the payload nor the key {key!r} contains the message id")
    return message_id


def decode(kind: str, version: int, raw: bytes, tape: str = "", seq: int = 0, *, key: str = "") -> Payload:
    """Return the payload stored as ``raw``; raises Corrupt, which names the entry, when it is not one.

    An append whose ``key`` is made of the message's id does not say it once more.
    """
    try:
        if version not in AS_THEY_ARE[kind]:
            raw = _upcast(kind, version, raw)
        payload = _decoders[kind](raw)
        if type(payload) is Append and not payload.id:
            payload.id = _id_in(key)
        return payload
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise Corrupt(tape, seq, f"payload of kind {kind!r} version {version} is unreadable: {error}") from error


class Body(Struct, gc=False):
    """The part of an append or a revision that is the message itself."""

    message: dict[str, Any]
    id: str = ""
    calls: tuple[str, ...] = ()
    tokens: int = 0


decode_body = msgspec.json.Decoder(Body).decode
"""Return the body in a payload of a version that is read as it is; where its id is empty, the key has it."""


def body_of(kind: str, version: int, raw: bytes | None, key: str, tape: str = "", seq: int = 0) -> Body:
    """Return the message in an append or a revision, without decoding what only the fold needs.

    ``key`` is that of the entry: most of them hold the id of the message, which the payload then does not repeat.
    """
    try:
        if version not in AS_THEY_ARE[kind]:
            raw = _upcast(kind, version, raw or b"")
        # A path has very many of these, so that every step counts.
        body = decode_body(raw)  # type: ignore[arg-type]
        if not body.id:
            body.id = _id_in(key)
        return body
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError) as error:
        if raw is None:
            raise Corrupt(tape, seq, "the entry was erased") from None
        raise Corrupt(tape, seq, f"payload of kind {kind!r} version {version} is unreadable: {error}") from error
