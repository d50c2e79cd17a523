"""The state of the full-screen stepper, moved by single keys. It does not depend on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import tape
from tape.command.addresses import Address, own_seq
from tape.command.exit_codes import Failure
from tape.command.show.describe import entry_failed, entry_text
from tape.command.show.messages import Look
from tape.command.stepping.reading import PANES, Reading

__all__ = ["HELP", "Steps"]

HELP = """\
n j Down     next entry                 b k Up       previous entry
Space PgDn   scroll the pane down       PgUp         scroll the pane up
< Home       first entry                > End        last entry
e E          next, previous error       r R          next, previous revision
a A          next, previous anchor      /            search for text
m M          next, previous match       g :          go to a seq, an anchor or a message
s v c d      show entry, view, context or diff in the pane; Tab switches between them
h ?          show this help             q            quit"""

_ALIKE = {
    "j": "n",
    "down": "n",
    "k": "b",
    "p": "b",
    "up": "b",
    " ": "pagedown",
    "<": "home",
    ">": "end",
    ":": "g",
    "?": "h",
}
"""Keys that do the same as another."""
_KINDS = {"r": ("revise", "retract", "restore", "clear"), "a": ("anchor", "handoff")}
_CALLED = {"r": "revision", "a": "anchor", "e": "error", "m": "match"}


_END = 10**9
"""An offset beyond every pane: drawing stops at the last row."""


class Steps:
    """A place on a tape and the pane beside it. ``press`` takes a key; ``advance`` continues a search."""

    def __init__(self, reading: Reading, first: int, last: int, at: int | None = None) -> None:
        self.reading = reading
        self.first, self.last = first, last
        self.seq = min(max(at if at is not None else first, first), last)
        self.pane = "entry"
        self.offset = 0
        """How many rows of the pane are above its upper edge."""
        self.page = 10
        """How many rows the pane has; set when it is drawn."""
        self.asking: str | None = None
        """What is being typed: a search (``/``) or a place to jump to (``g``)."""
        self.typed = ""
        self.said = ""
        self.helping = False
        self.done = False
        self._sought: re.Pattern[str] | None = None
        self._search: Iterator[tuple[int, bool]] | None = None
        self._seeking = ""

    @property
    def searching(self) -> bool:
        """Whether a search is under way."""
        return self._search is not None

    def press(self, key: str) -> None:
        """Carry out the command of a key. A key during a search ends it."""
        self.said = ""
        if self._search is not None:
            self._search, self.said = None, "search stopped"
        elif self.asking is not None:
            self._type(key)
        elif self.helping:
            self.helping = False
        else:
            self._do(_ALIKE.get(key, key))

    def _do(self, key: str) -> None:
        moves = {"n": self.seq + 1, "b": self.seq - 1, "home": self.first, "end": self.last}
        panes = dict(zip("svcd", PANES, strict=True))
        if key in moves:
            self._move(moves[key])
        elif key in panes:
            self._turn_to(panes[key])
        elif key == "tab":
            self._turn_to(PANES[(PANES.index(self.pane) + 1) % len(PANES)])
        elif key in ("pagedown", "pageup"):
            self.offset = max(self.offset + (self.page - 1) * (1 if key == "pagedown" else -1), 0)
        elif key.lower() in _KINDS:
            self._arrive(self.reading.next_of(self.seq, _KINDS[key.lower()], back=key.isupper()), _CALLED[key.lower()])
        elif key in ("e", "E"):
            self._seek(entry_failed, "error", back=key == "E")
        elif key in ("m", "M"):
            self._seek_text(back=key == "M")
        elif key in ("/", "g"):
            self.asking, self.typed = key, ""
        elif key == "h":
            self.helping = True
        elif key == "q":
            self.done = True
        else:
            self.said = f"unknown key {key}; h for help"

    def _turn_to(self, pane: str) -> None:
        """Show a pane from its top, or the view from its end, where its newest message is."""
        self.pane = pane
        self.offset = _END if pane == "view" else 0

    def _move(self, seq: int) -> None:
        if seq < self.first:
            self.said = "already at the first entry"
        elif seq > self.last:
            self.said = "already at the last entry"
        else:
            self.seq = seq
            self._turn_to(self.pane)

    def _arrive(self, seq: int | None, name: str) -> None:
        if seq is None or not self.first <= seq <= self.last:
            self.said = f"no other {name} in that direction"
        else:
            self._move(seq)

    def _type(self, key: str) -> None:
        if key == "escape":
            self.asking = None
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "enter":
            mode, self.asking = self.asking, None
            if mode == "g":
                self._jump(self.typed.strip())
            else:
                self._look_for(self.typed)
        elif len(key) == 1:
            self.typed += key

    def _jump(self, where: str) -> None:
        if not where:
            return
        try:
            seq = own_seq(Address(self.reading.chat, where))
        except (Failure, tape.TapeError) as error:
            self.said = str(error)
            return
        if self.first <= seq <= self.last:
            self._move(seq)
        else:
            self.said = f"seq {seq} is not between {self.first} and {self.last}"

    def _look_for(self, text: str) -> None:
        if text:
            try:
                self._sought = re.compile(text, re.IGNORECASE if text == text.lower() else 0)
            except re.error:
                self._sought = re.compile(re.escape(text), re.IGNORECASE)
        self._seek_text(back=False)

    def _seek_text(self, *, back: bool) -> None:
        sought = self._sought
        if sought is None:
            self.said = "no search yet; / to search"
            return
        look = Look(calls=self.reading.calls)
        self._seek(lambda entry: sought.search(entry_text(entry, look)) is not None, "match", back=back)

    def _seek(self, matches: Callable[[tape.Entry], bool], name: str, *, back: bool) -> None:
        self._search, self._seeking = self.reading.scan(self.seq, matches, back=back), name
        self.advance()

    def advance(self) -> None:
        """Search one more page."""
        if self._search is None:
            return
        seq, finished = next(self._search, (None, True))
        if finished:
            self._search = None
            self.said = ""
            self._arrive(seq, self._seeking)
        else:
            self.said = f"searching at {seq}; press any key to stop"
