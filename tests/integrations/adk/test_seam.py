"""TapePlugin in ADK's own runner with a scripted model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from support.backends import Backend

from integrations.seaming import CREDENTIALS, check_credentials, check_seam
from tape.integrations.seams.adk import TapePlugin


class Scripted(BaseLlm):
    made: list[str] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.made.append("model")
        part = types.Part(text="It is sunny.")
        if len(self.made) == 1:
            part = types.Part.from_function_call(name="weather", args={"city": "Lisbon"})
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def agent(run: Any, made: list[str], question: str, **options: Any) -> Any:
    def weather(city: str) -> dict[str, Any]:
        """Tell the weather."""
        made.append(f"weather {city}")
        return {"sky": "sunny"}

    model = Scripted(model="scripted-1")
    # A copy is made of what the constructor is given.
    model.made = made
    root = LlmAgent(name="a", model=model, instruction="Be brief.", tools=[weather], **options)
    runner = InMemoryRunner(root, app_name="seam", plugins=[TapePlugin(run, effects={"weather": "read"})])
    await runner.session_service.create_session(app_name="seam", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    said = []
    async for event in runner.run_async(user_id="u", session_id="s", new_message=message):
        said += [part.text for part in (event.content.parts or []) if part.text] if event.content else []
    return said


def test_a_run_is_recorded_and_replayed(backend: Backend) -> None:
    """Model and tool are called once; replays call neither, and another question is a divergence."""
    check_seam(backend, agent, calls=["model", "weather Lisbon", "model"])


def test_no_credential_of_the_settings_is_recorded(quick: Backend) -> None:
    """Options of the HTTP requests and labels are left out; what the model is asked is kept."""
    headers = {"authorization": f"Bearer {CREDENTIALS[1]}", "x-mine": CREDENTIALS[2]}
    settings = types.GenerateContentConfig(
        temperature=0.25,
        http_options=types.HttpOptions(headers=headers),
        labels={"session": CREDENTIALS[4]},
    )

    async def asked(run: Any, made: list[str], question: str) -> Any:
        return await agent(run, made, question, generate_content_config=settings)

    check_credentials(quick, asked, kept=["'temperature': 0.25", "Be brief."])
