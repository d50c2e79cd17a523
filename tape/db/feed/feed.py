"""The feed: all entries of all tapes in the order in which they became final, and readers that remember their place.

A position is one number and opaque: on SQLite the entry's rowid; on PostgreSQL the transaction id, which decides, in
front of the number that was drawn for the entry. The feed never misses an entry: one that commits later has a
greater position than all that were read before. The entries of one tape come in order of seq.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from tape.core import strict
from tape.core.records import Entry
from tape.db.engine.log import log
from tape.db.engine.transaction import Database, Transaction
from tape.db.feed.pauses import Pauses
from tape.db.feed.position import join_position, split_position
from tape.db.sql.rows.feed import FeedRow
from tape.db.view.ancestry import Ancestry
from tape.db.view.values import any_text, damaged_entry, entry_from_row
from tape.errors import Corrupt, InvalidEntry

__all__ = ["Feed", "Following", "check_position", "rebase_restored"]

_PAGE = 500
_FAMILIES = 1_000


def check_position(position: int, field: str, *, postgres: bool) -> int:
    """Return ``position`` if it can be one of this engine; raises InvalidEntry otherwise."""
    if type(position) is not int or not 0 <= position < 2 ** (100 if postgres else 63):
        raise InvalidEntry(field, f"must be 0 or the position of an entry, not {strict.shown(position)}")
    return position


class Feed:
    """Reads the entries of all tapes that one owner can see."""

    def __init__(self, database: Database, *, owner: str | None) -> None:
        self._db = database
        self._sql = database.statements
        self._owner = owner
        self._families: dict[int, Ancestry] = {}

    @property
    def database(self) -> Database:
        """The database that is read."""
        return self._db

    def at(self, position: int) -> tuple[int, int]:
        """Return a position as the parameters of a statement."""
        return split_position(self._db.postgres, position)

    def page(self, after: int, most: int = _PAGE) -> tuple[list[Entry], int, bool]:
        """Return a page of entries behind a position, the position reached, and whether there may be more.

        Entries of other owners are passed over, so the position can lie behind that of the last entry.
        """

        def read_page(tx: Transaction) -> tuple[list[Entry], int, bool]:
            try:
                rows = tx.listed(self._sql.feed_page, (*self.at(after), most, tx.snapshot().oldest))
            except sqlite3.OperationalError:
                # A damaged text fails the whole page; whatever else it was fails again.
                with any_text(tx):
                    rows = tx.listed(self._sql.feed_page, (*self.at(after), most, tx.snapshot().oldest))
            entries = [entry for entry in (self._entry(tx, row) for row in rows) if entry is not None]
            reached = join_position(rows[-1].entry.xid, rows[-1].entry.position) if rows else after
            return entries, reached, len(rows) == most

        return self._db.read(read_page)

    def _entry(self, tx: Transaction, row: FeedRow) -> Entry | None:
        stored, tape, owner, last = row
        # Of a purged tape only its last entry, which tells that it was purged, is left to be seen.
        if last not in (None, stored.seq) or (self._owner is not None and owner != self._owner):
            return None
        if last is not None:
            # A fork's place among what it inherited is gone with its lineage.
            stored = stored._replace(head_tape=0)
        try:
            return entry_from_row(tape, stored, self._family(tx, stored.tape_id) if stored.head_tape else None)
        except (Corrupt, msgspec.MsgspecError) as error:
            # One entry that cannot be read must not end the feed for all tapes.
            return damaged_entry(tape, stored, error.what if isinstance(error, Corrupt) else str(error))

    def _family(self, tx: Transaction, tape_id: int) -> Ancestry | None:
        """Return the ancestry of a fork, which never changes."""
        if tape_id not in self._families:
            lineage = tx.value(self._sql.lineage_of, (tape_id,))
            if lineage is None:
                return None
            if len(self._families) >= _FAMILIES:
                self._families.clear()
            self._families[tape_id] = Ancestry.decoded(lineage)
        return self._families[tape_id]

    def entries(self, after: int, limit: int | None) -> Iterator[Entry]:
        """Yield the entries behind a position, a page at a time, holding nothing open in between."""
        place, left = after, limit
        more = left is None or left > 0
        while more:
            entries, place, more = self.page(place)
            for entry in entries:
                yield entry
                if left is not None:
                    left -= 1
                    if left <= 0:
                        return

    def follow(self, after: int, timeout: float | None) -> Iterator[Entry]:
        """Yield the entries behind a position and wait for more, until none came for ``timeout`` seconds."""
        following = Following(self, after, timeout)
        wakeup = self._db.wakeup
        with wakeup.following():
            while True:
                seen = wakeup.count
                yield from following.step()
                pause = following.pause()
                if pause is None:
                    return
                if pause and wakeup.wait(seen, pause):
                    following.woken()

    def committed(self, name: str) -> int:
        """Return the position that a named reader has committed, or 0."""
        row = self._db.read(lambda tx: tx.one(self._sql.consumer, (self._owner or "", name)))
        return 0 if row is None else join_position(row.xid, row.position)

    def commit(self, name: str, position: int) -> None:
        """Keep the position of a named reader."""
        xid, number = split_position(self._db.postgres, position)
        values = (self._owner or "", name, xid, number, 0)

        def put(tx: Transaction) -> None:
            tx.run(self._sql.put_consumer, values)
            tx.check_revision()

        self._db.repeat("\0consumer", put)


class Following:
    """Where a follower is and how long it should wait. The sync or the async loop around it does the waiting."""

    def __init__(self, feed: Feed, after: int, timeout: float | None) -> None:
        self._feed = feed
        self._place = after
        self._pauses = Pauses(timeout)
        self._more = True

    def step(self) -> list[Entry]:
        """Return the next entries there are, if any."""
        if self._feed.database.closed:
            return []
        entries, self._place, self._more = self._feed.page(self._place)
        if entries:
            self._pauses.restart()
        return entries

    def pause(self) -> float | None:
        """Return how long to wait before the next read, 0 for at once, or None to end."""
        if self._feed.database.closed:
            return None
        return 0.0 if self._more else self._pauses.next()

    def woken(self) -> None:
        """Read often again: something was committed, though it may not be final yet."""
        self._pauses.shorten()


def rebase_restored(database: Database) -> None:
    """Let transaction ids go on above those stored, when the database was restored into a younger server."""
    if not database.postgres:
        return
    sql = database.statements

    def behind(tx: Transaction) -> bool:
        xids = tx.one(sql.xid_state, tx.snapshot())
        return xids is not None and xids.newest is not None and xids.newest >= xids.next

    def raise_base(tx: Transaction) -> None:
        tx.lock("\0schema")
        if behind(tx):
            tx.run(sql.rebase, (tx.snapshot().oldest,))
            log.info("tape.rebased")

    if database.read(behind):
        database.repeat("\0schema", raise_base)
