"""What an imported entry refers to, checked against its tape and its ancestors as of the entry before it.

A store decides these fields itself when it records an entry. A file from elsewhere may contain anything, with hashes
that match. So an import folds every tape of the file in memory. It accepts an entry only if each place, seq, body,
clear and compaction that it names exists, and if its totals, counts and depths follow from the entries before it. Only
fields that the store decides are checked, each by its name. The caller's data may be anything.

There is one check for every kind, in ``_CHECKS``. Each gets the tape before the entry, the head after it, and the
payload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UnsetType

from tape.core import strict
from tape.core.entries import ids
from tape.core.entries import payloads as p
from tape.core.entries.payloads import ROOT, Payload, Place
from tape.core.merge.divergence import STRATEGIES
from tape.core.transfer.known_tape import KnownTape, Unsound
from tape.core.view.fold import Head, Op
from tape.errors import InvalidEntry

__all__ = ["References"]

_BLOCK_OPS = frozenset({"set", "append", "remove", "freeze", "load", "unload"})


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
        """Check the next entry and add it; raises Unsound when no store can have recorded it.

        ``after`` is the head that the fold returns, ``ops`` its row changes.
        """
        tape = self._tape
        try:
            _check_key(key, payload)
            if isinstance(payload, p.Open):
                self._inherit(tape, payload)
            elif not isinstance(payload, p.Append | p.Switch) and after.place != tape.head.place:
                raise Unsound("the entry moves the head, which entries of its kind cannot do")
            _CHECKS[type(payload)](tape, after, payload)
            if isinstance(payload, p.Erase) and not (source and source[0] is None and 0 < source[1] < after.seq):
                raise Unsound("the entry erases an entry that is not on the tape")
        except InvalidEntry as error:
            raise Unsound(str(error)) from None
        tape.apply(after, payload, ops)

    def _inherit(self, tape: KnownTape, entry: p.Open) -> None:
        """Give a new fork its ancestors."""
        if entry.parent is None:
            return
        layers = entry.parent.layers
        names = [layer.tape for layer in layers]
        if not names or (entry.parent.tape, entry.parent.seq) != (names[0], layers[0].asof):
            raise Unsound("the fork point does not match the nearest ancestor")
        if tape.name in names or len(set(names)) < len(names):
            raise Unsound("a tape is its own ancestor")
        tape.ancestors = {layer.tape: (self.tapes[layer.tape], layer.asof) for layer in layers}


# -- keys


_DERIVED: dict[str, tuple[type[Payload], ...]] = {
    ids.MESSAGE: (),
    ids.REVISION: (p.Revise,),
    ids.FORK: (p.Fork,),
    ids.DISCARD: (p.Discard,),
    ids.MERGE: (p.Merge,),
    ids.COPY: (p.Append, p.Revise, p.Retract),
    ids.SQUASH: (p.Append,),
    ids.SPLIT: (p.Status, p.Handoff),
}
"""Which kinds have a derived key, by its prefix; the key of a message is checked with the message."""


def _check_key(key: str, payload: Payload) -> None:
    """Check a key that the store derived. An entry with the key of another would keep that one from being recorded."""
    if isinstance(payload, p.Append):
        if key.startswith(ids.MESSAGE) if payload.aliased else key != ids.message_key(payload.id):
            raise Unsound(f"the key does not match message {payload.id!r}")
        if not payload.aliased:
            return
    if not key.startswith(strict.RESERVED):
        return
    start = key[: len(ids.MESSAGE)]
    wanted = key
    if isinstance(payload, p.Revise) and start == ids.REVISION:
        wanted = ids.revision_key(payload.supersedes, payload.supersedes_of)
    elif isinstance(payload, p.Fork) and start == ids.FORK:
        wanted = ids.fork_key(payload.child)
    if key != wanted or not isinstance(payload, _DERIVED.get(start, Payload)):
        raise Unsound(f"the key {key!r} belongs to another entry")


# -- messages


def _append(tape: KnownTape, after: Head, entry: p.Append) -> None:
    place = after.place
    lane = tape.lanes.get(place.lane)
    if place.tape is not None or (lane is None and place.lane != after.seq):
        raise Unsound("no message can be placed here")
    if lane is not None and entry.base is not None:
        raise Unsound("the message starts a lane that already exists")
    base = (entry.base or ROOT) if lane is None else lane.base
    depth = base.ordinal + (0 if lane is None else len(lane.placed))
    if place.ordinal != depth + 1:
        raise Unsound("the message does not follow the last message of its lane")
    above = None if lane is None and base == ROOT else lane.ids[-1] if lane is not None else tape.id_at(base)
    if after.lo != base.ordinal or entry.lo not in (None, base.ordinal):
        raise Unsound(f"the lane starts at depth {base.ordinal}, but the entry has another depth")
    if not isinstance(entry.parent, UnsetType) and above != (None if entry.parent is None else hash(entry.parent)):
        raise Unsound(f"the message does not follow its parent {entry.parent!r}")
    strict.identifier(entry.id, "id")
    _message(entry)
    for answer in entry.answers:
        tape.lane(answer.maker)
    if len({(answer.call, answer.maker) for answer in entry.answers}) < len(entry.answers):
        raise Unsound("the message answers the same tool call twice")


def _message(entry: p.Append | p.Revise) -> None:
    role = entry.message.get("role")
    if role is not None and type(role) is not str:
        raise Unsound("the role of the message is not a string")
    if entry.tokens < 0:
        raise Unsound("the token count of the message is negative")
    if len(set(entry.calls)) < len(entry.calls):
        raise Unsound("the message contains the same tool call twice")


def _revise(tape: KnownTape, after: Head, entry: p.Revise) -> None:
    place = entry.place
    if tape.id_at(place) != hash(entry.id):
        raise Unsound(f"the revised place is not the place of message {entry.id!r}")
    if entry.placed != tape.placed(place):
        raise Unsound(f"message {entry.id!r} was not placed by seq {entry.placed}")
    _leave(tape, [place, *entry.hides])
    tape.body(place, entry.supersedes, entry.supersedes_of)
    _message(entry)
    _return(tape, entry.shows)
    _loosen(tape, entry.loosens)
    _once([place, *entry.hides, *(back.place for back in entry.shows)])


def _retract(tape: KnownTape, after: Head, entry: p.Retract) -> None:
    _leave(tape, [*entry.places, *entry.hides])
    for place in entry.marks:
        _is_out(tape, place)
    named = {tape.id_at(place) for place in (*entry.places, *entry.marks)}
    if named != {hash(message_id) for message_id in entry.ids}:
        raise Unsound("the retracted places do not match the ids of the messages")
    _loosen(tape, entry.loosens)
    _once([*entry.places, *entry.marks, *entry.hides])


def _restore(tape: KnownTape, after: Head, entry: p.Restore) -> None:
    back = [*entry.marks, *entry.shows]
    _return(tape, back)
    _leave(tape, entry.hides)
    _loosen(tape, entry.loosens)
    _once([*(reopened.place for reopened in back), *entry.hides])
    if bool(entry.ids) == bool(entry.undoes):
        raise Unsound("the entry must either list messages or undo a clear")
    if not {tape.id_at(reopened.place) for reopened in back} >= {hash(message_id) for message_id in entry.ids}:
        raise Unsound("the restored places do not match the ids of the messages")
    if entry.undoes:
        clears = tape.in_force()
        beneath = clears[-2] if len(clears) > 1 else 0
        if clears[-1:] != [entry.undoes]:
            raise Unsound(f"seq {entry.undoes} is not the last active clear")
        if (entry.beneath, entry.returned) != (beneath, tape.clears[entry.undoes].hidden):
            raise Unsound(f"undoing the clear at seq {entry.undoes} would restore other messages")
    elif entry.beneath or entry.returned:
        raise Unsound("the entry restores the messages of a clear, but undoes none")


def _leave(tape: KnownTape, places: Sequence[Place]) -> None:
    """Check messages that leave the view."""
    for place in places:
        tape.lane(place)
        # Changes of an inherited message are overrides, so it can be hidden and restored any number of times.
        if place.tape is None and not tape.live(place):
            raise Unsound(f"the message at lane {place.lane}, depth {place.ordinal} is already hidden")


def _return(tape: KnownTape, shows: Sequence[p.Reopened]) -> None:
    """Check messages that are restored to the view."""
    for back in shows:
        if back.placed != tape.placed(back.place):
            raise Unsound(f"the restored message was not placed by seq {back.placed}")
        tape.body(back.place, back.body, back.of)
        if not back.clear:
            _is_out(tape, back.place)
            continue
        clear = tape.clears.get(back.clear)
        if clear is None or clear.undone:
            raise Unsound(f"seq {back.clear} is not an active clear")
        _leave(tape, [back.place])


def _is_out(tape: KnownTape, place: Place) -> None:
    tape.lane(place)
    if place.tape is None and tape.live(place):
        raise Unsound(f"the message at lane {place.lane}, depth {place.ordinal} is not hidden")


def _loosen(tape: KnownTape, loosens: Sequence[p.Loosened]) -> None:
    for change in loosens:
        maker, upto = tape.holder(change.tape)
        if change.seq not in maker.compactions or change.seq > upto:
            raise Unsound(f"seq {change.seq} is not a summary that the tape can see")
        _within(change.gone, -strict.MAX_INT)
    if len({(change.tape, change.seq) for change in loosens}) < len(loosens):
        raise Unsound("the entry changes the same summary twice")


def _once(places: Sequence[Place]) -> None:
    """Check that an entry changes no message twice."""
    if len(set(places)) < len(places):
        raise Unsound("the entry changes the same message twice")


def _switch(tape: KnownTape, after: Head, entry: p.Switch) -> None:
    place = after.place
    if entry.id is None:
        if (place, entry.lo, entry.tip) != (ROOT, 0, False):
            raise Unsound("the head is on a message, but the entry names none")
        return
    lane = tape.lane(place)
    if tape.id_at(place) != hash(entry.id):
        raise Unsound(f"the head is not on message {entry.id!r}")
    last = place.tape is None and place.ordinal == lane.base.ordinal + len(lane.placed)
    if (entry.lo, entry.tip) != (lane.base.ordinal, last):
        raise Unsound("the start or the end of the lane does not match the entry")


# -- anchors, summaries, slots


def _anchor(tape: KnownTape, after: Head, entry: p.Anchor | p.Handoff) -> None:
    strict.identifier(entry.name, "name")
    if isinstance(entry, p.Handoff):
        strict.text(entry.summary, "summary")
    else:
        for parent in entry.parents:
            if parent not in tape.anchors:
                raise Unsound(f"seq {parent} is not an anchor of the tape")
    for message_id in entry.source_ids:
        if not tape.knows(message_id):
            raise Unsound(f"there is no message {message_id!r}")


def _compact(tape: KnownTape, after: Head, entry: p.Compact) -> None:
    place = entry.place
    if not 0 < entry.lo <= place.ordinal:
        raise Unsound(f"the run of the summary cannot start at depth {entry.lo}")
    first = tape.at_depth(place, entry.lo)
    if (tape.id_at(first), tape.id_at(place)) != (hash(entry.first), hash(entry.last)):
        raise Unsound("the first and last message do not match the run of the summary")
    if not {hash(message_id) for message_id in entry.covers} <= tape.run(place, entry.lo):
        raise Unsound("the summary covers messages outside of its run")
    if tuple(entry.span) not in ((0, 0), (tape.placed(first), tape.placed(place))):
        raise Unsound("the seqs do not match the run of the summary")
    above = [above for name, (above, _) in tape.ancestors.items() if entry.expected_of in (None, name)]
    made = [tape, *above] if entry.expected_of is None else above
    if isinstance(entry.expected, int) and not any(entry.expected in maker.compactions for maker in made):
        raise Unsound(f"seq {entry.expected} is not a summary")


def _state(tape: KnownTape, after: Head, entry: p.State) -> None:
    strict.identifier(entry.slot, "slot")
    _within(entry.schema)


def _block(tape: KnownTape, after: Head, entry: p.Block) -> None:
    if entry.op not in _BLOCK_OPS:
        raise Unsound(f"unknown block operation {entry.op!r}")
    if entry.op != "freeze":
        strict.identifier(entry.label, "label")
    if entry.document is not None and (not entry.document or not entry.label.endswith(f"/{entry.document}")):
        raise Unsound(f"{entry.label!r} is not the label of document {entry.document!r}")
    if entry.max_tokens is not None:
        _within(entry.max_tokens)


def _event(tape: KnownTape, after: Head, entry: p.Event) -> None:
    strict.identifier(entry.name, "name")


def _usage(tape: KnownTape, after: Head, entry: p.Usage) -> None:
    _sum(tape, [entry.input_tokens, entry.output_tokens, entry.cached_tokens, entry.cost, 1], entry.totals)


def _sum(tape: KnownTape, used: list[int], totals: list[int]) -> None:
    if len(used) != 5 or min(used) < 0:
        raise Unsound("the usage must be five integers of at least 0")
    if totals != [before + more for before, more in zip(tape.totals, used, strict=True)]:
        raise Unsound("the totals do not match the entries")


# -- the tape, its parent and its forks


def _open(tape: KnownTape, after: Head, entry: p.Open) -> None:
    place, point = after.place, entry.parent
    strict.distinct(entry.labels, "labels")
    for name in ("owner", "agent"):
        if getattr(entry, name) is not None:
            strict.identifier(getattr(entry, name), name)
    if point is None:
        if place != ROOT:
            raise Unsound("a new tape has no messages, but its head is on one")
        return
    nearest = point.layers[0]
    parent, _ = tape.holder(nearest.tape)
    overriding = 0 < parent.overridden <= nearest.asof
    if (nearest.cleared, nearest.overriding) != (parent.cleared_at(nearest.asof), overriding):
        raise Unsound(f"tape {point.tape!r} did not have this state when it was forked")
    # Before its first entry a fork had no parent.
    if point.layers[1:] != (parent.layers if nearest.asof else []):
        raise Unsound(f"the fork and its parent {point.tape!r} have different ancestors")
    if place != ROOT and place.tape is None:
        raise Unsound("the head of a new fork must be on a message of an ancestor")
    if point.lo != (0 if place == ROOT else tape.lane(place).base.ordinal):
        raise Unsound(f"the lane of the head does not start at depth {point.lo}")
    _within(point.receipt)


def _fork(tape: KnownTape, after: Head, entry: p.Fork) -> None:
    strict.identifier(entry.child, "child")
    if not 0 <= entry.at < after.seq:
        raise Unsound(f"the tape cannot have been forked at seq {entry.at}")
    if entry.head != ROOT and tape.placed(entry.head) > entry.at and entry.head.tape is None:
        raise Unsound(f"the head of the fork did not exist at seq {entry.at}")


def _merge(tape: KnownTape, after: Head, entry: p.Merge) -> None:
    _other(tape, after, entry)
    if entry.strategy not in STRATEGIES:
        raise Unsound(f"unknown merge strategy {entry.strategy!r}")
    if not entry.into:
        return
    if not 0 <= entry.since <= entry.seq or not 0 <= entry.squashed <= entry.seq:
        raise Unsound("the merge covers more entries than the fork had")
    if entry.previous and tape.merges.get(entry.previous) != entry.tape:
        raise Unsound(f"seq {entry.previous} is not a merge of tape {entry.tape!r}")
    for message_id, placed in entry.messages:
        if not tape.owns(message_id) or not 0 < placed <= entry.seq:
            raise Unsound(f"the merge did not write message {message_id!r}")
    if entry.usage:
        _sum(tape, entry.usage, entry.totals)
    elif entry.totals:
        raise Unsound("the merge has totals but no usage")


def _other(tape: KnownTape, after: Head, entry: p.Merge | p.Discard) -> None:
    """Check the other tape of a merge or a discard: a fork of this one, or the one that this was forked from."""
    strict.identifier(entry.tape, "tape")
    _within(entry.seq, 1)
    _hash(entry.hash)
    if not entry.into:
        if not tape.layers or tape.layers[0].tape != entry.tape:
            raise Unsound(f"the tape is not a fork of {entry.tape!r}")
        _not_discarded(tape)


def _status(tape: KnownTape, after: Head, entry: p.Status) -> None:
    _not_discarded(tape)
    if entry.redirect is not None:
        strict.identifier(entry.redirect, "redirect")


def _not_discarded(tape: KnownTape) -> None:
    if tape.head.status == "discarded":
        raise Unsound("the fork was discarded, which cannot be undone")


def _label(tape: KnownTape, after: Head, entry: p.Label) -> None:
    if not isinstance(entry.labels, UnsetType):
        strict.distinct(entry.labels, "labels")


def _clear(tape: KnownTape, after: Head, entry: p.Clear) -> None:
    """A clear names nothing."""


def _erase(tape: KnownTape, after: Head, entry: p.Erase) -> None:
    _hash(entry.commitment)


def _within(number: int, least: int = 0) -> None:
    """Check a number that is stored in a column, or that is a parameter of a statement."""
    if not least <= number <= strict.MAX_INT:
        raise Unsound(f"the entry contains the number {number}, which is out of range")


def _hash(value: str) -> None:
    if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise Unsound(f"{value!r} is not a hash")


_CHECKS: dict[type[Payload], Callable[[KnownTape, Head, Any], None]] = {
    p.Open: _open,
    p.Append: _append,
    p.Revise: _revise,
    p.Retract: _retract,
    p.Restore: _restore,
    p.Clear: _clear,
    p.Anchor: _anchor,
    p.Handoff: _anchor,
    p.Compact: _compact,
    p.State: _state,
    p.Block: _block,
    p.Usage: _usage,
    p.Event: _event,
    p.Fork: _fork,
    p.Merge: _merge,
    p.Discard: _other,
    p.Switch: _switch,
    p.Status: _status,
    p.Label: _label,
    p.Erase: _erase,
}
