"""Compiling: how a statement written in SQLAlchemy Core becomes text for the driver, once per engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect

from tape.db.schema.tables import Tables

__all__ = [
    "BARE_COLUMNS",
    "ENTRY_COLUMNS",
    "HEAD_COLUMNS",
    "LIVE_COLUMNS",
    "TAPE_COLUMNS",
    "ZERO",
    "Compiler",
    "Statement",
    "param",
]

param = sa.bindparam
# Without an offset of its own, SQLAlchemy gives SQLite's LIMIT one as a further parameter.
ZERO: sa.ColumnClause[int] = sa.literal_column("0")


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

    def renamed(self, before: str, after: str) -> Statement:
        """Return the same statement on tables of another schema."""
        made = object.__new__(Statement)
        made.name, made.order, made.sql = self.name, self.order, self.sql.replace(before, after)
        return made


def _renamed(value: Any, before: str, after: str) -> Any:
    if isinstance(value, Statement):
        return value.renamed(before, after)
    if isinstance(value, str):
        return value.replace(before, after)
    if isinstance(value, list):
        return [_renamed(one, before, after) for one in value]
    if isinstance(value, dict):
        return {name: _renamed(one, before, after) for name, one in value.items()}
    return value


def _above(lanes: Any) -> Any:
    """Return the tape of the lane that a lane branches off from: 0 stands for its own."""
    return sa.case((lanes.c.base_tape == sa.literal_column("0"), lanes.c.tape_id), else_=lanes.c.base_tape)


def _dialect(name: str) -> sa.Dialect:
    if name == "sqlite":
        return sqlite_dialect.dialect(paramstyle="qmark")
    return postgresql.dialect(paramstyle="format")  # type: ignore[no-untyped-call]


class Compiler:
    """What all statements of one engine are made with: its tables, its dialect, and the parts that several share."""

    def __init__(self, dialect: str, tables: Tables) -> None:
        self._dialect = _dialect(dialect)
        self.tables = tables
        self.postgres = dialect == "postgresql"
        e = tables.entries.c
        self._entry = [e.position, *(e[name] for name in ENTRY_COLUMNS), e.xid]
        """Every column of an entry, in the order in which rows are read."""

    def on(self, tables: Tables) -> Self:
        """Return the same statements on tables of another schema: compiling takes far longer than renaming."""
        quote = self._dialect.identifier_preparer.quote_schema
        before, after = (f"{quote(str(one.schema))}." for one in (self.tables, tables))
        made = object.__new__(type(self))
        Compiler.__init__(made, self._dialect.name, tables)
        for name, value in vars(self).items():
            if name not in vars(made):
                setattr(made, name, _renamed(value, before, after))
        return made

    def _make(self, name: str, construct: sa.ClauseElement, params: Sequence[str]) -> Statement:
        return Statement(name, construct, self._dialect, list(params))

    def _insert(self, table: sa.Table) -> Statement:
        names = [column.name for column in table.c]
        return self._make(f"insert_{table.name}", sa.insert(table).values({name: param(name) for name in names}), names)

    def _walk(self, t: Tables) -> sa.CTE:
        """Return the lanes from a place up to the root, or up to the first that begins at the floor.

        A fork's first lane branches off from a lane of its parent, so the walk goes on there. Every step must lead to a
        lesser depth, so that it ends also where damage made a lane branch off from itself.
        """
        first = t.lanes.alias("first")
        walk = (
            sa.select(
                first.c.tape_id.label("tape_id"),
                first.c.lane.label("lane"),
                first.c.base_ordinal.label("lo"),
                sa.cast(param("at_ordinal"), sa.BigInteger).label("hi"),
                _above(first).label("up_tape"),
                first.c.base_lane.label("up"),
            )
            .where(first.c.tape_id == param("t"), first.c.lane == param("at_lane"))
            .cte("walk", recursive=True)
        )
        lanes = t.lanes.alias("following")
        following, on = self._each(
            lanes,
            ("tape_id", "lane", "base_tape", "base_lane", "base_ordinal"),
            (lanes.c.tape_id == walk.c.up_tape, lanes.c.lane == walk.c.up),
        )
        return walk.union_all(
            sa.select(
                following.c.tape_id,
                following.c.lane,
                following.c.base_ordinal,
                walk.c.lo,
                _above(following),
                following.c.base_lane,
            )
            .select_from(walk.join(following, on))
            .where(walk.c.lo > param("floor"), following.c.base_ordinal < walk.c.lo)
        )

    def _lowest(self, walk: sa.CTE) -> Any:
        """Return where reading of a lane begins: one bound, since SQLite takes only one of two to its index."""
        return sa.case((walk.c.lo > param("floor"), walk.c.lo), else_=param("floor"))

    def _body_columns(self, rows: Any, entries: Any = None) -> list[Any]:
        e = self.tables.entries.c if entries is None else entries.c
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

    def _each(self, table: sa.FromClause, names: Sequence[str], where: Sequence[Any]) -> tuple[Any, Any]:
        """Return ``table`` to be joined, and on what, so that every row before it looks up its own by the index.

        PostgreSQL guesses that a tape which it has no statistics of yet has one row. Joined plainly, it may then
        read everything of the tape, or of the store, for every row before: a new path of 20 000 messages took
        minutes. The offset keeps it from taking the inner query apart.
        """
        if not self.postgres:
            return table, sa.and_(*where)
        found = sa.select(*(table.c[name] for name in names)).where(*where)
        return found.offset(ZERO).lateral(f"each_{table.description}"), sa.true()

    def _bodies(self, rows: Any, tape: str = "tape_id") -> tuple[Any, Any]:
        """Return the entries that hold the bodies of rows of the view, to be joined with them, and on what."""
        e = self.tables.entries.c
        where = (e.tape_id == rows.c[tape], e.seq == rows.c.body)
        return self._each(self.tables.entries, ("kind", "version", "payload", "stamp"), where)


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
BARE_COLUMNS = tuple(name for name in ENTRY_COLUMNS if name not in ("actor", "source_tape", "source_seq", "meta"))
"""What every entry has. SQLite's driver takes longer to bind a NULL than a number, so most are written without."""
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
    "redirect",
)
LIVE_COLUMNS = ("tape_id", "lane", "ordinal", "placed", "since", "body")
