"""Import of an exported file, all of it or nothing.

An import reads the file twice: once to check every line against the chain and against what is stored, without writing,
and once to write what is missing: long tapes in batches to hidden ones (``staging``), short ones, and what is added
to tapes that are there, in one transaction. Other readers, and the feed, see all of it at once or none of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from msgspec import Struct

from tape.core.entries import payloads
from tape.core.records import Transfer
from tape.core.transfer.citations import Citation, Citations
from tape.core.transfer.export_format import Checker, End, EntryLine, TapeLine
from tape.core.transfer.known_tape import KnownTape, Unsound
from tape.core.transfer.references import References
from tape.core.view.fold import fold
from tape.db.engine.failures import Again, Collision, Lost, Stale
from tape.db.engine.transaction import Transaction, lock_key
from tape.db.record.recorder import Recorder
from tape.db.record.writing import Call, load
from tape.db.sql.rows.entries import EntryRow
from tape.db.transfer.citing import contradicted
from tape.db.transfer.copy import Copy, absent
from tape.db.transfer.files import File, Progress, reading
from tape.db.transfer.staging import Arriving, Moved, sweep
from tape.db.view.ancestry import Ancestry, place_at
from tape.db.view.opening import head_row, open_view
from tape.db.view.values import decoded
from tape.errors import Corrupt, ImportFailed, InvalidEntry, StoreBusy, StoreFailed, TapeExists, TapeNotFound

__all__ = ["Importer", "PurgedId"]

_PAGE = 500
_AT_ONCE = 2_000
"""How many entries are written in one transaction: that many hold up other writers for a fraction of a second."""
_LONGEST = 256 * 1024 * 1024
"""The longest line that is read: more cannot be an entry, and must not fill the memory."""


class PurgedId(ImportFailed):
    """A tape with the id of an exported one was purged. ``reuse=True`` imports it all the same."""

    _advice = "pass reuse=True to use the id again"

    def __init__(self, line: int, tape: str) -> None:
        super().__init__(line, f"tape {tape!r} was purged; {self._advice}")


class _Stored(Struct):
    """A tape of a file: how much of it is stored already, how much the file has, and whose it is."""

    seq: int
    hash: bytes
    entries: int
    owner: str | None = None


class Importer:
    """Imports tapes of one owner, or of all."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._owner = recorder.shared.owner
        self._db = recorder.shared.database
        self._sql = self._db.statements

    def import_(self, file: File, progress: Progress | None, *, reuse: bool) -> Transfer:
        """Check a file, then take in what the store does not have of it."""
        try:
            return self._import(file, progress, reuse=reuse)
        except _Raised as raised:
            raise raised.error from raised.error.__cause__

    def _import(self, file: File, progress: Progress | None, *, reuse: bool) -> Transfer:
        began = time.monotonic()
        with reading(file) as (source, start, size):
            reporting = _Progress(progress, size)
            refused = False
            for _ in range(3):
                source.seek(start)
                stored, digest = self._check(source, reporting.reader(0), reuse=reuse)
                source.seek(start)
                try:
                    entries = self._write(source, reporting.reader(size), stored, digest, reuse=reuse)
                except (Moved, Again, Lost, Stale):
                    # Whatever was written, the next check finds it.
                    continue
                except ImportFailed:
                    # The file passed its check, but does not fit what is stored, which may have changed since.
                    if refused:
                        raise
                    refused = True
                    continue
                for name in stored:
                    self._recorder.forget(name)
                reporting.done()
                return Transfer(tapes=list(stored), entries=entries)
        raise StoreBusy(time.monotonic() - began)

    def _check(
        self, source: BinaryIO, progress: Callable[[int], None], *, reuse: bool
    ) -> tuple[dict[str, _Stored], str]:
        """Check the whole file without writing; returns what is stored of its tapes, and the digest of the file."""
        checker, references, citations = Checker(), References(), Citations()
        stored: dict[str, _Stored] = {}
        hashes: Iterator[str] = iter(())
        digest, tape = "", ""
        for line in _lines(source, checker, progress):
            if isinstance(line, TapeLine):
                tape = line.tape
                if tape in stored:
                    raise checker.wrong(f"tape {tape!r} occurs twice in the file")
                stored[tape] = self._db.read(lambda tx, line=line: self._stored(tx, checker, line, reuse))  # type: ignore[misc]
                hashes = self._hashes(tape, stored[tape].seq)
                references.begin(tape)
            elif isinstance(line, EntryLine):
                known = next(hashes, None)
                if known is not None and known != line.hash:
                    raise checker.wrong("a different entry is stored at this seq")
                payload = checker.payload
                assert payload is not None
                try:
                    if isinstance(payload, payloads.Open):
                        self._opened(checker, tape, payload, stored, references)
                    references.check(line.key, line.source, checker.head, payload, checker.ops)
                    citations.take(checker.line, tape, line.seq, line.hash, payload)
                except Unsound as error:
                    raise checker.wrong(str(error)) from None
            elif isinstance(line, End):
                digest = line.digest
        checker.finish()
        new = [cited for cited in citations.finish() if cited.by_seq > stored[cited.by].seq]
        if new:
            self._db.read(lambda tx: self._agree(tx, new))
        return stored, digest

    def _agree(self, tx: Transaction, citations: list[Citation]) -> None:
        """Check what the file cites of stored tapes."""
        for cited in citations:
            if contradicted(tx, cited):
                raise ImportFailed(
                    cited.line,
                    f"the file cites seq {cited.seq} of tape {cited.tape!r}, which is stored with a different hash",
                )

    def _stored(self, tx: Transaction, checker: Checker, line: TapeLine, reuse: bool) -> _Stored:
        row = tx.one(self._sql.head, (line.tape,))
        if row is None:
            return _Stored(0, b"", line.entries)
        if self._owner is not None and row.owner != self._owner:
            raise TapeNotFound(line.tape)
        if row.tape_status == "purged":
            if reuse:
                return _Stored(0, b"", line.entries)
            raise PurgedId(checker.line, line.tape)
        return _Stored(row.seq, bytes(row.hash), line.entries)

    def _hashes(self, tape: str, upto: int) -> Iterator[str]:
        """Yield the hashes of what is stored of a tape, a page at a time."""
        after = 0
        while after < upto:
            rows = self._db.read(lambda tx, after=after: tx.all(self._sql.hashes_after, (tape, after, upto)))  # type: ignore[misc]
            if not rows:
                return
            yield from (bytes(row.hash).hex() for row in rows)
            after = rows[-1].seq

    def _opened(
        self,
        checker: Checker,
        tape: str,
        opening: payloads.Open,
        stored: dict[str, _Stored],
        references: References,
    ) -> None:
        """Check the owner of a tape, and that all it inherits from is in the file or stored."""
        if self._owner is not None and opening.owner != self._owner:
            raise checker.wrong(f"the tape belongs to another owner than {self._owner!r}")
        stored[tape].owner = opening.owner
        for layer in [] if opening.parent is None else opening.parent.layers:
            ancestor = stored.get(layer.tape)
            if ancestor is None:
                row = self._db.read(lambda tx, layer=layer: head_row(tx, layer.tape, self._owner, hidden=True))  # type: ignore[misc]
                ancestor = None if row is None else _Stored(row.seq, b"", 0, row.owner)
            # A fork has its parent's owner. The error does not reveal that another owner's tape exists.
            if ancestor is None or ancestor.owner != opening.owner or max(ancestor.seq, ancestor.entries) < layer.asof:
                raise checker.wrong(absent(layer))
            known = references.tapes.setdefault(layer.tape, KnownTape(layer.tape))
            self._learn(known, layer.asof)
            if known.seq < layer.asof:
                raise checker.wrong(absent(layer))

    def _learn(self, known: KnownTape, upto: int) -> None:
        """Take in what is stored of a tape behind what the file has of it."""
        while known.seq < upto:

            def page(tx: Transaction) -> tuple[list[EntryRow], Ancestry | None]:
                view = open_view(tx, known.name, self._owner, hidden=True)
                if view is None:
                    return [], None
                return tx.all(self._sql.entries_after, (view.number, known.seq, upto, _PAGE)), view.ancestry

            rows, ancestry = self._db.read(page)
            if not rows:
                return
            for row in rows:
                try:
                    payload = decoded(row)
                    place = place_at(row.lane, row.ordinal, row.head_tape, ancestry)
                    head, ops = fold(known.head, row.seq, bytes(row.hash), row.stamp, place, payload)
                    known.apply(head, payload, ops)
                except (Corrupt, KeyError, IndexError, AttributeError, TypeError) as error:
                    raise Unsound(f"the fork needs tape {known.name!r}, which cannot be folded: {error}") from error

    def _write(
        self,
        source: BinaryIO,
        progress: Callable[[int], None],
        stored: dict[str, _Stored],
        digest: str,
        *,
        reuse: bool,
    ) -> int:
        """Write what is missing."""
        missing = [tape for tape in stored.values() if tape.seq < tape.entries]
        if not missing:
            return 0
        checker = Checker(digest)
        lines = _lines(source, checker, progress)
        try:
            if sum(tape.entries for tape in missing) > _AT_ONCE and not any(tape.seq for tape in missing):
                return self._arrive(lines, checker, stored, reuse)
            return self._db.write(next(iter(stored)), lambda tx: self._take(tx, lines, checker, stored, reuse))
        except (Collision, Corrupt, AssertionError, KeyError) as error:
            raise checker.wrong(f"the entries contradict each other: {error}") from error

    def _take(
        self, tx: Transaction, lines: Iterator[Any], checker: Checker, stored: dict[str, _Stored], reuse: bool
    ) -> int:
        """Write what is missing in this transaction."""
        for name in sorted(stored, key=lock_key):
            tx.lock(name)
        self._unmoved(tx, stored)
        return self._copy(lines, checker, stored, lambda name: self._open(tx, name, checker, reuse))

    def _arrive(self, lines: Iterator[Any], checker: Checker, stored: dict[str, _Stored], reuse: bool) -> int:
        """Write tapes that are not there in batches that nobody sees, and then show all of them."""
        with contextlib.suppress(StoreBusy, StoreFailed, Again, Lost):
            sweep(self._recorder)
        arriving = Arriving(self._recorder, reuse=reuse)

        def show(tx: Transaction) -> int:
            arriving.lock(tx, list(stored))
            self._unmoved(tx, stored)
            return arriving.show(tx)

        try:
            self._copy(lines, checker, stored, lambda name: arriving.open(name, checker))
            return self._db.write(next(iter(stored)), show)
        except BaseException:
            # Whatever was shown after all has another name now, and stays.
            arriving.drop()
            raise

    def _unmoved(self, tx: Transaction, stored: dict[str, _Stored]) -> None:
        """Raise Moved if someone wrote since the check to a tape of which something is missing."""
        for name, tape in stored.items():
            if tape.seq < tape.entries:
                row = tx.one(self._sql.head, (name,))
                now = (0, b"") if row is None or row.tape_status == "purged" else (row.seq, bytes(row.hash))
                if now != (tape.seq, tape.hash):
                    raise Moved

    def _copy(
        self, lines: Iterator[Any], checker: Checker, stored: dict[str, _Stored], open: Callable[[str], Copy]
    ) -> int:
        """Hand every line that is missing to the copy of its tape; returns how many they were."""
        count = 0
        copy: Copy | None = None
        have = 0
        for line in lines:
            if isinstance(line, TapeLine):
                if copy is not None:
                    copy.settle()
                tape = stored[line.tape]
                copy, have = None, tape.seq
                if tape.seq < tape.entries:
                    copy = open(line.tape)
            elif isinstance(line, EntryLine) and copy is not None and line.seq > have:
                try:
                    copy.take(line, payloads.decode(line.kind, line.version, bytes(line.payload), key=line.key))
                except (OverflowError, TypeError, ValueError, IndexError, AttributeError) as error:
                    # Caught here only: errors from the caller's file and progress must reach the caller unchanged.
                    raise checker.wrong(f"the entry cannot be stored: {error}") from error
                count += 1
        if copy is not None:
            copy.settle()
        checker.finish()
        return count

    def _open(self, tx: Transaction, tape: str, checker: Checker, reuse: bool) -> Copy:
        # As for a tape that is created: this gives the id of a purged one free, and refuses what is another owner's.
        call = Call(tape, create=payloads.Open(), reuse=reuse)
        try:
            shared = self._recorder.shared
            return Copy(shared, tx, call, load(shared, tx, call), checker)
        except TapeExists as error:
            raise checker.wrong(str(error)) from None


def _lines(source: BinaryIO, checker: Checker, progress: Callable[[int], None]) -> Iterator[Any]:
    """Yield the checked lines of a file."""
    while raw := _next_line(source):
        yield checker.take(raw)
        progress(len(raw))


def _next_line(source: BinaryIO) -> bytes:
    try:
        return source.readline(_LONGEST)
    except OSError as error:
        raise InvalidEntry("file", f"cannot be read: {error.strerror or error}") from error


class _Raised(Exception):
    """What the caller's callback raised, so that it is taken neither for a fault of the file nor for one of ours."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Progress:
    """Tells the caller how far an import has come, in bytes of both readings of the file."""

    def __init__(self, tell: Progress | None, size: int) -> None:
        self._tell = tell
        self._total = 2 * size

    def reader(self, start: int) -> Callable[[int], None]:
        """Return what counts the bytes of one reading."""
        done = reported = start

        def count(size: int) -> None:
            nonlocal done, reported
            done += size
            if self._tell is not None and done - reported >= 64 * 1024:
                reported = done
                try:
                    self._tell(done, self._total)
                except Exception as error:
                    raise _Raised(error) from error

        return count

    def done(self) -> None:
        """Tell that everything is read."""
        if self._tell is not None:
            self._tell(self._total, self._total)
