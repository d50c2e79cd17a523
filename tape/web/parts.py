"""Messages, entries and tapes as the pages show them: parts, lines and cards, long texts cut. Pure.

What is given out is plain JSON. Nothing in it is markup, and no picture or sound from a payload is loaded: it is named,
and an address with http or https is a link.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

import tape
from tape.command.show.describe import gist
from tape.core import json_text
from tape.core.messages import shapes
from tape.core.messages.media import label
from tape.web.addresses import reference

__all__ = ["CUT", "card", "cut", "entry_row", "failed", "instant", "message_texts", "message_view"]
__all__ += ["part_text", "raw_entry"]

CUT = 8_192
"""Characters of one text that a page shows at first."""
_LINE = 160
_MANY = 100
"""Parts of one message that a page shows."""
_THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning"})


def instant(at: datetime | None) -> str | None:
    """Return a moment as text in UTC."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def cut(text: str, most: int = CUT) -> dict[str, Any]:
    """Return the beginning of a text, and how long it is if there is more."""
    return {"text": text} if len(text) <= most else {"text": text[:most], "length": len(text)}


def _pretty(value: Any) -> str:
    if isinstance(value, str) and len(value) <= CUT and value[:1] in ("[", "{"):
        value = json_text.value_of(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _link(url: str) -> str | None:
    try:
        return url if len(url) <= 2_048 and urlsplit(url).scheme in ("http", "https") else None
    except ValueError:
        return None


def _part(part: shapes.Part) -> tuple[dict[str, Any], str]:
    """Return what is shown of a part, and its text."""
    match part:
        case shapes.Text():
            return {"part": "text"}, part.text
        case shapes.Call():
            return {"part": "call", "name": part.name, "call": part.id}, _pretty(part.arguments)
        case shapes.Result():
            shown = {"part": "result", "name": part.name, "call": part.id, "error": part.error}
            return shown, _pretty(shapes.as_text(part.content))
        case shapes.Media():
            return {"part": "media", "label": label(part), "href": _link(part.url)}, part.text or ""
        case shapes.Other():
            kind = str(part.part.get("type", "part"))
            if kind in _THOUGHTS:
                return {"part": "thinking", "kind": kind}, _thought(part.part)
            return {"part": "other", "kind": kind}, _pretty(part.part)


def _thought(part: dict[str, Any]) -> str:
    content = part.get("thinking") or part.get("text") or part.get("summary") or part.get("content")
    if isinstance(content, list):
        texts = [piece.get("text") for piece in content if isinstance(piece, dict)]
        content = "\n\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) and content else _pretty(part)


class _Parts:
    """The parts of a message, counted. Each is drawn when it is asked for."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._parts: list[shapes.Part] = shapes.read(data).parts
        thoughts = [(name, data.get(name)) for name in ("reasoning", "reasoning_content")]
        self._before = [
            ({"part": "thinking", "kind": name}, text) for name, text in thoughts if isinstance(text, str) and text
        ]
        rest = {name: value for name, value in data.items() if name not in ("id", "role")}
        if not self._parts and any(rest.values()):
            self._before.append(({"part": "other", "kind": "message"}, _pretty(rest)))

    def __len__(self) -> int:
        return len(self._before) + len(self._parts)

    def __getitem__(self, place: int) -> tuple[dict[str, Any], str]:
        """Return what is shown of a part, and its whole text. Raises IndexError behind the last one."""
        before = self._before
        return before[place] if place < len(before) else _part(self._parts[place - len(before)])


def message_texts(data: dict[str, Any]) -> list[str]:
    """Return the whole text of each part that ``message_view`` shows, in the same order."""
    parts = _Parts(data)
    return [parts[place][1] for place in range(min(len(parts), _MANY))]


def part_text(data: dict[str, Any], place: int) -> str | None:
    """Return the whole text of one part, or None when the message has fewer."""
    parts = _Parts(data)
    return parts[place][1] if 0 <= place < len(parts) else None


def message_view(data: dict[str, Any], most: int = CUT) -> dict[str, Any]:
    """Return what is shown of a message: who speaks, and its parts with their texts cut."""
    parts = _Parts(data)
    shown = [about | cut(text, most) for about, text in (parts[place] for place in range(min(len(parts), _MANY)))]
    speaker = data.get("name")
    return {
        "role": str(data.get("role") or data.get("type") or "item")[:_LINE],
        "name": speaker[:_LINE] if isinstance(speaker, str) else None,
        "parts": shown,
        "more": max(0, len(parts) - _MANY),
    }


def failed(entry: tape.Entry) -> bool:
    """Whether an entry tells of something that went wrong: an error of a tool, a failure, a fork given up."""
    payload: Any = entry.payload
    if payload is None:
        return True
    if entry.kind in ("append", "revise"):
        return any(result.error for result in shapes.read(payload.message).results)
    if entry.kind == "event":
        words = f"{payload.name} {payload.data.get('status', '') if isinstance(payload.data, dict) else ''}".lower()
        return any(word in words for word in ("error", "fail", "denied", "exception"))
    return entry.kind == "discard" or (entry.kind == "status" and payload.status in ("abandoned", "ended"))


def entry_row(entry: tape.Entry) -> dict[str, Any]:
    """Return an entry as a line of the log."""
    payload: Any = entry.payload
    return {
        "seq": entry.seq,
        "kind": entry.kind,
        "actor": entry.actor,
        "at": instant(entry.recorded_at),
        "gist": gist(entry, _LINE),
        "failed": failed(entry),
        "child": reference(payload.child) if entry.kind == "fork" else None,
        "other": reference(payload.tape) if entry.kind in ("merge", "discard") else None,
    }


def raw_entry(entry: tape.Entry) -> dict[str, Any]:
    """Return an entry with everything that was recorded of it; the payload as it was, not cut."""
    source = None if entry.source is None else {"tape": entry.source.tape, "seq": entry.source.seq}
    if source is not None:
        source["ref"] = reference(entry.source.tape)  # type: ignore[union-attr]
    return {
        "tape": entry.tape,
        "seq": entry.seq,
        "kind": entry.kind,
        "key": entry.key,
        "actor": entry.actor,
        "source": source,
        "at": instant(entry.recorded_at),
        "occurred_at": instant(entry.occurred_at),
        "version": entry.version,
        "hash": entry.hash,
        "meta": entry.meta,
        "payload": None if entry.payload is None else msgspec.to_builtins(entry.payload),
        "unreadable": entry.unreadable,
    }


def card(info: tape.TapeInfo) -> dict[str, Any]:
    """Return what is known of a tape without reading it."""
    return {
        "id": info.id,
        "ref": reference(info.id),
        "name": info.name,
        "owner": info.owner,
        "agent": info.agent,
        "labels": info.labels,
        "status": info.status,
        "reason": info.reason,
        "parent": None if info.parent is None else {"id": info.parent, "ref": reference(info.parent, info.forked_at)},
        "redirect": None if info.redirect is None else {"id": info.redirect, "ref": reference(info.redirect)},
        "head": info.head,
        "messages": info.message_count,
        "tokens": info.tokens,
        "cost": info.cost,
        "created_at": instant(info.created_at),
        "updated_at": instant(info.updated_at),
    }
