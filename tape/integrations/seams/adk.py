"""Google ADK: a plugin that records the calls of models and tools, or answers them from a recording.

ADK calls a plugin before a call and after it. Between the two the call of the run is under way in a task of its own,
which waits for what ADK got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.adk.models import LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin

from tape import AsyncRun, Redact, Run
from tape.integrations.seams.rebuilding import rebuilding
from tape.integrations.seams.settings import compared

__all__ = ["TapePlugin"]


class _Call:
    """A call of the run that is under way: begun before ADK's own, ended after it."""

    def __init__(self) -> None:
        self.live = asyncio.Event()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[Any] | None = None

    async def begin(self, wrapped: Callable[..., Any], request: dict[str, Any]) -> bool:
        """Begin the call; tells whether it is answered already. Raises what it raised by then."""
        self.task = asyncio.create_task(wrapped(**request))
        waiting = asyncio.create_task(self.live.wait())
        await asyncio.wait({self.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return self.task.done() and not self.live.is_set()

    async def body(self) -> Any:
        """What the run takes for the call itself."""
        self.live.set()
        return await self.answer

    async def end(self, value: Any = None, error: Exception | None = None) -> None:
        """Hand over what ADK got, and wait until it is recorded."""
        assert self.task is not None
        if error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(error)
        await asyncio.wait({self.task})
        if error is None:
            self.task.result()
        else:
            self.task.exception()


class TapePlugin(BasePlugin):
    """A run around an app: ``Runner(…, plugins=[TapePlugin(run)])``.

    ``effects`` names the effect of each tool: "read", "idempotent" or "write", which is the default. In a replay
    neither models nor tools are called. Of a streamed answer the complete one is recorded.

    Of the settings only those are recorded that say what the model is asked. ``redact`` is as in ``Run.model``;
    without it credentials are left out.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        *,
        effects: Mapping[str, str] | None = None,
        name: str = "tape",
        redact: Callable[[Any], Any] | Iterable[str] | None = Redact.CREDENTIALS,
    ) -> None:
        super().__init__(name=name)
        self._run = run
        self._effects = dict(effects or {})
        self._redact = redact
        self._calls: dict[tuple[str, ...], _Call] = {}

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> LlmResponse | None:
        """Answer from the recording, or let the model be asked."""
        call = _Call()

        async def ask(model: Any, messages: Any, tools: Any, settings: Any) -> Any:
            return await call.body()

        if await call.begin(self._run.model(ask, redact=self._redact), _request(llm_request)):
            assert call.task is not None
            data = call.task.result()
            with rebuilding():
                return LlmResponse.model_validate(data)
        self._calls["model", callback_context.invocation_id, callback_context.agent_name] = call
        return None

    async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> None:
        """Record the answer."""
        if not llm_response.partial:
            call = self._calls.pop(("model", callback_context.invocation_id, callback_context.agent_name), None)
            if call is not None:
                await call.end(llm_response.model_dump(mode="json", exclude_none=True))

    async def on_model_error_callback(
        self, *, callback_context: Any, llm_request: LlmRequest, error: Exception
    ) -> None:
        """Record that the model failed."""
        call = self._calls.pop(("model", callback_context.invocation_id, callback_context.agent_name), None)
        if call is not None:
            await call.end(error=error)

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> dict[str, Any] | None:
        """Answer from the recording, or let the tool be called."""
        call = _Call()

        async def body(**arguments: Any) -> Any:
            return await call.body()

        wrapped = self._run.tool(body, name=tool.name, effect=self._effects.get(tool.name), redact=self._redact)
        if await call.begin(wrapped, tool_args):
            assert call.task is not None
            found: dict[str, Any] = call.task.result()
            return found
        self._calls["tool", tool_context.function_call_id] = call
        return None

    async def after_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: dict[str, Any]
    ) -> None:
        """Record the result."""
        call = self._calls.pop(("tool", tool_context.function_call_id), None)
        if call is not None:
            await call.end(result if isinstance(result, dict) else {"result": result})

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: Exception
    ) -> None:
        """Record that the tool failed."""
        call = self._calls.pop(("tool", tool_context.function_call_id), None)
        if call is not None:
            await call.end(error=error)


def _request(request: LlmRequest) -> dict[str, Any]:
    config = request.config.model_dump(mode="json", exclude_none=True, exclude={"tools"})
    tools = [] if request.config is None else request.config.tools or []
    return {
        "model": request.model,
        "messages": [_stable(content.model_dump(mode="json", exclude_none=True)) for content in request.contents],
        "tools": [tool.model_dump(mode="json", exclude_none=True) for tool in tools if hasattr(tool, "model_dump")],
        "settings": compared(config),
    }


def _stable(value: Any) -> Any:
    """Return contents without the ids that ADK gives to calls of functions, others in every run."""
    if isinstance(value, dict):
        return {
            name: _stable(item) for name, item in value.items() if not (name == "id" and str(item).startswith("adk-"))
        }
    return [_stable(item) for item in value] if isinstance(value, list) else value
