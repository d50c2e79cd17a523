"""A LlamaIndex chat whose memory is a tape: it is asked, the program ends, and it is asked again.

Run it: python examples/integrations/llama_index_chat.py. It needs ``pip install 'tape-store[llama-index]'`` and no
network: the model repeats what it is asked.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatMemoryBuffer

import tape
from tape.integrations.llama_index import TapeChatStore


def ask(file: Path, question: str) -> None:
    """Be a program that asks one question."""
    with tape.open(file) as store:
        chats = TapeChatStore(store)
        memory = ChatMemoryBuffer.from_defaults(chat_store=chats, chat_store_key="trip", token_limit=4000)
        engine = SimpleChatEngine(llm=MockLLM(), memory=memory, prefix_messages=[])
        print(f"{question} → {' '.join(str(engine.chat(question)).split())}")


with tempfile.TemporaryDirectory() as folder:
    ask(Path(folder) / "agent.db", "Where to?")
    ask(Path(folder) / "agent.db", "And how?")
    with tape.open(Path(folder) / "agent.db") as store:
        print(", ".join(str(message.role) for message in TapeChatStore(store).tape("trip").messages()))
