"""Compiling: how a statement written in SQLAlchemy Core becomes text for the driver, once per engine.

A statement is declared once, as a method: its name is the statement's, its parameters are the bind parameters in the
order in which callers pass them, and what it returns is the construct. It is compiled when it is first used.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any, Generic, TypeVar, overload

import sqlalchemy as sa
from msgspec import Struct

from tape.db.schema.tables import Tables
from tape.db.sql.rows.entries import ENTRY_COLUMNS

__all__ = [
    "ONE",
    "ZERO",
    "Compiler",
    "Insert",
    "Param",
    "Statement",
    "derived",
    "only_first",
    "param",
    "query",
    "statement",
]

R = TypeVar("R")
Param = Any
"""A bind parameter, as the methods that declare statements get them."""

param = sa.bindparam
# Without an offset of its own, SQLAlchemy gives SQLite's LIMIT one as a further parameter.
ZERO: sa.ColumnClause[int] = sa.literal_column("0")
ONE: sa.ColumnClause[int] = sa.literal_column("1")
_TYPES = {"most": sa.Integer()}
"""Parameters whose type no column tells."""


def only_first(select: Any) -> Any:
    """Return the first row of a query."""
    return select.limit(ONE).offset(ZERO)


def _makers(row: Any) -> tuple[Callable[[Any], Any] | None, Callable[[Iterable[Any]], list[Any]] | None]:
    """Return what makes one row, and what makes a list of them: named tuples, structs, or what a function returns."""
    if row is None:
        return None, None
    if isinstance(row, type) and issubclass(row, Struct):
        return lambda values: row(*values), lambda rows: list(starmap(row, rows))
    make = getattr(row, "_make", row)
    return make, lambda rows: list(map(make, rows))


class Statement(Generic[R]):
    """A compiled statement: its text, the order in which its parameters are passed, and what makes its rows."""

    __slots__ = ("name", "order", "row", "rows", "sql")

    def __init__(
        self,
        name: str,
        construct: sa.ClauseElement,
        dialect: sa.Dialect,
        params: Sequence[str],
        row: Callable[..., R] | None = None,
    ) -> None:
        compiled = construct.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self.name = name
        self.sql = str(compiled)
        self.row: Callable[[Any], R] | None
        self.rows: Callable[[Iterable[Any]], list[R]] | None
        self.row, self.rows = _makers(row)
        positions = list(getattr(compiled, "positiontup", None) or ())
        if not set(positions) <= set(params):
            raise AssertionError(f"{name} takes {sorted(set(positions))}, not {sorted(params)}")
        order = tuple(params.index(position) for position in positions)
        self.order = None if order == tuple(range(len(params))) else order
        """Which parameter stands at each position of the text; None when they are passed as they are."""

    def bind(self, params: Sequence[Any]) -> Sequence[Any]:
        """Return the parameters in the order in which the text names them."""
        return params if self.order is None else [params[index] for index in self.order]

    def renamed(self, before: str, after: str) -> Statement[R]:
        """Return the same statement on tables of another schema."""
        made = copy.copy(self)
        made.sql = self.sql.replace(before, after)
        return made


class Insert(Statement[Any]):
    """The insert of a row, and how several rows go in one statement: it is checked, planned and undone as one.

    Each engine has its own way. SQLite is given all values of so many rows. PostgreSQL is given each column as an
    array, so that one text does for any number of rows; but not the entries on Citus, whose numbers have to be drawn on
    the coordinator, which it does for plain values only.
    """

    __slots__ = ("_texts", "arrays", "types")

    def __init__(
        self, name: str, construct: Any, dialect: sa.Dialect, params: Sequence[str], arrays: Any, types: Sequence[Any]
    ) -> None:
        super().__init__(name, construct, dialect, params)
        self.arrays = "" if arrays is None else str(arrays.compile(dialect=dialect))
        """The text that takes columns, if there is one."""
        self.types = tuple(types)
        """The type in which Python has the values of each column."""
        self._texts: dict[int, str] = {}

    def times(self, rows: int) -> str:
        """Return the text that takes the values of so many rows, one behind the other."""
        text = self._texts.get(rows)
        if text is None:
            row = self.sql.partition(" VALUES ")[2]
            text = self._texts[rows] = self.sql + f", {row}" * (rows - 1)
        return text

    def renamed(self, before: str, after: str) -> Insert:
        """Return the same insert into a table of another schema."""
        made = super().renamed(before, after)
        assert isinstance(made, Insert)
        made.arrays, made._texts = self.arrays.replace(before, after), {}
        return made


def _renamed(value: Any, before: str, after: str) -> Any:
    if isinstance(value, Statement):
        return value.renamed(before, after)
    if isinstance(value, str):
        return value.replace(before, after)
    if isinstance(value, list):
        return [_renamed(item, before, after) for item in value]
    if isinstance(value, dict):
        return {name: _renamed(item, before, after) for name, item in value.items()}
    return value


class derived(Generic[R]):  # noqa: N801
    """An attribute that is made when it is first used, once for all schemas of an engine."""

    def __init__(self, make: Callable[[Any], R]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, cls: type) -> derived[R]: ...

    @overload
    def __get__(self, owner: Compiler, cls: type) -> R: ...

    def __get__(self, owner: Compiler | None, cls: type) -> Any:
        if owner is None:
            return self
        if owner.template is None:
            made = self._make(owner)
        else:
            made = _renamed(getattr(owner.template, self._name), *owner.renaming)
        # From now on the instance has it, so that Python no longer asks here.
        owner.__dict__[self._name] = made
        return made


def _declared(build: Callable[..., Any], columns: Sequence[str], row: Any, owner: Any) -> Any:
    names = [*columns, *list(inspect.signature(build).parameters)[2 if columns else 1 :]]
    params = {name: param(name, type_=_TYPES.get(name)) for name in names}
    arguments = [params[name] for name in names[len(columns) :]]
    construct = (
        build(owner, {name: params[name] for name in columns}, *arguments) if columns else build(owner, *arguments)
    )
    return Statement(build.__name__, construct, owner.dialect, names, row)


def statement(build: Callable[..., Any]) -> derived[Statement[Any]]:
    """Declare a statement whose rows, if it has any, are plain tuples."""
    return derived(partial(_declared, build, (), None))


def query(
    row: Callable[..., R] | None = None, *, columns: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], derived[Statement[R]]]:
    """Declare a statement whose rows are named tuples of one type, or one that takes a value for each of ``columns``.

    The method gets the parameters of the columns as one dict, before its others.
    """

    def declare(build: Callable[..., Any]) -> derived[Statement[R]]:
        return derived(partial(_declared, build, columns, row))

    return declare


def _above(lanes: Any) -> Any:
    """Return the tape of the lane that a lane branches off from: 0 stands for its own."""
    return sa.case((lanes.c.base_tape == ZERO, lanes.c.tape_id), else_=lanes.c.base_tape)


class Compiler:
    """What all statements of one engine are made with: its tables, its dialect, and the parts that several share."""

    def __init__(self, dialect: str, tables: Tables, template: Any = None, *, sharded: bool = False) -> None:
        self.own: Any = importlib.import_module(f"sqlalchemy.dialects.{dialect}")
        """What SQLAlchemy has for this engine alone; that of the other is not loaded, which takes long."""
        self.tables = tables
        self.postgres = dialect == "postgresql"
        self.sharded = sharded
        """Whether the tables are on a worker of a Citus cluster, and statements go through its coordinator."""
        self.dialect: sa.Dialect = self.own.dialect(paramstyle="format" if self.postgres else "qmark")
        self.template = template
        """The same statements on tables of another schema: compiling takes far longer than renaming."""
        if template is not None:
            quote = self.dialect.identifier_preparer.quote_schema
            self.renaming = (f"{quote(str(template.tables.schema))}.", f"{quote(str(tables.schema))}.")

    @property
    def _entry(self) -> list[Any]:
        """Every column of an entry, in the order in which rows are read."""
        e = self.tables.entries.c
        return [e.position, *(e[name] for name in ENTRY_COLUMNS), e.xid, e.commitment]

    def _insert(
        self,
        table: sa.Table,
        names: Sequence[str] = (),
        further: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda new: {},
        *,
        drawn: bool = False,
    ) -> Insert:
        """Return the insert that takes these columns, or all; ``further`` makes others of them.

        With ``drawn`` the database gives each row a number.
        """
        names = names or [column.name for column in table.c]
        values: dict[str, Any] = {name: param(name) for name in names}
        single, several = sa.insert(table).values({**values, **further(values)}), None
        types = [table.c[name].type.python_type for name in names]
        if self.postgres and not (drawn and self.sharded):
            new = self._unnested(table, names)
            columns = {**{name: new.c[name] for name in names}, **further(new.c)}
            # Rows are numbered for the feed as they come.
            rows = sa.select(*columns.values()).select_from(new).order_by(new.c.nth)
            several = sa.insert(table).from_select(list(columns), rows)
        return Insert(f"insert_{table.name}", single, self.dialect, names, several, types)

    def _unnested(self, table: sa.Table, names: Sequence[str], prefix: str = "") -> Any:
        """Return rows that PostgreSQL makes of arrays, one of each column, and their order as ``nth``."""
        kinds: dict[type, Any] = {int: sa.BigInteger, bytes: sa.LargeBinary, str: sa.Text}
        arrays = [
            sa.cast(param(prefix + name), self.own.ARRAY(kinds[table.c[name].type.python_type])) for name in names
        ]
        return sa.func.unnest(*arrays).table_valued(*names, with_ordinality="nth").render_derived(f"new_{table.name}")

    def _walk(self, t: Param, at_lane: Param, at_ordinal: Param, floor: Param) -> sa.CTE:
        """Return the lanes from a place up to the root, or up to the first that begins at the floor.

        A fork's first lane branches off from a lane of its parent, so the walk goes on there. Every step must lead to a
        lesser depth, so that it ends also where damage made a lane branch off from itself.
        """
        first = self.tables.lanes.alias("first")
        walk = (
            sa.select(
                first.c.tape_id.label("tape_id"),
                first.c.lane.label("lane"),
                first.c.base_ordinal.label("lo"),
                sa.cast(at_ordinal, sa.BigInteger).label("hi"),
                _above(first).label("up_tape"),
                first.c.base_lane.label("up"),
            )
            .where(first.c.tape_id == t, first.c.lane == at_lane)
            .cte("walk", recursive=True)
        )
        lanes = self.tables.lanes.alias("following")
        following, on = self._index_join(
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
            .where(walk.c.lo > floor, following.c.base_ordinal < walk.c.lo)
        )

    def _lowest(self, walk: sa.CTE, floor: Param) -> Any:
        """Return where reading of a lane begins: one bound, since SQLite takes only one of two to its index."""
        return sa.case((walk.c.lo > floor, walk.c.lo), else_=floor)

    def _body_columns(self, rows: Any, entries: Any) -> list[Any]:
        e = entries.c
        r, body = rows.c, (e.kind, e.version, e.payload, e.stamp)
        return [r.ordinal, r.placed, r.body, *body, r.lane, e.key, e.meta]

    def _index_join(self, table: sa.FromClause, names: Sequence[str], where: Sequence[Any]) -> tuple[Any, Any]:
        """Return ``table`` to be joined, and on what, so that every row before it looks up its own by the index.

        PostgreSQL guesses that a tape which it has no statistics of yet has one row. Joined plainly, it may then
        read everything of the tape, or of the store, for every row before: a new path of 20 000 messages took
        minutes. The offset keeps it from taking the inner query apart.
        """
        if not self.postgres:
            return table, sa.and_(*where)
        rows = sa.select(*(table.c[name] for name in names)).where(*where)
        return rows.offset(ZERO).lateral(f"each_{table.description}"), sa.true()

    def _bodies(self, rows: Any, tape: str = "tape_id") -> tuple[Any, Any]:
        """Return the entries that hold the bodies of rows of the view, to be joined with them, and on what."""
        e = self.tables.entries.c
        where = (e.tape_id == rows.c[tape], e.seq == rows.c.body)
        return self._index_join(self.tables.entries, ("kind", "version", "payload", "stamp", "key", "meta"), where)
