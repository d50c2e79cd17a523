"""A tape: the handle through which one history is written and read, and the forks of it.

It is cheap and holds nothing but its id. Its methods for messages, memory and summaries are in the modules of those
names. This module has those for the tape as a whole: its points in time, its status and labels, and its forks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from tape.core import strict
from tape.core.context.build import Context
from tape.core.context.policy import Policy
from tape.core.entries import payloads
from tape.core.entries.tape_kinds import WHEN_FREE
from tape.core.journal.pointers import Pointer
from tape.core.merge import divergence
from tape.core.merge.diff import Diff, align, compare
from tape.core.messages.objects import MessageLike, as_dict
from tape.core.plan.intents import Plain, Relabel, SetHidden, SetStatus
from tape.core.plan.messages import given_message, message_fields
from tape.core.records import Lineage, MergeReceipt, Receipt, Report
from tape.db.read.recall import CONTEXT, Recalled
from tape.db.record.writing import Call
from tape.errors import InvalidEntry, TapeError, ViewMoved
from tape.handles.compaction import Compactor
from tape.handles.journal.requests import RequestWriter
from tape.handles.memory import MemoryWriter
from tape.handles.messages import MessageWriter
from tape.handles.options import WriteOptions, call_of, public_as
from tape.handles.recorded import Request, recorded
from tape.handles.services import Services
from tape.handles.snapshot import Snapshot

if TYPE_CHECKING:
    from tape.db.maintain.stored_tape import Progress
    from tape.tools import Toolset

__all__ = ["Fork", "Tape"]

_ATTEMPTS = 4
"""How often a context is recorded on condition that nobody else wrote, before it is recorded all the same."""


@public_as("Tape")
class Tape(Compactor, MemoryWriter, MessageWriter, RequestWriter):
    """One history, open for reading and writing. Every write is atomic and returns a receipt."""

    def at(self, point: int | datetime | str | UnsetType = UNSET) -> Snapshot:
        """Return a snapshot of this tape at a seq, at a moment, or at the newest anchor of a name.

        The id of a message gives the current view with that message as the head. Without a point it is the tape now.
        """
        if point is None:
            # A None that was computed as a point must not mean now.
            raise InvalidEntry("point", "must be a seq, a datetime or a name")
        chosen = None if point is UNSET else point
        return Snapshot(self._services, self._id, *self._reader.freeze(self._id, chosen))

    def _at_pointer(self, place: Pointer, depth: int | None) -> Snapshot:
        """Return the snapshot that a pointer was made for, once its chain was checked."""
        self._reader.check_chain(self._id, place.seq, place.hash, depth)
        return Snapshot(self._services, self._id, place.seq)

    def tools(self) -> Toolset:
        """Return the tools that let a model read its own tape and keep notes; only those that apply are there."""
        from tape.tools import tape_tools

        return tape_tools(self)

    def verify(self, *, against: Receipt | None = None) -> Report:
        """Recompute this tape's hashes and view; ``against`` a kept receipt also finds a cut or recomputed chain."""
        return self._verify(against, None)

    def _verify(self, against: Receipt | None, progress: Progress | None) -> Report:
        from tape.db.maintain.verify import check_receipt, verify

        self._reader.check_exists(self._id, hidden=True)
        if against is not None:
            check_receipt(against, self._id)
        services = self._services
        return verify(services.database, services.owner, self._id, against, services.clock(), progress)

    # -- contexts

    def context(
        self,
        *,
        budget: int | None = None,
        branch: str | None = None,
        policy: Policy | None = None,
        model: str | None = None,
        tools: Sequence[Any] | None = None,
        record: bool = False,
    ) -> Context:
        """Return what a model should see: the latest anchor on the path, the prompt, and the messages after the anchor.

        Raises BudgetExceeded rather than return more than ``budget`` tokens; what is left out is up to the ``policy``.
        ``model`` and ``tools`` are those of the request: the manifest stores the name and a digest, so that ``explain``
        can report when they changed. With ``record`` the manifest is stored as an event, from which ``recall`` builds
        the context again.
        """
        if record is not False and strict.flag(record, "record"):
            return self.recorded_context(budget=budget, branch=branch, policy=policy, model=model, tools=tools)[0]
        return super().context(budget=budget, branch=branch, policy=policy, model=model, tools=tools)

    def recorded_context(
        self,
        *,
        budget: int | None = None,
        branch: str | None = None,
        policy: Policy | None = None,
        model: str | None = None,
        tools: Sequence[Any] | None = None,
    ) -> tuple[Context, Receipt]:
        """Build a context and record its manifest, so that ``recall`` can build it again; returns both.

        If the tape changed in between, the context is built again, so that the recorded one is that of the head.
        ``Context.head`` is then the entry of the record: the ``expected_head`` of the answer. On a tape that changes
        each time, the last context is recorded as it is, and its head makes the answer's ``expected_head`` fail.
        """
        for _ in range(_ATTEMPTS):
            context = self.context(budget=budget, branch=branch, policy=policy, model=model, tools=tools)
            try:
                receipt = self._record_context(context, context.view)
            except ViewMoved:
                continue
            context.head = receipt.seq
            return context, receipt
        return context, self._record_context(context, None)

    def _on_same_store(self, id: str) -> Tape:
        """Return another tape of the store that this one is on."""
        return Tape(self._services, id)

    def _record_context(self, context: Context, expected_view: int | None) -> Receipt:
        payload = payloads.Event(name=CONTEXT, data=msgspec.json.decode(msgspec.json.encode(context.manifest)))
        intent = Plain(key=self._services.keyed(None), payload=payload)
        receipt = self._services.recorder.record(Call(self._id, expected_view=expected_view), [intent])[0]
        context._recorded, context._store = receipt.seq, self._services.database
        return receipt

    def recall(self, seq: int) -> Recalled:
        """Return a recorded context byte for byte as the model saw it, whatever happened since."""
        return self._reader.recall(self._id, strict.seq(seq, "seq"))

    # -- status, name and labels

    @recorded
    def complete(self, **options: Unpack[WriteOptions]) -> Request:
        """Close the tape: its work is done. Changes of the view are refused until ``reopen``."""
        return self._set_status(call_of(self._id, **options), "completed")

    @recorded
    def abandon(self, reason: str | None = None, **options: Unpack[WriteOptions]) -> Request:
        """Close the tape: its work was given up."""
        return self._set_status(call_of(self._id, **options), "abandoned", strict.reason(reason))

    @recorded
    def end(self, reason: str, **options: Unpack[WriteOptions]) -> Request:
        """Close the tape for a reason given by the caller."""
        return self._set_status(call_of(self._id, **options), "ended", strict.text(reason, "reason"))

    @recorded
    def reopen(self, **options: Unpack[WriteOptions]) -> Request:
        """Open a closed tape again."""
        return self._set_status(call_of(self._id, **options), "active")

    def _set_status(self, call: Call, status: str, reason: str | None = None) -> Request:
        payload = payloads.Status(status=status, reason=reason)
        intent = SetStatus(key=self._services.keyed(call.key), payload=payload)
        return Request(call, [intent])

    @recorded
    def rename(self, name: str | None, **options: Unpack[WriteOptions]) -> Request:
        """Give the tape another name, or (None) none. Its id stays. A closed tape can be renamed, too."""
        call = call_of(self._id, **options)
        payload = payloads.Label(name=None if name is None else strict.text(name, "name"))
        intent = Plain(key=self._services.keyed(call.key), payload=payload)
        return Request(call, [intent])

    @recorded
    def label(self, *add: str, remove: Iterable[str] = (), **options: Unpack[WriteOptions]) -> Request:
        """Put labels on the tape and take others off it. A closed tape can be labelled, too."""
        call = call_of(self._id, **options)
        added, removed = strict.distinct(add, "add"), strict.distinct(remove, "remove")
        if not added and not removed:
            raise InvalidEntry("add", "name the labels to add or to remove")
        if both := [label for label in added if label in removed]:
            raise InvalidEntry("remove", f"contains the label {both[0]!r}, which is also to be added")
        intent = Relabel(key=self._services.keyed(call.key), add=added, remove=removed)
        return Request(call, [intent])

    @recorded
    def hide(self, reason: str | None = None, **options: Unpack[WriteOptions]) -> Request:
        """Remove the tape from lists, searches and reads, and refuse writes to it, until ``unhide``.

        Nothing is deleted: its forks still read what they inherit, and the feed still returns its entries. A hidden
        tape reads as if it did not exist, ``get`` and writes raise TapeHidden, and ``store.list(hidden=True)`` lists
        it. It can be purged. Raises TapeNotFound for a tape that was never written.
        """
        reason = strict.reason(reason)
        if reason == WHEN_FREE:
            raise InvalidEntry(
                "reason", "is reserved for tapes that wait to be purged; call store.purge(id, when_free=True)"
            )
        return self._set_hidden(call_of(self._id, **options), reason, hidden=True)

    @recorded
    def unhide(self, **options: Unpack[WriteOptions]) -> Request:
        """Show a hidden tape again, as it was. ``store.tape(id)`` gives the handle."""
        return self._set_hidden(call_of(self._id, **options), None, hidden=False)

    def _set_hidden(self, call: Call, reason: str | None, *, hidden: bool) -> Request:
        payload = payloads.Label(hidden=hidden, reason=reason)
        return Request(call, [SetHidden(key=self._services.keyed(call.key), payload=payload)])

    # -- forks

    def fork(
        self,
        id: str | None = None,
        *,
        at: int | datetime | str | None = None,
        name: str | None = None,
        strategy: str = "replay",
        on_conflict: str = "fail",
        reuse: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Fork:
        """Fork this tape: a new one that inherits the view at a point (now, a seq, a moment, an anchor, a message).

        Nothing is copied. The fork never sees what this tape records later, nor this tape what the fork records
        before it is merged. In a ``with`` statement it is merged with ``strategy`` at the end, and discarded when
        an exception leaves the block. The same call with the same ``id`` or ``key`` returns the same fork. Any other
        use of a taken id raises TapeExists, also for the id of a purged tape, unless ``reuse`` allows it.
        """
        call = call_of(self._id, **options)
        if name is not None:
            name = strict.text(name, "name")
        if id is not None:
            id = strict.identifier(id, "id")
        divergence.check(strategy, on_conflict)
        child = self._services.branching.fork(call, call.key, id, at, name, reuse=strict.flag(reuse, "reuse"))
        return Fork(self._services, child, parent=self, strategy=strategy, on_conflict=on_conflict)

    def merge(
        self,
        child: Tape | str,
        *,
        strategy: str = "replay",
        on_conflict: str = "fail",
        summary: str | None = None,
        message: MessageLike | None = None,
        role: str | None = None,
        content: Any = UNSET,
        id: str | None = None,
        name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> MergeReceipt:
        """Merge what is new on a fork of this tape, in one transaction on both.

        ``replay`` appends the fork's messages to the active branch and applies its changes of inherited ones.
        ``squash`` writes one message whose content is ``summary``, or the content of the fork's head. Its other fields
        are keywords as in ``append``, such as ``role="tool", tool_call_id="c1"``, or those of ``message``, a dict or an
        object; without a role it is the assistant's. ``link`` records only how far the fork may be read from here.
        With nothing new the last receipt is returned. If both changed the same message, it raises MergeConflict, or
        does as ``on_conflict`` says.
        """
        call = call_of(self._id, **options)
        if message is None:
            fields = message_fields(role, content, name, tool_calls, tool_call_id)
        else:
            whole = given_message(message, role, content, name, tool_calls, tool_call_id)
            fields = dict(whole) if isinstance(whole, dict) else as_dict(whole, "message")
        if id is not None:
            fields["id"] = strict.identifier(id, "id")
        if summary is not None:
            if "content" in fields:
                raise InvalidEntry("summary", "is the content of the message; pass only one of them")
            fields["content"] = strict.text(summary, "summary")
        return self._services.branching.merge(call, call.key, _tape_id(child), strategy, on_conflict, fields)

    def discard(self, reason: str | None = None, **options: Unpack[WriteOptions]) -> Receipt:
        """Close this fork for good, with a receipt on its parent. A fork that was merged cannot be discarded."""
        call = call_of(self._id, **options)
        return self._services.branching.discard(call, call.key, strict.reason(reason))

    def lineage(self) -> Lineage:
        """Return this tape's ancestors and descendants, its merges, and where each merged message came from."""
        return self._reader.lineage(self._id)

    def linked(self, child: Tape | str) -> Snapshot:
        """Return a merged or linked fork as it was then, without its later entries."""
        child_id = _tape_id(child)
        head = self._reader.linked(self._id, child_id)
        if head is None:
            raise InvalidEntry("child", f"{child_id!r} was never merged into or linked to {self._id!r}")
        return Snapshot(self._services, child_id, head)

    def diff(self, a: int | datetime | str | Snapshot, b: int | datetime | str | Snapshot) -> Diff:
        """Return what was added, revised, retracted and anchored from one point, or one tape, to another."""
        before = a if isinstance(a, Snapshot) else self.at(a)
        after = b if isinstance(b, Snapshot) else self.at(b)
        return difference(before, after)


def family(snapshot: Snapshot) -> str:
    """Return the root of a tape's family."""
    ancestors = snapshot._reader.lineage(snapshot.id).ancestors
    return ancestors[-1].tape if ancestors else snapshot.id


def difference(before: Snapshot, after: Snapshot) -> Diff:
    """Compare two views of one family, in which a message keeps its id."""
    return compare(
        before.messages(),
        after.messages(),
        before.anchors(limit=2**31 - 1),
        after.anchors(limit=2**31 - 1),
        lambda message_id: after.find(message_id) is not None,
    )


def difference_by_content(before: Snapshot, after: Snapshot) -> Diff:
    """Compare two views that share no ids, by the content of their messages."""
    aligned = align(before.messages(), after.messages())
    anchored = after.anchors(limit=2**31 - 1)
    return Diff(aligned.only("+"), [], aligned.only("-"), [], anchored, aligned.parted)


class Fork(Tape):
    """A tape forked off another. As a context manager it is merged at the end, or discarded on an exception."""

    def __init__(self, services: Services, id: str, *, parent: Tape, strategy: str, on_conflict: str) -> None:
        super().__init__(services, id)
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
            # The text of the error may contain anything. If the fork cannot be discarded (it was merged, or the
            # database is unreachable), the error itself is still the one to raise.
            reason = f"{type(error).__name__}: {error}"[:500].replace("\0", "").encode("utf-8", "replace").decode()
            try:
                self.discard(reason=reason)
            except TapeError as refused:
                error.add_note(f"the fork {self._id!r} was not discarded: {refused}")
        # A cancellation or an interrupt does not mean that the work failed, so the fork stays open.


def _tape_id(child: Tape | str) -> str:
    return child._id if isinstance(child, Snapshot) else strict.identifier(child, "child")
