"""The kinds of entries that change messages: appended, revised, retracted, restored, cleared, and the head chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from tape.core.entries.kind import Payload
from tape.core.entries.parts import ROOT, Answer, Loosened, Place, Reopened
from tape.core.view import fold as f
from tape.core.view.fold import Head, Op

__all__ = ["Append", "Clear", "Restore", "Retract", "Revise", "Switch", "apart", "as_message", "decoded", "is_encoded"]


class Append(Payload):
    """A new message. Its place is the head after the entry."""

    kind = "append"
    version = 2
    message: dict[str, Any]
    id: str = ""
    """The id of the message; not stored when the key of the entry is made of it, as it mostly is."""
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
    """Of a batch with a key: the index of this message in it, and how many messages it has. ``(0, 0)``: the key only
    looks like one of a batch."""

    def in_batch(self, index: int) -> bool:
        """Whether an entry that has the key of a batch at ``index`` is of that batch."""
        return self.batch is not None and self.batch[0] == index and self.batch[1] > 0

    def content(self) -> dict[str, Any]:
        """Return the message, with its id and its parent if those were given."""
        fields: dict[str, Any] = {"kind": self.kind, "message": apart(decoded(self.message), self.id)}
        if not self.generated:
            fields["id"] = self.id
        if self.parent is not UNSET:
            fields["parent"] = self.parent
        return fields

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Open its row, and its lane if it begins one; note the calls it makes and answers."""
        place = head.place
        ops: list[Op] = [f.OpenRow(place, seq, seq, seq)]
        if place.lane == seq:
            base = self.base or ROOT
            head.lo = base.ordinal
            ops.append(f.LaneRow(seq, base))
        elif self.lo is not None:
            head.lo = self.lo
        head.tip = True
        head.messages += 1
        head.last_message = head.stamp
        if self.aliased:
            head.aliased = True
            ops.append(f.AliasRow(self.id, seq))
        for call in self.calls:
            ops.append(f.CallRow(call, seq, place))
        for answer in self.answers:
            ops.append(f.AnswerRow(answer.maker, answer.call, place))
        return ops


class Revise(Payload):
    """A new body for a message, in its old place."""

    kind = "revise"
    version = 2
    id: str
    message: dict[str, Any]
    place: Place
    placed: int
    supersedes: int
    supersedes_of: str | None = None
    """The ancestor that the superseded body lies in, if it does."""
    fields: list[str] | None = None
    """The fields that the caller gave when the others stay as they were; None for a whole message."""
    calls: list[str] = []
    hides: list[Place] = []
    shows: list[Reopened] = []
    tokens: int = 0
    loosens: list[Loosened] = []

    def content(self) -> dict[str, Any]:
        """Return the new message, or the fields that were given."""
        message = decoded(self.message)
        if self.fields is None:
            return {"kind": self.kind, "id": self.id, "message": apart(message, self.id, "role")}
        return {"kind": self.kind, "id": self.id, **{name: message.get(name) for name in self.fields}}

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Put the new body in the place of the old one."""
        ops: list[Op] = [f.OpenRow(self.place, self.placed, seq, seq)]
        if self.place.tape is None:
            ops.insert(0, f.Close(self.place, seq, f.REVISED))
        ops.extend(f.CallRow(call, seq, self.place) for call in self.calls)
        ops.extend(_hide(head, seq, self.hides))
        ops.extend(_show(head, seq, self.shows))
        ops.extend(_loosen(seq, self.loosens))
        return ops


class Retract(Payload):
    """Messages taken out of the view, with the results of the calls they made."""

    kind = "retract"
    compared = ("ids", "reason")
    ids: list[str]
    reason: str | None = None
    places: list[Place] = []
    marks: list[Place] = []
    """Named messages that were hidden already; they are now out in their own right."""
    hides: list[Place] = []
    loosens: list[Loosened] = []

    def fold(self, head: Head, seq: int) -> list[Op]:
        """End the rows of the messages, and of the results that go with them."""
        ops: list[Op] = [f.Close(place, seq, f.OUT) for place in self.places]
        head.messages -= _own(self.places)
        ops.extend(f.Mark(place, seq, f.OUT) for place in self.marks)
        ops.extend(_hide(head, seq, self.hides))
        ops.extend(_loosen(seq, self.loosens))
        return ops


class Restore(Payload):
    """Messages brought back, or (without ids) the last clear undone."""

    kind = "restore"
    compared = ("ids",)
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

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Open rows for what comes back, and undo the clear if it is one that is undone."""
        ops: list[Op] = []
        for back in self.marks:
            if back.clear:
                ops.append(f.Close(back.place, seq, f.HIDDEN))
                ops.append(f.Touch(back.clear, back.place.tape is None))
            else:
                ops.append(f.Mark(back.place, seq, f.HIDDEN))
        if self.undoes:
            ops.append(f.Uncleared(self.undoes, seq))
            head.messages += self.returned
            head.cleared = self.beneath
        ops.extend(_hide(head, seq, self.hides))
        ops.extend(_show(head, seq, self.shows))
        ops.extend(_loosen(seq, self.loosens))
        return ops


class Clear(Payload):
    """Every message taken out at once; anchors end with it."""

    kind = "clear"
    reason: str | None = None

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Set the watermark."""
        row = f.ClearRow(seq, head.place, head.messages)
        head.cleared = seq
        head.messages = 0
        return [row]


class Switch(Payload):
    """Another message chosen as the head."""

    kind = "switch"
    version = 2
    compared = ("id",)
    id: str | None
    """None when no message is the head any more: the next one is a new root."""
    lo: int = 0
    tip: bool = False

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Take over what is known of the lane; the head itself is in the entry."""
        head.lo = self.lo
        head.tip = self.tip
        return []


as_message = cast(Callable[[bytes], dict[str, Any]], msgspec.Raw)
"""Return the bytes of a message to be put into a payload that is about to be recorded.

They were checked already and are written as they are. Whoever reads an entry gets a dict, so that is the type.
"""


def is_encoded(message: Any) -> bool:
    """Whether a message in a payload is still the bytes that ``as_message`` put there."""
    return type(message) is msgspec.Raw


def decoded(message: Any) -> dict[str, Any]:
    """Return the message in a payload as a dict, also in one that is about to be recorded."""
    return msgspec.json.decode(message, type=dict[str, Any]) if is_encoded(message) else message


def apart(message: dict[str, Any], message_id: str, *also: str) -> dict[str, Any]:
    """Return a message without its own id, which is the same whether it stood in it or beside it.

    Another ``id`` in the message is data of the caller's, as is everything else but the fields named ``also``.
    """
    left_out = (*also, "id") if message.get("id") == message_id else also
    return {name: value for name, value in message.items() if name not in left_out} if left_out else message


def _hide(head: Head, seq: int, places: list[Place]) -> list[Op]:
    head.messages -= _own(places)
    return [f.Close(place, seq, f.HIDDEN) for place in places]


def _own(places: list[Place]) -> int:
    """Return how many places are the tape's own: what a fork inherits is not counted as its."""
    return sum(place.tape is None for place in places)


def _show(head: Head, seq: int, shows: list[Reopened]) -> list[Op]:
    ops: list[Op] = []
    for back in shows:
        if back.clear:
            if back.place.tape is None:
                # The row under the clear still lies among the live ones: end it before the next begins.
                ops.append(f.Close(back.place, seq, f.CLEARED))
            ops.append(f.Touch(back.clear, back.place.tape is None))
        elif head.cleared and (back.place.tape is not None or back.placed < head.cleared):
            # Retracted before the clear and back after it: readers may no longer skip what lies above the clear.
            ops.append(f.Touch(head.cleared, False))
        ops.append(f.OpenRow(back.place, back.placed, seq, back.body, back.of))
    head.messages += _own([back.place for back in shows])
    return ops


def _loosen(seq: int, loosens: list[Loosened]) -> list[Op]:
    return [
        f.CompactRow(loosened.seq, loosened.tape, seq, None, 0, loosened.gone, loosened.revised, loosened.loose)
        for loosened in loosens
    ]
