"""A transaction on PostgreSQL, in as few trips as can be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from tape.db.engine.connect import Session
from tape.db.engine.failures import READ_ONLY_STATES
from tape.db.engine.postgres.citus import Shards, hot_append
from tape.db.engine.transaction import Transaction
from tape.db.sql import Statement, Statements
from tape.db.sql.compiler import Insert
from tape.errors import ReadOnly

__all__ = ["PostgresTransaction"]

Row = Sequence[Any]

_TOGETHER = 1_000
"""How many rows one statement inserts."""
_VALUES = 100
"""How many rows of values one statement inserts, where it cannot be given columns."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Said in full: with another default the reads after the lock would see what was there before it."""


class PostgresTransaction(Transaction):
    """A transaction that begins when it has to, so that a single statement can do without."""

    __slots__ = ("_session", "_shards", "begun", "deciding")

    def __init__(self, cursor: Any, statements: Statements, session: Session, shards: Shards | None) -> None:
        super().__init__(cursor, statements, postgres=True)
        self._session = session
        self._shards = shards
        self.begun = False
        self.deciding = False
        """Whether something was sent that the server may have committed."""

    def lock(self, tape: str) -> None:
        """Make this the only writer of a tape; a transaction of several calls has begun by then."""
        if self.unit is None:
            self._begin()
        super().lock(tape)

    def try_lock(self, tape: str) -> bool:
        """Make this the only writer of a tape if there is no other now; tells whether it is."""
        self._begin()
        return super().try_lock(tape)

    def run(self, statement: Statement[Any], params: Row) -> int:
        """Run a change and return how many rows it touched."""
        self._begin()
        return super().run(statement, params)

    def many(self, statement: Statement[Any], rows: Sequence[Row]) -> int:
        """Run a change for every row; inserts go by a thousand rows, unless those are very large."""
        from tape.db.engine.postgres.arrays import columns_of

        self._begin()
        if not isinstance(statement, Insert) or len(rows) < 2:
            return super().many(statement, rows)
        count = 0
        if not statement.arrays:
            for start in range(0, len(rows), _VALUES):
                part = rows[start : start + _VALUES]
                count += self._insert(statement.times(len(part)), list(chain.from_iterable(part)))
            return count
        for start in range(0, len(rows), _TOGETHER):
            part = rows[start : start + _TOGETHER]
            columns = columns_of(part, statement.types)
            count += super().many(statement, part) if columns is None else self._insert(statement.arrays, columns)
        return count

    def _insert(self, text: str, columns: Row) -> int:
        count: int = self.execute(text, columns).rowcount
        return count

    def say(self, *statements: str) -> None:
        """Run statements without parameters, and before the first of them what begins the transaction."""
        if self.begun:
            super().say(*statements)
            return
        self.begun = True
        with _on_standby():
            local = self._session.local
            settings = self._shards.settings if self._shards is not None else (local,) if local else ()
            super().say(_BEGIN, *settings, *statements)

    def hot(self, head: Row, entries: Sequence[Row], rows: Sequence[Row], lookup: Row, *, event: bool = False) -> bool:
        """Append behind a head that is known, in one statement that compares it; tells whether it was that head."""
        from tape.db.engine.postgres.arrays import columns_of

        if self._shards is not None:
            return self._hot_on_shards(self._shards, head, entries, rows, lookup, event=event)
        sql = self.statements
        if len(entries) == 1:
            statement = sql.event_hot if event else sql.append_hot_forked if lookup else sql.append_hot
            given: Row = (*entries[0], *rows[0], *lookup)
        else:
            statement = sql.extend_hot
            columns, opened = columns_of(entries, sql.insert_entry.types), columns_of(rows, sql.open_row.types)
            if columns is None or opened is None:
                return False
            given = columns + opened
        # As a part of a transaction it decides nothing.
        self.deciding = not self.begun
        if statement is None:
            return False
        if self._session.local and not self.begun:
            run = self._session.run_alone if len(entries) == 1 else self._session.run_batch
            return run(self.connection, statement.sql, statement.bind((*head, *given))) is not None
        return self.one(statement, (*head, *given)) is not None

    def _hot_on_shards(
        self, shards: Shards, head: Row, entries: Sequence[Row], rows: Sequence[Row], lookup: Row, *, event: bool
    ) -> bool:
        if len(entries) > _VALUES:
            return False
        alone = not self.begun
        # If it fails, the transaction that it began is still there.
        self.deciding, self.begun = alone, True
        whole = (_BEGIN, *shards.brief) if alone else ()
        hot_append(self, shards, head, entries, rows, lookup, event=event, whole=whole)
        self.begun = not alone
        return True

    def _begin(self) -> None:
        if self.begun:
            return
        if self._shards is not None or self._session.local:
            self.say()
            return
        self.begun = True
        with _on_standby():
            self._cursor.execute(_BEGIN)

    def commit(self) -> None:
        """Commit; from here on the server may have done so, whatever is heard of it."""
        self.deciding = True
        self._cursor.execute("COMMIT")

    def rollback(self) -> None:
        """Undo everything; a connection on which that fails is not used again."""
        if self.begun:
            with contextlib.suppress(Exception):
                # In binary form, as the cursor would send it, it waits for ever where a signal left a pipeline open.
                self.say("ROLLBACK")


@contextlib.contextmanager
def _on_standby() -> Iterator[None]:
    """Tell what it means that a transaction which writes cannot begin."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) in READ_ONLY_STATES:
            raise ReadOnly(f"the server is a read-only standby: {error}") from error
        raise
