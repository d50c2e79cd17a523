"""A history with everything that the inspector shows: tools, thoughts, branches, forks, merges, contexts, usage."""

from __future__ import annotations

from typing import Any

import tape

__all__ = ["history"]


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def history(store: tape.Store) -> tape.Tape:
    """Write the tape ``trip`` with two forks, beside some others, and return it."""
    for number, status in enumerate(["complete", "abandon", None]):
        small = store.create(f"ticket-{number + 1}", name=f"Ticket {number + 1}", agent="support", labels=["support"])
        small.append(role="user", content="My order has not arrived.", actor="customer")
        small.append(role="assistant", content="I am sorry. Let me look that up.", actor="support")
        if status:
            getattr(small, status)()
    chat = store.create("trip", name="Two days in Lisbon", agent="planner", labels=["travel", "demo"])
    chat.set_block("persona", "You plan short trips. Ask before you book anything.", description="who you are")
    chat.append(role="user", id="ask", content="Plan two days in Lisbon for two, by train if you can.", actor="user")
    _, first = chat.recorded_context(budget=4_000)
    chat.extend(
        [
            {
                "role": "assistant",
                "id": "look",
                "content": [
                    {
                        "type": "thinking",
                        "thinking": "Weather decides the day. I ask both tools at once.",
                        "signature": "s",
                    },
                    {"type": "text", "text": "Let me check the weather and the trains."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Lisbon", "days": 3}},
                    {"type": "tool_use", "id": "c2", "name": "trains", "input": {"from": "Madrid", "to": "Lisbon"}},
                ],
            },
            {
                "role": "user",
                "id": "results",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": '{"friday": "24 C, sun", "saturday": "rain"}',
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "is_error": True,
                        "content": "timetable service timed out",
                    },
                ],
            },
        ],
        actor="planner",
    )
    chat.record_usage(input_tokens=812, output_tokens=96, cached_tokens=512, cost=4_100, model="claude-sonnet-4-5")
    hotels = chat.fork("trip-hotels", name="hotels")
    hotels.append(role="user", content="Find a quiet hotel near the river for Friday night.", actor="planner")
    hotels.append(role="assistant", content="Three have rooms. The Tejo is the quietest, 94 euros.", actor="hotels")
    hotels.record_usage(input_tokens=640, output_tokens=41, cost=900, model="claude-haiku-4-5")
    trains = chat.fork("trip-trains", name="trains")
    trains.append(role="assistant", content="There is no direct train from Madrid. A bus takes nine hours.")
    chat.merge(hotels)
    trains.discard("no direct train")
    chat.append(role="assistant", id="plan", content="Go on Saturday: walk the Alfama, then the tile museum.")
    chat.append(
        role="assistant",
        id="plan-2",
        parent="results",
        content="Go on Friday, before the rain: Alfama in the morning, the river at dusk.",
    )
    chat.revise(
        "plan-2",
        content="Go on Friday, before the rain: Alfama in the morning, Belém at dusk. The Tejo has a room for 94.",
    )
    chat.record_usage(input_tokens=1_630, output_tokens=120, cached_tokens=812, cost=6_900, model="claude-sonnet-4-5")
    chat.append(role="user", content="Good. Book it.", actor="user")
    chat.recorded_context(budget=4_000)
    chat.handoff(
        "booking", summary="Friday, hotel Tejo, 94 euros. Travel by air.", next_steps=["book the Tejo", "book flights"]
    )
    chat.append(role="user", content="And a table for dinner on Friday, please.", actor="user")
    chat.recorded_context(budget=4_000)
    chat.event("run.failed", {"status": "error", "why": "booking service answered 503"})
    chat.append(
        role="assistant", content="Booked the Tejo for Friday. The booking of the table failed, I will try again."
    )
    chat.record_usage(input_tokens=980, output_tokens=64, cached_tokens=700, cost=3_800, model="claude-sonnet-4-5")
    assert first.seq
    return chat
