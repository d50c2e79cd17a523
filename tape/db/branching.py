"""Forking, merging and discarding: the writes that concern two tapes, each in one transaction on both."""

from __future__ import annotations

from itertools import count
from typing import Any

from tape.core import ids, merge, payloads, strict, toolcalls
from tape.core.payloads import ROOT, ForkPoint, Place, Reopened
from tape.core.plan import (
    CHAIN,
    HEAD,
    AddMessage,
    Intent,
    Plain,
    Planned,
    RestoreMessages,
    RetractMessages,
    ReviseMessage,
    Unchanged,
    canonical,
)
from tape.core.records import MergeReceipt, Receipt
from tape.db.carry import Carry
from tape.db.family import Family, Member
from tape.db.paths import Point, Scope
from tape.db.read import Reader
from tape.db.record import Call, Opener, Recorder, Writing, digest_of, message_of
from tape.db.rows import merge_receipt
from tape.db.transaction import Transaction
from tape.errors import (
    Corrupt,
    HeadMoved,
    InvalidEntry,
    MergeConflict,
    ProvenanceConflict,
    TapeClosed,
    TapeExists,
    TapeNotFound,
)

__all__ = ["Branching"]


class Branching:
    """Makes and ends forks of tapes of one database."""

    def __init__(self, recorder: Recorder, reader: Reader) -> None:
        self._recorder = recorder
        self._reader = reader
        self._sql = reader._sql

    # -- fork

    def fork(self, call: Call, child: str, at: Point, name: str | None) -> bool:
        """Fork ``call.tape``; tells whether a new tape was made, or one made by the same call was there already."""
        return self._recorder.several(
            [call.tape, child],
            ids.fork_key(child),
            lambda tx, opener: self._fork(tx, opener, call, child, at, name),
        )

    def _fork(self, tx: Transaction, opener: Opener, call: Call, child: str, at: Point, name: str | None) -> bool:
        if child == call.tape:
            raise TapeExists(child)
        parent = opener(call)
        if not parent.existed:
            parent.create()
            parent.move_head()
        scope = self._reader.scope(tx, call.tape, at)
        if scope is None:
            raise TapeNotFound(call.tape)
        # A retry with the same arguments finds its receipt on the parent, wherever the head has moved since.
        receipt = tx.one(self._sql.entry_by_key, (parent.tape_id, ids.fork_key(child)))
        if receipt is not None:
            made = payloads.decode(receipt[3], receipt[11], receipt[8])
            if (
                isinstance(made, payloads.Fork)
                and made.name == name
                and (at is None or (made.at, made.head) == (scope.seq, scope.head.place))
            ):
                return False
            raise TapeExists(child)
        if call.expected_head is not None and call.expected_head != parent.head.seq:
            raise HeadMoved(call.tape, call.expected_head, parent.head.seq)
        facts = tx.one(self._sql.info, (call.tape,))
        assert facts is not None
        born = Call(child, call.actor, call.meta)
        born.create = payloads.Open(name=name, owner=facts[2], agent=facts[3], parent=self._point(tx, scope, parent))
        young = opener(born)
        if young.existed:
            raise TapeExists(child)
        young.family = self._family(tx, scope, parent)
        place = scope.head.place
        if place != ROOT:
            place = Place(place.lane, place.ordinal, place.tape or call.tape)
        young.head.place = place
        young.create()
        receipt_of = payloads.Fork(child=child, at=scope.seq, head=scope.head.place, name=name)
        parent.put(Planned(receipt_of, parent.head.place), Plain(key=ids.fork_key(child), payload=receipt_of))
        return True

    def _family(self, tx: Transaction, scope: Scope, parent: Writing) -> Family:
        """Return the ancestors of a fork made at ``scope``."""
        overriding = False
        if scope.family is not None:
            overriding = tx.one(self._sql.has_overrides, (scope.id, scope.seq)) is not None
        nearest = Member(scope.id, scope.tape, scope.seq, scope.cleared, overriding)
        return Family([nearest, *(scope.family.members if scope.family is not None else ())])

    def _point(self, tx: Transaction, scope: Scope, parent: Writing) -> ForkPoint:
        row = tx.one(self._sql.entry, (scope.id, scope.seq))
        return ForkPoint(
            tape=scope.tape,
            seq=scope.seq,
            hash=bytes(row[12]).hex() if row is not None else "",
            layers=self._family(tx, scope, parent).layers(),
            lo=scope.head.lo,
        )

    # -- discard

    def discard(self, call: Call, key: str | None, reason: str | None) -> Receipt:
        """Close a fork for good, with a receipt on its parent."""
        parent = self._parent(call.tape)
        own, runs = key or ids.discard_key(parent), count()
        return self._recorder.several(
            [call.tape, parent],
            own,
            lambda tx, opener: self._discard(tx, opener, call, parent, own, reason, key is not None or next(runs) > 0),
        )

    def _discard(
        self, tx: Transaction, opener: Opener, call: Call, parent: str, key: str, reason: str | None, asked: bool
    ) -> Receipt:
        """``asked``: whether to look for the key first, since it is the caller's or a reply may have been lost."""
        child = opener(call)
        if asked:
            row = tx.one(self._sql.entry_by_key, (child.tape_id, key))
            if row is not None:
                return self._again(call.tape, row, {"kind": "discard", "reason": reason})
        state = self._state(tx, child)
        if child.head.status == "discarded" or state[2] == "merged":
            raise TapeClosed(call.tape, "discarded" if child.head.status == "discarded" else "merged")
        if call.expected_head is not None and call.expected_head != child.head.seq:
            raise HeadMoved(call.tape, call.expected_head, child.head.seq)
        other = opener(Call(parent, call.actor, call.meta))
        told = payloads.Discard(
            tape=call.tape, seq=child.head.seq, hash=child.head.hash.hex(), into=True, reason=reason
        )
        given = other.put(Planned(told, other.head.place), Plain(key=ids.discard_key(call.tape), payload=told))
        own = payloads.Discard(tape=parent, seq=given.seq, hash=given.hash, reason=reason)
        return child.put(Planned(own, child.head.place), Plain(key=key, payload=own))

    def _parent(self, child: str) -> str:
        def work(tx: Transaction) -> str | None:
            scope = self._reader.scope(tx, child)
            if scope is None:
                raise TapeNotFound(child)
            row = tx.one(self._sql.fork, (scope.id,))
            return None if row is None else str(row[0])

        parent = self._reader._db.read(work)
        if parent is None:
            raise InvalidEntry("tape", f"{child!r} was never forked, so it cannot be merged or discarded")
        return parent

    def _state(self, tx: Transaction, child: Writing) -> Any:
        row = tx.one(self._sql.fork, (child.tape_id,))
        if row is None:
            raise InvalidEntry("tape", f"{child.tape!r} was never forked")
        return row

    def _again(self, tape: str, row: Any, given: dict[str, Any]) -> Receipt:
        """Return the receipt of an entry found by the caller's key, if it says the same."""
        payload = payloads.decode(row[3], row[11], row[8])
        stored = {"kind": payload.kind, "reason": getattr(payload, "reason", None)}
        if stored != given:
            raise ProvenanceConflict(tape, row[4], row[2], digest_of(canonical(stored)), digest_of(canonical(given)))
        return Receipt(tape, row[2], row[4], message_of(payload), bytes(row[12]).hex(), True, row[0])

    # -- merge

    def merge(self, call: Call, child: str, strategy: str, on_conflict: str, fields: dict[str, Any]) -> MergeReceipt:
        """Take into ``call.tape`` what is new on its fork ``child``."""
        if strategy not in merge.STRATEGIES:
            raise InvalidEntry("strategy", f"must be one of {', '.join(merge.STRATEGIES)}, not {strategy!r}")
        if on_conflict not in merge.POLICIES:
            raise InvalidEntry("on_conflict", f"must be one of {', '.join(merge.POLICIES)}, not {on_conflict!r}")
        if fields and strategy != "squash":
            raise InvalidEntry("summary", f"message fields are for strategy='squash', not {strategy!r}")
        if child == call.tape or self._parent(child) != call.tape:
            raise InvalidEntry("child", f"{child!r} is not a fork of {call.tape!r}")
        return self._recorder.several(
            [call.tape, child],
            child,
            lambda tx, opener: self._merge(tx, opener, call, child, strategy, on_conflict, fields),
        )

    def _merge(
        self,
        tx: Transaction,
        opener: Opener,
        call: Call,
        child: str,
        strategy: str,
        on_conflict: str,
        fields: dict[str, Any],
    ) -> MergeReceipt:
        parent, young = opener(call), opener(Call(child, call.actor, call.meta))
        _, forked_at, state, merged, merge_seq = self._state(tx, young)
        if state == "discarded":
            raise TapeClosed(child, "discarded", young.head.reason)
        before = self._merge_at(tx, parent, merge_seq) if merge_seq else None
        taking = _Taking(self._reader, tx, parent, young, before, merged, forked_at, merge_seq)
        carry = Carry(self._reader, tx, parent, young, merged, merge_seq or forked_at)
        if before is not None and not self._anything_new(taking, strategy) and not carry.anything():
            row = tx.one(self._sql.entry, (parent.tape_id, merge_seq))
            assert row is not None
            return merge_receipt(call.tape, row, before, duplicate=True)
        if parent.head.status in ("completed", "abandoned", "ended", "discarded"):
            raise TapeClosed(call.tape, parent.head.status, parent.head.reason)
        if call.expected_head is not None and call.expected_head != parent.head.seq:
            raise HeadMoved(call.tape, call.expected_head, parent.head.seq)
        told = payloads.Merge(
            tape=child,
            seq=young.head.seq,
            hash=young.head.hash.hex(),
            strategy=strategy,
            since=merged,
            into=True,
            previous=merge_seq,
            squashed=before.squashed if before is not None else 0,
        )
        if strategy == "replay":
            self._replay(taking, told, on_conflict)
        elif strategy == "squash":
            self._squash(taking, told, fields)
        carry.into(told, on_conflict)
        parent._db.point("merge")
        receipt = parent.put(Planned(told, parent.head.place), Plain(key=ids.merge_key(child, told.seq), payload=told))
        parent.flush()
        parent._db.point("merged")
        back = payloads.Merge(tape=call.tape, seq=receipt.seq, hash=receipt.hash, strategy=strategy)
        young.put(Planned(back, young.head.place), Plain(key=ids.merge_key(call.tape, receipt.seq), payload=back))
        return MergeReceipt(
            tape=call.tape,
            seq=receipt.seq,
            key=receipt.key,
            hash=receipt.hash,
            duplicate=False,
            child=child,
            child_head=told.seq,
            strategy=strategy,
            message_ids=[message_id for message_id, _ in told.messages],
            changed=told.changed,
            kept=told.kept,
        )

    def _merge_at(self, tx: Transaction, parent: Writing, seq: int) -> payloads.Merge:
        row = tx.one(self._sql.body, (parent.tape_id, seq))
        payload = payloads.decode(row[0], row[1], row[2]) if row is not None else None
        if not isinstance(payload, payloads.Merge):
            raise Corrupt(parent.tape, seq, "the merge entry is missing")
        return payload

    def _anything_new(self, taking: _Taking, strategy: str) -> bool:
        if strategy == "link":
            return taking.young.head.seq > taking.merged
        return bool(taking.new() or taking.divergences())

    def _replay(self, taking: _Taking, told: payloads.Merge, on_conflict: str) -> None:
        parent, child = taking.parent, taking.young.tape
        new = taking.new()
        if new:
            open_calls = taking.unsettled()
            if open_calls:
                raise InvalidEntry(
                    "strategy",
                    f"the parent waits for the result of tool call {open_calls[0]!r}; answer it with "
                    f"merge(child, strategy='squash', role='tool', tool_call_id={open_calls[0]!r})",
                )
        plan = merge.plan(taking.divergences(), on_conflict)
        if plan.conflicts:
            raise MergeConflict(parent.tape, child, plan.conflicts)
        told.kept = plan.kept
        for one in plan.restore:
            self._change(parent, RestoreMessages(key=ids.new_id(), ids=[one.message_id], source=(child, one.seq)))
        for one in plan.revise:
            intent = ReviseMessage(
                key=ids.copy_key(child, one.seq),
                id=one.message_id,
                message=one.theirs,
                derive_key=False,
                source=(child, one.seq),
            )
            self._change(parent, intent)
        for one in plan.retract:
            intents = RetractMessages(
                key=ids.copy_key(child, one.seq), ids=[one.message_id], reason=None, source=(child, one.seq)
            )
            self._change(parent, intents)
        told.changed = [one.message_id for one in (*plan.revise, *plan.retract)]
        previous: Place | None = None
        for message_id, placed, message in new:
            parent._db.point("copy")
            taken = parent.place(message_id) is not None
            own = ids.new_id() if taken else message_id
            if "id" in message:
                message = {**message, "id": own}
            calls, answers = toolcalls.find(message)
            add = AddMessage(
                key=ids.copy_key(child, placed),
                id=own,
                generated=True,
                raw=payloads.encode(message),
                calls=calls,
                answers=answers,
                parent=HEAD if previous is None else CHAIN,
                derived=False,
                source=(child, placed),
            )
            planned = add.plan(parent.head, parent, previous)
            parent.put(planned, add)
            previous = planned.place
            told.messages.append((own, placed))

    def _change(self, parent: Writing, intent: Intent) -> None:
        parent._db.point("change")
        try:
            parent.put(intent.plan(parent.head, parent, None), intent)
        except Unchanged:
            return

    def _squash(self, taking: _Taking, told: payloads.Merge, fields: dict[str, Any]) -> None:
        parent, young = taking.parent, taking.young
        message = {"role": "assistant", **fields}
        if "content" not in message:
            last = taking.last()
            if last is None:
                raise InvalidEntry("summary", "the fork has no message to take the content from; give a summary")
            message["content"] = last.get("content")
        raw = strict.encode(message, "message")
        calls, answers = toolcalls.find(message)
        add = AddMessage(
            key=ids.copy_key(young.tape, told.seq),
            id=ids.new_id(),
            generated=True,
            raw=raw,
            calls=calls,
            answers=answers,
            derived=False,
            source=(young.tape, told.seq),
        )
        parent.put(add.plan(parent.head, parent, None), add)
        told.messages.append((add.id, told.seq))
        told.squashed = told.seq


class _Taking:
    """What a merge finds: the child's messages that the parent has not, and the ones that both have but differ."""

    def __init__(
        self,
        reader: Reader,
        tx: Transaction,
        parent: Writing,
        young: Writing,
        before: payloads.Merge | None,
        merged: int,
        forked_at: int,
        merge_seq: int,
    ) -> None:
        self.parent = parent
        self.young = young
        self.merged = merged
        self._reader = reader
        self._tx = tx
        self._sql = tx.statements
        self._squashed = before.squashed if before is not None else 0
        self._agreed = merge_seq or forked_at
        """The parent's seq at which the two last agreed."""
        self._new: list[tuple[str, int, dict[str, Any]]] | None = None
        self._divergences: list[merge.Divergence] | None = None

    def _scope(self, tape: str, point: Point = None) -> Scope:
        scope = self._reader.scope(self._tx, tape, point)
        if scope is None:
            raise TapeNotFound(tape)
        return scope

    def new(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Return id, seq and body of the messages on the child's active path that were never taken."""
        if self._new is None:
            scope = self._scope(self.young.tape)
            self._new = []
            for last, lo in reversed(self._reader._walk(self._tx, scope, scope.head.place, 0)):
                if last.tape is not None:
                    continue
                for row in self._reader._rows(self._tx, scope, last, lo):
                    placed = row[1]
                    if placed > self._squashed and (placed > self.merged or self._copy_of(placed) is None):
                        body = payloads.body_of(row[3], row[4], row[5])
                        self._new.append((body.id, placed, body.message))
        return self._new

    def last(self) -> dict[str, Any] | None:
        """Return the last message on the child's active path."""
        scope = self._scope(self.young.tape)
        rows = self._reader._last(self._tx, scope, scope.head.place, 1)
        return payloads.body_of(rows[0][3], rows[0][4], rows[0][5]).message if rows else None

    def _copy_of(self, placed: int) -> tuple[str, Place] | None:
        """Return the parent's copy of a message that the child placed at a seq."""
        row = self._tx.one(self._sql.entry_by_key, (self.parent.tape_id, ids.copy_key(self.young.tape, placed)))
        if row is None:
            return None
        payload = payloads.decode(row[3], row[11], row[8])
        return (payload.id, Place(row[14], row[15])) if isinstance(payload, payloads.Append) else None

    def unsettled(self) -> list[str]:
        """Return the tool calls that the parent's path still waits for."""
        scope = self._scope(self.parent.tape)
        rows = self._reader._last(self._tx, scope, scope.head.place, 64)
        found = []
        for row in reversed(rows):
            body = payloads.body_of(row[3], row[4], row[5])
            found.append(toolcalls.find(body.message))
        return merge.unsettled(found)

    def divergences(self) -> list[merge.Divergence]:
        """Return the messages of the parent's that the child changed since the two last agreed."""
        if self._divergences is None:
            then = self._scope(self.parent.tape, self._agreed)
            now = self._scope(self.parent.tape)
            self._divergences = []
            for child_place, seq in self._touched().items():
                place = self._in_parent(child_place)
                if place is None:
                    continue
                standing = self.young.standing(child_place)
                # A clear of the child's is its own affair; only what it did to single messages is carried over.
                theirs = self.young.body(standing.body, standing.of).message if standing.live else None
                ours = self._message(now, place)
                earlier = self._message(then, place)
                named = self.parent.body(*self._placed(place)).id
                if theirs is not None and "id" in theirs and theirs["id"] != named:
                    theirs = {**theirs, "id": named}
                changed = merge._equal(ours, earlier) is False
                self._divergences.append(merge.Divergence(named, ours, theirs, changed, seq))
        return self._divergences

    def _touched(self) -> dict[Place, int]:
        """Return the places that the child revised, retracted or restored since the last merge, with the last seq."""
        found: dict[Place, int] = {}
        after = self.merged
        while rows := self._tx.all(self._sql.entries_after, (self.young.tape_id, after, 2**62, 500)):
            for row in rows:
                after = row[2]
                if row[3] not in ("revise", "retract", "restore") or row[8] is None:
                    continue
                entry = payloads.decode(row[3], row[11], row[8])
                places: list[Place] = []
                if isinstance(entry, payloads.Revise):
                    places = [entry.place, *entry.hides, *_places(entry.shows)]
                elif isinstance(entry, payloads.Retract):
                    places = [*entry.places, *entry.marks, *entry.hides]
                elif isinstance(entry, payloads.Restore):
                    places = [*_places(entry.shows), *_places(entry.marks), *entry.hides]
                for place in places:
                    found[place] = after
        return found

    def _in_parent(self, place: Place) -> Place | None:
        """Return the place in the parent of what the child inherited or what was taken from it before."""
        if place.tape is not None:
            return Place(place.lane, place.ordinal, None if place.tape == self.parent.tape else place.tape)
        copy = self._copy_of(self.young.standing(place).placed)
        return copy[1] if copy is not None else None

    def _placed(self, place: Place) -> tuple[int, str | None]:
        return self.parent.standing(place).placed, place.tape

    def _message(self, scope: Scope, place: Place) -> dict[str, Any] | None:
        rows = self._reader._rows(self._tx, scope, place, place.ordinal - 1)
        return payloads.body_of(rows[0][3], rows[0][4], rows[0][5]).message if rows else None


def _places(shows: list[Reopened]) -> list[Place]:
    return [back.place for back in shows]
