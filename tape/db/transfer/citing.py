"""Whether what a tape cites of another is what is stored there."""

from __future__ import annotations

from tape.core.entries import payloads
from tape.core.transfer.citations import Citation
from tape.db.engine.transaction import Transaction

__all__ = ["contradicted"]


def contradicted(tx: Transaction, cited: Citation) -> bool:
    """Whether both entries of a merge or a discard are stored, and one is another than its counterpart cites."""
    row = tx.one(tx.statements.head, (cited.tape,))
    found = (
        tx.one(tx.statements.entry, (row.number, cited.seq))
        if row is not None and row.tape_status != "purged"
        else None
    )
    if row is None or found is None or bytes(found[12]).hex() == cited.hash:
        return False
    other = tx.one(tx.statements.entry, (row.number, cited.counterpart)) if cited.into else found
    if other is None or other[8] is None:
        return False
    return cited.is_answered_by(payloads.decode(other[3], other[11], other[8]))
