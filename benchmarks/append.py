"""One writer: single appends and batches, against the same rows written by hand.

The batch is held in CPU time, too: at full durability a wait for the disk would hide what it costs.
"""

from __future__ import annotations

from contextlib import ExitStack

import tape
from benchmarks.harness import BATCH, Run, each, numbered, race
from benchmarks.raw import RawSqlite


def append(run: Run) -> None:
    """Race at both levels of durability."""
    for durability, least in (("full", 0.95), ("normal", 0.85)):
        one_writer(run, durability, least)


def one_writer(run: Run, durability: str, least: float) -> None:
    """Race the store against plain ``sqlite3``, each on a file of its own that grows equally."""
    ours, theirs = (run.folder / f"append-{who}-{durability}.db" for who in ("tape", "raw"))
    RawSqlite.prepare(theirs)
    message = numbered()
    batch = [message() for _ in range(BATCH)]
    with ExitStack() as stack:
        raw = RawSqlite(theirs, durability)
        stack.callback(raw.close)
        chat = stack.enter_context(tape.open(ours, durability=durability)).tape("chat")
        many = run.pick(100, 20)
        single = {"raw": each(lambda: raw.append(message()), many), "tape": each(lambda: chat.append(message()), many)}
        times = race(run.pick(60, 3), single)
        what = f"append, SQLite, {durability}"
        run.report.bar(what, times.speed("tape", "raw"), least=least, times=times.all())
        whole = {"raw": each(lambda: raw.extend(batch), 3), "tape": each(lambda: chat.extend(batch), 3)}
        times = race(run.pick(60, 3), whole)
        what = f"batch of {BATCH}, SQLite, {durability}"
        run.report.bar(
            what,
            times.speed("tape", "raw"),
            least=0.8,
            times=times.all(),
        )
        run.report.bar(f"{what}, in CPU time", times.cpu_speed("tape", "raw"), least=0.8)
