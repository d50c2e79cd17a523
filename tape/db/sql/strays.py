"""The statements that verify asks beside the tapes: rows that belong to none, and what purged tapes left."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.catalog import PURGED
from tape.db.sql.compiler import ONE, ZERO, Compiler, Param, Statement, derived, query, statement
from tape.db.sql.rows.upkeep import BuriedTape

__all__ = ["Strays"]


class Strays(Compiler):
    """Statements over rows that no tape accounts for."""

    @property
    def _tape_tables(self) -> list[sa.Table]:
        return [table for table in self.tables.metadata.sorted_tables if "tape_id" in table.c]

    def _counted(self, table: sa.Table) -> sa.Select[Any]:
        """Return how many rows a table holds of each tape, and the first seq of them if they have one."""
        first = sa.func.min(table.c.seq) if "seq" in table.c else ZERO
        return sa.select(table.c.tape_id, sa.func.count(), first).group_by(table.c.tape_id).order_by(table.c.tape_id)

    def _orphaned(self, table: sa.Table) -> Any:
        c = self.tables.tapes.c
        return ~sa.exists(sa.select(c.id).where(c.id == table.c.tape_id))

    @derived
    def orphans(self) -> dict[str, Statement[Any]]:
        """The rows of each table whose tape does not exist, by the table's name."""
        return {
            table.name: Statement(
                f"orphans_{table.name}", self._counted(table).where(self._orphaned(table)), self.dialect, []
            )
            for table in self._tape_tables
        }

    @derived
    def remains(self) -> dict[str, Statement[Any]]:
        """The rows of each table whose tape was purged to the end, by the table's name."""
        t = self.tables
        # A check may be noted of a tape that is being purged, so that one is no sign of damage.
        expected = {t.heads, t.tombstones, t.checks}
        return {table.name: self._remains(table) for table in self._tape_tables if table not in expected}

    def _remains(self, table: sa.Table) -> Statement[Any]:
        tb = self.tables.tombstones.c
        last = (tb.seq != table.c.seq,) if table is self.tables.entries else ()
        buried = sa.exists(sa.select(tb.tape_id).where(tb.tape_id == table.c.tape_id, tb.emptied == ONE, *last))
        return Statement(f"remains_{table.name}", self._counted(table).where(buried), self.dialect, [])

    @derived
    def sweep_view(self) -> list[Statement[Any]]:
        """Delete the rows of the view that belong to no tape."""
        tb = self.tables.tombstones.c
        gone = sa.select(tb.tape_id).where(tb.emptied == ONE)
        return [
            Statement(
                f"sweep_{table.name}",
                sa.delete(table).where(sa.or_(self._orphaned(table), table.c.tape_id.in_(gone))),
                self.dialect,
                [],
            )
            for table in self.tables.view
        ]

    @statement
    def stuck_arrivals(self) -> Any:
        """Entries of imports that wait under tapes which are shown already."""
        c, ar = self.tables.tapes.c, self.tables.arrivals
        shown = sa.exists(sa.select(c.id).where(c.id == ar.c.tape_id, c.status != PURGED))
        return self._counted(ar).where(shown)

    @query(BuriedTape)
    def tombstones(self) -> Any:
        """Each tombstone with the rows that it must agree with."""
        t = self.tables
        c, h, e, tb = t.tapes.c, t.heads.c, t.entries.c, t.tombstones.c
        return (
            sa.select(
                *(tb[name] for name in ("tape_id", "tape", "owner", "seq", "hash", "stamp", "emptied")),
                *(c.tape, c.owner, c.status, h.seq, h.hash),
                *(e.hash, e.stamp, e.kind, e.version, e.payload),
            )
            .select_from(
                t.tombstones.join(t.tapes, c.id == tb.tape_id)
                .outerjoin(t.heads, h.tape_id == tb.tape_id)
                .outerjoin(t.entries, sa.and_(e.tape_id == tb.tape_id, e.seq == tb.seq))
            )
            .order_by(tb.tape_id)
        )

    @statement
    def unburied(self, low: Param, high: Param) -> Any:
        """Tapes that count as purged and have no tombstone, but for the hidden tapes of imports."""
        c, tb = self.tables.tapes.c, self.tables.tombstones.c
        return (
            sa.select(c.id, c.tape, c.owner)
            .where(
                c.status == PURGED,
                sa.not_(sa.and_(c.tape >= low, c.tape < high)),
                ~sa.exists(sa.select(tb.tape_id).where(tb.tape_id == c.id)),
            )
            .order_by(c.id)
        )
