"""Keys: the name under which an entry is recorded, and where that name comes from."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from tape.core import strict
from tape.core.entries import ids

__all__ = ["Key", "Origin", "keyed"]


class Origin(Enum):
    """Where a key comes from, which decides when it is looked up."""

    GIVEN = "given"
    """The caller chose it: the same key again means the same call again."""
    DERIVED = "derived"
    """It follows from what is recorded, such as the id of the message."""
    RANDOM = "random"
    """Nothing can repeat it: it is looked up only to learn whether a lost attempt was recorded."""


class Key(Struct, frozen=True, gc=False):
    """The key of an entry and its origin. It is fixed before an entry is sent, so that a retry can find the entry."""

    value: str
    origin: Origin


def keyed(key: str | None) -> Key:
    """Return the key that the caller gave, or a random one."""
    if key is None:
        return Key(ids.new_id(), Origin.RANDOM)
    return Key(strict.identifier(key, "key"), Origin.GIVEN)
