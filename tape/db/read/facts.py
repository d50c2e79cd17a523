"""Facts of a tape: what is known of it without reading it, its family, and what was merged into it."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from tape.core import strict
from tape.core.entries import payloads
from tape.core.memory.state import Usage, usage_of
from tape.core.records import Ancestor, Descendant, Lineage, MergeReceipt, Source, TapeInfo
from tape.core.view.slots import USAGE
from tape.db.view import memory
from tape.db.view.tape_view import TapeView
from tape.db.view.values import info_from_facts, merge_receipt, payload_of

__all__ = ["info", "inherited", "lineage", "linked", "placed"]


def info(view: TapeView) -> TapeInfo | None:
    """Return what is known of a tape without reading it."""
    row = view.tx.one(view.sql.info, (view.tape,))
    if row is None:
        return None
    facts = row._asdict()
    fork = view.tx.one(view.sql.fork, (view.number,)) if view.forked else None
    used = memory.slot(view, USAGE, inherited=False)
    totals = Usage() if used is None else usage_of(used[1], view.tape, used[0])
    if not view.now:
        facts |= _facts_then(view)
    facts["tokens"], facts["cost"] = totals.input_tokens + totals.output_tokens, totals.cost
    return info_from_facts(facts, None if fork is None else fork.parent, None if fork is None else fork.seq)


def _facts_then(view: TapeView) -> dict[str, Any]:
    """Return what was known of a tape at an earlier seq."""
    head = view.head
    opening = _own_slot(view, None) if view.seq else None
    first = opening if isinstance(opening, payloads.Open) else payloads.Open()
    name, labels, status = (_own_slot(view, slot) for slot in ("name", "labels", "status"))
    held = labels.labels if isinstance(labels, payloads.Label) else first.labels
    return {
        "status": head.status,
        "reason": head.reason,
        "completed_at": head.completed,
        "head_seq": view.seq,
        "head_hash": head.hash,
        "head_view": view.last_change(),
        "head_messages": int(view.tx.value(view.sql.count_then, (view.number, view.seq, view.head.cleared)) or 0),
        "head_last_message": int(view.tx.value(view.sql.last_append, (view.number, view.seq)) or 0),
        "head_stamp": head.stamp,
        "name": name.name if isinstance(name, payloads.Label) else first.name,
        "labels": msgspec.json.encode(held),
        "redirect": status.redirect if isinstance(status, payloads.Status) else None,
    }


def _own_slot(view: TapeView, slot: str | None) -> payloads.Payload | None:
    """Return the entry that a named fact of the tape goes back to; None names the tape's first."""
    if slot is None:
        row = view.tx.one(view.sql.entry, (view.number, 1))
    else:
        row = view.tx.one(view.sql.slot_at, (view.number, slot, view.seq))
    return None if row is None else payload_of(view.tape, row)


def lineage(view: TapeView) -> Lineage:
    """Return a tape's family and what was merged into it."""
    ancestors = view.ancestry.layers if view.ancestry is not None else []
    descendants: list[Descendant] = []
    merges: list[MergeReceipt] = []
    sources: dict[str, Source] = {}
    queue = deque([(view.tape, view.number)])
    while queue:
        parent, number = queue.popleft()
        for child in view.tx.all(view.sql.forks_of, (number,)):
            if child.hidden is None:
                descendants.append(Descendant(child.tape, parent, child.seq, child.state))
            queue.append((child.tape, child.number))
            at = child.merge_seq if child.state == "merged" and number == view.number else 0
            while at and (merged := _merge(view, at, child.tape)) is not None:
                receipt, merge = merged
                merges.append(receipt)
                sources.update((message_id, Source(child.tape, seq)) for message_id, seq in merge.messages)
                at = merge.previous if merge.previous < at else 0
    merges.sort(key=lambda receipt: receipt.seq)
    return Lineage([Ancestor(layer.tape, layer.asof) for layer in ancestors], descendants, merges, sources)


def inherited(view: TapeView) -> dict[str, int]:
    """Return the ancestors of a tape, each with the seq up to which it is inherited."""
    return {layer.tape: layer.asof for layer in view.ancestry.layers} if view.ancestry is not None else {}


def linked(view: TapeView, child: TapeView | None) -> int | None:
    """Return the seq up to which a tape's fork was last merged into or linked to it, or None if it never was."""
    fork = child.tx.one(child.sql.fork, (child.number,)) if child is not None else None
    if child is None or fork is None or fork.parent != view.tape or fork.state != "merged":
        return None
    merged = _merge(view, fork.merge_seq, child.tape)
    return None if merged is None else merged[1].seq


def _merge(view: TapeView, seq: int, child: str) -> tuple[MergeReceipt, payloads.Merge] | None:
    """Return the receipt of the merge recorded at ``seq``, and all that its entry tells.

    A fork that was imported without the later part of its parent has merges that are not here.
    """
    row = view.tx.one(view.sql.entry, (view.number, seq))
    merge = payload_of(view.tape, row) if row is not None else None
    if row is None or not isinstance(merge, payloads.Merge) or merge.tape != child:
        return None
    return merge_receipt(view.tape, row, merge, duplicate=False), merge


def placed(view: TapeView, message_id: str) -> tuple[str, int] | None:
    """Return the tape and the seq that placed a message, in the view or not, or None."""
    placement = view.place(message_id) if strict.is_identifier(message_id) else None
    return None if placement is None else (placement[0].tape or view.tape, placement[1])
