"""Merging: what a child did since it was forked or last merged, what of it conflicts, and what to write. Pure.

It is a merge of three: how a message stands in the child, how it stands in the parent, and how it stood in each when
the two last agreed. The shell gathers these of every message that the child changed and its parent has as well; the
plan follows from them alone. A message stands with a body, or as None when it was retracted; that a tool result is
hidden with its call follows from the call on both sides, and is never carried over by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tape.core import strict
from tape.core.plan import same

__all__ = ["POLICIES", "STRATEGIES", "Conflict", "Divergence", "Plan", "check", "differs", "plan", "unsettled"]

STRATEGIES = ("replay", "squash", "link")
POLICIES = ("fail", "ours", "theirs")


def check(strategy: str, on_conflict: str) -> None:
    """Refuse what is no way to merge."""
    strict.one_of(strategy, STRATEGIES, "strategy")
    strict.one_of(on_conflict, POLICIES, "on_conflict")


class Conflict(Struct, frozen=True):
    """A message that both tapes changed; None stands for one that is not in the view."""

    message_id: str
    ours: dict[str, Any] | None
    theirs: dict[str, Any] | None


class Divergence(Struct, frozen=True):
    """A message of the parent's that the child changed, by the parent's name for it."""

    message_id: str
    seq: int
    written: int
    """The child's last entry that names it, and the one that wrote what it says; 0 if that was no entry of its own."""
    base: dict[str, Any] | None
    theirs: dict[str, Any] | None
    """How it stood in the child when the two last agreed, and how it stands there now."""
    before: dict[str, Any] | None
    ours: dict[str, Any] | None
    """The same in the parent."""
    was_hidden: bool = False
    hidden: bool = False
    """Whether it was, and is, hidden in the parent along with the tool call that it answers."""


class Plan(Struct, frozen=True):
    """What to write to the parent, in the child's order, and what stays because both changed it."""

    restore: list[Divergence]
    revise: list[Divergence]
    retract: list[Divergence]
    kept: list[str]
    conflicts: list[Conflict]


def plan(divergences: Sequence[Divergence], on_conflict: str) -> Plan:
    """Return what the child's changes of common messages come to; conflicts are listed only with ``fail``."""
    found = Plan([], [], [], [], [])
    for one in sorted(divergences, key=lambda one: (one.seq, one.message_id)):
        if not differs(one):
            continue
        # A retraction of what the parent hides already takes nothing away from it.
        ours_changed = not _equal(one.before, one.ours) or one.was_hidden != one.hidden
        if ours_changed and not (one.theirs is None and one.hidden):
            if on_conflict == "fail":
                found.conflicts.append(Conflict(one.message_id, None if one.hidden else one.ours, one.theirs))
                continue
            if on_conflict == "ours":
                found.kept.append(one.message_id)
                continue
        if one.theirs is None:
            found.retract.append(one)
            continue
        if one.ours is None:
            found.restore.append(one)
        found.revise.append(one)
    # A result can only be revised while its call is made: in the child's order, that was so.
    found.revise.sort(key=lambda one: (one.written, one.seq, one.message_id))
    return found


def differs(one: Divergence) -> bool:
    """Whether the child changed a message, all in all, into something else than the parent has."""
    return not _equal(one.base, one.theirs) and not _equal(one.ours, one.theirs)


def _equal(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return same(ours, theirs)


def unsettled(exchanges: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[str]:
    """Return the calls still open at the end of a path, given (calls made, calls answered) of its last messages."""
    answered: set[str] = set()
    for made, answers in reversed(exchanges):
        if made:
            return [call for call in made if call not in answered]
        if not answers:
            break
        answered.update(answers)
    return []
