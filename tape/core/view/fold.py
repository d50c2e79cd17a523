"""The projector: how an entry changes the view.

Each kind of entry has one rule, the method ``fold`` of its payload. The rule depends on nothing but its arguments:
every decision that needed a query was made when the entry was recorded, and is in its payload. It changes the head and
returns the row changes. The shell applies them to tables inside the recording transaction, and
``tape.core.view.in_memory`` applies them to memory. Live projection, rebuild, verification and replay are therefore the
same code.

The shape of the view: a message keeps one place for ever (lane, ordinal = depth). Its body and its liveness are rows
at that place, each held between two seqs. A path is one range of rows per lane crossed, never a step per message.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from msgspec import Struct

from tape.core.entries.parts import ROOT, ForkPoint, Place

__all__ = [
    "HIDDEN",
    "OUT",
    "REVISED",
    "AnchorRow",
    "AliasRow",
    "AnswerRow",
    "CallRow",
    "ClearRow",
    "Close",
    "CompactRow",
    "EventRow",
    "ForkRow",
    "ForkState",
    "Head",
    "Labelled",
    "LaneRow",
    "Mark",
    "Op",
    "OpenRow",
    "Redirected",
    "Renamed",
    "Shown",
    "SlotRow",
    "Touch",
    "Uncleared",
    "fold",
]

REVISED, OUT, HIDDEN, CLEARED = "revised", "out", "hidden", "cleared"
"""Why a row ended: another body replaced it, the message was retracted, its call was, or a clear hid it."""

COMPACTION = "tape.compaction"
"""The event with the progress of a compaction: started, finished or failed."""

REQUEST, DECISION, LEASE = "tape.request", "tape.decision", "tape.lease"
"""The events of a request for a decision, of the decision, and of each step of a lease."""

CLOSED = frozenset({"completed", "abandoned", "ended", "discarded"})


class Head(Struct, gc=False):
    """The state of a tape that the next append needs, and that every append changes."""

    seq: int
    hash: bytes
    stamp: int
    place: Place
    lo: int
    """The depth at which the head's lane branches off; its own messages are deeper."""
    tip: bool
    """Whether the head is the last place of its lane, so that the next message extends it."""
    cleared: int
    """The seq of the clear in force, or 0."""
    messages: int
    last_message: int
    aliased: bool
    """Whether the id of some message of the tape cannot be derived from its key."""
    status: str
    reason: str | None
    completed: int
    """When the tape was closed, or 0."""
    view: int = 0
    """The seq of the last entry that changed what readers see: messages, anchors, summaries, state, blocks, prompt."""
    hidden: str | None = None
    """Why the tape is hidden, "" without a reason; None when it is not hidden."""

    @classmethod
    def blank(cls, before: bytes) -> Head:
        """Return the head of a tape with no entries."""
        return cls(0, before, 0, ROOT, 0, False, 0, 0, 0, False, "active", None, 0)


class Op(Struct, frozen=True, gc=False):
    """A change of one row of the view."""


class OpenRow(Op, frozen=True, gc=False):
    """A body is shown at a place from here on."""

    place: Place
    placed: int
    since: int
    body: int
    of: str | None = None
    """The ancestor with the body, when an inherited message is restored unchanged."""


class Close(Op, frozen=True, gc=False):
    """The row at a place ends."""

    place: Place
    until: int
    why: str


class Mark(Op, frozen=True, gc=False):
    """The reason why a place has no live row changes."""

    place: Place
    seq: int
    why: str


class LaneRow(Op, frozen=True, gc=False):
    """A lane branches off."""

    lane: int
    base: Place


class AliasRow(Op, frozen=True, gc=False):
    """A message id that cannot be derived from a key, and the entry that placed it."""

    id: str
    seq: int


class CallRow(Op, frozen=True, gc=False):
    """A message makes a tool call."""

    call: str
    seq: int
    place: Place


class AnswerRow(Op, frozen=True, gc=False):
    """A message answers a tool call of another."""

    maker: Place
    call: str
    place: Place


class AnchorRow(Op, frozen=True, gc=False):
    """An anchor is set at a place."""

    seq: int
    name: str
    place: Place


class EventRow(Op, frozen=True, gc=False):
    """An event, which is looked up by its name."""

    seq: int
    name: str


class ClearRow(Op, frozen=True, gc=False):
    """A clear: everything shown before this seq is hidden."""

    seq: int
    place: Place
    hidden: int


class Touch(Op, frozen=True, gc=False):
    """A single message from before a clear is restored; only the tape's own messages are counted by the clear."""

    seq: int
    own: bool


class Uncleared(Op, frozen=True, gc=False):
    """A clear is undone."""

    seq: int
    until: int


class ForkRow(Op, frozen=True, gc=False):
    """The tape is a fork of another."""

    parent: ForkPoint


class ForkState(Op, frozen=True, gc=False):
    """The fork was merged up to one of its seqs by an entry of its parent, or discarded."""

    state: str
    merged: int
    merge_seq: int


class CompactRow(Op, frozen=True, gc=False):
    """A summary replaces a run of messages, or the state of a summary changed."""

    seq: int
    tape: str | None
    since: int
    place: Place | None
    """Where the run ends; None when the row only changes."""
    lo: int
    gone: int
    revised: bool
    loose: bool


class SlotRow(Op, frozen=True, gc=False):
    """A named fact of the tape (its status, name, labels) takes a new value, recorded in the entry ``seq``."""

    slot: str
    seq: int
    ended: bool = False
    """Whether the slot is empty from there on."""


class Renamed(Op, frozen=True, gc=False):
    """The tape has another name, or none."""

    name: str | None


class Labelled(Op, frozen=True, gc=False):
    """The tape has these labels and no others."""

    labels: list[str]


class Redirected(Op, frozen=True, gc=False):
    """The tape redirects to another, or no longer does."""

    to: str | None


class Shown(Op, frozen=True, gc=False):
    """The tape is hidden from readers for a reason, or (None) is shown to them again."""

    hidden: str | None


class Folding(Protocol):
    """The payload of an entry, whose kind decides how it is folded."""

    changes_view: ClassVar[bool]

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Change ``head``, which is at the entry already, and return the other changes of the view."""


def fold(head: Head, seq: int, hash: bytes, stamp: int, place: Place, payload: Folding) -> tuple[Head, list[Op]]:
    """Return the head after the entry, and what the entry changes in the view."""
    after: Head = head.__copy__()  # type: ignore[attr-defined]
    after.seq = seq
    after.hash = hash
    after.stamp = stamp
    after.place = place
    if payload.changes_view:
        after.view = seq
    return after, payload.fold(after, seq)
