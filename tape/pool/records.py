"""What each database records of owners that were moved, read and written through its store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tape.core.places import RECORDS, Away, owner_record, read_reason
from tape.core.records import TapeInfo
from tape.core.view.fold import CLOSED
from tape.errors import TapeExists
from tape.handles.tape import Tape

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["Absences", "absences", "away_from", "close_record", "counts", "record_of", "records_in"]

Absences = dict[str, Away]
"""The owners whose tapes are not in a database, although it may hold rows of them."""


def _away(info: TapeInfo) -> Away | None:
    return read_reason(info.reason) if info.owner is None and info.status in CLOSED else None


def away_from(store: Store, owner: str) -> Away | None:
    """Return what a database records of an owner that is not there, or None."""
    return _away(store.tape(owner_record(owner)).info())


def record_of(store: Store, owner: str) -> Tape:
    """Return the record of an owner, which is made if there is none."""
    name = owner_record(owner)
    if not store.tape(name).info().head:
        try:
            return store.create(name, meta={"owner": owner})
        except TapeExists:
            # Another process moves the same owner.
            pass
    return store.tape(name)


def close_record(store: Store, owner: str, away: Away) -> Tape:
    """Record that an owner's tapes are elsewhere, unless that is recorded already."""
    record = record_of(store, owner)
    if away_from(store, owner) != away:
        record.end(away.reason)
    return record


def records_in(store: Store) -> list[TapeInfo]:
    """Return every record of a database."""
    page = store.list(prefix=RECORDS, limit=500)
    infos = list(page)
    while page.cursor is not None:
        page = store.list(prefix=RECORDS, limit=500, cursor=page.cursor)
        infos += page
    return infos


def absences(store: Store) -> Absences:
    """Return the owners whose tapes are not in a database."""
    destinations = {}
    for info in records_in(store):
        away = _away(info)
        if away is not None and info.meta is not None:
            destinations[str(info.meta["owner"])] = away
    return destinations


def counts(known: Mapping[str, Absences], database: str, owner: str | None) -> bool:
    """Tell whether the rows of an owner in a database are the ones that count: elsewhere they are copies."""
    away = None if owner is None else known[database].get(owner)
    if away is None or owner is None:
        return True
    # In the last step of a move the source still counts, until the target is opened.
    return not away.arriving and known.get(away.database, {}).get(owner) == Away(database, arriving=True)
