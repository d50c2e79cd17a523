"""The statements that read the view of one tape: stretches of lanes, paths, anchors."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import (
    ZERO,
    Compiler,
    Statement,
    param,
)

__all__ = ["Reads"]


class Reads(Compiler):
    """Statements that read the view."""

    def _define_reads(self) -> None:
        """Stretches and paths, now and then; anchors; clears; slots."""
        t, make = self.tables, self._make
        e, m, past, c, s = t.entries.c, t.live.c, t.past.c, t.clears.c, t.slots.c
        full = self._entry
        walk = self._walk(t)
        # The lanes crossed on the way from a place to the root, nearest first.
        self.walk = make(
            "walk",
            sa.select(walk.c.tape_id, walk.c.lane, walk.c.lo, walk.c.hi).order_by(walk.c.hi.desc()),
            ["t", "at_lane", "at_ordinal", "floor"],
        )
        self.rows_now = self._rows("rows_now", past=False, newest_first=False)
        self.last_rows_now = self._rows("last_rows_now", past=False, newest_first=True)
        self.rows_then = self._rows("rows_then", past=True, newest_first=False)
        self.last_rows_then = self._rows("last_rows_then", past=True, newest_first=True)
        self.path_now = self._path("path_now", past=False)
        self.path_then = self._path("path_then", past=True)
        an = t.anchors.c
        anchor_entry = t.anchors.join(t.entries, sa.and_(e.tape_id == an.tape_id, e.seq == an.seq))
        self.anchor_in_lane = make(
            "anchor_in_lane",
            sa.select(an.seq, an.ordinal)
            .where(
                an.tape_id == param("t"),
                an.head_tape == sa.literal_column("0"),
                an.lane == param("at_lane"),
                an.ordinal <= param("hi"),
                an.ordinal > param("lo"),
                an.seq > param("cleared"),
                an.seq <= param("at_seq"),
            )
            .order_by(an.ordinal.desc(), an.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "at_lane", "hi", "lo", "cleared", "at_seq"],
        )
        on_path = [
            an.tape_id == walk.c.tape_id,
            an.head_tape == sa.literal_column("0"),
            an.lane == walk.c.lane,
            an.ordinal > walk.c.lo,
            an.ordinal <= walk.c.hi,
            an.seq > param("cleared"),
            an.seq <= param("at_seq"),
        ]
        standing, there = self._each(t.anchors, ("seq", "ordinal"), on_path)
        # The deepest anchor on a stretch of the path, then the newest at that depth.
        self.anchor_on_path = make(
            "anchor_on_path",
            sa.select(standing.c.seq, standing.c.ordinal)
            .select_from(walk.join(standing, there))
            .order_by(standing.c.ordinal.desc(), standing.c.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "at_lane", "at_ordinal", "floor", "cleared", "at_seq"],
        )
        self.anchor_list = make(
            "anchor_list",
            sa.select(*full)
            .select_from(anchor_entry)
            .where(an.tape_id == param("t"), an.seq > param("cleared"), an.seq < param("before"))
            .order_by(an.seq.desc())
            .limit(param("most", type_=sa.Integer))
            .offset(ZERO),
            ["t", "cleared", "before", "most"],
        )
        self.anchor_named = make(
            "anchor_named",
            sa.select(an.seq)
            .where(an.tape_id == param("t"), an.name == param("name"), an.seq <= param("at_seq"))
            .order_by(an.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "name", "at_seq"],
        )
        self.clear_at = make(
            "clear_at",
            sa.select(c.seq, c.head_tape, c.lane, c.ordinal, c.touched)
            .where(
                c.tape_id == param("t"), c.seq <= param("at_seq"), sa.or_(c.until.is_(None), c.until > param("at_seq"))
            )
            .order_by(c.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "at_seq"],
        )
        self.slot_at = make(
            "slot_at",
            sa.select(*full)
            .select_from(t.slots.join(t.entries, sa.and_(e.tape_id == s.tape_id, e.seq == s.since)))
            .where(s.tape_id == param("t"), s.slot == param("slot"), s.since <= param("at_seq"))
            .order_by(s.since.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "slot", "at_seq"],
        )
        lanes = t.lanes.c
        # Where the first lanes branch off from one; two of them, since that tells one from several.
        self.first_branches = make(
            "first_branches",
            sa.select(lanes.lane, lanes.base_ordinal)
            .where(
                lanes.tape_id == param("t"),
                lanes.base_tape == param("from_tape"),
                lanes.base_lane == param("at_lane"),
                lanes.lane <= param("at_seq"),
            )
            .order_by(lanes.base_ordinal)
            .limit(sa.literal_column("2"))
            .offset(ZERO),
            ["t", "from_tape", "at_lane", "at_seq"],
        )
        self.last_append = make(
            "last_append",
            sa.select(e.stamp)
            .where(e.tape_id == param("t"), e.seq <= param("at_seq"), e.kind == sa.literal_column("'append'"))
            .order_by(e.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "at_seq"],
        )
        self.count_then = make(
            "count_then",
            sa.select(sa.func.count()).select_from(
                sa.union_all(
                    sa.select(m.ordinal).where(
                        m.tape_id == param("t"), m.since <= param("at_seq"), m.since > param("cleared")
                    ),
                    sa.select(past.ordinal).where(
                        past.tape_id == param("t"),
                        past.since <= param("at_seq"),
                        past.until > param("at_seq"),
                        past.since > param("cleared"),
                    ),
                ).subquery()
            ),
            ["t", "at_seq", "cleared"],
        )

    def _held(self, *, past: bool) -> list[sa.FromClause]:
        """Return where bodies lie: the live rows, and for a look at the past also those that ended."""
        return [self.tables.live, self.tables.past] if past else [self.tables.live]

    def _rows(self, name: str, *, past: bool, newest_first: bool) -> Statement:
        """Return the bodies that hold in one stretch of one lane."""
        parts: list[sa.Select[Any]] = []
        for rows in self._held(past=past):
            r = rows.c
            where = [
                r.tape_id == param("t"),
                r.lane == param("at_lane"),
                r.ordinal > param("lo"),
                r.ordinal <= param("hi"),
                r.since > param("cleared"),
            ]
            if past:
                where.append(r.since <= param("at_seq"))
            if rows is self.tables.past:
                where.append(r.until > param("at_seq"))
            bodies, on = self._bodies(rows)
            part = sa.select(*self._body_columns(rows, bodies)).select_from(rows.join(bodies, on)).where(*where)
            parts.append(self._first(part, r.ordinal, newest_first=newest_first))
        query: Any = parts[0]
        if len(parts) > 1:
            # Each part by itself, or PostgreSQL would read and sort the whole lane to find a few rows at its end.
            query = sa.union_all(*(sa.select(part.subquery()) for part in parts))
            query = self._first(query, sa.literal_column("1"), newest_first=newest_first)
        params = ["t", "at_lane", "lo", "hi", "cleared", *(["at_seq"] if past else []), "most"]
        return self._make(name, query, params)

    def _first(self, query: Any, order: Any, *, newest_first: bool) -> Any:
        order = order.desc() if newest_first else order
        return query.order_by(order).limit(param("most", type_=sa.Integer)).offset(ZERO)

    def _path(self, name: str, *, past: bool) -> Statement:
        """Return the bodies that hold on a whole path, in no order: the caller sorts by depth."""
        walk = self._walk(self.tables)
        parts = []
        for rows in self._held(past=past):
            r = rows.c
            where = [
                r.tape_id == walk.c.tape_id,
                r.lane == walk.c.lane,
                r.ordinal > self._lowest(walk),
                r.ordinal <= walk.c.hi,
                r.since > param("cleared"),
            ]
            if past:
                where.append(r.since <= param("at_seq"))
            if rows is self.tables.past:
                where.append(r.until > param("at_seq"))
            held, there = self._each(rows, ("tape_id", "lane", "ordinal", "placed", "body"), where)
            bodies, on = self._bodies(held)
            parts.append(
                sa.select(*self._body_columns(held, bodies)).select_from(walk.join(held, there).join(bodies, on))
            )
        query: Any = parts[0] if len(parts) == 1 else sa.union_all(*parts)
        params = ["t", "at_lane", "at_ordinal", "floor", "cleared", *(["at_seq"] if past else [])]
        return self._make(name, query, params)
