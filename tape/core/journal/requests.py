"""Requests: what an agent asks a person or a program to decide, and the one decision that counts. Pure.

A request and its decision are events with reserved names. Each has a slot, and a decision is checked against both slots
in the transaction that records it, so that one decision wins.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.plan.intents import Intent, Planned
from tape.core.plan.lookup import Lookup
from tape.core.records import Entry, moment
from tape.core.view import slots
from tape.core.view.fold import DECISION, REQUEST, Head
from tape.errors import TapeError, UnknownEntry

__all__ = ["AskDecision", "Closed", "Decide", "Request", "due", "request_from"]


class Request(Struct, frozen=True):
    """A request for a decision, and its outcome.

    ``status`` is "pending", "resolved", "withdrawn" or "expired". The fields of the decision are None before it.
    """

    id: str
    tape: str
    seq: int
    kind: str
    payload: Any
    status: str
    actor: str | None
    """Who asked."""
    requested_at: datetime
    expires_at: datetime | None
    """When it expires, by the database's clock."""
    decision: Any = None
    decided_by: str | None = None
    decided_at: datetime | None = None
    decided_seq: int | None = None
    """The entry that holds the decision; None for a request that expired."""

    @property
    def pending(self) -> bool:
        """Whether it can still be decided."""
        return self.status == "pending"


class Closed(TapeError):
    """The request is decided, withdrawn or expired; the caller reads which. A repeated key is returned before this."""


class AskDecision(Intent, kw_only=True):
    """Request a decision. The key of the entry is the id of the request."""

    records = payloads.Event

    data: dict[str, Any]
    seconds: float | None

    def content(self) -> Any:
        """Return what is asked, without the moment at which it expires."""
        return payloads.Event(name=REQUEST, data=self.data).content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Fix the moment at which it expires."""
        settled = {} if self.seconds is None else {"until": look.clock() + int(self.seconds * 1_000_000)}
        return Planned(payloads.Event(name=REQUEST, data=self.data, settled=settled), head.place)


class Decide(Intent, kw_only=True):
    """Decide a request, or withdraw it, unless it is closed already."""

    records = payloads.Event

    request: str
    state: str
    decision: Any

    @property
    def _payload(self) -> payloads.Event:
        data = {"request": self.request, "state": self.state, "decision": self.decision}
        return payloads.Event(name=DECISION, data=data)

    def content(self) -> Any:
        """Return what is decided."""
        return self._payload.content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse a request that is not there or not open. One that expired can still be withdrawn."""
        if look.slot(slots.DECIDED + self.request, inherited=False) is not None:
            raise Closed
        request = look.slot(slots.ASKED + self.request, inherited=False)
        if not isinstance(request, payloads.Event):
            raise UnknownEntry(look.tape, key=self.request)
        if self.state == "resolved" and (until := due(request)) is not None and until <= look.clock():
            raise Closed
        return Planned(self._payload, head.place)


def due(event: payloads.Event) -> int | None:
    """Return the moment at which a request or a lease ends by itself, if there is one."""
    until = event.settled.get("until")
    return until if type(until) is int else None


def request_from(entry: Entry, decided: Entry | None, now: int) -> Request | None:
    """Return a request with its current status, or None if the entry is no request."""
    event = entry.payload
    if not isinstance(event, payloads.Event) or event.name != REQUEST or not isinstance(event.data, dict):
        return None
    until = due(event)
    status, decision = ("pending" if until is None or until > now else "expired"), None
    if decided is not None and isinstance(decided.payload, payloads.Event):
        data = decided.payload.data if isinstance(decided.payload.data, dict) else {}
        status, decision = str(data.get("state")), data.get("decision")
    return Request(
        id=entry.key,
        tape=entry.tape,
        seq=entry.seq,
        kind=str(event.data.get("kind")),
        payload=event.data.get("payload"),
        status=status,
        actor=entry.actor,
        requested_at=entry.recorded_at,
        expires_at=None if until is None else moment(until),
        decision=decision,
        decided_by=None if decided is None else decided.actor,
        decided_at=None if decided is None else decided.recorded_at,
        decided_seq=None if decided is None else decided.seq,
    )
