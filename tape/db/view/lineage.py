"""A fork's family: the ancestors that it inherits from, each as of the seq at which it was forked off.

Nothing is copied when a tape is forked. Reads of the fork ask all of its lineage in one statement, which gets the
lineage as a JSON parameter; it never changes, so it is read once and kept with the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tape.core.entries.payloads import Layer, Place
from tape.errors import Corrupt

__all__ = ["Family", "Member"]


class Member(Struct, frozen=True, array_like=True, gc=False):
    """One ancestor: its number and name, the seq up to which it is seen, its clear then, whether it has overrides."""

    number: int
    tape: str
    asof: int
    cleared: int
    overriding: bool


class Family:
    """The ancestors of a fork, nearest first."""

    __slots__ = ("_by_name", "_by_number", "members")

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._by_name = {member.tape: member for member in members}
        self._by_number = {member.number: member for member in members}

    @classmethod
    def decoded(cls, raw: bytes) -> Family:
        """Return the family that a fork's row holds."""
        return cls(_decode(raw))

    def encoded(self) -> bytes:
        """Return the family as a fork's row holds it."""
        return msgspec.json.encode(self.members)

    def layers(self) -> list[Layer]:
        """Return the family as a fork's first entry records it."""
        return [Layer(m.tape, m.asof, m.cleared, m.overriding) for m in self.members]

    def number(self, tape: str) -> int:
        """Return the number of an ancestor."""
        try:
            return self._by_name[tape].number
        except KeyError:
            raise Corrupt(tape, 0, "the tape is not an ancestor") from None

    def name(self, number: int) -> str | None:
        """Return the name of an ancestor; None for 0, the tape itself."""
        if number == 0:
            return None
        try:
            return self._by_number[number].tape
        except KeyError:
            raise Corrupt(str(number), 0, "the tape is not an ancestor") from None

    def parameter(self, own: Any) -> str:
        """Return the lineage as a statement takes it: own layer first, then every ancestor."""
        rows = [own, *((m.number, m.asof, m.cleared, int(m.overriding)) for m in self.members)]
        return msgspec.json.encode(rows).decode()


_decode = msgspec.json.Decoder(list[Member]).decode


def place_at(lane: int, ordinal: int, number: int, family: Family | None) -> Place:
    """Return the place that a row names; 0 stands for the tape itself."""
    if number == 0:
        return Place(lane, ordinal)
    if family is None:
        raise Corrupt(str(number), 0, "the tape is not an ancestor")
    return Place(lane, ordinal, family.name(number))
