"""Events as one plain sentence. Pure: from values to text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tape.core.amounts import count

__all__ = ["event_failed", "event_sentence"]

_SAYING = (
    "error",
    "message",
    "text",
    "summary",
    "title",
    "content",
    "reason",
    "detail",
    "note",
    "status",
    "description",
)
"""Members that describe by themselves what happened."""
_ENVELOPE = re.compile(
    "(sub|record|user)?type|(.*uu|call|session|message|request|tooluse|parenttooluse)?id|timestamp|version|cwd|gitbranch"
    "|issidechain|ismeta|slug|level|key"
)
"""Members with the origin of an event, which do not describe what happened."""
_MOST = 4


def event_failed(name: str, data: Any) -> bool:
    """Whether an event records a failure."""
    if re.search(r"(^|[._ -])(fail|failed|failure|error|errored|abort|aborted|denied|refused)($|[._ -])", name):
        return True
    if not isinstance(data, dict):
        return False
    return bool(data.get("error") or data.get("is_error")) or data.get("state") == "failed"


def event_sentence(name: str, data: Any) -> str:
    """Return what happened as one sentence: the event's name, then its description or its first facts."""
    known = _KNOWN.get(name)
    if known is not None and isinstance(data, dict):
        return str(known(data))
    title = re.sub(r"[._-]+", " ", name).strip() or name
    detail = _detail(data)
    return f"{title}: {detail}" if detail else title


def _detail(data: Any) -> str:
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    for member in _SAYING:
        value = data.get(member)
        if isinstance(value, str) and value.strip():
            return value
    facts = []
    for name, value in _facts(data):
        facts.append(f"{name} {value}")
        if len(facts) == _MOST:
            break
    return ", ".join(facts)


def _facts(data: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the plain members of an event, those of its objects as well."""
    for name, value in data.items():
        if _ENVELOPE.fullmatch(name.replace("_", "").lower()) or value is None or value == "":
            continue
        title = re.sub(r"(?<=[a-z])(?=[A-Z])|[._-]+", " ", name).strip().lower()
        if isinstance(value, bool):
            yield title, "yes" if value else "no"
        elif isinstance(value, int | float):
            yield title, f"{value:,}"
        elif isinstance(value, str):
            yield title, value
        elif isinstance(value, list):
            yield title, f"({count(len(value), 'item')})"
        elif isinstance(value, dict) and depth < 3:
            yield from _facts(value, depth + 1)


def _context(data: dict[str, Any]) -> str:
    budget = f" of {data['budget']:,}" if isinstance(data.get("budget"), int) else ""
    return f"context recorded: about {data.get('tokens', 0):,}{budget} tokens, up to seq {data.get('head', '?')}"


def _compaction(data: dict[str, Any]) -> str:
    why = f": {data['why']}" if data.get("why") else ""
    return f"compaction {data.get('state', 'recorded')}{why}"


_KNOWN = {"tape.context": _context, "tape.compaction": _compaction}
