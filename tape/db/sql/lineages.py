"""The statements that ask a fork's whole lineage at once, which they take as a JSON parameter."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ONE, ZERO, Compiler, Param, only_first, query, statement
from tape.db.sql.rows.view import AnchorAt, OverrideRow, PathRow, PlaceRow

__all__ = ["Lineages"]

_LINEAGE = {
    "sqlite": (
        "SELECT CAST(key AS INTEGER) AS n, json_extract(value, '$[0]') AS tape_id,"
        " json_extract(value, '$[1]') AS asof, json_extract(value, '$[2]') AS cleared,"
        " json_extract(value, '$[3]') AS overriding FROM json_each(:lineage)"
    ),
    "postgresql": (
        "SELECT n - 1 AS n, (value ->> 0)::bigint AS tape_id, (value ->> 1)::bigint AS asof,"
        " (value ->> 2)::bigint AS cleared, (value ->> 3)::bigint AS overriding"
        " FROM jsonb_array_elements(CAST(:lineage AS jsonb)) WITH ORDINALITY AS lineage(value, n)"
    ),
}
_NAMES = {
    "sqlite": "SELECT value AS name FROM json_each(:names)",
    "postgresql": (
        'SELECT value COLLATE "C" AS name FROM jsonb_array_elements_text(CAST(:names AS jsonb)) AS t(value)'
    ),
}
_OVERRIDE_COLUMNS = ("origin", "lane", "ordinal", "placed", "body_tape", "body", "since")


class Lineages(Compiler):
    """Statements over a tape and its ancestors."""

    def _lineage(self) -> sa.CTE:
        """Return a fork's lineage, passed as JSON, as a table: its order, each tape, and how much of it is seen."""
        names = ("n", "tape_id", "asof", "cleared", "overriding")
        columns = (sa.column(name, sa.BigInteger) for name in names)
        return sa.text(_LINEAGE[self.dialect.name]).columns(*columns).cte("lineage")

    def _names(self) -> sa.CTE:
        """Return a JSON list of strings as a table."""
        return sa.text(_NAMES[self.dialect.name]).columns(sa.column("name", sa.Text)).cte("names")

    def _visible(self, lin: sa.CTE) -> Any:
        """Return which entries of the lineage the tape sees."""
        e = self.tables.entries.c
        return sa.and_(e.tape_id == lin.c.tape_id, e.seq <= lin.c.asof)

    # -- ids

    @query(PlaceRow)
    def family_place(self, lineage: Param, key: Param, id: Param) -> Any:
        """Where a message was placed, by key or by alias in one round trip; it has only one of the two."""
        lin, e, aliases = self._lineage(), self.tables.entries.c, self.tables.aliases
        columns = (e.lane, e.ordinal, e.seq, lin.c.tape_id, lin.c.n)
        by_key = lin.join(self.tables.entries, sa.and_(self._visible(lin), e.key == key))
        named = lin.join(aliases, sa.and_(aliases.c.tape_id == lin.c.tape_id, aliases.c.id == id))
        by_alias = named.join(self.tables.entries, sa.and_(self._visible(lin), e.seq == aliases.c.seq))
        return sa.union_all(sa.select(*columns).select_from(by_key), sa.select(*columns).select_from(by_alias))

    def _id_exists(self, lineage: Param, own_key: Param, own_id: Param) -> Any:
        """Return whether a message of the lineage has an id."""
        lin, e, al = self._lineage(), self.tables.entries.c, self.tables.aliases.c
        keyed = lin.join(self.tables.entries, sa.and_(self._visible(lin), e.key == own_key))
        seen = sa.and_(al.tape_id == lin.c.tape_id, al.id == own_id, al.seq <= lin.c.asof)
        aliased = lin.join(self.tables.aliases, seen)
        return sa.or_(sa.exists(sa.select(e.seq).select_from(keyed)), sa.exists(sa.select(al.seq).select_from(aliased)))

    @statement
    def taken_keys(self, lineage: Param, names: Param) -> Any:
        """Which of the given keys entries of the lineage have."""
        e = self.tables.entries
        return self._among(e, e.c.key, e.c.seq)

    @statement
    def taken_aliases(self, lineage: Param, names: Param) -> Any:
        """Which of the given ids messages of the lineage have that no key tells."""
        al = self.tables.aliases
        return self._among(al, al.c.id, al.c.seq)

    def _among(self, table: sa.Table, name: Any, seq: Any) -> Any:
        """Return which of the given names rows of a lineage have, looked up one by one.

        An engine left to itself walks the whole tape and looks each row up among the names. So SQLite gets the names as
        a list, and PostgreSQL as a table whose every row asks by itself; the seq is in a form that no index serves.
        """
        lin, names = self._lineage(), self._names()
        seen = (table.c.tape_id == lin.c.tape_id, seq + ZERO <= lin.c.asof)
        if not self.postgres:
            listed = name.in_(sa.select(names.c.name))
            return sa.select(name).distinct().select_from(lin.join(table, sa.and_(*seen, listed)))
        rows, on = self._index_join(table, (name.name,), (name == names.c.name, *seen))
        return sa.select(rows.c[name.name]).distinct().select_from(lin.join(names, sa.true()).join(rows, on))

    # -- what forks made of inherited messages

    def _current(self, lin: sa.CTE) -> Any:
        """Return which overrides hold for the tapes of a lineage."""
        ov = self.tables.overrides.c
        ended = sa.or_(ov.until.is_(None), ov.until > lin.c.asof)
        return sa.and_(ov.tape_id == lin.c.tape_id, ov.since <= lin.c.asof, ended)

    @query(OverrideRow)
    def overrides_at(self, lineage: Param, from_tape: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """What tapes of the lineage made of one inherited message, nearest first."""
        lin, ov = self._lineage(), self.tables.overrides.c
        at = sa.and_(self._current(lin), ov.origin == from_tape, ov.lane == at_lane, ov.ordinal == at_ordinal)
        columns = (lin.c.n, ov.placed, ov.body_tape, ov.body, ov.since, ov.why)
        return sa.select(*columns).select_from(lin.join(self.tables.overrides, at)).order_by(lin.c.n)

    @statement
    def last_override(self, lineage: Param, from_tape: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """The last body that a tape of the lineage gave an inherited message, holding or not."""
        lin, ov = self._lineage(), self.tables.overrides.c
        held = sa.and_(
            ov.tape_id == lin.c.tape_id,
            ov.since <= lin.c.asof,
            ov.body.is_not(None),
            ov.origin == from_tape,
            ov.lane == at_lane,
            ov.ordinal == at_ordinal,
        )
        bodies = sa.select(ov.placed, ov.body_tape, ov.body).select_from(lin.join(self.tables.overrides, held))
        return only_first(bodies.order_by(lin.c.n, ov.since.desc()))

    @query(PathRow)
    def overrides_in(self, lineage: Param, from_tape: Param, at_lane: Param, lo: Param, hi: Param) -> Any:
        """What tapes of the lineage made of messages in a stretch of one ancestor's lane, with the bodies they show."""
        lin, ov = self._lineage(), self.tables.overrides.c
        stretch = (ov.origin == from_tape, ov.lane == at_lane, ov.ordinal > lo, ov.ordinal <= hi)
        changed, in_stretch = self._index_join(self.tables.overrides, _OVERRIDE_COLUMNS, (self._current(lin), *stretch))
        bodies, on = self._bodies(changed, "body_tape")
        return (
            sa.select(*self._override_columns(changed, bodies), lin.c.tape_id, changed.c.body_tape)
            .select_from(lin.join(changed, in_stretch).outerjoin(bodies, on))
            .order_by(lin.c.n)
        )

    def _override_columns(self, changed: Any, bodies: Any) -> list[Any]:
        return [*self._body_columns(changed, bodies), changed.c.origin, changed.c.since]

    # -- calls

    @statement
    def family_makers(self, lineage: Param, call: Param, most: Param) -> Any:
        """The same of a fork and the tapes that it inherits from, nearest first."""
        lin, c = self._lineage(), self.tables.calls.c
        made = sa.and_(c.tape_id == lin.c.tape_id, c.call == call, c.seq <= lin.c.asof)
        columns = (c.lane, c.ordinal, c.seq, c.place_tape, lin.c.tape_id)
        rows = sa.select(*columns).select_from(lin.join(self.tables.calls, made))
        return rows.order_by(lin.c.n, c.seq.desc()).limit(most).offset(ZERO)

    @statement
    def family_answers(self, lineage: Param, from_tape: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """The places of messages that are bound to calls of a message."""
        lin, a = self._lineage(), self.tables.answers.c
        bound = sa.and_(
            a.tape_id == lin.c.tape_id,
            a.maker_tape == sa.case((lin.c.tape_id == from_tape, ZERO), else_=from_tape),
            a.maker_lane == at_lane,
            a.maker_ordinal == at_ordinal,
        )
        columns = (a.lane, a.ordinal, lin.c.tape_id, lin.c.n)
        return sa.select(*columns).distinct().select_from(lin.join(self.tables.answers, bound))

    @statement
    def answers_between(
        self, lineage: Param, from_tape: Param, at_lane: Param, lo: Param, hi: Param, below: Param
    ) -> Any:
        """The answers below a depth to calls that were made in a stretch of one lane."""
        lin, a = self._lineage(), self.tables.answers.c
        bound = sa.and_(
            a.tape_id == lin.c.tape_id,
            a.maker_tape == sa.case((lin.c.tape_id == from_tape, ZERO), else_=from_tape),
            a.maker_lane == at_lane,
            a.maker_ordinal > lo,
            a.maker_ordinal <= hi,
            a.ordinal > below,
        )
        columns = (a.lane, a.ordinal, lin.c.tape_id, a.maker_ordinal)
        return sa.select(*columns).distinct().select_from(lin.join(self.tables.answers, bound))

    # -- paths

    @query(AnchorAt)
    def family_anchor(self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param, lineage: Param) -> Any:
        """The deepest anchor on a stretch of a path through the lineage, then the nearest tape's newest."""
        lin, walk, an = self._lineage(), self._walk(t, at_lane, at_ordinal, floor), self.tables.anchors.c
        on_path = sa.and_(
            an.tape_id == lin.c.tape_id,
            an.head_tape == sa.case((lin.c.tape_id == walk.c.tape_id, ZERO), else_=walk.c.tape_id),
            an.lane == walk.c.lane,
            an.ordinal > walk.c.lo,
            an.ordinal <= walk.c.hi,
            an.seq > lin.c.cleared,
            an.seq <= lin.c.asof,
        )
        anchors = sa.select(an.seq, an.ordinal, lin.c.tape_id, lin.c.n).select_from(
            walk.join(lin, sa.true()).join(self.tables.anchors, on_path)
        )
        return only_first(anchors.order_by(an.ordinal.desc(), lin.c.n, an.seq.desc()))

    @query(PathRow)
    def family_path(self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param, lineage: Param) -> Any:
        """The bodies that hold on a path through a fork's lineage, in no order."""
        lin, walk = self._lineage(), self._walk(t, at_lane, at_ordinal, floor)
        parts = []
        for table in (self.tables.live, self.tables.past):
            r = table.c
            where = [
                r.tape_id == walk.c.tape_id,
                r.lane == walk.c.lane,
                r.ordinal > self._lowest(walk, floor),
                r.ordinal <= walk.c.hi,
                r.since > lin.c.cleared,
                r.since <= lin.c.asof,
            ]
            if table is self.tables.past:
                where.append(r.until > lin.c.asof)
            rows, holding = self._index_join(table, ("tape_id", "lane", "ordinal", "placed", "body"), where)
            bodies, on = self._bodies(rows)
            parts.append(
                sa.select(*self._body_columns(rows, bodies), lin.c.tape_id).select_from(
                    walk.join(lin, lin.c.tape_id == walk.c.tape_id).join(rows, holding).join(bodies, on)
                )
            )
        return sa.union_all(*parts)

    @query(PathRow)
    def family_overrides(self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param, lineage: Param) -> Any:
        """What tapes of the lineage made of messages on a path, nearest first, with the bodies they show."""
        lin, walk = self._lineage(), self._walk(t, at_lane, at_ordinal, floor)
        changed, in_lineage = self._index_join(self.tables.overrides, _OVERRIDE_COLUMNS, (self._current(lin),))
        bodies, on = self._bodies(changed, "body_tape")
        on_path = sa.and_(
            walk.c.tape_id == changed.c.origin,
            walk.c.lane == changed.c.lane,
            changed.c.ordinal > walk.c.lo,
            changed.c.ordinal <= walk.c.hi,
            changed.c.ordinal > floor,
        )
        return (
            sa.select(*self._override_columns(changed, bodies), lin.c.tape_id, changed.c.body_tape)
            .select_from(lin.join(changed, in_lineage).join(walk, on_path).outerjoin(bodies, on))
            .where(lin.c.overriding == ONE)
            .order_by(lin.c.n)
        )
