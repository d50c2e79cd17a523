"""Importing whole folders: which files changed since the last time, many of them in one transaction.

Of each file a slot of state on its first tape tells what was imported: its size, its time and a digest. A file that has
not changed is not read again; of one that has grown, only what is new is written.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from tape.core import strict as strict_values
from tape.core import typed
from tape.errors import ImportFailed, InvalidEntry, TapeClosed, TapeNotFound
from tape.transcripts.detecting import NATIVE, detect, find_files
from tape.transcripts.formats import parser_of
from tape.transcripts.formats.lines import Reading, digest
from tape.transcripts.importing import Known, Options, Prepared, Progress, prepare, read_steps, write_prepared
from tape.transcripts.reading_process import answered, processes
from tape.transcripts.steps import ImportProblem, Start
from tape.transcripts.writing import ImportedTranscript, Sessions, candidate_ids

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["ImportedFile", "import_paths", "watch_paths"]

_TOGETHER = 4 << 20
"""Bytes of the files that share a transaction."""
_FILES_TOGETHER = 100
"""Files that share a transaction, for which other writers wait."""


class ImportedFile(Struct, frozen=True):
    """What an import did with one file: the tapes that it wrote, and what it could not take as it is."""

    path: str
    format: str | None
    tapes: list[ImportedTranscript] = []
    problems: list[ImportProblem] = []
    unchanged: bool = False
    """Whether it is as it was at the last import, so that it was not read."""
    error: str | None = None
    """Why nothing of it was imported."""


class _State(Struct):
    """What a slot says about a file."""

    path: str
    size: int
    mtime: int
    """In nanoseconds."""
    digest: str
    lines: int


class _Candidate(Struct):
    """A file to import, and what is known of it."""

    path: Path
    format: str
    size: int
    mtime: int
    known: _State | None = None

    @property
    def slot(self) -> str:
        """The name under which its state is kept."""
        return _slot(self.path)


def _slot(path: Path) -> str:
    return f"transcript.{digest(os.fspath(path.resolve()))[:16]}"


def import_paths(
    store: Store,
    paths: Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    tape: str | None = None,
    strict: bool = False,
    live: bool = False,
    progress: Progress | None = None,
) -> Iterator[ImportedFile]:
    """Import files, and all transcripts in folders; yields what was done with each, as it is done.

    The format of each file is detected unless ``format`` names it. In a folder, files that are no transcripts are
    passed over; one that was named itself is yielded with an ``error``, as is any that cannot be imported. Files that
    did not change since the last import are not read again. ``tape``, ``strict`` and ``live`` are those of
    ``import_transcript``. ``progress`` is called with the bytes done and the bytes in all.

    Each file is written as a whole or not at all; several may share a transaction.
    """
    if format is not None:
        parser_of(format)
    if tape is not None:
        strict_values.identifier(tape, "tape")
    listed = list(find_files(paths))
    meter = _Meter(sum(_size(path) for path, _ in listed), progress)
    candidates: list[_Candidate] = []
    options = Options(strict, live, None)
    for path, named in listed:
        outcome = _look(store, path, format, tape, named=named)
        if isinstance(outcome, _Candidate):
            candidates.append(outcome)
        else:
            meter.add(_size(path))
            if outcome is not None:
                yield outcome
    sessions = Sessions()
    for batch in _batches(_read_ahead(candidates, options)):
        for candidate, imported in _write_batch(store, batch, tape, sessions):
            meter.add(candidate.size)
            yield imported


def watch_paths(
    store: Store,
    paths: Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    interval: float = 1.0,
    stop: Callable[[], bool] | None = None,
    sleep: Callable[[float], object] | None = None,
) -> Iterator[ImportedFile]:
    """Keep up with files that are being written: import what is there, look again every ``interval`` seconds.

    Yields each file from which something was taken, until ``stop`` tells to end. ``sleep`` waits between two looks.
    """
    while True:
        for imported in import_paths(store, paths, format=format, live=True):
            if any(done.added for done in imported.tapes) or imported.problems:
                yield imported
        if stop is not None and stop():
            return
        (sleep or time.sleep)(interval)


class _Meter:
    """Adds up the bytes that are done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _look(
    store: Store, path: Path, format: str | None, tape: str | None, *, named: bool
) -> _Candidate | ImportedFile | None:
    """Return a file as one to import, or what is to be told of it; None for a file that is no transcript."""
    shown = os.fspath(path)
    detected = format
    try:
        if not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
            # What is read from a pipe to tell its format is gone, and nobody may ever write to it.
            return ImportedFile(shown, format, error="is not a regular file; save it to a file and import that file")
        detected = format or detect(path)
        if detected is None:
            return ImportedFile(shown, None, error="is not a transcript in a known format") if named else None
        if detected == NATIVE:
            return ImportedFile(shown, detected, error="is a tape export; import it separately") if named else None
        status = path.stat()
        candidate = _Candidate(path, detected, status.st_size, status.st_mtime_ns)
        candidate.known = _state(store, candidate, tape)
    except (OSError, ImportFailed) as error:
        return ImportedFile(shown, detected, error=str(error))
    known = candidate.known
    if known is not None and (known.size, known.mtime) == (status.st_size, status.st_mtime_ns):
        return ImportedFile(shown, detected, unchanged=True)
    return candidate


def _state(store: Store, candidate: _Candidate, tape: str | None) -> _State | None:
    """Return what a file's tape says about it, if it was imported before."""
    ids = [tape] if tape is not None else _tape_ids(candidate)
    for id in ids:
        try:
            value = store.get(id).state(candidate.slot)
        except (TapeNotFound, InvalidEntry):
            continue
        if value is not None:
            try:
                return typed.convert(value, _State)
            except msgspec.ValidationError:
                return None
    return None


def _tape_ids(candidate: _Candidate) -> list[str]:
    """Return the ids that the tape of a file's first conversation can have, by how the file begins."""
    reading = Reading(candidate.format, strict=False)
    with candidate.path.open("rb") as file:
        steps = list(islice(read_steps(file, reading), 3))
    start = next((step for step in steps if isinstance(step, Start)), None)
    first: Any = next((step for step in steps if hasattr(step, "key")), None)
    if start is None:
        return []
    return candidate_ids(start, candidate.path, getattr(first, "lane", ""), getattr(first, "key", None))


Read = tuple[_Candidate, Prepared | ImportedFile]
_Job = tuple[_Candidate, Options]


def _read_ahead(candidates: Sequence[_Candidate], options: Options) -> Iterator[Read]:
    """Yield files that were read, while the next ones are being read."""
    jobs = [(candidate, options) for candidate in candidates]
    count = min(processes(sum(candidate.size for candidate in candidates)), len(jobs) - 1)
    for (candidate, _), read in answered(jobs, lambda job: job[0].size, _read, max(count, 0)):
        yield candidate, read


def _read(job: _Job) -> Prepared | ImportedFile:
    candidate, options = job
    known = candidate.known
    try:
        return prepare(
            candidate.path,
            candidate.format,
            options,
            None if known is None else Known(known.size, known.digest, known.lines),
        )
    except (OSError, ImportFailed) as error:
        return ImportedFile(os.fspath(candidate.path), candidate.format, error=str(error))


def _batches(files: Iterable[Read]) -> Iterator[list[Read]]:
    """Yield files that are written in one transaction."""
    batch: list[Read] = []
    size = 0
    for candidate, read in files:
        batch.append((candidate, read))
        size += candidate.size
        if size >= _TOGETHER or len(batch) >= _FILES_TOGETHER:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_batch(
    store: Store, batch: list[Read], tape: str | None, sessions: Sessions
) -> list[tuple[_Candidate, ImportedFile]]:
    """Write files in one transaction. One that is refused is undone by itself."""

    def write(joined: Store) -> list[tuple[_Candidate, ImportedFile]]:
        return [
            (candidate, read if isinstance(read, ImportedFile) else _write(joined, candidate, read, tape, sessions))
            for candidate, read in batch
        ]

    return store.transaction(write)


def _write(
    joined: Store, candidate: _Candidate, prepared: Prepared, tape: str | None, sessions: Sessions
) -> ImportedFile:
    state = _State(os.fspath(candidate.path.resolve()), prepared.size, candidate.mtime, prepared.digest, prepared.lines)

    def write(inner: Store) -> ImportedFile:
        done, problems = prepared.write(inner, tape, sessions)
        if done and (candidate.known is None or candidate.known != state):
            inner.get(done[0].tape).put(candidate.slot, msgspec.to_builtins(state))
        return ImportedFile(os.fspath(candidate.path), candidate.format, done, problems)

    try:
        return write_prepared(joined, prepared, write)
    except (ImportFailed, InvalidEntry, TapeClosed, TapeNotFound) as error:
        return ImportedFile(os.fspath(candidate.path), candidate.format, error=str(error))
