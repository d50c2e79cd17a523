"""What a tape keeps besides messages, as its handle offers it: state, blocks, usage, summaries, contexts, tools."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tape.core import strict
from tape.core.context.build import Context, build
from tape.core.context.fenced import summary_message
from tape.core.context.policy import Policy
from tape.core.entries import payloads
from tape.core.memory.state import (
    Block,
    ChangeBlock,
    ChangeState,
    FreezePrompt,
    RecordUsage,
    Usage,
    block_text,
    whole_number,
)
from tape.core.messages.tokens import estimate, message_tokens
from tape.core.plan.intents import Intent, Plain, canonical, digest_of
from tape.core.records import Entry, Hit, Message, Receipt
from tape.core.summaries import compaction
from tape.core.summaries.compaction import AddSummary, StartCompaction, Summarize, Summary, SummaryRequest
from tape.core.view.fold import COMPACTION
from tape.db.read.compacting import candidates_of
from tape.db.read.contexts import CONTEXT, Recalled
from tape.errors import HeadMoved, InvalidEntry, ProvenanceConflict, SummaryMoved, TapeError
from tape.new_ids import keyed

if TYPE_CHECKING:
    from tape.db.view.paths import Point
    from tape.store import Store
    from tape.tools import Toolset

__all__ = ["Compacting", "Kept", "Keeping", "in_thread", "too_slow"]


class Kept:
    """The reads of what a tape keeps."""

    _store: Store
    _id: str
    _point: Point
    _head: str | None

    def context(
        self,
        *,
        budget: int | None = None,
        branch: str | None = None,
        policy: Policy | None = None,
    ) -> Context:
        """Return what a model should see: the latest anchor on the path, the prompt, and the messages after the anchor.

        Raises BudgetExceeded rather than return more than ``budget`` tokens; what is left out is up to the ``policy``.
        """
        reader = self._store._reader
        end = self._head if branch is None else branch
        view = reader.view(self._id, self._point, end, budget, policy)
        return build(view, budget, policy, reader.settings.counter)

    def summary(self) -> Summary | None:
        """Return the newest summary in force on the active path, or None."""
        return compaction.newest_summary(self.summaries())

    def summaries(self) -> list[Summary]:
        """Return every summary in force on the active path, in the order of what they cover."""
        return self._store._reader.summaries(self._id, self._point)

    def state(self, slot: str, default: Any = None) -> Any:
        """Return what a slot of state holds; ``default`` when it holds nothing, which is not the same as null."""
        return self._store._reader.states(self._id, self._point, strict.identifier(slot, "slot")).get(slot, default)

    def states(self) -> dict[str, Any]:
        """Return every slot of state that holds something."""
        return self._store._reader.states(self._id, self._point, None)

    def blocks(self) -> list[Block]:
        """Return the blocks of the prompt: those declared for the store first, then those made on the tape."""
        return self._store._reader.blocks(self._id, self._point)

    def usage(self) -> Usage:
        """Return the totals of tokens and cost recorded on this tape; a fork counts only its own."""
        return self._store._reader.usage(self._id, self._point)

    def needs_compaction(self, threshold: int) -> bool:
        """Whether the context has grown beyond ``threshold`` tokens, by the same count that compaction uses."""
        return self.context().tokens > whole_number(threshold, "threshold")

    def search(
        self,
        query: str,
        *,
        limit: int = 20,
        kind: str | None = None,
        role: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Hit]:
        """Find the messages of this tape that have all words of ``query``, newest first; see ``Store.search``."""
        return self._store._searcher.search(
            query,
            tape=self._id,
            point=self._point,
            limit=strict.limit(limit),
            kind=kind,
            role=role,
            since=since,
            until=until,
        )


class Keeping(Kept):
    """The writes of what a tape keeps."""

    def _record(
        self,
        intents: Sequence[Intent],
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
        batch: str | None = None,
    ) -> list[Receipt]:
        raise AssertionError("the tape records")

    def patch(
        self,
        slot: str,
        patch: Any,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Change a slot of state by a JSON merge patch: None deletes a member, or the slot itself."""
        return self._state(slot, patch, True, key, actor, meta, expected_head)

    def put(
        self,
        slot: str,
        value: Any,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Put a value into a slot of state; it may hold nulls."""
        return self._state(slot, value, False, key, actor, meta, expected_head)

    def _state(
        self,
        slot: str,
        given: Any,
        patch: bool,
        key: str | None,
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
    ) -> Receipt:
        slot = strict.identifier(slot, "slot")
        if len(slot) > _LONGEST_NAME:
            raise InvalidEntry("slot", f"must have at most {_LONGEST_NAME} characters")
        raw = strict.encode(given, "patch" if patch else "value")
        intent = ChangeState(
            key=keyed(key),
            slot=slot,
            given=msgspec.json.decode(raw),
            patch=patch,
            spec=self._store._reader.settings.slots.get(slot),
        )
        return self._record([intent], actor, meta, expected_head)[0]

    def set_block(
        self,
        label: str,
        text: str,
        *,
        description: str | UnsetType | None = UNSET,
        max_tokens: int | UnsetType | None = UNSET,
        read_only: bool | UnsetType = UNSET,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Set a block of the prompt. What is not given of its configuration stays; over its limit it is refused."""
        if max_tokens is not UNSET and max_tokens is not None:
            whole_number(max_tokens, "max_tokens")
        if description is not UNSET and description is not None:
            description = strict.text(description, "description", empty=True)
        if read_only is not UNSET:
            strict.flag(read_only, "read_only")
        intent = self._block(label, "set", block_text(text), key)
        intent.description, intent.max_tokens, intent.read_only = description, max_tokens, read_only
        return self._record([intent], actor, meta, expected_head)[0]

    def append_block(
        self,
        label: str,
        text: str,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Add a line to a block. Two of these at one time both land."""
        return self._record([self._block(label, "append", block_text(text), key)], actor, meta, expected_head)[0]

    def remove_block(
        self,
        label: str,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Remove a block from the prompt."""
        return self._record([self._block(label, "remove", None, key)], actor, meta, expected_head)[0]

    def _block(self, label: str, op: str, text: str | None, key: str | None) -> ChangeBlock:
        label = strict.identifier(label, "label")
        if len(label) > _LONGEST_NAME:
            raise InvalidEntry("label", f"must have at most {_LONGEST_NAME} characters")
        settings = self._store._reader.settings
        spec = next((one for one in settings.blocks if one.label == label), None)
        return ChangeBlock(
            key=keyed(key), label=label, op=op, text=text, spec=spec, counter=settings.counter or estimate
        )

    def freeze_prompt(
        self,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> str:
        """Return the frozen prompt, recording it as it is rendered now if there is none yet."""
        found = self._store._reader.frozen(self._id)
        if found is not None:
            return found
        return self.refresh_prompt(key=key, actor=actor, meta=meta, expected_head=expected_head)

    def refresh_prompt(
        self,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> str:
        """Render the prompt from the blocks as they are now, record it, and return it.

        With the key of an earlier call, that call's prompt comes back.
        """
        settings = self._store._reader.settings
        intent = FreezePrompt(key=keyed(key), specs=settings.blocks, counter=settings.counter or estimate)
        receipt = self._record([intent], actor, meta, expected_head)[0]
        [entry] = self._store._reader.entries(self._id, None, receipt.seq - 1, None, 1)
        return (entry.payload.text if isinstance(entry.payload, payloads.Block) else None) or ""

    def record_usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: int = 0,
        model: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Add the tokens and the cost (in millionths) of one model call to the totals of the tape."""
        used = payloads.Usage(
            input_tokens=whole_number(input_tokens, "input_tokens", most=None),
            output_tokens=whole_number(output_tokens, "output_tokens", most=None),
            cached_tokens=whole_number(cached_tokens, "cached_tokens", most=None),
            cost=whole_number(cost, "cost", most=None),
            model=None if model is None else strict.identifier(model, "model"),
        )
        intent = RecordUsage(key=keyed(key), used=used)
        return self._record([intent], actor, meta, expected_head)[0]

    # -- contexts

    def recorded_context(
        self, *, budget: int | None = None, branch: str | None = None, policy: Policy | None = None
    ) -> tuple[Context, Receipt]:
        """Build a context and record its manifest, so that ``recall`` can build it again; returns both.

        When someone changed the tape in between, the context is built again, so that what is recorded stands at the
        head. ``Context.head`` is then the entry of the record: the ``expected_head`` of the answer. On a tape that
        changes each time, the last context is recorded as it is, and its head tells the answer that it was overtaken.
        """
        context = self.context(budget=budget, branch=branch, policy=policy)
        expected = context.head
        for _ in range(_ATTEMPTS):
            try:
                receipt = self._record([_record_of(context)], None, None, expected)[0]
            except HeadMoved as moved:
                expected = moved.actual
                if not self._only_notes_since(context.head):
                    context = self.context(budget=budget, branch=branch, policy=policy)
                    expected = context.head
            else:
                context.head = receipt.seq
                return context, receipt
        receipt = self._record([_record_of(context)], None, None, None)[0]
        if self._only_notes_since(context.head, receipt.seq):
            context.head = receipt.seq
        return context, receipt

    def _only_notes_since(self, head: int, before: int | None = None) -> bool:
        """Whether nothing but notes was recorded after one entry and before another: what no context ever shows."""
        for entry in self._store._reader.entries(self._id, None, head, None, None):
            if before is not None and entry.seq >= before:
                break
            if entry.kind not in _NOTES:
                return False
        return True

    def recall(self, seq: int) -> Recalled:
        """Return a recorded context byte for byte as the model saw it, whatever happened since."""
        return self._store._reader.recall(self._id, strict.seq(seq, "seq"))

    # -- summaries

    def set_summary(
        self,
        text: str,
        *,
        first: str,
        last: str,
        expected: Summary | tuple[str, int] | int | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Let a summary stand for the messages from ``first`` to ``last``, which stay on the tape.

        ``expected`` is the newest summary on the path as ``summary()`` returns it, or its (tape, seq), or its seq if no
        other summary of the tape or its ancestors has that seq; None for none yet. If another one was recorded in
        between, SummaryMoved tells which. A run with a tool call that has no result yet is refused.
        """
        intent = AddSummary(
            key=keyed(key),
            text=strict.text(text, "text"),
            first=strict.identifier(first, "first"),
            last=strict.identifier(last, "last"),
            expected=compaction.named(expected),
        )
        return self._record([intent], actor, meta, expected_head)[0]

    def compact(
        self,
        summarize: Summarize,
        *,
        budget: int = 20_000,
        head: int = 3,
        min_tail: int = 2,
        timeout: float = 120.0,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt | None:
        """Summarise what lies between the first messages and the last ``budget`` tokens, if there is anything.

        ``summarize`` gets a SummaryRequest and returns the text; it may be a coroutine function, which an async tape
        runs on the caller's event loop. It is called outside of any transaction, for at most ``timeout`` seconds. One
        that fails, hangs, is cancelled or returns nothing usable changes nothing and is recorded as failed. Returns
        None when there was nothing to do or another compaction is under way. With the key of an earlier call that
        succeeded, its receipt comes back and nothing is summarised.
        """
        begun = self._begin_compaction(
            summarize,
            budget=budget,
            head=head,
            min_tail=min_tail,
            timeout=timeout,
            key=key,
            actor=actor,
            meta=meta,
            expected_head=expected_head,
        )
        if not isinstance(begun, Compacting):
            return begun
        try:
            text = _summarized(summarize, begun.request, timeout)
        except BaseException as error:
            failure = self._fail_compaction(begun, error)
            if failure is error:
                raise
            raise failure from error
        return self._finish_compaction(begun, text)

    def _begin_compaction(
        self,
        summarize: Summarize,
        *,
        budget: int,
        head: int,
        min_tail: int,
        timeout: float,
        key: str | None,
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
    ) -> Compacting | Receipt | None:
        """Choose a run and record that its compaction begins; the receipt of an earlier one, or None for nothing."""
        if key is not None and (found := self._store._reader.recorded(self._id, strict.identifier(key, "key"))):
            return _repeated(found)
        for count, field in ((budget, "budget"), (head, "head"), (min_tail, "min_tail")):
            whole_number(count, field)
        timeout = strict.seconds(timeout, "timeout")
        if not timeout:
            raise InvalidEntry("timeout", "must be more than 0 seconds")
        if not callable(summarize):
            raise InvalidEntry("summarize", f"must be a function, not {strict.shown(summarize)}")
        counter = self._store._reader.settings.counter
        context = self.context()
        before = context.summary

        def cost(message: Message) -> int:
            # What was counted when the message was recorded need not be counted again.
            return (message.tokens if counter is None else 0) or message_tokens(message.data, counter or estimate)

        # Most calls have nothing to do: what is shown tells so, without a look at what earlier summaries cover.
        first, end = compaction.spare(
            [cost(message) for message in context.messages], head=head, tail_tokens=budget, min_tail=min_tail
        )
        if end - first < 2:
            return None
        candidates, summaries = candidates_of(self._store._reader, self._id)
        run = compaction.choose_run(
            candidates,
            summaries,
            head=head,
            tail_tokens=budget,
            min_tail=min_tail,
            cost=cost,
            shown=lambda one: summary_message(one, one.stamp),
        )
        if run is None:
            return None
        # A summary inside the run is continued: the new one covers what it covers, too.
        previous = "\n\n".join(one.text for one in run.earlier) or None
        limit = compaction.budget_for(run.messages, cost)
        prompt = compaction.summary_prompt(run.messages, previous, limit)
        begun = Compacting(
            request=SummaryRequest(run.messages, previous, limit, prompt),
            first=run.first,
            last=run.last,
            expected=before,
            timeout=timeout,
            key=key,
            actor=actor,
            meta=meta,
        )
        try:
            begun.lane = self._note("started", actor, meta, timeout, expected_head=expected_head)
        except compaction.Underway:
            return None
        return begun

    def _finish_compaction(self, begun: Compacting, text: Any) -> Receipt | None:
        """Record the summary that came back; None when another one was recorded meanwhile."""
        limit = begun.request.max_tokens
        try:
            if not isinstance(text, str) or not text.strip():
                raise InvalidEntry("summarize", "returned nothing")
            if not compaction.within(text, limit, self._store._reader.settings.counter or estimate):
                raise InvalidEntry("summarize", f"returned far more than the {limit} tokens it was asked for")
            receipt = self.set_summary(
                text,
                first=begun.first,
                last=begun.last,
                expected=begun.expected,
                key=begun.key,
                actor=begun.actor,
                meta=begun.meta,
            )
        except BaseException as error:
            failure = self._fail_compaction(begun, error)
            if isinstance(error, SummaryMoved):
                return None
            if failure is error:
                raise
            raise failure from error
        self._note("finished", begun.actor, begun.meta, begun.timeout, lane=begun.lane)
        return receipt

    def _fail_compaction(self, begun: Compacting, error: BaseException) -> BaseException:
        """Record that a compaction failed, so that the next one need not wait, and return what its caller is told."""
        try:
            why = f"{type(error).__name__}: {error}"[:500].encode(errors="replace").decode()
        except Exception:
            why = type(error).__name__
        # Where the database cannot be reached, the deadline lets the next one start; the cause is worth more.
        with contextlib.suppress(TapeError):
            self._note("failed", begun.actor, begun.meta, begun.timeout, why=why, lane=begun.lane)
        if isinstance(error, TapeError) or not isinstance(error, Exception | asyncio.CancelledError):
            return error
        return InvalidEntry("summarize", f"failed: {why}")

    def _note(
        self,
        state: str,
        actor: str | None,
        meta: dict[str, Any] | None,
        timeout: float,
        why: str | None = None,
        expected_head: int | None = None,
        lane: int | None = None,
    ) -> int | None:
        """Record how a compaction goes; returns the branch of one that starts, which its end has to name."""
        now = self._store._clock()
        if state == "started":
            deadline = now + int((timeout + 5) * 1_000_000)
            start = StartCompaction(key=keyed(None), deadline=deadline, now=now)
            try:
                self._record([start], actor, meta, expected_head)
            except Exception:
                raise
            except BaseException:
                # Interrupted: whether the start was recorded is not known, and its end does no harm.
                if start.lane is not None:
                    with contextlib.suppress(TapeError):
                        self._note("failed", actor, meta, timeout, why="interrupted", lane=start.lane)
                raise
            return start.lane
        data: dict[str, Any] = {"state": state}
        if why is not None:
            data["why"] = why.replace("\0", "")
        if lane is not None:
            data["lane"] = lane
        intent = Plain(key=keyed(None), payload=payloads.Event(name=COMPACTION, data=data))
        self._record([intent], actor, meta, expected_head)
        return lane

    # -- tools

    def tools(self) -> Toolset:
        """Return the tools that let a model read its own tape and keep notes; only those that apply are there."""
        from tape.tools import tape_tools

        return tape_tools(self)  # type: ignore[arg-type]


_LONGEST_NAME = 240
_ATTEMPTS = 4
"""How often a context is recorded on condition that nobody else wrote, before it is recorded all the same."""
_NOTES = frozenset({"event", "usage", "label", "fork"})
"""The kinds of entries that change nothing a model is shown and nothing that its answer rests on."""


def _record_of(context: Context) -> Plain:
    payload = payloads.Event(name=CONTEXT, data=msgspec.json.decode(msgspec.json.encode(context.manifest)))
    return Plain(key=keyed(None), payload=payload)


def _repeated(entry: Entry) -> Receipt:
    """Return the receipt of a compaction that was recorded under the caller's key before."""
    if not isinstance(entry.payload, payloads.Compact):
        stored = digest_of(canonical(entry.payload.content() if entry.payload is not None else None))
        raise ProvenanceConflict(entry.tape, entry.key, entry.seq, stored, digest_of(canonical({"kind": "compact"})))
    return Receipt(entry.tape, entry.seq, entry.key, None, entry.hash, duplicate=True, position=entry.position)


class Compacting(Struct):
    """A compaction that has begun: what its summarizer is asked, and what its end needs to know."""

    request: SummaryRequest
    first: str
    last: str
    expected: Summary | None
    timeout: float
    key: str | None
    actor: str | None
    meta: dict[str, Any] | None
    lane: int | None = None
    """The branch that it began on."""


def in_thread(work: Callable[[], Any]) -> Future[tuple[Any, BaseException | None]]:
    """Run something in a thread of its own, which can be left behind when it hangs; returns its value or its error."""
    future: Future[tuple[Any, BaseException | None]] = Future()
    # Nobody can cancel it from now on; whoever waits may cease to.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result((work(), None))
        except BaseException as error:
            future.set_result((None, error))

    threading.Thread(target=run, name="tape-summarize", daemon=True).start()
    return future


def too_slow(timeout: float) -> TimeoutError:
    """Return the error of a summarizer that took too long."""
    return TimeoutError(f"the summarizer took longer than {timeout} s")


def _summarized(summarize: Summarize, request: SummaryRequest, timeout: float) -> Any:
    """Run a summarizer, plain or async, for at most ``timeout`` seconds."""

    def work() -> Any:
        value = summarize(request)
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value

    try:
        value, error = in_thread(work).result(timeout)
    except TimeoutError:
        raise too_slow(timeout) from None
    if error is not None:
        raise error
    return value


async def _awaited(value: Any) -> Any:
    return await value
