"""The statements that read the view of one tape: stretches of lanes, paths, anchors, branches."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ZERO, Compiler, Param, only_first, query, statement
from tape.db.sql.rows.entries import EntryRow
from tape.db.sql.rows.view import AnchorAt, ClearRow, FirstBranch, PathRow, WalkRow

__all__ = ["Reads"]


class Reads(Compiler):
    """Statements that read the view."""

    # -- lanes and paths

    @query(WalkRow)
    def walk(self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param) -> Any:
        """The lanes crossed on the way from a place to the root, nearest first."""
        walk = self._walk(t, at_lane, at_ordinal, floor).c
        return sa.select(walk.tape_id, walk.lane, walk.lo, walk.hi).order_by(walk.hi.desc())

    @query(PathRow)
    def rows_now(self, t: Param, at_lane: Param, lo: Param, hi: Param, cleared: Param, most: Param) -> Any:
        """The bodies that hold in a stretch of a lane, the first of them."""
        return self._rows(t, at_lane, lo, hi, cleared, None, most, last=False)

    @query(PathRow)
    def last_rows_now(self, t: Param, at_lane: Param, lo: Param, hi: Param, cleared: Param, most: Param) -> Any:
        """The bodies that hold in a stretch of a lane, the last of them."""
        return self._rows(t, at_lane, lo, hi, cleared, None, most, last=True)

    @query()
    def bodies_now(self, t: Param, at_lane: Param, lo: Param, hi: Param, cleared: Param, most: Param) -> Any:
        """Version, payload and meta of the bodies that hold in a stretch of a lane, the last first."""
        return self._rows(t, at_lane, lo, hi, cleared, None, most, last=True, bodies_only=True)

    @query(PathRow)
    def rows_then(
        self, t: Param, at_lane: Param, lo: Param, hi: Param, cleared: Param, at_seq: Param, most: Param
    ) -> Any:
        """The bodies that held at a seq in a stretch of a lane, the first of them."""
        return self._rows(t, at_lane, lo, hi, cleared, at_seq, most, last=False)

    @query(PathRow)
    def last_rows_then(
        self, t: Param, at_lane: Param, lo: Param, hi: Param, cleared: Param, at_seq: Param, most: Param
    ) -> Any:
        """The bodies that held at a seq in a stretch of a lane, the last of them."""
        return self._rows(t, at_lane, lo, hi, cleared, at_seq, most, last=True)

    def _row_holds(self, rows: sa.Table, cleared: Param, at_seq: Param | None) -> list[Any]:
        """Return the conditions under which a row holds: now, or at a seq."""
        where = [rows.c.since > cleared]
        if at_seq is not None:
            where.append(rows.c.since <= at_seq)
        if rows is self.tables.past:
            where.append(rows.c.until > at_seq)
        return where

    def _tables(self, at_seq: Param | None) -> list[sa.Table]:
        """Return where bodies lie: the live rows, and for a look at the past also those that ended."""
        return [self.tables.live] if at_seq is None else [self.tables.live, self.tables.past]

    def _rows(
        self,
        t: Param,
        at_lane: Param,
        lo: Param,
        hi: Param,
        cleared: Param,
        at_seq: Param | None,
        most: Param,
        *,
        last: bool,
        bodies_only: bool = False,
    ) -> Any:
        def first(part: Any, order: Any) -> Any:
            return part.order_by(order.desc() if last else order).limit(most).offset(ZERO)

        parts: list[Any] = []
        for rows in self._tables(at_seq):
            r = rows.c
            where = [r.tape_id == t, r.lane == at_lane, r.ordinal > lo, r.ordinal <= hi]
            bodies, on = self._bodies(rows)
            body = (bodies.c.version, bodies.c.payload, bodies.c.meta)
            columns = body if bodies_only else self._body_columns(rows, bodies)
            part = sa.select(*columns).select_from(rows.join(bodies, on))
            parts.append(first(part.where(*where, *self._row_holds(rows, cleared, at_seq)), r.ordinal))
        if len(parts) == 1:
            return parts[0]
        # Each part by itself, or PostgreSQL would read and sort the whole lane to find a few rows at its end.
        return first(sa.union_all(*(sa.select(part.subquery()) for part in parts)), sa.literal_column("1"))

    @query(PathRow)
    def path_now(self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param, cleared: Param) -> Any:
        """The bodies that hold on a path, in no order: the caller sorts by depth."""
        return self._path(self._walk(t, at_lane, at_ordinal, floor), floor, cleared, None)

    @query(PathRow)
    def path_then(
        self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param, cleared: Param, at_seq: Param
    ) -> Any:
        """The bodies that held on a path at a seq, in no order."""
        return self._path(self._walk(t, at_lane, at_ordinal, floor), floor, cleared, at_seq)

    def _path(self, walk: sa.CTE, floor: Param, cleared: Param, at_seq: Param | None) -> Any:
        parts = []
        for table in self._tables(at_seq):
            r = table.c
            where = [
                r.tape_id == walk.c.tape_id,
                r.lane == walk.c.lane,
                r.ordinal > self._lowest(walk, floor),
                r.ordinal <= walk.c.hi,
                *self._row_holds(table, cleared, at_seq),
            ]
            rows, holding = self._index_join(table, ("tape_id", "lane", "ordinal", "placed", "body"), where)
            bodies, on = self._bodies(rows)
            parts.append(
                sa.select(*self._body_columns(rows, bodies)).select_from(walk.join(rows, holding).join(bodies, on))
            )
        return parts[0] if len(parts) == 1 else sa.union_all(*parts)

    @query(FirstBranch)
    def first_branches(self, t: Param, from_tape: Param, at_lane: Param, at_seq: Param) -> Any:
        """Where the first lanes branch off from one; two of them, since that tells one from several."""
        lanes = self.tables.lanes.c
        return (
            sa.select(lanes.lane, lanes.base_ordinal)
            .where(lanes.tape_id == t, lanes.base_tape == from_tape, lanes.base_lane == at_lane, lanes.lane <= at_seq)
            .order_by(lanes.base_ordinal)
            .limit(sa.literal_column("2"))
            .offset(ZERO)
        )

    @statement
    def count_then(self, t: Param, at_seq: Param, cleared: Param) -> Any:
        """How many messages of a tape's own held at a seq."""
        parts = [
            sa.select(rows.c.ordinal).where(rows.c.tape_id == t, *self._row_holds(rows, cleared, at_seq))
            for rows in self._tables(at_seq)
        ]
        return sa.select(sa.func.count()).select_from(sa.union_all(*parts).subquery())

    # -- anchors

    @query(AnchorAt)
    def anchor_in_lane(self, t: Param, at_lane: Param, hi: Param, lo: Param, cleared: Param, at_seq: Param) -> Any:
        """The deepest anchor in a stretch of a lane, then the newest at that depth."""
        an = self.tables.anchors.c
        anchors = sa.select(an.seq, an.ordinal, an.tape_id, ZERO).where(
            an.tape_id == t,
            an.head_tape == ZERO,
            an.lane == at_lane,
            an.ordinal <= hi,
            an.ordinal > lo,
            an.seq > cleared,
            an.seq <= at_seq,
        )
        return only_first(anchors.order_by(an.ordinal.desc(), an.seq.desc()))

    @query(AnchorAt)
    def anchor_on_path(
        self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param, cleared: Param, at_seq: Param
    ) -> Any:
        """The deepest anchor on a stretch of the path, then the newest at that depth."""
        walk, an = self._walk(t, at_lane, at_ordinal, floor), self.tables.anchors.c
        on_path = [
            an.tape_id == walk.c.tape_id,
            an.head_tape == ZERO,
            an.lane == walk.c.lane,
            an.ordinal > walk.c.lo,
            an.ordinal <= walk.c.hi,
            an.seq > cleared,
            an.seq <= at_seq,
        ]
        standing, on = self._index_join(self.tables.anchors, ("seq", "ordinal"), on_path)
        anchors = sa.select(standing.c.seq, standing.c.ordinal, walk.c.tape_id, ZERO)
        query = anchors.select_from(walk.join(standing, on))
        return only_first(query.order_by(standing.c.ordinal.desc(), standing.c.seq.desc()))

    @query(EntryRow)
    def anchor_list(self, t: Param, cleared: Param, before: Param, most: Param) -> Any:
        """The entries of the last anchors of a tape, newest first."""
        e, an = self.tables.entries.c, self.tables.anchors.c
        return (
            sa.select(*self._entry)
            .select_from(
                self.tables.anchors.join(self.tables.entries, sa.and_(e.tape_id == an.tape_id, e.seq == an.seq))
            )
            .where(an.tape_id == t, an.seq > cleared, an.seq < before)
            .order_by(an.seq.desc())
            .limit(most)
            .offset(ZERO)
        )

    @statement
    def anchor_named(self, t: Param, name: Param, at_seq: Param) -> Any:
        """The seq of the newest anchor of a name."""
        an = self.tables.anchors.c
        anchors = sa.select(an.seq).where(an.tape_id == t, an.name == name, an.seq <= at_seq)
        return only_first(anchors.order_by(an.seq.desc()))

    # -- clears and slots

    @query(ClearRow)
    def clear_at(self, t: Param, at_seq: Param) -> Any:
        """The clear that was in force at a seq."""
        c = self.tables.clears.c
        clears = sa.select(c.seq, c.head_tape, c.lane, c.ordinal, c.touched).where(
            c.tape_id == t, c.seq <= at_seq, sa.or_(c.until.is_(None), c.until > at_seq)
        )
        return only_first(clears.order_by(c.seq.desc()))

    @query(EntryRow)
    def slot_at(self, t: Param, slot: Param, at_seq: Param) -> Any:
        """The entry that a slot of the tape's own held at a seq."""
        e, s = self.tables.entries.c, self.tables.slots.c
        slots = self.tables.slots.join(self.tables.entries, sa.and_(e.tape_id == s.tape_id, e.seq == s.since))
        entries = sa.select(*self._entry).select_from(slots)
        return only_first(entries.where(s.tape_id == t, s.slot == slot, s.since <= at_seq).order_by(s.since.desc()))
