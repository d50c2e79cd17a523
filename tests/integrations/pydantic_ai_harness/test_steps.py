"""TapeStepStore answers as the harness's own store in memory, and holds what several processes write."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.conversation_search import HistorySource, SnapshotHistorySource, SnapshotStore
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    InMemoryStepStore,
    RunRecord,
    StepEvent,
    StepPersistence,
    StepStore,
    ToolEffectRecord,
    continue_run,
)
from support.backends import Backend
from support.processes import Crew
from support.sizes import size

import tape
from integrations.contention import hold_together
from integrations.examples import check_section
from tape.integrations.pydantic_ai_harness import TapeStepStore

CALLS = 60
WORDS = ("lisbon", "train", "half \ud83d of one", "宿", "")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def outcome(work: Awaitable[Any]) -> Any:
    """Return what comes of it: the harness itself finds no history in which there is half a character."""
    try:
        return await work
    except ValueError as error:
        return str(error)


class Both:
    """A step store of the harness's and one of ours, given the same calls: they have to answer alike."""

    def __init__(self, make: Callable[[], TapeStepStore]) -> None:
        self.make = make
        self.ours, self.theirs = make(), InMemoryStepStore()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            mine = await getattr(self.ours, name)(*deepcopy(args), **kwargs)
            other = await getattr(self.theirs, name)(*deepcopy(args), **kwargs)
            assert mine == other, f"{name}{args}{kwargs}: {mine} and not {other}"
            return mine

        return call


class Chance:
    """Calls of chance."""

    def __init__(self, seed: int, both: Both) -> None:
        self.pick = random.Random(seed)
        self.both = both
        self.clock = itertools.count()
        self.histories: dict[str, list[ModelMessage]] = {}

    @property
    def run_id(self) -> str:
        return f"run-{self.pick.randint(0, 2)}"

    @property
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self.clock))

    def one_of(self, *values: Any) -> Any:
        return self.pick.choice(values)

    async def register(self) -> None:
        record = RunRecord(
            run_id=self.run_id,
            conversation_id=self.one_of(None, "chat", "other"),
            parent_run_id=self.one_of(None, "run-0"),
            metadata={"said": self.one_of(*WORDS)},
            started_at=self.now,
        )
        await self.both.register_run(record)

    async def event(self) -> None:
        event = StepEvent(
            run_id=self.run_id,
            kind=self.one_of("run_started", "tool_call_failed"),
            step_index=self.pick.randint(0, 9),
            timestamp=self.now,
            error=self.one_of(None, *WORDS),
            idempotency_key=self.one_of(None, "0:0", "1:0", "x" * 300, "\ud83d"),
        )
        await self.both.append_event(event)

    async def snapshot(self) -> None:
        id = self.run_id
        history = self.histories.setdefault(id, [])
        for _ in range(self.pick.randint(0, 3)):
            said = self.one_of(*WORDS)
            history.append(
                self.one_of(
                    ModelRequest(parts=[UserPromptPart(said, timestamp=self.now)]),
                    ModelRequest(parts=[ToolReturnPart("look", {"at": said}, "c1", timestamp=self.now)]),
                    ModelResponse(parts=[TextPart(said)], timestamp=self.now),
                )
            )
        if history and self.pick.random() < 0.3:
            # Stamped since, or shortened by a compaction.
            place = self.pick.randrange(len(history))
            history[place] = ModelRequest(parts=[UserPromptPart("stamped", timestamp=self.now)], run_id=id)
            del history[: self.one_of(0, 0, 1)]
        number = self.pick.randint(0, 6)
        snapshot = ContinuableSnapshot(
            run_id=id,
            step_index=number,
            messages=list(history),
            timestamp=self.now,
            state=self.one_of("complete", "complete", "interrupted"),
            idempotency_key=self.one_of(None, "odd", f"{number}:1:complete", f"{number}:2:interrupted"),
        )
        await self.both.save_snapshot(snapshot)

    async def effect(self) -> None:
        record = ToolEffectRecord(
            tool_call_id=self.one_of("c1", "c2", "x" * 300, "~"),
            tool_name="look",
            run_id=self.run_id,
            status=self.one_of("started", "completed", "failed"),
            started_at=self.now,
            effect_summary=self.one_of(None, *WORDS),
        )
        await self.both.record_tool_effect(record)

    async def look(self) -> None:
        id = self.run_id
        await self.both.get_run(run_id=id)
        await self.both.list_runs(parent_run_id=self.one_of(None, "run-0"), conversation_id=self.one_of(None, "chat"))
        await self.both.list_events(run_id=id)
        for also in (True, False):
            await self.both.latest_snapshot(run_id=id, include_interrupted=also)
            await self.both.list_snapshots(run_id=id, include_interrupted=also)
        await self.both.get_tool_effect(run_id=id, tool_call_id=self.one_of("c1", "nowhere"))
        found = [await store.list_unresolved_tool_effects(run_id=id) for store in (self.both.ours, self.both.theirs)]
        assert found[0] == sorted(found[1], key=lambda each: each.started_at)
        sources = (self.both.ours, SnapshotHistorySource(self.both.theirs))
        told = [await outcome(source.run_history(run_id=id)) for source in sources]
        assert told[0] == told[1]

    async def call(self) -> None:
        if self.pick.random() < 0.15:
            self.both.ours = self.both.make()
        await self.one_of(self.register, self.event, self.snapshot, self.snapshot, self.effect, self.look)()


@pytest.mark.heavy
def test_it_answers_as_the_store_in_memory(store: tape.Store) -> None:
    """60 calls of chance for each seed, restarts among them: equal answers."""

    async def go(seed: int) -> None:
        owned = store.scoped(f"tenant-{seed}")
        chance = Chance(seed, Both(lambda: TapeStepStore(owned)))
        for _ in range(CALLS):
            await chance.call()
        for _ in range(5):
            await chance.look()

    for seed in range(size(8, 100)):
        print(f"seed {seed}")
        run(go(seed))
    assert store.verify().ok


class TestRuns:
    def test_an_agent_is_persisted_and_goes_on_after_a_restart(self, backend: Backend) -> None:
        """Its events, snapshots and tool effects are those of the store in memory; another process goes on with it."""

        async def first() -> str:
            with backend.open() as store:
                both: Any = Both(lambda: TapeStepStore(store))
                agent = Agent(TestModel(), capabilities=[StepPersistence(store=both, agent_name="one")])
                agent.tool_plain(look)
                await agent.run("look around", conversation_id="chat")
                (record,) = await both.list_runs(conversation_id="chat")
                assert await both.list_unresolved_tool_effects(run_id=record.run_id) == []
                assert len(await both.list_events(run_id=record.run_id)) == 8
                return str(record.run_id)

        async def second(run_id: str) -> list[ModelMessage]:
            with backend.open() as store:
                steps = TapeStepStore(store)
                agent = Agent(TestModel(call_tools=[]), capabilities=[StepPersistence(store=steps)])
                history = await continue_run(steps, run_id=run_id)
                result = await agent.run("and then?", message_history=history, conversation_id="chat")
                assert len(await steps.list_runs(conversation_id="chat")) == 2
                return result.all_messages()

        assert len(run(second(run(first())))) == 6
        assert backend.open().verify().ok

    def test_a_message_is_written_once(self, store: tape.Store) -> None:
        """Fifty snapshots of a run that grows: as many messages as there are."""
        steps = TapeStepStore(store)
        history: list[ModelMessage] = []
        for number in range(50):
            history = [*history, ModelRequest(parts=[UserPromptPart(f"question {number}")])]
            run(steps.save_snapshot(ContinuableSnapshot(run_id="r", step_index=number, messages=history)))
            if number % 10 == 9:
                steps = TapeStepStore(store)
        assert len(list(store.tape("pydantic-ai-run/r").entries(kinds=["append"]))) == 50
        assert run(steps.run_history(run_id="r")) == history

    def test_a_run_id_is_claimed_once(self, store: tape.Store) -> None:
        """By another registration it is refused, by the same it is the same run."""
        steps = TapeStepStore(store)
        for _ in range(2):
            run(steps.register_run(RunRecord(run_id="r", registration_id="one")))
        with pytest.raises(tape.TapeExists):
            run(steps.register_run(RunRecord(run_id="r", registration_id="two")))
        assert run(steps.get_run(run_id="r")).registration_id == "one"

    def test_it_is_what_the_harness_asks_for(self, store: tape.Store) -> None:
        """A step store, a store of snapshots, and a source of histories."""
        steps = TapeStepStore(store)
        assert isinstance(steps, StepStore)
        assert isinstance(steps, SnapshotStore)
        assert isinstance(steps, HistorySource)

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        """The section's code runs and prints what it says."""
        check_section("pydantic_ai_harness`", monkeypatch, tmp_path)


def look(at: str) -> str:
    return f"nothing at {at}"


def writes(store: tape.Store) -> Callable[[str], Any]:
    """Return what writes an event and a snapshot to a run that all processes share."""
    steps = TapeStepStore(store)

    async def write(mark: str) -> None:
        messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(mark)])]
        await steps.save_snapshot(ContinuableSnapshot(run_id="r", step_index=0, messages=messages))
        await steps.append_event(StepEvent(run_id="r", kind="run_started", step_index=0, error=mark))

    return write


def marks(store: tape.Store) -> list[Any]:
    steps = TapeStepStore(store)
    saved = [snapshot.messages[0].parts[0].content for snapshot in run(steps.list_snapshots(run_id="r"))]
    told = [event.error for event in run(steps.list_events(run_id="r"))]
    assert sorted(saved) == sorted(told)
    return told


def test_four_processes_write_one_run(backend: Backend, crew: Crew) -> None:
    """4 times 50 snapshots and events: all are acknowledged and held once."""
    assert not hold_together(crew, backend, writes, marks, least=200)
