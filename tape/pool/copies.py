"""Which entries of a database are copies that a move brought, so that a reader of all feeds is given each entry once.

A move writes on the owner's record at its target, before the entries themselves, which seqs of which tapes arrive and
in which database each was first recorded. A reader meets that before it meets the copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from msgspec import Struct

__all__ = ["ARRIVING", "CLOSING", "LEFT", "MOVED", "Copies", "Span", "arriving_spans"]

ARRIVING, CLOSING, LEFT = "pool.arriving", "pool.closing", "pool.left"
"""The events on an owner's record: entries arrive, the last of them do, and all have left."""
MOVED = "pool.moved"
"""The event that ends what a tape records in one database."""


class Span(Struct, frozen=True, array_like=True):
    """The seqs of a tape behind ``after`` and up to ``upto``, which were first recorded in ``origin``."""

    after: int
    upto: int
    origin: str


def arriving_spans(known: Iterable[Span], source: str, after: int, upto: int) -> list[Span]:
    """Return where the seqs behind ``after`` and up to ``upto`` of a tape come from.

    ``known`` are those that the source itself was brought by an earlier move; all others were recorded there.
    """
    spans: list[Span] = []
    place = after
    for span in sorted(known, key=lambda span: span.after):
        first, last = max(span.after, place), min(span.upto, upto)
        if first >= last:
            continue
        if place < first:
            spans.append(Span(place, first, source))
        spans.append(Span(first, last, span.origin))
        place = last
    if place < upto:
        spans.append(Span(place, upto, source))
    return spans


class Copies:
    """What is known of the copies in one database."""

    def __init__(self) -> None:
        self._spans: dict[str, set[Span]] = {}

    def learn(self, data: Any) -> None:
        """Take in what an arriving event says."""
        for tape, spans in data["tapes"].items():
            self._spans.setdefault(tape, set()).update(Span(*span) for span in spans)

    def of(self, tape: str) -> Collection[Span]:
        """Return the copied seqs of a tape."""
        return self._spans.get(tape, ())

    def origin(self, tape: str, seq: int) -> str | None:
        """Return where an entry was first recorded if it is a copy, else None."""
        for span in self._spans.get(tape, ()):
            if span.after < seq <= span.upto:
                return span.origin
        return None
