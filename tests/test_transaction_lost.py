"""Replies to the commit of a transaction get lost: it is there once, its function is believed, or nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.backends import Backend
from support.proxy import Proxy

import tape
from tape.db.engine.failures import Lost
from tape.db.engine.transaction import lock_key

COMMIT = "COMMIT"


@pytest.fixture
def store(backend: Backend, proxy: Proxy) -> Iterator[tape.Store]:
    """A store that reaches the database through the proxy."""
    with tape.open(proxy.url, **backend.options) as opened:
        yield opened


class Counting:
    """A function that cannot simply be run twice: it reads a number, and writes the next to two tapes."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, inside: tape.Store) -> int:
        self.runs += 1
        number: int = (inside.tape("a").state("n") or 0) + 1
        for name in ("a", "b"):
            inside.tape(name).put("n", number)
        inside.tape("a").append(role="user", content=number)
        inside.create(messages=[{"content": number}])
        return number

    async def twin(self, inside: tape.AsyncStore) -> int:
        self.runs += 1
        number: int = (await inside.tape("a").state("n") or 0) + 1
        for name in ("a", "b"):
            await inside.tape(name).put("n", number)
        await inside.tape("a").append(role="user", content=number)
        await inside.create(messages=[{"content": number}])
        return number


def check(store: tape.Store, count: int) -> None:
    """Require that so many runs are stored, each wholly."""
    assert [store.tape(name).state("n") for name in ("a", "b")] == [count or None] * 2
    assert [message.content for message in store.tape("a").messages()] == list(range(1, count + 1))
    assert len(store.list(limit=100).items) == (2 + count if count else 0)
    assert store.verify().problems == []


def lose_first(store: tape.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reply to the next commit be lost, on whichever engine."""
    real, left = store._db.transact, [True]

    def transact(work: Any) -> Any:
        result = real(work)
        if left:
            left.clear()
            raise Lost("the reply")
        return result

    monkeypatch.setattr(store._db, "transact", transact)


def test_any_engine(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is found by its entries, and the function is not run again."""
    store, count = backend.open(), Counting()
    for number in range(1, 4):
        lose_first(store, monkeypatch)
        assert store.transaction(count) == number
        monkeypatch.undo()
    assert count.runs == 3
    check(store, 3)


def test_what_only_read_is_run_again(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that wrote nothing has nothing by which it could be found."""
    store = backend.open()
    store.tape("a").append(role="user", content="x")
    lose_first(store, monkeypatch)
    assert len(store.transaction(lambda inside: inside.tape("a").messages())) == 1


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
class TestThroughAProxy:
    """The connection really breaks."""

    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_exactly_once(self, store: tape.Store, proxy: Proxy, reply: bool) -> None:
        """Ten transactions of which the connection breaks: ten results, each stored once."""
        count = Counting()
        for number in range(1, 11):
            proxy.lose(COMMIT, reply=reply)
            assert store.transaction(count) == number
            assert proxy.lost == number
        assert count.runs == (10 if reply else 20)
        check(store, 10)

    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_async(self, backend: Backend, proxy: Proxy, reply: bool) -> None:
        """The same for an async function."""
        count = Counting()

        async def work() -> None:
            async with tape.open_async(proxy.url, **backend.options) as store:
                for number in range(1, 6):
                    proxy.lose(COMMIT, reply=reply)
                    assert await store.transaction(count.twin) == number

        asyncio.run(work())
        assert count.runs == (5 if reply else 10)
        check(backend.open(), 5)

    @pytest.mark.parametrize("statement", ["BEGIN", "RELEASE SAVEPOINT", "INSERT INTO", "SELECT"])
    def test_lost_before_the_commit(self, store: tape.Store, proxy: Proxy, statement: str) -> None:
        """A connection that breaks earlier leaves nothing unknown: the function is run again, whatever it caught."""
        count = Counting()

        def swallowing(inside: tape.Store) -> int:
            try:
                return count(inside)
            except Exception:
                return -1

        for number in range(1, 4):
            proxy.lose(statement)
            assert store.transaction(swallowing) == number
            assert (proxy.lost, count.runs) == (number, 2 * number)
        check(store, 3)

    def test_a_rival_in_between(self, backend: Backend, store: tape.Store, proxy: Proxy) -> None:
        """A commit that never arrived is run again behind what another did meanwhile, and sees it."""
        rival, count = backend.open(timeout=10.0), Counting()
        proxy.before_breaking = lambda: print(rival.transaction(count))
        proxy.lose(COMMIT, reply=False)
        assert store.transaction(count) == 2
        assert count.runs == 3
        check(store, 2)

    def test_behind_a_rival(self, backend: Backend, store: tape.Store, proxy: Proxy) -> None:
        """A commit that did arrive is found behind what another has written since."""
        rival, count = backend.open(timeout=10.0), Counting()
        proxy.before_breaking = lambda: print(rival.transaction(count))
        proxy.lose(COMMIT, reply=True)
        assert store.transaction(count) == 1
        assert count.runs == 2
        check(store, 2)

    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_nobody_knows(self, store: tape.Store, proxy: Proxy, reply: bool) -> None:
        """If the server cannot be asked it is CommitUnknown, with a key by which the caller can ask later."""
        count = Counting()
        store.transaction(count)
        proxy.lose(COMMIT, reply=reply)
        proxy.before_breaking = lambda: setattr(proxy, "away", True)
        with pytest.raises(tape.CommitUnknown) as unknown:
            store.transaction(count)
        proxy.away, proxy.before_breaking = False, None
        found = [entry for entry in store.tape(unknown.value.tape).entries() if entry.key == unknown.value.key]
        assert len(found) == (1 if reply else 0)
        check(store, 2 if reply else 1)

    def test_busy_after_a_lost_reply(self, backend: Backend, proxy: Proxy) -> None:
        """If its tape is locked by someone else when the store asks, it cannot say that nothing was written."""
        with tape.open(proxy.url, timeout=0.5, **backend.options) as store, backend.raw() as other:
            store.tape("a").append(role="user", content="first")

            def overtake() -> None:
                other.execute("SELECT pg_advisory_lock(%s)", (lock_key("a", store._db.tables.lock_space),))

            proxy.before_breaking = overtake
            proxy.lose(COMMIT)
            with pytest.raises(tape.CommitUnknown):
                store.transaction(lambda inside: inside.tape("a").append(role="user", content="second"))
            other.execute("SELECT pg_advisory_unlock(%s)", (lock_key("a", store._db.tables.lock_space),))
            assert [message.content for message in store.tape("a").messages()] == ["first", "second"]
