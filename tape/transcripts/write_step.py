"""Writing one step of a transcript to a tape, through the calls that every program uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tape.core.entries import payloads
from tape.core.records import Page, Receipt
from tape.errors import HeadMoved, ProvenanceConflict
from tape.transcripts.composing import event_name, message_options, own_id_apart, usage_options, without_id
from tape.transcripts.steps import Event, Message, Restart, Title, Used

if TYPE_CHECKING:
    from tape.handles.options import WriteOptions
    from tape.handles.tape import Tape

__all__ = ["Ids", "write_step"]


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
        return tape.event(event_name(step.name), step.data, key=step.key, occurred_at=step.at)
    if isinstance(step, Restart):
        return _restart(tape, step, ids)
    if isinstance(step, Title):
        return tape.rename(step.name.replace("\0", ""), key=step.key)
    return tape.record_usage(**usage_options(step))


def _message(tape: Tape, step: Message, ids: Mapping[str, str | None]) -> Receipt:
    message, meta = own_id_apart(step)
    parent = None if step.parent is None else ids[step.parent]

    def append(message: dict[str, Any], meta: dict[str, Any]) -> Receipt:
        options = message_options(step, meta)
        if "id" not in message and step.id is None:
            options["id"] = step.key.partition(":")[2]
        return tape.append(message, parent=parent, **options)

    try:
        return append(message, meta)
    except ProvenanceConflict:
        if "id" not in message:
            raise
        # Another message has this id: the record keeps it in its meta, and its message gets one of its own.
        return append(without_id(message), {**meta, "id": message["id"]})


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
