"""ADK's events as entries of a tape: an event with content is a message, any other an event of the tape.

The content is the message, with its parts as they are. All else of the event is beside it, as the entry's meta. From
both the event comes back equal to what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from google.adk.events.event import Event
from google.genai import types
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

import tape
from tape.integrations.adk.places import TEMP
from tape.integrations.histories import copying

__all__ = ["Written", "content_of", "event_of", "json_of", "message_of", "kept", "kept_beside", "newest"]

Held = tuple[tape.Entry, dict[str, Any]]
"""An entry, and what it says of an event besides its content."""

_BESIDE = "adk"
"""The name under which an event is kept in the meta of its message."""
_ALONE = "adk.event"
"""The name of an event without content."""
_CLOCK = range(-60_000_000_000, 200_000_000_000)
"""The seconds since 1970 that a tape can tell."""
_ROLES = {"model": "assistant"}
_ROLES_BACK = {"assistant": "model"}


class Written:
    """An event as it is put on a tape."""

    def __init__(self, event: Event) -> None:
        try:
            dump = event.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        except ValueError:
            dump = event.model_dump(exclude_none=True)
        # Never left out, although a clock that stands still would tell the default.
        dump["timestamp"] = event.timestamp
        self.data: dict[str, Any]
        self.data, replaced = tape.lenient(dump)
        if replaced:
            _check_readable(self.data, replaced)
        self.key = tape.as_id(event.id)
        if self.key == event.id:
            del self.data["id"]
        self.usage = event.usage_metadata
        self.rewind = event.actions.rewind_before_invocation_id
        self.compaction = event.actions.compaction
        self.state = self._kept_state()
        self.message: dict[str, Any] | None = None
        if event.content and event.content.parts:
            self.message, rest = message_of(self.data.pop("content"))
            if rest:
                self.data["content"] = rest

    def _kept_state(self) -> dict[str, Any]:
        """Return what changes in the state and is to be kept, and forget the rest."""
        actions = self.data.get("actions", {})
        delta = actions.pop("state_delta", {})
        lasting = {key: value for key, value in delta.items() if not key.startswith(TEMP)}
        if lasting:
            actions["state_delta"] = lasting
        return lasting

    @property
    def alone(self) -> bool:
        """Whether nothing else is to be written with it."""
        return not (self.state or self.rewind or self.compaction or self.usage)

    def put(self, chat: tape.Tape, expected_head: int | None = None) -> tape.Receipt:
        """Write the event. Raises ProvenanceConflict if another one has its id."""
        seconds = self.data["timestamp"]
        at = round(seconds * 1e6) if int(seconds) in _CLOCK else None
        options: Any = {"key": self.key, "expected_head": expected_head, "occurred_at": at}
        if self.message is None:
            return chat.event(_ALONE, self.data, **options)
        receipt = chat.append(self.message, id=self.key, meta={_BESIDE: self.data}, **options)
        if receipt.duplicate and (held := kept(chat.entry(seq=receipt.seq))) != self.data:
            raise tape.ProvenanceConflict(chat.id, self.key, receipt.seq, str(held), str(self.data))
        return receipt


def _check_readable(data: dict[str, Any], replaced: list[str]) -> None:
    """Refuse what could be written and never be read again."""
    try:
        Event.model_validate(data)
    except ValueError as error:
        raise tape.InvalidEntry("event", f"contains values that cannot be stored: {', '.join(replaced)}") from error


def json_of(value: Any) -> Any:
    """Return any value as JSON: what has no JSON of its own is told in words."""
    with suppress(ValueError):
        # Not for half a character, for one.
        value = to_jsonable_python(value, serialize_unknown=True)
    return tape.lenient(value)[0]


# -- reading


def kept(entry: tape.Entry) -> dict[str, Any]:
    """Return what an entry says of an event besides its content; nothing if it is none of ADK's."""
    payload: Any = entry.payload
    if entry.kind == "event" and payload.name == _ALONE:
        return cast(dict[str, Any], payload.data)
    return kept_beside(entry.meta) if entry.kind == "append" else {}


def kept_beside(meta: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the meta of a message says of its event."""
    return (meta or {}).get(_BESIDE) or {}


def newest(chat: tape.Snapshot, most: int | None) -> Iterator[Held]:
    """Yield the entries that are ADK's events, newest first; about ``most`` of them will be asked for."""
    before = None
    for page in (None,) if most is None else (most + 1, None):
        for entry in chat.entries(before=before, reverse=True, limit=page):
            before = entry.seq
            if data := kept(entry):
                yield entry, data


def event_of(entry: tape.Entry, data: dict[str, Any]) -> Event:
    """Return the event that an entry holds."""
    fields = {"id": entry.key, **data}
    if entry.kind == "append":
        fields["content"] = content_of(cast(Any, entry.payload).message, fields.get("content"))
    if not fields.keys() <= _FIELDS.keys():
        # Another release of ADK had other fields.
        return Event.model_validate(fields)
    # Every field is checked as the model would check it, but not for arguments that only a caller may give.
    read = {name: _FIELDS[name].validate_python(value) for name, value in fields.items()}
    return _event(read | {name: make() for name, make in _MADE.items() if name not in read})


_event = copying(Event(id="-"))
_FIELDS = {name: TypeAdapter(field.rebuild_annotation()).validator for name, field in Event.model_fields.items()}
_MADE: dict[str, Any] = {name: make for name, field in Event.model_fields.items() if (make := field.default_factory)}


# -- content


def message_of(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return dumped content as a message, and what the message does not tell of it."""
    rest = dict(content)
    parts = rest.pop("parts")
    named = rest.pop("role", None)
    role = _ROLES.get(named, named) or "user"
    if _ROLES_BACK.get(role, role) != named:
        rest["role"] = named
    if len(parts) == 1 and parts[0].keys() == {"text"}:
        return {"role": role, "content": parts[0]["text"]}, rest
    return {"role": role, "parts": parts}, rest


def content_of(message: dict[str, Any], rest: dict[str, Any] | None = None) -> types.Content:
    """Return the content that was made a message."""
    role, parts = message["role"], message.get("parts")
    if parts is None:
        made = [_text({"text": message["content"]})]
    else:
        made = [types.Part.model_validate(part) for part in parts]
    content = _content({"parts": made, "role": _ROLES_BACK.get(role, role)})
    return types.Content.model_validate({**content.model_dump(), **rest}) if rest else content


_text, _content = copying(types.Part()), copying(types.Content())
