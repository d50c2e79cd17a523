"""Processes that race: each does its part of a test on one signal, and answers with plain values.

The work is named by top-level functions of this module, because another process has to find it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import sqlalchemy as sa

import tape

__all__ = ["killed_while_opening", "killed_while_writing", "open_and_append", "open_new_files", "race", "write_if_head"]

TIMEOUT = 60.0
"""Seconds after which a race has failed. Nothing here takes more than a few."""

_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["tape", "alembic.command", "psycopg"])
_barrier: Any = None


def _join(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def race(work: Callable[..., Any], *args: Any, count: int = 8) -> list[Any]:
    """Run ``work(index, *args)`` in ``count`` processes at once and return what each answered."""
    barrier = _forkserver.Barrier(count)
    with ProcessPoolExecutor(count, mp_context=_forkserver, initializer=_join, initargs=(barrier,)) as pool:
        futures = [pool.submit(work, index, *args) for index in range(count)]
        return [future.result(TIMEOUT) for future in futures]


def write_if_head(index: int, address: str, options: dict[str, Any], name: str, expected: int) -> tuple[str, int]:
    """Append on condition that the head stands at ``expected``; tells ("won", seq) or ("lost", actual head)."""
    with tape.open(address, **options) as store:
        chat = store.tape(name)
        chat.messages()
        _barrier.wait(TIMEOUT)
        try:
            return "won", chat.append(role="user", content=f"from {index}", expected_head=expected).seq
        except tape.HeadMoved as error:
            return "lost", error.actual


class _Migrations(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "tape.migrated" in record.getMessage()


def open_and_append(index: int, address: str, options: dict[str, Any], name: str) -> tuple[int, int]:
    """Open a store at the same instant as others, append once; tells the seq and whether this one migrated."""
    seen = _Migrations()
    logger = logging.getLogger("tape")
    logger.setLevel(logging.INFO)
    logger.addHandler(seen)
    _barrier.wait(TIMEOUT)
    with tape.open(address, **options) as store:
        seq = store.tape(name).append(role="user", content=f"from {index}").seq
    logger.removeHandler(seen)
    return seq, seen.count


def open_new_files(index: int, folder: str, count: int) -> list[str]:
    """Open new SQLite files, each at the same instant as others; tells what went wrong."""
    wrong = []
    for number in range(count):
        _barrier.wait(TIMEOUT)
        try:
            tape.open(f"{folder}/{number}.db").close()
        except tape.TapeError as error:
            wrong.append(repr(error))
    return wrong


def _open_and_die(address: str, options: dict[str, Any], statement: int) -> None:
    left = statement

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    if statement == 0:
        sa.event.listen(sa.Engine, "commit", die)
    tape.open(address, **options).close()


def _killed(target: Callable[..., None], *args: Any) -> bool:
    """Run ``target`` in another process; tells whether it was killed."""
    process = _forkserver.Process(target=target, args=args)
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _write_and_die(address: str, options: dict[str, Any], name: str, point: str) -> None:
    with tape.open(address, **options) as store:

        def die(reached: str) -> None:
            if reached == point:
                os.kill(os.getpid(), signal.SIGKILL)

        store._db.fault = die
        store.tape(name).extend([{"content": "lost"}, {"content": "lost too"}])


def killed_while_writing(address: str, options: dict[str, Any], name: str, point: str) -> bool:
    """Append in a process that is killed (-9) at a named point inside the write; tells whether it came to that."""
    return _killed(_write_and_die, address, options, name, point)


def killed_while_opening(address: str, options: dict[str, Any], statement: int) -> bool:
    """Open the store in a process that is killed (-9) before its n-th statement, or with 0 before its commit.

    Tells whether it came to that.
    """
    return _killed(_open_and_die, address, options, statement)
