"""TapeStorage behind AG2's own agents, with a scripted model, several writers, restarts and hostile content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ag2 import Agent
from ag2.context import ConversationContext
from ag2.events import (
    BaseEvent,
    BinaryInput,
    HumanMessage,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextInput,
    ToolCallEvent,
    ToolCallsEvent,
    ToolResult,
    ToolResultEvent,
    ToolResultsEvent,
)
from ag2.history import MemoryStorage
from ag2.stream import MemoryStream
from ag2.testing import TestConfig
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from tape.integrations.ag2 import TapeStorage

STREAM = UUID("00000000-0000-4000-8000-000000000001")
HALF = "half \ud83d of a character"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def weather(city: str) -> str:
    """Tell the weather."""
    return f"18 degrees in {city}"


async def ask(storage: Any, question: str, *script: Any) -> str:
    """Be a process that asks an agent something."""
    agent = Agent("guide", config=TestConfig(*script), tools=[weather])
    reply = await agent.ask(question, stream=MemoryStream(storage, id=STREAM))
    return str(await reply.content()) if callable(reply.content) else str(reply.content)


def call() -> ToolCallEvent:
    return ToolCallEvent("weather", id="call_1", arguments='{"city": "Lisbon"}')


def every_kind() -> list[BaseEvent]:
    result = ToolResultEvent(parent_id="call_1", name="weather", result=ToolResult("18 degrees", metadata={"n": [1]}))
    return [
        ModelRequest([TextInput("Weather?"), BinaryInput(b"\x00\xff", media_type="image/png")]),
        ModelResponse(ModelMessage("I look."), tool_calls=ToolCallsEvent([call()]), model="m"),
        ToolCallsEvent([call()]),
        result,
        ToolResultsEvent([result]),
        HumanMessage("yes"),
        ModelResponse(ModelMessage("18 degrees.", metadata={"k": None})),
    ]


async def save(storage: Any, events: list[BaseEvent]) -> None:
    context = ConversationContext(MemoryStream(storage, id=STREAM))
    for event in events:
        await storage.save_event(event, context)


class TestRunner:
    def test_an_agent_goes_on_after_a_restart(self, backend: Backend) -> None:
        """What two processes leave is what one with AG2's own storage has, and the tape shows the conversation."""
        theirs = MemoryStorage()
        for question, script in (("Weather?", [call(), "18 degrees."]), ("And then?", ["Rain."])):
            with backend.open() as store:
                assert run(ask(TapeStorage(store), question, *script)) == script[-1]
            run(ask(theirs, question, *script))
        with backend.open() as store:
            ours = TapeStorage(store)
            held, expected = run(ours.get_history(STREAM)), run(theirs.get_history(STREAM))
            assert [type(event) for event in held] == [type(event) for event in expected]
            said = [message.text for message in ours.tape(STREAM).messages() if message.text]
            assert said[0] == "Weather?"
            assert said[-3:] == ["18 degrees.", "And then?", "Rain."]
            assert store.search("18 degrees")
            assert store.verify().ok

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it promises."""
        lines = printed("ag2_storage.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "user: Where to? | assistant: Lisbon. | user: And how? | assistant: By train."

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("ag2", monkeypatch, tmp_path)


class TestEvents:
    def test_every_kind_comes_back_as_it_was(self, store: tape.Store) -> None:
        """In order, also those that are no messages."""
        storage = TapeStorage(store)
        run(save(storage, every_kind()))
        assert run(storage.get_history(STREAM)) == every_kind()
        roles = [message.role for message in storage.tape(STREAM).messages()]
        assert roles == ["user", "assistant", "user", "assistant"]

    def test_a_history_is_replaced_and_dropped(self, store: tape.Store) -> None:
        """A longer one is appended to; any other is new, and the old one stays on the tape."""
        storage = TapeStorage(store)
        run(storage.drop_history(STREAM))
        assert store.list().items == []
        events = every_kind()
        run(save(storage, events[:3]))
        held = list(run(storage.get_history(STREAM)))
        run(storage.set_history(STREAM, [*held, *events[3:]]))
        assert run(storage.get_history(STREAM)) == events
        assert [entry.kind for entry in storage.tape(STREAM).entries()].count("clear") == 0
        run(storage.set_history(STREAM, events[4:]))
        assert run(storage.get_history(STREAM)) == events[4:]
        run(storage.drop_history(STREAM))
        assert run(storage.get_history(STREAM)) == []
        storage.tape(STREAM).restore()
        assert run(storage.get_history(STREAM))

    def test_hostile_content_comes_back(self, store: tape.Store) -> None:
        """Half characters and infinities are replaced only where they are read."""
        storage = TapeStorage(store)
        odd = ModelResponse(ModelMessage(HALF, metadata={"score": float("inf"), HALF: [HALF]}))
        run(save(storage, [odd, ModelRequest([TextInput(HALF)])]))
        assert run(storage.get_history(STREAM)) == [odd, ModelRequest([TextInput(HALF)])]
        assert storage.tape(STREAM).messages()[0].text == "half � of a character"

    def test_what_others_write_is_read(self, store: tape.Store) -> None:
        """Messages and revisions that came from elsewhere are AG2's, too; what is retracted is gone."""
        storage = TapeStorage(store)
        run(save(storage, [ModelRequest([TextInput("Wher?")]), ModelRequest([TextInput("Never mind")])]))
        chat = storage.tape(STREAM)
        chat.revise(chat.messages()[0].id, content="Where?")
        chat.retract(chat.messages()[1].id)
        chat.append(role="assistant", content="Lisbon.")
        chat.event("note", {"by": "somebody"})
        expected = [ModelRequest([TextInput("Where?")]), ModelResponse(ModelMessage("Lisbon."))]
        assert run(storage.get_history(STREAM)) == expected


def adapt(store: tape.Store) -> Callable[[str], Any]:
    storage = TapeStorage(store)
    return lambda mark: save(storage, [ModelRequest([TextInput(mark)])])


def marks(store: tape.Store) -> list[str]:
    return [event.parts[0].content for event in run(TapeStorage(store).get_history(STREAM))]


def test_many_processes_share_a_stream(backend: Backend, crew: Crew) -> None:
    """Four processes, fifty events each: every one is there once."""
    assert not hold_together(crew, backend, adapt, marks, least=200)
