"""A naive model of a tape, to check the store against.

It is written from the specification and knows nothing of lanes, rows or indexes: messages are a plain dict with
parent pointers, every question is answered by walking all of them, and whether a message can be seen is worked out
anew each time instead of being kept. What the store must refuse is raised as ``Refused``, and then nothing changed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tape

__all__ = ["HEAD", "Item", "Model", "Refused", "Seen", "Shown", "Wrote", "answers_of", "calls_of", "same"]

HEAD = "<head>"
"""The parent that was not given."""

CLOSED = ("completed", "abandoned", "ended")


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


def apart(body: dict[str, Any], id: str) -> dict[str, Any]:
    """Return what a message says besides its own id, which may stand in it or beside it."""
    return {name: value for name, value in body.items() if name != "id" or value != id}


class Refused(Exception):
    """What the store must raise, with the facts that the error must carry."""

    def __init__(self, error: type[tape.TapeError], **facts: Any) -> None:
        super().__init__(f"{error.__name__} {facts}")
        self.error = error
        self.facts = facts


@dataclass
class Note:
    """A message, in the view or not."""

    id: str
    parent: str | None
    placed: int
    body: dict[str, Any]
    revision: int
    bound: list[tuple[str, str]]
    """(call, id of the message that made it) for every call that was found when the message was appended."""
    keyed: bool
    """Whether it was recorded under a key of the caller's."""
    out: bool = False
    """Whether it was retracted by itself."""
    taken: int = 0
    """The clear that took it, or 0."""


@dataclass
class Mark:
    """An anchor or a handoff, and the message that was the head when it was set."""

    seq: int
    name: str
    at: str | None
    state: Any
    summary: str | None
    sources: list[str]


@dataclass
class Digest:
    """A summary: all messages of its run, in the view or not, and those of them that it covers."""

    seq: int
    text: str
    run: list[str]
    covers: list[str]


@dataclass
class Record:
    """An entry: what the caller gave."""

    seq: int
    kind: str
    key: str | None
    content: dict[str, Any]
    message_id: str | None


@dataclass(frozen=True)
class Wrote:
    """What the receipt of a write must say."""

    seq: int
    message_id: str | None
    duplicate: bool


@dataclass(frozen=True)
class Item:
    """One message to append: as given, with the id and key given beside it, and the id that the store chose if none."""

    message: dict[str, Any]
    id: str | None = None
    key: str | None = None
    parent: str | None = HEAD
    made: str = "<made by the store>"

    @property
    def given(self) -> str | None:
        """The id that the caller chose."""
        return self.message.get("id", self.id)


Shown = tuple[str, str | None, int, int, str]
"""A message as it is shown: id, the message above it, the entry that placed it, the one with its body, the body.

Of a summary that is shown as a message only the id and the entry are told.
"""


@dataclass
class Seen:
    """Everything that a reader can see after one entry."""

    seq: int
    path: list[Shown]
    heads: list[Shown]
    children: dict[str, list[Shown]]
    hidden: list[str]
    anchor: int | None
    context: list[Shown]
    anchors: list[tuple[int, str, bool]]
    """(seq, name, stale), oldest first."""
    summaries: list[tuple[int, str, list[str], bool]]
    """(seq, text, ids covered, stale), in the order of what they cover."""
    newest: int | None
    """The summary that was made last, of those."""
    count: int
    status: str
    reason: str | None


@dataclass
class Model:
    """One tape."""

    id: str
    records: list[Record] = field(default_factory=list)
    notes: dict[str, Note] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    clears: list[int] = field(default_factory=list)
    """The clears in force, oldest first."""
    head: str | None = None
    status: str = "active"
    reason: str | None = None
    history: list[Seen] = field(default_factory=list)
    """What could be seen after each entry; the first is what can be seen of an unwritten tape."""

    def __post_init__(self) -> None:
        if not self.history:
            self.history.append(self.seen())

    @property
    def seq(self) -> int:
        """The head's seq."""
        return len(self.records)

    # -- what can be seen

    def visible(self, id: str) -> bool:
        """Whether a message is in the view."""
        note = self.notes[id]
        if note.out or note.taken:
            return False
        return not note.bound or any(
            self.visible(maker) and call in calls_of(self.notes[maker].body) for call, maker in note.bound
        )

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

    def show(self, id: str) -> Shown:
        """Return a message as it is shown."""
        note = self.notes[id]
        return id, self.above(id), note.placed, note.revision, json.dumps(note.body, sort_keys=True)

    def path(self, end: str | None) -> list[Shown]:
        """Return the messages in the view from the root to ``end``."""
        return [self.show(id) for id in reversed(self.up(end)) if self.visible(id)]

    def anchor(self, end: str | None) -> Mark | None:
        """Return the latest anchor on the path to ``end``: the deepest, then the newest."""
        on_path = [*reversed(self.up(end))]
        standing = [
            (0 if mark.at is None else on_path.index(mark.at) + 1, mark.seq, mark)
            for mark in self.standing()
            if mark.at is None or mark.at in on_path
        ]
        return max(standing, key=lambda one: one[:2])[2] if standing else None

    def standing(self) -> list[Mark]:
        """Return the anchors that no clear has ended."""
        return [mark for mark in self.marks if not self.clears or mark.seq > self.clears[-1]]

    def context(self, end: str | None) -> list[Shown]:
        """Return the messages after the latest anchor on the path to ``end``, and summaries for what they cover."""
        before = self.before(end)
        held = self.summaries(end)
        found: list[Shown] = []
        for id in reversed(self.up(end)):
            digest = next((one for one in held if id in one.run), None)
            if digest is not None and id == digest.run[0]:
                found.append((f"~summary:{digest.seq}", None, digest.seq, digest.seq, ""))
                # What is in the run and not covered comes right behind the summary.
                found += [self.show(one) for one in digest.run if one not in digest.covers and self.visible(one)]
            elif digest is None and id not in before and self.visible(id):
                found.append(self.show(id))
        return found

    def before(self, end: str | None) -> set[str]:
        """Return the messages that the latest anchor on the path to ``end`` cuts off."""
        mark = self.anchor(end)
        return set(self.up(mark.at)) if mark is not None else set()

    def summaries(self, end: str | None) -> list[Digest]:
        """Return the summaries in force on the path to ``end``, in its order: of two that overlap the newer one."""
        path, before = [*reversed(self.up(end))], self.before(end)
        held: list[Digest] = []
        for digest in reversed(self.digests):
            if self.clears and digest.seq < self.clears[-1]:
                continue
            if digest.run[-1] not in path or any(id in before for id in digest.run):
                continue
            if self.valid(digest) and not any(set(digest.run) & set(other.run) for other in held):
                held.append(digest)
        return sorted(held, key=lambda digest: path.index(digest.run[0]))

    def valid(self, digest: Digest) -> bool:
        """Whether all that a summary covers is there, and parts no tool call from its result."""
        covered = [self.notes[id] for id in digest.covers]
        bound = {pair for note in covered for pair in note.bound}
        return (
            all(self.visible(note.id) for note in covered)
            and all((call, note.id) in bound for note in covered for call in awaits_of(note.body))
            and not any(
                maker not in digest.covers and self.visible(maker) and call in calls_of(self.notes[maker].body)
                for call, maker in bound
            )
        )

    def stale(self, mark: Mark) -> bool:
        """Whether a message that an anchor was made from has changed or gone since."""
        return any(not self.visible(id) or self.notes[id].revision > mark.seq for id in mark.sources)

    def seen(self) -> Seen:
        """Return everything that can be seen now."""
        live = [id for id in self.notes if self.visible(id)]
        shown = {id: self.show(id) for id in live}
        children = {id: [shown[below] for below in live if shown[below][1] == id] for id in live}
        followed = {above for id in live for above in self.up(id)[1:]}
        mark = self.anchor(self.head)
        held = self.summaries(self.head)
        return Seen(
            seq=self.seq,
            path=self.path(self.head),
            heads=[shown[id] for id in live if id not in followed],
            children=children,
            hidden=[id for id in self.notes if id not in shown],
            anchor=mark.seq if mark is not None else None,
            context=self.context(self.head),
            anchors=[(one.seq, one.name, self.stale(one)) for one in self.standing()],
            summaries=[
                (one.seq, one.text, one.covers, any(self.notes[id].revision > one.seq for id in one.covers))
                for one in held
            ],
            newest=max((one.seq for one in held), default=None),
            count=len(live),
            status=self.status,
            reason=self.reason,
        )

    # -- how a write is judged

    def _find(self, key: str | None, content: dict[str, Any]) -> Wrote | None:
        """Return the receipt of what was recorded under the caller's key before."""
        for record in self.records:
            if key is not None and record.key == key:
                return self._same(record, content)
        return None

    def _same(self, record: Record, content: dict[str, Any]) -> Wrote:
        if not same(record.content, content):
            raise Refused(tape.ProvenanceConflict, seq=record.seq)
        return Wrote(record.seq, record.message_id, True)

    def _check(self, expected: int | None, *, changes_view: bool = True) -> None:
        if expected is not None and expected != self.seq:
            raise Refused(tape.HeadMoved, expected=expected, actual=self.seq)
        if changes_view and self.status in CLOSED:
            raise Refused(tape.TapeClosed, status=self.status, reason=self.reason)

    def _visible(self, id: str) -> Note:
        if id not in self.notes:
            raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
        if not self.visible(id):
            raise Refused(tape.UnknownMessage, message_id=id, retracted=True)
        return self.notes[id]

    def _record(self, kind: str, key: str | None, content: dict[str, Any], message_id: str | None = None) -> int:
        if not self.records:
            self.records.append(Record(1, "open", None, {}, None))
            self.history.append(self.seen())
        seq = self.seq + 1
        self.records.append(Record(seq, kind, key, content, message_id))
        return seq

    def _done(self, seq: int, message_id: str | None = None) -> Wrote:
        self.history.append(self.seen())
        return Wrote(seq, message_id, False)

    def kept(self) -> Model:
        """Return a copy to fall back on when a later part of a batch is refused."""
        notes = {id: replace(note) for id, note in self.notes.items()}
        return replace(
            self,
            records=[*self.records],
            notes=notes,
            marks=[*self.marks],
            digests=[*self.digests],
            clears=[*self.clears],
            history=[*self.history],
        )

    # -- writes

    def extend(self, items: Sequence[Item], expected: int | None = None, *, batch: bool = False) -> list[Wrote]:
        """Append messages one behind the other."""
        before: dict[int, Wrote] = {}
        for index, item in enumerate(items):
            found = self._find(item.key, self._content(item, index))
            note = self.notes.get(item.given) if item.given is not None and item.key is None else None
            if found is None and note is not None and not note.keyed:
                found = self._same(self.records[note.placed - 1], self._content(item, index))
            if found is not None:
                before[index] = found
        if batch and before:
            self._check_batch(items, before)
        left = [item.given for index, item in enumerate(items) if index not in before]
        if not all(given in self.notes for given in left):
            # Messages whose ids are all known are settled before any other check, like those whose keys are.
            self._check(expected)
        wrote: list[Wrote] = []
        for index, item in enumerate(items):
            if index in before:
                wrote.append(before[index])
                continue
            previous = wrote[-1].message_id if wrote else self.head
            wrote.append(self._append(item, index, previous))
        return wrote

    def _check_batch(self, items: Sequence[Item], before: dict[int, Wrote]) -> None:
        """A batch whose key was used must be that batch: the same messages, and as many."""
        key = items[0].key
        assert key is not None
        first = next(iter(before.values())).seq
        beyond = f"{key.rsplit('#', 1)[0]}#{len(items)}"
        if any(record.key == beyond for record in self.records):
            raise Refused(tape.ProvenanceConflict, seq=first)
        for index, item in enumerate(items):
            if index not in before:
                note = self.notes.get(item.given) if item.given is not None else None
                placed = self.records[note.placed - 1] if note is not None else None
                if placed is None:
                    raise Refused(tape.ProvenanceConflict, seq=first)
                before[index] = self._same(placed, self._content(item, index))

    def _content(self, item: Item, index: int) -> dict[str, Any]:
        message = {name: value for name, value in item.message.items() if name != "id"}
        content: dict[str, Any] = {"kind": "append", "message": message}
        if item.given is not None:
            content["id"] = item.given
        if item.parent != HEAD and index == 0:
            content["parent"] = item.parent
        return content

    def _append(self, item: Item, index: int, previous: str | None) -> Wrote:
        content = self._content(item, index)
        if item.given is not None and item.given in self.notes:
            # Before all else, as with a known key: a retry is told what it wrote, whatever became of its parent.
            return self._same(self.records[self.notes[item.given].placed - 1], content)
        parent = previous
        if index == 0 and item.parent != HEAD:
            parent = None if item.parent is None else self._visible(item.parent).id
        id = item.given if item.given is not None else item.made
        # A message above itself would make every walk up the tree endless.
        assert id not in self.notes, f"the store made an id that is taken: {id}"
        bound = []
        for call in answers_of(item.message):
            for above in self.up(parent):
                if self.visible(above) and call in calls_of(self.notes[above].body):
                    bound.append((call, above))
                    break
        seq = self._record("append", item.key, content, id)
        self.notes[id] = Note(id, parent, seq, copy.deepcopy(item.message), seq, bound, item.key is not None)
        self.head = id
        return self._done(seq, id)

    def upsert(self, item: Item, expected: int | None = None) -> Wrote:
        """Append a message, or revise it."""
        id = item.given
        if item.key is not None:
            for record in self.records:
                if record.key == item.key:
                    whole = {"kind": "revise", "id": id, "message": _without_place(item.message)}
                    return self._same(record, whole if record.kind == "revise" else self._content(item, 0))
        if id is None or id not in self.notes:
            self._check(expected)
            return self._append(item, 0, self.head)
        return self.revise(id, message=item.message, key=item.key, expected=expected)

    def revise(
        self,
        id: str,
        *,
        message: dict[str, Any] | None = None,
        content: Any = None,
        key: str | None = None,
        expected: int | None = None,
    ) -> Wrote:
        """Replace a message, or only its content."""
        given: dict[str, Any] = {"kind": "revise", "id": id}
        if message is None:
            given["content"] = content
        else:
            given["message"] = _without_place(message)
        found = self._find(key, given)
        if found is not None:
            return found
        note = self.notes.get(id)
        if (
            note is not None
            and self.visible(id)
            and same(apart(self._revised(note, message, content), id), apart(note.body, id))
        ):
            # Settled before any other check, as a known key is: a retry never meets its own success.
            return Wrote(note.revision, id, True)
        self._check(expected)
        note = self._visible(id)
        if message is not None and "role" in message and message["role"] != note.body.get("role"):
            raise Refused(tape.InvalidEntry, field="message.role")
        body = self._revised(note, message, content)
        seq = self._record("revise", key, given, id)
        note.body, note.revision = copy.deepcopy(body), seq
        return self._done(seq, id)

    def _revised(self, note: Note, message: dict[str, Any] | None, content: Any) -> dict[str, Any]:
        if message is None:
            return {**note.body, "content": content}
        return {**{name: note.body[name] for name in ("id", "role") if name in note.body}, **message}

    def retract(
        self, ids: Sequence[str], *, reason: str | None = None, key: str | None = None, expected: int | None = None
    ) -> Wrote:
        """Take messages out of the view."""
        ids = list(dict.fromkeys(ids))
        content = {"kind": "retract", "ids": ids, "reason": reason}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        for id in ids:
            if id not in self.notes:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
            if self.notes[id].out or self.notes[id].taken:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=True)
        named = ids[0] if len(ids) == 1 else None
        seq = self._record("retract", key, content, named)
        for id in ids:
            self.notes[id].out = True
        return self._done(seq, named)

    def restore(self, ids: Sequence[str], *, key: str | None = None, expected: int | None = None) -> Wrote:
        """Bring messages back, or without ids undo the last clear."""
        ids = list(dict.fromkeys(ids))
        content = {"kind": "restore", "ids": ids}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        if not ids and not self.clears:
            raise Refused(tape.InvalidEntry, field="ids")
        for id in ids:
            if id not in self.notes:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
            if not self.notes[id].out and not self.notes[id].taken:
                raise Refused(tape.InvalidEntry, field="ids")
        named = ids[0] if len(ids) == 1 else None
        seq = self._record("restore", key, content, named)
        for id in ids:
            self.notes[id].out, self.notes[id].taken = False, 0
        if not ids:
            undone = self.clears.pop()
            for note in self.notes.values():
                if note.taken == undone:
                    note.taken = 0
        return self._done(seq, named)

    def clear(self, *, reason: str | None = None, key: str | None = None, expected: int | None = None) -> Wrote:
        """Take everything that is in the view out of it."""
        content = {"kind": "clear", "reason": reason}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        seq = self._record("clear", key, content)
        for id in [id for id in self.notes if self.visible(id)]:
            self.notes[id].taken = seq
        self.clears.append(seq)
        return self._done(seq)

    def switch(self, id: str, *, key: str | None = None, expected: int | None = None) -> Wrote:
        """Make a message the head."""
        content = {"kind": "switch", "id": id}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        self._visible(id)
        seq = self._record("switch", key, content, id)
        self.head = id
        return self._done(seq, id)

    def anchor_at_head(
        self,
        name: str,
        *,
        state: Any = None,
        summary: str | None = None,
        parents: Sequence[int] = (),
        sources: Sequence[str] = (),
        key: str | None = None,
        expected: int | None = None,
    ) -> Wrote:
        """Set an anchor, or with a summary a handoff."""
        kind = "anchor" if summary is None else "handoff"
        sources = list(dict.fromkeys(sources))
        content = {
            "kind": kind,
            "name": name,
            "state": state,
            "summary": summary,
            "parents": list(parents),
            "sources": sources,
        }
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        for id in sources:
            if id not in self.notes:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
        for parent in parents:
            if not any(mark.seq == parent for mark in self.marks):
                raise Refused(tape.InvalidEntry, field="parents")
        seq = self._record(kind, key, content)
        self.marks.append(Mark(seq, name, self.head, state, summary, sources))
        return self._done(seq)

    def set_summary(
        self,
        text: str,
        first: str,
        last: str,
        based_on: int | None,
        *,
        key: str | None = None,
        expected: int | None = None,
    ) -> Wrote:
        """Let a text stand for the messages from one to another."""
        content = {"kind": "compact", "text": text, "first": first, "last": last}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        self._visible(first)
        self._visible(last)
        if last not in self.up(self.head) or first not in self.up(last):
            raise Refused(tape.InvalidEntry, field="last")
        held = self.summaries(self.head)
        if based_on != max((one.seq for one in held), default=None):
            raise Refused(tape.SummaryMoved, expected=based_on)
        run, covers = self.judge(first, last)
        seq = self._record("compact", key, content)
        self.digests.append(Digest(seq, text, run, covers))
        return self._done(seq)

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
        on_path = self.up(self.head)
        for id in covers:
            for call, maker in self.notes[id].bound:
                there = self.visible(maker) or self.notes[maker].taken
                if maker not in covers and there and call in calls_of(self.notes[maker].body):
                    raise Refused(tape.InvalidEntry, field="first")
            made = calls_of(self.notes[id].body)
            outside = [one for one in on_path if one not in covers and self.visible(one)]
            if any((call, id) in self.notes[one].bound for one in outside for call in made):
                raise Refused(tape.InvalidEntry, field="last")
            if any((call, id) not in bound for call in awaits_of(self.notes[id].body)):
                raise Refused(tape.InvalidEntry, field="last")

    def event(self, name: str, data: Any = None, *, key: str | None = None, expected: int | None = None) -> Wrote:
        """Record a fact."""
        content = {"kind": "event", "name": name, "data": data}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected, changes_view=False)
        return self._done(self._record("event", key, content))

    def set_status(
        self, status: str, reason: str | None = None, *, key: str | None = None, expected: int | None = None
    ) -> Wrote:
        """Close the tape or open it again."""
        content = {"kind": "status", "status": status, "reason": reason}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected, changes_view=False)
        seq = self._record("status", key, content)
        self.status, self.reason = status, reason
        return self._done(seq)


def _without_place(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in ("id", "role")}
