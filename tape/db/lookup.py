"""What a plan asks of the view, answered by indexed queries inside the recording transaction."""

from __future__ import annotations

from tape.core import ids, payloads
from tape.core.payloads import ROOT, Answer, Body, Place
from tape.core.plan import Standing
from tape.db.project import call_key
from tape.db.transaction import Transaction
from tape.errors import Corrupt

__all__ = ["TapeLookup"]


class TapeLookup:
    """The view of one tape, as the transaction sees it."""

    __slots__ = ("sql", "tape", "tape_id", "tx")

    def __init__(self, tx: Transaction, tape: str, tape_id: int) -> None:
        self.tape = tape
        self.tape_id = tape_id
        self.tx = tx
        self.sql = tx.statements

    def flush(self) -> None:
        """Send what is still pending to the database; called before every question."""

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry."""
        self.flush()
        row = self.tx.one(self.sql.place_by_key, (self.tape_id, ids.message_key(message_id)))
        if row is None:
            row = self.tx.one(self.sql.place_by_alias, (self.tape_id, message_id))
        return None if row is None else (Place(row[0], row[1]), row[2])

    def standing(self, place: Place) -> Standing:
        """Return how the message at a place stands."""
        self.flush()
        at = (self.tape_id, place.lane, place.ordinal)
        row = self.tx.one(self.sql.held, at)
        if row is not None:
            return Standing(row[0], row[1], row[2], True)
        row = self.tx.one(self.sql.held_last, at)
        if row is None:
            raise Corrupt(self.tape, 0, f"nothing was ever held at lane {place.lane}, depth {place.ordinal}")
        return Standing(row[0], row[1], row[2], False, row[3])

    def body(self, seq: int) -> Body:
        """Return the message in an entry."""
        self.flush()
        row = self.tx.one(self.sql.body, (self.tape_id, seq))
        if row is None or row[2] is None:
            raise Corrupt(self.tape, seq, "the entry that holds the body is missing")
        return payloads.body_of(row[0], row[1], row[2])

    def bindings(self, placed: int) -> list[Answer]:
        """Return the calls that a message was bound to when it was appended."""
        self.flush()
        row = self.tx.one(self.sql.body, (self.tape_id, placed))
        if row is None or row[2] is None:
            raise Corrupt(self.tape, placed, "the entry that placed the message is missing")
        entry = payloads.decode(row[0], row[1], row[2])
        return entry.answers if isinstance(entry, payloads.Append) else []

    def makers(self, call: str) -> list[Place]:
        """Return the places of the messages that ever made a call."""
        self.flush()
        rows = self.tx.all(self.sql.makers, (self.tape_id, call_key(call)))
        return [Place(row[0], row[1]) for row in rows]

    def answers(self, maker: Place) -> list[Place]:
        """Return the places of the messages bound to calls of the message at ``maker``, in order of place."""
        self.flush()
        rows = self.tx.all(self.sql.answers, (self.tape_id, 0, maker.lane, maker.ordinal))
        return [Place(row[0], row[1]) for row in sorted(tuple(row) for row in rows)]

    def lane(self, lane: int) -> tuple[int, int]:
        """Return the depth at which a lane branches off and the depth of its last place."""
        if lane == ROOT.lane:
            return 0, -1
        self.flush()
        row = self.tx.one(self.sql.lane, (self.tape_id, lane))
        tips = self.tx.one(self.sql.lane_tip, (self.tape_id, lane))
        if row is None or tips is None:
            raise Corrupt(self.tape, lane, "the lane is missing")
        return row[2], max(tips[0] or 0, tips[1] or 0)

    def contains(self, end: Place, place: Place) -> bool:
        """Whether ``place`` is on the path from the root to ``end``."""
        if end.lane == place.lane:
            return place.ordinal <= end.ordinal
        self.flush()
        rows = self.tx.all(self.sql.walk, (self.tape_id, end.lane, end.ordinal, place.ordinal - 1))
        return any(lane == place.lane and lo < place.ordinal <= hi for lane, lo, hi in rows)

    def clears(self) -> list[tuple[int, int]]:
        """Return the clears in force as (seq, messages still hidden), newest first."""
        self.flush()
        return [(row[0], row[1]) for row in self.tx.all(self.sql.clears, (self.tape_id,))]

    def is_anchor(self, seq: int) -> bool:
        """Whether the entry at ``seq`` is an anchor or a handoff."""
        self.flush()
        row = self.tx.one(self.sql.body, (self.tape_id, seq))
        return row is not None and row[0] in ("anchor", "handoff")

    def returned(self, clear: int) -> list[Place]:
        """Return the places of messages that a clear took and that were brought back by themselves."""
        self.flush()
        rows = self.tx.all(self.sql.returned, (self.tape_id, clear))
        return sorted((Place(row[0], row[1]) for row in rows), key=lambda place: (place.ordinal, place.lane))
