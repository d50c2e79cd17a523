"""Requests and leases of a tape: requests for a decision, their decisions, and who may continue a run."""

from __future__ import annotations

from typing import Any, Unpack

from tape.core import strict
from tape.core.journal.leases import period
from tape.core.journal.requests import AskDecision, Closed, Decide, Request
from tape.core.memory.state import LONGEST_LABEL
from tape.core.plan.intents import same
from tape.core.records import Page, Receipt
from tape.db.record.writing import Call
from tape.errors import InvalidEntry, LeaseHeld, RequestClosed
from tape.handles import recorded as writes
from tape.handles.journal.leases import Lease, take_lease
from tape.handles.journal.waiting import Waiting, wait_for
from tape.handles.options import WriteOptions, call_of, public_as
from tape.handles.recorded import recorded
from tape.handles.services import Services
from tape.handles.snapshot import Snapshot

__all__ = ["RequestLister", "RequestWriter"]

STATUSES = ("pending", "expired")


@public_as("Tape")
class RequestWriter(Snapshot):
    """The requests and leases of a tape."""

    @recorded
    def request(
        self, kind: str, payload: Any = None, *, seconds: float | None = None, **options: Unpack[WriteOptions]
    ) -> writes.Request:
        """Request a decision: approval of a tool call, an answer of a person. The receipt's ``key`` is its id.

        ``kind`` names the kind of request, ``payload`` is any JSON. After ``seconds`` it expires, by the database's
        clock. With a ``key`` the call is idempotent.
        """
        call = call_of(self._id, **options)
        strict.encode(payload, "payload")
        key = self._services.keyed(call.key)
        if len(key.value) > LONGEST_LABEL:
            raise InvalidEntry("key", f"must have at most {LONGEST_LABEL} characters")
        data: dict[str, Any] = {"request": key.value, "kind": strict.identifier(kind, "kind"), "payload": payload}
        if seconds is not None:
            data["seconds"] = seconds = period(seconds)
        return writes.Request(call, [AskDecision(key=key, data=data, seconds=seconds)])

    def resolve(
        self, request: Request | Receipt | str, decision: Any = None, **options: Unpack[WriteOptions]
    ) -> Receipt:
        """Decide a request of this tape. One decision wins, whoever decides and from whichever process.

        ``decision`` is any JSON, ``actor`` says who decided. Raises RequestClosed, with the decision that counts, when
        somebody else was first or the request was withdrawn or has expired; UnknownEntry when there is none. The same
        decision of the same actor again returns the first receipt.
        """
        strict.encode(decision, "decision")
        return self._decide(request, "resolved", decision, call_of(self._id, **options))

    def withdraw(
        self, request: Request | Receipt | str, reason: str | None = None, **options: Unpack[WriteOptions]
    ) -> Receipt:
        """Withdraw a request, so that nobody can decide it any more; raises RequestClosed if somebody has.

        One that expired can be withdrawn, too: it is then no longer listed as expired.
        """
        return self._decide(request, "withdrawn", strict.reason(reason), call_of(self._id, **options))

    def _decide(self, request: Request | Receipt | str, state: str, decision: Any, call: Call) -> Receipt:
        id = _request_id(request)
        intent = Decide(key=self._services.keyed(call.key), request=id, state=state, decision=decision)
        try:
            return self._services.recorder.record(call, [intent])[0]
        except Closed:
            pass
        # A closed request never changes, so it can be read after the transaction.
        closed = self._reader.request(self._id, id, self._services.clock)
        mine = closed.status == state and closed.decided_by == call.actor and same(closed.decision, decision)
        if not mine or closed.decided_seq is None:
            raise RequestClosed(closed)
        entry = self.entry(seq=closed.decided_seq)
        return Receipt(entry.tape, entry.seq, entry.key, None, entry.hash, duplicate=True, position=entry.position)

    def decision(self, request: Request | Receipt | str, *, wait: float = 0.0) -> Request:
        """Return the current state of a request, after waiting at most ``wait`` seconds for a decision.

        Check its ``status``: it may still be pending. Raises UnknownEntry when there is none.
        """
        waiting = self._awaiting(request, wait)
        return wait_for(self._services.database, waiting)

    def _awaiting(self, request: Request | Receipt | str, wait: float) -> Waiting[Request]:
        id, clock = _request_id(request), self._services.clock
        if wait := strict.seconds(wait, "wait"):
            self._services.database.outside("decision(wait=)")
        return Waiting(lambda: self._reader.request(self._id, id, clock), lambda standing: not standing.pending, wait)

    def lease(
        self, name: str, seconds: float, *, holder: str | None = None, wait: float = 0.0, actor: str | None = None
    ) -> Lease:
        """Take the lease of a name, which has one holder at a time, for so many seconds by the database's clock.

        Raises LeaseHeld when somebody else has it, after waiting for it at most ``wait`` seconds. As a context manager
        it is released at the end. Its fencing ``token`` grows with every holder.
        """
        outcome = wait_for(self._services.database, self._leasing(name, seconds, holder, wait, actor))
        if isinstance(outcome, LeaseHeld):
            raise outcome
        return outcome

    def _leasing(
        self, name: str, seconds: float, holder: str | None, wait: float, actor: str | None
    ) -> Waiting[Lease | LeaseHeld]:
        name, seconds = strict.identifier(name, "name"), period(seconds)
        if len(name) > LONGEST_LABEL:
            raise InvalidEntry("name", f"must have at most {LONGEST_LABEL} characters")
        taker = self._services.new_id() if holder is None else strict.identifier(holder, "holder")
        if wait := strict.seconds(wait, "wait"):
            self._services.database.outside("lease(wait=)")
        call = call_of(self._id, actor=actor)

        def take() -> Lease | LeaseHeld:
            try:
                return take_lease(self._services, call, name, taker, seconds)
            except LeaseHeld as held:
                return held

        return Waiting(take, lambda outcome: isinstance(outcome, Lease), wait)


@public_as("Store")
class RequestLister:
    """The listing of requests on the tapes of a store."""

    _services: Services

    def requests(
        self,
        *,
        owner: str | None = None,
        tape: str | None = None,
        kind: str | None = None,
        status: str = "pending",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Request]:
        """Return the requests that wait for a decision, on all tapes that this store sees, a page at a time.

        They are ordered by their ids: generated ids oldest first. Pass a page's ``cursor`` for the next one.
        ``status="expired"`` lists requests that expired and were not withdrawn. The cost depends only on how many are
        open. New ones arrive on ``follow``.
        """
        from tape.db.read.requests import open_requests

        services = self._services
        identifiers = {"owner": owner, "tape": tape, "kind": kind}
        filters = {
            name: None if value is None else strict.identifier(value, name) for name, value in identifiers.items()
        }
        strict.one_of(status, STATUSES, "status")
        services.log_administrative("requests", owner=owner)
        if services.owner is not None:
            if owner not in (None, services.owner):
                return Page([])
            filters["owner"] = services.owner
        return open_requests(services.database, services.clock, filters, status, limit, cursor)


def _request_id(request: Request | Receipt | str) -> str:
    if isinstance(request, Request):
        return request.id
    return strict.identifier(request.key if isinstance(request, Receipt) else request, "request")
