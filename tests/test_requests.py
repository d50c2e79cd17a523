"""Requests: one decision wins, whoever decides; open ones are listed by index, waited for and followed."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import racing
from support.asking import asked as asking
from support.asking import plans
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


class TestDecisions:
    """One decision counts."""

    def test_a_request_is_decided_once(self, store: tape.Store) -> None:
        """The decision is read back with who took it; a second one is told of the first, with nothing written."""
        chat = store.tape("chat")
        asked = chat.request("approve", {"tool": "pay", "amount": 7}, actor="agent")
        before = chat.decision(asked)
        assert (before.status, before.pending, before.actor, before.kind) == ("pending", True, "agent", "approve")
        receipt = chat.resolve(asked, {"approve": True}, actor="ana")
        for other, actor in (({"approve": False}, "bob"), ({"approve": True}, "bob"), ({"approve": 1}, "ana")):
            with pytest.raises(tape.RequestClosed) as closed:
                chat.resolve(asked, other, actor=actor)
            assert closed.value.request == chat.decision(asked)
            assert (closed.value.request.decided_by, closed.value.request.decision) == ("ana", {"approve": True})
        after = chat.decision(asked.key)
        assert (after.status, after.decided_seq, after.payload) == (
            "resolved",
            receipt.seq,
            {"tool": "pay", "amount": 7},
        )
        assert chat.info().head == receipt.seq
        assert chat.messages() == []
        assert store.verify().ok

    def test_the_same_decision_again_is_a_duplicate(self, store: tape.Store) -> None:
        """A retry after a lost reply gets the first receipt, also under a key; a request with a key is made once."""
        chat = store.tape("chat")
        first = chat.request("approve", {"n": 1}, key="deploy-7", seconds=600)
        again = chat.request("approve", {"n": 1}, key="deploy-7", seconds=600)
        assert (first.seq, again.seq, again.duplicate, again.key) == (2, 2, True, "deploy-7")
        with pytest.raises(tape.ProvenanceConflict):
            chat.request("approve", {"n": 2}, key="deploy-7", seconds=600)
        won = chat.resolve(first, "yes", actor="ana", key="click-1")
        assert chat.resolve(first, "yes", actor="ana", key="click-1") == chat.resolve(first, "yes", actor="ana")
        assert chat.resolve(first, "yes", actor="ana").seq == won.seq
        assert chat.info().head == won.seq

    def test_what_is_not_there_cannot_be_decided(self, store: tape.Store) -> None:
        """An unknown request, another entry's key, and a request of the parent on a fork are UnknownEntry."""
        chat = store.tape("chat")
        chat.append(role="user", content="hi", key="message")
        asked = chat.request("approve")
        fork = chat.fork("fork")
        for tape_, id in ((chat, "nowhere"), (chat, "message"), (fork, asked.key), (store.tape("never"), "x")):
            with pytest.raises(tape.UnknownEntry):
                tape_.resolve(id, "yes")
            with pytest.raises(tape.UnknownEntry):
                tape_.decision(id)
        with pytest.raises(tape.InvalidEntry):
            chat.request("approve", {"n": float("nan")})
        with pytest.raises(tape.InvalidEntry):
            chat.request("approve", seconds=0)
        with pytest.raises(tape.InvalidEntry):
            chat.event("tape.decision", {"request": asked.key, "state": "resolved"})
        assert chat.decision(asked).pending

    def test_withdrawn_requests_are_closed(self, store: tape.Store) -> None:
        """Nobody decides what was taken back, and what was decided cannot be taken back."""
        chat = store.tape("chat")
        gone, done = chat.request("approve"), chat.request("approve")
        chat.withdraw(gone, "not needed", actor="agent")
        with pytest.raises(tape.RequestClosed) as closed:
            chat.resolve(gone, "yes", actor="ana")
        assert (closed.value.request.status, closed.value.request.decision) == ("withdrawn", "not needed")
        chat.resolve(done, "yes", actor="ana")
        with pytest.raises(tape.RequestClosed):
            chat.withdraw(done)
        assert store.requests().items == []

    def test_a_closed_tape_takes_decisions(self, store: tape.Store) -> None:
        """A run that ended leaves its question to be answered; ``at`` and a rebuild change nothing of it."""
        chat = store.tape("chat")
        asked = chat.request("approve")
        chat.complete()
        store.rebuild("chat")
        assert [each.id for each in store.requests().items] == [asked.key]
        chat.resolve(asked, "yes")
        store.rebuild()
        assert chat.decision(asked).decision == "yes"
        assert store.requests().items == []
        assert store.verify().ok

    def test_an_export_carries_what_is_open(self, store: tape.Store, elsewhere_of: Callable[[], tape.Store]) -> None:
        """Open and decided requests are the same after an import."""
        chat = store.tape("chat")
        asked, done = chat.request("approve", key="a"), chat.request("approve", key="b")
        chat.resolve(done, "yes", actor="ana")
        file = io.BytesIO()
        store.export("chat", file)
        other = elsewhere_of()
        other.import_(io.BytesIO(file.getvalue()))
        assert other.requests().items == store.requests().items
        assert other.tape("chat").decision("b") == chat.decision("b")
        assert other.tape("chat").decision(asked) == chat.decision(asked)
        assert other.verify().ok


class TestExpiry:
    """A request that nobody decided in time."""

    def test_an_expired_request_is_closed(self, store: tape.Store) -> None:
        """It can no longer be decided, is listed as expired, and goes off that list when it is withdrawn."""
        chat = store.tape("chat")
        asked = chat.request("approve", seconds=0.001)
        over = chat.decision(asked, wait=PATIENCE)
        assert (over.status, over.decided_seq) == ("expired", None)
        with pytest.raises(tape.RequestClosed) as closed:
            chat.resolve(asked, "yes", actor="ana")
        assert closed.value.request.status == "expired"
        assert store.requests().items == []
        assert [each.id for each in store.requests(status="expired").items] == [asked.key]
        chat.withdraw(asked)
        assert store.requests(status="expired").items == []
        assert chat.decision(asked).status == "withdrawn"

    def test_the_database_tells_the_time(self, backend: Backend) -> None:
        """A machine whose clock is an hour ahead neither expires a request of others nor extends its own."""
        ahead = [0]

        def clock() -> int:
            return time.time_ns() // 1000 + ahead[0]

        with backend.open(clock=clock) as skewed, backend.open() as right:
            skewed.tape("chat").append(role="user", content="hi")
            if backend.name == "postgresql":
                ahead[0] = 3_600_000_000
            asked = right.tape("chat").request("approve", seconds=600)
            skewed.tape("chat").resolve(asked, "yes", actor="ana")
            short = skewed.tape("chat").request("approve", seconds=0.001)
            assert right.tape("chat").decision(short, wait=PATIENCE).status == "expired"


class TestListing:
    """What waits for a decision, across tapes."""

    def test_open_requests_are_listed_per_owner(self, store: tape.Store) -> None:
        """Filters by owner, tape and kind; hidden tapes and other owners are left out; a scoped store sees its own."""
        for owner in ("ana", "bob"):
            for number in range(2):
                mine = store.create(f"{owner}-{number}", owner=owner)
                mine.request("approve", {"n": number}, key=f"{owner}-{number}-a")
                mine.request("ask", {"n": number}, key=f"{owner}-{number}-b")
        store.tape("ana-1").hide()

        def ids(**filters: Any) -> list[str]:
            return [each.id for each in store.requests(**filters).items]

        assert ids() == ["ana-0-a", "ana-0-b", "bob-0-a", "bob-0-b", "bob-1-a", "bob-1-b"]
        assert ids(owner="ana") == ["ana-0-a", "ana-0-b"]
        assert ids(owner="bob", kind="ask") == ["bob-0-b", "bob-1-b"]
        assert ids(tape="bob-1") == ["bob-1-a", "bob-1-b"]
        assert ids(owner="nobody") == []
        scoped = store.scoped("ana")
        assert [each.id for each in scoped.requests().items] == ["ana-0-a", "ana-0-b"]
        assert scoped.requests(owner="bob").items == []
        assert scoped.requests(tape="bob-1").items == []
        store.purge("bob-0")
        assert ids(owner="bob") == ["bob-1-a", "bob-1-b"]

    def test_pages_leave_out_none_and_repeat_none(self, store: tape.Store) -> None:
        """Every request is on one page, also where two tapes have one of the same id, and while others are made."""
        wanted = []
        for number in range(7):
            for tape_ in ("one", "two"):
                store.tape(tape_).request("approve", key=f"r{number}")
                wanted.append((f"r{number}", tape_))
        seen: list[tuple[str, str]] = []
        page = store.requests(limit=3)
        while True:
            seen += [(each.id, each.tape) for each in page.items]
            if page.cursor is None:
                break
            store.tape("one").request("approve", key=f"a-{len(seen)}")
            page = store.requests(limit=3, cursor=page.cursor)
        assert seen == wanted
        for cursor in ("", "x", "1", "1:", "-1:a", "9999999999999999999999:a"):
            with pytest.raises(tape.InvalidEntry):
                store.requests(cursor=cursor)
        with pytest.raises(tape.InvalidEntry):
            store.requests(limit=0)

    def test_decided_requests_cost_a_listing_nothing(self, backend: Backend) -> None:
        """The statement reads the index of open requests, not the slots or the tapes."""
        with backend.open() as store:
            chat = store.tape("chat")
            for number in range(30):
                chat.resolve(chat.request("approve", key=f"r{number}"), "yes")
                chat.put(f"slot-{number}", number)
            asked = chat.request("approve")
            assert [each.id for each in store.requests(owner=None).items] == [asked.key]
            if backend.postgres:
                # So few rows are read as a whole otherwise.
                backend.reader.execute("SET enable_seqscan = off")
            assert "tape_slots_asked" in plans(backend, asking(lambda: store.requests(owner="ana")))


class TestWaiting:
    """Somebody waits for a decision."""

    def test_a_decision_of_another_thread_ends_the_wait(self, backend: Backend) -> None:
        """The waiting call returns with the decision of another store, and without one when its time is over."""
        with backend.open() as store, backend.open() as other:
            asked = store.tape("chat").request("approve")
            assert store.tape("chat").decision(asked, wait=0.01).pending
            decide = threading.Timer(0.02, lambda: other.tape("chat").resolve(asked, "yes", actor="ana"))
            decide.start()
            assert store.tape("chat").decision(asked, wait=PATIENCE).decision == "yes"
            decide.join(PATIENCE)

            def inside(transacting: tape.Store) -> None:
                transacting.tape("chat").decision(asked, wait=1)

            with pytest.raises(tape.NotInTransaction):
                store.transaction(inside)

    def test_the_feed_tells_of_requests(self, store: tape.Store) -> None:
        """A request and its decision are entries of the feed, by their names."""
        chat = store.tape("chat")
        chat.resolve(chat.request("approve", {"n": 1}), "yes", actor="ana")
        names = [getattr(entry.payload, "name", None) for entry in store.feed() if entry.kind == "event"]
        assert names == ["tape.request", "tape.decision"]
        assert [entry.actor for entry in chat.entries(name="tape.decision")] == ["ana"]


async def _twins(address: str, options: dict[str, Any]) -> None:
    async with tape.open_async(address, **options) as store:
        chat = store.tape("chat")
        asked = await chat.request("approve", {"n": 1})
        assert [each.id for each in (await store.requests()).items] == [asked.key]
        waiting = asyncio.create_task(chat.decision(asked, wait=PATIENCE))
        await asyncio.sleep(0)
        await chat.resolve(asked, "yes", actor="ana")
        assert (await asyncio.wait_for(waiting, PATIENCE)).decision == "yes"
        with pytest.raises(tape.RequestClosed):
            await chat.withdraw(asked)
        one = await chat.request("ask", key="k")
        deciding = (chat.resolve(one, n, actor=f"a{n}") for n in range(20))
        results = await asyncio.gather(*deciding, return_exceptions=True)
        assert Counter(type(each).__name__ for each in results) == {"Receipt": 1, "RequestClosed": 19}


def test_the_async_twins_do_the_same(backend: Backend) -> None:
    """Requests are made, decided, withdrawn, listed and waited for with await; of twenty tasks one decides."""
    asyncio.run(_twins(backend.address, backend.options))


@heavy
def test_processes_race_to_decide(backend: Backend, crew: Crew) -> None:
    """In every round one process decides, and every other is told who did and what."""
    with backend.open(durability="normal") as store:
        chat = store.tape("chat")
        for number in range(ROUNDS):
            chat.request("approve", key=f"ask-{number}")
        orders = [{"index": index, "rounds": ROUNDS, "opening": {"durability": "normal"}} for index in range(PROCESSES)]
        rounds = racing.rounds(crew, backend, racing.decide, orders)
        for number, said in enumerate(rounds):
            winners = [(who, what) for outcome, who, what in said if outcome == "won"]
            assert len(winners) == 1, f"round {number}: {winners}"
            assert {(who, what["by"]) for _, who, what in said} == {(winners[0][0], winners[0][1]["by"])}
            assert chat.decision(f"ask-{number}").decided_by == winners[0][0]
        assert chat.info().head == 1 + 2 * ROUNDS
        assert store.verify().ok
