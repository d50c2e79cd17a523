"""An AG2 agent whose history is a tape: it is asked, the program ends, and it is asked again.

Run it: python examples/integrations/ag2_storage.py. It needs ``pip install 'tape-store[ag2]'`` and no network: the
model says what the script tells it to.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from uuid import uuid4

from ag2 import Agent
from ag2.stream import MemoryStream
from ag2.testing import TestConfig

import tape
from tape.integrations.ag2 import TapeStorage

CONVERSATION = uuid4()


async def ask(file: Path, question: str, answer: str) -> None:
    """Be a program that asks one question."""
    with tape.open(file) as store:
        agent = Agent("guide", config=TestConfig(answer))
        await agent.ask(question, stream=MemoryStream(TapeStorage(store), id=CONVERSATION))
        print(f"{question} → {answer}")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(ask(Path(folder) / "agent.db", "Where to?", "Lisbon."))
    asyncio.run(ask(Path(folder) / "agent.db", "And how?", "By train."))
    with tape.open(Path(folder) / "agent.db") as store:
        messages = TapeStorage(store).tape(CONVERSATION).messages()
        print(" | ".join(f"{message.role}: {message.text}" for message in messages))
