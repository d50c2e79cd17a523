"""LangGraph: a graph of one node, whose turns are run and whose state is loaded, on ours and on SqliteSaver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.adapters import Side, answer, question
from benchmarks.peers import Place

PACKAGE = "langgraph"
THEIRS = "SqliteSaver"
BAR = 1.0

CONFIG = {"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}


def side(saver: Any) -> Side:
    """Return a saver's calls. LangGraph always loads the whole state."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph

    def reply(state: MessagesState) -> Any:
        return {"messages": [AIMessage(answer(len(state["messages"]) // 2))]}

    graph = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply").compile(checkpointer=saver)

    def fill(turns: int) -> Any:
        said = [each for number in range(turns) for each in (HumanMessage(question(number)), AIMessage(answer(number)))]
        return graph.update_state(CONFIG, {"messages": said}, as_node="reply")

    return Side(
        lambda number: graph.invoke({"messages": [HumanMessage(question(number))]}, CONFIG),
        lambda: saver.get_tuple(CONFIG).checkpoint["channel_values"]["messages"],
        is_async=False,
        fill=fill,
    )


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    from tape.integrations.langgraph import TapeSaver

    ours = TapeSaver(place.path)
    connection = sqlite3.connect(place.path.with_suffix(".sqlite"), check_same_thread=False)
    yield side(ours), side(SqliteSaver(connection))
    connection.close()
    ours.close()
