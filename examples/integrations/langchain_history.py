"""A LangChain chain whose history is a tape: it is asked, the program ends, and it is asked again.

Run it: python examples/integrations/langchain_history.py. It needs ``pip install 'tape-store[langchain]'`` and no
network: the model says what the script tells it to.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory

import tape
from tape.integrations.langchain import TapeChatMessageHistory


def ask(file: Path, question: str, answer: str) -> None:
    """Be a program that asks one question."""
    with tape.open(file) as store:
        prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
        chain = RunnableWithMessageHistory(
            prompt | GenericFakeChatModel(messages=iter([answer])),
            lambda session: TapeChatMessageHistory(session, store),
            input_messages_key="question",
            history_messages_key="history",
        )
        said = chain.invoke({"question": question}, {"configurable": {"session_id": "trip"}})
        print(f"{question} → {said.content}")


with tempfile.TemporaryDirectory() as folder:
    ask(Path(folder) / "agent.db", "Where to?", "Lisbon.")
    ask(Path(folder) / "agent.db", "And how?", "By train.")
    with tape.open(Path(folder) / "agent.db") as store:
        messages = TapeChatMessageHistory("trip", store).tape.messages()
        print(" | ".join(f"{message.role}: {message.text}" for message in messages))
