"""Moving tapes in and out: export, import, backup."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

import tape
from tape.command.arguments import check_choice
from tape.command.exit_codes import DAMAGED, NOT_FOUND, USAGE, Failure
from tape.command.output import clean, count, progress, size
from tape.command.registry import command, one_of
from tape.command.show import json_shapes
from tape.command.verbs.find import TapeArgument
from tape.transcripts import FORMATS, import_transcript
from tape.transcripts.importing import TapeTaken

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["backup", "export", "import_"]


def _check_target(path: str, force: bool) -> Path:
    """Return the path of a file to write; one that is there is not overwritten unasked."""
    target = Path(path)
    if target.is_dir():
        raise Failure(f"{path!r} is a folder", "name a file in it", USAGE)
    if target.exists() and not force:
        raise Failure(f"{path!r} is there already", "add --force to replace it")
    if not target.resolve().parent.is_dir():
        raise Failure(f"the folder of {path!r} is not there", "create it first", NOT_FOUND)
    return target


def _print_transfer(session: Session, verb: str, done: tape.Transfer) -> None:
    if session.out.as_json:
        session.out.json(json_shapes.members(done, "tapes", "entries"))
    else:
        session.out.line(f"{verb} {count(done.entries, 'entry')} of {count(len(done.tapes), 'tape')}")


@command(
    "tape export chat-1 chat-1.jsonl",
    "tape export chat-1 family.jsonl --family",
    "tape export chat-1 - | gzip > chat-1.jsonl.gz",
)
def export(
    session: Session,
    tape_: TapeArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; - is stdout.")],
    family: Annotated[bool, typer.Option("--family", help="With the whole family, not only what it inherits.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a tape to a file of JSON lines that proves itself, with all that it inherits."""
    if file == "-" and session.out.as_json:
        raise Failure("the export itself goes to stdout", "leave out --json, or name a file", USAGE)
    target = None if file == "-" else _check_target(file, force)
    with session.open() as store, progress("exporting") as bar:
        chat = session.find(store, tape_)
        try:
            if target is None:
                store.export(chat.id, sys.stdout.buffer, family=family, progress=bar)
                sys.stdout.buffer.flush()
                return
            done = store.export(chat.id, target, family=family, progress=bar)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise Failure(f"cannot write {file!r}: {error.strerror}", None) from error
        except tape.StoreFailed as error:
            if isinstance(error.__cause__, BrokenPipeError):
                raise error.__cause__ from None
            if isinstance(error.__cause__, OSError):
                # The file is at fault, not the store.
                raise Failure(str(error), None) from error
            raise
    _print_transfer(session, "exported", done)


@command(
    "tape import chat-1.jsonl",
    "zcat chat-1.jsonl.gz | tape import -",
    "tape import --from claude-code session.jsonl",
    name="import",
)
def import_(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="An export, or with --from a transcript; - is stdin.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            autocompletion=one_of(*FORMATS),
            help=f"Whose transcript it is: {', '.join(FORMATS)}.",
        ),
    ] = None,
    tape_: Annotated[
        str | None,
        typer.Option("--tape", metavar="TAPE", help="Of a transcript: the id of the tape to make or extend."),
    ] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="Take the id of a purged tape again.")] = False,
) -> None:
    """Take in an exported file, or a transcript, all of it or nothing. Importing twice adds only what is new."""
    if source is None and tape_ is not None:
        raise Failure("--tape is for transcripts", "add --from FORMAT", USAGE)
    if source is not None:
        if reuse:
            raise Failure("--reuse is for exports", "leave it out", USAGE)
        _import_transcript(session, source, file, tape_)
        return
    with _open_input(file) as lines, session.open(create=True) as store, progress("importing") as bar:
        done = store.import_(lines, progress=bar, reuse=reuse)
    _print_transfer(session, "imported", done)


def _open_input(file: str) -> Any:
    """Return the file to read. Stdin is copied to a temporary file, since an import reads twice."""
    if file == "-":
        kept: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
        while part := sys.stdin.buffer.read(1 << 20):
            kept.write(part)
        kept.seek(0)
        return kept
    try:
        return Path(file).open("rb")
    except IsADirectoryError:
        raise Failure(f"{file!r} is a folder", "name a file", USAGE) from None
    except OSError as error:
        raise Failure(f"cannot read {file!r}: {error.strerror}", None, NOT_FOUND) from error


@contextlib.contextmanager
def _transcript_file(file: str, into: str | None) -> Iterator[Path]:
    """Yield a file to read a transcript from twice. Input that can be read only once is copied to a temporary file."""
    path = Path(file)
    if file != "-" and path.is_file():
        yield path
        return
    if into is None and (file == "-" or path.exists()) and not path.is_dir():
        # Its name would be the tape's.
        raise Failure(f"{'stdin' if file == '-' else repr(file)} has no name for a tape", "name one with --tape", USAGE)
    with _open_input(file) as source, tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / ("stdin" if file == "-" else path.name)
        with kept.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        yield kept


def _import_transcript(session: Session, source: str, file: str, into: str | None) -> None:
    check_choice(source, FORMATS, "--from")
    with _transcript_file(file, into) as path, session.open(create=True) as store, progress("importing") as bar:
        try:
            done = import_transcript(store, source, path, tape=into, progress=bar)
        except TapeTaken as error:
            raise Failure(f"line {error.line}: {error.fact}", "name another tape with --tape", DAMAGED) from error
        except tape.ImportFailed as error:
            # The hint of the other import is to export the tape again.
            hint = f"nothing was imported; is it a transcript of {source}?"
            raise Failure(str(error), hint, DAMAGED) from error
    if session.out.as_json:
        session.out.array(json_shapes.members(imported) for imported in done)
        return
    for imported in done:
        known_before = f", {imported.known:,} known before" if imported.known else ""
        session.out.line([(clean(imported.tape), "seq"), f" {count(imported.added, 'entry')} added{known_before}"])


@command("tape backup before-upgrade.db", "tape --store agent.db backup agent-copy.db --force")
def backup(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Copy a live SQLite store to a file, while others read and write it."""
    target = _check_target(file, force)
    with session.open() as store:
        if target.exists() and target.samefile(Path(session.url.database or "")):
            raise Failure("a store cannot be copied onto itself", "name another file", USAGE)
        store.backup(target)
    written = target.stat().st_size
    if session.out.as_json:
        session.out.json({"file": file, "bytes": written})
    else:
        session.out.line(f"wrote {size(written)} to {clean(file)}")
