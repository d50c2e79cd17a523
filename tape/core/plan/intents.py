"""Intents: what a call of the user's becomes on the tape.

An intent is one thing a caller wants recorded. ``plan`` checks it against the head and the view and returns the
payload with every decision in it, or raises. It asks its questions through ``Lookup`` and does no I/O itself.
Messages have modules of their own; here are the rules for all intents, and those that concern the tape as a whole.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from tape.core import strict
from tape.core.entries import payloads
from tape.core.entries.payloads import ROOT, Payload, Place
from tape.core.plan.keys import GIVEN, Key, Origin
from tape.core.plan.lookup import Lookup, visible_place
from tape.core.view.fold import Head
from tape.errors import InvalidEntry, TapeClosed, UnknownMessage

__all__ = [
    "AddAnchor",
    "ChooseHead",
    "Intent",
    "Plain",
    "Planned",
    "Relabel",
    "SetHidden",
    "SetStatus",
    "Taken",
    "Unchanged",
    "canonical",
    "digest_of",
    "new_event",
    "same",
]


class Planned(Struct, gc=False):
    """An entry that is decided and only lacks its seq's seal: payload, and the head after it."""

    payload: Payload
    place: Place
    message_id: str | None = None
    plain: bool = False
    """Whether it is a message that simply follows the head, as most are: then nothing in it is left to check."""


class _Recorded(Exception):
    """There is nothing to record: the entry at ``seq``, of the tape or the ancestor ``tape``, is it already."""

    def __init__(self, seq: int, tape: str | None = None) -> None:
        super().__init__(seq, tape)
        self.seq = seq
        self.tape = tape


class Taken(_Recorded):
    """The message id exists under another key or on an ancestor, placed by that entry."""


class Unchanged(_Recorded):
    """That entry says the same already."""


class Intent(Struct, kw_only=True):
    """One thing to record, under a key that is fixed before it is sent."""

    records: ClassVar[type[Payload]]
    """What it becomes; of an upsert, what it may become."""
    told_by: ClassVar[frozenset[Origin]] = frozenset({GIVEN})
    """The origins of a key that tells a repeated call."""

    key: Key
    source: tuple[str, int] | None = None
    """The entry that this one copies or cites."""
    meta: bytes | None = None
    """What the caller says beside this entry, when that is not what is said of the whole call."""

    @property
    def known_by_key(self) -> bool:
        """Whether the key tells a repeated call, so that it is looked up before anything else is decided."""
        return self.key.origin in self.told_by

    @property
    def changes_view(self) -> bool:
        """Whether a closed tape refuses it."""
        return self.records.changes_view

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Return the decided entry; ``previous`` is the place of the message before it in the batch."""
        raise AssertionError("an intent plans itself")

    def content(self) -> Any:
        """Return what the caller gave, to be compared with what a key already holds."""
        return {"kind": self.records.kind} | {name: getattr(self, name) for name in self.records.compared}

    def content_as(self, kind: str) -> Any:
        """Return what the caller gave as an entry of ``kind`` tells it; an upsert may have become either of two."""
        return self.content()


class Plain(Intent, kw_only=True):
    """An entry that needs no search: events, status, clears."""

    payload: Payload

    @property
    def changes_view(self) -> bool:
        """Whether a closed tape refuses it."""
        return self.payload.changes_view

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Take the payload as it is."""
        return Planned(self.payload, head.place)

    def content(self) -> Any:
        """Return the payload's content."""
        return self.payload.content()


def new_event(name: str, data: Any) -> payloads.Event:
    """Return the payload of an event, checked; its data is encoded here and never again."""
    raw = strict.encode(data, "data")
    return payloads.Event(name=strict.identifier(name, "name"), data=None if data is None else msgspec.Raw(raw))


class Relabel(Intent, kw_only=True):
    """Labels put on a tape and taken off it."""

    records = payloads.Label

    add: list[str]
    remove: list[str]

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Settle which labels the tape has afterwards, so that the fold need not ask."""
        remaining = [label for label in look.labels() if label not in self.remove]
        new = [label for label in self.add if label not in remaining]
        return Planned(payloads.Label(add=self.add, remove=self.remove, labels=remaining + new), head.place)

    def content(self) -> Any:
        """Return the labels as given."""
        return {"kind": "label", "add": self.add, "remove": self.remove}


class SetStatus(Plain, kw_only=True):
    """A tape closed or opened again, unless it was discarded: that is for good."""

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse to lift a discard."""
        if head.status == "discarded":
            raise TapeClosed(look.tape, head.status, head.reason)
        return Planned(self.payload, head.place)


class SetHidden(Plain, kw_only=True):
    """A tape hidden or shown again: the one write that a hidden tape takes, and that never makes a tape."""


class AddAnchor(Plain, kw_only=True):
    """An anchor or a handoff, whose sources and parents must be on the tape already."""

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Check what the anchor cites; since all of it is older, anchors can never form a circle."""
        payload = self.payload
        if isinstance(payload, payloads.Anchor | payloads.Handoff):
            for message_id in payload.source_ids:
                if look.place(message_id) is None:
                    raise UnknownMessage(look.tape, message_id)
        if isinstance(payload, payloads.Anchor):
            for seq in payload.parents:
                if not look.is_anchor(seq):
                    raise InvalidEntry("parents", f"seq {seq} is not an anchor of this tape")
        return Planned(payload, head.place)


class ChooseHead(Intent, kw_only=True):
    """Make a message the head, or (None) none, so that the next message is a new root."""

    records = payloads.Switch

    id: str | None

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Find the message's place and whether the next message can extend its lane."""
        if self.id is None:
            return Planned(payloads.Switch(id=None), ROOT)
        place, _ = visible_place(look, head, self.id)
        lo, tip = look.lane(place)
        return Planned(payloads.Switch(id=self.id, lo=lo, tip=tip == place.ordinal), place, self.id)


def same(value: Any, other: Any) -> bool:
    """Whether two values are the same JSON: keys in any order, but 1, 1.0 and true all different."""
    return canonical(value) == canonical(other)


canonical = msgspec.json.Encoder(order="deterministic").encode


def digest_of(content: bytes) -> str:
    """Return the digest by which a conflict tells two contents apart."""
    return blake2b(content, digest_size=32).hexdigest()
