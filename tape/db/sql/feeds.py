"""The statements that read all tapes at once, in the order in which their entries became final.

On SQLite there is one writer at a time, so the order of rowids is the order of commits. On PostgreSQL a number is
drawn long before its transaction commits, so a reader that follows the numbers misses what commits late. There the
order is (transaction id, number), and nothing is shown whose transaction id is not below that of every transaction
still running: gate and rows are read in one statement, hence from one snapshot. A place of the feed is therefore two
parameters, ``x`` and ``p``; on SQLite the first is not used.

On a Citus cluster transactions count on the coordinator, while what a SELECT asks is answered by a worker, which has
numbers of its own. There the gate is asked first, on the coordinator, and passed as a parameter. That is right since a
worker commits before the coordinator does: what is final when the gate is asked can be read behind it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ONE, ZERO, Compiler, Param, only_first, query, statement
from tape.db.sql.rows.feed import ConsumerRow, FeedPlace, FeedRow, Snapshot, XidState

__all__ = ["OWN_XID", "SINCE", "Feeds"]

_OLDEST_RUNNING = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NEXT_XID = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
OWN_XID = "pg_current_xact_id()::text::bigint"
SINCE = "extract(epoch FROM pg_postmaster_start_time())::text"
_CONSUMER = ("owner", "name", "xid", "position", "version")


class Feeds(Compiler):
    """Statements over the entries of all tapes, and over their readers."""

    def _base(self) -> Any:
        """What is added to transaction ids since the database was last restored elsewhere."""
        return sa.select(self.tables.epoch.c.base).scalar_subquery()

    def _own_xid(self) -> Any:
        """This transaction's id, as it is stored with what it writes; in a change Citus asks the coordinator for it."""
        own: sa.ColumnClause[int] = sa.literal_column(OWN_XID)
        return own + self._base()

    def _oldest_running(self, oldest: Param) -> Any:
        """The oldest running transaction: where the statement runs, or as it was asked before on the coordinator."""
        running: sa.ColumnClause[int] = sa.literal_column(_OLDEST_RUNNING)
        return (sa.cast(oldest, sa.BigInteger) if self.sharded else running) + self._base()

    @query(Snapshot)
    def snapshot(self) -> Any:
        """On PostgreSQL: the oldest running transaction, and the next one."""
        return sa.select(sa.literal_column(_OLDEST_RUNNING), sa.literal_column(_NEXT_XID))

    @statement
    def own_xid(self) -> Any:
        """On PostgreSQL: this transaction's id, which it is given by that."""
        return sa.select(sa.literal_column(OWN_XID))

    @statement
    def xid_for(self, own: Param, t: Param) -> Any:
        """On Citus: what is stored as the transaction of a tape's new entries, after asking for its id."""
        h, base = self.tables.heads.c, self._base()
        return sa.select(sa.func.greatest(h.xid, sa.cast(own, sa.BigInteger) + base)).where(h.tape_id == t)

    @statement
    def running_since(self) -> Any:
        """On PostgreSQL: since when the server is running."""
        return sa.select(sa.literal_column(SINCE))

    @statement
    def base(self) -> Any:
        """On PostgreSQL: what is added to transaction ids."""
        return sa.select(self.tables.epoch.c.base)

    def _past(self, rows: Any, x: Param, p: Param) -> Any:
        """Whether a row comes behind a place of the feed."""
        return sa.tuple_(rows.xid, rows.position) > sa.tuple_(x, p) if self.postgres else rows.position > p

    def _gate(self, rows: Any, oldest: Param) -> Any:
        """Whether nothing that comes before a row can still be committed."""
        return rows.xid < self._oldest_running(oldest) if self.postgres else sa.true()

    def _order(self, rows: Any) -> list[Any]:
        return [rows.xid, rows.position] if self.postgres else [rows.position]

    @query(FeedRow.of)
    def feed_page(self, x: Param, p: Param, most: Param, oldest: Param) -> Any:
        """A page of entries behind a place.

        Of a purged tape the tombstone has the seq that may still be seen, and the id that its row may have given up.
        """
        t = self.tables
        e, tp, tb = t.entries.c, t.tapes.c, t.tombstones.c
        joined = t.entries.join(t.tapes, tp.id == e.tape_id).outerjoin(t.tombstones, tb.tape_id == e.tape_id)
        return (
            sa.select(*self._entry, sa.func.coalesce(tb.tape, tp.tape), tp.owner, tb.seq)
            .select_from(joined)
            .where(self._past(e, x, p), self._gate(e, oldest))
            .order_by(*self._order(e))
            .limit(most)
            .offset(ZERO)
        )

    @query(FeedPlace)
    def feed_end(self) -> Any:
        """The place of the last entry."""
        e = self.tables.entries.c
        return only_first(sa.select(e.xid, e.position).order_by(*(column.desc() for column in self._order(e))))

    @query(ConsumerRow)
    def consumer(self, whose: Param, name: Param) -> Any:
        """How far a named reader has come."""
        co = self.tables.consumers.c
        return sa.select(co.xid, co.position, co.version).where(co.owner == whose, co.name == name)

    @query(columns=_CONSUMER)
    def put_consumer(self, new: dict[str, Param]) -> Any:
        """How far a named reader has come now."""
        upsert = self.own.insert(self.tables.consumers).values(new)
        moved = {name: upsert.excluded[name] for name in ("xid", "position", "version")}
        return upsert.on_conflict_do_update(index_elements=["owner", "name"], set_=moved)

    @statement
    def drop_consumer(self, whose: Param, called: Param) -> Any:
        """Forget a named reader."""
        co = self.tables.consumers.c
        return sa.delete(self.tables.consumers).where(co.owner == whose, co.name == called)

    @query(XidState)
    def xid_state(self, oldest: Param, following: Param) -> Any:
        """On PostgreSQL: the oldest running transaction, the newest stored, and the next one."""
        newest = sa.select(sa.func.max(self.tables.entries.c.xid)).scalar_subquery()
        local: sa.ColumnClause[int] = sa.literal_column(_NEXT_XID)
        behind = sa.cast(following, sa.BigInteger) if self.sharded else local
        return sa.select(self._oldest_running(oldest), newest, behind + self._base())

    @statement
    def rebase(self, oldest: Param) -> Any:
        """In a restored database the ids of transactions may begin again below those that are stored."""
        t = self.tables
        newest = sa.select(sa.func.max(t.heads.c.xid)).scalar_subquery()
        local: sa.ColumnClause[int] = sa.literal_column(_OLDEST_RUNNING)
        running = sa.cast(oldest, sa.BigInteger) if self.sharded else local
        return sa.update(t.epoch).values(base=sa.func.greatest(t.epoch.c.base, newest + ONE - running))
