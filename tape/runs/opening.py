"""Recording a run, and running it again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from tape.core.redact import Redacting
from tape.errors import InvalidEntry
from tape.handles.tape import Tape
from tape.runs.preparing import Plan
from tape.runs.run import Run

if TYPE_CHECKING:
    from tape.aio.runs import AsyncRun
    from tape.aio.tape import AsyncTape

__all__ = ["record", "replay"]


@overload
def record(
    chat: Tape,
    name: str | None = None,
    *,
    id: str | None = None,
    input: Any = None,
    resume: bool = False,
    redact: Redacting | Iterable[str] | None = None,
    normalise: Iterable[str] | None = None,
) -> Run: ...


@overload
def record(
    chat: AsyncTape,
    name: str | None = None,
    *,
    id: str | None = None,
    input: Any = None,
    resume: bool = False,
    redact: Redacting | Iterable[str] | None = None,
    normalise: Iterable[str] | None = None,
) -> AsyncRun: ...


def record(
    chat: Tape | AsyncTape,
    name: str | None = None,
    *,
    id: str | None = None,
    input: Any = None,
    resume: bool = False,
    redact: Redacting | Iterable[str] | None = None,
    normalise: Iterable[str] | None = None,
) -> Run | AsyncRun:
    """Record a run of an agent on a tape: ``with tape.record(chat, "nightly") as run``, or ``async with``.

    What the agent calls through ``run.model``, ``run.tool`` and ``run.value`` is written as events: one before each
    call and one after it. ``input`` is kept with the run. ``redact`` takes out secrets before anything is stored: a
    list of field names, a ``Redact``, or a function from JSON to JSON. ``normalise`` names what changes from run to
    run and is not compared: JSON pointers into a request, with ``*`` for any part, or names of fields.

    With ``resume`` and the ``id`` of a run that was interrupted it continues: calls that were completed are answered
    from the tape, and ``on_unknown`` of each tool decides on calls that were started and have no outcome. Several
    workers may resume one run: the first one that records the start of a call makes it.
    """
    plan = Plan(name=name, id=id, input=input, resume=resume, redact=redact, normalise=_listed(normalise))
    return _run(chat, plan)


@overload
def replay(
    chat: Tape,
    run: str,
    *,
    live_from: int | None = None,
    into: Tape | None = None,
    models: str = "recorded",
    tools: str = "recorded",
    values: str = "recorded",
    effects: str = "refuse",
    match: str = "strict",
    normalise: Iterable[str] | None = None,
    redact: Redacting | Iterable[str] | None = None,
    on_divergence: str = "stop",
    base: Tape | None = None,
) -> Run: ...


@overload
def replay(
    chat: AsyncTape,
    run: str,
    *,
    live_from: int | None = None,
    into: AsyncTape | None = None,
    models: str = "recorded",
    tools: str = "recorded",
    values: str = "recorded",
    effects: str = "refuse",
    match: str = "strict",
    normalise: Iterable[str] | None = None,
    redact: Redacting | Iterable[str] | None = None,
    on_divergence: str = "stop",
    base: AsyncTape | None = None,
) -> AsyncRun: ...


def replay(
    chat: Tape | AsyncTape,
    run: str,
    *,
    live_from: int | None = None,
    into: Tape | AsyncTape | None = None,
    models: str = "recorded",
    tools: str = "recorded",
    values: str = "recorded",
    effects: str = "refuse",
    match: str = "strict",
    normalise: Iterable[str] | None = None,
    redact: Redacting | Iterable[str] | None = None,
    on_divergence: str = "stop",
    base: Tape | AsyncTape | None = None,
) -> Run | AsyncRun:
    """Run an agent again against what was recorded: ``with tape.replay(chat, run.id) as again``, or ``async with``.

    Nothing is called and nothing is written, unless that is asked for. The first call that is not as recorded raises
    Diverged; with ``on_divergence="collect"`` the report lists all of them. ``match`` is "strict" (the same request at
    the same place), "request" (the same request anywhere, each once) or "order" (the next call of the same name).

    ``live_from=n, into=fork`` answers the calls before number ``n`` from the tape, makes the others, and records them
    on the fork. ``tools="live"`` makes the calls of tools and holds their results against the recorded ones, which the
    agent is given. Only tools that the program declares with ``effect="read"`` are called, unless ``into`` and
    ``effects="allow"`` are both given. A run that continues one on another tape needs that tape as ``base``.
    """
    plan = Plan(
        run=run,
        live_from=live_from,
        into=into,
        models=models,
        tools=tools,
        values=values,
        effects=effects,
        match=match,
        normalise=_listed(normalise),
        redact=redact,
        on_divergence=on_divergence,
        base=base,
    )
    return _run(chat, plan)


def _listed(patterns: Iterable[str] | None) -> list[str] | None:
    if isinstance(patterns, str):
        raise InvalidEntry("normalise", "must be a list of JSON pointers or field names, not a single one")
    return None if patterns is None else list(patterns)


def _run(chat: Tape | AsyncTape, plan: Plan) -> Run | AsyncRun:
    if isinstance(chat, Tape):
        for name in ("into", "base"):
            if getattr(plan, name) is not None and not isinstance(getattr(plan, name), Tape):
                raise InvalidEntry(name, "must be a tape of the same kind")
        return Run(chat, plan)
    from tape.aio.runs import AsyncRun
    from tape.aio.tape import AsyncTape

    if not isinstance(chat, AsyncTape):
        raise InvalidEntry("chat", f"must be a tape, not a {type(chat).__name__}")
    for name in ("into", "base"):
        if getattr(plan, name) is not None and not isinstance(getattr(plan, name), AsyncTape):
            raise InvalidEntry(name, "must be a tape of the same kind")
    return AsyncRun(chat, plan)
