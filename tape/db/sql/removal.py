"""The statements by which whole tapes go and come: tombstones, purges in batches, and imports under way."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.catalog import PURGED
from tape.db.sql.compiler import ZERO, Param, Statement, derived, param, query, statement
from tape.db.sql.feeds import Feeds
from tape.db.sql.rows.entries import ENTRY_COLUMNS
from tape.db.sql.rows.upkeep import BuriedRow, HashRow, HiddenTape, LinkRow, Tombstone

__all__ = ["BATCH", "Removal"]

BATCH = 2_000
"""How many rows one step of a purge takes."""
_BATCH: sa.ColumnClause[int] = sa.literal_column(str(BATCH))
_FORGOTTEN = ("name", "agent", "labels", "meta", "reason", "redirect", "hidden")


class Removal(Feeds):
    """Statements over tapes that are purged or imported."""

    # -- purges

    @statement
    def bury(self, of: Param) -> Any:
        """A tape vanishes."""
        gone = {"status": PURGED, **dict.fromkeys(_FORGOTTEN, sa.null())}
        return sa.update(self.tables.tapes).where(self.tables.tapes.c.id == of).values(gone)

    @derived
    def insert_tombstone(self) -> Statement[Any]:
        """What is left of it."""
        return self._insert(self.tables.tombstones)

    @query(Tombstone)
    def tombstone(self, tape: Param) -> Any:
        """The tombstones of an id, newest first."""
        tb = self.tables.tombstones.c
        columns = (tb.tape_id, tb.owner, tb.seq, tb.hash, tb.stamp, tb.emptied)
        return sa.select(*columns).where(tb.tape == tape).order_by(tb.tape_id.desc())

    @statement
    def emptied(self, t: Param) -> Any:
        """The rows of a purged tape are gone."""
        tb = self.tables.tombstones
        return sa.update(tb).where(tb.c.tape_id == t).values(emptied=sa.literal_column("1"))

    @query(BuriedRow)
    def unemptied(self) -> Any:
        """The purged tapes whose rows are not all gone."""
        tb = self.tables.tombstones.c
        return sa.select(tb.tape_id, tb.tape, tb.seq, tb.owner).where(tb.emptied == ZERO).order_by(tb.tape_id)

    @statement
    def purge_entries(self, t: Param, last: Param) -> Any:
        """A batch of a purged tape's entries; the last one is its tombstone and stays."""
        e = self.tables.entries.c
        batch = sa.select(e.seq).where(e.tape_id == t, e.seq < last).order_by(e.seq).limit(_BATCH).offset(ZERO)
        return sa.delete(self.tables.entries).where(e.tape_id == t, e.seq.in_(batch))

    @derived
    def purge_rows(self) -> list[Statement[Any]]:
        """A batch of a purged tape's rows in every table that has any, also those that later revisions add."""
        t = self.tables
        # The texts of the search index go with their words, which only the index knows.
        others = {t.heads, t.entries, t.tombstones, t.texts}
        tables = [table for table in t.metadata.sorted_tables if "tape_id" in table.c and table not in others]
        return [self._purge_rows(table) for table in tables]

    def _purge_rows(self, table: sa.Table) -> Statement[Any]:
        key = [column for column in table.primary_key.columns if column.name != "tape_id"]
        where: list[Any] = [table.c.tape_id == param("t")]
        if key:
            batch = sa.select(*key).where(*where).limit(_BATCH).offset(ZERO)
            where.append(sa.tuple_(*key).in_(batch) if len(key) > 1 else key[0].in_(batch))
        return Statement(f"purge_{table.name}", sa.delete(table).where(*where), self.dialect, ["t"])

    @query(LinkRow)
    def linking(self, t: Param) -> Any:
        """The tape that a fork was merged into or linked to."""
        c, fk = self.tables.tapes.c, self.tables.forks.c
        return (
            sa.select(fk.parent_id, c.tape, fk.merge_seq)
            .select_from(self.tables.forks.join(self.tables.tapes, c.id == fk.parent_id))
            .where(fk.tape_id == t, fk.state == sa.literal_column("'merged'"), c.status != PURGED)
        )

    # -- imports

    @statement
    def imported(self, t: Param) -> Any:
        """How far a tape came from elsewhere."""
        return sa.select(self.tables.imports.c.seq).where(self.tables.imports.c.tape_id == t)

    @statement
    def drop_import(self, t: Param) -> Any:
        """Forget how far a tape came from elsewhere."""
        return sa.delete(self.tables.imports).where(self.tables.imports.c.tape_id == t)

    @derived
    def insert_import(self) -> Statement[Any]:
        """How far a tape came from elsewhere."""
        return self._insert(self.tables.imports)

    @query(HashRow)
    def hashes_after(self, tape: Param, after: Param, to: Param) -> Any:
        """A page of a tape's hashes."""
        c, e = self.tables.tapes.c, self.tables.entries.c
        hashes = sa.select(e.seq, e.hash).select_from(self.tables.tapes.join(self.tables.entries, e.tape_id == c.id))
        page = hashes.where(c.tape == tape, e.seq > after, e.seq <= to)
        return page.order_by(e.seq).limit(_BATCH).offset(ZERO)

    @derived
    def insert_arrival(self) -> Statement[Any]:
        """An entry of a hidden tape."""
        return self._insert(self.tables.arrivals)

    @statement
    def arrival_hash(self, t: Param, seq: Param) -> Any:
        """The hash of an entry of a hidden tape."""
        ar = self.tables.arrivals.c
        return sa.select(ar.hash).where(ar.tape_id == t, ar.seq == seq)

    @derived
    def take_arrivals(self) -> Statement[Any] | None:
        """Show the entries of a hidden tape, in the order of their seqs, which is the feed's order from now on.

        None on Citus, where the worker would give them its own numbers.
        """
        if self.sharded:
            return None
        ar = self.tables.arrivals.c
        xid = self._own_xid() if self.postgres else ZERO
        waiting = sa.select(*(ar[name] for name in ENTRY_COLUMNS), xid).where(ar.tape_id == param("t"))
        moved = sa.insert(self.tables.entries).from_select([*ENTRY_COLUMNS, "xid"], waiting.order_by(ar.seq))
        return Statement("take_arrivals", moved, self.dialect, ["t"])

    @statement
    def arrivals_after(self, t: Param, after: Param, most: Param) -> Any:
        """On Citus: a page of the entries of a hidden tape, which come among the others through the client."""
        ar = self.tables.arrivals.c
        page = sa.select(*(ar[name] for name in ENTRY_COLUMNS)).where(ar.tape_id == t, ar.seq > after)
        return page.order_by(ar.seq).limit(most).offset(ZERO)

    @statement
    def drop_arrivals(self, t: Param) -> Any:
        """The entries of a hidden tape go."""
        return sa.delete(self.tables.arrivals).where(self.tables.arrivals.c.tape_id == t)

    def _hidden(self, of: Param, hidden: Param) -> tuple[Any, ...]:
        """Return whether a row is still an import's: the number of one that was dropped may be another's now."""
        c = self.tables.tapes.c
        return c.id == of, c.tape == hidden

    @statement
    def hide_tape(self, now: Param, of: Param, hidden: Param) -> Any:
        """Hide the tape of an import."""
        return sa.update(self.tables.tapes).where(*self._hidden(of, hidden)).values(status=PURGED, created_at=now)

    @statement
    def show_tape(self, new_tape: Param, created: Param, of: Param, hidden: Param) -> Any:
        """Show the tape of an import."""
        shown = {"tape": new_tape, "created_at": created}
        return sa.update(self.tables.tapes).where(*self._hidden(of, hidden)).values(shown)

    @statement
    def drop_tape(self, of: Param, hidden: Param) -> Any:
        """Drop the tape of an import."""
        return sa.delete(self.tables.tapes).where(*self._hidden(of, hidden))

    @query(HiddenTape)
    def abandoned(self, low: Param, high: Param, before: Param) -> Any:
        """The hidden tapes of imports that gave no sign of life since a moment."""
        c = self.tables.tapes.c
        return sa.select(c.id, c.tape, c.owner).where(c.tape >= low, c.tape < high, c.created_at < before)

    @statement
    def sign_tapes(self, now: Param, low: Param, high: Param) -> Any:
        """A sign of life of an import."""
        c = self.tables.tapes.c
        return sa.update(self.tables.tapes).where(c.tape >= low, c.tape < high).values(created_at=now)
