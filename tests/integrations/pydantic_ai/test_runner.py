"""Agents of Pydantic AI run on tapes, and go on after a restart with all that was said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests
from support.backends import Backend

import tape
from integrations.examples import check_section, printed
from tape.integrations.pydantic_ai import TapeConversationStore


def counting(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Play a model that looks something up first, and then tells how many messages it was shown."""
    last = messages[-1].parts[-1]
    if last.part_kind == "user-prompt":
        return ModelResponse(parts=[ToolCallPart("look", {"at": str(last.content)})])
    return ModelResponse(parts=[TextPart(f"{len(messages)} messages")])


def look(at: str) -> dict[str, str]:
    return {"seen": at}


class TestRunner:
    def test_an_agent_takes_the_tools_of_a_store(self, store: tape.Store) -> None:
        """The functions behind them are tools of the framework as they are."""
        store.tape("trip").append(role="user", content="To Lisbon")
        tools = store.tools("write")
        agent = Agent(TestModel(call_tools=["list_tapes", "append"]), tools=[tool.run for tool in tools])
        # Not run_sync, which leaves an event loop that nobody closes.
        assert '"id":"trip"' in asyncio.run(agent.run("Which tapes are there?")).output
        # The model says "a" wherever a text is wanted.
        assert [message.text for message in store.get("a").messages()] == ["a"]

    def test_an_agent_goes_on_after_a_restart(self, backend: Backend) -> None:
        """Each turn with a store of its own: the model is shown all turns before, usage is that of all."""
        agent = Agent(FunctionModel(counting), tools=[look])

        async def turn(number: int) -> str:
            with backend.open() as store:
                conversations = TapeConversationStore(store)
                known = await conversations.load("chat", scope="ann") or Conversation(conversation_id="chat")
                result = await agent.run(f"place {number}", conversation=known)
                await conversations.save(result, scope="ann")
                again = await conversations.load("chat", scope="ann")
                assert again is not None
                assert again.messages == result.all_messages()
                assert (again.usage.requests, again.usage.tool_calls) == (2 * number, number)
                return result.output

        assert [asyncio.run(turn(number)) for number in (1, 2, 3)] == ["3 messages", "7 messages", "11 messages"]
        with backend.open() as store:
            (info,) = store.list(owner="ann").items
            assert len(store.search("place", tape=info.id)) == 9
            assert store.verify().ok

    def test_a_run_that_waits_for_a_person_goes_on_elsewhere(self, backend: Backend) -> None:
        """What is asked for approval is stored with the conversation, and answered after a restart."""
        agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])
        agent.tool_plain(look, requires_approval=True)

        async def ask() -> None:
            with backend.open() as store:
                result = await agent.run("look", conversation=Conversation(conversation_id="chat"))
                await TapeConversationStore(store).save(result)

        async def approve() -> Any:
            with backend.open() as store:
                conversations = TapeConversationStore(store)
                known = await conversations.load("chat")
                assert known is not None
                assert known.deferred_tool_requests is not None
                (call,) = known.deferred_tool_requests.approvals
                results = known.deferred_tool_requests.build_results(approvals={call.tool_call_id: True})
                result = await agent.run(conversation=known, deferred_tool_results=results)
                await conversations.save(result)
                return await conversations.load("chat")

        asyncio.run(ask())
        after = asyncio.run(approve())
        assert after.deferred_tool_requests is None
        assert '"seen"' in str(after.messages[-1].parts)

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it is meant to."""
        assert printed("pydantic_ai_conversation.py", monkeypatch, capsys, tmp_path) == [
            "Which hotel in Lisbon? → The Beira Mar.",
            "And how far is it? → 9 minutes; you asked 2 times.",
            "trip: 8 messages, verified: True",
            "trip-cheaper: 4 messages, verified: True, a fork of pydantic-ai/trip",
            "“Beira” is said in 2 messages",
        ]

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("pydantic_ai`", monkeypatch, tmp_path)
