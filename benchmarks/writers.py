"""Many writers at once in one process: threads and async tasks, on one tape and on a tape each.

Every contender is held against one thread of hand-written ``sqlite3`` at full durability. After the race each store
is verified, and what it holds must be exactly what was acknowledged.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import tape
from benchmarks.harness import Contender, Run, Times, each, numbered, race
from benchmarks.raw import RawSqlite

THREADS = 16
TASKS = 200
BOTH = ("one tape", "a tape each")


@dataclass
class Ledger:
    """Every append that was acknowledged to a contender, and how to check that the store holds just these."""

    url: Path | sa.URL
    options: dict[str, Any] = field(default_factory=dict)
    receipts: list[tuple[str, int, str | None]] = field(default_factory=list)

    def note(self, receipt: tape.Receipt) -> None:
        """Take down one receipt."""
        self.receipts.append((receipt.tape, receipt.seq, receipt.message_id))

    def check(self) -> None:
        """Hold that nothing was lost, doubled or damaged."""
        with tape.open(self.url, **self.options) as store:
            report = store.verify()
            if not report.ok:
                raise AssertionError(f"verify finds {report.problems[:3]} in {self.url}")
            tapes = {name for name, _, _ in self.receipts}
            held = [(name, m.seq, m.id) for name in tapes for m in store.tape(name).messages()]
        if sorted(held, key=str) != sorted(self.receipts, key=str):
            raise AssertionError(f"{self.url} holds {len(held)} messages, {len(self.receipts)} were acknowledged")


@contextmanager
def opened(ledger: Ledger) -> Iterator[tape.Store]:
    """Open the store of a ledger; check the ledger when the race is over."""
    with tape.open(ledger.url, **ledger.options) as store:
        yield store
    ledger.check()


def crowd(writers: list[Callable[[], list[float]]]) -> Contender:
    """Return the contender that lets every writer run in a thread of its own, from one shot; one alone needs none."""
    if len(writers) == 1:
        return writers[0]

    def one_round() -> list[float]:
        taken: list[list[float]] = []
        failures: list[BaseException] = []
        shot = threading.Barrier(len(writers))

        def run(write: Callable[[], list[float]]) -> None:
            try:
                shot.wait(60)
                taken.append(write())
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(write,)) for write in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [second for one in taken for second in one]

    return one_round


def appending(store: tape.Store, name: str, ledger: Ledger, times: int) -> Contender:
    """Return one writer's round: appends, each with a receipt that goes into the ledger."""
    chat, message = store.tape(name), numbered()
    return each(lambda: ledger.note(chat.append(message())), times)


@contextmanager
def threads_on(ledger: Ledger, threads: int, tapes: int, times: int) -> Iterator[Contender]:
    """Give the contender of so many threads that write so many tapes."""
    with opened(ledger) as store:
        yield crowd([appending(store, f"chat-{n % tapes}", ledger, times) for n in range(threads)])


@contextmanager
def tasks_on(ledger: Ledger, tasks: int, tapes: int, times: int) -> Iterator[Contender]:
    """Give the contender of so many async tasks that write so many tapes."""
    loop = asyncio.new_event_loop()

    async def open_store() -> tape.AsyncStore:
        return await tape.open_async(ledger.url, **ledger.options)

    store = loop.run_until_complete(open_store())
    message = numbered()

    async def write(chat: tape.AsyncTape) -> list[float]:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            receipt = await chat.append(message())
            taken.append(time.perf_counter() - began)
            ledger.note(receipt)
        return taken

    async def one_round() -> list[float]:
        done = await asyncio.gather(*(write(store.tape(f"chat-{n % tapes}")) for n in range(tasks)))
        return [second for one in done for second in one]

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return loop.run_until_complete(work)

    try:
        yield lambda: run(one_round())
    finally:
        run(store.close())
        loop.close()
    ledger.check()


@contextmanager
def raw_thread(path: Path, durability: str, times: int) -> Iterator[Contender]:
    """Give the contender of one thread of hand-written ``sqlite3``."""
    RawSqlite.prepare(path)
    raw, message = RawSqlite(path, durability), numbered()
    yield each(lambda: raw.append(message()), times)
    entries, seq = raw.count()
    assert entries == seq, f"raw holds {entries} entries, its last seq is {seq}"
    raw.close()


def threads(run: Run, *, least: tuple[float, float] = (3, 2.5), slow: bool = False) -> None:
    """16 threads against one thread of raw: on one tape and on a tape each."""
    alone, together = (run.pick(80, 10), run.pick(20, 4)) if slow else (run.pick(300, 20), run.pick(50, 5))
    with ExitStack() as stack:
        enter = stack.enter_context
        contenders = {"raw": enter(raw_thread(run.folder / "threads-raw.db", "full", alone))}
        for name, tapes in zip(BOTH, (1, THREADS), strict=True):
            ledger = Ledger(run.folder / f"threads-{tapes}.db")
            contenders[name] = enter(threads_on(ledger, THREADS, tapes, together))
        times = race(run.pick(6 if slow else 12, 1), contenders)
    tell(run, f"{THREADS} threads", times, least)
    if not slow:
        told = times.all()
        for name in BOTH:
            spread = told[name].p99 / told[name].median
            what = f"{THREADS} threads, {name}: p99 against the median"
            run.report.bar(what, spread, most=4, times={name: told[name]})


def tasks(run: Run, *, least: tuple[float, float] = (8, 6), slow: bool = False) -> None:
    """200 tasks against one thread of raw, on one tape and on a tape each; one task against the sync store."""
    alone, each_task = (run.pick(80, 10), run.pick(8, 1)) if slow else (run.pick(300, 20), run.pick(6, 1))
    count = run.pick(TASKS, 20)
    with ExitStack() as stack:
        enter = stack.enter_context
        contenders = {"raw": enter(raw_thread(run.folder / "tasks-raw.db", "full", alone))}
        if not slow:
            contenders["sync"] = enter(threads_on(Ledger(run.folder / "tasks-sync.db"), 1, 1, alone))
            contenders["one task"] = enter(tasks_on(Ledger(run.folder / "tasks-alone.db"), 1, 1, alone))
        for name, tapes in zip(BOTH, (1, count), strict=True):
            contenders[name] = enter(tasks_on(Ledger(run.folder / f"tasks-{tapes}.db"), count, tapes, each_task))
        times = race(run.pick(6 if slow else 12, 1), contenders)
    if not slow:
        shown = {name: times.measured(name) for name in ("sync", "one task")}
        run.report.bar("async, one task against sync", times.speed("one task", "sync"), least=0.75, times=shown)
    tell(run, f"{count} async tasks", times, least)


def tell(run: Run, who: str, times: Times, least: tuple[float, float]) -> None:
    """Report how fast a crowd is on one tape and on a tape each, against one raw thread."""
    told = times.all()
    for name, bar in zip(BOTH, least, strict=True):
        run.report.bar(
            f"{who}, {name}, against one raw thread",
            times.speed(name, "raw"),
            least=bar,
            times={"raw": told["raw"], name: told[name]},
            note=f"{told['raw'].per_second:.0f} and {told[name].per_second:.0f} a second",
        )
