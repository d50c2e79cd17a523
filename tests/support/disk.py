"""Images of a folder as a power cut may leave it, from the log that ``disk_log.c`` writes of a program.

What is modelled:

- A file's bytes are safe up to the last sync of it that had ended, as of the moment at which that sync began.
- Every change of a file after that is there, is not there, or is there in part: of a write any of its sectors of 512
  bytes; of a write that makes the file longer also the length alone, with zeros. Changes do not wait for one another.
- Names that were made, moved and removed are safe after a sync of the folder. Of those that were not synced the first
  so many have happened, in their order, as in the journal of every file system in use.

The wal-index of SQLite (``-shm``) is shared memory, which nobody has after a power cut, and is left out.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["MARKS", "Disk", "Record", "built_logger", "images", "marks", "read_log", "run_logged", "touching"]

MARKS = "marks"
"""The file of the folder whose lines are not part of an image: what the program says, in the order of the log."""
SECTOR = 512

OPEN, CLOSE, WRITE, TRUNCATE, SYNC, SYNCED, UNLINK, RENAME = range(1, 9)
_HEAD = struct.Struct("=IiqQ")
_PATIENCE = 120.0


def built_logger(folder: Path) -> Path:
    """Compile the logger into ``folder``; without a compiler the test is skipped, and in CI it fails."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None or not sys.platform.startswith("linux"):
        why = "power-loss images need Linux and a C compiler: apt-get install gcc libc6-dev"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    library = folder / "disk_log.so"
    source = Path(__file__).with_name("disk_log.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    assert done.returncode == 0, done.stderr
    return library


def run_logged(logger: Path, folder: Path, log: Path, command: list[str], *, sync: int) -> None:
    """Run a program to its end while all that it does to the files of ``folder`` is logged.

    ``sync`` is how many microseconds each sync takes.
    """
    settings = {
        "LD_PRELOAD": str(logger),
        "TAPE_DISK_FOLDER": str(folder.resolve()),
        "TAPE_DISK_LOG": str(log),
        "TAPE_DISK_SYNC": str(sync),
    }
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        command, env={**os.environ, **settings}, cwd=tests, capture_output=True, text=True, timeout=_PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Record(NamedTuple):
    """One thing that the program did."""

    what: int
    file: int
    number: int
    data: bytes


def read_log(log: Path) -> list[Record]:
    """Return all that was logged, in order."""
    raw, at, found = log.read_bytes(), 0, []
    while at < len(raw):
        what, file, number, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        found.append(Record(what, file, number, raw[at : at + size]))
        at += size
    return found


class _Change(NamedTuple):
    """One change of a file: data at an offset, or without data a new length."""

    when: int
    offset: int
    data: bytes | None

    def do(self, file: bytearray) -> None:
        end = self.offset + len(self.data or b"")
        if len(file) < end:
            file.extend(bytes(end - len(file)))
        if self.data is None:
            del file[self.offset :]
        else:
            file[self.offset : end] = self.data

    def do_in_part(self, file: bytearray, pick: random.Random) -> None:
        """Change any of the sectors, or the length alone."""
        if self.data is None:
            return
        end = self.offset + len(self.data)
        if len(file) < end and pick.random() < 0.3:
            file.extend(bytes(end - len(file)))
            return
        cuts = [self.offset, *range((self.offset // SECTOR + 1) * SECTOR, end, SECTOR), end]
        count = len(cuts) - 1
        if pick.random() < 0.5:
            kept = list(range(pick.randint(0, count)))
        else:
            kept = [number for number in range(count) if pick.random() < 0.5]
        for number in kept:
            start, stop = cuts[number], cuts[number + 1]
            _Change(0, start, self.data[start - self.offset : stop - self.offset]).do(file)


class _File:
    """A file, whatever its name: what of it is safe, and what was done to it since."""

    def __init__(self) -> None:
        self.safe = bytearray()
        self.since: list[_Change] = []

    def sync(self, until: int) -> None:
        """Make safe what was done before ``until``."""
        while self.since and self.since[0].when < until:
            self.since.pop(0).do(self.safe)

    def left(self, pick: random.Random, whole: float, torn: float) -> bytes:
        """Return what a power cut leaves; a share of the changes are there whole, a share in part, and no others."""
        found = bytearray(self.safe)
        for change in self.since:
            luck = pick.random()
            if luck < whole:
                change.do(found)
            elif luck < whole + torn:
                change.do_in_part(found, pick)
        return bytes(found)


class Disk:
    """A folder and its files at some point of the log."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder.resolve())
        self._at = 0
        self._names: dict[str, _File] = {}
        """As the program sees them."""
        self._safe: dict[str, _File] = {}
        """As they are after a power cut, at the least."""
        self._since: list[tuple[int, str, _File | None]] = []
        """Names given and, without a file, taken away, since the folder was synced."""
        self._open: dict[int, _File | None] = {}
        """Open files by their descriptors; None is the folder."""
        self._syncs: dict[int, tuple[_File | None, int]] = {}
        self.deaf = False
        """Whether the disk only says that it has synced."""

    def do(self, record: Record) -> None:
        """Do what the program did."""
        self._at += 1
        match record.what:
            case 1:
                self._do_open(record)
            case 2:
                del self._open[record.file]
            case 3 | 4:
                data = record.data if record.what == WRITE else None
                self._file(record.file).since.append(_Change(self._at, record.number, data))
            case 5:
                self._syncs[record.number] = (self._open[record.file], self._at)
            case 6:
                self._do_sync(*self._syncs.pop(record.number))
            case 7:
                self._name(record.data.decode(), None)
            case 8:
                old, new = record.data.decode().split("\0")
                self._name(new, self._names[self._short(old)])
                self._name(old, None)

    def _short(self, path: str) -> str:
        return os.path.relpath(path, self._folder)

    def _file(self, number: int) -> _File:
        file = self._open[number]
        assert file is not None
        return file

    def _do_open(self, record: Record) -> None:
        name = self._short(record.data.decode())
        if name == ".":
            self._open[record.file] = None
            return
        if name not in self._names:
            assert record.number & os.O_CREAT, f"{name} was there before the log"
            self._name(record.data.decode(), _File())
        file = self._open[record.file] = self._names[name]
        if record.number & os.O_TRUNC:
            file.since.append(_Change(self._at, 0, None))

    def _name(self, path: str, file: _File | None) -> None:
        name = self._short(path)
        self._since.append((self._at, name, file))
        _rename(self._names, name, file)

    def _do_sync(self, file: _File | None, until: int) -> None:
        if self.deaf:
            return
        if file is not None:
            file.sync(until)
        while file is None and self._since and self._since[0][0] < until:
            _, name, named = self._since.pop(0)
            _rename(self._safe, name, named)

    def write(self, target: Path, pick: random.Random | None) -> None:
        """Write what a power cut now may leave into a new folder; with ``pick`` None all that the program did."""
        target.mkdir()
        whole = 1.0 if pick is None else pick.choice([0.0, 0.2, 0.5, 0.8, 1.0])
        torn = 0.0 if pick is None else pick.choice([0.0, 0.5, 1.0]) * (1.0 - whole)
        happened = len(self._since) if pick is None else pick.randint(0, len(self._since))
        names = dict(self._safe)
        for _, name, file in self._since[:happened]:
            _rename(names, name, file)
        for name, file in names.items():
            if name != MARKS and not name.endswith("-shm"):
                (target / name).write_bytes(file.left(pick or random.Random(0), whole, torn))


def _rename(names: dict[str, _File], name: str, file: _File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def marks(records: Iterable[Record]) -> Iterator[tuple[int, bytes]]:
    """Give what the program said, each line with the number of records before it."""
    records = list(records)
    for number in touching(records, MARKS):
        yield number, records[number].data


def touching(records: Iterable[Record], name: str) -> Iterator[int]:
    """Give the numbers of the records that write to or sync the file of this name."""
    opened: dict[int, bool] = {}
    for number, record in enumerate(records):
        if record.what == OPEN:
            opened[record.file] = os.path.basename(record.data) == name.encode()
        elif record.what in (WRITE, SYNC, SYNCED) and opened[record.file]:
            yield number


def images(
    records: list[Record], folder: Path, target: Path, points: Iterable[int], *, deaf_from: int | None = None, seed: int
) -> Iterator[tuple[int, Path]]:
    """Make an image for each point, a number of records that were done before the power went; gives it with its path.

    Each image is removed when the next one is asked for. From record ``deaf_from`` on syncs do nothing.
    """
    disk, done = Disk(folder), 0
    for number, point in enumerate(sorted(points)):
        for record in records[done:point]:
            disk.deaf = deaf_from is not None and done >= deaf_from
            disk.do(record)
            done += 1
        image = target / f"image{number}"
        disk.write(image, random.Random(f"{seed}.{number}.{point}"))
        yield point, image
        shutil.rmtree(image)
