"""The journal of a run: for each call, whether the tape answers it or it is made, and what is written before and after.

Nothing here waits for a database or calls a function of the caller's: that is left to ``wrapping``, for functions that
return, await and yield alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field, structs

from tape.core import strict
from tape.core.records import Entry
from tape.core.redact import Redactor, redactor
from tape.errors import Diverged, EffectRefused, EffectUnknown, InvalidEntry
from tape.new_ids import new_id
from tape.runs.events import Call, Claim, Result, key_of
from tape.runs.matching import CallRequest, Cursor, Verdict, recorded_divergence
from tape.runs.pure.deltas import StoredField
from tape.runs.pure.divergence import Divergence, RunReport, changes_between
from tape.runs.pure.effects import EFFECTS, MAY_HAVE_RUN, ON_UNKNOWN, Effect, effect_key
from tape.runs.pure.fields import Field
from tape.runs.pure.lanes import Lane, Lanes
from tape.runs.pure.requests import Body, Reader
from tape.runs.pure.values import (
    Load,
    StoredValue,
    redacted,
    redacted_error,
    stored,
    stored_chunks,
    stored_error,
)
from tape.runs.recording import RecordedCall, recorded_call

__all__ = ["Journal", "Settings", "Step", "Wrapped"]

_LONGEST_NAME = 120
_CONVERSATIONS = 8
"""Of how many conversations with one function the last request is kept."""


class Wrapped(Struct):
    """A function that a run wraps, and what was said about it."""

    kind: str
    name: str
    fn: Callable[..., Any]
    names: list[str]
    load: Load | None = None
    effect: str | None = None
    """What the program says of a tool, "write" if it says nothing; None for a model and a value."""
    on_unknown: str | Callable[..., Any] = "ask"
    bound: bool = False
    wants_effect: bool = False
    redact: Redactor | None = None

    def __post_init__(self) -> None:
        if len(strict.identifier(self.name, "name")) > _LONGEST_NAME:
            raise InvalidEntry("name", f"must have at most {_LONGEST_NAME} characters")
        if self.kind == "tool":
            self.effect = "write" if self.effect is None else strict.one_of(self.effect, EFFECTS, "effect")
        if not callable(self.on_unknown):
            strict.one_of(self.on_unknown, ON_UNKNOWN, "on_unknown")


class Settings(Struct, kw_only=True):
    """How a run is run: what is answered from the tape, and what is made."""

    models: str = "recorded"
    tools: str = "recorded"
    values: str = "recorded"
    writes_allowed: bool = False
    collect: bool = False


class Step(Struct):
    """One call under way."""

    wrapped: Wrapped
    lane: Lane
    n: int
    body: Body
    mode: str
    """"answer": from the tape. "live": made and written. "compare": made, and held against the tape."""
    inner: Lane
    """The lane of what the call does itself."""
    before: Body | None = None
    """The request that this one goes on from, or was probably made of."""
    recorded: RecordedCall | None = None
    unknown: bool = False
    """Whether another worker started the call, and this worker knows no outcome."""
    effect: Effect | None = None
    attempt: int = 1
    claim: int | None = None
    """For a write in a parallel lane: its number among the equal writes of this worker there."""
    started: float = 0.0
    awaited: bool = False
    streams: bool = False
    chunks: list[tuple[int, Any]] = field(default_factory=list)
    settled: bool = False
    """Whether the tool wrote the outcome itself, in its own transaction."""


class Journal:
    """Decides what each call of a run does. Threads share it."""

    def __init__(
        self,
        run: str,
        *,
        reader: Reader,
        redact: Redactor | None,
        cursor: Cursor | None,
        settings: Settings,
        writes: bool,
    ) -> None:
        self.run = run
        self.worker = new_id()
        self.reader = reader
        self.cursor = cursor
        self.report = RunReport(run=run, dropped=reader.dropped)
        self.lanes = Lanes()
        self.writes = writes
        self.tape: str | None = None
        """The tape that a run is resumed on."""
        self.copies = False
        """Whether calls that are answered from the tape are written, too: then what is written is whole by itself."""
        self.contexts: dict[bytes, StoredField] = {}
        """Renderings of recorded contexts by their digests."""
        self.explain: Callable[[Divergence, RecordedCall | None, Body], Divergence] | None = None
        self.redact = redact
        self._redacts: list[Redactor] = []
        self._settings = settings
        self._lock = threading.Lock()
        self._stopped: Diverged | None = None
        self._ended = False
        self._recent: dict[tuple[str, str], list[Body]] = {}
        """The last requests of each function, the newest first; several, since conversations run side by side."""
        self._rendered: dict[str, Field] = {}
        """What a context was last rendered to, for each field of each API."""
        self._stored_at: dict[str, int] = {}
        self._claims: dict[tuple[str, str], set[int]] = {}
        """The numbers that are taken of equal writes in parallel lanes, by tool and digest."""

    def check_open(self) -> None:
        """Refuse to go on with a run that has ended."""
        if self._ended:
            raise InvalidEntry("run", "has ended")

    # -- before a call

    def begin(self, wrapped: Wrapped, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Step:
        """Decide what a call does. Raises Diverged where the recording has another one."""
        with self._lock:
            self.check_open()
            if self._stopped is not None:
                # An agent that took the first one for an error of its tool does not go on with made-up results.
                raise self._stopped
            lane = self.lanes.current()
            before = self._recent.get((wrapped.kind, wrapped.name), [])
            body = self.reader.read(wrapped.names, args, kwargs, before, self._rendered.values(), wrapped.redact)
            lane.calls += 1
            step = self._decide(Step(wrapped, lane, lane.calls, body, "live", lane))
            step.before = max(before, key=body.grown_from, default=None)
            if step.mode == "answer":
                self.report.matched += 1
                if self.cursor is not None and step.recorded is not None:
                    self.cursor.cover(step.recorded)
            elif step.mode in ("live", "compare"):
                self.report.live += 1
            if not self.records(step):
                self._keep_recorded(step)
            if self._resumes and step.recorded is not None and step.recorded.claim is not None:
                step.claim = step.recorded.claim
                self._claimed(step).add(step.claim)
        self._prepare(step)
        return step

    def _keep_recorded(self, step: Step) -> None:
        """Keep the request of a call that is answered from the tape."""
        # With patterns the recorded request is only alike: what they drop may differ.
        whole = not self.reader.normaliser.patterns
        if whole and self._resumes and step.recorded is not None and step.recorded.tape == self.tape:
            step.body.seq = step.recorded.seq
        self._keep(step)

    def _keep(self, step: Step) -> None:
        """Keep a request in the place of the one that it goes on from, or as the beginning of another conversation."""
        recent = self._recent.setdefault((step.wrapped.kind, step.wrapped.name), [])
        before, body = step.before, step.body
        if before is not None and before in recent and body.goes_on_from(before):
            recent.remove(before)
        recent.insert(0, step.body)
        del recent[_CONVERSATIONS:]

    def _decide(self, step: Step) -> Step:
        if self.cursor is None:
            return step
        wrapped, lane, request = step.wrapped, step.lane, CallRequest(step.wrapped.kind, step.wrapped.name, step.body)
        setting = getattr(self._settings, f"{wrapped.kind}s")
        if setting == "live" and wrapped.kind != "tool":
            step.recorded = self.cursor.take(lane, wrapped.kind, wrapped.name)
            step.n = lane.calls
            return step
        verdict = self.cursor.find(lane, request)
        if verdict.diverged is not None:
            self._diverge(verdict, step.body)
        recorded = verdict.recorded
        step.recorded = recorded
        if recorded is None:
            step.n = lane.calls
            if not self._may_call(wrapped):
                raise EffectRefused(self.run, wrapped.name)
            return step
        step.n = recorded.n
        if recorded.result is None:
            return self._unknown(step, recorded)
        live = setting == "live" and self._may_call(wrapped)
        step.mode = "compare" if live else "answer"
        return step

    def _may_call(self, wrapped: Wrapped) -> bool:
        """Whether a call may be made: the program's declaration tells, and never the recording."""
        return self._settings.writes_allowed or wrapped.kind != "tool" or wrapped.effect == "read"

    def _unknown(self, step: Step, recorded: RecordedCall) -> Step:
        """Decide on a call that was started and has no outcome."""
        if not self._resumes:
            divergence = recorded_divergence("extra_call", recorded, why="it was started, and no outcome is recorded")
            self._diverge(Verdict(None, divergence), step.body)
        step.unknown = True
        step.attempt = recorded.attempt + 1
        return step

    @property
    def _resumes(self) -> bool:
        return self.tape is not None

    def _prepare(self, step: Step) -> None:
        step.started = time.perf_counter()
        if step.mode == "answer":
            return
        self._enter(step)

    def _enter(self, step: Step) -> None:
        """Set what depends on the place of a step: the lane for its nested calls, and its effect."""
        wrapped = step.wrapped
        step.inner = self.lanes.inside(step.lane, step.n)
        step.inner.live = self.cursor is None or (step.mode == "live" and step.recorded is None)
        if wrapped.kind == "tool":
            place = f"{step.lane.path}:{step.n}"
            key = effect_key(self.run, place, wrapped.name, step.body.digest)
            step.effect = Effect(key, self.run, step.lane.path, step.n, step.attempt)

    def _diverge(self, verdict: Verdict, body: Body | None) -> None:
        """Note a divergence. Raises it, unless differences are collected and the recording has an answer."""
        divergence = verdict.diverged
        assert divergence is not None
        if self.explain is not None and body is not None:
            divergence = self.explain(divergence, verdict.recorded, body)
        self.report.diverged.append(divergence)
        if not self._settings.collect:
            self._stopped = Diverged(divergence)
            raise self._stopped
        if verdict.recorded is None:
            raise Diverged(divergence)

    # -- several workers

    def overtaken(self, step: Step, call: Call, entry: Entry) -> None:
        """Note that another worker has started this call. Raises Diverged if it made another call in this place."""
        with self._lock:
            if (call.kind, call.name, call.digest) != (step.wrapped.kind, step.wrapped.name, step.body.digest):
                self._parted(step, entry, "another worker that resumed the run made another call in this place")
            if call.claim != step.claim and call.claim is not None:
                claimed = self._claimed(step)
                if call.claim in claimed:
                    self._parted(step, entry, "another worker made an equal call in this place for another one of this")
                if step.claim is not None:
                    claimed.remove(step.claim)
                claimed.add(call.claim)
                step.claim = call.claim
            before, step.recorded = step.recorded, recorded_call(entry, call)
            step.recorded.bound = call.bound and (before is None or before.bound)
            step.unknown = True
            step.attempt = call.attempt + 1
            if step.effect is not None:
                step.effect.attempt = step.attempt

    def _parted(self, step: Step, entry: Entry, why: str) -> None:
        """Raise Diverged for a call whose place another worker took for another one."""
        divergence = Divergence(
            kind="request_changed",
            call=step.wrapped.kind,
            name=step.wrapped.name,
            lane=step.lane.path,
            n=step.n,
            seq=entry.seq,
            why=why,
        )
        self._diverge(Verdict(diverged=divergence), None)

    def _claimed(self, step: Step) -> set[int]:
        """Return the numbers that are taken of writes that are equal to this one."""
        return self._claims.setdefault((step.wrapped.name, step.body.digest), set())

    def _claim(self, step: Step) -> None:
        """Give a write in a parallel lane the lowest free number among its equals. Idempotent.

        Equal writes may change places: how many there are is the same for all workers, their order is not.
        """
        parallel = "." in step.lane.path
        if parallel and step.claim is None and step.attempt == 1 and step.wrapped.effect == "write":
            claimed = self._claimed(step)
            step.claim = next(number for number in range(1, len(claimed) + 2) if number not in claimed)
            claimed.add(step.claim)

    def move(self, step: Step, claim: Claim) -> None:
        """Give a write the place where another worker makes it."""
        settle = None if step.effect is None else step.effect._settle
        step.lane, step.n = self.lanes.at(claim.lane), claim.n
        self._enter(step)
        if step.effect is not None:
            step.effect._settle = settle

    def on_unknown(self, step: Step) -> str:
        """Return the action for a call that was started and has no outcome: "call", "probe" or "skip".

        Raises EffectUnknown for a tool that writes, unless ``on_unknown`` of the tool says otherwise.
        """
        wrapped, recorded = step.wrapped, step.recorded
        assert recorded is not None
        # A bound effect is committed with its outcome: without the one there is not the other.
        bound = wrapped.bound and recorded.bound
        if wrapped.effect != "write" or bound or wrapped.on_unknown == "retry":
            return "call"
        if wrapped.on_unknown == "ask":
            raise EffectUnknown(self.run, wrapped.name, recorded.key or "", recorded.seq)
        return "skip" if wrapped.on_unknown == "skip" else "probe"

    def answered(self, step: Step) -> None:
        """Note that a call is not made after all."""
        with self._lock:
            self.report.live -= 1
            self.report.matched += 1
            self._keep_recorded(step)

    # -- what is written

    def dispatch(self, step: Step) -> Call | None:
        """Return what is written before a call is made."""
        if not self.records(step):
            return None
        wrapped = step.wrapped
        with self._lock:
            self._claim(step)
            same = self._stored_at.get(step.body.digest) if not self.reader.normaliser.patterns else None
            if same is not None:
                request = {name: StoredField(of=same) for name in step.body.names()}
            else:
                # One that was answered from another tape is nowhere on this one.
                before = step.before if step.before is not None and step.before.seq else None
                request = step.body.stored(before, self.contexts)
        return Call(
            run=self.run,
            lane=step.lane.path,
            n=step.n,
            kind=wrapped.kind,
            name=wrapped.name,
            digest=step.body.digest,
            request=request,
            effect=wrapped.effect,
            key=None if step.effect is None else step.effect.key,
            bound=wrapped.bound,
            attempt=step.attempt,
            worker=self.worker,
            claim=step.claim,
        )

    def records(self, step: Step) -> bool:
        """Whether a call is written."""
        return self.writes and (self.copies or step.mode == "live")

    def dispatched(self, step: Step, seq: int) -> None:
        """Note where a request was stored, so that later ones store only what they add."""
        with self._lock:
            step.body.seq = seq
            self._keep(step)
            self._stored_at.setdefault(step.body.digest, seq)

    def completed(self, step: Step, value: Any) -> Result:
        """Return the outcome of a call that returned."""
        if step.streams:
            return self.streamed(step, whole=True)
        return self._outcome(step, status="completed", value=stored(value, step.wrapped.redact))

    def failed(self, step: Step, error: BaseException) -> Result:
        """Return the outcome of a call that raised, with what it yielded before."""
        chunks = self._chunks(step) if step.streams else None
        return self._outcome(step, status="failed", error=stored_error(error, step.wrapped.redact), chunks=chunks)

    def streamed(self, step: Step, *, whole: bool) -> Result:
        """Return the outcome of a stream that ended, or that was closed before its end."""
        return self._outcome(step, status="completed" if whole else "partial", chunks=self._chunks(step))

    def skipped(self, step: Step) -> Result:
        """Return the outcome of a call that may have been made and is not made again."""
        return self._outcome(step, status="skipped", value=StoredValue(data=MAY_HAVE_RUN))

    def copied(self, step: Step, result: Result) -> Result:
        """Return the outcome of a call that was answered from the tape, to be written again."""
        redact = step.wrapped.redact
        return structs.replace(
            result,
            **self._place(step),
            value=None if result.value is None else redacted([result.value], redact)[0],
            error=result.error if result.error is None or redact is None else redacted_error(result.error, redact),
            chunks=None if result.chunks is None else self._timed(result.chunks, redact),
        )

    def _timed(
        self, chunks: Sequence[tuple[int, StoredValue]], redact: Redactor | None
    ) -> list[tuple[int, StoredValue]]:
        values = redacted([value for _, value in chunks], redact)
        return [(at, value) for (at, _), value in zip(chunks, values, strict=True)]

    def _chunks(self, step: Step) -> list[tuple[int, StoredValue]]:
        values = stored_chunks([chunk for _, chunk in step.chunks], step.wrapped.redact)
        return [(at, value) for (at, _), value in zip(step.chunks, values, strict=True)]

    def _place(self, step: Step) -> dict[str, Any]:
        took = round((time.perf_counter() - step.started) * 1e6)
        return {"run": self.run, "lane": step.lane.path, "n": step.n, "took": took}

    def _outcome(self, step: Step, **facts: Any) -> Result:
        return Result(**self._place(step), awaited=step.awaited, **facts)

    def result_key(self, step: Step) -> str:
        """Return the key under which the outcome of a call is recorded."""
        return key_of(self.run, step.lane.path, step.n, "result")

    def chunk(self, step: Step, value: Any) -> None:
        """Note what a stream yielded, and when."""
        step.chunks.append((round((time.perf_counter() - step.started) * 1e6), value))

    # -- holding live results against the tape

    def compare(self, step: Step, now: Result) -> None:
        """Hold what a tool gives now against what it gave then."""
        recorded = step.recorded
        assert recorded is not None
        assert recorded.result is not None
        with self._lock:
            if changes := changes_between(recorded.result.outcome(), now.outcome()):
                self._diverge(Verdict(recorded, recorded_divergence("result_changed", recorded, changes=changes)), None)

    def error_text(self, error: BaseException) -> str:
        """Return an error in one line, without secrets."""
        return str(stored_error(error, redactor(self.redact, *self._redacts)))[:1000]

    def knows(self, redact: Redactor | None) -> None:
        """Remember the redactor of a function: the error that ends the run may contain secrets of its calls."""
        with self._lock:
            if redact is not None and redact not in self._redacts:
                self._redacts.append(redact)

    def know_context(self, rendered: Any, seq: int, api: str) -> None:
        """Remember a rendering of a recorded context, so that a request of it is stored as a pointer."""
        with self._lock:
            before = self._rendered.get(api)
            field = self._rendered[api] = Field(rendered, () if before is None else (before,))
            self.contexts[field.digest] = StoredField(context=seq, api=api)

    def close(self) -> None:
        """Note what the recording has and nobody asked for."""
        self._ended = True
        # Behind the first difference nothing more was asked for: that says nothing.
        if self.cursor is not None and not self._resumes and self._stopped is None:
            with self._lock:
                for divergence in self.cursor.close():
                    (self.report.unused if divergence.kind == "unused" else self.report.diverged).append(divergence)
