"""Whether what a tape cites of another is what is stored there."""

from __future__ import annotations

from tape.core.transfer.citations import Citation
from tape.db.engine.transaction import Transaction
from tape.db.view.values import decoded

__all__ = ["contradicted"]


def contradicted(tx: Transaction, cited: Citation) -> bool:
    """Whether both entries of a merge or a discard are stored, and one is another than its counterpart cites."""
    row = tx.one(tx.statements.head, (cited.tape,))
    if row is None or row.tape_status == "purged":
        return False
    entry = tx.one(tx.statements.entry, (row.number, cited.seq))
    if entry is None or bytes(entry.hash).hex() == cited.hash:
        return False
    other = tx.one(tx.statements.entry, (row.number, cited.counterpart)) if cited.into else entry
    if other is None or other.payload is None:
        return False
    return cited.is_answered_by(decoded(other))
