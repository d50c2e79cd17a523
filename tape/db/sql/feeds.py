"""The statements that read all tapes at once, in the order in which their entries became final.

On SQLite there is one writer at a time, so the order of rowids is the order of commits. On PostgreSQL a number is
drawn long before its transaction commits, so a reader that goes by numbers passes over what commits late. There the
order is (transaction id, number), and nothing is shown whose transaction id is not below that of every transaction
still running: gate and rows are read in one statement, hence from one snapshot.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect

from tape.db.sql.compiler import ZERO, Compiler, param

__all__ = ["Feeds"]


class Feeds(Compiler):
    """Statements over the entries of all tapes, and over their readers."""

    def _base(self) -> Any:
        """What is added to transaction ids since the database was last restored elsewhere."""
        return sa.select(self.tables.epoch.c.base).scalar_subquery()

    def _own_xid(self) -> Any:
        """This transaction's id, as it is stored with what it writes."""
        own: sa.ColumnClause[int] = sa.literal_column("pg_current_xact_id()::text::bigint")
        return own + self._base()

    def _past(self, rows: Any) -> Any:
        """Whether a row comes behind a place of the feed."""
        if self.postgres:
            return sa.tuple_(rows.xid, rows.position) > sa.tuple_(param("x"), param("p"))
        return rows.position > param("p")

    def _gate(self, rows: Any) -> Any:
        """Whether nothing that comes before a row can still be committed."""
        if self.postgres:
            oldest: sa.ColumnClause[int] = sa.literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
            return rows.xid < oldest + self._base()
        return sa.true()

    def _order(self, rows: Any) -> list[Any]:
        return [rows.xid, rows.position] if self.postgres else [rows.position]

    @property
    def _at(self) -> list[str]:
        """The parameters that name a place of the feed."""
        return ["x", "p"] if self.postgres else ["p"]

    def _define_feeds(self) -> None:
        """Pages of the feed, its end, and the places up to which readers have come."""
        t, make = self.tables, self._make
        e, tp, fk, co = t.entries.c, t.tapes.c, t.forks.c, t.consumers.c
        tb = t.tombstones.c
        # Of a purged tape the tombstone has the seq that may still be seen, and the id that its row may have given up.
        told = [sa.func.coalesce(tb.tape, tp.tape), tp.owner, tb.seq]
        most = param("most", type_=sa.Integer)
        joined = t.entries.join(t.tapes, tp.id == e.tape_id).outerjoin(t.tombstones, tb.tape_id == e.tape_id)
        self.feed_page = make(
            "feed_page",
            sa.select(*self._entry, *told)
            .select_from(joined)
            .where(self._past(e), self._gate(e))
            .order_by(*self._order(e))
            .limit(most)
            .offset(ZERO),
            [*self._at, "most"],
        )
        # Whether there is anything at all behind a place, final or not.
        self.feed_more = make(
            "feed_more",
            sa.select(e.position)
            .where(self._past(e))
            .order_by(*self._order(e))
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            self._at,
        )
        self.feed_end = make(
            "feed_end",
            sa.select(e.xid, e.position)
            .order_by(*(column.desc() for column in self._order(e)))
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            [],
        )
        self.lineage_of = make("lineage_of", sa.select(fk.lineage).where(fk.tape_id == param("t")), ["t"])
        self.consumer = make(
            "consumer",
            sa.select(co.xid, co.position, co.version).where(co.owner == param("whose"), co.name == param("name")),
            ["whose", "name"],
        )
        names = ["owner", "name", "xid", "position", "version"]
        insert: Any = (postgresql.insert if self.postgres else sqlite_dialect.insert)(t.consumers)
        put = insert.values({name: param(name) for name in names})
        self.put_consumer = make(
            "put_consumer",
            put.on_conflict_do_update(
                index_elements=["owner", "name"],
                set_={name: put.excluded[name] for name in ("xid", "position", "version")},
            ),
            names,
        )
        self.drop_consumer = make(
            "drop_consumer",
            sa.delete(t.consumers).where(co.owner == param("whose"), co.name == param("called")),
            ["whose", "called"],
        )
        if self.postgres:
            xmin: sa.ColumnClause[int] = sa.literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
            self.xid_state = make(
                "xid_state",
                sa.select(
                    xmin + self._base(),
                    sa.select(sa.func.max(e.xid)).scalar_subquery(),
                    sa.literal_column("pg_snapshot_xmax(pg_current_snapshot())::text::bigint") + self._base(),
                ),
                [],
            )
            # In a restored database the ids of transactions may begin again below those that are stored.
            newest = sa.select(sa.func.max(t.heads.c.xid)).scalar_subquery()
            self.rebase = make(
                "rebase",
                sa.update(t.epoch).values(
                    base=sa.func.greatest(t.epoch.c.base, newest + sa.literal_column("1") - xmin)
                ),
                [],
            )
