"""Leases: one holder at a time for a name on a tape, until it is released or expires. Pure.

Each step of a lease is an event with a reserved name, and the lease's slot holds the latest. Whether a lease expired is
decided by the database's clock, in the transaction that takes it.
"""

from __future__ import annotations

from typing import Any

from tape.core import strict
from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.journal.requests import due
from tape.core.plan.intents import Intent, Planned
from tape.core.plan.lookup import Lookup
from tape.core.view import slots
from tape.core.view.fold import LEASE, Head
from tape.errors import InvalidEntry, LeaseHeld, LeaseLost

__all__ = ["EndLease", "RenewLease", "TakeLease", "check_held", "period"]


class _LeaseStep(Intent, kw_only=True):
    """A step of a lease."""

    records = payloads.Event

    name: str
    data: dict[str, Any]

    def content(self) -> Any:
        """Return what the holder asks for, without the fields that are set when it is recorded."""
        return payloads.Event(name=LEASE, data=self.data).content()

    def _planned(self, head: Head, **settled: int) -> Planned:
        return Planned(payloads.Event(name=LEASE, data=self.data, settled=settled), head.place)


class TakeLease(_LeaseStep, kw_only=True):
    """Take a lease that nobody holds."""

    seconds: float

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse while someone else holds it. The token is the seq of this entry: a later holder has a greater one."""
        now, held = look.clock(), _held(look.slot(slots.LEASE + self.name, inherited=False))
        if held is not None and (until := due(held)) is not None and until > now:
            raise LeaseHeld(look.tape, self.name, str(held.data.get("holder")), held.settled.get("token", 0), until)
        return self._planned(head, until=now + int(self.seconds * 1_000_000), token=head.seq + 1)


class RenewLease(_LeaseStep, kw_only=True):
    """Extend a lease. An expired one can be renewed as long as nobody else took it."""

    token: int
    seconds: float

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse if someone else has it, or had it."""
        _own(look.slot(slots.LEASE + self.name, inherited=False), look.tape, self.name, self.token)
        return self._planned(head, until=look.clock() + int(self.seconds * 1_000_000), token=self.token)


class EndLease(_LeaseStep, kw_only=True):
    """Release a lease."""

    token: int

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse if someone else has it, or had it."""
        _own(look.slot(slots.LEASE + self.name, inherited=False), look.tape, self.name, self.token)
        return self._planned(head, token=self.token)


def period(seconds: Any) -> float:
    """Return the duration of a lease in seconds; raises InvalidEntry for 0."""
    length = strict.seconds(seconds, "seconds")
    if not length:
        raise InvalidEntry("seconds", "must be greater than 0")
    return length


def check_held(event: payloads.Payload | None, tape: str, name: str, token: int, now: int) -> None:
    """Raise LeaseLost unless the holder of the token holds the lease now."""
    until = due(_own(event, tape, name, token))
    if until is None or until <= now:
        raise LeaseLost(tape, name, token)


def _held(event: payloads.Payload | None) -> payloads.Event | None:
    """Return the step by which a lease is held, expired or not; None if nobody took it or it was released."""
    if isinstance(event, payloads.Event) and isinstance(event.data, dict) and event.data.get("state") != "released":
        return event
    return None


def _own(event: payloads.Payload | None, tape: str, name: str, token: int) -> payloads.Event:
    held = _held(event)
    if held is None or held.settled.get("token") != token:
        raise LeaseLost(tape, name, token)
    return held
