"""Going around the store: taking the database's guards away and changing what must never change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from support.backends import CITUS, Backend

__all__ = ["Tamperer", "contents", "flip"]


def contents(backend: Backend) -> dict[str, tuple[int, str]]:
    """Return the count and a digest of all rows of every table, to tell that nothing at all was written."""
    # What a virtual table holds is in tables of its own.
    plain = "type = 'table' AND name NOT LIKE 'sqlite_%' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    query = f"SELECT name FROM sqlite_master WHERE {plain}"
    if backend.postgres:
        query = f"SELECT relname FROM pg_class WHERE relnamespace = '{backend.schema}'::regnamespace AND relkind = 'r'"
    names = sorted(name for (name,) in backend.reader.execute(query).fetchall())
    if backend.postgres:
        digest = "SELECT '{0}', count(*), coalesce(sum(hashtextextended(t::text, 0)), 0)::text FROM {0} t"
        rows = backend.reader.execute(" UNION ALL ".join(digest.format(name) for name in names))
        return {name: (count, digest) for name, count, digest in rows}
    found = {}
    for name in names:
        rows = backend.reader.execute(f"SELECT * FROM {name}").fetchall()
        found[name] = len(rows), str(hash(frozenset(rows)))
    return found


def flip(value: Any, byte: int = 0) -> Any:
    """Return ``value`` with one bit of it turned: of a number the lowest, of text or bytes that of the given byte."""
    if value is None:
        return "x"
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, str):
        return chr(ord(value[0]) ^ 1) + value[1:]
    changed = bytearray(value)
    changed[byte % len(changed)] ^= 1
    return bytes(changed)


class Tamperer:
    """A plain connection of someone who may do everything, whom the triggers on entries do not keep off.

    On PostgreSQL they do not fire in this session; on SQLite, where they would, they are gone.
    """

    def __init__(self, backend: Backend, *, guarded: bool = False) -> None:
        self._backend = backend
        self._connection = backend.raw()
        self._on_worker = not guarded and backend.postgres and bool(os.environ.get(CITUS))
        if not guarded and backend.postgres:
            self.run("SET session_replication_role = replica")
        elif not guarded:
            self.unguard()

    def unguard(self) -> None:
        """Take away, for everyone, what keeps entries immutable."""
        if self._backend.postgres:
            self.run("ALTER TABLE tape_entries DISABLE TRIGGER USER")
        else:
            for name in ("replace", "update", "delete"):
                self.run(f"DROP TRIGGER IF EXISTS tape_entries_no_{name}")

    def digest(self) -> dict[str, tuple[int, str]]:
        """Return the count and a digest of all rows of every table."""
        return contents(self._backend)

    def run(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run a statement written with ``?``; rows come back with plain bytes, whatever the driver."""
        cursor = self._execute(sql, params)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return [column[0] for column in self._connection.execute(f"SELECT * FROM {table} LIMIT 0").description]

    def tape_id(self, name: str) -> int:
        """Return the number of a tape."""
        [(number,)] = self.run("SELECT id FROM tape_tapes WHERE tape = ?", name)
        return int(number)

    def entry(self, tape_id: int, seq: int) -> dict[str, Any]:
        """Return the stored row of an entry."""
        [row] = self.run("SELECT * FROM tape_entries WHERE tape_id = ? AND seq = ?", tape_id, seq)
        return dict(zip(self.columns("tape_entries"), row, strict=True))

    def holder(self, table: str) -> str:
        """Return the name of a tape that a table holds rows of."""
        sql = f"SELECT tape FROM tape_tapes WHERE id IN (SELECT tape_id FROM {table}) ORDER BY id"
        return str(self.run(sql)[0][0])

    def some(self, table: str, tape_id: int) -> dict[str, Any]:
        """Return one row that a table holds for a tape."""
        rows = self.run(f"SELECT * FROM {table} WHERE tape_id = ?", tape_id)
        return dict(zip(self.columns(table), rows[0], strict=True))

    def insert(self, table: str, row: dict[str, Any]) -> None:
        """Insert a row as it is, apart from a position, which the database gives."""
        names = [name for name in row if (table, name) != ("tape_entries", "position")]
        marks = ", ".join("?" for _ in names)
        self.run(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", *(row[name] for name in names))

    def update(self, table: str, row: dict[str, Any], values: dict[str, Any]) -> int:
        """Set columns of exactly the row that is given as it is now; returns how many rows that were."""
        same = "IS NOT DISTINCT FROM" if self._backend.postgres else "IS"
        sets = ", ".join(f"{name} = ?" for name in values)
        where = " AND ".join(f"{name} {same} ?" for name in row)
        sql = f"UPDATE {table} SET {sets} WHERE {where}"
        return int(self._execute(sql, (*values.values(), *row.values())).rowcount)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _execute(self, sql: str, params: Sequence[Any]) -> Any:
        text = sql.replace("?", "%s") if self._backend.postgres else sql
        if not self._on_worker:
            return self._connection.execute(text, params)
        with self._connection.transaction():
            # A setting of the session does not reach the worker of a Citus cluster, and one of a transaction does.
            for setting in ("citus.propagate_set_commands = 'local'", "session_replication_role = replica"):
                self._connection.execute(f"SET LOCAL {setting}")
            return self._connection.execute(text, params)
