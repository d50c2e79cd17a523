"""Leases: one holder at a time, by the database's clock; a later holder has a greater token."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support import racing
from support.backends import Backend
from support.processes import PATIENCE, Crew
from support.sizes import heavy, size

import tape

PROCESSES = size(4, 20)
ROUNDS = size(4, 200)


@pytest.fixture
def store(backend: Backend) -> Iterator[tape.Store]:
    with backend.open(durability="normal") as opened:
        yield opened


def test_one_holder_at_a_time(store: tape.Store) -> None:
    """Another one is told who holds it; after a release the next has it, with a greater token."""
    chat = store.tape("chat")
    with chat.lease("run", 600, holder="one") as first:
        assert (first.tape, first.name, first.holder) == ("chat", "run", "one")
        assert 0 < first.remaining <= 600
        for holder in ("two", "one", None):
            with pytest.raises(tape.LeaseHeld) as held:
                store.tape("chat").lease("run", 600, holder=holder)
            assert (held.value.holder, held.value.token) == ("one", first.token)
        chat.lease("other run", 600)
        store.tape("other").lease("run", 600)
        chat.fork("fork").lease("run", 600)
        first.check()
    assert (first.remaining, first.release()) == (0.0, False)
    with pytest.raises(tape.LeaseLost):
        first.check()
    with pytest.raises(tape.LeaseLost):
        first.renew()
    second = chat.lease("run", 600, holder="two")
    assert second.token > first.token
    assert [entry.seq for entry in chat.entries(name="tape.lease")][-1] == second.token
    assert store.verify().ok


def test_a_lease_is_released_when_its_block_fails(store: tape.Store) -> None:
    """The error goes on, and the next holder need not wait."""
    with pytest.raises(ZeroDivisionError), store.tape("chat").lease("run", 600):
        raise ZeroDivisionError
    store.tape("chat").lease("run", 600).release()


def test_a_lease_that_is_over_is_taken(store: tape.Store) -> None:
    """The one before learns that it lost it: renewing, checking and releasing change nothing of the new holder's."""
    chat = store.tape("chat")
    first = chat.lease("run", 0.001)
    second = chat.lease("run", 600, wait=PATIENCE)
    assert second.token > first.token
    for lost in (first.renew, first.check):
        with pytest.raises(tape.LeaseLost) as error:
            lost()
        assert (error.value.name, error.value.token) == ("run", first.token)
    assert first.release() is False
    second.check()
    assert second.release() is True


def test_a_lease_is_renewed(store: tape.Store) -> None:
    """It is held for longer, also when its time was over and nobody took it; the token stays."""
    chat = store.tape("chat")
    lease = chat.lease("run", 0.001)
    lease.renew(600)
    assert 500 < lease.remaining <= 600
    lease.check()
    with pytest.raises(tape.LeaseHeld) as held:
        chat.lease("run", 1, wait=0.01)
    assert held.value.token == lease.token
    lease.renew()
    with pytest.raises(tape.InvalidEntry):
        lease.renew(0)
    with pytest.raises(tape.InvalidEntry):
        chat.lease("run", float("nan"))
    with pytest.raises(tape.InvalidEntry):
        chat.lease("", 1)


def test_a_check_in_a_transaction_holds_to_its_commit(backend: Backend) -> None:
    """A holder that lost its lease writes nothing; one that has it writes, and nobody takes it in between."""
    with backend.open() as store:
        chat = store.tape("chat")
        lease = chat.lease("run", 600)

        def step(transacting: tape.Store) -> tape.Receipt:
            lease.check(transacting.tape("chat"))
            return transacting.tape("chat").append(role="assistant", content="step")

        store.transaction(step)
        lease.release()
        chat.lease("run", 600)
        with pytest.raises(tape.LeaseLost):
            store.transaction(step)
        with pytest.raises(tape.InvalidEntry):
            lease.check(store.tape("other"))
        assert len(chat.messages()) == 1


def test_clocks_of_machines_do_not_matter(backend: Backend) -> None:
    """A worker whose clock is an hour ahead does not take what another holds; on SQLite all have one clock."""
    ahead = 3_600_000_000 if backend.postgres else 0
    with backend.open(clock=lambda: time.time_ns() // 1000 + ahead) as skewed, backend.open() as right:
        lease = right.tape("chat").lease("run", 600)
        with pytest.raises(tape.LeaseHeld):
            skewed.tape("chat").lease("run", 600)
        lease.release()
        mine = skewed.tape("chat").lease("run", 0.001)
        assert right.tape("chat").lease("run", 600, wait=PATIENCE).token > mine.token


def test_a_killed_holder_is_followed_by_another(backend: Backend, crew: Crew) -> None:
    """kill -9 of the holder: the next one has the lease once its time is over, and not before."""
    with backend.open() as store:
        worker = crew.launch(backend, racing.hold, seconds=0.5)
        token = worker.next()
        worker.kill()
        began = time.monotonic()
        lease = store.tape("chat").lease("run", 600, wait=PATIENCE)
        assert lease.token > token
        assert time.monotonic() - began < PATIENCE / 2


async def _twins(address: str, options: dict[str, Any]) -> None:
    async with tape.open_async(address, **options) as store:
        chat = store.tape("chat")
        taking = (chat.lease("run", 600, holder=f"h{n}") for n in range(20))

        async def take(leasing: Any) -> tape.AsyncLease | tape.LeaseHeld:
            try:
                lease: tape.AsyncLease = await leasing
            except tape.LeaseHeld as held:
                return held
            return lease

        results = await asyncio.gather(*(take(leasing) for leasing in taking))
        assert Counter(type(each).__name__ for each in results) == {"AsyncLease": 1, "LeaseHeld": 19}
        (lease,) = (each for each in results if isinstance(each, tape.AsyncLease))
        await lease.renew()
        await lease.check()
        waiting = asyncio.create_task(take(chat.lease("run", 600, wait=PATIENCE)))
        await asyncio.sleep(0)
        assert await lease.release() is True
        second = await asyncio.wait_for(waiting, PATIENCE)
        assert isinstance(second, tape.AsyncLease)
        assert second.token > lease.token

        async def inside(transacting: tape.AsyncStore) -> None:
            await second.check(transacting.tape("chat"))
            await transacting.tape("chat").append(role="user", content="step")

        await store.transaction(inside)
        await second.release()
        async with chat.lease("run", 600) as third:
            assert third.remaining > 0
        async with await chat.lease("run", 600) as fourth:
            assert fourth.token > third.token


def test_the_async_twin_does_the_same(backend: Backend) -> None:
    """Of twenty tasks one has the lease; it is renewed, checked, waited for, and released by ``async with``."""
    asyncio.run(_twins(backend.address, backend.options))


@heavy
def test_processes_race_for_a_lease(backend: Backend, crew: Crew) -> None:
    """In every round one process has the lease, every other is told by whom it is held, and tokens grow."""
    with backend.open(durability="normal") as store:
        chat = store.tape("chat")
        chat.append(role="user", content="go")
        orders = [{"index": index, "rounds": ROUNDS, "opening": {"durability": "normal"}} for index in range(PROCESSES)]
        tokens = []
        for number, said in enumerate(racing.rounds(crew, backend, racing.take, orders)):
            winners = [(who, token) for outcome, who, token in said if outcome == "won"]
            assert len(winners) == 1, f"round {number}: {winners}"
            assert {(who, token) for _, who, token in said} == {winners[0]}
            tokens.append(winners[0][1])
        assert tokens == list(range(3, 3 + ROUNDS))
        assert store.verify().ok
