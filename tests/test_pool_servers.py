"""A pool over three PostgreSQL servers: writers go on while one server is killed and an owner is moved."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from support.servers import Server
from support.sizes import full, size

import tape

PATIENCE = 120.0
NAMES = ("north", "south", "west")
OWNERS = [f"owner{number}" for number in range(size(6, 50))]
WRITERS = 8
RETRIED = (tape.StoreFailed, tape.StoreBusy, tape.CommitUnknown, tape.OwnerMoved)
"""What a writer meets while its server is down or its owner is moved: it asks again with the same key."""


def home(owner: str) -> str:
    """Return where an owner begins."""
    return NAMES[int(owner.removeprefix("owner")) % len(NAMES)]


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(closing(Server())) for name in NAMES}


class Writer(threading.Thread):
    """Appends to tapes of all owners, each entry under a key, until it is acknowledged."""

    def __init__(self, number: int, servers: dict[str, Server], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.acknowledged: dict[tuple[str, str], int] = {}
        """The seq of every entry, by tape and key."""
        self.failures = 0
        self.error: BaseException | None = None
        self._addresses = {name: server.url for name, server in servers.items()}
        self._halt = stop
        self._pick = random.Random(number)

    def run(self) -> None:
        try:
            # A pool of its own, as another process has one: it learns of a move by being refused.
            with tape.open_pool(self._addresses, place=home, recheck=60.0, timeout=10.0) as pool:
                step = 0
                while not self._halt.is_set():
                    self._append(pool, self._pick.choice(OWNERS), step)
                    step += 1
        except BaseException as error:
            self.error = error

    def _append(self, pool: tape.Pool, owner: str, step: int) -> None:
        """Append to a tape that all writers share, or to a new one, and insist."""
        name = f"{owner}-shared" if step % 16 else f"{owner}-{self.number}-{step}"
        key = f"{self.number}.{step}"
        until = time.monotonic() + PATIENCE
        while True:
            try:
                receipt = pool.write(
                    owner, lambda store: store.tape(name).append(role="user", content=key, key=key), timeout=30.0
                )
                self.acknowledged[name, key] = receipt.seq
                return
            except RETRIED:
                self.failures += 1
                if time.monotonic() > until:
                    raise
                # Nothing to wait for but the server's return; bounded above.
                self._halt.wait(0.1)


class Follower(threading.Thread):
    """Follows all databases from the start, beginning anew from its cursor now and then."""

    def __init__(self, pool: tape.Pool, done: threading.Event) -> None:
        super().__init__(daemon=True)
        self.entries: list[tuple[str, str, int]] = []
        self.down: set[str] = set()
        self.error: BaseException | None = None
        self._pool = pool
        self._done = done

    def run(self) -> None:
        cursor = None
        try:
            while True:
                last = self._done.is_set()
                feed = self._pool.follow(cursor, timeout=2.0 if last else 0.5)
                for count, entry in enumerate(feed):
                    self.entries.append((entry.tape, entry.key, entry.seq))
                    self.down |= feed.down.keys()
                    if count == 500:
                        break
                else:
                    self.down |= feed.down.keys()
                    if last and not feed.down:
                        return
                cursor = feed.cursor
        except BaseException as error:
            self.error = error


def until(condition: Any, what: str) -> None:
    """Wait, bounded, for something that other threads bring about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@full
class TestThreeServers:
    """Fifty owners, eight writers, a server that is killed, and an owner that is moved."""

    def test_nothing_is_lost_doubled_or_out_of_order(self, servers: dict[str, Server]) -> None:
        """Every acknowledged entry is followed exactly once, each tape's in order, and every database verifies."""
        addresses = {name: server.url for name, server in servers.items()}
        stop, done = threading.Event(), threading.Event()
        with tape.open_pool(addresses, place=home, recheck=0.0, timeout=10.0) as pool:
            for name in NAMES:
                pool.database(name)
            writers = [Writer(number, servers, stop) for number in range(WRITERS)]
            follower = Follower(pool, done)
            for thread in (*writers, follower):
                thread.start()

            def written(more: int) -> None:
                before = sum(len(writer.acknowledged) for writer in writers)
                until(lambda: sum(len(writer.acknowledged) for writer in writers) >= before + more, "nobody writes")

            step = size(24, 600)
            try:
                written(step)
                moves = [pool.move("owner1", "west")]
                written(step)
                servers["south"].kill()
                until(lambda: "south" in follower.down, "the follower does not name the server that is down")
                # An owner of another server is moved, and its writers served, while one server is down.
                moves.append(pool.move("owner0", "west"))
                servers["south"].start()
                written(step)
                moves += [pool.move("owner1", "north"), pool.move("owner4", "north")]
                written(step)
            finally:
                stop.set()
                for writer in writers:
                    writer.join(PATIENCE)
                done.set()
                follower.join(PATIENCE)
            assert [writer.error for writer in writers] == [None] * WRITERS
            assert follower.error is None
            acknowledged = {entry: seq for writer in writers for entry, seq in writer.acknowledged.items()}
            print(
                f"acknowledged {len(acknowledged)}, asked again {sum(writer.failures for writer in writers)},"
                f" closed for {', '.join(f'{move.closed_seconds:.2f}' for move in moves)} s"
            )
            assert sum(writer.failures for writer in writers) > 0
            self._check(pool, acknowledged, follower.entries)

    def _check(
        self, pool: tape.Pool, acknowledged: dict[tuple[str, str], int], entries: list[tuple[str, str, int]]
    ) -> None:
        """Hold what was followed against what was acknowledged and what is stored."""
        followed = {(name, key): seq for name, key, seq in entries}
        assert len(followed) == len(entries)
        assert {entry: followed.get(entry) for entry in acknowledged} == acknowledged
        order: dict[str, list[int]] = {}
        for name, _, seq in entries:
            order.setdefault(name, []).append(seq)
        assert [name for name, seqs in order.items() if seqs != [*range(1, len(seqs) + 1)]] == []
        heads: dict[str, int] = {}
        cursor = None
        while True:
            page = pool.list(limit=500, cursor=cursor)
            assert not heads.keys() & {info.id for info in page}
            heads |= {info.id: info.head for info in page}
            cursor = page.cursor
            if cursor is None:
                break
        assert heads == {name: len(seqs) for name, seqs in order.items()}
        for name, report in pool.verify().items():
            assert isinstance(report, tape.Report), name
            assert report.problems == [], name
        again = [(entry.tape, entry.key, entry.seq) for entry in pool.feed()]
        assert sorted(again) == sorted(entries)
