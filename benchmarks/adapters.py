"""Adapters against the stores that their frameworks bring along, in turns: a turn appended, 1 000 loaded, the last 50.

An adapter has a module in ``benchmarks/adapting`` with ``sides``, which opens both stores, and three constants that
tell what the other one is. Its framework is installed by the adapter's extra; ``python -m benchmarks adapters``
measures those that are there and names those that are not.
"""

from __future__ import annotations

import asyncio
import pkgutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, Protocol, cast

from benchmarks import adapting
from benchmarks.harness import TEXT, Contender, Run, each, race
from benchmarks.peers import Place

HELD = 1_000
"""How many messages are there when a turn is appended, and are loaded."""
LAST = 50


@dataclass
class Side:
    """One of two stores behind a framework's interface. The calls return a value, or an awaitable if ``is_async``."""

    turn: Callable[[int], Any]
    """Append turn n: a question and an answer, ``question(n)`` and ``answer(n)``, as the framework hands them over."""
    load: Callable[[], Any]
    """Load the conversation as the framework does at the start of a run; returns its messages."""
    last: Callable[[int], Any] | None = None
    """Load the last n messages, where the framework can ask for them."""
    is_async: bool = True
    fill: Callable[[int], Any] | None = None
    """Append turns 0 to n - 1 faster than one by one; not measured."""


class Adapting(Protocol):
    """A module of ``benchmarks/adapting``."""

    PACKAGE: str
    """The distribution whose version is noted."""
    THEIRS: str
    """What the framework's own store is called."""
    BAR: float | None
    """How many times as fast ours has to be: 1, or 2 if theirs uses an ORM; None if the framework brings no store."""

    def sides(self, place: Place) -> AbstractContextManager[tuple[Side, Side]]:
        """Open ours and theirs, each on a file of its own beside ``place.path``."""
        ...


def question(number: int) -> str:
    """Return what the user says in a turn."""
    return f"question {number:06d} {TEXT}"


def answer(number: int) -> str:
    """Return what the model says in a turn."""
    return f"answer {number:06d} {TEXT}"


def adapters(run: Run) -> None:
    """Race every adapter whose framework is installed; say loudly which is not."""
    loop = asyncio.new_event_loop()
    for name, module in found():
        try:
            version = metadata.version(module.PACKAGE)
        except metadata.PackageNotFoundError:
            run.report.lack(f"{name}: pip install 'tape-store[{name.replace('_', '-')}]'")
            continue
        told = run.report.conditions.get("frameworks", "")
        run.report.conditions["frameworks"] = f"{told}, {module.PACKAGE} {version}".lstrip(", ")
        with module.sides(Place(run.folder / f"adapter_{name}.db", None, loop)) as sides:
            measure(run, loop, name, module, sides)
    loop.close()


def found() -> Iterator[tuple[str, Adapting]]:
    """Yield every adapter that is measured."""
    for info in pkgutil.iter_modules(adapting.__path__):
        yield info.name, cast(Adapting, import_module(f"benchmarks.adapting.{info.name}"))


def measure(run: Run, loop: asyncio.AbstractEventLoop, name: str, module: Adapting, sides: tuple[Side, Side]) -> None:
    """Race the three jobs, and hold ours against theirs."""
    # An adapter that is raced against two stores has a module for each.
    ours, theirs, rounds = f"tape.integrations.{name.partition('_against_')[0]}", module.THEIRS, run.pick(15, 2)
    both = dict(zip((ours, theirs), sides, strict=True))
    turns = run.pick(HELD, 40) // 2
    for who, side in both.items():
        fill(loop, side, turns)
        assert len(called(loop, side, side.load)) == 2 * turns, f"{who} does not load what it was given"
    jobs: dict[str, dict[str, Contender]] = {
        f"load {2 * turns:,}": {who: timed(loop, side, side.load, 2) for who, side in both.items()}
    }
    if sides[0].last is not None and sides[1].last is not None:
        jobs[f"last {LAST}"] = {who: timed(loop, side, _last(side), 5) for who, side in both.items()}
    # At the end, so that both have as many messages in the jobs before.
    jobs["append a turn"] = {who: timed(loop, side, _turns(side, turns), 10) for who, side in both.items()}
    for job, contenders in jobs.items():
        times = race(rounds, contenders)
        what = f"{job}: {ours} against {theirs}"
        run.report.bar(what, times.speed(ours, theirs), least=module.BAR, times=times.all())


def _last(side: Side) -> Callable[[], Any]:
    assert side.last is not None
    last = side.last
    return lambda: last(LAST)


def _turns(side: Side, number: int) -> Callable[[], Any]:
    def turn() -> Any:
        nonlocal number
        number += 1
        return side.turn(number)

    return turn


def fill(loop: asyncio.AbstractEventLoop, side: Side, turns: int) -> None:
    """Give a store its history."""
    if side.fill is not None:
        called(loop, side, lambda: cast(Callable[[int], Any], side.fill)(turns))
        return
    for number in range(turns):
        called(loop, side, lambda number=number: side.turn(number))  # type: ignore[misc]


def called(loop: asyncio.AbstractEventLoop, side: Side, operation: Callable[[], Any]) -> Any:
    """Call a store once."""
    return loop.run_until_complete(operation()) if side.is_async else operation()


def timed(loop: asyncio.AbstractEventLoop, side: Side, operation: Callable[[], Any], times: int) -> Contender:
    """Return a store's round; an async one runs wholly inside the loop, as its users would have it."""
    if not side.is_async:
        return each(operation, times)

    async def one_round() -> list[float]:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            await operation()
            taken.append(time.perf_counter() - began)
        return taken

    return lambda: loop.run_until_complete(one_round())
