"""Deltas: a request stored as what it adds to an earlier one. Pure.

A conversation is sent again with every call. Of a field that extends the field of an earlier call only the added part
is stored, with the seq of that call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, field

__all__ = ["SHORTEST", "Added", "StoredField", "applied", "parts_of_list", "shared_length"]

SHORTEST = 256
"""Bytes of JSON below which a field is stored as it is."""


Place = Annotated[int, Meta(ge=0)]
Seq = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Added(Struct):
    """Elements that a list has and the list of the earlier call has not."""

    add: list[Any]


class StoredField(Struct, omit_defaults=True, kw_only=True):
    """A field of a request as it is stored: its value, the field of an earlier call with changes, or a context.

    Of the field of call ``of`` it keeps the first ``keep`` elements or characters and adds ``add``; or it consists of
    ``parts``, each a range of that list or what is added; or it is the same. No two parts use one element.
    """

    value: Any = field(name="is", default=UNSET)
    of: Seq | None = None
    keep: Place | None = None
    add: list[Any] | str | None = None
    parts: list[tuple[Place, Place] | Added] | None = None
    context: Seq | None = None
    """The entry of a recorded context of the same tape."""
    api: str | None = None
    """The rendering of the context, and the field of it."""

    def __post_init__(self) -> None:
        if (self.value is not UNSET) + (self.of is not None) + (self.context is not None) != 1:
            raise ValueError("it needs exactly one of 'is', 'of' and 'context'")
        if (self.keep is None) != (self.add is None) or (self.keep is not None and self.parts is not None):
            raise ValueError("'keep' and 'add' belong together, and exclude 'parts'")
        if (self.context is None) != (self.api is None):
            raise ValueError("'context' and 'api' belong together")
        if self.parts is not None:
            ranges = sorted(part for part in self.parts if not isinstance(part, Added))
            if any(start > stop for start, stop in ranges) or any(one[1] > next[0] for one, next in pairwise(ranges)):
                # Otherwise a small recording could stand for a request of any size.
                raise ValueError("two parts overlap")


def parts_of_list(before: Sequence[bytes], after: Sequence[bytes]) -> list[tuple[int, int] | slice] | None:
    """Return a list as ranges of an earlier one, and slices of itself for what is added.

    Both are lists of encoded elements. No element of the earlier one is used twice. None when most would be added.
    """
    places: dict[bytes, list[int]] = {}
    for index in range(len(before) - 1, -1, -1):
        places.setdefault(before[index], []).append(index)
    used: set[int] = set()
    parts: list[tuple[int, int] | slice] = []
    reused = 0
    for index, raw in enumerate(after):
        last = parts[-1] if parts else None
        following = last[1] if isinstance(last, tuple) else len(before)
        free = places.get(raw, [])
        while free and free[-1] in used:
            free.pop()
        if following < len(before) and following not in used and before[following] == raw:
            place = following
        elif free:
            place = free.pop()
        else:
            if isinstance(last, slice):
                parts[-1] = slice(last.start, index + 1)
            else:
                parts.append(slice(index, index + 1))
            continue
        used.add(place)
        reused += len(raw)
        if isinstance(last, tuple) and last[1] == place:
            parts[-1] = (last[0], place + 1)
        else:
            parts.append((place, place + 1))
    return parts if 4 * reused >= sum(len(raw) for raw in after) else None


def shared_length(before: str, after: str) -> int:
    """Return how many characters two texts begin with alike."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def applied(stored: StoredField, before: Any) -> Any:
    """Return the field that is stored as a change of ``before``. Raises ValueError when the two do not fit."""
    if stored.parts is not None and isinstance(before, list):
        items: list[Any] = []
        for part in stored.parts:
            items += part.add if isinstance(part, Added) else before[part[0] : part[1]]
        return items
    if isinstance(stored.add, list) and isinstance(before, list):
        return before[: stored.keep] + stored.add
    if isinstance(stored.add, str) and isinstance(before, str):
        return before[: stored.keep] + stored.add
    if stored.parts is not None or stored.add is not None:
        raise ValueError(f"it changes a {type(before).__name__}, which it does not fit")
    return before
