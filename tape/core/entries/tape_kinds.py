"""The kinds of entries for a tape itself: opened, forked, merged, discarded, closed, labelled; and a payload erased."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from tape.core.entries.kind import Payload
from tape.core.entries.parts import ForkPoint, Place
from tape.core.view import slots
from tape.core.view.fold import CLOSED, ForkRow, ForkState, Head, Labelled, Op, Redirected, Renamed, Shown, SlotRow

__all__ = ["Discard", "Erase", "Fork", "Label", "Merge", "Open", "Status"]


class Open(Payload):
    """The first entry of every tape. A fork's head is where its parent's stood at the fork."""

    kind = "open"
    changes_view = False
    name: str | None = None
    owner: str | None = None
    agent: str | None = None
    labels: list[str] = []
    parent: ForkPoint | None = None

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Give the tape its name, its labels and its parent."""
        ops: list[Op] = []
        if self.name is not None:
            ops.append(Renamed(self.name))
        if self.labels:
            ops.append(Labelled(self.labels))
        if self.parent is not None:
            head.lo = self.parent.lo
            # An empty tape reads as one that is not there; a fork has something to show from the start.
            head.view = seq
            ops.append(ForkRow(self.parent))
        return ops


class Fork(Payload):
    """The receipt on the parent of a fork made from it."""

    kind = "fork"
    changes_view = False
    child: str
    at: int
    head: Place
    name: str | None = None


class Merge(Payload):
    """A merge, recorded on both tapes: on the parent with what it took, on the child with where it went.

    What it changes in the parent's view, entries of their own have recorded before it.
    """

    kind = "merge"
    changes_view = False
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

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Count what a fork used; on the fork itself, note that it was merged."""
        if self.into:
            return [SlotRow(slots.USAGE, seq)] if self.usage else []
        return [ForkState("merged", seq, self.seq)]


class Discard(Payload):
    """A fork given up, recorded on both tapes."""

    kind = "discard"
    changes_view = False
    tape: str
    seq: int
    hash: str
    into: bool = False
    reason: str | None = None

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Close the fork."""
        if self.into:
            return []
        head.status, head.reason, head.completed = "discarded", self.reason, head.stamp
        return [ForkState("discarded", 0, self.seq), SlotRow(slots.STATUS, seq)]


class Status(Payload):
    """The tape closed or opened again."""

    kind = "status"
    changes_view = False
    status: str
    reason: str | None = None
    redirect: str | None = None
    """The tape on which the work goes on, when this one was split."""

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Close the tape or open it again."""
        head.status = self.status
        head.reason = self.reason
        head.completed = head.stamp if self.status in CLOSED else 0
        return [SlotRow(slots.STATUS, seq), Redirected(self.redirect)]


class Label(Payload):
    """A tape renamed, its labels changed, or the tape hidden from readers or shown to them again."""

    kind = "label"
    changes_view = False
    name: str | UnsetType | None = UNSET
    add: list[str] = []
    remove: list[str] = []
    labels: list[str] | UnsetType = UNSET
    """All labels after the entry, when it changes any."""
    hidden: bool | UnsetType = UNSET
    reason: str | None = None
    """Why the tape is hidden."""

    def content(self) -> dict[str, Any]:
        """Return the labels as given, and the name, or whether the tape is hidden and why, if that was given."""
        fields: dict[str, Any] = {"kind": self.kind, "add": self.add, "remove": self.remove}
        if self.name is not UNSET:
            fields["name"] = self.name
        if self.hidden is not UNSET:
            fields |= {"hidden": self.hidden, "reason": self.reason}
        return fields

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Give the tape its name or its labels, hide it or show it."""
        ops: list[Op] = []
        if not isinstance(self.hidden, UnsetType):
            head.hidden = (self.reason or "") if self.hidden else None
            ops.append(Shown(head.hidden))
        if not isinstance(self.name, UnsetType):
            ops += [SlotRow(slots.NAME, seq), Renamed(self.name)]
        if not isinstance(self.labels, UnsetType):
            ops += [SlotRow(slots.LABELS, seq), Labelled(self.labels)]
        return ops


class Erase(Payload):
    """The content of the entry at the source was removed on purpose; its commitment keeps the chain valid."""

    kind = "erase"
    commitment: str
    reason: str | None = None
