"""An agent of the Claude Agent SDK on a tape: it asks a subagent, and is resumed from the tape, without its files.

Run it: python examples/integrations/claude_agent.py. It needs ``pip install 'tape-store[claude-agent]'`` and no
network: the SDK's own program runs, with a model that says what the script tells it to.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from scripted_anthropic import ScriptedAnthropic, asked, text, tool_use

import tape
from tape.integrations.claude_agent import TapeSessionStore

TASK = {
    "description": "Look at hotels",
    "prompt": "Which hotel is best?",
    "subagent_type": "general-purpose",
    "run_in_background": False,
}


def reply(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Play the model: the agent, and its subagent."""
    if asked(request, "Which hotel is best?") and not asked(request, "tool_result"):
        return [text("The Beira Mar.")]
    if asked(request, "Plan a trip to Lisbon") and not asked(request, "tool_result"):
        return [text("I ask about hotels."), tool_use("toolu_1", "Agent", TASK)]
    if asked(request, "And the train?"):
        return [text("The 9:30.")]
    return [text("You stay at the Beira Mar.")]


async def ask(prompt: str, folder: Path, model: ScriptedAnthropic, resume: str | None = None) -> str:
    """Ask the agent something in a folder of its own; returns the id of the session."""
    # The SDK keeps files of its own there. Nobody else finds them: what is resumed comes from the tape.
    environment = {**model.environment, "HOME": str(folder), "CLAUDE_CONFIG_DIR": str(folder / "claude")}
    os.environ["CLAUDE_CONFIG_DIR"] = environment["CLAUDE_CONFIG_DIR"]
    store = TapeSessionStore(folder.parent / "agent.db")
    work = folder.parent / "work"
    work.mkdir(exist_ok=True)
    options = ClaudeAgentOptions(
        session_store=store, resume=resume, cwd=work, env=environment, setting_sources=[], allowed_tools=["Agent"]
    )
    session = ""
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, ResultMessage):
            print(f"{prompt} → {message.result}")
            session = message.session_id
    await store.close()
    return session


def main(folder: Path) -> None:
    """Run two processes' worth of an agent, and look at the tape."""
    with ScriptedAnthropic(reply) as model:
        for name in ("one", "two"):
            (folder / name).mkdir()
        session = asyncio.run(ask("Plan a trip to Lisbon", folder / "one", model))
        asyncio.run(ask("And the train?", folder / "two", model, resume=session))
    with tape.open(folder / "agent.db") as store:
        for info in reversed(store.list().items):
            kind = "subagent" if info.parent else "session"
            print(f"{kind}: {info.message_count} messages, verified: {store.verify(info.id).ok}")
            for message in store.tape(info.id).messages():
                for line in filter(None, [message.text]):
                    print(f"  {message.role:<10} {line.splitlines()[0]}")
        print(f"“Beira” is said on {len({hit.tape for hit in store.search('beira')})} tapes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
