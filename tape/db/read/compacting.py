"""Reading what a run to summarise is chosen from: every message behind the anchor, and the summaries in force."""

from __future__ import annotations

from tape.core.entries import payloads
from tape.core.entries.payloads import Answer
from tape.core.summaries.compaction import Candidate, Summary
from tape.core.summaries.runs import in_force
from tape.db.engine.transaction import Transaction
from tape.db.view.memory import Recall
from tape.db.view.paths import Row, Scope
from tape.errors import Corrupt

__all__ = ["candidates_of"]


def candidates_of(reader: Recall, tape: str) -> tuple[list[Candidate], list[Summary]]:
    """Return the messages on the active path behind the latest anchor, covered or not, and the summaries among them."""

    def work(tx: Transaction) -> tuple[list[Candidate], list[Summary]]:
        scope = reader.scope(tx, tape)
        if scope is None:
            return [], []
        end = scope.head.place
        anchor = reader.anchor_row(tx, scope, end)
        floor = 0 if anchor is None else anchor[1]
        held, _ = in_force(reader.compactions_on(tx, scope, end, floor))
        rows = reader._path(tx, scope, end, floor)
        candidates = []
        for row, message in zip(rows, reader._messages(tx, scope, rows), strict=True):
            calls = payloads.body_of(row[3], row[4], row[5]).calls
            bound = [(answer.call, answer.maker.ordinal) for answer in _bindings(reader, tx, scope, row)]
            candidates.append(Candidate(message, row[0], calls, bound))
        return candidates, [reader.summary_of(tx, scope, one) for one in held]

    return reader._db.read(work)


def _bindings(reader: Recall, tx: Transaction, scope: Scope, row: Row) -> list[Answer]:
    """Return the calls that a message was bound to, which the entry that placed it tells."""
    _, placed, _, kind, version, raw, *_ = row
    if kind != "append":
        tape = scope.placed_on(row)
        entry = tx.one(reader._sql.body, (tape, placed))
        if entry is None or entry[2] is None:
            raise Corrupt(scope.name(tape), placed, "the entry that placed the message is missing")
        kind, version, raw = entry[0], entry[1], entry[2]
    payload = payloads.decode(kind, version, raw)
    return payload.answers if isinstance(payload, payloads.Append) else []
