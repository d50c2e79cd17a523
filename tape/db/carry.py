"""What a merge carries besides messages: the fork's state, blocks and usage since it was forked or last merged."""

from __future__ import annotations

import functools
from typing import Any

from msgspec import UNSET

from tape.core import ids, payloads
from tape.core.memory import ChangeBlock, ChangeState, usage_of
from tape.core.merge import Conflict
from tape.core.payloads import Payload
from tape.core.threeway import appended, changes, merge_values
from tape.db.memory import Recall
from tape.db.paths import Scope
from tape.db.record import Writing
from tape.db.transaction import Transaction
from tape.errors import InvalidEntry, TapeNotFound

__all__ = ["Carry"]


class Carry:
    """Reads what a fork changed of state and blocks, and writes it to the parent."""

    def __init__(
        self, reader: Recall, tx: Transaction, parent: Writing, young: Writing, merged: int, agreed: int
    ) -> None:
        self._reader = reader
        self._tx = tx
        self._parent = parent
        self._young = young
        self._merged = merged
        self._agreed = agreed
        written = [(slot, payload) for slot, seq, payload in self._own_slots() if seq > merged]
        self._changed = [(slot, payload) for slot, payload in written if slot.startswith(("state:", "block:"))]
        self._counted = any(slot == "usage" for slot, _ in written)

    # Most forks change no state: the views before and after are looked up when one did.

    @functools.cached_property
    def _then(self) -> Scope:
        return self._scope(self._parent.tape, self._agreed)

    @functools.cached_property
    def _now(self) -> Scope:
        return self._scope(self._parent.tape)

    @functools.cached_property
    def _child_then(self) -> Scope:
        return self._scope(self._young.tape, self._merged or 1)

    @functools.cached_property
    def _child_now(self) -> Scope:
        return self._scope(self._young.tape)

    def _scope(self, tape: str, point: int | None = None) -> Scope:
        scope = self._reader.scope(self._tx, tape, point)
        if scope is None:
            raise TapeNotFound(tape)
        return scope

    def _own_slots(self) -> list[tuple[str, int, Payload]]:
        """Return the slots that the fork itself wrote."""
        return self._reader.slots_between(self._tx, _bare(self._young, self._young.head.seq), "block:", "usagf")

    def anything(self) -> bool:
        """Whether the fork changed state or blocks, or used anything, since the last merge."""
        return bool(self._changed) or any(self._used)

    @functools.cached_property
    def _used(self) -> list[int]:
        if not self._counted:
            return []
        now, then = (self._usage(self._young, seq) for seq in (self._young.head.seq, self._merged or 1))
        return [a - b for a, b in zip(now, then, strict=True)]

    def _usage(self, tape: Writing, seq: int) -> list[int]:
        found = self._reader.slot(self._tx, _bare(tape, seq), "usage", inherited=False)
        total = usage_of(None if found is None else found[1])
        return [total.input_tokens, total.output_tokens, total.cached_tokens, total.cost, total.calls]

    def into(self, told: payloads.Merge, on_conflict: str) -> list[Conflict]:
        """Write the fork's changes to the parent; returns all that meet the parent's own."""
        conflicts: list[Conflict] = []
        for slot, payload in self._changed:
            if isinstance(payload, payloads.State):
                conflicts += self._state(slot, told, on_conflict)
            elif isinstance(payload, payloads.Block):
                conflicts += self._block(slot, payload, told, on_conflict)
        if any(self._used):
            told.usage = self._used
            before = self._usage(self._parent, self._parent.head.seq)
            told.totals = [a + b for a, b in zip(before, self._used, strict=True)]
        return conflicts

    def _value(self, scope: Scope, slot: str) -> Any:
        found = self._reader.slot(self._tx, scope, slot)
        return found[1].value if found is not None and isinstance(found[1], payloads.State) else UNSET

    def _state(self, slot: str, told: payloads.Merge, on_conflict: str) -> list[Conflict]:
        name = slot.removeprefix("state:")
        now = self._value(self._now, slot)
        theirs = changes(self._value(self._child_then, slot), self._value(self._child_now, slot))
        ours = changes(self._value(self._then, slot), now)
        merged, conflicts, kept = merge_values(name, theirs, ours, now, on_conflict)
        told.kept += kept
        if not conflicts and changes(now, merged):
            gone = merged is UNSET
            change = ChangeState(
                key=ids.new_id(), slot=name, given=None if gone else merged, patch=gone, source=self._source()
            )
            self._parent.put(change.plan(self._parent.head, self._parent, None), change)
        return conflicts

    def _source(self) -> tuple[str, int]:
        return self._young.tape, self._young.head.seq

    def _text(self, scope: Scope, slot: str) -> str | None:
        found = self._reader.slot(self._tx, scope, slot)
        return found[1].text if found is not None and isinstance(found[1], payloads.Block) else None

    def _block(self, slot: str, last: payloads.Block, told: payloads.Merge, on_conflict: str) -> list[Conflict]:
        label = slot.removeprefix("block:")
        ours, before = self._text(self._now, slot), self._text(self._then, slot)
        entries = [
            entry
            for row in self._tx.all(
                self._tx.statements.entries_after, (self._young.tape_id, self._merged, 2**62, 2**31 - 1)
            )
            if row[3] == "block" and isinstance(entry := payloads.decode(row[3], row[11], row[8]), payloads.Block)
        ]
        lines = appended([entry for entry in entries if entry.op != "freeze" and entry.label == label])
        if ours == last.text:
            return []
        conflict = [Conflict(label, _shown(ours), _shown(last.text))]
        if lines is None:
            if ours != before and on_conflict == "fail":
                return conflict
            if ours != before and on_conflict == "ours":
                told.kept.append(label)
                return []
            changing = [ChangeBlock(key=ids.new_id(), label=label, op="set", text=last.text, source=self._source())]
            if last.text is None:
                changing[0].op = "remove"
            changing[0].description, changing[0].max_tokens = last.description, last.max_tokens
            changing[0].read_only = last.read_only
        else:
            changing = [
                ChangeBlock(key=ids.new_id(), label=label, op="append", text=line, source=self._source())
                for line in lines
            ]
        try:
            for change in changing:
                self._parent.put(change.plan(self._parent.head, self._parent, None), change)
        except InvalidEntry:
            # Together the two are over the block's limit.
            if on_conflict == "ours":
                told.kept.append(label)
                return []
            return conflict
        return []


def _shown(text: str | None) -> dict[str, Any] | None:
    return None if text is None else {"text": text}


def _bare(tape: Writing, seq: int) -> Scope:
    """Return a tape as of a seq without what it inherits, which is enough to find what it wrote itself."""
    return Scope(tape.tape, tape.tape_id, seq, True, tape.head, None)
