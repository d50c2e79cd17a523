"""Bisecting a failed run: from which call on it could no longer be rescued."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from msgspec import Struct

from tape.core import strict
from tape.core.lenient import lenient
from tape.core.merge.diff import Diff
from tape.errors import Corrupt, Diverged, EffectRefused, InvalidEntry
from tape.handles.tape import Tape
from tape.runs.checking import Agent, finished
from tape.runs.opening import replay
from tape.runs.pure.bisection import Rate, Search
from tape.runs.recording import RecordedCall, Recording, read_recording

if TYPE_CHECKING:
    from tape.aio.tape import AsyncTape

__all__ = ["Bisection", "bisect"]

Check = Callable[[Tape, Any], Any] | str | Sequence[str]
"""What tells success: a function of the fork and of what the agent returned, or a command that ends with 0."""

CONFIDENCE = 0.95
PATIENCE = 600.0
"""Seconds that a command of a check may take."""

_TEST = '''"""Replay the run that the bisection rescued from a failure."""

import tape
from {module} import {function}


def test_{name}() -> None:
    """The agent makes the calls of the rescued run, and no others."""
    with tape.open({url!r}, read_only=True) as store:
        chat = store.tape({tape!r})
        with tape.replay(chat, {run!r}, base=store.tape({base!r})) as again:
            {function}(again)
        assert again.report.ok
'''


class Bisection(Struct, kw_only=True):
    """Where a run went wrong for good, as far as so many continuations tell."""

    run: str
    tape: str
    calls: int
    point: int
    """The number of the call whose recorded answer could not be recovered from; 0 if nothing recovered at all."""
    bounds: tuple[int, int]
    """The numbers between which it lies at 95 percent."""
    curve: list[Rate]
    """How often going on live from a call succeeded, for the calls that were tried."""
    continuations: int
    rescued: str | None
    """The fork that succeeded and has most of the failed run in it; None if none did."""
    rescued_run: str | None
    change: tuple[RecordedCall, RecordedCall] | None
    """The first call of the rescued run that is not as in the failed one: as it was, and as it is there."""
    diff: Diff | None
    """How the messages of the rescued fork differ from those of the failure."""

    def test(self, agent: str, url: str, path: str | os.PathLike[str] | None = None) -> str:
        """Return a test that replays the rescued run with an agent (``module:function``), written to ``path`` if given.

        Raises InvalidEntry if nothing was rescued.
        """
        module, _, function = agent.partition(":")
        if self.rescued is None or self.rescued_run is None:
            raise InvalidEntry("rescued", "the bisection rescued no run, so there is nothing to test")
        if not all(part.isidentifier() and not iskeyword(part) for part in [*module.split("."), function]):
            raise InvalidEntry("agent", "must be module:function")
        name = re.sub("[^a-z0-9]", "_", f"rescued_{self.run}".lower())
        facts = {"tape": self.rescued, "run": self.rescued_run, "base": self.tape, "url": url}
        text = _TEST.format(module=module, function=function, name=name, **facts)
        if path is not None:
            Path(path).write_text(text, "utf-8")
        return text


@overload
def bisect(
    chat: Tape, run: str, *, agent: Agent, check: Check, tries: int = 25, effects: str = "refuse", match: str = "strict"
) -> Bisection: ...


@overload
def bisect(
    chat: AsyncTape,
    run: str,
    *,
    agent: Agent,
    check: Check,
    tries: int = 25,
    effects: str = "refuse",
    match: str = "strict",
) -> Coroutine[Any, Any, Bisection]: ...


def bisect(
    chat: Tape | AsyncTape,
    run: str,
    *,
    agent: Agent,
    check: Check,
    tries: int = 25,
    effects: str = "refuse",
    match: str = "strict",
) -> Bisection | Coroutine[Any, Any, Bisection]:
    """Find the call of a failed run from which on it could not be rescued, with at most ``tries`` continuations.

    Each continuation is a fork in which the calls before some call are answered from the tape and the rest is live; the
    next one is made where it tells most, and several from one call where outcomes vary. ``agent`` is called with the
    run. ``check`` is called with the fork and with what the agent returned and tells success; or it is a command, which
    finds the fork and the run in ``TAPE_FORK`` and ``TAPE_RUN`` and the result as JSON on its input. An agent that
    raises did not succeed. Forks that did not succeed are discarded. Tools that are not declared as reading are refused
    unless ``effects="allow"``. Raises Diverged when the agent does not even repeat what was recorded.
    """
    if not callable(check) and not isinstance(check, str | Sequence):
        raise InvalidEntry("check", f"must be a function or a command, not {strict.shown(check)}")
    strict.limit(tries, "tries")
    options: dict[str, Any] = {"effects": effects, "match": match}
    if isinstance(chat, Tape):
        return _bisect(chat, run, agent, check, tries, options)
    from tape.aio.runs import in_thread

    return in_thread(chat, lambda inner: _bisect(inner, run, agent, check, tries, options))


def _bisect(chat: Tape, run: str, agent: Agent, check: Check, tries: int, options: dict[str, Any]) -> Bisection:
    recording = read_recording(chat, run)
    if not recording.calls:
        raise InvalidEntry("run", "has no calls")
    search, made = Search(len(recording.calls)), 0
    best: tuple[int, Tape, str] | None = None
    while made < tries and not search.sure(CONFIDENCE):
        call = search.next()
        fork, run_id, recovered = _go_on(chat, recording, call, agent, check, options)
        made += 1
        search.learn(call, recovered=recovered)
        if not recovered:
            fork.discard("not recovered")
        elif best is None or call > best[0]:
            best = call, fork, run_id
    return Bisection(
        run=run,
        tape=chat.id,
        calls=search.calls,
        point=search.point,
        bounds=search.bounds(),
        curve=search.curve(),
        continuations=made,
        rescued=None if best is None else best[1].id,
        rescued_run=None if best is None else best[2],
        change=None if best is None else _first_change(recording, read_recording(best[1], best[2], chat)),
        diff=None if best is None else chat.diff(chat.at(), best[1].at()),
    )


def _go_on(
    chat: Tape, recording: Recording, call: int, agent: Agent, check: Check, options: dict[str, Any]
) -> tuple[Tape, str, bool]:
    """Go on live from a call in a fork of the tape as it was when the run began; tells whether that succeeded."""
    info = recording.info
    fork = chat.fork(at=info.seq - 1, name=f"bisect {info.name or info.id} from call {call}")
    run = replay(chat, info.id, live_from=call, into=fork, **options)
    try:
        with run:
            value = finished(agent(run))
    except (Corrupt, Diverged, EffectRefused):
        raise
    except Exception:
        # An agent that fails has not recovered.
        return fork, run.id, False
    return fork, run.id, _succeeded(check, fork, run.id, value)


def _succeeded(check: Check, fork: Tape, run: str, value: Any) -> bool:
    if callable(check):
        return bool(finished(check(fork, value)))
    done = subprocess.run(
        check,
        shell=isinstance(check, str),
        input=json.dumps(lenient(value)[0]),
        text=True,
        env={**os.environ, "TAPE_FORK": fork.id, "TAPE_RUN": run},
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode == 0


def _first_change(failed: Recording, rescued: Recording) -> tuple[RecordedCall, RecordedCall] | None:
    """Return the first call that is not the same in two runs, in its request or in what came of it."""
    for before, after in zip(failed.calls, rescued.calls, strict=False):
        outcomes = [None if call.result is None else call.result.outcome() for call in (before, after)]
        if before.digest != after.digest or outcomes[0] != outcomes[1]:
            return before, after
    return None
