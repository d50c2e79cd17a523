"""The race against other stores, job by job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import Any

from benchmarks.harness import BATCH, Contender, Run, Times, each, numbered, race, schema
from benchmarks.peers import OURS, OURS_ASYNC, OURS_POSTGRES, PEERS, RAW, Kind, Message, Peer, Place

HELD = 2_000
"""How many messages the history has to which one more is appended, and of which the last 50 are read."""
MANY = 10_000
LAST = 50
STEP = 1_000
"""How many messages at once a history is filled with."""


def peers(run: Run) -> None:
    """Race every store that is installed; say loudly which is not."""
    if not run.peers:
        run.report.lack("other stores: they were left out")
        return
    loop = asyncio.new_event_loop()
    present = [kind for kind in PEERS if installed(run, kind)]
    for engine, ours in (("SQLite", [RAW, OURS, OURS_ASYNC]), ("PostgreSQL", [OURS_POSTGRES])):
        others = [kind for kind in present if kind.engine == engine]
        if others and (engine == "SQLite" or run.postgres is not None):
            jobs(run, loop, [*ours, *others])
    loop.close()


def installed(run: Run, kind: Kind) -> bool:
    """Tell whether a store's package is there, and note its version."""
    try:
        version = metadata.version(kind.package)
    except metadata.PackageNotFoundError:
        run.report.lack(f"{kind.name}: pip install 'tape-store[bench]'")
        return False
    told = run.report.conditions.get("other stores", "")
    if kind.package not in told:
        run.report.conditions["other stores"] = f"{told}, {kind.package} {version}".lstrip(", ")
    return True


@contextmanager
def opened(run: Run, loop: asyncio.AbstractEventLoop, kinds: list[Kind], what: str) -> Iterator[dict[str, Peer]]:
    """Open every store in a file or a schema of its own."""
    with ExitStack() as stack:
        stores = {}
        for number, kind in enumerate(kinds):
            path, url = run.folder / f"bench_{what}_{number}.db", None
            if kind.engine == "PostgreSQL":
                assert run.postgres is not None
                url = run.postgres
                stack.enter_context(schema(url, path.stem))
            stores[kind.name] = stack.enter_context(kind.open(Place(path, url, loop)))
        yield stores


def jobs(run: Run, loop: asyncio.AbstractEventLoop, kinds: list[Kind]) -> None:
    """Race the four jobs, and hold each store's times against ours."""
    message, rounds = numbered(), run.pick(15, 2)
    hundred = [message() for _ in range(BATCH)]

    def contenders(stores: dict[str, Peer], operation: Callable[[Peer], Any], times: int) -> dict[str, Contender]:
        return {name: repeated(loop, peer, operation, times) for name, peer in stores.items()}

    with opened(run, loop, kinds, "held") as stores:
        fill(loop, stores, run.pick(HELD, 100))
        judge(run, kinds, stores, "append one", race(rounds, contenders(stores, lambda p: p.append(message()), 10)))
        batch = contenders(stores, lambda p: p.extend(hundred), 1)
        judge(run, kinds, stores, f"batch of {BATCH}", race(rounds, batch))
        judge(run, kinds, stores, f"last {LAST}", race(rounds, contenders(stores, lambda p: p.last(LAST), 5)))
    many = run.pick(MANY, 200)
    with opened(run, loop, kinds, "many") as stores:
        fill(loop, stores, many)
        times = race(run.pick(7, 1), contenders(stores, lambda p: p.whole(), 1))
        judge(run, kinds, stores, f"all {many:,}", times)


def repeated(loop: asyncio.AbstractEventLoop, peer: Peer, operation: Callable[[Peer], Any], times: int) -> Contender:
    """Return a store's round; an async one runs wholly inside the loop, as its users would have it."""
    if not peer.is_async:
        return each(lambda: operation(peer), times)

    async def one_round() -> list[float]:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            await operation(peer)
            taken.append(time.perf_counter() - began)
        return taken

    return lambda: loop.run_until_complete(one_round())


def called(loop: asyncio.AbstractEventLoop, peer: Peer, operation: Callable[[Peer], Any]) -> Any:
    """Call a store once."""
    return loop.run_until_complete(operation(peer)) if peer.is_async else operation(peer)


def load(loop: asyncio.AbstractEventLoop, peer: Peer, messages: list[Message]) -> None:
    """Fill a history the fastest way that the store has."""
    for start in range(0, len(messages), STEP):
        part = messages[start : start + STEP]
        called(loop, peer, lambda p, part=part: (p.load or p.extend)(part))  # type: ignore[misc]


def fill(loop: asyncio.AbstractEventLoop, stores: dict[str, Peer], count: int) -> None:
    """Give every store the same history, and hold that it gives it back."""
    message = numbered()
    made = [message() for _ in range(count)]
    for name, peer in stores.items():
        load(loop, peer, made)
        assert called(loop, peer, lambda p: p.whole()) == made, f"{name} does not give back what it was given"
        assert called(loop, peer, lambda p: p.last(LAST)) == made[-LAST:], f"{name} gives other last messages"


def judge(run: Run, kinds: list[Kind], stores: dict[str, Peer], job: str, times: Times) -> None:
    """Hold what each store took against what ours took through the same kind of interface."""
    told = times.all()
    for kind in kinds:
        if kind not in PEERS:
            continue
        ours = OURS_ASYNC.name if stores[kind.name].is_async and OURS_ASYNC.name in stores else OURS.name
        shown = {name: told[name] for name in (kind.name, ours)}
        least = 2.0 if kind.heavy else 1.0
        what = f"{job}: {ours} against {kind.name}"
        run.report.bar(what, times.speed(ours, kind.name), least=least, times=shown, note=kind.note)
    run.report.jobs.setdefault(kinds[-1].engine, {})[job] = told
