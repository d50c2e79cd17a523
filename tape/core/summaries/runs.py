"""Compactions on a path: which of them are in force, and how a change of a message affects them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from tape.core.entries.payloads import Loosened, Place, Reopened

if TYPE_CHECKING:
    from tape.core.plan.lookup import Lookup

__all__ = ["Compaction", "Rewritten", "in_force", "loosen", "newest"]


class Compaction(Struct, frozen=True):
    """A compaction on a path: the tape and seq that made it, the depths of its run, the state of its sources."""

    tape: str | None
    seq: int
    place: Place
    lo: int
    gone: int
    """How many reasons keep it from being in force: sources without a live row, sources that make a call whose
    result it does not cover, and live messages that it does not cover and whose call a source answers.

    A clear ends no row, so it does not change this count. Undoing the clear puts the compaction back as it was.
    """
    revised: bool
    loose: bool
    levels_up: int = 0
    """How many forks up the tape is that made it; 0 for the tape itself."""

    @property
    def age(self) -> tuple[int, int]:
        """The sort key by when compactions were made. The seqs of two tapes cannot be compared."""
        return -self.levels_up, self.seq

    def overlaps(self, lo: int, hi: int) -> bool:
        """Whether its run shares a depth with another."""
        return self.lo <= hi and lo <= self.place.ordinal

    def within(self, lo: int, hi: int) -> bool:
        """Whether its run lies inside another."""
        return lo <= self.lo and self.place.ordinal <= hi


class Rewritten(Struct, frozen=True):
    """A message that is revised: the calls it made and makes now, and those of them whose results are not in it."""

    place: Place
    made: Sequence[str]
    makes: list[str]
    awaited: list[str]
    awaits: list[str]


def newest(compactions: Sequence[Compaction]) -> Compaction | None:
    """Return the compaction that was made last: one of the nearest tape."""
    return max(compactions, key=lambda compaction: compaction.age, default=None)


def in_force(compactions: Sequence[Compaction]) -> tuple[list[Compaction], list[Compaction]]:
    """Return the compactions of a path in force, shallowest first, and those out of force by a retracted source.

    Where two overlap, the newer wins; a path is ordered by its tapes, so those of a nearer tape are newer.
    """
    gone = [compaction for compaction in compactions if compaction.gone > 0]
    held: list[Compaction] = []
    for compaction in sorted(compactions, key=lambda compaction: compaction.age, reverse=True):
        lo, hi = compaction.lo, compaction.place.ordinal
        if compaction.gone <= 0 and not any(newer.overlaps(lo, hi) for newer in held):
            held.append(compaction)
    return sorted(held, key=lambda compaction: compaction.lo), gone


def loosen(
    look: Lookup,
    *,
    outs: Sequence[Place] = (),
    backs: Sequence[Reopened] = (),
    revised: Sequence[Rewritten] = (),
    uncleared: bool = False,
) -> list[Loosened]:
    """Return the changes of the compactions that cover messages which are hidden, restored or revised.

    All compactions of the tape count, also those that a clear hides, because undoing it restores them.
    ``uncleared`` says that a clear is undone, which restores messages that the entry does not name.
    """
    compactions = look.compactions()
    if not compactions:
        return []
    loosened: list[Loosened] = []
    callers = _callers(look, outs, backs, revised)
    for compaction in compactions:
        gone, changed, loose = compaction.gone, compaction.revised, compaction.loose
        covers: set[str] | None = None

        def covered(place: Place, compaction: Compaction = compaction) -> bool | None:
            """Whether the summary covers the message there; None when the place is outside its run."""
            nonlocal covers
            end = compaction.place
            if not compaction.lo <= place.ordinal <= end.ordinal or not look.contains(end, place):
                return None
            if covers is None:
                covers = set(look.covers(compaction))
            return look.id_at(place) in covers

        gone += sum(covered(place) is True for place in outs)
        for back in backs:
            inside = covered(back.place)
            # A message that a clear hid has kept its row, and was not counted as gone.
            gone -= inside is True and not back.clear
            loose = loose or inside is False
        for new in revised:
            if covered(new.place):
                changed = True
                gone += _waits(look, covered, new.place, new.awaits) - _waits(look, covered, new.place, new.awaited)
        for caller in callers:
            answered = [call for answer, call in caller.answers if covered(answer)]
            if answered and not covered(caller.place):
                gone += any(call in caller.makes for call in answered)
                gone -= any(call in caller.made for call in answered)
        if uncleared and not loose:
            # A message within the run is not covered, and may be among those that are restored.
            loose = compaction.place.ordinal - compaction.lo + 1 > len(look.covers(compaction))
        if (gone, changed, loose) != (compaction.gone, compaction.revised, compaction.loose):
            loosened.append(Loosened(compaction.seq, gone, changed, loose, compaction.tape))
    return loosened


class _Caller(Struct, frozen=True):
    """A message that changes: the calls it made and makes in the view, and the messages that answer its calls."""

    place: Place
    made: Sequence[str]
    makes: Sequence[str]
    answers: list[tuple[Place, str]]


def _callers(
    look: Lookup, outs: Sequence[Place], backs: Sequence[Reopened], revised: Sequence[Rewritten]
) -> list[_Caller]:
    """Return those of the messages that made or make calls which others answer."""

    def calls(place: Place) -> Sequence[str]:
        standing = look.standing(place)
        return look.body(standing.body, standing.of).calls

    changes: list[tuple[Place, Sequence[str], Sequence[str]]] = [(place, calls(place), ()) for place in outs]
    changes += [(back.place, (), calls(back.place)) for back in backs if not back.clear]
    changes += [(new.place, new.made, new.makes) for new in revised]
    callers = [_Caller(place, made, makes, _answers(look, place)) for place, made, makes in changes if made or makes]
    return [caller for caller in callers if caller.answers]


def _answers(look: Lookup, maker: Place) -> list[tuple[Place, str]]:
    """Return the messages that were bound to calls of another, each with the call."""
    return [
        (place, bound.call)
        for place in look.answers(maker)
        for bound in look.bindings(place, look.standing(place).placed)
        if bound.maker == maker
    ]


def _waits(look: Lookup, covered: Callable[[Place], bool | None], place: Place, calls: Sequence[str]) -> bool:
    """Whether one of the calls made at a place has no result among the covered messages, so that it comes after."""
    if not calls:
        return False
    settled = {call for answer, call in _answers(look, place) if covered(answer)}
    return any(call not in settled for call in calls)
