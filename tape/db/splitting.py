"""Splitting: one tape ends and the next begins with a summary of it, in one transaction on both."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from tape.core import ids, payloads
from tape.core.fold import CLOSED
from tape.core.plan import AddAnchor, Plain, Planned
from tape.db.record import Call, Opener, Recorder, Writing
from tape.db.transaction import Transaction
from tape.errors import HeadMoved, TapeNotFound

__all__ = ["split"]


def split(recorder: Recorder, call: Call, successor: str, summary: str, name: str | None) -> None:
    """End ``call.tape`` and begin ``successor`` in its place."""
    recorder.several(
        [call.tape, successor],
        ids.split_key(successor),
        lambda tx, opener: _split(tx, opener, recorder, call, successor, summary, name),
    )


def _split(
    tx: Transaction, opener: Opener, recorder: Recorder, call: Call, successor: str, summary: str, name: str | None
) -> None:
    old = opener(call)
    facts = tx.one(tx.statements.info, (call.tape,))
    if not old.existed or facts is None:
        raise TapeNotFound(call.tape)
    if facts[11] == successor:
        # The reply to the first attempt was lost: the successor's id is fixed before it, so it was this very call.
        return
    if old.head.status in CLOSED:
        raise recorder.closed(tx, call.tape, old.head)
    if call.expected_head is not None and call.expected_head != old.head.seq:
        raise HeadMoved(call.tape, call.expected_head, old.head.seq)
    cited = (call.tape, old.head.seq)
    ended = payloads.Status(status="ended", reason="split", redirect=successor)
    old.put(Planned(ended, old.head.place), Plain(key=ids.split_key(successor), payload=ended))
    born = Call(successor, call.actor, call.meta)
    born.create = payloads.Open(
        name=facts[4] if name is None else name,
        owner=facts[2],
        agent=facts[3],
        labels=[] if facts[5] is None else msgspec.json.decode(facts[5]),
    )
    young = opener(born)
    young.create()
    carry(old, young, cited)
    begun = payloads.Handoff(name="split", summary=summary)
    intent = AddAnchor(key=ids.split_key(call.tape), payload=begun, source=cited)
    young.put(intent.plan(young.head, young, None), intent)


def carry(old: Writing, young: Writing, cited: tuple[str, int]) -> None:
    """Put the state and the blocks that the old tape holds on the new one, each as an entry that cites the old tape.

    What they hold is taken as it is: a slot keeps the version of its schema, and a block that was removed stays removed
    also where the store declares it.
    """
    held = sorted([*old.slots("state:"), *old.slots("block:")], key=lambda slot: slot[1])
    for _, _, payload in held:
        if isinstance(payload, payloads.State) and payload.value is not UNSET:
            payload = msgspec.structs.replace(payload, given=payload.value, patch=False)
        elif isinstance(payload, payloads.Block):
            op = "remove" if payload.text is None else "set"
            payload = msgspec.structs.replace(payload, op=op, given=payload.text)
        else:
            continue
        intent = Plain(key=ids.new_id(), payload=payload, source=cited)
        young.put(intent.plan(young.head, young, None), intent)
