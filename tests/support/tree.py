"""The naive tree of messages under both models: what is in the view, what an anchor cuts off, which summaries hold.

It is written from the specification and knows nothing of lanes, rows or indexes: messages are a plain dict with
parent pointers, every question is answered by walking all of them, and whether a message can be seen is worked out
anew each time instead of being kept. What the store must refuse is raised as ``Refused``, and then nothing changed.

"When" is told by any clock that never stands still: the model of one tape takes the seq of the entry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tape

__all__ = [
    "HEAD",
    "Digest",
    "Mark",
    "Note",
    "Refused",
    "Tree",
    "answers_of",
    "apart",
    "awaits_of",
    "calls_of",
    "revised_body",
    "same",
]

HEAD = "<head>"
"""The parent that was not given."""


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what can make or answer a call: the message itself, its blocks and its parts."""
    found = [body]
    for name in ("content", "parts"):
        if isinstance(body.get(name), list):
            found += [part for part in body[name] if isinstance(part, dict)]
    return found


def calls_of(body: dict[str, Any]) -> set[str]:
    """Return the tool calls that a message makes."""
    made = {call["id"] for call in body.get("tool_calls", ())}
    for part in _parts(body):
        match part.get("type"):
            case "tool_use":
                made.add(part["id"])
            case "function_call":
                made.add(part["call_id"])
            case "tool-call":
                made.add(part["toolCallId"])
    return made


def answers_of(body: dict[str, Any]) -> list[str]:
    """Return the tool calls of other messages that a message answers."""
    answered = [body["tool_call_id"]] if "tool_call_id" in body else []
    for part in _parts(body):
        match part.get("type"):
            case "tool_result":
                answered.append(part["tool_use_id"])
            case "function_call_output":
                answered.append(part["call_id"])
            case "tool-result":
                answered.append(part["toolCallId"])
    return [call for call in dict.fromkeys(answered) if call not in calls_of(body)]


def awaits_of(body: dict[str, Any]) -> set[str]:
    """Return the tool calls that a message makes and does not answer itself."""
    results = {body.get("tool_call_id")}
    for part in _parts(body):
        kind = str(part.get("type"))
        if "result" in kind or kind == "function_call_output":
            results.add(part.get("tool_use_id", part.get("toolCallId", part.get("call_id"))))
    return calls_of(body) - results


def apart(body: dict[str, Any], id: str | None) -> dict[str, Any]:
    """Return what a message says besides its own id, which may stand in it or beside it."""
    return {name: value for name, value in body.items() if name != "id" or value != id or id is None}


class Refused(Exception):
    """What the store must raise, with the facts that the error must carry."""

    def __init__(self, error: type[tape.TapeError], **facts: Any) -> None:
        super().__init__(f"{error.__name__} {facts}")
        self.error = error
        self.facts = facts


@dataclass(kw_only=True)
class Note:
    """A message, in the view or not."""

    id: str
    parent: str | None
    tape: str
    placed: int
    """The entry of that tape which placed it."""
    body: dict[str, Any]
    given: dict[str, Any]
    """What the caller gave, to tell a repetition from a conflict."""
    wrote: tuple[str, int]
    """The tape and the entry that wrote the body."""
    revised: int
    """When the body was written."""
    bound: list[tuple[str, str]]
    """(call, id of the message that made it) for every call that was found when the message was appended."""
    keyed: bool = False
    """Whether it was recorded under a key of the caller's."""
    out: bool = False
    """Whether it was retracted by itself."""
    taken: int = 0
    """When the clear was made that took it, or 0."""
    named: int = 0
    """The last entry of the tape's own that revised, retracted or restored it."""
    said: tuple[Any, int | None] = (None, None)
    """What was said beside the body, and when it came about."""

    @property
    def revision(self) -> int:
        """The entry that wrote the body."""
        return self.wrote[1]


@dataclass(kw_only=True)
class Mark:
    """An anchor or a handoff, and the message that was the head when it was set."""

    tape: str
    seq: int
    when: int
    name: str
    at: str | None
    sources: list[str]


@dataclass(kw_only=True)
class Digest:
    """A summary: all messages of its run, in the view or not, and those of them that it covers."""

    tape: str
    seq: int
    when: int
    text: str
    run: list[str]
    covers: list[str]


def revised_body(note: Note, message: dict[str, Any] | None, content: Any) -> dict[str, Any]:
    """Return what a message says after a revision: another message, or only another content."""
    if message is None:
        return {**note.body, "content": content}
    kept: dict[str, Any] = {name: note.body[name] for name in ("id", "role") if name in note.body}
    if kept.get("id") != note.id:
        # That is data, and the new message has its own or none.
        kept.pop("id", None)
    return {**kept, **message}


@dataclass
class Tree:
    """One view: messages, anchors, summaries, clears and the head."""

    notes: dict[str, Note] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    clears: list[int] = field(default_factory=list)
    """When the clears in force were made, oldest first; only the tape's own."""
    head: str | None = None
    status: str = "active"

    # -- messages

    def visible(self, id: str) -> bool:
        """Whether a message is in the view."""
        note = self.notes[id]
        if note.out or note.taken:
            return False
        return not note.bound or any(
            self.visible(maker) and call in calls_of(self.notes[maker].body) for call, maker in note.bound
        )

    def live(self) -> list[str]:
        """Return all messages in the view, in the order in which they came."""
        return [id for id in self.notes if self.visible(id)]

    def up(self, id: str | None) -> list[str]:
        """Return a message and everything above it, in the view or not, nearest first."""
        found = []
        while id is not None:
            found.append(id)
            id = self.notes[id].parent
        return found

    def above(self, id: str) -> str | None:
        """Return the nearest message above one that is in the view."""
        return next((one for one in self.up(id)[1:] if self.visible(one)), None)

    def path(self, end: str | None) -> list[str]:
        """Return the messages in the view from the root to ``end``."""
        return [id for id in reversed(self.up(end)) if self.visible(id)]

    def ends(self) -> list[str]:
        """Return the messages in the view that no other follows."""
        live = self.live()
        followed = {above for id in live for above in self.up(id)[1:]}
        return [id for id in live if id not in followed]

    # -- anchors

    def standing(self) -> list[Mark]:
        """Return the anchors that no clear has ended; those that a fork inherits end with its first clear."""
        return [mark for mark in self.marks if not self.clears or mark.when > self.clears[-1]]

    def anchor(self, end: str | None) -> Mark | None:
        """Return the latest anchor on the path to ``end``: the deepest, then the newest."""
        on_path = [*reversed(self.up(end))]
        found = [
            (0 if mark.at is None else on_path.index(mark.at) + 1, mark.when, mark)
            for mark in self.standing()
            if mark.at is None or mark.at in on_path
        ]
        return max(found, key=lambda one: one[:2])[2] if found else None

    def before(self, end: str | None) -> set[str]:
        """Return the messages that the latest anchor on the path to ``end`` cuts off."""
        mark = self.anchor(end)
        return set(self.up(mark.at)) if mark is not None else set()

    def stale(self, mark: Mark) -> bool:
        """Whether a message that an anchor was made from has changed or gone since."""
        return any(not self.visible(id) or self.notes[id].revised > mark.when for id in mark.sources)

    # -- summaries

    def lasting(self) -> list[Digest]:
        """Return the summaries that no clear has ended."""
        return [one for one in self.digests if not self.clears or one.when > self.clears[-1]]

    def summaries(self, end: str | None) -> list[Digest]:
        """Return the summaries in force on the path to ``end``, in its order: of two that overlap the newer one."""
        path, before = [*reversed(self.up(end))], self.before(end)
        held: list[Digest] = []
        for one in sorted(self.lasting(), key=lambda one: one.when, reverse=True):
            if one.run[-1] not in path or any(id in before for id in one.run) or not self.valid(one):
                continue
            if not any(set(one.run) & set(other.run) for other in held):
                held.append(one)
        return sorted(held, key=lambda one: path.index(one.run[0]))

    def newest(self) -> Digest | None:
        """Return the summary in force that was made last."""
        return max(self.summaries(self.head), key=lambda one: one.when, default=None)

    def valid(self, digest: Digest) -> bool:
        """Whether all that a summary covers is there, and parts no tool call from its result."""
        bound = {pair for id in digest.covers for pair in self.notes[id].bound}
        return (
            all(self.visible(id) for id in digest.covers)
            and all((call, id) in bound for id in digest.covers for call in awaits_of(self.notes[id].body))
            and not any(
                maker not in digest.covers and self.visible(maker) and call in calls_of(self.notes[maker].body)
                for call, maker in bound
            )
        )

    def outdated(self, digest: Digest) -> bool:
        """Whether a message that a summary covers was revised since."""
        return any(self.notes[id].revised > digest.when for id in digest.covers)

    def window(self, end: str | None) -> list[str | Digest]:
        """Return the messages after the latest anchor on the path to ``end``, and summaries for what they cover."""
        before, held = self.before(end), self.summaries(end)
        found: list[str | Digest] = []
        for id in reversed(self.up(end)):
            digest = next((one for one in held if id in one.run), None)
            if digest is not None and id == digest.run[0]:
                found.append(digest)
                # What is in the run and not covered comes right behind the summary.
                found += [one for one in digest.run if one not in digest.covers and self.visible(one)]
            elif digest is None and id not in before and self.visible(id):
                found.append(id)
        return found

    def judge(self, first: str, last: str) -> tuple[list[str], list[str]]:
        """Return a run of messages and those of them that a summary of it covers, if there may be one."""
        run = [*reversed(self.up(last)[: self.up(last).index(first) + 1])]
        if first in self.before(self.head):
            raise Refused(tape.InvalidEntry, field="first")
        for other in self.summaries(self.head):
            if set(other.run) & set(run) and not set(other.run) <= set(run):
                raise Refused(tape.InvalidEntry, field="first")
        covers = [id for id in run if self.visible(id)]
        self._check_calls(covers)
        return run, covers

    def _check_calls(self, covers: list[str]) -> None:
        bound = {pair for id in covers for pair in self.notes[id].bound}
        outside = [one for one in self.up(self.head) if one not in covers and self.visible(one)]
        for id in covers:
            for call, maker in self.notes[id].bound:
                there = self.visible(maker) or self.notes[maker].taken
                if maker not in covers and there and call in calls_of(self.notes[maker].body):
                    raise Refused(tape.InvalidEntry, field="first")
            made = calls_of(self.notes[id].body)
            if any((call, id) in self.notes[one].bound for one in outside for call in made):
                raise Refused(tape.InvalidEntry, field="last")
            if any((call, id) not in bound for call in awaits_of(self.notes[id].body)):
                raise Refused(tape.InvalidEntry, field="last")

    # -- what a write refuses and does

    def require(self, id: str) -> Note:
        """Return a message that is in the view, or refuse."""
        self.require_known([id])
        if not self.visible(id):
            raise Refused(tape.UnknownMessage, message_id=id, retracted=True)
        return self.notes[id]

    def require_known(self, ids: Sequence[str]) -> None:
        """Refuse messages that were never there."""
        for id in ids:
            if id not in self.notes:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=False)

    def require_run(self, first: str, last: str) -> None:
        """Refuse what is no run on the active path."""
        self.require(first)
        self.require(last)
        if last not in self.up(self.head) or first not in self.up(last):
            raise Refused(tape.InvalidEntry, field="last")

    def binds(self, message: dict[str, Any], parent: str | None) -> list[tuple[str, str]]:
        """Return each call that a message answers, with the nearest message above that makes it."""
        bound = []
        for call in answers_of(message):
            for above in self.up(parent):
                if self.visible(above) and call in calls_of(self.notes[above].body):
                    bound.append((call, above))
                    break
        return bound

    def check_retract(self, ids: Sequence[str]) -> None:
        """Refuse to retract what is not there, or is retracted or cleared already."""
        for id in ids:
            self.require_known([id])
            if self.notes[id].out or self.notes[id].taken:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=True)

    def check_restore(self, ids: Sequence[str]) -> None:
        """Refuse to restore what is in its place, or to undo a clear when there is none."""
        if not ids and not self.clears:
            raise Refused(tape.InvalidEntry, field="ids")
        for id in ids:
            self.require_known([id])
            if not self.notes[id].out and not self.notes[id].taken:
                raise Refused(tape.InvalidEntry, field="ids")

    def take_out(self, ids: Sequence[str], seq: int) -> None:
        """Retract messages."""
        for id in ids:
            self.notes[id].out, self.notes[id].named = True, seq

    def bring_back(self, ids: Sequence[str], seq: int) -> None:
        """Restore messages, or without ids undo the last clear."""
        for id in ids:
            note = self.notes[id]
            note.out, note.taken, note.named = False, 0, seq
        if not ids:
            undone = self.clears.pop()
            for note in self.notes.values():
                if note.taken == undone:
                    note.taken = 0

    def clear_all(self, when: int) -> None:
        """Take everything that is in the view out of it."""
        for id in self.live():
            self.notes[id].taken = when
        self.clears.append(when)
