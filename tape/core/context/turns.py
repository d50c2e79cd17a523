"""Turns: the stretches of a conversation that are shown or left out as a whole. Pure.

A turn begins with something that a user said. A tool result may come after the next user message; then the turn of the
call, that of the result and all between them are one, so that no call is ever parted from its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from tape.core.messages import shapes

__all__ = ["Said", "said", "turn_starts"]


class Said(Struct, frozen=True):
    """What of a message matters to turns: whether it begins one, the calls it makes, those it answers."""

    begins: bool
    calls: frozenset[str]
    results: frozenset[str]


def said(data: dict[str, Any]) -> Said:
    """Return what of a message matters to turns."""
    neutral = shapes.read(data)
    results = frozenset(result.id for result in neutral.results)
    return Said(neutral.role == "user" and not results, frozenset(call.id for call in neutral.calls), results)


def turn_starts(
    messages: Sequence[Said], *, whole: bool = True, made: Callable[[str], bool] = lambda call: False
) -> list[int]:
    """Return the indexes at which turns begin.

    ``whole`` says that nothing comes before the first message, which then begins a turn whatever it is. Otherwise
    ``made`` tells whether a call is made by a message before it; it is asked only where that decides something.
    """
    starts = [index for index, message in enumerate(messages) if message.begins or (whole and index == 0)]
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
