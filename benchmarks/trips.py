"""Round trips: how often each call waits for PostgreSQL, and what that costs on a network.

Run ``python -m benchmarks.trips``. A proxy before a real server counts the trips of each call: how often the client
begins to speak after the server did. The call is counted twice: by a store that has written the tape before, and by a
store that was opened for this call. Then the proxy adds a delay each way, and the times show how the trips add up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo
import sqlalchemy as sa
from msgspec import Struct

import tape
from benchmarks.against import called
from benchmarks.harness import dsn, find_postgres, schema
from benchmarks.peers import PEERS, Kind, Peer, Place
from benchmarks.report import conditions, server_of

__all__ = ["CALLS", "Call", "CountingProxy", "count"]


class Link:
    """One client and its server: who spoke last."""

    def __init__(self) -> None:
        self.answered = True


class CountingProxy:
    """Passes everything on between clients and a PostgreSQL server, and counts the round trips of all clients."""

    def __init__(self, url: sa.URL, delay: float = 0.0) -> None:
        self.trips = 0
        self.delay = delay
        """Seconds by which each chunk is held back, in each direction."""
        self._upstream = url
        self._loop = asyncio.new_event_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        self.url = url.difference_update_query(["host", "port"]).set(host="127.0.0.1", port=port)
        self.url = self.url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self._thread.start()

    def _run(self, listening: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=listening))
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await self._connect()
        link = Link()
        try:
            await asyncio.gather(
                self._pass(reader, server_writer, link, upward=True),
                self._pass(server_reader, writer, link, upward=False),
            )
        finally:
            for one in (writer, server_writer):
                one.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        found = psycopg.conninfo.conninfo_to_dict(dsn(self._upstream))
        host, port = str(found.get("host") or "localhost"), int(found.get("port") or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, link: Link, *, upward: bool
    ) -> None:
        """Pass one direction on, each chunk after the delay."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def send() -> None:
            while True:
                due, chunk = await chunks.get()
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                if not chunk:
                    target.close()
                    return
                target.write(chunk)

        sending = asyncio.ensure_future(send())
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(1 << 16):
                if upward and link.answered:
                    self.trips += 1
                link.answered = not upward
                chunks.put_nowait((time.monotonic() + self.delay, chunk))
        chunks.put_nowait((time.monotonic() + self.delay, b""))
        await sending

    def close(self) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


Use = Callable[[tape.Store, tape.Tape], object]


class Call(Struct, frozen=True):
    """A call whose trips are counted, and the most that it may take."""

    name: str
    most: int
    use: Use
    fork: bool = False
    """Whether it is given a fork instead of a plain tape."""


def _message(text: str = "another") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _three_writes(store: tape.Store) -> None:
    store.tape("plain").append(_message())
    store.tape("other").append(_message())
    store.tape("plain").event("noted")


def _fork_and_merge(store: tape.Store, chat: tape.Tape) -> None:
    helper = chat.fork()
    helper.append(_message())
    chat.merge(helper)


_RETRACTED = [f"r{n}" for n in range(3)]
_LIVE = [f"l{n}" for n in range(3)]
_unused = {True: iter(_LIVE), False: iter(_RETRACTED)}


def _next(*, live: bool) -> str:
    """Return the id of a message that no earlier call retracted or restored."""
    return next(_unused[live])


def _again(chat: tape.Tape) -> None:
    assert chat.append(_message("keyed"), key="again").duplicate


CALLS = [
    Call("append", 1, lambda store, chat: chat.append(_message())),
    Call("append, key=", 1, lambda store, chat: chat.append(_message(), key=tape.new_id())),
    Call("append, id=", 1, lambda store, chat: chat.append(_message(), id=tape.new_id())),
    Call("append, actor= and meta=", 1, lambda store, chat: chat.append(_message(), actor="me", meta={"run": 1})),
    Call("event", 1, lambda store, chat: chat.event("noted", {"n": 1})),
    Call("put", 1, lambda store, chat: chat.put("free", tape.new_id())),
    Call("patch", 1, lambda store, chat: chat.patch("plan", {"step": tape.new_id()})),
    Call("set_block", 1, lambda store, chat: chat.set_block("memory", tape.new_id())),
    Call("record_usage", 1, lambda store, chat: chat.record_usage(input_tokens=1, output_tokens=1)),
    Call("anchor", 1, lambda store, chat: chat.anchor("here")),
    Call("handoff", 1, lambda store, chat: chat.handoff("phase", summary="So far.")),
    Call("label", 1, lambda store, chat: chat.label(tape.new_id())),
    Call("extend, 10 messages", 2, lambda store, chat: chat.extend([_message() for _ in range(10)])),
    Call("first write of a tape", 2, lambda store, chat: store.tape(tape.new_id()).append(_message())),
    Call("the same key again", 2, lambda store, chat: _again(chat)),
    Call("revise", 3, lambda store, chat: chat.revise("m8", content=tape.new_id())),
    Call("retract", 3, lambda store, chat: chat.retract(_next(live=True))),
    Call("restore", 3, lambda store, chat: chat.restore(_next(live=False))),
    Call("upsert", 3, lambda store, chat: chat.upsert(_message(tape.new_id()), id="m9")),
    Call("fork", 2, lambda store, chat: chat.fork()),
    Call("fork, append, merge", 8, _fork_and_merge),
    Call("transaction, 3 writes, 2 tapes", 5, lambda store, chat: store.transaction(_three_writes)),
    Call("messages", 1, lambda store, chat: chat.messages()),
    Call("messages(limit=5)", 1, lambda store, chat: chat.messages(limit=5)),
    Call("blocks", 1, lambda store, chat: chat.blocks()),
    Call("state", 1, lambda store, chat: chat.state("plan")),
    Call("info", 1, lambda store, chat: chat.info()),
    Call("list", 1, lambda store, chat: store.list()),
    Call("at", 2, lambda store, chat: chat.at(5).messages()),
    Call("context", 2, lambda store, chat: chat.context(budget=8_000)),
    Call("context of a fork", 2, lambda store, chat: chat.context(budget=8_000), fork=True),
    Call("recorded context", 3, lambda store, chat: chat.context(budget=8_000, record=True)),
    Call("search", 3, lambda store, chat: chat.search("another")),
]


def fill(store: tape.Store) -> None:
    """Write the tapes that the calls use."""
    chat = store.tape("plain")
    chat.extend([{"role": "user", "content": f"message {n}", "id": f"m{n}"} for n in range(10)])
    chat.extend([{"role": "user", "content": "more", "id": id} for id in (*_RETRACTED, *_LIVE)])
    chat.retract(*_RETRACTED)
    chat.append(_message("keyed"), key="again")
    chat.put("plan", {"step": 1})
    chat.set_block("memory", "something to remember")
    chat.append(_message())
    store.tape("other").append(_message())
    fork = chat.fork("fork")
    fork.append(_message())
    chat.search("message")


@contextmanager
def opened(url: sa.URL, name: str) -> Iterator[tape.Store]:
    """Open a store that keeps nothing of an earlier one."""
    store = tape.open(url, schema=name)
    try:
        # The connection is made here, and not by the call that is counted.
        store.health()
        yield store
    finally:
        store.close()


def count(proxy: CountingProxy, name: str, call: Call) -> tuple[int, int]:
    """Return the trips of a call with a kept head, and those of one in a store that was opened for it."""
    tape_id = "fork" if call.fork else "plain"
    with opened(proxy.url, name) as store:
        before = proxy.trips
        call.use(store, store.tape(tape_id))
        cold = proxy.trips - before
        store.tape(tape_id).event("known")
        call.use(store, store.tape(tape_id))
        store.tape(tape_id).event("known")
        before = proxy.trips
        call.use(store, store.tape(tape_id))
        return proxy.trips - before, cold


def table(proxy: CountingProxy, name: str) -> None:
    """Print the round trips of each call and its limit."""
    print(f"{'call':<32}{'most':>6}{'kept head':>12}{'cold':>7}")
    totals = [0, 0, 0]
    for call in CALLS:
        kept, cold = count(proxy, name, call)
        totals = [total + figure for total, figure in zip(totals, (call.most, kept, cold), strict=True)]
        print(f"{call.name:<32}{call.most:>6}{kept:>12}{cold:>7}{'' if kept <= call.most else '   over':<7}")
    print(f"{'all of them':<32}{totals[0]:>6}{totals[1]:>12}{totals[2]:>7}")


PEER_CALLS: dict[str, Callable[[Peer], Any]] = {
    "append": lambda peer: peer.append(_message()),
    "extend, 10 messages": lambda peer: peer.extend([_message() for _ in range(10)]),
    "last 5": lambda peer: peer.last(5),
    "all": lambda peer: peer.whole(),
}


def peers(proxy: CountingProxy, stack: ExitStack, loop: asyncio.AbstractEventLoop) -> dict[str, Peer]:
    """Open every other store on PostgreSQL whose package is installed."""
    found: dict[str, Peer] = {}
    for kind in [*PEERS, *_on_postgres()]:
        if kind.engine != "PostgreSQL":
            continue
        name = f"trips_{len(found)}"
        place = Place(Path(name), proxy.url, loop)
        try:
            stack.enter_context(schema(proxy._upstream, name))
            found[kind.name] = stack.enter_context(kind.open(place))
        except ImportError as error:
            print(f"{kind.name}: left out, {error.name} is not installed")
    return found


def _on_postgres() -> list[Kind]:
    """Return the stores that the other benchmarks open on SQLite only."""
    return [
        Kind("OpenAI Agents SQLAlchemySession", "openai-agents", _sqlalchemy_session, "PostgreSQL"),
        Kind("Google ADK DatabaseSessionService", "google-adk", _adk, "PostgreSQL"),
    ]


def _inside(place: Place) -> sa.URL:
    assert place.url is not None
    return place.url.update_query_dict({"options": f"-csearch_path={place.schema}"})


@contextmanager
def _sqlalchemy_session(place: Place) -> Iterator[Peer]:
    from agents.extensions.memory import SQLAlchemySession

    session = SQLAlchemySession.from_url(
        "s", url=_inside(place).render_as_string(hide_password=False), create_tables=True
    )
    yield Peer(
        lambda message: session.add_items([message]),
        session.add_items,
        lambda limit: session.get_items(limit),
        lambda: session.get_items(),
        is_async=True,
    )
    place.run(session.engine.dispose())


@contextmanager
def _adk(place: Place) -> Iterator[Peer]:
    from google.adk.events import Event
    from google.adk.sessions import DatabaseSessionService
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.genai import types

    service = DatabaseSessionService(_inside(place).render_as_string(hide_password=False))
    names = {"app_name": "app", "user_id": "user", "session_id": "s"}

    async def append(message: dict[str, Any]) -> None:
        content = types.Content(role="user", parts=[types.Part(text=message["content"])])
        await service.append_event(session, Event(author="user", content=content))

    async def extend(messages: list[dict[str, Any]]) -> None:
        for message in messages:
            await append(message)

    def last(limit: int | None) -> Any:
        return service.get_session(**names, config=GetSessionConfig(num_recent_events=limit))

    session = place.run(service.create_session(**names))
    yield Peer(append, extend, last, lambda: last(None), is_async=True)
    place.run(service.db_engine.dispose())


def compare(proxy: CountingProxy, others: dict[str, Peer], loop: asyncio.AbstractEventLoop) -> None:
    """Print the trips that other stores take for the same jobs."""
    print(f"{'another store':<40}" + "".join(f"{name:>{len(name) + 3}}" for name in PEER_CALLS))
    for name, peer in others.items():
        line = f"{name:<40}"
        for job, use in PEER_CALLS.items():
            called(loop, peer, use)
            before = proxy.trips
            called(loop, peer, use)
            line += f"{proxy.trips - before:>{len(job) + 3}}"
        print(line)


def delays(proxy: CountingProxy, name: str, others: dict[str, Peer], loop: asyncio.AbstractEventLoop) -> None:
    """Print the median time of some calls, in network round trips, with the delay on."""
    trip = 2 * proxy.delay
    print(f"\nWith {proxy.delay * 1_000:g} ms each way, the median in round trips of the network:")
    shown = ("append", "append, key=", "revise", "fork, append, merge", "messages", "context", "context of a fork")
    with opened(proxy.url, name) as store:
        for call in CALLS:
            if call.name not in shown:
                continue
            chat = store.tape("fork" if call.fork else "plain")
            taken = _median(lambda call=call, chat=chat: call.use(store, chat))  # type: ignore[misc]
            print(f"{call.name:<32}{taken / trip:>8.2f}")
    for name, peer in others.items():
        taken = _median(lambda peer=peer: called(loop, peer, PEER_CALLS["append"]))  # type: ignore[misc]
        print(f"{'append, ' + name:<48}{taken / trip:>8.2f}")


def _median(work: Callable[[], object], times: int = 31) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", help="the URL of a server; by default one is started")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="the delay each way of the second part")
    parser.add_argument("--alone", action="store_true", help="leave other stores out")
    chosen = parser.parse_args()
    url = find_postgres(chosen.postgres)
    with psycopg.connect(dsn(url)) as connection:
        facts = conditions(False, server_of(connection))
    print(*(f"{fact}: {value}" for fact, value in facts.items()), "", sep="\n")
    proxy, loop = CountingProxy(url), asyncio.new_event_loop()
    with ExitStack() as stack:
        name = stack.enter_context(schema(url, "trips"))
        with opened(proxy.url, name) as store:
            fill(store)
        others = {} if chosen.alone else peers(proxy, stack, loop)
        # Without a delay an answer to the first half of a request could count as a turn.
        proxy.delay = 0.0005
        table(proxy, name)
        if others:
            print()
            compare(proxy, others, loop)
        proxy.delay = chosen.delay_ms / 1_000
        delays(proxy, name, others, loop)
    proxy.close()


if __name__ == "__main__":
    main()
