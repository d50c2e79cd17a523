"""What payloads are made of: places, answers, what comes back, and where a fork began."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ROOT", "Answer", "ForkPoint", "Layer", "Loosened", "Place", "Reopened"]


class Place(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A position that a message keeps for ever: a lane and a depth in it, on this tape or on an ancestor.

    Lane 0, ordinal 0 is the root above every first message.
    """

    lane: int
    ordinal: int
    tape: str | None = None


ROOT = Place(0, 0)
"""The place above every first message."""


class Layer(Struct, frozen=True, array_like=True, gc=False):
    """An ancestor as a fork sees it: up to which seq, which clear was in force then, whether it had overrides."""

    tape: str
    asof: int
    cleared: int
    overriding: bool


class ForkPoint(Struct, frozen=True, omit_defaults=True):
    """Where a tape was forked off: the parent, its seq and hash there, and every ancestor, nearest first."""

    tape: str
    seq: int
    hash: str
    layers: list[Layer] = []
    lo: int = 0
    receipt: int = 0
    """The parent's entry that records the fork."""


class Answer(Struct, array_like=True, omit_defaults=True, gc=False):
    """A tool call that a message answers, and the place of the message that made the call."""

    call: str
    maker: Place


class Reopened(Struct, array_like=True, omit_defaults=True, gc=False):
    """A message that comes back: its place, the entry that placed it, the entry whose body holds."""

    place: Place
    placed: int
    body: int
    clear: int = 0
    """The clear that took it, when it was that and no retraction of its own."""
    of: str | None = None
    """The ancestor that the body lies in, if it does."""


class Loosened(Struct, array_like=True, omit_defaults=True, gc=False):
    """What a change of a message did to a compaction: how many of its sources are out, whether one was revised."""

    seq: int
    gone: int
    revised: bool
    loose: bool
    """A message within the run that the summary does not cover is in the view again."""
    tape: str | None = None
    """The ancestor that made the compaction, if one did."""
