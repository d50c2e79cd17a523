"""Writing to a tape: append, retract, handoff, fork, merge, discard."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import tape
from tape.command.arguments import json_object, json_value, point
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import clean, count
from tape.command.registry import command, one_of
from tape.command.session import Session
from tape.command.show import json_shapes
from tape.command.verbs.find import TapeArgument

__all__ = ["append", "discard", "fork", "handoff", "merge", "retract"]

SECTION = "Write to a tape"

_STRATEGIES = ("replay", "squash", "link")
_SIDES = ("fail", "ours", "theirs")

KeyOption = Annotated[str | None, typer.Option(help="The provenance key: the same key and content is written once.")]
ActorOption = Annotated[str | None, typer.Option(help="Who does it.")]
MetaOption = Annotated[str | None, typer.Option(metavar="JSON", help="Facts to keep with the entry.")]
HeadOption = Annotated[
    int | None, typer.Option("--expected-head", metavar="SEQ", min=0, help="Refuse if the tape has moved on.")
]


def _told(session: Session, receipt: tape.Receipt) -> None:
    if session.out.as_json:
        session.out.json(json_shapes.receipt(receipt))
        return
    before = " (recorded before)" if receipt.duplicate else ""
    of = f" {clean(receipt.message_id)}" if receipt.message_id else ""
    session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), of, before])


@command(
    SECTION,
    "tape append chat-1 'And a hotel, please.' --role user --key web-8",
    "echo 'Found three.' | tape append chat-1 - --role assistant",
    """tape append chat-1 --message '{"role": "tool", "tool_call_id": "c1", "content": "ok"}'""",
    "tape append new-chat 'Hello' --create",
)
def append(
    session: Session,
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
    key: KeyOption = None,
    actor: ActorOption = None,
    meta: MetaOption = None,
    expected_head: HeadOption = None,
) -> None:
    """Append a message to a tape and print its receipt."""
    if (text is None) == (message is None):
        raise Failure("give the text, or --message", "see: tape append --help", USAGE)
    if message is not None and role is not None:
        raise Failure("--message holds the role already", "leave out --role", USAGE)
    if root and parent is not None:
        raise Failure("--root has no --parent", "leave out one of them", USAGE)
    given: dict[str, Any] = {"key": key, "actor": actor, "meta": json_object(meta, "--meta")}
    if root or parent is not None:
        given["parent"] = parent
    if message is not None:
        whole = json_object(sys.stdin.read() if message == "-" else message, "--message") or {}
        if id is not None:
            whole = {**whole, "id": id}
    else:
        content = sys.stdin.read().removesuffix("\n") if text == "-" else text
        whole = {"role": role or "user", "content": content, **({} if id is None else {"id": id})}
    with session.open(create=create) as store:
        chat = store.tape(tape_) if create else store.get(tape_)
        receipt = chat.append(whole, expected_head=expected_head, **given)
    _told(session, receipt)


@command(SECTION, "tape retract chat-1 m7 --reason 'wrong customer'", "tape retract chat-1 m7 m8 --json")
def retract(
    session: Session,
    tape_: TapeArgument,
    messages: Annotated[list[str], typer.Argument(metavar="MESSAGE...", help="The ids of the messages.")],
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
    key: KeyOption = None,
    actor: ActorOption = None,
    meta: MetaOption = None,
    expected_head: HeadOption = None,
) -> None:
    """Take messages out of the view. They stay on the tape, and in the past."""
    facts = json_object(meta, "--meta")
    with session.open() as store:
        chat = session.find(store, tape_)
        receipt = chat.retract(*messages, reason=reason, key=key, actor=actor, meta=facts, expected_head=expected_head)
    _told(session, receipt)


@command(
    SECTION,
    "tape handoff chat-1 booking --summary 'Dates fixed' --next 'book a hotel'",
    "tape handoff chat-1 review --summary 'Draft done' --phase review --to editor --json",
)
def handoff(
    session: Session,
    tape_: TapeArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the checkpoint is called.")],
    summary: Annotated[str, typer.Option(help="What was done.")],
    phase: Annotated[str | None, typer.Option(help="The phase that begins.")] = None,
    next_steps: Annotated[
        list[str] | None, typer.Option("--next", metavar="STEP", help="What comes next; may be repeated.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="NAME", help="Who goes on from here.")] = None,
    state: Annotated[str | None, typer.Option(metavar="JSON", help="State to begin with.")] = None,
    key: KeyOption = None,
    actor: ActorOption = None,
    meta: MetaOption = None,
    expected_head: HeadOption = None,
) -> None:
    """Set a handoff: from here on context starts with its summary and next steps."""
    facts = json_object(meta, "--meta")
    begun = None if state is None else json_value(state, "--state")
    with session.open() as store:
        receipt = session.find(store, tape_).handoff(
            name,
            summary=summary,
            phase=phase,
            next_steps=next_steps or (),
            owner=to,
            state=begun,
            key=key,
            actor=actor,
            meta=facts,
            expected_head=expected_head,
        )
    _told(session, receipt)


@command(
    SECTION,
    "tape fork chat-1 --name hotels",
    "tape fork chat-1 --at 12 --id what-if",
    "tape fork chat-1 --at booking --json | jq -r .id",
)
def fork(
    session: Session,
    tape_: TapeArgument,
    id: Annotated[str | None, typer.Option("--id", help="The fork's id [default: a new one].")] = None,
    name: Annotated[str | None, typer.Option(help="The fork's name.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="POINT", help="Where [default: now].")] = None,
    actor: ActorOption = None,
    meta: MetaOption = None,
    expected_head: HeadOption = None,
) -> None:
    """Fork a tape: a new one that inherits it up to a point, and copies nothing."""
    facts = json_object(meta, "--meta")
    with session.open() as store:
        chat = session.find(store, tape_)
        session.at(chat, at)
        child = chat.fork(
            id,
            name=name,
            at=None if at is None else point(at),
            actor=actor,
            meta=facts,
            expected_head=expected_head,
        ).info()
    if session.out.as_json:
        session.out.json(json_shapes.info(child))
    else:
        session.out.line(clean(child.id))


@command(
    SECTION,
    "tape merge chat-1 hotels",
    "tape merge chat-1 hotels --strategy squash --summary 'The Tejo, room 12.'",
    """tape merge chat-1 hotels --strategy squash --fields '{"role": "tool", "tool_call_id": "c1"}'""",
    "tape merge chat-1 hotels --on-conflict theirs --json",
)
def merge(
    session: Session,
    tape_: TapeArgument,
    child: Annotated[str, typer.Argument(metavar="FORK", help="The fork to take from.")],
    strategy: Annotated[
        str, typer.Option(metavar="STRATEGY", help="replay, squash or link.", autocompletion=one_of(*_STRATEGIES))
    ] = "replay",
    on_conflict: Annotated[
        str,
        typer.Option(
            metavar="SIDE",
            help="Where both changed the same: fail, ours or theirs.",
            autocompletion=one_of(*_SIDES),
        ),
    ] = "fail",
    summary: Annotated[str | None, typer.Option(help="Of a squash: the one message's content.")] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="JSON", help="Of a squash: further fields of the message.")
    ] = None,
    actor: ActorOption = None,
    meta: MetaOption = None,
    expected_head: HeadOption = None,
) -> None:
    """Take what is new on a fork into its parent. What is merged already is never taken twice."""
    if strategy not in _STRATEGIES:
        raise Failure(f"--strategy: {strategy!r} is unknown", f"one of {', '.join(_STRATEGIES)}", USAGE)
    if on_conflict not in _SIDES:
        raise Failure(f"--on-conflict: {on_conflict!r} is unknown", f"one of {', '.join(_SIDES)}", USAGE)
    facts, more = json_object(meta, "--meta"), json_object(fields, "--fields") or {}
    clash = sorted({"child", "strategy", "on_conflict", "summary", "actor", "meta", "expected_head"} & more.keys())
    if clash:
        raise Failure(f"--fields: a message cannot have {clash[0]!r} here", None, USAGE)
    with session.open() as store:
        receipt = session.find(store, tape_).merge(
            session.find(store, child),
            strategy=strategy,
            on_conflict=on_conflict,
            summary=summary,
            actor=actor,
            meta=facts,
            expected_head=expected_head,
            **more,
        )
    if session.out.as_json:
        session.out.json(json_shapes.merge_receipt(receipt))
        return
    if receipt.duplicate:
        session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), " nothing new"])
        return
    told = [count(len(receipt.message_ids), "message")]
    told += [f"{count(len(receipt.changed), 'change')}"] if receipt.changed else []
    told += [f"{count(len(receipt.kept), 'conflict')} kept as they were"] if receipt.kept else []
    session.out.line([(f"{clean(receipt.tape)}:{receipt.seq}", "seq"), f" {', '.join(told)}"])


@command(SECTION, "tape discard what-if --reason 'no better'", "tape discard what-if --json")
def discard(
    session: Session,
    tape_: TapeArgument,
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
    key: KeyOption = None,
    actor: ActorOption = None,
    meta: MetaOption = None,
    expected_head: HeadOption = None,
) -> None:
    """Close a fork for good, with a receipt on its parent. It stays readable."""
    facts = json_object(meta, "--meta")
    with session.open() as store:
        receipt = session.find(store, tape_).discard(
            reason, key=key, actor=actor, meta=facts, expected_head=expected_head
        )
    _told(session, receipt)
