"""Writing to a tape: append, retract, handoff, fork, merge, discard."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tape
from tape.command.addresses import known_tape
from tape.command.arguments import check_choice, json_object, json_value, point
from tape.command.exit_codes import NOT_FOUND, USAGE, Failure
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
    before = " (already recorded)" if receipt.duplicate else ""
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
    tape_: Annotated[str, typer.Argument(metavar="TAPE", help="The id of the tape.")],
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="The content of the message; - reads stdin.")
    ] = None,
    role: Annotated[str | None, typer.Option(help="The role of the message [default: user].")] = None,
    message: Annotated[
        str | None, typer.Option(metavar="JSON", help="The whole message, instead of TEXT and --role; - reads stdin.")
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="The id of the message.")] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="Append after this message [default: the last one].")
    ] = None,
    root: Annotated[bool, typer.Option("--root", help="Start a new branch without a parent message.")] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the tape and the store if they do not exist.")
    ] = False,
) -> None:
    """Append a message to a tape and print its receipt."""
    if (text is None) == (message is None):
        raise Failure("append needs either TEXT or --message", "see: tape append --help", USAGE)
    if message is not None and role is not None:
        raise Failure("--message and --role cannot be combined", "put the role into the JSON", USAGE)
    if root and parent is not None:
        raise Failure("--root and --parent cannot be combined", "leave out one of them", USAGE)
    if root or parent is not None:
        options["parent"] = parent
    if message is not None:
        whole = json_object(sys.stdin.read() if message == "-" else message, "--message") or {}
        if id is not None:
            whole = {**whole, "id": id}
    else:
        content = sys.stdin.read().removesuffix("\n") if text == "-" else text
        whole = {"role": role or "user", "content": content, **({} if id is None else {"id": id})}
    with session.open(create=create, or_else=", or create one with --create") as store:
        chat = store.tape(tape_) if create else _existing(session, store, tape_)
        receipt = chat.append(whole, **options)
    _print_receipt(session, receipt)


def _existing(session: Session, store: tape.Store, id: str) -> tape.Tape:
    """Return the tape with this id; the error for a missing one names the option that creates it."""
    try:
        return store.get(id)
    except tape.TapeHidden:
        raise
    except tape.TapeNotFound as error:
        raise Failure(str(error), "create it with --create, or see: tape ls", NOT_FOUND) from error


@command("tape retract chat-1 m7 --reason 'wrong customer'", "tape retract chat-1 m7 m8 --json", writes=_KEYED)
def retract(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    messages: Annotated[list[str], typer.Argument(metavar="MESSAGE...", help="The ids of the messages to retract.")],
    reason: Annotated[str | None, typer.Option(help="The reason to record.")] = None,
) -> None:
    """Remove messages from the conversation. They stay in the history of the tape."""
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the handoff.")],
    summary: Annotated[str, typer.Option(help="A summary of the work so far.")],
    phase: Annotated[str | None, typer.Option(help="The name of the phase that starts.")] = None,
    next_steps: Annotated[
        list[str] | None, typer.Option("--next", metavar="STEP", help="A next step; may be repeated.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="NAME", help="Who takes over.")] = None,
    state: Annotated[str | None, typer.Option(metavar="JSON", help="The state to hand over.")] = None,
) -> None:
    """Hand over to the next phase: context then starts with this summary and the next steps."""
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
    id: Annotated[str | None, typer.Option("--id", help="The id of the fork [default: a generated one].")] = None,
    name: Annotated[str | None, typer.Option(help="The name of the fork.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="POINT", help="Where to fork [default: the last entry].")
    ] = None,
) -> None:
    """Create a fork: a tape that shares this one's history up to a point, without copying it."""
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
        session.out.note(f"the fork already existed, with {count(child.entry_count, 'entry')}")


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
    child: Annotated[str, typer.Argument(metavar="FORK", help="The fork to merge.")],
    strategy: Annotated[
        str,
        typer.Option(
            metavar="STRATEGY", help="How to merge: replay, squash or link.", autocompletion=one_of(*_STRATEGIES)
        ),
    ] = "replay",
    on_conflict: Annotated[
        str,
        typer.Option(
            metavar="SIDE",
            help="What to do if both sides changed the same thing: fail, ours or theirs.",
            autocompletion=one_of(*_SIDES),
        ),
    ] = "fail",
    summary: Annotated[str | None, typer.Option(help="With squash: the content of the one message.")] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="JSON", help="With squash: more fields of that message.")
    ] = None,
) -> None:
    """Merge the new messages of a fork into its parent. Merging again adds nothing twice."""
    check_choice(strategy, _STRATEGIES, "--strategy")
    check_choice(on_conflict, _SIDES, "--on-conflict")
    squashed: dict[str, Any] = {"summary": summary, "message": json_object(fields, "--fields")}
    with session.open() as store:
        receipt = session.find(store, tape_).merge(
            session.find(store, child), strategy=strategy, on_conflict=on_conflict, **squashed, **options
        )
    if session.out.as_json:
        session.out.json(json_shapes.members(receipt))
        return
    if receipt.duplicate:
        session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), " already up to date"])
        return
    facts = [count(len(receipt.message_ids), "message")]
    facts += [count(len(receipt.changed), "change")] if receipt.changed else []
    facts += [f"{count(len(receipt.kept), 'conflict')} kept as on the parent"] if receipt.kept else []
    session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), f" {', '.join(facts)}"])


@command("tape discard what-if --reason 'no better'", "tape discard what-if --json", writes=_KEYED)
def discard(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    reason: Annotated[str | None, typer.Option(help="The reason to record.")] = None,
) -> None:
    """Close a fork without merging it. It stays readable and cannot be reopened."""
    with session.open() as store:
        receipt = session.find(store, tape_).discard(reason, **options)
    _print_receipt(session, receipt)


@command("tape hide chat-1 --reason 'done with it'", "tape hide chat-1 --json", writes=_KEYED)
def hide(
    session: Session,
    options: dict[str, Any],
    tape_: TapeArgument,
    reason: Annotated[str | None, typer.Option(help="The reason to record.")] = None,
) -> None:
    """Hide a tape from lists, searches and reads. Its forks still read what they inherit."""
    with session.open() as store:
        receipt = session.find(store, tape_).hide(reason, **options)
    _print_receipt(session, receipt)


@command("tape unhide chat-1", "tape unhide chat-1 --key web-9 --json", writes=_KEYED)
def unhide(
    session: Session,
    options: dict[str, Any],
    tape_: Annotated[str, typer.Argument(metavar="TAPE", help="The full id of the tape.")],
) -> None:
    """Show a hidden tape again."""
    with session.open() as store:
        receipt = store.tape(tape_).unhide(**options)
    _print_receipt(session, receipt)
