"""What a tape records of a step, worked out away from the database, so that another process can do it. Pure.

What comes of it is what the calls of a tape would record: encoded, with its tool calls and tokens, and checked.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tape.core import meta, strict
from tape.core.entries import payloads
from tape.core.memory.state import RecordUsage, whole_number
from tape.core.plan.intents import Intent, Plain, new_event
from tape.core.plan.keys import GIVEN, Key
from tape.core.plan.messages import add_message
from tape.errors import InvalidEntry
from tape.transcripts.steps import Event, Message, Step, Used

__all__ = [
    "Composed",
    "compose",
    "event_name",
    "message_options",
    "own_id_apart",
    "usage_options",
    "without_id",
]


class Composed(Struct, gc=False):
    """A step as it will be recorded, but for the tape, and for the id of the message that it comes behind."""

    line: int
    key: str
    lane: str
    intent: Intent
    """A message is a root until its parent is known."""
    parent: str | None = None
    """The key of the step that the message comes behind."""
    actor: str | None = None
    meta: bytes | None = None


def compose(step: Step) -> Composed | None:
    """Return a step as it will be recorded; None for one that a tape has to be asked for, or that it refuses."""
    try:
        if isinstance(step, Message):
            return _message(step)
        if isinstance(step, Event):
            return _event(step)
        if isinstance(step, Used):
            return _usage(step)
    except InvalidEntry:
        # Whoever writes it by itself finds out again, and keeps it beside the others.
        pass
    return None


def _message(step: Message) -> Composed:
    message, beside = own_id_apart(step)
    options = message_options(step, beside)
    intent = add_message(message, options["id"], step.key, None, _no_id)
    stored_meta = meta.encode(options["meta"], step.at)
    return Composed(step.line, step.key, step.lane, intent, step.parent, options["actor"], stored_meta)


def _event(step: Event) -> Composed:
    intent = Plain(key=_key(step.key), payload=new_event(event_name(step.name), step.data))
    return Composed(step.line, step.key, step.lane, intent, meta=meta.encode(None, step.at))


def _usage(step: Used) -> Composed:
    options = usage_options(step)
    used = payloads.Usage(
        input_tokens=whole_number(step.input_tokens, "input_tokens", most=None),
        output_tokens=whole_number(step.output_tokens, "output_tokens", most=None),
        cached_tokens=whole_number(step.cached_tokens, "cached_tokens", most=None),
        model=options["model"],
    )
    intent = RecordUsage(key=_key(step.key), used=used)
    return Composed(step.line, step.key, step.lane, intent, meta=meta.encode(None, step.at))


def _key(key: str) -> Key:
    return Key(strict.identifier(key, "key"), GIVEN)


def _no_id() -> str:
    raise AssertionError("a message of a transcript has an id, the same at every import")


def own_id_apart(step: Message) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a message and its meta, to which an id goes that no message can have."""
    message = step.message
    if "id" in message and not strict.is_identifier(message["id"]):
        return without_id(message), {**step.meta, "id": message["id"]}
    return message, step.meta


def without_id(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without its own id."""
    return {name: value for name, value in message.items() if name != "id"}


def message_options(step: Message, beside: dict[str, Any]) -> dict[str, Any]:
    """Return the options with which a message is appended, but for its parent."""
    # A message without an id gets one from its record, the same at every import.
    own = step.message.get("id")
    return {
        "id": step.id if step.id is not None or strict.is_identifier(own) else step.key.partition(":")[2],
        "key": step.key,
        "actor": step.actor if strict.is_identifier(step.actor) else None,
        "meta": beside or None,
        "occurred_at": step.at,
    }


def usage_options(step: Used) -> dict[str, Any]:
    """Return the arguments with which usage is recorded."""
    return {
        "input_tokens": step.input_tokens,
        "output_tokens": step.output_tokens,
        "cached_tokens": step.cached_tokens,
        "model": step.model if strict.is_identifier(step.model) else None,
        "key": step.key,
        "occurred_at": step.at,
    }


def event_name(name: str) -> str:
    """Return a record's name as an event's: it may be anything that a program wrote."""
    return name if strict.is_identifier(name) else f"{name.partition('.')[0]}.record"
