"""TapeModel between the SDK's own runner and a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, ModelSettings, RunConfig, Runner, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from support.backends import Backend

from integrations.seaming import CREDENTIALS, check_credentials, check_seam
from tape.integrations.seams.openai_agents import TapeModel


class Scripted(Model):
    model = "scripted-1"

    def __init__(self, made: list[str]) -> None:
        self._made = made

    def _output(self) -> Any:
        self._made.append("model")
        if len(self._made) == 1:
            return ResponseFunctionToolCall(
                arguments='{"city":"Lisbon"}', call_id="c1", name="weather", type="function_call"
            )
        text = ResponseOutputText(annotations=[], text="It is sunny.", type="output_text")
        return ResponseOutputMessage(id="m1", content=[text], role="assistant", status="completed", type="message")

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        usage = Usage(requests=1, input_tokens=3, output_tokens=2, total_tokens=5)
        return ModelResponse(output=[self._output()], usage=usage, response_id=f"r{len(self._made)}")

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        response = Response(
            id="r",
            created_at=1,
            model="scripted-1",
            object="response",
            output=[self._output()],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")


def agent_of(run: Any, made: list[str]) -> Agent[Any]:
    async def weather(city: str) -> str:
        """Tell the weather."""
        made.append(f"weather {city}")
        return "sunny"

    tool = function_tool(run.tool(weather, effect="read"))
    return Agent(name="a", instructions="Be brief.", model=TapeModel(run, Scripted(made)), tools=[tool])


async def plain(run: Any, made: list[str], question: str) -> Any:
    result = await Runner.run(agent_of(run, made), question, run_config=RunConfig(tracing_disabled=True))
    return result.final_output


async def streamed(run: Any, made: list[str], question: str) -> Any:
    result = Runner.run_streamed(agent_of(run, made), question, run_config=RunConfig(tracing_disabled=True))
    async for _ in result.stream_events():
        pass
    return result.final_output


@pytest.mark.parametrize("agent", [plain, streamed])
def test_a_run_is_recorded_and_replayed(backend: Backend, agent: Any) -> None:
    """Model and tool are called once; replays call neither, and another question is a divergence."""
    check_seam(backend, agent, calls=["model", "weather Lisbon", "model"])


@pytest.mark.parametrize("runs", [plain, streamed])
def test_no_credential_of_the_settings_is_recorded(quick: Backend, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, parameters and bodies of requests are left out; what the model is asked is kept."""
    settings = ModelSettings(
        temperature=0.25,
        extra_headers={"Authorization": f"Bearer {CREDENTIALS[1]}", "X-Mine": CREDENTIALS[2]},
        extra_query={"key": CREDENTIALS[3]},
        extra_body={"user_token": CREDENTIALS[4]},
        extra_args={"api_key": CREDENTIALS[5]},
        metadata={"session": CREDENTIALS[6]},
    )
    made = agent_of

    def with_settings(run: Any, calls: list[str]) -> Agent[Any]:
        agent = made(run, calls)
        agent.model_settings = settings
        return agent

    monkeypatch.setitem(globals(), "agent_of", with_settings)
    check_credentials(quick, runs, kept=["'temperature': 0.25", "Be brief."])
