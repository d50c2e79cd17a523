"""A run: what a program holds while it is recorded, or run again from a recording."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from msgspec import structs

from tape.core import strict
from tape.core.context.build import LISTENERS, Context
from tape.core.records import Receipt
from tape.core.redact import Redacting, redactor
from tape.errors import Diverged, InvalidEntry, ProvenanceConflict
from tape.handles.tape import Tape
from tape.runs.events import Ended, RunEvent, read_event
from tape.runs.journal import Journal, Wrapped
from tape.runs.preparing import Plan, Prepared, ended, prepare, scratch_tape
from tape.runs.pure.divergence import RunReport
from tape.runs.pure.requests import parameter_names
from tape.runs.pure.values import Load, loader_of
from tape.runs.recording import Recording
from tape.runs.wrapping import Calls, Conduct

__all__ = ["Run", "RunBase"]


class RunBase:
    """What a run has whether or not it is awaited."""

    _prepared: Prepared | None = None
    _calls: Calls
    _written: Tape

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @property
    def _ready(self) -> Prepared:
        if self._prepared is None:
            raise InvalidEntry("run", "has not started; use it in a with statement")
        return self._prepared

    @property
    def begun(self) -> bool:
        """Whether the run has begun: before that it has no id and no report."""
        return self._prepared is not None

    @property
    def _journal(self) -> Journal:
        return self._ready.journal

    @property
    def id(self) -> str:
        """The id of the run: of the one that is written, or in a replay without ``into`` of the recorded one."""
        return self._ready.journal.run

    @property
    def input(self) -> Any:
        """What the run was given to work on, as ``record(input=…)`` said; a replay has it from the recording."""
        return self._ready.input

    @property
    def report(self) -> RunReport:
        """What matched, what diverged and what was not asked for, so far."""
        return self._ready.journal.report

    @property
    def recording(self) -> Recording | None:
        """The run that is run again, call by call; None while a new one is recorded."""
        return self._ready.recording

    def model(
        self,
        fn: Callable[..., Any],
        *,
        name: str = "model",
        load: Load | None = None,
        redact: Redacting | Iterable[str] | None = None,
    ) -> Callable[..., Any]:
        """Return ``fn``, which asks a model, so that its calls are recorded, or answered from the recording.

        It may return, be awaited, or yield. In a replay ``load`` makes the result of its recorded data; without it the
        annotation of ``fn`` does, or the recorded type, if it is loaded. A program with several models names each.
        ``redact`` takes secrets out of the calls of this function, before the ``redact`` of the run does.
        """
        return self._wrap(Wrapped("model", name, fn, parameter_names(fn), loader_of(fn, load)), redact)

    def tool(
        self,
        fn: Callable[..., Any],
        *,
        effect: str | None = None,
        name: str | None = None,
        load: Load | None = None,
        on_unknown: str | Callable[..., Any] = "ask",
        bound: bool = False,
        redact: Redacting | Iterable[str] | None = None,
    ) -> Callable[..., Any]:
        """Return ``fn``, a tool, so that its calls are recorded, or answered from the recording.

        ``effect`` is "read", "idempotent" or "write", which is the default. A replay calls only tools that read,
        unless it has ``effects="allow"``. A tool with a parameter ``effect`` is handed an ``Effect``, with the key of
        its side effect. ``on_unknown`` says what a resumed run does with a write that has no outcome: "ask" raises
        EffectUnknown, "retry" makes it again with the same key, "skip" tells the agent that it may have run. A
        function in its place is called with the effect; it returns the result if it happened (True if that is lost),
        or None. A ``bound`` tool settles its effect in its own transaction. ``redact`` is as in ``model``.
        """
        names = [name for name in parameter_names(fn) if name != "effect"]
        wrapped = Wrapped("tool", name or _name_of(fn), fn, names, loader_of(fn, load), effect, on_unknown, bound)
        wrapped.wants_effect = "effect" in _parameters(fn)
        return self._wrap(wrapped, redact)

    def value(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        load: Load | None = None,
        redact: Redacting | Iterable[str] | None = None,
    ) -> Callable[..., Any]:
        """Return ``fn``, an input that is not determined (a clock, a random number), recorded under ``name``."""
        return self._wrap(Wrapped("value", name, fn, parameter_names(fn), loader_of(fn, load)), redact)

    def _wrap(self, wrapped: Wrapped, redact: Redacting | Iterable[str] | None) -> Callable[..., Any]:
        journal = self._journal
        journal.check_open()
        wrapped.redact = redactor(redact, journal.redact)
        if wrapped.redact is not None:
            wrapped.name = wrapped.redact.text(wrapped.name)
        journal.knows(redactor(redact))
        return self._calls.wrap(wrapped)

    @contextlib.contextmanager
    def lane(self, name: str) -> Iterator[None]:
        """Let the calls in this block be a line of their own, found by its name in a replay: that of a subagent, say.

        Threads and tasks get theirs without being asked. Name them where two begin with the same request.
        """
        if self._journal.redact is not None and isinstance(name, str):
            name = self._journal.redact.text(name)
        if not strict.is_identifier(name) or name.isdigit() or set(name) & set("./:~") or len(name) > 60:
            raise InvalidEntry(
                "name", "must be a name of at most 60 characters that is not a number and contains none of . / : ~"
            )
        with self._journal.lanes.entered(self._journal.lanes.named(name)):
            yield

    def _snapshot(self, digest: str, uri: str) -> dict[str, Any]:
        redact = self._journal.redact
        facts = {"digest": digest, "uri": uri}
        return {"run": self.id, **(facts if redact is None else redact(facts))}

    def _begin(self, written: Tape) -> None:
        """Let this thread or task be in the run, whose events go to a tape."""
        self._written = written
        self._journal.lanes.begin()
        if self._journal.writes:
            LISTENERS.set((*LISTENERS.get(), self._listen))

    def _listen(self, context: Context, api: str, request: Any) -> None:
        """Note what a recorded context was rendered to: a request that equals it is stored as a pointer."""
        written = self._written
        if context._recorded is None or context._store is not written._services.database:
            return
        if context._inputs.tape != written.id:
            return
        fields = {f"{api}:{name}": value for name, value in request.items()} if isinstance(request, dict) else {}
        for rendering, value in (fields or {api: request}).items():
            if isinstance(value, list):
                self._journal.know_context(value, context._recorded, rendering)

    def _finish(self, error: BaseException | None) -> Ended | None:
        """Close the journal and return what is written at the end."""
        journal = self._journal
        journal.lanes.end()
        LISTENERS.set(tuple(listener for listener in LISTENERS.get() if listener != self._listen))
        journal.close()
        return ended(self._ready, error or self._divergence()) if journal.writes else None

    def _end(self, event: Ended) -> Conduct:
        """Record how the run ended. Another worker may have ended it before: a completed run stays completed."""
        while True:
            try:
                yield "write", event
                return
            except ProvenanceConflict as conflict:
                other = read_event((yield "find", conflict.key))
                if isinstance(other, Ended) and other.status == "completed":
                    return
                event = structs.replace(event, attempt=event.attempt + 1)

    def _divergence(self) -> Diverged | None:
        """Return the divergence that the agent swallowed, or the recorded call that it never made."""
        first = self.report.first
        return None if first is None or self._plan.collects else Diverged(first)

    def _raise_divergence(self, error: BaseException | None) -> None:
        if error is None and (diverged := self._divergence()) is not None:
            raise diverged


class Run(RunBase):
    """A run of an agent on a tape: recorded, resumed, or run again. Use it in a ``with`` statement.

    Wrap what the agent calls with ``model``, ``tool`` and ``value``; nothing else is recorded, and nothing is patched.
    """

    def __init__(self, chat: Tape, plan: Plan) -> None:
        super().__init__(plan)
        self._chat = chat
        self._scratch: Tape | None = None

    def __enter__(self) -> Run:
        target = self._plan.into or self._chat
        port = _TapePort(target)

        def begin() -> Prepared:
            prepared = prepare(self._chat, self._plan, self._plan.into, self._plan.base)
            for event in prepared.opening:
                port.write(event)
            return prepared

        try:
            prepared = begin()
        except ProvenanceConflict:
            # Another worker has started the run in between.
            prepared = begin()
        self._prepared = prepared
        self._calls = Calls(prepared.journal, port)
        self._begin(target)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        event = self._finish(error)
        if event is not None:
            self._calls.drive(self._end(event))
        self._raise_divergence(error)

    @property
    def tape(self) -> Tape:
        """The tape that the agent works on: the recorded one, the fork of a replay, or a copy in memory.

        A replay without ``into`` writes nothing. Its agent gets a copy of the tape as it was when the run began: the
        messages, the last anchor, summaries, blocks and state.
        """
        if self._journal.writes:
            return self._plan.into or self._chat
        if self._scratch is None:
            self._scratch = scratch_tape(self._chat, self._ready)
        return self._scratch

    def context(self, **options: Any) -> Context:
        """Return a context of the run's tape, as ``Tape.context`` does, recorded so that requests can point to it."""
        if not self._journal.writes:
            return self.tape.context(**options)
        context, _ = self.tape.recorded_context(**options)
        # Also for a thread that knows nothing of this run.
        context._listeners = (self._listen,)
        return context

    def snapshot(self, digest: str, uri: str) -> None:
        """Note that the workspace is kept elsewhere at this step: a git tree, an image. Nothing is restored by it."""
        if self._journal.writes:
            self.tape.event("run.snapshot", self._snapshot(digest, uri))


class _TapePort:
    """Writes the events of a run to a tape."""

    waits = False

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def write(self, event: RunEvent) -> Receipt:
        claim = event.claimed
        claimed = None if claim is None else (claim.event, claim, claim.entry_key)
        return self._tape._event_of_run(event.event, event, event.entry_key, claimed)

    def find(self, key: str) -> Any:
        return self._tape.find_entry(key=key)

    def settle(self, store: Any, event: RunEvent) -> Any:
        return store.tape(self._tape.id)._event_of_run(event.event, event, event.entry_key)


def _parameters(fn: Any) -> set[str]:
    import inspect

    try:
        return set(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return set()


def _name_of(fn: Any) -> str:
    """Return the name of a function; that of its class for an object that is called."""
    inner = getattr(fn, "func", fn)
    return str(getattr(inner, "__name__", None) or type(inner).__name__)
