"""Turning rows of the tables into the core's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tape.core import payloads
from tape.core.fold import Head
from tape.core.payloads import Place
from tape.core.records import Anchor, Entry, Message, Source
from tape.errors import Corrupt

__all__ = ["anchor_from", "entry_from_row", "head_from_row", "message_from_row"]


def head_from_row(row: Sequence[Any]) -> Head:
    """Return the head in a row of the ``head`` statement: id, owner, status, reason, completed_at, then the head."""
    (
        _,
        _,
        status,
        reason,
        completed,
        seq,
        hash,
        stamp,
        _,
        lane,
        ordinal,
        lo,
        tip,
        cleared,
        messages,
        last,
        aliased,
    ) = row
    return Head(
        seq,
        bytes(hash),
        stamp,
        Place(lane, ordinal),
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


def entry_from_row(tape: str, row: Sequence[Any]) -> Entry:
    """Return the entry in a row of ``entry``, its payload decoded; an erased payload is None."""
    (
        position,
        _,
        seq,
        kind,
        key,
        actor,
        source_tape,
        source_seq,
        raw,
        meta,
        stamp,
        version,
        hash,
        _,
        lane,
        ordinal,
    ) = row
    payload = None
    if raw is not None:
        try:
            payload = payloads.decode(kind, version, raw)
        except Corrupt as error:
            raise Corrupt(tape, seq, error.what) from error
    return Entry(
        tape=tape,
        seq=seq,
        kind=kind,
        key=key,
        actor=actor,
        source=None if source_seq is None else Source(source_tape or tape, source_seq),
        payload=payload,
        meta=None if meta is None else msgspec.json.decode(meta),
        stamp=stamp,
        version=version,
        hash=bytes(hash).hex(),
        head=Place(lane, ordinal),
        position=position,
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
    return Message(body.id, tape, body.message, parent, placed, revision, stamp)


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
