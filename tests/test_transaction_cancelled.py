"""Transactions of an async store that are cancelled at any moment: kept or undone as a whole, and never left open.

The thread of a transaction tells its event loop what it has done. These are all the moments at which a task that awaits
the transaction goes on, so it is cancelled right before and right behind each of them.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.processes import PATIENCE

import tape

MOST = 40
"""More than a transaction of these tests has told its loop by its end."""


class Telling:
    """Counts what the threads tell the event loop, and cancels a task right before or behind one of these."""

    def __init__(self, at: int, *, behind: bool, twice: bool) -> None:
        self.count = 0
        self._at = at
        self._behind = behind
        self._twice = twice
        self._loop = asyncio.get_running_loop()
        self._tell = self._loop.call_soon_threadsafe
        self._task: asyncio.Task[Any] | None = None

    def cancels(self, task: asyncio.Task[Any]) -> None:
        """Count from now on, and cancel this task."""
        self._task = task
        self._loop.call_soon_threadsafe = self._told  # type: ignore[assignment,method-assign]

    def stop(self) -> None:
        """Cancel nothing from now on."""
        self._loop.call_soon_threadsafe = self._tell  # type: ignore[method-assign]

    def _told(self, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        self.count += 1
        if self.count != self._at:
            return self._tell(callback, *args, **options)
        if self._behind:
            handle = self._tell(callback, *args, **options)
            self._tell(self._cancel)
            return handle
        # In one step of the loop, or the task would be woken up by the one before it hears of the other.
        self._tell(self._cancel)
        return self._tell(callback, *args, **options)

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()
        if self._twice:
            self._loop.call_soon(self._task.cancel)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a test's coroutine with a bound on its time."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work(), PATIENCE)

    return asyncio.run(bounded())


async def write_two(inside: tape.AsyncStore) -> str:
    """Write to two tapes, and wait for something else in between."""
    await inside.tape("a").append(role="user", content="async")
    await asyncio.sleep(0)
    await inside.tape("b").event("async")
    return "written"


def write_two_plainly(inside: tape.Store) -> str:
    inside.tape("a").append(role="user", content="plain")
    inside.tape("b").event("plain")
    return "written"


FUNCTIONS: dict[str, Any] = {"async": write_two, "plain": write_two_plainly}
WAYS = pytest.mark.parametrize("way", ["before", "behind", "twice"])


def heads(backend: Backend) -> tuple[int, int]:
    with backend.open() as store:
        return store.tape("a").info().head, store.tape("b").info().head


async def _opened(backend: Backend) -> tape.AsyncStore:
    return await tape.open_async(backend.url, timeout=10.0, **backend.options)


@pytest.fixture
def begun(backend: Backend) -> Backend:
    """A store with the tapes that the functions write to."""
    with backend.open() as store:
        for name in ("a", "b"):
            store.tape(name).event("begun")
    return backend


@pytest.mark.alike
class TestAtEveryMoment:
    """Wherever it is cancelled, all of a transaction is there or nothing, and the store can be used and closed."""

    @WAYS
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_e1_cancelled_at_every_moment(self, begun: Backend, function: str, way: str) -> None:
        """Its tapes are whole, and free for the next write, which waits for nobody."""
        entries = (1, 1)

        async def cancelled_at(at: int) -> bool:
            before = heads(begun)
            async with tape.open_async(begun.url, timeout=10.0, **begun.options) as store:
                telling = Telling(at, behind=way == "behind", twice=way == "twice")
                task = asyncio.create_task(store.transaction(FUNCTIONS[function]))
                telling.cancels(task)
                with suppress(asyncio.CancelledError):
                    assert await task == "written"
                telling.stop()
                if function != "plain":
                    # It is decided by now.
                    assert heads(begun) in self._allowed(before, entries, task)
                await store.tape("a").event("after")
                head, other = heads(begun)
                assert (head - 1, other) in self._allowed(before, entries, task)
                assert (await store.verify()).problems == []
            return task.cancelled()

        assert not all(run(lambda at=at: cancelled_at(at)) for at in range(1, MOST))  # type: ignore[misc]

    def _allowed(
        self, before: tuple[int, int], entries: tuple[int, int], task: asyncio.Task[Any]
    ) -> list[tuple[int, int]]:
        """Return the heads that may be there. A commit that had begun when the task was cancelled is not undone."""
        written = (before[0] + entries[0], before[1] + entries[1])
        return [before, written] if task.cancelled() else [written]


class TestGivenUp:
    """What a transaction that was given up leaves behind: nothing."""

    def test_e1_while_the_loop_was_busy(self, begun: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread that has begun, but whose function was never called, undoes its transaction for others to write."""
        serving = threading.Event()
        serve = tape.aio.transactions._Calls.serve

        def tell(calls: Any) -> Any:
            serving.set()
            return serve(calls)

        async def work() -> None:
            async with tape.open_async(begun.url, timeout=10.0, **begun.options) as store:
                task = asyncio.create_task(store.transaction(write_two))
                await asyncio.sleep(0)
                # The loop does nothing else meanwhile.
                assert serving.wait(PATIENCE)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert heads(begun) == before
                assert await store.transaction(write_two) == "written"

        before = heads(begun)
        monkeypatch.setattr(tape.aio.transactions._Calls, "serve", tell)
        run(work)

    def test_e1_a_loop_that_is_closed_before_its_turn(self, begun: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread whose event loop is closed before the function is called rolls its transaction back."""
        serving = threading.Event()
        serve = tape.aio.transactions._Calls.serve

        def tell(calls: Any) -> Any:
            serving.set()
            return serve(calls)

        async def start(face: tape.AsyncStore) -> asyncio.Task[Any]:
            task = asyncio.create_task(face.transaction(write_two))
            await asyncio.sleep(0)
            return task

        before = heads(begun)
        loop = asyncio.new_event_loop()
        face = loop.run_until_complete(_opened(begun))
        monkeypatch.setattr(tape.aio.transactions._Calls, "serve", tell)
        task = loop.run_until_complete(start(face))
        assert serving.wait(PATIENCE)
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        gc.collect()
        with begun.open(timeout=10.0) as store:
            assert store.tape("a").event("after").seq == before[0] + 1
            assert store.tape("b").info().head == before[1]
        asyncio.run(face.close())

    def test_e1_a_plain_function_that_is_given_up(self, begun: Backend) -> None:
        """It cannot be interrupted: the cancellation goes on at once, and what it writes is undone when it returns."""

        async def work() -> None:
            writing, go_on = threading.Event(), threading.Event()

            def fn(inside: tape.Store) -> None:
                write_two_plainly(inside)
                writing.set()
                assert go_on.wait(PATIENCE)
                inside.tape("b").event("late")

            async with tape.open_async(begun.url, timeout=PATIENCE, **begun.options) as store:
                before = contents(begun)
                task = asyncio.create_task(store.transaction(fn))
                await asyncio.to_thread(writing.wait, PATIENCE)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                go_on.set()
            assert contents(begun) == before

        run(work)


LEFT = """
import asyncio, sys, tape

async def main(url, options):
    store = await tape.open_async(url, **options)
    inside = asyncio.Event()

    async def wait(inner):
        await inner.tape("left").append(role="user", content="never")
        inside.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(store.transaction(wait))
    await inside.wait()
    raise SystemExit(3)

asyncio.new_event_loop().run_until_complete(main(sys.argv[1], eval(sys.argv[2])))
"""


def test_e1_a_program_that_ends_inside_leaves_nothing(backend: Backend) -> None:
    """Where the event loop is left and never closed the program ends all the same, and the transaction is undone."""
    url = backend.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", LEFT, url, repr(backend.options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 3, done.stderr
    assert "left" not in [info.id for info in backend.open().list().items]
