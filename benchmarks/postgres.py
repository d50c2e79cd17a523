"""Writers on PostgreSQL: against the same rows in six round trips, each prepared, by as many writers in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import sqlalchemy as sa

import tape
from benchmarks.harness import BATCH, Contender, Run, each, numbered, race, schema
from benchmarks.raw import RawPostgres
from benchmarks.writers import Ledger, crowd, threads_on

WRITERS = 8


def postgres(run: Run) -> None:
    """One writer, eight on their own tapes, eight on one tape, and a batch."""
    if run.postgres is None:
        run.report.lack("PostgreSQL: it was left out")
        return
    many = run.pick(40, 5)
    questions = (
        ("append, PostgreSQL, against six round trips", 1, 1, run.pick(150, 10), 2.0),
        (f"{WRITERS} writers on their own tapes, PostgreSQL", WRITERS, WRITERS, many, 2.2),
        (f"{WRITERS} writers on one tape, PostgreSQL", WRITERS, 1, many, 1.5),
    )
    for what, writers, tapes, times, least in questions:
        with ExitStack() as stack:
            ours, theirs = (stack.enter_context(schema(run.postgres, f"bench_{who}")) for who in ("tape", "raw"))
            raw = stack.enter_context(raw_writers(run.postgres, theirs, writers, tapes, times))
            ledger = Ledger(run.postgres, {"schema": ours})
            mine = stack.enter_context(threads_on(ledger, writers, tapes, times))
            taken = race(run.pick(12, 2), {"raw": raw, "tape": mine})
        told = taken.all()
        note = f"{told['raw'].per_second:.0f} and {told['tape'].per_second:.0f} a second"
        run.report.bar(what, taken.speed("tape", "raw"), least=least, times=told, note=note)
    batch(run, run.postgres)


@contextmanager
def raw_writers(url: sa.URL, name: str, writers: int, tapes: int, times: int) -> Iterator[Contender]:
    """Give the contender of so many hand-written connections on so many tapes."""
    RawPostgres.prepare(url, name)
    raws = [RawPostgres(url, name, f"chat-{n % tapes}") for n in range(writers)]

    def writer(raw: RawPostgres) -> Contender:
        message = numbered()
        return each(lambda: raw.append(message()), times)

    rounds = 0
    run = crowd([writer(raw) for raw in raws])

    def one_round() -> list[float]:
        nonlocal rounds
        rounds += 1
        return run()

    yield one_round
    entries, seq = raws[0].count()
    wanted = rounds * times * writers
    assert (entries, seq) == (wanted, wanted // tapes), f"raw holds {entries} entries to {seq}, wrote {wanted}"
    for raw in raws:
        raw.close()


def batch(run: Run, url: sa.URL) -> None:
    """A batch against one executemany per table."""
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(schema(url, f"bench_{who}")) for who in ("tape", "raw"))
        RawPostgres.prepare(url, theirs)
        raw = RawPostgres(url, theirs)
        stack.callback(raw.close)
        chat = stack.enter_context(tape.open(url, schema=ours)).tape("chat")
        message = numbered()
        messages = [message() for _ in range(BATCH)]
        times = race(
            run.pick(30, 2),
            {
                "raw": each(lambda: raw.extend(messages), 3),
                "tape": each(lambda: chat.extend(messages), 3),
            },
        )
        run.report.bar(f"batch of {BATCH}, PostgreSQL", times.speed("tape", "raw"), least=0.8, times=times.all())
