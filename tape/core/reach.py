"""How far an entry reaches: every place, body and number that its payload names, checked against what a fork inherits.

A store decides these itself when it records; a file from elsewhere may hold anything. What passes here names only the
tape itself and its ancestors, each up to where it was forked off, in numbers that both engines can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from tape.core.payloads import ROOT, Compact, ForkPoint, Loosened, Open, Payload, Place, Reopened, Revise
from tape.core.strict import MAX_INT

__all__ = ["opened", "reaches"]

_AMOUNTS = frozenset({"input_tokens", "output_tokens", "cached_tokens", "cost", "tokens", "max_tokens", "schema"})
"""Counts that stay within the payload and may be of any size."""


def opened(tape: str, opening: Open, place: Place) -> str | None:
    """Return what is wrong with the lineage that a tape was opened with, or None."""
    point = opening.parent
    if point is None:
        return None if place == ROOT else "the head of a new tape is above its first message"
    names = [layer.tape for layer in point.layers]
    if not names or (point.tape, point.seq) != (names[0], point.layers[0].asof):
        return "the fork does not begin where its first ancestor ends"
    if tape in names or len(set(names)) < len(names):
        return "a tape is its own ancestor"
    return None if place == ROOT or place.tape is not None else "the head of a new fork is on an ancestor"


def reaches(seq: int, place: Place, payload: Payload, ancestors: Mapping[str, int]) -> str | None:
    """Return what an entry names beyond its tape and the ancestors up to their seqs, or None."""
    for found in (place, *_named(payload)):
        for number in _numbers(found):
            if not 0 <= number <= MAX_INT:
                return f"{number} is no number of a tape"
        for tape, at in _cited(found):
            if tape is not None and tape not in ancestors:
                return f"the entry names tape {tape!r}, which the tape does not inherit from"
            if at > (seq if tape is None else ancestors[tape]):
                return f"the entry names seq {at}, which the tape does not see"
    return None


def _named(payload: Payload) -> Iterator[Any]:
    """Yield the payload and all structs of it that name a place or a number."""
    yield payload
    for name in payload.__struct_fields__:
        value = getattr(payload, name)
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, Struct):
                yield one
                yield from (part for part in _parts(one) if isinstance(part, Struct))


def _parts(found: Struct) -> Iterator[Any]:
    for name in found.__struct_fields__:
        value = getattr(found, name)
        yield from value if isinstance(value, list) and isinstance(found, ForkPoint) else (value,)


def _numbers(found: Struct) -> Iterator[int]:
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if type(value) is int and name not in _AMOUNTS:
            yield value


def _cited(found: Struct) -> Iterator[tuple[str | None, int]]:
    """Yield the tapes that a struct reaches into, None for its own, and up to which seq."""
    match found:
        case Place():
            yield found.tape, 0
        case Reopened():
            yield found.place.tape, found.placed
            yield found.of, found.body
        case Revise():
            yield found.place.tape, found.placed
            yield found.supersedes_of, found.supersedes
        case Loosened():
            yield found.tape, found.seq
        case Compact() if found.expected_of is not None:
            yield found.expected_of, found.expected or 0
