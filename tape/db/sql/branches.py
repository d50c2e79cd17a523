"""The statements that ask for the ends of many branches at once, which they take as a JSON parameter."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ONE, ZERO, Param, only_first, query
from tape.db.sql.lineages import Lineages
from tape.db.sql.rows.entries import AskedBody
from tape.db.sql.rows.tapes import LayerRow
from tape.db.sql.rows.view import AnchorAt, BranchRow, ChangeRow, EdgeRow, LineageLane

__all__ = ["Branches"]

_LANE = ("tape_id", "lane", "base_tape", "base_lane", "base_ordinal")
_CHANGE = ("origin", "lane", "ordinal", "placed", "body_tape", "body")


class Branches(Lineages):
    """Statements over all lanes of a tape and its ancestors."""

    @query(LineageLane)
    def family_lanes(self, lineage: Param) -> Any:
        """Every lane of a lineage, ancestors first, each in the order in which they were opened."""
        lin, lanes = self._lineage(), self.tables.lanes.c
        where = (lanes.tape_id == lin.c.tape_id, lanes.lane <= lin.c.asof)
        rows, on = self._index_join(self.tables.lanes, _LANE, where)
        query = sa.select(*(rows.c[name] for name in _LANE)).select_from(lin.join(rows, on))
        return query.order_by(lin.c.n.desc(), rows.c.lane)

    @query(ChangeRow)
    def family_changes(self, lineage: Param) -> Any:
        """What the tapes of a lineage made of inherited messages, nearest first."""
        lin, ov = self._lineage(), self.tables.overrides.c
        ended = sa.or_(ov.until.is_(None), ov.until > lin.c.asof)
        where = (ov.tape_id == lin.c.tape_id, ov.since <= lin.c.asof, ended)
        changed, on = self._index_join(self.tables.overrides, (*_CHANGE, "since"), where)
        columns = (*(changed.c[name] for name in _CHANGE), changed.c.since > lin.c.cleared)
        query = sa.select(*columns).select_from(lin.join(changed, on))
        return query.where(lin.c.overriding == ONE).order_by(lin.c.n)

    @query(EdgeRow)
    def first_rows(self, items: Param) -> Any:
        """The first row that holds in each of many stretches of lanes, without its body."""
        return self._edges(last=False)

    @query(EdgeRow)
    def last_rows(self, items: Param) -> Any:
        """The last row that holds in each of many stretches of lanes, without its body."""
        return self._edges(last=True)

    @query(BranchRow)
    def family_branches(self, items: Param, lineage: Param) -> Any:
        """The lanes of a lineage that branch off from stretches of others: on the same tape, or on a nearer one."""
        lin, lanes = self._lineage(), self.tables.lanes.c
        bases = self._item_table("tape_id", "lane", "lo", "hi", "nearer")
        where = (
            lanes.tape_id == lin.c.tape_id,
            lanes.base_tape == sa.case((lin.c.tape_id == bases.c.tape_id, ZERO), else_=bases.c.tape_id),
            lanes.base_lane == bases.c.lane,
            lanes.base_ordinal >= bases.c.lo,
            lanes.base_ordinal < bases.c.hi,
            lanes.lane <= lin.c.asof,
        )
        branching, on = self._index_join(self.tables.lanes, ("tape_id", "lane", "base_ordinal"), where)
        return sa.select(branching.c.tape_id, branching.c.lane, branching.c.base_ordinal).select_from(
            bases.join(lin, lin.c.n <= bases.c.nearer).join(branching, on)
        )

    @query(AnchorAt)
    def root_anchor(self, lineage: Param) -> Any:
        """The newest anchor of a lineage that was set before the first message."""
        lin, an = self._lineage(), self.tables.anchors.c
        where = (
            an.tape_id == lin.c.tape_id,
            an.head_tape == ZERO,
            an.lane == ZERO,
            an.ordinal == ZERO,
            an.seq > lin.c.cleared,
            an.seq <= lin.c.asof,
        )
        standing, on = self._index_join(self.tables.anchors, ("seq", "ordinal"), where)
        anchors = sa.select(standing.c.seq, standing.c.ordinal, lin.c.tape_id, lin.c.n)
        return only_first(anchors.select_from(lin.join(standing, on)).order_by(lin.c.n, standing.c.seq.desc()))

    @query(LayerRow)
    def family_anchored(self, lineage: Param) -> Any:
        """Which tapes of a lineage have anchors, nearest first."""
        lin, an = self._lineage(), self.tables.anchors.c
        anchors = sa.select(an.seq).where(an.tape_id == lin.c.tape_id, an.seq > lin.c.cleared, an.seq <= lin.c.asof)
        query = sa.select(lin.c.tape_id, lin.c.asof, lin.c.cleared).where(anchors.correlate(lin).exists())
        return query.order_by(lin.c.n)

    @query(AskedBody)
    def bodies_of(self, items: Param) -> Any:
        """The payloads of many entries."""
        e, places = self.tables.entries.c, self._item_table("tape_id", "seq")
        where = (e.tape_id == places.c.tape_id, e.seq == places.c.seq)
        names = AskedBody._fields[1:]
        bodies, on = self._index_join(self.tables.entries, names, where)
        return sa.select(places.c.n, *(bodies.c[name] for name in names)).select_from(places.join(bodies, on))

    def _item_table(self, *columns: str) -> sa.CTE:
        """Return a JSON list of lists of numbers as a table with these columns, and the place in the list as ``n``."""
        if self.postgres:
            values = ", ".join(f"(value ->> {at})::bigint AS {column}" for at, column in enumerate(columns))
            rows = "jsonb_array_elements(CAST(:items AS jsonb)) WITH ORDINALITY AS items(value, n)"
            text = f"SELECT n - 1 AS n, {values} FROM {rows}"
        else:
            values = ", ".join(f"json_extract(value, '$[{at}]') AS {column}" for at, column in enumerate(columns))
            text = f"SELECT CAST(key AS INTEGER) AS n, {values} FROM json_each(:items)"
        typed = [sa.column(column, sa.BigInteger) for column in ("n", *columns)]
        return sa.text(text).columns(*typed).cte("asked_rows")

    def _edges(self, *, last: bool) -> Any:
        """Return the first or the last row that holds in each of many stretches of lanes.

        Of a stretch up to two rows come back: one that holds still, and one that held then.
        """
        stretches = self._item_table("tape_id", "lane", "lo", "hi", "cleared", "asof", "past")
        edge = self._edge_lateral if self.postgres else self._edge_looked_up
        return sa.union_all(*(edge(stretches, table, last) for table in (self.tables.live, self.tables.past)))

    def _holding(self, stretches: sa.CTE, table: sa.Table, rows: Any) -> list[Any]:
        """Return when a row of a table holds in the lane that is asked about."""
        where = [
            rows.c.tape_id == stretches.c.tape_id,
            rows.c.lane == stretches.c.lane,
            rows.c.since > stretches.c.cleared,
            rows.c.since <= stretches.c.asof,
        ]
        return [*where, rows.c.until > stretches.c.asof] if table is self.tables.past else where

    def _in_stretch(self, stretches: sa.CTE, table: sa.Table, inner: Any, last: bool, *columns: Any) -> Any:
        """Return the first or the last row of a table in a stretch."""
        where = (
            *self._holding(stretches, table, inner),
            inner.c.ordinal > stretches.c.lo,
            inner.c.ordinal <= stretches.c.hi,
        )
        rows = sa.select(*columns).where(*where)
        return rows.order_by(inner.c.ordinal.desc() if last else inner.c.ordinal).limit(ONE)

    def _edge_lateral(self, stretches: sa.CTE, table: sa.Table, last: bool) -> Any:
        inner = table.alias("inner_rows")
        rows = self._in_stretch(stretches, table, inner, last, inner.c.ordinal, inner.c.placed, inner.c.body)
        if table is self.tables.past:
            # Stretches of tapes that have no past worth reading end here before they read it.
            rows = rows.where(stretches.c.past == ONE)
        edge = rows.lateral("edge")
        columns = (stretches.c.n, edge.c.ordinal, edge.c.placed, edge.c.body)
        return sa.select(*columns).select_from(stretches.join(edge, sa.true()))

    def _edge_looked_up(self, stretches: sa.CTE, table: sa.Table, last: bool) -> Any:
        inner, rows = table.alias("inner_rows"), table.alias("rows_there")
        ordinals = self._in_stretch(stretches, table, inner, last, inner.c.ordinal).offset(ZERO)
        place = ordinals.correlate(stretches).scalar_subquery()
        joined = stretches.join(rows, sa.and_(*self._holding(stretches, table, rows), rows.c.ordinal == place))
        part = sa.select(stretches.c.n, rows.c.ordinal, rows.c.placed, rows.c.body).select_from(joined)
        return part.where(stretches.c.past == ONE) if table is self.tables.past else part
