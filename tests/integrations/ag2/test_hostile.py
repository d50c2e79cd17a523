"""Histories that came from a file: whatever class an event names, AG2 imports and calls none that is not allowed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from ag2.events import BaseEvent, ModelMessage, ModelRequest, TextInput, UnknownEvent

import tape
from integrations import hostile
from integrations.ag2.test_storage import save
from integrations.hostile import BAIT, watched
from tape.integrations.ag2 import TapeStorage

STREAM = UUID("00000000-0000-4000-8000-000000000001")
MESSAGE = "ag2.events.types.ModelMessage"


class Noted(BaseEvent):
    """An event of the program."""

    note: Any


@dataclass
class Place:
    """A value of the program."""

    city: str


VALUES: dict[str, Any] = {
    "a class": {"__dataclass__": "integrations.hostile.Trap", "data": {"a": 1}},
    "a process": {"__dataclass__": "subprocess.Popen", "data": {"args": ["true"]}},
    "an enum": {"__enum__": "integrations.hostile.Trap", "value": 1},
    "a model": {"__pydantic__": "integrations.hostile.Trap", "data": {}},
    "an event": {"__event__": "integrations.hostile.Trap", "content": "x"},
    "a module": {"__enum__": f"{BAIT}.Thing", "value": 1},
    "two at once": {"__event__": MESSAGE, "__dataclass__": "subprocess.Popen", "data": {"args": ["true"]}},
    "one inside another": {"__event__": MESSAGE, "content": [{"__dataclass__": "subprocess.Popen", "data": {}}]},
    "no name": {"__event__": ["ag2"], "content": "x"},
    "no event": {"a": {"__dataclass__": "integrations.hostile.Trap", "data": {}}},
    "a text": "x",
    "fields that the class does not take": {"__event__": MESSAGE, "nothing": 1},
}


def history(store: tape.Store, **options: Any) -> list[BaseEvent]:
    return list(asyncio.run(TapeStorage(store, **options).get_history(STREAM)))


@pytest.mark.parametrize("value", VALUES)
def test_nothing_that_a_file_names_is_called(store: tape.Store, value: str) -> None:
    """Each value stands for the event of a message, for another event, and deep inside an event."""

    def fill(source: tape.Store) -> None:
        chat = source.create(tape.as_id("ag2", str(STREAM)), agent="ag2")
        chat.append(role="user", content="x", meta={"ag2": VALUES[value]})
        chat.event("ag2.Any", meta={"ag2": VALUES[value]})
        chat.event("ag2.Any", meta={"ag2": {"__event__": MESSAGE, "content": "x", "metadata": {"a": VALUES[value]}}})

    hostile.imported(store, fill)
    with watched():
        held = history(store)
    assert len(held) == 3
    assert all(isinstance(event, BaseEvent) for event in held)


def test_a_class_that_the_program_names_comes_back(store: tape.Store) -> None:
    """Without its name an event is unknown, with its data, and a value is plain data."""
    said: list[BaseEvent] = [
        Noted(note="x"),
        ModelRequest([TextInput("Hi")]),
        ModelMessage("x", metadata={"at": Place("Lisbon")}),
    ]
    asyncio.run(save(TapeStorage(store), said))
    unknown, _, plain = history(store)
    assert isinstance(unknown, UnknownEvent)
    assert unknown.type_name.endswith("test_hostile.Noted")
    assert unknown.data["note"] == "x"
    assert plain.metadata["at"] == {"city": "Lisbon"}  # type: ignore[attr-defined]
    known, _, placed = history(store, classes=[Noted, Place])
    assert isinstance(known, Noted)
    assert placed.metadata["at"] == Place("Lisbon")  # type: ignore[attr-defined]


def test_a_hostile_file_runs_no_code() -> None:
    """Whatever is kept beside a message or an event is an event, or Corrupt."""
    id = tape.as_id("ag2", str(STREAM))
    assert hostile.outcomes(history, id, "ag2", events=("ag2.Any",)) == {"Corrupt"}
