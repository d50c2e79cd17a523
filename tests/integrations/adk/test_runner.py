"""ADK's own runner with a scripted model, on a tape: tools, state, memory, a restart in the middle, a rewind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools import load_memory
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from support.backends import Backend

import tape
from integrations.examples import EXAMPLES, check_section, printed
from tape.integrations.adk import TapeMemoryService, TapeSessionService

sys.path.insert(0, str(EXAMPLES))
from scripted_gemini import ScriptedGemini, call, text

NAMES: dict[str, Any] = {"app_name": "travel", "user_id": "ana", "session_id": "lisbon"}


def book(hotel: str, tool_context: ToolContext) -> dict[str, str]:
    """Book a hotel."""
    tool_context.state["hotel"] = hotel
    tool_context.state["user:booked"] = hotel
    return {"status": f"booked {hotel}"}


def runner(store: tape.Store, model: ScriptedGemini) -> Runner:
    agent = LlmAgent(name="clerk", model=model, tools=[book, load_memory])
    return Runner(
        app_name="travel",
        agent=agent,
        session_service=TapeSessionService(store),
        memory_service=TapeMemoryService(store),
    )


async def ask(runner: Runner, prompt: str) -> list[Any]:
    message = types.Content(role="user", parts=[types.Part(text=prompt)])
    run = runner.run_async(user_id="ana", session_id="lisbon", new_message=message)
    return [event async for event in run]


class TestRunner:
    def test_an_agent_goes_on_in_another_process(self, backend: Backend) -> None:
        """The second one sees what the first did: messages, tool results, state; the events are equal."""
        with backend.open() as store:
            asyncio.run(self.first(store))
        with backend.open() as store:
            asyncio.run(self.second(store))
            chat = store.tape("adk/travel/ana/lisbon")
            said = [message.text for message in chat.messages() if message.text]
            assert said[0] == "Book the Beira Mar"
            assert said[-1] == "You are welcome."
            assert (chat.info().owner, chat.usage().calls) == ("ana", 3)
            assert store.verify().ok

    async def first(self, store: tape.Store) -> None:
        model = ScriptedGemini(replies=[call("book", hotel="Beira Mar"), text("It is booked.")])
        agent = runner(store, model)
        await agent.session_service.create_session(**NAMES)
        await ask(agent, "Book the Beira Mar")
        session = await agent.session_service.get_session(**NAMES)
        assert session is not None
        assert session.state == {"hotel": "Beira Mar", "user:booked": "Beira Mar"}
        assert len(session.events) == 4

    async def second(self, store: tape.Store) -> None:
        model = ScriptedGemini(replies=[text("You are welcome.")])
        agent = runner(store, model)
        await ask(agent, "Thanks")
        told = [part for content in model.requests[0].contents for part in content.parts or ()]
        assert [part.text for part in told if part.text] == ["Book the Beira Mar", "It is booked.", "Thanks"]
        assert [part.function_response.response for part in told if part.function_response] == [
            {"status": "booked Beira Mar"}
        ]

    def test_a_rewind_is_a_branch(self, store: tape.Store) -> None:
        """The runner's rewind leaves the turn on the tape, on a branch of its own, and takes its state back."""

        async def work() -> None:
            replies = [text("Hello."), call("book", hotel="Ritz"), text("Booked."), text("As you like.")]
            model = ScriptedGemini(replies=replies)
            agent = runner(store, model)
            await agent.session_service.create_session(**NAMES)
            await ask(agent, "Hi")
            events = await ask(agent, "Book the Ritz")
            await agent.rewind_async(
                user_id="ana", session_id="lisbon", rewind_before_invocation_id=events[0].invocation_id
            )
            await ask(agent, "Better not")
            told = [part.text for content in model.requests[-1].contents for part in content.parts or ()]
            assert told == ["Hi", "Hello.", "Better not"]
            session = await agent.session_service.get_session(**NAMES)
            assert session is not None
            assert session.state["hotel"] is None

        asyncio.run(work())
        chat = store.tape("adk/travel/ana/lisbon")
        assert [message.text for message in chat.messages()] == ["Hi", "Hello.", "Better not", "As you like."]
        assert len(chat.heads()) == 2

    def test_memories_are_found(self, store: tape.Store) -> None:
        """Any session's events, by most of the words that are asked for; deleted ones never again."""

        async def work() -> None:
            memory = TapeMemoryService(store)
            sessions = InMemorySessionService()
            session = await sessions.create_session(**NAMES)
            for said in ("The train to Porto leaves at nine", "A boat to Porto", "Nothing here"):
                event = runner_event(said)
                await sessions.append_event(session, event)
            for _ in range(2):
                await memory.add_session_to_memory(session)
            found = await memory.search_memory(app_name="travel", user_id="ana", query="When is the train to Porto?")
            assert [entry.content.parts[0].text for entry in found.memories] == [
                "The train to Porto leaves at nine",
                "A boat to Porto",
            ]
            assert found.memories[0].author == "user"
            assert found.memories[0].id == session.events[0].id
            for other in ({"app_name": "travel", "user_id": "bo"}, {"app_name": "other", "user_id": "ana"}):
                assert (await memory.search_memory(**other, query="Porto")).memories == []
            await memory.delete_memory(app_name="travel", user_id="ana", memory_id=found.memories[0].id)
            await memory.delete_memory(app_name="travel", user_id="ana", memory_id="unknown")
            await memory.add_session_to_memory(session)
            found = await memory.search_memory(app_name="travel", user_id="ana", query="train PORTO _ !")
            assert [entry.content.parts[0].text for entry in found.memories] == ["A boat to Porto"]
            assert (await memory.search_memory(app_name="travel", user_id="ana", query="?")).memories == []
            await memory.add_memory(app_name="travel", user_id="ana", memories=found.memories, custom_metadata={"k": 1})
            again = found.memories[0].model_copy(update={"id": None})
            await memory.add_memory(app_name="travel", user_id="ana", memories=[again], custom_metadata={"k": 1})
            found = await memory.search_memory(app_name="travel", user_id="ana", query="boat")
            assert [entry.custom_metadata for entry in found.memories] == [{"k": 1}, {}]

        asyncio.run(work())

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what its page says."""
        lines = printed("adk.py", monkeypatch, capsys, tmp_path)
        assert lines == [
            "Book the Beira Mar → It is booked.",
            "(a new process) What did I book? → The Beira Mar.",
            "(rewound) Book the Ritz instead → It is booked.",
            "state: {'hotel': 'Ritz', 'user:booked': 'Ritz'}",
            "on the tape: 8 messages, 2 branches, verified: True",
            "remembered: Book the Beira Mar",
        ]

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("adk", monkeypatch, tmp_path)


def runner_event(said: str) -> Any:
    from google.adk.events.event import Event

    return Event(author="user", content=types.Content(role="user", parts=[types.Part(text=said)]))
