"""An agent of Agent Framework whose history is a tape: it is asked, the program ends, and it is asked again.

Run it: python examples/integrations/agent_framework_history.py. It needs ``pip install 'tape-store[agent-framework]'``
and no network: the model says what the script tells it to.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from agent_framework import Agent, BaseChatClient, ChatResponse, Message

import tape
from tape.integrations.agent_framework import TapeHistoryProvider


class Scripted(BaseChatClient):  # type: ignore[misc]
    """A model that says one thing."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer

    async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        return ChatResponse(messages=[Message("assistant", [self.answer])])


async def ask(file: Path, question: str, answer: str) -> None:
    """Be a program that asks one question."""
    with tape.open(file) as store:
        agent = Agent(Scripted(answer), context_providers=[TapeHistoryProvider(store)])
        said = await agent.run(question, session=agent.create_session(session_id="trip"))
        print(f"{question} → {said.text}")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(ask(Path(folder) / "agent.db", "Where to?", "Lisbon."))
    asyncio.run(ask(Path(folder) / "agent.db", "And how?", "By train."))
    with tape.open(Path(folder) / "agent.db") as store:
        messages = TapeHistoryProvider(store).tape("trip").messages()
        print(" | ".join(f"{message.role}: {message.text}" for message in messages))
