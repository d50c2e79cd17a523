"""What a failure of the database means, whichever engine it is.

Errors of the drivers are judged by their codes, never by their texts: they become one of these, StoreBusy or
StoreFailed.
"""

from __future__ import annotations

from tape.errors import StoreFailed

__all__ = ["READ_ONLY_STATES", "Again", "Broken", "Collision", "Denied", "Lost", "Raised", "Stale", "Undone"]

READ_ONLY_STATES = ("25006", "0A000")
"""What PostgreSQL calls a write in a transaction that only reads, and one that is to begin on a standby."""


class Denied(StoreFailed):
    """The role of this connection may not do it."""


class Broken(StoreFailed):
    """A table is missing, has lost a column, or is damaged on disk (``spoilt``)."""

    def __init__(self, message: str, *, spoilt: bool = False) -> None:
        super().__init__(message)
        self.spoilt = spoilt


class Collision(Exception):
    """A unique key is taken: someone else wrote first, or the same was written before."""


class Stale(Collision):
    """The kept head may be out of date; decide again with everything read afresh."""


class Again(Exception):
    """The database rolled the transaction back by itself; running it once more is safe."""


class Undone(Exception):
    """The database has undone all of the transaction that a call was part of; it is run once more as a whole."""


class Raised(BaseException):
    """Carries what the caller's function raised past the code that handles errors of the database."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Lost(Exception):
    """The connection broke while the transaction may have been committing."""
