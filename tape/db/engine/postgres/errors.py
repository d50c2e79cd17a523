"""What an error of PostgreSQL means, judged by its code."""

from __future__ import annotations

from typing import Any

from tape.db.engine.failures import Again, Broken, Collision, Denied, Lost
from tape.errors import ReadOnly, StoreBusy, StoreFailed

__all__ = ["postgres_error"]

_DAMAGE = {"42P01": False, "42703": False, "XX001": True, "XX002": True}
"""What PostgreSQL calls a missing table or column, and a damaged table or index; whether the disk is at fault."""


def postgres_error(error: BaseException, waited: float, connection: Any = None) -> BaseException:
    """Return what an error of PostgreSQL means."""
    import psycopg

    if not isinstance(error, psycopg.Error):
        behind = _behind(error)
        return error if behind is None else postgres_error(behind, waited, connection)
    state = error.sqlstate
    if isinstance(error, psycopg.IntegrityError):
        return Collision(str(error))
    if state == "55P03":
        return StoreBusy(waited)
    if state == "42501":
        return Denied(f"PostgreSQL denied access: {error}")
    if state == "25006":
        return ReadOnly(f"PostgreSQL is read-only: {error}")
    if state in _DAMAGE:
        return Broken(f"PostgreSQL failed: {error}", spoilt=_DAMAGE[state])
    if state in ("40001", "40P01"):
        return Again(str(error))
    if connection is not None and connection.closed:
        # However the server put it: terminated, shut down, idle for too long.
        return Lost(str(error))
    if state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Lost(str(error))
    if state is not None and (state[:2] == "08" or state in ("57P01", "57P02", "57P03")):
        return Lost(str(error))
    return StoreFailed(f"PostgreSQL failed: {error}")


def _behind(error: BaseException) -> BaseException | None:
    """Return what psycopg hides by an assertion: where a signal interrupts it, its tidying up finds what cannot be."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    inside = last is not None and last.tb_frame.f_globals.get("__name__", "").startswith("psycopg.")
    return error.__context__ if inside and isinstance(error, AssertionError) else None
