"""The JSON that commands print. The names here are a contract: docs/command.md lists them, and none is ever renamed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

import tape

__all__ = ["anchor", "diff", "entry", "hit", "info", "lineage", "merge_receipt", "message", "receipt", "summary"]


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def info(one: tape.TapeInfo) -> dict[str, Any]:
    """A tape, without what is on it."""
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    return {name: _stamp(value) if isinstance(value, datetime) else value for name, value in fields.items()}


def entry(one: tape.Entry, *, position: bool = False) -> dict[str, Any]:
    """An entry as it was recorded; its position only where it was read from the feed, which alone knows it."""
    return {
        "tape": one.tape,
        "seq": one.seq,
        "kind": one.kind,
        "key": one.key,
        "actor": one.actor,
        "source": None if one.source is None else {"tape": one.source.tape, "seq": one.source.seq},
        "payload": None if one.payload is None else msgspec.to_builtins(one.payload),
        "meta": one.meta,
        "recorded_at": _stamp(one.recorded_at),
        "version": one.version,
        "hash": one.hash,
        "position": one.position if position else None,
        "unreadable": one.unreadable,
    }


def message(one: tape.Message) -> dict[str, Any]:
    """A message as it stands in the view; ``message`` is what was appended, verbatim."""
    return {
        "id": one.id,
        "tape": one.tape,
        "seq": one.seq,
        "revision": one.revision,
        "parent": one.parent,
        "recorded_at": _stamp(one.recorded_at),
        "message": one.data,
    }


def anchor(one: tape.Anchor) -> dict[str, Any]:
    """A checkpoint or handoff."""
    fields = {name: getattr(one, name) for name in one.__struct_fields__ if name != "stamp"}
    return {**fields, "recorded_at": _stamp(one.recorded_at)}


def summary(one: tape.Summary) -> dict[str, Any]:
    """A summary in force."""
    return {
        "tape": one.tape,
        "seq": one.seq,
        "text": one.text,
        "first": one.first,
        "last": one.last,
        "covers": one.covers,
        "stale": one.stale,
    }


def hit(one: tape.Hit) -> dict[str, Any]:
    """A message that a search found."""
    return {
        "tape": one.tape,
        "seq": one.seq,
        "message_id": one.message_id,
        "role": one.role,
        "snippet": one.snippet,
        "score": one.score,
        "recorded_at": _stamp(one.recorded_at),
    }


def receipt(one: tape.Receipt) -> dict[str, Any]:
    """The promise that an entry is recorded."""
    return {
        "tape": one.tape,
        "seq": one.seq,
        "key": one.key,
        "message_id": one.message_id,
        "hash": one.hash,
        "duplicate": one.duplicate,
    }


def merge_receipt(one: tape.MergeReceipt) -> dict[str, Any]:
    """The promise that a merge is recorded on both tapes."""
    return {name: getattr(one, name) for name in one.__struct_fields__}


def lineage(one: tape.Lineage) -> dict[str, Any]:
    """A tape's family."""
    return {
        "ancestors": [{"tape": up.tape, "seq": up.seq} for up in one.ancestors],
        "descendants": [
            {"tape": down.tape, "parent": down.parent, "seq": down.seq, "state": down.state} for down in one.descendants
        ],
        "merges": [merge_receipt(merge) for merge in one.merges],
    }


def diff(one: tape.Diff, parted: tuple[tape.Message, tape.Message] | None = None) -> dict[str, Any]:
    """What changed from one view to another; of two tapes that are no family, with where they ``parted``."""
    return {
        "same_up_to": None if parted is None else {"a": parted[0].seq, "b": parted[1].seq},
        "added": [message(found) for found in one.added],
        "revised": [{"before": message(found.before), "after": message(found.after)} for found in one.revised],
        "retracted": [message(found) for found in one.retracted],
        "left": [message(found) for found in one.left],
        "anchored": [anchor(found) for found in one.anchored],
    }
