"""An agent that is recorded once and run again without a model: ``python examples/recorded_agent.py [PATH]``.

It has tools, asks for the weather of several cities at once, has a subagent, and streams its answer. The model is made
up, needs no network, and never answers twice in the same words: what a replay gives can only come from the tape.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import tape

Message = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a developer changes about the agent."""

    model: str = "made-up-1"
    prompt: str = "You plan trips."
    cities: tuple[str, ...] = ("Bergen", "Oslo", "Tromsø")
    items: tuple[str, ...] = ("ticket", "hotel", "museum", "ferry")
    nights: int = 2
    asks_the_clock: bool = True
    tools: tuple[Message, ...] = (
        {"name": "weather", "parameters": {"city": {"type": "string"}}},
        {"name": "price", "parameters": {"item": {"type": "string"}, "nights": {"type": "integer"}}},
    )


made: list[str] = []
"""Every call that was really made."""


async def model(*, model: str, messages: list[Message], tools: list[Message]) -> Message:
    """Stand in for a model: another id and another wording each time."""
    made.append("model")
    await asyncio.sleep(0)
    asked = [{"id": f"call_{secrets.token_hex(4)}", "name": tool["name"]} for tool in tools]
    return {"role": "assistant", "content": f"({secrets.token_hex(3)}) go on", "tool_calls": asked}


async def writer(*, model: str, messages: list[Message]) -> AsyncIterator[str]:
    """Stand in for a model that streams."""
    for word in ("Book", "the", "ferry.", secrets.token_hex(4)):
        made.append("chunk")
        await asyncio.sleep(0)
        yield word


async def weather(city: str) -> Message:
    """Tell the weather: whoever is asked first may answer last."""
    made.append("weather")
    await asyncio.sleep(secrets.randbelow(3) / 1000)
    return {"city": city, "degrees": secrets.randbelow(20)}


def price(item: str, nights: int) -> int:
    """Tell what an item costs today."""
    made.append("price")
    return (20 + secrets.randbelow(80)) * nights


def book(total: int) -> str:
    """Book the trip: this one writes."""
    made.append("book")
    return f"booking {secrets.token_hex(4)}"


async def history(run: tape.Run, ask: Any, setup: Setup) -> str:
    """A subagent with a prompt of its own, in a lane of its own."""
    with run.lane("history"):
        messages = [{"role": "system", "content": f"{setup.prompt} Tell the history of {', '.join(setup.cities)}."}]
        answer = await ask(model=setup.model, messages=messages, tools=[])
        messages += [answer, {"role": "user", "content": "Shorter, please."}]
        return str((await ask(model=setup.model, messages=messages, tools=[]))["content"])


async def agent(run: tape.Run, setup: Setup | None = None) -> str:
    """Plan a trip. Everything that is not determined goes through the run."""
    setup = setup or Setup()
    ask, write = run.model(model), run.model(writer, name="writer")
    look, cost = run.tool(weather, effect="read"), run.tool(price, effect="read")
    order = run.tool(book, effect="write")
    clock = run.value("clock", lambda: datetime.now(UTC).isoformat())
    now = clock() if setup.asks_the_clock else datetime.now(UTC).isoformat()

    messages: list[Message] = [
        {"role": "system", "content": f"{setup.prompt} It is {now}."},
        {"role": "user", "content": run.input},
    ]
    messages.append(await ask(model=setup.model, messages=messages, tools=list(setup.tools)))
    reports = await asyncio.gather(*(look(city) for city in setup.cities))
    messages.append({"role": "tool", "content": json.dumps(reports)})
    messages.append({"role": "tool", "content": await history(run, ask, setup)})
    messages.append(await ask(model=setup.model, messages=messages, tools=list(setup.tools)))
    prices = {item: cost(item, nights=setup.nights) for item in setup.items}
    messages.append({"role": "tool", "content": json.dumps(prices)})
    messages.append(await ask(model=setup.model, messages=messages, tools=list(setup.tools)))
    booking = order(total=sum(prices.values()))
    messages.append({"role": "tool", "content": booking})
    words = [word async for word in write(model=setup.model, messages=messages)]
    return f"{' '.join(words)} ({booking}, {json.dumps(reports)})"


def main(path: str = ":memory:") -> None:
    """Record the agent, then run it again in four ways."""
    with tape.open(path) as store:
        chat = store.tape("trip")
        with tape.record(chat, "trip", input="To the fjords, please.") as run:
            answer = asyncio.run(agent(run))
        print(f"recorded: {run.report.live} calls, {len(made)} made in all")

        made.clear()
        with tape.replay(chat, run.id) as again:
            same = asyncio.run(agent(again)) == answer
        print(f"again: {again.report.matched} answers from the tape, {len(made)} calls made, same answer: {same}")

        try:
            with tape.replay(chat, run.id) as changed:
                asyncio.run(agent(changed, Setup(prompt="You plan cheap trips.")))
        except tape.Diverged as error:
            print(f"another prompt: {error.kind} at {error.path}")

        with tape.replay(chat, run.id, tools="live", on_divergence="collect") as today:
            asyncio.run(agent(today))
        kinds = sorted({told.kind for told in today.report.diverged})
        print(f"the tools today: {kinds}, of booking nothing: {'book' not in made}")

        fork = chat.fork(name="from the prices on")
        with tape.replay(chat, run.id, live_from=9, into=fork, effects="allow") as onward:
            asyncio.run(agent(onward))
        print(f"live from call 9: {onward.report.matched} from the tape, {onward.report.live} made, on a fork")
        with tape.replay(fork, onward.id) as once_more:
            asyncio.run(agent(once_more))
        print(f"and that one again: {once_more.report.matched} from the tape, ok: {once_more.report.ok}")


if __name__ == "__main__":
    main(*sys.argv[1:])
