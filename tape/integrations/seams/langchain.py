"""LangChain: an ``AgentMiddleware`` that records the calls of models and tools, or answers them from a recording."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.tools.tool_node import ToolCallRequest
from langchain_core.messages import BaseMessage, ToolMessage, message_to_dict, messages_from_dict
from langchain_core.utils.function_calling import convert_to_openai_tool

from tape import AsyncRun, InvalidEntry, Redact, Run
from tape.integrations.seams.rebuilding import rebuilding
from tape.integrations.seams.settings import compared

__all__ = ["TapeMiddleware"]


class TapeMiddleware(AgentMiddleware[Any, Any, Any]):
    """A run around an agent: ``create_agent(model, tools, middleware=[TapeMiddleware(run)])``.

    ``effects`` names the effect of each tool: "read", "idempotent" or "write", which is the default. In a replay
    neither models nor tools are called. A tool that returns a ``Command`` cannot be recorded.

    Of the settings only those are recorded that say what the model is asked. ``redact`` is as in ``Run.model``;
    without it credentials are left out.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        *,
        effects: Mapping[str, str] | None = None,
        redact: Callable[[Any], Any] | Iterable[str] | None = Redact.CREDENTIALS,
    ) -> None:
        super().__init__()
        self._run = run
        self._effects = dict(effects or {})
        self._redact = redact

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., ModelResponse[Any]]) -> Any:
        """Ask the model, or answer from the recording."""

        def ask(model: Any, messages: Any, tools: Any, settings: Any) -> Any:
            return _answer(handler(request))

        return self._response(self._run.model(ask, redact=self._redact)(**_request(request)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """Ask the model, or answer from the recording."""

        async def ask(model: Any, messages: Any, tools: Any, settings: Any) -> Any:
            return _answer(await handler(request))

        return self._response(await self._run.model(ask, redact=self._redact)(**_request(request)))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Any:
        """Call the tool, or answer from the recording."""

        def call(**arguments: Any) -> Any:
            return _told(handler(request))

        return self._result(request, self._tool(request, call)(**request.tool_call["args"]))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[..., Awaitable[Any]]) -> Any:
        """Call the tool, or answer from the recording."""

        async def call(**arguments: Any) -> Any:
            return _told(await handler(request))

        return self._result(request, await self._tool(request, call)(**request.tool_call["args"]))

    def _tool(self, request: ToolCallRequest, call: Callable[..., Any]) -> Callable[..., Any]:
        name = request.tool_call["name"]
        return self._run.tool(call, name=name, effect=self._effects.get(name), redact=self._redact)

    def _response(self, data: Any) -> ModelResponse[Any]:
        with rebuilding():
            return ModelResponse(result=messages_from_dict(data["messages"]), structured_response=data["structured"])

    def _result(self, request: ToolCallRequest, data: Any) -> ToolMessage:
        with rebuilding():
            (message,) = messages_from_dict([data])
            if not isinstance(message, ToolMessage):
                raise InvalidEntry("result", "the recorded value is not a tool message")
        return message.model_copy(update={"tool_call_id": request.tool_call["id"]})


def _request(request: ModelRequest[Any]) -> dict[str, Any]:
    messages = [_stable(message) for message in request.messages]
    if request.system_message is not None:
        messages.insert(0, _stable(request.system_message))
    model = request.model
    return {
        "model": getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__,
        "messages": messages,
        "tools": [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools],
        "settings": compared({**request.model_settings, "tool_choice": request.tool_choice}),
    }


def _stable(message: BaseMessage) -> dict[str, Any]:
    """Return a message without its id, which is another in every run."""
    told = message_to_dict(message)
    return {**told, "data": {name: value for name, value in told["data"].items() if name != "id"}}


def _answer(response: ModelResponse[Any]) -> dict[str, Any]:
    structured: Any = response.structured_response
    dumped = structured.model_dump(mode="json") if hasattr(structured, "model_dump") else structured
    return {"messages": [message_to_dict(message) for message in response.result], "structured": dumped}


def _told(result: Any) -> dict[str, Any]:
    if not isinstance(result, ToolMessage):
        raise InvalidEntry("result", f"a tool returned a {type(result).__name__}, which cannot be recorded")
    return message_to_dict(result)
