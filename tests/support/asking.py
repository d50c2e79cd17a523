"""What a call asks of the database, and how much work that is for it: counted, so that no clock decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.backends import Backend
from tape.db.engine.transaction import Transaction

__all__ = ["Asked", "asked", "plans", "work"]

Asked = tuple[str, list[Any]]
"""A statement's text and its parameters."""
_UNIT = 10
_SETTINGS = ("enable_seqscan", "enable_memoize")
"""What a store's connections to PostgreSQL have turned off: with other settings the plans are others."""


_SWEPT = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND "
_SWEPT += "relkind = 'r' AND reltuples = 0 AND relpages > 0"
"""The tables that PostgreSQL takes for empty, since it looked at them after an earlier test: any plan would do."""


def _reader(backend: Backend) -> Any:
    """Return a connection that plans as a store's own does."""
    if backend.postgres:
        for name in _SETTINGS:
            backend.reader.execute(f"SET {name} = off")
        for (table,) in backend.reader.execute(_SWEPT).fetchall():
            backend.reader.execute(f"ANALYZE {table}")
    return backend.reader


def asked(call: Callable[[], object]) -> list[Asked]:
    """Return the queries that a call runs, in their order."""
    found: list[Asked] = []
    one, every = Transaction.one, Transaction.all

    def first(tx: Transaction, statement: Any, params: Any) -> Any:
        found.append((statement.sql, list(statement.bind(params))))
        return one(tx, statement, params)

    def rows(tx: Transaction, statement: Any, params: Any) -> Any:
        found.append((statement.sql, list(statement.bind(params))))
        return every(tx, statement, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "one", first)
        patch.setattr(Transaction, "all", rows)
        call()
    assert found
    return found


def plans(backend: Backend, queries: list[Asked]) -> str:
    """Return how the engine goes about queries, as it tells itself."""
    lines, reader = [], _reader(backend)
    for sql, params in queries:
        explain = "EXPLAIN" if backend.postgres else "EXPLAIN QUERY PLAN"
        lines += [str(tuple(row)[-1]) for row in reader.execute(f"{explain} {sql}", params).fetchall()]
    return "\n".join(lines)


def work(backend: Backend, queries: list[Asked]) -> int:
    """Return how much work queries are: pages touched on PostgreSQL, tens of instructions on SQLite."""
    total, reader = 0, _reader(backend)
    for sql, params in queries:
        if backend.postgres:
            explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"
            # Once before: what is looked up of tables when they are first used counts as pages, too.
            reader.execute(explain, params).fetchone()
            (told,) = reader.execute(explain, params).fetchone()
            plan = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
            total += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        else:
            steps: list[None] = []
            reader.set_progress_handler(lambda steps=steps: steps.append(None), _UNIT)
            reader.execute(sql, params).fetchall()
            reader.set_progress_handler(None, 0)
            total += len(steps)
    return total
