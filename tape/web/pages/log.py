"""The log: every entry of a tape as a line, by seq, with filters."""

from __future__ import annotations

from typing import Any

from tape.core.entries import payloads
from tape.web.page_request import NotThere, PageRequest
from tape.web.parts import card, entry_row, failed

__all__ = ["log"]

_PAGE = 200
_LOOKED = 5_000
"""Entries that one request looks through for those that a filter lets pass."""


def log(request: PageRequest) -> dict[str, Any]:
    """Return a page of entries behind ``after``. With a filter, ``next`` is where to look on, and None at the end."""
    chat = request.snapshot()
    info = chat.info()
    kinds = [kind for kind in (request.text("kinds") or "").split(",") if kind]
    if unknown := set(kinds) - set(payloads.KINDS):
        raise NotThere(f"there is no entry kind {min(unknown)!r}")
    after = request.number("after", 0, 0, 2**53)
    only_failed = request.text("failed") == "1"
    rows, looked = [], min(after + (_LOOKED if kinds or only_failed else _PAGE), info.head)
    for entry in chat.entries(after=after, before=looked + 1, kinds=kinds or None):
        if only_failed and not failed(entry):
            continue
        rows.append(entry_row(entry))
        if len(rows) == _PAGE:
            looked = entry.seq
            break
    return {
        "title": f"Log of {info.name or info.id}",
        "tape": card(info),
        "seq": info.head,
        "head": request.chat().info().head,
        "kinds": sorted(payloads.KINDS),
        "filter": {"kinds": kinds, "failed": only_failed},
        "after": after,
        "entries": rows,
        "next": looked if looked < info.head else None,
    }
