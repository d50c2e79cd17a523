"""The catalog: which tapes there are, how much they hold, and how the store is."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from tape.core import meta as said_beside
from tape.core import strict
from tape.core.entries import payloads
from tape.core.memory.state import Usage, usage_of
from tape.core.records import Check, Health, Page, Stats, TapeInfo, micros, moment
from tape.db.engine.transaction import Database, Transaction
from tape.db.schema.tables import REVISION
from tape.db.search.index import Index
from tape.db.sql.rows.tapes import CountRow, HeadRow, ListedRow, UsedRow
from tape.db.sql.rows.upkeep import CheckRow
from tape.db.view.opening import found_row
from tape.db.view.values import info_from_facts
from tape.errors import Corrupt, InvalidEntry, StoreBusy, StoreFailed

__all__ = ["MOST_AT_ONCE", "Candidate", "Catalog", "Listed", "Use", "check_listing"]

ORDERS = ("created", "updated")
MOST = 1_000
"""The longest page."""
MOST_AT_ONCE = 500
"""The length of a page where the caller wants all tapes and names none."""

Candidate = tuple[int, TapeInfo]
"""A tape's number, and what is known of it."""


class Use(NamedTuple):
    """Where and when usage was counted: the tape, the moment, and the message that began the turn, if that is known."""

    tape: str
    stamp: int
    turn: str = ""


class Listed(NamedTuple):
    """A tape of a list, and the cursor that continues the list behind it."""

    cursor: str
    info: TapeInfo


class Catalog:
    """Answers questions about the tapes of one owner, or of all."""

    def __init__(self, database: Database, owner: str | None, index: Index) -> None:
        self._db = database
        self._index = index
        self._owner = owner
        self._sql = database.statements

    def page(
        self, filters: dict[str, Any], limit: int, cursor: str | None, order: str, *, hidden: bool
    ) -> Page[TapeInfo]:
        """Return a page of tapes: of those that are hidden, or of those that are not."""
        listed, more = self.listed(filters, limit, cursor, order, hidden=hidden)
        return Page([info for _, info in listed], listed[-1].cursor if more else None, more)

    def tapes(self, filters: dict[str, Any], order: str, *, hidden: bool) -> Iterator[TapeInfo]:
        """Return the tapes of all pages, each of which is read when it is reached."""
        # Here, since what is below begins with the first tape that is asked for.
        check_listing(filters, order)
        return self._tapes(filters, order, hidden=hidden)

    def _tapes(self, filters: dict[str, Any], order: str, *, hidden: bool) -> Iterator[TapeInfo]:
        cursor, more = None, True
        while more:
            page = self.page(filters, MOST_AT_ONCE, cursor, order, hidden=hidden)
            yield from page.items
            cursor, more = page.cursor, page.truncated

    def listed(
        self, filters: dict[str, Any], limit: int, cursor: str | None, order: str, *, hidden: bool
    ) -> tuple[list[Listed], bool]:
        """Return a page of tapes, each with the cursor that continues behind it, and whether there are more."""
        conditions = check_listing(filters, order)
        if type(limit) is not int or not 0 < limit <= MOST:
            raise InvalidEntry("limit", f"must be an integer from 1 to {MOST}, not {strict.shown(limit)}")
        if self._owner is not None and conditions.setdefault("owner", self._owner) != self._owner:
            return [], False
        if cursor is not None:
            conditions["cursor"], moment_of = _cursor(cursor, order)
        statement = self._sql.listing(frozenset(conditions), order, hidden)
        params = [conditions[name] for name in sorted(conditions)]
        if cursor is not None and order == "updated":
            params.append(moment_of)
        rows = self._db.read(lambda tx: tx.listed(statement, (*params, limit + 1)))
        return [_with_cursor(row, order) for row in rows[:limit]], len(rows) > limit

    def oldest_first(self, filters: dict[str, Any], page: int = 200) -> Iterator[list[Candidate]]:
        """Yield pages of all tapes, hidden ones as well, oldest first, each read by itself."""
        conditions = {name: value for name, value in filters.items() if value is not None}
        if self._owner is not None:
            conditions["owner"] = self._owner
        conditions["cursor"] = 0
        statement = self._sql.listing(frozenset(conditions), "oldest", None)
        while True:
            params = (*(conditions[name] for name in sorted(conditions)), page)
            tapes = [_listed(row) for row in self._db.read(lambda tx, params=params: tx.listed(statement, params))]  # type: ignore[misc]
            if not tapes:
                return
            yield tapes
            conditions["cursor"] = tapes[-1][0]

    def uses(self, page: int = 1_000) -> Iterator[tuple[Use, payloads.Usage]]:
        """Yield what every tape used itself, tape by tape, each page read by itself; erased entries are passed over."""
        number, seq = 0, 0
        while True:
            rows = self._db.read(lambda tx, number=number, seq=seq: self._used(tx, number, seq, page))  # type: ignore[misc]
            for row in rows:
                if row.payload is not None:
                    used = payloads.decode("usage", row.version, row.payload, row.tape, row.seq)
                    assert isinstance(used, payloads.Usage)
                    occurred = said_beside.of_entry(row.meta)[1]
                    yield Use(row.tape, row.stamp if occurred is None else occurred), used
            if len(rows) < page:
                return
            number, seq = rows[-1].number, rows[-1].seq

    def _used(self, tx: Transaction, number: int, seq: int, most: int) -> list[UsedRow]:
        if self._owner is None:
            return tx.listed(self._sql.used, (number, seq, most))
        return tx.listed(self._sql.used_by_owner, (self._owner, number, seq, most))

    def stats(self) -> Stats:
        """Count tapes, entries, messages and bytes."""

        def count(tx: Transaction) -> tuple[list[CountRow], int]:
            if self._owner is None:
                counts, weight = tx.listed(self._sql.counts, ()), tx.value(self._sql.weight, ())
            else:
                counts = tx.listed(self._sql.counts_of, (self._owner,))
                weight = tx.value(self._sql.weight_of, (self._owner,))
            return counts, int(weight or 0)

        counts, weight = self._db.read(count)
        return Stats(
            tapes=sum(row.tapes for row in counts),
            entries=sum(int(row.entries) for row in counts),
            messages=sum(int(row.messages) for row in counts),
            bytes=weight,
            by_status={row.status: row.tapes for row in sorted(counts)},
        )

    def health(self, tape: str | None) -> Health:
        """Ask the database how it is; reads a few rows by their keys and no more."""
        began = time.monotonic()
        engine = "postgresql" if self._db.postgres else "sqlite"

        def look(tx: Transaction) -> tuple[str | None, HeadRow | None, CheckRow | None]:
            revision = tx.value(self._sql.revision, ())
            if revision != REVISION:
                # The tables of another release may be others.
                return revision, None, None
            head = None
            if tape is not None:
                head = found_row(tx, tape, self._owner)
                check = tx.one(self._sql.check, (tape,))
            elif self._owner is not None:
                check = tx.one(self._sql.last_check_of, (self._owner,))
            else:
                check = tx.one(self._sql.last_check, ())
            return revision, head, check

        try:
            schema, head, check = self._db.read(look)
            # All owners share one index, so its lag would reveal the writes of others.
            lag = self._index.lag() if self._owner is None else None
        except (StoreFailed, StoreBusy):
            took = time.monotonic() - began
            return Health(
                ok=False, engine=engine, server="", schema=None, expected_schema=REVISION, latency=took, tape=tape
            )
        return Health(
            ok=schema == REVISION,
            engine=engine,
            server=self._server(),
            schema=schema,
            expected_schema=REVISION,
            latency=time.monotonic() - began,
            verified=None
            if check is None
            else Check(check.tape, check.seq, bytes(check.hash).hex(), moment(check.stamp)),
            tape=tape,
            head=None if head is None else head.seq,
            head_hash=None if head is None else bytes(head.hash).hex(),
            index_lag=lag,
        )

    def _server(self) -> str:
        if not self._db.postgres:
            return sqlite3.sqlite_version
        version = getattr(self._db.engine.dialect, "server_version_info", None) or ()
        return ".".join(str(part) for part in version)


def check_listing(filters: dict[str, Any], order: str) -> dict[str, Any]:
    """Return the conditions that filters make, by name; raises InvalidEntry for a wrong moment or order."""
    strict.one_of(order, ORDERS, "order")
    conditions = {name: value for name, value in filters.items() if value is not None}
    for name in ("updated_before", "updated_after"):
        if name in conditions:
            conditions[name] = _moment(conditions[name], name)
    return conditions


def _with_cursor(row: ListedRow, order: str) -> Listed:
    _, info = _listed(row)
    number = row.info.id
    return Listed(str(number) if order == "created" else f"{row.info.head_stamp}.{number}", info)


def _listed(row: ListedRow) -> Candidate:
    facts = row.info._asdict()
    totals = Usage()
    with contextlib.suppress(Corrupt):
        # A list of tapes does not end at one whose usage cannot be read; ``info`` of that one tells.
        totals = usage_of(_payload(row))
    facts["tokens"], facts["cost"] = totals.input_tokens + totals.output_tokens, totals.cost
    try:
        return facts["id"], info_from_facts(facts, row.parent, row.forked_at)
    except Corrupt:
        facts |= {"labels": None, "meta": None}
        return facts["id"], info_from_facts(facts, row.parent, row.forked_at)


def _payload(row: ListedRow) -> payloads.Payload | None:
    if row.usage is None or row.usage_kind is None or row.usage_version is None:
        return None
    return payloads.decode(row.usage_kind, row.usage_version, row.usage)


def _moment(value: Any, field: str) -> int:
    if not isinstance(value, datetime):
        raise InvalidEntry(field, f"must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None:
        raise InvalidEntry(field, "must be a datetime with a time zone")
    return micros(value)


def _cursor(cursor: str, order: str) -> tuple[int, int]:
    """Return the number, and for the order of change the moment, after which the next page begins."""
    if isinstance(cursor, str):
        with contextlib.suppress(ValueError):
            stamp, number = ("0", cursor) if order == "created" else cursor.split(".")
            position = int(number), int(stamp)
            if min(position) >= 0 and max(position) <= strict.MAX_INT:
                return position
    raise InvalidEntry("cursor", f"{strict.shown(cursor)} is not a cursor of a listing in this order")
