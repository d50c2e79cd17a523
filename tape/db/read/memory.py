"""What a view remembers besides messages, as callers ask for it: blocks, the prompt, state, usage, summaries."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, structs

from tape.core.entries import payloads
from tape.core.entries.payloads import Payload
from tape.core.memory.loading import Loaded, loaded, provided, shown_documents
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
from tape.core.records import StateValue
from tape.core.summaries.compaction import Summary
from tape.core.summaries.runs import in_force
from tape.core.view.slots import BLOCK, BLOCKS_AND_PROMPT, PROMPT, STATE, USAGE
from tape.db.view import memory
from tape.db.view.tape_view import TapeView

__all__ = [
    "Settings",
    "blocks",
    "documents",
    "frozen",
    PROMPT,
    "prompt_entries",
    "state",
    "states",
    "summaries",
    "usage",
]


class Settings(Struct, frozen=True):
    """What a store was opened with for all of its tapes: declared slots and blocks, and the token counter."""

    slots: dict[str, Slot] = {}
    blocks: list[BlockSpec] = []
    counter: Counter | None = None

    @property
    def providing(self) -> bool:
        """Whether a block has a provider."""
        return any(spec.provider is not None for spec in self.blocks)

    def provided(self, *, live: bool = True) -> Settings:
        """Return the same with what providers list now: to be asked outside of any transaction."""
        if not self.providing:
            return self
        return structs.replace(self, blocks=provided(self.blocks, live=live))

    def assembled(self, slots: list[tuple[str, int, Payload]]) -> list[Block]:
        """Return the declared blocks and those that slots hold, but for documents that are loaded."""
        return assemble(self.blocks, _blocks_of(slots), self.counter or estimate)

    def loaded(self, slots: list[tuple[str, int, Payload]]) -> list[Loaded]:
        """Return the documents that slots hold."""
        return loaded(self.blocks, _blocks_of(slots), self.counter or estimate)


def _blocks_of(slots: list[tuple[str, int, Payload]]) -> dict[str, tuple[int, Payload]]:
    return {name.removeprefix(BLOCK): (seq, entry) for name, seq, entry in slots if name.startswith(BLOCK)}


def blocks(view: TapeView, settings: Settings) -> list[Block]:
    """Return the blocks of a tape."""
    return settings.assembled(memory.slots(view, BLOCK))


def documents(view: TapeView, settings: Settings) -> list[Loaded]:
    """Return the documents that are loaded on a tape."""
    return settings.loaded(memory.slots(view, BLOCK))


def prompt(view: TapeView, settings: Settings) -> tuple[str | None, bool, str]:
    """Return the frozen prompt or the one rendered now, whether the configuration changed since, and what is loaded."""
    slots = memory.slots_between(view, *BLOCKS_AND_PROMPT)
    frozen = next((payload for name, _, payload in slots if name == PROMPT), None)
    blocks = settings.assembled(slots) if slots or settings.blocks else []
    documents = shown_documents(settings.loaded(slots))
    if isinstance(frozen, payloads.Block) and frozen.text is not None:
        return frozen.text, frozen.config != config_hash(blocks), documents
    return (render_prompt(blocks) or None) if blocks else None, False, documents


def frozen(view: TapeView) -> str | None:
    """Return the prompt that is frozen on a tape, or None."""
    held = view.slot(PROMPT)
    return held.text if isinstance(held, payloads.Block) else None


def prompt_entries(view: TapeView) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
    """Return the entries that the prompt and the loaded documents come from: the freeze, or the newest change."""
    held = memory.slot_of(view, PROMPT)
    frozen = held is not None and isinstance(held[2], payloads.Block) and held[2].text is not None
    changed = [memory.slot_of(view, name) for name, _, _ in memory.slots(view, BLOCK)]
    newest: dict[bool, tuple[str, int]] = {}
    for tape, seq, payload in filter(None, changed):
        loads = isinstance(payload, payloads.Block) and payload.op in ("load", "unload")
        before = newest.get(loads)
        if before is None or (tape == view.tape, seq) > (before[0] == view.tape, before[1]):
            newest[loads] = (tape, seq)
    return held[:2] if held is not None and frozen else newest.get(False), newest.get(True)


def state(view: TapeView, settings: Settings, slot: str) -> StateValue | None:
    """Return what a slot of state holds and which entry says so, or None when it holds nothing."""
    entry = memory.slot_of(view, f"{STATE}{slot}")
    if entry is None:
        return None
    tape, seq, payload = entry
    if not isinstance(payload, payloads.State) or payload.value is UNSET:
        return None
    return StateValue(slot, current(payload, settings.slots.get(slot)), seq, tape)


def states(view: TapeView, settings: Settings, prefix: str) -> dict[str, Any]:
    """Return the slots of state that hold something and whose names begin so, in the order of their names."""
    held = {name.removeprefix(STATE): payload for name, _, payload in memory.slots(view, f"{STATE}{prefix}")}
    return {
        name: current(payload, settings.slots.get(name))
        for name, payload in sorted(held.items())
        if isinstance(payload, payloads.State) and payload.value is not UNSET
    }


def usage(view: TapeView) -> Usage:
    """Return the totals of a tape's own usage."""
    totals = memory.slot(view, USAGE, inherited=False)
    return Usage() if totals is None else usage_of(totals[1], view.tape, totals[0])


def summaries(view: TapeView) -> list[Summary]:
    """Return the summaries in force on the active path, shallowest first."""
    compactions, _ = in_force(view.compactions_on(view.head.place))
    return [memory.summary_of(view, compaction) for compaction in compactions]
