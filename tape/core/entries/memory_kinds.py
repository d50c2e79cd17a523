"""The kinds of entries for what a tape remembers: anchors, summaries, state, blocks, usage and events."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tape.core import strict
from tape.core.entries.kind import Payload
from tape.core.entries.parts import Place
from tape.core.view import slots
from tape.core.view.fold import (
    COMPACTION,
    DECISION,
    LEASE,
    REQUEST,
    AnchorRow,
    CompactRow,
    EventRow,
    Head,
    Op,
    SlotRow,
)

__all__ = ["Anchor", "Block", "Compact", "Event", "Handoff", "State", "Usage"]


class Anchor(Payload):
    """A named checkpoint with state."""

    kind = "anchor"
    name: str
    state: Any = None
    parents: list[int] = []
    source_ids: list[str] = []

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Put the anchor where the head stands."""
        return [AnchorRow(seq, self.name, head.place)]


class Handoff(Payload):
    """An anchor with a contract."""

    kind = "handoff"
    name: str
    summary: str
    phase: str | None = None
    next_steps: list[str] = []
    source_ids: list[str] = []
    owner: str | None = None
    state: Any = None

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Put the anchor where the head stands."""
        return [AnchorRow(seq, self.name, head.place)]


class Compact(Payload):
    """A summary in place of a run of messages. It holds on every path that contains the last of them."""

    kind = "compact"
    compared = ("text", "first", "last")
    text: str
    first: str
    last: str
    covers: list[str]
    place: Place
    """Where the run ends."""
    lo: int
    """The depth at which the run begins."""
    span: tuple[int, int] = (0, 0)
    """The seqs that placed the first and the last message."""
    expected: int | None = None
    """The compaction that this one was made on top of."""
    expected_of: str | None = None
    """The ancestor that made that compaction, if one did."""

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Put the summary in place of its run."""
        return [CompactRow(seq, None, seq, self.place, self.lo, 0, False, False)]


class State(Payload):
    """A slot of typed state changed by a patch or put to a value."""

    kind = "state"
    compared = ("slot", "given", "patch")
    slot: str
    given: Any = None
    patch: bool = False
    value: Any | UnsetType = UNSET
    """What the slot holds afterwards; unset when it is gone."""
    schema: int = 0
    """The version of the slot's own schema."""

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Take the slot."""
        return [SlotRow(slots.STATE + self.slot, seq)]


class Block(Payload):
    """A block of the prompt set, extended or removed; or (``freeze``) the prompt rendered from all of them."""

    kind = "block"
    compared = ("label", "op", "given")
    label: str
    op: str
    given: str | None = None
    text: str | None = None
    """What the block holds afterwards; None when it is gone."""
    description: str | None = None
    max_tokens: int | None = None
    read_only: bool = False
    config: str | None = None
    """Of a frozen prompt: the hash of the block configuration it was rendered with."""
    declared: bool = False
    """Whether its configuration began as a declaration: then a limit that is not there was taken away on purpose."""
    document: str | None = None
    """Of a document that a provider loaded: its key, which the label ends with. Its text is from outside."""

    @property
    def loaded(self) -> bool:
        """Whether it is a document that is loaded, and no block of the prompt."""
        return self.text is not None and (self.document is not None or self.op == "load")

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Take the slot of the block, or that of the prompt."""
        return [SlotRow(slots.PROMPT if self.op == "freeze" else slots.BLOCK + self.label, seq)]


class Usage(Payload):
    """Tokens and cost of one model call, and the totals of the tape with it."""

    kind = "usage"
    changes_view = False
    compared = ("input_tokens", "output_tokens", "cached_tokens", "cost", "model", "cache_write_tokens")
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    model: str | None = None
    cache_write_tokens: int = 0
    """Input that the provider wrote to its cache. It is a part of the input, and in no totals of its own."""
    totals: list[int] = []
    """Input, output, cached, cost and calls, this one included."""

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Take the slot of the totals."""
        return [SlotRow(slots.USAGE, seq)]


class Event(Payload):
    """A fact that never enters context."""

    kind = "event"
    changes_view = False
    compared = ("name", "data")
    name: str
    data: Any = None
    """JSON; of an event that is about to be recorded, its bytes, if they were checked already."""
    settled: dict[str, int] = {}
    """What was decided when it was recorded: until when a request or a lease holds, and the token of a lease."""

    @property
    def takes_slot(self) -> bool:
        """Whether it changes more than the list of events."""
        return self.name in (COMPACTION, REQUEST, DECISION, LEASE)

    def content(self) -> dict[str, Any]:
        """Return its name and its data."""
        data = msgspec.json.decode(self.data) if type(self.data) is msgspec.Raw else self.data
        return {"kind": self.kind, "name": self.name, "data": data}

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Note the event under its name, and take the slot of what it tells: a compaction, a request, a lease."""
        named: list[Op] = [EventRow(seq, self.name)]
        # These are looked up when the next compaction, decision or holder comes; no other event changes what holds.
        if self.name == COMPACTION:
            # Its end belongs to the branch on which it began, wherever the head has gone since.
            lane = self.data.get("lane") if isinstance(self.data, dict) else None
            known = type(lane) is int and 0 <= lane < 2**63
            named.append(SlotRow(f"{slots.COMPACTING}{lane if known else head.place.lane}", seq))
        elif self.name == REQUEST and (request := self._names("request")):
            named.append(SlotRow(slots.ASKED + request, seq))
        elif self.name == DECISION and (request := self._names("request")):
            named += [SlotRow(slots.ASKED + request, seq, ended=True), SlotRow(slots.DECIDED + request, seq)]
        elif self.name == LEASE and (lease := self._names("lease")):
            named.append(SlotRow(slots.LEASE + lease, seq))
        return named

    def _names(self, field: str) -> str | None:
        """Return the id that an event of the store's own names; whatever an import brings is no reason to fail."""
        name = self.data.get(field) if isinstance(self.data, dict) else None
        return name if strict.is_identifier(name) else None
