"""Batches with a key: which entries of a tape are theirs, whatever else was recorded under keys that look alike.

The n-th message of a batch keyed ``k`` is keyed ``k#n``. A caller may have used that key for something else; then the
message gets a key in the store's own namespace instead. Every message tells its place in the batch, so that the two
are never mistaken for each other. Entries of earlier releases do not tell: their keys alone say what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tape.core.entries import ids
from tape.core.entries.payloads import Append
from tape.core.plan.intents import Intent
from tape.core.plan.keys import Key, Origin
from tape.core.plan.messages import AddMessage
from tape.db.record.lookup import TapeLookup
from tape.db.view.rows import entry_from_row

__all__ = ["Batch", "find_batch"]


class Batch(Struct):
    """What is on a tape of a batch with a key."""

    key: str
    length: int
    """How many messages the caller gave."""
    known: set[str]
    """Those of the keys under which it would be recorded that the tape has."""
    members: dict[int, Append]
    """The messages that were recorded, by their index."""

    def other_length(self, look: TapeLookup) -> bool:
        """Whether a batch of another length was recorded under the key."""
        for member in self.members.values():
            if member.batch is not None:
                return member.batch[1] != self.length
        return bool(self.members) and _member(look, self.key, self.length) is not None

    def contents(self, look: TapeLookup) -> list[Any]:
        """Return what the recorded messages say, those behind the length that was given as well."""
        found = dict(self.members)
        index = self.length
        while (member := _member(look, self.key, index)) is not None:
            found[index] = member
            index += 1
        return [found[index].content() for index in sorted(found)]


def find_batch(look: TapeLookup, intents: Sequence[Intent], key: str) -> Batch:
    """Look for a batch on a tape, and give each message the key under which it is or can be recorded."""
    messages = [intent for intent in intents if isinstance(intent, AddMessage)]
    usual = [ids.batch_key(key, index) for index in range(len(messages))]
    known = look.known([*usual, *(intent.key.value for intent in intents if not isinstance(intent, AddMessage))])
    members: dict[int, Append] = {}
    for index, intent in enumerate(messages):
        name = usual[index]
        member = _under(look, name, index) if name in known else None
        if member is None and name in known:
            # The key is somebody else's.
            known.discard(name)
            name = ids.spare_batch_key(key, index)
            member = _under(look, name, index)
        intent.key = Key(name, Origin.GIVEN)
        if member is not None:
            known.add(name)
            members[index] = member
    return Batch(key, len(messages), known, members)


def _member(look: TapeLookup, key: str, index: int) -> Append | None:
    """Return the message of a batch at an index, under either of its keys."""
    return _under(look, ids.batch_key(key, index), index) or _under(look, ids.spare_batch_key(key, index), index)


def _under(look: TapeLookup, key: str, index: int) -> Append | None:
    """Return the entry under a key if it is the message of a batch at an index."""
    row = look.tx.one(look.sql.entry_by_key, (look.tape_id, key))
    payload = None if row is None else entry_from_row(look.tape, row, look.family).payload
    return payload if isinstance(payload, Append) and payload.in_batch(index) else None
