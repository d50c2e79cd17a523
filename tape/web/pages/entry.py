"""One entry, raw: every field that was recorded, its hash, its source, its key, and its JSON."""

from __future__ import annotations

import json
from typing import Any

from tape.web.page_request import NotThere, PageRequest
from tape.web.parts import card, cut, message_view, raw_entry

__all__ = ["entry", "whole"]

_SHOWN = 32_768


def _stored_entry(request: PageRequest) -> dict[str, Any]:
    if not isinstance(request.point, int) or request.point < 1:
        raise NotThere("no seq")
    entry = request.chat().find_entry(seq=request.point)
    if entry is None:
        raise NotThere(f"tape {request.id!r} has no seq {request.point}")
    return raw_entry(entry)


def entry(request: PageRequest) -> dict[str, Any]:
    """Return an entry. A long payload is cut; ``whole`` has all of it."""
    raw = _stored_entry(request)
    info = request.chat().info()
    payload = raw.pop("payload")
    message = payload.get("message") if isinstance(payload, dict) else None
    return {
        "title": f"Entry {raw['seq']} of {info.name or info.id}",
        "tape": card(info),
        "seq": raw["seq"],
        "head": info.head,
        "entry": raw,
        "payload": cut(json.dumps(payload, ensure_ascii=False, indent=2), _SHOWN),
        "message": message_view(message) if isinstance(message, dict) else None,
    }


def whole(request: PageRequest) -> bytes:
    """Return an entry as a file of JSON, however long it is."""
    return json.dumps(_stored_entry(request), ensure_ascii=False, indent=2).encode()
