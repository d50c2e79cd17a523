"""How much of a branch must be read for a budget: its end, its protected head, and nothing between them. Pure.

The standard policy keeps the last turns that fit and a few messages at the beginning. So a branch is read from its end
until what was read is more than the budget, plus the turns of its first messages. Everything between them would be
dropped, whatever it is. So the policy gets the whole branch without those turns, and its result is the same.

A last turn that is larger than the budget is read from its end until its steps do not fit at their shortest. Then only
the user's request is read of it, however far back that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from tape.core.context.policy import Item, Standard, readings_of
from tape.core.context.turns import TurnFacts, steps, turn_starts
from tape.core.records import Message

__all__ = ["Reached", "Spot", "Unbounded", "Window", "reach"]

FIRST_STRETCH = 64
"""How many messages are read from the end before anything is known of their size."""
LONGEST_STRETCH = 4_096
HEAD_STRETCH = 8


class Spot(Struct, gc=False):
    """A message of the window with its depth, and its costs once they are computed."""

    item: Item
    depth: int
    cut: int | None = None
    """What it costs when its tool output is cut."""
    shortest: int | None = None
    """What it costs as part of a last turn that must be cut."""

    @property
    def facts(self) -> TurnFacts:
        """The facts that decide turns; not computed when everything fits."""
        return self.item.read().facts


class Unbounded(Exception):
    """The part between both ends cannot be skipped: its content must be read."""


class Window(Protocol):
    """The messages of a branch after its anchor, read from both ends; every message comes once."""

    def whole(self) -> bool:
        """Whether there is nothing left between what was read from either end."""

    def newest(self, count: int) -> list[Spot]:
        """Return about so many messages before those read from the end, oldest first; none only when it is whole."""

    def oldest(self, count: int) -> list[Spot]:
        """Return about so many messages after those read from the beginning; none only when it is whole."""

    def made(self, call: str) -> bool:
        """Whether a message before those read from the end makes a call."""

    def answers(self, makers: Sequence[Spot], below: int) -> list[Spot]:
        """Return the messages deeper than ``below`` that are recorded as answers to calls of these.

        Raises Unbounded when there may be answers that were not recorded as such.
        """

    def request(self) -> Spot | None:
        """Return the last message before those read from the end that begins a turn, or None."""


class Reached(Struct):
    """What the policy gets: messages from both ends, and how many of them are from the beginning."""

    spots: list[Spot]
    gap: int | None
    """Where messages are missing; None when nothing is."""
    first: Spot | None = None
    """The first message of the window, if it is not among them."""
    one_turn: bool = False
    """Whether all of them are of the last turn, which does not fit by itself."""
    request: bool = False
    """Whether the first of them is the request of the turn, with turns left out before it and steps after it."""
    dropped: Sequence[Spot] = ()
    """Messages between them that were read and are left out."""


def reach(window: Window, policy: Standard, budget: int, cost: Callable[[Message], int]) -> Reached:
    """Read as much as the policy needs to decide."""
    reading = _Reading(window, policy, budget, cost)
    count = max(FIRST_STRETCH, policy.recent)
    while not window.whole():
        reading.tail[:0] = window.newest(count)
        if not window.whole():
            reached = reading.decided()
            if reached is not None:
                return reached
            count = reading.next_stretch(count)
    return Reached([*reading.head, *reading.tail], None)


class _Reading:
    """What was read so far from either end."""

    def __init__(self, window: Window, policy: Standard, budget: int, cost: Callable[[Message], int]) -> None:
        self.window = window
        self.policy = policy
        self.budget = budget
        self.cost = cost
        self.head: list[Spot] = []
        self.tail: list[Spot] = []

    def next_stretch(self, before: int) -> int:
        """Return how many messages to read next: about as many as are missing, by what those before them cost."""
        used = _tokens(self.tail)
        if used > self.budget:
            used = sum(map(self._cut, self.tail))
        if used > self.budget:
            used = sum(map(self._shortest, self.tail))
        missing = (self.budget - used) * len(self.tail) // max(used, 1)
        return min(max(missing * 5 // 4, before // 2, FIRST_STRETCH // 2, 1), LONGEST_STRETCH)

    def decided(self) -> Reached | None:
        """Return what the policy needs, or None when more must be read from the end."""
        tail, budget, recent = self.tail, self.budget, self.policy.recent
        uncut = _tokens(tail)
        if self.window.whole() or len(tail) < recent or uncut <= budget:
            # Everything may fit, or older messages may be among those that are never cut.
            return None
        starts = turn_starts(_facts_of(tail), whole=False, made=self.window.made)
        last = tail[starts[-1] :] if starts else tail
        final = _tokens(last)
        if final > budget:
            return self._last_turn(starts)
        if not starts:
            return None
        guarded = self._guarded(budget - final)
        if guarded is None:
            return None
        head, fits = guarded
        if not fits:
            return Reached(last, 0, self.head[0])
        if not self.head:
            # The policy protects no messages at the beginning, but the manifest needs the first one that is left out.
            self.head += self.window.oldest(1)
            if self.window.whole():
                return None
        first = None if head else self.head[0]
        head_tokens = sum(map(self._cut, head))
        if head_tokens + final > budget:
            return Reached([*head, *last], len(head), first)
        zone = min(starts[-1], len(tail) - recent)
        used = head_tokens + sum(map(self._cut, tail[:zone])) + _tokens(tail[zone:])
        if used > budget:
            # The turn that was partly read does not fit, so nothing before it does.
            return Reached([*head, *tail[starts[0] :]], len(head), first)
        return None

    def _last_turn(self, starts: Sequence[int]) -> Reached | None:
        """Return what the policy needs of a last turn that does not fit by itself: all of it, or its last steps."""
        if starts:
            self.head += self.window.oldest(1)
            return None if self.window.whole() else Reached(self.tail[starts[-1] :], 0, self.head[0], True)
        tail = self.tail
        if sum(map(self._shortest, tail)) <= self.budget:
            return None
        step = steps(readings_of([spot.item for spot in tail]), whole=False, made=self.window.made)
        # Steps that begin before what was read are the oldest, so they are dropped first.
        complete = [spot for spot, first in zip(tail, step, strict=True) if first >= 0]
        if step[-1] < 0 or sum(map(self._shortest, complete)) <= self.budget:
            return None
        request = None if any(spot.facts.begins for spot in tail) else self.window.request()
        self.head += self.window.oldest(1)
        if self.window.whole():
            return None
        reached = Reached(complete, 0, self.head[0], True)
        reached.dropped = [
            spot for spot, first in zip(tail, step, strict=True) if first < 0 and spot.depth > complete[0].depth
        ]
        if request is not None:
            reached.spots, reached.gap, reached.request = [request, *complete], 1, True
            reached.first = self.head[0] if self.head[0].depth < request.depth else None
        return reached

    def _guarded(self, room: int) -> tuple[list[Spot], bool] | None:
        """Return the turns of the first messages, and whether the last of them may fit into the remaining budget.

        When it cannot, it is not read further, because everything but the last turn is dropped. None when both ends
        met, so that the whole window was read.
        """
        needed = self.policy.head
        while needed > 0:
            if len(self.head) >= needed:
                starts = turn_starts(_facts_of(self.head))
                for start in starts:
                    if start >= needed and not self._answered_after(start):
                        return self.head[:start], True
                begin = max(start for start in starts if start < needed)
                if sum(map(self._cut, self.head[begin:])) > room:
                    return [], False
            more = self.window.oldest(max(HEAD_STRETCH, needed - len(self.head), len(self.head) // 2))
            self.head += more
            if self.window.whole():
                return None
        return [], True

    def _answered_after(self, start: int) -> bool:
        """Whether a call made before this message of the head is answered by it or after it."""
        makers = [spot for spot in self.head[:start] if spot.facts.calls]
        if not makers:
            return False
        calls = frozenset().union(*(spot.facts.calls for spot in makers))
        if "" in calls:
            # Nothing is recorded of calls without an id.
            raise Unbounded
        later = self.window.answers(makers, self.head[start].depth - 1)
        return any(spot.facts.results & calls for spot in later)

    def _cut(self, spot: Spot) -> int:
        if spot.cut is None:
            spot.cut = self.policy.cut(spot.item, self.cost).tokens
        return spot.cut

    def _shortest(self, spot: Spot) -> int:
        if spot.shortest is None:
            spot.shortest = self.policy.shortest(spot.item, self.cost).tokens
        return spot.shortest


def _facts_of(spots: Sequence[Spot]) -> list[TurnFacts]:
    return [reading.facts for reading in readings_of([spot.item for spot in spots])]


def _tokens(spots: Sequence[Spot]) -> int:
    return sum(spot.item.tokens for spot in spots)
