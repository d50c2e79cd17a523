"""The exit codes that scripts can rely on, and the error that carries one."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
from collections.abc import Iterator

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
    "listening_on",
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


@contextlib.contextmanager
def listening_on(host: str, port: int) -> Iterator[None]:
    """Raise Failure if a server inside cannot listen on this address."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = f"port {port} on {host} is in use by another program"
            raise Failure(problem, "choose another with --port; 0 picks a free one", UNAVAILABLE) from error
        if error.errno in (errno.EACCES, errno.EADDRNOTAVAIL):
            problem = f"cannot listen on port {port} of {host}: {os.strerror(error.errno)}"
            raise Failure(problem, "choose another address", USAGE) from error
        raise


@functools.cache
def _judged() -> list[tuple[type[tape.TapeError], int, str | None]]:
    """Return the exit code and hint of each error. A class comes before its base class."""
    # Imported here because it loads SQLAlchemy, which is loaded already when a store raised an error.
    from tape.db.engine.connect import LeftoverLog, Unreachable, UnreadableLog, Unwritable
    from tape.db.transfer.importer import PurgedId

    return [
        (tape.InvalidEntry, USAGE, None),
        (tape.TapeHidden, NOT_FOUND, "show it again with: tape unhide TAPE"),
        (tape.TapeNotFound, NOT_FOUND, "see: tape ls"),
        (tape.UnknownMessage, NOT_FOUND, "see: tape cat TAPE"),
        (tape.UnknownEntry, NOT_FOUND, "see: tape log TAPE"),
        (tape.Corrupt, DAMAGED, "see: tape verify TAPE"),
        (PurgedId, DAMAGED, "nothing was imported; add --reuse to use the id again"),
        (tape.ImportFailed, DAMAGED, "nothing was imported; if the file is damaged, export the tape again"),
        (tape.SchemaTooNew, SCHEMA, None),
        (tape.SchemaTooOld, SCHEMA, None),
        (tape.StoreBusy, UNAVAILABLE, "another process is writing; try again later"),
        (tape.CommitUnknown, UNAVAILABLE, "check the tape first; a retry is safe only with the same --key"),
        (Unreachable, UNAVAILABLE, "check the address and the credentials, and that the server is running"),
        (LeftoverLog, FAILED, None),
        (UnreadableLog, UNAVAILABLE, None),
        (Unwritable, FAILED, "choose another file, or make this one writable"),
        (tape.NotAStore, NOT_FOUND, "name a store with --store or TAPE_STORE"),
        (tape.ReadOnly, FAILED, "check the permissions of the file and its folder, or of the PostgreSQL role"),
        (tape.TablesTaken, FAILED, "use another file, or on PostgreSQL another --schema"),
        (tape.StoreFailed, UNAVAILABLE, "see: tape doctor"),
        (tape.HeadMoved, FAILED, "read the tape again, then decide whether to retry"),
        (tape.ProvenanceConflict, FAILED, "use a new --key for new content"),
        (tape.MergeConflict, FAILED, "choose a side with --on-conflict ours or --on-conflict theirs"),
        (tape.TapeExists, FAILED, "choose another id"),
        (tape.TapeInUse, FAILED, "purge those tapes first, or add --forks"),
        (tape.BudgetExceeded, FAILED, "raise --budget"),
    ]


def words(error: tape.TapeError) -> str:
    """Return the message of a library's error for the one line that the command prints."""
    if isinstance(error, tape.InvalidEntry) and error.field == "tape":
        # The line begins with the name of the command, which is the same word.
        return error.why
    if judge(error)[1] is not None:
        # The library's advice names arguments of its calls. The hint says the same with the options of the command.
        return str(error).removesuffix(f"; {error._advice}")
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
