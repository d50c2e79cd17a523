"""Drawing a family of tapes as ``git log --graph`` draws branches. Pure: from entries to lines of text.

Every tape is a lane. The newest entry is on top. A fork's lane joins its parent's where it was forked off, and a merge
opens the lane of the merged fork. The order follows the seqs and citations of entries, never a clock. A lane is drawn
as far as possible before the one to its left continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from tape.core.records import Entry

__all__ = ["Forked", "Merged", "draw"]


class Forked(Struct, frozen=True):
    """Where a fork's lane ends: at the entry of its parent with this seq."""

    child: str
    parent: str
    seq: int


class Merged(Struct, frozen=True):
    """Where a fork's lane begins: the parent's entry that merged the fork up to one of the fork's seqs."""

    parent: str
    seq: int
    child: str
    upto: int


class _Lanes:
    """The columns that are being drawn, from left to right, and the entries still to come in each."""

    def __init__(
        self, entries: Mapping[str, Iterable[Entry]], forked: Sequence[Forked], merged: Sequence[Merged]
    ) -> None:
        self._rest = {tape: iter(listed) for tape, listed in entries.items()}
        self.next: dict[str, Entry] = {}
        for tape in entries:
            self._advance(tape)
        self.forks: dict[str, Forked] = {}
        for fork in forked:
            above: str | None = fork.parent
            while above is not None and above != fork.child:
                above = self.forks[above].parent if above in self.forks else None
            if above is None:
                # Only damage can make a tape its own ancestor. Then it is drawn without ancestors.
                self.forks[fork.child] = fork
        self.merges = list(merged)
        self.columns: list[str] = []
        self.begun: set[str] = set()
        self.ended: set[str] = set()
        """Forks whose first entry is drawn, and whose lane continues down to where they join their parent."""

    def _advance(self, tape: str) -> None:
        entry = next(self._rest[tape], None)
        if entry is None:
            self.next.pop(tape, None)
        else:
            self.next[tape] = entry

    def blocker(self, tape: str) -> str | None:
        """Return a tape that must be drawn first: one that was forked off the next entry here, or that merges it."""
        seq = self.next[tape].seq
        for merge in self.merges:
            above, below = self.next.get(merge.parent), self.next.get(merge.child)
            if merge.child == tape and seq <= merge.upto and above is not None and above.seq >= merge.seq:
                return merge.parent
            if (merge.parent, merge.seq) == (tape, seq) and below is not None and below.seq > merge.upto:
                # Entries of the fork after the merge are drawn above it, or they would look merged as well.
                return merge.child
        forks = (fork for fork in self.forks.values() if fork.parent == tape and seq <= fork.seq)
        return next((fork.child for fork in forks if fork.child in self.next), None)

    def choose(self) -> str:
        """Return the tape whose entry comes next: the rightmost lane that is not blocked, or a new one."""
        for tape in reversed(self.columns):
            if tape in self.next and self.blocker(tape) is None:
                return tape
        tape, seen = next(iter(self.next)), set[str]()
        # Merges that cite each other in a circle, as only damage can make them, are drawn all the same.
        while (first := self.blocker(tape)) is not None and first not in seen:
            seen.add(tape)
            tape = first
        return tape

    def take(self, tape: str) -> Entry:
        """Return a tape's next entry and advance past it."""
        entry = self.next[tape]
        self._advance(tape)
        return entry

    def joins(self, child: str, tape: str, seq: int) -> bool:
        """Whether a fork's lane ends at this entry."""
        fork = self.forks[child]
        return fork.parent == tape and fork.seq >= seq

    def mark(self, tape: str) -> str:
        """Return how a lane is drawn beside others."""
        return "|" if tape in self.begun else " "


def draw(
    entries: Mapping[str, Iterable[Entry]], forked: Sequence[Forked] = (), merged: Sequence[Merged] = ()
) -> Iterator[tuple[str, Entry | None]]:
    """Yield lines: the drawing, and the entry on that line, if there is one.

    ``entries`` has those of each tape newest first; the first tape is the leftmost lane, parents come before forks.
    """
    lanes = _Lanes(entries, forked, merged)
    while lanes.next:
        tape = lanes.choose()
        yield from _begin(lanes, tape)
        entry = lanes.take(tape)
        yield from _join(lanes, tape, entry.seq)
        lanes.begun.add(tape)
        yield _row("*" if lane == tape else lanes.mark(lane) for lane in lanes.columns), entry
        yield from _merge(lanes, tape, entry.seq)
        yield from _end(lanes, tape)


def _begin(lanes: _Lanes, tape: str) -> Iterator[tuple[str, None]]:
    """Give a tape a lane: right of its parent's, or that of a fork which ends here and had none to its left.

    A parent that is drawn further down gets its lane now, empty so far, to be left of its fork's when they join.
    """
    if tape in lanes.columns:
        return
    seq = lanes.next[tape].seq
    yield from _begin_above(lanes, tape)
    ending = [lane for lane in lanes.columns if lane in lanes.ended and lanes.joins(lane, tape, seq)]
    if ending:
        lanes.columns[lanes.columns.index(ending[0])] = tape
        lanes.ended.remove(ending[0])
        lanes.begun.add(tape)
        return
    above = lanes.forks.get(tape)
    while above is not None and above.parent not in lanes.columns:
        above = lanes.forks.get(above.parent) if above.parent in lanes.next else None
    place = len(lanes.columns) if above is None else lanes.columns.index(above.parent) + 1
    yield from _shift(lanes, place)
    lanes.columns.insert(place, tape)


def _begin_above(lanes: _Lanes, tape: str) -> Iterator[tuple[str, None]]:
    """Give a lane to every ancestor that has entries above the point where the line from this tape will reach it."""
    line = []
    fork = lanes.forks.get(tape)
    while fork is not None and fork.parent in lanes.next:
        line.append(fork)
        fork = lanes.forks.get(fork.parent)
    for fork in reversed(line):
        if lanes.next[fork.parent].seq > fork.seq and fork.parent not in lanes.columns:
            yield from _begin(lanes, fork.parent)


def _shift(lanes: _Lanes, place: int) -> Iterator[tuple[str, None]]:
    """Move the lanes from a place on to the right."""
    if place < len(lanes.columns):
        left = [lanes.mark(lane) for lane in lanes.columns[:place]]
        right = ["\\" if lane in lanes.begun else " " for lane in lanes.columns[place:]]
        yield _row([*left, *right], offset=place), None


def _join(lanes: _Lanes, tape: str, seq: int) -> Iterator[tuple[str, None]]:
    """Draw the lanes of forks that were made here into this one."""
    ending = [lane for lane in lanes.ended if lanes.joins(lane, tape, seq)]
    for child in sorted(ending, key=lanes.columns.index, reverse=True):
        into, place = lanes.columns.index(tape), lanes.columns.index(child)
        marks = [lanes.mark(lane) for lane in lanes.columns]
        drawn = list("".join(f"{mark} " for mark in marks[:place]))
        for gap in range(2 * into + 1, 2 * place - 1, 2):
            drawn[gap] = "_"
        drawn[2 * place - 1] = "/"
        drawn += ["/" if mark == "|" and not odd else " " for mark in marks[place + 1 :] for odd in (1, 0)]
        yield "".join(drawn).rstrip(), None
        lanes.columns.remove(child)
        lanes.ended.remove(child)


def _merge(lanes: _Lanes, tape: str, seq: int) -> Iterator[tuple[str, None]]:
    """Draw a line from a merge to each fork that it merged."""
    for merge in lanes.merges:
        child_entry = lanes.next.get(merge.child)
        if (merge.parent, merge.seq) != (tape, seq) or child_entry is None:
            continue
        place = lanes.columns.index(tape)
        if merge.child not in lanes.columns:
            left = [lanes.mark(lane) for lane in lanes.columns[: place + 1]]
            right = ["\\" if lane in lanes.begun else " " for lane in lanes.columns[place + 1 :]]
            yield _row([*left, "\\", *right], offset=place + 1, drawn=True), None
            lanes.columns.insert(place + 1, merge.child)
            lanes.begun.add(merge.child)
            continue
        fork_column = lanes.columns.index(merge.child)
        drawn = list("".join(f"{lanes.mark(lane)} " for lane in lanes.columns))
        for gap in range(2 * place + 1, 2 * fork_column - 1, 2):
            drawn[gap] = "_"
        drawn[2 * fork_column - 1] = "\\"
        yield "".join(drawn).rstrip(), None


def _end(lanes: _Lanes, tape: str) -> Iterator[tuple[str, None]]:
    """Close the lane of a tape without further entries, unless it still has to join its parent's."""
    if tape in lanes.next:
        return
    fork = lanes.forks.get(tape)
    if fork is not None and fork.parent in lanes.next:
        lanes.ended.add(tape)
        return
    place = lanes.columns.index(tape)
    lanes.columns.pop(place)
    if place < len(lanes.columns):
        left = "".join(f"{lanes.mark(lane)} " for lane in lanes.columns[:place])
        yield (left + "".join(" /" if lane in lanes.begun else "  " for lane in lanes.columns[place:])).rstrip(), None


def _row(marks: Iterable[str], offset: int | None = None, drawn: bool = False) -> str:
    """Return marks as a line. From ``offset`` on they are drawn between two columns, moving to the right."""
    listed = list(marks)
    if offset is None:
        return " ".join(listed).rstrip()
    left, right = listed[:offset], listed[offset:]
    return (" ".join(left) + ("" if drawn else "  ") + " ".join(right)).rstrip()
