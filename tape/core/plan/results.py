"""Tool results follow their calls: bound to them when they are appended, hidden and shown along with them."""

from __future__ import annotations

from collections.abc import Sequence

from tape.core.entries.payloads import Answer, Place, Reopened
from tape.core.plan.lookup import Lookup
from tape.core.view.fold import Head

__all__ = ["Changes", "bind", "makes", "settle"]

Changes = dict[Place, tuple[bool, frozenset[str]]]
"""The messages that change: whether each is visible afterwards, and the calls that it makes then."""


def bind(look: Lookup, head: Head, before: Place, answered: Sequence[str]) -> list[Answer]:
    """Return, for each call answered, the nearest message above that makes it."""
    bound = []
    for call in answered:
        above = [
            maker
            for maker in look.makers(call)
            if look.contains(before, maker)
            and (standing := look.standing(maker)).visible(head.cleared)
            and call in look.body(standing.body, standing.of).calls
        ]
        if above:
            bound.append(Answer(call, max(above, key=lambda place: place.ordinal)))
    return bound


def makes(look: Lookup, changed: Changes, answer: Answer, cleared: int) -> bool:
    """Whether the message that a result was bound to is there and makes the call, after the change."""
    if answer.maker in changed:
        live, calls = changed[answer.maker]
        return live and answer.call in calls
    standing = look.standing(answer.maker)
    return standing.visible(cleared) and answer.call in look.body(standing.body, standing.of).calls


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
