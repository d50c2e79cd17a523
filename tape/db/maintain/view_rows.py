"""The rows of the view's tables that correspond to a view in memory."""

from __future__ import annotations

from typing import Any

from tape.core.entries.payloads import Place
from tape.core.view.in_memory import View
from tape.db.maintain.stored_tape import StoredTape
from tape.db.record.projection import fork_values, tape_of
from tape.db.view.calls import call_key

__all__ = ["rows_of", "seq_of"]

_SEQ_COLUMN = {
    "tape_live": 3,
    "tape_past": 2,
    "tape_lanes": 0,
    "tape_aliases": 1,
    "tape_calls": 1,
    "tape_answers": 3,
    "tape_anchors": 0,
    "tape_events": 1,
    "tape_clears": 0,
    "tape_slots": 1,
    "tape_overrides": 3,
    "tape_compactions": 2,
}
"""The column of each table with the seq of the entry behind a row. Forks and labels have none."""


def seq_of(table: str, row: tuple[Any, ...]) -> int:
    """Return the seq of the entry behind a row of the view."""
    if table not in _SEQ_COLUMN:
        return 1
    seq = row[_SEQ_COLUMN[table]]
    return seq if isinstance(seq, int) else 0


def rows_of(view: View, tape: StoredTape) -> dict[str, set[tuple[Any, ...]]]:
    """Return the rows that each table must hold for a view, without the tape's number."""
    family = tape.ancestry

    def number(name: str | None, own: int = 0) -> int:
        return own if name is None or family is None else family.number(name)

    def at(place: Place) -> tuple[int, int, int]:
        return tape_of(place, family), place.lane, place.ordinal

    forks = set()
    if view.fork is not None and family is not None:
        point, state, merged, merge_seq = view.fork
        forks.add(fork_values(tape.number, point, family, state, merged, merge_seq)[1:])
    return {
        "tape_forks": forks,
        "tape_compactions": {
            (number(made), seq, since, *at(c.place), c.lo, c.gone, int(c.revised), int(c.loose), c.until)
            for (made, seq, since), c in view.compactions.items()
        },
        "tape_overrides": {
            (*at(place), since, o.placed, 0 if o.body is None else number(o.of, tape.number), o.body, o.until, o.why)
            for (place, since), o in view.overrides.items()
        },
        "tape_live": {(lane, ordinal, row.placed, row.since, row.body) for (lane, ordinal), row in view.live.items()},
        "tape_past": {
            (lane, ordinal, since, row.placed, row.body, row.until, row.why)
            for (lane, ordinal, since), row in view.past.items()
        },
        "tape_lanes": {(lane, *at(base)) for lane, base in view.lanes.items()},
        "tape_aliases": set(view.aliases.items()),
        "tape_calls": {
            (call_key(call), seq, place.lane, place.ordinal, at(place)[0]) for call, seq, place in view.calls
        },
        "tape_answers": {
            (*at(maker), place.lane, place.ordinal, call_key(call)) for maker, call, place in view.answers
        },
        "tape_anchors": {(seq, name, *at(place)) for seq, (name, place) in view.anchors.items()},
        "tape_events": {(name, seq) for seq, name in view.events.items()},
        "tape_clears": {
            (seq, *at(row.place), row.hidden, int(row.touched), row.until) for seq, row in view.clears.items()
        },
        "tape_labels": {(label,) for label in view.labels},
        "tape_slots": {(slot, since, until) for (slot, since), until in view.slots.items()},
    }
