"""Merging: what a child did since it was forked or last merged, what of it conflicts, and what to write. Pure.

The shell gathers three facts of every message that the child changed and its parent has as well: how it stands in
the child, how it stands in the parent, and whether the parent changed it since the two last agreed. The plan
follows from these alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tape.core.plan import same

__all__ = ["POLICIES", "STRATEGIES", "Conflict", "Divergence", "Plan", "plan"]

STRATEGIES = ("replay", "squash", "link")
POLICIES = ("fail", "ours", "theirs")


class Conflict(Struct, frozen=True):
    """A message that both tapes changed; None stands for a retracted one."""

    message_id: str
    ours: dict[str, Any] | None
    theirs: dict[str, Any] | None


class Divergence(Struct, frozen=True):
    """A message of the parent's that the child changed: the two states, and the child's entry that made its own."""

    message_id: str
    ours: dict[str, Any] | None
    theirs: dict[str, Any] | None
    ours_changed: bool
    seq: int


class Plan(Struct, frozen=True):
    """What to write to the parent, and what stays because both changed it."""

    revise: list[Divergence]
    retract: list[Divergence]
    restore: list[Divergence]
    kept: list[str]
    conflicts: list[Conflict]


def plan(divergences: Sequence[Divergence], on_conflict: str) -> Plan:
    """Return what the child's changes of common messages come to; conflicts are listed only with ``fail``."""
    revise: list[Divergence] = []
    retract: list[Divergence] = []
    restore: list[Divergence] = []
    kept: list[str] = []
    conflicts: list[Conflict] = []
    for one in divergences:
        if _equal(one.ours, one.theirs):
            continue
        if one.ours_changed:
            if on_conflict == "fail":
                conflicts.append(Conflict(one.message_id, one.ours, one.theirs))
                continue
            if on_conflict == "ours":
                kept.append(one.message_id)
                continue
        if one.theirs is None:
            retract.append(one)
            continue
        if one.ours is None:
            restore.append(one)
        revise.append(one)
    return Plan(revise, retract, restore, kept, conflicts)


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
