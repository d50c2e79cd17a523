"""Moving tapes in and out: export, import, backup."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tape
from tape.command.arguments import check_choice
from tape.command.exit_codes import DAMAGED, NOT_FOUND, USAGE, Failure
from tape.command.output import clean, progress
from tape.command.registry import command, one_of
from tape.command.show import json_shapes
from tape.command.show.imports import export_as, import_many, import_one
from tape.command.verbs.find import TapeArgument
from tape.core.amounts import count, size
from tape.transcripts import EXPORT_FORMATS, FORMATS
from tape.transcripts.detecting import NATIVE, detect

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["backup", "check_target", "export", "import_"]

_OPEN_STORE = "if it is a store, open it with --store"


def check_target(path: str, force: bool) -> Path:
    """Return the path of a file to write; an existing one is replaced only with ``force``."""
    target = Path(path)
    if target.is_dir():
        raise Failure(f"{path!r} is a folder", "name a file in it", USAGE)
    if target.exists() and not force:
        raise Failure(f"{path!r} already exists", "add --force to overwrite it")
    if not target.resolve().parent.is_dir():
        raise Failure(f"the folder of {path!r} does not exist", "create it first", NOT_FOUND)
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
    "tape export chat-1 trajectory.json --as atif",
)
def export(
    session: Session,
    tape_: TapeArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; - writes to stdout.")],
    family: Annotated[bool, typer.Option("--family", help="Also export its forks and all related tapes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    target_format: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="FORMAT",
            autocompletion=one_of(*EXPORT_FORMATS),
            help=f"Write a transcript in another format: {', '.join(EXPORT_FORMATS)}.",
        ),
    ] = None,
) -> None:
    """Export a tape, and the tapes it inherits from, as JSON lines with verifiable hashes.

    With --as, write a transcript for another program instead, and report what its format cannot hold.
    """
    if file == "-" and session.out.as_json:
        raise Failure("--json cannot be used while the export goes to stdout", "leave it out, or name a file", USAGE)
    target = None if file == "-" else check_target(file, force)
    if target_format is not None:
        check_choice(target_format, EXPORT_FORMATS, "--as")
        if family:
            raise Failure("--as exports a single tape", "leave out --family", USAGE)
        with session.open(read_only=True) as store:
            export_as(session, session.find(store, tape_), target_format, target)
        return
    with session.open(read_only=True) as store, progress("exporting") as bar:
        chat = session.find(store, tape_)
        try:
            if target is None:
                store.export(chat.id, sys.stdout.buffer, family=family, progress=bar)
                sys.stdout.buffer.flush()
                return
            done = store.export(chat.id, target, family=family, progress=bar)
        except tape.StoreFailed as error:
            if isinstance(error.__cause__, BrokenPipeError):
                raise error.__cause__ from None
            raise
    _print_transfer(session, "exported", done)


@command(
    "tape import chat-1.jsonl",
    "zcat chat-1.jsonl.gz | tape import -",
    "tape import ~/.claude ~/.codex",
    "tape import ~/.claude --watch",
    "tape import --from claude-code session.jsonl --strict",
    name="import",
)
def import_(
    session: Session,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH…", help="Exports, transcripts, or folders of transcripts; - reads stdin."),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            autocompletion=one_of(*FORMATS),
            help=f"The transcript format: {', '.join(FORMATS)} [default: detected].",
        ),
    ] = None,
    tape_: Annotated[
        str | None,
        typer.Option("--tape", metavar="TAPE", help="The id of the tape to import a transcript into."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Reject a transcript that has unreadable lines.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep importing new lines until interrupted.")] = False,
    reuse: Annotated[bool, typer.Option("--reuse", help="Allow an export to reuse the id of a purged tape.")] = False,
) -> None:
    """Import exports and transcripts. Importing again adds only what is new.

    An export is imported completely or not at all. Unreadable lines of a transcript are reported and kept as events.
    """
    if source is not None:
        check_choice(source, FORMATS, "--from")
    several = watch or len(paths) > 1 or (paths != ["-"] and Path(paths[0]).expanduser().is_dir())
    if several:
        if reuse or "-" in paths:
            raise Failure("stdin and --reuse work with a single file only", "import that file on its own", USAGE)
        import_many(session, paths, source, tape_, strict=strict, watch=watch)
        return
    (file,) = paths
    with _input_file(file) as path:
        format = source or _detected(path)
        if format is None:
            raise _unknown_format(file, path)
        if format == NATIVE:
            if tape_ is not None or strict:
                raise Failure(
                    "--tape and --strict work with transcripts only", "leave them out, or add --from FORMAT", USAGE
                )
            with path.open("rb") as lines, session.open(create=True) as store, progress("importing") as bar:
                _print_transfer(session, "imported", store.import_(lines, progress=bar, reuse=reuse))
            return
        if reuse:
            raise Failure("--reuse works with exports only, and this is a transcript", "leave it out", USAGE)
        if tape_ is None and not Path(file).is_file():
            # The name of the file would become the name of the tape.
            named = "stdin" if file == "-" else repr(file)
            raise Failure(f"{named} does not give the tape a name", "name the tape with --tape", USAGE)
        import_one(session, format, path, tape_, strict=strict)


@contextlib.contextmanager
def _input_file(file: str) -> Iterator[Path]:
    """Yield a file that can be read twice. Input that can be read only once is copied to a temporary file."""
    path = Path(file)
    if file != "-" and path.is_file():
        yield path
        return
    with _open_input(file) as source, tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / ("stdin" if file == "-" else path.name)
        with copied.open("wb") as target:
            shutil.copyfileobj(source, target)
        yield copied


def _detected(path: Path) -> str | None:
    try:
        return detect(path)
    except OSError as error:
        raise Failure(f"cannot read {str(path)!r}: {error.strerror}", None, NOT_FOUND) from error


def _unknown_format(file: str, path: Path) -> Failure:
    """Return the error for input that is neither an export nor a transcript."""
    from tape.core.transfer.export_format import SQLITE_HEADER
    from tape.db.transfer.files import is_in_use

    shown = "stdin" if file == "-" else repr(file)
    if is_in_use(path):
        return Failure(f"{shown} is a database that is in use", _OPEN_STORE, DAMAGED)
    with path.open("rb") as source:
        start = source.read(len(SQLITE_HEADER))
    if start == SQLITE_HEADER:
        return Failure(f"{shown} is a SQLite database, not an export or a transcript", _OPEN_STORE, DAMAGED)
    if not start:
        return Failure(f"{shown} is empty", "name an export or a transcript", DAMAGED)
    hint = "name the format with --from; if it is an export, its first line is damaged: export the tape again"
    return Failure(f"{shown} is neither an export nor a transcript in a known format", hint, DAMAGED)


def _open_input(file: str) -> Any:
    """Return the input to read."""
    if file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except IsADirectoryError:
        raise Failure(f"{file!r} is a folder", "name a file", USAGE) from None
    except OSError as error:
        raise Failure(f"cannot read {file!r}: {error.strerror}", None, NOT_FOUND) from error


@command("tape backup before-upgrade.db", "tape --store agent.db backup agent-copy.db --force")
def backup(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Back up a SQLite store to a file while it is in use."""
    target = check_target(file, force)
    with session.open(read_only=True) as store:
        if target.exists() and target.samefile(Path(session.url.database or "")):
            raise Failure(f"{file!r} is the store itself", "name another file for the backup", USAGE)
        store.backup(target)
    written = target.stat().st_size
    if session.out.as_json:
        session.out.json({"file": file, "bytes": written})
    else:
        session.out.line(f"wrote {size(written)} to {clean(file)}")
