"""Many calls on one tape, one after the other in one transaction, as an import has them.

A plan asks where a parent is, how it stands and who made a call. Of what this transaction has written itself that is
known here, so that the rows of hundreds of entries are sent together instead of one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tape.core.entries import payloads
from tape.core.entries.message_kinds import decoded
from tape.core.entries.payloads import ROOT, Body, Payload, Place
from tape.core.plan.intents import Intent, Planned
from tape.core.plan.lookup import Maker, Standing
from tape.core.plan.messages import AddMessage
from tape.core.records import Receipt
from tape.core.view import slots
from tape.db.engine.transaction import Transaction
from tape.db.record import replays
from tape.db.record.attempt import record_or_replay
from tape.db.record.writing import Call, PlanView, Shared, TapeState, Writing, load
from tape.db.view.tape_view import NOW

__all__ = ["in_order"]

_HARMLESS = (payloads.Append, payloads.Event, payloads.Usage, payloads.Open)
"""What leaves every message as it stands."""


def in_order(shared: Shared, requests: Sequence[tuple[Call, Sequence[Intent]]], tx: Transaction) -> list[Receipt]:
    """Record calls on one tape, all or none, and return the receipts of all that they record."""
    first = requests[0][0]
    tx.lock(first.tape)
    writing = _KnownWriting(shared, tx, first, load(shared, tx, first))
    intents = [intent for _, call_intents in requests for intent in call_intents]
    before = replays.recorded_before(writing, intents, lost=False)
    new = [intent for intent in intents if intent.key.value not in before]
    if new:
        writing.check(new)
    if writing.existed:
        writing.look_ahead(new)
    else:
        writing.free = {intent.id for intent in new if isinstance(intent, AddMessage)}
    receipts: list[Receipt] = []
    for call, call_intents in requests:
        writing.call = call
        receipts += record_or_replay(writing, call_intents, before)
    writing.finish()
    return receipts


class _KnownWriting(Writing):
    """The entries of one transaction on one tape, which knows the messages that it has placed."""

    def __init__(self, shared: Shared, tx: Transaction, call: Call, state: TapeState | None) -> None:
        super().__init__(shared, tx, call, state)
        self.forget()

    def forget(self) -> None:
        """Know nothing: what is asked next is asked of the database."""
        self.placed: dict[str, tuple[Place, int]] = {}
        """Where each message is, and the entry that placed it, by its id."""
        self.seqs: dict[Place, int] = {}
        self.makers: dict[str, list[Place]] = {}
        """The messages that make a call."""
        self.bodies: dict[int, payloads.Append] = {}
        """The messages that make calls."""
        self.lanes: dict[int, tuple[int, int]] = {}
        """The depth at which a lane branches off, and that of its last place."""
        self.usage: Payload | None = None

    def view(self) -> PlanView:
        """Return the tape as it stands now."""
        return _KnownView(self, self.tx.statements, self.tape, self.tape_id, self.head, self.ancestry, NOW)

    def _add(self, planned: Planned, key: str, source: Any, now: int, meta: bytes | None) -> Receipt:
        receipt = super()._add(planned, key, source, now, meta)
        payload, place, seq = planned.payload, planned.place, receipt.seq
        if not isinstance(payload, _HARMLESS):
            self.forget()
        elif isinstance(payload, payloads.Usage):
            self.usage = payload
        elif isinstance(payload, payloads.Append) and planned.message_id is not None:
            self.placed[planned.message_id] = (place, seq)
            self.seqs[place] = seq
            if payload.calls:
                self.bodies[seq] = payload
                for call in payload.calls:
                    self.makers.setdefault(call, []).append(place)
            if place.lane == seq:
                self.lanes[seq] = (place.ordinal - 1, place.ordinal)
            elif place.lane in self.lanes:
                self.lanes[place.lane] = (self.lanes[place.lane][0], place.ordinal)
        return receipt


class _KnownView(PlanView):
    """A tape as that writing sees it."""

    tx: _KnownWriting

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry."""
        return self.tx.placed.get(message_id) or super().place(message_id)

    def standing(self, place: Place) -> Standing:
        """Return how the message at a place stands."""
        seq = self.tx.seqs.get(place)
        return super().standing(place) if seq is None else Standing(seq, seq, seq, True)

    def body(self, seq: int, of: str | None = None) -> Body:
        """Return the message in an entry."""
        payload = self.tx.bodies.get(seq) if of is None else None
        if payload is None:
            return super().body(seq, of)
        return Body(decoded(payload.message), payload.id, tuple(payload.calls))

    def makers(self, call: str) -> Iterator[Maker]:
        """Yield the places of the messages that made a call. One on the path from here is nearer than any before."""
        places = self.tx.makers.get(call)
        if places is None or self.ancestry is not None:
            return super().makers(call)
        return (Maker(place, self.tx.seqs[place]) for place in reversed(places))

    def lane(self, place: Place) -> tuple[int, int]:
        """Return the depth at which a place's lane branches off, and that of its last place."""
        depths = self.tx.lanes.get(place.lane) if place.tape is None else None
        if depths is None:
            depths = super().lane(place)
            if place.tape is None and place.lane != ROOT.lane:
                self.tx.lanes[place.lane] = depths
        return depths

    def slot(self, name: str, *, inherited: bool = True) -> Payload | None:
        """Return the entry that a slot holds."""
        usage = self.tx.usage
        if name == slots.USAGE and not inherited and usage is not None:
            return usage
        return super().slot(name, inherited=inherited)
