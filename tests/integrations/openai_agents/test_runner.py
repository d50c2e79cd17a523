"""The SDK's own Runner with a scripted model on a tape: turns, restarts, a pause for an approval, a compaction."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel, assistant_message, function_call
from support.backends import Backend

import tape
from integrations.examples import check_section, printed
from tape.integrations.openai_agents import TapeSession

set_tracing_disabled(True)

SUMMARY = {"type": "compaction", "id": "cmp_1", "encrypted_content": "summary"}


def said(*texts: str) -> ScriptedModel:
    return ScriptedModel(steps=[[assistant_message(text)] for text in texts])


def contents(items: Any) -> list[str]:
    """Return the text of every item that has one."""
    bodies = [item["content"] for item in items if "content" in item]
    return [body if isinstance(body, str) else body[0]["text"] for body in bodies]


class Client:
    """What answers requests to compact, and keeps their inputs."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.responses = self

    async def compact(self, **request: Any) -> Any:
        self.inputs.append(request["input"])
        return SimpleNamespace(output=[SUMMARY], usage=None)


class TestRuns:
    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_conversation_goes_on_after_a_restart(self, backend: Backend, streamed: bool) -> None:
        """The model is shown what was said before, every item of it is a message, and all is verified."""

        async def ask(text: str, model: ScriptedModel, store: tape.Store) -> None:
            agent, session = Agent(name="guide", model=model), TapeSession("chat", store)
            if streamed:
                async for _ in Runner.run_streamed(agent, text, session=session).stream_events():
                    pass
            else:
                await Runner.run(agent, text, session=session)

        with backend.open() as store:
            asyncio.run(ask("Where to?", said("Lisbon."), store))
        with backend.open() as store:
            model = said("In May.")
            asyncio.run(ask("When?", model, store))
            assert contents(model.calls[0].input) == ["Where to?", "Lisbon.", "When?"]
            assert [message.text for message in store.tape("chat").messages()] == [
                "Where to?",
                "Lisbon.",
                "When?",
                "In May.",
            ]
            assert len(store.search("lisbon")) == 1
            assert store.verify().ok

    def test_a_budget_bounds_what_the_model_is_shown(self, store: tape.Store) -> None:
        """Every turn is on the tape, the last ones are in the request."""
        model = said(*(f"answer {number} {'word ' * 60}" for number in range(12)))
        agent, session = Agent(name="guide", model=model), TapeSession("chat", store, budget=300)
        for number in range(12):
            asyncio.run(_ask(agent, f"question {number}", session))
        shown = contents(model.calls[-1].input)
        assert shown[-1] == "question 11"
        assert shown[-3] == "question 10"
        assert len(shown) < 15
        assert len(store.tape("chat").messages()) == 24


async def _ask(agent: Agent[Any], text: str, session: Any) -> None:
    await Runner.run(agent, text, session=session)


class TestPauses:
    def test_a_run_waits_for_an_approval_over_a_restart(self, backend: Backend) -> None:
        """The tool is called once, by the program that dropped the kept run, and the session holds all of it."""
        booked: list[str] = []

        @function_tool(needs_approval=True)
        def book(hotel: str) -> str:
            """Book a hotel."""
            booked.append(hotel)
            return f"booked {hotel}"

        def agent(*steps: Any) -> Agent[Any]:
            return Agent(name="guide", model=ScriptedModel(steps=list(steps)), tools=[book])

        call = function_call("book", {"hotel": "Beira Mar"}, call_id="c1")

        async def begin(session: TapeSession) -> None:
            result = await Runner.run(agent([call]), "Book it", session=session)
            assert len(result.interruptions) == 1
            await session.save_run_state(result.to_state())

        async def go_on(session: TapeSession) -> str:
            guide = agent([assistant_message("Done.")])
            state = await session.load_run_state(guide)
            assert state is not None
            for item in state.get_interruptions():
                state.approve(item)
            assert await session.drop_run_state()
            assert not await session.drop_run_state()
            result = await Runner.run(guide, state, session=session)
            assert await session.load_run_state(guide) is None
            return str(result.final_output)

        with backend.open() as store:
            asyncio.run(begin(TapeSession("chat", store)))
        assert booked == []
        with backend.open() as store:
            session = TapeSession("chat", store)
            assert asyncio.run(go_on(session)) == "Done."
            assert booked == ["Beira Mar"]
            kinds = [item.get("type", item.get("role")) for item in asyncio.run(session.get_items())]
            assert kinds == ["user", "function_call", "function_call_output", "message"]
            assert store.verify().ok

    def test_a_kept_run_is_replaced_and_cleared(self, store: tape.Store) -> None:
        """There is one at a time, also of what is no strict JSON, and none when the session was cleared."""

        @function_tool(needs_approval=True)
        def book() -> str:
            """Book a hotel."""
            return "booked"

        model = ScriptedModel(steps=[[function_call("book", {}, call_id=f"c{number}")] for number in range(2)])
        guide = Agent(name="guide", model=model, tools=[book])

        async def go() -> None:
            session = TapeSession("chat", store)
            for _ in range(2):
                result = await Runner.run(guide, "Book it", context={"score": float("inf")})
                await session.save_run_state(result.to_state())
            kept = store.tape("chat").state("openai-agents.run")["state"]
            assert kept.keys() == {"json"}, "an infinity is kept as the text of its JSON"
            state = await session.load_run_state(guide)
            assert state is not None
            (item,) = state.get_interruptions()
            assert item.call_id == "c1"
            await session.clear_session()
            assert await session.load_run_state(guide) is None

        asyncio.run(go())


class TestCompaction:
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_a_run_ends_with_a_compaction(self, store: tape.Store, wrapped: bool) -> None:
        """By the session's own option or the SDK's wrapper: a branch, and what it replaced is found by search."""
        client, model = Client(), said("apples", "pears", "plums")
        options = {
            "client": client,
            "compaction_mode": "input",
            "should_trigger_compaction": lambda context: len(context["session_items"]) > 3,
        }
        session: Any
        if wrapped:
            session = OpenAIResponsesCompactionSession("chat", TapeSession("chat", store), **options)
        else:
            session = TapeSession("chat", store, compaction=options)
        agent = Agent(name="guide", model=model)
        for text in ("one", "two"):
            asyncio.run(_ask(agent, text, session))
        assert [contents(given) for given in client.inputs] == [["one", "apples", "two", "pears"]]
        assert asyncio.run(session.get_items()) == [SUMMARY]
        asyncio.run(_ask(agent, "three", session))
        assert model.calls[-1].input[0] == SUMMARY
        assert len(store.search("pears")) == 1
        assert len(store.tape("chat").heads()) == 2
        assert store.verify().ok

    def test_without_the_option_a_run_compacts_nothing(self, store: tape.Store) -> None:
        """What the Runner asks for is not done: nobody is billed for what was not ordered."""
        session = TapeSession("chat", store)
        asyncio.run(session.add_items([{"role": "assistant", "content": str(number)} for number in range(20)]))
        asyncio.run(session.run_compaction({"force": True}, wrapper=SimpleNamespace()))
        assert len(asyncio.run(session.get_items())) == 20


class TestPage:
    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it should."""
        lines = printed("openai_agents.py", monkeypatch, capsys, tmp_path)
        assert lines == [
            "Plan a trip to Lisbon → The Beira Mar is best. May I book it?",
            'Yes, book it → waits for a person: book_hotel {"name":"Beira Mar"}',
            "approved → It is booked.",
            "6 messages, verified: True",
            "found: The «Beira» Mar is best. May I book it?",
        ]

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("openai_agents", monkeypatch, tmp_path)
