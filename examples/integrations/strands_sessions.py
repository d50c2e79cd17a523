"""A Strands agent whose session is a tape: it is asked, the program ends, and it is asked again.

Run it: python examples/integrations/strands_sessions.py. It needs ``pip install 'tape-store[strands]'`` and no
network: the model says what the script tells it to.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from strands import Agent
from strands.models.model import Model
from strands.session.repository_session_manager import RepositorySessionManager

import tape
from tape.integrations.strands import TapeSessionRepository


class Scripted(Model):  # type: ignore[misc]
    """A model that says one thing."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def update_config(self, **model_config: Any) -> None:
        """Take no settings."""

    def get_config(self) -> Any:
        """Have no settings."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Say nothing but text."""
        raise NotImplementedError

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Say the one thing."""
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": self.answer}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def ask(file: Path, question: str, answer: str) -> None:
    """Be a program that asks one question."""
    with tape.open(file) as store:
        sessions = RepositorySessionManager("trip", session_repository=TapeSessionRepository(store))
        agent = Agent(model=Scripted(answer), agent_id="guide", session_manager=sessions, callback_handler=None)
        print(f"{question} → {str(agent(question)).strip()}")


with tempfile.TemporaryDirectory() as folder:
    ask(Path(folder) / "agent.db", "Where to?", "Lisbon.")
    ask(Path(folder) / "agent.db", "And how?", "By train.")
    with tape.open(Path(folder) / "agent.db") as store:
        messages = TapeSessionRepository(store).tape("trip", "guide").messages()
        print(" | ".join(f"{message.role}: {message.text}" for message in messages))
