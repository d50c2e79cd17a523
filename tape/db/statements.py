"""Every SQL statement that the store runs, each written once in SQLAlchemy Core and compiled once per engine.

SQLAlchemy is the one place where SQL is written and the dialects are told apart; at run time the compiled text goes
straight to the driver's cursor with positional parameters, which is three to eight times as fast as executing the
construct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect

from tape.db.schema import Tables

__all__ = ["Statement", "Statements"]

_p = sa.bindparam
# Without an offset of its own, SQLAlchemy gives SQLite's LIMIT one as a further parameter.
_NONE: sa.ColumnClause[int] = sa.literal_column("0")


class Statement:
    """A compiled statement: its text, and the order in which its parameters are passed."""

    __slots__ = ("name", "order", "sql")

    def __init__(self, name: str, construct: sa.ClauseElement, dialect: sa.Dialect, params: Sequence[str]) -> None:
        compiled = construct.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self.name = name
        self.sql = str(compiled)
        wanted = list(getattr(compiled, "positiontup", None) or ())
        if set(wanted) != set(params):
            raise AssertionError(f"{name} takes {sorted(set(wanted))}, not {sorted(params)}")
        order = tuple(params.index(one) for one in wanted)
        self.order = None if order == tuple(range(len(params))) else order
        """Which parameter stands at each position of the text; None when they are passed as they are."""

    def bind(self, params: Sequence[Any]) -> Sequence[Any]:
        """Return the parameters in the order in which the text names them."""
        return params if self.order is None else [params[index] for index in self.order]


def _above(lanes: Any) -> Any:
    """Return the tape of the lane that a lane branches off from: 0 stands for its own."""
    return sa.case((lanes.c.base_tape == sa.literal_column("0"), lanes.c.tape_id), else_=lanes.c.base_tape)


def _dialect(name: str) -> sa.Dialect:
    if name == "sqlite":
        return sqlite_dialect.dialect(paramstyle="qmark")
    return postgresql.dialect(paramstyle="format")  # type: ignore[no-untyped-call]


ENTRY_COLUMNS = (
    "tape_id",
    "seq",
    "kind",
    "key",
    "actor",
    "source_tape",
    "source_seq",
    "payload",
    "meta",
    "stamp",
    "version",
    "hash",
    "head_tape",
    "lane",
    "ordinal",
)
HEAD_COLUMNS = (
    "seq",
    "hash",
    "stamp",
    "head_tape",
    "lane",
    "ordinal",
    "lo",
    "tip",
    "cleared",
    "messages",
    "last_message",
    "aliased",
)


class Statements:
    """All statements of one engine."""

    def __init__(self, dialect: str, tables: Tables) -> None:
        self._dialect = _dialect(dialect)
        self.tables = t = tables
        postgres = dialect == "postgresql"
        e, h, m, past, lanes = t.entries.c, t.heads.c, t.live.c, t.past.c, t.lanes.c
        make = self._make

        # -- tapes and heads

        tape_columns = [t.tapes.c[name] for name in TAPE_COLUMNS]
        head_columns = [t.heads.c[name] for name in HEAD_COLUMNS]
        fk = t.forks.c
        joined = sa.join(t.tapes, t.heads, h.tape_id == t.tapes.c.id)
        # One more row if the tape is a fork; it never changes but for its state.
        forked = joined.outerjoin(t.forks, fk.tape_id == t.tapes.c.id)
        # The tape's number, name and everything an append needs, in one row.
        self.head = make(
            "head",
            sa.select(
                t.tapes.c.id,
                t.tapes.c.owner,
                t.tapes.c.status,
                t.tapes.c.reason,
                t.tapes.c.completed_at,
                fk.lineage,
                *head_columns,
            )
            .select_from(forked)
            .where(t.tapes.c.tape == _p("tape")),
            ["tape"],
        )
        self.info = make(
            "info",
            sa.select(*tape_columns, *head_columns).select_from(joined).where(t.tapes.c.tape == _p("tape")),
            ["tape"],
        )
        parents = t.tapes.alias("parents")
        # A fork's parent, the seq it was forked at, its state, and up to where and by which entry it was merged.
        self.fork = make(
            "fork",
            sa.select(parents.c.tape, fk.seq, fk.state, fk.merged, fk.merge_seq)
            .select_from(t.forks.join(parents, parents.c.id == fk.parent_id))
            .where(fk.tape_id == _p("t")),
            ["t"],
        )
        self.forks_of = make(
            "forks_of",
            sa.select(t.tapes.c.tape, fk.tape_id, fk.seq, fk.state, fk.merge_seq)
            .select_from(t.forks.join(t.tapes, t.tapes.c.id == fk.tape_id))
            .where(fk.parent_id == _p("t"))
            .order_by(fk.tape_id),
            ["t"],
        )
        self.set_fork = make(
            "set_fork",
            sa.update(t.forks)
            .where(fk.tape_id == _p("t"))
            .values(
                state=_p("new_state"),
                merged=sa.func.coalesce(
                    sa.func.nullif(sa.cast(_p("new_merged"), sa.BigInteger), sa.literal_column("0")), fk.merged
                ),
                merge_seq=_p("new_merge_seq"),
            ),
            ["new_state", "new_merged", "new_merge_seq", "t"],
        )
        self.tape_names = make(
            "tape_names",
            sa.select(t.tapes.c.tape)
            .where(t.tapes.c.tape > _p("after"))
            .order_by(t.tapes.c.tape)
            .limit(sa.literal_column("500"))
            .offset(_NONE),
            ["after"],
        )
        self.create_tape = make(
            "create_tape",
            sa.insert(t.tapes)
            .values({name: _p(name) for name in TAPE_COLUMNS if name != "id"})
            .returning(t.tapes.c.id),
            [name for name in TAPE_COLUMNS if name != "id"],
        )
        self.create_head = make(
            "create_head",
            sa.insert(t.heads).values(
                {
                    "tape_id": _p("tape_id"),
                    **{name: _p(name) for name in HEAD_COLUMNS},
                    "xid": sa.literal_column("0"),
                }
            ),
            ["tape_id", *HEAD_COLUMNS],
        )
        own_xid: sa.ColumnClause[int] = sa.literal_column("pg_current_xact_id()::text::bigint")
        head_values: dict[str, Any] = {name: _p(f"new_{name}") for name in HEAD_COLUMNS}
        if postgres:
            # Never lower than the last one, so that xid order never contradicts seq order inside a tape.
            head_values["xid"] = sa.func.greatest(h.xid, own_xid)
        self.move_head = make(
            "move_head",
            sa.update(t.heads).where(h.tape_id == _p("of")).values(head_values),
            [*(f"new_{name}" for name in HEAD_COLUMNS), "of"],
        )
        self.set_status = make(
            "set_status",
            sa.update(t.tapes)
            .where(t.tapes.c.id == _p("of"))
            .values(status=_p("new_status"), reason=_p("new_reason"), completed_at=_p("new_completed_at")),
            ["new_status", "new_reason", "new_completed_at", "of"],
        )

        # -- entries

        entry_values: dict[str, Any] = {name: _p(name) for name in ENTRY_COLUMNS}
        last_xid = sa.select(h.xid).where(h.tape_id == _p("tape_id")).scalar_subquery()
        # The head moves after the entries are written, so its row alone would give the writer before this one.
        entry_values["xid"] = sa.func.greatest(last_xid, own_xid) if postgres else sa.literal_column("0")
        self.insert_entry = make("insert_entry", sa.insert(t.entries).values(entry_values), ENTRY_COLUMNS)
        full = [e.position, *(e[name] for name in ENTRY_COLUMNS)]
        self.entry = make("entry", sa.select(*full).where(e.tape_id == _p("t"), e.seq == _p("seq")), ["t", "seq"])
        self.entry_by_key = make(
            "entry_by_key", sa.select(*full).where(e.tape_id == _p("t"), e.key == _p("key")), ["t", "key"]
        )
        self.entries_after = make(
            "entries_after",
            sa.select(*full)
            .where(e.tape_id == _p("t"), e.seq > _p("after"), e.seq <= _p("to"))
            .order_by(e.seq)
            .limit(_p("most", type_=sa.Integer))
            .offset(_NONE),
            ["t", "after", "to", "most"],
        )
        self.stamp_at = make(
            "stamp_at", sa.select(e.stamp).where(e.tape_id == _p("t"), e.seq == _p("seq")), ["t", "seq"]
        )
        self.body = make(
            "body",
            sa.select(e.kind, e.version, e.payload, e.stamp).where(e.tape_id == _p("t"), e.seq == _p("seq")),
            ["t", "seq"],
        )
        self.place_by_key = make(
            "place_by_key",
            sa.select(e.lane, e.ordinal, e.seq).where(e.tape_id == _p("t"), e.key == _p("key")),
            ["t", "key"],
        )
        self.place_by_alias = make(
            "place_by_alias",
            sa.select(e.lane, e.ordinal, e.seq)
            .select_from(t.aliases.join(t.entries, sa.and_(e.tape_id == t.aliases.c.tape_id, e.seq == t.aliases.c.seq)))
            .where(t.aliases.c.tape_id == _p("t"), t.aliases.c.id == _p("id")),
            ["t", "id"],
        )

        # -- projection

        self.open_row = make(
            "open_row",
            sa.insert(t.live).values({name: _p(name) for name in LIVE_COLUMNS}),
            LIVE_COLUMNS,
        )
        at_place = (m.tape_id == _p("t"), m.lane == _p("at_lane"), m.ordinal == _p("at_ordinal"))
        self.keep_row = make(
            "keep_row",
            sa.insert(t.past).from_select(
                ["tape_id", "lane", "ordinal", "since", "placed", "body", "until", "why"],
                sa.select(
                    m.tape_id,
                    m.lane,
                    m.ordinal,
                    m.since,
                    m.placed,
                    m.body,
                    sa.cast(_p("ended"), sa.BigInteger),
                    sa.cast(_p("because"), sa.Text),
                ).where(*at_place),
            ),
            ["ended", "because", "t", "at_lane", "at_ordinal"],
        )
        self.drop_row = make("drop_row", sa.delete(t.live).where(*at_place), ["t", "at_lane", "at_ordinal"])
        newest = sa.alias(t.past)
        self.mark_row = make(
            "mark_row",
            sa.update(t.past)
            .where(
                past.tape_id == _p("t"),
                past.lane == _p("at_lane"),
                past.ordinal == _p("at_ordinal"),
                past.since
                == sa.select(sa.func.max(newest.c.since))
                .where(
                    newest.c.tape_id == _p("t"),
                    newest.c.lane == _p("at_lane"),
                    newest.c.ordinal == _p("at_ordinal"),
                )
                .scalar_subquery(),
            )
            .values(why=_p("because")),
            ["because", "t", "at_lane", "at_ordinal"],
        )
        self.insert_lane = self._insert(t.lanes)
        self.insert_alias = self._insert(t.aliases)
        self.insert_call = self._insert(t.calls)
        self.insert_answer = self._insert(t.answers)
        self.insert_anchor = self._insert(t.anchors)
        self.insert_clear = self._insert(t.clears)
        self.insert_slot = self._insert(t.slots)
        self.insert_past = self._insert(t.past)
        self.insert_fork = self._insert(t.forks)
        self.insert_override = self._insert(t.overrides)
        ov = t.overrides.c
        self.end_override = make(
            "end_override",
            sa.update(t.overrides)
            .where(
                ov.tape_id == _p("t"),
                ov.origin == _p("from_tape"),
                ov.lane == _p("at_lane"),
                ov.ordinal == _p("at_ordinal"),
                ov.until.is_(None),
            )
            .values(until=_p("ended")),
            ["ended", "t", "from_tape", "at_lane", "at_ordinal"],
        )
        self.has_overrides = make(
            "has_overrides",
            sa.select(ov.since)
            .where(ov.tape_id == _p("t"), ov.since <= _p("at_seq"))
            .limit(sa.literal_column("1"))
            .offset(_NONE),
            ["t", "at_seq"],
        )
        c = t.clears.c
        self.untally_clear = make(
            "untally_clear",
            sa.update(t.clears)
            .where(c.tape_id == _p("t"), c.seq == _p("at_seq"))
            .values(hidden=c.hidden - sa.literal_column("1")),
            ["t", "at_seq"],
        )
        self.touch_clears = make(
            "touch_clears",
            sa.update(t.clears).where(c.tape_id == _p("t"), c.until.is_(None)).values(touched=sa.literal_column("1")),
            ["t"],
        )
        self.end_clear = make(
            "end_clear",
            sa.update(t.clears).where(c.tape_id == _p("t"), c.seq == _p("at_seq")).values(until=_p("ended")),
            ["ended", "t", "at_seq"],
        )
        s = t.slots.c
        self.end_slot = make(
            "end_slot",
            sa.update(t.slots)
            .where(s.tape_id == _p("t"), s.slot == _p("at_slot"), s.until.is_(None))
            .values(until=_p("ended")),
            ["ended", "t", "at_slot"],
        )

        # -- lookups of a plan

        self.held = make(
            "held",
            sa.select(m.placed, m.since, m.body).where(*at_place),
            ["t", "at_lane", "at_ordinal"],
        )
        self.held_last = make(
            "held_last",
            sa.select(past.placed, past.since, past.body, past.why)
            .where(
                past.tape_id == _p("t"),
                past.lane == _p("at_lane"),
                past.ordinal == _p("at_ordinal"),
                past.since <= _p("at_seq"),
            )
            .order_by(past.since.desc())
            .limit(sa.literal_column("1"))
            .offset(_NONE),
            ["t", "at_lane", "at_ordinal", "at_seq"],
        )
        self.lane = make(
            "lane",
            sa.select(lanes.base_tape, lanes.base_lane, lanes.base_ordinal).where(
                lanes.tape_id == _p("t"), lanes.lane == _p("at_lane")
            ),
            ["t", "at_lane"],
        )
        self.lane_tip = make(
            "lane_tip",
            sa.select(
                sa.select(sa.func.max(m.ordinal))
                .where(m.tape_id == _p("t"), m.lane == _p("at_lane"))
                .scalar_subquery(),
                sa.select(sa.func.max(past.ordinal))
                .where(past.tape_id == _p("t"), past.lane == _p("at_lane"))
                .scalar_subquery(),
            ),
            ["t", "at_lane"],
        )
        self.makers = make(
            "makers",
            sa.select(t.calls.c.lane, t.calls.c.ordinal)
            .distinct()
            .where(t.calls.c.tape_id == _p("t"), t.calls.c.call == _p("call")),
            ["t", "call"],
        )
        a = t.answers.c
        self.answers = make(
            "answers",
            sa.select(a.lane, a.ordinal)
            .distinct()
            .where(
                a.tape_id == _p("t"),
                a.maker_tape == _p("maker_tape"),
                a.maker_lane == _p("at_lane"),
                a.maker_ordinal == _p("at_ordinal"),
            ),
            ["t", "maker_tape", "at_lane", "at_ordinal"],
        )
        self._family_lookups(t)
        self.clears = make(
            "clears",
            sa.select(c.seq, c.hidden).where(c.tape_id == _p("t"), c.until.is_(None)).order_by(c.seq.desc()),
            ["t"],
        )
        self.returned = make(
            "returned",
            sa.select(past.lane, past.ordinal)
            .distinct()
            .where(past.tape_id == _p("t"), past.since <= _p("seq"), past.until > _p("seq")),
            ["t", "seq"],
        )
        self.returned_inherited = make(
            "returned_inherited",
            sa.select(ov.origin, ov.lane, ov.ordinal).distinct().where(ov.tape_id == _p("t"), ov.since > _p("seq")),
            ["t", "seq"],
        )

        # -- reading the view

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
                an.tape_id == _p("t"),
                an.head_tape == sa.literal_column("0"),
                an.lane == _p("at_lane"),
                an.ordinal <= _p("hi"),
                an.ordinal > _p("lo"),
                an.seq > _p("cleared"),
                an.seq <= _p("at_seq"),
            )
            .order_by(an.ordinal.desc(), an.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(_NONE),
            ["t", "at_lane", "hi", "lo", "cleared", "at_seq"],
        )
        # The deepest anchor on a stretch of the path, then the newest at that depth.
        self.anchor_on_path = make(
            "anchor_on_path",
            sa.select(an.seq, an.ordinal)
            .select_from(
                walk.join(
                    t.anchors,
                    sa.and_(
                        an.tape_id == walk.c.tape_id,
                        an.head_tape == sa.literal_column("0"),
                        an.lane == walk.c.lane,
                        an.ordinal > walk.c.lo,
                        an.ordinal <= walk.c.hi,
                        an.seq > _p("cleared"),
                        an.seq <= _p("at_seq"),
                    ),
                )
            )
            .order_by(an.ordinal.desc(), an.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(_NONE),
            ["t", "at_lane", "at_ordinal", "floor", "cleared", "at_seq"],
        )
        self.anchor_list = make(
            "anchor_list",
            sa.select(*full)
            .select_from(anchor_entry)
            .where(an.tape_id == _p("t"), an.seq > _p("cleared"), an.seq < _p("before"))
            .order_by(an.seq.desc())
            .limit(_p("most", type_=sa.Integer))
            .offset(_NONE),
            ["t", "cleared", "before", "most"],
        )
        self.anchor_named = make(
            "anchor_named",
            sa.select(an.seq)
            .where(an.tape_id == _p("t"), an.name == _p("name"), an.seq <= _p("at_seq"))
            .order_by(an.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(_NONE),
            ["t", "name", "at_seq"],
        )
        self.clear_at = make(
            "clear_at",
            sa.select(c.seq, c.head_tape, c.lane, c.ordinal, c.touched)
            .where(c.tape_id == _p("t"), c.seq <= _p("at_seq"), sa.or_(c.until.is_(None), c.until > _p("at_seq")))
            .order_by(c.seq.desc())
            .limit(sa.literal_column("1"))
            .offset(_NONE),
            ["t", "at_seq"],
        )
        self.slot_at = make(
            "slot_at",
            sa.select(*full)
            .select_from(t.slots.join(t.entries, sa.and_(e.tape_id == s.tape_id, e.seq == s.since)))
            .where(s.tape_id == _p("t"), s.slot == _p("slot"), s.since <= _p("at_seq"))
            .order_by(s.since.desc())
            .limit(sa.literal_column("1"))
            .offset(_NONE),
            ["t", "slot", "at_seq"],
        )
        self.lane_list = make(
            "lane_list",
            sa.select(lanes.lane, lanes.base_tape, lanes.base_lane, lanes.base_ordinal)
            .where(lanes.tape_id == _p("t"), lanes.lane <= _p("at_seq"))
            .order_by(lanes.lane),
            ["t", "at_seq"],
        )
        self.branches = make(
            "branches",
            sa.select(lanes.lane)
            .where(
                lanes.tape_id == _p("t"),
                lanes.base_tape == _p("from_tape"),
                lanes.base_lane == _p("at_lane"),
                lanes.base_ordinal >= _p("from_ordinal"),
                lanes.base_ordinal < _p("to_ordinal"),
                lanes.lane <= _p("at_seq"),
            )
            .order_by(lanes.base_ordinal, lanes.lane),
            ["t", "from_tape", "at_lane", "from_ordinal", "to_ordinal", "at_seq"],
        )
        self.count_then = make(
            "count_then",
            sa.select(sa.func.count()).select_from(
                sa.union_all(
                    sa.select(m.ordinal).where(m.tape_id == _p("t"), m.since <= _p("at_seq"), m.since > _p("cleared")),
                    sa.select(past.ordinal).where(
                        past.tape_id == _p("t"),
                        past.since <= _p("at_seq"),
                        past.until > _p("at_seq"),
                        past.since > _p("cleared"),
                    ),
                ).subquery()
            ),
            ["t", "at_seq", "cleared"],
        )
        self.lock = "SELECT pg_advisory_xact_lock(%s)" if postgres else ""
        self.append_hot = self._append_hot(entry_values, head_values) if postgres else None
        self.dump = {
            table.name: make(
                f"dump_{table.name}",
                sa.select(*[col for col in table.c if col.name != "tape_id"]).where(table.c.tape_id == _p("t")),
                ["t"],
            )
            for table in t.view
        }
        self.wipe = [
            make(f"wipe_{table.name}", sa.delete(table).where(table.c.tape_id == _p("t")), ["t"]) for table in t.view
        ]

    def _make(self, name: str, construct: sa.ClauseElement, params: Sequence[str]) -> Statement:
        return Statement(name, construct, self._dialect, list(params))

    def _insert(self, table: sa.Table) -> Statement:
        names = [column.name for column in table.c]
        return self._make(f"insert_{table.name}", sa.insert(table).values({name: _p(name) for name in names}), names)

    def _walk(self, t: Tables) -> sa.CTE:
        """Return the lanes from a place up to the root, or up to the first that begins at the floor.

        A fork's first lane branches off from a lane of its parent, so the walk goes on there.
        """
        first = t.lanes.alias("first")
        walk = (
            sa.select(
                first.c.tape_id.label("tape_id"),
                first.c.lane.label("lane"),
                first.c.base_ordinal.label("lo"),
                sa.cast(_p("at_ordinal"), sa.BigInteger).label("hi"),
                _above(first).label("up_tape"),
                first.c.base_lane.label("up"),
            )
            .where(first.c.tape_id == _p("t"), first.c.lane == _p("at_lane"))
            .cte("walk", recursive=True)
        )
        following = t.lanes.alias("following")
        return walk.union_all(
            sa.select(
                following.c.tape_id,
                following.c.lane,
                following.c.base_ordinal,
                walk.c.lo,
                _above(following),
                following.c.base_lane,
            ).where(following.c.tape_id == walk.c.up_tape, following.c.lane == walk.c.up, walk.c.lo > _p("floor"))
        )

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

    def _family_lookups(self, t: Tables) -> None:
        """Make the statements that ask a fork's whole lineage at once."""
        make, lin = self._make, self._lineage()
        e, ov, a, c = t.entries.c, t.overrides.c, t.answers.c, t.calls.c
        seen = sa.and_(e.tape_id == lin.c.tape_id, e.seq <= lin.c.asof)
        self.family_place_by_key = make(
            "family_place_by_key",
            sa.select(e.lane, e.ordinal, e.seq, lin.c.tape_id, lin.c.n)
            .select_from(lin.join(t.entries, sa.and_(seen, e.key == _p("key"))))
            .order_by(lin.c.n),
            ["lineage", "key"],
        )
        al = t.aliases.c
        self.family_place_by_alias = make(
            "family_place_by_alias",
            sa.select(e.lane, e.ordinal, e.seq, lin.c.tape_id, lin.c.n)
            .select_from(
                lin.join(t.aliases, sa.and_(al.tape_id == lin.c.tape_id, al.id == _p("id"))).join(
                    t.entries, sa.and_(seen, e.seq == al.seq)
                )
            )
            .order_by(lin.c.n),
            ["lineage", "id"],
        )
        current = sa.and_(
            ov.tape_id == lin.c.tape_id,
            ov.since <= lin.c.asof,
            sa.or_(ov.until.is_(None), ov.until > lin.c.asof),
        )
        at = sa.and_(ov.origin == _p("from_tape"), ov.lane == _p("at_lane"), ov.ordinal == _p("at_ordinal"))
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
            .offset(_NONE),
            ["lineage", "from_tape", "at_lane", "at_ordinal"],
        )
        override_columns = [
            ov.ordinal,
            ov.placed,
            ov.body,
            e.kind,
            e.version,
            e.payload,
            e.stamp,
            ov.lane,
            ov.origin,
            ov.since,
            lin.c.tape_id,
        ]
        # Rows of overrides in a stretch of one ancestor's lane, each with the body it shows, if any.
        self.overrides_in = make(
            "overrides_in",
            sa.select(*override_columns)
            .select_from(
                lin.join(
                    t.overrides,
                    sa.and_(
                        current,
                        ov.origin == _p("from_tape"),
                        ov.lane == _p("at_lane"),
                        ov.ordinal > _p("lo"),
                        ov.ordinal <= _p("hi"),
                    ),
                ).outerjoin(t.entries, sa.and_(e.tape_id == ov.body_tape, e.seq == ov.body))
            )
            .order_by(lin.c.n),
            ["lineage", "from_tape", "at_lane", "lo", "hi"],
        )
        self.family_makers = make(
            "family_makers",
            sa.select(c.lane, c.ordinal, c.place_tape, lin.c.tape_id)
            .distinct()
            .select_from(
                lin.join(t.calls, sa.and_(c.tape_id == lin.c.tape_id, c.call == _p("call"), c.seq <= lin.c.asof))
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
                        == sa.case((lin.c.tape_id == _p("from_tape"), sa.literal_column("0")), else_=_p("from_tape")),
                        a.maker_lane == _p("at_lane"),
                        a.maker_ordinal == _p("at_ordinal"),
                    ),
                )
            ),
            ["lineage", "from_tape", "at_lane", "at_ordinal"],
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
            .offset(_NONE),
            ["t", "at_lane", "at_ordinal", "floor", "lineage"],
        )
        parts = []
        for rows in (t.live, t.past):
            r = rows.c
            where = [
                r.tape_id == walk.c.tape_id,
                r.lane == walk.c.lane,
                r.ordinal > walk.c.lo,
                r.ordinal <= walk.c.hi,
                r.ordinal > _p("floor"),
                r.since > lin.c.cleared,
                r.since <= lin.c.asof,
            ]
            if rows is t.past:
                where.append(r.until > lin.c.asof)
            parts.append(
                sa.select(*self._body_columns(rows), lin.c.tape_id).select_from(
                    walk.join(lin, lin.c.tape_id == walk.c.tape_id)
                    .join(rows, sa.and_(*where))
                    .join(t.entries, sa.and_(e.tape_id == r.tape_id, e.seq == r.body))
                )
            )
        # The bodies that hold on a path through a fork's lineage, in no order.
        self.family_path = make(
            "family_path",
            sa.union_all(*parts),
            ["t", "at_lane", "at_ordinal", "floor", "lineage"],
        )
        self.family_overrides = make(
            "family_overrides",
            sa.select(*override_columns)
            .select_from(
                lin.join(t.overrides, sa.and_(current, lin.c.overriding == sa.literal_column("1")))
                .join(
                    walk,
                    sa.and_(
                        walk.c.tape_id == ov.origin,
                        walk.c.lane == ov.lane,
                        ov.ordinal > walk.c.lo,
                        ov.ordinal <= walk.c.hi,
                        ov.ordinal > _p("floor"),
                    ),
                )
                .outerjoin(t.entries, sa.and_(e.tape_id == ov.body_tape, e.seq == ov.body))
            )
            .order_by(lin.c.n),
            ["t", "at_lane", "at_ordinal", "floor", "lineage"],
        )

    def _held(self, *, past: bool) -> list[sa.FromClause]:
        """Return where bodies lie: the live rows, and for a look at the past also those that ended."""
        return [self.tables.live, self.tables.past] if past else [self.tables.live]

    def _body_columns(self, rows: Any) -> list[Any]:
        e = self.tables.entries.c
        return [
            rows.c.ordinal,
            rows.c.placed,
            rows.c.body,
            e.kind,
            e.version,
            e.payload,
            e.stamp,
            rows.c.lane,
        ]

    def _rows(self, name: str, *, past: bool, newest_first: bool) -> Statement:
        """Return the bodies that hold in one stretch of one lane."""
        e = self.tables.entries.c
        parts: list[sa.Select[Any]] = []
        for rows in self._held(past=past):
            r = rows.c
            where = [
                r.tape_id == _p("t"),
                r.lane == _p("at_lane"),
                r.ordinal > _p("lo"),
                r.ordinal <= _p("hi"),
                r.since > _p("cleared"),
            ]
            if past:
                where.append(r.since <= _p("at_seq"))
            if rows is self.tables.past:
                where.append(r.until > _p("at_seq"))
            parts.append(
                sa.select(*self._body_columns(rows))
                .select_from(rows.join(self.tables.entries, sa.and_(e.tape_id == r.tape_id, e.seq == r.body)))
                .where(*where)
            )
        query: Any = parts[0] if len(parts) == 1 else sa.union_all(*parts)
        order = query.selected_columns[0] if len(parts) == 1 else sa.literal_column("1")
        query = (
            query.order_by(order.desc() if newest_first else order).limit(_p("most", type_=sa.Integer)).offset(_NONE)
        )
        params = ["t", "at_lane", "lo", "hi", "cleared", *(["at_seq"] if past else []), "most"]
        return self._make(name, query, params)

    def _path(self, name: str, *, past: bool) -> Statement:
        """Return the bodies that hold on a whole path, in no order: the caller sorts by depth."""
        walk = self._walk(self.tables)
        e = self.tables.entries.c
        parts = []
        for rows in self._held(past=past):
            r = rows.c
            where = [
                r.tape_id == walk.c.tape_id,
                r.lane == walk.c.lane,
                r.ordinal > walk.c.lo,
                r.ordinal <= walk.c.hi,
                r.ordinal > _p("floor"),
                r.since > _p("cleared"),
            ]
            if past:
                where.append(r.since <= _p("at_seq"))
            if rows is self.tables.past:
                where.append(r.until > _p("at_seq"))
            parts.append(
                sa.select(*self._body_columns(rows)).select_from(
                    walk.join(rows, sa.and_(*where)).join(
                        self.tables.entries, sa.and_(e.tape_id == r.tape_id, e.seq == r.body)
                    )
                )
            )
        query: Any = parts[0] if len(parts) == 1 else sa.union_all(*parts)
        params = ["t", "at_lane", "at_ordinal", "floor", "cleared", *(["at_seq"] if past else [])]
        return self._make(name, query, params)

    def _append_hot(self, entry_values: dict[str, Any], head_values: dict[str, Any]) -> Statement:
        """Return the whole of a plain append as one statement: lock, compare the head, write three rows.

        Without BEGIN and COMMIT around it this is a single round trip. The lock comes before the transaction's xid is
        assigned, or xid order could contradict seq order; a head that moved makes it write nothing.
        """
        t = self.tables
        lock = sa.select(sa.func.pg_advisory_xact_lock(_p("lock")).label("locked")).cte("lock")
        moved = (
            sa.update(t.heads)
            .where(
                t.heads.c.tape_id == _p("of"),
                t.heads.c.seq == _p("cached"),
                sa.select(sa.func.count()).select_from(lock).scalar_subquery() == sa.literal_column("1"),
            )
            .values(head_values)
            .returning(t.heads.c.xid)
            .cte("moved")
        )
        types = {column.name: column.type for column in t.entries.c}
        values = [sa.cast(_p(name, type_=types[name]), types[name]) for name in ENTRY_COLUMNS]
        entry = (
            sa.insert(t.entries)
            .from_select([*ENTRY_COLUMNS, "xid"], sa.select(*values, moved.c.xid))
            .returning(t.entries.c.seq)
            .cte("entry")
        )
        row = (
            sa.insert(t.live)
            .from_select(
                list(LIVE_COLUMNS),
                sa.select(*(sa.cast(_p(f"row_{name}"), sa.BigInteger) for name in LIVE_COLUMNS)).select_from(moved),
            )
            .returning(t.live.c.ordinal)
            .cte("held")
        )
        whole = sa.select(moved.c.xid).add_cte(entry, row)
        params = [
            "lock",
            *(f"new_{name}" for name in HEAD_COLUMNS),
            "of",
            "cached",
            *ENTRY_COLUMNS,
            *(f"row_{name}" for name in LIVE_COLUMNS),
        ]
        return self._make("append_hot", whole, params)


TAPE_COLUMNS = (
    "id",
    "tape",
    "owner",
    "agent",
    "name",
    "labels",
    "meta",
    "status",
    "reason",
    "created_at",
    "completed_at",
)
LIVE_COLUMNS = ("tape_id", "lane", "ordinal", "placed", "since", "body")
