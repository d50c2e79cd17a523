"""Wrapping: functions whose calls go through a journal, for those that return, await, yield, and do both.

What a call does is written once, as a generator of operations (``conduct``). ``drive`` carries them out at once, and
``drive_async`` awaits them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, Protocol

from tape.errors import AlreadySettled, InvalidEntry, ProvenanceConflict
from tape.runs.journal import Fact, Journal, Step, Wrapped
from tape.runs.pure.values import restored, restored_error
from tape.runs.recording import event_data
from tape.runs.streams import AsyncStream, ReplayedStream, Stream

__all__ = ["Calls", "Port"]

Operation = tuple[str, Any]
Conduct = Generator[Operation, Any, Any]

_VALUES = frozenset({str, bytes, int, float, bool, dict, list, tuple, type(None)})
"""Types of results that are neither awaited nor iterated."""


class Port(Protocol):
    """Where the events of a run are written: a tape of one kind or the other."""

    waits: bool
    """Whether writing has to be awaited."""

    def write(self, fact: Fact) -> Any:
        """Write an event; returns its receipt, or an awaitable of it."""

    def find(self, key: str) -> Any:
        """Return the entry of a key, or None, or an awaitable of that."""

    def settle(self, store: Any, fact: Fact) -> Any:
        """Write an event to a store that is bound to the caller's transaction."""


class Calls:
    """Makes the functions that a run hands out."""

    def __init__(self, journal: Journal, port: Port) -> None:
        self._journal = journal
        self._port = port

    def wrap(self, wrapped: Wrapped) -> Callable[..., Any]:
        """Return a function like the wrapped one whose calls go through the journal."""
        fn = wrapped.fn
        if not callable(fn):
            raise InvalidEntry("fn", f"must be a function, not a {type(fn).__name__}")
        if _is(inspect.isasyncgenfunction, fn):
            wrapper: Callable[..., Any] = self._async_generator(wrapped)
        elif _is(inspect.iscoroutinefunction, fn):
            wrapper = self._coroutine(wrapped)
        elif _is(inspect.isgeneratorfunction, fn):
            wrapper = self._async_generator(wrapped) if self._port.waits else self._generator(wrapped)
        elif self._port.waits:
            wrapper = self._coroutine(wrapped)
        else:
            wrapper = self._plain(wrapped)
        for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
            if hasattr(fn, name):
                setattr(wrapper, name, getattr(fn, name))
        with contextlib.suppress(TypeError, ValueError):
            # Frameworks make the schema of a tool of this. The effect is handed over by the run.
            signature = inspect.signature(fn)
            parameters = [
                parameter
                for parameter in signature.parameters.values()
                if parameter.name != "effect" or not wrapped.wants_effect
            ]
            wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return wrapper

    def _plain(self, wrapped: Wrapped) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.drive(self._conduct(wrapped, args, kwargs))

        return call

    def _coroutine(self, wrapped: Wrapped) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self.drive_async(self._conduct(wrapped, args, kwargs))

        return call

    def _generator(self, wrapped: Wrapped) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with self.drive(self._conduct(wrapped, args, kwargs)) as stream:
                yield from stream

        return call

    def _async_generator(self, wrapped: Wrapped) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with await self.drive_async(self._conduct(wrapped, args, kwargs)) as stream:
                async for chunk in stream:
                    yield chunk

        return call

    # -- what a call does

    def _conduct(self, wrapped: Wrapped, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Conduct:
        journal = self._journal
        step = journal.begin(wrapped, args, kwargs)
        if step.effect is not None:
            step.effect._settle = functools.partial(self._settle, step)
        if step.mode == "probe":
            happened = yield "probe", step
            if happened is not None and happened is not False:
                value = None if happened is True else happened
                yield "write", journal.completed(step, value)
                return value
            step.mode = "live"
        if step.mode == "skip":
            fact = journal.skipped(step)
            yield "write", fact
            return None if fact is None else fact.data["value"]["is"]
        if step.mode == "answer":
            return (yield from self._answered(step))
        receipt = yield "write", journal.dispatch(step)
        if receipt is not None:
            journal.dispatched(step, receipt.seq)
        if wrapped.wants_effect:
            kwargs = {**kwargs, "effect": step.effect}
        return (yield from self._conclude(step, ("invoke", (step, args, kwargs))))

    def _conclude(self, step: Step, operation: Operation) -> Conduct:
        """Make the call and record what comes of it."""
        journal = self._journal
        try:
            value = yield operation
        except AlreadySettled:
            return (yield from self._settled_elsewhere(step))
        except BaseException as error:
            return (yield from self._failed(step, error))
        if type(value) not in _VALUES:
            if inspect.isawaitable(value):
                step.awaited = True
                return self.drive_async(self._conclude(step, ("await", (step, value))))
            if isinstance(value, Iterator) and self._port.waits:
                value = _in_threads(value)
            if isinstance(value, AsyncIterator | Iterator):
                if step.mode == "compare":
                    return (yield from self._conclude(step, ("drain", (step, value))))
                return AsyncStream(value, step, self) if isinstance(value, AsyncIterator) else Stream(value, step, self)
        if step.mode == "compare":
            journal.compare(step, journal.live_fact(step, value))
            return (yield from self._answered(step))
        if not step.settled:
            yield "write", journal.completed(step, value)
            if step.wrapped.bound:
                raise InvalidEntry("bound", f"tool {step.wrapped.name!r} returned without effect.settle(…)")
        return value

    def _answered(self, step: Step) -> Conduct:
        """Answer a call from the tape; where what is written is to be whole by itself, it is written again."""
        assert step.recorded is not None
        result = step.recorded.result or {}
        if self._journal.copies:
            if step.mode == "answer":
                receipt = yield "write", self._journal.dispatch(step)
                self._journal.dispatched(step, receipt.seq)
            yield "write", self._journal.copied(step, result)
        return self._answer(step, result)

    def _failed(self, step: Step, error: BaseException) -> Conduct:
        """Record that a call raised, and raise it again; a commit whose reply was lost may have succeeded."""
        if step.mode == "compare":
            self._journal.compare(step, self._journal.live_fact(step, error=error))
            return (yield from self._answered(step))
        if not isinstance(error, Exception):
            # An interrupt or a cancellation says nothing about what the call did: its outcome stays unknown.
            raise error
        try:
            yield "write", self._journal.failed(step, error)
        except ProvenanceConflict:
            if not step.settled:
                raise
            return (yield from self._settled_elsewhere(step))
        raise error

    def _settled_elsewhere(self, step: Step) -> Conduct:
        """Return what another process has recorded as the outcome of this call."""
        fact = self._journal.completed(step, None)
        entry = None if fact is None else (yield "find", fact.key)
        data = None if entry is None else event_data(entry)
        if data is None:
            raise AlreadySettled(self._journal.run, step.wrapped.name, "" if step.effect is None else step.effect.key)
        return self._answer(step, data)

    def _answer(self, step: Step, result: dict[str, Any]) -> Any:
        """Return, raise or yield again what was recorded."""
        load = step.wrapped.load
        if "chunks" in result:
            return ReplayedStream(result, load)
        if "error" in result:
            if result.get("awaited"):
                return _raising(restored_error(result["error"]))
            raise restored_error(result["error"])
        value = restored(result.get("value") or {"is": None}, load)
        return _ready(value) if result.get("awaited") else value

    def _settle(self, step: Step, store: Any, value: Any) -> Any:
        """Record the outcome of a call in the caller's transaction."""
        fact = self._journal.completed(step, value)
        if fact is None:
            return None
        settled = AlreadySettled(self._journal.run, step.wrapped.name, step.effect.key if step.effect else "")
        step.settled = True
        try:
            receipt = self._port.settle(store, fact)
        except ProvenanceConflict:
            # It took another time there.
            raise settled from None
        return _checked(receipt, settled) if inspect.isawaitable(receipt) else _check(receipt, settled)

    # -- carrying operations out

    def drive(self, conduct: Conduct) -> Any:
        """Carry out the operations of a call at once."""
        return _driven(conduct, self._do)

    async def drive_async(self, conduct: Conduct) -> Any:
        """Carry out the operations of a call, awaiting what has to be awaited."""
        try:
            operation = next(conduct)
            while True:
                try:
                    result = await self._do_async(operation)
                except BaseException as error:
                    operation = conduct.throw(error)
                else:
                    operation = conduct.send(result)
        except StopIteration as done:
            return done.value

    def _do(self, operation: Operation) -> Any:
        verb, about = operation
        if verb == "write":
            return None if about is None else self._port.write(about)
        if verb == "find":
            return self._port.find(about)
        if verb == "probe":
            return about.wrapped.on_unknown(about.effect)
        if verb == "drain":
            step, source = about
            step.streams = True
            with self._journal.lanes.entered(step.inner):
                for chunk in source:
                    self._journal.chunk(step, chunk)
            return None
        step, args, kwargs = about
        with self._journal.lanes.entered(step.inner):
            return step.wrapped.fn(*args, **kwargs)

    async def _do_async(self, operation: Operation) -> Any:
        verb, about = operation
        if verb == "await":
            step, awaitable = about
            with self._journal.lanes.entered(step.inner):
                return await awaitable
        if verb == "drain" and isinstance(about[1], AsyncIterator):
            step, source = about
            step.streams = True
            with self._journal.lanes.entered(step.inner):
                async for chunk in source:
                    self._journal.chunk(step, chunk)
            return None
        if verb == "invoke":
            step, args, kwargs = about
            fn = step.wrapped.fn
            with self._journal.lanes.entered(step.inner):
                if self._port.waits and not _awaitable(fn):
                    value = await asyncio.to_thread(fn, *args, **kwargs)
                else:
                    value = fn(*args, **kwargs)
                return await value if inspect.isawaitable(value) else value
        result = self._do(operation)
        return await result if inspect.isawaitable(result) else result


def _driven(conduct: Conduct, do: Callable[[Operation], Any]) -> Any:
    try:
        operation = next(conduct)
        while True:
            try:
                result = do(operation)
            except BaseException as error:
                operation = conduct.throw(error)
            else:
                operation = conduct.send(result)
    except StopIteration as done:
        return done.value


def _is(check: Callable[[Any], bool], fn: Any) -> bool:
    """Whether a function is of a kind, also behind decorators and partials, or as the call of an object."""
    inner = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    return check(inner) or check(type(inner).__call__)


def _awaitable(fn: Any) -> bool:
    return _is(inspect.iscoroutinefunction, fn) or _is(inspect.isasyncgenfunction, fn)


async def _in_threads(source: Iterator[Any]) -> AsyncIterator[Any]:
    """Yield what an iterator yields, each from a worker thread."""
    end = object()
    while (chunk := await asyncio.to_thread(next, source, end)) is not end:
        yield chunk


async def _ready(value: Any) -> Any:
    return value


async def _raising(error: BaseException) -> Any:
    raise error


def _check(receipt: Any, settled: AlreadySettled) -> Any:
    if receipt.duplicate:
        raise settled
    return receipt


async def _checked(receipt: Awaitable[Any], settled: AlreadySettled) -> Any:
    try:
        return _check(await receipt, settled)
    except ProvenanceConflict:
        raise settled from None
