"""Summaries: set by the caller, or made by ``compact`` with a summarizer of the caller's.

A compaction has three steps. ``_begin_compaction`` chooses a run of messages and records that it starts. Then the
summarizer is called, outside of any transaction. ``_finish_compaction`` records its summary, or ``_fail_compaction``
that there is none. The async tape takes the same steps and awaits the summarizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Unpack

from msgspec import Struct

from tape.core import strict
from tape.core.context.fenced import summary_message
from tape.core.entries import payloads
from tape.core.memory.state import whole_number
from tape.core.messages.tokens import estimate, message_tokens
from tape.core.plan.intents import Plain, canonical, digest_of
from tape.core.records import Entry, Message, Receipt
from tape.core.summaries import compaction
from tape.core.summaries.compaction import AddSummary, StartCompaction, Summarize, Summary, SummaryRequest
from tape.core.view.fold import COMPACTION
from tape.db.record.writing import Call
from tape.errors import HeadMoved, InvalidEntry, ProvenanceConflict, SummaryMoved, TapeError, ViewMoved
from tape.handles.options import WriteOptions, arguments_of, call_of, public_as
from tape.handles.snapshot import Snapshot

__all__ = ["Compacting", "Compactor", "in_thread", "too_slow"]


class Compacting(Struct):
    """A compaction that has begun: the request to its summarizer, and what recording its end needs."""

    call: Call
    """How its end is recorded."""
    summarize: Summarize
    timeout: float
    request: SummaryRequest
    first: str
    last: str
    expected: Summary | None
    lane: int | None
    """The branch that it began on."""


@public_as("Tape")
class Compactor(Snapshot):
    """The summaries and compactions of a tape."""

    def set_summary(
        self,
        text: str,
        *,
        first: str,
        last: str,
        expected: Summary | tuple[str, int] | int | None = None,
        **options: Unpack[WriteOptions],
    ) -> Receipt:
        """Replace the messages from ``first`` to ``last`` by a summary in contexts; they stay on the tape.

        ``expected`` is the newest summary on the path as ``summary()`` returns it, or its (tape, seq), or its seq if no
        other summary of the tape or its ancestors has that seq; None for none yet. If another one was recorded in
        between, SummaryMoved names it. A run with a tool call that has no result yet is refused.
        """
        return self._add_summary(call_of(self._id, **options), text, first, last, expected)

    def _add_summary(
        self, call: Call, text: str, first: str, last: str, expected: Summary | tuple[str, int] | int | None
    ) -> Receipt:
        intent = AddSummary(
            key=self._services.keyed(call.key),
            text=strict.text(text, "text"),
            first=strict.identifier(first, "first"),
            last=strict.identifier(last, "last"),
            expected=compaction.named(expected),
        )
        return self._services.recorder.record(call, [intent])[0]

    def _begin_compaction(
        self,
        summarize: Summarize,
        *,
        budget: int = 20_000,
        head: int = 3,
        min_tail: int = 2,
        timeout: float = 120.0,
        **options: Unpack[WriteOptions],
    ) -> Compacting | Receipt | None:
        """Choose a run and record that its compaction begins; the receipt of an earlier one, or None if none is due."""
        call = call_of(self._id, **options)
        if call.key is not None and (entry := self._reader.entry(self._id, None, None, call.key)):
            return _repeated(entry)
        for count, field in ((budget, "budget"), (head, "head"), (min_tail, "min_tail")):
            whole_number(count, field)
        timeout = strict.seconds(timeout, "timeout")
        if not timeout:
            raise InvalidEntry("timeout", "must be more than 0 seconds")
        if not callable(summarize):
            raise InvalidEntry("summarize", f"must be a function, not {strict.shown(summarize)}")
        self._services.database.check_writable()
        context = self.context()
        # Most calls have nothing to do. The context alone shows that, without reading what earlier summaries cover.
        costs = [self._cost(message) for message in context.messages]
        first, end = compaction.spare(costs, head=head, tail_tokens=budget, min_tail=min_tail)
        if end - first < 2:
            self._check_expected(call)
            return None
        run = compaction.choose_run(
            *self._reader.candidates(self._id),
            head=head,
            tail_tokens=budget,
            min_tail=min_tail,
            cost=self._cost,
            shown=lambda summary: summary_message(summary, summary.stamp),
        )
        if run is None:
            self._check_expected(call)
            return None
        # A summary inside the run is continued: the new one also covers its messages.
        previous = "\n\n".join(summary.text for summary in run.earlier) or None
        limit = compaction.budget_for(run.messages, self._cost)
        request = SummaryRequest(
            run.messages, previous, limit, compaction.summary_prompt(run.messages, previous, limit)
        )
        # The expected head is checked when the compaction begins. Its own start entry moves the head.
        ending = Call(self._id, call.actor, call.meta, key=call.key)
        try:
            lane = self._record_start(call, timeout)
        except compaction.Underway:
            return None
        return Compacting(ending, summarize, timeout, request, run.first, run.last, context.summary, lane)

    def _check_expected(self, call: Call) -> None:
        """Refuse a call whose conditions do not hold, though it writes nothing."""
        head, view = call.expected_head, call.expected_view
        if head is None and view is None:
            return
        info = self.info()
        if head is not None and head != info.head:
            raise HeadMoved(self._id, head, info.head)
        if view is not None and view != info.view:
            raise ViewMoved(self._id, view, info.view)

    @arguments_of(_begin_compaction)
    def compact(self, *arguments: Any, **named: Any) -> Receipt | None:
        """Summarise the messages between the first ones and the last ``budget`` tokens, if there are any.

        ``summarize`` gets a SummaryRequest and returns the text; it may be a coroutine function, which an async tape
        runs on the caller's event loop. It is called outside of any transaction, for at most ``timeout`` seconds. One
        that fails, hangs, is cancelled or returns nothing usable changes nothing and is recorded as failed. Returns
        None when there was nothing to do or another compaction is under way. With the key of an earlier call that
        succeeded, its receipt is returned and nothing is summarised.
        """
        begun = self._begin_compaction(*arguments, **named)
        if not isinstance(begun, Compacting):
            return begun
        try:
            text = _summarized(begun.summarize, begun.request, begun.timeout)
        except BaseException as error:
            failure = self._fail_compaction(begun, error)
            if failure is error:
                raise
            raise failure from error
        return self._finish_compaction(begun, text)

    def _cost(self, message: Message) -> int:
        """Return the tokens of a message."""
        counter = self._reader.settings.counter
        # The tokens counted when the message was recorded are reused.
        return (message.tokens if counter is None else 0) or message_tokens(message.data, counter or estimate)

    def _finish_compaction(self, begun: Compacting, text: Any) -> Receipt | None:
        """Record the returned summary; None when another one was recorded meanwhile."""
        limit = begun.request.max_tokens
        try:
            if not isinstance(text, str) or not text.strip():
                raise InvalidEntry("summarize", "returned nothing")
            if not compaction.within(text, limit, self._reader.settings.counter or estimate):
                raise InvalidEntry("summarize", f"returned far more than the {limit} tokens it was asked for")
            receipt = self._add_summary(begun.call, text, begun.first, begun.last, begun.expected)
        except BaseException as error:
            failure = self._fail_compaction(begun, error)
            if isinstance(error, SummaryMoved):
                return None
            if failure is error:
                raise
            raise failure from error
        self._record_end(begun.call, begun.lane, "finished")
        return receipt

    def _fail_compaction(self, begun: Compacting, error: BaseException) -> BaseException:
        """Record that a compaction failed, so that the next one need not wait, and return the error to raise."""
        try:
            why = f"{type(error).__name__}: {error}"[:500].encode(errors="replace").decode()
        except Exception:
            why = type(error).__name__
        # If the database cannot be reached, the deadline lets the next one start. The cause is the error to raise.
        with contextlib.suppress(TapeError):
            self._record_end(begun.call, begun.lane, "failed", why)
        if isinstance(error, TapeError) or not isinstance(error, Exception | asyncio.CancelledError):
            return error
        return InvalidEntry("summarize", f"failed: {why}")

    def _record_start(self, call: Call, timeout: float) -> int | None:
        """Record that a compaction begins; returns its branch, which its end has to name."""
        now = self._services.clock()
        deadline = now + int((timeout + 5) * 1_000_000)
        start = StartCompaction(key=self._services.keyed(None), deadline=deadline, now=now)
        try:
            self._services.recorder.record(call, [start])
        except Exception:
            raise
        except BaseException:
            # Interrupted: it is unknown whether the start was recorded, and recording an end does no harm.
            if start.lane is not None:
                with contextlib.suppress(TapeError):
                    self._record_end(Call(self._id, call.actor, call.meta), start.lane, "failed", "interrupted")
            raise
        return start.lane

    def _record_end(self, call: Call, lane: int | None, state: str, why: str | None = None) -> None:
        """Record how a compaction on a branch ended."""
        data: dict[str, Any] = {"state": state}
        if why is not None:
            data["why"] = why.replace("\0", "")
        if lane is not None:
            data["lane"] = lane
        intent = Plain(key=self._services.keyed(None), payload=payloads.Event(name=COMPACTION, data=data))
        self._services.recorder.record(call, [intent])


def _repeated(entry: Entry) -> Receipt:
    """Return the receipt of a compaction that was recorded under the caller's key before."""
    if not isinstance(entry.payload, payloads.Compact):
        stored = digest_of(canonical(entry.payload.content() if entry.payload is not None else None))
        raise ProvenanceConflict(entry.tape, entry.key, entry.seq, stored, digest_of(canonical({"kind": "compact"})))
    return Receipt(entry.tape, entry.seq, entry.key, None, entry.hash, duplicate=True, position=entry.position)


def in_thread(function: Callable[[], Any]) -> Future[tuple[Any, BaseException | None]]:
    """Run something in a thread of its own, which can be left behind when it hangs; returns its value or its error."""
    future: Future[tuple[Any, BaseException | None]] = Future()
    # From now on it cannot be cancelled, only abandoned by the waiter.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result((function(), None))
        except BaseException as error:
            future.set_result((None, error))

    threading.Thread(target=run, name="tape-summarize", daemon=True).start()
    return future


def too_slow(timeout: float) -> TimeoutError:
    """Return the error of a summarizer that took too long."""
    return TimeoutError(f"the summarizer took longer than {timeout} s")


def _summarized(summarize: Summarize, request: SummaryRequest, timeout: float) -> Any:
    """Run a summarizer, plain or async, for at most ``timeout`` seconds."""

    def run() -> Any:
        value = summarize(request)
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value

    try:
        value, error = in_thread(run).result(timeout)
    except TimeoutError:
        raise too_slow(timeout) from None
    if error is not None:
        raise error
    return value


async def _awaited(value: Any) -> Any:
    return await value
