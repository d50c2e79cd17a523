"""What every adapter does with its ``store``: taken in three ways, used from sync and async code, closed if opened."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from functools import partial
from pathlib import Path

import pytest
from support.backends import Backend

import tape
from tape import sharing
from tape.integrations.opening import Connected, delete, workers


def note(store: tape.Store, text: str) -> str:
    """Write a message and tell in which thread."""
    store.tape("chat").append(role="user", content=text)
    return threading.current_thread().name


def texts(store: tape.Store) -> list[str]:
    return [message.text for message in store.tape("chat").messages()]


class TestConnected:
    def test_a_store_is_used_and_left_open(self, store: tape.Store) -> None:
        """From sync code directly, from async code in another thread; it stays open."""
        connected = Connected(store)
        note(connected.store, "one")
        assert asyncio.run(connected.run(lambda store: note(store, "two"))) != threading.current_thread().name
        connected.close()
        assert texts(store) == ["one", "two"]

    def test_an_async_store_is_used_from_sync_code(self, backend: Backend) -> None:
        """Also where an event loop runs, and it stays its giver's to close."""

        async def go() -> list[str]:
            async with tape.open_async(backend.url, **backend.options) as store:
                connected = Connected(store)
                note(connected.store, "one")
                await connected.run(lambda store: note(store, "two"))
                await connected.aclose()
                return [message.text for message in await store.tape("chat").messages()]

        assert asyncio.run(go()) == ["one", "two"]

    def test_errors_arrive_as_they_are(self, store: tape.Store) -> None:
        """What the store raises in the thread is what the caller gets."""
        with pytest.raises(tape.TapeNotFound):
            asyncio.run(Connected(store).run(lambda store: store.get("nowhere")))

    def test_a_cancelled_write_is_waited_for(self, backend: Backend) -> None:
        """``finish`` is cancelled only when the write has ended, so that what is written next comes behind it."""

        async def go() -> list[str]:
            store, begun, free = backend.open(), threading.Event(), threading.Event()
            connected = Connected(store)

            def slow(store: tape.Store) -> None:
                begun.set()
                assert free.wait(30)
                note(store, "first")

            writing = asyncio.ensure_future(connected.finish(slow))
            while not begun.is_set():
                await asyncio.sleep(0)
            for _ in range(2):
                writing.cancel()
                await asyncio.sleep(0)
            assert not writing.done()
            free.set()
            with pytest.raises(asyncio.CancelledError):
                await writing
            await connected.run(lambda store: note(store, "second"))
            return texts(store)

        assert asyncio.run(go()) == ["first", "second"]

    def test_a_hop_serves_many_tasks_and_survives_any_error(self, store: tape.Store) -> None:
        """More tasks than threads get their own results; a StopIteration is reported as an error."""
        connected = Connected(store)

        def stop(_: tape.Store) -> None:
            raise StopIteration

        def same(number: int, _: tape.Store) -> int:
            return number

        async def go() -> list[int]:
            with pytest.raises(RuntimeError, match="StopIteration"):
                await connected.run(stop)
            gone = asyncio.ensure_future(connected.run(stop))
            gone.cancel()
            return await asyncio.gather(*(connected.run(partial(same, number)) for number in range(100)))

        for _ in range(2):
            # In another event loop, too.
            assert asyncio.run(go()) == list(range(100))

    def test_the_end_of_a_program_waits_for_calls_and_for_nothing_else(self) -> None:
        """More calls than threads leave none behind that keeps the program; a call that was started is finished."""
        program = """
import asyncio, threading
from tape.integrations.opening import workers

begun, go = threading.Event(), threading.Event()

async def main():
    assert await asyncio.gather(*(workers.start(lambda n=n: n) for n in range(50))) == list(range(50))
    workers.start(lambda: (begun.set(), go.wait(30), print("finished", flush=True)))
    begun.wait(30)

asyncio.run(main())
go.set()
"""
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert (ended.stdout, ended.stderr) == ("finished\n", "")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        """The hop works in a process that was forked after it was used, whose threads are gone."""

        async def seven() -> int:
            return await asyncio.wait_for(workers.start(lambda: 7), 30)

        assert asyncio.run(seven()) == 7
        with warnings.catch_warnings():
            # Newer releases of Python warn of forks beside threads.
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            code = 1
            try:
                code = asyncio.run(seven()) - 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_what_was_opened_is_shared_and_closed_with_the_last(self, tmp_path: Path) -> None:
        """Adapters on one URL have one set of connections: it lives as long as one of them."""
        url = tmp_path / "agent.db"
        one, two = Connected(url), Connected(str(url))
        assert len(sharing._opened) == 1
        one.close()
        one.close()
        note(two.store, "still open")
        two.close()
        assert sharing._opened == {}
        for closed in (one, two):
            with pytest.raises(tape.TapeError):
                note(closed.store, "closed")
        three = Connected(url)
        assert texts(three.store) == ["still open"]
        three.close()

    def test_an_adapter_that_vanishes_closes_its_store(self, tmp_path: Path) -> None:
        """Nobody has to close an adapter that is no longer used."""
        note(Connected(tmp_path / "agent.db").store, "gone")
        gc.collect()
        assert sharing._opened == {}

    def test_stores_in_memory_are_not_shared(self) -> None:
        """Each adapter has its own."""
        one, two = Connected(":memory:"), Connected("sqlite:///:memory:")
        note(one.store, "mine")
        assert texts(two.store) == []
        one.close()
        two.close()

    def test_many_threads_open_one_store(self, tmp_path: Path) -> None:
        """Adapters that come and go in many threads never get a closed store."""
        failed: list[BaseException] = []

        def come_and_go(number: int) -> None:
            try:
                for turn in range(20):
                    connected = Connected(tmp_path / "agent.db")
                    note(connected.store, f"{number}.{turn}")
                    connected.close()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        last = Connected(tmp_path / "agent.db")
        assert len(set(texts(last.store))) == 80
        last.close()

    def test_a_wrong_url_fails_at_once(self, tmp_path: Path) -> None:
        """Where it is written, not at the first turn of an agent."""
        with pytest.raises(tape.StoreFailed):
            Connected(tmp_path / "nowhere" / "agent.db")


def ids(store: tape.Store, *, hidden: bool = False) -> list[str]:
    return sorted(info.id for info in store.tapes(hidden=hidden))


class TestDelete:
    """A deleted tape is out of sight at once, and gone with the last fork that is deleted."""

    @pytest.fixture
    def family(self, store: tape.Store) -> tape.Store:
        """A tape, its fork, and a fork of that."""
        store.create("a", messages=[{"role": "user", "content": "one"}]).fork("b").fork("c")
        return store

    def test_a_tape_without_forks_is_purged(self, family: tape.Store) -> None:
        """Nothing of it stays, and nothing else goes."""
        delete(family, "c")
        assert (ids(family), ids(family, hidden=True)) == (["a", "b"], [])

    @pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
    def test_a_family_goes_in_any_order(self, family: tape.Store, order: str) -> None:
        """Each is invisible from its own deletion on; what forks inherit stays readable; at last nothing is left."""
        for number, id in enumerate(order, start=1):
            delete(family, id)
            left = sorted(order[number:])
            assert ids(family) == left
            assert [family.get(other).messages()[0].text for other in left] == ["one"] * len(left)
        assert ids(family, hidden=True) == []
        assert family.verify().ok

    @pytest.mark.parametrize("order", ["ab", "ba"])
    def test_tapes_that_need_each_other_go_together(self, store: tape.Store, order: str) -> None:
        """A parent that links to its fork keeps it, and the fork keeps the parent, until both are deleted."""
        chat = store.create("a")
        chat.merge(chat.fork("b"), strategy="link")
        for id in order:
            delete(store, id)
        assert ids(store) == ids(store, hidden=True) == []

    def test_a_tape_that_the_application_hid_is_deleted(self, store: tape.Store) -> None:
        """It is purged as any other, and a hidden fork of the application's own stays."""
        store.create("a").hide("old")
        delete(store, "a")
        parent = store.create("b")
        parent.fork("c").hide("old")
        delete(store, "b")
        assert ids(store, hidden=True) == ["b", "c"]
        delete(store, "c")
        assert ids(store, hidden=True) == ["b"]

    def test_an_interrupted_purge_is_finished(self, store: tape.Store, backend: Backend) -> None:
        """The rows of a tape whose purge died are deleted by the next call."""
        store.create("a", messages=[{"role": "user", "content": "secret"}])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(store._services.purging, "empty", lambda row: 1 // 0)
            delete(store, "a")
        delete(store, "a")
        connection = backend.raw()
        assert connection.execute("SELECT count(*) FROM tape_entries WHERE kind = 'append'").fetchall() == [(0,)]
        connection.close()

    def test_a_condition_that_does_not_hold_deletes_nothing(self, family: tape.Store) -> None:
        """Both where the tape would be purged and where it would be hidden."""
        for id in ("a", "c"):
            with pytest.raises(tape.HeadMoved):
                delete(family, id, expected_head=99)
        assert ids(family) == ["a", "b", "c"]
