"""The view of one tape inside a transaction: every query that readers and plans run on it.

On a fork every query reads the whole lineage: the tape's own messages, its overrides of inherited ones, and what its
ancestors held when it was forked off. The nearest tape that overrides a message decides. This module resolves single
messages; ``paths`` resolves all messages on a path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from tape.core.entries import ids, payloads
from tape.core.entries.payloads import ROOT, Answer, Body, Payload, Place
from tape.core.plan.lookup import Covered, Maker, Standing
from tape.core.summaries.compaction import Summary
from tape.core.summaries.runs import Compaction
from tape.core.view.fold import OUT, Head
from tape.db.sql import Statement, Statements
from tape.db.sql.rows.view import HeldRow, OverrideRow, PastRow
from tape.db.view import memory, paths
from tape.db.view.ancestry import Ancestry, Layer
from tape.db.view.calls import call_key
from tape.errors import Corrupt

__all__ = ["NOW", "Asking", "Clear", "TapeView"]

T = TypeVar("T")
NOW = 2**62
"""Later than every seq."""
_MAKERS = (8, 512, 2**31 - 1)
"""How many makers of a call are asked for at first, and if none of those is the one that is looked for."""


class Asking(Protocol):
    """What runs the queries of a view: a transaction, or a tape's ``Writing`` in one."""

    def one(self, statement: Statement[T], params: Sequence[Any]) -> T | None:
        """Run a query and return its first row, if any."""

    def value(self, statement: Statement[Any], params: Sequence[Any]) -> Any:
        """Run a query and return the first column of its first row, or None when there is no row."""

    def all(self, statement: Statement[T], params: Sequence[Any]) -> list[T]:
        """Run a query and return its rows."""

    def now(self, clock: Callable[[], int]) -> int:
        """Return the time by the database's clock."""


class Clear(Struct, frozen=True):
    """The clear in force: its seq, the head's place then, and whether messages from before it were restored."""

    seq: int
    place: Place
    touched: bool


class TapeView(Struct):
    """A tape as of a seq: its head, the clear in force, what it inherits, and what it holds."""

    tx: Asking
    sql: Statements
    tape: str
    number: int
    head: Head
    ancestry: Ancestry | None
    seq: int
    """The seq up to which the tape's own entries are seen."""
    now: bool = True
    """Whether that is all of them."""
    anchored: bool = True
    """Whether the tape itself may have an anchor; what it inherits may have one in any case."""
    prompted: bool = True
    """Likewise a block or a frozen prompt."""
    compacted: bool = True
    """Likewise a summary."""
    found_clear: Clear | None = None
    known_layers: list[tuple[int, int, int, int]] | None = None
    known_lineage: str | None = None
    known_family: str | None = None

    # -- which tape, as of when

    @property
    def forked(self) -> bool:
        """Whether the tape inherits messages, so that an id may be taken by an ancestor."""
        return self.ancestry is not None

    @property
    def clear(self) -> Clear | None:
        """The clear in force."""
        if self.found_clear is None and self.head.cleared:
            row = self.tx.one(self.sql.clear_at, (self.number, self.seq))
            if row is not None:
                place = self.place_at(row.lane, row.ordinal, row.head_tape)
                self.found_clear = Clear(row.seq, place, bool(row.touched))
        return self.found_clear

    def last_change(self) -> int:
        """Return the seq of the last entry that changed what readers see: of a fork the first, and otherwise 0."""
        if self.now:
            return self.head.view
        return self.tx.value(self.sql.last_change, (self.number, self.seq)) or int(self.forked)

    def without_clear(self) -> TapeView:
        """Return the same view as if the tape itself had never cleared."""
        head = copy.copy(self.head)
        head.cleared = 0
        return msgspec.structs.replace(self, head=head, found_clear=None, known_layers=None, known_lineage=None)

    # -- the lineage

    def layers(self) -> list[tuple[int, int, int, int]]:
        """Return this tape and its ancestors, nearest first: number, seen up to, cleared up to, with overrides.

        A clear of a nearer tape hides everything above it, so the list ends there.
        """
        if self.known_layers is None:
            layers = [(self.number, self.seq, self.head.cleared, 1)]
            for layer in self.ancestry.layers if self.ancestry is not None else ():
                if layers[-1][2]:
                    break
                layers.append((layer.number, layer.asof, layer.cleared, int(layer.overriding)))
            self.known_layers = layers
        return self.known_layers

    def lineage(self) -> str:
        """Return the layers as statements take them."""
        if self.known_lineage is None:
            self.known_lineage = msgspec.json.encode(self.layers()).decode()
        return self.known_lineage

    def whole_lineage(self) -> str:
        """Return all of the lineage as statements take it. A clear keeps the ids and slots of what it hides."""
        if self.known_family is None and self.ancestry is not None:
            rows = [(self.number, self.seq, 0, 1)]
            for layer in self.ancestry.layers:
                rows.append((layer.number, layer.asof, layer.cleared, int(layer.overriding)))
            self.known_family = msgspec.json.encode(rows).decode()
        return self.known_family or self.own_lineage()

    def own_lineage(self) -> str:
        """Return this tape without its ancestors, as the statements on lineages take it."""
        return f"[[{self.number},{self.seq},0,1]]"

    def tapes(self) -> list[tuple[int, int]]:
        """Return this tape and all of its ancestors, nearest first: number, seen up to.

        Tapes behind a clear are included, because single messages of theirs may have been restored.
        """
        layers = self.ancestry.layers if self.ancestry is not None else ()
        return [(self.number, self.seq), *((layer.number, layer.asof) for layer in layers)]

    def number_of(self, tape: str | None) -> int:
        """Return the number of this tape or of an ancestor."""
        return self.number if tape is None or self.ancestry is None else self.ancestry.number(tape)

    def name_of(self, number: int) -> str:
        """Return the name of this tape or of an ancestor; 0 is this tape."""
        if number in (0, self.number) or self.ancestry is None:
            return self.tape
        return self.ancestry.name(number) or self.tape

    def place_at(self, lane: int, ordinal: int, number: int) -> Place:
        """Return the place that a row names, where 0 and the tape's own number both mean this tape."""
        if number in (0, self.number):
            return Place(lane, ordinal)
        if self.ancestry is None:
            raise Corrupt(str(number), 0, "the tape is not an ancestor")
        return Place(lane, ordinal, self.ancestry.name(number))

    # -- ids and keys

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry of the tape it was placed on."""
        key = ids.message_key(message_id)
        if self.ancestry is None:
            own = self.tx.one(self.sql.place_by_key, (self.number, key))
            own = own or self.tx.one(self.sql.place_by_alias, (self.number, message_id))
            return None if own is None or own.seq > self.seq else (Place(own.lane, own.ordinal), own.seq)
        # A message behind a clear is a known message, too, so search the whole lineage.
        rows = self.tx.all(self.sql.family_place, (self.whole_lineage(), key, message_id))
        row = min(rows, key=lambda match: match.n, default=None)
        return None if row is None else (self.place_at(row.lane, row.ordinal, row.tape_id), row.seq)

    def taken(self, message_ids: Iterable[str]) -> set[str]:
        """Return the ids among these that a message of the tape or of its lineage has."""
        names = {ids.message_key(message_id): message_id for message_id in message_ids}
        lineage = self.whole_lineage()
        keys = msgspec.json.encode(list(names)).decode()
        taken_ids = {names[key] for (key,) in self.tx.all(self.sql.taken_keys, (lineage, keys))}
        if self.now and self.ancestry is None and not self.head.aliased:
            # The key of every message tells its id.
            return taken_ids
        aliases = msgspec.json.encode(list(names.values())).decode()
        return taken_ids | {name for (name,) in self.tx.all(self.sql.taken_aliases, (lineage, aliases))}

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return the keys among these that an entry of the tape has."""
        encoded = msgspec.json.encode(list(keys)).decode()
        return {key for (key,) in self.tx.all(self.sql.taken_keys, (self.own_lineage(), encoded))}

    # -- the state of messages

    def standing(self, place: Place) -> Standing:
        """Return the state of the message at a place."""
        if place.tape is not None and self.ancestry is not None:
            return self._inherited(place, self.ancestry)
        at = (self.number, place.lane, place.ordinal)
        held = self.tx.one(self.sql.held, at)
        if held is not None:
            return Standing(held.placed, held.since, held.body, True)
        last = self.tx.one(self.sql.held_last, (*at, NOW))
        if last is None:
            raise Corrupt(self.tape, 0, f"lane {place.lane}, depth {place.ordinal} never had a message")
        return Standing(last.placed, last.since, last.body, False, last.why)

    def _inherited(self, place: Place, ancestry: Ancestry) -> Standing:
        """Return the state of an inherited message for this tape. Its ``since`` is 1, before any clear of the tape."""
        overrides: dict[int, OverrideRow] = {}
        if self.seq or any(layer.overriding for layer in ancestry.layers):
            at = (self.whole_lineage(), self.number_of(place.tape), place.lane, place.ordinal)
            overrides = {row.n: row for row in self.tx.all(self.sql.overrides_at, at)}
        # Whether a clear of a tape in between hid it. A clear hides only what is visible: a result that is hidden
        # with its call stays hidden, and is restored with it.
        taken = False
        for n, layer in enumerate(ancestry.layers):
            row = overrides.get(n)
            cleared = 0 if n == 0 else ancestry.layers[n - 1].cleared
            if row is not None:
                if row.body is None:
                    return self._last_body(place, ancestry, row.why)
                of = None if row.body_tape == self.number else ancestry.name(row.body_tape)
                if taken or row.since <= cleared:
                    return Standing(row.placed, 1, row.body, False, OUT, of)
                return Standing(row.placed, row.since if n == 0 else 1, row.body, True, "", of)
            taken = taken or cleared > 0
            if layer.tape == place.tape:
                original = self._at_origin(place, layer)
                if taken and original.live:
                    return Standing(original.placed, 1, original.body, False, OUT, original.of)
                return original
        raise Corrupt(self.tape, 0, f"tape {place.tape!r} is not an ancestor")

    def _at_origin(self, place: Place, layer: Layer) -> Standing:
        """Return the state of a message on the ancestor that placed it, when that was forked."""
        at = (layer.number, place.lane, place.ordinal)
        row: HeldRow | PastRow | None = self.tx.one(self.sql.held, at)
        if row is None or row.since > layer.asof:
            row = self.tx.one(self.sql.held_last, (*at, layer.asof))
        if row is None:
            raise Corrupt(
                self.tape, 0, f"lane {place.lane}, depth {place.ordinal} had no message when the tape was forked"
            )
        if isinstance(row, PastRow) and row.until <= layer.asof:
            return Standing(row.placed, 1, row.body, False, row.why, layer.tape)
        seen = row.since > layer.cleared
        return Standing(row.placed, 1, row.body, seen, "" if seen else OUT, layer.tape)

    def _last_body(self, place: Place, ancestry: Ancestry, why: str) -> Standing:
        """Return a message that is out, with the body that restoring it would show."""
        at = (self.whole_lineage(), self.number_of(place.tape), place.lane, place.ordinal)
        row = self.tx.one(self.sql.last_override, at)
        if row is not None:
            placed, body_tape, body = row
            of = None if body_tape == self.number else ancestry.name(body_tape)
            return Standing(placed, 1, body, False, why, of)
        base = self._at_origin(place, ancestry.layer(place.tape or ""))
        return Standing(base.placed, 1, base.body, False, why, base.of)

    def body(self, seq: int, of: str | None = None) -> Body:
        """Return the message in an entry."""
        row = self.tx.one(self.sql.body, (self.number_of(of), seq))
        if row is None or row.payload is None:
            raise Corrupt(of or self.tape, seq, "the entry with the content of the message is missing")
        return payloads.body_of(row.kind, row.version, row.payload, row.key, of or self.tape, seq)

    def id_at(self, place: Place) -> str:
        """Return the id of the message at a place."""
        standing = self.standing(place)
        return self.body(standing.body, standing.of).id

    # -- tool calls

    def bindings(self, place: Place, placed: int) -> list[Answer]:
        """Return the calls that a message was bound to when it was appended."""
        row = self.tx.one(self.sql.body, (self.number_of(place.tape), placed))
        if row is None or row.payload is None:
            raise Corrupt(place.tape or self.tape, placed, "the entry that placed the message is missing")
        entry = payloads.decode(row.kind, row.version, row.payload, place.tape or self.tape, placed, key=row.key)
        answers = entry.answers if isinstance(entry, payloads.Append) else []
        if place.tape is None:
            return answers
        # The ancestor's own places are inherited ones here.
        return [Answer(a.call, Place(a.maker.lane, a.maker.ordinal, a.maker.tape or place.tape)) for a in answers]

    def makers(self, call: str) -> Iterator[Maker]:
        """Yield the places of the messages that ever made a call, by the entries that said so, newest first.

        Most often the first is the one that is looked for, though ids may be used again in every turn.
        """
        key, asked = call_key(call), 0
        for most in _MAKERS:
            if self.ancestry is None and self.now:
                rows = self.tx.all(self.sql.makers, (self.number, key, most))
                makers = [Maker(Place(lane, ordinal), seq) for lane, ordinal, seq in rows[asked:]]
            else:
                rows = self.tx.all(self.sql.family_makers, (self.whole_lineage(), key, most))
                makers = [
                    # Another tape's message was not placed by this entry, but changed by it.
                    Maker(self.place_at(lane, ordinal, at or tape), 0 if at else seq)
                    for lane, ordinal, seq, at, tape in rows[asked:]
                ]
            yield from makers
            if len(rows) < most:
                return
            asked = len(rows)

    def answers(self, maker: Place) -> list[Place]:
        """Return the places of the messages bound to calls of the message at ``maker``, in order of place."""
        if self.ancestry is None:
            rows = self.tx.all(self.sql.answers, (self.number, 0, maker.lane, maker.ordinal))
            return [Place(lane, ordinal) for lane, ordinal in sorted(tuple(row) for row in rows)]
        at = (self.whole_lineage(), self.number_of(maker.tape), maker.lane, maker.ordinal)
        places = []
        for lane, ordinal, tape, _ in sorted(tuple(row) for row in self.tx.all(self.sql.family_answers, at)):
            place = self.place_at(lane, ordinal, tape)
            if place.tape is None or self._existed(place, self.ancestry.layer(place.tape)):
                places.append(place)
        return places

    def _existed(self, place: Place, layer: Layer) -> bool:
        """Whether an ancestor had placed the message by the time it was forked."""
        at = (layer.number, place.lane, place.ordinal)
        row = self.tx.one(self.sql.held, at) or self.tx.one(self.sql.held_last, (*at, NOW))
        return row is not None and row.placed <= layer.asof

    # -- lanes, clears, labels, anchors

    def lane(self, place: Place) -> tuple[int, int]:
        """Return the depth at which a place's lane branches off, and that of its last place if it can be extended."""
        if place.lane == ROOT.lane:
            return 0, -1
        base = paths.base(self, Place(place.lane, 0, place.tape))
        if place.tape is not None:
            return base.ordinal, -1
        tips = self.tx.one(self.sql.lane_tip, (self.number, place.lane))
        return base.ordinal, max((tip or 0 for tip in tips or ()), default=0)

    def contains(self, end: Place, place: Place) -> bool:
        """Whether ``place`` is on the path from the root to ``end``."""
        return paths.contains(self, end, place)

    def clears(self) -> list[tuple[int, int]]:
        """Return the tape's own clears in force as (seq, messages still hidden), newest first."""
        return [(seq, hidden) for seq, hidden in self.tx.all(self.sql.clears, (self.number,))]

    def returned(self, clear: int) -> list[Place]:
        """Return the places of messages from before a clear that changed since by themselves, shallowest first."""
        places = [Place(lane, ordinal) for lane, ordinal in self.tx.all(self.sql.returned, (self.number, clear))]
        if self.ancestry is not None:
            rows = self.tx.all(self.sql.returned_inherited, (self.number, clear))
            places += [self.place_at(lane, ordinal, origin) for origin, lane, ordinal in rows]
        return sorted(places, key=lambda place: (place.ordinal, place.lane, place.tape or ""))

    def labels(self) -> list[str]:
        """Return the tape's labels."""
        row = self.tx.one(self.sql.labels, (self.number,))
        (raw,) = row if row is not None else (None,)
        return [] if raw is None else list(msgspec.json.decode(raw))

    def is_anchor(self, seq: int) -> bool:
        """Whether the entry at ``seq`` is an anchor or a handoff."""
        row = self.tx.one(self.sql.body, (self.number, seq))
        return row is not None and row.kind in ("anchor", "handoff")

    def anchor_depth(self, end: Place) -> int:
        """Return the depth of the latest anchor on the path to ``end``, or 0."""
        anchor = paths.latest_anchor(self, end)
        return 0 if anchor is None else anchor.ordinal

    # -- what is remembered

    def slot(self, name: str, *, inherited: bool = True) -> Payload | None:
        """Return the entry that a slot holds, of the tape or (if inherited) of its nearest ancestor that has one."""
        held = memory.slot(self, name, inherited=inherited)
        return None if held is None else held[1]

    def slots(self, prefix: str) -> list[tuple[str, int, Payload]]:
        """Return every slot whose name has this prefix, as the nearest tape with that slot holds it."""
        return memory.slots(self, prefix)

    def compactions(self) -> list[Compaction]:
        """Return every compaction that is in force on some path or would be if the tape's own clears were undone."""
        return memory.all_compactions(self.without_clear())

    def compactions_on(self, end: Place) -> list[Compaction]:
        """Return the compactions on the path to ``end``, after its latest anchor and any clear."""
        return memory.compactions_on(self, end, self.anchor_depth(end))

    def covers(self, compaction: Compaction) -> list[str]:
        """Return the ids of the messages that a compaction covers."""
        return memory.compact_entry(self, compaction)[0].covers

    def summary(self, compaction: Compaction) -> Summary:
        """Return a compaction as readers see it."""
        return memory.summary_of(self, compaction)

    def run(self, first: Place, last: Place) -> list[Covered]:
        """Return the visible messages from one place to another."""
        return memory.run(self, first, last)
