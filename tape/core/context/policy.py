"""Policies: what a context leaves out when a budget is to be held. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from tape.core.context.turns import Reading, turn_starts
from tape.core.messages.shapes import is_plain
from tape.core.records import Message
from tape.core.strict import RESERVED
from tape.errors import BudgetExceeded, InvalidEntry, shown

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
    """The standard policy: cut old tool output, drop the oldest whole turns behind a protected head, then the head.

    The last turn is never cut.
    """

    head: int = 3
    """How many messages at the beginning are kept as long as anything else can go."""
    recent: int = 4
    """How many messages at the end keep their tool output whole."""
    tool_chars: int = 500
    """How much of an older tool output is kept."""
    name: str = "standard"
    version: int = 1

    def shape(
        self, items: list[Item], budget: int | None, cost: Callable[[Message], int], gap: int | None = None
    ) -> Shaped:
        """Return what fits.

        With a ``gap``, older messages that would be dropped in any case are missing before that index (see
        ``tape.core.context.window``): all of the items together are over the budget, also if those given are not.
        """
        if budget is None or (gap is None and tokens_of(items) <= budget):
            return Shaped(items, [])
        starts = turn_starts([reading.said for reading in readings_of(items)])
        turns = list(zip(starts, [*starts[1:], len(items)], strict=True))
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
        if total > budget:
            raise BudgetExceeded(budget, total)
        kept = [item for index, item in enumerate(items) if index not in gone]
        return Shaped(kept, _left_out(items, gone, gap, "over budget"))

    def cut(self, item: Item, cost: Callable[[Message], int]) -> Item:
        """Return an item with its tool output cut, or itself when there is none to cut."""
        data = item.read().shortened(self.tool_chars)
        if data is item.message.data:
            return item
        message = msgspec.structs.replace(item.message, data=data)
        return Item(message, cost(message), True, item.body)


STANDARD = Standard()


def check_policy(policy: Any) -> Policy:
    """Return a policy of the caller's if it can be one."""
    name, version = getattr(policy, "name", None), getattr(policy, "version", None)
    if isinstance(policy, type) or not callable(getattr(policy, "shape", None)):
        raise InvalidEntry("policy", f"must be a Policy, with name, version and shape(), not {shown(policy)}")
    if not isinstance(name, str) or type(version) is not int:
        raise InvalidEntry("policy", "must have a name that is a string and a version that is a number")
    if isinstance(policy, Standard) and not all(
        type(value) is int and value >= 0 for value in (policy.head, policy.recent, policy.tool_chars)
    ):
        raise InvalidEntry("policy", "head, recent and tool_chars must be whole numbers of at least 0")
    found: Policy = policy
    return found


def readings_of(items: Sequence[Item]) -> list[Reading]:
    """Return what is known of the messages that these items show now."""
    found = []
    for item in items:
        reading, data = item.reading, item.message.data
        if reading is None or reading.data is not data:
            reading = item.reading = Reading(data, is_plain(data))
        found.append(reading)
    return found


def tokens_of(items: Sequence[Item]) -> int:
    """Return what all of these items cost."""
    return sum(item.tokens for item in items)


def _left_out(items: Sequence[Item], gone: set[int], gap: int | None, why: str) -> list[Excluded]:
    """Return the items at these indexes as ranges: along a branch, each message was placed after the one before."""
    found: list[Excluded] = []
    before = -1
    for index in sorted(gone):
        message = items[index].message
        made, joined = message.id.startswith(RESERVED), False
        if found and before == index - 1 and index != gap and not made:
            last = found[-1]
            joined = last.tape == message.tape and not items[before].message.id.startswith(RESERVED)
            if joined:
                found[-1] = Excluded(last.tape, last.first, message.seq, why)
        if not joined:
            found.append(Excluded(message.tape, message.seq, message.seq, why))
        before = index
    return found
