"""Reading what a run to summarise is chosen from: every message behind the anchor, and the summaries in force."""

from __future__ import annotations

from tape.core.entries import payloads
from tape.core.entries.payloads import Answer
from tape.core.summaries.compaction import Candidate, Summary
from tape.core.summaries.runs import in_force
from tape.db.sql.rows.view import PathRow
from tape.db.view import paths
from tape.db.view.memory import compactions_on, summary_of
from tape.db.view.tape_view import TapeView
from tape.db.view.values import messages_from_rows
from tape.errors import Corrupt

__all__ = ["candidates"]


def candidates(view: TapeView) -> tuple[list[Candidate], list[Summary]]:
    """Return the messages on the active path behind the latest anchor, covered or not, and the summaries among them."""
    end = view.head.place
    floor = view.anchor_depth(end)
    compactions, _ = in_force(compactions_on(view, end, floor))
    rows = paths.path(view, end, floor)
    messages = []
    for row, message in zip(rows, messages_from_rows(view, rows), strict=True):
        calls = payloads.body_of(row.kind, row.version, row.payload, row.key).calls
        bound = [(answer.call, answer.maker.ordinal) for answer in _bindings(view, row)]
        messages.append(Candidate(message, row.ordinal, calls, bound))
    return messages, [summary_of(view, compaction) for compaction in compactions]


def _bindings(view: TapeView, row: PathRow) -> list[Answer]:
    """Return the calls that a message was bound to, which the entry that placed it tells."""
    kind, version, raw, key = row.kind, row.version, row.payload, row.key
    if kind != "append":
        entry = view.tx.one(view.sql.body, (row.tape_id or view.number, row.placed))
        if entry is None or entry.payload is None:
            raise Corrupt(view.name_of(row.tape_id), row.placed, "the entry that placed the message is missing")
        kind, version, raw, key = entry.kind, entry.version, entry.payload, entry.key
    payload = payloads.decode(kind, version, raw, key=key)
    return payload.answers if isinstance(payload, payloads.Append) else []
