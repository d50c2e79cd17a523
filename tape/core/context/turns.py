"""Turns: the stretches of a conversation that are shown or left out as a whole, and the steps of a turn. Pure.

A turn begins with something that a user said. A tool result may come after the next user message; then the turn of the
call, that of the result and all between them are one, so that no call is ever parted from its result.

A step is what an agent does at once: its reasoning, the calls that it makes in parallel, and all of their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from tape.core.context.shorten import shorten
from tape.core.messages import shapes

__all__ = ["Reading", "Said", "said", "steps", "turn_starts"]


class Said(Struct, frozen=True, gc=False):
    """What of a message matters to turns: whether it begins one, the calls it makes, those it answers."""

    begins: bool
    calls: frozenset[str]
    results: frozenset[str]


_NONE: frozenset[str] = frozenset()
_BEGINS, _GOES_ON = Said(True, _NONE, _NONE), Said(False, _NONE, _NONE)


def said(data: dict[str, Any]) -> Said:
    """Return what of a message matters to turns."""
    return _said(shapes.read(data))


def _said(neutral: shapes.Neutral) -> Said:
    user = neutral.role == "user"
    for part in neutral.parts:
        if isinstance(part, shapes.BOUND):
            results = frozenset([result.id for result in neutral.results])
            return Said(user and not results, frozenset([call.id for call in neutral.calls]), results)
    return _BEGINS if user else _GOES_ON


class Reading(Struct, eq=False, gc=False):
    """What is known of a message of a context. Each is found out once, for all who ask."""

    data: dict[str, Any]
    plain: bool
    """Whether it is nothing but a text: then nothing else in a context changes what it costs."""
    alone: int = -1
    """What it costs as if no other message were there; -1 when it was not weighed."""
    _neutral: shapes.Neutral | None = None
    _said: Said | None = None
    _short: tuple[int, str, dict[str, Any]] | None = None

    @property
    def neutral(self) -> shapes.Neutral:
        """The message in the neutral shape."""
        found = self._neutral
        if found is None:
            found = self._neutral = shapes.read(self.data)
        return found

    @property
    def said(self) -> Said:
        """What of it matters to turns."""
        found = self._said
        if found is None:
            if self.plain:
                role = self.data.get("role")
                found = _BEGINS if role == "user" or not isinstance(role, str) else _GOES_ON
            else:
                found = _said(self.neutral)
            self._said = found
        return found

    @property
    def leads(self) -> bool:
        """Whether what follows belongs to it: it makes calls, or is a model's reasoning, which APIs want followed."""
        if self.plain or self.said.begins or self.said.results:
            return False
        return bool(self.said.calls) or any(isinstance(part, shapes.Other) for part in self.neutral.parts)

    def shortened(self, limit: int, where: str = "") -> dict[str, Any]:
        """Return the message with its tool results cut to about ``limit`` characters each, or as it is."""
        if self.plain:
            return self.data
        if self._short is None or self._short[:2] != (limit, where):
            self._short = (limit, where, shorten(self.data, limit, where))
        return self._short[2]


def turn_starts(
    messages: Sequence[Said], *, whole: bool = True, made: Callable[[str], bool] = lambda call: False
) -> list[int]:
    """Return the indexes at which turns begin.

    ``whole`` says that nothing comes before the first message, which then begins a turn whatever it is. Otherwise
    ``made`` tells whether a call is made by a message before it; it is asked only where that decides something.
    """
    starts = [index for index, message in enumerate(messages) if message.begins or (whole and index == 0)]
    if all(message is _BEGINS or message is _GOES_ON for message in messages):
        return starts
    makers: dict[str, int] = {}
    # Of every raw turn, the earliest one that makes a call which it answers; -1 is one before all of these.
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
    found: list[int] = []
    reach = len(starts)
    for turn in range(len(starts) - 1, -1, -1):
        reach = min(reach, earliest[turn])
        if reach >= turn:
            found.append(starts[turn])
    return found[::-1]


def steps(
    messages: Sequence[Reading], *, whole: bool = True, made: Callable[[str], bool] = lambda call: False
) -> list[int]:
    """Return of each message of a turn where its step begins: the index of the first message of it.

    A step has the results of all its calls, also those that come after later steps. Without ``whole`` there are
    messages before these, and ``made`` tells whether one of them makes a call. A step that begins there, or may, is -1.
    """
    own: list[int] = []
    for index, message in enumerate(messages):
        if index:
            own.append(own[-1] if messages[index - 1].leads and not message.said.begins else index)
        else:
            own.append(0 if whole or message.said.begins else -1)
    joined: dict[int, int] = {}

    def first(step: int) -> int:
        while step in joined:
            step = joined[step]
        return step

    waiting: dict[str, list[int]] = {}
    makers: dict[str, int] = {}
    for index, message in enumerate(messages):
        for call in message.said.calls:
            waiting.setdefault(call, []).append(own[index])
            makers.setdefault(call, own[index])
        for call in message.said.results:
            if waiting.get(call):
                maker = waiting[call].pop()
            else:
                maker = -1 if not whole and made(call) else makers.get(call, own[index])
            one, other = sorted((first(own[index]), first(maker)))
            if one != other:
                joined[other] = one
    return [first(step) for step in own]
