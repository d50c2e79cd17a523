"""What an imported entry refers to, checked against its tape and its ancestors as they stood before the entry.

A store decides these fields itself when it records. A file from elsewhere may say anything, with hashes that fit. So an
import folds every tape of the file in memory and accepts an entry only if each place, seq, body, clear and compaction
that it names is there, and if its totals, counts and depths are those that the entries before it give. Only fields
that the store decides are looked at, each by its name: what the caller gave is data, whatever it looks like.

The state kept of a tape is small: 16 bytes per message, and more only for messages that were changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import UnsetType

from tape.core import strict
from tape.core.entries import ids
from tape.core.entries import payloads as p
from tape.core.entries.chain import ZERO
from tape.core.entries.payloads import ROOT, Payload, Place
from tape.core.merge.divergence import STRATEGIES
from tape.core.view import fold as f
from tape.core.view.fold import Head, Op
from tape.errors import InvalidEntry

__all__ = ["KnownTape", "References", "Unsound"]

Spot = tuple[int, int]
Where = tuple[str, int, int]
"""A place by the tape that it is on, its lane and its depth."""
_BLOCK_OPS = frozenset({"set", "append", "remove", "freeze"})
_NOTHING = [0, 0, 0, 0, 0]


class Unsound(Exception):
    """An entry says what no store can have recorded."""


class Lane:
    """A lane: where it branches off, and for each depth the seq that placed the message and a hash of its id."""

    __slots__ = ("base", "ids", "placed")

    def __init__(self) -> None:
        self.base = ROOT
        self.placed = array("q")
        self.ids = array("q")


class KnownTape:
    """All of a tape that later entries may refer to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.head = Head.blank(ZERO)
        self.layers: list[p.Layer] = []
        """What the tape inherits from, nearest first."""
        self.ancestors: dict[str | None, tuple[KnownTape, int]] = {}
        """Those tapes by name, each with the seq up to which it is inherited."""
        self.lanes: dict[int, Lane] = {}
        self.changed: dict[Spot, bool] = {}
        """Whether a message of the tape that was changed is among the live rows; all others are."""
        self.revisions: dict[int, Where] = {}
        self.clears: dict[int, list[int]] = {}
        """The clears: how many messages each still hides, and the seq that undid it, or 0."""
        self.anchors: set[int] = set()
        self.compactions: set[int] = set()
        self.merges: dict[int, str] = {}
        """The merges of other tapes into this one."""
        self.overridden = 0
        """The first seq that changed an inherited message, or 0."""
        self.totals: list[int] = _NOTHING
        self.discarded = False
        self._ids: set[int] | None = None
        self._inherited_ids: set[int] | None = None

    @property
    def seq(self) -> int:
        """The last seq that was taken in."""
        return self.head.seq

    # -- taking in entries

    def apply(self, head: Head, payload: Payload, ops: Iterable[Op]) -> None:
        """Take in an entry with what the fold made of it."""
        self.head = head
        seq = head.seq
        for op in ops:
            change = _APPLY.get(type(op))
            if change is not None:
                change(self, op)
        match payload:
            case p.Append():
                own = hash(payload.id)
                # The lane is that of the row which the fold opened just now.
                self._lane.ids.append(own)
                if self._ids is not None:
                    self._ids.add(own)
            case p.Revise():
                self.revisions[seq] = self._where(payload.place)
            case p.Usage():
                self.totals = payload.totals
            case p.Merge() if payload.into:
                self.merges[seq] = payload.tape
                if payload.usage:
                    self.totals = payload.totals
            case p.Discard() if not payload.into:
                self.discarded = True
            case p.Open() if payload.parent is not None:
                self.layers = payload.parent.layers

    def _open(self, op: f.OpenRow) -> None:
        place = op.place
        if place.tape is not None:
            self.overridden = self.overridden or op.since
        elif op.placed == op.since:
            lane = self.lanes.get(place.lane)
            if lane is None:
                lane = self.lanes[place.lane] = Lane()
            lane.placed.append(op.placed)
            self._lane = lane
        else:
            self.changed[place.lane, place.ordinal] = True

    def _close(self, op: f.Close) -> None:
        if op.place.tape is not None:
            self.overridden = self.overridden or op.until
        else:
            self.changed[op.place.lane, op.place.ordinal] = False

    def _mark(self, op: f.Mark) -> None:
        if op.place.tape is not None:
            self.overridden = self.overridden or op.seq

    def _branch(self, op: f.LaneRow) -> None:
        self.lanes[op.lane].base = op.base

    def _anchor(self, op: f.AnchorRow) -> None:
        self.anchors.add(op.seq)

    def _clear(self, op: f.ClearRow) -> None:
        self.clears[op.seq] = [op.hidden, 0]

    def _touch(self, op: f.Touch) -> None:
        self.clears[op.seq][0] -= op.own

    def _uncleared(self, op: f.Uncleared) -> None:
        self.clears[op.seq][1] = op.until

    def _compact(self, op: f.CompactRow) -> None:
        if op.place is not None:
            self.compactions.add(op.seq)

    # -- what is there

    def _where(self, place: Place) -> Where:
        return place.tape or self.name, place.lane, place.ordinal

    def holder(self, tape: str | None) -> tuple[KnownTape, int]:
        """Return the tape itself or an ancestor, and the seq up to which it is seen."""
        if tape is None:
            return self, self.seq
        found = self.ancestors.get(tape)
        if found is None:
            raise Unsound(f"the entry names tape {tape!r}, which the tape does not inherit from")
        return found

    def lane(self, place: Place) -> Lane:
        """Return the lane of a place at which there is a message that the tape sees."""
        tape, upto = self.holder(place.tape)
        lane = tape.lanes.get(place.lane)
        index = place.ordinal - lane.base.ordinal - 1 if lane is not None else -1
        if lane is None or not 0 <= index < len(lane.placed):
            raise Unsound(f"the entry names lane {place.lane}, depth {place.ordinal}, where there is no message")
        if lane.placed[index] > upto:
            raise Unsound(f"the entry names seq {lane.placed[index]}, which the tape does not see")
        return lane

    def placed(self, place: Place) -> int:
        """Return the seq that placed the message at a place."""
        lane = self.lane(place)
        return lane.placed[place.ordinal - lane.base.ordinal - 1]

    def id_at(self, place: Place) -> int:
        """Return the hash of the id of the message at a place."""
        lane = self.lane(place)
        return lane.ids[place.ordinal - lane.base.ordinal - 1]

    def live(self, place: Place) -> bool:
        """Whether a message of the tape's own is among the live rows."""
        return self.changed.get((place.lane, place.ordinal), True)

    def body(self, place: Place, seq: int, of: str | None) -> None:
        """Check that an entry, of the tape or an ancestor, holds a body of the message at a place."""
        tape, upto = self.holder(of)
        if not 0 < seq <= upto:
            raise Unsound(f"the entry names seq {seq}, which the tape does not see")
        placing = of == place.tape and seq == self.placed(place)
        if not placing and tape.revisions.get(seq) != self._where(place):
            raise Unsound(f"seq {seq} holds no body of the message that the entry names")

    def at_depth(self, place: Place, depth: int) -> Place:
        """Return the place at a depth on the path to another."""
        while True:
            base = self.lane(place).base
            if depth > base.ordinal:
                return Place(place.lane, depth, place.tape)
            if base == ROOT:
                raise Unsound(f"there is no depth {depth} on the path")
            place = Place(base.lane, base.ordinal, base.tape or place.tape)

    def run(self, place: Place, lo: int) -> set[int]:
        """Return the hashes of the ids of all messages from a depth to a place."""
        found: set[int] = set()
        while True:
            lane = self.lane(place)
            start = lane.base.ordinal
            found.update(lane.ids[max(lo - start - 1, 0) : place.ordinal - start])
            if lo > start or lane.base == ROOT:
                return found
            place = Place(lane.base.lane, start, lane.base.tape or place.tape)

    def owns(self, message_id: str) -> bool:
        """Whether a message of the tape itself has an id."""
        # Only entries that name messages by id need the set, so most tapes never pay for it.
        if self._ids is None:
            self._ids = {own for lane in self.lanes.values() for own in lane.ids}
        return hash(message_id) in self._ids

    def knows(self, message_id: str) -> bool:
        """Whether a message of the tape has an id, or one that it inherits."""
        if self.owns(message_id):
            return True
        if self._inherited_ids is None:
            self._inherited_ids = {
                own
                for tape, upto in self.ancestors.values()
                for lane in tape.lanes.values()
                for own, placed in zip(lane.ids, lane.placed, strict=True)
                if placed <= upto
            }
        return hash(message_id) in self._inherited_ids

    def cleared_at(self, seq: int) -> int:
        """Return the clear that was in force after a seq, or 0."""
        return max((at for at, (_, until) in self.clears.items() if at <= seq and not 0 < until <= seq), default=0)

    def in_force(self) -> list[int]:
        """Return the clears in force, oldest first."""
        return [at for at, (_, until) in self.clears.items() if not until]


_APPLY: dict[type[Op], Callable[[KnownTape, Any], None]] = {
    f.OpenRow: KnownTape._open,
    f.Close: KnownTape._close,
    f.Mark: KnownTape._mark,
    f.LaneRow: KnownTape._branch,
    f.AnchorRow: KnownTape._anchor,
    f.ClearRow: KnownTape._clear,
    f.Touch: KnownTape._touch,
    f.Uncleared: KnownTape._uncleared,
    f.CompactRow: KnownTape._compact,
}


class References:
    """The tapes of a file as far as it was read, and the check of the next entry against them."""

    def __init__(self) -> None:
        self.tapes: dict[str, KnownTape] = {}
        """Every tape of the file, and every stored one that a tape of the file inherits from."""
        self._tape = KnownTape("")

    def begin(self, tape: str) -> None:
        """Begin with a tape of the file."""
        self._tape = self.tapes[tape] = KnownTape(tape)

    def check(self, key: str, source: Any, after: Head, payload: Payload, ops: Sequence[Op]) -> None:
        """Check the next entry and take it in; raises Unsound when it says what no store can have recorded.

        ``after`` is the head that the fold gives, ``ops`` what it changes.
        """
        try:
            self._check(key, source, after, payload)
        except InvalidEntry as error:
            raise Unsound(str(error)) from None
        self._tape.apply(after, payload, ops)

    def _check(self, key: str, source: Any, after: Head, payload: Payload) -> None:
        seq = after.seq
        if isinstance(payload, p.Append):
            self._append(seq, key, after, payload)
            return
        if key.startswith(strict.RESERVED):
            self._derived(key, payload)
        if isinstance(payload, p.Switch):
            self._switch(after, payload)
        elif isinstance(payload, p.Open):
            self._opening(after, payload)
        else:
            if after.place != self._tape.head.place:
                raise Unsound("the entry moves the head, which its kind never does")
            check = _CHECKS.get(type(payload))
            if check is not None:
                check(self, seq, payload)
        if isinstance(payload, p.Erase) and (source is None or source[0] is not None or not 0 < source[1] < seq):
            raise Unsound("the entry erases nothing that is on the tape")

    def _derived(self, key: str, payload: Payload) -> None:
        """Check a key that the store derived: under another entry's, that one could never be recorded."""
        kinds = _DERIVED.get(key[1:3])
        wanted = key
        if isinstance(payload, p.Revise) and key[1:3] == "r:":
            wanted = ids.revision_key(payload.supersedes, payload.supersedes_of)
        elif isinstance(payload, p.Fork) and key[1:3] == "f:":
            wanted = ids.fork_key(payload.child)
        if key != wanted or (kinds is not None and payload.kind not in kinds):
            raise Unsound(f"the key {key!r} is that of another entry")

    # -- messages

    def _append(self, seq: int, key: str, after: Head, entry: p.Append) -> None:
        tape, place = self._tape, after.place
        lane = tape.lanes.get(place.lane)
        if place.tape is not None or (lane is None and place.lane != seq):
            raise Unsound("the message is put where no message can be")
        if lane is not None and entry.base is not None:
            raise Unsound("the message begins a lane that is there already")
        base = (entry.base or ROOT) if lane is None else lane.base
        depth = base.ordinal + (0 if lane is None else len(lane.placed))
        if place.ordinal != depth + 1:
            raise Unsound("the message is not put behind the last one of its lane")
        above = None if lane is None and base == ROOT else lane.ids[-1] if lane is not None else tape.id_at(base)
        if after.lo != base.ordinal or entry.lo not in (None, base.ordinal):
            raise Unsound(f"the lane begins at depth {base.ordinal}, not where the entry says")
        if not isinstance(entry.parent, UnsetType) and above != (None if entry.parent is None else hash(entry.parent)):
            raise Unsound(f"the message is not put behind its parent {entry.parent!r}")
        strict.identifier(entry.id, "id")
        if (key != ids.message_key(entry.id)) if not entry.aliased else key.startswith(_MESSAGE_KEY):
            raise Unsound(f"message {entry.id!r} cannot be found by its key")
        if entry.aliased and key.startswith(strict.RESERVED):
            self._derived(key, entry)
        self._message(entry.message, entry.calls, entry.tokens)
        if entry.answers:
            for answer in entry.answers:
                tape.lane(answer.maker)
            if len({(answer.call, answer.maker) for answer in entry.answers}) < len(entry.answers):
                raise Unsound("the message answers a call twice")

    def _message(self, message: Any, calls: list[str], tokens: int) -> None:
        role = message.get("role")
        if role is not None and type(role) is not str:
            raise Unsound("the role of the message is not a string")
        if tokens < 0:
            raise Unsound("the message takes fewer than no tokens")
        if calls and len(set(calls)) < len(calls):
            raise Unsound("the message makes a call twice")

    def _revise(self, seq: int, entry: p.Revise) -> None:
        tape, place = self._tape, entry.place
        if tape.id_at(place) != hash(entry.id):
            raise Unsound(f"the place that is revised is not that of message {entry.id!r}")
        if place.tape is None and not tape.live(place):
            raise Unsound(f"message {entry.id!r} is not in the view")
        if entry.placed != tape.placed(place):
            raise Unsound(f"message {entry.id!r} was not placed by seq {entry.placed}")
        tape.body(place, entry.supersedes, entry.supersedes_of)
        self._message(entry.message, entry.calls, entry.tokens)
        self._go(entry.hides)
        self._return(entry.shows)
        self._loosen(entry.loosens)
        _once([place, *entry.hides, *(back.place for back in entry.shows)])

    def _retract(self, seq: int, entry: p.Retract) -> None:
        tape = self._tape
        self._go(entry.places)
        self._go(entry.hides)
        for place in entry.marks:
            self._is_out(place)
        named = {tape.id_at(place) for place in (*entry.places, *entry.marks)}
        if named != {hash(message_id) for message_id in entry.ids}:
            raise Unsound("the places that are retracted are not those of the messages named")
        self._loosen(entry.loosens)
        _once([*entry.places, *entry.marks, *entry.hides])

    def _restore(self, seq: int, entry: p.Restore) -> None:
        tape = self._tape
        for back in entry.marks:
            self._came_from(back)
            if back.clear:
                self._is_live(back.place)
            else:
                self._is_out(back.place)
        self._return(entry.shows)
        self._go(entry.hides)
        self._loosen(entry.loosens)
        _once([*(back.place for back in (*entry.shows, *entry.marks)), *entry.hides])
        if bool(entry.ids) == bool(entry.undoes):
            raise Unsound("the entry must either name messages or undo a clear")
        named = {tape.id_at(back.place) for back in (*entry.shows, *entry.marks)}
        if not named >= {hash(message_id) for message_id in entry.ids}:
            raise Unsound("the places that are restored are not those of the messages named")
        if entry.undoes:
            clears = tape.in_force()
            beneath = clears[-2] if len(clears) > 1 else 0
            if clears[-1:] != [entry.undoes]:
                raise Unsound(f"seq {entry.undoes} is not the last clear in force")
            if (entry.beneath, entry.returned) != (beneath, tape.clears[entry.undoes][0]):
                raise Unsound(f"undoing the clear of seq {entry.undoes} gives back something else")
        elif entry.beneath or entry.returned:
            raise Unsound("no clear is undone that could give back anything")

    def _go(self, places: Sequence[Place]) -> None:
        """Check messages that leave the view."""
        for place in places:
            self._is_live(place)

    def _return(self, shows: Sequence[p.Reopened]) -> None:
        """Check messages that come back into the view."""
        for back in shows:
            self._came_from(back)
            if back.clear:
                self._is_live(back.place)
            else:
                self._is_out(back.place)

    def _is_live(self, place: Place) -> None:
        self._tape.lane(place)
        # What holds of an inherited message is laid over it, so that it can go and come any number of times.
        if place.tape is None and not self._tape.live(place):
            raise Unsound(f"the message at lane {place.lane}, depth {place.ordinal} is out already")

    def _is_out(self, place: Place) -> None:
        self._tape.lane(place)
        if place.tape is None and self._tape.live(place):
            raise Unsound(f"the message at lane {place.lane}, depth {place.ordinal} is not out")

    def _came_from(self, back: p.Reopened) -> None:
        tape = self._tape
        if back.placed != tape.placed(back.place):
            raise Unsound(f"the message that comes back was not placed by seq {back.placed}")
        tape.body(back.place, back.body, back.of)
        if back.clear and tape.clears.get(back.clear, [0, 1])[1]:
            raise Unsound(f"seq {back.clear} is no clear in force")

    def _loosen(self, loosens: Sequence[p.Loosened]) -> None:
        for one in loosens:
            tape, upto = self._tape.holder(one.tape)
            if one.seq not in tape.compactions or one.seq > upto:
                raise Unsound(f"seq {one.seq} is no summary that the tape sees")
            _within(one.gone, -strict.MAX_INT)
        if len({(one.tape, one.seq) for one in loosens}) < len(loosens):
            raise Unsound("a summary is changed twice")

    def _switch(self, after: Head, entry: p.Switch) -> None:
        tape, place = self._tape, after.place
        lane = tape.lane(place)
        if tape.id_at(place) != hash(entry.id):
            raise Unsound(f"the head is not put on message {entry.id!r}")
        last = place.tape is None and place.ordinal == lane.base.ordinal + len(lane.placed)
        if (entry.lo, entry.tip) != (lane.base.ordinal, last):
            raise Unsound("the entry tells another beginning or end of the lane than it has")

    # -- anchors, summaries, slots

    def _anchor(self, seq: int, entry: p.Anchor) -> None:
        strict.identifier(entry.name, "name")
        for parent in entry.parents:
            if parent not in self._tape.anchors:
                raise Unsound(f"seq {parent} is no anchor of the tape")
        self._sources(entry.source_ids)

    def _handoff(self, seq: int, entry: p.Handoff) -> None:
        strict.identifier(entry.name, "name")
        strict.text(entry.summary, "summary")
        self._sources(entry.source_ids)

    def _sources(self, source_ids: Sequence[str]) -> None:
        for message_id in source_ids:
            if not self._tape.knows(message_id):
                raise Unsound(f"there is no message {message_id!r}")

    def _compact(self, seq: int, entry: p.Compact) -> None:
        tape, place = self._tape, entry.place
        if not 0 < entry.lo <= place.ordinal:
            raise Unsound(f"the run of the summary cannot begin at depth {entry.lo}")
        first = tape.at_depth(place, entry.lo)
        if (tape.id_at(first), tape.id_at(place)) != (hash(entry.first), hash(entry.last)):
            raise Unsound("the run of the summary does not begin and end with the messages named")
        if not {hash(message_id) for message_id in entry.covers} <= tape.run(place, entry.lo):
            raise Unsound("the summary covers messages outside of its run")
        if tuple(entry.span) not in ((0, 0), (tape.placed(first), tape.placed(place))):
            raise Unsound("the run of the summary was not placed by the seqs named")
        above = [above for name, (above, _) in tape.ancestors.items() if entry.expected_of in (None, name)]
        made = [tape, *above] if entry.expected_of is None else above
        if isinstance(entry.expected, int) and not any(entry.expected in one.compactions for one in made):
            raise Unsound(f"seq {entry.expected} is no summary")

    def _state(self, seq: int, entry: p.State) -> None:
        strict.identifier(entry.slot, "slot")
        _within(entry.schema)

    def _block(self, seq: int, entry: p.Block) -> None:
        if entry.op not in _BLOCK_OPS:
            raise Unsound(f"nothing is done to a block by {entry.op!r}")
        if entry.op != "freeze":
            strict.identifier(entry.label, "label")
        if entry.max_tokens is not None:
            _within(entry.max_tokens)

    def _event(self, seq: int, entry: p.Event) -> None:
        strict.identifier(entry.name, "name")

    def _usage(self, seq: int, entry: p.Usage) -> None:
        used = [entry.input_tokens, entry.output_tokens, entry.cached_tokens, entry.cost, 1]
        self._sum(used, entry.totals)

    def _sum(self, used: list[int], totals: list[int]) -> None:
        if len(used) != 5 or min(used) < 0:
            raise Unsound("the usage is not told in five whole numbers")
        if totals != [before + more for before, more in zip(self._tape.totals, used, strict=True)]:
            raise Unsound("the totals are not those that the entries give")

    def _status(self, seq: int, entry: p.Status) -> None:
        if self._tape.discarded:
            raise Unsound("the fork was discarded, which is for good")
        if entry.redirect is not None:
            strict.identifier(entry.redirect, "redirect")

    def _label(self, seq: int, entry: p.Label) -> None:
        if not isinstance(entry.labels, UnsetType):
            strict.distinct(entry.labels, "labels")

    def _erase(self, seq: int, entry: p.Erase) -> None:
        _hash(entry.digest)

    # -- families

    def _opening(self, after: Head, entry: p.Open) -> None:
        tape, place, point = self._tape, after.place, entry.parent
        strict.distinct(entry.labels, "labels")
        for name in ("owner", "agent"):
            if getattr(entry, name) is not None:
                strict.identifier(getattr(entry, name), name)
        if point is None:
            if place != ROOT:
                raise Unsound("the head of a new tape is above its first message")
            return
        names = [layer.tape for layer in point.layers]
        if not names or (point.tape, point.seq) != (names[0], point.layers[0].asof):
            raise Unsound("the fork does not begin where its first ancestor ends")
        if tape.name in names or len(set(names)) < len(names):
            raise Unsound("a tape is its own ancestor")
        tape.layers = point.layers
        tape.ancestors = {layer.tape: (self.tapes[layer.tape], layer.asof) for layer in point.layers}
        nearest, parent = point.layers[0], self.tapes[point.tape]
        overriding = 0 < parent.overridden <= nearest.asof
        if (nearest.cleared, nearest.overriding) != (parent.cleared_at(nearest.asof), overriding):
            raise Unsound(f"tape {point.tape!r} did not stand so when it was forked")
        # Before its first entry a fork was nobody's child.
        if point.layers[1:] != (parent.layers if nearest.asof else []):
            raise Unsound(f"the fork does not inherit what tape {point.tape!r} inherits")
        if place != ROOT and place.tape is None:
            raise Unsound("the head of a new fork is on an ancestor")
        if point.lo != (0 if place == ROOT else tape.lane(place).base.ordinal):
            raise Unsound(f"the lane of the head does not begin at depth {point.lo}")
        _within(point.receipt)

    def _fork(self, seq: int, entry: p.Fork) -> None:
        strict.identifier(entry.child, "child")
        if not 0 <= entry.at < seq:
            raise Unsound(f"the tape cannot have been forked at seq {entry.at}")
        if entry.head != ROOT and self._tape.placed(entry.head) > entry.at and entry.head.tape is None:
            raise Unsound(f"the head of the fork was not there at seq {entry.at}")

    def _merge(self, seq: int, entry: p.Merge) -> None:
        self._other(entry)
        if entry.strategy not in STRATEGIES:
            raise Unsound(f"there is no way to merge called {entry.strategy!r}")
        if not entry.into:
            return
        if not 0 <= entry.since <= entry.seq or not 0 <= entry.squashed <= entry.seq:
            raise Unsound("the merge took more of the fork than there was")
        if entry.previous and self._tape.merges.get(entry.previous) != entry.tape:
            raise Unsound(f"seq {entry.previous} is no merge of tape {entry.tape!r}")
        for message_id, placed in entry.messages:
            if not self._tape.owns(message_id) or not 0 < placed <= entry.seq:
                raise Unsound(f"the merge did not write message {message_id!r}")
        if entry.usage:
            self._sum(entry.usage, entry.totals)
        elif entry.totals:
            raise Unsound("the merge tells totals without any usage")

    def _discard(self, seq: int, entry: p.Discard) -> None:
        self._other(entry)

    def _other(self, entry: p.Merge | p.Discard) -> None:
        """Check the other tape of a merge or a discard: a fork of this one, or the one that this was forked from."""
        tape = self._tape
        strict.identifier(entry.tape, "tape")
        _within(entry.seq, 1)
        _hash(entry.hash)
        if not entry.into:
            if not tape.layers or tape.layers[0].tape != entry.tape:
                raise Unsound(f"the tape is no fork of {entry.tape!r}")
            if tape.discarded:
                raise Unsound("the fork was discarded, which is for good")


_MESSAGE_KEY = f"{strict.RESERVED}m:"
_DERIVED: dict[str, tuple[str, ...]] = {
    "m:": (),
    "r:": ("revise",),
    "f:": ("fork",),
    "d:": ("discard",),
    "g:": ("merge",),
    "c:": ("append", "revise", "retract"),
    "s:": ("append",),
    "t:": ("status", "handoff"),
}
"""Which kinds have a derived key, by how it begins; that of a message is looked at with the message."""


def _once(places: Sequence[Place]) -> None:
    """Check that an entry changes no message twice."""
    if len(set(places)) < len(places):
        raise Unsound("the entry changes a message twice")


def _within(number: int, least: int = 0) -> None:
    """Check a number that goes into a column, or that a statement is asked with."""
    if not least <= number <= strict.MAX_INT:
        raise Unsound(f"{number} is no number of a tape")


def _hash(value: str) -> None:
    if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise Unsound(f"{value!r} is no hash")


_CHECKS: dict[type[Payload], Callable[[References, int, Any], None]] = {
    p.Revise: References._revise,
    p.Retract: References._retract,
    p.Restore: References._restore,
    p.Anchor: References._anchor,
    p.Handoff: References._handoff,
    p.Compact: References._compact,
    p.State: References._state,
    p.Block: References._block,
    p.Event: References._event,
    p.Usage: References._usage,
    p.Status: References._status,
    p.Label: References._label,
    p.Erase: References._erase,
    p.Fork: References._fork,
    p.Merge: References._merge,
    p.Discard: References._discard,
}
