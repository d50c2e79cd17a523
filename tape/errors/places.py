"""Errors of a database, of a pool of databases, or of a replica."""

from __future__ import annotations

from tape.errors.base import TapeError

__all__ = ["DatabaseDown", "OwnerMoved", "ProcessForked", "ReplicaBehind", "StoreFailed"]


class StoreFailed(TapeError):
    """The database itself failed or refused (disk full, connection refused); see ``__cause__``.

    Nothing was written. A retry is safe once the cause is gone.
    """


class ProcessForked(StoreFailed):
    """This process was forked while ``place`` was in use, and must not use what it inherited. Nothing was written.

    ``place`` is a SQLite file, or a transaction that was running. The parent is not affected. A retry in this process
    fails the same way. Fork before the file is opened, outside of transactions, and after ``dispose()`` of every
    engine of the application; or start the process by "spawn" or "forkserver".
    """

    def __init__(self, place: str) -> None:
        super().__init__(
            f"this process was forked while {place} was in use, and must not go on with it: end transactions and "
            'dispose of engines before the fork, or start the process by "spawn"'
        )
        self.place = place


class DatabaseDown(StoreFailed):
    """A database of the pool cannot be reached; ``database`` is its name. The others work. Retry when it is back."""

    def __init__(self, database: str, why: str) -> None:
        super().__init__(f"database {database!r} of the pool cannot be reached: {why}")
        self.database = database
        self.why = why


class OwnerMoved(TapeError):
    """The owner's tapes are in ``database`` now, or moving there. Nothing was written.

    Take a store from ``pool.scoped(owner)`` and retry there with the same key, or let ``pool.write`` do so.
    """

    def __init__(self, owner: str, database: str) -> None:
        super().__init__(
            f"the tapes of {owner!r} are in database {database!r} now, or moving there; call pool.scoped() again"
        )
        self.owner = owner
        self.database = database


class ReplicaBehind(TapeError):
    """The replica has not received the write of a receipt within ``seconds``. Retry, or read from the primary."""

    def __init__(self, tape: str, seq: int, seconds: float) -> None:
        super().__init__(
            f"the replica did not receive seq {seq} of tape {tape!r} within {seconds} s; retry or read the primary"
        )
        self.tape = tape
        self.seq = seq
        self.seconds = seconds
