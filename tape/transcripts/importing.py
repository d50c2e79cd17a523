"""Writing a transcript's steps to tapes, all of them or none.

The file is read before anything is written, so that one of another format never holds a lock. Its steps are kept for
the transaction that writes what is new; those of a large file are read a second time instead. Records are known by
their keys, so that importing again, also when the file has grown, adds only what was not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from msgspec import Struct

from tape.core.strict import identifier as check_identifier
from tape.errors import ImportFailed, InvalidEntry, TapeError
from tape.transcripts.composing import Composed, compose
from tape.transcripts.formats import FORMATS, parser_of
from tape.transcripts.formats.lines import Reading
from tape.transcripts.steps import Branch, ImportProblem, Message, Start, Step
from tape.transcripts.writing import Beginning, ImportedTranscript, Refused, Sessions, TapeTaken, Writer

if TYPE_CHECKING:
    from tape.store import Store

__all__ = [
    "FORMATS",
    "ImportedTranscript",
    "Known",
    "Options",
    "Prepared",
    "TapeTaken",
    "import_transcript",
    "prepare",
    "read_steps",
    "write_prepared",
]

R = TypeVar("R")
Progress = Callable[[int, int], None]

_REPORT_EVERY = 1 << 18
"""Bytes between two calls of ``progress``."""
_KEPT = 16 << 20
"""Bytes of the largest file whose steps are kept between reading and writing."""
_LONGEST_LINE = 256 << 20
_NEWLINE = 10


def import_transcript(
    store: Store,
    format: str,
    path: str | os.PathLike[str],
    *,
    tape: str | None = None,
    strict: bool = False,
    live: bool = False,
    progress: Progress | None = None,
    report: Callable[[ImportProblem], None] | None = None,
) -> list[ImportedTranscript]:
    """Import a transcript that another program wrote, into tapes of ``store``; all of it in one step.

    ``tape`` is the id of the tape to write to; by default it is the session's own id, or the file's name (with a digest
    behind it if another conversation has a tape of that name). A tape that has the session's id, but that no transcript
    made, is written to only if ``tape`` names it; otherwise the import is refused. A file that holds several
    conversations makes a tape of each, unless ``tape`` is given: then they become branches of that one. Importing again
    adds only what is new. ``progress`` is called with the bytes done and the bytes in all, over reading and writing.

    What cannot be read is handed to ``report`` with its line and kept as an event, and the rest is imported. A last
    line that is only half written is left for the next import. With ``strict`` the first such line ends the import and
    nothing is written. ``live`` says that the file is still being written, so that what is undecided at its end is left
    for the next import, too.

    Raises ImportFailed with the number of the line for a file that is empty or of another format, or that is broken and
    read strictly, and InvalidEntry when there is no such format or file.
    """
    parser_of(format)
    if tape is not None:
        check_identifier(tape, "tape")
    path = Path(path)
    if not path.is_file():
        raise InvalidEntry("path", f"there is no file {os.fspath(path)!r}")
    try:
        prepared = prepare(path, format, Options(strict, live, progress))
        done, problems = write_prepared(store, prepared, lambda joined: prepared.write(joined, tape))
    except OSError as error:
        raise InvalidEntry("path", f"cannot be read: {error}") from error
    if report is not None:
        for problem in problems:
            report(problem)
    return done


class Options(Struct):
    """How a file is imported."""

    strict: bool = False
    live: bool = False
    progress: Progress | None = None

    def reading(self, format: str) -> Reading:
        """Return a new reading of the file."""
        return Reading(format, strict=self.strict, live=self.live)


class Prepared(Struct):
    """A file that was read once, and what is to be written of it."""

    path: Path
    format: str
    options: Options
    size: int
    begins: list[Beginning]
    problems: list[ImportProblem]
    kept: list[Step | Composed] | None
    """The steps; None if the file is to be read again."""
    digest: str
    """Of the bytes that were read."""
    lines: int
    """How many of its lines are complete."""
    known: int = 0
    """How many of its lines were imported before, for sure."""

    def write(
        self, store: Store, tape: str | None, sessions: Sessions | None = None
    ) -> tuple[list[ImportedTranscript], list[ImportProblem]]:
        """Write the steps to tapes of ``store``, in the transaction that it is in, and return what was done."""
        reading, progress = self.options.reading(self.format), self.options.progress
        writer = Writer(store, reading, self.path, tape, self.begins, self.known, sessions)
        if self.kept is not None:
            reading.problems += self.problems
            writer.take_all(_counted(self.kept, self.size, progress))
        else:
            with self.path.open("rb") as file:
                # What is appended to the file meanwhile is for the next import.
                lines = _Lines(file, self.size, self.size, progress, reading)
                writer.take_all(read_steps(lines, reading))
        return writer.done(), reading.problems


def write_prepared(store: Store, prepared: Prepared, write: Callable[[Store], R]) -> R:
    """Run ``write``, which writes a file, in a transaction: once more, from the file, if a step is refused."""
    try:
        return store.transaction(write)
    except Refused:
        prepared.kept = None
        return store.transaction(write)


def prepare(path: Path, format: str, options: Options, known: Known | None = None) -> Prepared:
    """Read a file without writing anything; raises ImportFailed unless it is a transcript of that format."""
    from tape.db.transfer.files import is_in_use

    if is_in_use(path):
        raise ImportFailed(0, "is a database that is in use")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        steps: list[Step | Composed] | None = [] if size <= _KEPT else None
        begins: list[Beginning] = []
        reading = options.reading(format)
        lines = _Lines(file, size, 0, options.progress, reading, known)
        for step in read_steps(lines, reading):
            if isinstance(step, Start):
                begins.append(Beginning())
            elif not isinstance(step, Branch):
                begins[-1].take(step.key, step.message if isinstance(step, Message) and not step.lane else None)
            if steps is not None:
                # Whether it is known already shows only when all that may be was read.
                steps.append(step if known is not None else _composed(step))
    if not begins:
        raise ImportFailed(1, "is empty")
    lines_known = known.lines if known is not None and lines.known_digest == known.digest else 0
    if known is not None and steps is not None:
        steps = [step if step.line <= lines_known else _composed(step) for step in steps]
    return Prepared(
        path,
        format,
        options,
        size,
        begins,
        reading.problems,
        steps,
        lines.digest.hexdigest(),
        lines.complete,
        lines_known,
    )


def _composed(step: Step | Composed) -> Step | Composed:
    return step if isinstance(step, Composed) else compose(step) or step


def read_steps(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Yield the steps of a file, with what could not be read as events in its place.

    Raises ImportFailed with the number of the line for records that no parser expects.
    """
    line = 0

    def counted() -> Iterator[bytes]:
        nonlocal line
        for raw in lines:
            line += 1
            yield raw

    try:
        yield from _steps(counted(), reading)
    except (TapeError, OSError):
        raise
    except Exception as error:
        # A file may hold any value in any place.
        why = f"cannot be read as {reading.format} ({type(error).__name__}: {error})"
        raise ImportFailed(line, why) from error


def _steps(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    started = False
    for step in parser_of(reading.format)(lines, reading):
        if isinstance(step, Start) or not started:
            yield step
            started = True
            continue
        yield from reading.aside()
        yield step
    if started:
        yield from reading.aside()


def _counted(steps: list[Step | Composed], size: int, progress: Progress | None) -> Iterator[Step | Composed]:
    """Yield kept steps, and report how far the writing is as if the file were read again."""
    every = max(1, len(steps) * _REPORT_EVERY // max(size, 1))
    for index, step in enumerate(steps):
        if progress is not None and index % every == 0:
            progress(size + size * index // len(steps), 2 * size)
        yield step
    if progress is not None:
        progress(2 * size, 2 * size)


class Known(Struct):
    """What is known of a file that was imported before: how much of it, and a digest of that."""

    size: int
    digest: str
    lines: int


class _Lines:
    """The lines of the first ``size`` bytes of a file. Reports how far the reading is."""

    def __init__(
        self,
        file: BinaryIO,
        size: int,
        before: int,
        progress: Progress | None,
        reading: Reading,
        known: Known | None = None,
    ) -> None:
        self._file = file
        self._size = size
        self._before = before
        self._progress = progress
        self._reading = reading
        self._known = known
        self.digest = blake2b(digest_size=16)
        self.complete = 0
        self.known_digest: str | None = None
        """The digest of as much as is known, once that was read and if a line ends there."""

    def __iter__(self) -> Iterator[bytes]:
        done = reported = line = 0
        size, progress, readline, update = self._size, self._progress, self._file.readline, self.digest.update
        known = -1 if self._known is None else self._known.size
        while done < size:
            raw = readline(min(size - done, _LONGEST_LINE))
            if not raw:
                break
            done += len(raw)
            line += 1
            update(raw)
            if raw[-1] == _NEWLINE:
                self.complete = line
            elif len(raw) == _LONGEST_LINE:
                done += self._pass_over(line, raw, size - done)
                raw = b"\n"
            if done == known:
                self.known_digest = self.digest.hexdigest()
            if progress is not None and (done - reported >= _REPORT_EVERY or done == size):
                reported = done
                progress(self._before + done, 2 * size)
            yield raw

    def _pass_over(self, line: int, raw: bytes, rest: int) -> int:
        """Skip the rest of a line that is too long, and return its length."""
        self._reading.unreadable(line, f"is longer than {_LONGEST_LINE >> 20} MiB", raw)
        skipped = 0
        while skipped < rest and not raw.endswith(b"\n"):
            raw = self._file.readline(min(rest - skipped, _LONGEST_LINE))
            if not raw:
                break
            self.digest.update(raw)
            skipped += len(raw)
        return skipped
