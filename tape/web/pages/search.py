"""Search over one tape or all of them, and what of a text was found."""

from __future__ import annotations

from typing import Any

from tape.web.addresses import reference
from tape.web.page_request import NotThere, PageRequest
from tape.web.parts import card, instant

__all__ = ["search"]

_MOST = 100
_LONGEST = 10_000


def search(request: PageRequest) -> dict[str, Any]:
    """Return the messages that have all words of ``q``, newest first; of one tape with ``tape``."""
    query, only, role = request.query.get("q", ""), request.text("tape"), request.text("role")
    if len(query) > _LONGEST:
        raise NotThere(f"the search text must have at most {_LONGEST} characters")
    limit = request.number("limit", 50, 1, _MOST)
    within = None
    if only is not None:
        chat = PageRequest(request.store, id=only).chat()
        within = card(chat.info())
        hits = chat.search(query, limit=limit, role=role) if query.strip() else []
    else:
        hits = request.store.search(query, limit=limit, role=role) if query.strip() else []
    return {
        "title": f"Search: {query}" if query else "Search",
        "q": query,
        "role": role,
        "within": within,
        "hits": [
            {
                "tape": hit.tape,
                "ref": reference(hit.tape),
                "seq": hit.seq,
                "message": hit.message_id,
                "role": hit.role,
                "snippet": hit.snippet,
                "at": instant(hit.recorded_at),
            }
            for hit in hits
        ],
        "more": len(hits) == limit,
    }
