"""A branch read from both of its ends, as far as a budget needs it: the rows behind ``tape.core.context.window``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from tape.core.context.fenced import summary_message
from tape.core.context.policy import Excluded, Item
from tape.core.context.weigh import Scale
from tape.core.context.window import FIRST_STRETCH, Spot, Unbounded
from tape.core.entries.payloads import ROOT, Place
from tape.core.summaries.compaction import Summary
from tape.core.summaries.runs import Compaction
from tape.db.sql.rows.view import PathRow, Span
from tape.db.view import paths
from tape.db.view.calls import call_key
from tape.db.view.tape_view import TapeView
from tape.db.view.values import messages_from_rows

__all__ = ["PathWindow", "Run", "branch_range", "plain_items"]

_SPAN = 1_024
"""Over how much depth rows are looked for at first; more where hardly any message is left."""
_LONGEST_SPAN = 2**40
_MANY_TAPES = 16
_MOST_LANES = 4_096
"""Over how much depth several lanes are read at once."""


class Run(Struct, frozen=True):
    """A compaction in force with its summary."""

    of: Compaction
    summary: Summary

    @property
    def lo(self) -> int:
        """The depth at which it begins."""
        return self.of.lo

    @property
    def hi(self) -> int:
        """The depth at which it ends."""
        return self.of.place.ordinal


class Lanes:
    """The lanes that a path crosses, found only as far as they are asked for: a path may cross thousands."""

    def __init__(self, view: TapeView, end: Place, start: int, floor: int) -> None:
        self._view = view
        self._floor = floor
        self._known = [(end, start)]
        """From the end towards the root: each the last place on it and its start."""
        self._stretch = _SPAN
        self._trunk: tuple[Place, int] | None = None
        self._sought = False

    def at(self, depth: int) -> tuple[Place, int]:
        """Return the lane in which a depth lies, as far as it is known: its last place on the path, and its start."""
        if depth <= self._known[-1][1]:
            trunk = self._root_lane()
            if trunk is not None and depth <= trunk[0].ordinal:
                return trunk
        while depth <= self._known[-1][1]:
            last, lo = self._known[-1]
            base = paths.base(self._view, last)
            floor = max(self._floor, lo - self._stretch)
            self._known += paths.walk(self._view, base, floor)
            self._stretch *= 4
        low, high = 0, len(self._known) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if depth <= self._known[middle][1] else (low, middle)
        return self._known[low]

    def _root_lane(self) -> tuple[Place, int] | None:
        """Return the part of a first lane that every path has: there must be only one, and no branch before its end."""
        if not self._sought:
            self._sought = True
            tapes, ask = self._view.tapes(), self._view.sql.first_branches
            if len(tapes) > _MANY_TAPES:
                return None
            roots = [
                (number, row.lane)
                for number, asof in tapes
                for row in self._view.tx.all(ask, (number, 0, ROOT.lane, asof))
            ]
            if len(roots) == 1:
                root, lane = roots[0]
                branches = [
                    row.base_ordinal
                    for number, asof in tapes
                    for row in self._view.tx.all(ask, (number, 0 if number == root else root, lane, asof))
                ]
                if branches:
                    self._trunk = (self._view.place_at(lane, min(branches), root), 0)
        return self._trunk


class PathWindow:
    """The messages of a path below a depth, with summaries in the place of what they cover, read from both ends."""

    def __init__(self, view: TapeView, end: Place, floor: int, runs: Sequence[Run], scale: Scale) -> None:
        self._view = view
        self._scale = scale
        self._end = end
        self._floor = max(floor, paths.floor_of(view, end)) if end != ROOT else 0
        self._lanes = Lanes(view, end, paths.start(view, end), self._floor)
        self._runs = list(runs)
        self._ahead, self._behind = 0, len(self._runs)
        """The runs that were read from neither end."""
        self._low, self._high = self._floor, end.ordinal
        """The depths between which nothing was read yet."""
        self._span = _SPAN
        self._watched: set[int] = set()
        """The depths of messages whose answers are all recorded."""

    def whole(self) -> bool:
        """Whether there is nothing left between what was read from either end."""
        return self._low >= self._high

    def newest(self, count: int) -> list[Spot]:
        """Return about so many messages before those read from the end, oldest first; none only when it is whole."""
        while not self.whole():
            run = self._runs[self._behind - 1] if self._behind > self._ahead else None
            bottom = self._low if run is None else max(run.hi, self._low)
            if self._high > bottom:
                rows, self._high, above = self._last_rows(bottom, count)
                if rows:
                    return self._spots(rows, above)
            elif run is not None:
                self._behind -= 1
                self._high = run.lo - 1
                return self._run_spots(run)
        return []

    def oldest(self, count: int) -> list[Spot]:
        """Return about so many messages after those read from the beginning; none only when it is whole."""
        while not self.whole():
            run = self._runs[self._ahead] if self._ahead < self._behind else None
            top = self._high if run is None else min(run.lo - 1, self._high)
            if self._low < top:
                rows, self._low = self._first_rows(top, count)
                if rows:
                    return self._spots(rows)
            elif run is not None:
                self._ahead += 1
                self._low = run.hi
                return self._run_spots(run)
        return []

    def _last_rows(self, bottom: int, count: int) -> tuple[Sequence[PathRow], int, PathRow | None]:
        """Return the last rows between ``bottom`` and what was read from the end, and the depth down to which.

        The row above them comes along where one more could be read with them.
        """
        high, above = self._high, None
        last, lo = self._lanes.at(high)
        place = Place(last.lane, high, last.tape)
        if lo <= max(bottom, high - count):
            floor = max(lo, bottom, high - self._span)
            # One more, from above the stretch if there is something of the lane: that tells the parent of the first.
            rows = paths.rows(self._view, place, floor - (floor > lo), count + 1, last=True)[::-1]
            if len(rows) > count:
                above, rows = rows[0], rows[1:]
                floor = rows[0].ordinal - 1
            elif rows and rows[0].ordinal == floor:
                above, rows = rows[0], rows[1:]
        else:
            # Of short lanes several are read in one statement.
            floor = max(bottom, high - min(max(count, self._span // 16), _MOST_LANES))
            rows = paths.path(self._view, place, floor)
        self._widen(found=bool(rows))
        return rows, floor, above

    def _first_rows(self, top: int, count: int) -> tuple[Sequence[PathRow], int]:
        """Return the first rows between what was read from the beginning and ``top``, and the depth up to which."""
        last, lo = self._lanes.at(self._low + 1)
        end = min(last.ordinal, top, self._low + self._span)
        place = Place(last.lane, end, last.tape)
        rows = paths.rows(self._view, place, max(lo, self._low), count)
        self._widen(found=bool(rows))
        return rows, rows[-1].ordinal if len(rows) == count else end

    def _widen(self, *, found: bool) -> None:
        self._span = _SPAN if found else min(self._span * 4, _LONGEST_SPAN)

    def _spots(self, rows: Sequence[PathRow], above: PathRow | None = None) -> list[Spot]:
        items = plain_items(self._view, rows, above)
        self._scale.price(items)
        return [Spot(item, row.ordinal) for item, row in zip(items, rows, strict=True)]

    def _run_spots(self, run: Run) -> list[Spot]:
        """Return a summary, and behind it what has come back into its run."""
        item = Item(summary_message(run.summary, run.summary.stamp), 0, False, run.summary.tape)
        self._scale.price([item])
        spots = [Spot(item, run.lo)]
        if run.of.loose:
            covers = set(run.summary.covers)
            rows = paths.path(self._view, run.of.place, run.lo - 1)
            spots += [spot for spot in self._spots(rows) if spot.item.message.id not in covers]
        return spots

    # -- what lies beyond

    def made(self, call: str) -> bool:
        """Whether a message before those read from the end makes a call."""
        if not call:
            # Nothing is recorded of calls without an id.
            raise Unbounded
        seen: set[Place] = set()
        for place, _ in self._view.makers(call):
            if place.ordinal <= self._high and place not in seen:
                seen.add(place)
                maker = self._shown(place)
                if maker is not None and call in maker.facts.calls:
                    return True
        return False

    def answers(self, makers: Sequence[Spot], below: int) -> list[Spot]:
        """Return the messages deeper than ``below`` that are recorded as answers to calls of these.

        Raises Unbounded when there may be answers that were not recorded as such.
        """
        for maker in makers:
            if maker.depth not in self._watched:
                self._watch(maker)
                self._watched.add(maker.depth)
        depths, places = {maker.depth for maker in makers}, dict[Place, None]()
        depth, deepest = min(depths) - 1, max(depths)
        while depth < deepest:
            last, _ = self._lanes.at(depth + 1)
            params = (
                self._view.whole_lineage(),
                self._view.number_of(last.tape),
                last.lane,
                depth,
                min(last.ordinal, deepest),
                below,
            )
            for lane, ordinal, tape, maker in self._view.tx.all(self._view.sql.answers_between, params):
                if maker in depths:
                    places[self._view.place_at(lane, ordinal, tape)] = None
            depth = last.ordinal
        return [spot for spot in map(self._shown, places) if spot is not None]

    def request(self) -> Spot | None:
        """Return the last message before those read from the end with which a user began something, or None.

        What is recorded as a result, or as a call that has one, is no such message and is not read.
        """
        depth = self._high
        while depth > self._low:
            run = next((run for run in self._runs[self._ahead : self._behind][::-1] if run.lo <= depth), None)
            if run is not None and depth <= run.hi:
                spots, depth = self._run_spots(run), run.lo - 1
            else:
                last, lo = self._lanes.at(depth)
                floor = max(lo, self._low if run is None else max(run.hi, self._low), depth - _SPAN)
                spots, depth = self._unbound(Place(last.lane, depth, last.tape), floor), floor
            begun = [spot for spot in spots if spot.facts.begins]
            if begun:
                self._scale.price([begun[-1].item])
                return begun[-1]
        return None

    def _unbound(self, end: Place, floor: int) -> list[Spot]:
        """Return the last messages in a stretch of a lane that may have begun something, or none if there are none."""
        view, number = self._view, self._view.number_of(end.tape)
        params = (view.whole_lineage(), number, end.lane, floor, end.ordinal, floor)
        bound: set[int] = set()
        for lane, ordinal, tape, maker in view.tx.all(view.sql.answers_between, params):
            bound |= {maker, ordinal} if (lane, tape) == (end.lane, number) else {maker}
        high = end.ordinal
        while high > floor:
            if high in bound:
                high -= 1
                continue
            low = high - 1
            while low > floor and low not in bound and high - low < FIRST_STRETCH:
                low -= 1
            rows = paths.rows(view, Place(end.lane, high, end.tape), low)
            spots = [Spot(item, row.ordinal) for item, row in zip(plain_items(view, rows), rows, strict=True)]
            if any(spot.facts.begins for spot in spots):
                return spots
            high = low
        return []

    def _watch(self, maker: Spot) -> None:
        """Make sure that every answer to a message's calls was bound to it when it was appended.

        That needs the call to be in the view. So no message may have been appended while it was not: before a revision
        made the call, between a retraction and the restore, or under a clear that was undone.
        """
        view, sql, message = self._view, self._view.sql, maker.item.message
        place = self._lanes.at(maker.depth)[0]
        number, at = self._view.number_of(place.tape), (place.lane, maker.depth)
        blind: list[tuple[int, int, int]] = []
        for tape, asof in self._view.tapes():
            own = tape == number
            clears = view.tx.all(sql.undone_clears, (tape, message.seq if own else 0, asof))
            blind += [(tape, first, last) for first, last in clears]
            if own:
                held = list(view.tx.all(sql.held_between, (number, *at, asof)))
                now = view.tx.one(sql.held, (number, *at))
                if now is not None and now.since <= asof:
                    held.append(Span(now.since, asof + 1))
                blind += [(number, end, start) for (_, end), (start, _) in pairwise(held)]
                if len(held) > 1:
                    for call in maker.facts.calls:
                        first = view.tx.value(sql.first_made, (number, call_key(call), *at))
                        blind.append((number, message.seq, asof + 1 if first is None else first))
                break
        if (
            place.tape is not None
            and view.tx.one(sql.last_override, (self._view.whole_lineage(), number, *at)) is not None
        ):
            raise Unbounded
        for tape, after, before in blind:
            if view.tx.one(sql.appended_between, (tape, after, before)) is not None:
                raise Unbounded

    def _shown(self, place: Place) -> Spot | None:
        """Return the message at a place if the window shows it."""
        if not self._floor < place.ordinal <= self._end.ordinal:
            return None
        last, _ = self._lanes.at(place.ordinal)
        if last.lane != place.lane or last.tape != place.tape:
            return None
        rows = paths.rows(self._view, place, place.ordinal - 1)
        spots = self._spots(rows)
        for run in self._runs:
            if spots and run.lo <= place.ordinal <= run.hi:
                return spots[0] if run.of.loose and spots[0].item.message.id not in run.summary.covers else None
        return spots[0] if spots else None

    # -- what is out

    def summarised(self, run: Run) -> list[Excluded]:
        """Return what a summary stands for."""
        return branch_range(self._view, *self._covered(run), f"summarised by seq {run.summary.seq}")

    def _covered(self, run: Run) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the entries that placed the first and the last message of a run."""
        first, last = (self._lanes.at(depth)[0].tape or self._view.tape for depth in (run.lo, run.hi))
        return (first, run.summary.span[0]), (last, run.summary.span[1])

    def _placed(self, spot: Spot) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the first and the last entry that placed what a message of the window shows."""
        message = spot.item.message
        for run in self._runs:
            if (run.summary.tape, run.summary.seq) == (message.tape, message.seq):
                return self._covered(run)
        return (message.tape, message.seq), (message.tape, message.seq)

    def between(self, before: Spot | None, first: Spot | None, after: Spot, why: str) -> list[Excluded]:
        """Return what lies between two messages of the window, or from the ``first`` of all up to one."""
        start, end = None, self._placed(after)[0]
        if before is not None:
            tape, seq = self._placed(before)[1]
            start = (tape, seq + 1)
        elif first is not None:
            start = self._placed(first)[0]
        return branch_range(self._view, start or (end[0], 1), (end[0], end[1] - 1), why)


def branch_range(view: TapeView, first: tuple[str, int], last: tuple[str, int], why: str) -> list[Excluded]:
    """Return what a branch has from one entry to another: on a fork, a range on every tape of its family between."""
    tapes = [(view.name_of(number), asof) for number, asof in reversed(view.tapes())]
    names = [name for name, _ in tapes]
    ranges = []
    for index in range(names.index(first[0]), names.index(last[0]) + 1):
        name, asof = tapes[index]
        start = first[1] if name == first[0] else 1
        end = last[1] if name == last[0] else asof
        if start <= end:
            ranges.append(Excluded(name, start, end, why))
    return ranges


def plain_items(view: TapeView, rows: Sequence[PathRow], above: PathRow | None = None) -> list[Item]:
    """Return rows of a path as items of a context; ``above`` is the row before them, if that was read, too."""
    messages = messages_from_rows(view, rows, above=above)
    if view.ancestry is None:
        return [Item(message, message.tokens, False, message.tape) for message in messages]
    items = []
    for row, message in zip(rows, messages, strict=True):
        body = view.name_of(row.body_tape) if row.body_tape else message.tape
        items.append(Item(message, message.tokens, False, body))
    return items
