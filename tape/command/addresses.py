"""Addresses: how tapes and places on them are written on a command line. Only this module parses them.

``TAPE`` is an id, the beginning of one, its end after ``..``, or a name. ``TAPE:SEQ`` is a place on a tape, as the log
prints it. ``TAPE@POINT`` is one, too, where the point is a seq, a moment, an anchor or a message. After another tape,
``:SEQ`` and ``@POINT`` are places on that tape.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import tape
from tape.command.arguments import point
from tape.command.exit_codes import NOT_FOUND, USAGE, Failure
from tape.core.amounts import count

__all__ = ["Address", "at_point", "find_tape", "known_tape", "own_seq", "read_address", "suggest", "within"]

_MOST = 10_000
"""How many of the newest tapes are searched by a part of the name, or by the end of the id."""


class Address(NamedTuple):
    """A tape, and the point of it that was named, if one was."""

    chat: tape.Tape
    point: str | None

    @property
    def view(self) -> tape.Snapshot:
        """The tape as of that point, or as it is now."""
        return at_point(self.chat, self.point)


def read_address(store: tape.Store, written: str, beside: tape.Tape | None = None) -> Address:
    """Return the tape and the point that an address names.

    An id may contain any character, so a tape with exactly that id takes precedence.
    """
    divided = _divided(written)
    if divided is not None and not divided[0]:
        if beside is not None:
            return Address(beside, divided[1])
        divided = None
    if (chat := known_tape(store, written)) is not None:
        return Address(chat, None)
    if divided is not None and (chat := known_tape(store, divided[0])) is not None:
        return Address(chat, divided[1])
    try:
        return Address(find_tape(store, written), None)
    except (tape.TapeNotFound, Failure):
        if written.endswith("@") and len(written) > 1:
            raise Failure(
                f"{written!r} has nothing after the @", "write it as TAPE@SEQ or TAPE@ANCHOR", USAGE
            ) from None
        if divided is None:
            raise
    return Address(find_tape(store, divided[0]), divided[1])


def _divided(written: str) -> tuple[str, str] | None:
    """Return the parts before and after the last ``@``, or the ``:`` before a number, which a time contains, too."""
    for form in (r"(.*)@(\d{4}-\d\d-\d\d.*)", r"(.*):(\d{1,18})", r"(.*)@(.+)"):
        if (match := re.fullmatch(form, written, re.S)) is not None:
            return match[1], match[2]
    return None


def known_tape(store: tape.Store, id: str) -> tape.Tape | None:
    """Return the tape with exactly this id."""
    try:
        return store.get(id)
    except tape.TapeHidden:
        # The hidden tape is the one that was named, not another whose id begins like it.
        raise
    except (tape.TapeNotFound, tape.InvalidEntry):
        return None


def find_tape(store: tape.Store, named: str) -> tape.Tape:
    """Return the tape with this id, or the only one that matches by its name or by the start or end of its id.

    If a parent and its own forks match, the parent is returned. Raises TapeNotFound, or Failure if several match.
    """
    if (chat := known_tape(store, named)) is not None:
        return chat
    for close in _close(store, named):
        names = {info.id for info in close}
        roots = [info for info in close if info.parent not in names]
        if len(roots) == 1:
            return store.get(roots[0].id)
        if roots:
            ids = ", ".join(info.id for info in roots[:3]) + (", ..." if len(roots) > 3 else "")
            raise Failure(f"{named!r} matches {count(len(roots), 'tape')}: {ids}", "use a full id", NOT_FOUND)
    # It raises the error for an id that does not exist, or that is not valid.
    return store.get(named)


def _close(store: tape.Store, named: str) -> Iterator[list[tape.TapeInfo]]:
    """Yield the tapes that may be meant, the likeliest first."""
    if not named:
        return
    yield list(store.list(name=named, limit=100))
    # What cannot be part of an id may still be part of a name.
    with contextlib.suppress(tape.InvalidEntry):
        yield list(store.list(prefix=named, limit=1000))
    newest = list(_newest(store))
    if named.startswith("..") and len(named) > 2:
        # Long ids are printed in this form where there is little room.
        yield [info for info in newest if info.id.endswith(named[2:])]
    sought = named.casefold()
    named_so = [(info, info.name.casefold()) for info in newest if info.name]
    yield [info for info, name in named_so if name.startswith(sought)]
    yield [info for info, name in named_so if sought in name]


def _newest(store: tape.Store) -> Iterator[tape.TapeInfo]:
    cursor: str | None = None
    for _ in range(_MOST // 1000):
        page = store.list(limit=1000, cursor=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return


def at_point(chat: tape.Tape, named: str | None) -> tape.Snapshot:
    """Return a tape as of a point, or as of now. A point beyond its end is an error, not the end."""
    if named is None:
        return chat
    where = point(named)
    if isinstance(where, int):
        within(chat, where)
    try:
        return chat.at(where)
    except tape.InvalidEntry as error:
        raise Failure(error.why, f"see: tape anchors {shlex.quote(chat.id)}", NOT_FOUND) from None


def within(chat: tape.Tape, seq: int) -> int:
    """Return a seq that the tape has; raises Failure for one beyond its end."""
    head = chat.info().head
    if not 0 <= seq <= head:
        problem = f"tape {chat.id!r} has no seq {seq}: its last entry is {head}"
        raise Failure(problem, f"see: tape log {shlex.quote(chat.id)}", NOT_FOUND)
    return seq


def own_seq(address: Address) -> int:
    """Return the seq of the entry that an address names: its anchor's, its message's, or the last one then or now."""
    where = None if address.point is None else point(address.point)
    view = address.view
    if isinstance(where, str):
        for entry in address.chat.entries(name=where, kinds=("anchor", "handoff"), reverse=True, limit=1):
            return entry.seq
        message = address.chat.message(where)
        if message.tape == address.chat.id:
            return message.seq
    return view.info().head


def suggest(store: tape.Store, begun: str) -> list[str]:
    """Return the addresses with this prefix: ids and names of tapes, and after ``@`` the anchors of a tape."""
    before, at, after = begun.rpartition("@")
    if at and before:
        try:
            anchors = find_tape(store, before).anchors(limit=200)
        except (tape.TapeError, Failure):
            anchors = []
        return sorted({f"{before}@{anchor.name}" for anchor in anchors if anchor.name.startswith(after)})
    newest = store.list(limit=200)
    ids = [info.id for info in (store.list(prefix=begun, limit=200) if begun else newest)]
    names = sorted(info.name for info in newest if info.name and info.name.startswith(begun))
    return list(dict.fromkeys([*ids, *names]))
