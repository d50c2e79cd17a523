"""The projector: how an entry changes the view.

Each kind of entry has one rule, the method ``fold`` of its payload. The rule looks at nothing but its arguments: every
decision that needed a search was taken when the entry was recorded and stands in its payload. It changes the head and
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
"""Why a row ended: another body took its place, the message was retracted, its call was, a clear took it."""

COMPACTION = "tape.compaction"
"""The event that tells how a compaction goes: started, finished or failed."""

REQUEST, DECISION, LEASE = "tape.request", "tape.decision", "tape.lease"
"""The events by which something is put to a decision, the decision, and each step of a lease."""

CLOSED = frozenset({"completed", "abandoned", "ended", "discarded"})


class Head(Struct, gc=False):
    """All that the next append needs to know of a tape, and all that every append changes."""

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
    """Whether some message of the tape has a key that does not tell its id."""
    status: str
    reason: str | None
    completed: int
    """When the tape was closed, or 0."""
    view: int = 0
    """The seq of the last entry that changed what readers see: messages, anchors, summaries, state, blocks, prompt."""
    hidden: str | None = None
    """Why the tape is hidden, which may be no more than ""; None when it is not."""

    @classmethod
    def blank(cls, before: bytes) -> Head:
        """Return the head of a tape with no entries."""
        return cls(0, before, 0, ROOT, 0, False, 0, 0, 0, False, "active", None, 0)


class Op(Struct, frozen=True, gc=False):
    """A change of one row of the view."""


class OpenRow(Op, frozen=True, gc=False):
    """A body begins to hold at a place."""

    place: Place
    placed: int
    since: int
    body: int
    of: str | None = None
    """The ancestor that the body lies in, when an inherited message comes back unchanged."""


class Close(Op, frozen=True, gc=False):
    """What holds at a place ceases to."""

    place: Place
    until: int
    why: str


class Mark(Op, frozen=True, gc=False):
    """The reason why nothing holds at a place changes."""

    place: Place
    seq: int
    why: str


class LaneRow(Op, frozen=True, gc=False):
    """A lane branches off."""

    lane: int
    base: Place


class AliasRow(Op, frozen=True, gc=False):
    """A message id that no key tells, and the entry that placed it."""

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
    """An anchor stands at a place."""

    seq: int
    name: str
    place: Place


class EventRow(Op, frozen=True, gc=False):
    """An event of a name, which is how events are looked up."""

    seq: int
    name: str


class ClearRow(Op, frozen=True, gc=False):
    """Nothing that held before this seq holds any longer."""

    seq: int
    place: Place
    hidden: int


class Touch(Op, frozen=True, gc=False):
    """A message from before a clear came back by itself; only those of the tape's own that it took were counted."""

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
    """A summary stands for a run of messages, or what is known of one changed."""

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
    """It holds nothing from there on."""


class Renamed(Op, frozen=True, gc=False):
    """The tape has another name, or none."""

    name: str | None


class Labelled(Op, frozen=True, gc=False):
    """The tape has these labels and no others."""

    labels: list[str]


class Redirected(Op, frozen=True, gc=False):
    """The work of the tape goes on on another, or no longer does."""

    to: str | None


class Shown(Op, frozen=True, gc=False):
    """The tape is hidden from readers for a reason, or (None) is shown to them again."""

    hidden: str | None


class Folding(Protocol):
    """What can be folded: the payload of an entry, whose kind says how."""

    changes_view: ClassVar[bool]

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Change ``head``, which stands at the entry already, and return what else changes in the view."""


def fold(
    head: Head, seq: int, hash: bytes, stamp: int, place: Place, key: str, payload: Folding
) -> tuple[Head, list[Op]]:
    """Return the head after the entry, and what the entry changes in the view."""
    after: Head = head.__copy__()  # type: ignore[attr-defined]
    after.seq = seq
    after.hash = hash
    after.stamp = stamp
    after.place = place
    if payload.changes_view:
        after.view = seq
    return after, payload.fold(after, seq)
