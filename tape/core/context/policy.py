"""Policies: what a context leaves out when a budget is to be held. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from tape.core.context.turns import Reading, steps, turn_starts
from tape.core.messages.shapes import is_plain
from tape.core.records import Message
from tape.core.strict import RESERVED
from tape.errors import BudgetExceeded, InvalidEntry
from tape.errors.base import shown

__all__ = ["STANDARD", "Excluded", "Item", "Policy", "Shaped", "Standard", "check_policy"]
__all__ += ["readings_of", "tokens_of"]


class Item(Struct, gc=False):
    """One message of a context under construction: what is shown, its tokens, whether it is as it was recorded."""

    message: Message
    tokens: int
    altered: bool = False
    body: str = ""
    """The tape that the body lies in."""
    reading: Reading | None = None
    """What is known of the message, if it was asked for before."""
    why: str = ""
    """Why it is not as it was recorded."""

    @property
    def entry(self) -> tuple[str, int]:
        """The tape and the seq of the entry that holds its content."""
        return self.body or self.message.tape, self.message.revision

    def read(self) -> Reading:
        """Return what is known of the message that is shown now."""
        return readings_of([self])[0]


class Excluded(Struct, frozen=True, omit_defaults=True):
    """What is not shown, and why: of this branch, all that the entries from ``first`` to ``last`` of a tape placed.

    Entries between the two that have no part in the branch (events, other branches, what was retracted) are not meant,
    nor is anything that the manifest names as included.
    """

    tape: str
    first: int
    last: int
    why: str


class Shaped(Struct):
    """What a policy shows of the items, and what it leaves out."""

    items: list[Item]
    excluded: list[Excluded]


class Policy(Protocol):
    """Decides what is left out or shortened when a budget is to be held; replace it to decide otherwise."""

    @property
    def name(self) -> str:
        """The policy's name, part of every manifest."""

    @property
    def version(self) -> int:
        """To be raised whenever the policy comes to decide otherwise."""

    def shape(self, items: list[Item], budget: int | None, cost: Callable[[Message], int]) -> Shaped:
        """Return what is shown within ``budget`` tokens; raises BudgetExceeded when nothing can be."""


class Standard(Struct, frozen=True):
    """The standard policy: cut old tool output, drop the oldest turns behind a protected head, the head, then steps.

    The last turn is cut only when it does not fit by itself: its tool outputs, the oldest first, and then its older
    steps, each with all of its calls and results. What the user asked for in it and its last step always stay.
    """

    head: int = 3
    """How many messages at the beginning are kept as long as anything else can go."""
    recent: int = 4
    """How many messages at the end keep their tool output whole."""
    tool_chars: int = 500
    """How much of an older tool output is kept."""
    name: str = "standard"
    version: int = 3

    def shape(
        self,
        items: list[Item],
        budget: int | None,
        cost: Callable[[Message], int],
        gap: int | None = None,
        one_turn: bool = False,
    ) -> Shaped:
        """Return what fits.

        With a ``gap``, older messages that would be dropped in any case are missing before that index (see
        ``tape.core.context.window``): all of the items together are over the budget, also if those given are not.
        ``one_turn`` says that all of them are of the last turn, which does not fit by itself.
        """
        if budget is None or (gap is None and tokens_of(items) <= budget):
            return Shaped(items, [])
        starts = [0] if one_turn else turn_starts([reading.facts for reading in readings_of(items)])
        turns = list(zip(starts, [*starts[1:], len(items)], strict=True))
        last = turns[-1][0] if turns else 0
        if tokens_of(items[last:]) > budget:
            shown, gone = _LastTurn(self, items[last:], budget, cost).fitted()
            items, gone = [*items[:last], *shown], {*range(last), *(last + index for index in gone)}
        else:
            items, gone = self._without_turns(items, turns, budget, cost, gap)
        remaining = [item for index, item in enumerate(items) if index not in gone]
        return Shaped(remaining, _left_out(items, gone, gap, "over budget"))

    def _without_turns(
        self,
        items: list[Item],
        turns: list[tuple[int, int]],
        budget: int,
        cost: Callable[[Message], int],
        gap: int | None,
    ) -> tuple[list[Item], set[int]]:
        """Return the items with old tool output cut, and the indexes of the turns that have to go."""
        last = turns[-1][0] if turns else 0
        untouched = min(last, max(len(items) - self.recent, gap or 0))
        items = [self.cut(item, cost) if index < untouched else item for index, item in enumerate(items)]
        # Whole turns go, so that no tool call is parted from its result: first those behind the head, then the head.
        guarded = [turn for turn in turns[:-1] if turn[0] < self.head]
        open_turns = [turn for turn in turns[:-1] if turn[0] >= self.head]
        total = tokens_of(items)
        gone: set[int] = set()
        for turn in [*open_turns, *guarded]:
            if total <= budget:
                break
            for index in range(*turn):
                total -= items[index].tokens
                gone.add(index)
        return items, gone

    def cut(self, item: Item, cost: Callable[[Message], int]) -> Item:
        """Return an item with its tool output cut, or itself when there is none to cut."""
        return _altered(item, item.read().shortened(self.tool_chars), cost, "old tool output is cut")

    def shortest(self, item: Item, cost: Callable[[Message], int], limit: int = 0) -> Item:
        """Return an item of the last turn with its tool outputs cut to a limit, or to marks that say where they are."""
        if item.read().plain or not item.read().facts.results:
            return item
        tape, seq = item.entry
        short = _altered(
            item, item.read().shortened(limit, f"{tape}:{seq}"), cost, "the last turn's tool output is cut"
        )
        return short if short.tokens < item.tokens else item


class _LastTurn:
    """The messages of a turn that does not fit the budget by itself."""

    def __init__(self, policy: Standard, items: Sequence[Item], budget: int, cost: Callable[[Message], int]) -> None:
        self.policy = policy
        self.items = items
        self.budget = budget
        self.cost = cost
        self.shown = list(items)
        self.total = tokens_of(items)
        readings = readings_of(items)
        self.step = steps(readings)
        begins = [index for index, reading in enumerate(readings) if reading.facts.begins]
        self.request = begins[-1] if begins else None
        """The index of what the turn answers: what a user said last, or a summary."""
        self.last = [index for index, step in enumerate(self.step) if step == self.step[-1]]

    def fitted(self) -> tuple[list[Item], set[int]]:
        """Return the items that are shown, and the indexes of those that have to go; raises BudgetExceeded."""
        self._cut_older()
        for limit in self._limits():
            if self.total > self.budget:
                self._cut(self.last, limit)
        gone = self._drop_older()
        if self.total > self.budget:
            self._cut(self.last, 0)
        if self.total > self.budget and self._answers_a_summary():
            self._drop(self.request or 0, gone)
        if self.total > self.budget:
            raise BudgetExceeded(self.budget, self.total)
        return self.shown, gone

    def _answers_a_summary(self) -> bool:
        """Whether what the turn answers may be dropped: a summary of what was before, never what a user said."""
        request = self.request
        return request is not None and self.items[request].message.id.startswith(RESERVED) and request not in self.last

    def _limits(self) -> list[int]:
        """Return how many characters are left of an output that must be cut, in the order in which they are tried."""
        limits = [max(self.policy.tool_chars, 100)]
        while limits[-1] < 4 * self.budget:
            limits.append(limits[-1] * 2)
        return limits[::-1]

    def _cut_older(self) -> None:
        """Cut the outputs of all steps but the last to marks, the oldest first; of the newest one keep what fits."""
        for index, item in enumerate(self.items):
            if self.total <= self.budget:
                return
            if self.step[index] != self.step[-1]:
                self._cut([index], 0)
                if self.total <= self.budget and self.shown[index] is not item:
                    room = self.budget - self.total + self.shown[index].tokens
                    for limit in self._limits():
                        longer = self.policy.shortest(item, self.cost, limit)
                        if longer.tokens <= room:
                            self._show(index, longer)
                            break

    def _cut(self, indexes: Sequence[int], limit: int) -> None:
        for index in indexes:
            self._show(index, self.policy.shortest(self.items[index], self.cost, limit))

    def _show(self, index: int, item: Item) -> None:
        self.total += item.tokens - self.shown[index].tokens
        self.shown[index] = item

    def _drop_older(self) -> set[int]:
        """Drop steps, the oldest first, but neither the last nor what the turn answers."""
        gone: set[int] = set()
        guarded = {self.step[-1], self.step[self.request] if self.request is not None else self.step[-1]}
        members: dict[int, list[int]] = {}
        for index, step in enumerate(self.step):
            members.setdefault(step, []).append(index)
        for step in sorted(members.keys() - guarded):
            if self.total <= self.budget:
                break
            for index in members[step]:
                self._drop(index, gone)
        return gone

    def _drop(self, index: int, gone: set[int]) -> None:
        self.total -= self.shown[index].tokens
        gone.add(index)


def _altered(item: Item, data: dict[str, Any], cost: Callable[[Message], int], why: str) -> Item:
    if data is item.message.data:
        return item
    message = msgspec.structs.replace(item.message, data=data)
    return Item(message, cost(message), True, item.body, None, why)


STANDARD = Standard()


def check_policy(policy: Any) -> Policy:
    """Return a policy of the caller's if it can be one."""
    name, version = getattr(policy, "name", None), getattr(policy, "version", None)
    if isinstance(policy, type) or not callable(getattr(policy, "shape", None)):
        raise InvalidEntry("policy", f"must be a Policy (with name, version and shape()), not {shown(policy)}")
    if not isinstance(name, str) or type(version) is not int:
        raise InvalidEntry("policy", "name must be a string and version an integer")
    if isinstance(policy, Standard) and not all(
        type(value) is int and value >= 0 for value in (policy.head, policy.recent, policy.tool_chars)
    ):
        raise InvalidEntry("policy", "head, recent and tool_chars must be integers of at least 0")
    checked: Policy = policy
    return checked


def readings_of(items: Sequence[Item]) -> list[Reading]:
    """Return what is known of the messages that these items show now."""
    readings = []
    for item in items:
        reading, data = item.reading, item.message.data
        if reading is None or reading.data is not data:
            reading = item.reading = Reading(data, is_plain(data))
        readings.append(reading)
    return readings


def tokens_of(items: Sequence[Item]) -> int:
    """Return what all of these items cost."""
    return sum([item.tokens for item in items])


def _left_out(items: Sequence[Item], gone: set[int], gap: int | None, why: str) -> list[Excluded]:
    """Return the items at these indexes as ranges: along a branch, each message was placed after the one before."""
    ranges: list[Excluded] = []
    before = -1
    for index in sorted(gone):
        message = items[index].message
        generated, joined = message.id.startswith(RESERVED), False
        if ranges and before == index - 1 and index != gap and not generated:
            last = ranges[-1]
            joined = last.tape == message.tape and not items[before].message.id.startswith(RESERVED)
            if joined:
                ranges[-1] = Excluded(last.tape, last.first, message.seq, why)
        if not joined:
            ranges.append(Excluded(message.tape, message.seq, message.seq, why))
        before = index
    return ranges
