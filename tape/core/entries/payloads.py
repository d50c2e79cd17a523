"""What each kind of entry says, as one typed struct per kind, and how old versions are read.

A payload holds two sorts of facts. What the caller gave (a message, a reason, a state) is kept verbatim. What the
store decided at the time (where a message was put, which tool calls it makes, which results go with it) is kept as
well, so that folding the tape again needs no search and learning a new message shape never changes an old tape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tape.errors import Corrupt, InvalidEntry

__all__ = [
    "KINDS",
    "Anchor",
    "Answer",
    "Append",
    "Block",
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
    "content",
    "decode",
    "encode",
    "recordable",
    "register_upcaster",
]

KINDS = (
    "open",
    "append",
    "revise",
    "retract",
    "restore",
    "clear",
    "anchor",
    "handoff",
    "compact",
    "state",
    "block",
    "usage",
    "event",
    "fork",
    "merge",
    "discard",
    "switch",
    "status",
    "label",
    "erase",
)
"""The closed set of kinds. The database checks it too."""


class Place(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A position that a message keeps for ever: a lane and a depth in it, on this tape or on an ancestor.

    Lane 0, ordinal 0 is the root above every first message.
    """

    lane: int
    ordinal: int
    tape: str | None = None


ROOT = Place(0, 0)


class Payload(Struct, omit_defaults=True):
    """What every payload has: its kind, and the version in which this release writes it."""

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    changes_view: ClassVar[bool] = True
    """Whether it changes what readers see, so that a closed tape refuses it."""


class Layer(Struct, frozen=True, array_like=True, gc=False):
    """An ancestor as a fork sees it: up to which seq, which clear was in force then, whether it had overrides."""

    tape: str
    asof: int
    cleared: int
    overriding: bool


class ForkPoint(Struct, frozen=True, omit_defaults=True):
    """Where a tape was forked off: the parent, its seq and hash there, and every ancestor, nearest first."""

    tape: str
    seq: int
    hash: str
    layers: list[Layer] = []
    lo: int = 0
    receipt: int = 0
    """The parent's entry that records the fork."""


class Open(Payload):
    """The first entry of every tape. A fork's head is where its parent's stood at the fork."""

    kind = "open"
    name: str | None = None
    owner: str | None = None
    agent: str | None = None
    labels: list[str] = []
    parent: ForkPoint | None = None


class Answer(Struct, array_like=True, omit_defaults=True, gc=False):
    """A tool call that a message answers, and the place of the message that made the call."""

    call: str
    maker: Place


class Append(Payload):
    """A new message. Its place is the head after the entry."""

    kind = "append"
    id: str
    message: dict[str, Any] | msgspec.Raw
    generated: bool = False
    parent: str | UnsetType | None = UNSET
    base: Place | None = None
    """Where the lane branches off, when this message opens one."""
    lo: int | None = None
    """The depth at which the lane branches off, when it is neither new nor that of the head before."""
    calls: list[str] = []
    answers: list[Answer] = []
    tokens: int = 0
    """The estimate of its tokens, so that building context need not count again; 0 when it was not made."""
    aliased: bool = False
    """The key is the caller's, so the message id has to be found some other way."""
    batch: tuple[int, int] | None = None
    """Of a batch with a key: the index of this message in it, and how many messages it has. ``(0, 0)`` tells that the
    key only looks like one of a batch; entries of earlier releases do not tell."""

    def in_batch(self, index: int) -> bool:
        """Whether an entry that has the key of a batch at ``index`` is of that batch."""
        return self.batch is None or (self.batch[0] == index and self.batch[1] > 0)


class Revise(Payload):
    """A new body for a message, in its old place."""

    kind = "revise"
    id: str
    message: dict[str, Any] | msgspec.Raw
    place: Place
    placed: int
    supersedes: int
    supersedes_of: str | None = None
    """The ancestor that the superseded body lies in, if it does."""
    whole: bool = True
    """False when only new content was given and the rest of the message stays as it was."""
    calls: list[str] = []
    hides: list[Place] = []
    shows: list[Reopened] = []
    tokens: int = 0
    loosens: list[Loosened] = []


class Reopened(Struct, array_like=True, omit_defaults=True, gc=False):
    """A message that comes back: its place, the entry that placed it, the entry whose body holds."""

    place: Place
    placed: int
    body: int
    clear: int = 0
    """The clear that took it, when it was that and no retraction of its own."""
    of: str | None = None
    """The ancestor that the body lies in, if it does."""


class Retract(Payload):
    """Messages taken out of the view, with the results of the calls they made."""

    kind = "retract"
    ids: list[str]
    reason: str | None = None
    places: list[Place] = []
    marks: list[Place] = []
    """Named messages that were hidden already; they are now out in their own right."""
    hides: list[Place] = []
    loosens: list[Loosened] = []


class Restore(Payload):
    """Messages brought back, or (without ids) the last clear undone."""

    kind = "restore"
    ids: list[str]
    shows: list[Reopened] = []
    marks: list[Reopened] = []
    """Named messages that stay hidden because the call they answer is out."""
    hides: list[Place] = []
    undoes: int = 0
    returned: int = 0
    """How many messages the undone clear gives back."""
    beneath: int = 0
    """The earlier clear that is in force again, or 0."""
    loosens: list[Loosened] = []


class Clear(Payload):
    """Every message taken out at once; anchors end with it."""

    kind = "clear"
    reason: str | None = None


class Switch(Payload):
    """Another message chosen as the head."""

    kind = "switch"
    id: str
    lo: int = 0
    tip: bool = False


class Anchor(Payload):
    """A named checkpoint with state."""

    kind = "anchor"
    name: str
    state: Any = None
    parents: list[int] = []
    source_ids: list[str] = []


class Handoff(Payload):
    """An anchor with a contract."""

    kind = "handoff"
    name: str
    summary: str
    phase: str | None = None
    next_steps: list[str] = []
    source_ids: list[str] = []
    owner: str | None = None
    state: Any = None


class Compact(Payload):
    """A summary in place of a run of messages. It holds on every path that contains the last of them."""

    kind = "compact"
    text: str
    first: str
    last: str
    covers: list[str]
    place: Place
    """Where the run ends."""
    lo: int
    """The depth at which the run begins."""
    span: tuple[int, int] = (0, 0)
    """The seqs that placed the first and the last message."""
    expected: int | None = None
    """The compaction that this one was made on top of."""
    expected_of: str | None = None
    """The ancestor that made that compaction, if one did."""


class Loosened(Struct, array_like=True, omit_defaults=True, gc=False):
    """What a change of a message did to a compaction: how many of its sources are out, whether one was revised."""

    seq: int
    gone: int
    revised: bool
    loose: bool
    """A message within the run that the summary does not cover is in the view again."""
    tape: str | None = None
    """The ancestor that made the compaction, if one did."""


class State(Payload):
    """A slot of typed state changed by a patch or put to a value."""

    kind = "state"
    slot: str
    given: Any = None
    patch: bool = False
    value: Any | UnsetType = UNSET
    """What the slot holds afterwards; unset when it is gone."""
    schema: int = 0
    """The version of the slot's own schema."""


class Block(Payload):
    """A block of the prompt set, extended or removed; or (``freeze``) the prompt rendered from all of them."""

    kind = "block"
    label: str
    op: str
    given: str | None = None
    text: str | None = None
    """What the block holds afterwards; None when it is gone."""
    description: str | None = None
    max_tokens: int | None = None
    read_only: bool = False
    config: str | None = None
    """Of a frozen prompt: the hash of the block configuration it was rendered with."""
    declared: bool = False
    """Whether its configuration began as a declaration: then a limit that is not there was taken away on purpose."""


class Usage(Payload):
    """Tokens and cost of one model call, and the totals of the tape with it."""

    kind = "usage"
    changes_view = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    model: str | None = None
    totals: list[int] = []
    """Input, output, cached, cost and calls, this one included."""


class Event(Payload):
    """A fact that never enters context."""

    kind = "event"
    changes_view = False
    name: str
    data: Any = None


class Fork(Payload):
    """The receipt on the parent of a fork made from it."""

    kind = "fork"
    child: str
    at: int
    head: Place
    name: str | None = None


class Merge(Payload):
    """A merge, recorded on both tapes: on the parent with what it took, on the child with where it went."""

    kind = "merge"
    tape: str
    """The other tape."""
    seq: int
    """Its seq at the merge: of the child, all up to here was taken; of the parent, its merge entry."""
    hash: str
    strategy: str
    since: int = 0
    """The child's seq up to which an earlier merge had taken it."""
    into: bool = False
    """True on the parent."""
    previous: int = 0
    """The parent's entry of the merge before this one."""
    squashed: int = 0
    """The child's seq up to which a squash stands for it: none of that is ever replayed."""
    messages: list[tuple[str, int]] = []
    """The messages written to the parent, each with the child's seq that it comes from."""
    changed: list[str] = []
    """Inherited or merged messages that were revised, retracted or restored as the child had them."""
    kept: list[str] = []
    """Messages, slots and blocks that both sides had changed and that stayed as the parent has them."""
    usage: list[int] = []
    """What the child used since the last merge: input, output, cached, cost, calls."""
    totals: list[int] = []
    """The parent's totals with it."""


class Discard(Payload):
    """A fork given up, recorded on both tapes."""

    kind = "discard"
    tape: str
    seq: int
    hash: str
    into: bool = False
    reason: str | None = None


class Erase(Payload):
    """A payload taken away on purpose: the entry's seq is the source, and its digest keeps the chain whole."""

    kind = "erase"
    digest: str
    reason: str | None = None


class Status(Payload):
    """The tape closed or opened again."""

    kind = "status"
    changes_view = False
    status: str
    reason: str | None = None
    redirect: str | None = None
    """The tape on which the work goes on, when this one was split."""


class Label(Payload):
    """A tape renamed, or its labels changed."""

    kind = "label"
    changes_view = False
    name: str | UnsetType | None = UNSET
    add: list[str] = []
    remove: list[str] = []
    labels: list[str] | UnsetType = UNSET
    """All labels after the entry, when it changes any."""


def content(payload: Payload) -> Any:
    """Return what the caller gave, without what the store decided: the part that makes two entries the same."""
    match payload:
        case Append():
            # An id is the same whether it stood in the message or beside it.
            message = payload.message if isinstance(payload.message, dict) else msgspec.json.decode(payload.message)
            given: dict[str, Any] = {"message": {k: v for k, v in message.items() if k != "id"}}
            if not payload.generated:
                given["id"] = payload.id
            if payload.parent is not UNSET:
                given["parent"] = payload.parent
        case Revise():
            given = {"id": payload.id}
            if payload.whole:
                message = payload.message if isinstance(payload.message, dict) else {}
                given["message"] = {k: v for k, v in message.items() if k not in ("id", "role")}
            else:
                given["content"] = payload.message["content"] if isinstance(payload.message, dict) else None
        case Retract():
            given = {"ids": payload.ids, "reason": payload.reason}
        case Restore():
            given = {"ids": payload.ids}
        case Switch():
            given = {"id": payload.id}
        case Label():
            given = {"add": payload.add, "remove": payload.remove}
            if payload.name is not UNSET:
                given["name"] = payload.name
        case Compact():
            given = {"text": payload.text, "first": payload.first, "last": payload.last}
        case State():
            given = {"slot": payload.slot, "given": payload.given, "patch": payload.patch}
        case Block():
            given = {"label": payload.label, "op": payload.op, "given": payload.given}
        case Usage():
            names = ("input_tokens", "output_tokens", "cached_tokens", "cost", "model")
            given = {name: getattr(payload, name) for name in names}
        case _:
            given = {name: getattr(payload, name) for name in payload.__struct_fields__}
    return {"kind": payload.kind, **given}


_TYPES: dict[str, type[Payload]] = {
    cls.kind: cls
    for cls in (
        Open,
        Append,
        Revise,
        Retract,
        Restore,
        Clear,
        Switch,
        Anchor,
        Handoff,
        Compact,
        State,
        Block,
        Usage,
        Event,
        Erase,
        Status,
        Fork,
        Merge,
        Discard,
        Label,
    )
}
_decoders = {kind: msgspec.json.Decoder(cls).decode for kind, cls in _TYPES.items()}
_upcasters: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}

encode = msgspec.json.Encoder().encode
"""Return the bytes of a payload: what is stored, hashed and never rewritten."""


_WITH_MESSAGES = (Append, Revise)


def _is_plain(append: Append) -> bool:
    """Whether a message simply follows the head, as most do: then there is little to check, and no need to decode."""
    return (
        type(append.message) is msgspec.Raw
        and type(append.id) is str
        and type(append.tokens) is int
        and append.parent is UNSET
        and append.base is None
        and append.lo is None
        and append.batch is None
        and append.calls == []
        and append.answers == []
        and type(append.generated) is type(append.aliased) is bool
    )


def recordable(payload: Payload) -> bytes:
    """Return the bytes of a payload to be recorded, which decode to an equal payload.

    Raises InvalidEntry for any other: stored, it would make the tape unreadable for ever. A message that is JSON
    already was compared with what it decodes to when it was encoded, so that here only the rest is looked at.
    """
    decoder = _decoders[payload.kind]
    try:
        raw = encode(payload)
        if type(payload) is Append and _is_plain(payload):
            return raw
        if isinstance(payload, _WITH_MESSAGES) and type(payload.message) is msgspec.Raw:
            message, payload.message = payload.message, {}
            try:
                same = decoder(encode(payload)) == payload
            finally:
                payload.message = message
        else:
            found = decoder(raw)
            # Neither alone would do: 1 equals 1.0, and NaN is written like null.
            same = found == payload and encode(found) == raw
    except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidEntry(payload.kind, f"cannot be recorded: {error}") from error
    if not same:
        raise InvalidEntry(payload.kind, "cannot be recorded and read back equal")
    return raw


def register_upcaster(
    kind: str, version: int, upcast: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[], None]:
    """Teach readers to turn a payload of ``kind`` at ``version`` into ``version + 1``; returns the undo."""
    _upcasters[kind, version] = upcast
    return lambda: _upcasters.pop((kind, version), None) and None


def _upcast(kind: str, version: int, raw: bytes) -> bytes:
    """Return ``raw`` as the version that this release writes."""
    current = _TYPES[kind].version
    if version > current:
        raise ValueError(f"this release reads versions up to {current}")
    value: dict[str, Any] = msgspec.json.decode(raw)
    for step in range(version, current):
        value = _upcasters[kind, step](value)
    return msgspec.json.encode(value)


def decode(kind: str, version: int, raw: bytes, tape: str = "", seq: int = 0) -> Payload:
    """Return the payload stored as ``raw``; raises Corrupt, which names the entry, when it is not one."""
    try:
        if version != _TYPES[kind].version:
            raw = _upcast(kind, version, raw)
        return _decoders[kind](raw)
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise Corrupt(tape, seq, f"payload of kind {kind!r} version {version} is unreadable: {error}") from error


class Body(Struct):
    """The part of an append or a revision that is the message itself."""

    id: str
    message: dict[str, Any]
    calls: list[str] = []
    tokens: int = 0


_decode_body = msgspec.json.Decoder(Body).decode


def body_of(kind: str, version: int, raw: bytes, tape: str = "", seq: int = 0) -> Body:
    """Return the message in an append or a revision, without decoding what only the fold needs."""
    try:
        if version != _TYPES[kind].version:
            raw = _upcast(kind, version, raw)
        return _decode_body(raw)
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise Corrupt(tape, seq, f"payload of kind {kind!r} version {version} is unreadable: {error}") from error
