"""Subagents on forks, merged back as the answers to the tool calls that asked for them.

``python examples/fan_out.py [PATH]``. Three subagents work at the same time, each on a fork that sees all that came
before and nothing of the others. One of them fails: its fork is discarded, and its call is answered with the reason.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tape

TASKS = {"call-1": "museums", "call-2": "hotels", "call-3": "weather"}


def research(helper: tape.Tape, topic: str) -> str:
    """Stand in for a subagent: it writes its own turns on its own tape."""
    helper.append(role="user", content=f"Look into {topic}.", actor="planner")
    helper.append(role="assistant", content=f"Searching for {topic} …", actor=topic)
    if topic == "weather":
        raise TimeoutError("the weather service does not answer")
    helper.append(role="assistant", content=f"Two {topic} are worth it.", actor=topic)
    return str(helper.messages()[-1].content)


def delegate(chat: tape.Tape, call: str, topic: str) -> None:
    """Run one subagent on a fork and answer the tool call with what came of it."""
    helper = chat.fork(f"{chat.id}/{topic}", name=topic, actor="planner")
    try:
        research(helper, topic)
    except Exception as error:
        helper.discard(reason=str(error))
        chat.append(
            {"role": "tool", "tool_call_id": call, "content": f"failed: {error}"}, key=f"result-{call}", actor="planner"
        )
    else:
        # One message, the answer to the call. The fork keeps the whole way there and is cited as its source.
        chat.merge(helper, strategy="squash", role="tool", tool_call_id=call, actor="planner")


def main(url: str | None = None) -> None:
    """Fan out, gather, and look at what became of each subagent."""
    where = url or str(Path(tempfile.mkdtemp(prefix="tape-fan-out-")) / "agents.db")
    with tape.open(where) as store:
        chat = store.create("trip", name="Lisbon")
        chat.append(role="user", content="Plan a weekend in Lisbon.", actor="user")
        calls: list[dict[str, Any]] = [
            {"id": call, "type": "function", "function": {"name": "research", "arguments": f'{{"topic": "{topic}"}}'}}
            for call, topic in TASKS.items()
        ]
        chat.append({"role": "assistant", "content": None, "tool_calls": calls}, actor="planner")

        with ThreadPoolExecutor(max_workers=len(TASKS)) as pool:
            list(pool.map(lambda task: delegate(chat, *task), TASKS.items()))

        print("what the planner's model sees next:")
        for message in chat.context(budget=4_000).to_openai():
            print(f"  {message['role']:<9}  {message['content'] or 'three calls'}")

        print("what became of the subagents:")
        lineage = chat.lineage()
        for child in sorted(lineage.descendants, key=lambda child: child.tape):
            helper = store.get(child.tape)
            own = [message for message in helper.messages() if message.tape == helper.id]
            print(f"  {child.tape:<13}  {child.state:<9}  {len(own)} messages of its own")
        answers = [message for message in chat.messages() if message.id in lineage.sources]
        print(f"{len(answers)} answers cite the fork they came from; verified: {store.verify().ok}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
