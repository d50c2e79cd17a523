"""What a tape remembers besides messages, read from its slots and compactions: for readers, and for plans."""

from __future__ import annotations

import msgspec

from tape.core.entries import payloads
from tape.core.entries.payloads import ROOT, Payload, Place
from tape.core.plan.lookup import Covered, waiting
from tape.core.summaries.compaction import Summary
from tape.core.summaries.runs import Compaction
from tape.core.view.fold import Head
from tape.core.view.slots import beginning_with
from tape.db.engine.transaction import Transaction
from tape.db.record.lookup import TapeLookup
from tape.db.sql.rows import CompactionRow
from tape.db.view.paths import Paths, Scope
from tape.errors import Corrupt

__all__ = ["Recall", "Remembering"]


class Recall(Paths):
    """Reads slots and compactions of a tape as of a scope."""

    def slot(self, tx: Transaction, scope: Scope, name: str, *, inherited: bool = True) -> tuple[int, Payload] | None:
        """Return the seq and the entry that a slot holds."""
        row = tx.one(self._sql.slot, (_slots_lineage(scope, inherited=inherited), name))
        return None if row is None else (row[1], payloads.decode(row[2], row[3], row[4], scope.tape, row[1]))

    def slots(self, tx: Transaction, scope: Scope, prefix: str) -> list[tuple[str, int, Payload]]:
        """Return every slot whose name begins so, as the nearest tape that has it holds it."""
        return self.slots_between(tx, scope, *beginning_with(prefix))

    def slots_between(self, tx: Transaction, scope: Scope, low: str, high: str) -> list[tuple[str, int, Payload]]:
        """Return every slot in a range of names, as the nearest tape that has it holds it."""
        found: dict[str, tuple[str, int, Payload]] = {}
        for row in tx.all(self._sql.slots, (_slots_lineage(scope), low, high)):
            if row[0] not in found:
                found[row[0]] = (row[0], row[1], payloads.decode(row[2], row[3], row[4], scope.tape, row[1]))
        return list(found.values())

    def compactions_on(self, tx: Transaction, scope: Scope, end: Place, floor: int) -> list[Compaction]:
        """Return the compactions on the path to ``end`` whose whole run is deeper than ``floor``.

        An anchor set inside a run later ends its compaction, as it ends those before it.
        """
        if end == ROOT:
            return []
        params = (scope.number(end), end.lane, end.ordinal, floor, scope.lineage())
        found = self._compactions(tx, scope, tx.all(self._sql.compactions_on_path, params))
        return [one for one in found if one.lo > floor]

    def all_compactions(self, tx: Transaction, scope: Scope) -> list[Compaction]:
        """Return every compaction that the tape has or inherits, as if its own clears were undone."""
        scope = msgspec.structs.replace(scope, clear=None)
        return self._compactions(tx, scope, tx.all(self._sql.all_compactions, (scope.lineage(),)))

    def _compactions(self, tx: Transaction, scope: Scope, rows: list[CompactionRow]) -> list[Compaction]:
        marks: dict[tuple[int, int], tuple[int, bool, bool]] = {}
        if scope.family is not None and rows:
            for mark in tx.all(self._sql.compaction_marks, (scope.lineage(),)):
                marks.setdefault((mark.origin, mark.seq), (mark.gone, bool(mark.revised), bool(mark.loose)))
        levels = {layer[0]: level for level, layer in enumerate(scope.layers())} if scope.family is not None else {}
        found = []
        for row in rows:
            number = row.tape_id
            gone, revised, loose = marks.get((number, row.seq), (row.gone, bool(row.revised), bool(row.loose)))
            tape = None if number == scope.id else scope.name(number)
            place = scope.at(row.lane, row.ordinal, row.head_tape or number)
            found.append(Compaction(tape, row.seq, place, row.lo, gone, revised, loose, levels.get(number, 0)))
        return found

    def compact_entry(self, tx: Transaction, scope: Scope, one: Compaction) -> tuple[payloads.Compact, int]:
        """Return the entry that made a compaction, and when."""
        number = scope.id if one.tape is None or scope.family is None else scope.family.number(one.tape)
        row = tx.one(self._sql.body, (number, one.seq))
        tape = one.tape or scope.tape
        if row is not None and row.payload is not None:
            payload = payloads.decode(row.kind, row.version, row.payload, tape, one.seq)
            if isinstance(payload, payloads.Compact):
                return payload, row.stamp
        raise Corrupt(tape, one.seq, "the compaction's entry is missing")

    def summary_of(self, tx: Transaction, scope: Scope, one: Compaction) -> Summary:
        """Return a compaction as readers see it."""
        entry, stamp = self.compact_entry(tx, scope, one)
        return Summary(
            text=entry.text,
            seq=one.seq,
            first=entry.first,
            last=entry.last,
            covers=entry.covers,
            stale=one.revised,
            tape=one.tape or scope.tape,
            span=entry.span,
            lo=one.lo,
            hi=one.place.ordinal,
            stamp=stamp,
            levels_up=one.levels_up,
        )


def _slots_lineage(scope: Scope, *, inherited: bool = True) -> str:
    """Return the lineage for slots: a clear takes messages only, so every ancestor counts."""
    own = (scope.id, scope.seq, 0, 1)
    if scope.family is None or not inherited:
        return f"[[{own[0]},{own[1]},0,1]]"
    return scope.family.parameter(own)


class Remembering(TapeLookup):
    """A tape's lookups with those that plans of summaries, state and blocks need."""

    head: Head

    def _reader(self) -> Recall:
        raise AssertionError("the writer has one")

    def _scope(self) -> Scope:
        """Return the tape as it stands in this transaction."""
        self.flush()
        clear = None
        if self.head.cleared:
            row = self.tx.one(self.sql.clear_at, (self.tape_id, self.head.seq))
            if row is not None:
                clear = (row[0], self._placed(row[2], row[3], row[1] or self.tape_id), bool(row[4]))
        return Scope(self.tape, self.tape_id, self.head.seq, True, self.head, clear, self.family)

    def slot(self, name: str, *, inherited: bool = True) -> Payload | None:
        """Return the entry that a slot holds."""
        found = self._reader().slot(self.tx, self._scope(), name, inherited=inherited)
        return None if found is None else found[1]

    def slots(self, prefix: str) -> list[tuple[str, int, Payload]]:
        """Return every slot whose name begins so."""
        return self._reader().slots(self.tx, self._scope(), prefix)

    def compactions(self) -> list[Compaction]:
        """Return every compaction that is in force on some path or would be if the tape's own clears were undone."""
        return self._reader().all_compactions(self.tx, self._scope())

    def compactions_on(self, end: Place) -> list[Compaction]:
        """Return the compactions on the path to ``end``, after its latest anchor and any clear."""
        scope = self._scope()
        return self._reader().compactions_on(self.tx, scope, end, self.anchor_depth(end))

    def covers(self, one: Compaction) -> list[str]:
        """Return the ids of the messages that a compaction covers."""
        return self._reader().compact_entry(self.tx, self._scope(), one)[0].covers

    def summary(self, one: Compaction) -> Summary:
        """Return a compaction as readers see it."""
        return self._reader().summary_of(self.tx, self._scope(), one)

    def anchor_depth(self, end: Place) -> int:
        """Return the depth of the latest anchor on the path to ``end``, or 0."""
        row = self._reader().anchor_row(self.tx, self._scope(), end)
        return 0 if row is None else row[1]

    def run(self, first: Place, last: Place) -> list[Covered]:
        """Return the visible messages from one place to another."""
        scope, reader = self._scope(), self._reader()
        found = []
        for row in reader._path(self.tx, scope, last, first.ordinal - 1):
            place = scope.at(row[7], row[0], scope.placed_on(row))
            body = payloads.body_of(row[3], row[4], row[5])
            found.append(Covered(body.id, place, body.calls, waiting(body), self.bindings(place, row[1])))
        return found

    def id_at(self, place: Place) -> str:
        """Return the id of the message at a place."""
        standing = self.standing(place)
        return self.body(standing.body, standing.of).id
