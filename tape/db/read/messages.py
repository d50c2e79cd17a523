"""Messages of a view: the path to the head, a page of it, one message, what follows one, the end of every branch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tape.core import strict
from tape.core.entries import ids, payloads
from tape.core.entries.payloads import Place
from tape.core.meta import of_message
from tape.core.records import Message, Page
from tape.db.engine.transaction import Transaction
from tape.db.sql.rows.view import PathRow
from tape.db.view import branches, paths
from tape.db.view.opening import open_view
from tape.db.view.tape_view import TapeView
from tape.db.view.values import messages_from_rows
from tape.errors import InvalidEntry

__all__ = ["Body", "Stretch", "bodies", "children", "held_anywhere", "message", "messages", "page"]

Body = tuple[dict[str, Any], dict[str, Any] | None]
"""What was given as a message, and what was said beside it."""
HOLDERS = 100
"""So many tapes are asked for a message in one transaction."""


def messages(view: TapeView, branch: str | None) -> list[Message]:
    """Return the whole path from the root to the head or to ``branch``."""
    return messages_from_rows(view, paths.path(view, paths.end_of(view, branch)), whole=True)


def bodies(view: TapeView, branch: str | None, limit: int | None) -> list[Body]:
    """Return data and meta of the last messages of a path: many are read by few columns, and no Message is made."""
    rows = paths.bodies(view, paths.end_of(view, branch), paths.ALL if limit is None else limit)
    known, decode = payloads.AS_THEY_ARE["append"] & payloads.AS_THEY_ARE["revise"], payloads.decode_body
    if rows is not None and all(version in known for version, _, _ in rows):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError):
            return [
                (decode(payload).message, None if meta is None else of_message(meta)[0])
                for _, payload, meta in reversed(rows)
            ]
    # Of several lanes, inherited, of an old version, or damaged, which is reported there.
    held = messages(view, branch) if limit is None else page(view, branch, Stretch(limit, None, None, None)).items
    return [(message.data, message.meta) for message in held]


class Stretch(Struct, frozen=True):
    """Which stretch of a path a page is: the last messages, those before one, or those after one."""

    limit: int
    before: str | None
    after: str | None
    max_bytes: int | None

    @classmethod
    def checked(cls, limit: int | None, before: str | None, after: str | None, max_bytes: int | None) -> Stretch:
        """Return the stretch that a caller asks for."""
        count = paths.ALL - 1 if limit is None else strict.limit(limit, least=0)
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
            raise InvalidEntry("max_bytes", f"must be a positive integer, not {strict.shown(max_bytes)}")
        if before is not None and after is not None:
            raise InvalidEntry("after", "pass before= or after=, not both")
        return cls(count, before, after, max_bytes)


def page(view: TapeView, branch: str | None, stretch: Stretch) -> Page[Message]:
    """Return a stretch of the path."""
    end = paths.end_of(view, branch)
    if stretch.after is not None:
        above = _on_path(view, end, stretch.after, "after").ordinal if stretch.after else 0
        rows, following = _bounded(lambda most: paths.first_rows(view, end, above, most), stretch)
        messages = messages_from_rows(view, rows)
    else:
        if stretch.before is not None:
            end = paths.before(view, _on_path(view, end, stretch.before, "before"))
        rows, following = _bounded(lambda most: paths.last_rows(view, end, most), stretch)
        messages = messages_from_rows(view, rows[::-1], above=following)
    cursor = None
    if following is not None and messages:
        cursor = messages[-1].id if stretch.after is not None else messages[0].id
    return Page(messages, cursor, following is not None)


def _on_path(view: TapeView, end: Place, message_id: str, field: str) -> Place:
    """Return the place of the message at which a page begins; it may be retracted, but must be on the path."""
    place, _ = paths.place_of(view, message_id)
    if not paths.contains(view, end, place):
        raise InvalidEntry(field, f"message {message_id!r} is not on this path")
    return place


def _bounded(read: Callable[[int], list[PathRow]], stretch: Stretch) -> tuple[list[PathRow], PathRow | None]:
    """Return as many rows as count and bytes allow, at least one, and the first that was left out, if one was."""
    count = stretch.limit
    if stretch.max_bytes is None:
        rows = read(count + 1)
        return rows[:count], rows[count] if len(rows) > count else None
    # How many rows fill the bytes is not known before: read few, and more as long as they all fit.
    length = 32
    while True:
        rows = read(min(length, count + 1))
        size = 0
        for index, row in enumerate(rows[:count]):
            size += len(row.payload or b"")
            if size > stretch.max_bytes and index:
                return rows[:index], row
        if len(rows) < length or len(rows) > count:
            return rows[:count], rows[count] if len(rows) > count else None
        length *= 4


def message(view: TapeView, message_id: str) -> Message:
    """Return one message; raises UnknownMessage when it is not in the view."""
    place, _ = paths.place_of(view, message_id)
    return messages_from_rows(view, [paths.held(view, place, message_id)], place)[0]


def held_anywhere(tx: Transaction, owner: str | None, message_id: str, after: int) -> tuple[list[Message], int | None]:
    """Return the messages of an id on a page of the tapes that hold one, and the tape before the next page."""
    key, sql = ids.message_key(message_id), tx.statements
    if owner is None:
        holders = tx.all(sql.holders, (key, message_id, after, HOLDERS))
    else:
        holders = tx.all(sql.holders_of, (key, message_id, owner, after, HOLDERS))
    messages = []
    for holder in holders:
        view = open_view(tx, holder.tape, owner)
        placed = None if view is None else view.place(message_id)
        if view is None or placed is None or placed[0].tape is not None:
            continue
        rows = paths.rows(view, placed[0], placed[0].ordinal - 1)
        messages += messages_from_rows(view, rows, placed[0])
    return messages, holders[-1].number if len(holders) == HOLDERS else None


def children(view: TapeView, message_id: str) -> list[Message]:
    """Return the messages that follow one directly in the view, oldest branch first."""
    place, _ = paths.place_of(view, message_id)
    paths.held(view, place, message_id)
    return branches.children(view, place, message_id)
