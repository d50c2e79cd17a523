"""Tool results follow their calls: bound to them when they are appended, hidden and shown along with them."""

from __future__ import annotations

from collections.abc import Sequence

from tape.core.entries.payloads import Answer, Place, Reopened
from tape.core.messages.blocks import tool_of
from tape.core.plan.lookup import Lookup
from tape.core.view.fold import Head

__all__ = ["Changes", "bind", "makes", "settle"]

Changes = dict[Place, tuple[bool, frozenset[str]]]
"""The messages that change: whether each is visible afterwards, and the calls that it makes then."""


def bind(look: Lookup, head: Head, before: Place, answered: Sequence[str]) -> list[Answer]:
    """Return, for each call answered, the nearest message above that makes it."""
    bound: list[Answer] = []
    for call in answered:
        nearest: Place | None = None
        for place, seq in look.makers(call):
            if not look.contains(before, place):
                continue
            standing = look.standing(place)
            if standing.visible(head.cleared) and call in look.body(standing.body, standing.of).calls:
                nearest = place if nearest is None or place.ordinal > nearest.ordinal else nearest
                if seq == standing.placed:
                    # Whatever is below it on this path was placed later, and is known by now.
                    break
        if nearest is not None:
            answer = Answer(_open_call(look, head, before, Answer(call, nearest), bound), nearest)
            bound += [answer] if answer not in bound else []
    return bound


def _open_call(look: Lookup, head: Head, before: Place, named: Answer, bound: Sequence[Answer]) -> str:
    """Return the call that a result answers: without an id, the next of its tool that no result has answered."""
    call, maker = named.call, named.maker
    tool = tool_of(call)
    if tool is None:
        return call
    answers = list(bound)
    for place in look.answers(maker):
        standing = look.standing(place)
        if standing.visible(head.cleared) and look.contains(before, place):
            answers += look.bindings(place, standing.placed)
    answered = {answer.call for answer in answers if answer.maker == maker}
    standing = look.standing(maker)
    made = look.body(standing.body, standing.of).calls
    waiting = [other for other in made if other not in answered and tool_of(other) == tool]
    return call if call in waiting or not waiting else waiting[0]


def makes(look: Lookup, changed: Changes, answer: Answer, cleared: int) -> bool:
    """Whether the message that a result was bound to is there and makes the call, after the change."""
    standing = look.standing(answer.maker)
    if answer.maker in changed:
        live, calls = changed[answer.maker]
    else:
        live, calls = standing.visible(cleared), frozenset(look.body(standing.body, standing.of).calls)
    if not live or answer.call not in calls:
        return False
    tool = tool_of(answer.call)
    if tool is None:
        return True
    # Without ids a call is known by its number alone: with more or fewer calls of the tool it may be another one.
    first = look.body(standing.placed, answer.maker.tape).calls
    return sum(tool_of(call) == tool for call in first) == sum(tool_of(call) == tool for call in calls)


def settle(look: Lookup, changed: Changes, cleared: int) -> tuple[list[Place], list[Reopened]]:
    """Return the results that go and those that return when the named messages change, transitively."""
    hides: list[Place] = []
    shows: list[Reopened] = []
    queue = list(changed)
    while queue:
        for place in look.answers(queue.pop()):
            if place in changed:
                continue
            standing = look.standing(place)
            if standing.out(cleared):
                continue
            called = any(makes(look, changed, answer, cleared) for answer in look.bindings(place, standing.placed))
            if called == standing.visible(cleared):
                continue
            if called:
                shows.append(Reopened(place, standing.placed, standing.body, 0, standing.of))
            else:
                hides.append(place)
            changed[place] = (called, frozenset(look.body(standing.body, standing.of).calls if called else ()))
            queue.append(place)
    return hides, shows
