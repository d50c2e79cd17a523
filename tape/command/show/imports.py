"""Transcripts for the command: what was imported of each file, what could not be read, and what an export loses."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tape
from tape.command.exit_codes import DAMAGED, Failure
from tape.command.output import clean, progress
from tape.command.show import json_shapes
from tape.core.amounts import count
from tape.transcripts import (
    ImportedFile,
    ImportedTranscript,
    ImportProblem,
    export_transcript,
    import_paths,
    import_transcript,
    watch_paths,
)
from tape.transcripts.importing import TapeTaken

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["export_as", "import_many", "import_one"]

_SHOWN = 10
"""How many lines of one file are reported one by one."""


def import_one(session: Session, format: str, path: Path, into: str | None, *, strict: bool) -> None:
    """Import one transcript and print what was done to each tape."""
    problems: list[ImportProblem] = []
    with session.open(create=True) as store, progress("importing") as bar:
        try:
            done = import_transcript(
                store, format, path, tape=into, strict=strict, progress=bar, report=problems.append
            )
        except TapeTaken as error:
            raise Failure(f"line {error.line}: {error.fact}", "choose another tape with --tape", DAMAGED) from error
        except tape.ImportFailed as error:
            # The hint of the other import is to export the tape again.
            hint = f"nothing was imported; check that the format of the file is {format}, or choose another --from"
            raise Failure(str(error), hint, DAMAGED) from error
    _report(session, str(path), problems)
    if session.out.as_json:
        session.out.array(json_shapes.members(imported) for imported in done)
    else:
        _print_tapes(session, done)


def import_many(
    session: Session, paths: list[str], format: str | None, into: str | None, *, strict: bool, watch: bool
) -> None:
    """Import files and folders, print what was new, and fail at the end if files were refused."""
    files: list[ImportedFile] = []
    with session.open(create=True) as store:
        if watch:
            _print_files(session, watch_paths(store, paths, format=format), files)
        else:
            with progress("importing") as bar:
                imported = import_paths(store, paths, format=format, tape=into, strict=strict, progress=bar)
                files += imported
            _print_files(session, files, [])
    if session.out.as_json:
        session.out.array(_shape(file) for file in files)
    else:
        session.out.note(_summary(files))
    refused = [file for file in files if file.error is not None]
    if refused:
        raise Failure(f"{count(len(refused), 'file')} could not be imported", "see the reasons above", DAMAGED)


def export_as(session: Session, chat: tape.Tape, format: str, target: Path | None) -> None:
    """Write a tape as another program's transcript, to a file or to stdout."""
    lost: list[str] = []
    lines = export_transcript(chat, format, report=lost.append)
    if target is None:
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    else:
        try:
            # A concurrent reader sees the old file, or the whole new one.
            part = target.with_name(f"{target.name}.part")
            with part.open("wb") as file:
                file.writelines(lines)
            part.replace(target)
        except OSError as error:
            raise Failure(f"cannot write {str(target)!r}: {error.strerror}", None) from error
    if session.out.as_json:
        session.out.json({"tape": chat.id, "format": format, "file": str(target), "lost": lost})
        return
    if target is not None:
        session.out.line(f"exported {clean(chat.id)} as {format}")
    if lost:
        session.out.note(f"{format} cannot hold {', '.join(lost)}")


def _print_files(session: Session, files: Iterable[ImportedFile], printed: list[ImportedFile]) -> None:
    for file in files:
        printed.append(file)
        if file.error is not None:
            session.out.note(f"{clean(file.path)}: {clean(file.error)}")
        _report(session, file.path, file.problems)
        if not session.out.as_json:
            _print_tapes(session, [done for done in file.tapes if done.added])
            session.out.flush()


def _print_tapes(session: Session, done: Iterable[ImportedTranscript]) -> None:
    for imported in done:
        known_before = f", {imported.known:,} already imported" if imported.known else ""
        session.out.line([(clean(imported.tape), "seq"), f" {count(imported.added, 'entry')} added{known_before}"])


def _report(session: Session, path: str, problems: list[ImportProblem]) -> None:
    for problem in problems[:_SHOWN]:
        session.out.note(f"{clean(path)}:{problem.line}: {clean(problem.reason)}")
    if len(problems) > _SHOWN:
        session.out.note(f"{clean(path)}: {count(len(problems) - _SHOWN, 'more line')} with problems")


def _summary(files: list[ImportedFile]) -> str:
    imported = [file for file in files if file.tapes]
    added = sum(done.added for file in imported for done in file.tapes)
    unchanged = sum(file.unchanged for file in files)
    summary = f"{count(added, 'entry')} added from {count(len(imported), 'file')}"
    summary += f", {unchanged:,} unchanged" if unchanged else ""
    lines = sum(len(file.problems) for file in files)
    return summary + (f", {count(lines, 'line')} with problems" if lines else "")


def _shape(file: ImportedFile) -> dict[str, Any]:
    return {
        **json_shapes.members(file, "path", "format", "unchanged", "error"),
        "tapes": [json_shapes.members(done) for done in file.tapes],
        "problems": [json_shapes.members(problem) for problem in file.problems],
    }
