"""What ends a summarizer, and where it runs: the next compaction can always start."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from typing import Any

import pytest
from support.backends import Backend
from support.compacting import say, states, talk

import tape

# -- summarizers that are awaited, and cancelled


async def filled(store: tape.AsyncStore) -> tape.AsyncTape:
    chat = store.tape("chat")
    await chat.extend([say(f"u{n}") for n in range(20)])
    return chat


async def states_of(chat: tape.AsyncTape) -> list[str]:
    return [entry.payload.data["state"] async for entry in chat.entries(kinds=["event"])]  # type: ignore[union-attr]


class TestAwaited:
    """From the async twin a summarizer runs on the loop of whoever awaits."""

    @pytest.mark.parametrize("how", ["function", "partial", "object", "lambda"])
    def test_13_a_coroutine_runs_on_the_callers_loop(self, backend: Backend, how: str) -> None:
        """So that it can use clients, locks and queues that belong to that loop."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                queue: asyncio.Queue[str] = asyncio.Queue()
                loops: list[asyncio.AbstractEventLoop] = []

                async def summarize(request: tape.SummaryRequest, *, more: str = "") -> str:
                    loops.append(asyncio.get_running_loop())
                    # The reader of a queue is woken on the loop that it waits on.
                    return await queue.get()

                class Summarizer:
                    async def __call__(self, request: tape.SummaryRequest) -> str:
                        return await summarize(request)

                given: dict[str, Any] = {
                    "function": summarize,
                    "partial": functools.partial(summarize, more="x"),
                    "object": Summarizer(),
                    "lambda": lambda request: summarize(request),
                }
                task = asyncio.create_task(chat.compact(given[how], budget=60, timeout=20))
                while not loops:
                    await asyncio.sleep(0.001)
                queue.put_nowait("in short")
                assert await task is not None
                assert loops == [asyncio.get_running_loop()]
                summary = await chat.summary()
                assert summary is not None
                assert summary.text == "in short"

        asyncio.run(main())

    def test_13_it_may_use_the_store_itself(self, backend: Backend) -> None:
        """A summarizer that reads the tape needs a thread of the store, and no compaction holds one meanwhile."""

        async def main() -> None:
            async with tape.open_async(backend.url, threads=1, **backend.options) as store:
                chat = await filled(store)

                async def summarize(request: tape.SummaryRequest) -> str:
                    return f"of {len(await chat.messages())}"

                assert await chat.compact(summarize, budget=60, timeout=20) is not None
                summary = await chat.summary()
                assert summary is not None
                assert summary.text == "of 20"

        asyncio.run(main())

    def test_a_plain_function_does_not_hold_up_the_loop(self, backend: Backend) -> None:
        """It runs in a thread, so that other tasks go on."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                release = threading.Event()
                begun = asyncio.Event()
                loop = asyncio.get_running_loop()

                def summarize(request: tape.SummaryRequest) -> str:
                    loop.call_soon_threadsafe(begun.set)
                    assert release.wait(20)
                    return "in short"

                task = asyncio.create_task(chat.compact(summarize, budget=60, timeout=20))
                await begun.wait()
                release.set()
                assert await task is not None

        asyncio.run(main())

    @pytest.mark.parametrize("how", ["raises", "hangs", "nothing", "cancels itself", "hangs in a thread"])
    def test_a10_a_failing_one_changes_nothing(self, backend: Backend, how: str) -> None:
        """It is recorded as failed, the caller gets a TapeError, and the next compaction starts at once."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                release = threading.Event()

                async def summarize(request: tape.SummaryRequest) -> Any:
                    if how == "raises":
                        raise StopIteration("no model \ud800")
                    if how == "hangs":
                        await asyncio.sleep(3600)
                    if how == "cancels itself":
                        raise asyncio.CancelledError
                    return None

                def hang(request: tape.SummaryRequest) -> str:
                    release.wait(20)
                    return "late"

                given: Any = hang if how == "hangs in a thread" else summarize
                with pytest.raises(tape.InvalidEntry):
                    await chat.compact(given, budget=60, timeout=0.1 if "hangs" in how else 20)
                release.set()
                assert await states_of(chat) == ["started", "failed"]
                assert await chat.compact(lambda request: "fine", budget=60) is not None

        asyncio.run(main())


class Interrupted(BaseException):
    """Something that is no error of the summarizer's, as an exit or an interrupt."""


class TestReleased:
    """Whatever ends a summarizer, the next compaction can start at once."""

    @pytest.mark.parametrize("kind", ["coroutine", "thread"])
    def test_26_a_cancelled_compaction_is_recorded_as_failed(self, backend: Backend, kind: str) -> None:
        """Once the cancelled task has ended, another compaction finds nothing under way."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                loop = asyncio.get_running_loop()
                begun, release = asyncio.Event(), threading.Event()

                async def summarize(request: tape.SummaryRequest) -> str:
                    begun.set()
                    await asyncio.sleep(3600)
                    return "never"

                def wait(request: tape.SummaryRequest) -> str:
                    loop.call_soon_threadsafe(begun.set)
                    release.wait(20)
                    return "late"

                task = asyncio.create_task(chat.compact(summarize if kind == "coroutine" else wait, budget=60))
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await states_of(chat) == ["started", "failed"]
                assert await chat.compact(lambda request: "fine", budget=60) is not None
                release.set()
                assert [one.text for one in await chat.summaries()] == ["fine"]

        asyncio.run(main())

    def test_26_cancelled_at_every_await_it_is_never_left_under_way(self, standing: Backend) -> None:
        """However many turns of the loop it was given, and however often it is cancelled."""

        async def main() -> None:
            async with tape.open_async(standing.url, **standing.options) as store:
                for turns in range(40):
                    chat = store.tape(f"turns{turns}")
                    await chat.extend([say(f"u{n}") for n in range(20)])

                    async def summarize(request: tape.SummaryRequest) -> str:
                        await asyncio.sleep(0)
                        return "done"

                    task = asyncio.create_task(chat.compact(summarize, budget=60))
                    for _ in range(turns):
                        await asyncio.sleep(0 if turns < 30 else 0.0005)
                    while not task.done():
                        task.cancel()
                        await asyncio.sleep(0)
                    if not task.cancelled():
                        assert task.result() is not None
                    told = await states_of(chat)
                    assert told in ([], ["started", "failed"], ["started", "finished"]), turns
                    if "finished" not in told:
                        assert await chat.compact(lambda request: "fine", budget=60) is not None, turns
                    assert len(await chat.summaries()) == 1

        asyncio.run(main())

    @pytest.mark.parametrize("error", [Interrupted, SystemExit, asyncio.CancelledError, StopIteration])
    def test_26_whatever_a_summarizer_raises_is_recorded(self, chat: tape.Tape, error: type[BaseException]) -> None:
        """An exit goes on to the caller; everything else is an error of the summarizer."""
        talk(chat, *(f"u{n}" for n in range(20)))

        async def summarize(request: tape.SummaryRequest) -> str:
            raise error()

        wanted = error if error in (Interrupted, SystemExit) else tape.InvalidEntry
        with pytest.raises(wanted):
            chat.compact(summarize, budget=60)
        assert states(chat) == ["started", "failed"]
        assert chat.compact(lambda request: "fine", budget=60) is not None

    def test_26_an_interrupt_releases_the_branch(self, chat: tape.Tape) -> None:
        """Ctrl-C while the model is asked leaves nothing under way."""
        talk(chat, *(f"u{n}" for n in range(20)))
        release = threading.Event()

        def summarize(request: tape.SummaryRequest) -> str:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            release.wait(20)
            return "late"

        # A run in the background may have been started with interrupts ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                chat.compact(summarize, budget=60, timeout=20)
        finally:
            signal.signal(signal.SIGINT, before)
            release.set()
        assert states(chat) == ["started", "failed"]
        assert chat.compact(lambda request: "fine", budget=60) is not None

    @pytest.mark.parametrize("ending", ["raises", "returns"])
    def test_26_a_branch_left_meanwhile_is_released_too(self, chat: tape.Tape, ending: str) -> None:
        """The end is recorded for the branch that it began on, wherever the head is by then."""
        talk(chat, *(f"u{n}" for n in range(20)))

        def summarize(request: tape.SummaryRequest) -> str:
            chat.append(role="assistant", content="again", id="other", parent="u1")
            if ending == "raises":
                raise RuntimeError("no model")
            return "in short"

        with pytest.raises(tape.TapeError):
            chat.compact(summarize, budget=60)
        chat.switch("u19")
        assert chat.compact(lambda request: "fine", budget=60) is not None

    def test_26_an_error_that_cannot_be_written_down_is_recorded(self, chat: tape.Tape) -> None:
        """What it says may be no text that a tape can hold."""
        talk(chat, *(f"u{n}" for n in range(20)))

        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        def summarize(request: tape.SummaryRequest) -> str:
            raise errors.pop()

        errors: list[Exception] = [Unspeakable(), ValueError("half a character: \ud800, and none: \0")]
        for _ in range(2):
            with pytest.raises(tape.InvalidEntry):
                chat.compact(summarize, budget=60)
        assert states(chat) == ["started", "failed"] * 2
        assert chat.compact(lambda request: "fine", budget=60) is not None
