"""Names of a framework as names of tapes, owners, labels and keys, which are short and can be printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import tape

__all__ = ["digest", "listed", "opened", "quoted", "short", "tape_id"]

_PAGE = 500
_DIGEST = 32
_DIGESTED = re.compile(rf"~[0-9a-f]{{{_DIGEST}}}$")
"""How a name ends that was made of another: no name may look so that was not."""


def digest(*parts: str) -> str:
    """Return letters that stand for these texts, whatever is in them."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_DIGEST // 2).hexdigest()


def short(name: str, most: int = 255) -> str:
    """Return a name that can be an id: a long one, or one with what no id may hold, ends with its digest."""
    if len(name) <= most and name.isprintable() and name.strip() and name[0] != "~" and not _DIGESTED.search(name):
        return name
    kept = "".join(char for char in name if char.isprintable()).lstrip("~")
    # An id that begins with a tilde is the store's own.
    return f"{kept[: most - _DIGEST - 1] or '-'}~{digest(name)}"


def tape_id(store: tape.Store, kind: str, name: str) -> str:
    """Return the id of the tape that a framework knows by a name; two owners of stores may have equal names."""
    whose = "" if store.owner is None else f"{digest(store.owner)}/"
    return short(f"{kind}/{whose}{quoted(name)}")


def quoted(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="", errors="surrogatepass")


def opened(store: tape.Store, id: str, **facts: Any) -> tape.Tape:
    """Return a tape, made with these facts if it is not there."""
    try:
        return store.get(id)
    except tape.TapeNotFound:
        return store.create(id, reuse=True, **facts)


def listed(store: tape.Store, **filters: Any) -> Iterator[tape.TapeInfo]:
    """Yield all tapes that ``store.list`` gives, page by page."""
    page = store.list(limit=_PAGE, **filters)
    yield from page.items
    while page.cursor is not None:
        page = store.list(limit=_PAGE, cursor=page.cursor, **filters)
        yield from page.items
