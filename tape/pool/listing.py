"""Lists and searches over all databases: each is asked by itself, and what they give is merged, newest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from tape.core.records import Hit, TapeInfo
from tape.db.read.catalog import Listed
from tape.errors import DatabaseDown, StoreBusy, StoreFailed
from tape.pool.cursors import ListCursor, encode_cursor

__all__ = ["Across", "all_pages", "ask_each", "merge_hits", "merge_pages"]

T = TypeVar("T")
R = TypeVar("R")

ReadPage = Callable[[str, str | None, int], tuple[list[Listed], bool]]
"""Reads a page of one database behind a cursor; the second value tells whether there are more."""


class Across(Struct, Generic[T], frozen=True):
    """What all databases gave together. ``cursor`` continues it, ``down`` names those that could not be asked."""

    items: list[T]
    cursor: str | None = None
    down: dict[str, DatabaseDown] = field(default_factory=dict)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> T:
        return self.items[index]


def ask_each(names: list[str], ask: Callable[[str], R]) -> tuple[dict[str, R], dict[str, DatabaseDown]]:
    """Ask databases one after the other; returns the answers, and those that could not be reached."""
    answers: dict[str, R] = {}
    down: dict[str, DatabaseDown] = {}
    for name in names:
        try:
            answers[name] = ask(name)
        except (StoreFailed, StoreBusy) as error:
            down[name] = error if isinstance(error, DatabaseDown) else DatabaseDown(name, str(error))
    return answers, down


class _Source:
    """The list of one database, read a page at a time."""

    def __init__(self, name: str, read: ReadPage, cursor: str | None) -> None:
        self.name = name
        self.cursor: str | None = cursor
        self._read = read
        self._rows: deque[Listed] = deque()
        self._behind = cursor
        self.more = True

    def first(self, size: int, counts: Callable[[str, TapeInfo], bool]) -> TapeInfo | None:
        """Return the next tape that is wanted, and pass over those that are not."""
        while True:
            while self._rows and not counts(self.name, self._rows[0].info):
                self.take()
            if self._rows:
                return self._rows[0].info
            if not self.more:
                return None
            rows, self.more = self._read(self.name, self._behind, size)
            if rows:
                self._behind = rows[-1].cursor
            self._rows.extend(rows)

    def take(self) -> TapeInfo:
        """Give out the next tape."""
        row = self._rows.popleft()
        self.cursor = row.cursor
        return row.info

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not self._rows and not self.more


def merge_pages(
    read: ReadPage,
    cursors: Mapping[str, str | None],
    order: str,
    limit: int,
    counts: Callable[[str, TapeInfo], bool],
) -> Across[TapeInfo]:
    """Return the next page over the databases that have not been read to their end, behind the cursor of each.

    An empty cursor is the beginning. Each database keeps its own order; between them the newer tape comes first.
    """
    at: dict[str, str | None] = dict(cursors)
    sources = {name: _Source(name, read, cursor or None) for name, cursor in cursors.items() if cursor is not None}
    down: dict[str, DatabaseDown] = {}
    items: list[TapeInfo] = []

    def first(source: _Source) -> TapeInfo | None:
        return source.first(limit, counts)

    while len(items) < limit and sources:
        firsts, failed = ask_each(list(sources), lambda name: first(sources[name]))
        for name in failed:
            # It keeps its place, and goes on there once it is back.
            at[name] = sources.pop(name).cursor or ""
        down |= failed
        heads = {name: info for name, info in firsts.items() if info is not None}
        for name in firsts.keys() - heads.keys():
            del sources[name]
            at[name] = None
        if heads:
            items.append(sources[max(heads, key=lambda name: _moment(heads[name], order))].take())
    for name, source in sources.items():
        at[name] = None if source.done else source.cursor or ""
    unfinished = any(cursor is not None for cursor in at.values())
    return Across(items, encode_cursor(ListCursor(at, order)) if unfinished else None, down)


def all_pages(page_at: Callable[..., Across[T]]) -> Iterator[T]:
    """Yield what is on all pages; raises DatabaseDown at the end if a database could not be asked for its part."""
    cursor: str | None = None
    while True:
        page = page_at(cursor=cursor)
        yield from page.items
        cursor = page.cursor
        if cursor is None:
            return
        if not page.items:
            raise next(iter(page.down.values()))


def _moment(info: TapeInfo, order: str) -> datetime:
    moment = info.created_at if order == "created" else info.updated_at
    assert moment is not None
    return moment


def merge_hits(
    search: Callable[[str, int], list[Hit]], names: list[str], limit: int, counts: Callable[[str, Hit], bool]
) -> Across[Hit]:
    """Search every database, leave out what does not count there, and return the newest hits of all."""

    def ask(name: str) -> list[Hit]:
        size = limit
        while True:
            hits = search(name, size)
            counted = [hit for hit in hits if counts(name, hit)]
            if len(counted) >= limit or len(hits) < size:
                return counted[:limit]
            size *= 2

    answers, down = ask_each(names, ask)
    hits: list[Any] = sorted(
        (hit for answer in answers.values() for hit in answer), key=lambda hit: hit.recorded_at, reverse=True
    )
    return Across(hits[:limit], None, down)
