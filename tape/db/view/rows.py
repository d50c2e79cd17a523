"""Turning rows of the tables into the core's values."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.records import Anchor, Entry, MergeReceipt, Message, Source, TapeInfo, moment
from tape.core.view.fold import Head
from tape.db.engine.transaction import Transaction
from tape.db.feed.position import join_position
from tape.db.view.lineage import Family, place_at
from tape.errors import Corrupt

__all__ = [
    "anchor_from",
    "any_text",
    "damaged_entry",
    "entry_from_row",
    "head_from_row",
    "info_from_facts",
    "merge_receipt",
    "message_from_row",
]


def head_from_row(row: Sequence[Any]) -> tuple[int, Head, Family | None]:
    """Return the tape's number, its head and, of a fork, its family, from a row of the ``head`` statement."""
    number, _, status, reason, completed, lineage, seq, hash, stamp, head_tape, lane, ordinal, *rest = row
    lo, tip, cleared, messages, last, aliased = rest
    family = None if lineage is None else Family.decoded(lineage)
    head = Head(
        seq,
        bytes(hash),
        stamp,
        place_at(lane, ordinal, head_tape, family),
        lo,
        bool(tip),
        cleared,
        messages,
        last,
        bool(aliased),
        status,
        reason,
        completed or 0,
    )
    return number, head, family


def entry_from_row(tape: str, row: Sequence[Any], family: Family | None) -> Entry:
    """Return the entry in a row of ``entry``, its payload decoded; an erased payload is None. Raises Corrupt."""
    number, _, seq, kind, key, actor, source_tape, source_seq, raw, meta, stamp, version, hash, *head = row
    head_tape, lane, ordinal, xid = head
    try:
        return Entry(
            tape=tape,
            seq=seq,
            kind=kind,
            key=key,
            actor=actor,
            source=None if source_seq is None else Source(source_tape or tape, source_seq),
            payload=None if raw is None else payloads.decode(kind, version, raw),
            meta=None if meta is None else msgspec.json.decode(meta),
            stamp=stamp,
            version=version,
            hash=bytes(hash).hex(),
            head=place_at(lane, ordinal, head_tape, family),
            position=join_position(xid, number),
        )
    except Corrupt as error:
        raise Corrupt(tape, seq, error.what) from error
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Corrupt(tape, seq, f"the entry holds a value that was never written there: {error}") from error


def damaged_entry(tape: str, row: Sequence[Any], why: str) -> Entry:
    """Return what can be told of an entry that cannot be read, for readers who must get past it."""
    number, _, seq, kind, key, actor, source_tape, source_seq, _, meta, stamp, version, hash, *head = row
    _, lane, ordinal, xid = head
    told = None
    if meta is not None:
        with contextlib.suppress(msgspec.MsgspecError, TypeError, ValueError):
            told = msgspec.json.decode(meta)
    return Entry(
        tape=tape,
        seq=seq,
        kind=kind,
        key=key,
        actor=actor,
        source=None if source_seq is None else Source(source_tape or tape, source_seq),
        payload=None,
        meta=told if isinstance(told, dict) else None,
        stamp=stamp if isinstance(stamp, int) else 0,
        version=version,
        hash="" if isinstance(hash, str) else bytes(hash).hex(),
        head=Place(lane, ordinal),
        position=join_position(xid, number),
        unreadable=why,
    )


@contextlib.contextmanager
def any_text(tx: Transaction) -> Iterator[None]:
    """Read damaged text of SQLite as well, stray bytes as surrogates, so that the row that holds it can be named."""
    connection = tx._cursor.connection
    if not isinstance(connection, sqlite3.Connection):
        yield
        return
    before, connection.text_factory = connection.text_factory, lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        connection.text_factory = before


def info_from_facts(facts: dict[str, Any], parent: str | None, forked_at: int | None) -> TapeInfo:
    """Return what is known of a tape from the columns of its row and of its head, the latter named ``head_…``."""
    try:
        return _info(facts, parent, forked_at)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise Corrupt(facts["tape"], 0, f"what is known of the tape cannot be read: {error}") from error


def _info(facts: dict[str, Any], parent: str | None, forked_at: int | None) -> TapeInfo:
    return TapeInfo(
        id=facts["tape"],
        name=facts["name"],
        owner=facts["owner"],
        agent=facts["agent"],
        labels=msgspec.json.decode(facts["labels"]) if facts["labels"] is not None else [],
        meta=msgspec.json.decode(facts["meta"]) if facts["meta"] is not None else None,
        status=facts["status"],
        reason=facts["reason"],
        parent=parent,
        forked_at=forked_at,
        redirect=facts["redirect"],
        head=facts["head_seq"],
        head_hash=bytes(facts["head_hash"]).hex(),
        message_count=facts["head_messages"],
        entry_count=facts["head_seq"],
        last_message_at=moment(facts["head_last_message"]) if facts["head_last_message"] else None,
        created_at=moment(facts["created_at"]),
        updated_at=moment(facts["head_stamp"]),
        completed_at=moment(facts["completed_at"]) if facts["completed_at"] else None,
        tokens=facts.get("tokens", 0),
        cost=facts.get("cost", 0),
    )


def message_from_row(tape: str, row: Sequence[Any], parent: str | None) -> Message:
    """Return the message in a row of a path: ordinal, placed, body, kind, version, payload, stamp."""
    _, placed, revision, kind, version, raw, stamp, *_ = row
    if raw is None:
        raise Corrupt(tape, revision, "the payload was erased")
    try:
        body = payloads.body_of(kind, version, raw)
    except Corrupt as error:
        raise Corrupt(tape, revision, error.what) from error
    return Message(body.id, tape, body.message, parent, placed, revision, stamp, body.tokens)


def merge_receipt(tape: str, row: Sequence[Any], told: payloads.Merge, *, duplicate: bool) -> MergeReceipt:
    """Return the receipt of a merge, from its entry on the parent."""
    return MergeReceipt(
        tape=tape,
        seq=row[2],
        key=row[4],
        hash=bytes(row[12]).hex(),
        duplicate=duplicate,
        child=told.tape,
        child_head=told.seq,
        strategy=told.strategy,
        message_ids=[message_id for message_id, _ in told.messages],
        changed=told.changed,
        kept=told.kept,
    )


def anchor_from(entry: Entry, *, stale: bool) -> Anchor:
    """Return the anchor or handoff that an entry records."""
    payload = entry.payload
    if isinstance(payload, payloads.Handoff):
        return Anchor(
            payload.name,
            entry.seq,
            payload.state,
            payload.summary,
            payload.phase,
            payload.next_steps,
            payload.source_ids,
            payload.owner,
            [],
            stale,
            entry.tape,
            entry.stamp,
        )
    if isinstance(payload, payloads.Anchor):
        return Anchor(
            payload.name,
            entry.seq,
            payload.state,
            None,
            None,
            [],
            payload.source_ids,
            None,
            payload.parents,
            stale,
            entry.tape,
            entry.stamp,
        )
    raise Corrupt(entry.tape, entry.seq, f"the entry is a {entry.kind}, not an anchor")
