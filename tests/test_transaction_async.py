"""Transactions of an async store: plain functions in one hop, async ones on the event loop, and their cancellation."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.processes import PATIENCE

import tape

TASKS = 8


def run(work: Awaitable[Any]) -> Any:
    """Run a test's coroutine with a bound on its time."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(bounded())


@asynccontextmanager
async def opened(backend: Backend, **options: Any) -> AsyncIterator[tape.AsyncStore]:
    """Open the backend's database with asyncio."""
    async with tape.open_async(backend.url, **{**backend.options, **options}) as store:
        yield store


async def texts(chat: tape.AsyncTape) -> list[Any]:
    return [message.content for message in await chat.messages()]


async def add_one(inside: tape.AsyncStore, name: str = "counter") -> int:
    """Read a number, wait for something else, and write the next."""
    chat = inside.tape(name)
    number = (await chat.state("n") or 0) + 1
    await asyncio.sleep(0)
    await chat.put("n", number)
    return int(number)


def add_one_plainly(inside: tape.Store) -> int:
    chat = inside.tape("counter")
    number = (chat.state("n") or 0) + 1
    chat.put("n", number)
    return int(number)


class TestPlain:
    """A plain function runs in a thread, with a synchronous store."""

    def test_one_hop(self, backend: Backend) -> None:
        """``transaction`` and ``run`` give it a synchronous store, and return what it returns."""

        async def work() -> None:
            async with opened(backend) as store:
                threads: list[int] = []

                def fn(inside: tape.Store) -> int:
                    assert isinstance(inside, tape.Store)
                    threads.append(threading.get_ident())
                    return add_one_plainly(inside)

                assert await store.transaction(fn) == 1
                assert await store.run(fn) == 2
                assert threading.get_ident() not in threads

                def fail(inside: tape.Store) -> None:
                    fn(inside)
                    raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    await store.transaction(fail)
                assert await store.tape("counter").state("n") == 2
                with pytest.raises(ZeroDivisionError):
                    await store.run(fail)
                assert await store.tape("counter").state("n") == 3

        run(work())

    def test_wrong_functions(self, backend: Backend) -> None:
        """What is no function, or returns something to await, is InvalidEntry; nobody waits for ever."""

        async def work() -> None:
            async with opened(backend) as store:
                calls: list[Any] = [store.transaction, store.run]
                for call in calls:
                    for wrong in (None, "fn", lambda inside: asyncio.sleep(0)):
                        with pytest.raises(tape.InvalidEntry):
                            await call(wrong)
                    with pytest.raises(RuntimeError):
                        await call(lambda inside: next(iter(())))

        run(work())

        async def fn(inside: Any) -> None:
            raise AssertionError("it is never run")

        transaction: Any = backend.open().transaction
        with pytest.raises(tape.InvalidEntry):
            transaction(fn)


class TestAsync:
    """An async function runs on the event loop, with an async store."""

    def test_all_or_nothing(self, backend: Backend) -> None:
        """Reads see what was written; what is raised undoes everything; nobody sees anything before the commit."""

        async def work() -> None:
            async with opened(backend) as store:

                async def fn(inside: tape.AsyncStore, fail: bool) -> str:
                    made = await inside.create("made", messages=[{"role": "user", "content": "one"}])
                    child = await made.fork("child")
                    await child.append(role="assistant", content="two")
                    await made.merge(child)
                    assert await texts(made) == ["one", "two"]
                    assert [entry.kind async for entry in made.entries()][:2] == ["open", "append"]
                    assert await store.tape("made").messages() == []
                    assert (await inside.run(lambda plain: plain.get("made").info())).message_count == 2
                    if fail:
                        raise ZeroDivisionError
                    return made.id

                before = contents(backend)
                with pytest.raises(ZeroDivisionError):
                    await store.transaction(functools.partial(fn, fail=True))
                assert contents(backend) == before
                assert await store.transaction(functools.partial(fn, fail=False)) == "made"
                assert await texts(store.tape("made")) == ["one", "two"]
                assert (await store.verify()).problems == []

        run(work())

    def test_tasks_lose_no_count(self, backend: Backend) -> None:
        """Many tasks count in one slot, some by plain functions, beside appends that share commits."""

        async def work() -> None:
            async with opened(backend, threads=4) as store:
                chat = store.tape("counter")

                async def count(number: int) -> list[int]:
                    fn: Any = add_one if number % 2 else add_one_plainly
                    return [await store.transaction(fn) for _ in range(5)]

                async def beside() -> list[int]:
                    return [(await chat.append(role="user", content="beside")).seq for _ in range(10)]

                told = await asyncio.gather(*(count(number) for number in range(TASKS)), beside(), beside())
                assert sorted(n for one in told[:TASKS] for n in one) == list(range(1, 5 * TASKS + 1))
                assert await chat.state("n") == 5 * TASKS
                assert len(await chat.messages()) == 20
                assert (await store.verify()).problems == []

        run(work())

    def test_calls_at_once(self, backend: Backend) -> None:
        """Calls that the function makes at one moment are run in their order; one that is refused harms no other."""

        async def work() -> None:
            async with opened(backend) as store:

                async def fn(inside: tape.AsyncStore) -> None:
                    chat = inside.tape("a")
                    seqs = await asyncio.gather(*(chat.append(role="user", content=number) for number in range(9)))
                    assert [receipt.seq for receipt in seqs] == list(range(2, 11))
                    some = await asyncio.gather(
                        chat.revise("nobody", content="x"),
                        inside.tape("b").append(role="user", content="x"),
                        chat.info(),
                        return_exceptions=True,
                    )
                    assert isinstance(some[0], tape.UnknownMessage)
                    assert not isinstance(some[1], BaseException)

                await store.transaction(fn)
                assert await texts(store.tape("a")) == list(range(9))
                assert await texts(store.tape("b")) == ["x"]

        run(work())

    def test_nested(self, backend: Backend) -> None:
        """An async transaction refuses one inside it; a plain function may open a savepoint there."""

        async def work() -> None:
            async with opened(backend) as store:

                def plain(inside: tape.Store) -> None:
                    def fails(nested: tape.Store) -> None:
                        nested.tape("a").append(role="user", content="lost")
                        raise ZeroDivisionError

                    with pytest.raises(ZeroDivisionError):
                        inside.transaction(fails)
                    inside.transaction(add_one_plainly)

                async def fn(inside: tape.AsyncStore) -> None:
                    await inside.tape("a").append(role="user", content="one")
                    for nested in (add_one, add_one_plainly):
                        with pytest.raises(tape.NotInTransaction, match=r"await store\.run"):
                            await inside.transaction(nested)
                    await inside.run(plain)

                await store.transaction(fn)
                assert await texts(store.tape("a")) == ["one"]
                assert await store.tape("counter").state("n") == 1
                assert (await store.verify()).problems == []

        run(work())

    def test_a_deadlock_is_run_again(self, backend: Backend) -> None:
        """Two that lock each other's tapes both end."""

        async def work() -> None:
            async with opened(backend) as store:
                runs: list[str] = []
                met = {"a": asyncio.Event(), "b": asyncio.Event()}

                async def fn(first: str, second: str, inside: tape.AsyncStore) -> None:
                    runs.append(first)
                    await add_one(inside, first)
                    met[first].set()
                    if backend.name == "postgresql":
                        await met[second].wait()
                    await add_one(inside, second)

                await asyncio.gather(
                    store.transaction(functools.partial(fn, "a", "b")),
                    store.transaction(functools.partial(fn, "b", "a")),
                )
                assert [await store.tape(name).state("n") for name in ("a", "b")] == [2, 2]
                assert len(runs) == (3 if backend.name == "postgresql" else 2)

        run(work())

    def test_bound(self, backend: Backend) -> None:
        """On a connection of the caller's it is a part of the caller's transaction."""

        async def work() -> None:
            engine = backend.engine()
            async with opened(backend) as store:
                with engine.connect() as connection:
                    assert await store.bind(connection).transaction(add_one) == 1
                    assert await store.bind(connection).transaction(add_one_plainly) == 2
                    connection.rollback()
                    assert await store.bind(connection).transaction(add_one) == 1
                    connection.commit()
                assert await store.tape("counter").state("n") == 1
            engine.dispose()

        run(work())


class TestRefusals:
    """What would wait for itself, or comes too late, is told."""

    def test_the_store_itself_inside(self, backend: Backend) -> None:
        """A write with the store that the function closes over is refused at once, also from a task it started."""

        async def work() -> None:
            async with opened(backend) as store:
                left: list[asyncio.Task[Any]] = []
                over = asyncio.Event()

                async def later() -> None:
                    await over.wait()
                    await store.tape("a").append(role="user", content="later")

                async def fn(inside: tape.AsyncStore) -> None:
                    await inside.tape("a").append(role="user", content="x")
                    left.append(asyncio.create_task(later()))
                    calls: list[Callable[[], Awaitable[Any]]] = [
                        lambda: store.tape("a").append(role="user", content="lost"),
                        lambda: store.create("b"),
                        lambda: store.transaction(add_one),
                        lambda: store.transaction(add_one_plainly),
                        lambda: store.run(add_one_plainly),
                        lambda: store.scoped("me").tape("b").clear(),
                        store.close,
                        lambda: asyncio.create_task(store.create("b")),
                    ]
                    for call in calls:
                        with pytest.raises(tape.StoreFailed, match="inside a transaction"):
                            await call()
                    assert await store.tape("a").messages() == []

                await store.transaction(fn)
                over.set()
                await left[0]
                assert await texts(store.tape("a")) == ["x", "later"]

        run(work())

    def test_in_memory(self) -> None:
        """There reads wait for the transaction, too: its function is refused those of the store itself."""

        async def work() -> None:
            async with tape.open_async(":memory:") as store:

                async def fn(inside: tape.AsyncStore) -> None:
                    await inside.tape("a").append(role="user", content="x")
                    with pytest.raises(tape.StoreFailed, match="inside a transaction"):
                        await store.tape("a").messages()

                await store.transaction(fn)
                assert await texts(store.tape("a")) == ["x"]

        run(work())

    def test_after_its_end(self, backend: Backend) -> None:
        """The store that the function was given is of no use afterwards."""

        async def work() -> None:
            async with opened(backend) as store:
                kept: list[tape.AsyncStore] = []

                async def fn(inside: tape.AsyncStore) -> None:
                    kept.append(inside)
                    await inside.close()
                    for call in (inside.feed, inside.follow):
                        with pytest.raises(tape.NotInTransaction):
                            async for _ in call():
                                pass
                    with pytest.raises(tape.NotInTransaction):
                        await inside.purge("a")

                await store.transaction(fn)
                calls: list[Callable[[], Awaitable[Any]]] = [
                    lambda: kept[0].tape("a").append(role="user", content="late"),
                    lambda: kept[0].list(),
                    lambda: kept[0].transaction(add_one),
                ]
                for call in calls:
                    with pytest.raises(tape.StoreFailed, match="has ended"):
                        await call()

        run(work())

    def test_a_closed_store(self, backend: Backend) -> None:
        """A transaction of a closed store is StoreFailed; one under way is waited for."""

        async def work() -> None:
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def fn(inside: tape.AsyncStore) -> int:
                begun.set()
                await go_on.wait()
                return await add_one(inside)

            store = await tape.open_async(backend.url, **backend.options)
            running = asyncio.create_task(store.transaction(fn))
            await begun.wait()
            closing = asyncio.create_task(store.close())
            go_on.set()
            assert await running == 1
            await closing
            for call in (fn, add_one_plainly):
                with pytest.raises(tape.StoreFailed):
                    await store.transaction(call)

        run(work())


class TestCancelled:
    """Cancelled, it leaves nothing behind and locks nobody out."""

    @pytest.mark.parametrize("stage", ["before", "between", "during"])
    def test_everything_is_undone(self, backend: Backend, stage: str) -> None:
        """Wherever the function is, what it wrote is gone and the tape is free when the cancellation arrives."""

        async def work() -> None:
            async with opened(backend, timeout=5.0) as store:
                await store.tape("a").append(role="user", content="before")
                before = contents(backend)
                for _ in range(5):
                    there = asyncio.Event()

                    async def fn(inside: tape.AsyncStore, there: asyncio.Event = there) -> None:
                        if stage == "before":
                            there.set()
                            await asyncio.Event().wait()
                        await inside.tape("a").append(role="user", content="lost")
                        if stage == "between":
                            there.set()
                            await asyncio.Event().wait()
                        there.set()
                        while True:
                            await inside.tape("b").append(role="user", content="lost")

                    running = asyncio.create_task(store.transaction(fn))
                    await there.wait()
                    running.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await running
                    assert contents(backend) == before
                assert (await store.tape("a").append(role="user", content="after")).seq == 3
                assert (await store.verify()).problems == []

        run(work())

    def test_while_it_waits_for_another(self, backend: Backend) -> None:
        """One that is cancelled while it waits for its turn never runs, and does not hold up the next."""

        async def work() -> None:
            async with opened(backend) as store:
                holding, free = asyncio.Event(), asyncio.Event()
                ran: list[str] = []

                async def hold(inside: tape.AsyncStore) -> None:
                    await add_one(inside)
                    holding.set()
                    await free.wait()

                async def wait(inside: tape.AsyncStore) -> None:
                    await add_one(inside)
                    ran.append("ran")

                first = asyncio.create_task(store.transaction(hold))
                await holding.wait()
                second = asyncio.create_task(store.transaction(wait))
                await asyncio.sleep(0)
                second.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await second
                free.set()
                await first
                assert await store.transaction(add_one) == 2
                assert ran == []

        run(work())

    def test_a_timeout_inside(self, backend: Backend) -> None:
        """A function that gives up waiting for something may go on, and commits what it has."""

        async def work() -> None:
            async with opened(backend) as store:

                async def fn(inside: tape.AsyncStore) -> None:
                    await inside.tape("a").append(role="user", content="one")
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await asyncio.Event().wait()
                    await inside.tape("a").append(role="user", content="two")

                await store.transaction(fn)
                assert await texts(store.tape("a")) == ["one", "two"]

        run(work())

    def test_a_loop_that_goes_away(self, backend: Backend) -> None:
        """If the event loop is closed in the middle, the transaction is undone and its lock is free."""
        store = backend.open(timeout=10.0)
        loop = asyncio.new_event_loop()
        face = loop.run_until_complete(_opened(backend))
        begun = asyncio.Event()

        async def fn(inside: tape.AsyncStore) -> None:
            await inside.tape("a").append(role="user", content="lost")
            begun.set()
            await asyncio.Event().wait()

        async def start() -> asyncio.Task[None]:
            task = asyncio.create_task(face.transaction(fn))
            await begun.wait()
            return task

        task = loop.run_until_complete(start())
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        gc.collect()
        assert store.tape("a").append(role="user", content="after").seq == 2
        asyncio.run(face.close())


async def _opened(backend: Backend) -> tape.AsyncStore:
    return await tape.open_async(backend.url, **backend.options)
