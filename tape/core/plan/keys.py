"""Keys: the name under which an entry is recorded, and where that name comes from."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

__all__ = ["DERIVED", "GIVEN", "RANDOM", "Key", "Origin"]


class Origin(Enum):
    """Where a key comes from, which decides when it is looked up."""

    GIVEN = "given"
    """The caller chose it: the same key again means the same call again."""
    DERIVED = "derived"
    """It follows from what is recorded, such as the id of the message."""
    RANDOM = "random"
    """Nothing can repeat it: it is looked up only to learn whether a lost attempt was recorded."""


GIVEN, DERIVED, RANDOM = Origin


class Key(Struct, frozen=True, gc=False):
    """The key of an entry and its origin. It is fixed before an entry is sent, so that a retry can find the entry."""

    value: str
    origin: Origin
