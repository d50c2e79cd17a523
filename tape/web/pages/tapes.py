"""The list of tapes, with filters and keyset paging, and how busy each was lately."""

from __future__ import annotations

import itertools
from typing import Any

import tape
from tape.web.addresses import decode
from tape.web.draw.plot import sparkline
from tape.web.page_request import NotThere, PageRequest
from tape.web.parts import card

__all__ = ["activity", "tapes"]

_PAGE = 50
_LOOKED = 1_000
"""Tapes that one request looks through for a text."""
_LATELY = 120
"""Entries of a tape that its sparkline is made of."""
_FILTERS = ("owner", "agent", "status", "label", "parent")


def tapes(request: PageRequest) -> dict[str, Any]:
    """Return a page of tapes that meet the filters, the most recently changed first."""
    filters: dict[str, Any] = {name: request.text(name) for name in _FILTERS}
    text = (request.text("q") or "").casefold()
    order = "created" if request.text("order") == "created" else "updated"
    cards: list[dict[str, Any]] = []
    cursor = request.text("cursor")
    for _ in range(_LOOKED // _PAGE):
        try:
            page = request.store.list(**filters, limit=_PAGE, cursor=cursor, order=order)
        except tape.InvalidEntry as error:
            raise NotThere(str(error)) from error
        cards += [card(info) for info in page if _mentions(info, text)]
        cursor = page.cursor if page.truncated else None
        if cursor is None or not text or len(cards) >= _PAGE:
            break
    return {
        "title": "Tapes",
        "tapes": cards,
        "cursor": cursor,
        "filters": filters | {"q": request.text("q"), "order": order},
    }


def _mentions(info: tape.TapeInfo, text: str) -> bool:
    texts = (info.id, info.name, info.agent, info.owner, *info.labels)
    return not text or any(text in field.casefold() for field in texts if field)


def activity(request: PageRequest) -> dict[str, Any]:
    """Return for each named tape the model it last used and a sparkline of when its last entries were recorded."""
    refs = [ref for ref in request.query.get("of", "").split(",") if ref][:_PAGE]
    lately: dict[str, Any] = {}
    for ref in refs:
        try:
            chat = request.store.get(decode(ref))
        except (ValueError, tape.TapeNotFound, tape.InvalidEntry):
            continue
        entries = list(itertools.islice(chat.entries(reverse=True, limit=_LATELY), _LATELY))
        lately[ref] = {
            "model": next((model for entry in entries if (model := _model(entry))), None),
            "spark": sparkline([entry.stamp for entry in entries]),
        }
    return {"title": "Activity", "activity": lately}


def _model(entry: tape.Entry) -> str | None:
    payload: Any = entry.payload
    if entry.kind == "usage" and payload.model:
        return str(payload.model)
    model = (entry.meta or {}).get("model")
    if model is None and entry.kind == "append":
        model = payload.message.get("model")
    return model if isinstance(model, str) else None
