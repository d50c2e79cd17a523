"""Programs that tests run in other processes, in which a signal interrupts a call, see ``processes.py``."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import tape
from support.processes import heard, ready, say
from support.programs import Beside
from tape.db.engine.postgres import connections

__all__ = ["interrupted", "interrupted_at", "interrupted_at_each_point", "interrupted_often"]


def interrupted(store: tape.Store, *, name: str) -> None:
    """Wait for one's turn to write, be interrupted by a signal, and stay alive."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    chat = store.tape(name)
    chat.append(role="user", content="before")
    ready()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        chat.append(role="user", content="never")
    except Interrupted:
        say("interrupted")
    heard()
    say(chat.append(role="user", content="after").seq)


def interrupted_often(store: tape.Store, *, name: str, seed: int, count: int) -> None:
    """Write beside seven threads until signals have interrupted ``count`` calls; tells what was written."""

    class Interrupted(BaseException):
        pass

    inside = False

    def interrupt(*_: Any) -> None:
        if inside:
            raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    pick, chat = random.Random(seed), store.tape(name)
    chat.append(role="user", content="first")
    ready()
    beside = Beside(chat, 7)
    interrupted = calls = 0
    # How many calls a signal comes too late for depends on the machine.
    while interrupted < count and calls < 100 * count:
        calls += 1
        try:
            try:
                inside = True
                signal.setitimer(signal.ITIMER_REAL, pick.uniform(0.0001, 0.004))
                chat.append(role="user", content=f"main.{calls}")
                beside.acknowledged.append(f"main.{calls}")
            finally:
                inside = False
        except Interrupted:
            interrupted += 1
            inside = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    beside.end()
    say({"acknowledged": ["first", *beside.acknowledged], "odd": beside.odd, "interrupted": interrupted})


def interrupted_at_each_point(
    store: tape.Store, *, name: str, files: tuple[str, ...], error: type[BaseException]
) -> None:
    """Interrupt calls at each point in turn at which a signal can in these files; tells how often, and what was odd."""
    # One place that is not given back is noticed.
    connections._MOST = 1
    chat = store.tape(name)
    chat.append(role="user", content="first")
    calls: list[Callable[[], Any]] = [
        lambda: chat.append(role="user", content="x"),
        lambda: chat.extend([{"role": "user", "content": n} for n in range(3)]),
        # Rows of several tables, which go by pipelines on PostgreSQL.
        lambda: chat.put("slot", chat.info().entry_count),
        chat.messages,
    ]
    ready()
    odd: list[str] = []
    interrupted = 0
    for number, call in enumerate(calls):
        point = 0
        while interrupted_at(call, point, files, error):
            point += 1
            try:
                chat.append(role="user", content="behind")
            except BaseException as failure:
                odd.append(f"call {number}, point {point}: {failure!r}")
        interrupted += point
    say({"interrupted": interrupted, "odd": odd})


def interrupted_at(call: Callable[[], Any], point: int, files: tuple[str, ...], error: type[BaseException]) -> bool:
    """Raise an error at the n-th point in these files at which a signal is handled; tells whether a call came so far.

    Python handles signals when a function begins, and when one that is written in C has ended.
    """
    left, raised = point, False

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal left, raised
        if event in ("call", "c_return") and not raised and frame.f_code.co_filename.endswith(files):
            raised = left == 0
            left -= 1
            if raised:
                raise error

    sys.setprofile(profile)
    try:
        call()
    except error:
        pass
    finally:
        sys.setprofile(None)
    return raised
