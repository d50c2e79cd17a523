"""What the seam of every framework must do: record, answer from the recording without a call, and name a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.backends import Backend

import tape

__all__ = ["check_seam"]

Agent = Callable[[Any, list[str], str], Awaitable[Any]]
"""Runs the framework's own runner with a run, a list that notes every live call, and a question; returns the answer."""


def check_seam(backend: Backend, agent: Agent, *, calls: list[str], kind: str = "request_changed") -> None:
    """Run an agent once, twice from its recording, and once with another question."""

    async def story() -> None:
        async with tape.open_async(backend.address, **backend.options) as store:
            chat = store.tape("chat")
            made: list[str] = []
            async with tape.record(chat, name="seam") as run:
                answer = await agent(run, made, "Weather in Lisbon?")
            assert made == calls
            head = (await chat.info()).head
            for _ in range(2):
                again: list[str] = []
                async with tape.replay(chat, run.id) as replayed:
                    assert await agent(replayed, again, "Weather in Lisbon?") == answer
                assert (again, replayed.report.ok) == ([], True)
                assert replayed.report.matched == len(calls)
            other: list[str] = []
            with pytest.raises(Exception) as error:
                async with tape.replay(chat, run.id) as changed:
                    await agent(changed, other, "Weather in Porto?")
            assert other == []
            diverged: BaseException | None = error.value
            while diverged is not None and not isinstance(diverged, tape.Diverged):
                diverged = diverged.__cause__ or diverged.__context__
            assert diverged is not None, repr(error.value)
            assert changed.report.first is not None
            assert changed.report.first.kind == kind
            assert (await chat.info()).head == head

    asyncio.run(story())
