"""Rows of the search index."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FoundRow", "IndexedBody", "IndexedText", "TextKept", "TextRow"]


class TextRow(NamedTuple):
    """An entry that may have a text to search, with its tape."""

    position: int
    xid: int
    tape_id: int
    seq: int
    kind: str
    version: int
    payload: bytes | None
    stamp: int
    lane: int
    ordinal: int
    tape: str
    owner: str | None
    status: str
    key: str
    hidden: str | None


class IndexedBody(NamedTuple):
    """The payload of an entry that was indexed, and its tape's owner."""

    kind: str
    version: int
    payload: bytes | None
    owner: str | None
    key: str


class IndexedText(NamedTuple):
    """A text of a tape in the index."""

    position: int
    seq: int


class FoundRow(NamedTuple):
    """A text that has the words of a query, and whether its tape shows it."""

    position: int
    xid: int
    tape_id: int
    seq: int
    kind: str
    version: int
    payload: bytes | None
    stamp: int
    origin: int
    lane: int
    ordinal: int
    tape: str
    owner: str | None
    status: str
    hidden: str | None
    holds: bool
    size: int | None
    """Bytes of the payload, which comes with its page only if it is small."""
    excerpt: bytes | None
    key: str


class TextKept(NamedTuple):
    """What the index holds of a text; on SQLite the words are found by word only."""

    position: int
    seq: int
    origin: int
    lane: int
    ordinal: int
    excerpt: bytes | None
    xid: int
    words: list[str] | None
