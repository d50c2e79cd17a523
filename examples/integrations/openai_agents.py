"""An agent of the OpenAI Agents SDK on a tape: it waits for a person, and another process goes on where it stopped.

Run it: python examples/integrations/openai_agents.py. It needs ``pip install 'tape-store[openai-agents]'`` and no
network: the SDK's own Runner runs, with a model that says what the script tells it to.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import tape
from tape.integrations.openai_agents import TapeSession


def book_hotel(name: str) -> str:
    """Book a hotel. A person has to agree."""
    return f"{name} is booked for May."


def guide(*steps: Any) -> Agent[Any]:
    """Return the agent, whose model takes these steps."""
    return Agent(
        name="guide", model=ScriptedModel(steps=list(steps)), tools=[function_tool(book_hotel, needs_approval=True)]
    )


async def talk(file: Path) -> None:
    """Run the first process: it ends while the agent waits."""
    session = TapeSession("trip", file, budget=8_000)
    agent = guide(
        [assistant_message("The Beira Mar is best. May I book it?")],
        [function_call("book_hotel", {"name": "Beira Mar"}, call_id="call_1")],
    )
    result = await Runner.run(agent, "Plan a trip to Lisbon", session=session)
    print(f"Plan a trip to Lisbon → {result.final_output}")
    result = await Runner.run(agent, "Yes, book it", session=session)
    for item in result.interruptions:
        print(f"Yes, book it → waits for a person: {item.name} {item.arguments}")
    await session.save_run_state(result.to_state())
    await session.aclose()


async def approve(file: Path) -> None:
    """Run the second process: a person agreed, and it resumes the run unless another one did."""
    session, agent = TapeSession("trip", file, budget=8_000), guide([assistant_message("It is booked.")])
    state = await session.load_run_state(agent)
    if state is not None and await session.drop_run_state():
        for item in state.get_interruptions():
            state.approve(item)
        result = await Runner.run(agent, state, session=session)
        print(f"approved → {result.final_output}")
    await session.aclose()


def main(folder: Path) -> None:
    """Run two processes' worth of an agent, and look at the tape."""
    set_tracing_disabled(True)
    asyncio.run(talk(folder / "agent.db"))
    asyncio.run(approve(folder / "agent.db"))
    with tape.open(folder / "agent.db") as store:
        chat = store.tape("trip")
        print(f"{len(chat.messages())} messages, verified: {chat.verify().ok}")
        print(f"found: {store.search('beira', limit=5)[-1].snippet}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
