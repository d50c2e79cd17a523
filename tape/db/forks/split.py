"""Splitting: one tape ends and the next begins with a summary of it, in one transaction on both."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from tape.core.entries import ids, payloads
from tape.core.plan.intents import AddAnchor, Plain, canonical, digest_of
from tape.core.plan.keys import DERIVED, GIVEN, Key
from tape.db.engine.transaction import Transaction
from tape.db.record.recorder import Opener, Recorder
from tape.db.record.writing import Call, Writing
from tape.db.sql.rows.entries import EntryRow
from tape.db.view.values import decoded
from tape.errors import ProvenanceConflict, TapeNotFound
from tape.new_ids import keyed

__all__ = ["split"]


def split(recorder: Recorder, call: Call, key: str | None, summary: str, name: str | None) -> str:
    """End ``call.tape`` and begin another in its place, unless the same call did so before; returns the other's id."""
    # Fixed before the first attempt, so that a second one after a lost reply finds it; with a key, for all calls.
    successor = recorder.shared.new_id() if key is None else ids.keyed_id(call.tape, key)
    ending = key or ids.split_key(successor)
    recorder.several(
        [call.tape, successor],
        ending,
        lambda tx, opener: _split(tx, opener, call, ending, successor, summary, name),
    )
    return successor


def _split(
    tx: Transaction,
    opener: Opener,
    call: Call,
    ending: str,
    successor: str,
    summary: str,
    name: str | None,
) -> None:
    old = opener(call)
    facts = tx.one(tx.statements.info, (call.tape,))
    if not old.existed or facts is None:
        raise TapeNotFound(call.tape)
    made = tx.one(tx.statements.entry_by_key, (old.tape_id, ending))
    if made is not None:
        _check_same(tx, call.tape, made, successor, summary)
        return
    old.check_shown()
    old.check_open()
    old.check_head()
    cited = (call.tape, old.head.seq)
    ended = payloads.Status(status="ended", reason="split", redirect=successor)
    old.record(Plain(key=Key(ending, GIVEN), payload=ended))
    born = Call(successor, call.actor, call.meta)
    born.create = payloads.Open(
        name=facts.name if name is None else name,
        owner=facts.owner,
        agent=facts.agent,
        labels=[] if facts.labels is None else msgspec.json.decode(facts.labels),
    )
    following = opener(born)
    following.create()
    carry_over(old, following, cited)
    begun = payloads.Handoff(name="split", summary=summary)
    following.record(AddAnchor(key=Key(ids.split_key(call.tape), DERIVED), payload=begun, source=cited))


def _check_same(tx: Transaction, tape: str, made: EntryRow, successor: str, summary: str) -> None:
    """Refuse a key under which something else was recorded, or a split with another summary."""
    ended = decoded(made)
    stored: dict[str, Any] = {"kind": ended.kind}
    if isinstance(ended, payloads.Status) and ended.redirect == successor:
        row = tx.one(tx.statements.head, (successor,))
        begun = tx.one(tx.statements.entry_by_key, (row.number, ids.split_key(tape))) if row is not None else None
        handoff = decoded(begun) if begun is not None else None
        stored = {"kind": "split", "summary": handoff.summary if isinstance(handoff, payloads.Handoff) else None}
    requested = {"kind": "split", "summary": summary}
    if stored != requested:
        raise ProvenanceConflict(
            tape, made.key, made.seq, digest_of(canonical(stored)), digest_of(canonical(requested))
        )


def carry_over(old: Writing, following: Writing, cited: tuple[str, int]) -> None:
    """Put the state and the blocks that the old tape holds on the new one, each as an entry that cites the old tape.

    What they hold is taken as it is: a slot keeps the version of its schema, and a block that was removed stays removed
    also where the store declares it.
    """
    view = old.view()
    held = sorted([*view.slots("state:"), *view.slots("block:")], key=lambda slot: slot[1])
    for _, _, payload in held:
        if isinstance(payload, payloads.State) and payload.value is not UNSET:
            payload = msgspec.structs.replace(payload, given=payload.value, patch=False)
        elif isinstance(payload, payloads.Block):
            if payload.document is None and payload.op not in ("load", "unload"):
                op = "remove" if payload.text is None else "set"
                payload = msgspec.structs.replace(payload, op=op, given=payload.text)
        else:
            continue
        following.record(Plain(key=keyed(None, following.shared.new_id), payload=payload, source=cited))
