"""The async twin on both engines: the same results, and cancellation that leaves no half of anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from support import history
from support.backends import Backend
from support.damage import contents
from support.messages import CALL, RESULT, say
from support.sizes import heavy, size

import tape
from tape import new_ids

TIMEOUT = 60.0


def run(work: Awaitable[Any]) -> Any:
    """Run a test's coroutine with a bound on its time."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work, TIMEOUT)

    return asyncio.run(bounded())


@asynccontextmanager
async def opened(backend: Backend, **options: Any) -> AsyncIterator[tape.AsyncStore]:
    """Open the backend's database with asyncio."""
    async with tape.open_async(backend.url, **{**backend.options, **options}) as store:
        yield store


class TestConformance:
    """The same store, awaited."""

    def test_the_basics(self, backend: Backend) -> None:
        """Every sort of write and read works and gives what its synchronous twin gives."""

        async def work() -> None:
            async with opened(backend) as store:
                chat = await store.create("chat", name="Trip", messages=[{"id": "m1", "role": "user", "content": "1"}])
                assert (await chat.append(id="m2", role="assistant", content="2", key="k")).seq == 3
                assert (await chat.append(id="m2", role="assistant", content="2", key="k")).duplicate
                receipts = await chat.extend([{"id": "m3", "content": 3}, {"id": "m4", "content": 4}])
                assert [receipt.seq for receipt in receipts] == [4, 5]
                await chat.revise("m1", content="one")
                await chat.upsert({"id": "m5", "content": 5})
                await chat.retract("m4")
                await chat.switch("m3")
                await chat.anchor("a", {"n": 1})
                await chat.handoff("h", summary="done")
                await chat.put("slot", 1)
                await chat.event("e")
                assert [message.id for message in await chat.messages()] == ["m1", "m2", "m3"]
                assert [message.id for message in await chat.heads()] == ["m5"]
                assert (await chat.message("m1")).content == "one"
                assert await chat.find("nobody") is None
                assert [message.id for message in await chat.children("m1")] == ["m2"]
                assert [anchor.name for anchor in await chat.anchors()] == ["a", "h"]
                assert await chat.state("slot") == 1
                frozen = await chat.at(2)
                assert [message.content for message in await frozen.messages()] == ["1"]
                assert (await chat.context()).anchor is not None
                assert (await chat.info()).name == "Trip"
                assert (await store.get("chat")).id == "chat"
                assert (await chat.verify()).ok
                assert await store.rebuild() == 1
                assert (await store.verify()).ok

        run(work())
        assert backend.open().get("chat").info().head == 13

    def test_errors_are_the_same(self, backend: Backend) -> None:
        """Errors come out of an await as they come out of a call."""

        async def work() -> None:
            async with opened(backend, owner="ann") as store:
                assert store.owner == "ann"
                chat = store.tape("chat")
                with pytest.raises(tape.TapeNotFound):
                    await store.get("chat")
                await chat.append(id="m", role="user", content="x")
                with pytest.raises(tape.ProvenanceConflict):
                    await chat.append(id="m", role="user", content="y")
                with pytest.raises(tape.InvalidEntry) as caught:
                    await chat.append(role="user", content=float("nan"))
                assert caught.value.field == "message.content"
                with pytest.raises(tape.HeadMoved):
                    await chat.event("e", expected_head=9)
                with pytest.raises(tape.UnknownMessage):
                    await chat.messages(branch="nobody")
                with pytest.raises(tape.TapeExists):
                    await store.create("chat")
                with pytest.raises(tape.InvalidEntry):
                    await chat.at("nowhere")
                await chat.end("over")
                with pytest.raises(tape.TapeClosed):
                    await chat.clear()
                assert (await chat.info()).head == 3

        run(work())

    def test_entries_are_iterated(self, backend: Backend) -> None:
        """``entries`` is an async iterator over any number of pages, and can be left before its end."""

        async def work() -> None:
            async with opened(backend, durability="normal") as store:
                chat = store.tape("chat")
                await chat.extend([{"content": number} for number in range(600)])
                assert [entry.seq async for entry in chat.entries()] == list(range(1, 602))
                assert [entry.seq async for entry in chat.entries(after=598)] == [599, 600, 601]
                assert [entry.seq async for entry in chat.entries(kinds=["open"])] == [1]
                assert [entry.seq async for entry in chat.entries(limit=2)] == [1, 2]
                seen = []
                async for entry in chat.entries():
                    seen.append(entry.seq)
                    if len(seen) == 3:
                        break
                assert seen == [1, 2, 3]
                past = await chat.at(10)
                assert len([entry async for entry in past.entries()]) == 10
                assert (await chat.append(role="user", content="after")).seq == 602

        run(work())

    def test_a_history_reads_the_same(self, backend: Backend) -> None:
        """What the synchronous store wrote is read by the async one, message for message."""
        store = backend.open(durability="normal")
        history.write(store)
        expected = [message.to_dict() for message in store.get("chat").messages()]

        async def work() -> list[Any]:
            async with opened(backend) as twin:
                return [message.to_dict() for message in await (await twin.get("chat")).messages()]

        assert run(work()) == expected

    def test_many_tasks_write_one_tape(self, backend: Backend) -> None:
        """A hundred tasks that append at once all land, with dense seqs, none twice."""

        async def work() -> None:
            async with opened(backend, durability="normal") as store:
                chat = store.tape("chat")
                receipts = await asyncio.gather(
                    *(chat.append(role="user", content=number, key=f"k{number}") for number in range(100))
                )
                assert sorted(receipt.seq for receipt in receipts) == list(range(2, 102))
                assert sorted(message.content for message in await chat.messages()) == list(range(100))
                assert (await chat.verify()).ok

        run(work())

    def test_of_eight_tasks_exactly_one_wins(self, backend: Backend) -> None:
        """Eight tasks that expect one head write one entry."""

        async def work() -> None:
            async with opened(backend) as store:
                chat = store.tape("chat")
                head = (await chat.append(role="user", content="x")).seq
                found = await asyncio.gather(
                    *(chat.append(role="user", content=str(n), expected_head=head) for n in range(8)),
                    return_exceptions=True,
                )
                assert len([one for one in found if isinstance(one, tape.Receipt)]) == 1
                assert len([one for one in found if isinstance(one, tape.HeadMoved)]) == 7

        run(work())

    def test_forks_are_awaited_or_entered(self, backend: Backend) -> None:
        """A fork is awaited for its handle, or entered to be merged at the end and discarded on an exception."""

        async def work() -> None:
            async with opened(backend) as store:
                chat = store.tape("chat")
                await chat.append(id="m", role="user", content="x")
                helper = await chat.fork("helper")
                await helper.append(id="h", role="assistant", content="y")
                assert (await chat.merge(helper)).message_ids == ["h"]
                async with chat.fork("second") as second:
                    await second.append(id="s", role="user", content="z")
                assert [message.id for message in await chat.messages()] == ["m", "h", "s"]
                with pytest.raises(ZeroDivisionError):
                    async with chat.fork("third"):
                        raise ZeroDivisionError
                assert (await (await store.get("third")).info()).status == "discarded"
                assert (await store.verify()).ok

        run(work())

    def test_a_bound_async_store_joins_the_callers_transaction(self, backend: Backend) -> None:
        """What is awaited on a bound store is rolled back and committed by the caller."""
        engine = backend.engine()

        async def work() -> None:
            async with opened(backend) as store:
                await store.tape("chat").append(role="user", content="before")
                with engine.connect() as connection:
                    bound = store.bind(connection)
                    await bound.tape("chat").append(role="user", content="lost")
                    connection.rollback()
                    assert (await store.tape("chat").info()).head == 2
                    assert (await bound.tape("chat").append(role="user", content="kept")).seq == 3
                    await bound.close()
                    assert connection.execute(sa.select(sa.literal(1))).scalar() == 1
                    connection.commit()
                assert [m.content for m in await store.tape("chat").messages()] == ["before", "kept"]

        run(work())
        engine.dispose()


class TestSync:
    """``store.sync``: the way back to the plain store."""

    def test_plain_code_uses_the_same_store(self, backend: Backend) -> None:
        """What one writes the other reads, and it is closed with the async one."""

        async def work() -> tape.Store:
            async with opened(backend) as store:
                plain = store.sync
                assert plain is store.sync
                assert plain is await store.run(lambda inner: inner)
                receipt = await asyncio.to_thread(plain.tape("chat").append, role="user", content="x")
                assert (receipt.seq, await store.tape("chat").find_entry(key=receipt.key) is not None) == (2, True)
                await store.tape("chat").append(role="user", content="y")
                assert len(await asyncio.to_thread(plain.tape("chat").messages)) == 2
                assert (store.scoped("ann").sync.owner, plain.owner) == ("ann", None)
            return plain

        plain = run(work())
        with pytest.raises(tape.StoreFailed, match="closed"):
            plain.get("chat")

    def test_that_of_a_transaction_stays_in_its_thread(self, backend: Backend) -> None:
        """Elsewhere it is refused; a plain function of the transaction can use it."""

        async def work() -> None:
            async with opened(backend) as store:

                async def fn(inner: tape.AsyncStore) -> int:
                    with pytest.raises(tape.StoreFailed, match="thread"):
                        inner.sync.create("chat")
                    return await inner.run(lambda plain: plain.create("chat").append(role="user", content="x").seq)

                assert await store.transaction(fn) == 2

        run(work())


class TestClosing:
    """Opening and closing."""

    def test_awaited_or_entered(self, backend: Backend) -> None:
        """``open_async`` can be awaited for a store that is closed by hand, twice if need be."""

        async def work() -> None:
            store = await tape.open_async(backend.url, **backend.options)
            await store.tape("chat").append(role="user", content="x")
            await store.close()
            await store.close()
            with pytest.raises(tape.StoreFailed):
                await store.tape("chat").messages()

        run(work())
        assert backend.open().get("chat").info().head == 2

    def test_an_error_at_opening_is_raised(self, tmp_path: Any) -> None:
        """What ``open`` raises, awaiting ``open_async`` raises."""

        async def work(url: Any) -> None:
            async with tape.open_async(url):
                pass

        with pytest.raises(tape.StoreFailed):
            run(work(tmp_path / "no" / "such.db"))
        with pytest.raises(tape.InvalidEntry):
            run(work("nothing://x"))

    def test_closing_waits_for_writes_under_way(self, backend: Backend) -> None:
        """A store that is closed while a write is under way lets it finish."""

        async def work() -> tuple[tape.Receipt, bool]:
            store = await tape.open_async(backend.url, **backend.options)
            chat = store.tape("chat")
            gate = Gate(store, "commit")
            writing = asyncio.create_task(chat.append(role="user", content="x"))
            await gate.reached()
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0)
            unfinished = not closing.done()
            gate.open()
            await closing
            return await writing, unfinished

        receipt, unfinished = run(work())
        assert unfinished
        assert receipt.seq == 2
        assert backend.open().get("chat").info().head == 2

    @pytest.mark.blank
    def test_a_cancelled_opening_leaves_nothing_open(self, backend: Backend) -> None:
        """A task cancelled while it opens a store leaves no connection behind, and the next open works."""

        async def work() -> None:
            for turns in range(4):

                async def enter() -> None:
                    async with opened(backend) as store:
                        await store.tape("chat").info()

                task = asyncio.create_task(enter())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with opened(backend) as store:
                assert (await store.tape("chat").append(role="user", content="x")).seq == 2

        run(work())
        # Those that were cancelled end by themselves, and the database goes to another test then.
        for thread in threading.enumerate():
            if thread.name.startswith("tape-open"):
                thread.join(30)
                assert not thread.is_alive()


class Gate:
    """Holds a write at a named point inside it until the test lets it go on."""

    def __init__(self, store: tape.AsyncStore, point: str) -> None:
        self._point = point
        self._there = threading.Event()
        self._go = threading.Event()
        store._inner._db.fault = self._fault

    def _fault(self, name: str) -> None:
        if name == self._point and not self._there.is_set():
            self._there.set()
            assert self._go.wait(TIMEOUT)

    async def reached(self) -> None:
        """Wait until the write stands at the point."""
        assert await asyncio.to_thread(self._there.wait, TIMEOUT)

    def open(self) -> None:
        """Let the write go on."""
        self._go.set()


class TestCancellation:
    """A cancelled append is wholly there or wholly absent."""

    @pytest.mark.parametrize("point", ["entry", "view", "head", "commit"])
    def test_cancelled_inside_the_write_it_is_there(self, backend: Backend, point: str) -> None:
        """Cancelled while a thread is writing, the caller goes on at once and the whole batch is recorded."""

        async def work() -> None:
            store = await tape.open_async(backend.url, **backend.options)
            chat = store.tape("chat")
            await chat.append(role="user", content="before")
            gate = Gate(store, point)
            task = asyncio.create_task(chat.extend([{"content": 1}, {"content": 2}], key="k"))
            await gate.reached()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            await store.close()

        run(work())
        chat = backend.open().get("chat")
        assert [message.content for message in chat.messages()] == ["before", 1, 2]
        assert chat.verify().ok
        again = chat.extend([{"content": 1}, {"content": 2}], key="k")
        assert [receipt.duplicate for receipt in again] == [True, True]

    def test_cancelled_before_its_turn_it_is_absent(self, backend: Backend) -> None:
        """Cancelled while it waits for a thread, an append writes nothing at all."""

        async def work() -> None:
            store = await tape.open_async(backend.url, threads=1, **backend.options)
            chat = store.tape("chat")
            gate = Gate(store, "commit")
            first = asyncio.create_task(chat.append(role="user", content="first"))
            await gate.reached()
            second = asyncio.create_task(chat.append(role="user", content="second"))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            gate.open()
            assert (await first).seq == 2
            await store.close()

        run(work())
        chat = backend.open().get("chat")
        assert [message.content for message in chat.messages()] == ["first"]
        assert chat.verify().ok

    WRITES: dict[str, Callable[[tape.AsyncTape], Awaitable[Any]]] = {
        "append": lambda t: t.append(id="new", role="user", content="x"),
        "extend": lambda t: t.extend([{"id": "new", "content": 1}, {"id": "newer", "content": 2}]),
        "revise": lambda t: t.revise("m1", content="x"),
        "replace_history": lambda t: t.replace_history([{"id": "new", "content": 1}, {"id": "newer", "content": 2}]),
        "merge": lambda t: t.merge("child"),
    }

    @pytest.mark.alike
    @pytest.mark.parametrize("write", WRITES)
    def test_cancelled_at_every_await_it_is_whole_or_absent(self, backend: Backend, write: str) -> None:
        """However many turns of the loop a write was given before it was cancelled, it left all of it or nothing."""
        states: list[dict[str, tuple[int, str]]] = []

        async def work(turns: int) -> bool:
            store = await tape.open_async(backend.url, durability="normal", **backend.options)
            task = asyncio.ensure_future(self.WRITES[write](store.tape("chat")))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            finished = False
            try:
                await task
                finished = True
            except asyncio.CancelledError:
                pass
            await store.close()
            return finished

        store = backend.open(durability="normal")
        chat = store.create("chat", messages=[{"id": "m1", "role": "user", "content": "1"}])
        child = chat.fork("child")
        child.append(id="c1", role="assistant", content="2")
        before = (chat.info().head, child.info().head)
        for turns in range(6):
            run(work(turns))
            now = (chat.info().head, child.info().head)
            # Up to where a tape was verified is kept, too.
            states.append({name: rows for name, rows in contents(backend).items() if name != "tape_checks"})
            assert store.verify().ok
            if now != before:
                break
        steps = {"append": 1, "extend": 2, "revise": 1, "replace_history": 3, "merge": 2}
        after = (chat.info().head, child.info().head)
        assert after[0] - before[0] in (0, steps[write])
        assert after[1] - before[1] == (int(after != before) if write == "merge" else 0)
        if after == before:
            assert all(state == states[0] for state in states)

    def test_a_cancelled_read_leaves_the_store_usable(self, backend: Backend) -> None:
        """Reads may be cancelled at any time, also in the middle of an iteration."""

        async def work() -> None:
            async with opened(backend, durability="normal") as store:
                chat = store.tape("chat")
                await chat.extend([{"content": number} for number in range(300)])

                async def read() -> None:
                    async for _ in chat.entries():
                        await asyncio.sleep(0)
                    await chat.messages()

                for turns in (0, 1, 5, 50):
                    task = asyncio.create_task(read())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                assert len(await chat.messages()) == 300
                assert (await chat.append(role="user", content="x")).seq == 302

        run(work())


class TestAsync:
    """The same basics, awaited."""

    @staticmethod
    def run(backend: Backend, work: Callable[[tape.AsyncStore, tape.AsyncTape], Awaitable[None]]) -> None:
        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                await asyncio.wait_for(work(store, store.tape(new_ids.new_id())), 60)

        asyncio.run(main())

    def test_t1_t2_t3_async_paths(self, standing: Backend) -> None:
        """A new tape is empty, order is root to head, and a parent may be omitted, None or named."""

        async def work(store: tape.AsyncStore, chat: tape.AsyncTape) -> None:
            assert await chat.messages() == []
            assert await chat.heads() == []
            await chat.extend(say("a", "b"))
            await chat.append(say("c")[0])
            assert [(m.id, m.parent) for m in await chat.messages()] == [("a", None), ("b", "a"), ("c", "b")]
            await chat.append(say("r")[0], parent=None)
            assert [m.id for m in await chat.messages()] == ["r"]
            assert await chat.find("ghost") is None
            with pytest.raises(tape.UnknownMessage):
                await chat.message("ghost")

        self.run(standing, work)

    def test_t4_t5_t6_t13_async_branches_and_batches(self, standing: Backend) -> None:
        """Siblings are kept, unknown parents refused, batches atomic, and ids belong to their tape."""

        async def work(store: tape.AsyncStore, chat: tape.AsyncTape) -> None:
            await chat.extend(say("ask", "one"))
            await chat.append(say("two")[0], parent="ask")
            assert [m.id for m in await chat.children("ask")] == ["one", "two"]
            with pytest.raises(tape.UnknownMessage):
                await chat.append(say("x")[0], parent="ghost")
            with pytest.raises(tape.InvalidEntry):
                await chat.extend([*say("x"), {"role": "user", "content": float("inf")}])
            assert (await chat.info()).head == 4
            other = store.tape(new_ids.new_id())
            await other.extend(say("ask"))
            assert [m.id for m in await other.messages()] == ["ask"]

        self.run(standing, work)

    def test_t7_t8_t9_async_changes(self, standing: Backend) -> None:
        """Retraction splices, revision keeps the place, and upsert does either of three things."""

        async def work(store: tape.AsyncStore, chat: tape.AsyncTape) -> None:
            await chat.extend(say("a", "b", "c"))
            await chat.retract("b")
            assert [(m.id, m.parent) for m in await chat.messages()] == [("a", None), ("c", "a")]
            await chat.revise("c", content="changed")
            assert (await chat.message("c")).content == "changed"
            with pytest.raises(tape.UnknownMessage):
                await chat.revise("b", content="phantom")
            for content, duplicate in (("new", False), ("new", True), ("newer", False)):
                receipt = await chat.upsert({"role": "user", "content": content, "id": "d"})
                assert receipt.duplicate == duplicate
            assert (await chat.message("d")).content == "newer"

        self.run(standing, work)

    def test_t10_t11_t12_async_hiding(self, standing: Backend) -> None:
        """Results go with their call, a clear takes everything, and both can be undone."""

        async def work(store: tape.AsyncStore, chat: tape.AsyncTape) -> None:
            await chat.append(CALL, id="call")
            await chat.append(RESULT, id="result")
            await chat.retract("call")
            assert await chat.messages() == []
            await chat.restore("call")
            await chat.revise("call", {"content": "Never mind."})
            assert [m.id for m in await chat.messages()] == ["call"]
            await chat.clear()
            assert await chat.messages() == []
            assert [m.id for m in await (await chat.at(3)).messages()] == ["call", "result"]
            await chat.restore()
            assert [m.id for m in await chat.messages()] == ["call"]
            assert (await chat.verify()).ok

        self.run(standing, work)

    @heavy
    def test_t14_t15_async_depth_and_switch(self, standing: Backend) -> None:
        """A long path reads whole, and a chosen branch is still chosen after reopening."""
        count = size(1_500, 12_000)

        async def work(store: tape.AsyncStore, chat: tape.AsyncTape) -> None:
            await chat.extend([{"role": "user", "content": n} for n in range(count)])
            assert [m.content for m in await chat.messages()] == list(range(count))
            first = (await chat.messages())[0]
            await chat.switch(first.id)
            async with tape.open_async(standing.url, **standing.options) as again:
                assert [m.content for m in await again.tape(chat.id).messages()] == [0]

        self.run(standing, work)
