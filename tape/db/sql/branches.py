"""The statements that ask for the ends of many branches at once, which they take as a JSON parameter."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ZERO, Statement
from tape.db.sql.lineages import Lineages

__all__ = ["Branches"]

_ONE: sa.ColumnClause[int] = sa.literal_column("1")


class Branches(Lineages):
    """Statements over all lanes of a tape and its ancestors."""

    def _define_branches(self) -> None:
        """Lanes, where stretches of them begin or end, what forks made of inherited messages, anchors, and bodies."""
        t, make, lin = self.tables, self._make, self._lineage()
        lanes, ov, e = t.lanes.c, t.overrides.c, t.entries.c
        each, on = self._each(
            t.lanes,
            ("tape_id", "lane", "base_tape", "base_lane", "base_ordinal"),
            (lanes.tape_id == lin.c.tape_id, lanes.lane <= lin.c.asof),
        )
        # Every lane of a lineage, ancestors first, each in the order in which they were opened.
        self.family_lanes = make(
            "family_lanes",
            sa.select(each.c.tape_id, each.c.lane, each.c.base_tape, each.c.base_lane, each.c.base_ordinal)
            .select_from(lin.join(each, on))
            .order_by(lin.c.n.desc(), each.c.lane),
            ["lineage"],
        )
        changed, there = self._each(
            t.overrides,
            ("origin", "lane", "ordinal", "placed", "body_tape", "body", "since"),
            (
                ov.tape_id == lin.c.tape_id,
                ov.since <= lin.c.asof,
                sa.or_(ov.until.is_(None), ov.until > lin.c.asof),
            ),
        )
        # What the tapes of a lineage made of inherited messages, nearest first.
        self.family_changes = make(
            "family_changes",
            sa.select(
                changed.c.origin,
                changed.c.lane,
                changed.c.ordinal,
                changed.c.placed,
                changed.c.body_tape,
                changed.c.body,
                changed.c.since > lin.c.cleared,
            )
            .select_from(lin.join(changed, there))
            .where(lin.c.overriding == _ONE)
            .order_by(lin.c.n),
            ["lineage"],
        )
        asked = self._asked("asked", "tape_id", "lane", "lo", "hi", "cleared", "asof", "past")
        self.first_rows = self._edges("first_rows", asked, last=False)
        self.last_rows = self._edges("last_rows", asked, last=True)
        bases = self._asked("asked", "tape_id", "lane", "lo", "hi", "nearer")
        branching, on = self._each(
            t.lanes,
            ("tape_id", "lane", "base_ordinal"),
            (
                lanes.tape_id == lin.c.tape_id,
                lanes.base_tape == sa.case((lin.c.tape_id == bases.c.tape_id, ZERO), else_=bases.c.tape_id),
                lanes.base_lane == bases.c.lane,
                lanes.base_ordinal >= bases.c.lo,
                lanes.base_ordinal < bases.c.hi,
                lanes.lane <= lin.c.asof,
            ),
        )
        # The lanes of a lineage that branch off from stretches of others: on the same tape, or on a nearer one.
        self.family_branches = make(
            "family_branches",
            sa.select(branching.c.tape_id, branching.c.lane, branching.c.base_ordinal).select_from(
                bases.join(lin, lin.c.n <= bases.c.nearer).join(branching, on)
            ),
            ["asked", "lineage"],
        )
        an = t.anchors.c
        standing, on = self._each(
            t.anchors,
            ("seq", "ordinal"),
            (
                an.tape_id == lin.c.tape_id,
                an.head_tape == ZERO,
                an.lane == ZERO,
                an.ordinal == ZERO,
                an.seq > lin.c.cleared,
                an.seq <= lin.c.asof,
            ),
        )
        # The newest anchor of a lineage that was set before the first message.
        self.root_anchor = make(
            "root_anchor",
            sa.select(standing.c.seq, standing.c.ordinal, lin.c.tape_id)
            .select_from(lin.join(standing, on))
            .order_by(lin.c.n, standing.c.seq.desc())
            .limit(_ONE)
            .offset(ZERO),
            ["lineage"],
        )
        some = sa.select(an.seq).where(an.tape_id == lin.c.tape_id, an.seq > lin.c.cleared, an.seq <= lin.c.asof)
        # Which tapes of a lineage have anchors, nearest first.
        self.family_anchored = make(
            "family_anchored",
            sa.select(lin.c.tape_id, lin.c.asof, lin.c.cleared).where(some.correlate(lin).exists()).order_by(lin.c.n),
            ["lineage"],
        )
        places = self._asked("asked", "tape_id", "seq")
        bodies, on = self._each(
            t.entries,
            ("kind", "version", "payload", "stamp"),
            (e.tape_id == places.c.tape_id, e.seq == places.c.seq),
        )
        self.bodies_of = make(
            "bodies_of",
            sa.select(places.c.n, bodies.c.kind, bodies.c.version, bodies.c.payload, bodies.c.stamp).select_from(
                places.join(bodies, on)
            ),
            ["asked"],
        )

    def _asked(self, name: str, *columns: str) -> sa.CTE:
        """Return a JSON list of lists of numbers as a table with these columns, and the place in the list as ``n``."""
        if self._dialect.name == "sqlite":
            values = ", ".join(f"json_extract(value, '$[{at}]') AS {column}" for at, column in enumerate(columns))
            text = f"SELECT CAST(key AS INTEGER) AS n, {values} FROM json_each(:{name})"
        else:
            values = ", ".join(f"(value ->> {at})::bigint AS {column}" for at, column in enumerate(columns))
            rows = f"jsonb_array_elements(CAST(:{name} AS jsonb)) WITH ORDINALITY AS {name}(value, n)"
            text = f"SELECT n - 1 AS n, {values} FROM {rows}"
        typed = [sa.column(column, sa.BigInteger) for column in ("n", *columns)]
        return sa.text(text).columns(*typed).cte(f"{name}_rows")

    def _edges(self, name: str, asked: sa.CTE, *, last: bool) -> Statement:
        """Return the first or the last row that holds in each of many stretches of lanes, without its body.

        Of a stretch up to two rows come back: one that holds still, and one that held then.
        """
        parts = []
        for table in (self.tables.live, self.tables.past):
            inner = table.alias("inner_rows")

            def holds(rows: Any, table: Any = table) -> list[Any]:
                where = [
                    rows.c.tape_id == asked.c.tape_id,
                    rows.c.lane == asked.c.lane,
                    rows.c.since > asked.c.cleared,
                    rows.c.since <= asked.c.asof,
                ]
                return [*where, rows.c.until > asked.c.asof] if table is self.tables.past else where

            order = inner.c.ordinal.desc() if last else inner.c.ordinal
            stretch = (inner.c.ordinal > asked.c.lo, inner.c.ordinal <= asked.c.hi)
            if self.postgres:
                # Stretches of tapes that have no past worth reading end here before they read it.
                wanted = [asked.c.past == _ONE] if table is self.tables.past else []
                edge = (
                    sa.select(inner.c.ordinal, inner.c.placed, inner.c.body)
                    .where(*wanted, *holds(inner), *stretch)
                    .order_by(order)
                    .limit(_ONE)
                    .lateral("edge")
                )
                joined = asked.join(edge, sa.true())
                parts.append(sa.select(asked.c.n, edge.c.ordinal, edge.c.placed, edge.c.body).select_from(joined))
                continue
            place = (
                sa.select(inner.c.ordinal)
                .where(*holds(inner), *stretch)
                .order_by(order)
                .limit(_ONE)
                .offset(ZERO)
                .correlate(asked)
                .scalar_subquery()
            )
            rows = table.alias("rows_there")
            joined = asked.join(rows, sa.and_(*holds(rows), rows.c.ordinal == place))
            part = sa.select(asked.c.n, rows.c.ordinal, rows.c.placed, rows.c.body).select_from(joined)
            parts.append(part.where(asked.c.past == _ONE) if table is self.tables.past else part)
        return self._make(name, sa.union_all(*parts), ["asked"])
