"""A tape and its snapshots and forks, awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any

from tape.aio.hop import Hop, hop, hop_to, hop_write, pages
from tape.core.merge.diff import Diff
from tape.core.records import Entry, MergeReceipt, Receipt
from tape.core.summaries.compaction import Summarize, SummaryRequest
from tape.handles.compaction import Compacting, in_thread, too_slow
from tape.handles.options import arguments_of
from tape.handles.snapshot import Snapshot
from tape.handles.tape import Fork, Tape

__all__ = ["AsyncFork", "AsyncSnapshot", "AsyncTape"]


class AsyncSnapshot(Hop):
    """The reads of a tape, awaited; see ``Snapshot``."""

    _inner: Snapshot

    @property
    def id(self) -> str:
        """The tape's id."""
        return self._inner.id

    info = hop(Snapshot.info)
    messages = hop(Snapshot.messages)
    message = hop(Snapshot.message)
    find = hop(Snapshot.find)
    children = hop(Snapshot.children)
    heads = hop(Snapshot.heads)
    anchors = hop(Snapshot.anchors)
    context = hop(Snapshot.context)
    summary = hop(Snapshot.summary)
    summaries = hop(Snapshot.summaries)
    state = hop(Snapshot.state)
    states = hop(Snapshot.states)
    blocks = hop(Snapshot.blocks)
    usage = hop(Snapshot.usage)
    needs_compaction = hop(Snapshot.needs_compaction)
    search = hop(Snapshot.search)

    def entries(
        self, *, after: int = 0, kinds: Iterable[str] | None = None, limit: int | None = None
    ) -> AsyncIterator[Entry]:
        """Yield the tape's own entries in order of seq."""
        return pages(self, lambda: self._inner.entries(after=after, kinds=kinds, limit=limit))


class AsyncTape(AsyncSnapshot):
    """One history, open for reading and writing, awaited; see ``Tape``."""

    _inner: Tape

    def __repr__(self) -> str:
        return f"<tape.AsyncTape {self.id!r}>"

    at = hop_to(AsyncSnapshot, Tape.at)
    append = hop_write(Tape.append)
    extend = hop_write(Tape.extend)
    upsert = hop_write(Tape.upsert)
    revise = hop_write(Tape.revise)
    retract = hop_write(Tape.retract)
    restore = hop_write(Tape.restore)
    clear = hop_write(Tape.clear)
    switch = hop_write(Tape.switch)
    replace_history = hop_write(Tape.replace_history)
    anchor = hop_write(Tape.anchor)
    handoff = hop_write(Tape.handoff)
    event = hop_write(Tape.event)
    complete = hop_write(Tape.complete)
    abandon = hop_write(Tape.abandon)
    end = hop_write(Tape.end)
    reopen = hop_write(Tape.reopen)
    rename = hop_write(Tape.rename)
    label = hop_write(Tape.label)
    verify = hop(Tape.verify)
    discard = hop_write(Tape.discard)
    context = hop(Tape.context)
    recorded_context = hop_write(Tape.recorded_context)
    recall = hop(Tape.recall)
    patch = hop_write(Tape.patch)
    put = hop_write(Tape.put)
    set_block = hop_write(Tape.set_block)
    append_block = hop_write(Tape.append_block)
    remove_block = hop_write(Tape.remove_block)
    freeze_prompt = hop_write(Tape.freeze_prompt)
    refresh_prompt = hop_write(Tape.refresh_prompt)
    record_usage = hop_write(Tape.record_usage)
    set_summary = hop_write(Tape.set_summary)
    tools = hop(Tape.tools)
    lineage = hop(Tape.lineage)

    @arguments_of(Tape.compact)
    async def compact(self, *arguments: Any, **named: Any) -> Receipt | None:
        """Summarise what lies between the first messages and the last ``budget`` tokens; see ``Tape.compact``.

        A coroutine function runs on the caller's event loop, a plain one in a thread. When the call is cancelled, the
        compaction is recorded as failed before the cancellation goes on, so that another can start at once.
        """
        begun, cancelled = await self._run_to_end(lambda: self._inner._begin_compaction(*arguments, **named))
        if not isinstance(begun, Compacting):
            if cancelled is not None:
                raise cancelled
            return begun
        task = asyncio.current_task()
        asked = task.cancelling() if task is not None else 0
        try:
            if cancelled is not None:
                raise cancelled
            text = await _summarized(begun.summarize, begun.request, begun.timeout)
        except BaseException as error:
            failed = error
            failure, again = await self._run_to_end(lambda: self._inner._fail_compaction(begun, failed))
            if isinstance(error, asyncio.CancelledError):
                # One that nobody asked of this task is an error of the summarizer's.
                if cancelled is not None or again is not None or (task is not None and task.cancelling() > asked):
                    raise
            elif again is not None:
                raise again from error
            if failure is error:
                raise
            raise failure from error
        receipt, cancelled = await self._run_to_end(lambda: self._inner._finish_compaction(begun, text))
        if cancelled is not None:
            raise cancelled
        return receipt

    @arguments_of(Tape.fork)
    def fork(self, *arguments: Any, **named: Any) -> _Forking:
        """Fork this tape: ``await`` it for the fork, or enter it with ``async with`` to have it merged or discarded."""
        return _Forking(self, lambda: self._inner.fork(*arguments, **named))

    async def merge(
        self,
        child: AsyncTape | str,
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
        """Take what is new on a fork of this tape; see ``Tape.merge``."""
        return await self._write(
            lambda: self._inner.merge(
                child.id if isinstance(child, AsyncTape) else child,
                strategy=strategy,
                on_conflict=on_conflict,
                summary=summary,
                key=key,
                actor=actor,
                meta=meta,
                expected_head=expected_head,
                **message,
            )
        )

    async def linked(self, child: AsyncTape | str) -> AsyncSnapshot:
        """Return a merged or linked fork as it was then; see ``Tape.linked``."""
        wanted = child.id if isinstance(child, AsyncTape) else child
        return AsyncSnapshot(await self._read(lambda: self._inner.linked(wanted)), self._threads)

    async def diff(self, a: int | datetime | str | AsyncSnapshot, b: int | datetime | str | AsyncSnapshot) -> Diff:
        """Return what changed from one point or tape to another; see ``Tape.diff``."""
        before = a._inner if isinstance(a, AsyncSnapshot) else a
        after = b._inner if isinstance(b, AsyncSnapshot) else b
        return await self._read(lambda: self._inner.diff(before, after))


async def _summarized(summarize: Summarize, request: SummaryRequest, timeout: float) -> Any:
    """Run a summarizer for at most ``timeout`` seconds: a coroutine on this loop, a plain function in a thread."""
    try:
        async with asyncio.timeout(timeout) as limit:
            if inspect.iscoroutinefunction(summarize) or inspect.iscoroutinefunction(type(summarize).__call__):
                return await summarize(request)
            value, error = await asyncio.wrap_future(in_thread(lambda: summarize(request)))
            if error is not None:
                raise error
            return await value if inspect.isawaitable(value) else value
    except TimeoutError as error:
        raise (too_slow(timeout) if limit.expired() else error) from None


class AsyncFork(AsyncTape):
    """A tape forked off another, awaited; see ``Fork``."""

    _inner: Fork


class _Forking:
    """What ``AsyncTape.fork`` returns: await it for the fork, or enter it to have it merged or discarded."""

    def __init__(self, parent: AsyncTape, make: Callable[[], Fork]) -> None:
        self._parent = parent
        self._make = make
        self._fork: AsyncFork | None = None

    async def _open(self) -> AsyncFork:
        return AsyncFork(await self._parent._write(self._make), self._parent._threads)

    def __await__(self) -> Generator[Any, None, AsyncFork]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncFork:
        self._fork = await self._open()
        return self._fork

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fork = self._fork
        if fork is not None:
            await fork._write(lambda: fork._inner.__exit__(kind, error, trace))
