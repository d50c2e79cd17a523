"""A naive model of a family of tapes, to check forks and merges against.

Every tape of it is a plain tree of its own: a fork copies the whole view of its parent, message by message, and a
merge compares the two trees with what they were when they last agreed. It knows nothing of lanes, lineages, overrides
or as-of reads. What the store must refuse is raised as ``Refused``, and then nothing changed.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tape
from support.family_memory import Change, Facts, Look, Text, Value, World, declared_facts, joined, over, patched
from support.family_merge import Carry
from support.seen import Seen, Shown, show
from support.tree import HEAD, Digest, Mark, Note, Refused, Tree, answers_of, apart, calls_of, revised_body, same

__all__ = ["FamilyTree", "Kin", "Merged", "SeenKin", "Wrote"]

CLOSED = ("completed", "discarded")

_clock = itertools.count(1)


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


@dataclass
class SeenKin(Seen):
    """What can be seen of a tape of a family."""

    states: str
    blocks: list[tuple[str, str, Facts, int | None]]

    def compare_more(self, reads: tape.Snapshot, context: tape.Context, info: tape.TapeInfo) -> None:
        """Compare pages, state and blocks."""
        pages: list[tape.Message] = []
        cursor = None
        while True:
            page = reads.messages(limit=3, before=cursor)
            assert isinstance(page, tape.Page)
            pages[:0] = page.items
            cursor = page.cursor
            if not page.truncated:
                break
        assert [show(m) for m in pages] == self.path
        assert json.dumps(reads.states(), sort_keys=True) == self.states
        found = reads.blocks()
        assert [(b.label, b.text, Facts(b.description, b.max_tokens, b.read_only), b.seq) for b in found] == self.blocks
        assert [block.tokens for block in found] == [len(block.text) for block in found]


@dataclass
class FamilyTree(Tree):
    """The view of one tape of a family, with its slots and blocks."""

    tape: str = ""
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

    def show(self, id: str) -> Shown:
        """Return a message as it is shown."""
        note = self.notes[id]
        return id, self.above(id), note.tape, note.placed, note.revision, json.dumps(note.body, sort_keys=True)

    def context(self) -> list[Shown]:
        """Return what a context shows; a summary of another tape is named with it."""
        found: list[Shown] = []
        for one in self.window(self.head):
            if isinstance(one, str):
                found.append(self.show(one))
            else:
                name = f"~summary:{one.seq}" if one.tape == self.tape else f"~summary:{one.tape}:{one.seq}"
                found.append((name, None, one.tape, one.seq, one.seq, ""))
        return found

    def seen(self, seq: int, world: World) -> SeenKin:
        """Return everything that can be seen."""
        live = self.live()
        shown = {id: self.show(id) for id in live}
        mark = self.anchor(self.head)
        return SeenKin(
            seq=seq,
            path=[shown[id] for id in self.path(self.head)],
            heads=[shown[id] for id in self.ends()],
            children={id: [shown[below] for below in live if shown[below][1] == id] for id in live},
            hidden=[id for id in self.notes if id not in shown],
            anchor=(mark.tape, mark.seq) if mark is not None else None,
            context=self.context(),
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
        self.tree = FamilyTree(tape=id)
        self.past = [FamilyTree(tape=id)]
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

    def seen(self, seq: int | None = None) -> SeenKin:
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
        above = self.tree.head if parent == HEAD else None if parent is None else self.tree.require(str(parent)).id
        return self._place(id, message, given, above)

    def _place(self, id: str, message: dict[str, Any], given: dict[str, Any], above: str | None) -> Wrote:
        bound = self.tree.binds(message, above)
        seq = self._next()
        self.tree.notes[id] = Note(
            id=id,
            parent=above,
            tape=self.id,
            placed=seq,
            body=copy.deepcopy(message),
            given=given,
            wrote=(self.id, seq),
            revised=next(_clock),
            bound=bound,
        )
        self.tree.head = id
        self._record()
        return Wrote(self.id, seq, id, False)

    def revise(self, id: str, content: Any = None, *, message: dict[str, Any] | None = None) -> Wrote:
        """Replace a message, or only its content."""
        note = self.tree.notes.get(id)
        body: dict[str, Any] = {}
        if note is not None and self.tree.visible(id):
            body = revised_body(note, message, content)
            if same(apart(body, id), apart(note.body, id)):
                # Settled before any other check, as a known key is.
                return Wrote(*note.wrote, id, True)
        self._writable()
        note = self.tree.require(id)
        seq = self._next()
        note.body, note.wrote, note.revised, note.named = copy.deepcopy(body), (self.id, seq), next(_clock), seq
        self._record()
        return Wrote(self.id, seq, id, False)

    def retract(self, ids: Sequence[str]) -> Wrote:
        """Take messages out of the view."""
        self._writable()
        self.tree.check_retract(ids)
        seq = self._next()
        self.tree.take_out(ids, seq)
        self._record()
        return Wrote(self.id, seq, ids[0] if len(ids) == 1 else None, False)

    def restore(self, ids: Sequence[str]) -> Wrote:
        """Bring messages back, or without ids undo the tape's last clear."""
        self._writable()
        self.tree.check_restore(ids)
        seq = self._next()
        self.tree.bring_back(ids, seq)
        self._record()
        return Wrote(self.id, seq, ids[0] if len(ids) == 1 else None, False)

    def clear(self) -> Wrote:
        """Take everything that is in the view out of it."""
        self._writable()
        seq = self._next()
        self.tree.clear_all(next(_clock))
        self._record()
        return Wrote(self.id, seq, None, False)

    def switch(self, id: str) -> Wrote:
        """Make a message the head."""
        self._writable()
        self.tree.require(id)
        seq = self._next()
        self.tree.head = id
        self._record()
        return Wrote(self.id, seq, id, False)

    def anchor(self, name: str, sources: Sequence[str]) -> Wrote:
        """Set an anchor."""
        self._writable()
        self.tree.require_known(sources)
        seq = self._next()
        mark = Mark(tape=self.id, seq=seq, when=next(_clock), name=name, at=self.tree.head, sources=list(sources))
        self.tree.marks.append(mark)
        self.named[name] = seq
        self._record()
        return Wrote(self.id, seq, None, False)

    def set_summary(self, text: str, first: str, last: str, expected: tuple[str, int] | int | None) -> Wrote:
        """Let a text stand for the messages from one to another; ``expected`` names the summary before it."""
        tree = self.tree
        self._writable()
        tree.require_run(first, last)
        newest = tree.newest()
        names: list[Any] = [None]
        if newest is not None:
            names = [(newest.tape, newest.seq)]
            if not any(one.seq == newest.seq and one.tape != newest.tape for one in tree.digests):
                names.append(newest.seq)
        if expected not in names:
            raise Refused(tape.SummaryMoved, expected=expected)
        run, covers = tree.judge(first, last)
        seq = self._next()
        tree.digests.append(Digest(tape=self.id, seq=seq, when=next(_clock), text=text, run=run, covers=covers))
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
            self.tree.require(at)
        self._next()
        tree = copy.deepcopy(self.past[at] if isinstance(at, int) else self.tree)
        if isinstance(at, str):
            tree.head = at
        tree.tape, tree.marks, tree.digests = id, tree.standing(), tree.lasting()
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
        on, seq = self.tree.notes[id].wrote
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
        # Blocks that the fork removed come first: they make room for the others.
        gone = [f"block:{label}" for label, held in child.tree.blocks.items() if held.text is None]
        carried.sort(key=lambda name: name not in gone)
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


def _same_state(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    return one is other if one is None or other is None else same(one, other)


def _renamed(body: dict[str, Any] | None, id: str) -> dict[str, Any] | None:
    return {**body, "id": id} if body is not None and "id" in body else body
