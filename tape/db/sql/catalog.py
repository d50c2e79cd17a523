"""The statements of the store around the tapes: listings, checks, counts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ZERO, Compiler, Param, Statement, derived, only_first, param, query, statement
from tape.db.sql.rows.tapes import HEAD_COLUMNS, TAPE_COLUMNS, CountRow, ListedRow, UsedRow
from tape.db.sql.rows.upkeep import CheckRow

__all__ = ["PURGED", "Catalog"]

PURGED: sa.ColumnClause[str] = sa.literal_column("'purged'")


class Catalog(Compiler):
    """Statements over many tapes, and over what is known of a tape beside its entries."""

    @derived
    def _listings(self) -> dict[tuple[frozenset[str], str, bool | None], Statement[ListedRow]]:
        return {}

    def listing(self, filters: frozenset[str], order: str, hidden: bool | None) -> Statement[ListedRow]:
        """Return the listing with these filters: a page of tapes with their heads, and where they were forked off.

        They are the hidden ones, those that are not, or (None) both. One statement per set of filters, so that each can
        use the index that serves it.
        """
        variant = filters, order, hidden
        if variant not in self._listings:
            query = self._listing(*variant)
            moment = ["moment"] if "cursor" in filters and order == "updated" else []
            params = [*sorted(filters), *moment, "most"]
            self._listings[variant] = Statement("listing", query, self.dialect, params, ListedRow.of)
        return self._listings[variant]

    def _listing(self, filters: frozenset[str], order: str, hidden: bool | None) -> Any:
        t = self.tables
        c, h, fk, lb = t.tapes.c, t.heads.c, t.forks.c, t.labels.c
        e, s, parents = t.entries.c, t.slots.c, t.tapes.alias("parents")
        tables: Any = t.tapes.join(t.heads, h.tape_id == c.id)
        tables = tables.outerjoin(t.forks, fk.tape_id == c.id).outerjoin(parents, parents.c.id == fk.parent_id)
        # The latest entry that counted usage holds the totals.
        usage = sa.select(sa.func.max(s.since)).where(s.tape_id == c.id, s.slot == sa.literal_column("'usage'"))
        latest = usage.correlate(t.tapes).scalar_subquery()
        tables = tables.outerjoin(t.entries, sa.and_(e.tape_id == c.id, e.seq == latest))
        if "label" in filters:
            tables = tables.join(t.labels, sa.and_(lb.tape_id == c.id, lb.label == param("label")))
        columns = [*(c[name] for name in TAPE_COLUMNS), *(h[name] for name in HEAD_COLUMNS)]
        ordering: dict[str, list[Any]] = {
            "created": [c.id.desc()],
            "oldest": [c.id],
            "updated": [h.stamp.desc(), c.id.desc()],
        }
        return (
            sa.select(*columns, parents.c.tape, fk.seq, e.kind, e.version, e.payload)
            .select_from(tables)
            .where(*self._listed(filters, order, hidden))
            .order_by(*ordering[order])
            .limit(param("most", type_=sa.Integer))
            .offset(ZERO)
        )

    def _listed(self, filters: frozenset[str], order: str, hidden: bool | None) -> list[Any]:
        """Return the conditions of a listing."""
        c, h, fk = self.tables.tapes.c, self.tables.heads.c, self.tables.forks.c
        where: list[Any] = [c.status != PURGED]
        if hidden is not None:
            where.append(c.hidden.isnot(None) if hidden else c.hidden.is_(None))
        where += [c[name] == param(name) for name in ("owner", "agent", "status", "name") if name in filters]
        if "id_from" in filters:
            where += [c.tape >= param("id_from"), c.tape < param("id_below")]
        if "parent" in filters:
            above = self.tables.tapes.alias("above")
            where.append(fk.parent_id == sa.select(above.c.id).where(above.c.tape == param("parent")).scalar_subquery())
        if "updated_before" in filters:
            where.append(h.stamp < param("updated_before"))
        if "updated_after" in filters:
            where.append(h.stamp > param("updated_after"))
        if "cursor" in filters:
            below = c.id < param("cursor")
            if order == "oldest":
                below = c.id > param("cursor")
            elif order == "updated":
                below = sa.or_(h.stamp < param("moment"), sa.and_(h.stamp == param("moment"), below))
            where.append(below)
        return where

    # -- checks

    @statement
    def drop_check(self, t: Param) -> Any:
        """Forget the last check of a tape."""
        return sa.delete(self.tables.checks).where(self.tables.checks.c.tape_id == t)

    @derived
    def insert_check(self) -> Statement[Any]:
        """Up to where a tape was verified."""
        return self._insert(self.tables.checks)

    def _checks(self) -> Any:
        c, ck = self.tables.tapes.c, self.tables.checks.c
        checks = self.tables.checks.join(self.tables.tapes, c.id == ck.tape_id)
        return sa.select(c.tape, ck.seq, ck.hash, ck.stamp).select_from(checks)

    @query(CheckRow)
    def last_check(self) -> Any:
        """The newest check of any tape."""
        return only_first(self._checks().order_by(self.tables.checks.c.stamp.desc()))

    @query(CheckRow)
    def last_check_of(self, owner: Param) -> Any:
        """The newest check of a tape of one owner."""
        checks = self._checks().where(self.tables.tapes.c.owner == owner)
        return only_first(checks.order_by(self.tables.checks.c.stamp.desc()))

    @query(CheckRow)
    def check(self, tape: Param) -> Any:
        """The last check of a tape."""
        return self._checks().where(self.tables.tapes.c.tape == tape)

    @statement
    def revision(self) -> Any:
        """The schema revision that the database is at."""
        return sa.select(self.tables.version.c.version_num)

    @statement
    def now(self) -> Any:
        """What PostgreSQL's clock says, in microseconds since 1970; in a transaction, too, it goes on."""
        return sa.select(sa.literal_column("(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))

    # -- counts

    def _counts(self, *where: Any) -> Any:
        c, h = self.tables.tapes.c, self.tables.heads.c
        counts = [c.status, sa.func.count(), sa.func.sum(h.seq), sa.func.sum(h.messages)]
        tapes = self.tables.tapes.join(self.tables.heads, h.tape_id == c.id)
        return sa.select(*counts).select_from(tapes).where(c.status != PURGED, *where).group_by(c.status)

    def _weight(self, *where: Any) -> Any:
        c, e = self.tables.tapes.c, self.tables.entries.c
        size = sa.func.octet_length if self.postgres else sa.func.length
        weight = sa.func.sum(size(e.payload) + sa.func.coalesce(size(e.meta), ZERO))
        entries = self.tables.entries.join(self.tables.tapes, c.id == e.tape_id)
        return sa.select(sa.func.coalesce(weight, ZERO)).select_from(entries).where(c.status != PURGED, *where)

    @query(CountRow)
    def counts(self) -> Any:
        """How many tapes of each status there are, with their entries and messages."""
        return self._counts()

    def _used(self, number: Param, seq: Param, most: Param, *which: Any) -> Any:
        """Return a page of the entries that count usage, tape by tape."""
        t = self.tables
        c, e, s = t.tapes.c, t.entries.c, t.slots.c
        entry = sa.and_(e.tape_id == s.tape_id, e.seq == s.since, e.kind == sa.literal_column("'usage'"))
        return (
            sa.select(s.tape_id, c.tape, s.since, e.version, e.payload, e.meta, e.stamp)
            .select_from(t.slots.join(t.entries, entry).join(t.tapes, c.id == s.tape_id))
            .where(s.slot == sa.literal_column("'usage'"), c.status != PURGED, *which)
            .where(sa.or_(s.tape_id > number, sa.and_(s.tape_id == number, s.since > seq)))
            .order_by(s.tape_id, s.since)
            .limit(most)
            .offset(ZERO)
        )

    @query(UsedRow)
    def used(self, number: Param, seq: Param, most: Param) -> Any:
        """The entries that count usage behind a tape's number and a seq."""
        return self._used(number, seq, most)

    @query(UsedRow)
    def used_by_owner(self, owner: Param, number: Param, seq: Param, most: Param) -> Any:
        """The same for one owner."""
        return self._used(number, seq, most, self.tables.tapes.c.owner == owner)

    @query(CountRow)
    def counts_of(self, owner: Param) -> Any:
        """The same for one owner."""
        return self._counts(self.tables.tapes.c.owner == owner)

    @statement
    def weight(self) -> Any:
        """The bytes of all payloads."""
        return self._weight()

    @statement
    def weight_of(self, owner: Param) -> Any:
        """The same for one owner."""
        return self._weight(self.tables.tapes.c.owner == owner)
