"""Checking: all kept runs run again in one call, as a test of the agent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from msgspec import Struct, field

from tape.core.redact import Redacting
from tape.errors import Diverged, InvalidEntry
from tape.handles.tape import Tape
from tape.runs.opening import replay
from tape.runs.pure.divergence import Divergence, RunReport
from tape.runs.recording import RunInfo, list_runs
from tape.runs.run import Run
from tape.store import Store

if TYPE_CHECKING:
    from tape.aio.store import AsyncStore

__all__ = ["CheckReport", "Checked", "check", "rerun"]

Agent = Callable[[Run], Any]
"""What is checked: a plain or async function that is given the run."""


class Checked(Struct, kw_only=True):
    """One run that was run again: how it went, and what was not as recorded."""

    tape: str
    run: str
    name: str | None
    status: str
    """"same", "diverged", or "failed" when the agent raised an error that the recorded run did not end with."""
    calls: int
    matched: int
    live: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    error: str | None = None

    @property
    def first(self) -> Divergence | None:
        """The first thing that was not as recorded, or None."""
        return self.divergences[0] if self.divergences else None


class CheckReport(Struct, kw_only=True):
    """What came of running kept runs again. ``str()`` of it is a table."""

    runs: list[Checked] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    """Tapes that have no completed run to check."""

    @property
    def ok(self) -> bool:
        """Whether there was anything to check, and all of it was as recorded."""
        return bool(self.runs) and all(checked.status == "same" for checked in self.runs)

    @property
    def exit_code(self) -> int:
        """0 when all is as recorded, else 1."""
        return 0 if self.ok else 1

    def __str__(self) -> str:
        rows = [("tape", "run", "calls", "result")]
        rows += [
            (checked.tape, checked.name or checked.run, f"{checked.matched}/{checked.calls}", _outcome(checked))
            for checked in self.runs
        ]
        rows += [(tape, "", "", "no completed run") for tape in self.without]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]] for row in rows]
        return "\n".join("  ".join(line).rstrip() for line in cells)


def _outcome(checked: Checked) -> str:
    if checked.first is not None:
        return f"{checked.status}: {checked.first}"
    return checked.status if checked.error is None else f"{checked.status}: {checked.error}"


@overload
def check(
    store: Store,
    *,
    agent: Agent | Mapping[str, Agent],
    label: str | None = None,
    name: str | None = None,
    match: str = "strict",
    normalise: list[str] | None = None,
    redact: Redacting | Iterable[str] | None = None,
) -> CheckReport: ...


@overload
def check(
    store: AsyncStore,
    *,
    agent: Agent | Mapping[str, Agent],
    label: str | None = None,
    name: str | None = None,
    match: str = "strict",
    normalise: list[str] | None = None,
    redact: Redacting | Iterable[str] | None = None,
) -> Coroutine[Any, Any, CheckReport]: ...


def check(
    store: Store | AsyncStore,
    *,
    agent: Agent | Mapping[str, Agent],
    label: str | None = None,
    name: str | None = None,
    match: str = "strict",
    normalise: list[str] | None = None,
    redact: Redacting | Iterable[str] | None = None,
) -> CheckReport | Coroutine[Any, Any, CheckReport]:
    """Run the newest completed run of every tape with a ``label`` again, without a model; returns a table of them.

    ``agent`` is called with the run, and reads ``run.input``; for runs of several agents it is a dict of them by the
    name of the run. ``name`` checks only the runs of that name. Nothing is written. The report has an ``exit_code``.
    With an AsyncStore the result is to be awaited, and the agent runs in a thread with an event loop of its own.
    """
    options = {"match": match, "normalise": normalise, "redact": redact}
    if isinstance(store, Store):
        return _check(store, agent, label, name, options)
    from tape.aio.store import AsyncStore

    if not isinstance(store, AsyncStore):
        raise InvalidEntry("store", f"must be a store, not a {type(store).__name__}")
    return store.run(lambda inner: _check(inner, agent, label, name, options))


def _check(
    store: Store, agent: Agent | Mapping[str, Agent], label: str | None, name: str | None, options: dict[str, Any]
) -> CheckReport:
    report = CheckReport()
    for tape_id in _labelled(store, label):
        chat = store.tape(tape_id)
        runs = list(_newest(chat, name))
        if not runs and label is not None:
            report.without.append(tape_id)
        for info in runs:
            chosen = agent if not isinstance(agent, Mapping) else agent.get(info.name or "")
            if info.status == "unreadable" or chosen is None:
                missing = f"there is no agent for runs named {info.name!r}"
                why = info.error if info.status == "unreadable" else missing
                failed = Checked(
                    tape=tape_id, run=info.id, name=info.name, status="failed", calls=0, matched=0, error=why
                )
                report.runs.append(failed)
            else:
                base = None if info.base is None else store.tape(info.base.tape)
                report.runs.append(rerun(chat, info, chosen, base=base, **options))
    return report


def _labelled(store: Store, label: str | None) -> Iterator[str]:
    page = store.list(label=label, limit=200)
    while True:
        yield from (info.id for info in page)
        if page.cursor is None:
            return
        page = store.list(label=label, limit=200, cursor=page.cursor)


def _newest(chat: Tape, name: str | None) -> Iterator[RunInfo]:
    """Yield the newest completed run of each name, and every run that cannot be read: its name is not known."""
    seen: set[str | None] = set()
    for info in list_runs(chat):
        if info.status == "unreadable":
            yield info
        elif info.status == "completed" and info.name not in seen and name in (None, info.name):
            seen.add(info.name)
            yield info


def rerun(chat: Tape, info: RunInfo, agent: Agent, **options: Any) -> Checked:
    """Run one run again and tell how it went; nothing that the agent raises leaves here."""
    status, error, run = "same", None, replay(chat, info.id, **options)
    try:
        with run:
            finished(agent(run))
    except Diverged:
        status = "diverged"
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        # SystemExit(0), too: it would end the check as if all runs were the same.
        error = f"{type(failure).__name__}: {failure}"
        status = "same" if info.error == error else "failed"
    # A recording that cannot be read leaves no run to report.
    report = run.report if run.begun else RunReport(run=info.id)
    if report.first is not None:
        status = "diverged"
    calls = len(run.recording.calls) if run.begun and run.recording is not None else info.calls or 0
    return Checked(
        tape=chat.id,
        run=info.id,
        name=info.name,
        status=status,
        calls=calls,
        matched=report.matched,
        live=report.live,
        divergences=[*report.diverged, *report.unused],
        error=None if status == "same" else error,
    )


def finished(result: Any) -> Any:
    """Return what an agent returns; a coroutine is run to its end."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result
