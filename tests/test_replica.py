"""A streaming replica: reads that may be old, waiting for a write, and reads while the primary is down."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.backends import Backend
from support.servers import Server
from support.sizes import heavy, size

import tape

PATIENCE = 30.0


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@pytest.fixture(scope="module")
def replica(primary: Server) -> Iterator[Server]:
    with tape.open(primary.url):
        # The store is there before it is followed.
        pass
    with closing(primary.follower()) as server:
        yield server


@pytest.fixture
def store(primary: Server, replica: Server) -> Iterator[tape.Store]:
    with tape.open(primary.url, read_url=replica.url) as opened:
        yield opened


class TestReplica:
    """What is read from a replica."""

    def test_at_least_is_never_older(self, store: tape.Store) -> None:
        """Every read behind a receipt has that write, straight after each of many writes."""
        chat = store.tape("never-older")
        for number in range(size(100, 1_000)):
            receipt = chat.append(role="user", content=f"{number}")
            behind = store.replica(at_least=receipt, timeout=PATIENCE)
            assert behind.get("never-older").info().head >= receipt.seq
            assert behind.tape("never-older").messages(limit=1)[-1].content == f"{number}"

    def test_every_read_is_there_and_no_write(self, store: tape.Store) -> None:
        """It is a store like any other that is only read."""
        chat = store.tape("reads")
        chat.append(role="user", content="plan the voyage")
        receipt = chat.append(role="assistant", content="done")
        behind = store.replica(at_least=receipt, timeout=PATIENCE)
        assert behind.read_only
        assert [message.text for message in behind.tape("reads").context(budget=1_000).messages] == [
            message.text for message in chat.context(budget=1_000).messages
        ]
        assert [hit.tape for hit in behind.search("voyage")] == ["reads"]
        assert "reads" in [info.id for info in behind.list()]
        assert behind.verify("reads").ok
        with pytest.raises(tape.ReadOnly):
            behind.tape("reads").append(role="user", content="x")

    def test_a_replica_that_does_not_catch_up_is_told(self, store: tape.Store, replica: Server) -> None:
        """The wait is bounded and typed; what it has is still read, and later it has the rest."""
        first = store.tape("late").append(role="user", content="first")
        store.replica(at_least=first, timeout=PATIENCE)

        def held_back() -> tape.Receipt:
            second = store.tape("late").append(role="user", content="second")
            with pytest.raises(tape.ReplicaBehind) as caught:
                store.replica(at_least=second, timeout=0.05)
            assert (caught.value.tape, caught.value.seq, caught.value.seconds) == ("late", second.seq, 0.05)
            assert store.replica(at_least=first).get("late").info().head == first.seq
            return second

        second = replica.pause_replay(held_back)
        assert store.replica(at_least=second, timeout=PATIENCE).get("late").info().head == second.seq

    def test_an_owner_s_replica_is_the_owner_s(self, store: tape.Store) -> None:
        """Another owner's tape is not there, and is not waited for."""
        receipt = store.scoped("ann").tape("hers").append(role="user", content="x")
        assert store.scoped("ann").replica(at_least=receipt, timeout=PATIENCE).get("hers").info().owner == "ann"
        store.replica(at_least=receipt, timeout=PATIENCE)
        with pytest.raises(tape.TapeNotFound):
            store.scoped("bob").replica().get("hers")
        with pytest.raises(tape.ReplicaBehind):
            store.scoped("bob").replica(at_least=receipt, timeout=0)

    @heavy
    def test_followers_of_a_replica_miss_nothing(self, store: tape.Store) -> None:
        """While eight threads write, a follower of the replica is given every entry once, each tape's in order, and a
        position of one is a position of the other."""
        start = max((entry.position or 0 for entry in store.feed()), default=0)
        count = size(25, 400)

        def write(number: int) -> None:
            for step in range(count):
                store.tape(f"w{number}").append(role="user", content=f"{step}")

        writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for writer in writers:
            writer.start()
        seqs: dict[str, list[int]] = {}
        wanted, entries = 8 * (count + 1), []
        for entry in store.replica().follow(start, timeout=PATIENCE):
            entries.append((entry.tape, entry.seq, entry.position))
            seqs.setdefault(entry.tape, []).append(entry.seq)
            if len(entries) == wanted:
                break
        for writer in writers:
            writer.join(PATIENCE)
        assert seqs == {f"w{number}": [*range(1, count + 2)] for number in range(8)}
        assert entries == [(entry.tape, entry.seq, entry.position) for entry in store.feed(start)]

    def test_the_lag_is_bounded(self, store: tape.Store) -> None:
        """On one machine a write is on the replica within a second, the slowest of many."""
        chat, slowest = store.tape("lag"), 0.0
        for number in range(50):
            receipt = chat.append(role="user", content=f"{number}")
            began = time.monotonic()
            store.replica(at_least=receipt, timeout=PATIENCE)
            slowest = max(slowest, time.monotonic() - began)
        print(f"slowest {slowest:.3f} s")
        assert slowest < 5.0

    def test_the_twin(self, primary: Server, replica: Server) -> None:
        """The same, awaited."""

        async def work() -> None:
            async with tape.open_async(primary.url, read_url=replica.url) as store:
                receipt = await store.tape("twin").append(role="user", content="x")
                behind = await store.replica(at_least=receipt, timeout=PATIENCE)
                assert (await behind.tape("twin").info()).head == receipt.seq
                assert behind.read_only

        asyncio.run(work())


class TestPrimaryDown:
    """What a replica is for when the primary is gone."""

    def test_reads_are_served_while_the_primary_is_down(self) -> None:
        """A store that is open goes on reading from the replica, another can be opened on it; writes go on after."""
        with closing(Server()) as primary:
            with tape.open(primary.url) as store:
                store.tape("chat").append(role="user", content="before")
            with closing(primary.follower()) as replica, tape.open(primary.url, read_url=replica.url) as store:
                receipt = store.tape("chat").append(role="user", content="last")
                store.replica(at_least=receipt, timeout=PATIENCE)
                primary.kill()
                with pytest.raises((tape.StoreFailed, tape.CommitUnknown)):
                    store.tape("chat").append(role="user", content="lost")
                behind = store.replica(at_least=receipt)
                assert [message.content for message in behind.tape("chat").messages()] == ["before", "last"]
                assert [entry.seq for entry in behind.feed() if entry.tape == "chat"] == [1, 2, 3]
                with tape.open(replica.url, read_only=True) as other:
                    assert other.get("chat").info().head == receipt.seq
                primary.start()
                after = store.tape("chat").append(role="user", content="after")
                assert store.replica(at_least=after, timeout=PATIENCE).get("chat").info().head == after.seq


class TestOptions:
    """What is refused."""

    def test_a_store_without_a_replica_says_so(self, quick: Backend) -> None:
        """The option is named."""
        with pytest.raises(tape.InvalidEntry, match="read_url"):
            quick.open().replica()

    def test_sqlite_has_none(self, quick: Backend) -> None:
        """Neither as a replica nor with one."""
        for read_url in (quick.url, "postgresql://x/y"):
            with pytest.raises(tape.InvalidEntry, match="read_url"):
                quick.open(read_url=read_url)

    def test_only_a_receipt_can_be_waited_for(self, store: tape.Store) -> None:
        """A number says nothing without its tape."""
        with pytest.raises(tape.InvalidEntry, match="at_least"):
            store.replica(at_least=7)  # type: ignore[arg-type]

    def test_a_replica_that_is_not_there_fails_when_it_is_used(self, primary: Server) -> None:
        """The store itself is opened and written without it."""
        nowhere = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
        with tape.open(primary.url, read_url=nowhere) as store:
            store.tape("alone").append(role="user", content="x")
            with pytest.raises(tape.StoreFailed):
                store.replica()
