"""A tape: the handle through which one history is written and read. It is cheap and holds nothing but its id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from msgspec import UNSET

from tape import new_ids
from tape.core import strict
from tape.core.context.build import Context
from tape.core.context.policy import Policy
from tape.core.entries import ids, payloads
from tape.core.merge import divergence
from tape.core.merge.diff import Diff, compare
from tape.core.plan.intents import AddAnchor, ChooseHead, Intent, Plain, Relabel, SetStatus
from tape.core.plan.messages import HEAD, ReviseMessage, add_message, message_intents, renewed_id, upsert_message
from tape.core.plan.retractions import RestoreMessages, RetractMessages
from tape.core.records import Anchor, Entry, Lineage, MergeReceipt, Message, Page, Receipt, Report, TapeInfo
from tape.db.record.writing import Call
from tape.errors import InvalidEntry, TapeError, UnknownMessage
from tape.handles.memory import Keeping, Kept
from tape.new_ids import keyed

if TYPE_CHECKING:
    from tape.db.view.paths import Point
    from tape.store import Store

__all__ = ["Fork", "Snapshot", "Tape"]


class Snapshot(Kept):
    """The reads of a tape, as of one point of it (``tape.at(…)``) or, on the tape itself, as of now."""

    def __init__(self, store: Store, id: str, point: Point = None, head: str | None = None) -> None:
        self._store = store
        self._id = id
        self._point = point
        self._head = head
        """The message that ``at`` named as the head."""

    @property
    def id(self) -> str:
        """The tape's id."""
        return self._id

    def info(self) -> TapeInfo:
        """Return what is known of the tape without reading it. An unwritten tape has ``head`` 0."""
        return self._store._reader.info(self._id, self._point) or TapeInfo(id=self._id, owner=self._store._owner)

    @overload
    def messages(self, *, branch: str | None = None) -> list[Message]: ...

    @overload
    def messages(
        self,
        *,
        branch: str | None = None,
        limit: int | None = None,
        before: str | None = None,
        after: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Message] | Page[Message]: ...

    def messages(
        self,
        *,
        branch: str | None = None,
        limit: int | None = None,
        before: str | None = None,
        after: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Message] | Page[Message]:
        """Return the messages from the root to the head, or to the message ``branch``, root first.

        With any of the other arguments the result is a Page: the last ``limit`` messages, those before or after the
        message with the given id, or as many of the last as fit into ``max_bytes`` (at least one).
        """
        branch = self._head if branch is None else branch
        if limit is None and before is None and after is None and max_bytes is None:
            return self._store._reader.messages(self._id, self._point, branch)
        return self._store._reader.page(self._id, self._point, branch, limit, before, after, max_bytes)

    def message(self, id: str) -> Message:
        """Return one message. Raises UnknownMessage when it is not in the view."""
        return self._store._reader.message(self._id, self._point, id)

    def find(self, id: str) -> Message | None:
        """Return one message, or None when it is not in the view."""
        try:
            return self.message(id)
        except UnknownMessage:
            return None

    def children(self, id: str) -> list[Message]:
        """Return the messages that directly follow one, in the order in which they were placed."""
        return self._store._reader.children(self._id, self._point, id)

    def heads(self) -> list[Message]:
        """Return the last message of every branch, in the order in which they were placed."""
        return self._store._reader.heads(self._id, self._point)

    def entries(
        self, *, after: int = 0, kinds: Iterable[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        """Yield the tape's own entries in order of seq."""
        listed = [] if kinds is None else strict.listed(kinds, "kinds")
        wanted = None if kinds is None else frozenset(strict.one_of(kind, payloads.KINDS, "kinds") for kind in listed)
        return self._store._reader.entries(
            self._id, self._point, strict.seq(after, "after"), wanted, strict.most(limit)
        )

    def anchors(self, limit: int = 20, before: int | Anchor | None = None) -> list[Anchor]:
        """Return the last anchors and handoffs, newest last; ``before`` the first of them for the page before.

        A seq will do, too, for an anchor of the tape's own; on a fork the list goes on with inherited ones.
        """
        return self._store._reader.anchors(self._id, self._point, limit, before)


class Tape(Snapshot, Keeping):
    """One history, open for reading and writing. Every write is atomic and returns a receipt."""

    def __repr__(self) -> str:
        return f"<tape.Tape {self._id!r}>"

    def at(self, point: int | datetime | str) -> Snapshot:
        """Return the reads of this tape frozen at a seq, at a moment, or at the newest anchor of a name.

        The id of a message gives the view as it is now with that message as the head.
        """
        if point is None:
            raise InvalidEntry("point", "must be a seq, a datetime or a name")
        return Snapshot(self._store, self._id, *self._store._reader.freeze(self._id, point))

    def context(
        self,
        *,
        budget: int | None = None,
        branch: str | None = None,
        policy: Policy | None = None,
        record: bool = False,
    ) -> Context:
        """Return what a model should see: the latest anchor on the path, the prompt, and the messages after the anchor.

        Raises BudgetExceeded rather than return more than ``budget`` tokens; what is left out is up to the ``policy``.
        With ``record`` the manifest is stored as an event, from which ``recall`` builds the context again.
        """
        if strict.flag(record, "record"):
            return self.recorded_context(budget=budget, branch=branch, policy=policy)[0]
        return super().context(budget=budget, branch=branch, policy=policy)

    # -- writing messages

    def append(
        self,
        message: dict[str, Any] | None = None,
        /,
        *,
        role: str | None = None,
        content: Any = UNSET,
        id: str | None = None,
        parent: str | None = HEAD,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Append a message behind the head, behind ``parent``, or (``parent=None``) as a new root.

        The same key (or, without one, the same message id) with the same content writes nothing and returns the first
        receipt; with other content it is a ProvenanceConflict.
        """
        intent = add_message(message, role, content, id, key, parent, new_ids.new_id)
        return self._record([intent], actor, meta, expected_head)[0]

    def extend(
        self,
        messages: Iterable[dict[str, Any]],
        *,
        parent: str | None = HEAD,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> list[Receipt]:
        """Append messages one behind the other, all or none. With ``key``, the n-th is keyed ``key#n``."""
        intents = message_intents(messages, key, new_ids.new_id, parent)
        if not intents:
            return []
        return self._record(intents, actor, meta, expected_head, batch=key)

    def upsert(
        self,
        message: dict[str, Any],
        /,
        *,
        id: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Append a message, or revise it if it exists and differs; an equal one is a duplicate."""
        intent = upsert_message(message, id, key, new_ids.new_id)
        return self._record([intent], actor, meta, expected_head)[0]

    def revise(
        self,
        message_id: str,
        message: dict[str, Any] | None = None,
        /,
        *,
        content: Any = UNSET,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Replace a message, or only its content; its place and role stay. An equal one is a duplicate."""
        message_id = strict.identifier(message_id, "message_id")
        if (message is None) == (content is UNSET):
            raise InvalidEntry("message", "give either a message or content=")
        if message is not None:
            if not isinstance(message, dict):
                raise InvalidEntry("message", f"must be a dict, not {type(message).__name__}")
            strict.encode(message, "message")
            if message.get("id", message_id) != message_id:
                raise InvalidEntry("message.id", f"differs from {message_id!r}")
            message = dict(message)
        else:
            strict.encode(content, "content")
        intent = ReviseMessage(
            key=keyed(key),
            id=message_id,
            message=message,
            new_content=None if content is UNSET else content,
        )
        return self._record([intent], actor, meta, expected_head)[0]

    def retract(
        self,
        *ids: str,
        reason: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Take messages out of the view, with the results of the tool calls they made. They stay on the tape."""
        if not ids:
            raise InvalidEntry("ids", "name the messages to retract, or use clear()")
        intent = RetractMessages(key=keyed(key), ids=strict.distinct(ids), reason=strict.reason(reason))
        return self._record([intent], actor, meta, expected_head)[0]

    def restore(
        self,
        *ids: str,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Bring retracted messages back, with what went along with them; without ids, undo the last clear."""
        intent = RestoreMessages(key=keyed(key), ids=strict.distinct(ids))
        return self._record([intent], actor, meta, expected_head)[0]

    def clear(
        self,
        reason: str | None = None,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Take every message out of the view at once, on all branches, and end the anchors."""
        return self._plain(payloads.Clear(reason=strict.reason(reason)), key, actor, meta, expected_head)

    def switch(
        self,
        message_id: str,
        /,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Make a message the head: reads end there and the next message goes behind it."""
        intent = ChooseHead(key=keyed(key), id=strict.identifier(message_id, "message_id"))
        return self._record([intent], actor, meta, expected_head)[0]

    def replace_history(
        self,
        messages: Iterable[dict[str, Any]],
        *,
        reason: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> list[Receipt]:
        """Clear the view and write these messages from a new root, in one step. The old ones stay on the tape.

        A message whose id is on the tape already gets a new one; its entry cites the old as its source.
        """
        if key is not None:
            key = strict.identifier(key, "key")
        fresh = []
        for index, message in enumerate(strict.listed(messages, "messages")):
            given = message.get("id") if isinstance(message, dict) else None
            placed = self._store._reader.placed(self._id, given) if isinstance(given, str) else None
            if placed is not None and key is not None and self._in_batch(placed, key, index):
                # An earlier attempt of this very call placed it.
                placed = None
            # With a key the new id is the same at every attempt, or a retry would be other content.
            renewed = new_ids.new_id() if key is None else renewed_id(key, index)
            fresh.append(({**message, "id": renewed} if placed is not None else message, placed))
        clear = Plain(key=keyed(key), payload=payloads.Clear(reason=strict.reason(reason)))
        adding = message_intents([message for message, _ in fresh], key, new_ids.new_id, None)
        for intent, (_, source) in zip(adding, fresh, strict=True):
            intent.source = source
        return self._record([clear, *adding], actor, meta, expected_head, batch=key)

    def _in_batch(self, placed: tuple[str, int], key: str, index: int) -> bool:
        """Whether an entry is the one of this tape that a batch with this key recorded at ``index``."""
        found = next(self.entries(after=placed[1] - 1, limit=1)) if placed[0] == self._id else None
        keys = (ids.batch_key(key, index), ids.spare_batch_key(key, index))
        payload = found.payload if found is not None and found.key in keys else None
        return isinstance(payload, payloads.Append) and payload.in_batch(index)

    # -- writing checkpoints and facts

    def anchor(
        self,
        name: str,
        state: Any = None,
        *,
        parents: Iterable[int] = (),
        source_ids: Iterable[str] = (),
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Set a checkpoint: context starts after it, with its state. ``parents`` are seqs of earlier anchors."""
        strict.encode(state, "state")
        payload = payloads.Anchor(
            name=strict.identifier(name, "name"),
            state=state,
            parents=[strict.seq(seq, "parents") for seq in strict.listed(parents, "parents")],
            source_ids=strict.distinct(source_ids, "source_ids"),
        )
        return self._anchor(payload, key, actor, meta, expected_head)

    def handoff(
        self,
        name: str,
        *,
        summary: str,
        phase: str | None = None,
        next_steps: Iterable[str] = (),
        source_ids: Iterable[str] = (),
        owner: str | None = None,
        state: Any = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Set a checkpoint with a contract: what was done (``summary``, required) and what comes next."""
        strict.encode(state, "state")
        payload = payloads.Handoff(
            name=strict.identifier(name, "name"),
            summary=strict.text(summary, "summary"),
            phase=None if phase is None else strict.text(phase, "phase"),
            next_steps=[strict.text(step, "next_steps") for step in strict.listed(next_steps, "next_steps")],
            source_ids=strict.distinct(source_ids, "source_ids"),
            owner=None if owner is None else strict.identifier(owner, "owner"),
            state=state,
        )
        return self._anchor(payload, key, actor, meta, expected_head)

    def event(
        self,
        name: str,
        data: Any = None,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Record a fact that never enters context: a run, a score, a label, a note."""
        strict.encode(data, "data")
        if isinstance(name, str) and name.startswith("tape."):
            raise InvalidEntry("name", "must not begin with 'tape.', which marks the store's own events")
        payload = payloads.Event(name=strict.identifier(name, "name"), data=data)
        return self._plain(payload, key, actor, meta, expected_head)

    # -- the tape's status

    def complete(
        self,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Close the tape: its work is done. What changes the view is refused until ``reopen``."""
        return self._status("completed", None, key, actor, meta, expected_head)

    def abandon(
        self,
        reason: str | None = None,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Close the tape: its work was given up."""
        return self._status("abandoned", strict.reason(reason), key, actor, meta, expected_head)

    def end(
        self,
        reason: str,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Close the tape for a reason of the caller's."""
        return self._status("ended", strict.text(reason, "reason"), key, actor, meta, expected_head)

    def reopen(
        self,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Open a closed tape again."""
        return self._status("active", None, key, actor, meta, expected_head)

    # -- the tape's name and labels

    def rename(
        self,
        name: str | None,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Give the tape another name, or (None) none. Its id stays. A closed tape can be renamed, too."""
        payload = payloads.Label(name=None if name is None else strict.text(name, "name"))
        return self._plain(payload, key, actor, meta, expected_head)

    def label(
        self,
        *add: str,
        remove: Iterable[str] = (),
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Put labels on the tape and take others off it. A closed tape can be labelled, too."""
        added, removed = strict.distinct(add, "add"), strict.distinct(remove, "remove")
        if not added and not removed:
            raise InvalidEntry("add", "name the labels to add or to remove")
        if both := [label for label in added if label in removed]:
            raise InvalidEntry("remove", f"label {both[0]!r} is to be added as well")
        intent = Relabel(key=keyed(key), add=added, remove=removed)
        return self._record([intent], actor, meta, expected_head)[0]

    # -- forks

    def fork(
        self,
        id: str | None = None,
        *,
        at: int | datetime | str | None = None,
        name: str | None = None,
        strategy: str = "replay",
        on_conflict: str = "fail",
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Fork:
        """Fork this tape: a new one that inherits the view at a point (now, a seq, a moment, an anchor, a message).

        Nothing is copied. The fork never sees what this tape records later, nor this tape what the fork records
        before it is merged. In a ``with`` statement it is merged with ``strategy`` at the end, and discarded when
        an exception leaves the block. The same call with the same ``id`` or ``key`` returns the same fork; any other
        use of a taken id is TapeExists.
        """
        if name is not None:
            name = strict.text(name, "name")
        if id is not None:
            id = strict.identifier(id, "id")
        if key is not None:
            key = strict.identifier(key, "key")
        divergence.check(strategy, on_conflict)
        call = self._call(actor, meta, expected_head)
        child = self._store._branching.fork(call, key, id, at, name)
        return Fork(self._store, child, parent=self, strategy=strategy, on_conflict=on_conflict)

    def merge(
        self,
        child: Tape | str,
        *,
        strategy: str = "replay",
        on_conflict: str = "fail",
        summary: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
        **message: Any,
    ) -> MergeReceipt:
        """Take what is new on a fork of this tape, in one step on both.

        ``replay`` continues the active branch with the fork's messages and carries over what it did to inherited
        ones; ``squash`` writes one message with ``summary`` (or the fork's last content) and further message fields
        such as ``role="tool", tool_call_id=…``; ``link`` records only how far the fork may be read from here. With
        nothing new the last receipt comes back. Where both changed the same message: MergeConflict, or as
        ``on_conflict`` says.
        """
        if summary is not None:
            message["content"] = strict.text(summary, "summary")
        if key is not None:
            key = strict.identifier(key, "key")
        call = self._call(actor, meta, expected_head)
        return self._store._branching.merge(call, key, _tape_id(child), strategy, on_conflict, message)

    def discard(
        self,
        reason: str | None = None,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Close this fork for good, with a receipt on its parent. A fork that was merged cannot be discarded."""
        if key is not None:
            key = strict.identifier(key, "key")
        return self._store._branching.discard(self._call(actor, meta, expected_head), key, strict.reason(reason))

    def lineage(self) -> Lineage:
        """Return this tape's ancestors and descendants, its merges, and where each merged message came from."""
        return self._store._reader.lineage(self._id)

    def linked(self, child: Tape | str) -> Snapshot:
        """Return a merged or linked fork as it was then: what it recorded later never shows."""
        wanted = _tape_id(child)
        head = self._store._reader.linked(self._id, wanted)
        if head is None:
            raise InvalidEntry("child", f"{wanted!r} was never merged into or linked to {self._id!r}")
        return Snapshot(self._store, wanted, head)

    def diff(self, a: int | datetime | str | Snapshot, b: int | datetime | str | Snapshot) -> Diff:
        """Return what was added, revised, retracted and anchored from one point, or one tape, to another."""
        before = a if isinstance(a, Snapshot) else self.at(a)
        after = b if isinstance(b, Snapshot) else self.at(b)
        return compare(
            before.messages(),
            after.messages(),
            before.anchors(limit=2**31 - 1),
            after.anchors(limit=2**31 - 1),
            lambda message_id: after.find(message_id) is not None,
        )

    # -- checking

    def verify(self, *, against: Receipt | None = None) -> Report:
        """Recompute this tape's hashes and view; ``against`` a kept receipt also finds a cut or recomputed chain."""
        return self._store.verify(self._id, against=against)

    # -- how a write is made

    def _plain(
        self,
        payload: payloads.Payload,
        key: str | None,
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
    ) -> Receipt:
        intent = Plain(key=keyed(key), payload=payload)
        return self._record([intent], actor, meta, expected_head)[0]

    def _anchor(
        self,
        payload: payloads.Payload,
        key: str | None,
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
    ) -> Receipt:
        intent = AddAnchor(key=keyed(key), payload=payload)
        return self._record([intent], actor, meta, expected_head)[0]

    def _status(
        self,
        status: str,
        reason: str | None,
        key: str | None,
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
    ) -> Receipt:
        payload = payloads.Status(status=status, reason=reason)
        intent = SetStatus(key=keyed(key), payload=payload)
        return self._record([intent], actor, meta, expected_head)[0]

    def _record(
        self,
        intents: Sequence[Intent],
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
        batch: str | None = None,
    ) -> list[Receipt]:
        call = self._call(actor, meta, expected_head)
        call.batch = batch
        return self._store._recorder.record(call, intents)

    def _call(self, actor: str | None, meta: dict[str, Any] | None, expected_head: int | None) -> Call:
        if actor is not None:
            actor = strict.identifier(actor, "actor")
        raw = None
        if meta is not None:
            if not isinstance(meta, dict):
                raise InvalidEntry("meta", f"must be a dict, not {type(meta).__name__}")
            raw = strict.encode(meta, "meta")
        if expected_head is not None:
            strict.seq(expected_head, "expected_head")
        return Call(self._id, actor, raw, expected_head)


class Fork(Tape):
    """A tape forked off another. As a context manager it is merged at the end, or discarded on an exception."""

    def __init__(self, store: Store, id: str, *, parent: Tape, strategy: str, on_conflict: str) -> None:
        super().__init__(store, id)
        self._parent = parent
        self._strategy = strategy
        self._on_conflict = on_conflict

    def __enter__(self) -> Fork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self.info().status != "discarded":
                self._parent.merge(self, strategy=self._strategy, on_conflict=self._on_conflict)
        elif isinstance(error, Exception):
            # Whatever may stand in the error's text; and if the fork cannot be discarded (it was merged, or the
            # database is away), the error is still the one to tell.
            told = f"{type(error).__name__}: {error}"[:500].replace("\0", "").encode("utf-8", "replace").decode()
            try:
                self.discard(reason=told)
            except TapeError as refused:
                error.add_note(f"the fork {self._id!r} was not discarded: {refused}")
        # A cancellation or an interrupt says nothing about the work: the fork stays open.


def _tape_id(child: Tape | str) -> str:
    return child.id if isinstance(child, Snapshot) else strict.identifier(child, "child")
