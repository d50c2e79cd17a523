"""Export: a tape with its ancestors, or a whole family, written to a file as lines."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from msgspec import Raw, Struct

from tape.core.entries import chain, ids
from tape.core.records import Transfer
from tape.core.transfer import export_format
from tape.core.transfer.export_format import End, EntryLine, TapeLine
from tape.db.engine.transaction import Database, Transaction
from tape.db.sql.rows.entries import EntryRow
from tape.db.transfer.files import File, Progress, writing
from tape.db.view.ancestry import Ancestry, place_at
from tape.db.view.opening import open_view, view_of
from tape.db.view.tape_view import TapeView
from tape.errors import Corrupt

__all__ = ["Exporter"]

_PAGE = 500


class _Part(Struct):
    """A tape of an export: its number, the seq up to which it is written and the hash there, and its family."""

    tape: str
    number: int
    upto: int
    hash: str
    ancestry: Ancestry | None


def _part(view: TapeView) -> _Part:
    """Return a whole tape."""
    return _Part(view.tape, view.number, view.seq, view.head.hash.hex(), view.ancestry)


class Exporter:
    """Exports tapes of one owner, or of all."""

    def __init__(self, database: Database, owner: str | None) -> None:
        self._db = database
        self._sql = database.statements
        self._owner = owner

    def export(
        self, tape: str, file: File, *, family: bool, progress: Progress | None = None, hidden: bool = False
    ) -> Transfer:
        """Write a tape and its ancestors up to the fork points, or the whole family, to a file.

        The tape that is named may be a ``hidden`` one only if that is said.
        """
        read = self._family if family else self._line
        parts = self._db.read(lambda tx: read(tx, tape, hidden=hidden))
        with writing(file) as write:
            digest = blake2b(digest_size=32)

            def write_line(line: Struct) -> None:
                raw = export_format.encode(line) + b"\n"
                digest.update(raw)
                write(raw)

            entries, done = sum(part.upto for part in parts), 0
            for part in parts:
                write_line(TapeLine(part.tape, part.upto, part.hash, export_format.FORMAT))
                for line in self._entries(part):
                    write_line(line)
                    done += 1
                    if progress is not None and (done % _PAGE == 0 or done == entries):
                        progress(done, entries)
            write(export_format.encode(End(len(parts), entries, digest.hexdigest())) + b"\n")
        return Transfer(tapes=[part.tape for part in parts], entries=entries)

    def _line(self, tx: Transaction, tape: str, *, hidden: bool = False) -> list[_Part]:
        """Return a tape with all it inherits from, ancestors first; of these also what is ``hidden``."""
        view = view_of(tx, tape, self._owner, hidden=hidden)
        parts: list[_Part] = []
        for layer in reversed(view.ancestry.layers if view.ancestry is not None else []):
            above = open_view(tx, layer.tape, self._owner, hidden=True)
            if not layer.asof:
                # Nothing of it is inherited, but the fork names it: its first entry goes along, and all that it needs.
                parts += self._line(tx, layer.tape, hidden=True)[:-1]
            upto = max(layer.asof, 1)
            row = tx.one(self._sql.entry, (layer.number, upto))
            if above is None or row is None:
                raise Corrupt(layer.tape, layer.asof, "the entry at which the tape was forked is missing")
            parts.append(_Part(layer.tape, layer.number, upto, bytes(row.hash).hex(), above.ancestry))
        return [*parts, _part(view)]

    def _family(self, tx: Transaction, tape: str, *, hidden: bool) -> list[_Part]:
        """Return the root of a family and all that descends from it, parents first, each to its end."""
        queue = [self._line(tx, tape, hidden=hidden)[0].tape]
        parts = []
        for name in queue:
            view = view_of(tx, name, self._owner, hidden=True)
            parts.append(_part(view))
            # In the order of the parent's entries about them, which is the same in every store.
            children = [row.tape for row in tx.all(self._sql.forks_of, (view.number,))]
            forks = [(self._fork_seq(tx, view.number, child), child) for child in children]
            queue += [child for _, child in sorted(forks)]
        return parts

    def _fork_seq(self, tx: Transaction, number: int, child: str) -> int:
        """Return the seq of a tape's entry about a fork; a tape imported without that part has none."""
        row = tx.one(self._sql.entry_by_key, (number, ids.fork_key(child)))
        return 2**63 if row is None else row.seq

    def _entries(self, part: _Part) -> Iterator[EntryLine]:
        """Yield the entries of a tape a page at a time; they never change, so nothing is held open in between."""
        before, after = chain.ZERO, 0
        while after < part.upto:
            rows = self._db.read(
                lambda tx, after=after: tx.all(self._sql.entries_after, (part.number, after, part.upto, _PAGE))  # type: ignore[misc]
            )
            if not rows:
                raise Corrupt(part.tape, after + 1, "the entry is missing")
            for row in rows:
                line, before = self._entry(part, row, before)
                if line.seq != after + 1:
                    raise Corrupt(part.tape, after + 1, "the entry is missing")
                after = line.seq
                yield line

    def _entry(self, part: _Part, row: EntryRow, before: bytes) -> tuple[EntryLine, bytes]:
        """Return an entry as a line, and its hash, which is computed again."""
        if row.payload is None:
            raise Corrupt(part.tape, row.seq, "the entry was erased, so the tape cannot be exported")
        try:
            place = place_at(row.lane, row.ordinal, row.head_tape, part.ancestry)
        except Corrupt as error:
            raise Corrupt(part.tape, row.seq, error.what) from error
        source = None if row.source_seq is None else (row.source_tape, row.source_seq)
        raw, meta = bytes(row.payload), None if row.meta is None else bytes(row.meta)
        salt = bytes(row.salt or b"")
        try:
            commitment = chain.commit(salt, raw, meta)
        except ValueError as error:
            raise Corrupt(part.tape, row.seq, f"the hash does not match the entry: {error}") from error
        sealed = chain.link(
            before,
            commitment,
            part.tape,
            row.seq,
            row.kind,
            row.key,
            row.actor,
            source,
            row.stamp,
            row.version,
            place,
        )
        if sealed != bytes(row.hash):
            # A damaged tape must not leave the store looking like a sound one.
            raise Corrupt(part.tape, row.seq, "the hash does not match the entry")
        line = EntryLine(
            row.seq,
            row.kind,
            row.key,
            row.actor,
            source,
            row.stamp,
            row.version,
            (place.lane, place.ordinal, place.tape),
            sealed.hex(),
            salt.hex(),
            Raw(b"null" if meta is None else meta),
            Raw(raw),
        )
        return line, sealed
