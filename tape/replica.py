"""A replica of a store's database: a second server that is only read and is a little behind, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tape.core import strict
from tape.core.records import Entry, MergeReceipt, Receipt
from tape.db.engine.process_fork import RenewedLock
from tape.db.view.opening import head_row
from tape.errors import InvalidEntry, ReplicaBehind

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["Replica", "Written", "wait_for"]

Written = Receipt | MergeReceipt | Entry
"""What tells of a write: which entry of which tape it is."""

_PAUSES = (0.001, 0.05)
"""Seconds between two looks at a replica: at first, and at most."""


class Replica:
    """The store on the replica, opened when it is first needed: the primary's does not depend on it."""

    def __init__(self, open: Callable[[], Store]) -> None:
        self._open = open
        self._opening = RenewedLock()
        self._store: Store | None = None

    def store(self) -> Store:
        """Return the store, which is only to be read; raises StoreFailed when the replica cannot be reached."""
        with self._opening:
            if self._store is None:
                self._store = self._open()
            return self._store

    def close(self) -> None:
        """Close the store, if it was opened."""
        with self._opening:
            if self._store is not None:
                self._store.close()


def wait_for(store: Store, written: Written, timeout: float) -> None:
    """Wait until a store has an entry; raises ReplicaBehind when it has not after ``timeout`` seconds."""
    if not isinstance(written, Written):
        raise InvalidEntry("at_least", f"must be a receipt or an entry, not {strict.shown(written)}")
    until = time.monotonic() + timeout
    pause = _PAUSES[0]
    while True:
        row = store._db.read(lambda tx: head_row(tx, written.tape, store.owner, hidden=True))
        if row is not None and row.seq >= written.seq:
            return
        left = until - time.monotonic()
        if left <= 0:
            raise ReplicaBehind(written.tape, written.seq, timeout)
        time.sleep(min(pause, left))
        pause = min(2 * pause, _PAUSES[1])
