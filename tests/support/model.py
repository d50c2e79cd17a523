"""A naive model of a tape, to check the store against: a tree, and the rules of keys, heads and repetitions.

What the store must refuse is raised as ``Refused``, and then nothing changed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tape
from support.seen import Seen, Shown
from support.tree import HEAD, Digest, Mark, Note, Refused, Tree, apart, revised_body, same

__all__ = ["Item", "Model", "SeenTape", "Wrote"]

CLOSED = ("completed", "abandoned", "ended")


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
    said: tuple[Any, int | None] = (None, None)
    """What is said beside it, and when it came about."""

    @property
    def given(self) -> Any:
        """The id that the caller chose: beside the message, or in it."""
        return self.message.get("id") if self.id is None else self.id


@dataclass
class SeenTape(Seen):
    """What can be seen of one tape alone."""

    summaries: list[tuple[int, str, list[str], bool]]
    """(seq, text, ids covered, stale), in the order of what they cover."""
    newest: int | None
    """The summary that was made last, of those."""
    said: list[tuple[Any, int | None]]
    """What was said beside the messages of the path, and when each came about."""
    count: int
    reason: str | None

    def compare_more(self, reads: tape.Snapshot, context: tape.Context, info: tape.TapeInfo) -> None:
        """Compare summaries and counts."""
        summaries = reads.summaries()
        assert [(one.seq, one.text, one.covers, one.stale) for one in summaries] == self.summaries
        assert context.summaries == summaries
        for one in summaries:
            [shown] = [message for message in context.messages if message.id == f"~summary:{one.seq}"]
            assert one.text in shown.text
            assert ("has changed since" in shown.text) == one.stale
        newest = reads.summary()
        assert newest == context.summary
        assert (newest.seq if newest is not None else None) == self.newest
        assert (info.entry_count, info.message_count, info.reason) == (self.seq, self.count, self.reason)
        assert [(message.meta, message.occurred) for message in reads.messages()] == self.said


@dataclass
class Model(Tree):
    """One tape."""

    id: str = ""
    records: list[Record] = field(default_factory=list)
    reason: str | None = None
    history: list[SeenTape] = field(default_factory=list)
    """What could be seen after each entry; the first is what can be seen of an unwritten tape."""

    def __post_init__(self) -> None:
        if not self.history:
            self.history.append(self.seen())

    @property
    def seq(self) -> int:
        """The head's seq."""
        return len(self.records)

    # -- what can be seen

    def show(self, id: str) -> Shown:
        """Return a message as it is shown."""
        note = self.notes[id]
        return id, self.above(id), self.id, note.placed, note.revision, json.dumps(note.body, sort_keys=True)

    def shown(self, end: str | None) -> list[Shown]:
        """Return the messages in the view from the root to ``end`` as they are shown."""
        return [self.show(id) for id in self.path(end)]

    def context(self, end: str | None) -> list[Shown]:
        """Return what a context shows of the path to ``end``."""
        return [
            self.show(one) if isinstance(one, str) else (f"~summary:{one.seq}", None, self.id, one.seq, one.seq, "")
            for one in self.window(end)
        ]

    def seen(self) -> SeenTape:
        """Return everything that can be seen now."""
        live = self.live()
        shown = {id: self.show(id) for id in live}
        children = {id: [shown[below] for below in live if shown[below][1] == id] for id in live}
        mark = self.anchor(self.head)
        newest = self.newest()
        return SeenTape(
            seq=self.seq,
            path=self.shown(self.head),
            heads=[shown[id] for id in self.ends()],
            children=children,
            hidden=[id for id in self.notes if id not in shown],
            anchor=(self.id, mark.seq) if mark is not None else None,
            context=self.context(self.head),
            anchors=[(self.id, one.seq, one.name, self.stale(one)) for one in self.standing()],
            summaries=[(one.seq, one.text, one.covers, self.outdated(one)) for one in self.summaries(self.head)],
            newest=newest.seq if newest is not None else None,
            said=[self.notes[id].said for id in self.path(self.head)],
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
        chosen = [item.given for item in items if item.given is not None]
        if not all(isinstance(id, str) for id in chosen) or len(set(chosen)) < len(chosen):
            raise Refused(tape.InvalidEntry)
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
        content: dict[str, Any] = {"kind": "append", "message": apart(item.message, item.given)}
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
            parent = None if item.parent is None else self.require(item.parent).id
        id = item.given if item.given is not None else item.made
        # A message above itself would make every walk up the tree endless.
        assert id not in self.notes, f"the store made an id that is taken: {id}"
        bound = self.binds(item.message, parent)
        seq = self._record("append", item.key, content, id)
        self.notes[id] = Note(
            id=id,
            parent=parent,
            tape=self.id,
            placed=seq,
            body=copy.deepcopy(item.message),
            given=content,
            wrote=(self.id, seq),
            revised=seq,
            bound=bound,
            keyed=item.key is not None,
            said=item.said,
        )
        self.head = id
        return self._done(seq, id)

    def upsert(self, item: Item, expected: int | None = None) -> Wrote:
        """Append a message, or revise it."""
        id = item.given
        if id is not None and not isinstance(id, str):
            raise Refused(tape.InvalidEntry)
        if item.key is not None:
            for record in self.records:
                if record.key == item.key:
                    whole = {"kind": "revise", "id": id, "message": _without_place(item.message, id)}
                    return self._same(record, whole if record.kind == "revise" else self._content(item, 0))
        if id is None or id not in self.notes:
            self._check(expected)
            return self._append(item, 0, self.head)
        return self.revise(id, message=item.message, key=item.key, expected=expected, said=item.said)

    def revise(
        self,
        id: str,
        *,
        message: dict[str, Any] | None = None,
        content: Any = None,
        key: str | None = None,
        expected: int | None = None,
        said: tuple[Any, int | None] = (None, None),
    ) -> Wrote:
        """Replace a message, or only its content."""
        given: dict[str, Any] = {"kind": "revise", "id": id}
        if message is None:
            given["content"] = content
        else:
            given["message"] = _without_place(message, id)
        found = self._find(key, given)
        if found is not None:
            return found
        note = self.notes.get(id)
        if (
            note is not None
            and self.visible(id)
            and same(apart(revised_body(note, message, content), id), apart(note.body, id))
        ):
            # Settled before any other check, as a known key is: a retry never meets its own success.
            return Wrote(note.revision, id, True)
        self._check(expected)
        note = self.require(id)
        if message is not None and "role" in message and message["role"] != note.body.get("role"):
            raise Refused(tape.InvalidEntry, field="message.role")
        if message is not None and note.body.get("id") == id != message.get("id", id):
            raise Refused(tape.InvalidEntry, field="message.id")
        body = revised_body(note, message, content)
        seq = self._record("revise", key, given, id)
        note.body, note.wrote, note.revised = copy.deepcopy(body), (self.id, seq), seq
        note.said = said
        return self._done(seq, id)

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
        self.check_retract(ids)
        named = ids[0] if len(ids) == 1 else None
        seq = self._record("retract", key, content, named)
        self.take_out(ids, seq)
        return self._done(seq, named)

    def restore(self, ids: Sequence[str], *, key: str | None = None, expected: int | None = None) -> Wrote:
        """Bring messages back, or without ids undo the last clear."""
        ids = list(dict.fromkeys(ids))
        content = {"kind": "restore", "ids": ids}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        self.check_restore(ids)
        named = ids[0] if len(ids) == 1 else None
        seq = self._record("restore", key, content, named)
        self.bring_back(ids, seq)
        return self._done(seq, named)

    def clear(self, *, reason: str | None = None, key: str | None = None, expected: int | None = None) -> Wrote:
        """Take everything that is in the view out of it."""
        content = {"kind": "clear", "reason": reason}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        seq = self._record("clear", key, content)
        self.clear_all(seq)
        return self._done(seq)

    def switch(self, id: str | None, *, key: str | None = None, expected: int | None = None) -> Wrote:
        """Make a message the head, or none."""
        content = {"kind": "switch", "id": id}
        found = self._find(key, content)
        if found is not None:
            return found
        self._check(expected)
        if id is not None:
            self.require(id)
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
        self.require_known(sources)
        for parent in parents:
            if not any(mark.seq == parent for mark in self.marks):
                raise Refused(tape.InvalidEntry, field="parents")
        seq = self._record(kind, key, content)
        self.marks.append(Mark(tape=self.id, seq=seq, when=seq, name=name, at=self.head, sources=sources))
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
        self.require_run(first, last)
        newest = self.newest()
        if based_on != (newest.seq if newest is not None else None):
            raise Refused(tape.SummaryMoved, expected=based_on)
        run, covers = self.judge(first, last)
        seq = self._record("compact", key, content)
        self.digests.append(Digest(tape=self.id, seq=seq, when=seq, text=text, run=run, covers=covers))
        return self._done(seq)

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


def _without_place(message: dict[str, Any], id: str | None) -> dict[str, Any]:
    return {name: value for name, value in apart(message, id).items() if name != "role"}
