"""Replays: what a repeated call gets back. A key that is on the tape is answered with the receipt of its entry.

A retry may come after a lost reply, and much may have happened since: so known keys are answered before anything else
is checked, and other content under a known key is a ProvenanceConflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tape.core.entries import ids, payloads
from tape.core.entries.payloads import Append, Payload, Place
from tape.core.plan.intents import Intent, Unchanged, canonical, digest_of
from tape.core.plan.keys import GIVEN, Key
from tape.core.plan.messages import AddMessage, ReviseMessage, UpsertMessage
from tape.core.records import Receipt
from tape.core.view.fold import CLOSED
from tape.db.record.writing import PlanView, Writing
from tape.db.sql.rows.entries import EntryRow
from tape.db.view.values import entry_from_row
from tape.errors import Corrupt, ProvenanceConflict, TapeError, TapeExists

__all__ = ["Replay", "check_created", "entry_at", "is_wanted", "message_of", "recorded_before", "says_nothing_new"]


class Replay(Struct):
    """An entry that was recorded before: its receipt, where its message is, and what it says."""

    receipt: Receipt
    place: Place
    payload: Payload

    def checked(self, intent: Intent) -> Replay:
        """Return this if the entry says what the intent says; raises ProvenanceConflict if not."""
        stored, requested = canonical(self.payload.content()), canonical(intent.content_as(self.payload.kind))
        if stored != requested:
            receipt = self.receipt
            raise ProvenanceConflict(receipt.tape, receipt.key, receipt.seq, digest_of(stored), digest_of(requested))
        return self


def check_created(writing: Writing, messages: Sequence[Intent]) -> None:
    """Raise TapeExists unless the same call made this tape, ProvenanceConflict if one with its key made another."""
    call, opening = writing.call, writing.call.create
    row = writing.tx.one(writing.tx.statements.entry_by_key, (writing.tape_id, call.create_key))
    if row is None or row.seq != 1 or opening is None:
        raise TapeExists(writing.tape, hidden=writing.head.hidden is not None)
    if call.key is None:
        return
    replay = _replay(writing, row)
    begun = _member(writing.view(), call.key, 0) is not None
    stored = canonical({**replay.payload.content(), "messages": begun})
    requested = canonical({**opening.content(), "messages": bool(messages)})
    if stored != requested:
        raise ProvenanceConflict(writing.tape, call.key, row.seq, digest_of(stored), digest_of(requested))


def is_wanted(writing: Writing, owner: str | None) -> bool:
    """Whether who would create this tape can have it as it is: it is shown, and of the owner that was named, if any."""
    row = writing.tx.one(writing.tx.statements.head, (writing.tape,))
    return row is not None and row.hidden is None and owner in (None, row.owner)


def entry_at(writing: Writing, seq: int, of: str | None = None) -> Replay:
    """Return the entry at ``seq``, of the tape or an ancestor."""
    writing.flush()
    number = writing.tape_id if of is None or writing.ancestry is None else writing.ancestry.number(of)
    row = writing.tx.one(writing.tx.statements.entry, (number, seq))
    if row is None:
        raise Corrupt(of or writing.tape, seq, "the entry cannot be read")
    return _replay(writing, row, of)


def _replay(writing: Writing, row: EntryRow, of: str | None = None) -> Replay:
    entry = entry_from_row(of or writing.tape, row, writing.ancestry)
    if entry.payload is None:
        raise Corrupt(entry.tape, entry.seq, "the entry cannot be read")
    receipt = Receipt(entry.tape, entry.seq, entry.key, message_of(entry.payload), entry.hash, True, entry.position)
    return Replay(receipt, Place(entry.head.lane, entry.head.ordinal, entry.head.tape or of), entry.payload)


def recorded_before(writing: Writing, intents: Sequence[Intent], *, lost: bool) -> dict[str, Replay]:
    """Return the entries of those intents whose keys are on the tape already, by key.

    After a lost attempt every key is looked up. Other content under one that tells no repeated call is someone else's.
    """
    replays: dict[str, Replay] = {}
    if not writing.existed:
        return replays
    view, key = writing.view(), writing.call.batch
    # This may give the messages of a batch other keys, so it comes first.
    batch = None if key is None else _find_batch(view, intents, key)
    by_key: dict[str, Intent] = {}
    for intent in intents:
        if lost or intent.known_by_key:
            by_key.setdefault(intent.key.value, intent)
    on_tape = batch.known if batch is not None else view.known(by_key) if len(by_key) > 1 else by_key
    for key, intent in by_key.items():
        row = writing.tx.one(writing.tx.statements.entry_by_key, (writing.tape_id, key)) if key in on_tape else None
        if row is not None:
            try:
                replays[key] = _replay(writing, row).checked(intent)
            except ProvenanceConflict:
                if intent.known_by_key:
                    raise
    if replays and batch is not None:
        _complete(writing, intents, replays, batch)
    return replays


def _complete(writing: Writing, intents: Sequence[Intent], replays: dict[str, Replay], batch: _Batch) -> None:
    """Add the rest of a batch that was recorded before; one of another length is a conflict."""
    view = writing.view()
    differs = batch.other_length()
    for intent in intents:
        if intent.key.value in replays or differs:
            continue
        # A message that was on the tape before the batch has no entry under the batch's key.
        placed = view.place(intent.id) if isinstance(intent, AddMessage) else None
        if placed is None:
            differs = True
        else:
            place, seq = placed
            replays[intent.key.value] = entry_at(writing, seq, place.tape).checked(intent)
    if differs:
        requested = digest_of(canonical([intent.content() for intent in intents if isinstance(intent, AddMessage)]))
        stored, first = digest_of(canonical(batch.contents(view))), next(iter(replays.values())).receipt.seq
        raise ProvenanceConflict(writing.tape, batch.key, first, stored, requested)


class _Batch(Struct):
    """What is on a tape of a batch with a key.

    The n-th message of a batch keyed ``k`` is keyed ``k#n``. A caller may have used that key for something else; then
    the message gets a key in the store's own namespace instead. Every message names its place in the batch, so that
    the two are never mistaken for each other.
    """

    key: str
    length: int
    """How many messages the caller gave."""
    known: set[str]
    """Those of the keys under which it would be recorded that the tape has."""
    members: dict[int, Append]
    """The messages that were recorded, by their index."""

    def other_length(self) -> bool:
        """Whether a batch of another length was recorded under the key."""
        return any(member.batch is not None and member.batch[1] != self.length for member in self.members.values())

    def contents(self, view: PlanView) -> list[Any]:
        """Return what the recorded messages say, those behind the length that was given as well."""
        messages = dict(self.members)
        index = self.length
        while (member := _member(view, self.key, index)) is not None:
            messages[index] = member
            index += 1
        return [messages[index].content() for index in sorted(messages)]


def _find_batch(view: PlanView, intents: Sequence[Intent], key: str) -> _Batch:
    """Look for a batch on a tape, and give each message the key under which it is or can be recorded."""
    messages = [intent for intent in intents if isinstance(intent, AddMessage)]
    usual = [ids.batch_key(key, index) for index in range(len(messages))]
    known = view.known([*usual, *(intent.key.value for intent in intents if not isinstance(intent, AddMessage))])
    members: dict[int, Append] = {}
    for index, intent in enumerate(messages):
        name = usual[index]
        member = _under(view, name, index) if name in known else None
        if member is None and name in known:
            # The key is somebody else's.
            known.discard(name)
            name = ids.spare_batch_key(key, index)
            member = _under(view, name, index)
        intent.key = Key(name, GIVEN)
        if member is not None:
            known.add(name)
            members[index] = member
    return _Batch(key, len(messages), known, members)


def _member(view: PlanView, key: str, index: int) -> Append | None:
    """Return the message of a batch at an index, under either of its keys."""
    return _under(view, ids.batch_key(key, index), index) or _under(view, ids.spare_batch_key(key, index), index)


def _under(view: PlanView, key: str, index: int) -> Append | None:
    """Return the entry under a key if it is the message of a batch at an index."""
    row = view.tx.one(view.sql.entry_by_key, (view.number, key))
    payload = None if row is None else entry_from_row(view.tape, row, view.ancestry).payload
    return payload if isinstance(payload, Append) and payload.in_batch(index) else None


def says_nothing_new(writing: Writing, new: Sequence[Intent]) -> bool:
    """Whether this is a revision equal to what holds, or a message under an id that an ancestor has.

    Like a known key, that is settled before any other check: a retry after a lost reply would otherwise meet its
    own success as a moved head.
    """
    head, call = writing.head, writing.call
    moved = call.expected_head not in (None, head.seq) or call.expected_view not in (None, head.view)
    conditional = moved or head.status in CLOSED or head.hidden is not None
    if not conditional or not writing.existed:
        return False
    view = writing.view()
    if all(type(intent) is AddMessage for intent in new):
        return all(isinstance(intent, AddMessage) and view.place(intent.id) for intent in new)
    if not isinstance(new[0], ReviseMessage | UpsertMessage):
        return False
    try:
        new[0].plan(head, view, None)
    except Unchanged:
        return True
    except TapeError:
        return False
    return False


def message_of(payload: Payload) -> str | None:
    """Return the id of the one message that an entry is about, if it is about one."""
    if isinstance(payload, payloads.Append | payloads.Revise | payloads.Switch):
        return payload.id
    if isinstance(payload, payloads.Retract | payloads.Restore) and len(payload.ids) == 1:
        return payload.ids[0]
    return None
