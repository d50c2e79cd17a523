"""An agent of Google ADK on a tape: it calls a tool, goes on in another process, is rewound, and remembers.

Run it: python examples/integrations/adk.py. It needs ``pip install 'tape-store[adk]'`` and no network: ADK's own runner
runs, with a model that says what the script tells it to.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from scripted_gemini import ScriptedGemini, call, text

import tape
from tape.integrations.adk import TapeMemoryService, TapeSessionService

WHO: dict[str, Any] = {"app_name": "travel", "user_id": "ana"}
NAMES: dict[str, Any] = {**WHO, "session_id": "lisbon"}


def book(hotel: str, tool_context: ToolContext) -> dict[str, str]:
    """Book a hotel."""
    tool_context.state["hotel"] = tool_context.state["user:booked"] = hotel
    return {"status": "booked"}


def opened(file: Path, *replies: types.Part) -> Runner:
    """Return a runner as each process would make it; the store is the one line that is not ADK's own."""
    agent = LlmAgent(name="clerk", model=ScriptedGemini(replies=list(replies)), tools=[book])
    return Runner(
        app_name="travel",
        agent=agent,
        session_service=TapeSessionService(file),
        memory_service=TapeMemoryService(file),
    )


async def ask(runner: Runner, prompt: str, note: str = "") -> str:
    """Ask the agent something; returns the id of the invocation."""
    message = types.Content(role="user", parts=[types.Part(text=prompt)])
    answer, invocation = "", ""
    async for event in runner.run_async(user_id="ana", session_id="lisbon", new_message=message):
        invocation = event.invocation_id
        if event.is_final_response() and event.content and event.content.parts:
            answer = event.content.parts[0].text or ""
    print(f"{note}{prompt} → {answer}")
    return invocation


async def first(file: Path) -> None:
    """Book a hotel."""
    runner = opened(file, call("book", hotel="Beira Mar"), text("It is booked."))
    await runner.session_service.create_session(**NAMES)
    await ask(runner, "Book the Beira Mar")


async def second(file: Path) -> None:
    """Go on elsewhere, take the last turn back, and book another."""
    runner = opened(file, text("The Beira Mar."), call("book", hotel="Ritz"), text("It is booked."))
    asked = await ask(runner, "What did I book?", "(a new process) ")
    await runner.rewind_async(user_id="ana", session_id="lisbon", rewind_before_invocation_id=asked)
    await ask(runner, "Book the Ritz instead", "(rewound) ")
    session = await runner.session_service.get_session(**NAMES)
    assert session is not None
    print(f"state: {session.state}")
    await TapeMemoryService(file).add_session_to_memory(session)


async def third(file: Path) -> None:
    """Look for what was said."""
    found = await TapeMemoryService(file).search_memory(**WHO, query="Who was to book the Beira Mar?")
    best = found.memories[0].content.parts
    print(f"remembered: {best[0].text if best else ''}")


def main(file: Path) -> None:
    """Run two processes' worth of an agent, and look at the tape."""
    asyncio.run(first(file))
    asyncio.run(second(file))
    with tape.open(file) as store:
        chat = store.tape("adk/travel/ana/lisbon")
        shown, branches = len(chat.messages()), len(chat.heads())
        print(f"on the tape: {shown} messages, {branches} branches, verified: {store.verify().ok}")
    asyncio.run(third(file))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made) / "agent.db")
