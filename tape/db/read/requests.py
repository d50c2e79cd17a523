"""Reading requests: one of a tape, and the open ones of all tapes by their index."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from tape.core import strict
from tape.core.entries import payloads
from tape.core.journal.leases import check_held
from tape.core.journal.requests import Request, request_from
from tape.core.records import Entry, Page
from tape.core.view import slots
from tape.db.engine.transaction import Database, Transaction
from tape.db.read import entries
from tape.db.sql.rows.feed import AskedRow
from tape.db.view import memory
from tape.db.view.tape_view import TapeView
from tape.db.view.values import entry_from_row
from tape.errors import Corrupt, InvalidEntry, UnknownEntry

__all__ = ["check_lease", "open_requests", "request"]

_PAGE = 200
MOST = 1_000
"""The longest page."""


def request(view: TapeView, id: str, clock: Callable[[], int]) -> Request:
    """Return a request of the tape's own as it stands; raises UnknownEntry when there is none of this id."""
    entry = entries.find(view, None, id, inherited=False)
    decided = None
    if (slot := memory.slot_of(view, slots.DECIDED + id, inherited=False)) is not None:
        decided = entries.find(view, slot[1], None, inherited=False)
    standing = None if entry is None else request_from(entry, decided, view.tx.now(clock))
    if standing is None:
        raise UnknownEntry(view.tape, key=id)
    return standing


def check_lease(view: TapeView, name: str, token: int, clock: Callable[[], int]) -> None:
    """Raise LeaseLost unless the holder of the token holds the lease now."""
    slot = memory.slot_of(view, slots.LEASE + name, inherited=False)
    check_held(None if slot is None else slot[2], view.tape, name, token, view.tx.now(clock))


def open_requests(
    database: Database,
    clock: Callable[[], int],
    filters: dict[str, str | None],
    status: str,
    limit: int,
    cursor: str | None,
) -> Page[Request]:
    """Return a page of the requests that nobody decided yet, in the order of their ids."""
    if type(limit) is not int or not 0 < limit <= MOST:
        raise InvalidEntry("limit", f"must be an integer from 1 to {MOST}, not {strict.shown(limit)}")
    after = (slots.ASKED, 0) if cursor is None else _place(cursor)
    scope = {name: filters[name] for name in ("owner", "tape") if filters[name] is not None}
    statement = database.statements.open_requests(frozenset(scope))
    requests: list[Request] = []
    last, more = None, True
    while more and len(requests) <= limit:
        params = (*(scope[name] for name in sorted(scope)), *after, _PAGE)

        def read_page(tx: Transaction, params: tuple[object, ...]) -> tuple[list[AskedRow], int]:
            return tx.listed(statement, params), tx.now(clock)

        rows, now = database.read(partial(read_page, params=params))
        more = len(rows) == _PAGE
        for row in rows:
            after = row.slot, row.entry.tape_id
            request = _request(row, now)
            if request is None or request.status != status or filters["kind"] not in (None, request.kind):
                continue
            if len(requests) == limit:
                return Page(requests, last, True)
            last = _cursor(after)
            requests.append(request)
    return Page(requests)


def _request(row: AskedRow, now: int) -> Request | None:
    """Return an open request; None for an entry that cannot be read, of which ``verify`` tells."""
    try:
        # Where the head stood is of no interest here, and on a fork would take its ancestry to tell.
        entry: Entry = entry_from_row(row.tape, row.entry._replace(head_tape=0), None)
    except (Corrupt, msgspec.MsgspecError):
        return None
    return request_from(entry, None, now) if isinstance(entry.payload, payloads.Event) else None


def _cursor(place: tuple[str, int]) -> str:
    return f"{place[1]}:{place[0].removeprefix(slots.ASKED)}"


def _place(cursor: str) -> tuple[str, int]:
    """Return the place behind which the next page begins."""
    number, _, id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if number.isdecimal() and number.isascii() and int(number) <= strict.MAX_INT and strict.is_identifier(id):
        return slots.ASKED + id, int(number)
    raise InvalidEntry("cursor", f"{strict.shown(cursor)} is not a cursor of a listing of requests")
