"""Tables that are made when they are first used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, overload

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

__all__ = ["Lazy", "rowid_table", "table"]

_making = threading.Lock()
"""Held while a table is made, and while the process forks, so that no child inherits half a table."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


class Lazy:
    """The tables of one store that were used so far, and the PostgreSQL schema that they are in."""

    def __init__(self, schema: str | None) -> None:
        self.schema = schema
        self.made = sa.MetaData(schema=schema)


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
    def __get__(self, tables: Lazy, owner: type) -> sa.Table: ...

    def __get__(self, tables: Lazy | None, owner: type) -> table | sa.Table:
        if tables is None:
            return self
        with _making:
            if self._name not in vars(tables):
                # From now on the instance has it, so that Python no longer asks here.
                vars(tables)[self._name] = sa.Table(
                    f"tape_{self._name}", tables.made, *self._declare(tables), sqlite_with_rowid=self.rowid
                )
        made: sa.Table = vars(tables)[self._name]
        return made


class rowid_table(table):  # noqa: N801
    """A table that SQLite stores by a number of its own."""

    rowid = True
