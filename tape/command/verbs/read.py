"""Reading a tape: show, cat, context, diff, follow."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

import tape
from tape.command.addresses import own_seq
from tape.command.arguments import check_choice
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import clean, moment, wrapped
from tape.command.registry import command, complete_tape, one_of
from tape.command.show import json_shapes
from tape.command.show.branches import elsewhere, path_messages
from tape.command.show.contexts import context_lines, repair_line
from tape.command.show.describe import entry_heading, label, message_of, oneline
from tape.command.show.differences import CONTEXT, changes, side_by_side, stat_of
from tape.command.show.history import with_tools
from tape.command.show.messages import Look, indented, learn_calls, message_lines
from tape.command.show.views import effect
from tape.command.verbs.find import AtOption, TapeArgument
from tape.command.verbs.log import KindOption, known_kinds
from tape.core.merge.diff import Aligned, align
from tape.core.messages import shapes

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["ContextOption", "cat", "context", "diff", "follow", "show"]


FullOption = Annotated[
    bool, typer.Option("--full", help="Show thinking in full; a terminal shows only its first lines.")
]
ContextOption = Annotated[
    int, typer.Option("-U", "--unified", metavar="N", min=0, help="Show N lines of context around each change.")
]
_FORMATS = ("openai", "anthropic", "text")


@command(
    "tape show chat-1",
    "tape show chat-1:12",
    "tape show chat-1@booking --stat",
    "tape show chat-1 12 --json | jq .payload",
    paged=True,
)
def show(
    session: Session,
    tape_: TapeArgument,
    seq: Annotated[
        int | None, typer.Argument(metavar="[SEQ]", help="The entry to show [default: the last one].", min=1)
    ] = None,
    context_: ContextOption = CONTEXT,
    only_stat: Annotated[
        bool, typer.Option("--stat", help="Show how many words changed instead of the words.")
    ] = False,
    full: FullOption = False,
) -> None:
    """Show one entry in full: its text, its changes, its key and its hash."""
    with session.open(read_only=True) as store:
        named = session.address(store, tape_, None if seq is None else str(seq))
        chat = named.chat
        entry = chat.entry(seq=max(own_seq(named), 1))
        if session.out.as_json:
            session.out.json(json_shapes.entry(entry))
            return
        calls: dict[str, str] = {}
        list(with_tools(chat, [entry], calls))
        changed = effect(chat, entry)
    look = Look(session.out.columns, calls, full=full)
    session.out.lines(entry_heading(entry, look))
    session.out.lines(wrapped([("Key:    ", "quiet"), clean(entry.key)], look.columns))
    session.out.lines(wrapped([("Hash:   ", "quiet"), entry.hash], look.columns))
    message = message_of(entry)
    if only_stat:
        lines = stat_of(changed, None, look)
    elif message is not None and not (changed.revised or changed.retracted or changed.left):
        lines = indented(message, look)
    else:
        lines = changes(changed, look, context_, color=session.out.color)
    body = list(lines)
    if body:
        session.out.lines(["", *body])
    if message is None:
        written = msgspec.json.format(msgspec.json.encode(entry.payload), indent=2).decode()
        session.out.line()
        session.out.lines(row for line in clean(written).split("\n") for row in wrapped(line, look.columns))


@command(
    "tape cat chat-1",
    "tape cat chat-1@12",
    "tape cat chat-1 --last 5 --json | jq '.[].message'",
    paged=True,
)
def cat(
    session: Session,
    tape_: TapeArgument,
    at: AtOption = None,
    branch: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="Use the branch that ends with this message.")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, help="Show only the last N messages.")] = None,
    full: FullOption = False,
) -> None:
    """Print the messages of a tape, oldest first."""
    with session.open(read_only=True) as store:
        view = session.address(store, tape_, at).view
        messages = path_messages(view, branch) if last is None else iter(view.messages(branch=branch, limit=last))
        if session.out.as_json:
            session.out.array(json_shapes.message(message) for message in messages)
            return
        calls: dict[str, str] = {}
        shown = False
        for message in messages:
            learn_calls([message.data], calls)
            session.out.lines(message_lines(message, Look(session.out.columns, calls, full=full)))
            shown = True
        if not shown:
            session.out.note("no messages")
        others = elsewhere(view, branch)
        if others is not None:
            session.out.note(f"{others}; print one with --branch MESSAGE")


@command(
    "tape context chat-1 --budget 8000",
    "tape context chat-1@12 --format anthropic",
    "tape context chat-1 --manifest --json | jq .excluded",
    paged=True,
)
def context(
    session: Session,
    tape_: TapeArgument,
    at: AtOption = None,
    budget: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="The most tokens the context may take.")
    ] = None,
    branch: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="Use the branch that ends with this message.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Output format: openai, anthropic or text [default: text].",
            autocompletion=one_of(*_FORMATS),
        ),
    ] = None,
    manifest: Annotated[bool, typer.Option("--manifest", help="List what is included and excluded, and why.")] = False,
    recorded: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Rebuild the context that this entry recorded.")
    ] = None,
    full: FullOption = False,
) -> None:
    """Show what a model sees of a tape, now, at a past point, or as recorded."""
    check_choice(format, _FORMATS, "--format")
    if recorded is not None and (manifest or any(option is not None for option in (at, budget, branch, format))):
        raise Failure(
            "--recorded shows the recorded context unchanged", "leave out all other options but --json", USAGE
        )
    if manifest and format is not None:
        raise Failure("--manifest and --format cannot be combined", "leave out one of them", USAGE)
    with session.open(read_only=True) as store:
        named = session.address(store, tape_, at)
        if recorded is not None:
            _print_recalled(session, named.chat, recorded)
            return
        built = named.view.context(budget=budget, branch=branch)
    if manifest:
        _print_manifest(session, built.manifest)
    elif format not in (None, "text"):
        # The request itself is JSON, with or without --json.
        session.out.json(built.to_openai() if format == "openai" else built.to_anthropic())
    elif session.out.as_json:
        session.out.json(
            {
                "tape": named.chat.id,
                "head": built.head,
                "tokens": built.tokens,
                "budget": budget,
                "prompt": built.prompt,
                "prompt_stale": built.prompt_stale,
                "anchor": None if built.anchor is None else json_shapes.anchor(built.anchor),
                "summaries": [json_shapes.summary(summary) for summary in built.summaries],
                "messages": [json_shapes.message(message) for message in built.messages],
                "manifest": built.manifest.hash,
            }
        )
    else:
        session.out.lines(context_lines(built, Look(session.out.columns, full=full)))


def _print_manifest(session: Session, manifest: tape.Manifest) -> None:
    if session.out.as_json:
        session.out.json(msgspec.to_builtins(manifest))
        return
    session.out.line([("manifest ", "head"), (manifest.hash, "seq")])
    limits = "no budget" if manifest.budget is None else f"budget {manifest.budget}"
    limits += f", about {manifest.tokens} tokens, head {manifest.head}"
    session.out.line(f"{manifest.policy} {manifest.version}, {limits}")
    for part in manifest.included:
        label = _range(*part) if isinstance(part, list) else "a message that was made or changed for the context"
        session.out.line([("+ ", "add"), label])
    for out in manifest.excluded:
        session.out.line([("- ", "remove"), f"{_range(out.tape, out.first, out.last)}  {out.why}"])
    for repair in manifest.repairs:
        session.out.line([("~ ", "change"), repair_line(repair)])


def _range(name: str, first: int, last: int) -> str:
    return f"{label(name)}:{first}" + (f"-{last}" if last != first else "")


def _print_recalled(session: Session, chat: tape.Tape, seq: int) -> None:
    session.within(chat, seq)
    context = chat.recall(seq)
    shown = {
        "tape": chat.id,
        "seq": seq,
        "prompt": context.prompt,
        "anchor": None if context.anchor is None else json_shapes.anchor(context.anchor),
        "messages": context.messages,
        "manifest": context.manifest,
    }
    # What the model saw is data to compare byte for byte, so it is JSON in every case.
    session.out.json(shown)


@command(
    "tape diff chat-1@4",
    "tape diff chat-1@booking @20 --stat",
    "tape diff chat-1:4 chat-1:9 -U 1",
    "tape diff worked failed --json",
    paged=True,
)
def diff(
    session: Session,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A tape, TAPE:SEQ or TAPE@POINT (a seq, a time, an anchor or a message).",
            autocompletion=complete_tape,
        ),
    ],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="[B]",
            help="What to compare A with; @POINT and :SEQ mean the same tape [default: A as it is now].",
            autocompletion=complete_tape,
        ),
    ] = None,
    context_: ContextOption = CONTEXT,
    only_stat: Annotated[
        bool, typer.Option("--stat", help="Show how many words changed instead of the words.")
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if there are differences.")] = False,
) -> None:
    """Show what changed between two points of a tape, or between two tapes, word by word."""
    with session.open(read_only=True) as store:
        named = session.address(store, a)
        chat, before = named.chat, named.view
        if b is None and named.point is None:
            raise Failure(
                f"nothing to compare {a!r} with", "name a past point of it, as TAPE@SEQ, or a second tape", USAGE
            )
        other = named._replace(point=None) if b is None else session.address(store, b, beside=chat)
        after = other.view
        changed = chat.diff(before, after)
        # Tapes that are no family have no ids in common, and are the same only in what they say.
        strangers = chat.id != other.chat.id and _root(chat) != _root(other.chat)
        aligned = align(before.messages(), after.messages()) if strangers else None
        if aligned is not None:
            changed = tape.Diff(aligned.only("+"), [], aligned.only("-"), [], changed.anchored)
        calls = {} if session.out.as_json else _calls_around(changed, before, after)
    lines = None if only_stat else context_
    if session.out.as_json:
        session.out.json(json_shapes.diff(changed, aligned.parted if aligned is not None else None))
    elif not changed:
        session.out.note("no differences")
    else:
        _print_diff(session, (a, b or chat.id), changed, aligned, Look(session.out.columns, calls), lines)
    if exit_code and changed:
        raise typer.Exit(1)


def _calls_around(changed: tape.Diff, *views: tape.Snapshot) -> dict[str, str]:
    """Return the names of the tools by the calls of a difference; the views are read only if one answers a call."""
    calls: dict[str, str] = {}
    sides = [*changed.added, *changed.retracted]
    sides += [side for change in changed.revised for side in (change.before, change.after)]
    if any(shapes.read(message.data).results for message in sides):
        sides = [message for view in views for message in view.messages()]
    learn_calls((message.data for message in sides), calls)
    return calls


def _print_diff(
    session: Session,
    names: tuple[str, str],
    changed: tape.Diff,
    aligned: Aligned | None,
    look: Look,
    lines: int | None,
) -> None:
    """Print a difference with so many lines around each change, or as counts."""
    if lines is None:
        session.out.lines(stat_of(changed, aligned, look))
        return
    before, after = names
    session.out.line([(f"--- {clean(before)}", "head")])
    session.out.line([(f"+++ {clean(after)}", "head")])
    color = session.out.color
    if aligned is None:
        session.out.lines(changes(changed, look, lines, color=color))
    else:
        session.out.lines(side_by_side(aligned, changed, look, lines, color=color))


def _root(chat: tape.Tape) -> str:
    """Return the tape from which a tape's family comes."""
    above = chat.lineage().ancestors
    return above[-1].tape if above else chat.id


@command(
    "tape follow",
    "tape follow --tape chat-1 --kind append",
    "tape follow --all --timeout 1 --json | jq -r .kind | sort | uniq -c",
)
def follow(
    session: Session,
    tape_: Annotated[
        str | None,
        typer.Option("--tape", metavar="TAPE", help="Show only entries of this tape.", autocompletion=complete_tape),
    ] = None,
    kind: KindOption = None,
    after: Annotated[int | None, typer.Option(metavar="POSITION", min=0, help="Start after this position.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Start with the oldest entry.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop after this long without a new entry.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after N entries.")] = None,
) -> None:
    """Print new entries of all processes as they are recorded, until interrupted."""
    if everything and after is not None:
        raise Failure("--all and --after cannot be combined", "leave out one of them", USAGE)
    kinds = known_kinds(kind)
    with session.open(read_only=True) as store:
        only = None if tape_ is None else session.find(store, tape_).id
        start = 0 if everything else after
        if start is None:
            from tape.db.maintain.inspect import feed_now

            with session.database(read_only=True) as database:
                start = feed_now(database)
        entries = (
            entry
            for entry in store.follow(start, timeout=timeout)
            if (only is None or entry.tape == only) and (kinds is None or entry.kind in kinds)
        )
        for entry in itertools.islice(entries, limit):
            if session.out.as_json:
                session.out.json_line(json_shapes.entry(entry, position=True))
            else:
                when = (f"{moment(entry.recorded_at)} ", "quiet")
                used = len(moment(entry.recorded_at)) + 1
                session.out.line([when, *oneline(entry, Look(session.out.columns, tapes={}), beside=used)])
                session.out.flush()
