"""The projector: the one set of rules that turns an entry into changes of the view.

``fold(head, entry)`` looks at nothing but its arguments: every decision that needed a search was taken when the entry
was recorded and stands in its payload. It returns the head after the entry and the row changes, which the shell
applies to tables inside the recording transaction and ``tape.core.view.in_memory`` applies to memory. Live projection,
rebuild, verification and replay are therefore the same code.

The shape of the view: a message keeps one place for ever (lane, ordinal = depth). Its body and its liveness are rows
at that place, each held between two seqs. A path is one range of rows per lane crossed, never a step per message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, UnsetType

from tape.core.entries import payloads as p
from tape.core.entries.payloads import ROOT, Payload, Place

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
    "SlotRow",
    "Touch",
    "Uncleared",
    "fold",
]

REVISED, OUT, HIDDEN, CLEARED = "revised", "out", "hidden", "cleared"
"""Why a row ended: another body took its place, the message was retracted, its call was, a clear took it."""

COMPACTION = "tape.compaction"
"""The event that tells how a compaction goes: started, finished or failed."""

CLOSED = frozenset({"completed", "abandoned", "ended", "discarded"})


class Head(Struct):
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

    parent: p.ForkPoint


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


class Renamed(Op, frozen=True, gc=False):
    """The tape has another name, or none."""

    name: str | None


class Labelled(Op, frozen=True, gc=False):
    """The tape has these labels and no others."""

    labels: list[str]


class Redirected(Op, frozen=True, gc=False):
    """The work of the tape goes on on another, or no longer does."""

    to: str | None


Rule = Callable[[Head, int, Any], list[Op]]


def fold(
    head: Head, seq: int, hash: bytes, stamp: int, place: Place, key: str, payload: Payload
) -> tuple[Head, list[Op]]:
    """Return the head after the entry, and what the entry changes in the view."""
    after: Head = head.__copy__()  # type: ignore[attr-defined]
    after.seq = seq
    after.hash = hash
    after.stamp = stamp
    after.place = place
    return after, _RULES[payload.kind](after, seq, payload)


def _append(head: Head, seq: int, entry: p.Append) -> list[Op]:
    place = head.place
    ops: list[Op] = [OpenRow(place, seq, seq, seq)]
    if place.lane == seq:
        base = entry.base or ROOT
        head.lo = base.ordinal
        ops.append(LaneRow(seq, base))
    elif entry.lo is not None:
        head.lo = entry.lo
    head.tip = True
    head.messages += 1
    head.last_message = head.stamp
    if entry.aliased:
        head.aliased = True
        ops.append(AliasRow(entry.id, seq))
    for call in entry.calls:
        ops.append(CallRow(call, seq, place))
    for answer in entry.answers:
        ops.append(AnswerRow(answer.maker, answer.call, place))
    return ops


def _hide(head: Head, seq: int, places: list[Place]) -> list[Op]:
    head.messages -= _own(places)
    return [Close(place, seq, HIDDEN) for place in places]


def _own(places: list[Place]) -> int:
    """Return how many places are the tape's own: what a fork inherits is not counted as its."""
    return sum(place.tape is None for place in places)


def _show(head: Head, seq: int, shows: list[p.Reopened]) -> list[Op]:
    ops: list[Op] = []
    for back in shows:
        if back.clear:
            if back.place.tape is None:
                # The row under the clear still lies among the live ones: end it before the next begins.
                ops.append(Close(back.place, seq, CLEARED))
            ops.append(Touch(back.clear, back.place.tape is None))
        elif head.cleared and (back.place.tape is not None or back.placed < head.cleared):
            # Retracted before the clear and back after it: readers may no longer skip what lies above the clear.
            ops.append(Touch(head.cleared, False))
        ops.append(OpenRow(back.place, back.placed, seq, back.body, back.of))
    head.messages += _own([back.place for back in shows])
    return ops


def _revise(head: Head, seq: int, entry: p.Revise) -> list[Op]:
    ops: list[Op] = [OpenRow(entry.place, entry.placed, seq, seq)]
    if entry.place.tape is None:
        ops.insert(0, Close(entry.place, seq, REVISED))
    ops.extend(CallRow(call, seq, entry.place) for call in entry.calls)
    ops.extend(_hide(head, seq, entry.hides))
    ops.extend(_show(head, seq, entry.shows))
    ops.extend(_loosen(seq, entry.loosens))
    return ops


def _loosen(seq: int, loosens: list[p.Loosened]) -> list[Op]:
    return [CompactRow(one.seq, one.tape, seq, None, 0, one.gone, one.revised, one.loose) for one in loosens]


def _retract(head: Head, seq: int, entry: p.Retract) -> list[Op]:
    ops: list[Op] = [Close(place, seq, OUT) for place in entry.places]
    head.messages -= _own(entry.places)
    ops.extend(Mark(place, seq, OUT) for place in entry.marks)
    ops.extend(_hide(head, seq, entry.hides))
    ops.extend(_loosen(seq, entry.loosens))
    return ops


def _restore(head: Head, seq: int, entry: p.Restore) -> list[Op]:
    ops: list[Op] = []
    for back in entry.marks:
        if back.clear:
            ops.append(Close(back.place, seq, HIDDEN))
            ops.append(Touch(back.clear, back.place.tape is None))
        else:
            ops.append(Mark(back.place, seq, HIDDEN))
    if entry.undoes:
        ops.append(Uncleared(entry.undoes, seq))
        head.messages += entry.returned
        head.cleared = entry.beneath
    ops.extend(_hide(head, seq, entry.hides))
    ops.extend(_show(head, seq, entry.shows))
    ops.extend(_loosen(seq, entry.loosens))
    return ops


def _clear(head: Head, seq: int, entry: p.Clear) -> list[Op]:
    row = ClearRow(seq, head.place, head.messages)
    head.cleared = seq
    head.messages = 0
    return [row]


def _switch(head: Head, seq: int, entry: p.Switch) -> list[Op]:
    head.lo = entry.lo
    head.tip = entry.tip
    return []


def _anchor(head: Head, seq: int, entry: p.Anchor | p.Handoff) -> list[Op]:
    return [AnchorRow(seq, entry.name, head.place)]


def _status(head: Head, seq: int, entry: p.Status) -> list[Op]:
    head.status = entry.status
    head.reason = entry.reason
    head.completed = head.stamp if entry.status in CLOSED else 0
    return [SlotRow("status", seq), Redirected(entry.redirect)]


def _compact(head: Head, seq: int, entry: p.Compact) -> list[Op]:
    return [CompactRow(seq, None, seq, entry.place, entry.lo, 0, False, False)]


def _state(head: Head, seq: int, entry: p.State) -> list[Op]:
    return [SlotRow(f"state:{entry.slot}", seq)]


def _block(head: Head, seq: int, entry: p.Block) -> list[Op]:
    return [SlotRow("prompt" if entry.op == "freeze" else f"block:{entry.label}", seq)]


def _event(head: Head, seq: int, entry: p.Event) -> list[Op]:
    # How a compaction goes is looked up when the next one is to start; all other events change nothing.
    if entry.name != COMPACTION:
        return []
    # Its end belongs to the branch on which it began, wherever the head has gone since.
    lane = entry.data.get("lane") if isinstance(entry.data, dict) else None
    known = type(lane) is int and 0 <= lane < 2**63
    return [SlotRow(f"compacting:{lane if known else head.place.lane}", seq)]


def _usage(head: Head, seq: int, entry: p.Usage) -> list[Op]:
    return [SlotRow("usage", seq)]


def _open(head: Head, seq: int, entry: p.Open) -> list[Op]:
    ops: list[Op] = []
    if entry.name is not None:
        ops.append(Renamed(entry.name))
    if entry.labels:
        ops.append(Labelled(entry.labels))
    if entry.parent is not None:
        head.lo = entry.parent.lo
        ops.append(ForkRow(entry.parent))
    return ops


def _label(head: Head, seq: int, entry: p.Label) -> list[Op]:
    ops: list[Op] = []
    if not isinstance(entry.name, UnsetType):
        ops += [SlotRow("name", seq), Renamed(entry.name)]
    if not isinstance(entry.labels, UnsetType):
        ops += [SlotRow("labels", seq), Labelled(entry.labels)]
    return ops


def _merge(head: Head, seq: int, entry: p.Merge) -> list[Op]:
    if entry.into:
        return [SlotRow("usage", seq)] if entry.usage else []
    return [ForkState("merged", seq, entry.seq)]


def _discard(head: Head, seq: int, entry: p.Discard) -> list[Op]:
    if entry.into:
        return []
    head.status, head.reason, head.completed = "discarded", entry.reason, head.stamp
    return [ForkState("discarded", 0, entry.seq), SlotRow("status", seq)]


def _nothing(head: Head, seq: int, entry: Payload) -> list[Op]:
    return []


_RULES: dict[str, Rule] = {
    "open": _open,
    "append": _append,
    "revise": _revise,
    "retract": _retract,
    "restore": _restore,
    "clear": _clear,
    "switch": _switch,
    "anchor": _anchor,
    "handoff": _anchor,
    "event": _event,
    "erase": _nothing,
    "status": _status,
    "label": _label,
    "compact": _compact,
    "state": _state,
    "block": _block,
    "usage": _usage,
    "fork": _nothing,
    "merge": _merge,
    "discard": _discard,
}
