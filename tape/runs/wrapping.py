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

from tape.errors import AlreadySettled, Corrupt, InvalidEntry, ProvenanceConflict
from tape.runs.events import Call, Claim, Result, RunEvent, key_of, read_event
from tape.runs.journal import Journal, Step, Wrapped
from tape.runs.pure.values import restored, restored_error
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

    def write(self, event: RunEvent) -> Any:
        """Write an event; returns its receipt, or an awaitable of it."""

    def find(self, key: str) -> Any:
        """Return the entry of a key, or None, or an awaitable of that."""

    def settle(self, store: Any, event: RunEvent) -> Any:
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
            stream = self.drive(self._conduct(wrapped, args, kwargs))
            if not isinstance(stream, Stream | ReplayedStream):
                # What is answered in place of a stream: that the call may have run.
                yield stream
                return
            with stream:
                yield from stream

        return call

    def _async_generator(self, wrapped: Wrapped) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            stream = await self.drive_async(self._conduct(wrapped, args, kwargs))
            if not isinstance(stream, AsyncStream | ReplayedStream):
                yield stream
                return
            async with stream:
                async for chunk in stream:
                    yield chunk

        return call

    # -- what a call does

    def _conduct(self, wrapped: Wrapped, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Conduct:
        journal = self._journal
        step = journal.begin(wrapped, args, kwargs)
        if step.effect is not None:
            step.effect._settle = functools.partial(self._settle, step)
        if step.mode == "answer":
            return (yield from self._answered(step))
        answer = yield from self._start(step)
        if answer is not None:
            journal.answered(step)
            return answer()
        if wrapped.wants_effect:
            kwargs = {**kwargs, "effect": step.effect}
        return (yield from self._conclude(step, ("invoke", (step, args, kwargs))))

    def _start(self, step: Step) -> Conduct:
        """Record that a call starts, so that it may be made; or return a function that answers it, and it is not made.

        Several workers may resume one run. The one that records the start of a call makes it. The others take its
        outcome, or treat it as unknown if there is none.
        """
        journal = self._journal
        while True:
            if step.unknown:
                outcome = yield from self._outcome(step)
                if outcome is not None:
                    return functools.partial(self._answer, step, outcome)
                decision = journal.on_unknown(step)
                if decision == "skip":
                    outcome = yield from self._record(step, journal.skipped(step))
                    return functools.partial(self._answer, step, outcome)
                happened = (yield "probe", step) if decision == "probe" else None
                if happened is not None and happened is not False:
                    value = None if happened is True else happened
                    result = journal.completed(step, value)
                    outcome = yield from self._record(step, result)
                    # The agent gets what the probe found as it is, and not as it is stored.
                    return (
                        functools.partial(self._answer, step, outcome)
                        if outcome is not result
                        else lambda value=value: value
                    )
            try:
                receipt = yield "write", journal.dispatch(step)
            except ProvenanceConflict as conflict:
                entry = yield "find", conflict.key
                call = read_event(entry)
                if isinstance(call, Claim):
                    journal.move(step, call)
                    claim, entry = entry, (yield "find", key_of(call.run, call.lane, call.n, "call"))
                    if entry is None:
                        raise Corrupt(
                            claim.tape, claim.seq, "it claims a call that the run does not have"
                        ) from conflict
                    call = read_event(entry)
                assert isinstance(call, Call)
                journal.overtaken(step, call, entry)
                continue
            if receipt is not None:
                journal.dispatched(step, receipt.seq)
            return None

    def _outcome(self, step: Step) -> Conduct:
        """Return the recorded outcome of a call, or None."""
        entry = yield "find", self._journal.result_key(step)
        if entry is None:
            return None
        result = read_event(entry)
        assert isinstance(result, Result)
        return result

    def _record(self, step: Step, result: Result) -> Conduct:
        """Record the outcome of a call; returns it, or the one that another worker recorded before."""
        try:
            yield "write", result
        except ProvenanceConflict:
            return (yield from self._outcome(step))
        return result

    def _conclude(self, step: Step, operation: Operation) -> Conduct:
        """Make the call and record what comes of it."""
        journal = self._journal
        try:
            value = yield operation
        except AlreadySettled as error:
            settled = yield from self._outcome(step)
            if settled is None:
                raise error
            return self._answer(step, settled)
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
            journal.compare(step, journal.completed(step, value))
            return (yield from self._answered(step))
        if not step.settled:
            result = journal.completed(step, value)
            recorded = yield from self._record(step, result)
            if step.wrapped.bound:
                raise InvalidEntry("bound", f"tool {step.wrapped.name!r} returned without effect.settle(…)")
            if recorded is not result:
                return self._answer(step, recorded)
        return value

    def _answered(self, step: Step) -> Conduct:
        """Answer a call from the tape; where what is written is to be whole by itself, it is written again."""
        assert step.recorded is not None
        result = step.recorded.result
        assert result is not None
        if self._journal.copies:
            if step.mode == "answer":
                receipt = yield "write", self._journal.dispatch(step)
                self._journal.dispatched(step, receipt.seq)
            yield "write", self._journal.copied(step, result)
        return self._answer(step, result)

    def _failed(self, step: Step, error: BaseException) -> Conduct:
        """Record that a call raised, and raise it again; a commit whose reply was lost may have succeeded."""
        if step.mode == "compare":
            self._journal.compare(step, self._journal.failed(step, error))
            return (yield from self._answered(step))
        if not isinstance(error, Exception):
            # An interrupt or a cancellation says nothing about what the call did: its outcome stays unknown.
            raise error
        result = self._journal.failed(step, error)
        recorded = yield from self._record(step, result)
        if recorded is not result:
            return self._answer(step, recorded)
        raise error

    def _answer(self, step: Step, result: Result) -> Any:
        """Return, raise or yield again what was recorded."""
        # A skipped call has a text in the place of its value.
        load = None if result.status == "skipped" else step.wrapped.load
        # A step that is awaited already needs the value itself.
        awaited = result.awaited and not step.awaited
        if result.chunks is not None:
            return ReplayedStream(result, load)
        if result.error is not None:
            error = restored_error(result.error)
            if awaited:
                return _raising(error)
            raise error
        assert result.value is not None
        value = restored(result.value, load)
        return _ready(value) if awaited else value

    def _settle(self, step: Step, store: Any, value: Any) -> Any:
        """Record the outcome of a call in the caller's transaction."""
        if not self._journal.writes:
            return None
        result = self._journal.completed(step, value)
        settled = AlreadySettled(self._journal.run, step.wrapped.name, step.effect.key if step.effect else "")
        step.settled = True
        try:
            receipt = self._port.settle(store, result)
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
            return self._port.write(about) if about is not None and self._journal.writes else None
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
