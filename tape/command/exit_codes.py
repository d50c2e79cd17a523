"""The exit codes that scripts can rely on, and the error that carries one."""

from __future__ import annotations

import functools
import shlex

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
"""The command line, or a value on it, is invalid."""
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
    from tape.db.engine.connect import LeftoverLog, Unreachable, UnreadableLog, Unwritable

    return [
        (tape.InvalidEntry, USAGE, None),
        (tape.TapeHidden, NOT_FOUND, "show it again with: tape unhide TAPE"),
        (tape.TapeNotFound, NOT_FOUND, "see: tape ls"),
        (tape.UnknownMessage, NOT_FOUND, "see: tape cat TAPE"),
        (tape.UnknownEntry, NOT_FOUND, "see: tape log TAPE"),
        (tape.Corrupt, DAMAGED, "see: tape verify TAPE"),
        (tape.ImportFailed, DAMAGED, "nothing was imported; if the file is damaged, export the tape again"),
        (tape.SchemaTooNew, SCHEMA, None),
        (tape.SchemaTooOld, SCHEMA, None),
        (tape.StoreBusy, UNAVAILABLE, "another process is writing: try again later"),
        (tape.CommitUnknown, UNAVAILABLE, "check the tape first; a retry is safe only with the same --key"),
        (Unreachable, UNAVAILABLE, "check the address and the credentials, and that the server is running"),
        (LeftoverLog, FAILED, None),
        (UnreadableLog, UNAVAILABLE, None),
        (Unwritable, FAILED, "choose another file, or make this one writable"),
        (tape.NotAStore, NOT_FOUND, "name a store with --store or TAPE_STORE"),
        (tape.ReadOnly, FAILED, "check the permissions of the file and its folder, or of the PostgreSQL role"),
        (tape.TablesTaken, FAILED, "use other table names with --prefix, or on PostgreSQL another --schema"),
        (tape.StoreFailed, UNAVAILABLE, "see: tape doctor"),
        (tape.HeadMoved, FAILED, "someone else wrote first: read the tape, then decide whether to retry"),
        (tape.ProvenanceConflict, FAILED, "use a new --key for new content"),
        (tape.MergeConflict, FAILED, "choose a side with --on-conflict ours or --on-conflict theirs"),
        (tape.TapeInUse, FAILED, "purge those tapes first, or add --forks or --when-free"),
        (tape.BudgetExceeded, FAILED, "raise --budget"),
    ]


def words(error: tape.TapeError) -> str:
    """Return the message of a library's error for the one line that the command prints."""
    if isinstance(error, tape.TapeHidden):
        # The library names its own call, unhide().
        return f"tape {error.tape!r} is hidden" + (f" ({error.reason})" if error.reason else "")
    if isinstance(error, tape.InvalidEntry) and error.field == "tape":
        # The line begins with the name of the command, which is the same word.
        return error.why
    return str(error)


def judge(error: tape.TapeError) -> tuple[int, str | None]:
    """Return the exit code of a library's error, and the next step, if there is one."""
    import sqlite3

    cause = getattr(error.__cause__, "sqlite_errorcode", None) or 0
    if isinstance(error, tape.StoreFailed) and cause & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DAMAGED, "restore it from a backup; see: tape doctor"
    for kind, code, hint in _judged():
        if isinstance(error, kind):
            name = getattr(error, "tape", None)
            return code, hint and hint.replace("TAPE", shlex.quote(name)) if isinstance(name, str) else hint
    return FAILED, None
