"""The async twin: the same store and tape, awaited.

Every call is one hop to a worker thread around the synchronous core. A cancelled call is either not started, and
nothing was written, or it runs to its end in the thread: an append is wholly there or wholly absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from tape import store as sync
from tape.core import strict
from tape.core.memory.state import BlockSpec, Slot
from tape.core.merge.diff import Diff
from tape.core.messages.tokens import Counter
from tape.core.records import Entry, MergeReceipt, Receipt
from tape.core.summaries.compaction import Summarize, SummaryRequest
from tape.db.feed.feed import Following, check_position
from tape.errors import InvalidEntry, StoreFailed
from tape.handles.consumer import Consumer, check_timeout
from tape.handles.memory import Compacting, in_thread, too_slow
from tape.handles.tape import Fork, Snapshot, Tape

__all__ = ["AsyncConsumer", "AsyncFork", "AsyncSnapshot", "AsyncStore", "AsyncTape", "open_async"]

P = ParamSpec("P")
R = TypeVar("R")

_PAGE = 256


class _Hop:
    """What an async face needs: the synchronous object behind it, and the threads to run it in."""

    def __init__(self, inner: Any, threads: ThreadPoolExecutor) -> None:
        self._inner = inner
        self._threads = threads

    def _start(self, call: Callable[[], R]) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._threads, call)
        except RuntimeError as error:
            # The threads take no more work: they were shut down with the store.
            raise StoreFailed("the store is closed") from error

    async def _run(self, call: Callable[[], R]) -> R:
        return await self._start(call)

    async def _run_to_end(self, call: Callable[[], R]) -> tuple[R, asyncio.CancelledError | None]:
        """Run a call and wait for its end, also when the waiting is cancelled; returns that cancellation."""
        running = self._start(call)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError as error:
                cancelled = error
        failure = running.exception()
        if cancelled is not None and failure is not None:
            raise cancelled from failure
        return running.result(), cancelled


def _hop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[_Hop, P], Coroutine[Any, Any, R]]:
    """Return ``method`` to be awaited: same arguments, same result, in a worker thread."""

    @functools.wraps(method)
    async def hopped(self: _Hop, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(lambda: method(self._inner, *args, **kwargs))

    return hopped


async def _pages(face: _Hop, make: Callable[[], Iterator[Entry]]) -> AsyncIterator[Entry]:
    """Yield what an iterator yields, fetching a page of it per hop."""
    source = await face._run(make)

    def some() -> list[Entry]:
        return list(itertools.islice(source, _PAGE))

    while page := await face._run(some):
        for entry in page:
            yield entry


class AsyncSnapshot(_Hop):
    """The reads of a tape, awaited; see ``Snapshot``."""

    _inner: Snapshot

    @property
    def id(self) -> str:
        """The tape's id."""
        return self._inner.id

    info = _hop(Snapshot.info)
    messages = _hop(Snapshot.messages)
    message = _hop(Snapshot.message)
    find = _hop(Snapshot.find)
    children = _hop(Snapshot.children)
    heads = _hop(Snapshot.heads)
    anchors = _hop(Snapshot.anchors)
    context = _hop(Snapshot.context)
    summary = _hop(Snapshot.summary)
    summaries = _hop(Snapshot.summaries)
    state = _hop(Snapshot.state)
    states = _hop(Snapshot.states)
    blocks = _hop(Snapshot.blocks)
    usage = _hop(Snapshot.usage)
    needs_compaction = _hop(Snapshot.needs_compaction)
    search = _hop(Snapshot.search)

    def entries(
        self, *, after: int = 0, kinds: Iterable[str] | None = None, limit: int | None = None
    ) -> AsyncIterator[Entry]:
        """Yield the tape's own entries in order of seq."""
        return _pages(self, lambda: self._inner.entries(after=after, kinds=kinds, limit=limit))


class AsyncTape(AsyncSnapshot):
    """One history, open for reading and writing, awaited; see ``Tape``."""

    _inner: Tape

    def __repr__(self) -> str:
        return f"<tape.AsyncTape {self.id!r}>"

    async def at(self, point: int | datetime | str) -> AsyncSnapshot:
        """Return the reads of this tape frozen at a seq, a moment, or the newest anchor of a name."""
        return AsyncSnapshot(await self._run(lambda: self._inner.at(point)), self._threads)

    append = _hop(Tape.append)
    extend = _hop(Tape.extend)
    upsert = _hop(Tape.upsert)
    revise = _hop(Tape.revise)
    retract = _hop(Tape.retract)
    restore = _hop(Tape.restore)
    clear = _hop(Tape.clear)
    switch = _hop(Tape.switch)
    replace_history = _hop(Tape.replace_history)
    anchor = _hop(Tape.anchor)
    handoff = _hop(Tape.handoff)
    event = _hop(Tape.event)
    complete = _hop(Tape.complete)
    abandon = _hop(Tape.abandon)
    end = _hop(Tape.end)
    reopen = _hop(Tape.reopen)
    rename = _hop(Tape.rename)
    label = _hop(Tape.label)
    verify = _hop(Tape.verify)
    discard = _hop(Tape.discard)
    context = _hop(Tape.context)
    recorded_context = _hop(Tape.recorded_context)
    recall = _hop(Tape.recall)
    patch = _hop(Tape.patch)
    put = _hop(Tape.put)
    set_block = _hop(Tape.set_block)
    append_block = _hop(Tape.append_block)
    remove_block = _hop(Tape.remove_block)
    freeze_prompt = _hop(Tape.freeze_prompt)
    refresh_prompt = _hop(Tape.refresh_prompt)
    record_usage = _hop(Tape.record_usage)
    set_summary = _hop(Tape.set_summary)
    tools = _hop(Tape.tools)
    lineage = _hop(Tape.lineage)

    async def compact(
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
        """Summarise what lies between the first messages and the last ``budget`` tokens; see ``Tape.compact``.

        A coroutine function runs on the caller's event loop, a plain one in a thread. When the call is cancelled, the
        compaction is recorded as failed before the cancellation goes on, so that another can start at once.
        """
        begun, cancelled = await self._run_to_end(
            lambda: self._inner._begin_compaction(
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
        )
        if not isinstance(begun, Compacting):
            if cancelled is not None:
                raise cancelled
            return begun
        task = asyncio.current_task()
        asked = task.cancelling() if task is not None else 0
        try:
            if cancelled is not None:
                raise cancelled
            text = await _summarized(summarize, begun.request, timeout)
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
    ) -> _Forking:
        """Fork this tape: ``await`` it for the fork, or enter it with ``async with`` to have it merged or discarded."""
        return _Forking(
            self,
            lambda: self._inner.fork(
                id,
                at=at,
                name=name,
                strategy=strategy,
                on_conflict=on_conflict,
                key=key,
                actor=actor,
                meta=meta,
                expected_head=expected_head,
            ),
        )

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
        return await self._run(
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
        return AsyncSnapshot(await self._run(lambda: self._inner.linked(wanted)), self._threads)

    async def diff(self, a: int | datetime | str | AsyncSnapshot, b: int | datetime | str | AsyncSnapshot) -> Diff:
        """Return what changed from one point or tape to another; see ``Tape.diff``."""
        before = a._inner if isinstance(a, AsyncSnapshot) else a
        after = b._inner if isinstance(b, AsyncSnapshot) else b
        return await self._run(lambda: self._inner.diff(before, after))


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
        return AsyncFork(await self._parent._run(self._make), self._parent._threads)

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
            await fork._run(lambda: fork._inner.__exit__(kind, error, trace))


async def _follow(
    face: _Hop, store: sync.Store, after: int | Callable[[], int], timeout: float | None
) -> AsyncIterator[Entry]:
    """Follow the feed: every look is a hop, and the waiting between them takes no thread."""
    loop, rang = asyncio.get_running_loop(), asyncio.Event()

    def ring() -> None:
        # The loop may have been closed while somebody else still writes.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(rang.set)

    store._administrative("follow")
    start = after if isinstance(after, int) else await face._run(after)
    following = Following(store._feed, start, timeout)
    with store._db.bell.following(ring):
        while True:
            rang.clear()
            for entry in await face._run(following.step):
                yield entry
            pause = following.pause()
            if pause is None:
                return
            if pause:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(rang.wait(), pause)
                    following.rung()


class AsyncConsumer(_Hop):
    """A named reader of the feed, awaited; see ``Consumer``."""

    _inner: Consumer

    def __repr__(self) -> str:
        return f"<tape.AsyncConsumer {self.name!r}>"

    @property
    def name(self) -> str:
        """The name under which the position is kept, for each owner apart."""
        return self._inner.name

    @property
    def position(self) -> Awaitable[int]:
        """The position that was last committed, to be awaited; 0 before the first."""
        return self._run(lambda: self._inner.position)

    def __aiter__(self) -> AsyncIterator[Entry]:
        """Yield every entry behind the committed position that there is now."""
        return _pages(self, lambda: iter(self._inner))

    def follow(self, *, timeout: float | None = None) -> AsyncIterator[Entry]:
        """Yield every entry behind the committed position and wait for more; see ``Store.follow``."""
        return _follow(self, self._inner._store, lambda: self._inner.position, check_timeout(timeout))

    commit = _hop(Consumer.commit)


class AsyncStore(_Hop):
    """A database of tapes, awaited; see ``Store``. Use it in an ``async with`` statement, or ``await close()``."""

    _inner: sync.Store
    _closed = False
    _bound = False

    def __init__(self, inner: sync.Store, threads: ThreadPoolExecutor, *, shared: bool = False) -> None:
        super().__init__(inner, threads)
        self._shared = shared

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def owner(self) -> str | None:
        """The owner whose tapes this store sees, or None for all."""
        return self._inner.owner

    async def create(
        self,
        id: str | None = None,
        *,
        name: str | None = None,
        owner: str | None = None,
        agent: str | None = None,
        labels: Iterable[str] | None = None,
        meta: dict[str, Any] | None = None,
        messages: Iterable[dict[str, Any]] | None = None,
        reuse: bool = False,
    ) -> AsyncTape:
        """Create a tape, with its first messages if given, in one step. Raises TapeExists for a taken id."""
        inner = await self._run(
            lambda: self._inner.create(
                id, name=name, owner=owner, agent=agent, labels=labels, meta=meta, messages=messages, reuse=reuse
            )
        )
        return AsyncTape(inner, self._threads)

    async def get(self, id: str) -> AsyncTape:
        """Return the tape with this id. Raises TapeNotFound when there is none."""
        return AsyncTape(await self._run(lambda: self._inner.get(id)), self._threads)

    def tape(self, id: str) -> AsyncTape:
        """Return the tape with this id; it reads as empty, and is created with its first write."""
        return AsyncTape(self._inner.tape(id), self._threads)

    search = _hop(sync.Store.search)

    def feed(self, after: int = 0, *, limit: int | None = None) -> AsyncIterator[Entry]:
        """Yield the entries of all tapes behind a position; see ``Store.feed``."""
        return _pages(self, lambda: self._inner.feed(after, limit=limit))

    def follow(self, after: int = 0, *, timeout: float | None = None) -> AsyncIterator[Entry]:
        """Yield the entries of all tapes behind a position and wait for more; see ``Store.follow``."""
        return _follow(
            self, self._inner, check_position(after, "after", postgres=self._inner._db.postgres), check_timeout(timeout)
        )

    def consumer(self, name: str) -> AsyncConsumer:
        """Return the reader of the feed with this name; see ``Store.consumer``."""
        return AsyncConsumer(self._inner.consumer(name), self._threads)

    list = _hop(sync.Store.list)
    purge = _hop(sync.Store.purge)
    retain = _hop(sync.Store.retain)
    export = _hop(sync.Store.export)
    import_ = _hop(sync.Store.import_)
    backup = _hop(sync.Store.backup)
    health = _hop(sync.Store.health)
    stats = _hop(sync.Store.stats)
    tools = _hop(sync.Store.tools)

    def bind(self, connection: sa.Connection) -> AsyncStore:
        """Return this store on a connection of the caller's, a synchronous one; see ``Store.bind``.

        What it writes commits or rolls back with the caller's own rows. Await each call before using the connection.
        """
        bound = AsyncStore(self._inner.bind(connection), self._threads)
        bound._bound = True
        return bound

    verify = _hop(sync.Store.verify)
    rebuild = _hop(sync.Store.rebuild)

    async def split(
        self,
        id: str,
        *,
        summary: str,
        name: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> AsyncTape:
        """End a tape and return the next one, which begins with a summary; see ``Store.split``."""
        inner = await self._run(
            lambda: self._inner.split(
                id, summary=summary, name=name, key=key, actor=actor, meta=meta, expected_head=expected_head
            )
        )
        return AsyncTape(inner, self._threads)

    def scoped(self, owner: str) -> AsyncStore:
        """Return this store for one owner; see ``Store.scoped``."""
        return AsyncStore(self._inner.scoped(owner), self._threads, shared=True)

    async def close(self) -> None:
        """Wait for calls under way, then give back every connection. A second close does nothing."""
        if not self._closed and not self._shared:
            self._closed = True
            await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        if not self._bound:
            self._threads.shutdown(wait=True)
        self._inner.close()


class _Opening:
    """What ``open_async`` returns: await it for a store, or enter it with ``async with``."""

    def __init__(self, make: Callable[[], sync.Store], threads: ThreadPoolExecutor) -> None:
        self._make = make
        self._threads = threads
        self._store: AsyncStore | None = None

    async def _open(self) -> AsyncStore:
        opening = self._threads.submit(self._make)
        try:
            inner = await asyncio.wrap_future(opening)
        except BaseException:
            # Cancelled while a thread was at it: nobody else would close what it opens.
            opening.add_done_callback(_close_opened)
            self._threads.shutdown(wait=False)
            raise
        return AsyncStore(inner, self._threads)

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


def _close_opened(opening: Future[sync.Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def open_async(
    url: str | os.PathLike[str] | sa.URL = "tape.db",
    *,
    owner: str | None = None,
    durability: str = "full",
    schema: str | None = None,
    timeout: float = 30.0,
    slow: float = 1.0,
    clock: Callable[[], int] | None = None,
    slots: Iterable[Slot] = (),
    blocks: Iterable[BlockSpec] = (),
    counter: Counter | None = None,
    threads: int = 8,
) -> _Opening:
    """Open a store for use with asyncio: ``async with tape.open_async(…) as store``, or ``await`` it.

    Takes what ``tape.open`` takes, and the number of worker ``threads``.
    """

    def make() -> sync.Store:
        return sync.open(
            url,
            owner=owner,
            durability=durability,
            schema=schema,
            timeout=timeout,
            slow=slow,
            clock=clock,
            slots=slots,
            blocks=blocks,
            counter=counter,
        )

    if type(threads) is not int or threads < 1:
        raise InvalidEntry("threads", f"must be a number of at least 1, not {strict.shown(threads)}")
    return _Opening(make, ThreadPoolExecutor(threads, thread_name_prefix="tape"))
