"""Checkpoints that are put without a graph, also in other processes: little of LangGraph is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6

import tape
from tape.integrations.langgraph import TapeSaver

__all__ = ["THREAD", "marks", "put", "turns", "values"]

THREAD = {"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}


def put(
    saver: BaseCheckpointSaver[Any],
    values: dict[str, Any],
    parent: Any = None,
    *,
    id: str | None = None,
    ns: str = "",
    thread: str = "chat",
    versions: dict[str, Any] | None = None,
    new: dict[str, Any] | None = None,
    **metadata: Any,
) -> Any:
    """Put a checkpoint behind another one; every channel is new unless ``new`` says which are."""
    numbers = versions or {name: str(uuid6()) for name in values}
    checkpoint: Any = {
        "v": 4,
        "id": id or str(uuid6()),
        "ts": "2026-03-01T10:00:00+00:00",
        "channel_values": values,
        "channel_versions": numbers,
        "versions_seen": {},
        "updated_channels": None,
    }
    above = parent["configurable"]["checkpoint_id"] if parent else None
    config: Any = {
        "configurable": {"thread_id": thread, "checkpoint_ns": ns, **({"checkpoint_id": above} if above else {})}
    }
    said: Any = {"source": "loop", "step": 0, "parents": {}, **metadata}
    return saver.put(config, checkpoint, said, numbers if new is None else new)


def values(saver: TapeSaver, config: Any = THREAD) -> dict[str, Any]:
    held = saver.get_tuple(config)
    assert held is not None
    return held.checkpoint["channel_values"]


def turns(store: tape.Store) -> Callable[[str], Any]:
    saver = TapeSaver(store)

    def turn(mark: str) -> None:
        latest = saver.get_tuple(THREAD)
        said = latest.checkpoint["channel_values"]["messages"] if latest else []
        put(saver, {"messages": [*said, HumanMessage(mark)]}, latest and latest.config)

    return turn


def marks(store: tape.Store) -> list[str]:
    return [message.content for message in values(TapeSaver(store))["messages"]]
