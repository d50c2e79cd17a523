"""The path of a tape at every seq, in little room: what was on it just before each turn, and at the end.

Between two turns a path only grows, so that the one at any seq is a part of the one before the next turn. A turn is
what takes messages off the path: a new branch, a switch, a retraction, its undoing, a clear.
"""

from __future__ import annotations

import itertools
from typing import Any

import tape
from tape.web.parts import instant, message_view

__all__ = ["Turns", "frames"]

_TURNING = frozenset({"switch", "retract", "restore", "clear"})
_MOST = 200
"""Turns that a report knows, the last ones."""
_LARGEST = 2_000_000
"""Messages on all kept paths together."""


class Turns:
    """Finds the turns of a tape while its entries are read in order."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.revisions: dict[str, list[int]] = {}
        self._place: tuple[int, int] | None = None

    def see(self, entry: tape.Entry) -> None:
        """Take notice of the next entry."""
        payload: Any = entry.payload
        if entry.kind == "revise" and payload is not None:
            self.revisions.setdefault(payload.id, []).append(entry.seq)
        here = (entry.head.lane, entry.head.ordinal)
        grown = self._place is None or here in (self._place, (self._place[0], self._place[1] + 1))
        if entry.kind in _TURNING or not grown:
            self.seqs.append(entry.seq)
        self._place = here


def frames(chat: tape.Tape, head: int, turns: Turns, clean: Any) -> dict[str, Any]:
    """Return the paths just before each turn and at the head, newest first, and the messages that are inherited."""
    inherited: dict[tuple[str, int], int] = {}
    bodies: list[dict[str, Any]] = []
    kept: list[list[Any]] = []
    revised: dict[int, list[int]] = {}
    size, before = 0, list[int]()
    ends = [head, *(seq - 1 for seq in reversed(turns.seqs[-_MOST:]))]
    first = 0 if len(turns.seqs) <= _MOST else turns.seqs[-_MOST]
    for end in ends:
        if end < 1:
            continue
        path: list[int] = []
        for message in chat.at(end).messages():
            if message.tape == chat.id:
                path.append(message.seq)
                if message.id in turns.revisions:
                    revised[message.seq] = turns.revisions[message.id]
                continue
            place = inherited.setdefault((message.id, message.revision), len(inherited))
            if place == len(bodies):
                bodies.append(_body(message, clean))
            path.append(-1 - place)
        size += len(path)
        if size > _LARGEST:
            first = end + 1
            break
        same = next((n for n, (a, b) in enumerate(itertools.zip_longest(before, path)) if a != b), len(path))
        kept.append([end, same, _steps(path[same:])])
        before = path
    return {"first": first, "frames": kept, "inherited": bodies, "revised": revised}


def _steps(path: list[int]) -> list[int]:
    """Return each number as its distance from the one before it: small numbers that take little room."""
    return [number - before for before, number in itertools.pairwise([0, *path])]


def _body(message: tape.Message, clean: Any) -> dict[str, Any]:
    about = {"id": message.id, "seq": message.seq, "revision": message.revision, "inherited": message.tape}
    at = {"at": instant(message.recorded_at), "tokens": message.tokens}
    return dict(clean(about)) | at | message_view(clean(message.data))
