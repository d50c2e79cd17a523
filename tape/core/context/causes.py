"""What an entry changed in a context: its cause as one word, and as a sentence. Pure."""

from __future__ import annotations

from msgspec import UNSET

from tape.core.context.manifest import Manifest
from tape.core.entries import payloads
from tape.core.records import Entry

__all__ = ["replaces", "why_moved"]

_ANCHORS = (payloads.Anchor, payloads.Handoff)


def replaces(shown: Entry | None, moved: Entry | None) -> bool:
    """Whether an entry supersedes another, so that the other is no longer shown."""
    if shown is None or moved is None or shown.payload is None or moved.payload is None:
        return False
    shown_payload, moved_payload = shown.payload, moved.payload
    if isinstance(shown_payload, payloads.Revise):
        return isinstance(moved_payload, payloads.Revise) and shown_payload.id == moved_payload.id
    if isinstance(shown_payload, _ANCHORS):
        return isinstance(moved_payload, _ANCHORS)
    return isinstance(shown_payload, payloads.Block | payloads.Compact) and type(shown_payload) is type(moved_payload)


def why_moved(entry: Entry | None, manifest: Manifest) -> tuple[str, str]:
    """Return what moved a byte: the cause as one word, and as a sentence."""
    if entry is None:
        return "settings", "the entry that caused the change cannot be read"
    payload, kind = entry.payload, entry.kind
    if isinstance(payload, payloads.Block):
        cause = "prompt" if payload.op == "freeze" else "block"
        return cause, "the prompt was frozen" if cause == "prompt" else f"block {payload.label!r}: {payload.op}"
    if isinstance(payload, payloads.Revise):
        return kind, f"message {payload.id!r} was revised"
    if isinstance(payload, payloads.Retract | payloads.Restore):
        named = ", ".join(repr(id) for id in payload.ids[:3]) + (" and others" if len(payload.ids) > 3 else "")
        done = "retracted" if isinstance(payload, payloads.Retract) else "restored"
        return kind, f"{named} {done}" if payload.ids else "a clear was undone"
    if isinstance(payload, payloads.Append):
        if payload.parent is UNSET and (manifest.altered or manifest.excluded) and manifest.budget is not None:
            return "budget", "with this message, the earlier messages no longer fit the budget unchanged"
        return kind, f"message {payload.id!r} changed how earlier messages are shown"
    if isinstance(payload, payloads.Compact):
        return kind, f"a summary replaced {len(payload.covers)} messages"
    if isinstance(payload, _ANCHORS):
        return kind, f"the context now starts at {payload.name!r}"
    return kind, {"switch": "another branch is active", "clear": "all messages were cleared"}.get(kind, kind)
