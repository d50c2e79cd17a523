"""Replaying a tape: every entry with what it changed, the view at a point, or step by step."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET

import tape
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import Line, clean, count, cut, flat
from tape.command.registry import command
from tape.command.show import json_shapes
from tape.command.show.describe import changes, entry_lines, message_lines, oneline
from tape.command.show.stepper import HELP, Shown, Stepper
from tape.command.verbs.find import TapeArgument
from tape.command.verbs.read import context_lines
from tape.core.entries import payloads

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["effect", "replay"]

_ALONE = ("open", "state", "block", "usage", "event", "fork", "status", "label", "erase", "discard", "compact")
"""Kinds of entries after which the same messages and anchors stand as before."""


@command(
    "tape replay chat-1",
    "tape replay chat-1 --from 8 --to 12",
    "tape replay chat-1 --at 8",
    "tape replay chat-1 --step",
)
def replay(
    session: Session,
    tape_: TapeArgument,
    at: Annotated[
        str | None, typer.Option("--at", metavar="POINT", help="Show the view at this point; with --step, begin here.")
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Go through it entry by entry; h lists what can be typed.")
    ] = False,
    first: Annotated[int | None, typer.Option("--from", metavar="SEQ", min=1, help="The first entry.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="SEQ", min=1, help="The last entry.")] = None,
) -> None:
    """Replay a tape: each entry with what it changed in the view, the view at a point, or step by step."""
    if step and session.out.as_json:
        raise Failure("--step talks to a person", "leave out --json", USAGE)
    if at is not None and not step and (first is not None or last is not None):
        raise Failure("--at shows one view, and no entries from or to", "leave it out, or add --step", USAGE)
    with session.open() as store:
        chat = session.find(store, tape_)
        head = chat.info().head
        begin, end = session.within(chat, first or 1), session.within(chat, last or head)
        if begin > end:
            raise Failure(f"--from {begin} is behind --to {end}", "swap them", USAGE)
        where = None if at is None else session.at(chat, at).info().head
        if step:
            _ask(session, chat, Stepper(begin, end, where))
        elif where is not None:
            _print_view(session, chat, where)
        else:
            _print_all(session, chat, begin, end)


def effect(chat: tape.Tape, entry: tape.Entry) -> tape.Diff:
    """Return what an entry changed, reading no more of the tape than it must."""
    nothing = tape.Diff([], [], [], [], [])
    seq, payload = entry.seq, entry.payload
    if payload is None or entry.kind in _ALONE:
        return nothing
    if isinstance(payload, payloads.Append) and payload.parent is UNSET:
        # It went behind the head, so nothing else moved.
        return tape.Diff([chat.at(seq).message(payload.id)], [], [], [], [])
    if isinstance(payload, payloads.Anchor | payloads.Handoff):
        return tape.Diff([], [], [], [], [anchor for anchor in chat.at(seq).anchors(limit=1) if anchor.seq == seq])
    if isinstance(payload, payloads.Merge) and not payload.into:
        return nothing
    return chat.diff(seq - 1, seq)


def _entry(chat: tape.Tape, seq: int) -> tape.Entry:
    return next(chat.entries(after=seq - 1, limit=1))


def _print_all(session: Session, chat: tape.Tape, begin: int, end: int) -> None:
    entries = itertools.takewhile(lambda entry: entry.seq <= end, chat.entries(after=begin - 1))
    if session.out.as_json:
        session.out.array(
            {"entry": json_shapes.entry(entry), "diff": json_shapes.diff(effect(chat, entry))} for entry in entries
        )
        return
    for entry in entries:
        session.out.lines(_entry_lines(chat, entry))


def _entry_lines(chat: tape.Tape, entry: tape.Entry) -> Iterator[Line]:
    """Yield an entry and what it changed. Of a plain append the entry says it all."""
    yield oneline(entry)
    plain = isinstance(entry.payload, payloads.Append | payloads.Anchor | payloads.Handoff)
    changed = effect(chat, entry)
    if not plain or changed.left or changed.revised or changed.retracted:
        for line in changes(changed):
            yield ["    ", *([line] if isinstance(line, str) else line)]


def _print_view(session: Session, chat: tape.Tape, seq: int) -> None:
    view = chat.at(seq)
    if session.out.as_json:
        session.out.json(
            {
                "tape": chat.id,
                "seq": seq,
                "entry": json_shapes.entry(_entry(chat, seq)) if seq else None,
                "messages": [json_shapes.message(one) for one in view.messages()],
                "anchors": [json_shapes.anchor(one) for one in view.anchors()],
                "summaries": [json_shapes.summary(one) for one in view.summaries()],
                "state": view.states(),
                "blocks": {one.label: one.text for one in view.blocks()},
            }
        )
        return
    session.out.lines(_view_lines(chat, seq))


def _view_lines(chat: tape.Tape, seq: int) -> Iterator[Line]:
    view = chat.at(seq)
    messages = view.messages()
    yield [("view ", "head"), (f"{clean(chat.id)}:{seq}", "seq"), f"  {count(len(messages), 'message')}"]
    yield ""
    for message in messages:
        yield from message_lines(message)
    for anchor in view.anchors():
        yield [("anchor ", "head"), f"{flat(anchor.name)} (seq {anchor.seq}) {cut(anchor.summary or '', 80)}".rstrip()]
    for summary in view.summaries():
        yield [("summary ", "head"), f"of {count(len(summary.covers), 'message')}: {cut(summary.text, 80)}"]
    for slot, value in view.states().items():
        yield [("state ", "head"), f"{clean(slot)} = {cut(str(value), 100)}"]
    for block in view.blocks():
        yield [("block ", "head"), f"{clean(block.label)}: {cut(block.text, 100)}"]


def _ask(session: Session, chat: tape.Tape, stepper: Stepper) -> None:
    """Ask, do, show, until there is no more input. The reading of lines and the printing are all that is here."""
    session.out.line(
        [("replay ", "head"), f"{clean(chat.id)} from {stepper.first} to {stepper.last}; h for help, q to leave"]
    )
    _print_step(session, chat, stepper, Shown("entry"))
    while True:
        sys.stdout.write(stepper.prompt)
        sys.stdout.flush()
        typed = sys.stdin.readline()
        if not typed:
            # The end of input leaves the cursor behind the prompt.
            session.out.line()
            return
        shown = stepper.do(typed)
        if shown.what == "quit":
            return
        _print_step(session, chat, stepper, shown)


def _print_step(session: Session, chat: tape.Tape, stepper: Stepper, shown: Shown) -> None:
    seq = stepper.seq
    lines: Any = []
    match shown.what:
        case "entry":
            lines = _entry_lines(chat, _entry(chat, seq))
        case "show":
            lines = entry_lines(_entry(chat, seq))
        case "view":
            lines = _view_lines(chat, seq)
        case "context":
            lines = context_lines(chat.at(seq).context())
        case "diff":
            lines = changes(chat.diff(seq - 1, seq)) or ["this entry changed no message"]
        case "anchor":
            found = next((one for one in chat.entries(after=seq, kinds=("anchor", "handoff"), limit=1)), None)
            if found is None or found.seq > stepper.last:
                lines = ["there is no anchor after this"]
            else:
                stepper.move(found.seq)
                lines = _entry_lines(chat, found)
        case "help":
            lines = HELP.split("\n")
        case _:
            lines = [shown.text]
    session.out.lines(lines)
