"""What a view remembers besides messages, as callers ask for it: blocks, the prompt, state, usage, summaries."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from tape.core.entries import payloads
from tape.core.entries.payloads import Payload
from tape.core.memory.state import (
    Block,
    BlockSpec,
    Slot,
    Usage,
    assemble,
    config_hash,
    current,
    render_prompt,
    usage_of,
)
from tape.core.messages.tokens import Counter, estimate
from tape.core.summaries.compaction import Summary
from tape.core.summaries.runs import in_force
from tape.core.view.slots import BLOCK, BLOCKS_AND_PROMPT, PROMPT, STATE, USAGE
from tape.db.view import memory
from tape.db.view.tape_view import TapeView

__all__ = ["Settings", "blocks", "frozen", PROMPT, "states", "summaries", "usage"]


class Settings(Struct, frozen=True):
    """What a store was opened with for all of its tapes: declared slots and blocks, and the token counter."""

    slots: dict[str, Slot] = {}
    blocks: list[BlockSpec] = []
    counter: Counter | None = None

    def assembled(self, slots: list[tuple[str, int, Payload]]) -> list[Block]:
        """Return the declared blocks and those that slots hold."""
        held = {name.removeprefix(BLOCK): (seq, entry) for name, seq, entry in slots if name.startswith(BLOCK)}
        return assemble(self.blocks, held, self.counter or estimate)


def blocks(view: TapeView, settings: Settings) -> list[Block]:
    """Return the blocks of a tape."""
    return settings.assembled(memory.slots(view, BLOCK))


def prompt(view: TapeView, settings: Settings) -> tuple[str | None, bool]:
    """Return the frozen prompt or the one rendered now, and whether the configuration changed since."""
    slots = memory.slots_between(view, *BLOCKS_AND_PROMPT)
    held = next((payload for name, _, payload in slots if name == PROMPT), None)
    found = settings.assembled(slots)
    if isinstance(held, payloads.Block) and held.text is not None:
        return held.text, held.config != config_hash(found)
    return (render_prompt(found) or None) if found else None, False


def frozen(view: TapeView) -> str | None:
    """Return the prompt that is frozen on a tape, or None."""
    held = view.slot(PROMPT)
    return held.text if isinstance(held, payloads.Block) else None


def states(view: TapeView, settings: Settings, slot: str | None) -> dict[str, Any]:
    """Return the slots of state that hold something: all, or the one named."""
    if slot is None:
        held = {name.removeprefix(STATE): payload for name, _, payload in memory.slots(view, STATE)}
    else:
        one = view.slot(f"{STATE}{slot}")
        held = {} if one is None else {slot: one}
    return {
        name: current(payload, settings.slots.get(name))
        for name, payload in held.items()
        if isinstance(payload, payloads.State) and payload.value is not UNSET
    }


def usage(view: TapeView) -> Usage:
    """Return the totals of a tape's own usage."""
    found = memory.slot(view, USAGE, inherited=False)
    return Usage() if found is None else usage_of(found[1], view.tape, found[0])


def summaries(view: TapeView) -> list[Summary]:
    """Return the summaries in force on the active path, shallowest first."""
    held, _ = in_force(view.compactions_on(view.head.place))
    return [memory.summary_of(view, one) for one in held]
