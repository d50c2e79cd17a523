"""Logs: Claude Code's sessions and Codex's rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from tape.core.entries import payloads
from tape.transcripts.exports.losses import Losses, path_of, tree_of
from tape.transcripts.exports.shapes import as_anthropic, as_items
from tape.transcripts.formats.claude.session import record_of

if TYPE_CHECKING:
    from tape.core.records import Entry, Message
    from tape.handles.snapshot import Snapshot

__all__ = ["claude_code", "codex"]

_SPACE = UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
"""The namespace of the UUIDs for messages without one, so that every export gives the same."""


def claude_code(view: Snapshot, losses: Losses) -> Iterator[dict[str, Any]]:
    """Yield the records of a session: those that were imported, or new ones for messages from elsewhere."""
    entries = list(view.entries(kinds=["append", "event", "anchor"]))
    records = {entry.seq: record for entry in entries if (record := record_of(entry)) is not None}
    if records:
        unwritten = sum(isinstance(entry.payload, payloads.Append) and entry.seq not in records for entry in entries)
        losses.add("non-session message", unwritten)
        yield from records.values()
        return
    losses.add("event", sum(entry.kind == "event" for entry in entries))
    uuids: dict[str, str] = {}
    for message in tree_of(view):
        body = as_anthropic(message.data, losses)
        parent = uuids.get(message.parent or "")
        if body is None:
            uuids[message.id] = parent or ""
            continue
        uuids[message.id] = _uuid(message.id)
        if body["role"] == "system":
            body = {**body, "role": "user"}
            losses.add("system role")
        yield {
            "parentUuid": parent or None,
            "isSidechain": False,
            "userType": "external",
            "sessionId": view.id,
            "type": body["role"],
            "message": body,
            "uuid": uuids[message.id],
            "timestamp": _time(message),
        }


def codex(view: Snapshot, losses: Losses) -> Iterator[dict[str, Any]]:
    """Yield the lines of a rollout: those that were imported, or new ones for messages from elsewhere."""
    records = [record for entry in view.entries() if (record := _rollout_record(entry)) is not None]
    if records:
        yield from records
        return
    path = path_of(view, losses)
    began = _time(path[0]) if path else None
    yield {"timestamp": began, "type": "session_meta", "payload": {"id": view.id, "timestamp": began}}
    for message in path:
        for item in as_items(message.data, losses):
            yield {"timestamp": _time(message), "type": "response_item", "payload": item}


def _rollout_record(entry: Entry) -> dict[str, Any] | None:
    """Return the line of a rollout that an entry was made of, if it was."""
    payload, meta = entry.payload, entry.meta or {}
    if not entry.key.startswith("codex:") or "replacement" in meta:
        return None
    if isinstance(payload, payloads.Event):
        return payload.data if isinstance(payload.data, dict) else None
    if isinstance(payload, payloads.Anchor | payloads.Handoff):
        return meta
    if not isinstance(payload, payloads.Append) or not isinstance(payload.message, dict):
        return None
    message = {**payload.message, **({"id": meta["id"]} if "id" in meta else {})}
    outside = {name: value for name, value in meta.items() if name != "id"}
    return {**outside, "payload": message} if "type" in outside else message


def _uuid(id: str) -> str:
    try:
        return str(UUID(id))
    except ValueError:
        return str(uuid5(_SPACE, id))


def _time(message: Message) -> str:
    at: datetime = message.occurred_at or message.recorded_at
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
