"""A model for ADK that says what the script tells it to, for the example and for tests; there is no network."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import Field


class ScriptedGemini(BaseLlm):  # type: ignore[misc]
    """Gives the replies one after the other, and keeps what it was asked."""

    model: str = "scripted"
    replies: list[types.Part]
    requests: list[LlmRequest] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Give the next reply."""
        self.requests.append(llm_request.model_copy(deep=True))
        part = self.replies[len(self.requests) - 1]
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=5)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def text(said: str) -> types.Part:
    """Return a reply in words."""
    return types.Part(text=said)


def call(tool: str, **given: Any) -> types.Part:
    """Return a call of a tool."""
    return types.Part(function_call=types.FunctionCall(name=tool, args=given))
