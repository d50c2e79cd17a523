"""Stores that many tests want filled alike: the first test fills one, the others get copies of its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from psycopg import sql

import tape
from support.backends import FILLED, Backend

__all__ = ["Fill", "filled"]

Fill = Callable[[tape.Store], object]
"""Writes a history into an empty store."""

_images: dict[tuple[str, Fill], Any] = {}
"""What each engine's database held after a history was written to it."""


def filled(backend: Backend, fill: Fill, **options: Any) -> tape.Store:
    """Return an open store that holds what ``fill`` writes; nobody may have opened the database before."""
    image = _images.get((backend.name, fill))
    if image is not None:
        _restore(backend, image) if backend.postgres else _file(backend).write_bytes(image)
    else:
        with tape.open(backend.url, durability="normal", **backend.options) as store:
            fill(store)
        _images[backend.name, fill] = _rows(backend) if backend.postgres else _file(backend).read_bytes()
    return backend.open(**options)


def _file(backend: Backend) -> Path:
    path = Path(str(backend.url.database))
    assert not path.with_name(f"{path.name}-wal").exists(), "the file of an open store is not the whole of it"
    return path


def _rows(backend: Backend) -> tuple[dict[str, bytes], list[tuple[Any, ...]]]:
    """Return the rows that a new store does not have, as COPY writes them, and where the sequences stand."""
    tables = {}
    with backend.raw() as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [backend.schema]).fetchall()
        for (name,) in names:
            table = sql.Identifier(name)
            [(some,)] = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(table)).fetchall()
            if some and name not in FILLED:
                with connection.cursor().copy(sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(table)) as copy:
                    tables[name] = b"".join(copy)
        query = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = %s AND last_value IS NOT NULL"
        return tables, connection.execute(query, [backend.schema]).fetchall()


def _restore(backend: Backend, image: tuple[dict[str, bytes], list[tuple[Any, ...]]]) -> None:
    tables, counters = image
    with backend.raw() as connection, connection.transaction():
        for name, rows in tables.items():
            table = sql.Identifier(name)
            with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(table)) as copy:
                copy.write(rows)
        for name, value in counters:
            connection.execute("SELECT setval(%s, %s)", [f'"{backend.schema}".{name}', value])
