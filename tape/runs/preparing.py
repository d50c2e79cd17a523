"""Preparing a run: what it begins with, read from its tape before the first call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from tape.core import strict
from tape.core.redact import Redacting, Redactor, redactor
from tape.errors import InvalidEntry
from tape.handles.options import call_of
from tape.handles.tape import Tape
from tape.new_ids import new_id
from tape.runs.events import LONGEST_RUN_ID, Base, Ended, Resumed, RunEvent, Started
from tape.runs.journal import Journal, Settings
from tape.runs.matching import MATCHES, Cursor
from tape.runs.pure.requests import Normaliser, Reader
from tape.runs.recording import Recording, find_run, read_recording
from tape.runs.sources import with_sources

__all__ = ["Plan", "Prepared", "ended", "prepare", "scratch_tape"]


class Plan(Struct, kw_only=True):
    """What the caller asked for."""

    run: str | None = None
    """The run to run again or to resume; None for a new one."""
    id: str | None = None
    name: str | None = None
    input: Any = None
    resume: bool = False
    redact: Redacting | Iterable[str] | None = None
    normalise: Iterable[str] | None = None
    match: str = "strict"
    live_from: int | None = None
    into: Any = None
    base: Any = None
    models: str = "recorded"
    tools: str = "recorded"
    values: str = "recorded"
    effects: str = "refuse"
    on_divergence: str = "stop"

    @property
    def collects(self) -> bool:
        """Whether differences are collected rather than raised."""
        return self.on_divergence == "collect"

    def __post_init__(self) -> None:
        strict.one_of(self.match, MATCHES, "match")
        strict.one_of(self.effects, ("refuse", "allow"), "effects")
        strict.one_of(self.on_divergence, ("stop", "collect"), "on_divergence")
        for field in ("models", "tools", "values"):
            strict.one_of(getattr(self, field), ("recorded", "live"), field)
        if self.live_from is not None and (type(self.live_from) is not int or self.live_from < 1):
            raise InvalidEntry("live_from", f"must be a call number of at least 1, not {strict.shown(self.live_from)}")
        if self.into is None and (self.live_from is not None or self.models == "live"):
            raise InvalidEntry("into", "must be a fork of the tape: live calls are recorded on it")
        if self.effects == "allow" and self.into is None:
            raise InvalidEntry("effects", "'allow' needs into=, a fork that records the writes")
        if self.name is not None:
            strict.text(self.name, "name")
        redactor(self.redact)


class Prepared(Struct):
    """A run that is ready for its first call."""

    journal: Journal
    recording: Recording | None
    input: Any
    opening: list[RunEvent]
    ends: int = 0
    """How often the run has ended before."""
    started: int = 0
    """The entry with which the recorded run started."""


def prepare(chat: Tape, plan: Plan, into: Tape | None, base: Tape | None) -> Prepared:
    """Read what a run begins with, and return it with the first events to be written."""
    if plan.run is None:
        return _new(chat, plan)
    recording = read_recording(chat, plan.run, base)
    patterns = recording.info.normalise if plan.normalise is None else plan.normalise
    redact = redactor(plan.redact)
    reader = Reader(Normaliser(patterns))
    cursor = Cursor(recording, reader, match=plan.match, live_from=plan.live_from)
    settings = Settings(
        models=plan.models,
        tools=plan.tools,
        values=plan.values,
        writes_allowed=plan.effects == "allow" and into is not None,
        collect=plan.collects,
    )
    run = plan.run if into is None else _run_id(plan.id)
    journal = Journal(run, reader=reader, redact=redact, cursor=cursor, settings=settings, writes=into is not None)
    journal.copies = into is not None and plan.live_from is None
    journal.explain = lambda divergence, call, body: with_sources(divergence, call, body, chat)
    opening: list[RunEvent] = []
    if into is not None:
        shared = None if plan.live_from is None else Base(chat.id, plan.run, plan.live_from)
        opening = [_started(journal, plan.name or recording.info.name, recording.info.input, shared)]
    return Prepared(journal, recording, recording.info.input, opening, started=recording.info.seq)


def _new(chat: Tape, plan: Plan) -> Prepared:
    """Return a run that is recorded, or one that goes on where it was interrupted."""
    redact = redactor(plan.redact)
    run = _run_id(plan.id)
    if redact is not None and plan.id is not None and redact.text(run) != run:
        raise InvalidEntry("id", "contains what redact= takes out, and an id is kept as it is; choose another id")
    info = None if plan.id is None else find_run(chat, run)
    if info is None:
        reader = Reader(Normaliser(plan.normalise or ()))
        journal = Journal(
            run, reader=reader, redact=redact, cursor=None, settings=Settings(writes_allowed=True), writes=True
        )
        run_input = strict_input(plan.input)
        return Prepared(journal, None, run_input, [_started(journal, plan.name, run_input)])
    if not plan.resume:
        raise InvalidEntry("id", f"tape {chat.id!r} already has a run {run!r}; pass resume=True to continue it")
    if info.status == "completed":
        raise InvalidEntry("id", f"run {run!r} is completed; replay it, or record a new run under another id")
    recording = read_recording(chat, run)
    reader = Reader(Normaliser(info.normalise if plan.normalise is None else plan.normalise))
    cursor = Cursor(recording, reader, match="strict", live_from=None, open_ended=True)
    settings = Settings(writes_allowed=True)
    journal = Journal(run, reader=reader, redact=redact, cursor=cursor, settings=settings, writes=True)
    journal.tape = chat.id
    journal.explain = lambda divergence, call, body: with_sources(divergence, call, body, chat)
    resumed = Resumed(run=run, calls=len(recording.calls), worker=journal.worker)
    # The tape has the input without secrets; given again, it is whole.
    again = redact is not None and plan.input is not None
    whole = again and _shown_input(strict_input(plan.input), redact) == info.input
    run_input = strict_input(plan.input) if whole else info.input
    return Prepared(journal, recording, run_input, [resumed], ends=info.ends, started=info.seq)


def _run_id(id: str | None) -> str:
    run = new_id() if id is None else strict.identifier(id, "id")
    if len(run) > LONGEST_RUN_ID or ":" in run:
        raise InvalidEntry("id", f"must have at most {LONGEST_RUN_ID} characters, and no colon")
    return run


def strict_input(value: Any) -> Any:
    """Return a copy of what a run is given to work on."""
    strict.encode(value, "input")
    return strict.copied(value)


def _shown_input(value: Any, redact: Redactor | None) -> Any:
    """Return what a run was given, without secrets."""
    return value if redact is None or value is None else strict_input(redact(strict.copied(value)))


def _started(journal: Journal, name: str | None, input: Any, base: Base | None = None) -> Started:
    redact, patterns = journal.redact, journal.reader.normaliser.patterns
    return Started(
        run=journal.run,
        name=name if name is None or redact is None else redact.text(name),
        input=_shown_input(input, redact),
        base=base,
        normalise=patterns,
        worker=journal.worker,
    )


def ended(prepared: Prepared, error: BaseException | None) -> Ended:
    """Return the event with which a run ends."""
    journal = prepared.journal
    return Ended(
        run=journal.run,
        status="completed" if error is None else "failed" if isinstance(error, Exception) else "interrupted",
        error=None if error is None else journal.error_text(error),
        calls=journal.report.matched + journal.report.live,
        attempt=prepared.ends + 1,
    )


def scratch_tape(chat: Tape, prepared: Prepared) -> Tape:
    """Return a copy in memory of a tape as it was when a run began, which the agent of a replay may write to."""
    from tape.opening import open as open_store

    # The seq is one of the tape that the run was recorded on, which a fork only inherits from.
    run = prepared.recording
    recorded_on = chat if run is None or run.info.tape == chat.id else chat._on_same_store(run.info.tape)
    before = recorded_on.at(prepared.started - 1)
    copy = open_store(":memory:").tape(chat.id)
    messages = before.messages()
    anchors = before.anchors(limit=1)
    edge = anchors[0].seq if anchors else 0
    _copy_messages(copy, [message for message in messages if message.seq < edge])
    for anchor in anchors:
        if anchor.summary is None:
            copy.anchor(anchor.name, anchor.state)
        else:
            copy.handoff(
                anchor.name,
                summary=anchor.summary,
                phase=anchor.phase,
                next_steps=anchor.next_steps,
                owner=anchor.owner,
                state=anchor.state,
            )
    _copy_messages(copy, [message for message in messages if message.seq >= edge])
    previous: int | None = None
    for summary in before.summaries():
        previous = copy.set_summary(summary.text, first=summary.first, last=summary.last, expected=previous).seq
    for block in before.blocks():
        if block.loadable:
            continue
        copy.set_block(block.label, block.text, description=block.description, max_tokens=block.max_tokens)
    for document in before.loaded():
        # As text from outside, which the agent's model saw behind its prompt and not in it.
        copy._load(call_of(copy.id), document.label, document.key, document.text, None)
    for slot, value in before.states().items():
        copy.put(slot, value)
    return copy


def _copy_messages(copy: Tape, messages: list[Any]) -> None:
    if messages:
        copy.extend([message.to_dict() for message in messages], ids=[message.id for message in messages])
