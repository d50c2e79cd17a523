"""Waiting and leases, awaited."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar

from tape.aio.hop import Hop, hop_write
from tape.aio.wakeup import wait, woken_by
from tape.errors import LeaseHeld
from tape.handles.journal.leases import Lease
from tape.handles.journal.waiting import Waiting
from tape.handles.services import Services

__all__ = ["AsyncLease", "Leasing", "wait_for"]

T = TypeVar("T")


async def wait_for(face: Hop, services: Services, waiting: Waiting[T]) -> T:
    """Read until it is done or the timeout is reached: every read is a hop to a thread, the waiting takes none."""
    value = await face._write(waiting.look)
    if waiting.pause(value) is None:
        return value
    with woken_by([services.database.wakeup]) as committed:
        while True:
            committed.clear()
            value = await face._write(waiting.look)
            pause = waiting.pause(value)
            if pause is None:
                return value
            await wait(committed, pause)


class AsyncLease(Hop):
    """The lease of a name on a tape, awaited; see ``Lease``."""

    _inner: Lease

    def __repr__(self) -> str:
        return f"<tape.AsyncLease {self.name!r} of {self.tape!r}, token {self.token}>"

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    @property
    def tape(self) -> str:
        """The id of the tape."""
        return self._inner.tape

    @property
    def name(self) -> str:
        """What the lease is of."""
        return self._inner.name

    @property
    def holder(self) -> str:
        """Who holds it."""
        return self._inner.holder

    @property
    def token(self) -> int:
        """The seq of the entry that took it: greater than that of every holder before."""
        return self._inner.token

    @property
    def remaining(self) -> float:
        """The seconds that are left at least; see ``Lease.remaining``."""
        return self._inner.remaining

    renew = hop_write(Lease.renew)
    release = hop_write(Lease.release)

    async def check(self, tape: Any = None) -> None:
        """Raise LeaseLost unless the lease is held now; see ``Lease.check``."""
        face = self if tape is None else tape
        await face._read(lambda: self._inner.check(None if tape is None else tape._inner))


class Leasing:
    """What ``AsyncTape.lease`` returns: await it for the lease, or enter it to have it released at the end."""

    def __init__(self, face: Hop, begin: Callable[[], Waiting[Lease | LeaseHeld]], services: Services) -> None:
        self._face = face
        self._begin = begin
        self._services = services
        self._lease: AsyncLease | None = None

    async def _take(self) -> AsyncLease:
        outcome = await wait_for(self._face, self._services, self._begin())
        if isinstance(outcome, LeaseHeld):
            raise outcome
        return AsyncLease(outcome, self._face._threads)

    def __await__(self) -> Generator[Any, None, AsyncLease]:
        return self._take().__await__()

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._take()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            await self._lease.release()
