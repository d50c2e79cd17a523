"""TapeMiddleware around LangChain's own agent with a scripted model."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from support.backends import Backend

import tape
from integrations.seaming import CREDENTIALS, check_credentials, check_seam

pytest.importorskip("langchain.agents.middleware")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware

from tape.integrations.seams.langchain import TapeMiddleware


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def agent_of(run: Any, made: list[str]) -> Any:
    def script() -> Any:
        made.append("model")
        call = {"name": "weather", "args": {"city": "Lisbon"}, "id": "c1", "type": "tool_call"}
        yield AIMessage("", tool_calls=[call])
        made.append("model")
        yield AIMessage("It is sunny.")

    @tool
    def weather(city: str) -> str:
        """Tell the weather."""
        made.append(f"weather {city}")
        return "sunny"

    seam = TapeMiddleware(run, effects={"weather": "read"})
    return create_agent(Scripted(messages=script()), [weather], system_prompt="Be brief.", middleware=[seam])


async def agent(run: Any, made: list[str], question: str) -> Any:
    state = await agent_of(run, made).ainvoke({"messages": [("user", question)]})
    return [message.content for message in state["messages"]][1:]


def test_a_run_is_recorded_and_replayed(backend: Backend) -> None:
    """Model and tool are called once; replays call neither, and another question is a divergence."""
    check_seam(backend, agent, calls=["model", "weather Lisbon", "model"])


def test_a_sync_agent_does_the_same(quick: Backend) -> None:
    """With a sync store the agent is invoked and not awaited."""
    with quick.open() as store:
        chat = store.tape("chat")
        made: list[str] = []
        with tape.record(chat, name="seam") as run:
            answer = agent_of(run, made).invoke({"messages": [("user", "Weather?")]})["messages"][-1].content
        assert made == ["model", "weather Lisbon", "model"]
        with tape.replay(chat, run.id) as again:
            assert agent_of(again, made).invoke({"messages": [("user", "Weather?")]})["messages"][-1].content == answer
        assert (len(made), again.report.ok) == (3, True)


class Keyed(AgentMiddleware[Any, Any, Any]):
    """Gives every call of the model settings with secrets."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        settings = {
            "temperature": 0.25,
            "extra_headers": {"authorization": f"Bearer {CREDENTIALS[1]}", "x-mine": CREDENTIALS[2]},
            "api_key": CREDENTIALS[3],
            "base_url": f"https://ann:{CREDENTIALS[4]}@models.example",
        }
        return await handler(request.override(model_settings=settings))


def test_no_credential_of_the_settings_is_recorded(quick: Backend) -> None:
    """Headers, keys and addresses are left out; what the model is asked is kept."""

    async def asked(run: Any, made: list[str], question: str) -> Any:
        model = Scripted(messages=iter([AIMessage("It is sunny.")]))
        seams = [Keyed(), TapeMiddleware(run)]
        agent = create_agent(model, [], system_prompt="Be brief.", middleware=seams)
        return await agent.ainvoke({"messages": [("user", question)]})

    check_credentials(quick, asked, kept=["'temperature': 0.25", "Be brief."])
