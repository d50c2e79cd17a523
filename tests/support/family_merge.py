"""What a merge does to state and blocks in the naive model of a family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from support.family_memory import (
    NOTHING,
    Facts,
    Look,
    Text,
    Value,
    alike,
    differences,
    found_at,
    joined,
    laid,
    over,
    part,
    with_part,
    wrapped,
)
from support.tree import same

if TYPE_CHECKING:
    from support.family import Kin

__all__ = ["Carry"]


class Carry:
    """What a merge does to the slots and blocks of a parent: worked out first, and written when nothing conflicts."""

    def __init__(self, parent: Kin, child: Kin, policy: str) -> None:
        self.parent, self.child, self.policy = parent, child, policy
        self.world = parent.world
        self.then, self.child_then = parent.past[child.met], child.past[max(child.merged, 1)]
        self.conflicts: list[tuple[str, Any, Any]] = []
        self.kept: list[str] = []
        self.writes: list[Callable[[], Any]] = []

    def take(self, name: str) -> None:
        """Decide on one slot or block."""
        kind, _, label = name.partition(":")
        if kind == "state":
            self._state(label)
        else:
            self._block(label)

    # -- state

    def _state(self, slot: str) -> None:
        base, theirs, was, ours = (
            self.world.lifted(slot, tree.slots.get(slot))
            for tree in (self.child_then, self.child.tree, self.then, self.parent.tree)
        )
        held = [one for one in (base, theirs, was, ours) if one is not None]
        if len({version or 1 for _, version in held}) > 1:
            self._whole(slot, base, theirs, was, ours)
            return
        gone = (NOTHING, 0)
        now = (ours or gone)[0]
        mine = differences((was or gone)[0], now)
        value, failed = now, False
        for at, new in differences((base or gone)[0], (theirs or gone)[0]).items():
            meets = [one for one in mine if one[: len(at)] == at or at[: len(one)] == one]
            name = ".".join((slot, *at))
            if any(one != at or not same(mine[one], new) for one in meets) and self.policy != "theirs":
                failed = failed or self.policy == "fail"
                if self.policy == "ours":
                    self.kept.append(name)
                else:
                    self.conflicts.append((name, wrapped(found_at(now, at)), wrapped(new)))
            else:
                value = laid(value, at, new)
        if not failed and not same(value, now):
            version = max((version for _, version in held), default=0)
            self._write(slot, None if value == NOTHING else (value, version))

    def _whole(
        self, slot: str, base: Value | None, theirs: Value | None, was: Value | None, ours: Value | None
    ) -> None:
        if alike(base, theirs) or alike(theirs, ours):
            return
        if alike(was, ours) or self.policy == "theirs":
            self._write(slot, theirs)
        elif self.policy == "ours":
            self.kept.append(slot)
        else:
            self.conflicts.append((slot, wrapped((ours or (NOTHING, 0))[0]), wrapped((theirs or (NOTHING, 0))[0])))

    def _write(self, slot: str, held: Value | None) -> None:
        self.writes.append(lambda: self.parent._put(slot, held))

    # -- blocks

    def _lines(self, kin: Kin, label: str, since: int, text: str | None) -> list[str] | None:
        """Return the lines that a tape appended to a block, or None when it did more to its text."""
        lines = []
        for one in kin.changes:
            if one.name == f"block:{label}" and one.seq > since:
                if one.op == "append":
                    lines.append(one.given)
                elif one.text != text:
                    return None
                text = one.text
        return lines

    def _block(self, label: str) -> None:
        world, spec = self.world, self.world.spec(label)
        base, theirs, was, ours = (
            tree.look(label, world) for tree in (self.child_then, self.child.tree, self.then, self.parent.tree)
        )
        recorded, held = theirs, self.child.tree.blocks[label]
        if label not in self.child_then.blocks and not held.declared and spec is not None and theirs is not None:
            facts = theirs[1]
            theirs = (
                theirs[0],
                Facts(
                    spec.description if facts.description is None else facts.description,
                    spec.max_tokens if facts.max_tokens is None else facts.max_tokens,
                    facts.read_only or spec.read_only,
                ),
            )
        if theirs in (base, ours):
            return
        lines = self._lines(self.child, label, self.child.merged, None if base is None else base[0])
        own_lines = self._lines(self.parent, label, self.child.met, None if was is None else was[0])
        merged = theirs
        if ours is None or theirs is None:
            removed = ours != was or (ours is None and base is not None)
            if removed and self._against(label, ours, theirs, ["text"]):
                return
        elif not (ours == was == base):
            empty = ("", Facts())
            clashing, merged = [], ours
            for name in ("text", "description", "max_tokens", "read_only"):
                was_there, new, before, mine = (part(one or empty, name) for one in (base, theirs, was, ours))
                if new in (was_there, mine):
                    continue
                if name == "text" and lines is not None and (before == mine or own_lines is not None):
                    text = ours[0]
                    for line in lines:
                        text = joined(text, line)
                    merged = (text, merged[1])
                elif before == mine:
                    merged = with_part(merged, name, new)
                else:
                    clashing.append(name)
            if clashing:
                if self.policy == "fail":
                    self._against(label, ours, theirs, clashing)
                    return
                if self.policy == "ours":
                    self.kept.append(label)
                for name in clashing:
                    merged = with_part(merged, name, part(ours if self.policy == "ours" else theirs, name))
        if merged is not None and over(*merged):
            changed = ours is None or (ours[0], ours[1].max_tokens) != (merged[0], merged[1].max_tokens)
            if changed and self.policy == "theirs":
                merged = recorded
            elif changed:
                if label in self.kept:
                    self.kept.remove(label)
                names = ["text"]
                if ours is not None and recorded is not None and ours[1].max_tokens != recorded[1].max_tokens:
                    names.append("max_tokens")
                self._against(label, ours, recorded, names)
                return
        if merged != ours:
            self._write_block(label, ours, merged, lines or [])

    def _against(self, label: str, ours: Look, theirs: Look, names: list[str]) -> bool:
        """Note a conflict, or that the parent's block stays; False when the fork's is to be taken."""
        if self.policy == "fail":
            mine, other = (None if one is None else {name: part(one, name) for name in names} for one in (ours, theirs))
            self.conflicts.append((label, mine, other))
        elif self.policy == "ours":
            self.kept.append(label)
        return self.policy != "theirs"

    def _write_block(self, label: str, ours: Look, merged: Look, lines: list[str]) -> None:
        held = self.parent.tree.blocks.get(label)
        declared = (
            self.world.spec(label) is not None
            or (held is not None and held.declared)
            or self.child.tree.blocks[label].declared
        )

        def write(op: str, given: str | None, text: str | None, facts: Facts) -> None:
            self.writes.append(lambda: self.parent._block(label, op, given, Text(text, facts, declared)))

        if merged is None:
            assert ours is not None
            write("remove", None, None, ours[1])
            return
        text = "" if ours is None else ours[0]
        for line in lines:
            text = joined(text, line)
        if not lines or text != merged[0] or (ours is None and merged[1] != Facts()):
            write("set", merged[0], merged[0], merged[1])
            return
        if ours is not None and ours[1] != merged[1]:
            write("set", ours[0], ours[0], merged[1])
        text = "" if ours is None else ours[0]
        for line in lines:
            text = joined(text, line)
            write("append", line, text, merged[1])
