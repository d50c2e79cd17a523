"""Where the time of a write and of a read goes: SQLite's own work, and each room of ``tape/``.

Run ``python -m benchmarks.profile``. The process is sampled by the CPU time that it takes, and each sample counts for
the innermost function of the store that was running: for the engine where that waits for a statement, and else for the
room of the function. The same is done for the contender written by hand. Timers are too coarse for single calls; a few
thousand samples tell a share to about one in a hundred.

For writers at the same moment it tells how many writes share a commit, and how long its parts take.
"""

from __future__ import annotations

import argparse
import asyncio
import linecache
import signal
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import tape
from benchmarks.harness import BATCH, numbered
from benchmarks.raw import RawSqlite
from benchmarks.read import LAST, raw_sqlite
from tape.db.engine.sqlite import SqliteDatabase
from tape.db.engine.transaction import Transaction

ROOT = Path(tape.__file__).parent
_EVERY = 0.001
_ENGINE = "the engine's statements"
_OTHER = "the caller"


class Samples:
    """Counts where the main thread is, each time it has used a little of the processor."""

    def __init__(self) -> None:
        self.rooms: Counter[str] = Counter()

    def __enter__(self) -> Samples:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def _take(self, _: int, frame: FrameType | None) -> None:
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT) or path.name in ("raw.py", "read.py"):
                self.rooms[_room(path, linecache.getline(str(path), frame.f_lineno or 0))] += 1
                return
            frame = frame.f_back
        self.rooms[_OTHER] += 1


def _room(path: Path, line: str) -> str:
    # Rows are made as they are fetched, by what a compiled statement has for them.
    if path.name == "compiler.py" or any(word in line for word in ("execute", "fetch", "cursor.")):
        return _ENGINE
    if not path.is_relative_to(ROOT):
        return "by hand"
    return "/".join(path.relative_to(ROOT).parts[:2])


def sampled(call: Callable[[], object], seconds: float) -> tuple[float, Counter[str]]:
    """Run a call for so long; return the CPU microseconds of one, and where the samples were."""
    for _ in range(20):
        call()
    until, calls, began = time.monotonic() + seconds, 0, time.process_time()
    with Samples() as samples:
        while time.monotonic() < until:
            call()
            calls += 1
    return (time.process_time() - began) / calls * 1e6, samples.rooms


def one_at_a_time(folder: Path, seconds: float) -> None:
    """Print the shares of an append, a batch, a context and plain reads, beside those written by hand."""
    message = numbered()
    batch = [message() for _ in range(BATCH)]
    RawSqlite.prepare(folder / "raw.db")
    with ExitStack() as stack:
        raw = RawSqlite(folder / "raw.db", "normal")
        stack.callback(raw.close)
        store = stack.enter_context(tape.open(folder / "tape.db", durability="normal"))
        chat, other = store.tape("chat"), store.tape("other")
        other.extend([message() for _ in range(LAST)])
        connection = sqlite3.connect(folder / "tape.db")
        stack.callback(connection.close)
        select = raw_sqlite(connection, "other")
        jobs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "append, normal durability": (lambda: chat.append(message()), lambda: raw.append(message())),
            f"batch of {BATCH}": (lambda: chat.extend(batch), lambda: raw.extend(batch)),
            f"last {LAST} as dicts": (lambda: other.bodies(limit=LAST), lambda: select(LAST)),
            f"context of {LAST}": (lambda: other.context(budget=100_000), lambda: select(LAST)),
        }
        for name, (ours, theirs) in jobs.items():
            by_hand, hand_rooms = sampled(theirs, seconds)
            cost, rooms = sampled(ours, seconds)
            engine = hand_rooms[_ENGINE] / hand_rooms.total() * by_hand
            print(f"\n{name}: {cost:.0f} µs; by hand {by_hand:.0f} µs, of which {engine:.0f} are {_ENGINE}")
            for room, count in rooms.most_common():
                if count > rooms.total() / 200:
                    print(f"  {count / rooms.total() * cost:7.1f} µs  {room}")


class Commits:
    """Notes each commit while many write: when it began, how long its parts took, how many writes it held."""

    def __init__(self) -> None:
        self.work: list[float] = []
        self.sync: list[float] = []

    def __enter__(self) -> Commits:
        self._run = SqliteDatabase._run
        noting = self

        def run(database: Any, connection: Any, transaction: Transaction, work: Any, again: Any = None) -> Any:
            ended = 0.0

            def timed(inside: Transaction) -> Any:
                nonlocal ended
                began = time.perf_counter()
                result = work(inside)
                ended = time.perf_counter()
                noting.work.append(ended - began)
                return result

            result = noting._run(database, connection, transaction, timed, again)
            noting.sync.append(time.perf_counter() - ended)
            return result

        setattr(SqliteDatabase, "_run", run)  # noqa: B010
        return self

    def __exit__(self, *_: object) -> None:
        setattr(SqliteDatabase, "_run", self._run)  # noqa: B010

    def tell(self, name: str, writes: int, wall: float) -> None:
        """Print what became of the time."""
        commits = len(self.sync)
        work, sync = sum(self.work) / commits * 1e6, sum(self.sync) / commits * 1e6
        each = wall / commits * 1e6
        print(
            f"\n{name}: {writes / wall:.0f} writes a second, {writes / commits:.1f} in a commit. "
            f"A commit every {each:.0f} µs: {work:.0f} in the transaction, {sync:.0f} until it is on disk, "
            f"{each - work - sync:.0f} for callers to be told, to compose and to come back"
        )


def many_at_once(folder: Path, seconds: float) -> None:
    """Print how the writes of threads and tasks are shared, on a tape that all of them write, at full durability."""
    message = numbered()
    with tape.open(folder / "threads.db") as store, Commits() as commits:
        chat = store.tape("chat")
        until, counts = time.monotonic() + seconds, [0] * 16

        def write(number: int) -> None:
            while time.monotonic() < until:
                chat.append(message())
                counts[number] += 1

        began = time.perf_counter()
        threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        commits.tell("16 threads", sum(counts), time.perf_counter() - began)
    with Commits() as commits:
        writes, wall = asyncio.run(_tasks(folder / "tasks.db", seconds))
        commits.tell("200 tasks", writes, wall)


async def _tasks(path: Path, seconds: float) -> tuple[int, float]:
    message, writes = numbered(), 0
    async with tape.open_async(path) as store:
        chat = store.tape("chat")
        began = time.perf_counter()

        async def write() -> None:
            nonlocal writes
            while time.perf_counter() < began + seconds:
                await chat.append(message())
                writes += 1

        await asyncio.gather(*(write() for _ in range(200)))
        return writes, time.perf_counter() - began


def main() -> None:
    """Print all shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each job is sampled")
    parser.add_argument("--folder", type=Path, help="where the files are made; on a real disk for the commits")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tape-profile-", dir=options.folder) as name:
        one_at_a_time(Path(name), options.seconds)
        many_at_once(Path(name), options.seconds)


if __name__ == "__main__":
    main()
