"""Deltas: a request stored as what it adds to an earlier one. Pure.

A conversation is sent again with every call. Of a field that extends the field of an earlier call only the added part
is stored, with the seq of that call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SHORTEST", "applied", "delta_of_list", "delta_of_text"]

SHORTEST = 256
"""Bytes of JSON below which a field is stored as it is."""


def delta_of_list(seq: int, before: Sequence[bytes], after: Sequence[bytes]) -> dict[str, Any] | None:
    """Return a list as parts of that of the call ``seq``, each a [start, stop], and of what is added, each a slice.

    Both are lists of encoded elements. None when most of it would have to be added.
    """
    places: dict[bytes, int] = {}
    for index, raw in enumerate(before):
        places.setdefault(raw, index)
    parts: list[list[int] | slice] = []
    reused = 0
    for index, raw in enumerate(after):
        last = parts[-1] if parts else None
        following = last[1] if isinstance(last, list) else None
        if following is not None and following < len(before) and before[following] == raw:
            place: int | None = following
        else:
            place = places.get(raw)
        if place is None:
            if isinstance(last, slice):
                parts[-1] = slice(last.start, index + 1)
            else:
                parts.append(slice(index, index + 1))
            continue
        reused += len(raw)
        if isinstance(last, list) and last[1] == place:
            last[1] += 1
        else:
            parts.append([place, place + 1])
    return {"of": seq, "parts": parts} if 4 * reused >= sum(len(raw) for raw in after) else None


def delta_of_text(seq: int, before: str, after: str) -> dict[str, Any] | None:
    """Return how a text extends one of the call ``seq``; None when they have too little in common."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return {"of": seq, "keep": low, "add": after[low:]} if low >= SHORTEST else None


def applied(delta: Mapping[str, Any], before: Any) -> Any:
    """Return the field that a delta stands for, from the field of the earlier call."""
    if "parts" in delta:
        items: list[Any] = []
        for part in delta["parts"]:
            items += part["add"] if isinstance(part, dict) else before[part[0] : part[1]]
        return items
    if "keep" not in delta:
        return before
    return before[: delta["keep"]] + delta["add"]
