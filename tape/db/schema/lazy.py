"""Tables that are made when they are first used, under the names of one store.

What is declared has its usual name. A store with another prefix has all of it under names that begin with that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, overload

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

__all__ = ["HOME", "PREFIX", "Named", "rowid_table", "table"]

PREFIX = "tape_"
"""What the names of all tables, indexes, triggers and functions begin with, unless a store is given another."""
HOME = "public"
"""The PostgreSQL schema in which a store is that names none, unless the connection's search path says another."""

_making = threading.Lock()
"""Held while a table is made, and while the process forks, so that no child inherits half a table."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


class Named:
    """The schema and the names of one store, and the tables of it that were used so far."""

    def __init__(self, schema: str | None, prefix: str, home: str) -> None:
        self.schema = schema
        self.prefix = prefix
        self.lock_space = f"{home if schema is None else schema}\0{prefix}"
        """What keeps the locks and notifications of this store apart from those of others in the same database."""
        self.made = sa.MetaData(schema=schema)
        """The tables that were used so far."""

    def named(self, usual: str) -> str:
        """Return the name that something of this usual name has in this store."""
        return f"{self.prefix}{usual.removeprefix(PREFIX)}"

    def usual(self, table: sa.Table) -> str:
        """Return the usual name of a table of this store."""
        return f"{PREFIX}{table.name.removeprefix(self.prefix)}"


class table:  # noqa: N801
    """A table that is made of its columns when it is first used: together they take longer than opening a store."""

    rowid = False

    def __init__(self, declare: Callable[[Any], Iterable[SchemaItem]]) -> None:
        self._declare = declare
        self.__doc__ = declare.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, tables: None, owner: type) -> table: ...

    @overload
    def __get__(self, tables: Named, owner: type) -> sa.Table: ...

    def __get__(self, tables: Named | None, owner: type) -> table | sa.Table:
        if tables is None:
            return self
        with _making:
            if self._name not in vars(tables):
                items = list(self._declare(tables))
                for item in items:
                    if isinstance(item, sa.Index | sa.Constraint) and item.name is not None:
                        item.name = tables.named(str(item.name))
                # From now on the instance has it, so that Python no longer asks here.
                vars(tables)[self._name] = sa.Table(
                    tables.named(f"{PREFIX}{self._name}"), tables.made, *items, sqlite_with_rowid=self.rowid
                )
        made: sa.Table = vars(tables)[self._name]
        return made


class rowid_table(table):  # noqa: N801
    """A table that SQLite stores by a number of its own."""

    rowid = True
