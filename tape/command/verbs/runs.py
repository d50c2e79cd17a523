"""Runs: listing what was recorded, running it again against an agent, and checking all that is kept."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tape
from tape.command.arguments import check_choice
from tape.command.exit_codes import FAILED, NOT_FOUND, USAGE, Failure
from tape.command.output import columns, cut
from tape.command.registry import command, one_of
from tape.command.show import json_shapes
from tape.command.verbs.find import TapeArgument
from tape.core.amounts import count

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["bisect", "check", "rerun", "runs"]

_MATCHES = ("strict", "request", "order")

AgentOption = Annotated[
    str, typer.Option("--agent", metavar="MODULE:FUNCTION", help="The agent: a function that takes the run.")
]
MatchOption = Annotated[
    str,
    typer.Option(
        "--match", metavar="HOW", help="How to match calls: strict, request or order.", autocompletion=one_of(*_MATCHES)
    ),
]


@command("tape runs chat-1", "tape runs chat-1 01J9", "tape runs chat-1 --json | jq -r '.[].id'")
def runs(
    session: Session,
    tape_: TapeArgument,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Show the calls of this run, by id prefix or name.")
    ] = None,
) -> None:
    """List the recorded runs of a tape, newest first, or the calls of one run."""
    from tape.runs.recording import list_runs, read_recording

    with session.open(read_only=True) as store:
        chat = session.find(store, tape_)
        if run is None:
            infos = list(list_runs(chat, inherited=True))
            if session.out.as_json:
                session.out.array(json_shapes.run(info) for info in infos)
                return
            rows = [
                (info.id, cut(info.name or "-", 30), info.status, str(info.calls or "-"), str(info.seq))
                for info in infos
            ]
            session.out.lines(columns(("RUN", "NAME", "STATUS", "CALLS", "SEQ"), rows, ("seq",)))
            return
        calls = read_recording(chat, _run_of(chat, run).id).calls
        if session.out.as_json:
            session.out.array(json_shapes.call(call) for call in calls)
            return
        cells = [
            (str(call.number), call.lane, call.kind, call.name, call.effect or "-", call.status, str(call.seq))
            for call in calls
        ]
        header = ("CALL", "LANE", "KIND", "NAME", "EFFECT", "OUTCOME", "SEQ")
        session.out.lines(columns(header, cells, ("seq",)))


@command(
    "tape rerun chat-1 --agent planner:main",
    "tape rerun chat-1 01J9 --agent planner:main --tools-live",
    "tape rerun chat-1 --agent planner:main --live-from 9 --into second-try --allow-writes",
)
def rerun(
    session: Session,
    tape_: TapeArgument,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run [default: the newest completed one].")
    ] = None,
    agent: AgentOption = "",
    live_from: Annotated[
        int | None,
        typer.Option(
            "--live-from", metavar="CALL", min=1, help="Make this call and all later ones for real; needs --into."
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="FORK", help="Record the live calls on this new fork; needs --live-from."),
    ] = None,
    tools_live: Annotated[
        bool, typer.Option("--tools-live", help="Call tools that only read, and compare their results.")
    ] = False,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Also call tools that are not declared as reading; needs --into.")
    ] = False,
    match: MatchOption = "strict",
    every: Annotated[bool, typer.Option("--all", help="Continue after the first difference.")] = False,
) -> None:
    """Run an agent against a recorded run, without calling a model, and report the first difference."""
    check_choice(match, _MATCHES, "--match")
    if (live_from is None) != (into is None):
        raise Failure("--live-from and --into must be used together", "give both, or neither", USAGE)
    function = _function("--agent", agent)
    from tape.runs.checking import rerun as run_again

    with session.open(read_only=into is None) as store:
        chat = session.find(store, tape_)
        info = _run_of(chat, run)
        options: dict[str, Any] = {"match": match, "on_divergence": "collect" if every else "stop"}
        if tools_live:
            options["tools"] = "live"
        if into is not None:
            options |= {"live_from": live_from, "into": chat.fork(into, name=info.name)}
            options["effects"] = "allow" if allow_writes else "refuse"
        if info.base is not None:
            options["base"] = store.tape(info.base.tape)
        checked = run_again(chat, info, function, **options)
    if session.out.as_json:
        session.out.json(json_shapes.checked(checked))
    else:
        session.out.line(f"run {checked.run} of {chat.id}: {checked.status}")
        session.out.line(f"  {checked.matched} of {count(checked.calls, 'call')} answered from the tape")
        if checked.live:
            session.out.line(f"  {count(checked.live, 'call')} made" + (f", on {into}" if into is not None else ""))
        session.out.lines(["  ", (str(divergence), "bad")] for divergence in checked.divergences)
        if checked.error is not None:
            session.out.line(f"  the agent raised {checked.error}")
    if checked.status != "same":
        raise typer.Exit(FAILED)


@command("tape check --label golden --agent planner:main", "tape check --label golden --agent planner:main --json")
def check(
    session: Session,
    agent: AgentOption = "",
    label: Annotated[str | None, typer.Option("--label", help="Check only tapes with this label.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Check only runs with this name.")] = None,
    match: MatchOption = "strict",
) -> None:
    """Run an agent against the newest completed run of each name on every tape."""
    check_choice(match, _MATCHES, "--match")
    function = _function("--agent", agent)
    with session.open(read_only=True) as store:
        report = tape.check(store, agent=function, label=label, name=name, match=match)
    if session.out.as_json:
        rows = [json_shapes.checked(checked) for checked in report.runs]
        session.out.json({"ok": report.ok, "runs": rows, "without": report.without})
    else:
        session.out.lines(str(report).splitlines())
    if not report.ok:
        raise typer.Exit(FAILED)


@command(
    "tape bisect chat-1 01J9 --agent planner:main --check planner:went_well",
    "tape bisect chat-1 01J9 --agent planner:main --command 'python check.py' --test tests/test_rescued.py",
)
def bisect(
    session: Session,
    tape_: TapeArgument,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The failed run, by id prefix or name.")],
    agent: AgentOption = "",
    check_: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="MODULE:FUNCTION",
            help="A function that takes the fork and the result, and returns whether it succeeded.",
        ),
    ] = None,
    shell: Annotated[
        str | None, typer.Option("--command", metavar="COMMAND", help="A shell command that exits with 0 on success.")
    ] = None,
    tries: Annotated[int, typer.Option("--tries", min=1, help="Try at most N live continuations.")] = 25,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Also call tools that are not declared as reading.")
    ] = False,
    test: Annotated[
        str | None,
        typer.Option("--test", metavar="FILE", help="Write a replay test of the successful run to this file."),
    ] = None,
) -> None:
    """Find the call after which a failed run could not succeed any more, by trying live forks."""
    if (check_ is None) == (shell is None):
        raise Failure(
            "bisect needs either --check or --command", "give the one that decides whether a try succeeded", USAGE
        )
    function = _function("--agent", agent)
    success = shell if check_ is None else _function("--check", check_)
    with session.open() as store:
        chat = session.find(store, tape_)
        effects = "allow" if allow_writes else "refuse"
        info = _run_of(chat, run)
        bisection = tape.bisect(chat, info.id, agent=function, check=success or "", tries=tries, effects=effects)
    if test is not None and bisection.rescued is not None:
        bisection.test(agent, session.named, test)
    if session.out.as_json:
        session.out.json(json_shapes.bisection(bisection))
        return
    low, high = bisection.bounds
    session.out.line(
        f"run {bisection.run} of {chat.id}: point of no return at call {bisection.point}, {low} to {high} at 95%"
    )
    rows = [
        (str(rate.call), f"{rate.recovered}/{rate.tries}", f"{rate.low:.0%} to {rate.high:.0%}")
        for rate in bisection.curve
    ]
    session.out.lines(columns(("CALL", "RECOVERED", "RATE"), rows, ()))
    if bisection.rescued is not None:
        session.out.line(f"rescued in {bisection.rescued}: tape diff {chat.id} {bisection.rescued}")


def _function(option: str, text: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names; the module may be in the current folder."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise Failure(f"{option}: {text!r} does not name a function", "write it as MODULE:FUNCTION", USAGE)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise Failure(f"{option}: cannot load {text!r}: {error}", "write it as MODULE:FUNCTION", NOT_FOUND) from error
    if not callable(target):
        raise Failure(f"{option}: {text!r} is not a function", "name a function, as MODULE:FUNCTION", USAGE)
    function: Callable[..., Any] = target
    return function


def _run_of(chat: tape.Tape, run: str | None) -> tape.RunInfo:
    """Return the run with this name or id prefix; without one, the newest that completed."""
    from tape.runs.recording import list_runs

    infos = list(list_runs(chat, inherited=True))
    if run is None:
        chosen: Iterator[tape.RunInfo] = (info for info in infos if info.status == "completed")
    else:
        chosen = (info for info in infos if info.id.startswith(run) or info.name == run)
    info = next(chosen, None)
    if info is None:
        problem = "no completed run" if run is None else f"no run {run!r}"
        raise Failure(f"tape {chat.id!r} has {problem}", f"see: tape runs {chat.id}", NOT_FOUND)
    return info
