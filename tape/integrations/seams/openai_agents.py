"""OpenAI Agents SDK: a ``Model`` whose calls are recorded by a run, or answered from its recording."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from agents import Model, ModelResponse
from agents.items import TResponseStreamEvent
from pydantic import TypeAdapter

from tape import AsyncRun, Redact, Run
from tape.integrations.seams.rebuilding import rebuilding
from tape.integrations.seams.settings import compared

__all__ = ["TapeModel"]

_response = TypeAdapter(ModelResponse)
_event = TypeAdapter(TResponseStreamEvent)


class TapeModel(Model):
    """A model behind a run: ``Agent(…, model=TapeModel(run, OpenAIResponsesModel(…)))``.

    In a replay the inner model is never called. A request that differs from the recorded one raises Diverged. Tools
    are recorded with ``run.tool(fn)`` before ``function_tool(fn)``.

    Of the settings only those are recorded that say what the model is asked. ``redact`` is as in ``Run.model``;
    without it credentials are left out.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        inner: Model,
        *,
        name: str = "model",
        redact: Callable[[Any], Any] | Iterable[str] | None = Redact.CREDENTIALS,
    ) -> None:
        self._run = run
        self._inner = inner
        self._name = name
        self._redact = redact

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Ask the model, or answer from the recording."""

        async def ask(model: Any, instructions: Any, messages: Any, tools: Any, settings: Any) -> Any:
            return _response.dump_python(await self._inner.get_response(*args, **kwargs), mode="json")

        request = _request(self._inner, *args, **kwargs)
        data = await self._run.model(ask, name=self._name, redact=self._redact)(**request)
        with rebuilding():
            return _response.validate_python(data)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Stream the answer of the model, or the recorded one."""

        async def ask(model: Any, instructions: Any, messages: Any, tools: Any, settings: Any) -> Any:
            async for event in self._inner.stream_response(*args, **kwargs):
                yield _event.dump_python(event, mode="json", warnings=False)

        request = _request(self._inner, *args, **kwargs)
        async for data in self._run.model(ask, name=self._name, redact=self._redact)(**request):
            with rebuilding():
                event = _event.validate_python(data)
            yield event

    async def close(self) -> None:
        """Close the inner model."""
        await self._inner.close()


def _request(
    inner: Any,
    system_instructions: str | None,
    input: Any,
    model_settings: Any,
    tools: Any,
    output_schema: Any,
    handoffs: Any,
    tracing: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Return what the model is asked as JSON, without what is not sent to it."""
    settings = compared({**dataclasses.asdict(model_settings), **more})
    if output_schema is not None:
        settings["output"] = output_schema.name()
    described = [
        {"name": tool.name, "description": _of(tool, "description"), "schema": _of(tool, "params_json_schema")}
        for tool in tools
    ]
    described += [
        {"name": handoff.tool_name, "description": handoff.tool_description, "schema": handoff.input_json_schema}
        for handoff in handoffs
    ]
    return {
        "model": _of(inner, "model"),
        "instructions": system_instructions,
        "messages": input,
        "tools": described,
        "settings": settings,
    }


def _of(value: Any, name: str) -> Any:
    found = getattr(value, name, None)
    return found if isinstance(found, str | dict | None) else str(found)
