"""How a store is: what it answers at once. The examination itself is sent live."""

from __future__ import annotations

from typing import Any

from tape.web.addresses import reference
from tape.web.page_request import PageRequest
from tape.web.parts import instant

__all__ = ["health"]


def health(request: PageRequest) -> dict[str, Any]:
    """Return the state of the database, its schema, and the newest check."""
    state = request.store.health()
    verified = state.verified
    return {
        "title": "Health",
        "ok": state.ok,
        "engine": state.engine,
        "server": state.server,
        "schema": state.schema,
        "expected_schema": state.expected_schema,
        "latency": state.latency,
        "index_lag": state.index_lag,
        "owner": request.store.owner,
        "verified": None
        if verified is None
        else {
            "tape": verified.tape,
            "ref": reference(verified.tape),
            "seq": verified.seq,
            "at": instant(verified.at),
        },
    }
