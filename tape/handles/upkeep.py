"""Maintenance of a store: checks and repair, purges, retention, export, import, backup, health and counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tape.core import strict
from tape.core.records import Health, Problem, Report, Retention, Stats, Transfer
from tape.db.engine.transaction import Database
from tape.db.read.reader import Reader
from tape.db.record.recorder import Recorder
from tape.errors import InvalidEntry
from tape.handles.options import moment_before, public_as
from tape.handles.services import Services
from tape.handles.tape import Tape

if TYPE_CHECKING:
    from tape.db.transfer.files import File, Progress

__all__ = ["Upkeep"]


@public_as("Store")
class Upkeep:
    """The maintenance calls of a store."""

    _db: Database
    _owner: str | None
    _clock: Callable[[], int]
    _recorder: Recorder
    _reader: Reader
    _services: Services

    def verify(self, id: str | None = None, *, against: Any = None, progress: Progress | None = None) -> Report:
        """Recompute every hash, fold every tape again and compare it with the view; names what is wrong.

        Without ``id`` it also names rows that belong to no tape, wrong tombstones and wrong words in the search index.
        With ``against`` (a receipt kept by the caller) a tape whose end was cut off, whose chain was recomputed, or
        that is gone without having been purged is found, too. ``progress`` is called with the entries done and the
        entries in all.
        """
        from tape.db.maintain.verify import check_receipt, verify

        strict.callback(progress, "progress")
        if id is not None:
            return Tape(self._services, strict.identifier(id, "id"))._verify(against, progress)
        self._services.log_administrative("verify")
        if against is not None:
            check_receipt(against, None)
        return verify(self._db, self._owner, None, against, self._clock(), progress)

    def rebuild(
        self,
        id: str | None = None,
        *,
        progress: Progress | None = None,
        skipped: Callable[[Problem], object] | None = None,
    ) -> int:
        """Rebuild the view from the entries, of one tape or of all; returns how many tapes were rebuilt.

        With all tapes the search index is rebuilt as well, unless the store has an owner, because all owners share it.
        Of all tapes, one whose entries cannot be read keeps its view and is not counted. ``verify`` reports it, and
        ``skipped`` is called with the problem. ``progress`` is called as in ``verify``.
        """
        from tape.db.maintain.rebuild import rebuild

        self._db.outside("rebuild")
        strict.callback(progress, "progress")
        strict.callback(skipped, "skipped")
        self._db.check_writable()
        if id is not None:
            self._reader.check_exists(id := strict.identifier(id, "id"), hidden=True)
        elif self._owner is None:
            self._services.log_administrative("rebuild")
            self._services.searcher.rebuild()
        return rebuild(self._db, self._owner, self._recorder, id, progress, skipped)

    def purge(
        self,
        id: str,
        *,
        forks: bool = False,
        expected_head: int | None = None,
        when_free: bool = False,
        dry_run: bool = False,
    ) -> Retention:
        """Delete a tape permanently; with ``forks``, its forks and theirs as well. Returns what was deleted.

        It is invisible at once, and its rows are deleted in batches. When that is interrupted the same call finishes
        it, and so does ``retain``. A tombstone stays: id, last seq and hash. The id is refused afterwards, unless
        ``create`` may ``reuse`` it.
        Raises TapeInUse while another tape inherits from it or links to it; ``hide`` such a tape. With
        ``expected_head`` (of the tape itself, not of its forks) it raises HeadMoved if someone wrote to it since.

        With ``when_free`` such a tape is hidden at once and marked, ``kept`` says what it waits for, and it is purged
        with the last tape that rests on it. Whichever call purges that one takes the marked tape along in the same
        transaction, and marked ancestors as well, so that no crash leaves one visible; its ``tapes`` name them all.
        Marked tapes that only rest on each other go together. ``unhide`` brings a marked tape back for good.

        With ``dry_run`` it only tells which tapes would go and stay, and refuses what it would refuse.
        """
        self._db.outside("purge")
        purging = self._services.purging
        if not strict.flag(dry_run, "dry_run"):
            self._db.check_writable()
        purge = purging.foresee if dry_run else purging.purge
        return purge(
            strict.identifier(id, "id"),
            forks=strict.flag(forks, "forks"),
            expected_head=None if expected_head is None else strict.seq(expected_head, "expected_head"),
            when_free=strict.flag(when_free, "when_free"),
        )

    def retain(self, *, older_than: timedelta | datetime, status: str | None = None, dry_run: bool = True) -> Retention:
        """Purge tapes that were last written before a moment or longer ago than a time; by default only list them.

        A tape with a more recent fork is kept, as is one that a tape which stays links to; ``kept`` has the reasons.
        Tapes that wait to be purged (``purge`` with ``when_free``) keep no other, and go along however recent they are.
        Each family is purged by itself, so an interrupted run can simply be repeated.
        """
        self._db.outside("retain")
        strict.flag(dry_run, "dry_run")
        if status is not None:
            status = strict.identifier(status, "status")
        if not dry_run:
            self._db.check_writable()
        limit = moment_before(older_than, "older_than", self._clock)
        self._services.log_administrative("retain")
        return self._services.retaining.retain(limit, status, dry_run=dry_run)

    def export(self, id: str, file: File, *, family: bool = False, progress: Progress | None = None) -> Transfer:
        """Write a tape to a file of JSON lines, with its ancestors up to the fork points, or with its whole ``family``.

        ``file`` is a path or a binary file. A named file appears when it is whole. Raises Corrupt rather than
        export what does not verify. ``progress`` is called with the entries done and the entries in all.
        """
        self._db.outside("export")
        strict.callback(progress, "progress")
        id = strict.identifier(id, "id")
        self._services.log_administrative("export", tape=id)
        return self._services.exporter.export(id, file, family=strict.flag(family, "family"), progress=progress)

    def import_(self, file: File, *, progress: Progress | None = None, reuse: bool = False) -> Transfer:
        """Import an exported file: all of it, or nothing.

        The whole file is checked first, and every reference in it. Entries that are stored already are left as they
        are, so importing twice changes nothing. A file that continues where a stored tape ends extends it. Anything
        else raises ImportFailed with the number of the line. ``progress`` is called with the bytes done and the bytes
        in all, over both readings of the file.
        """
        self._db.outside("import_")
        strict.callback(progress, "progress")
        self._db.check_writable()
        return self._services.importer.import_(file, progress, reuse=strict.flag(reuse, "reuse"))

    def backup(self, file: str | os.PathLike[str]) -> None:
        """Copy a live SQLite store to a file, while others read and write it.

        On PostgreSQL use ``pg_dump``. A store with an owner cannot make a backup, which contains all owners' tapes.
        """
        self._db.outside("backup")
        if self._owner is not None:
            raise InvalidEntry("owner", "a backup holds every owner's tapes; open the store without an owner")
        self._services.log_administrative("backup")
        self._db.backup(file)

    def health(self, id: str | None = None) -> Health:
        """Return whether the database answers, its schema, and up to where a tape was last verified.

        With ``id`` it is that tape's last check and head, otherwise the newest check of any tape. Scans nothing. A
        database that cannot be reached is reported as ``ok=False``, not raised.
        """
        return self._services.catalog.health(None if id is None else strict.identifier(id, "id"))

    def stats(self) -> Stats:
        """Count the tapes, entries, messages and bytes; slow on large stores, because it reads every entry's size."""
        self._services.log_administrative("stats")
        return self._services.catalog.stats()
