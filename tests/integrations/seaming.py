"""What the seam of every framework must do: record, answer from the recording without a call, and name a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.backends import Backend

import tape

__all__ = ["CREDENTIALS", "check_credentials", "check_seam"]

Agent = Callable[[Any, list[str], str], Awaitable[Any]]
"""Runs the framework's own runner with a run, a list that notes every live call, and a question; returns the answer."""


CREDENTIALS = [f"Zq{number}{'a1b2c3d4' * 3}" for number in range(12)]
"""Secrets that an agent is made with, each of which has to be left out."""


def check_credentials(backend: Backend, agent: Agent, *, kept: list[str]) -> None:
    """Run an agent with credentials in its settings: none is on the tape, what is ``kept`` is, and a replay matches."""

    async def story() -> None:
        async with tape.open_async(backend.address, **backend.options) as store:
            chat = store.tape("chat")
            async with tape.record(chat) as run:
                await agent(run, [], f"My key is sk-ant-{CREDENTIALS[0]}, really?")
            text = "\n".join([str(entry.payload) async for entry in chat.entries()])
            assert [secret for secret in CREDENTIALS if secret in text] == []
            assert [word for word in (*kept, "My key is [redacted], really?") if word not in text] == []
            async with tape.replay(chat, run.id) as replayed:
                await agent(replayed, [], f"My key is sk-ant-{CREDENTIALS[0]}, really?")
            assert replayed.report.ok

    asyncio.run(story())


def check_seam(backend: Backend, agent: Agent, *, calls: list[str], kind: str = "request_changed") -> None:
    """Run an agent once, twice from its recording, once from a forged one, and once with another question."""

    async def story() -> None:
        async with tape.open_async(backend.address, **backend.options) as store:
            chat = store.tape("chat")
            made: list[str] = []
            async with tape.record(chat, name="seam") as run:
                answer = await agent(run, made, "Weather in Lisbon?")
            assert made == calls
            head = (await chat.info()).head
            other: list[str] = []
            for _ in range(2):
                again: list[str] = []
                async with tape.replay(chat, run.id) as replayed:
                    assert await agent(replayed, again, "Weather in Lisbon?") == answer
                assert (again, replayed.report.ok) == ([], True)
                assert replayed.report.matched == len(calls)
            forged = await _forged(store.tape("forged"), chat)
            with pytest.raises(Exception) as refused:
                async with tape.replay(forged, run.id) as misled:
                    await agent(misled, other, "Weather in Lisbon?")
            assert isinstance(_cause(refused.value, tape.TapeError), tape.InvalidEntry), repr(refused.value)
            with pytest.raises(Exception) as error:
                async with tape.replay(chat, run.id) as changed:
                    await agent(changed, other, "Weather in Porto?")
            assert other == []
            assert _cause(error.value, tape.Diverged) is not None, repr(error.value)
            assert changed.report.first is not None
            assert changed.report.first.kind == kind
            assert (await chat.info()).head == head

    asyncio.run(story())


def _cause(error: BaseException | None, kind: type[tape.TapeError]) -> BaseException | None:
    """Return the first error of a kind in a chain of errors."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


async def _forged(copy: Any, chat: Any) -> Any:
    """Copy a recorded run to another tape, with answers that no framework gave."""
    value = {"is": {"forged": 1}}
    async for entry in chat.entries(kinds=["event"]):
        data = dict(entry.payload.data)
        if "chunks" in data:
            data["chunks"] = [[at, value] for at, _ in data["chunks"]]
        elif "value" in data:
            data["value"] = value
        await copy.event(entry.payload.name, data, key=entry.key)
    return copy
