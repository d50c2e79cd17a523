"""Tapes too long to be written one call at a time: entries put straight into the table, with a valid chain.

The rows of the view are then made by ``rebuild``; after events, which are in it by name alone, only those rows
are made and the head is moved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import tape
from support.backends import Backend
from support.forging import SALT
from tape.core.entries import chain, payloads
from tape.core.entries.payloads import Payload, Place

__all__ = ["record"]

COLUMNS = (
    "tape_id",
    "seq",
    "kind",
    "key",
    "payload",
    "salt",
    "stamp",
    "version",
    "hash",
    "head_tape",
    "lane",
    "ordinal",
    "xid",
)
_HEAD = "SELECT tape_id, seq, hash, stamp, lane, ordinal, xid FROM tape_heads JOIN tape_tapes ON id = tape_id"


def record(backend: Backend, chat: tape.Tape, entries: Iterable[tuple[str, Payload]], *, move_head: bool) -> int:
    """Add entries, each a key and a payload, behind the head of a tape; returns how many there were."""
    connection = backend.raw()
    mark = "%s" if backend.postgres else "?"
    number, seq, hash, stamp, lane, ordinal, xid = connection.execute(
        f"{_HEAD} WHERE tape = {mark}", (chat.id,)
    ).fetchone()
    last = [seq, bytes(hash)]
    named: list[tuple[int, str, int]] = []

    def rows() -> Iterator[tuple[Any, ...]]:
        before = bytes(hash)
        place = Place(lane, ordinal)
        for at, (key, payload) in enumerate(entries, start=seq + 1):
            raw = payloads.encode(payload)
            before = chain.link(
                before,
                chain.commit(SALT, raw, None),
                chat.id,
                at,
                payload.kind,
                key,
                None,
                None,
                stamp,
                payload.version,
                place,
            )
            last[:] = at, before
            if isinstance(payload, payloads.Event):
                named.append((number, payload.name, at))
            yield (number, at, payload.kind, key, raw, SALT, stamp, payload.version, before, 0, lane, ordinal, xid)

    connection.execute("BEGIN")
    names = ", ".join(COLUMNS)
    if backend.postgres:
        with connection.cursor().copy(f"COPY tape_entries ({names}) FROM STDIN") as copy:
            for row in rows():
                copy.write_row(row)
    else:
        marks = ", ".join("?" * len(COLUMNS))
        stream = rows()
        while batch := list(itertools.islice(stream, 10_000)):
            connection.executemany(f"INSERT INTO tape_entries ({names}) VALUES ({marks})", batch)
    if move_head:
        marks = ", ".join([mark] * 3)
        connection.cursor().executemany(f"INSERT INTO tape_events (tape_id, name, seq) VALUES ({marks})", named)
        connection.execute(f"UPDATE tape_heads SET seq = {mark}, hash = {mark} WHERE tape_id = {mark}", (*last, number))
    connection.execute("COMMIT")
    connection.close()
    return int(last[0]) - int(seq)
