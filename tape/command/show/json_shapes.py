"""The JSON that commands print. The names here are a contract: docs/command.md lists them, and none is ever renamed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

import tape

__all__ = [
    "anchor",
    "bisection",
    "call",
    "checked",
    "diff",
    "entry",
    "hit",
    "lineage",
    "members",
    "message",
    "receipt",
    "run",
    "summary",
]


def members(value: Any, *names: str) -> dict[str, Any]:
    """Return these members of a struct, or all of them, with moments as text."""
    listed = {name: getattr(value, name) for name in names or value.__struct_fields__}
    for name, member in listed.items():
        if isinstance(member, datetime):
            listed[name] = member.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return listed


def entry(value: tape.Entry, *, position: bool = False) -> dict[str, Any]:
    """An entry as it was recorded; its position only where it was read from the feed, which alone knows it."""
    shape = members(value, "tape", "seq", "kind", "key", "actor", "source", "payload", "meta", "recorded_at")
    shape |= members(value, "occurred_at", "version", "hash", "position", "unreadable")
    shape["source"] = None if value.source is None else {"tape": value.source.tape, "seq": value.source.seq}
    shape["payload"] = None if value.payload is None else msgspec.to_builtins(value.payload)
    shape["position"] = value.position if position else None
    return shape


def message(value: tape.Message) -> dict[str, Any]:
    """A message as it stands in the view; ``message`` is what was appended, verbatim."""
    shape = members(value, "id", "tape", "seq", "revision", "parent", "recorded_at", "occurred_at", "meta")
    return shape | {"message": value.data}


def anchor(value: tape.Anchor) -> dict[str, Any]:
    """A checkpoint or handoff."""
    return members(value, *(name for name in value.__struct_fields__ if name != "stamp"), "recorded_at")


def summary(value: tape.Summary) -> dict[str, Any]:
    """A summary in force."""
    return members(value, "tape", "seq", "text", "first", "last", "covers", "stale")


def hit(value: tape.Hit) -> dict[str, Any]:
    """A message that a search found."""
    return members(value, "tape", "seq", "message_id", "role", "snippet", "score", "recorded_at")


def receipt(value: tape.Receipt) -> dict[str, Any]:
    """The promise that an entry is recorded."""
    return members(value, "tape", "seq", "key", "message_id", "hash", "duplicate")


def run(value: tape.RunInfo) -> dict[str, Any]:
    """A recorded run."""
    shape = members(value, "id", "tape", "name", "input", "seq", "end", "status", "error", "calls")
    return shape | {"base": msgspec.to_builtins(value.base)}


def call(value: tape.RecordedCall) -> dict[str, Any]:
    """A call of a recorded run."""
    shape = members(value, "number", "lane", "n", "kind", "name", "effect", "key", "status", "seq", "result_seq")
    return shape | {"request": value.request(), "result": msgspec.to_builtins(value.result)}


def checked(value: tape.Checked) -> dict[str, Any]:
    """A run that was run again."""
    shape = members(value, "tape", "run", "name", "status", "calls", "matched", "live", "error")
    return shape | {"divergences": [msgspec.to_builtins(divergence) for divergence in value.divergences]}


def bisection(value: tape.Bisection) -> dict[str, Any]:
    """Where a run went wrong for good."""
    shape = members(value, "tape", "run", "calls", "point", "continuations", "rescued", "rescued_run")
    curve = [members(rate, "call", "tries", "recovered", "low", "high") for rate in value.curve]
    return shape | {"bounds": list(value.bounds), "curve": curve}


def lineage(value: tape.Lineage) -> dict[str, Any]:
    """A tape's family."""
    return {
        "ancestors": [members(above, "tape", "seq") for above in value.ancestors],
        "descendants": [members(below, "tape", "parent", "seq", "state") for below in value.descendants],
        "merges": [members(merge) for merge in value.merges],
    }


def diff(value: tape.Diff, parted: tuple[tape.Message, tape.Message] | None = None) -> dict[str, Any]:
    """What changed from one view to another; of two tapes that are no family, with where they ``parted``."""
    return {
        "same_up_to": None if parted is None else {"a": parted[0].seq, "b": parted[1].seq},
        "added": [message(added) for added in value.added],
        "revised": [{"before": message(change.before), "after": message(change.after)} for change in value.revised],
        "retracted": [message(gone) for gone in value.retracted],
        "left": [message(gone) for gone in value.left],
        "anchored": [anchor(anchored) for anchored in value.anchored],
    }
