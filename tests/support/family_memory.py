"""State and blocks in the naive model of a family: values in versions, texts, and what programs declare of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import tape
from support.tree import same

__all__ = [
    "NOTHING",
    "Change",
    "Facts",
    "Look",
    "Text",
    "Value",
    "World",
    "alike",
    "declared_facts",
    "differences",
    "found_at",
    "joined",
    "laid",
    "migrator",
    "over",
    "part",
    "patched",
    "with_part",
    "wrapped",
]


def migrator(version: int) -> Callable[[Any], Any]:
    """Return what turns a value of one version into the next, and shows when it was called twice."""

    def migrate(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, f"v{version}": value.get(f"v{version}", 0) + 1}
        return value * 10 if isinstance(value, int) else value

    return migrate


@dataclass
class World:
    """What the store is opened with: slots with their versions, and blocks. A text takes as many tokens as letters."""

    slots: dict[str, int] = field(default_factory=dict)
    blocks: list[tape.BlockSpec] = field(default_factory=list)

    def spec(self, label: str) -> tape.BlockSpec | None:
        """Return the declaration of a block."""
        return next((one for one in self.blocks if one.label == label), None)

    def lifted(self, slot: str, held: Value | None) -> Value | None:
        """Return a value of a slot as this program reads it, with its version."""
        if held is None or slot not in self.slots:
            return held
        value, version = held[0], held[1] or 1
        for step in range(version, self.slots[slot]):
            value = migrator(step)(value)
        return value, max(version, self.slots[slot])


Value = tuple[Any, int]
"""What a slot holds, and its version; 0 if it was written without one."""


@dataclass(frozen=True)
class Facts:
    """A block without its text."""

    description: str | None = None
    max_tokens: int | None = None
    read_only: bool = False


@dataclass(frozen=True)
class Text:
    """A block as an entry has it; without a text it was removed."""

    text: str | None
    facts: Facts
    declared: bool
    seq: int = 0
    depth: int = 0
    """How far the tape that wrote it is from the root of the family."""


Look = tuple[str, Facts] | None
"""A block as it is shown, or None."""


@dataclass(frozen=True)
class Change:
    """An entry of a tape's own that wrote a slot or a block."""

    seq: int
    name: str
    op: str
    given: Any = None
    text: str | None = None


def joined(text: str, line: str) -> str:
    """Return a block's text with one more line."""
    return text + line if not text or not line or line[0] == "\n" else text + "\n" + line


def patched(value: Any, patch: Any) -> Any:
    """Return a value after a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    kept = {name: item for name, item in value.items() if name not in patch} if isinstance(value, dict) else {}
    old = value if isinstance(value, dict) else {}
    return {**kept, **{name: patched(old.get(name), item) for name, item in patch.items() if item is not None}}


NOTHING = "<nothing>"
"""What a slot without a value, or an object without a member, has there."""


def differences(one: Any, other: Any, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return where two values differ, each with what the other has there."""
    if isinstance(one, dict) and isinstance(other, dict):
        found: dict[tuple[str, ...], Any] = {}
        for name in sorted({*one, *other}):
            found.update(differences(one.get(name, NOTHING), other.get(name, NOTHING), (*at, name)))
        return found
    return {} if same(one, other) else {at: other}


def laid(value: Any, at: tuple[str, ...], new: Any) -> Any:
    """Return a value with something else at a path."""
    if not at:
        return new
    held = dict(value) if isinstance(value, dict) else {}
    held[at[0]] = laid(held.get(at[0], NOTHING), at[1:], new)
    return {name: item for name, item in held.items() if item != NOTHING}


def found_at(value: Any, at: tuple[str, ...]) -> Any:
    """Return what a value has at a path."""
    for name in at:
        value = value[name] if isinstance(value, dict) and name in value else NOTHING
    return value


def over(text: str, facts: Facts) -> bool:
    """Whether a text is longer than its block may be."""
    return facts.max_tokens is not None and len(text) > facts.max_tokens


def declared_facts(spec: tape.BlockSpec) -> Facts:
    """Return the configuration that a block is declared with."""
    return Facts(spec.description, spec.max_tokens, spec.read_only)


def part(look: tuple[str, Facts], name: str) -> Any:
    """Return a block's text or a part of its configuration."""
    return look[0] if name == "text" else getattr(look[1], name)


def with_part(look: tuple[str, Facts], name: str, value: Any) -> tuple[str, Facts]:
    """Return a block with another text or another part of its configuration."""
    return (value, look[1]) if name == "text" else (look[0], replace(look[1], **{name: value}))


def wrapped(value: Any) -> dict[str, Any] | None:
    """Return a value of state as a conflict shows it."""
    return None if value == NOTHING else {"value": value}


def alike(one: Value | None, other: Value | None) -> bool:
    """Whether two values of a slot are the same, in the same version."""
    if one is None or other is None:
        return one is other
    return same(one[0], other[0]) and (one[1] or 1) == (other[1] or 1)
