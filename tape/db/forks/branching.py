"""Forking, merging and discarding: the writes that concern two tapes, each in one transaction on both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tape.core import meta
from tape.core.entries import ids, payloads
from tape.core.entries.payloads import ROOT, ForkPoint, Place
from tape.core.merge import divergence
from tape.core.merge.divergence import Conflict, Plan
from tape.core.messages import toolcalls
from tape.core.plan.intents import Intent, Plain, Taken, Unchanged, canonical, digest_of, same
from tape.core.plan.keys import DERIVED, GIVEN, Key
from tape.core.plan.messages import CHAIN, HEAD, AddMessage, ReviseMessage, add_message
from tape.core.plan.retractions import RestoreMessages, RetractMessages
from tape.core.records import MergeReceipt, Receipt
from tape.db.engine.transaction import Transaction
from tape.db.feed.position import join_position
from tape.db.forks.merge_messages import MessageMerge, New, renamed
from tape.db.forks.merge_state import StateMerge
from tape.db.read.memory import Settings
from tape.db.record.recorder import Opener, Recorder
from tape.db.record.replays import message_of
from tape.db.record.writing import Call, Writing
from tape.db.sql.rows.entries import EntryRow
from tape.db.sql.rows.tapes import ForkRow
from tape.db.view.ancestry import place_at
from tape.db.view.opening import Point, head_row, inherited, open_view
from tape.db.view.tape_view import TapeView
from tape.db.view.values import decoded, merge_receipt
from tape.errors import (
    InvalidEntry,
    MergeConflict,
    ProvenanceConflict,
    TapeClosed,
    TapeExists,
    TapeNotFound,
    UnknownMessage,
)
from tape.new_ids import keyed

__all__ = ["Branching"]


class Branching:
    """Makes and ends forks of tapes of one database."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._settings = settings
        self._owner = recorder.shared.owner
        self._sql = recorder.shared.database.statements

    # -- fork

    def fork(
        self, call: Call, key: str | None, child: str | None, at: Point, name: str | None, *, reuse: bool = False
    ) -> str:
        """Fork ``call.tape``, unless the same call did so before; returns the fork's id."""
        # Fixed before the first attempt, so that a second one after a lost reply finds it.
        new = child or self._recorder.shared.new_id()
        return self._recorder.several(
            [call.tape, new],
            key or ids.fork_key(new),
            lambda tx, opener: self._fork(tx, opener, call, key, child, new, at, name, reuse),
        )

    def _fork(
        self,
        tx: Transaction,
        opener: Opener,
        call: Call,
        key: str | None,
        requested_child: str | None,
        child: str,
        at: Point,
        name: str | None,
        reuse: bool,
    ) -> str:
        if child == call.tape:
            raise TapeExists(child)
        parent = opener(call)
        if parent.existed and key is not None:
            row = tx.one(self._sql.entry_by_key, (parent.tape_id, key))
            if row is not None:
                return self._forked(tx, call.tape, row, requested_child, at, name)
        # Opened as a creation from the start: otherwise the id of a purged tape would read as absent. Its facts follow.
        birth = Call(child, call.actor, call.meta, create=payloads.Open(name=name), reuse=reuse)
        born = opener(birth)
        if born.existed:
            if not self._made_before(tx, born, call.tape, at, name):
                raise TapeExists(child, hidden=born.head.hidden is not None)
            return child
        parent.check_shown()
        if not parent.existed:
            parent.create()
            parent.move_head()
        parent.check_head()
        view = open_view(tx, call.tape, self._owner, at)
        facts = tx.one(self._sql.info, (call.tape,))
        if view is None or facts is None:
            raise TapeNotFound(call.tape)
        born.ancestry = inherited(view)
        point = self._point(view, parent.head.seq + 1)
        birth.create = payloads.Open(name=name, owner=facts.owner, agent=facts.agent, parent=point)
        place = view.head.place
        if place != ROOT:
            place = Place(place.lane, place.ordinal, place.tape or call.tape)
        born.head.place = place
        born.create()
        receipt = payloads.Fork(child=child, at=view.seq, head=view.head.place, name=name)
        receipt_key = key or ids.fork_key(child)
        if reuse and key is None and tx.one(self._sql.entry_by_key, (parent.tape_id, receipt_key)) is not None:
            # The receipt of a purged fork has that key. A repeated call finds this fork by its id.
            receipt_key = self._recorder.shared.new_id()
        parent.record(Plain(key=Key(receipt_key, GIVEN), payload=receipt))
        return child

    def _forked(
        self, tx: Transaction, parent: str, row: EntryRow, requested_child: str | None, at: Point, name: str | None
    ) -> str:
        """Return the fork recorded under the caller's key, if it was made by the same call."""
        made = decoded(row)
        if (
            isinstance(made, payloads.Fork)
            and requested_child in (None, made.child)
            and made.name == name
            and self._same_point(tx, parent, at, row.seq, made.at, made.head)
        ):
            return made.child
        requested = {"kind": "fork", "child": requested_child, "name": name}
        raise ProvenanceConflict(
            parent, row.key, row.seq, digest_of(canonical(made.content())), digest_of(canonical(requested))
        )

    def _made_before(self, tx: Transaction, born: Writing, parent: str, at: Point, name: str | None) -> bool:
        """Whether a tape was made by the same call: forked off the same parent at the same point."""
        row = tx.one(self._sql.entry, (born.tape_id, 1))
        opening = decoded(row) if row is not None and row.payload is not None else None
        if row is None or not isinstance(opening, payloads.Open) or opening.parent is None:
            return False
        point = opening.parent
        if point.tape != parent or opening.name != name:
            return False
        place = place_at(row.lane, row.ordinal, row.head_tape if born.ancestry is not None else 0, born.ancestry)
        head = Place(place.lane, place.ordinal, None if place.tape == parent else place.tape)
        return self._same_point(tx, parent, at, point.receipt, point.seq, head)

    def _same_point(self, tx: Transaction, parent: str, at: Point, receipt: int, seq: int, head: Place) -> bool:
        """Whether ``at`` named this seq and head when the fork was made. Later entries may have changed its meaning."""
        try:
            view = open_view(tx, parent, self._owner, at, until=receipt - 1, hidden=True)
        except (InvalidEntry, UnknownMessage):
            return False
        return view is not None and (view.seq, view.head.place) == (seq, head)

    def _point(self, view: TapeView, receipt: int) -> ForkPoint:
        row = view.tx.one(self._sql.entry, (view.number, view.seq))
        return ForkPoint(
            tape=view.tape,
            seq=view.seq,
            hash=bytes(row.hash).hex() if row is not None else "",
            layers=inherited(view).recorded(),
            lo=view.head.lo,
            receipt=receipt,
        )

    # -- discard

    def discard(self, call: Call, key: str | None, reason: str | None) -> Receipt:
        """Close a fork for good, with a receipt on its parent."""
        parent = self._parent(call.tape)
        key = key or self._recorder.shared.new_id()
        return self._recorder.several(
            [call.tape, parent], key, lambda tx, opener: self._discard(tx, opener, call, parent, key, reason)
        )

    def _discard(
        self, tx: Transaction, opener: Opener, call: Call, parent: str, key: str, reason: str | None
    ) -> Receipt:
        child = opener(call)
        row = tx.one(self._sql.entry_by_key, (child.tape_id, key))
        if row is not None:
            return self._again(call.tape, row, {"kind": "discard", "reason": reason})
        child.check_shown()
        state = self._state(tx, child).state
        if state != "open":
            raise TapeClosed(call.tape, state, child.head.reason)
        child.check_head()
        other = opener(Call(parent, call.actor, call.meta))
        parent_entry = payloads.Discard(
            tape=call.tape, seq=child.head.seq, hash=child.head.hash.hex(), into=True, reason=reason
        )
        parent_receipt = other.record(Plain(key=Key(ids.discard_key(call.tape), DERIVED), payload=parent_entry))
        child_entry = payloads.Discard(tape=parent, seq=parent_receipt.seq, hash=parent_receipt.hash, reason=reason)
        return child.record(Plain(key=Key(key, GIVEN), payload=child_entry))

    def _parent(self, child: str) -> str:
        def work(tx: Transaction) -> str | None:
            row = head_row(tx, child, self._owner, hidden=True)
            if row is None:
                raise TapeNotFound(child)
            fork = tx.one(self._sql.fork, (row.number,))
            return None if fork is None else fork.parent

        parent = self._recorder.shared.database.read(work)
        if parent is None:
            raise _never_forked(child)
        return parent

    def _state(self, tx: Transaction, child: Writing) -> ForkRow:
        row = tx.one(self._sql.fork, (child.tape_id,))
        if row is None:
            raise _never_forked(child.tape)
        return row

    def _again(self, tape: str, row: EntryRow, requested: dict[str, Any]) -> Receipt:
        """Return the receipt of the entry with the caller's key, if it has the same content."""
        payload = decoded(row)
        stored = {"kind": payload.kind, "reason": getattr(payload, "reason", None)}
        if stored != requested:
            raise ProvenanceConflict(
                tape, row.key, row.seq, digest_of(canonical(stored)), digest_of(canonical(requested))
            )
        position = join_position(row.xid, row.position)
        return Receipt(tape, row.seq, row.key, message_of(payload), bytes(row.hash).hex(), True, position)

    # -- merge

    def merge(
        self, call: Call, key: str | None, child: str, strategy: str, on_conflict: str, fields: dict[str, Any]
    ) -> MergeReceipt:
        """Merge what is new on the fork ``child`` into its parent ``call.tape``."""
        divergence.check(strategy, on_conflict)
        if fields and strategy != "squash":
            raise InvalidEntry("summary", f"a message is only for strategy='squash', not {strategy!r}")
        return self._recorder.several(
            [call.tape, child],
            key or child,
            lambda tx, opener: self._merge(tx, opener, call, key, child, strategy, on_conflict, fields),
        )

    def _merge(
        self,
        tx: Transaction,
        opener: Opener,
        call: Call,
        key: str | None,
        child: str,
        strategy: str,
        on_conflict: str,
        fields: dict[str, Any],
    ) -> MergeReceipt:
        theirs = opener(Call(child, call.actor, call.meta))
        if not theirs.existed:
            raise TapeNotFound(child)
        fork = self._state(tx, theirs)
        if fork.parent != call.tape:
            raise InvalidEntry("child", f"{child!r} is not a fork of {call.tape!r}")
        parent = opener(call)
        if key is not None:
            row = tx.one(self._sql.entry_by_key, (parent.tape_id, key))
            if row is not None:
                return self._merged(parent, row, child, strategy, fields)
        theirs.check_shown()
        parent.check_shown()
        if fork.state == "discarded":
            raise TapeClosed(child, "discarded", theirs.head.reason)
        messages = MessageMerge(tx, parent, theirs, fork)
        state = StateMerge(self._settings, tx, parent, theirs, messages.merged, messages.merge_seq or fork.seq)
        if messages.before is not None and not messages.anything(strategy) and not state.anything():
            row = tx.one(self._sql.entry, (parent.tape_id, messages.merge_seq))
            assert row is not None
            return merge_receipt(call.tape, row, messages.before, duplicate=True)
        parent.check_open()
        parent.check_head()
        merge = payloads.Merge(
            tape=child,
            seq=theirs.head.seq,
            hash=theirs.head.hash.hex(),
            strategy=strategy,
            since=messages.merged,
            into=True,
            previous=messages.merge_seq,
            squashed=messages.squashed,
        )
        conflicts: list[Conflict] = []
        if strategy == "replay":
            conflicts = self._replay(messages, merge, on_conflict)
        elif strategy == "squash":
            self._squash(messages, merge, fields)
        conflicts += state.into(merge, on_conflict)
        if conflicts:
            raise MergeConflict(call.tape, child, conflicts)
        return self._record_merge(parent, theirs, key, merge)

    def _record_merge(self, parent: Writing, theirs: Writing, key: str | None, merge: payloads.Merge) -> MergeReceipt:
        """Record a merge on both tapes."""
        database = self._recorder.shared.database
        if database.fault is not None:
            database.point("merge")
        receipt = parent.record(Plain(key=Key(key or ids.merge_key(theirs.tape, merge.seq), GIVEN), payload=merge))
        parent.flush()
        if database.fault is not None:
            database.point("merged")
        back = payloads.Merge(tape=parent.tape, seq=receipt.seq, hash=receipt.hash, strategy=merge.strategy)
        theirs.record(Plain(key=Key(ids.merge_key(parent.tape, receipt.seq), DERIVED), payload=back))
        return merge_receipt(parent.tape, receipt, merge, duplicate=False)

    def _merged(
        self, parent: Writing, row: EntryRow, child: str, strategy: str, fields: dict[str, Any]
    ) -> MergeReceipt:
        """Return the receipt of the entry with the caller's key, if it is the same merge."""
        payload = decoded(row)
        stored = {
            "kind": payload.kind,
            "child": getattr(payload, "tape", None),
            "strategy": getattr(payload, "strategy", None),
        }
        requested: dict[str, Any] = {"kind": "merge", "child": child, "strategy": strategy}
        if isinstance(payload, payloads.Merge) and stored == requested:
            if fields:
                requested["fields"] = fields
                view = parent.view()
                location = view.place(payload.messages[0][0]) if payload.messages else None
                message = view.body(location[1]).message if location is not None else {}
                stored["fields"] = {name: message[name] for name in fields if name in message}
            if same(stored, requested):
                return merge_receipt(parent.tape, row, payload, duplicate=True)
        raise ProvenanceConflict(
            parent.tape, row.key, row.seq, digest_of(canonical(stored)), digest_of(canonical(requested))
        )

    def _replay(self, messages: MessageMerge, merge: payloads.Merge, on_conflict: str) -> list[Conflict]:
        """Write the child's messages and changes to the parent, unless there are conflicts to return."""
        parent = messages.parent
        new = messages.new()
        open_calls = messages.unsettled() if new else []
        if open_calls:
            raise InvalidEntry(
                "strategy",
                f"the parent waits for the result of tool call {open_calls[0]!r}; answer it with "
                f"merge(child, strategy='squash', role='tool', tool_call_id={open_calls[0]!r})",
            )
        plan = divergence.plan(messages.divergences(), on_conflict)
        if not plan.conflicts:
            # All queries that the copies need run before the first of them is written.
            wanted = {message.id for message in new}
            parent.free = wanted - messages.ours.taken(wanted)
            self._change(messages, merge, plan)
            self._copy(parent, merge, new)
        return plan.conflicts

    def _change(self, messages: MessageMerge, merge: payloads.Merge, plan: Plan) -> None:
        """Apply to the parent what the child did to messages that both have.

        Restores come first and retractions last, so that a tool result can be revised while its call is there.
        """
        parent, child, changed = messages.parent, merge.tape, dict[str, None]()
        of_call = parent.call.meta
        merge.kept = plan.kept
        for seq, group in groupby(plan.restore, lambda change: change.seq):
            named = [change.message_id for change in group]
            self._change_parent(
                parent, RestoreMessages(key=keyed(None, parent.shared.new_id), ids=named, source=(child, seq))
            )
            changed.update(dict.fromkeys(named))
        for change in plan.revise:
            assert change.theirs is not None, "a message that the child retracted is not revised"
            # A revision from before the last merge may have been copied then, under this very key.
            key = (
                ids.copy_key(child, change.written)
                if change.written > messages.since
                else self._recorder.shared.new_id()
            )
            intent = ReviseMessage(
                key=Key(key, GIVEN),
                id=change.message_id,
                message=change.theirs,
                source=(child, change.written or change.seq),
                meta=change.meta if of_call is None else meta.joined(change.meta, of_call),
                index_meta=change.index_meta,
            )
            try:
                self._change_parent(parent, intent)
                changed[change.message_id] = None
            except Unchanged:
                continue
            except UnknownMessage:
                # Hidden in the parent along with the call it answers, which the child left as it is.
                merge.kept.append(change.message_id)
        for seq, group in groupby(plan.retract, lambda change: change.seq):
            named = [change.message_id for change in group]
            copied = Key(ids.copy_key(child, seq), DERIVED)
            self._change_parent(parent, RetractMessages(key=copied, ids=named, reason=None, source=(child, seq)))
            changed.update(dict.fromkeys(named))
        merge.changed = list(changed)

    def _change_parent(self, parent: Writing, intent: Intent) -> None:
        database = self._recorder.shared.database
        if database.fault is not None:
            database.point("change")
        parent.record(intent)

    def _copy(self, parent: Writing, merge: payloads.Merge, new: Sequence[New]) -> None:
        """Append the child's messages to the parent's active branch. A message whose id is taken gets a new one."""
        shared, of_call = self._recorder.shared, parent.call.meta
        for index, source in enumerate(new):
            if shared.database.fault is not None:
                shared.database.point("copy")
            free = source.id in parent.free
            own, message = source.id, source.message
            if not free:
                own = shared.new_id()
                message = renamed(message, source.id, own)
            calls, answers = toolcalls.find(message)
            add = AddMessage(
                # The message's id cannot be derived from this key, as with a key that a caller gave.
                key=Key(ids.copy_key(merge.tape, source.placed), GIVEN),
                id=own,
                generated=source.generated or not free,
                raw=payloads.encode(message),
                calls=calls,
                answers=answers,
                tokens=source.tokens,
                parent=CHAIN if index else HEAD,
                source=(merge.tape, source.placed),
                meta=source.meta if of_call is None else meta.joined(source.meta, of_call),
                index_meta=source.index_meta,
            )
            parent.record(add)
            merge.messages.append((own, source.placed))

    def _squash(self, messages: MessageMerge, merge: payloads.Merge, fields: dict[str, Any]) -> None:
        parent, child = messages.parent, merge.tape
        merge.squashed = merge.seq
        if not fields and not messages.new():
            # Without new messages and without a summary, the receipt is all that is recorded.
            return
        message = {"role": "assistant", **fields}
        if "content" not in message:
            last = messages.last() if messages.new() else None
            if last is None:
                raise InvalidEntry("summary", "the fork has no message to take the content from; pass summary=")
            message["content"] = last.get("content")
        add = add_message(message, None, None, HEAD, self._recorder.shared.new_id)
        add.key, add.source = Key(ids.squash_key(child, merge.seq), GIVEN), (child, merge.seq)
        try:
            parent.record(add)
        except Taken as taken:
            raise InvalidEntry("id", f"the parent already has a message {add.id!r}") from taken
        merge.messages.append((add.id, merge.seq))


def _never_forked(tape: str) -> InvalidEntry:
    return InvalidEntry("tape", f"{tape!r} is not a fork, so it cannot be merged or discarded")
