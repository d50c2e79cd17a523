"""Turning rows of the tables into the core's values."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tape.core import meta
from tape.core.entries import payloads
from tape.core.entries.ids import MESSAGE
from tape.core.entries.payloads import Place
from tape.core.records import Anchor, Entry, MergeReceipt, Message, Receipt, Source, TapeInfo, moment
from tape.core.view.fold import Head
from tape.db.engine.transaction import Transaction
from tape.db.feed.position import join_position
from tape.db.sql.rows.entries import BodyRow, EntryRow
from tape.db.sql.rows.tapes import HeadRow
from tape.db.sql.rows.view import PathRow
from tape.db.view import paths
from tape.db.view.ancestry import Ancestry, place_at
from tape.errors import Corrupt

if TYPE_CHECKING:
    from tape.db.view.tape_view import TapeView

__all__ = [
    "anchor_from",
    "any_text",
    "damaged_entry",
    "decoded",
    "entry_from_row",
    "head_from_row",
    "info_from_facts",
    "merge_receipt",
    "message_from_row",
    "messages_from_rows",
    "payload_of",
]


def head_from_row(row: HeadRow) -> tuple[int, Head, Ancestry | None]:
    """Return the tape's number, its head and, of a fork, its ancestry."""
    ancestry = None if row.lineage is None else Ancestry.decoded(row.lineage)
    head = Head(
        row.seq,
        bytes(row.hash),
        row.stamp,
        place_at(row.lane, row.ordinal, row.head_tape, ancestry),
        row.lo,
        bool(row.tip),
        row.cleared,
        row.messages,
        row.last_message,
        bool(row.aliased),
        row.tape_status,
        row.reason,
        row.completed_at or 0,
        row.view,
        row.hidden,
    )
    return row.number, head, ancestry


def decoded(row: EntryRow | BodyRow) -> payloads.Payload:
    """Return the payload of an entry; raises Corrupt when it was erased or cannot be read."""
    return payloads.decode(row.kind, row.version, row.payload or b"", key=row.key)


def payload_of(tape: str, row: EntryRow) -> payloads.Payload | None:
    """Return the payload of an entry, None when it was erased; raises Corrupt, which names the entry."""
    if row.payload is None:
        return None
    return payloads.decode(row.kind, row.version, row.payload, tape, row.seq, key=row.key)


def entry_from_row(tape: str, row: EntryRow, ancestry: Ancestry | None) -> Entry:
    """Return an entry, its payload decoded; an erased payload is None. Raises Corrupt."""
    try:
        entry_meta, occurred = meta.of_entry(row.meta)
        return Entry(
            tape=tape,
            seq=row.seq,
            kind=row.kind,
            key=row.key,
            actor=row.actor,
            source=_source(tape, row),
            payload=None if row.payload is None else payloads.decode(row.kind, row.version, row.payload, key=row.key),
            meta=entry_meta,
            stamp=row.stamp,
            version=row.version,
            hash=bytes(row.hash).hex(),
            head=place_at(row.lane, row.ordinal, row.head_tape, ancestry),
            position=join_position(row.xid, row.position),
            occurred=occurred,
        )
    except Corrupt as error:
        raise Corrupt(tape, row.seq, error.what) from error
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Corrupt(tape, row.seq, f"a column of the entry has an invalid value: {error}") from error


def _source(tape: str, row: EntryRow) -> Source | None:
    return None if row.source_seq is None else Source(row.source_tape or tape, row.source_seq)


def damaged_entry(tape: str, row: EntryRow, why: str) -> Entry:
    """Return the readable fields of an entry that is damaged, for readers who must get past it."""
    entry_meta, occurred, hash, stamp = None, None, row.hash, row.stamp
    with contextlib.suppress(msgspec.MsgspecError, TypeError, ValueError):
        entry_meta, occurred = meta.of_entry(row.meta)
    return Entry(
        tape=tape,
        seq=row.seq,
        kind=row.kind,
        key=row.key,
        actor=row.actor,
        source=_source(tape, row),
        payload=None,
        meta=entry_meta,
        # SQLite stores any value in any column, whatever type the column declares.
        stamp=stamp if isinstance(stamp, int) else 0,
        version=row.version,
        hash=bytes(hash).hex() if isinstance(hash, bytes | memoryview) else "",
        head=Place(row.lane, row.ordinal),
        position=join_position(row.xid, row.position),
        unreadable=why,
        occurred=occurred,
    )


@contextlib.contextmanager
def any_text(tx: Transaction) -> Iterator[None]:
    """Read damaged text of SQLite, too, with stray bytes as surrogates, so that its row can be named."""
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
        raise Corrupt(facts["tape"], 0, f"the row of the tape cannot be read: {error}") from error


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
        view=facts["head_view"],
        hidden=facts["hidden"] is not None,
        hidden_reason=facts["hidden"] or None,
        message_count=facts["head_messages"],
        entry_count=facts["head_seq"],
        last_message_at=moment(facts["head_last_message"]) if facts["head_last_message"] else None,
        created_at=moment(facts["created_at"]),
        updated_at=moment(facts["head_stamp"]),
        completed_at=moment(facts["completed_at"]) if facts["completed_at"] else None,
        tokens=facts.get("tokens", 0),
        cost=facts.get("cost", 0),
    )


def message_from_row(tape: str, row: PathRow, parent: str | None) -> Message:
    """Return the message in a row of a path."""
    body, meta_fields = _body_in(tape, row), _meta_of(tape, row)
    return Message(body.id, tape, body.message, parent, row.placed, row.body or 0, row.stamp, body.tokens, *meta_fields)


def _body_in(tape: str, row: PathRow) -> payloads.Body:
    return payloads.body_of(row.kind, row.version, row.payload, row.key, tape, row.body or 0)


def _meta_of(tape: str, row: PathRow) -> meta.MetaAndTime:
    """Return the meta recorded with the body in a row, and when the message occurred."""
    try:
        return meta.of_message(row.meta)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Corrupt(tape, row.body or 0, f"the meta of the entry cannot be read: {error}") from error


def messages_from_rows(
    view: TapeView,
    rows: Sequence[PathRow],
    first: Place | None = None,
    *,
    whole: bool = False,
    above: PathRow | None = None,
) -> list[Message]:
    """Return rows of a path as messages, each with the one before it as its parent; above a whole path is none.

    ``above`` is the row before the first, where that was read along with them.
    """
    if not rows:
        return []
    if above is not None:
        parent = _id_in(view, above)
    else:
        parent = None if whole or rows[0].ordinal <= 1 else _parent_id(view, rows[0], first)
    tape, tapes, prefix = view.tape, None, MESSAGE
    decode_body, known = payloads.decode_body, payloads.AS_THEY_ARE["append"] & payloads.AS_THEY_ARE["revise"]
    if view.ancestry is not None:
        tapes = {number: view.name_of(number) for number in {row.tape_id for row in rows}}
    messages = []
    for row in rows:
        if tapes is not None:
            tape = tapes[row.tape_id]
        revision, key = row.body or 0, row.key
        try:
            # A path may have very many rows, so the usual kind is decoded inline and the rest by ``_body_in``.
            body = decode_body(row.payload) if row.version in known else _body_in(tape, row)
            id = body.id or key.removeprefix(prefix)
            if id == key or not id:
                id = _body_in(tape, row).id
        except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError):
            body = _body_in(tape, row)
            id = body.id
        if row.meta is None:
            messages.append(Message(id, tape, body.message, parent, row.placed, revision, row.stamp, body.tokens))
        else:
            meta_fields = _meta_of(tape, row)
            messages.append(
                Message(id, tape, body.message, parent, row.placed, revision, row.stamp, body.tokens, *meta_fields)
            )
        parent = id
    return messages


def _parent_id(view: TapeView, row: PathRow, place: Place | None) -> str | None:
    """Return the id of the message that is shown before the one in a row."""
    place = place or view.place_at(row.lane, row.ordinal, row.tape_id)
    above = paths.last_rows(view, paths.before(view, place), 1)
    return _id_in(view, above[0]) if above else None


def _id_in(view: TapeView, row: PathRow) -> str | None:
    return message_from_row(view.tape, row, None).id


def merge_receipt(tape: str, entry: EntryRow | Receipt, merge: payloads.Merge, *, duplicate: bool) -> MergeReceipt:
    """Return the receipt of a merge, from its entry on the parent or from the receipt of that."""
    return MergeReceipt(
        tape=tape,
        seq=entry.seq,
        key=entry.key,
        hash=entry.hash if isinstance(entry, Receipt) else bytes(entry.hash).hex(),
        duplicate=duplicate,
        child=merge.tape,
        child_head=merge.seq,
        strategy=merge.strategy,
        message_ids=[message_id for message_id, _ in merge.messages],
        changed=merge.changed,
        kept=merge.kept,
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
