"""Applying the fold's row changes to the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from tape.core.entries.payloads import ROOT, ForkPoint, Place
from tape.core.view import fold as f
from tape.core.view.fold import Head, Op
from tape.db.engine.transaction import Transaction
from tape.db.view.ancestry import Ancestry
from tape.db.view.calls import call_key

__all__ = ["apply", "set_hidden", "set_labels", "set_name", "set_redirect", "set_status", "tape_of"]


def tape_of(place: Place, ancestry: Ancestry | None) -> int:
    """Return the number of the tape that a place is on, or 0 for the tape itself."""
    return 0 if place.tape is None or ancestry is None else ancestry.number(place.tape)


def apply(tx: Transaction, tape_id: int, ops: Sequence[Op], head: Head, ancestry: Ancestry | None) -> None:
    """Change the rows of the view as the fold says, in its order, neighbours of one sort together."""
    for apart, neighbours in groupby(ops, lambda op: type(op) in _APART):
        ordered = list(neighbours)
        if apart:
            # Each of these changes a table of its own, so their order among each other does not matter.
            ordered.sort(key=lambda op: type(op).__name__)
        for sort, run in groupby(ordered, type):
            _APPLY[sort](tx, tape_id, list(run), head, ancestry)


def _at(place: Place, ancestry: Ancestry | None) -> tuple[int, int, int]:
    """Return a place as rows name it: the number of its tape, its lane and its depth."""
    return tape_of(place, ancestry), place.lane, place.ordinal


def _override(
    tx: Transaction,
    tape: int,
    place: tuple[int, int, int],
    since: int,
    placed: int,
    body: Sequence[int | None],
    why: str,
) -> None:
    """Let something else hold at an inherited place, for this tape alone."""
    tx.run(tx.statements.end_override, (since, tape, *place))
    tx.run(tx.statements.insert_override, (tape, *place, since, placed, *body, None, why))


def _open(tx: Transaction, tape: int, ops: list[f.OpenRow], head: Head, ancestry: Ancestry | None) -> None:
    rows = []
    for op in ops:
        if op.place.tape is None:
            rows.append((tape, op.place.lane, op.place.ordinal, op.placed, op.since, op.body))
        else:
            body_tape = tape if op.of is None or ancestry is None else ancestry.number(op.of)
            _override(tx, tape, _at(op.place, ancestry), op.since, op.placed, (body_tape, op.body), "")
    if rows:
        tx.many(tx.statements.open_row, rows)


def _close(tx: Transaction, tape: int, ops: list[f.Close], head: Head, ancestry: Ancestry | None) -> None:
    for op in ops:
        if op.place.tape is not None:
            _override(tx, tape, _at(op.place, ancestry), op.until, 0, (0, None), op.why)
    own = [op for op in ops if op.place.tape is None]
    if own:
        tx.many(tx.statements.keep_row, [(op.until, op.why, tape, op.place.lane, op.place.ordinal) for op in own])
        tx.many(tx.statements.drop_row, [(tape, op.place.lane, op.place.ordinal) for op in own])


def _mark(tx: Transaction, tape: int, ops: list[f.Mark], head: Head, ancestry: Ancestry | None) -> None:
    for op in ops:
        if op.place.tape is not None:
            _override(tx, tape, _at(op.place, ancestry), op.seq, 0, (0, None), op.why)
        else:
            tx.run(tx.statements.mark_row, (op.seq, op.why, tape, op.place.lane, op.place.ordinal))


def _lane(tx: Transaction, tape: int, ops: list[f.LaneRow], head: Head, ancestry: Ancestry | None) -> None:
    tx.many(tx.statements.insert_lane, [(tape, op.lane, *_at(op.base, ancestry)) for op in ops])


def _alias(tx: Transaction, tape: int, ops: list[f.AliasRow], head: Head, ancestry: Ancestry | None) -> None:
    tx.many(tx.statements.insert_alias, [(tape, op.id, op.seq) for op in ops])


def _call(tx: Transaction, tape: int, ops: list[f.CallRow], head: Head, ancestry: Ancestry | None) -> None:
    rows = [
        (tape, call_key(op.call), op.seq, op.place.lane, op.place.ordinal, tape_of(op.place, ancestry)) for op in ops
    ]
    tx.many(tx.statements.insert_call, rows)


def _answer(tx: Transaction, tape: int, ops: list[f.AnswerRow], head: Head, ancestry: Ancestry | None) -> None:
    rows = [(tape, *_at(op.maker, ancestry), op.place.lane, op.place.ordinal, call_key(op.call)) for op in ops]
    tx.many(tx.statements.insert_answer, rows)


def _anchor(tx: Transaction, tape: int, ops: list[f.AnchorRow], head: Head, ancestry: Ancestry | None) -> None:
    tx.many(tx.statements.insert_anchor, [(tape, op.seq, op.name, *_at(op.place, ancestry)) for op in ops])


def _event(tx: Transaction, tape: int, ops: list[f.EventRow], head: Head, ancestry: Ancestry | None) -> None:
    tx.many(tx.statements.insert_event, [(tape, op.name, op.seq) for op in ops])


def _clear(tx: Transaction, tape: int, ops: list[f.ClearRow], head: Head, ancestry: Ancestry | None) -> None:
    rows = [(tape, op.seq, *_at(op.place, ancestry), op.hidden, 0, None) for op in ops]
    tx.many(tx.statements.insert_clear, rows)


def _touch(tx: Transaction, tape: int, ops: list[f.Touch], head: Head, ancestry: Ancestry | None) -> None:
    counted = [(tape, op.seq) for op in ops if op.own]
    if counted:
        tx.many(tx.statements.untally_clear, counted)
    tx.run(tx.statements.touch_clears, (tape,))


def _uncleared(tx: Transaction, tape: int, ops: list[f.Uncleared], head: Head, ancestry: Ancestry | None) -> None:
    tx.many(tx.statements.end_clear, [(op.until, tape, op.seq) for op in ops])


def _slot(tx: Transaction, tape: int, ops: list[f.SlotRow], head: Head, ancestry: Ancestry | None) -> None:
    rows: list[tuple[Any, ...]] = []
    set_next: dict[str, int] = {}
    for op in reversed(ops):
        # Of several values of one slot, each but the last ends where the next begins.
        if not op.ended:
            rows.append((tape, op.slot, op.seq, set_next.get(op.slot)))
        set_next[op.slot] = op.seq
    tx.many(tx.statements.end_slot, [(seq, tape, slot) for slot, seq in set_next.items()])
    if rows:
        tx.many(tx.statements.insert_slot, rows[::-1])
    if any(op.slot == "status" for op in ops):
        set_status(tx, tape, head)


def _fork(tx: Transaction, tape: int, ops: list[f.ForkRow], head: Head, ancestry: Ancestry | None) -> None:
    for op in ops:
        if ancestry is None:
            raise AssertionError("a fork knows its ancestry before its first entry")
        tx.run(tx.statements.insert_fork, fork_values(tape, op.parent, ancestry, "open", 0, 0))


def fork_values(
    tape: int, parent: ForkPoint, ancestry: Ancestry, state: str, merged: int, merge_seq: int
) -> tuple[Any, ...]:
    """Return the row of a fork."""
    return (tape, ancestry.number(parent.tape), parent.seq, ancestry.encoded(), state, merged, merge_seq)


def _fork_state(tx: Transaction, tape: int, ops: list[f.ForkState], head: Head, ancestry: Ancestry | None) -> None:
    for op in ops:
        tx.run(tx.statements.set_fork, (op.state, op.merged, op.merge_seq, tape))


def _compact(tx: Transaction, tape: int, ops: list[f.CompactRow], head: Head, ancestry: Ancestry | None) -> None:
    for op in ops:
        origin = 0 if op.tape is None or ancestry is None else ancestry.number(op.tape)
        now = (int(op.gone), int(op.revised), int(op.loose))
        if op.place is None and tx.run(tx.statements.change_compaction, (op.since, *now, tape, origin, op.seq)):
            tx.run(tx.statements.end_compaction, (op.since, tape, origin, op.seq))
            continue
        run = (*_at(op.place or ROOT, ancestry), op.lo)
        tx.run(tx.statements.insert_compaction, (tape, origin, op.seq, op.since, *run, *now, None))


def set_status(tx: Transaction, tape: int, head: Head) -> None:
    """Write the tape's status where listings find it."""
    tx.run(tx.statements.set_status, (head.status, head.reason, head.completed or None, tape))


def set_name(tx: Transaction, tape: int, name: str | None) -> None:
    """Write the tape's name where listings find it."""
    tx.run(tx.statements.set_name, (name, tape))


def set_labels(tx: Transaction, tape: int, labels: Sequence[str]) -> None:
    """Write the tape's labels where listings find them."""
    tx.run(tx.statements.set_labels, (msgspec.json.encode(labels) if labels else None, tape))
    tx.run(tx.statements.drop_labels, (tape,))
    if labels:
        tx.many(tx.statements.insert_label, [(tape, label) for label in dict.fromkeys(labels)])


def set_redirect(tx: Transaction, tape: int, to: str | None) -> None:
    """Write where the tape's work goes on."""
    tx.run(tx.statements.set_redirect, (to, tape))


def set_hidden(tx: Transaction, tape: int, hidden: str | None) -> None:
    """Write where reads find it that the tape is hidden, or that it is not."""
    tx.run(tx.statements.set_hidden, (hidden, tape))


def _renamed(tx: Transaction, tape: int, ops: list[f.Renamed], head: Head, ancestry: Ancestry | None) -> None:
    set_name(tx, tape, ops[-1].name)


def _labelled(tx: Transaction, tape: int, ops: list[f.Labelled], head: Head, ancestry: Ancestry | None) -> None:
    set_labels(tx, tape, ops[-1].labels)


def _redirected(tx: Transaction, tape: int, ops: list[f.Redirected], head: Head, ancestry: Ancestry | None) -> None:
    set_redirect(tx, tape, ops[-1].to)


def _shown(tx: Transaction, tape: int, ops: list[f.Shown], head: Head, ancestry: Ancestry | None) -> None:
    set_hidden(tx, tape, ops[-1].hidden)


_APART = {f.OpenRow, f.LaneRow, f.AliasRow, f.CallRow, f.AnswerRow, f.AnchorRow, f.EventRow, f.SlotRow}

_APPLY: dict[type[Op], Callable[[Transaction, int, Any, Head, Ancestry | None], None]] = {
    f.OpenRow: _open,
    f.Close: _close,
    f.Mark: _mark,
    f.LaneRow: _lane,
    f.AliasRow: _alias,
    f.CallRow: _call,
    f.AnswerRow: _answer,
    f.AnchorRow: _anchor,
    f.EventRow: _event,
    f.ClearRow: _clear,
    f.Touch: _touch,
    f.Uncleared: _uncleared,
    f.SlotRow: _slot,
    f.ForkRow: _fork,
    f.ForkState: _fork_state,
    f.Renamed: _renamed,
    f.Labelled: _labelled,
    f.Redirected: _redirected,
    f.Shown: _shown,
    f.CompactRow: _compact,
}
