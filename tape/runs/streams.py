"""Streams: what a call yields, recorded as it is read, and given again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tape.errors import InvalidEntry, ProvenanceConflict
from tape.runs.events import Result
from tape.runs.pure.values import Load, restored, restored_error

if TYPE_CHECKING:
    from tape.runs.journal import Step
    from tape.runs.wrapping import Calls

__all__ = ["AsyncStream", "ReplayedStream", "Stream"]


class _Reading:
    """What both kinds of stream share: the chunks are noted, and the end is recorded once."""

    def __init__(self, source: Any, step: Step, calls: Calls) -> None:
        self._source = source
        self._step = step
        self._calls = calls
        self._ended = False
        step.streams = True

    def __getattr__(self, name: str) -> Any:
        # A stream of an SDK has more to it than its chunks: the response, its headers.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)

    def _noted(self, chunk: Any) -> Any:
        self._calls._journal.chunk(self._step, chunk)
        return chunk

    def _ending(self, *, whole: bool = True, error: BaseException | None = None) -> Any:
        """Yield the operation that records how the stream ended."""
        journal, step = self._calls._journal, self._step
        if self._ended:
            return
        self._ended = True
        if error is not None and not isinstance(error, Exception):
            return
        try:
            yield "write", journal.streamed(step, whole=whole) if error is None else journal.failed(step, error)
        except ProvenanceConflict:
            # Another worker that resumed the run has recorded an outcome. This one has read its own stream already.
            return


class Stream(_Reading):
    """A stream under way: it gives what the call yields, and its end is recorded. Close it, or read it to its end."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        journal = self._calls._journal
        try:
            with journal.lanes.entered(self._step.inner):
                chunk = next(self._source)
        except StopIteration:
            self._calls.drive(self._ending())
            raise
        except BaseException as error:
            self._calls.drive(self._ending(error=error))
            raise
        return self._noted(chunk)

    def close(self) -> None:
        """End the stream; what was not read is recorded as not read."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
        self._calls.drive(self._ending(whole=False))

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(_Reading):
    """The same for a stream that is awaited."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        journal = self._calls._journal
        try:
            with journal.lanes.entered(self._step.inner):
                chunk = await anext(self._source)
        except StopAsyncIteration:
            await self._calls.drive_async(self._ending())
            raise
        except BaseException as error:
            await self._calls.drive_async(self._ending(error=error))
            raise
        return self._noted(chunk)

    async def aclose(self) -> None:
        """End the stream; what was not read is recorded as not read."""
        close = getattr(self._source, "aclose", None) or getattr(self._source, "close", None)
        if close is not None:
            await close()
        await self._calls.drive_async(self._ending(whole=False))

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class ReplayedStream:
    """A recorded stream: the chunks in their order, without waiting, and the error that ended it, if one did.

    It is read with ``for`` or with ``async for``, as the program does. ``times`` are the microseconds after the call at
    which each chunk came.
    """

    def __init__(self, result: Result, load: Load | None) -> None:
        chunks = result.chunks or []
        self.times: list[int] = [at for at, _ in chunks]
        self._chunks = iter([chunk for _, chunk in chunks])
        self._load = load
        self._error = result.error
        self._partial = result.status == "partial"

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        for chunk in self._chunks:
            return restored(chunk, self._load)
        if self._error is not None:
            error, self._error = self._error, None
            raise restored_error(error)
        if self._partial:
            raise InvalidEntry("stream", "the recorded run stopped reading here; what followed is not recorded")
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """End the stream."""
        self._chunks, self._error, self._partial = iter(()), None, False

    async def aclose(self) -> None:
        """End the stream."""
        self.close()

    def __enter__(self) -> ReplayedStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> ReplayedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
