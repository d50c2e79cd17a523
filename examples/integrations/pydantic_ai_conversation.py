"""An agent of Pydantic AI on a tape: it uses a tool, goes on after a restart, and is forked to try something else.

Run it: python examples/integrations/pydantic_ai_conversation.py. It needs ``pip install 'tape-store[pydantic-ai]'`` and
no network: the model says what the script tells it to.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import tape
from tape.integrations.pydantic_ai import TapeConversationStore


def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Play the model: it looks something up, and then answers."""
    asked = [str(part.content) for message in messages for part in message.parts if part.part_kind == "user-prompt"]
    if messages[-1].parts[-1].part_kind == "user-prompt":
        tool = "distance" if "how far" in asked[-1] else "hotels"
        return ModelResponse(parts=[ToolCallPart(tool, {"place": "Lisbon"})])
    if "how far" in asked[-1]:
        return ModelResponse(parts=[TextPart(f"9 minutes; you asked {len(asked)} times.")])
    return ModelResponse(parts=[TextPart("The Beira Mar.")])


def hotels(place: str) -> list[str]:
    """Find hotels."""
    return ["Beira Mar", f"Grand {place}"]


def distance(place: str) -> str:
    """Tell how far it is."""
    return f"9 minutes from {place}"


AGENT = Agent(FunctionModel(reply), tools=[hotels, distance])


async def ask(prompt: str, file: Path) -> None:
    """Ask the agent something, as a process of its own would: all that it knows comes from the tape."""
    conversations = TapeConversationStore(file)
    known = await conversations.load("trip", scope="ann") or Conversation(conversation_id="trip")
    result = await AGENT.run(prompt, conversation=known)
    await conversations.save(result, scope="ann")
    print(f"{prompt} → {result.output}")
    await conversations.close()


async def fork(file: Path) -> None:
    """Try something else from the first answer on; the conversation itself goes on as it was."""
    conversations = TapeConversationStore(file)
    await conversations.fork("trip", at=4, new_conversation_id="trip-cheaper", source_scope="ann")
    await conversations.close()


def main(file: Path) -> None:
    """Run three processes' worth of an agent, and look at the tapes."""
    asyncio.run(ask("Which hotel in Lisbon?", file))
    asyncio.run(ask("And how far is it?", file))
    asyncio.run(fork(file))
    with tape.open(file, owner="ann") as store:
        for info in reversed(store.list().items):
            chat = store.tape(info.id)
            origin = f", a fork of {info.parent}" if info.parent else ""
            print(f"{info.name}: {len(chat.messages())} messages, verified: {chat.verify().ok}{origin}")
        print(f"“Beira” is said in {len(store.search('beira'))} messages")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made) / "agent.db")
