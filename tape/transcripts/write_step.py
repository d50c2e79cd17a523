"""Writing one step of a transcript to a tape, through the calls that every program uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tape.core import strict
from tape.core.entries import payloads
from tape.core.records import Page, Receipt
from tape.errors import HeadMoved, ProvenanceConflict
from tape.transcripts.steps import Event, Message, Restart, Title, Used

if TYPE_CHECKING:
    from tape.handles.options import WriteOptions
    from tape.handles.recorded import Request
    from tape.handles.tape import Tape

__all__ = ["Ids", "compose_step", "write_step"]


class Ids(dict[str, str | None]):
    """The ids of messages by the keys of their steps; those that this import did not write are looked up on the tape.

    None stands for a step that is no message after all and has none before it.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __missing__(self, key: str) -> str | None:
        entry = self._tape.find_entry(key=key)
        payload = None if entry is None else entry.payload
        self[key] = payload.id if isinstance(payload, payloads.Append) else None
        return self[key]


def write_step(tape: Tape, step: Message | Event | Restart | Used | Title, ids: Mapping[str, str | None]) -> Receipt:
    """Write a step; ``ids`` are those of the messages before it, by the keys of their steps."""
    if isinstance(step, Message):
        return _message(tape, step, ids)
    if isinstance(step, Event):
        return tape.event(_event_name(step.name), step.data, key=step.key, occurred_at=step.at)
    if isinstance(step, Restart):
        return _restart(tape, step, ids)
    if isinstance(step, Title):
        return tape.rename(step.name.replace("\0", ""), key=step.key)
    return tape.record_usage(**_usage(step))


def compose_step(tape: Tape, step: Message | Event | Used, ids: Mapping[str, str | None]) -> Request:
    """Return what writing a step would record, to be recorded together with others."""
    # Not at the top: help and completion name the formats without loading a database.
    from tape.handles.recorded import composed

    kind = type(tape)
    if isinstance(step, Event):
        return composed(
            kind.event,
            tape,
            _event_name(step.name),
            step.data,
            key=step.key,
            occurred_at=step.at,
        )
    if isinstance(step, Used):
        return composed(kind.record_usage, tape, **_usage(step))
    message, meta = _own_id_apart(step)
    return composed(kind.append, tape, message, **_options(step, meta, ids))


def _own_id_apart(step: Message) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a message and its meta, to which an id goes that no message can have."""
    message = step.message
    if "id" in message and not strict.is_identifier(message["id"]):
        return _without_id(message), {**step.meta, "id": message["id"]}
    return message, step.meta


def _options(step: Message, meta: dict[str, Any], ids: Mapping[str, str | None]) -> dict[str, Any]:
    # A message without an id gets one from its record, the same at every import.
    own = step.message.get("id")
    return {
        "id": step.id if step.id is not None or strict.is_identifier(own) else step.key.partition(":")[2],
        "parent": None if step.parent is None else ids[step.parent],
        "key": step.key,
        "actor": step.actor if strict.is_identifier(step.actor) else None,
        "meta": meta or None,
        "occurred_at": step.at,
    }


def _usage(step: Used) -> dict[str, Any]:
    return {
        "input_tokens": step.input_tokens,
        "output_tokens": step.output_tokens,
        "cached_tokens": step.cached_tokens,
        "model": step.model if strict.is_identifier(step.model) else None,
        "key": step.key,
        "occurred_at": step.at,
    }


def _message(tape: Tape, step: Message, ids: Mapping[str, str | None]) -> Receipt:
    message, meta = _own_id_apart(step)

    def append(message: dict[str, Any], meta: dict[str, Any]) -> Receipt:
        options = _options(step, meta, ids)
        if "id" not in message and step.id is None:
            options["id"] = step.key.partition(":")[2]
        return tape.append(message, **options)

    try:
        return append(message, meta)
    except ProvenanceConflict:
        if "id" not in message:
            raise
        # Another message has this id: the record keeps it in its meta, and its message gets one of its own.
        return append(_without_id(message), {**meta, "id": message["id"]})


def _restart(tape: Tape, step: Restart, ids: Mapping[str, str | None]) -> Receipt:
    def mark(expected_head: int | None) -> Receipt:
        options: WriteOptions = {"key": step.key, "meta": step.meta or None, "occurred_at": step.at}
        options["expected_head"] = expected_head
        if step.summary is not None:
            return tape.handoff(step.name, summary=step.summary, **options)
        return tape.anchor(step.name, **options)

    try:
        # No tape that has an entry is at seq 0: only an anchor that is known already comes back from this.
        return mark(0)
    except HeadMoved:
        pass
    parent = None if step.parent is None else ids[step.parent]
    if parent is not None:
        last = tape.messages(limit=1)
        assert isinstance(last, Page)
        if not last.items or last.items[-1].id != parent:
            tape.switch(parent, key=f"{step.key}/switch")
    return mark(None)


def _without_id(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "id"}


def _event_name(name: str) -> str:
    """Return a record's name as an event's: it may be anything that a program wrote."""
    return name if strict.is_identifier(name) else f"{name.partition('.')[0]}.record"
