"""A lease: the exclusive right of one worker to continue with something, for a limited time."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from tape.core.journal.leases import EndLease, RenewLease, TakeLease, period
from tape.db.record.writing import Call
from tape.errors import InvalidEntry, LeaseLost
from tape.handles.services import Services
from tape.handles.snapshot import Snapshot

__all__ = ["Lease", "take_lease"]


class Lease:
    """The lease of a name on a tape, held until it is released or expires. Leaving its ``with`` releases it.

    Nothing stops a holder whose lease expired. Pass ``token`` as a fencing token to the systems that it changes, and
    let them refuse a token below the greatest they have seen. For writes on tapes, ``check`` in the same transaction.
    """

    def __init__(self, services: Services, call: Call, name: str, holder: str, seconds: float, token: int) -> None:
        self._services = services
        self._call = call
        self._name = name
        self._holder = holder
        self._token = token
        self._hold(seconds, time.monotonic())

    def _hold(self, seconds: float, began: float) -> None:
        self._seconds = seconds
        self._until = began + seconds

    def __repr__(self) -> str:
        return f"<tape.Lease {self._name!r} of {self._call.tape!r}, token {self._token}>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def tape(self) -> str:
        """The id of the tape."""
        return self._call.tape

    @property
    def name(self) -> str:
        """The name that is leased."""
        return self._name

    @property
    def holder(self) -> str:
        """Who holds it."""
        return self._holder

    @property
    def token(self) -> int:
        """The seq of the entry that took it: greater than that of every holder before."""
        return self._token

    @property
    def remaining(self) -> float:
        """The least number of seconds left, by this process's monotonic clock from before the lease was requested."""
        return max(0.0, self._until - time.monotonic())

    def renew(self, seconds: float | None = None) -> None:
        """Extend the lease to so many seconds from now, by default as many as before.

        Raises LeaseLost if somebody else took it meanwhile. An expired lease that nobody took is held again.
        """
        length = self._seconds if seconds is None else period(seconds)
        began = time.monotonic()
        data = self._data("renewed", token=self._token, seconds=length)
        self._record(RenewLease(key=self._key(), name=self._name, data=data, token=self._token, seconds=length))
        self._hold(length, began)

    def release(self) -> bool:
        """Release the lease, so that the next holder need not wait; returns whether this holder still had it."""
        data = self._data("released", token=self._token)
        try:
            self._record(EndLease(key=self._key(), name=self._name, data=data, token=self._token))
        except LeaseLost:
            return False
        finally:
            self._until = 0.0
        return True

    def check(self, tape: Snapshot | None = None) -> None:
        """Raise LeaseLost unless the lease is held now, by the database's clock.

        With the same tape of a store that ``store.transaction`` gave, it stays held until that is committed.
        """
        if tape is not None and tape.id != self._call.tape:
            raise InvalidEntry("tape", f"the lease belongs to tape {self._call.tape!r}, not to {tape.id!r}")
        services = self._services if tape is None else tape._services
        services.reader.check_lease(self._call.tape, self._name, self._token, services.clock)

    def _key(self) -> Any:
        return self._services.keyed(None)

    def _data(self, state: str, **more: float) -> dict[str, Any]:
        return {"lease": self._name, "state": state, "holder": self._holder, **more}

    def _record(self, intent: RenewLease | EndLease) -> None:
        self._services.recorder.record(self._call, [intent])


def take_lease(services: Services, call: Call, name: str, holder: str, seconds: float) -> Lease:
    """Take a lease that nobody holds; raises LeaseHeld."""
    began = time.monotonic()
    data = {"lease": name, "state": "taken", "holder": holder, "seconds": seconds}
    intent = TakeLease(key=services.keyed(None), name=name, data=data, seconds=seconds)
    receipt = services.recorder.record(call, [intent])[0]
    lease = Lease(services, call, name, holder, seconds, receipt.seq)
    lease._hold(seconds, began)
    return lease
