"""What plans ask of a tape: where its messages are, how they stand, and what else it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from tape.core.entries.payloads import Answer, Body, Payload, Place
from tape.core.messages import toolcalls
from tape.core.summaries.runs import Compaction
from tape.core.view.fold import OUT, Head
from tape.errors import UnknownMessage

__all__ = ["Covered", "Lookup", "Maker", "Standing", "known_place", "visible_place", "waiting"]


class Standing(Struct, frozen=True, gc=False):
    """How a message stands: its newest body, and whether it is among the live rows."""

    placed: int
    since: int
    body: int
    live: bool
    why: str = ""
    of: str | None = None
    """The ancestor that the body lies in, if it does."""

    def visible(self, cleared: int) -> bool:
        """Whether readers see it, given the clear in force."""
        return self.live and self.since > cleared

    def out(self, cleared: int) -> bool:
        """Whether it was taken out in its own right, and not along with the call it answers."""
        return self.since <= cleared if self.live else self.why == OUT


class Maker(NamedTuple):
    """The place of a message that makes a call, and the entry that said so; 0 for one that cannot have placed it."""

    place: Place
    seq: int


class Covered(Struct, frozen=True):
    """A message in a run: its id and place, the calls it makes, those that await their result, those it answers."""

    id: str
    place: Place
    calls: Sequence[str]
    waiting: list[str]
    answers: list[Answer]


class Lookup(Protocol):
    """What a plan may ask of the view."""

    tape: str

    @property
    def forked(self) -> bool:
        """Whether the tape inherits messages, so that an id may be taken by an ancestor."""

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry."""

    def standing(self, place: Place) -> Standing:
        """Return how the message at a place stands."""

    def body(self, seq: int, of: str | None = None) -> Body:
        """Return the message in an entry, of this tape or of an ancestor."""

    def bindings(self, place: Place, placed: int) -> list[Answer]:
        """Return the calls that a message was bound to when it was appended."""

    def makers(self, call: str) -> Iterator[Maker]:
        """Yield the places of the messages that ever made a call, by the entries that said so, newest first."""

    def answers(self, maker: Place) -> list[Place]:
        """Return the places of the messages bound to calls of the message at ``maker``."""

    def lane(self, place: Place) -> tuple[int, int]:
        """Return the depth at which a place's lane branches off, and that of its last place if it can be extended."""

    def contains(self, end: Place, place: Place) -> bool:
        """Whether ``place`` is on the path from the root to ``end``."""

    def clears(self) -> list[tuple[int, int]]:
        """Return the clears in force as (seq, messages still hidden), newest first."""

    def is_anchor(self, seq: int) -> bool:
        """Whether the entry at ``seq`` is an anchor or a handoff."""

    def slot(self, name: str, *, inherited: bool = True) -> Payload | None:
        """Return the entry that a slot holds, of the tape or (if inherited) of its nearest ancestor that has one."""

    def slots(self, prefix: str) -> list[tuple[str, int, Payload]]:
        """Return every slot whose name begins so: name, seq and entry."""

    def compactions(self) -> list[Compaction]:
        """Return every compaction that is in force on some path or would be if the tape's own clears were undone."""

    def compactions_on(self, end: Place) -> list[Compaction]:
        """Return the compactions on the path to ``end``, after its latest anchor and any clear."""

    def covers(self, compaction: Compaction) -> list[str]:
        """Return the ids of the messages that a compaction covers."""

    def summary(self, compaction: Compaction) -> Any:
        """Return a compaction as readers see it."""

    def anchor_depth(self, end: Place) -> int:
        """Return the depth of the latest anchor on the path to ``end``, or 0."""

    def run(self, first: Place, last: Place) -> list[Covered]:
        """Return the visible messages from one place to another."""

    def id_at(self, place: Place) -> str:
        """Return the id of the message at a place."""

    def returned(self, clear: int) -> list[Place]:
        """Return the places of messages from before a clear that changed since by themselves, shallowest first."""

    def labels(self) -> list[str]:
        """Return the tape's labels."""

    def clock(self) -> int:
        """Return the time by the database's clock, which is one for all who write."""


def visible_place(look: Lookup, head: Head, message_id: str) -> tuple[Place, Standing]:
    """Return where a message of the view is and how it stands; raises UnknownMessage for any other."""
    place, _, standing = known_place(look, message_id)
    if not standing.visible(head.cleared):
        raise UnknownMessage(look.tape, message_id, retracted=True)
    return place, standing


def known_place(look: Lookup, message_id: str) -> tuple[Place, int, Standing]:
    """Return where a message is, the entry that placed it, and how it stands; raises UnknownMessage for any other."""
    placement = look.place(message_id)
    if placement is None:
        raise UnknownMessage(look.tape, message_id)
    return *placement, look.standing(placement[0])


def waiting(body: Body) -> list[str]:
    """Return those of the calls that a message was recorded to make whose results are not in it."""
    return [call for call in toolcalls.waiting(body.message) if call in body.calls] if body.calls else []
