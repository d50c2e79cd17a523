"""Verifying one tape: its chain of hashes, its view, and what it cites of other tapes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tape.core.entries import chain, payloads
from tape.core.entries.payloads import Place
from tape.core.records import Problem, Receipt, ViewProblem
from tape.core.transfer.citations import Citation, cited_by
from tape.core.view.in_memory import View
from tape.db.engine.transaction import Transaction
from tape.db.maintain.stored_tape import Meter, StoredTape, find_tape, fold_row
from tape.db.maintain.view_rows import rows_of, seq_of
from tape.db.record.writing import head_values
from tape.db.sql.rows.entries import EntryRow
from tape.db.sql.rows.tapes import HEAD_COLUMNS
from tape.db.transfer.citing import contradicted
from tape.db.view.ancestry import place_at
from tape.db.view.values import any_text, decoded
from tape.errors import Corrupt

__all__ = ["TapeCheck", "check_tape"]


def check_tape(tape: str, owner: str | None, receipt: Receipt | None, meter: Meter, tx: Transaction) -> TapeCheck:
    """Verify a tape of an owner, against a receipt if there is one; raises TapeNotFound."""
    check = TapeCheck(tx, find_tape(tx, tape, owner), receipt)
    with any_text(tx):
        check.run(meter)
    return check


class TapeCheck:
    """The verification of one tape in one transaction."""

    def __init__(self, tx: Transaction, tape: StoredTape, receipt: Receipt | None) -> None:
        self.tape = tape
        self.problems: list[Problem] = []
        self.erased: list[Problem] = []
        """The entries that were erased on purpose."""
        self.entries = 0
        self.intact = True
        """Whether every entry is, so that the view can be compared with them."""
        self.last = (0, chain.ZERO)
        """The seq and the hash of the last entry."""
        self._tx = tx
        self._receipt = receipt
        self._view = View()
        self._cited: list[Citation] = []
        self._erasures: dict[int, str] | None = None

    def run(self, meter: Meter) -> None:
        """Check the entries and, if they are intact, all that is derived from them."""
        self._check_chain(meter)
        if self.intact:
            try:
                self._compare()
            except Corrupt as error:
                # Most likely an ancestor is gone. The other tapes are verified all the same.
                self._wrong(1, f"the view cannot be compared with the entries: {error}")

    def _wrong(self, seq: int, what: str) -> None:
        self.problems.append(Problem(self.tape.name, seq, what))

    def _broken(self, seq: int, what: str) -> None:
        """Report an entry that cannot be folded, nor any behind it."""
        self.intact = False
        self._wrong(seq, what)

    def _drifted(self, seq: int, what: str) -> None:
        """Report what is wrong with the view alone."""
        self.problems.append(ViewProblem(self.tape.name, seq, what))

    # -- the entries

    def _check_chain(self, meter: Meter) -> None:
        """Recompute the hash of every entry, and fold the entries as long as they are intact."""
        for rows in self.tape.entries(self._tx):
            for row in rows:
                self._check_entry(row)
            meter.add(len(rows))
        last, head, receipt = self.last[0], self.tape.head, self._receipt
        if last != head:
            self.intact = False
            if head:
                self._wrong(min(last, head) + 1, f"the head is at seq {head}, but the entries end at seq {last}")
            else:
                self._drifted(1, f"the head is missing, but the entries end at seq {last}")
        if receipt is not None and receipt.seq > last:
            what = f"the receipt is for seq {receipt.seq}, but the entries end at seq {last}: the end was cut off"
            self._wrong(last + 1, what)

    def _check_entry(self, row: EntryRow) -> None:
        seq, raw = row.seq, row.payload
        before, hash_before = self.last
        self.entries += 1
        if seq != before + 1:
            self._broken(before + 1, f"entries {before + 1} to {seq - 1} are missing")
        source: Any = None if row.source_tape is None and row.source_seq is None else (row.source_tape, row.source_seq)
        place = self._recorded_place(row)
        try:
            hash = bytes(memoryview(row.hash))
            if raw is None:
                commitment = self._erased_commitment(row)
            else:
                commitment = chain.commit(row.salt or b"", raw, row.meta)
            expected = chain.link(
                hash_before,
                commitment,
                self.tape.name,
                seq,
                row.kind,
                row.key,
                row.actor,
                source,
                row.stamp,
                row.version,
                place,
            )
        except (TypeError, ValueError):
            # SQLite accepts text where bytes belong, and bytes that are not valid text.
            self._broken(seq, "a column of the entry has a value of the wrong type")
            self.last = (seq, b"")
            return
        self.last = (seq, hash)
        if expected != hash:
            # Folding an entry that was tampered with would report rows that are right.
            self._broken(seq, "the hash does not match the entry")
        if self._receipt is not None and self._receipt.seq == seq and self._receipt.hash != hash.hex():
            self._wrong(seq, "the hash of the entry is not the one in the receipt: the chain was recomputed")
        if self.intact:
            self._fold(row, place)

    def _fold(self, row: EntryRow, place: Place) -> None:
        try:
            cited = cited_by(self.tape.name, row.seq, fold_row(self._view, row, place))
        except (Corrupt, KeyError, TypeError) as error:
            self._broken(row.seq, f"the entry cannot be folded: {error}")
            return
        if cited is not None:
            self._cited.append(cited)

    def _recorded_place(self, row: EntryRow) -> Place:
        """Return the place in an entry's row; a tape that is no ancestor stays in it, so that the hash fails."""
        try:
            return place_at(row.lane, row.ordinal, row.head_tape, self.tape.ancestry)
        except Corrupt:
            return Place(row.lane, row.ordinal, str(row.head_tape))

    def _erased_commitment(self, row: EntryRow) -> bytes:
        """Return the commitment of an erased entry; b"" for one whose content is missing without an erase entry."""
        self.intact = False
        if self._erasures is None:
            self._erasures = self._read_erasures()
        commitment = b"" if row.commitment is None else bytes(memoryview(row.commitment))
        if row.seq not in self._erasures:
            self._wrong(row.seq, "the payload is missing, and no erase entry accounts for it")
            return b""
        if commitment.hex() != self._erasures[row.seq]:
            self._wrong(row.seq, "the commitment is not the one in the erase entry")
        elif row.salt is not None or row.meta is not None:
            self._wrong(row.seq, "the entry was erased, but its salt or meta is still stored")
        else:
            self.erased.append(Problem(self.tape.name, row.seq, "erased"))
        return commitment

    def _read_erasures(self) -> dict[int, str]:
        """Return the commitments in the erase entries, by the seqs of the entries that they name."""
        erasures: dict[int, str] = {}
        for rows in self.tape.entries(self._tx):
            for row in rows:
                if row.kind == "erase" and row.source_tape is None and row.payload is not None:
                    # An erase entry that cannot be read is ignored here; the check of its hash reports it.
                    with contextlib.suppress(Corrupt):
                        payload = decoded(row)
                        if isinstance(payload, payloads.Erase):
                            erasures[row.source_seq or 0] = payload.commitment
        return erasures

    # -- the view

    def _compare(self) -> None:
        """Compare everything that is derived from the entries with a fold of them."""
        tx, tape, head = self._tx, self.tape, self._view.head
        row = tx.one(tx.statements.head, (tape.name,))
        if row is None or _plain(row)[-len(HEAD_COLUMNS) :] != head_values(head, tape.ancestry):
            self._drifted(tape.head, "the head does not match the entries")
        if (head.status, head.reason, head.completed) != tape.status:
            self._drifted(tape.head, "the status does not match the entries")
        expected = rows_of(self._view, tape)
        for table, statement in tx.statements.dump.items():
            stored = {_plain(values) for values in tx.all(statement, (tape.number,))}
            for values in sorted(stored ^ expected[table], key=repr):
                which = "does not match the entries" if values in stored else "is missing"
                self._drifted(seq_of(table, values), f"a row of {table} {which}")
        self._check_citations()
        self._compare_facts()

    def _compare_facts(self) -> None:
        """Compare what listings show of the tape with its entries."""
        tx, view = self._tx, self._view
        facts = tx.one(tx.statements.info, (self.tape.name,))
        opening = tx.one(tx.statements.entry, (self.tape.number, 1))
        if facts is None:
            return
        labels = msgspec.json.encode(view.labels) if view.labels else None
        if (facts.name, facts.labels, facts.redirect) != (view.name, labels, view.redirect):
            self._drifted(self.tape.head, "name, labels or redirect do not match the entries")
        if facts.hidden != view.head.hidden:
            self._drifted(self.tape.head, "the hidden flag does not match the entries")
        if opening is None:
            return
        payload = decoded(opening)
        if isinstance(payload, payloads.Open) and (payload.owner, payload.agent) != (facts.owner, facts.agent):
            self._wrong(1, "owner or agent do not match the first entry")
        if (opening.meta, opening.stamp) != (facts.meta, facts.created_at):
            self._wrong(1, "meta or creation time do not match the first entry")

    # -- other tapes

    def _check_citations(self) -> None:
        """Check every hash that the tape's entries cite of other tapes, so that a family verifies as one graph."""
        tx = self._tx
        (imported_to,) = tx.one(tx.statements.imported, (self.tape.number,)) or (0,)
        for cited in [*self._forked_from(), *self._cited]:
            row = tx.one(tx.statements.head, (cited.tape,))
            entry = tx.one(tx.statements.entry, (row.number, cited.seq)) if row is not None else None
            if row is not None and row.tape_status == "purged":
                continue
            if entry is not None and bytes(entry.hash).hex() == cited.hash:
                continue
            if tx.one(tx.statements.tombstone, (cited.tape,)) is not None:
                # The tape that was cited was purged, and another has its id.
                continue
            imported = cited.kind != "open" and cited.by_seq <= imported_to
            if imported and not contradicted(tx, cited):
                # The tape was imported without the tapes that it cites, or without those parts of them. What is there
                # now was written later.
                continue
            if entry is None:
                self._wrong(cited.by_seq, f"the entry cites seq {cited.seq} of tape {cited.tape!r}, which is missing")
            else:
                self._wrong(
                    cited.by_seq, f"the entry cites seq {cited.seq} of tape {cited.tape!r} with a different hash"
                )

    def _forked_from(self) -> list[Citation]:
        """Return what the first entry of a fork cites of its parent."""
        point = self._view.fork[0] if self._view.fork is not None else None
        if point is None or not point.seq:
            return []
        return [Citation(self.tape.name, 1, "open", False, point.tape, point.seq, point.hash)]


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row with its bytes as bytes, whatever the driver made of them."""
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
