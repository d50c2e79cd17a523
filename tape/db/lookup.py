"""What a plan asks of the view, answered by indexed queries inside the recording transaction."""

from __future__ import annotations

from collections.abc import Callable

from tape.core import ids, payloads
from tape.core.payloads import ROOT, Answer, Body, Place
from tape.core.plan import Standing
from tape.db.project import call_key
from tape.db.transaction import Transaction
from tape.errors import Corrupt

__all__ = ["TapeLookup"]


class TapeLookup:
    """The view of one tape, as the transaction sees it. Writes still pending are flushed before every question."""

    def __init__(self, transaction: Transaction, tape: str, tape_id: int, flush: Callable[[], None]) -> None:
        self.tape = tape
        self._id = tape_id
        self._tx = transaction
        self._sql = transaction.statements
        self._flush = flush

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry."""
        self._flush()
        row = self._tx.one(self._sql.place_by_key, (self._id, ids.message_key(message_id)))
        if row is None:
            row = self._tx.one(self._sql.place_by_alias, (self._id, message_id))
        return None if row is None else (Place(row[0], row[1]), row[2])

    def standing(self, place: Place) -> Standing:
        """Return how the message at a place stands."""
        self._flush()
        at = (self._id, place.lane, place.ordinal)
        row = self._tx.one(self._sql.held, at)
        if row is not None:
            return Standing(row[0], row[1], row[2], True)
        row = self._tx.one(self._sql.held_last, at)
        if row is None:
            raise Corrupt(self.tape, 0, f"nothing was ever held at lane {place.lane}, depth {place.ordinal}")
        return Standing(row[0], row[1], row[2], False, row[3])

    def body(self, seq: int) -> Body:
        """Return the message in an entry."""
        self._flush()
        row = self._tx.one(self._sql.body, (self._id, seq))
        if row is None or row[2] is None:
            raise Corrupt(self.tape, seq, "the entry that holds the body is missing")
        return payloads.body_of(row[0], row[1], row[2])

    def bindings(self, placed: int) -> list[Answer]:
        """Return the calls that a message was bound to when it was appended."""
        self._flush()
        row = self._tx.one(self._sql.body, (self._id, placed))
        if row is None or row[2] is None:
            raise Corrupt(self.tape, placed, "the entry that placed the message is missing")
        entry = payloads.decode(row[0], row[1], row[2])
        return entry.answers if isinstance(entry, payloads.Append) else []

    def makers(self, call: str) -> list[Place]:
        """Return the places of the messages that ever made a call."""
        self._flush()
        rows = self._tx.all(self._sql.makers, (self._id, call_key(call)))
        return [Place(row[0], row[1]) for row in rows]

    def answers(self, maker: Place) -> list[Place]:
        """Return the places of the messages bound to calls of the message at ``maker``, in order of place."""
        self._flush()
        rows = self._tx.all(self._sql.answers, (self._id, 0, maker.lane, maker.ordinal))
        return [Place(row[0], row[1]) for row in sorted(tuple(row) for row in rows)]

    def lane(self, lane: int) -> tuple[int, int]:
        """Return the depth at which a lane branches off and the depth of its last place."""
        if lane == ROOT.lane:
            return 0, -1
        self._flush()
        row = self._tx.one(self._sql.lane, (self._id, lane))
        tips = self._tx.one(self._sql.lane_tip, (self._id, lane))
        if row is None or tips is None:
            raise Corrupt(self.tape, lane, "the lane is missing")
        return row[2], max(tips[0] or 0, tips[1] or 0)

    def contains(self, end: Place, place: Place) -> bool:
        """Whether ``place`` is on the path from the root to ``end``."""
        if end.lane == place.lane:
            return place.ordinal <= end.ordinal
        self._flush()
        rows = self._tx.all(self._sql.walk, (self._id, end.lane, end.ordinal, place.ordinal - 1))
        return any(lane == place.lane and lo < place.ordinal <= hi for lane, lo, hi in rows)

    def clears(self) -> list[tuple[int, int]]:
        """Return the clears in force as (seq, messages still hidden), newest first."""
        self._flush()
        return [(row[0], row[1]) for row in self._tx.all(self._sql.clears, (self._id,))]

    def is_anchor(self, seq: int) -> bool:
        """Whether the entry at ``seq`` is an anchor or a handoff."""
        self._flush()
        row = self._tx.one(self._sql.body, (self._id, seq))
        return row is not None and row[0] in ("anchor", "handoff")

    def returned(self, clear: int) -> list[Place]:
        """Return the places of messages that a clear took and that were brought back by themselves."""
        self._flush()
        rows = self._tx.all(self._sql.returned, (self._id, clear))
        return sorted((Place(row[0], row[1]) for row in rows), key=lambda place: (place.ordinal, place.lane))
