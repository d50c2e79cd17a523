"""Merging: what a child did since it was forked or last merged, what of it conflicts, and what to write. Pure.

It is a three-way merge of a message's state in the child, in the parent, and in each when the two last agreed. The
shell reads these states for every message that the child changed and the parent has; the plan depends on nothing else.
The state of a message is its body, or None when it was retracted. A tool result that is hidden with its call is hidden
on both sides, so that is never merged by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tape.core import strict
from tape.core.messages.blocks import tool_of
from tape.core.plan.intents import canonical

__all__ = ["POLICIES", "STRATEGIES", "Conflict", "Divergence", "OpenCalls", "Plan", "check", "differs", "plan"]

STRATEGIES = ("replay", "squash", "link")
POLICIES = ("fail", "ours", "theirs")


def check(strategy: str, on_conflict: str) -> None:
    """Refuse an unknown strategy or conflict policy."""
    strict.one_of(strategy, STRATEGIES, "strategy")
    strict.one_of(on_conflict, POLICIES, "on_conflict")


class Conflict(Struct, frozen=True):
    """What both tapes changed: a message by its id, a slot of state by its path, a block by its label.

    None stands for a missing value.
    """

    message_id: str
    ours: dict[str, Any] | None
    theirs: dict[str, Any] | None
    what: str = "message"
    """What it is of: ``message``, ``state`` or ``block``."""

    def __str__(self) -> str:
        return f"{self.what} {self.message_id!r}"


class Divergence(Struct, frozen=True):
    """A message of the parent that the child changed, by its id in the parent."""

    message_id: str
    seq: int
    written: int
    """The child's last entry that names it, and the one with its content; 0 if the child did not write the content."""
    base: dict[str, Any] | None
    theirs: dict[str, Any] | None
    """Its state in the child when the two last agreed, and its state there now."""
    before: dict[str, Any] | None
    ours: dict[str, Any] | None
    """The same in the parent."""
    was_hidden: bool = False
    hidden: bool = False
    """Whether it was, and is, hidden in the parent along with the tool call that it answers."""
    meta: bytes | None = None
    """The meta that the child recorded with the content that it wrote."""


class Plan(Struct, frozen=True):
    """What to write to the parent, in the child's order, and what stays because both changed it."""

    restore: list[Divergence]
    revise: list[Divergence]
    retract: list[Divergence]
    kept: list[str]
    conflicts: list[Conflict]


def plan(divergences: Sequence[Divergence], on_conflict: str) -> Plan:
    """Return what to write for the child's changes of common messages; conflicts are listed only with ``fail``."""
    outcome = Plan([], [], [], [], [])
    for change in sorted(divergences, key=lambda change: (change.seq, change.message_id)):
        if not differs(change):
            continue
        # Retracting a message that the parent hides already is no conflict.
        ours_changed = not _equal(change.before, change.ours) or change.was_hidden != change.hidden
        if ours_changed and not (change.theirs is None and change.hidden):
            if on_conflict == "fail":
                ours = None if change.hidden else change.ours
                outcome.conflicts.append(Conflict(change.message_id, ours, change.theirs))
                continue
            if on_conflict == "ours":
                outcome.kept.append(change.message_id)
                continue
        if change.theirs is None:
            outcome.retract.append(change)
            continue
        if change.ours is None:
            outcome.restore.append(change)
        outcome.revise.append(change)
    # A result can only be revised while its call is visible. In the child's order, it was.
    outcome.revise.sort(key=lambda change: (change.written, change.seq, change.message_id))
    return outcome


def differs(change: Divergence) -> bool:
    """Whether the child changed a message, and the parent does not have the same change."""
    return not _equal(change.base, change.theirs) and not _equal(change.ours, change.theirs)


def _equal(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return canonical(ours) == canonical(theirs)


class OpenCalls:
    """The calls still open at the end of a path, found by reading its messages from the last to the first.

    Only the last round of the path counts: results, and before them the messages that made the calls. There may be many
    such messages, because the Responses API makes an item of each call. A call from an earlier round is not open.
    """

    def __init__(self) -> None:
        self._answered: Counter[str] = Counter()
        self._made = False
        self.open: list[str] = []
        """The open calls of the messages added so far, in their order."""

    def add(self, made: Sequence[str], answers: Sequence[str]) -> bool:
        """Add the next message towards the root: the calls it makes and answers. False when no more are needed."""
        if not made and (self._made or not answers):
            return False
        waiting = []
        for call in made:
            # A result answers the nearest call before it with that id, or without ids of that tool.
            asked = tool_of(call) or call
            if self._answered[asked]:
                self._answered[asked] -= 1
            else:
                waiting.append(call)
        self.open[:0] = waiting
        self._answered.update(tool_of(call) or call for call in answers)
        self._made = self._made or bool(made)
        return not (made and answers)
