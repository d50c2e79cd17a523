"""What a merge compares: the child's messages that its parent lacks, and the messages of both that differ now."""

from __future__ import annotations

import copy
from typing import Any

from msgspec import Struct

from tape.core.entries import ids, payloads
from tape.core.entries.payloads import ROOT, Place
from tape.core.merge import divergence
from tape.core.messages import toolcalls
from tape.core.plan.lookup import Standing, waiting
from tape.db.engine.transaction import Transaction
from tape.db.record.writing import Writing
from tape.db.sql.rows.tapes import ForkRow
from tape.db.sql.rows.view import PathRow
from tape.db.view import paths
from tape.db.view.opening import as_inherited, standing
from tape.db.view.tape_view import TapeView
from tape.db.view.values import decoded
from tape.errors import Corrupt

__all__ = ["New", "MessageMerge", "renamed"]


_FIRST_PAGE = 8

Bodies = dict[tuple[str, int], payloads.Body | payloads.Revise]
"""What was read of the content of a message, by the tape and the seq of the entry that holds it."""


class New(Struct, frozen=True):
    """A message of the child that the parent lacks: where it was placed on the child, and its current content."""

    id: str
    placed: int
    message: dict[str, Any]
    generated: bool
    tokens: int
    meta: bytes | None
    """The meta recorded with its current content."""


class MessageMerge:
    """Compares a parent with its child, both locked, before a merge writes anything."""

    def __init__(self, tx: Transaction, parent: Writing, child: Writing, fork: ForkRow) -> None:
        self.merged, self.merge_seq = fork.merged, fork.merge_seq
        self.parent = parent
        self.child = child
        self.before = self._merge_at(tx, self.merge_seq)
        """The last merge, of whatever strategy."""
        if self.before is None:
            self.merged = self.merge_seq = 0
        self._tx = tx
        self._sql = tx.statements
        # A link copies nothing, so everything before it is still to be merged.
        self.since, agreed, last = self.merged, self.merge_seq, self.before
        """The child's seq up to which its messages were merged."""
        while last is not None and last.strategy == "link":
            before, (self.since, agreed) = agreed, (last.since, last.previous)
            last = self._merge_at(tx, agreed) if agreed < before else None
        self._agreed = agreed or fork.seq
        """The parent's seq at which the two last agreed; the child's is ``since``, or its first entry."""
        self.squashed = last.squashed if last is not None else 0
        """The child's seq up to which a squash summarizes it."""
        self._moved = self.since == 0
        """Whether messages from before the last merge may have come onto the child's path since."""
        self._revisions: dict[int, tuple[payloads.Revise, bytes | None]] = {}
        """The child's last revision of each message since then, by its seq, and the meta recorded with it."""
        self._touched = self._read_changes()
        self.ours = standing(tx, parent.tape, parent.tape_id, copy.copy(parent.head), parent.ancestry)
        """The parent as it is before the merge, whatever that writes."""
        self._theirs = standing(tx, child.tape, child.tape_id, copy.copy(child.head), child.ancestry)
        self._new: list[New] | None = None
        self._divergences: list[divergence.Divergence] | None = None

    def _merge_at(self, tx: Transaction, seq: int) -> payloads.Merge | None:
        """Return a merge of the child; none when the family was imported without the part of the parent that has it."""
        row = tx.one(tx.statements.body, (self.parent.tape_id, seq)) if seq else None
        payload = decoded(row) if row is not None and row.payload is not None else None
        return payload if isinstance(payload, payloads.Merge) and payload.tape == self.child.tape else None

    def anything(self, strategy: str) -> bool:
        """Whether there is anything that the last merge did not cover."""
        if strategy == "link":
            return bool(self.child.head.seq > self.merged)
        return bool(self.new() or any(divergence.differs(difference) for difference in self.divergences()))

    def _read_changes(self) -> dict[Place, int]:
        """Return the places of the messages that the child revised, retracted or restored, each with the last seq.

        Only messages that an entry names count: a result that is hidden or restored with its tool call is so in the
        parent as well. A clear of the child, and undoing it, are not merged.
        """
        changed_at: dict[Place, int] = {}
        after = self.since
        newest = self.child.head.seq
        while after < newest and (
            rows := self._tx.all(self._sql.entries_after, (self.child.tape_id, after, newest, 500))
        ):
            for row in rows:
                after = row.seq
                if row.kind not in ("append", "revise", "retract", "restore", "switch") or row.payload is None:
                    continue
                entry = payloads.decode(row.kind, row.version, row.payload, key=row.key)
                places: list[Place] = []
                match entry:
                    case payloads.Append():
                        # A lane has the number of its first entry, so another branch begins here, maybe at the root.
                        begins = row.lane == row.seq
                        self._moved = self._moved or begins or entry.lo is not None
                    case payloads.Revise():
                        places = [entry.place]
                        if entry.supersedes_of is None:
                            self._revisions.pop(entry.supersedes, None)
                        self._revisions[row.seq] = entry, row.meta
                        self._moved = self._moved or bool(entry.shows)
                    case payloads.Retract():
                        places = [*entry.places, *entry.marks]
                    case payloads.Restore():
                        named = entry.shows[: max(len(entry.ids) - len(entry.marks), 0)]
                        places = [back.place for back in (*named, *entry.marks)]
                        self._moved = True
                    case _:
                        self._moved = True
                for place in places:
                    changed_at[place] = after
        return changed_at

    # -- what is new

    def new(self) -> list[New]:
        """Return the messages on the child's active path that were never merged, root first."""
        if self._new is None:
            view = self._theirs
            floor = 0
            if not self._moved:
                # Then everything up to the head at the last merge is unchanged and was merged.
                row = self._tx.one(self._sql.entry, (self.child.tape_id, self.since))
                floor = row.ordinal if row is not None else 0
            rows: list[PathRow] = []
            end = view.head.place
            while end != ROOT and end.tape is None and end.ordinal > floor:
                # The head knows where its lane begins; most often that is all there is to know.
                base = None if paths.beside_head(view, end) else paths.base(view, end)
                lo = view.head.lo if base is None else base.ordinal
                rows[:0] = paths.rows(view, end, max(lo, floor))
                if lo <= floor:
                    break
                end = base or paths.base(view, end)
            fresh = [row for row in rows if self._is_new(row.placed)]
            held = [
                None if row.payload is None else payloads.decode(row.kind, row.version, row.payload, key=row.key)
                for row in fresh
            ]
            self._new = list(map(self._new_from, fresh, held))
        return self._new

    def _is_new(self, placed: int) -> bool:
        if placed <= self.squashed:
            return False
        return placed > self.since or self._copy_of(placed) is None

    def _new_from(self, row: PathRow, held: payloads.Payload | None) -> New:
        if not isinstance(held, payloads.Append | payloads.Revise):
            raise Corrupt(self.child.tape, row.body or 0, "the entry with the content of the message is missing")
        placing: payloads.Payload = held
        if row.body != row.placed:
            first = self._tx.one(self._sql.body, (self.child.tape_id, row.placed))
            if first is None or first.payload is None:
                raise Corrupt(self.child.tape, row.placed, "the entry that placed the message is missing")
            placing = decoded(first)
        generated = not isinstance(placing, payloads.Append) or placing.generated
        return New(held.id, row.placed, held.message, generated, held.tokens, row.meta)

    def _meta(self, revision: int) -> bytes | None:
        """Return the meta that the child recorded with a revision."""
        if revision in self._revisions:
            return self._revisions[revision][1]
        row = self._tx.one(self._sql.entry, (self.child.tape_id, revision)) if revision else None
        return None if row is None else row.meta

    def _copy_of(self, placed: int) -> Place | None:
        """Return the place of the parent's copy of a message that the child placed at a seq."""
        row = self._tx.one(self._sql.entry_by_key, (self.parent.tape_id, ids.copy_key(self.child.tape, placed)))
        return Place(row.lane, row.ordinal) if row is not None and row.kind == "append" else None

    def last(self) -> dict[str, Any] | None:
        """Return the last message on the child's active path."""
        view = self._theirs
        rows = paths.last_rows(view, view.head.place, 1)
        return _body(rows[0]).message if rows else None

    def unsettled(self) -> list[str]:
        """Return the tool calls that the parent's path still waits for.

        Pages are read from the end, each larger than the one before, until the last round of calls and results is
        known. Most often the last message is enough.
        """
        view = self.ours
        calls, end, count = divergence.OpenCalls(), view.head.place, _FIRST_PAGE
        while rows := paths.last_rows(view, end, count):
            for row in rows:
                body = _body(row)
                _, answers = toolcalls.find(body.message)
                # The calls that were recorded: an older tape awaits none of a shape that was not known then.
                if not calls.add(waiting(body), answers):
                    return calls.open
            if len(rows) < count:
                break
            last = rows[-1]
            end = paths.before(view, view.place_at(last.lane, last.ordinal, last.tape_id))
            count *= 8
        return calls.open

    # -- what differs

    def divergences(self) -> list[divergence.Divergence]:
        """Return the messages that both have and that the child named since the two last agreed."""
        if self._divergences is None:
            self._divergences = []
            if self._touched:
                parent_then = child_then = as_inherited(self.ours, self._agreed)
                if self.since:
                    # A clear of the child is not merged, so its view is read as if there were none.
                    child_then = as_inherited(self._theirs, self.since, clears=False)
                for place, seq in self._touched.items():
                    parent_place = self._in_parent(place)
                    if parent_place is not None:
                        self._divergences.append(self._compare(place, parent_place, seq, parent_then, child_then))
        return self._divergences

    def _compare(
        self, own: Place, place: Place, seq: int, parent_then: TapeView, child_then: TapeView
    ) -> divergence.Divergence:
        """Compare a message's former and current state, at its place in the child and at its place in the parent."""
        child, parent = self._theirs, self.ours
        stands, holds = child.standing(own), parent.standing(place)
        written = stands.body if stands.of is None else 0
        bodies: Bodies = {}
        if written in self._revisions:
            bodies[child.tape, written] = self._revisions[written][0]
        named = _body_of(parent, holds, bodies).id
        theirs, _ = _state(child, stands, 0, named, bodies)
        ours, hidden = _state(parent, holds, parent.head.cleared, named, bodies)
        held = parent_then.standing(_inherited(place, self.parent.tape))
        before, was_hidden = _state(parent_then, held, 0, named, bodies)
        base = before
        if child_then is not parent_then:
            base, _ = _state(child_then, child_then.standing(_inherited(own, self.child.tape)), 0, named, bodies)
        sides = (base, theirs, before, ours, was_hidden, hidden)
        meta = None if theirs is None else self._meta(written)
        return divergence.Divergence(named, seq, written, *sides, meta)

    def _in_parent(self, place: Place) -> Place | None:
        """Return the parent's place of a message that the child inherited, or that an earlier merge copied."""
        if place.tape is not None:
            return Place(place.lane, place.ordinal, None if place.tape == self.parent.tape else place.tape)
        return self._copy_of(self._theirs.standing(place).placed)


def _body(row: PathRow) -> payloads.Body:
    return payloads.body_of(row.kind, row.version, row.payload, row.key)


def renamed(message: dict[str, Any], was: str, now: str) -> dict[str, Any]:
    """Return a message under another id; its own ``id`` field changes too, if it held the old id."""
    return {**message, "id": now} if message.get("id") == was else message


def _inherited(place: Place, tape: str) -> Place:
    """Return a place of a tape as a fork of that tape names it."""
    return Place(place.lane, place.ordinal, place.tape or tape)


def _body_of(look: TapeView, standing: Standing, bodies: Bodies) -> payloads.Body | payloads.Revise:
    """Return the body that a message stands with; the two tapes have most of them in common."""
    at = standing.of or look.tape, standing.body
    if at not in bodies:
        bodies[at] = look.body(standing.body, standing.of)
    return bodies[at]


def _state(
    look: TapeView, standing: Standing, cleared: int, named: str, bodies: Bodies
) -> tuple[dict[str, Any] | None, bool]:
    """Return a message (None if it is out) under the id that the parent has for it, and whether it is hidden."""
    out, visible = standing.out(cleared), standing.visible(cleared)
    if out:
        return None, False
    body = _body_of(look, standing, bodies)
    return renamed(body.message, body.id, named), not visible
