"""Stepping through a tape: a state machine from typed commands to the current seq and what to show. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

__all__ = ["HELP", "Shown", "Stepper"]

HELP = """\
n, next, Enter   next entry               b, back          previous entry
N, j N, jump N   go to seq N              +N, -N           forward or back N entries
first, last      first or last entry      a, anchor        next anchor or handoff
s, show          entry in full            v, view          messages at this point
c, context       what a model sees        d, diff          changes of this entry
h, help, ?       show this help           q, quit          quit"""


class Shown(Struct, frozen=True):
    """What a step asks for: ``what`` is entry, show, view, context, diff, anchor, help, say or quit."""

    what: str
    text: str = ""


_LOOKS = ("show", "view", "context", "diff", "help", "quit", "anchor")
_SHORT = {name[0]: name for name in (*_LOOKS, "next", "back", "jump")} | {"?": "help", "exit": "quit"}
"""A command may be typed as its first letter."""


class Stepper:
    """A current seq in a range, moved by commands. It never leaves the range."""

    def __init__(self, first: int, last: int, at: int | None = None) -> None:
        self.first = first
        self.last = last
        self.seq = min(max(at if at is not None else first, first), last)

    @property
    def prompt(self) -> str:
        """The prompt before the cursor."""
        return f"[{self.seq}/{self.last}] "

    def do(self, typed: str) -> Shown:
        """Carry out one line of input; returns what is to be shown."""
        words = typed.strip().split()
        if not words:
            return self.move(self.seq + 1)
        name = _SHORT.get(words[0].lower(), words[0].lower())
        if re.fullmatch(r"[+-]?\d{1,18}", name) and len(words) == 1:
            return self.move(self.seq + int(name) if name[0] in "+-" else int(name))
        if name == "jump":
            if len(words) != 2 or not re.fullmatch(r"\d{1,18}", words[1]):
                return Shown("say", "jump needs a seq, as in: j 12")
            return self.move(int(words[1]))
        if len(words) > 1:
            return Shown("say", f"{name!r} takes no argument; h for help")
        moves = {"next": self.seq + 1, "back": self.seq - 1, "first": self.first, "last": self.last}
        if name in moves:
            return self.move(moves[name])
        if name in _LOOKS:
            return Shown(name)
        return Shown("say", f"unknown command {name!r}; h for help")

    def move(self, seq: int) -> Shown:
        """Go to a seq, if it is within the range."""
        if self.first <= seq <= self.last:
            self.seq = seq
            return Shown("entry")
        if seq == self.last + 1:
            return Shown("say", "already at the last entry")
        if seq == self.first - 1:
            return Shown("say", "already at the first entry")
        return Shown("say", f"seq {seq} is not between {self.first} and {self.last}")
