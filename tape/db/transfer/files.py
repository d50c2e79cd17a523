"""The files of exports and imports: a path, or a binary file that the caller opened."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tape.core import strict
from tape.db.engine.connect import Unwritable, check_replaceable
from tape.errors import InvalidEntry

__all__ = ["File", "Progress", "is_in_use", "reading", "writing"]

File = str | os.PathLike[str] | BinaryIO
Progress = Callable[[int, int], None]


def is_in_use(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a SQLite database that somebody has open, as the log beside it says.

    It is not opened to be looked at: this process would lose its locks on it when the file is closed.
    """
    file = os.path.realpath(path)
    return any(os.path.exists(f"{file}{beside}") for beside in ("-wal", "-shm", "-journal"))


@contextlib.contextmanager
def writing(file: File) -> Iterator[Callable[[bytes], object]]:
    """Give what writes to a file; one with a name appears under it only when it is whole."""
    if not isinstance(file, str | os.PathLike):
        try:
            with _failing(None):
                file.write(b"")
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidEntry("file", "must be a path or a binary file that is open for writing") from error
        write_raw = file.write

        def pass_on(raw: bytes) -> None:
            with _failing(None):
                write_raw(raw)

        yield pass_on
        return
    try:
        path = Path(file)
        check_replaceable(path)
        # A name of its own, or two exports to one path at once would write into each other.
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        with _failing(file):
            out = part.open("xb")
    except (TypeError, ValueError) as error:
        raise InvalidEntry("file", f"cannot be written: {error}") from error

    def write(raw: bytes) -> None:
        with _failing(file):
            out.write(raw)

    try:
        yield write
        with _failing(file):
            out.flush()
            os.fsync(out.fileno())
            out.close()
            part.replace(path)
    except BaseException:
        # On a full disk to close means to try once more to write what is left, and to fail again.
        with contextlib.suppress(OSError):
            out.close()
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _failing(file: str | os.PathLike[str] | None) -> Iterator[None]:
    """Tell what the file system refuses as an error of this library."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ValueError):
            # It is not open for writing at all.
            raise
        raise Unwritable(file, error.strerror or error) from error


@contextlib.contextmanager
def reading(file: File) -> Iterator[tuple[BinaryIO, int, int]]:
    """Open a file to be read twice; gives it with its start and size."""
    if isinstance(file, str | os.PathLike):
        if not os.path.isfile(file):
            raise InvalidEntry("file", f"there is no file {strict.shown(os.fspath(file))}")
        if is_in_use(file):
            raise InvalidEntry("file", f"{strict.shown(os.fspath(file))} is a database in use, not an export")
        with contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(Path(file).open("rb"))
            except OSError as error:
                raise InvalidEntry("file", f"cannot be read: {error.strerror or error}") from error
            yield source, 0, os.fstat(source.fileno()).st_size
        return
    try:
        if not isinstance(file.read(0), bytes):
            raise TypeError("the file gives text")
        start = file.tell()
        size = file.seek(0, os.SEEK_END) - start
        file.seek(start)
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise InvalidEntry("file", "must be a path or a seekable binary file") from error
    yield file, start, size
