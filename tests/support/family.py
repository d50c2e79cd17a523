"""A naive model of a family of tapes, to check forks and merges against.

Every tape of it is a plain tree of its own: a fork copies the whole view of its parent, message by message, and a
merge compares the two trees with what they were when they last agreed. It knows nothing of lanes, lineages, overrides
or as-of reads. What the store must refuse is raised as ``Refused``, and then nothing changed.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tape
from support.model import Refused, answers_of, apart, calls_of, same

__all__ = ["HEAD", "Kin", "Merged", "Refused", "Seen", "World", "Wrote", "migrator"]

HEAD = "<head>"
"""The parent that was not given."""

CLOSED = ("completed", "discarded")

_clock = itertools.count(1)


def migrator(version: int) -> Callable[[Any], Any]:
    """Return what turns a value of one version into the next, and shows when it was called twice."""

    def migrate(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, f"v{version}": value.get(f"v{version}", 0) + 1}
        return value * 10 if isinstance(value, int) else value

    return migrate


@dataclass
class World:
    """What the store is opened with: slots with their versions, and blocks. A text takes as many tokens as letters."""

    slots: dict[str, int] = field(default_factory=dict)
    blocks: list[tape.BlockSpec] = field(default_factory=list)

    def spec(self, label: str) -> tape.BlockSpec | None:
        """Return the declaration of a block."""
        return next((one for one in self.blocks if one.label == label), None)

    def lifted(self, slot: str, held: Value | None) -> Value | None:
        """Return a value of a slot as this program reads it, with its version."""
        if held is None or slot not in self.slots:
            return held
        value, version = held[0], held[1] or 1
        for step in range(version, self.slots[slot]):
            value = migrator(step)(value)
        return value, max(version, self.slots[slot])


Value = tuple[Any, int]
"""What a slot holds, and its version; 0 if it was written without one."""


@dataclass(frozen=True)
class Facts:
    """A block without its text."""

    description: str | None = None
    max_tokens: int | None = None
    read_only: bool = False


@dataclass(frozen=True)
class Text:
    """A block as an entry has it; without a text it was removed."""

    text: str | None
    facts: Facts
    declared: bool
    seq: int = 0
    depth: int = 0
    """How far the tape that wrote it is from the root of the family."""


Look = tuple[str, Facts] | None
"""A block as it is shown, or None."""


@dataclass(frozen=True)
class Change:
    """An entry of a tape's own that wrote a slot or a block."""

    seq: int
    name: str
    op: str
    given: Any = None
    text: str | None = None


def joined(text: str, line: str) -> str:
    """Return a block's text with one more line."""
    return text + line if not text or not line or line[0] == "\n" else text + "\n" + line


def patched(value: Any, patch: Any) -> Any:
    """Return a value after a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    kept = {name: item for name, item in value.items() if name not in patch} if isinstance(value, dict) else {}
    old = value if isinstance(value, dict) else {}
    return {**kept, **{name: patched(old.get(name), item) for name, item in patch.items() if item is not None}}


NOTHING = "<nothing>"
"""What a slot without a value, or an object without a member, has there."""


def differences(one: Any, other: Any, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return where two values differ, each with what the other has there."""
    if isinstance(one, dict) and isinstance(other, dict):
        found: dict[tuple[str, ...], Any] = {}
        for name in sorted({*one, *other}):
            found.update(differences(one.get(name, NOTHING), other.get(name, NOTHING), (*at, name)))
        return found
    return {} if same(one, other) else {at: other}


def laid(value: Any, at: tuple[str, ...], new: Any) -> Any:
    """Return a value with something else at a path."""
    if not at:
        return new
    held = dict(value) if isinstance(value, dict) else {}
    held[at[0]] = laid(held.get(at[0], NOTHING), at[1:], new)
    return {name: item for name, item in held.items() if item != NOTHING}


def found_at(value: Any, at: tuple[str, ...]) -> Any:
    """Return what a value has at a path."""
    for name in at:
        value = value[name] if isinstance(value, dict) and name in value else NOTHING
    return value


@dataclass
class Note:
    """A message, in the view or not."""

    id: str
    parent: str | None
    tape: str
    placed: int
    body: dict[str, Any]
    given: dict[str, Any]
    """What the caller gave, to tell a repetition from a conflict."""
    revision: tuple[str, int]
    revised: int
    """When the body was written, by a clock that all tapes share."""
    bound: list[tuple[str, str]]
    out: bool = False
    taken: int = 0
    """The clear that took it, or 0."""
    named: int = 0
    """The last entry of the tape's own that revised, retracted or restored it."""


@dataclass
class Mark:
    """An anchor, and the message that was the head when it was set."""

    tape: str
    seq: int
    name: str
    at: str | None
    sources: list[str]
    when: int


@dataclass(frozen=True)
class Wrote:
    """What the receipt of a write must say."""

    tape: str
    seq: int
    message_id: str | None
    duplicate: bool


@dataclass(frozen=True)
class Merged:
    """What the receipt of a merge must say."""

    seq: int
    child_head: int
    message_ids: list[str]
    changed: list[str]
    kept: list[str]
    duplicate: bool = False


Shown = tuple[str, str | None, str, int, int, str]
"""A message as it is shown: id, the message above it, the tape and entry that placed it, its revision, its body."""


@dataclass
class Seen:
    """Everything that a reader can see after one entry."""

    seq: int
    path: list[Shown]
    heads: list[Shown]
    children: dict[str, list[Shown]]
    hidden: list[str]
    anchor: tuple[str, int] | None
    context: list[Shown]
    anchors: list[tuple[str, int, str, bool]]
    status: str
    states: str
    blocks: list[tuple[str, str, Facts, int | None]]


@dataclass
class Tree:
    """One view: messages, anchors, clears and the head."""

    notes: dict[str, Note] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    clears: list[int] = field(default_factory=list)
    """When the clears in force were made, oldest first; only the tape's own."""
    head: str | None = None
    status: str = "active"
    slots: dict[str, Value] = field(default_factory=dict)
    blocks: dict[str, Text] = field(default_factory=dict)

    def look(self, label: str, world: World) -> Look:
        """Return a block as it is shown."""
        held, spec = self.blocks.get(label), world.spec(label)
        if held is not None:
            return None if held.text is None else (held.text, held.facts)
        return None if spec is None else (spec.default, declared_facts(spec))

    def all_blocks(self, world: World) -> list[tuple[str, str, Facts, int | None]]:
        """Return the blocks that are shown, in their order."""
        declared = [spec.label for spec in world.blocks]
        written = sorted(self.blocks, key=lambda label: (self.blocks[label].seq, -self.blocks[label].depth))
        found = []
        for label in [*declared, *(label for label in written if label not in declared)]:
            shown = self.look(label, world)
            if shown is not None:
                found.append((label, *shown, self.blocks[label].seq if label in self.blocks else None))
        return found

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

    def path(self, end: str | None) -> list[str]:
        """Return the messages in the view from the root to ``end``."""
        return [id for id in reversed(self.up(end)) if self.visible(id)]

    def show(self, id: str) -> Shown:
        """Return a message as it is shown."""
        note = self.notes[id]
        above = next((one for one in self.up(id)[1:] if self.visible(one)), None)
        return id, above, note.tape, note.placed, note.revision[1], json.dumps(note.body, sort_keys=True)

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

    def stale(self, mark: Mark) -> bool:
        """Whether a message that an anchor was made from has changed or gone since."""
        return any(not self.visible(id) or self.notes[id].revised > mark.when for id in mark.sources)

    def seen(self, seq: int, world: World) -> Seen:
        """Return everything that can be seen."""
        live = [id for id in self.notes if self.visible(id)]
        shown = {id: self.show(id) for id in live}
        followed = {above for id in live for above in self.up(id)[1:]}
        mark = self.anchor(self.head)
        before = set(self.up(mark.at)) if mark is not None else set()
        path = self.path(self.head)
        return Seen(
            seq=seq,
            path=[shown[id] for id in path],
            heads=[shown[id] for id in live if id not in followed],
            children={id: [shown[below] for below in live if shown[below][1] == id] for id in live},
            hidden=[id for id in self.notes if id not in shown],
            anchor=(mark.tape, mark.seq) if mark is not None else None,
            context=[shown[id] for id in path if id not in before],
            anchors=[(one.tape, one.seq, one.name, self.stale(one)) for one in self.standing()],
            status=self.status,
            states=json.dumps(
                {name: (world.lifted(name, held) or held)[0] for name, held in self.slots.items()}, sort_keys=True
            ),
            blocks=self.all_blocks(world),
        )

    def state(self, id: str, *, clears: bool) -> dict[str, Any] | None:
        """Return what a message says, or None if it was taken out in its own right."""
        note = self.notes[id]
        return None if note.out or (clears and note.taken) else note.body

    def unsettled(self) -> bool:
        """Whether a call of the last messages that make any has no result, and nothing but results follows them."""
        bodies = [self.notes[id].body for id in self.path(self.head)]
        answers: list[str] = []
        while bodies and answers_of(bodies[-1]) and not calls_of(bodies[-1]):
            answers += answers_of(bodies.pop())
        while bodies and (calls := calls_of(bodies[-1])):
            for call in calls:
                if call not in answers:
                    return True
                answers.remove(call)
            answers += answers_of(bodies[-1])
            if answers_of(bodies.pop()):
                break
        return False


class Kin:
    """One tape of a family."""

    def __init__(self, id: str, world: World, parent: Kin | None = None) -> None:
        self.id = id
        self.world = world
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.tree = Tree()
        self.past: list[Tree] = [Tree()]
        """The view after each entry; the first is that of an unwritten tape."""
        self.state = "open" if parent is not None else ""
        self.merged = self.since = 0
        """The seqs of the last merge of any kind, and of the last that took something."""
        self.agreed = 0
        """The parent's seq then, or at the fork."""
        self.met = 0
        """The parent's seq at the last merge of any kind, or at the fork."""
        self.changes: list[Change] = []
        """What the tape itself wrote to slots and blocks."""
        self.squashed = 0
        self.copies: dict[str, str] = {}
        """The ids of messages that the parent took, and what they are called there."""
        self.last: Merged | None = None
        self.named: dict[str, int] = {}
        """The seq of the newest anchor of each name."""

    @property
    def seq(self) -> int:
        """The head's seq."""
        return len(self.past) - 1

    def seen(self, seq: int | None = None) -> Seen:
        """Return what can be seen now or after an entry."""
        return self.past[-1 if seq is None else seq].seen(self.seq if seq is None else seq, self.world)

    def _record(self) -> int:
        """Keep the view after one more entry; returns its seq."""
        self.past.append(copy.deepcopy(self.tree))
        return self.seq

    def _next(self) -> int:
        if self.seq == 0:
            self._record()
        return self.seq + 1

    def _writable(self) -> None:
        if self.tree.status in CLOSED:
            raise Refused(tape.TapeClosed, status=self.tree.status)

    def _visible(self, id: str) -> Note:
        if id not in self.tree.notes:
            raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
        if not self.tree.visible(id):
            raise Refused(tape.UnknownMessage, message_id=id, retracted=True)
        return self.tree.notes[id]

    # -- writes

    def append(self, message: dict[str, Any], made: str, parent: str | None = HEAD) -> Wrote:
        """Append a message; ``made`` is the id that the store chose if the message has none."""
        id = message.get("id", made)
        given = {"message": message, "id": message.get("id")}
        if parent != HEAD:
            given["parent"] = parent
        if id in self.tree.notes:
            note = self.tree.notes[id]
            if not same(note.given, given):
                raise Refused(tape.ProvenanceConflict)
            return Wrote(note.tape, note.placed, id, True)
        self._writable()
        above = self.tree.head if parent == HEAD else None if parent is None else self._visible(str(parent)).id
        return self._place(id, message, given, above)

    def _place(self, id: str, message: dict[str, Any], given: dict[str, Any], above: str | None) -> Wrote:
        bound = []
        for call in answers_of(message):
            for one in self.tree.up(above):
                if self.tree.visible(one) and call in calls_of(self.tree.notes[one].body):
                    bound.append((call, one))
                    break
        seq = self._next()
        self.tree.notes[id] = Note(
            id, above, self.id, seq, copy.deepcopy(message), given, (self.id, seq), next(_clock), bound
        )
        self.tree.head = id
        self._record()
        return Wrote(self.id, seq, id, False)

    def revise(self, id: str, content: Any = None, *, message: dict[str, Any] | None = None) -> Wrote:
        """Replace a message, or only its content."""
        note = self.tree.notes.get(id)
        body: dict[str, Any] = {}
        if note is not None and self.tree.visible(id):
            body = {**note.body, "content": content}
            if message is not None:
                body = {**{name: note.body[name] for name in ("id", "role") if name in note.body}, **message}
            if same(apart(body, id), apart(note.body, id)):
                # Settled before any other check, as a known key is.
                return Wrote(*note.revision, id, True)
        self._writable()
        note = self._visible(id)
        seq = self._next()
        note.body, note.revision, note.revised, note.named = copy.deepcopy(body), (self.id, seq), next(_clock), seq
        self._record()
        return Wrote(self.id, seq, id, False)

    def retract(self, ids: Sequence[str]) -> Wrote:
        """Take messages out of the view."""
        self._writable()
        for id in ids:
            if id not in self.tree.notes:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
            if self.tree.notes[id].out or self.tree.notes[id].taken:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=True)
        seq = self._next()
        for id in ids:
            self.tree.notes[id].out, self.tree.notes[id].named = True, seq
        self._record()
        return Wrote(self.id, seq, ids[0] if len(ids) == 1 else None, False)

    def restore(self, ids: Sequence[str]) -> Wrote:
        """Bring messages back, or without ids undo the tape's last clear."""
        self._writable()
        if not ids and not self.tree.clears:
            raise Refused(tape.InvalidEntry, field="ids")
        for id in ids:
            if id not in self.tree.notes:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
            if not self.tree.notes[id].out and not self.tree.notes[id].taken:
                raise Refused(tape.InvalidEntry, field="ids")
        seq = self._next()
        for id in ids:
            note = self.tree.notes[id]
            note.out, note.taken, note.named = False, 0, seq
        if not ids:
            undone = self.tree.clears.pop()
            for note in self.tree.notes.values():
                if note.taken == undone:
                    note.taken = 0
        self._record()
        return Wrote(self.id, seq, ids[0] if len(ids) == 1 else None, False)

    def clear(self) -> Wrote:
        """Take everything that is in the view out of it."""
        self._writable()
        seq, when = self._next(), next(_clock)
        for id in [id for id in self.tree.notes if self.tree.visible(id)]:
            self.tree.notes[id].taken = when
        self.tree.clears.append(when)
        self._record()
        return Wrote(self.id, seq, None, False)

    def switch(self, id: str) -> Wrote:
        """Make a message the head."""
        self._writable()
        self._visible(id)
        seq = self._next()
        self.tree.head = id
        self._record()
        return Wrote(self.id, seq, id, False)

    def anchor(self, name: str, sources: Sequence[str]) -> Wrote:
        """Set an anchor."""
        self._writable()
        for id in sources:
            if id not in self.tree.notes:
                raise Refused(tape.UnknownMessage, message_id=id, retracted=False)
        seq = self._next()
        self.tree.marks.append(Mark(self.id, seq, name, self.tree.head, list(sources), next(_clock)))
        self.named[name] = seq
        self._record()
        return Wrote(self.id, seq, None, False)

    def event(self) -> Wrote:
        """Record a fact."""
        seq = self._next()
        self._record()
        return Wrote(self.id, seq, None, False)

    def set_status(self, status: str) -> Wrote:
        """Close the tape or open it again."""
        if self.tree.status == "discarded":
            raise Refused(tape.TapeClosed, status="discarded")
        seq = self._next()
        self.tree.status = status
        self._record()
        return Wrote(self.id, seq, None, False)

    # -- state and blocks

    def put(self, slot: str, value: Any) -> Wrote:
        """Put a value into a slot."""
        self._writable()
        return self._put(slot, (value, self.world.slots.get(slot, 0)))

    def patch(self, slot: str, patch: Any) -> Wrote:
        """Patch a slot."""
        self._writable()
        if patch is None:
            return self._put(slot, None)
        held = self.world.lifted(slot, self.tree.slots.get(slot))
        version = self.world.slots.get(slot, 0)
        if held is not None and isinstance(held[0], dict) and isinstance(patch, dict):
            version = max(version, held[1])
        return self._put(slot, (patched(None if held is None else held[0], patch), version))

    def _put(self, slot: str, held: Value | None) -> Wrote:
        seq = self._next()
        self.tree.slots.pop(slot, None)
        if held is not None:
            self.tree.slots[slot] = copy.deepcopy(held)
        self.changes.append(Change(seq, f"state:{slot}", "put"))
        self._record()
        return Wrote(self.id, seq, None, False)

    def block(self, label: str, op: str, given: str | None, config: dict[str, Any]) -> Wrote:
        """Set, extend or remove a block."""
        self._writable()
        held, spec = self.tree.blocks.get(label), self.world.spec(label)
        if held is None or held.text is None:
            facts = Facts() if spec is None else declared_facts(spec)
            held = Text(None if spec is None else spec.default, facts, spec is not None)
        if op == "remove" and held.text is None:
            raise Refused(tape.InvalidEntry, field="label")
        text = joined(held.text or "", str(given)) if op == "append" else given
        facts = replace(held.facts, **config)
        if text is not None and over(text, facts):
            raise Refused(tape.InvalidEntry, field="text")
        return self._block(label, op, given, Text(text, facts, held.declared))

    def _block(self, label: str, op: str, given: str | None, text: Text) -> Wrote:
        seq = self._next()
        self.tree.blocks[label] = replace(text, seq=seq, depth=self.depth)
        self.changes.append(Change(seq, f"block:{label}", op, given, text.text))
        self._record()
        return Wrote(self.id, seq, None, False)

    # -- forks

    def fork(self, id: str, at: int | str | None) -> Kin:
        """Copy the view at a seq or an anchor, or as it is now with a message as the head."""
        if isinstance(at, str):
            at = self.named.get(at, at)
        if isinstance(at, str):
            if at not in self.tree.notes:
                raise Refused(tape.InvalidEntry, field="point")
            self._visible(at)
        self._next()
        tree = copy.deepcopy(self.past[at] if isinstance(at, int) else self.tree)
        if isinstance(at, str):
            tree.head = at
        tree.marks = tree.standing()
        for note in tree.notes.values():
            # What a clear took is gone for the fork, which has no clear of its own to undo.
            note.out, note.taken, note.named = note.out or note.taken > 0, 0, 0
        tree.clears, tree.status = [], "active"
        child = Kin(id, self.world, self)
        child.agreed = child.met = at if isinstance(at, int) else self.seq
        child.tree = tree
        child._record()
        self._record()
        return child

    def discard(self) -> Wrote:
        """Give a fork up."""
        if self.parent is None:
            raise Refused(tape.InvalidEntry, field="tape")
        if self.state != "open":
            raise Refused(tape.TapeClosed, status=self.state)
        self.parent._record()
        self.state = self.tree.status = "discarded"
        return Wrote(self.id, self._record(), None, False)

    # -- merging

    def _new(self) -> list[Note]:
        """Return the messages of the tape's own on its active path that its parent has not."""
        found = [self.tree.notes[id] for id in self.tree.path(self.tree.head)]
        return [
            note
            for note in found
            if note.tape == self.id and note.placed > self.squashed and note.id not in self.copies
        ]

    def _changed(self) -> list[tuple[int, str, str]]:
        """Return the messages in both that this fork named and that are other than they were: seq, id, id above."""
        then = self.past[max(self.since, 1)]
        found = []
        for note in self.tree.notes.values():
            above = note.id if note.tape != self.id else self.copies.get(note.id)
            if note.named <= self.since or above is None:
                continue
            if not _same_state(then.state(note.id, clears=False), self.tree.state(note.id, clears=False)):
                found.append((note.named, note.id, above))
        return sorted(found)

    def written(self, id: str) -> int:
        """Return the entry of the tape's own that wrote a message's body, or 0."""
        on, seq = self.tree.notes[id].revision
        return seq if on == self.id else 0

    def merge(self, child: Kin, strategy: str, on_conflict: str, fields: dict[str, Any], made: Sequence[str]) -> Merged:
        """Take what is new on a fork; ``made`` are the ids that the store gave to the messages."""
        if child.parent is not self:
            raise Refused(tape.InvalidEntry, field="tape" if child.parent is None and child is not self else "child")
        if child.state == "discarded":
            raise Refused(tape.TapeClosed, status="discarded")
        new = child._new()
        changes = [
            (seq, own, above, _renamed(child.tree.state(own, clears=False), above))
            for seq, own, above in child._changed()
        ]
        changes = [one for one in changes if not _same_state(self.tree.state(one[2], clears=True), one[3])]
        changes.sort(key=lambda one: (one[0], one[2]))
        carried = list(dict.fromkeys(one.name for one in reversed(child.changes) if one.seq > child.merged))[::-1]
        anything = child.seq > child.merged if strategy == "link" else bool(new or changes or carried)
        if child.last is not None and not anything:
            return Merged(**{**child.last.__dict__, "duplicate": True})
        self._writable()
        head, ids, changed = child.seq, list[str](), list[str]()
        carry = Carry(self, child, on_conflict)
        for name in carried:
            carry.take(name)
        body: dict[str, Any] = {}
        conflicts, kept = carry.conflicts, carry.kept
        wanted: list[tuple[int, str, dict[str, Any] | None]] = []
        if strategy == "replay":
            if new and self.tree.unsettled():
                raise Refused(tape.InvalidEntry, field="strategy")
            wanted = self._wanted(child, changes, on_conflict, conflicts, kept)
        elif strategy == "squash" and (fields or new):
            body = {"role": "assistant", **fields}
            if "content" not in body:
                if not new:
                    raise Refused(tape.InvalidEntry, field="summary")
                body["content"] = child.tree.notes[child.tree.path(child.tree.head)[-1]].body.get("content")
        if conflicts:
            raise Refused(tape.MergeConflict, conflicts=conflicts)
        if strategy == "replay":
            changed = self._take(child, changes, wanted, kept)
            for note in new:
                ids.append(self._copy(child, note, made[len(ids)] if len(ids) < len(made) else "?"))
        elif strategy == "squash":
            if body:
                ids.append(made[0] if made else "?")
                self._place(ids[0], body, {"message": body, "id": None}, self.tree.head)
            child.squashed = head
        for write in carry.writes:
            write()
        self._record()
        child.state = "merged"
        child.merged, child.met = child._record(), self.seq
        if strategy != "link":
            child.since, child.agreed = child.merged, self.seq
        child.last = Merged(self.seq, head, ids, changed, kept)
        return child.last

    def _copy(self, child: Kin, note: Note, made: str) -> str:
        """Continue the active branch with a message of a fork; an id that is taken gives way to the one made."""
        id = made if note.id in self.tree.notes else note.id
        body = _renamed(note.body, id)
        assert body is not None
        given = {"message": body, "id": id if id == note.id and note.given["id"] is not None else None}
        self._place(id, body, given, self.tree.head)
        child.copies[note.id] = id
        return id

    def _wanted(
        self,
        child: Kin,
        changes: list[tuple[int, str, str, dict[str, Any] | None]],
        on_conflict: str,
        conflicts: list[Any],
        kept: list[str],
    ) -> list[tuple[int, str, dict[str, Any] | None]]:
        """Return what a fork did to messages of this tape that is to be done here; the rest conflicts or is kept."""
        then = self.past[child.agreed]
        wanted: list[tuple[int, str, dict[str, Any] | None]] = []
        for seq, _, id, theirs in changes:
            ours = self.tree.state(id, clears=True)
            hidden = ours is not None and not self.tree.visible(id)
            was = then.state(id, clears=True)
            was_hidden = was is not None and not then.visible(id)
            both = not _same_state(ours, was) or hidden != was_hidden
            if both and not (theirs is None and hidden):
                if on_conflict == "fail":
                    conflicts.append((id, None if hidden else ours, theirs))
                elif on_conflict == "ours":
                    kept.append(id)
                else:
                    wanted.append((seq, id, theirs))
            else:
                wanted.append((seq, id, theirs))
        return wanted

    def _take(
        self,
        child: Kin,
        changes: list[tuple[int, str, str, dict[str, Any] | None]],
        wanted: list[tuple[int, str, dict[str, Any] | None]],
        kept: list[str],
    ) -> list[str]:
        """Carry over what a fork did to messages of this tape; returns the ids changed."""
        written = {id: child.written(own) for _, own, id, _ in changes}
        changed: dict[str, None] = {}
        back = [one for one in wanted if one[2] is not None and self.tree.state(one[1], clears=True) is None]
        for _, group in itertools.groupby(back, lambda one: one[0]):
            ids = [one[1] for one in group]
            self.restore(ids)
            changed.update(dict.fromkeys(ids))
        for _, id, theirs in sorted(wanted, key=lambda one: (written[one[1]], one[:2])):
            if theirs is not None:
                try:
                    if not self.revise(id, message=theirs).duplicate:
                        changed[id] = None
                except Refused:
                    kept.append(id)
        gone = [one for one in wanted if one[2] is None]
        for _, group in itertools.groupby(gone, lambda one: one[0]):
            ids = [one[1] for one in group]
            self.retract(ids)
            changed.update(dict.fromkeys(ids))
        return list(changed)


class Carry:
    """What a merge does to the slots and blocks of a parent: worked out first, and written when nothing conflicts."""

    def __init__(self, parent: Kin, child: Kin, policy: str) -> None:
        self.parent, self.child, self.policy = parent, child, policy
        self.world = parent.world
        self.then, self.child_then = parent.past[child.met], child.past[max(child.merged, 1)]
        self.conflicts: list[tuple[str, Any, Any]] = []
        self.kept: list[str] = []
        self.writes: list[Callable[[], Any]] = []

    def take(self, name: str) -> None:
        """Decide on one slot or block."""
        kind, _, label = name.partition(":")
        if kind == "state":
            self._state(label)
        else:
            self._block(label)

    # -- state

    def _state(self, slot: str) -> None:
        base, theirs, was, ours = (
            self.world.lifted(slot, tree.slots.get(slot))
            for tree in (self.child_then, self.child.tree, self.then, self.parent.tree)
        )
        held = [one for one in (base, theirs, was, ours) if one is not None]
        if len({version or 1 for _, version in held}) > 1:
            self._whole(slot, base, theirs, was, ours)
            return
        gone = (NOTHING, 0)
        now = (ours or gone)[0]
        mine = differences((was or gone)[0], now)
        value, failed = now, False
        for at, new in differences((base or gone)[0], (theirs or gone)[0]).items():
            meets = [one for one in mine if one[: len(at)] == at or at[: len(one)] == one]
            name = ".".join((slot, *at))
            if any(one != at or not same(mine[one], new) for one in meets) and self.policy != "theirs":
                failed = failed or self.policy == "fail"
                if self.policy == "ours":
                    self.kept.append(name)
                else:
                    self.conflicts.append((name, wrapped(found_at(now, at)), wrapped(new)))
            else:
                value = laid(value, at, new)
        if not failed and not same(value, now):
            version = max((version for _, version in held), default=0)
            self._write(slot, None if value == NOTHING else (value, version))

    def _whole(
        self, slot: str, base: Value | None, theirs: Value | None, was: Value | None, ours: Value | None
    ) -> None:
        if alike(base, theirs) or alike(theirs, ours):
            return
        if alike(was, ours) or self.policy == "theirs":
            self._write(slot, theirs)
        elif self.policy == "ours":
            self.kept.append(slot)
        else:
            self.conflicts.append((slot, wrapped((ours or (NOTHING, 0))[0]), wrapped((theirs or (NOTHING, 0))[0])))

    def _write(self, slot: str, held: Value | None) -> None:
        self.writes.append(lambda: self.parent._put(slot, held))

    # -- blocks

    def _lines(self, kin: Kin, label: str, since: int, text: str | None) -> list[str] | None:
        """Return the lines that a tape appended to a block, or None when it did more to its text."""
        lines = []
        for one in kin.changes:
            if one.name == f"block:{label}" and one.seq > since:
                if one.op == "append":
                    lines.append(one.given)
                elif one.text != text:
                    return None
                text = one.text
        return lines

    def _block(self, label: str) -> None:
        world, spec = self.world, self.world.spec(label)
        base, theirs, was, ours = (
            tree.look(label, world) for tree in (self.child_then, self.child.tree, self.then, self.parent.tree)
        )
        recorded, held = theirs, self.child.tree.blocks[label]
        if label not in self.child_then.blocks and not held.declared and spec is not None and theirs is not None:
            facts = theirs[1]
            theirs = (
                theirs[0],
                Facts(
                    spec.description if facts.description is None else facts.description,
                    spec.max_tokens if facts.max_tokens is None else facts.max_tokens,
                    facts.read_only or spec.read_only,
                ),
            )
        if theirs in (base, ours):
            return
        lines = self._lines(self.child, label, self.child.merged, None if base is None else base[0])
        own_lines = self._lines(self.parent, label, self.child.met, None if was is None else was[0])
        merged = theirs
        if ours is None or theirs is None:
            removed = ours != was or (ours is None and base is not None)
            if removed and self._against(label, ours, theirs, ["text"]):
                return
        elif not (ours == was == base):
            empty = ("", Facts())
            clashing, merged = [], ours
            for name in ("text", "description", "max_tokens", "read_only"):
                was_there, new, before, mine = (part(one or empty, name) for one in (base, theirs, was, ours))
                if new in (was_there, mine):
                    continue
                if name == "text" and lines is not None and (before == mine or own_lines is not None):
                    text = ours[0]
                    for line in lines:
                        text = joined(text, line)
                    merged = (text, merged[1])
                elif before == mine:
                    merged = with_part(merged, name, new)
                else:
                    clashing.append(name)
            if clashing:
                if self.policy == "fail":
                    self._against(label, ours, theirs, clashing)
                    return
                if self.policy == "ours":
                    self.kept.append(label)
                for name in clashing:
                    merged = with_part(merged, name, part(ours if self.policy == "ours" else theirs, name))
        if merged is not None and over(*merged):
            changed = ours is None or (ours[0], ours[1].max_tokens) != (merged[0], merged[1].max_tokens)
            if changed and self.policy == "theirs":
                merged = recorded
            elif changed:
                if label in self.kept:
                    self.kept.remove(label)
                names = ["text"]
                if ours is not None and recorded is not None and ours[1].max_tokens != recorded[1].max_tokens:
                    names.append("max_tokens")
                self._against(label, ours, recorded, names)
                return
        if merged != ours:
            self._write_block(label, ours, merged, lines or [])

    def _against(self, label: str, ours: Look, theirs: Look, names: list[str]) -> bool:
        """Note a conflict, or that the parent's block stays; False when the fork's is to be taken."""
        if self.policy == "fail":
            mine, other = (None if one is None else {name: part(one, name) for name in names} for one in (ours, theirs))
            self.conflicts.append((label, mine, other))
        elif self.policy == "ours":
            self.kept.append(label)
        return self.policy != "theirs"

    def _write_block(self, label: str, ours: Look, merged: Look, lines: list[str]) -> None:
        held = self.parent.tree.blocks.get(label)
        declared = (
            self.world.spec(label) is not None
            or (held is not None and held.declared)
            or self.child.tree.blocks[label].declared
        )

        def write(op: str, given: str | None, text: str | None, facts: Facts) -> None:
            self.writes.append(lambda: self.parent._block(label, op, given, Text(text, facts, declared)))

        if merged is None:
            assert ours is not None
            write("remove", None, None, ours[1])
            return
        text = "" if ours is None else ours[0]
        for line in lines:
            text = joined(text, line)
        if not lines or text != merged[0] or (ours is None and merged[1] != Facts()):
            write("set", merged[0], merged[0], merged[1])
            return
        if ours is not None and ours[1] != merged[1]:
            write("set", ours[0], ours[0], merged[1])
        text = "" if ours is None else ours[0]
        for line in lines:
            text = joined(text, line)
            write("append", line, text, merged[1])


def over(text: str, facts: Facts) -> bool:
    """Whether a text is longer than its block may be."""
    return facts.max_tokens is not None and len(text) > facts.max_tokens


def declared_facts(spec: tape.BlockSpec) -> Facts:
    """Return the configuration that a block is declared with."""
    return Facts(spec.description, spec.max_tokens, spec.read_only)


def part(look: tuple[str, Facts], name: str) -> Any:
    """Return a block's text or a part of its configuration."""
    return look[0] if name == "text" else getattr(look[1], name)


def with_part(look: tuple[str, Facts], name: str, value: Any) -> tuple[str, Facts]:
    """Return a block with another text or another part of its configuration."""
    return (value, look[1]) if name == "text" else (look[0], replace(look[1], **{name: value}))


def wrapped(value: Any) -> dict[str, Any] | None:
    """Return a value of state as a conflict shows it."""
    return None if value == NOTHING else {"value": value}


def alike(one: Value | None, other: Value | None) -> bool:
    """Whether two values of a slot are the same, in the same version."""
    if one is None or other is None:
        return one is other
    return same(one[0], other[0]) and (one[1] or 1) == (other[1] or 1)


def _same_state(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    return one is other if one is None or other is None else same(one, other)


def _renamed(body: dict[str, Any] | None, id: str) -> dict[str, Any] | None:
    return {**body, "id": id} if body is not None and "id" in body else body
