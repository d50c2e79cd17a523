"""AG2: a ``Storage`` for the history of streams, so that an agent's conversation goes on in another process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from ag2.annotations import Context
from ag2.events import (
    BaseEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextInput,
    ToolResultsEvent,
    UnknownEvent,
)
from ag2.history import Storage
from pydantic import BaseModel

from tape import Message, Tape, from_strict, lenient, to_strict
from tape.integrations.histories import Histories, readable, recorded
from tape.integrations.opening import StoreLike, awaited

__all__ = ["TapeStorage"]

_NAME = "ag2"

_CLASS_NAMES = ("__event__", "__enum__", "__dataclass__", "__pydantic__")
"""Where AG2 names the class of a value."""

Data = dict[str, Any]


class TapeStorage(Histories, Storage):
    """Histories of streams, each on a tape: ``MemoryStream(TapeStorage("agent.db"), id=…)``.

    ``store`` is a Store, an AsyncStore or a URL. What the user, the model and its tools say are messages; every other
    event is one of the tape's. If ``set_history`` extends the history, it only appends; otherwise, as with
    ``drop_history``, the old events leave the history and stay on the tape.

    A tape may come from an untrusted file, and AG2 imports and calls any class that an event names. So only AG2's
    own classes and the ``classes`` that the program names are instantiated. An event of another class is an
    ``UnknownEvent``; another value in an event is plain data.
    """

    _framework = _NAME

    def __init__(self, store: StoreLike, *, classes: Iterable[type] = ()) -> None:
        super().__init__(store)
        self._classes = {_name_of(each) for each in (*_own(), *classes)}

    def tape(self, stream_id: UUID) -> Tape:
        """Return the tape of a stream: to search, fork, look at, or build a context from."""
        return self._tape(str(stream_id))

    @awaited
    def save_event(self, event: BaseEvent, context: Context) -> None:
        """Write an event behind the others of its stream."""
        self._write(lambda chat: _write(chat, event), str(context.stream.id))

    @awaited
    def get_history(self, stream_id: UUID) -> Iterable[BaseEvent]:
        """Return the events of a stream, in order."""
        chat = self.tape(stream_id)
        with readable(chat.id, 0):
            return [self._event(data) for data in _kept(chat)]

    @awaited
    def set_history(self, stream_id: UUID, events: Iterable[BaseEvent]) -> None:
        """Replace the events of a stream, in one step."""
        self._set(stream_id, list(events))

    @awaited
    def drop_history(self, stream_id: UUID) -> None:
        """Take every event out of a stream's history."""
        self._set(stream_id, [])

    def _event(self, data: Data) -> BaseEvent:
        checked = self._checked(data)
        try:
            kept: Any = _Kept.from_dict({"event": checked})
            event = kept.event
        except Exception:
            # The class does not take these fields.
            event = None
        name = data.get("__event__") if isinstance(data, dict) else None
        return event if isinstance(event, BaseEvent) else UnknownEvent(type_name=str(name), data=data)

    def _checked(self, value: Any) -> Any:
        """Return a value in which only known classes are named."""
        if isinstance(value, list):
            return [self._checked(item) for item in value]
        if not isinstance(value, dict):
            return value
        if all(str(value[name]) in self._classes for name in _CLASS_NAMES if name in value):
            return {name: self._checked(item) for name, item in value.items()}
        plain = {name: self._checked(item) for name, item in value.items() if name not in _CLASS_NAMES}
        if "__event__" not in value:
            return plain.get("data", plain.get("value"))
        return {"__event__": _name_of(UnknownEvent), "type_name": str(value["__event__"]), "data": plain}

    def _set(self, stream_id: UUID, events: list[BaseEvent]) -> None:
        def write(chat: Tape) -> None:
            held = _kept(chat)
            behind = [from_strict(to_strict(_data(event))) for event in events[: len(held)]] == held
            if not behind:
                chat.clear()
            for event in events[len(held) if behind else 0 :]:
                _write(chat, event)

        if events or self.tape(stream_id).info().head:
            self._write(write, str(stream_id))


class _Kept(BaseEvent):
    """An event inside another, of which AG2 tells the class, too."""

    event: Any


def _write(chat: Tape, event: BaseEvent) -> None:
    meta, message = {_NAME: to_strict(_data(event))}, _message(event)
    if message is None:
        chat.event(f"{_NAME}.{type(event).__name__}", meta=meta)
    else:
        chat.append(lenient(message)[0], meta=meta)


def _data(event: BaseEvent) -> Data:
    return _Kept(event=event).to_dict()["event"]


def _kept(chat: Tape) -> list[Data]:
    """Return the events that are in force, as they were kept."""
    return [_others(message) if message and data is None else data for data, message in recorded(_NAME, chat)]


def _own() -> list[type]:
    """Return the classes of AG2's events and of what is in them."""
    made: tuple[type, ...] = (BaseEvent, Enum, BaseModel)
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("ag2.events.")]
    return [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type)
        and each.__module__.startswith("ag2.events.")
        and (issubclass(each, made) or is_dataclass(each))
    ]


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _others(message: Message) -> Data:
    """Return what somebody else wrote as what a user or a model of AG2 says."""
    said: BaseEvent = ModelRequest([TextInput(message.text)])
    if message.role == "assistant":
        said = ModelResponse(ModelMessage(message.text))
    return _data(said)


def _message(event: BaseEvent) -> Data | None:
    """Return what an event says in a form that any reader understands, or None if it is nothing that is said."""
    if isinstance(event, ModelRequest):
        return {"role": "user", "content": _text(event.parts)}
    if isinstance(event, ModelResponse):
        said: Data = {"role": "assistant", "content": event.message.content if event.message else ""}
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in event.tool_calls.calls]
        return {**said, "tool_calls": calls} if calls else said
    if isinstance(event, ToolResultsEvent):
        results = [(result.parent_id, _text(result.result.parts)) for result in event.results]
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in results]
        return {"role": "user", "content": blocks}
    return None


def _text(parts: list[Any]) -> str:
    return "\n".join(str(part.content) for part in parts if isinstance(part, TextInput))
