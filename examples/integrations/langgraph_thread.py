"""A LangGraph agent on a tape: it uses a tool, remembers, goes back in time, and is read with the tape's own calls.

Run it: python examples/integrations/langgraph_thread.py. It needs ``pip install 'tape-store[langgraph]'`` and no
network: the model says what the script tells it to.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.base import BaseStore

import tape
from tape.integrations.langgraph import TapeSaver, TapeStore

TRIPS = ("trips", "ann")


def find_hotels(city: str) -> str:
    """Find hotels in a city."""
    return f"Two hotels in {city}: Beira Mar, Alfama Inn"


def model(state: MessagesState, *, store: BaseStore) -> Any:
    """Play the model: look for hotels first, then choose one, and remember it."""
    last = state["messages"][-1]
    if isinstance(last, HumanMessage):
        city = str(last.content).split()[-1]
        call = {
            "name": "find_hotels",
            "args": {"city": city},
            "id": f"call-{len(state['messages'])}",
            "type": "tool_call",
        }
        return {"messages": [AIMessage("I look for hotels.", tool_calls=[call])]}
    hotel = str(last.content).rsplit(", ", maxsplit=1)[-1]
    store.put(TRIPS, hotel, {"text": f"Ann stays at the {hotel}"})
    return {"messages": [AIMessage(f"You stay at the {hotel}.")]}


def main() -> None:
    """Plan a trip, go back, plan another, and look at the tape."""
    path = Path(tempfile.mkdtemp()) / "agent.db"
    saver, memory = TapeSaver(path), TapeStore(path)
    builder = StateGraph(MessagesState).add_node("model", model).add_node("tools", ToolNode([find_hotels]))
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    graph = builder.compile(checkpointer=saver, store=memory)
    config: Any = {"configurable": {"thread_id": "trip"}}

    graph.invoke({"messages": [HumanMessage("Plan a trip to Lisbon")]}, config)
    asked = [state for state in graph.get_state_history(config) if state.next == ("model",)][-1]
    graph.invoke({"messages": [HumanMessage("No, to Porto")]}, asked.config)
    print("remembered:", [item.value["text"] for item in memory.search(("trips",), query="where does Ann stay")])

    with tape.open(path) as store:
        trip = store.get("trip")
        for message in trip.messages():
            print(f"{message.role}: {message.text}")
        print("branches:", len(trip.heads()))
        print("found:", [(hit.tape, hit.role) for hit in store.search("lisbon hotels")])
        print("for a model:", trip.context(budget=1_000).tokens, "tokens")
        print("verified:", store.verify().ok)
    saver.close()
    memory.close()


if __name__ == "__main__":
    main()
