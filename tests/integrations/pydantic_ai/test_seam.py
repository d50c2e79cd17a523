"""TapeModel between Pydantic AI's own agent and a scripted model."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from support.backends import Backend

from integrations.seaming import CREDENTIALS, check_credentials, check_seam
from tape.integrations.seams.pydantic_ai import TapeModel


def agent_of(run: Any, made: list[str]) -> Agent[None, str]:
    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        made.append("model")
        if len(made) == 1:
            return ModelResponse([ToolCallPart("weather", {"city": "Lisbon"}, tool_call_id="c1")])
        return ModelResponse([TextPart("It is sunny.")])

    async def weather(city: str) -> str:
        """Tell the weather."""
        made.append(f"weather {city}")
        return "sunny"

    model = TapeModel(run, FunctionModel(script, model_name="scripted-1"))
    return Agent(model, instructions="Be brief.", tools=[run.tool(weather, effect="read")])


async def plain(run: Any, made: list[str], question: str) -> Any:
    return (await agent_of(run, made).run(question)).output


async def streamed(run: Any, made: list[str], question: str) -> Any:
    async with agent_of(run, made).run_stream(question) as result:
        return await result.get_output()


@pytest.mark.parametrize("agent", [plain, streamed])
def test_a_run_is_recorded_and_replayed(backend: Backend, agent: Any) -> None:
    """Model and tool are called once; replays call neither, and another question is a divergence."""
    check_seam(backend, agent, calls=["model", "weather Lisbon", "model"])


def test_no_credential_of_the_settings_is_recorded(quick: Backend) -> None:
    """Headers and bodies of requests are left out; what the model is asked is kept, also what one provider knows."""

    async def agent(run: Any, made: list[str], question: str) -> Any:
        settings: Any = {
            "temperature": 0.25,
            "extra_headers": {"authorization": f"Bearer {CREDENTIALS[1]}", "x-mine": CREDENTIALS[2]},
            "extra_body": {"user_token": CREDENTIALS[3]},
            "openai_reasoning_effort": "low",
            "openai_user": CREDENTIALS[4],
        }
        return (await agent_of(run, made).run(question, model_settings=settings)).output

    check_credentials(quick, agent, kept=["'temperature': 0.25", "'openai_reasoning_effort': 'low'", "Be brief."])
