"""The statements that ask a fork's whole lineage at once, which they take as a JSON parameter."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import (
    ZERO,
    Compiler,
    param,
)

__all__ = ["Lineages"]


class Lineages(Compiler):
    """Statements over a tape and its ancestors."""

    def _lineage(self) -> sa.CTE:
        """Return a fork's lineage, passed as JSON, as a table: its order, each tape, and how much of it is seen."""
        if self._dialect.name == "sqlite":
            text = (
                "SELECT CAST(key AS INTEGER) AS n, json_extract(value, '$[0]') AS tape_id,"
                " json_extract(value, '$[1]') AS asof, json_extract(value, '$[2]') AS cleared,"
                " json_extract(value, '$[3]') AS overriding FROM json_each(:lineage)"
            )
        else:
            text = (
                "SELECT n - 1 AS n, (value ->> 0)::bigint AS tape_id, (value ->> 1)::bigint AS asof,"
                " (value ->> 2)::bigint AS cleared, (value ->> 3)::bigint AS overriding"
                " FROM jsonb_array_elements(CAST(:lineage AS jsonb)) WITH ORDINALITY AS lineage(value, n)"
            )
        names = ("n", "tape_id", "asof", "cleared", "overriding")
        return sa.text(text).columns(*(sa.column(name, sa.BigInteger) for name in names)).cte("lineage")

    def _names(self) -> sa.CTE:
        """Return a JSON list of strings as a table."""
        if self._dialect.name == "sqlite":
            text = "SELECT value AS name FROM json_each(:names)"
        else:
            text = 'SELECT value COLLATE "C" AS name FROM jsonb_array_elements_text(CAST(:names AS jsonb)) AS t(value)'
        return sa.text(text).columns(sa.column("name", sa.Text)).cte("names")

    def _among(self, lin: Any, table: sa.Table, name: Any, seq: Any) -> Any:
        """Return which of the given names rows of a lineage have, looked up one by one.

        An engine left to itself walks the whole tape and looks each row up among the names. So SQLite gets the names as
        a list, and PostgreSQL as a table whose every row asks by itself; the seq is in a form that no index serves.
        """
        names = self._names()
        seen = (table.c.tape_id == lin.c.tape_id, seq + ZERO <= lin.c.asof)
        if not self.postgres:
            listed = name.in_(sa.select(names.c.name))
            return sa.select(name).distinct().select_from(lin.join(table, sa.and_(*seen, listed)))
        rows, on = self._each(table, (name.name,), (name == names.c.name, *seen))
        return sa.select(rows.c[name.name]).distinct().select_from(lin.join(names, sa.true()).join(rows, on))

    def _define_lineage(self) -> None:
        """Make the statements that ask a fork's whole lineage at once."""
        t, make, lin = self.tables, self._make, self._lineage()
        e, ov, a, c = t.entries.c, t.overrides.c, t.answers.c, t.calls.c
        seen = sa.and_(e.tape_id == lin.c.tape_id, e.seq <= lin.c.asof)
        al = t.aliases.c
        # By key or by alias in one round trip; a message has only one of the two.
        by_key = sa.select(e.lane, e.ordinal, e.seq, lin.c.tape_id, lin.c.n).select_from(
            lin.join(t.entries, sa.and_(seen, e.key == param("key")))
        )
        by_alias = sa.select(e.lane, e.ordinal, e.seq, lin.c.tape_id, lin.c.n).select_from(
            lin.join(t.aliases, sa.and_(al.tape_id == lin.c.tape_id, al.id == param("id"))).join(
                t.entries, sa.and_(seen, e.seq == al.seq)
            )
        )
        self.family_place = make("family_place", sa.union_all(by_key, by_alias), ["lineage", "key", "id"])
        self._taken = sa.or_(
            sa.exists(sa.select(e.seq).select_from(lin.join(t.entries, sa.and_(seen, e.key == param("own_key"))))),
            sa.exists(
                sa.select(al.seq).select_from(
                    lin.join(
                        t.aliases,
                        sa.and_(al.tape_id == lin.c.tape_id, al.id == param("own_id"), al.seq <= lin.c.asof),
                    )
                )
            ),
        )
        """Whether a message of the lineage has an id."""
        self.taken_keys = make("taken_keys", self._among(lin, t.entries, e.key, e.seq), ["lineage", "names"])
        self.taken_aliases = make("taken_aliases", self._among(lin, t.aliases, al.id, al.seq), ["lineage", "names"])
        current = sa.and_(
            ov.tape_id == lin.c.tape_id,
            ov.since <= lin.c.asof,
            sa.or_(ov.until.is_(None), ov.until > lin.c.asof),
        )
        at = sa.and_(ov.origin == param("from_tape"), ov.lane == param("at_lane"), ov.ordinal == param("at_ordinal"))
        self.overrides_at = make(
            "overrides_at",
            sa.select(lin.c.n, ov.placed, ov.body_tape, ov.body, ov.since, ov.why)
            .select_from(lin.join(t.overrides, sa.and_(current, at)))
            .order_by(lin.c.n),
            ["lineage", "from_tape", "at_lane", "at_ordinal"],
        )
        self.last_override = make(
            "last_override",
            sa.select(ov.placed, ov.body_tape, ov.body)
            .select_from(
                lin.join(
                    t.overrides,
                    sa.and_(ov.tape_id == lin.c.tape_id, ov.since <= lin.c.asof, ov.body.is_not(None), at),
                )
            )
            .order_by(lin.c.n, ov.since.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["lineage", "from_tape", "at_lane", "at_ordinal"],
        )
        stretch = (
            ov.origin == param("from_tape"),
            ov.lane == param("at_lane"),
            ov.ordinal > param("lo"),
            ov.ordinal <= param("hi"),
        )
        changed, there = self._each(t.overrides, _OVERRIDE_COLUMNS, (current, *stretch))
        bodies, on = self._bodies(changed, "body_tape")
        # Rows of overrides in a stretch of one ancestor's lane, each with the body it shows, if any.
        self.overrides_in = make(
            "overrides_in",
            sa.select(*self._override_columns(changed, bodies), lin.c.tape_id, changed.c.body_tape)
            .select_from(lin.join(changed, there).outerjoin(bodies, on))
            .order_by(lin.c.n),
            ["lineage", "from_tape", "at_lane", "lo", "hi"],
        )
        self.family_makers = make(
            "family_makers",
            sa.select(c.lane, c.ordinal, c.place_tape, lin.c.tape_id)
            .distinct()
            .select_from(
                lin.join(t.calls, sa.and_(c.tape_id == lin.c.tape_id, c.call == param("call"), c.seq <= lin.c.asof))
            ),
            ["lineage", "call"],
        )
        self.family_answers = make(
            "family_answers",
            sa.select(a.lane, a.ordinal, lin.c.tape_id, lin.c.n)
            .distinct()
            .select_from(
                lin.join(
                    t.answers,
                    sa.and_(
                        a.tape_id == lin.c.tape_id,
                        a.maker_tape
                        == sa.case(
                            (lin.c.tape_id == param("from_tape"), sa.literal_column("0")), else_=param("from_tape")
                        ),
                        a.maker_lane == param("at_lane"),
                        a.maker_ordinal == param("at_ordinal"),
                    ),
                )
            ),
            ["lineage", "from_tape", "at_lane", "at_ordinal"],
        )
        # The answers below a depth to calls that were made in a stretch of one lane.
        self.answers_between = make(
            "answers_between",
            sa.select(a.lane, a.ordinal, lin.c.tape_id, a.maker_ordinal)
            .distinct()
            .select_from(
                lin.join(
                    t.answers,
                    sa.and_(
                        a.tape_id == lin.c.tape_id,
                        a.maker_tape
                        == sa.case(
                            (lin.c.tape_id == param("from_tape"), sa.literal_column("0")), else_=param("from_tape")
                        ),
                        a.maker_lane == param("at_lane"),
                        a.maker_ordinal > param("lo"),
                        a.maker_ordinal <= param("hi"),
                        a.ordinal > param("below"),
                    ),
                )
            ),
            ["lineage", "from_tape", "at_lane", "lo", "hi", "below"],
        )
        walk = self._walk(t)
        an = t.anchors.c
        self.family_anchor = make(
            "family_anchor",
            sa.select(an.seq, an.ordinal, lin.c.tape_id, lin.c.n)
            .select_from(
                walk.join(lin, sa.true()).join(
                    t.anchors,
                    sa.and_(
                        an.tape_id == lin.c.tape_id,
                        an.head_tape
                        == sa.case((lin.c.tape_id == walk.c.tape_id, sa.literal_column("0")), else_=walk.c.tape_id),
                        an.lane == walk.c.lane,
                        an.ordinal > walk.c.lo,
                        an.ordinal <= walk.c.hi,
                        an.seq > lin.c.cleared,
                        an.seq <= lin.c.asof,
                    ),
                )
            )
            .order_by(an.ordinal.desc(), lin.c.n, an.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "at_lane", "at_ordinal", "floor", "lineage"],
        )
        parts = []
        for rows in (t.live, t.past):
            r = rows.c
            where = [
                r.tape_id == walk.c.tape_id,
                r.lane == walk.c.lane,
                r.ordinal > self._lowest(walk),
                r.ordinal <= walk.c.hi,
                r.since > lin.c.cleared,
                r.since <= lin.c.asof,
            ]
            if rows is t.past:
                where.append(r.until > lin.c.asof)
            held, there = self._each(rows, ("tape_id", "lane", "ordinal", "placed", "body"), where)
            bodies, on = self._bodies(held)
            parts.append(
                sa.select(*self._body_columns(held, bodies), lin.c.tape_id).select_from(
                    walk.join(lin, lin.c.tape_id == walk.c.tape_id).join(held, there).join(bodies, on)
                )
            )
        # The bodies that hold on a path through a fork's lineage, in no order.
        self.family_path = make(
            "family_path",
            sa.union_all(*parts),
            ["t", "at_lane", "at_ordinal", "floor", "lineage"],
        )
        changed, there = self._each(t.overrides, _OVERRIDE_COLUMNS, (current,))
        bodies, on = self._bodies(changed, "body_tape")
        on_path = sa.and_(
            walk.c.tape_id == changed.c.origin,
            walk.c.lane == changed.c.lane,
            changed.c.ordinal > walk.c.lo,
            changed.c.ordinal <= walk.c.hi,
            changed.c.ordinal > param("floor"),
        )
        self.family_overrides = make(
            "family_overrides",
            sa.select(*self._override_columns(changed, bodies), lin.c.tape_id, changed.c.body_tape)
            .select_from(lin.join(changed, there).join(walk, on_path).outerjoin(bodies, on))
            .where(lin.c.overriding == sa.literal_column("1"))
            .order_by(lin.c.n),
            ["t", "at_lane", "at_ordinal", "floor", "lineage"],
        )

    def _override_columns(self, changed: Any, bodies: Any) -> list[Any]:
        return [*self._body_columns(changed, bodies), changed.c.origin, changed.c.since]


_OVERRIDE_COLUMNS = ("origin", "lane", "ordinal", "placed", "body_tape", "body", "since")
