"""The path of a tape at every seq, in little room: what was on it just before each turn, and at the end.

Between two turns a path only grows, so that the one at any seq is a part of the one before the next turn. A turn is
what takes messages off the path: a new branch, a switch, a retraction, its undoing, a clear. Of the end, the other
branches are kept as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import tape
from tape.web.parts import instant, message_texts, message_view

__all__ = ["Turns", "frames"]

_TURNING = frozenset({"switch", "retract", "restore", "clear"})
_MOST = 200
"""Turns that a report knows, the last ones."""
_LARGEST = 2_000_000
"""Messages on all kept paths together."""
_BRANCHES = 50
"""Branches that a report knows, the last ones."""


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
        place = (entry.head.lane, entry.head.ordinal)
        grown = self._place is None or place in (self._place, (self._place[0], self._place[1] + 1))
        if entry.kind in _TURNING or not grown:
            self.seqs.append(entry.seq)
        self._place = place


def frames(chat: tape.Tape, head: int, turns: Turns, clean: Any) -> dict[str, Any]:
    """Return the paths just before each turn and at the head, newest first, and the messages that are inherited."""
    paths = _Paths(chat, turns, clean)
    listed: list[list[Any]] = []
    ends = [head, *(seq - 1 for seq in reversed(turns.seqs[-_MOST:]))]
    first = 0 if len(turns.seqs) <= _MOST else turns.seqs[-_MOST]
    for end in ends:
        if end < 1:
            continue
        path = paths.numbers(chat.at(end).messages())
        if paths.size > _LARGEST:
            first = end + 1
            break
        listed.append([end, *paths.written(path)])
    return {
        "first": first,
        "frames": listed,
        **_branches(chat.at(head) if head else chat, paths, clean),
        **paths.known(),
    }


class _Paths:
    """Writes paths as numbers: the seq of a message, or a negative number for one that is inherited."""

    def __init__(self, chat: tape.Tape, turns: Turns, clean: Any) -> None:
        self._id = chat.id
        self._turns = turns
        self._clean = clean
        self._inherited: dict[tuple[str, int], int] = {}
        self._bodies: list[dict[str, Any]] = []
        self._revised: dict[int, list[int]] = {}
        self._before: list[int] = []
        self.size = 0
        """Messages on all paths so far."""

    def numbers(self, messages: Iterable[tape.Message]) -> list[int]:
        """Return the numbers of a path, and keep what inherited messages say."""
        path = [self._number(message) for message in messages]
        self.size += len(path)
        return path

    def _number(self, message: tape.Message) -> int:
        if message.tape == self._id:
            if message.id in self._turns.revisions:
                self._revised[message.seq] = self._turns.revisions[message.id]
            return message.seq
        place = self._inherited.setdefault((message.id, message.revision), len(self._inherited))
        if place == len(self._bodies):
            self._bodies.append(_body(message, self._clean))
        return -1 - place

    def written(self, path: list[int]) -> list[Any]:
        """Return a path as how much of the one before it is the same, and the rest in small numbers."""
        pairs = itertools.zip_longest(self._before, path)
        same = next((place for place, (a, b) in enumerate(pairs) if a != b), len(path))
        self._before = path
        return [same, _steps(path[same:])]

    def known(self) -> dict[str, Any]:
        """Return the messages that are inherited, and the seqs of revisions."""
        return {"inherited": self._bodies, "revised": self._revised}


def _branches(chat: tape.Snapshot, paths: _Paths, clean: Any) -> dict[str, Any]:
    """Return the branches at the end, the last ones, and the messages of them that follow the same message."""
    heads = chat.heads()
    branches: list[list[Any]] = []
    following: dict[int, set[int]] = {}
    for end in heads[-_BRANCHES:] if heads[1:] else []:
        path = paths.numbers(chat.messages(branch=end.id))
        if paths.size > _LARGEST:
            break
        for parent, child in itertools.pairwise(path):
            following.setdefault(parent, set()).add(child)
        text = " ".join(message_texts(clean(end.data)))[:80]
        branches.append([clean.text(end.id), end.seq, text, *paths.written(path)])
    return {"branches": branches, "siblings": [sorted(alike) for alike in following.values() if len(alike) > 1]}


def _steps(path: list[int]) -> list[int]:
    """Return each number as its distance from the one before it: small numbers that take little room."""
    return [number - before for before, number in itertools.pairwise([0, *path])]


def _body(message: tape.Message, clean: Any) -> dict[str, Any]:
    about = {"id": message.id, "seq": message.seq, "revision": message.revision, "inherited": message.tape}
    at = {"at": instant(message.recorded_at), "tokens": message.tokens}
    return dict(clean(about)) | at | message_view(clean(message.data))
