"""What a program declares when it opens a store: slots, blocks, a clock, a token counter. Checked once, at open.

A declaration that is wrong would otherwise be noticed by the first write that meets it, or by no write at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tape.core import strict, typed
from tape.core.memory.loading import Provider
from tape.core.memory.state import BlockSpec, Slot, provider_of, whole_number
from tape.core.messages.tokens import Counter
from tape.core.records import LAST_STAMP
from tape.errors import InvalidEntry
from tape.errors.base import shown

__all__ = ["checked_clock", "counting", "declared_blocks", "declared_slots"]


def declared_slots(slots: Any) -> dict[str, Slot]:
    """Return the declared slots by name."""
    by_name: dict[str, Slot] = {}
    for slot in strict.listed(slots, "slots"):
        if not isinstance(slot, Slot):
            raise InvalidEntry("slots", f"every item must be a Slot, not {shown(slot)}")
        strict.identifier(slot.name, "slots.name")
        if type(slot.version) is not int or not 0 < slot.version <= strict.MAX_INT:
            raise InvalidEntry("slots.version", f"must be a positive integer, not {shown(slot.version)}")
        if not isinstance(slot.migrate, Mapping) or not all(
            type(version) is int and callable(step) for version, step in slot.migrate.items()
        ):
            raise InvalidEntry("slots.migrate", "must map each version (an integer) to a function")
        if slot.type is not None:
            try:
                typed.decoder(slot.type)
            except Exception as error:
                raise InvalidEntry("slots.type", f"{shown(slot.type)} cannot be used as a type: {error}") from error
        by_name[slot.name] = slot
    return by_name


def declared_blocks(blocks: Any) -> list[BlockSpec]:
    """Return the declared blocks in their order."""
    specs: list[BlockSpec] = strict.listed(blocks, "blocks")
    for block in specs:
        if not isinstance(block, BlockSpec):
            raise InvalidEntry("blocks", f"every item must be a BlockSpec, not {shown(block)}")
        strict.identifier(block.label, "blocks.label")
        if block.description is not None:
            strict.text(block.description, "blocks.description", empty=True)
        if block.max_tokens is not None:
            whole_number(block.max_tokens, "blocks.max_tokens")
        strict.flag(block.read_only, "blocks.read_only")
        strict.text(block.default, "blocks.default", empty=True)
        if block.provider is not None and not isinstance(block.provider, Provider):
            raise InvalidEntry("blocks.provider", f"must have list() and load(key), not {shown(block.provider)}")
        for call in ("list", "load", "search"):
            if inspect.iscoroutinefunction(getattr(block.provider, call, None)):
                raise InvalidEntry("blocks.provider", f"{call}() must be a plain function, not async")
    _check_apart(specs)
    return specs


def _check_apart(blocks: list[BlockSpec]) -> None:
    """Refuse labels of which one could be that of another's document."""
    for block in blocks:
        other = provider_of(block.label, [candidate for candidate in blocks if candidate is not block])
        if other is not None:
            raise InvalidEntry(
                "blocks.label",
                f"{block.label!r} clashes with the documents of block {other.label!r}; rename one of the blocks",
            )


def counting(counter: Any) -> Counter | None:
    """Return a counter of the caller's that is held to its promise: a number of at least 0 for every text."""
    strict.callback(counter, "counter")
    if counter is None:
        return None

    def count(text: str) -> int:
        return whole_number(counter(text), "counter")

    return count


def checked_clock(clock: Any) -> Callable[[], int]:
    """Return a clock that raises InvalidEntry for a time after the year 9999, which could not be read back."""
    if not callable(clock):
        raise InvalidEntry("clock", f"must be a function, not {shown(clock)}")

    def now() -> int:
        stamp = clock()
        if type(stamp) is not int or not -strict.MAX_INT <= stamp <= LAST_STAMP:
            raise InvalidEntry("clock", f"must return microseconds since 1970 up to the year 9999, not {shown(stamp)}")
        return stamp

    return now
