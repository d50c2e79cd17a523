"""What importing transcripts costs: a folder of sessions against parsing its lines alone, and the same folder again.

The sessions are those of a coding agent: prompts, answers, and tool outputs of 1 to 50 KB, which are written twice.

``python -m benchmarks.transcripts --gigabyte`` runs the command on a folder of 1 000 of them, as a person does, and
watches how much memory its processes take meanwhile. ``--megabytes`` makes it a smaller folder.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

import tape
from benchmarks.harness import Run
from tape.transcripts import import_paths

_SESSION = 1_000_000
"""Bytes of one session."""
_TICK = 0.1
"""Seconds between two looks at the processes."""
_VERIFIED = 20
"""Tapes of a large import that are verified."""


class _Work(NamedTuple):
    """The CPU seconds of an import: of the process that writes, and of the one that reads beside it."""

    writer: float
    reader: float

    @property
    def slower(self) -> float:
        """What the import takes at least where each has a core for itself."""
        return max(self)


def transcripts(run: Run) -> None:
    """Import a folder, import it again, and parse it, in CPU time: the machine may have other things to do."""
    folder = run.folder / "transcripts"
    files = _folder(folder, run.pick(1_000, 12))
    size = sum(file.stat().st_size for file in files) / 1e6
    first, again, parsed = _Work(9e9, 0), _Work(9e9, 0), 9e9
    for number in range(run.pick(3, 1)):
        parsed = min(parsed, _parsing(files))
        with tape.open(run.folder / f"transcripts-{number}.db", durability="normal") as store:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            first = min(first, _importing(store, folder, len(files)), key=sum)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            again = min(again, _importing(store, folder, 0), key=sum)
    rates = f"{size / parsed:.0f} MB/s of msgspec alone; {_stages(first, size)}"
    run.report.bar("importing transcripts on two cores, MB/s", size / first.slower, least=40, note=rates)
    run.report.bar("importing transcripts, to parsing their lines", sum(first) / parsed, most=None, note="CPU time")
    run.report.bar("importing the same folder again, to the first time", sum(again) / sum(first), most=1 / 20, note="")
    run.report.bar("memory that an import adds, MB", grown, most=None, note=f"{size:.0f} MB in {len(files):,} files")


def _stages(work: _Work, size: float) -> str:
    each = f"the writer {1000 * work.writer / size:.1f} and the reader {1000 * work.reader / size:.1f}"
    return f"{each} ms of CPU per MB"


def _folder(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    chance = random.Random(1)
    return [_session(folder / f"{n}.jsonl", chance) for n in range(count)]


def _importing(store: tape.Store, folder: Path, expected: int) -> _Work:
    began, before = time.process_time(), _children()
    taken = sum(bool(file.tapes) for file in import_paths(store, [folder]))
    took = _Work(time.process_time() - began, _children() - before)
    if taken != expected:
        raise AssertionError(f"{taken} files were imported, not {expected}")
    return took


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _parsing(files: list[Path]) -> float:
    began = time.process_time()
    for path in files:
        with path.open("rb") as lines:
            for line in lines:
                msgspec.json.decode(line)
    return time.process_time() - began


def _session(path: Path, chance: random.Random) -> Path:
    """Write a session of about 1 MB."""
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(500)]
    session, parent, size, step = str(UUID(int=chance.getrandbits(128))), None, 0, 0

    def text(length: int) -> str:
        return " ".join(chance.choices(words, k=length // 6))

    with path.open("w") as file:
        while size < _SESSION:
            output, call = text(chance.randint(1_000, 50_000)), f"toolu_{step}"
            usage = {"input_tokens": 5, "cache_read_input_tokens": 1000, "output_tokens": 50}
            answer = {"id": f"msg_{step}", "role": "assistant", "model": "claude-sonnet-4-5", "usage": usage}
            use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": text(100)}}
            result = {"type": "tool_result", "tool_use_id": call, "content": output}
            for kind, message, more in (
                ("user", {"role": "user", "content": text(200)}, {}),
                ("assistant", {**answer, "content": [{"type": "text", "text": text(300)}]}, {}),
                ("assistant", {**answer, "content": [use]}, {}),
                ("user", {"role": "user", "content": [result]}, {"toolUseResult": {"stdout": output, "stderr": ""}}),
            )[step % 10 > 0 :]:
                uuid = str(UUID(int=chance.getrandbits(128)))
                record: dict[str, Any] = {
                    "parentUuid": parent,
                    "isSidechain": False,
                    "sessionId": session,
                    "version": "2.1.40",
                }
                record |= {"type": kind, "message": message, "uuid": uuid, "timestamp": "2026-03-01T10:00:00Z", **more}
                size += file.write(json.dumps(record) + "\n")
                parent = uuid
            step += 1
    return path


class _Watched(NamedTuple):
    """What a run of the command took: CPU seconds of each process, and the memory of all of them at each look."""

    seconds: float
    work: _Work
    memory: list[float]
    """In MB, one after the other."""

    def peak(self, begin: float, end: float) -> float:
        """Return the most memory in a part of the run."""
        looks = len(self.memory)
        return max(self.memory[int(begin * looks) : max(int(end * looks), int(begin * looks) + 1)])


def _watch(*arguments: str) -> _Watched:
    """Run the command and look at its processes until it ends."""
    began, before = time.monotonic(), _children()
    memory: list[float] = []
    readers: dict[int, float] = {}
    with subprocess.Popen([sys.executable, "-m", "tape.command", *arguments], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            looks = [(pid, *look) for pid in (process.pid, *_started_by(process.pid)) if (look := _look(pid))]
            readers.update({pid: cpu for pid, cpu, _ in looks if pid != process.pid})
            memory.append(sum(resident for _, _, resident in looks))
            time.sleep(_TICK)
    if process.returncode:
        raise AssertionError(f"the command ended with {process.returncode}")
    # Those that ended are counted with the one that started them.
    reader = sum(readers.values())
    return _Watched(time.monotonic() - began, _Work(_children() - before - reader, reader), memory)


def _started_by(pid: int) -> Iterator[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return
    yield from map(int, listed.split())


def _look(pid: int) -> tuple[float, float] | None:
    """Return the CPU seconds of a process, and the memory that it holds in MB; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    resident = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    if not resident:
        return None
    user, system = times[11:13]
    return (int(user) + int(system)) / 100, int(resident[0].split()[1]) / 1024


def _large(megabytes: int, home: Path) -> None:
    """Import a large folder with the command, twice, and print what that took."""
    folder, url = home / "sessions", str(home / "large.db")
    files = _folder(folder, megabytes)
    size = sum(file.stat().st_size for file in files) / 1e6
    parsed = _parsing(files)
    print(f"{size:,.0f} MB in {len(files):,} files; msgspec alone parses {size / parsed:.0f} MB/s of CPU")
    first = _watch("--store", url, "import", str(folder))
    print(f"first import: {first.seconds:.1f} s by the clock, {size / first.seconds:.1f} MB/s")
    print(f"  {_stages(first.work, size)}")
    print(f"  with a core for each: at least {first.work.slower:.1f} s, {size / first.work.slower:.1f} MB/s")
    parts = [first.peak(quarter / 4, (quarter + 1) / 4) for quarter in range(4)]
    shown = ", ".join(f"{part:.0f}" for part in parts)
    print(f"  memory of all processes, the peak of each quarter: {shown} MB ({len(first.memory)} looks)")
    again = _watch("--store", url, "import", str(folder))
    print(f"second import: {again.seconds:.1f} s by the clock, {sum(first.work) / sum(again.work):.0f} times less CPU")
    with tape.open(url) as store:
        ids = [info.id for info in store.list(limit=1_000)]
        broken = [id for id in ids[:: max(1, len(ids) // _VERIFIED)] if not store.verify(id).ok]
        print(f"{store.stats().tapes:,} tapes; of those verified, {len(broken)} are broken")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Import a large folder of transcripts with the command.")
    options.add_argument("--gigabyte", action="store_true", help="1 000 sessions of 1 MB")
    options.add_argument("--megabytes", type=int, default=100, help="so many sessions of 1 MB")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="tape-transcripts-") as temporary:
        _large(1_000 if chosen.gigabyte else chosen.megabytes, Path(temporary))
