"""What a plan asks of the view, answered by indexed queries inside the recording transaction.

On a fork every question goes to the whole lineage: what the tape itself holds, what it made of inherited messages,
and what its ancestors held when it was forked off. The nearest tape that says something of a message decides.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from tape.core.entries import ids, payloads
from tape.core.entries.payloads import ROOT, Answer, Body, Place
from tape.core.plan.lookup import Standing
from tape.core.view.fold import OUT
from tape.db.engine.transaction import Transaction
from tape.db.record.projection import call_key, tape_of
from tape.db.sql import Statements
from tape.db.sql.rows import HeldRow, PastRow
from tape.db.view.lineage import Family, Member, place_at
from tape.db.view.paths import Scope
from tape.errors import Corrupt

__all__ = ["TapeLookup", "as_of", "inherited"]

_NOW = 2**62


class TapeLookup(Struct):
    """The view of one tape, as the transaction sees it."""

    tx: Transaction
    tape: str
    tape_id: int
    family: Family | None

    @property
    def sql(self) -> Statements:
        """The statements of the transaction's database."""
        return self.tx.statements

    @property
    def forked(self) -> bool:
        """Whether the tape inherits messages, so that an id may be taken by an ancestor."""
        return self.family is not None

    def flush(self) -> None:
        """Send what is still pending to the database; called before every question."""

    def _lineage(self) -> str:
        assert self.family is not None
        return self.family.parameter((self.tape_id, _NOW, 0, 1))

    def _alone(self) -> str:
        """Return this tape without its ancestors, as the statements on lineages take it."""
        return msgspec.json.encode([(self.tape_id, _NOW, 0, 1)]).decode()

    def _number(self, tape: str | None) -> int:
        """Return the number of this tape or of an ancestor."""
        return self.tape_id if tape is None or self.family is None else self.family.number(tape)

    def _placed(self, lane: int, ordinal: int, number: int) -> Place:
        """Return a place on the tape with this number, as this tape calls it."""
        return place_at(lane, ordinal, 0 if number == self.tape_id else number, self.family)

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry of the tape it was placed on."""
        self.flush()
        key = ids.message_key(message_id)
        if self.family is None:
            own = self.tx.one(self.sql.place_by_key, (self.tape_id, key))
            own = own or self.tx.one(self.sql.place_by_alias, (self.tape_id, message_id))
            return None if own is None else (Place(own.lane, own.ordinal), own.seq)
        found = self.tx.all(self.sql.family_place, (self._lineage(), key, message_id))
        row = min(found, key=lambda one: one.n, default=None)
        return None if row is None else (self._placed(row.lane, row.ordinal, row.tape_id), row.seq)

    def taken(self, message_ids: Iterable[str]) -> set[str]:
        """Return those of the ids that a message of the tape or of its lineage has."""
        self.flush()
        names = {ids.message_key(message_id): message_id for message_id in message_ids}
        lineage = self._alone() if self.family is None else self._lineage()
        keys = msgspec.json.encode(list(names)).decode()
        found = {names[key] for (key,) in self.tx.all(self.sql.taken_keys, (lineage, keys))}
        aliases = msgspec.json.encode(list(names.values())).decode()
        return found | {name for (name,) in self.tx.all(self.sql.taken_aliases, (lineage, aliases))}

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return those of the keys that an entry of the tape has."""
        self.flush()
        given = msgspec.json.encode(list(keys)).decode()
        return {key for (key,) in self.tx.all(self.sql.taken_keys, (self._alone(), given))}

    def standing(self, place: Place) -> Standing:
        """Return how the message at a place stands."""
        self.flush()
        if place.tape is not None and self.family is not None:
            return self._inherited(place, self.family)
        at = (self.tape_id, place.lane, place.ordinal)
        held = self.tx.one(self.sql.held, at)
        if held is not None:
            return Standing(held.placed, held.since, held.body, True)
        last = self.tx.one(self.sql.held_last, (*at, _NOW))
        if last is None:
            raise Corrupt(self.tape, 0, f"nothing was ever held at lane {place.lane}, depth {place.ordinal}")
        return Standing(last.placed, last.since, last.body, False, last.why)

    def _inherited(self, place: Place, family: Family) -> Standing:
        """Return how an inherited message stands for this tape. Its since is 1: before any clear of the tape's own."""
        number = tape_of(place, family)
        at = (self._lineage(), number, place.lane, place.ordinal)
        overrides = {row.n: row for row in self.tx.all(self.sql.overrides_at, at)}
        # Whether a clear of an ancestor on the way took it. A clear takes only what is in the view: a result that is
        # hidden with its call stays hidden, and comes back with it.
        taken = False
        for n, member in enumerate(family.members):
            row = overrides.get(n)
            cleared = 0 if n == 0 else family.members[n - 1].cleared
            if row is not None:
                if row.body is None:
                    return self._last_body(place, family, row.why)
                of = None if row.body_tape == self.tape_id else family.name(row.body_tape)
                if taken or row.since <= cleared:
                    return Standing(row.placed, 1, row.body, False, OUT, of)
                return Standing(row.placed, row.since if n == 0 else 1, row.body, True, "", of)
            taken = taken or cleared > 0
            if member.number == number:
                found = self._at_origin(place, member)
                if taken and found.live:
                    return Standing(found.placed, 1, found.body, False, OUT, found.of)
                return found
        raise Corrupt(self.tape, 0, f"tape {place.tape!r} is not an ancestor")

    def _at_origin(self, place: Place, member: Member) -> Standing:
        """Return how a message stood on the ancestor that placed it, when that was forked."""
        at = (member.number, place.lane, place.ordinal)
        row: HeldRow | PastRow | None = self.tx.one(self.sql.held, at)
        if row is None or row.since > member.asof:
            row = self.tx.one(self.sql.held_last, (*at, member.asof))
        if row is None:
            raise Corrupt(self.tape, 0, f"nothing was held at lane {place.lane}, depth {place.ordinal} at the fork")
        if isinstance(row, PastRow) and row.until <= member.asof:
            return Standing(row.placed, 1, row.body, False, row.why, member.tape)
        seen = row.since > member.cleared
        return Standing(row.placed, 1, row.body, seen, "" if seen else OUT, member.tape)

    def _last_body(self, place: Place, family: Family, why: str) -> Standing:
        """Return a message that is out, with the body it would come back with."""
        number = tape_of(place, family)
        row = self.tx.one(self.sql.last_override, (self._lineage(), number, place.lane, place.ordinal))
        if row is not None:
            of = None if row[1] == self.tape_id else family.name(row[1])
            return Standing(row[0], 1, row[2], False, why, of)
        member = next(one for one in family.members if one.number == number)
        base = self._at_origin(place, member)
        return Standing(base.placed, 1, base.body, False, why, base.of)

    def body(self, seq: int, of: str | None = None) -> Body:
        """Return the message in an entry."""
        self.flush()
        row = self.tx.one(self.sql.body, (self._number(of), seq))
        if row is None or row[2] is None:
            raise Corrupt(of or self.tape, seq, "the entry that holds the body is missing")
        return payloads.body_of(row[0], row[1], row[2], of or self.tape, seq)

    def bindings(self, place: Place, placed: int) -> list[Answer]:
        """Return the calls that a message was bound to when it was appended."""
        self.flush()
        row = self.tx.one(self.sql.body, (self._number(place.tape), placed))
        if row is None or row[2] is None:
            raise Corrupt(place.tape or self.tape, placed, "the entry that placed the message is missing")
        entry = payloads.decode(row[0], row[1], row[2], place.tape or self.tape, placed)
        found = entry.answers if isinstance(entry, payloads.Append) else []
        if place.tape is None:
            return found
        # What the ancestor calls its own is inherited here.
        return [Answer(a.call, Place(a.maker.lane, a.maker.ordinal, a.maker.tape or place.tape)) for a in found]

    def makers(self, call: str) -> list[Place]:
        """Return the places of the messages that ever made a call."""
        self.flush()
        if self.family is None:
            rows = self.tx.all(self.sql.makers, (self.tape_id, call_key(call)))
            return [Place(row[0], row[1]) for row in rows]
        rows = self.tx.all(self.sql.family_makers, (self._lineage(), call_key(call)))
        return list({self._placed(row[0], row[1], row[2] or row[3]): None for row in rows})

    def answers(self, maker: Place) -> list[Place]:
        """Return the places of the messages bound to calls of the message at ``maker``, in order of place."""
        self.flush()
        if self.family is None:
            rows = self.tx.all(self.sql.answers, (self.tape_id, 0, maker.lane, maker.ordinal))
            return [Place(row[0], row[1]) for row in sorted(tuple(row) for row in rows)]
        number = self._number(maker.tape)
        rows = self.tx.all(self.sql.family_answers, (self._lineage(), number, maker.lane, maker.ordinal))
        found = []
        for lane, ordinal, tape, _ in sorted(tuple(row) for row in rows):
            place = self._placed(lane, ordinal, tape)
            if place.tape is None or self._existed(place, self.family):
                found.append(place)
        return found

    def _existed(self, place: Place, family: Family) -> bool:
        """Whether an ancestor had placed the message by the time it was forked."""
        member = next(one for one in family.members if one.tape == place.tape)
        at = (member.number, place.lane, place.ordinal)
        row = self.tx.one(self.sql.held, at) or self.tx.one(self.sql.held_last, (*at, _NOW))
        return row is not None and row.placed <= member.asof

    def lane(self, place: Place) -> tuple[int, int]:
        """Return the depth at which a place's lane branches off, and that of its last place if it can be extended."""
        if place.lane == ROOT.lane:
            return 0, -1
        self.flush()
        number = self._number(place.tape)
        row = self.tx.one(self.sql.lane, (number, place.lane))
        if row is None:
            raise Corrupt(self.tape, place.lane, "the lane is missing")
        if place.tape is not None:
            return row[2], -1
        tips = self.tx.one(self.sql.lane_tip, (number, place.lane))
        assert tips is not None
        return row[2], max(tips[0] or 0, tips[1] or 0)

    def contains(self, end: Place, place: Place) -> bool:
        """Whether ``place`` is on the path from the root to ``end``."""
        if end.lane == place.lane and end.tape == place.tape:
            return place.ordinal <= end.ordinal
        self.flush()
        number = self._number(place.tape)
        walk = self.tx.all(self.sql.walk, (self._number(end.tape), end.lane, end.ordinal, max(place.ordinal - 1, 0)))
        return any(at == number and lane == place.lane and lo < place.ordinal <= hi for at, lane, lo, hi in walk)

    def clears(self) -> list[tuple[int, int]]:
        """Return the tape's own clears in force as (seq, messages still hidden), newest first."""
        self.flush()
        return [(row[0], row[1]) for row in self.tx.all(self.sql.clears, (self.tape_id,))]

    def labels(self) -> list[str]:
        """Return the tape's labels."""
        self.flush()
        row = self.tx.one(self.sql.labels, (self.tape_id,))
        return [] if row is None or row[0] is None else list(msgspec.json.decode(row[0]))

    def is_anchor(self, seq: int) -> bool:
        """Whether the entry at ``seq`` is an anchor or a handoff."""
        self.flush()
        row = self.tx.one(self.sql.body, (self.tape_id, seq))
        return row is not None and row[0] in ("anchor", "handoff")

    def returned(self, clear: int) -> list[Place]:
        """Return the places of messages from before a clear that changed since by themselves, shallowest first."""
        self.flush()
        found = [Place(row[0], row[1]) for row in self.tx.all(self.sql.returned, (self.tape_id, clear))]
        if self.family is not None:
            rows = self.tx.all(self.sql.returned_inherited, (self.tape_id, clear))
            found += [place_at(row[1], row[2], row[0], self.family) for row in rows]
        return sorted(found, key=lambda place: (place.ordinal, place.lane, place.tape or ""))


def inherited(tx: Transaction, scope: Scope, *, clears: bool = True) -> Family:
    """Return what a fork made at ``scope`` inherits; without ``clears``, as if the tape itself had never cleared."""
    overriding = scope.family is not None and tx.one(tx.statements.has_overrides, (scope.id, scope.seq)) is not None
    nearest = Member(scope.id, scope.tape, scope.seq, scope.cleared if clears else 0, overriding)
    return Family([nearest, *(scope.family.members if scope.family is not None else ())])


def as_of(tx: Transaction, scope: Scope, *, clears: bool = True) -> TapeLookup:
    """Return the view of a tape at a point, as a fork made there would look it up: every place is inherited."""
    return TapeLookup(tx, scope.tape, 0, inherited(tx, scope, clears=clears))
