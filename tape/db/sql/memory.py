"""The statements that read what a tape remembers besides messages: slots and compactions, over its whole lineage."""

from __future__ import annotations

import sqlalchemy as sa

from tape.db.sql.compiler import ZERO, param
from tape.db.sql.lineages import Lineages

__all__ = ["Memory"]


class Memory(Lineages):
    """Statements over slots and compactions."""

    def _define_memory(self) -> None:
        """Slots by name and by prefix; compactions on a path and all of them."""
        t, make, lin, walk = self.tables, self._make, self._lineage(), self._walk(self.tables)
        e, s, c = t.entries.c, t.slots.c, t.compactions.c
        held = sa.and_(
            s.tape_id == lin.c.tape_id, s.since <= lin.c.asof, sa.or_(s.until.is_(None), s.until > lin.c.asof)
        )
        entry = sa.and_(e.tape_id == s.tape_id, e.seq == s.since)
        columns = [s.slot, s.since, e.kind, e.version, e.payload]
        self.slot = make(
            "slot",
            sa.select(*columns)
            .select_from(lin.join(t.slots, sa.and_(held, s.slot == param("slot"))).join(t.entries, entry))
            .order_by(lin.c.n)
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["lineage", "slot"],
        )
        self.slots = make(
            "slots",
            sa.select(*columns)
            .select_from(
                lin.join(t.slots, sa.and_(held, s.slot >= param("low"), s.slot < param("high"))).join(t.entries, entry)
            )
            .order_by(lin.c.n),
            ["lineage", "low", "high"],
        )
        # Every entry of the tape's own that wrote a slot since a seq, oldest first.
        self.slot_entries = make(
            "slot_entries",
            sa.select(e.kind, e.version, e.payload)
            .select_from(t.slots.join(t.entries, entry))
            .where(s.tape_id == param("t"), s.slot == param("slot"), s.since > param("after"))
            .order_by(s.since),
            ["t", "slot", "after"],
        )
        current = sa.and_(
            c.tape_id == lin.c.tape_id, c.since <= lin.c.asof, sa.or_(c.until.is_(None), c.until > lin.c.asof)
        )
        facts = [lin.c.tape_id, c.origin, c.seq, c.head_tape, c.lane, c.ordinal, c.lo, c.gone, c.revised, c.loose]
        self.compactions_on_path = make(
            "compactions_on_path",
            sa.select(*facts).select_from(
                walk.join(lin, sa.true()).join(
                    t.compactions,
                    sa.and_(
                        current,
                        c.origin == ZERO,
                        c.head_tape == sa.case((lin.c.tape_id == walk.c.tape_id, ZERO), else_=walk.c.tape_id),
                        c.lane == walk.c.lane,
                        c.ordinal > walk.c.lo,
                        c.ordinal <= walk.c.hi,
                        c.ordinal > param("floor"),
                        c.seq > lin.c.cleared,
                        c.seq <= lin.c.asof,
                    ),
                )
            ),
            ["t", "at_lane", "at_ordinal", "floor", "lineage"],
        )
        self.all_compactions = make(
            "all_compactions",
            sa.select(*facts).select_from(
                lin.join(t.compactions, sa.and_(current, c.origin == ZERO, c.seq > lin.c.cleared))
            ),
            ["lineage"],
        )
        # What forks in the lineage did to sources of inherited compactions, nearest first.
        self.compaction_marks = make(
            "compaction_marks",
            sa.select(c.origin, c.seq, c.gone, c.revised, c.loose)
            .select_from(lin.join(t.compactions, sa.and_(current, c.origin != ZERO)))
            .order_by(lin.c.n),
            ["lineage"],
        )
