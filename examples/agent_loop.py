"""An agent loop with tools, on a model that is made up and needs no network: ``python examples/agent_loop.py [PATH]``.

The loop keeps nothing in memory. Each turn it asks the tape what comes next, so a program that dies between a tool
call and its result goes on where it was: the second half of this example does that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tape

Message = dict[str, Any]


def price(item: str) -> str:
    """Tell what an item costs."""
    return {"ticket": "49 EUR", "hotel": "80 EUR"}[item]


TOOLS: dict[str, Callable[..., str]] = {"price": price}


def model(messages: list[Message]) -> Message:
    """Stand in for a model: ask for the prices of what the user names, then add them up."""
    last = messages[-1]
    if last["role"] == "user":
        wanted = [item for item in ("ticket", "boat", "hotel") if item in last["content"]]
        calls = [
            {
                "id": f"call-{item}",
                "type": "function",
                "function": {"name": "price", "arguments": json.dumps({"item": item})},
            }
            for item in wanted
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    results = [message["content"] for message in messages if message["role"] == "tool"]
    return {"role": "assistant", "content": f"I found: {', '.join(results)}."}


def dispatch(call: Message) -> Message:
    """Run a tool; what goes wrong is a result, too, since the model has to hear of it."""
    function = call["function"]
    try:
        content = TOOLS[function["name"]](**json.loads(function["arguments"]))
    except Exception as error:
        content = f"error: {type(error).__name__}: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def unanswered(chat: tape.Tape) -> list[Message]:
    """Return the tool calls of the last assistant message that have no result yet."""
    answered = set()
    for message in reversed(chat.messages()):
        if message.role == "tool":
            answered.add(message.data["tool_call_id"])
        else:
            return [call for call in message.data.get("tool_calls") or () if call["id"] not in answered]
    return []


def step(chat: tape.Tape) -> bool:
    """Do the one thing that comes next; returns whether there is more to do."""
    calls = unanswered(chat)
    if calls:
        # The key makes a result land once, also if the program dies after the tool ran and starts again.
        chat.append(dispatch(calls[0]), key=f"result-{calls[0]['id']}", actor="tools")
        return True
    last = chat.messages()[-1]
    if last.role == "assistant":
        return False
    # The head of the context is the condition for the answer: if someone wrote since, it answers something else.
    context, receipt = chat.recorded_context(budget=4_000)
    answer = model(context.to_openai())
    chat.append(answer, actor="model", expected_head=context.head, meta={"saw": receipt.seq})
    chat.record_usage(input_tokens=context.tokens, output_tokens=20, model="made-up")
    return True


def main(url: str = ":memory:") -> None:
    """Ask, die after the first tool result, start again, and finish."""
    with tape.open(url) as store:
        chat = store.create(name="prices", agent="shopper")
        chat.append(role="user", content="What do a ticket, a boat and a hotel cost?", key="request-1", actor="user")
        step(chat)
        step(chat)
        print("the program dies here; on the tape:", [message.role for message in chat.messages()])

        chat = store.get(chat.id)
        chat.append(role="user", content="What do a ticket, a boat and a hotel cost?", key="request-1", actor="user")
        while step(chat):
            pass
        for message in chat.messages():
            print(f"  {message.role:<9}  {message.text or [call['id'] for call in message.data['tool_calls']]}")

        answer = list(chat.entries(kinds=["append"]))[-1]
        saw = chat.recall((answer.meta or {})["saw"])
        print(f"the answer was given on {len(saw.messages)} messages, {chat.usage().calls} model calls in all")
        print("verified:", store.verify().ok)


if __name__ == "__main__":
    main(*sys.argv[1:2])
