"""Compactions on a path: which of them hold, and what a change of a message does to them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from tape.core.payloads import Loosened, Place

if TYPE_CHECKING:
    from tape.core.plan import Lookup

__all__ = ["Compaction", "in_force", "loosen"]


class Compaction(Struct, frozen=True):
    """A compaction on a path: the tape and seq that made it, the depths of its run, what became of its sources."""

    tape: str | None
    seq: int
    place: Place
    lo: int
    gone: int
    revised: bool
    loose: bool

    def overlaps(self, lo: int, hi: int) -> bool:
        """Whether its run shares a depth with another."""
        return self.lo <= hi and lo <= self.place.ordinal

    def within(self, lo: int, hi: int) -> bool:
        """Whether its run lies inside another."""
        return lo <= self.lo and self.place.ordinal <= hi


def in_force(found: Sequence[Compaction]) -> tuple[list[Compaction], list[Compaction]]:
    """Return which compactions of a path hold, shallowest first, and which do not because a source was retracted.

    Where two overlap, the newer wins; a path is ordered by its tapes, so a fork's own are newer than inherited ones.
    """
    out = [one for one in found if one.gone > 0]
    held: list[Compaction] = []
    for one in sorted(
        (one for one in found if one.gone <= 0), key=lambda one: (one.tape is None, one.seq), reverse=True
    ):
        if not any(other.overlaps(one.lo, one.place.ordinal) for other in held):
            held.append(one)
    return sorted(held, key=lambda one: one.lo), out


def loosen(look: Lookup, outs: Sequence[Place], backs: Sequence[Place], revised: Sequence[Place]) -> list[Loosened]:
    """Return what becomes of the compactions that cover messages which go, come back or change."""
    found: list[Loosened] = []
    for one in look.compactions():
        gone, changed, loose = one.gone, one.revised, one.loose
        covers: set[str] | None = None

        def covered(place: Place, one: Compaction = one) -> bool | None:
            """Whether the summary covers the message there; None when the place is outside its run."""
            nonlocal covers
            if not one.lo <= place.ordinal <= one.place.ordinal or not look.contains(one.place, place):
                return None
            if covers is None:
                covers = set(look.covers(one))
            return look.id_at(place) in covers

        gone += sum(covered(place) is True for place in outs)
        for place in backs:
            inside = covered(place)
            gone -= inside is True
            loose = loose or inside is False
        changed = changed or any(covered(place) is True for place in revised)
        if (gone, changed, loose) != (one.gone, one.revised, one.loose):
            found.append(Loosened(one.seq, gone, changed, loose, one.tape))
    return found
