"""Verifying the search index: every body up to its place has its text there, with its words, and there is no other.

The texts are tokenized again and compared. A body that is not indexed yet is no problem: a search reads it from the
tape.
"""

from __future__ import annotations

from array import array
from functools import partial

from tape.core.records import IndexProblem
from tape.db.engine.sqlite import SqliteDatabase
from tape.db.engine.transaction import Database, Transaction
from tape.db.feed.position import join_position
from tape.db.search.index import Index, Indexed
from tape.db.sql.rows.search import TextKept
from tape.db.sql.searches import WORDS
from tape.errors import StoreBusy, StoreFailed

__all__ = ["IndexCheck"]

_PAGE = 500
_MASK = 2**64 - 1


class IndexCheck:
    """One verification of the index, tape by tape."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._index = Index(database)
        self._words: array[int] | None = None
        """Of the whole index on SQLite: for each position the sum of the hashes of its words."""

    def whole(self) -> list[IndexProblem]:
        """Check the index as a whole. Only SQLite needs it, whose index is ordered by words and not by texts."""
        if not isinstance(self._db, SqliteDatabase):
            return []
        try:
            return self._db.read(self._read_words)
        except (StoreFailed, StoreBusy) as error:
            return [IndexProblem("", 0, f"the search index cannot be read: {error}")]

    def tape(self, tape: str, number: int) -> list[IndexProblem]:
        """Compare what the index holds of one tape with its entries."""
        try:
            return self._db.read(partial(self._tape, tape, number))
        except (StoreFailed, StoreBusy) as error:
            return [IndexProblem(tape, 0, f"the search index cannot be read: {error}")]

    def _read_words(self, tx: Transaction) -> list[IndexProblem]:
        if not self._index.place(tx):
            return []
        positions = [position for (position,) in tx.all(tx.statements.text_positions, ())]
        last = max(positions, default=0)
        words, known = array("Q", bytes(8 * (last + 1))), bytearray(last + 1)
        for position in positions:
            known[position] = 1
        unknown: set[int] = set()
        name = f"{WORDS}_by_document"
        tx.execute(f"CREATE VIRTUAL TABLE temp.{name} USING fts5vocab(main, {WORDS}, instance)")
        try:
            for word, position in tx.execute(f"SELECT term, doc FROM temp.{name}"):
                if position <= last and known[position]:
                    words[position] = (words[position] + hash(word)) & _MASK
                else:
                    unknown.add(position)
        finally:
            tx.execute(f"DROP TABLE temp.{name}")
        self._words = words
        return [IndexProblem("", 0, "the search index has words of an unknown text") for _ in unknown]

    def _tape(self, tape: str, number: int, tx: Transaction) -> list[IndexProblem]:
        sql, place = tx.statements, self._index.place(tx)
        problems: list[IndexProblem] = []
        if not place:
            # There is no index yet, or one of another release, which the next search replaces.
            return problems
        after, more = 0, True
        while more:
            rows = tx.all(sql.tape_bodies, (number, after, _PAGE))
            more = len(rows) == _PAGE
            upto = rows[-1].seq if more else 2**62
            indexed = {row.seq: row for row in tx.all(sql.texts_between, (number, after, upto))}
            for row in rows:
                ready = self._index.ready(tx, row)
                text = indexed.pop(row.seq, None)
                if ready is None:
                    continue
                if text is None:
                    if join_position(row.xid, row.position) <= place:
                        problems.append(IndexProblem(tape, row.seq, "the search index lacks the text of the entry"))
                elif not self._same(text, ready):
                    problems.append(IndexProblem(tape, row.seq, "the text in the search index differs from the entry"))
            problems += [
                IndexProblem(tape, seq, "the search index has a text that is not on the tape") for seq in indexed
            ]
            after = upto
        return problems

    def _same(self, text: TextKept, ready: Indexed) -> bool:
        if tuple(text[:5]) != (ready.position, ready.seq, ready.origin, ready.lane, ready.ordinal):
            return False
        if (None if text.excerpt is None else bytes(text.excerpt)) != ready.excerpt:
            return False
        if text.words is not None:
            return text.xid == ready.xid and set(text.words) == set(ready.words)
        if self._words is None or ready.position >= len(self._words):
            # A single tape is checked, or this text was indexed after the words were read.
            return True
        return self._words[ready.position] == sum(map(hash, set(ready.words))) & _MASK
