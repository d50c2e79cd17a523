"""The exit codes that scripts can rely on, and the error that carries one."""

from __future__ import annotations

import functools

import tape

__all__ = [
    "DAMAGED",
    "FAILED",
    "INTERRUPTED",
    "NOT_FOUND",
    "OK",
    "SCHEMA",
    "UNAVAILABLE",
    "USAGE",
    "Failure",
    "judge",
    "words",
]

OK = 0
FAILED = 1
"""Refused, and nothing was changed."""
USAGE = 2
"""The command line, or a value on it, cannot be understood."""
NOT_FOUND = 3
"""No such store, tape, entry, message or file."""
DAMAGED = 4
"""The store, or a file to import, is damaged."""
SCHEMA = 5
"""The store has the schema of an older or a newer release."""
UNAVAILABLE = 6
"""The database was busy or could not be reached; the same command may succeed later."""
INTERRUPTED = 130


class Failure(Exception):
    """An error of the command's own: one line for the user, the next step, and the exit code."""

    def __init__(self, problem: str, hint: str | None = None, code: int = FAILED) -> None:
        super().__init__(problem)
        self.hint = hint
        self.code = code


@functools.cache
def _judged() -> list[tuple[type[tape.TapeError], int, str | None]]:
    """Return the exit code and hint of each error. A class comes before its base class."""
    # Imported here because it loads SQLAlchemy, which is loaded already when a store raised an error.
    from tape.db.engine.connect import LeftoverLog, Unreachable

    return [
        (tape.InvalidEntry, USAGE, None),
        (tape.TapeHidden, NOT_FOUND, "see: tape ls --hidden"),
        (tape.TapeNotFound, NOT_FOUND, "see: tape ls"),
        (tape.UnknownMessage, NOT_FOUND, "see: tape cat TAPE"),
        (tape.UnknownEntry, NOT_FOUND, "see: tape log TAPE"),
        (tape.Corrupt, DAMAGED, "see: tape verify TAPE"),
        (tape.ImportFailed, DAMAGED, "nothing was imported; export the tape again"),
        (tape.SchemaTooNew, SCHEMA, None),
        (tape.SchemaTooOld, SCHEMA, None),
        (tape.StoreBusy, UNAVAILABLE, "try again"),
        (tape.CommitUnknown, UNAVAILABLE, "run the same command again with --key"),
        (Unreachable, UNAVAILABLE, "check the address, and that the server runs"),
        (LeftoverLog, FAILED, None),
        (tape.NotAStore, NOT_FOUND, "name one with --store or TAPE_STORE"),
        (tape.ReadOnly, FAILED, "write where the store can be written"),
        (tape.TablesTaken, FAILED, "name the store's own with --prefix, or on PostgreSQL with --schema"),
        (tape.StoreFailed, UNAVAILABLE, "see: tape doctor"),
        (tape.HeadMoved, FAILED, "read the tape again, then decide"),
        (tape.ProvenanceConflict, FAILED, "use another --key for other content"),
        (tape.MergeConflict, FAILED, "choose with --on-conflict ours or theirs"),
        (tape.TapeInUse, FAILED, "purge those first, or add --forks or --when-free"),
        (tape.BudgetExceeded, FAILED, "raise --budget"),
    ]


def words(error: tape.TapeError) -> str:
    """Return the message of a library's error for the one line that the command prints."""
    if isinstance(error, tape.InvalidEntry) and error.field == "tape":
        # The line begins with the name of the command, which is the same word.
        return error.why
    return str(error)


def judge(error: tape.TapeError) -> tuple[int, str | None]:
    """Return the exit code of a library's error, and the next step, if there is one."""
    import sqlite3

    cause = getattr(error.__cause__, "sqlite_errorcode", None) or 0
    if isinstance(error, tape.StoreFailed) and cause & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DAMAGED, "see: tape doctor"
    for kind, code, hint in _judged():
        if isinstance(error, kind):
            return code, hint
    return FAILED, None
