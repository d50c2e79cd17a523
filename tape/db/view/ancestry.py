"""A fork's ancestry: the tapes that it inherits from, each as of the seq at which it was forked off.

Nothing is copied when a tape is forked. Reads of the fork ask all of its lineage in one statement, which gets the
lineage as a JSON parameter; it never changes, so it is read once and kept with the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.errors import Corrupt

__all__ = ["Ancestry", "Layer", "place_at"]


class Layer(Struct, frozen=True, array_like=True, gc=False):
    """One ancestor: its number and name, the seq up to which it is seen, its clear then, whether it has overrides."""

    number: int
    tape: str
    asof: int
    cleared: int
    overriding: bool


class Ancestry:
    """The ancestors of a fork, nearest first."""

    __slots__ = ("_by_name", "_by_number", "layers")

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self._by_name = {layer.tape: layer for layer in layers}
        self._by_number = {layer.number: layer for layer in layers}

    @classmethod
    def decoded(cls, raw: bytes) -> Ancestry:
        """Return the ancestry that a fork's row holds."""
        return cls(_decode(raw))

    def encoded(self) -> bytes:
        """Return the ancestry as a fork's row holds it."""
        return msgspec.json.encode(self.layers)

    def recorded(self) -> list[payloads.Layer]:
        """Return the ancestry as a fork's first entry records it."""
        return [payloads.Layer(layer.tape, layer.asof, layer.cleared, layer.overriding) for layer in self.layers]

    def layer(self, tape: str) -> Layer:
        """Return an ancestor by its name."""
        try:
            return self._by_name[tape]
        except KeyError:
            raise Corrupt(tape, 0, "the tape is not an ancestor") from None

    def number(self, tape: str) -> int:
        """Return the number of an ancestor."""
        return self.layer(tape).number

    def name(self, number: int) -> str | None:
        """Return the name of an ancestor; None for 0, the tape itself."""
        if number == 0:
            return None
        try:
            return self._by_number[number].tape
        except KeyError:
            raise Corrupt(str(number), 0, "the tape is not an ancestor") from None


_decode = msgspec.json.Decoder(list[Layer]).decode


def place_at(lane: int, ordinal: int, number: int, ancestry: Ancestry | None) -> Place:
    """Return the place that a row names; 0 stands for the tape itself."""
    if number == 0:
        return Place(lane, ordinal)
    if ancestry is None:
        raise Corrupt(str(number), 0, "the tape is not an ancestor")
    return Place(lane, ordinal, ancestry.name(number))
