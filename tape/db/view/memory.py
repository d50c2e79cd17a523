"""What a view remembers besides messages: slots of state and blocks, and compactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tape.core.entries import payloads
from tape.core.entries.payloads import ROOT, Payload, Place
from tape.core.plan.lookup import Covered, waiting
from tape.core.summaries.compaction import Summary
from tape.core.summaries.runs import Compaction
from tape.core.view.slots import BLOCKS_AND_PROMPT, beginning_with
from tape.db.sql.rows.view import CompactionRow
from tape.db.view import paths
from tape.errors import Corrupt

if TYPE_CHECKING:
    from tape.db.view.tape_view import TapeView

__all__ = [
    "all_compactions",
    "compact_entry",
    "compactions_on",
    "run",
    "slot",
    "slot_of",
    "slots",
    "slots_between",
    "slots_named",
    "summary_of",
]


def slot(view: TapeView, name: str, *, inherited: bool = True) -> tuple[int, Payload] | None:
    """Return the seq and the entry that a slot holds. A clear hides messages only, so every ancestor counts."""
    held = slot_of(view, name, inherited=inherited)
    return None if held is None else (held[1], held[2])


def slot_of(view: TapeView, name: str, *, inherited: bool = True) -> tuple[str, int, Payload] | None:
    """Return what a slot holds: the tape, the seq and the payload of the entry that set it."""
    lineage = view.whole_lineage() if inherited else view.own_lineage()
    row = view.tx.one(view.sql.slot, (lineage, name))
    if row is None:
        return None
    tape = view.tape if row.tape_id == view.number else view.name_of(row.tape_id)
    return tape, row.since, payloads.decode(row.kind, row.version, row.payload, tape, row.since)


def slots(view: TapeView, prefix: str) -> list[tuple[str, int, Payload]]:
    """Return every slot whose name has this prefix, as the nearest tape with that slot holds it."""
    return slots_between(view, *beginning_with(prefix))


def slots_between(view: TapeView, low: str, high: str, *, inherited: bool = True) -> list[tuple[str, int, Payload]]:
    """Return every slot in a range of names, as the nearest tape with that slot holds it."""
    if not view.prompted and view.ancestry is None and (low, high) == BLOCKS_AND_PROMPT:
        return []
    by_name: dict[str, tuple[str, int, Payload]] = {}
    lineage = view.whole_lineage() if inherited else view.own_lineage()
    for row in view.tx.all(view.sql.slots, (lineage, low, high)):
        if row.slot not in by_name:
            tape = view.tape if row.tape_id == view.number else view.name_of(row.tape_id)
            payload = payloads.decode(row.kind, row.version, row.payload, tape, row.since)
            by_name[row.slot] = (row.slot, row.since, payload)
    return list(by_name.values())


def slots_named(view: TapeView, names: Sequence[str]) -> dict[str, tuple[str, int, Payload]]:
    """Return what each of these slots holds, as the nearest tape with it has it: that tape, the seq and the payload."""
    by_name: dict[str, tuple[str, int, Payload]] = {}
    wanted = msgspec.json.encode(names).decode()
    for row in view.tx.all(view.sql.slots_named, (view.whole_lineage(), wanted)) if names else ():
        if row.slot not in by_name:
            tape = view.tape if row.tape_id == view.number else view.name_of(row.tape_id)
            payload = payloads.decode(row.kind, row.version, row.payload, tape, row.since)
            by_name[row.slot] = (tape, row.since, payload)
    return by_name


def compactions_on(view: TapeView, end: Place, floor: int) -> list[Compaction]:
    """Return the compactions on the path to ``end`` whose whole run is deeper than ``floor``.

    An anchor set inside a run later ends its compaction, as it ends those before it.
    """
    if end == ROOT or (not view.compacted and view.ancestry is None):
        return []
    params = (view.number_of(end.tape), end.lane, end.ordinal, floor, view.lineage())
    rows = view.tx.all(view.sql.compactions_on_path, params)
    return [compaction for compaction in _compactions(view, rows) if compaction.lo > floor] if rows else []


def all_compactions(view: TapeView) -> list[Compaction]:
    """Return every compaction that the tape has or inherits."""
    return _compactions(view, view.tx.all(view.sql.all_compactions, (view.lineage(),)))


def _compactions(view: TapeView, rows: list[CompactionRow]) -> list[Compaction]:
    marks: dict[tuple[int, int], tuple[int, bool, bool]] = {}
    levels: dict[int, int] = {}
    if view.ancestry is not None and rows:
        for mark in view.tx.all(view.sql.compaction_marks, (view.lineage(),)):
            marks.setdefault((mark.origin, mark.seq), (mark.gone, bool(mark.revised), bool(mark.loose)))
        levels = {number: level for level, (number, *_) in enumerate(view.layers())}
    compactions = []
    for row in rows:
        gone, revised, loose = marks.get((row.tape_id, row.seq), (row.gone, bool(row.revised), bool(row.loose)))
        tape = None if row.tape_id == view.number else view.name_of(row.tape_id)
        place = view.place_at(row.lane, row.ordinal, row.head_tape or row.tape_id)
        compactions.append(Compaction(tape, row.seq, place, row.lo, gone, revised, loose, levels.get(row.tape_id, 0)))
    return compactions


def compact_entry(view: TapeView, compaction: Compaction) -> tuple[payloads.Compact, int]:
    """Return the entry that made a compaction, and when."""
    row = view.tx.one(view.sql.body, (view.number_of(compaction.tape), compaction.seq))
    tape = compaction.tape or view.tape
    if row is not None and row.payload is not None:
        payload = payloads.decode(row.kind, row.version, row.payload, tape, compaction.seq, key=row.key)
        if isinstance(payload, payloads.Compact):
            return payload, row.stamp
    raise Corrupt(tape, compaction.seq, "the compaction's entry is missing")


def summary_of(view: TapeView, compaction: Compaction) -> Summary:
    """Return a compaction as readers see it."""
    entry, stamp = compact_entry(view, compaction)
    return Summary(
        text=entry.text,
        seq=compaction.seq,
        first=entry.first,
        last=entry.last,
        covers=entry.covers,
        stale=compaction.revised,
        tape=compaction.tape or view.tape,
        span=entry.span,
        lo=compaction.lo,
        hi=compaction.place.ordinal,
        stamp=stamp,
        levels_up=compaction.levels_up,
    )


def run(view: TapeView, first: Place, last: Place) -> list[Covered]:
    """Return the visible messages from one place to another."""
    messages = []
    for row in paths.path(view, last, first.ordinal - 1):
        place = view.place_at(row.lane, row.ordinal, row.tape_id)
        body = payloads.body_of(row.kind, row.version, row.payload, row.key)
        messages.append(Covered(body.id, place, body.calls, waiting(body), view.bindings(place, row.placed)))
    return messages
