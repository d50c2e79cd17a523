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
    lines = []
    for sql, params in queries:
        explain = "EXPLAIN" if backend.postgres else "EXPLAIN QUERY PLAN"
        lines += [str(tuple(row)[-1]) for row in backend.reader.execute(f"{explain} {sql}", params).fetchall()]
    return "\n".join(lines)


def work(backend: Backend, queries: list[Asked]) -> int:
    """Return how much work queries are: pages touched on PostgreSQL, tens of instructions on SQLite."""
    total = 0
    for sql, params in queries:
        if backend.postgres:
            explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"
            (told,) = backend.reader.execute(explain, params).fetchone()
            plan = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
            total += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        else:
            steps: list[None] = []
            backend.reader.set_progress_handler(lambda steps=steps: steps.append(None), _UNIT)
            backend.reader.execute(sql, params).fetchall()
            backend.reader.set_progress_handler(None, 0)
            total += len(steps)
    return total
