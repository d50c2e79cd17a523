"""Moving an owner from one database of a pool to another while writers go on.

First everything is copied while the source is written to. Then the owner's record at the source is closed, and an entry
on each tape tells so: whoever writes one of them has to read it anew, finds the record closed, and is refused with
OwnerMoved. What was written meanwhile is copied, heads are compared, and the record at the target is opened: from then
on the pool finds the owner there. Each step can be repeated, so a move that was interrupted is simply run again.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec
from msgspec import Struct

from tape.core.places import Away, owner_record
from tape.core.records import Report
from tape.core.transfer.export_format import TapeLine
from tape.db.view.opening import head_row
from tape.errors import StoreFailed, TapeError, TapeHidden
from tape.pool.copies import ARRIVING, CLOSING, LEFT, MOVED, Copies, Span, arriving_spans
from tape.pool.records import away_from, close_record, record_of

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["Move", "Mover"]


class Move(Struct, frozen=True, kw_only=True):
    """What a move did: the tapes, how many entries they have, and how long writers of the owner had to wait."""

    owner: str
    source: str
    target: str
    tapes: list[str]
    entries: int
    seconds: float
    closed_seconds: float
    """For how long the owner's tapes could only be read."""
    report: Report | None = None
    """What ``verify`` found at the target, owner's tapes only."""


class _Head(NamedTuple):
    seq: int
    hash: bytes


class Mover:
    """One move of an owner. The stores see all owners and are not refused by records."""

    def __init__(self, owner: str, source: tuple[str, Store], target: tuple[str, Store]) -> None:
        self._owner = owner
        self._from, self._source = source
        self._to, self._target = target

    def run(self, *, verify: bool) -> Move:
        """Move the owner."""
        began = time.monotonic()
        self._check_free()
        arriving = close_record(self._target, self._owner, Away(self._from, arriving=True))
        self._copy(self._tapes())
        shut = time.monotonic()
        try:
            fence = self._close()
            tapes = self._tapes()
            self._mark(tapes, fence)
            self._tell_left(fence)
            entries = self._copy(tapes)
            self._compare(tapes)
        except BaseException:
            # The target is not open yet, so that the source can be.
            with contextlib.suppress(TapeError):
                record_of(self._source, self._owner).reopen()
            raise
        arriving.reopen()
        opened = time.monotonic()
        report = self._target.scoped(self._owner).verify() if verify else None
        return Move(
            owner=self._owner,
            source=self._from,
            target=self._to,
            tapes=tapes,
            entries=entries,
            seconds=opened - began,
            closed_seconds=opened - shut,
            report=report,
        )

    def _check_free(self) -> None:
        """Refuse a second move of the same owner to somewhere else."""
        away = away_from(self._source, self._owner)
        if away is not None and away.database != self._to:
            raise StoreFailed(
                f"{self._owner!r} is being moved to {away.database!r}; finish that move, or cancel it with cancel_move"
            )

    def _tapes(self) -> list[str]:
        """Return all tapes of the owner, hidden ones as well, oldest first."""
        catalog = self._source._services.catalog
        return [info.id for page in catalog.oldest_first({"owner": self._owner}) for _, info in page]

    def _close(self) -> int:
        """Close the record at the source, and return the seq by which this closing is known."""
        record = close_record(self._source, self._owner, Away(self._to, arriving=False))
        (closing,) = record.entries(kinds=["status"], reverse=True, limit=1)
        return closing.seq

    def _mark(self, tapes: Sequence[str], fence: int) -> None:
        """End every tape here with an entry, so that nobody goes on writing behind a head that is kept in memory."""
        for tape in tapes:
            # A hidden tape refuses every write but the one that shows it, and that one reads the tape first.
            with contextlib.suppress(TapeHidden):
                self._source.tape(tape).event(
                    MOVED, {"from": self._from, "to": self._to}, key=f"pool.moved/{self._from}/{fence}"
                )

    def _tell_left(self, fence: int) -> None:
        """Let readers of the target's feed wait until they have read all that the source has."""
        left = record_of(self._source, self._owner).event(LEFT, {"to": self._to}, key=f"left/{fence}")
        entry = self._source.tape(owner_record(self._owner)).entry(seq=left.seq)
        place = {"from": self._from, "position": str(entry.position)}
        record_of(self._target, self._owner).event(CLOSING, place, key=f"closing/{self._from}/{fence}")

    def _copy(self, tapes: Iterable[str]) -> int:
        """Copy what the target does not have, family by family; returns how many entries the tapes have."""
        copied: set[str] = set()
        known = Copies()
        for event in self._source.tape(owner_record(self._owner)).entries(name=ARRIVING):
            known.learn(event.payload.data)  # type: ignore[union-attr]
        entries = 0
        for tape in tapes:
            if tape not in copied:
                with tempfile.TemporaryFile(prefix="tape-move-") as file:
                    exporter = self._source._services.exporter
                    family = exporter.export(tape, file, family=True, hidden=True)
                    copied.update(family.tapes)
                    entries += family.entries
                    self._announce(known, file)
                    file.seek(0)
                    self._target.import_(file)
        return entries

    def _announce(self, known: Copies, file: BinaryIO) -> None:
        """Record at the target what is about to arrive there."""
        arriving: dict[str, list[Span]] = {}
        for line in _tape_lines(file):
            after = self._head(self._target, line.tape).seq
            if after < line.entries:
                arriving[line.tape] = arriving_spans(known.of(line.tape), self._from, after, line.entries)
        if arriving:
            data = msgspec.to_builtins({"from": self._from, "tapes": arriving})
            record_of(self._target, self._owner).event(ARRIVING, data)

    def _compare(self, tapes: Iterable[str]) -> None:
        """Hold the copies against the tapes."""
        for tape in tapes:
            source_head, target_head = self._head(self._source, tape), self._head(self._target, tape)
            if source_head != target_head:
                raise StoreFailed(
                    f"tape {tape!r} has different heads in {self._from!r} and {self._to!r}: "
                    "a program writes it without the pool; stop that program and move the owner again"
                )

    def _head(self, store: Store, tape: str) -> _Head:
        row = store._db.read(lambda tx: head_row(tx, tape, None, hidden=True))
        return _Head(0, b"") if row is None else _Head(row.seq, bytes(row.hash))


def _tape_lines(file: BinaryIO) -> Iterable[TapeLine]:
    """Yield the line of each tape of an export."""
    file.seek(0)
    while (raw := file.readline()).startswith(b'{"tape":'):
        line = msgspec.json.decode(raw, type=TapeLine)
        yield line
        for _ in range(line.entries):
            file.readline()
