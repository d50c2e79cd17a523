"""Pydantic AI: a ``WrapperModel`` whose calls are recorded by a run, or answered from its recording."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from tape import AsyncRun, InvalidEntry, Redact, Run
from tape.integrations.seams.rebuilding import rebuilding
from tape.integrations.seams.settings import compared

__all__ = ["TapeModel"]

_VOLATILE = {"timestamp", "run_id", "conversation_id"}
"""What is another in every run."""


class TapeModel(WrapperModel):
    """A model behind a run: ``Agent(TapeModel(run, "openai:gpt-5"))``.

    In a replay the wrapped model is never called, but it has to be there: it tells the agent what a model can do. A
    streamed answer is recorded as a whole and comes in one piece. Tools are recorded with ``run.tool(fn)``.

    Of the settings only those are recorded that say what the model is asked. ``redact`` is as in ``Run.model``;
    without it credentials are left out.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        wrapped: Model | str,
        *,
        name: str = "model",
        redact: Callable[[Any], Any] | Iterable[str] | None = Redact.CREDENTIALS,
    ) -> None:
        super().__init__(wrapped)  # type: ignore[arg-type]
        self._run = run
        self._name = name
        self._redact = redact

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask the model, or answer from the recording."""
        called = messages

        async def ask(model: Any, messages: Any, tools: Any, settings: Any) -> Any:
            response = await self.wrapped.request(called, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]

        data = await self._run.model(ask, name=self._name, redact=self._redact)(
            model=self.wrapped.model_name,
            messages=_stable(ModelMessagesTypeAdapter.dump_python(messages, mode="json")),
            tools=[_tool(tool) for tool in _tools(model_request_parameters)],
            settings=compared(model_settings),
        )
        with rebuilding():
            (response,) = ModelMessagesTypeAdapter.validate_python([data])
            if not isinstance(response, ModelResponse):
                raise InvalidEntry("result", "the recorded value is not a model response")
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncIterator[StreamedResponse]:
        """Ask the model, or answer from the recording, and give the answer as a stream that is complete."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters)


def _tools(parameters: ModelRequestParameters) -> list[Any]:
    return [*parameters.function_tools, *parameters.output_tools]


def _tool(tool: Any) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "schema": tool.parameters_json_schema}


def _stable(value: Any) -> Any:
    """Return messages without what is another in every run."""
    if isinstance(value, dict):
        return {name: _stable(item) for name, item in value.items() if name not in _VOLATILE}
    return [_stable(item) for item in value] if isinstance(value, list) else value
