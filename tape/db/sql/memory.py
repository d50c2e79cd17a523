"""The statements that read what a tape remembers besides messages: slots and compactions, over its whole lineage."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.core.view.slots import ASKED, beginning_with
from tape.db.sql.catalog import PURGED
from tape.db.sql.compiler import ZERO, Param, Statement, derived, only_first, param, query
from tape.db.sql.lineages import Lineages
from tape.db.sql.rows.entries import BodyRow, EntryRow
from tape.db.sql.rows.feed import AskedRow
from tape.db.sql.rows.view import CompactionMark, CompactionRow, SlotRow

__all__ = ["Memory"]

EMPTY: sa.ColumnClause[str] = sa.literal_column("''")


class Memory(Lineages):
    """Statements over slots and compactions."""

    def _slots(self, lin: sa.CTE, *named: Any) -> Any:
        """Return what slots hold for the tapes of a lineage, nearest first."""
        e, s = self.tables.entries.c, self.tables.slots.c
        ended = sa.or_(s.until.is_(None), s.until > lin.c.asof)
        held = sa.and_(s.tape_id == lin.c.tape_id, s.since <= lin.c.asof, ended, *named)
        entry = sa.and_(e.tape_id == s.tape_id, e.seq == s.since)
        return (
            sa.select(s.slot, s.since, e.kind, e.version, e.payload, s.tape_id)
            .select_from(lin.join(self.tables.slots, held).join(self.tables.entries, entry))
            .order_by(lin.c.n)
        )

    @query(SlotRow)
    def slot(self, lineage: Param, slot: Param) -> Any:
        """What a slot holds."""
        return only_first(self._slots(self._lineage(), self.tables.slots.c.slot == slot))

    @query(SlotRow)
    def slots(self, lineage: Param, low: Param, high: Param) -> Any:
        """What every slot in a range of names holds, on each tape of the lineage."""
        s = self.tables.slots.c
        return self._slots(self._lineage(), s.slot >= low, s.slot < high)

    @query(SlotRow)
    def slots_named(self, lineage: Param, names: Param) -> Any:
        """What each of the named slots holds, on each tape of the lineage that has it, nearest first.

        The names are looked up one by one, as taken keys are. The seq of the entry is in a form from which SQLite
        concludes nothing: it would walk the entries of the whole tape, and look for the slot that each may hold.
        """
        lin, names_cte, e, slots = self._lineage(), self._names(), self.tables.entries, self.tables.slots
        s = slots.c
        ended = sa.or_(s.until.is_(None), s.until > lin.c.asof)
        seen = (s.tape_id == lin.c.tape_id, s.since <= lin.c.asof, ended)
        if self.postgres:
            rows, on = self._index_join(slots, ("slot", "since", "tape_id"), (s.slot == names_cte.c.name, *seen))
            joined = lin.join(names_cte, sa.true()).join(rows, on)
        else:
            rows, joined = slots, lin.join(slots, sa.and_(*seen, s.slot.in_(sa.select(names_cte.c.name))))
        where = (e.c.tape_id == rows.c.tape_id, e.c.seq == rows.c.since + ZERO)
        entries, on = self._index_join(e, ("kind", "version", "payload"), where)
        columns = (rows.c.slot, rows.c.since, entries.c.kind, entries.c.version, entries.c.payload, rows.c.tape_id)
        return sa.select(*columns).select_from(joined.join(entries, on)).order_by(lin.c.n)

    @query(BodyRow)
    def slot_entries(self, t: Param, slot: Param, after: Param) -> Any:
        """Every entry of the tape's own that wrote a slot since a seq, oldest first."""
        e, s = self.tables.entries.c, self.tables.slots.c
        entry = sa.and_(e.tape_id == s.tape_id, e.seq == s.since)
        return (
            sa.select(e.kind, e.version, e.payload, e.stamp, e.key)
            .select_from(self.tables.slots.join(self.tables.entries, entry))
            .where(s.tape_id == t, s.slot == slot, s.since > after)
            .order_by(s.since)
        )

    @derived
    def _request_listings(self) -> dict[frozenset[str], Statement[AskedRow]]:
        return {}

    def open_requests(self, filters: frozenset[str]) -> Statement[AskedRow]:
        """Return the listing of open requests behind a slot and a tape, of all tapes or of those that are meant."""
        if filters not in self._request_listings:
            params = [*sorted(filters), "slot", "number", "most"]
            query = self._open_requests(filters)
            self._request_listings[filters] = Statement("open_requests", query, self.dialect, params, AskedRow.of)
        return self._request_listings[filters]

    def _open_requests(self, filters: frozenset[str]) -> Any:
        s, t, e = self.tables.slots.c, self.tables.tapes.c, self.tables.entries.c
        entry = sa.and_(e.tape_id == s.tape_id, e.seq == s.since)
        # Spelt out as in the index, which has the open ones only; parameters would not be known to be within it.
        low, high = (sa.literal_column(repr(name), sa.Text) for name in beginning_with(ASKED))
        behind = sa.or_(s.slot > param("slot"), s.tape_id > param("number"))
        where = [s.until.is_(None), s.slot >= low, s.slot < high, s.slot >= param("slot"), behind]
        where += [t.hidden.is_(None), t.status != PURGED]
        # As a function, so that nobody reads all tapes of an owner to find the few that wait.
        where += [sa.func.coalesce(t[name], EMPTY) == param(name) for name in sorted(filters)]
        return (
            sa.select(*(e[name] for name in EntryRow._fields), t.tape, s.slot)
            .select_from(self.tables.slots.join(self.tables.tapes, t.id == s.tape_id).join(self.tables.entries, entry))
            .where(*where)
            .order_by(s.slot, s.tape_id)
            .limit(param("most", type_=sa.Integer))
            .offset(ZERO)
        )

    def _current_compactions(self, lin: sa.CTE) -> Any:
        c = self.tables.compactions.c
        ended = sa.or_(c.until.is_(None), c.until > lin.c.asof)
        return sa.and_(c.tape_id == lin.c.tape_id, c.since <= lin.c.asof, ended)

    def _compaction_facts(self, lin: sa.CTE) -> list[Any]:
        c = self.tables.compactions.c
        return [lin.c.tape_id, c.origin, c.seq, c.head_tape, c.lane, c.ordinal, c.lo, c.gone, c.revised, c.loose]

    @query(CompactionRow)
    def compactions_on_path(self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param, lineage: Param) -> Any:
        """The compactions whose runs end on a path."""
        lin, walk, c = self._lineage(), self._walk(t, at_lane, at_ordinal, floor), self.tables.compactions.c
        on_path = sa.and_(
            self._current_compactions(lin),
            c.origin == ZERO,
            c.head_tape == sa.case((lin.c.tape_id == walk.c.tape_id, ZERO), else_=walk.c.tape_id),
            c.lane == walk.c.lane,
            c.ordinal > walk.c.lo,
            c.ordinal <= walk.c.hi,
            c.ordinal > floor,
            c.seq > lin.c.cleared,
            c.seq <= lin.c.asof,
        )
        return sa.select(*self._compaction_facts(lin)).select_from(
            walk.join(lin, sa.true()).join(self.tables.compactions, on_path)
        )

    @query(CompactionRow)
    def all_compactions(self, lineage: Param) -> Any:
        """Every compaction that the tapes of a lineage made."""
        lin, c = self._lineage(), self.tables.compactions.c
        own = sa.and_(self._current_compactions(lin), c.origin == ZERO, c.seq > lin.c.cleared)
        return sa.select(*self._compaction_facts(lin)).select_from(lin.join(self.tables.compactions, own))

    @query(CompactionMark)
    def compaction_marks(self, lineage: Param) -> Any:
        """What forks in the lineage did to sources of inherited compactions, nearest first."""
        lin, c = self._lineage(), self.tables.compactions.c
        marked = sa.and_(self._current_compactions(lin), c.origin != ZERO)
        return (
            sa.select(c.origin, c.seq, c.gone, c.revised, c.loose)
            .select_from(lin.join(self.tables.compactions, marked))
            .order_by(lin.c.n)
        )
