"""Stores of very many tapes, for ``benchmarks.scale``.

The first thousand tapes are written as a program would. The others are copies of their rows, with an id, keys, an owner
and words of their own: so a million tapes take minutes, not hours. Their hashes are those of the tapes they were copied
from, so that ``verify`` would name them; nothing that is measured looks at more than the hash of a head.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import sqlalchemy as sa

import tape
from benchmarks.harness import TEXT
from tape.db.schema.tables import Tables

WRITTEN = 1_000
"""So many tapes are written; the others are copies of this block, as often as it takes."""
_TOGETHER = 100
"""Tapes per transaction while they are written."""
_PER_OWNER = 50
_PER_WORD = 20
_COMMON = 100
"""One tape in so many has the common word."""


class Filling:
    """A store that is given so many tapes with so many entries in all. Goes on where an earlier run stopped."""

    def __init__(self, store: tape.Store, tapes: int, entries: int) -> None:
        self._store = store
        self._tapes = tapes
        self._messages = max(entries // tapes - 1, 1)
        self._owners = max(tapes // _PER_OWNER, 1)
        self._words = max(tapes // _PER_WORD, 1)

    def run(self) -> float:
        """Fill the store and its index; return the seconds."""
        began = time.monotonic()
        there = self._store.stats().tapes
        for first in range(there, min(self._tapes, WRITTEN), _TOGETHER):
            self._store.transaction(partial(self._write, first))
        if self._tapes > max(there, WRITTEN):
            self._copy(max(there, WRITTEN))
        # Search fills its index in bounded batches.
        while lag := self._store.health().index_lag:
            print(f"  {lag} entries to index, {time.monotonic() - began:.0f} s", flush=True)
            for _ in range(50):
                self._store.search(self._word(0), limit=1)
        return time.monotonic() - began

    def _owner(self, number: int) -> str:
        return f"owner{number % self._owners}"

    def _word(self, number: int) -> str:
        return f"rare{number % self._words:07d}"

    def _write(self, first: int, store: tape.Store) -> None:
        for number in range(first, min(first + _TOGETHER, self._tapes)):
            texts = [TEXT] * self._messages
            texts[-1] += f" {self._word(number)}" + ("" if number % _COMMON else " common")
            messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]
            store.create(f"t{number}", owner=self._owner(number), messages=messages)

    def _copy(self, there: int) -> None:
        tables = self._store._db.tables
        began = time.monotonic()
        with self._store._db.engine.connect() as connection:
            block = {
                table: [dict(row) for row in connection.execute(statement).mappings()]
                for table, statement in _block(tables).items()
            }
            for first in range(there, self._tapes, WRITTEN):
                # The engine of a store commits each statement; its transactions are begun by hand.
                connection.exec_driver_sql("BEGIN")
                highest = connection.execute(sa.select(sa.func.max(tables.tapes.c.id))).scalar_one()
                for table, rows in block.items():
                    copies = [self._copied(row, count, first, highest) for count, row in enumerate(rows)]
                    connection.execute(table.insert(), copies)
                connection.exec_driver_sql("COMMIT")
                if not first % (WRITTEN * 20):
                    print(f"  {first} tapes, {time.monotonic() - began:.0f} s", flush=True)

    def _copied(self, row: dict[str, Any], count: int, first: int, highest: int) -> dict[str, Any]:
        """Return a row of the block as one of the tapes from the number ``first`` on, whose ids follow ``highest``."""
        if "tape" in row:
            number = first + row["id"] - 1
            return row | {"id": highest + row["id"], "tape": f"t{number}", "owner": self._owner(number)}
        copy = row | {"tape_id": highest + row["tape_id"]}
        if "payload" in row:
            kind = "~m:" if row["key"].startswith("~m:") else ""
            index = row["tape_id"] - 1
            copy["key"] = f"{kind}{first // WRITTEN:08x}-0000-7000-8000-{count:012x}"
            copy["payload"] = row["payload"].replace(self._word(index).encode(), self._word(first + index).encode())
        return copy


def _block(tables: Tables) -> dict[sa.Table, sa.Select[Any]]:
    """Return what reads the rows of the tapes that were written, without the positions, which the engine gives."""
    tapes = tables.tapes
    selects = {tapes: sa.select(tapes).where(tapes.c.id <= WRITTEN).order_by(tapes.c.id)}
    for table in (tables.heads, tables.lanes, tables.live, tables.entries):
        columns = [column for column in table.c if column.name != "position"]
        order = [table.c[name] for name in ("tape_id", "seq") if name in table.c]
        selects[table] = sa.select(*columns).where(table.c.tape_id <= WRITTEN).order_by(*order)
    return selects
