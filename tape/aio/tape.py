"""A tape and its snapshots and forks, awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from datetime import datetime
from types import TracebackType
from typing import Any, Unpack, overload

from msgspec import UNSET

from tape.aio.hop import Hop, hop, hop_to, hop_write, pages
from tape.aio.leases import Leasing, wait_for
from tape.core.journal.pointers import Pointer
from tape.core.journal.requests import Request
from tape.core.merge.diff import Diff
from tape.core.messages.objects import MessageLike
from tape.core.records import Entry, MergeReceipt, Message, Page, Receipt
from tape.core.summaries.compaction import Summarize, SummaryRequest
from tape.handles.compaction import Compacting, in_thread, too_slow
from tape.handles.options import WriteOptions, arguments_of, explained, public_as
from tape.handles.snapshot import Bounds, PageBounds, Snapshot
from tape.handles.tape import Fork, Tape

__all__ = ["AsyncFork", "AsyncSnapshot", "AsyncTape", "resolve_pointer"]


class AsyncSnapshot(Hop):
    """The reads of a tape, awaited; see ``Snapshot``."""

    _inner: Snapshot

    def __repr__(self) -> str:
        return repr(self._inner).replace("<tape.", "<tape.Async", 1)

    @property
    def id(self) -> str:
        """The tape's id."""
        return self._inner.id

    info = hop(Snapshot.info)
    title = hop(Snapshot.title)
    bodies = hop(Snapshot.bodies)
    message = hop(Snapshot.message)
    find = hop(Snapshot.find)
    children = hop(Snapshot.children)
    heads = hop(Snapshot.heads)
    anchors = hop(Snapshot.anchors)
    context = hop(Snapshot.context)
    explain = hop(Snapshot.explain)
    summary = hop(Snapshot.summary)
    summaries = hop(Snapshot.summaries)
    entry = hop(Snapshot.entry)
    find_entry = hop(Snapshot.find_entry)
    state = hop(Snapshot.state)
    state_entry = hop(Snapshot.state_entry)
    states = hop(Snapshot.states)
    blocks = hop(Snapshot.blocks)
    loaded = hop(Snapshot.loaded)
    usage = hop(Snapshot.usage)
    pointer = hop(Snapshot.pointer)
    needs_compaction = hop(Snapshot.needs_compaction)
    search = hop(Snapshot.search)

    @overload
    async def messages(self, *, branch: str | None = None) -> list[Message]: ...

    @overload
    async def messages(self, *, branch: str | None = None, limit: int, **bounds: Unpack[Bounds]) -> Page[Message]: ...

    @overload
    async def messages(
        self, *, branch: str | None = None, **bounds: Unpack[PageBounds]
    ) -> list[Message] | Page[Message]: ...

    async def messages(
        self,
        *,
        branch: str | None = None,
        limit: int | None = None,
        before: str | None = None,
        after: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Message] | Page[Message]:
        """Return the messages from the root to the head or to ``branch``, or a page of them; see ``Snapshot``."""
        options: Any = {"branch": branch, "limit": limit, "before": before, "after": after, "max_bytes": max_bytes}
        return await self._read(lambda: self._inner.messages(**options))

    @arguments_of(Snapshot.entries)
    def entries(self, **wanted: Any) -> AsyncIterator[Entry]:
        """Yield the tape's own entries in order of seq, or the newest first; see ``Snapshot.entries``."""
        return pages(self, lambda: self._inner.entries(**wanted))


@public_as("AsyncTape")
class AsyncTape(AsyncSnapshot):
    """One history, open for reading and writing, awaited; see ``Tape``."""

    _inner: Tape

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
    _event_of_run = hop_write(Tape._event_of_run)
    complete = hop_write(Tape.complete)
    abandon = hop_write(Tape.abandon)
    end = hop_write(Tape.end)
    reopen = hop_write(Tape.reopen)
    rename = hop_write(Tape.rename)
    label = hop_write(Tape.label)
    hide = hop_write(Tape.hide)
    unhide = hop_write(Tape.unhide)
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
    load_block = hop_write(Tape.load_block)
    unload_block = hop_write(Tape.unload_block)
    freeze_prompt = hop_write(Tape.freeze_prompt)
    refresh_prompt = hop_write(Tape.refresh_prompt)
    record_usage = hop_write(Tape.record_usage)
    set_summary = hop_write(Tape.set_summary)
    tools = hop(Tape.tools)
    lineage = hop(Tape.lineage)
    request = hop_write(Tape.request)
    resolve = hop_write(Tape.resolve)
    withdraw = hop_write(Tape.withdraw)

    async def decision(self, request: Request | Receipt | str, *, wait: float = 0.0) -> Request:
        """Return a request as it stands, after waiting at most ``wait`` seconds for somebody to decide it; see
        ``Tape.decision``.
        """
        return await wait_for(self, self._inner._services, self._inner._awaiting(request, wait))

    def lease(
        self, name: str, seconds: float, *, holder: str | None = None, wait: float = 0.0, actor: str | None = None
    ) -> Leasing:
        """Take the lease of a name: ``await`` it for the lease, or enter it with ``async with``; see ``Tape.lease``."""
        return Leasing(self, lambda: self._inner._leasing(name, seconds, holder, wait, actor), self._inner._services)

    @explained
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
        cancellations = task.cancelling() if task is not None else 0
        try:
            if cancelled is not None:
                raise cancelled
            text = await _summarized(begun.summarize, begun.request, begun.timeout)
        except BaseException as error:
            failed = error
            failure, again = await self._run_to_end(lambda: self._inner._fail_compaction(begun, failed))
            if isinstance(error, asyncio.CancelledError):
                # One that nobody asked of this task is an error of the summarizer's.
                if (
                    cancelled is not None
                    or again is not None
                    or (task is not None and task.cancelling() > cancellations)
                ):
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
        message: MessageLike | None = None,
        role: str | None = None,
        content: Any = UNSET,
        id: str | None = None,
        name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> MergeReceipt:
        """Take what is new on a fork of this tape; see ``Tape.merge``."""
        return await self._write(
            lambda: self._inner.merge(
                child.id if isinstance(child, AsyncTape) else child,
                strategy=strategy,
                on_conflict=on_conflict,
                summary=summary,
                message=message,
                role=role,
                content=content,
                id=id,
                name=name,
                tool_calls=tool_calls,
                tool_call_id=tool_call_id,
                **options,
            )
        )

    async def linked(self, child: AsyncTape | str) -> AsyncSnapshot:
        """Return a merged or linked fork as it was then; see ``Tape.linked``."""
        child_id = child.id if isinstance(child, AsyncTape) else child
        return AsyncSnapshot(await self._read(lambda: self._inner.linked(child_id)), self._threads)

    async def diff(self, a: int | datetime | str | AsyncSnapshot, b: int | datetime | str | AsyncSnapshot) -> Diff:
        """Return what changed from one point or tape to another; see ``Tape.diff``."""
        before = a._inner if isinstance(a, AsyncSnapshot) else a
        after = b._inner if isinstance(b, AsyncSnapshot) else b
        return await self._read(lambda: self._inner.diff(before, after))


async def resolve_pointer(tape: AsyncTape, place: Pointer, depth: int | None) -> AsyncSnapshot:
    """Return the snapshot that a pointer was made for; see ``tape.resolve``."""
    return AsyncSnapshot(await tape._read(lambda: tape._inner._at_pointer(place, depth)), tape._threads)


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
