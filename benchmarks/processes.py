"""Eight processes on one SQLite file, against eight that use ``sqlite3`` with BEGIN IMMEDIATE and a busy timeout.

The processes stay for the whole race and wait at a barrier between rounds, so that starting them is not measured.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import tape
from benchmarks.harness import Contender, Run, each, numbered, race
from benchmarks.raw import RawSqlite
from benchmarks.writers import BOTH, Ledger, appending

PROCESSES = 8
_PATIENCE = 120


def work(path: Path, name: str, ours: bool, times: int, shot: Barrier, pipe: Connection) -> None:
    """Run rounds in a process until told to stop; send the times of each, and at the end what was acknowledged."""
    with ExitStack() as stack:
        ledger = Ledger(path)
        if ours:
            run = appending(stack.enter_context(tape.open(path)), name, ledger, times)
        else:
            raw, message = RawSqlite(path, "full", name), numbered()
            stack.callback(raw.close)

            def note() -> None:
                seq, message_id, _ = raw.append(message())
                ledger.receipts.append((name, seq, message_id))

            run = each(note, times)
        pipe.send("ready")
        while pipe.recv():
            shot.wait(_PATIENCE)
            pipe.send(run())
        pipe.send(ledger.receipts)


@contextmanager
def workers(path: Path, ours: bool, count: int, tapes: int, times: int) -> Iterator[Contender]:
    """Give the contender of so many processes; check in the end that nothing was lost."""
    # A server that has imported everything forks the workers, before they have a thread or a connection.
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["benchmarks.processes"])
    shot = spawn.Barrier(count)
    pipes: list[Connection] = []
    processes = []
    for n in range(count):
        mine, theirs = spawn.Pipe()
        arguments = (path, f"chat-{n % tapes}", ours, times, shot, theirs)
        process = spawn.Process(target=work, args=arguments, daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)

    def hear(pipe: Connection) -> list[float]:
        if not pipe.poll(_PATIENCE):
            raise AssertionError("a process does not answer")
        heard: list[float] = pipe.recv()
        return heard

    def one_round() -> list[float]:
        for pipe in pipes:
            pipe.send(True)
        return [second for pipe in pipes for second in hear(pipe)]

    try:
        for pipe in pipes:
            hear(pipe)
        yield one_round
        receipts = []
        for pipe in pipes:
            pipe.send(False)
            receipts += hear(pipe)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    if ours:
        Ledger(path, receipts=receipts).check()  # type: ignore[arg-type]
    else:
        raw = RawSqlite(path)
        assert raw.count()[0] == len(receipts) == len(set(receipts)), "raw lost or doubled an append"
        raw.close()


def processes(run: Run) -> None:
    """8 processes on one file, all on one tape and each on its own."""
    count, times = run.pick(PROCESSES, 2), run.pick(60, 5)
    for name, tapes in zip(BOTH, (1, count), strict=True):
        paths = {who: run.folder / f"processes-{who}-{tapes}.db" for who in ("raw", "tape")}
        RawSqlite.prepare(paths["raw"])
        tape.open(paths["tape"]).close()
        with ExitStack() as stack:
            contenders = {
                who: stack.enter_context(workers(path, who == "tape", count, tapes, times))
                for who, path in paths.items()
            }
            taken = race(run.pick(12, 1), contenders)
        told = taken.all()
        note = f"{told['raw'].per_second:.0f} and {told['tape'].per_second:.0f} a second"
        what = f"{count} processes, {name}"
        run.report.bar(
            f"{what}, against raw",
            taken.speed("tape", "raw"),
            least=1.0,
            times=told,
            note=note,
        )
        late = {who: one.p999 for who, one in told.items()}
        note = f"p99.9 {late['raw'] / 1000:.1f} ms and {late['tape'] / 1000:.1f} ms"
        run.report.bar(f"{what}: p99.9 against raw's", late["tape"] / late["raw"], most=1.0, times=told, note=note)
