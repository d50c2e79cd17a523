"""Applying the fold's row changes to the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

from tape.core import fold as f
from tape.core.fold import Head, Op
from tape.core.strict import MAX_ID
from tape.db.transaction import Transaction

__all__ = ["apply", "call_key", "head_values"]


def call_key(call: str) -> str:
    """Return a tool call's id as the index holds it; ids of any length come from models and frameworks."""
    if len(call) <= MAX_ID and "\0" not in call:
        return call
    return "#" + blake2b(call.encode(), digest_size=32).hexdigest()


def head_values(head: Head) -> tuple[Any, ...]:
    """Return a head as the columns of its row, in the order of ``HEAD_COLUMNS``."""
    place = head.place
    return (
        head.seq,
        head.hash,
        head.stamp,
        0,
        place.lane,
        place.ordinal,
        head.lo,
        int(head.tip),
        head.cleared,
        head.messages,
        head.last_message,
        int(head.aliased),
    )


def apply(tx: Transaction, tape_id: int, ops: Sequence[Op], head: Head) -> None:
    """Change the rows of the view as the fold says, in its order, neighbours of one sort together."""
    if len(ops) == 1:
        _APPLY[type(ops[0])](tx, tape_id, ops, head)
        return
    for sort, run in groupby(ops, type):
        _APPLY[sort](tx, tape_id, list(run), head)


def _open(tx: Transaction, tape: int, ops: list[f.OpenRow], head: Head) -> None:
    if len(ops) == 1:
        op = ops[0]
        tx.run(tx.statements.open_row, (tape, op.place.lane, op.place.ordinal, op.placed, op.since, op.body))
        return
    rows = [(tape, op.place.lane, op.place.ordinal, op.placed, op.since, op.body) for op in ops]
    tx.many(tx.statements.open_row, rows)


def _close(tx: Transaction, tape: int, ops: list[f.Close], head: Head) -> None:
    tx.many(tx.statements.keep_row, [(op.until, op.why, tape, op.place.lane, op.place.ordinal) for op in ops])
    tx.many(tx.statements.drop_row, [(tape, op.place.lane, op.place.ordinal) for op in ops])


def _mark(tx: Transaction, tape: int, ops: list[f.Mark], head: Head) -> None:
    tx.many(tx.statements.mark_row, [(op.why, tape, op.place.lane, op.place.ordinal) for op in ops])


def _lane(tx: Transaction, tape: int, ops: list[f.LaneRow], head: Head) -> None:
    tx.many(tx.statements.insert_lane, [(tape, op.lane, 0, op.base.lane, op.base.ordinal) for op in ops])


def _alias(tx: Transaction, tape: int, ops: list[f.AliasRow], head: Head) -> None:
    tx.many(tx.statements.insert_alias, [(tape, op.id, op.seq) for op in ops])


def _call(tx: Transaction, tape: int, ops: list[f.CallRow], head: Head) -> None:
    rows = [(tape, call_key(op.call), op.seq, op.place.lane, op.place.ordinal) for op in ops]
    tx.many(tx.statements.insert_call, rows)


def _answer(tx: Transaction, tape: int, ops: list[f.AnswerRow], head: Head) -> None:
    rows = [
        (tape, 0, op.maker.lane, op.maker.ordinal, op.place.lane, op.place.ordinal, call_key(op.call)) for op in ops
    ]
    tx.many(tx.statements.insert_answer, rows)


def _anchor(tx: Transaction, tape: int, ops: list[f.AnchorRow], head: Head) -> None:
    rows = [(tape, op.seq, op.name, 0, op.place.lane, op.place.ordinal) for op in ops]
    tx.many(tx.statements.insert_anchor, rows)


def _clear(tx: Transaction, tape: int, ops: list[f.ClearRow], head: Head) -> None:
    rows = [(tape, op.seq, 0, op.place.lane, op.place.ordinal, op.hidden, 0, None) for op in ops]
    tx.many(tx.statements.insert_clear, rows)


def _touch(tx: Transaction, tape: int, ops: list[f.Touch], head: Head) -> None:
    tx.many(tx.statements.untally_clear, [(tape, op.seq) for op in ops])
    tx.run(tx.statements.touch_clears, (tape,))


def _uncleared(tx: Transaction, tape: int, ops: list[f.Uncleared], head: Head) -> None:
    tx.many(tx.statements.end_clear, [(op.until, tape, op.seq) for op in ops])


def _slot(tx: Transaction, tape: int, ops: list[f.SlotRow], head: Head) -> None:
    for op in ops:
        tx.run(tx.statements.end_slot, (op.seq, tape, op.slot))
        tx.run(tx.statements.insert_slot, (tape, op.slot, op.seq, None))
    set_status(tx, tape, head)


def set_status(tx: Transaction, tape: int, head: Head) -> None:
    """Write the tape's status where listings find it."""
    tx.run(tx.statements.set_status, (head.status, head.reason, head.completed or None, tape))


_APPLY: dict[type[Op], Callable[[Transaction, int, Any, Head], None]] = {
    f.OpenRow: _open,
    f.Close: _close,
    f.Mark: _mark,
    f.LaneRow: _lane,
    f.AliasRow: _alias,
    f.CallRow: _call,
    f.AnswerRow: _answer,
    f.AnchorRow: _anchor,
    f.ClearRow: _clear,
    f.Touch: _touch,
    f.Uncleared: _uncleared,
    f.SlotRow: _slot,
}
