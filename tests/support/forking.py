"""Programs that fork while other threads use the store, see ``processes.py``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

import tape
from support.processes import PATIENCE, ready, say

__all__ = ["WAYS", "answer", "fork_often", "in_child"]


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Fork, and return the exit code of the child and what ``work`` returned there, or the name of its error."""
    hears, tells = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(60)
            os.write(tells, json.dumps(answer(work)).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(tells)
    with os.fdopen(hears, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(said) if said else None


def answer(work: Callable[[], Any]) -> Any:
    """Return what a call returns, or the name of the error that it raises."""
    try:
        return work()
    except Exception as error:
        return type(error).__name__ if isinstance(error, tape.TapeError) else repr(error)


class Busy:
    """Threads that use a store until it ends, each in one way."""

    def __init__(self, store: tape.Store, pool: tape.Pool, label: str, ways: list[str]) -> None:
        self._store = store
        self._pool = pool
        self._label = label
        self._over = threading.Event()
        self.acknowledged: list[str] = []
        self.odd: list[str] = []
        self._inside = [threading.Event() for _ in ways]
        self._threads = [
            threading.Thread(target=self._run, args=(WAYS[way], inside), daemon=True)
            for way, inside in zip(ways, self._inside, strict=True)
        ]
        for thread in self._threads:
            thread.start()
        for inside in self._inside:
            assert inside.wait(PATIENCE)

    def end(self) -> None:
        """Let the threads end."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.odd.append("a thread hangs")

    def _run(self, way: Callable[[Busy, threading.Event], Iterator[None]], inside: threading.Event) -> None:
        try:
            for _ in way(self, inside):
                inside.set()
                if self._over.is_set():
                    return
        except Exception as error:
            self.odd.append(repr(error))

    def write(self, _: threading.Event) -> Iterator[None]:
        for number in range(1_000_000):
            content = f"{self._label}.write.{number}"
            self._store.tape(f"t{self._label}").append(role="user", content=content)
            self.acknowledged.append(content)
            # Limit the number of messages, so that each round reads them quickly.
            self._over.wait(0.002)
            yield

    def read(self, _: threading.Event) -> Iterator[None]:
        while True:
            self._store.tape(f"t{self._label}").messages(limit=20)
            yield

    def transact(self, inside: threading.Event) -> Iterator[None]:
        """Hold one transaction after the other, each for longer than a fork waits."""
        for number in range(1_000_000):
            content = f"{self._label}.transact.{number}"

            def hold(store: tape.Store, content: str = content) -> None:
                store.tape(f"t{self._label}").append(role="user", content=content)
                inside.set()
                self._over.wait(1.0)

            self._store.transaction(hold)
            self.acknowledged.append(content)
            yield

    def follow(self, _: threading.Event) -> Iterator[None]:
        while True:
            yield
            for _entry in self._store.follow(timeout=0.1):
                if self._over.is_set():
                    return

    def follow_pool(self, _: threading.Event) -> Iterator[None]:
        while True:
            yield
            for _entry in self._pool.follow(timeout=0.1):
                if self._over.is_set():
                    return

    def lease(self, _: threading.Event) -> Iterator[None]:
        while True:
            yield
            with contextlib.suppress(tape.LeaseHeld):
                self._store.tape("leases").lease("work", 60, holder=self._label, wait=0.1)

    def decision(self, _: threading.Event) -> Iterator[None]:
        request = self._store.tape("requests").request("approval")
        while True:
            yield
            self._store.tape("requests").decision(request, wait=0.1)

    def decision_async(self, inside: threading.Event) -> Iterator[None]:
        """Wait on an event loop, as an agent does."""
        request = self._store.tape("requests").request("approval")

        async def wait() -> None:
            async with tape.open_async(self._store._db.engine.url, **_options_of(self._store)) as store:
                while not self._over.is_set():
                    inside.set()
                    await store.tape("requests").decision(request, wait=0.1)

        asyncio.run(wait())
        yield


WAYS: dict[str, Callable[[Busy, threading.Event], Iterator[None]]] = {
    "follow": Busy.follow,
    "follow pool": Busy.follow_pool,
    "lease": Busy.lease,
    "decision": Busy.decision,
    "decision async": Busy.decision_async,
    "read": Busy.read,
    "write": Busy.write,
    "transact": Busy.transact,
}
"""What the other threads of a process may be doing when it forks."""


def _options_of(store: tape.Store) -> dict[str, Any]:
    schema = store._db.tables.schema
    return {} if schema is None else {"schema": schema}


def _stranger(url: str, options: dict[str, Any]) -> Callable[[], None]:
    """Start a process and return a function that makes it open and close the store."""
    (asked, asks), (answered, answers) = os.pipe(), os.pipe()
    if not os.fork():
        os.close(asks)
        while os.read(asked, 1):
            with tape.open(url, **options) as store:
                store.tape("requests").info()
            os.write(answers, b".")
        os._exit(0)
    os.close(asked)

    def ask() -> None:
        os.write(asks, b".")
        assert os.read(answered, 1)

    return ask


def fork_often(
    url: str, options: dict[str, Any], *, rounds: int, seed: int, ways: list[str] | None = None, engines: bool = True
) -> None:
    """Fork while threads use the store. The child writes before and after the parent closes its store.

    Between these writes another process opens and closes the file. If the child holds no locks, SQLite takes this for
    the last close. In some rounds the store is bound to an engine of the application, open or disposed at the fork.
    """
    with tape.open(url, **options) as store:
        store.tape("requests").event("made")
        store.tape("leases").lease("work", 3600, holder="nobody")
    stranger = _stranger(url, options)
    chance = random.Random(seed)
    ready()
    for number in range(rounds):
        with tape.open(url, **options) as store:
            store.create(f"t{number}")
        chosen = ways or chance.sample(list(WAYS), chance.randint(1, 4))
        engine = chance.choice(["none", "bound", "disposed"]) if engines else "none"
        say(_round(url, options, stranger, number, chosen, engine))


def _round(
    url: str, options: dict[str, Any], stranger: Callable[[], None], number: int, ways: list[str], use: str
) -> dict[str, Any]:
    store, acknowledged = tape.open(url, timeout=10.0, **options), []
    pool = tape.open_pool({"one": {"url": url, **options}}, place=lambda owner: "one")
    engine = _engine(url, options)
    if use != "none":
        with engine.begin() as connection:
            store.bind(connection).tape(f"t{number}").append(role="user", content=f"{number}.bound")
        acknowledged.append(f"{number}.bound")
    if use != "bound":
        engine.dispose()
    busy = Busy(store, pool, str(number), ways)
    (hears, tells), (begins, begin) = os.pipe(), os.pipe()
    began = time.monotonic()
    child = os.fork()
    if not child:
        try:
            signal.alarm(60)
            os.close(begin)
            _child(store, url, options, number, tells, begins)
        finally:
            os._exit(0)
    took = time.monotonic() - began
    os.close(tells)
    os.close(begins)
    with os.fdopen(hears, "rb") as pipe:
        said = [json.loads(pipe.readline() or '{"odd": "the child has ended"}')]
        busy.end()
        pool.close()
        store.close()
        engine.dispose()
        stranger()
        os.write(begin, b".")
        os.close(begin)
        said += [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    parts = [part for part in said if "odd" not in part]
    return {
        "ways": ways,
        "engine": use,
        "fork": took,
        "status": status,
        "acknowledged": [*acknowledged, *busy.acknowledged, *(key for part in parts for key in part["acknowledged"])],
        "refused": sum(part["refused"] for part in parts),
        "odd": [*busy.odd, *(part["odd"] for part in said if "odd" in part)],
    }


def _engine(url: str, options: dict[str, Any]) -> sa.Engine:
    engine = sa.create_engine(url)
    if (schema := options.get("schema")) is not None:

        @sa.event.listens_for(engine, "connect")
        def _(connection: Any, record: object) -> None:
            connection.execute(f'SET search_path TO "{schema}"')
            connection.commit()

    return engine


def _child(store: tape.Store, url: str, options: dict[str, Any], number: int, tells: int, begins: int) -> None:
    for part in ("before", "after"):
        acknowledged: list[str] = []
        refused = 0

        def write(store: tape.Store, content: str, acknowledged: list[str] = acknowledged) -> None:
            store.tape(f"t{number}").append(role="user", content=content)
            acknowledged.append(content)

        def write_anew(part: str = part) -> None:
            with tape.open(url, timeout=10.0, **options) as own:
                write(own, f"{number}.{part}.own")

        def read(acknowledged: list[str] = acknowledged) -> None:
            contents = {message.content for message in store.tape(f"t{number}").messages()}
            assert contents >= set(acknowledged)
            assert store.verify(f"t{number}").ok

        calls: list[Callable[[], None]] = [
            lambda part=part: write(store, f"{number}.{part}.first"),  # type: ignore[misc]
            write_anew,
            lambda part=part: store.transaction(lambda own: write(own, f"{number}.{part}.transaction")),  # type: ignore[misc]
            read,
        ]
        try:
            for call in calls:
                try:
                    call()
                except tape.ProcessForked:
                    refused += 1
            said: dict[str, Any] = {"acknowledged": acknowledged, "refused": refused}
        except BaseException as error:
            said = {"odd": f"child: {error!r}"}
        os.write(tells, json.dumps(said).encode() + b"\n")
        if part == "before":
            os.read(begins, 1)
    store.close()
