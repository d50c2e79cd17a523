"""Turns: the ranges of a conversation that are shown or left out as a whole, and the steps of a turn. Pure.

A turn begins with a user message. A tool result may come after the next user message. Then the turn of the call, the
turn of the result and all turns between them count as one, so that no call is ever separated from its result.

A step is one round of an agent: its reasoning, the calls that it makes in parallel, and all of their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from tape.core.context.shorten import shorten
from tape.core.messages import shapes
from tape.core.messages.blocks import tool_of

__all__ = ["Reading", "TurnFacts", "turn_facts", "steps", "turn_starts"]


class TurnFacts(Struct, frozen=True, gc=False):
    """The facts of a message that decide turns: whether it begins one, the calls it makes, the calls it answers."""

    begins: bool
    calls: frozenset[str]
    results: frozenset[str]


_NONE: frozenset[str] = frozenset()
_BEGINS, _GOES_ON = TurnFacts(True, _NONE, _NONE), TurnFacts(False, _NONE, _NONE)


def turn_facts(data: dict[str, Any]) -> TurnFacts:
    """Return the facts of a message that decide turns."""
    return _facts_of(shapes.read(data))


def _facts_of(neutral: shapes.Neutral) -> TurnFacts:
    user = neutral.role == "user"
    for part in neutral.parts:
        if isinstance(part, shapes.BOUND):
            results = frozenset([result.id for result in neutral.results])
            return TurnFacts(user and not results, frozenset([call.id for call in neutral.calls]), results)
    return _BEGINS if user else _GOES_ON


class Reading(Struct, eq=False, gc=False):
    """A message of a context with what is derived from it. Each property is computed once."""

    data: dict[str, Any]
    plain: bool
    """Whether it is only a text. Then its cost does not depend on other messages."""
    alone: int = -1
    """Its cost without any other message; -1 before it was weighed."""
    _neutral: shapes.Neutral | None = None
    _facts: TurnFacts | None = None
    _short: tuple[int, str, dict[str, Any]] | None = None

    @property
    def neutral(self) -> shapes.Neutral:
        """The message in the neutral shape."""
        neutral = self._neutral
        if neutral is None:
            neutral = self._neutral = shapes.read(self.data)
        return neutral

    @property
    def facts(self) -> TurnFacts:
        """The facts that decide turns."""
        known = self._facts
        if known is None:
            if self.plain:
                role = self.data.get("role")
                known = _BEGINS if role == "user" or not isinstance(role, str) else _GOES_ON
            else:
                known = _facts_of(self.neutral)
            self._facts = known
        return known

    @property
    def leads(self) -> bool:
        """Whether the next message belongs to the same step: it makes calls, or is reasoning that must be followed."""
        if self.plain or self.facts.begins or self.facts.results:
            return False
        return bool(self.facts.calls) or any(isinstance(part, shapes.Other) for part in self.neutral.parts)

    def shortened(self, limit: int, where: str = "") -> dict[str, Any]:
        """Return the message with its tool results cut to about ``limit`` characters each, or as it is."""
        if self.plain:
            return self.data
        if self._short is None or self._short[:2] != (limit, where):
            self._short = (limit, where, shorten(self.data, limit, where))
        return self._short[2]


def turn_starts(
    messages: Sequence[TurnFacts], *, whole: bool = True, made: Callable[[str], bool] = lambda call: False
) -> list[int]:
    """Return the indexes at which turns begin.

    ``whole`` says that nothing comes before the first message, which then begins a turn whatever it is. Otherwise
    ``made`` says whether an earlier message makes a call. It is called only where the answer matters.
    """
    starts = [index for index, message in enumerate(messages) if message.begins or (whole and index == 0)]
    if all(message is _BEGINS or message is _GOES_ON for message in messages):
        return starts
    makers: dict[str, int] = {}
    # For every raw turn, the earliest turn with a call that it answers; -1 is a turn before all of these.
    earliest = [turn for turn, _ in enumerate(starts)]
    turn = -1
    for index, message in enumerate(messages):
        if turn + 1 < len(starts) and starts[turn + 1] == index:
            turn += 1
        for call in message.calls:
            makers[call] = turn
        for call in message.results if turn >= 0 else ():
            maker = makers.get(call)
            if maker is None:
                maker = -1 if earliest[turn] < 0 or made(call) else turn
            earliest[turn] = min(earliest[turn], maker)
    merged_starts: list[int] = []
    reach = len(starts)
    for turn in range(len(starts) - 1, -1, -1):
        reach = min(reach, earliest[turn])
        if reach >= turn:
            merged_starts.append(starts[turn])
    return merged_starts[::-1]


def steps(
    messages: Sequence[Reading], *, whole: bool = True, made: Callable[[str], bool] = lambda call: False
) -> list[int]:
    """Return, for each message of a turn, the index of the first message of its step.

    A step has the results of all its calls, also those that come after later steps. Without ``whole`` there are
    messages before these, and ``made`` says whether one of them makes a call. A step that may begin there is -1.
    """
    own: list[int] = []
    for index, message in enumerate(messages):
        if index:
            own.append(own[-1] if messages[index - 1].leads and not message.facts.begins else index)
        else:
            own.append(0 if whole or message.facts.begins else -1)
    joined: dict[int, int] = {}

    def first(step: int) -> int:
        while step in joined:
            step = joined[step]
        return step

    waiting: dict[str, list[int]] = {}
    makers: dict[str, int] = {}
    # Calls without ids: the results of a tool go with the last step that called it.
    nearest: dict[str | None, int] = {}
    for index, message in enumerate(messages):
        for call in message.facts.calls:
            nearest[tool_of(call)] = own[index]
            waiting.setdefault(call, []).append(own[index])
            makers.setdefault(call, own[index])
        for call in message.facts.results:
            tool = tool_of(call)
            if tool is not None and tool in nearest:
                maker = nearest[tool]
            elif waiting.get(call):
                maker = waiting[call].pop()
            else:
                maker = -1 if not whole and made(call) else makers.get(call, own[index])
            earlier, later = sorted((first(own[index]), first(maker)))
            if earlier != later:
                joined[later] = earlier
    return [first(step) for step in own]
