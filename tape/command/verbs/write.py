"""Writing to a tape: append, retract, handoff, fork, merge, discard."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tape
from tape.command.addresses import known_tape
from tape.command.arguments import check_choice, json_object, json_value, point
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import clean
from tape.command.registry import command, one_of
from tape.command.show import json_shapes
from tape.command.verbs.find import TapeArgument
from tape.core.amounts import count

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["append", "discard", "fork", "handoff", "hide", "merge", "retract", "unhide"]


_STRATEGIES = ("replay", "squash", "link")
_SIDES = ("fail", "ours", "theirs")

_UNKEYED = ("actor", "meta", "expected_head", "expected_view")
_KEYED = ("key", *_UNKEYED)


def _print_receipt(session: Session, receipt: tape.Receipt) -> None:
    if session.out.as_json:
        session.out.json(json_shapes.receipt(receipt))
        return
    before = " (recorded before)" if receipt.duplicate else ""
    of = f" {clean(receipt.message_id)}" if receipt.message_id else ""
    session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), of, before])


@command(
    "tape append chat-1 'And a hotel, please.' --role user --key web-8",
    "echo 'Found three.' | tape append chat-1 - --role assistant",
    """tape append chat-1 --message '{"role": "tool", "tool_call_id": "c1", "content": "ok"}'""",
    "tape append new-chat 'Hello' --create",
    writes=_KEYED,
)
def append(
    session: Session,
    options: dict[str, Any],
    tape_: Annotated[str, typer.Argument(metavar="TAPE", help="The tape's id.")],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The content; - reads it from stdin.")] = None,
    role: Annotated[str | None, typer.Option(help="The role [default: user].")] = None,
    message: Annotated[
        str | None, typer.Option(metavar="JSON", help="The whole message, in place of text and role; - is stdin.")
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="The message's id.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="MESSAGE", help="The message to go behind.")] = None,
    root: Annotated[bool, typer.Option("--root", help="Begin a new branch from nothing.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the tape, and the store, if there is none.")] = False,
) -> None:
    """Append a message to a tape and print its receipt."""
    if (text is None) == (message is None):
        raise Failure("give the text, or --message", "see: tape append --help", USAGE)
    if message is not None and role is not None:
        raise Failure("--message holds the role already", "leave out --role", USAGE)
    if root and parent is not None:
        raise Failure("--root has no --parent", "leave out one of them", USAGE)
    if root or parent is not None:
        options["parent"] = parent
    if message is not None:
        whole = json_object(sys.stdin.read() if message == "-" else message, "--message") or {}
        if id is not None:
            whole = {**whole, "id": id}
    else:
        content = sys.stdin.read().removesuffix("\n") if text == "-" else text
        whole = {"role": role or "user", "content": content, **({} if id is None else {"id": id})}
    with session.open(create=create) as store:
        chat = store.tape(tape_) if create else store.get(tape_)
        receipt = chat.append(whole, **options)
    _print_receipt(session, receipt)


@command("tape retract chat-1 m7 --reason 'wrong customer'", "tape retract chat-1 m7 m8 --json", writes=_KEYED)
def retract(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    messages: Annotated[list[str], typer.Argument(metavar="MESSAGE...", help="The ids of the messages.")],
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
) -> None:
    """Take messages out of the view. They stay on the tape, and in the past."""
    with session.open() as store:
        receipt = session.find(store, tape_).retract(*messages, reason=reason, **options)
    _print_receipt(session, receipt)


@command(
    "tape handoff chat-1 booking --summary 'Dates fixed' --next 'book a hotel'",
    "tape handoff chat-1 review --summary 'Draft done' --phase review --to editor --json",
    writes=_KEYED,
)
def handoff(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the checkpoint is called.")],
    summary: Annotated[str, typer.Option(help="What was done.")],
    phase: Annotated[str | None, typer.Option(help="The phase that begins.")] = None,
    next_steps: Annotated[
        list[str] | None, typer.Option("--next", metavar="STEP", help="What comes next; may be repeated.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="NAME", help="Who goes on from here.")] = None,
    state: Annotated[str | None, typer.Option(metavar="JSON", help="State to begin with.")] = None,
) -> None:
    """Set a handoff: from here on context starts with its summary and next steps."""
    begun = None if state is None else json_value(state, "--state")
    with session.open() as store:
        receipt = session.find(store, tape_).handoff(
            name, summary=summary, phase=phase, next_steps=next_steps or (), owner=to, state=begun, **options
        )
    _print_receipt(session, receipt)


@command(
    "tape fork chat-1 --name hotels",
    "tape fork chat-1@12 --id what-if",
    "tape fork chat-1 --at booking --json | jq -r .id",
    writes=_UNKEYED,
)
def fork(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    id: Annotated[str | None, typer.Option("--id", help="The fork's id [default: a new one].")] = None,
    name: Annotated[str | None, typer.Option(help="The fork's name.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="POINT", help="Where [default: now].")] = None,
) -> None:
    """Fork a tape: a new one that inherits it up to a point, and copies nothing."""
    with session.open() as store:
        named = session.address(store, tape_, at)
        # A point that is not there is an error with the next step.
        _ = named.view
        before = None if id is None else known_tape(store, id)
        where = None if named.point is None else point(named.point)
        child = named.chat.fork(id, name=name, at=where, **options).info()
    if session.out.as_json:
        session.out.json(json_shapes.members(child))
        return
    session.out.line(clean(child.id))
    if before is not None:
        session.out.note(f"the fork was there already, with {count(child.entry_count, 'entry')}")


@command(
    "tape merge chat-1 hotels",
    "tape merge chat-1 hotels --strategy squash --summary 'The Tejo, room 12.'",
    """tape merge chat-1 hotels --strategy squash --fields '{"role": "tool", "tool_call_id": "c1"}'""",
    "tape merge chat-1 hotels --on-conflict theirs --json",
    writes=_UNKEYED,
)
def merge(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    child: Annotated[str, typer.Argument(metavar="FORK", help="The fork to take from.")],
    strategy: Annotated[
        str, typer.Option(metavar="STRATEGY", help="replay, squash or link.", autocompletion=one_of(*_STRATEGIES))
    ] = "replay",
    on_conflict: Annotated[
        str,
        typer.Option(
            metavar="SIDE", help="Where both changed the same: fail, ours or theirs.", autocompletion=one_of(*_SIDES)
        ),
    ] = "fail",
    summary: Annotated[str | None, typer.Option(help="Of a squash: the one message's content.")] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="JSON", help="Of a squash: further fields of the message.")
    ] = None,
) -> None:
    """Take what is new on a fork into its parent. What is merged already is never taken twice."""
    check_choice(strategy, _STRATEGIES, "--strategy")
    check_choice(on_conflict, _SIDES, "--on-conflict")
    more = json_object(fields, "--fields") or {}
    clash = sorted({"child", "strategy", "on_conflict", "summary", *_UNKEYED} & more.keys())
    if clash:
        raise Failure(f"--fields: a message cannot have {clash[0]!r} here", None, USAGE)
    with session.open() as store:
        receipt = session.find(store, tape_).merge(
            session.find(store, child), strategy=strategy, on_conflict=on_conflict, summary=summary, **options, **more
        )
    if session.out.as_json:
        session.out.json(json_shapes.members(receipt))
        return
    if receipt.duplicate:
        session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), " nothing new"])
        return
    facts = [count(len(receipt.message_ids), "message")]
    facts += [count(len(receipt.changed), "change")] if receipt.changed else []
    facts += [f"{count(len(receipt.kept), 'conflict')} kept as they were"] if receipt.kept else []
    session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), f" {', '.join(facts)}"])


@command("tape discard what-if --reason 'no better'", "tape discard what-if --json", writes=_KEYED)
def discard(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
) -> None:
    """Close a fork for good, with a receipt on its parent. It stays readable."""
    with session.open() as store:
        receipt = session.find(store, tape_).discard(reason, **options)
    _print_receipt(session, receipt)


@command("tape hide chat-1 --reason 'done with it'", "tape hide chat-1 --json", writes=_KEYED)
def hide(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
) -> None:
    """Take a tape out of lists, searches and reads; its forks go on reading what they inherit."""
    with session.open() as store:
        receipt = session.find(store, tape_).hide(reason, **options)
    _print_receipt(session, receipt)


@command("tape unhide chat-1", "tape unhide chat-1 --key web-9 --json", writes=_KEYED)
def unhide(
    session: Session,
    options: dict[str, Any],
    tape_: Annotated[str, typer.Argument(metavar="TAPE", help="The tape's id, in full.")],
) -> None:
    """Show a hidden tape again, as it was."""
    with session.open() as store:
        receipt = store.tape(tape_).unhide(**options)
    _print_receipt(session, receipt)
