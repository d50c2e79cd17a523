"""Positions: where an entry stands in the feed, as one number.

On SQLite it is the entry's own number; on PostgreSQL the transaction id, which decides, in the upper bits and the
entry's number in the lower ones. SQLite has no transaction ids and stores 0 in their place.
"""

from __future__ import annotations

__all__ = ["join_position", "split_position"]

_BITS = 40
"""For the entry's own number; 2**40 entries are a trillion."""


def split_position(postgres: bool, position: int) -> tuple[int, int]:
    """Return the transaction id and the number in a position."""
    return (position >> _BITS, position & ((1 << _BITS) - 1)) if postgres else (0, position)


def join_position(xid: int, number: int) -> int:
    """Return the position of an entry."""
    return xid << _BITS | number
