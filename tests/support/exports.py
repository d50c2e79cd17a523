"""A tape as the file that it is exported to."""

from __future__ import annotations

import io

import tape

__all__ = ["exported"]


def exported(store: tape.Store, id: str, *, family: bool = False) -> bytes:
    out = io.BytesIO()
    store.export(id, out, family=family)
    return out.getvalue()
