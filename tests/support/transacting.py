"""The programs that tests of transactions run in other processes, see ``processes.py``."""

from __future__ import annotations

import os
import signal

import tape
from support.processes import ready, say


def count_in_transactions(store: tape.Store, *, index: int, count: int) -> None:
    """Read the numbers on two tapes and write the next ones, so many times; every other process the other way round."""
    names = ["left", "right"][:: -1 if index % 2 else 1]

    def add_one(inside: tape.Store) -> int:
        numbers = [inside.tape(name).state("n") or 0 for name in names]
        assert numbers[0] == numbers[1], "another process came in between"
        for name in names:
            inside.tape(name).put("n", numbers[0] + 1)
        return int(numbers[0]) + 1

    ready()
    for _ in range(count):
        say(store.transaction(add_one))


def die_in_transaction(store: tape.Store, *, stage: str) -> None:
    """Write two tapes in one transaction and be killed (-9) between them, behind them, or before the commit."""

    def die(reached: str) -> None:
        if reached == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    def fn(inside: tape.Store) -> None:
        inside.tape("a").append(role="user", content="lost")
        die("first")
        inside.create("made", messages=[{"content": "lost"}])
        die("second")

    store._db.fault = die
    store.transaction(fn)
