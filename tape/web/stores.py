"""The stores that are served, each under a name of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

import tape

__all__ = ["Served", "named"]


class Served(Struct, frozen=True):
    """One store that is served: the first under ``/``, any other under ``/s/NAME``."""

    name: str
    title: str
    """Where it is, as it may be shown: without a password."""
    store: tape.Store
    base: str = ""

    def of(self, owner: str | None) -> tape.Store:
        """Return the store as one owner sees it, or as it was opened."""
        return self.store if owner is None else self.store.scoped(owner)


def named(titles: Iterable[str]) -> list[tuple[str, str]]:
    """Return for each title the name of its store and where its pages begin; no name comes twice."""
    bases: dict[str, str] = {}
    for title in titles:
        stem = re.sub(r"\.\w+$", "", title.rstrip("/").rsplit("/", 1)[-1])
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "store"
        name, again = plain, 1
        while name in bases:
            name, again = f"{plain}-{again + 1}", again + 1
        bases[name] = f"/s/{name}" if bases else ""
    return list(bases.items())
