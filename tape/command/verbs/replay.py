"""Replaying a tape: every entry with what it changed, the view at a point, or step by step."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

import tape
from tape.command.addresses import own_seq
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import Line, clean
from tape.command.registry import command
from tape.command.show import json_shapes
from tape.command.show.contexts import context_lines
from tape.command.show.describe import entry_lines
from tape.command.show.differences import CONTEXT, changes
from tape.command.show.history import with_tools
from tape.command.show.messages import Look
from tape.command.show.stepper import HELP, Shown, Stepper
from tape.command.show.views import effect, step_lines, view_lines
from tape.command.verbs.find import TapeArgument
from tape.command.verbs.read import ContextOption

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["replay"]


@command(
    "tape replay chat-1",
    "tape replay chat-1 --from 8 --to 12",
    "tape replay chat-1@8",
    "tape replay chat-1 --step",
    paged=True,
)
def replay(
    session: Session,
    tape_: TapeArgument,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="POINT", help="Show the messages at this point; with --step, start there."),
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Step through the entries interactively; press h for help.")
    ] = False,
    first: Annotated[int | None, typer.Option("--from", metavar="SEQ", min=1, help="Start with this entry.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="SEQ", min=1, help="Stop after this entry.")] = None,
    context_: ContextOption = CONTEXT,
) -> None:
    """Replay a tape entry by entry with the changes of each, or show it at one point."""
    if step and session.out.as_json:
        raise Failure("--step is interactive and cannot print JSON", "leave out --json or --step", USAGE)
    with session.open(read_only=True) as store:
        named = session.address(store, tape_, at)
        chat = named.chat
        head = chat.info().head
        begin, end = session.within(chat, first or 1), session.within(chat, last or head)
        if begin > end:
            raise Failure(f"--from {begin} comes after --to {end}", "swap them", USAGE)
        where = None if named.point is None else own_seq(named)
        if where is not None and not step and (first is not None or last is not None):
            raise Failure("--at cannot be combined with --from and --to", "leave it out, or add --step", USAGE)
        if step:
            session.out.pageable = False
            if not _step_on_screen(session, chat, begin, end, where):
                _ask(session, chat, Stepper(begin, end, where))
        elif where is not None:
            _print_view(session, chat, where)
        else:
            _print_all(session, chat, begin, end, context_)


def _print_all(session: Session, chat: tape.Tape, begin: int, end: int, context: int) -> None:
    entries = itertools.takewhile(lambda entry: entry.seq <= end, chat.entries(after=begin - 1))
    if session.out.as_json:
        session.out.array(
            {"entry": json_shapes.entry(entry), "diff": json_shapes.diff(effect(chat, entry))} for entry in entries
        )
        return
    calls: dict[str, str] = {}
    look = Look(session.out.columns, calls)
    for entry in with_tools(chat, entries, calls):
        session.out.lines(step_lines(chat, entry, look, context, color=session.out.color))


def _print_view(session: Session, chat: tape.Tape, seq: int) -> None:
    view = chat.at(seq)
    if session.out.as_json:
        session.out.json(
            {
                "tape": chat.id,
                "seq": seq,
                "entry": json_shapes.entry(chat.entry(seq=seq)) if seq else None,
                "messages": [json_shapes.message(message) for message in view.messages()],
                "anchors": [json_shapes.anchor(anchor) for anchor in view.anchors()],
                "summaries": [json_shapes.summary(summary) for summary in view.summaries()],
                "state": view.states(),
                "blocks": {block.label: block.text for block in view.blocks()},
                "loaded": {f"{one.label}/{one.key}": one.text for one in view.loaded()},
            }
        )
        return
    session.out.lines(view_lines(chat, seq, Look(session.out.columns)))


def _step_on_screen(session: Session, chat: tape.Tape, begin: int, end: int, where: int | None) -> bool:
    """Step through the tape on the whole screen; False where there is no terminal for it."""
    from tape.command.stepping import screen

    if not screen.can_run():
        return False
    screen.run(chat, begin, end, where, color=session.out.color)
    return True


def _ask(session: Session, chat: tape.Tape, stepper: Stepper) -> None:
    """Read a command, carry it out and print the result, until the input ends."""
    session.out.line(
        [("replay ", "head"), f"{clean(chat.id)} from {stepper.first} to {stepper.last}; h for help, q to quit"]
    )
    _print_step(session, chat, stepper, Shown("entry"))
    while True:
        sys.stdout.write(stepper.prompt)
        sys.stdout.flush()
        typed = sys.stdin.readline()
        if not typed:
            # At the end of input the cursor is still after the prompt.
            session.out.line()
            return
        shown = stepper.do(typed)
        if shown.what == "quit":
            return
        _print_step(session, chat, stepper, shown)


def _print_step(session: Session, chat: tape.Tape, stepper: Stepper, shown: Shown) -> None:
    if shown.what == "anchor":
        entry = next((entry for entry in chat.entries(after=stepper.seq, kinds=("anchor", "handoff"), limit=1)), None)
        if entry is None or entry.seq > stepper.last:
            shown = Shown("say", "no anchor after this entry")
        else:
            shown = stepper.move(entry.seq)
    session.out.lines(_step_lines(chat, stepper.seq, shown, Look(session.out.columns), color=session.out.color))


def _step_lines(chat: tape.Tape, seq: int, shown: Shown, look: Look, *, color: bool) -> Iterable[Line]:
    """Return what a command of the stepper shows."""
    calls: dict[str, str] = {}
    look = look._replace(calls=calls)
    if shown.what in ("entry", "show", "diff"):
        entry = chat.entry(seq=seq)
        list(with_tools(chat, [entry], calls))
        if shown.what == "entry":
            return step_lines(chat, entry, look, color=color)
        if shown.what == "show":
            return entry_lines(entry, look)
        return list(changes(effect(chat, entry), look, color=color)) or ["no message changed"]
    if shown.what == "view":
        return view_lines(chat, seq, look)
    if shown.what == "context":
        return context_lines(chat.at(seq).context(), look)
    return HELP.split("\n") if shown.what == "help" else [shown.text]
