"""What a merge carries besides messages: the fork's state, blocks and usage since it was forked or last merged."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from msgspec import UNSET

from tape.core.entries import payloads
from tape.core.entries.payloads import Payload
from tape.core.memory.loading import label_of
from tape.core.memory.state import migrated, provider_of, usage_of
from tape.core.merge.divergence import Conflict
from tape.core.merge.three_way import (
    BlockSide,
    BlockValue,
    StateSide,
    block_entries,
    block_lines,
    block_value,
    filled_in,
    merge_block,
    merge_state,
    same_value,
)
from tape.core.messages.tokens import estimate
from tape.core.plan.intents import Plain
from tape.core.view.slots import BLOCK, MERGED, STATE, USAGE
from tape.db.engine.transaction import Transaction
from tape.db.read.memory import Settings
from tape.db.record.writing import Writing
from tape.db.view import memory
from tape.db.view.tape_view import TapeView
from tape.new_ids import keyed

__all__ = ["StateMerge"]


Held = dict[str, tuple[str, int, Payload]]
"""What slots hold, by their names: the tape, the seq and the payload of the entry that set each."""
_NOTHING = (0, 0, 0, 0, 0)
"""The counts of a tape that has used nothing."""


class StateMerge:
    """Reads what a fork changed of state and blocks, and writes it to the parent."""

    def __init__(
        self, settings: Settings, tx: Transaction, parent: Writing, child: Writing, merged: int, agreed: int
    ) -> None:
        self._settings = settings
        self._tx = tx
        self._parent = parent
        self._child = child
        self._merged = merged
        self._agreed = agreed
        """The parent's seq at which the two last agreed: before the first merge, where the fork was made."""
        self._before = parent.head.seq
        """The parent's seq before this merge."""
        # In the order in which the fork wrote them: blocks are shown in the order of their entries.
        own = memory.slots_between(_slots_at(child, child.head.seq), *MERGED, inherited=False)
        written = [(slot, payload) for slot, seq, payload in sorted(own, key=lambda slot: slot[1]) if seq > merged]
        self._changed = [(slot, payload) for slot, payload in written if slot.startswith((STATE, BLOCK))]
        self._spent = next((payload for slot, payload in written if slot == USAGE), None)

    # -- what the slots held that the fork wrote, each tape asked for all of them at once

    @functools.cached_property
    def _then(self) -> Held:
        """What they held in the parent when the two last agreed."""
        return self._held_by(self._parent, self._agreed)

    @functools.cached_property
    def _now(self) -> Held:
        """What they hold in the parent."""
        return self._held_by(self._parent, self._before)

    @functools.cached_property
    def _child_then(self) -> Held:
        """What they held in the fork when the two last agreed."""
        return self._held_by(self._child, self._merged) if self._merged else self._then

    def _held_by(self, tape: Writing, seq: int) -> Held:
        names = [slot for slot, _ in self._changed]
        return memory.slots_named(_slots_at(tape, seq), names if self._spent is None else [*names, USAGE])

    def _held(self, slot: str) -> tuple[Payload | None, Payload | None, Payload | None]:
        """Return what one of them held in the parent then, holds there now, and held in the fork then."""
        return _payload(self._then, slot), _payload(self._now, slot), _payload(self._child_then, slot)

    def anything(self) -> bool:
        """Whether the fork changed state or blocks, or used anything, since the last merge."""
        return bool(self._changed) or any(self._used)

    @functools.cached_property
    def _used(self) -> list[int]:
        if self._spent is None:
            return []
        before = _totals(self._child, self._child_then) if self._merged else _NOTHING
        return [a - b for a, b in zip(_counts(self._spent), before, strict=True)]

    def into(self, merge: payloads.Merge, on_conflict: str) -> list[Conflict]:
        """Write the fork's changes to the parent; returns those that conflict with the parent's own."""
        conflicts: list[Conflict] = []
        # Documents that the fork unloaded come first: they make room for those that it loaded.
        ordered = sorted(
            self._changed, key=lambda change: not isinstance(change[1], payloads.Block) or change[1].text is not None
        )
        for slot, payload in ordered:
            if isinstance(payload, payloads.State):
                conflicts += self._state(slot, payload, merge, on_conflict)
            elif isinstance(payload, payloads.Block):
                conflicts += self._block(slot, payload, merge, on_conflict)
        if any(self._used):
            merge.usage = self._used
            before = _totals(self._parent, self._now)
            merge.totals = [a + b for a, b in zip(before, self._used, strict=True)]
        return conflicts

    def _put(self, payload: Payload) -> None:
        source = (self._child.tape, self._child.head.seq)
        self._parent.record(Plain(key=keyed(None, self._parent.shared.new_id), payload=payload, source=source))

    def _state(self, slot: str, last: payloads.State, merge: payloads.Merge, on_conflict: str) -> list[Conflict]:
        name = slot.removeprefix(STATE)
        spec = self._settings.slots.get(name)
        then, now, child_then = self._held(slot)
        before, after = migrated(then, spec), migrated(now, spec)
        base = before if child_then is then else migrated(child_then, spec)
        ours, theirs = StateSide(before, after), StateSide(base, migrated(last, spec))
        merged = merge_state(name, theirs, ours, on_conflict, spec)
        merge.kept += merged.kept
        value = merged.result.value
        if not merged.conflicts and not same_value(ours.after, merged.result):
            gone = value is UNSET
            self._put(
                payloads.State(
                    slot=name,
                    given=None if gone else value,
                    patch=gone,
                    value=value,
                    schema=merged.result.version,
                )
            )
        return merged.conflicts

    def _block(self, slot: str, last: payloads.Block, merge: payloads.Merge, on_conflict: str) -> list[Conflict]:
        label = slot.removeprefix(BLOCK)
        spec = next((block for block in self._settings.blocks if block.label == label), None)
        then, now, child_then = self._held(slot)
        before, held, recorded = block_value(then, spec), block_value(now, spec), block_value(last, spec)
        base = before if child_then is then else block_value(child_then, spec)
        after = recorded
        if child_then is None and not last.declared:
            # The fork's program knew of no declaration, so fields it left out are as declared here.
            after = filled_in(after, spec)
        theirs = self._side(self._child, slot, self._merged, base, after, recorded)
        if self._now.get(slot, ())[:2] == self._then.get(slot, ())[:2]:
            # The parent did not write it, so there are no lines to look for.
            ours = BlockSide(before, held, [])
        else:
            ours = self._side(self._parent, slot, self._agreed, before, held)
        merged = merge_block(theirs, ours, on_conflict, self._settings.counter or estimate)
        if merged.kept:
            merge.kept.append(label)
        if merged.conflict is not None:
            return [Conflict(label, *merged.conflict, what="block")]
        if merged.value != ours.after and not self._room_for(label, merged.value):
            if on_conflict == "ours":
                merge.kept.append(label)
                return []
            return [Conflict(label, None, {"text": merged.value.text} if merged.value is not None else None, "block")]
        if merged.value != ours.after:
            declared = spec is not None or any(
                isinstance(block, payloads.Block) and block.declared for block in (now, last)
            )
            for entry in block_entries(label, ours.after, merged.value, theirs.lines, declared=declared):
                self._put(entry)
        return []

    @functools.cached_property
    def _documents(self) -> dict[str, int]:
        """How many tokens each document takes that is loaded on the parent, by its label."""
        loaded = self._settings.loaded(memory.slots(_slots_at(self._parent, self._before), BLOCK))
        return {label_of(document.label, document.key): document.tokens for document in loaded}

    def _room_for(self, label: str, value: BlockValue | None) -> bool:
        """Whether a document fits into its block with those already loaded. Other blocks have limits of their own."""
        spec = provider_of(label, self._settings.blocks)
        if spec is None or label == spec.label or (value is not None and value.document is None):
            return True
        self._documents.pop(label, None)
        if value is None:
            return True
        tokens = (self._settings.counter or estimate)(value.text)
        held = sum(count for name, count in self._documents.items() if name.startswith(f"{spec.label}/"))
        if spec.max_tokens is not None and held + tokens > spec.max_tokens:
            return False
        self._documents[label] = tokens
        return True

    def _side(
        self,
        tape: Writing,
        slot: str,
        agreed: int,
        before: BlockValue | None,
        after: BlockValue | None,
        recorded: BlockValue | None = None,
    ) -> BlockSide:
        """Return what a tape did to a block since the two agreed, from its entries of that block alone."""
        rows = self._tx.all(self._tx.statements.slot_entries, (tape.tape_id, slot, agreed))
        wrote = [payloads.decode(row.kind, row.version, row.payload or b"", key=row.key) for row in rows]
        entries = [entry for entry in wrote if isinstance(entry, payloads.Block)]
        return BlockSide(before, after, block_lines(entries, before.text if before is not None else None), recorded)


def _slots_at(tape: Writing, seq: int) -> TapeView:
    """Return a tape as of a seq, with the head of now: of slots, entries tell since when they hold."""
    return TapeView(tape.tx, tape.tx.statements, tape.tape, tape.tape_id, tape.head, tape.ancestry, seq)


def _payload(held: Held, slot: str) -> Payload | None:
    return held[slot][2] if slot in held else None


def _totals(tape: Writing, held: Held) -> Sequence[int]:
    """Return what a tape has used by what its slots hold: a fork counts its own from nothing."""
    of, _, payload = held.get(USAGE, (None, 0, None))
    return _counts(payload) if of == tape.tape else _NOTHING


def _counts(usage: Payload | None) -> list[int]:
    total = usage_of(usage)
    return [total.input_tokens, total.output_tokens, total.cached_tokens, total.cost, total.calls]
