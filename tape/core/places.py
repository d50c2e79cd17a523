"""Where an owner's tapes are, in a pool of databases: what each database records of an owner that was moved.

The record is a tape like any other. None, or an open one: the owner's tapes are here. A closed one says in its reason
that they have left for another database, or are arriving from one.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from msgspec import Struct

from tape.errors import Corrupt

__all__ = ["RECORDS", "Away", "locate", "owner_record", "read_reason"]

RECORDS = "pool.owner/"
"""What the ids of all records begin with."""
_LONGEST = 200
_ARRIVING, _LEFT = "arriving from ", "moved to "


class Away(Struct, frozen=True):
    """An owner whose tapes are not here: they are in another database, or still on their way from it."""

    database: str
    arriving: bool

    @property
    def reason(self) -> str:
        """What the record is closed with."""
        return f"{_ARRIVING if self.arriving else _LEFT}{self.database}"


def owner_record(owner: str) -> str:
    """Return the id of an owner's record."""
    if len(owner) <= _LONGEST:
        return f"{RECORDS}{owner}"
    return f"{RECORDS}{owner[:_LONGEST]}~{blake2b(owner.encode(), digest_size=12).hexdigest()}"


def read_reason(reason: str | None) -> Away:
    """Return what a closed record says."""
    text = reason or ""
    if text.startswith(_ARRIVING):
        return Away(text.removeprefix(_ARRIVING), arriving=True)
    return Away(text.removeprefix(_LEFT), arriving=False)


def locate(home: str, away: Callable[[str], Away | None]) -> str:
    """Return the database that has an owner's tapes, starting where the caller's map has it.

    ``away`` tells what a database records of the owner. While the last step of a move runs, the source still has them.
    """
    place, seen = home, {home}
    while (state := away(place)) is not None:
        if not state.arriving and (other := away(state.database)) is not None and other == Away(place, arriving=True):
            return place
        place = state.database
        if place in seen:
            raise Corrupt(RECORDS, 0, f"the records of databases {sorted(seen)} form a cycle")
        seen.add(place)
    return place
