"""Reading a tape: log, show, cat, context, diff, follow."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import tape
from tape.command.arguments import at_moment, check_choice
from tape.command.exit_codes import NOT_FOUND, USAGE, Failure
from tape.command.output import clean, flat, moment
from tape.command.registry import command, one_of
from tape.command.show import json_shapes
from tape.command.show.describe import changes, entry_lines, label, message_lines, oneline, side_by_side
from tape.command.show.history import backwards, drawn, recent
from tape.command.verbs.find import AtOption, TapeArgument
from tape.core.context.manifest import Repair
from tape.core.entries import payloads
from tape.core.merge.diff import align

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["cat", "context", "context_lines", "diff", "follow", "log", "show"]


_FORMATS = ("openai", "anthropic", "text")

KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        "-k",
        metavar="KIND",
        help="Only entries of this kind; may be repeated.",
        autocompletion=one_of(*payloads.KINDS),
    ),
]


def _known_kinds(kinds: list[str] | None) -> frozenset[str] | None:
    for kind in kinds or ():
        if kind not in payloads.KINDS:
            raise Failure(f"{kind!r} is not a kind of entry", f"one of {', '.join(payloads.KINDS)}", USAGE)
    return frozenset(kinds) if kinds else None


@command(
    "tape log chat-1 --oneline",
    "tape log chat-1 --graph",
    "tape log chat-1 --kind revise --kind retract --since 2h",
    "tape log chat-1 -n 20 --json | jq '.[].payload'",
)
def log(
    session: Session,
    tape_: TapeArgument,
    short: Annotated[bool, typer.Option("--oneline", help="One line for each entry.")] = False,
    graphed: Annotated[bool, typer.Option("--graph", help="With its forks and merges, drawn at the side.")] = False,
    kind: KindOption = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only those recorded since: 2h, 2026-03-01.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only those recorded until.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at most.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Oldest first.")] = False,
) -> None:
    """Show the entries of a tape, newest first, as git log shows commits."""
    kinds = _known_kinds(kind)
    if graphed and reverse:
        raise Failure("--graph goes from the newest to the oldest", "leave out --reverse", USAGE)
    after = None if since is None else at_moment(since, "--since")
    before = None if until is None else at_moment(until, "--until")
    with session.open() as store:
        chat = session.find(store, tape_)
        if graphed:
            rows, names = drawn(store, chat, lambda entry: _wanted(entry, kinds, before), after)
            _print_graph(session, rows, names, limit)
            return
        entries = recent(backwards(chat, chat.info().head), after)
        wanted = (entry for entry in entries if _wanted(entry, kinds, before))
        chosen: Iterator[tape.Entry] = itertools.islice(wanted, limit)
        if reverse:
            chosen = iter(list(chosen)[::-1])
        if session.out.as_json:
            session.out.array(json_shapes.entry(entry) for entry in chosen)
            return
        for entry in chosen:
            session.out.lines([oneline(entry)] if short else entry_lines(entry))


def _wanted(entry: tape.Entry, kinds: frozenset[str] | None, before: datetime | None) -> bool:
    return (kinds is None or entry.kind in kinds) and (before is None or entry.recorded_at <= before)


def _print_graph(
    session: Session, rows: Iterable[tuple[str, tape.Entry | None]], names: dict[str, str], limit: int | None
) -> None:
    shown = 0

    def chosen() -> Iterator[tuple[str, tape.Entry | None]]:
        nonlocal shown
        for drawing, entry in rows:
            if entry is not None:
                if limit is not None and shown >= limit:
                    return
                shown += 1
            yield drawing, entry

    if session.out.as_json:
        session.out.array(json_shapes.entry(entry) for _, entry in chosen() if entry is not None)
        return
    for drawing, entry in chosen():
        session.out.line(drawing if entry is None else [drawing, " ", *oneline(entry, 60, names)])


@command("tape show chat-1 12", "tape show chat-1 12 --json | jq .payload")
def show(
    session: Session,
    tape_: TapeArgument,
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="The entry's seq.", min=1)],
) -> None:
    """Show one entry in full: its key, its hash, its payload and what it changed."""
    with session.open() as store:
        chat = session.find(store, tape_)
        session.within(chat, seq)
        entry = next(chat.entries(after=seq - 1, limit=1), None)
        if entry is None or entry.seq != seq:
            raise Failure(f"tape {chat.id!r} has no seq {seq}", f"see: tape verify {shlex.quote(chat.id)}", NOT_FOUND)
        if session.out.as_json:
            session.out.json(json_shapes.entry(entry))
            return
        changed = changes(chat.diff(seq - 1, seq))
    session.out.lines(entry_lines(entry)[:-2])
    session.out.line(f"Key:     {clean(entry.key)}")
    session.out.line(f"Hash:    {entry.hash}")
    session.out.line(f"Version: {entry.version}")
    session.out.line()
    written = msgspec.json.format(msgspec.json.encode(entry.payload), indent=2).decode()
    session.out.lines(clean(line) for line in written.split("\n"))
    if changed:
        session.out.line()
        session.out.lines(changed)


@command("tape cat chat-1", "tape cat chat-1 --at 12", "tape cat chat-1 --last 5 --json | jq '.[].message'")
def cat(
    session: Session,
    tape_: TapeArgument,
    at: AtOption = None,
    branch: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="The branch that ends with this message.")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, help="Only so many of the last.")] = None,
) -> None:
    """Print the messages of a tape, from the first to the head."""
    with session.open() as store:
        view = session.at(session.find(store, tape_), at)
        messages = view.messages(branch=branch) if last is None else list(view.messages(branch=branch, limit=last))
    if session.out.as_json:
        session.out.array(json_shapes.message(message) for message in messages)
        return
    for message in messages:
        session.out.lines(message_lines(message))
    if not messages:
        session.out.note("no messages")


@command(
    "tape context chat-1 --budget 8000",
    "tape context chat-1 --at 12 --format anthropic",
    "tape context chat-1 --manifest --json | jq .excluded",
)
def context(
    session: Session,
    tape_: TapeArgument,
    at: AtOption = None,
    budget: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="The most that it may take.")] = None,
    branch: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="The branch that ends with this message.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="openai, anthropic or text [default: text].", autocompletion=one_of(*_FORMATS)
        ),
    ] = None,
    manifest: Annotated[bool, typer.Option("--manifest", help="What is in, what is out, and why.")] = False,
    recorded: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Rebuild the context whose manifest this entry recorded.")
    ] = None,
) -> None:
    """Show what a model would see, now or at any point of the past, or did see when it was recorded."""
    check_choice(format, _FORMATS, "--format")
    if recorded is not None and (manifest or any(one is not None for one in (at, budget, branch, format))):
        raise Failure("--recorded is the context as it was", "leave out every other option but --json", USAGE)
    if manifest and format is not None:
        raise Failure("--manifest has no --format", "leave out one of them", USAGE)
    with session.open() as store:
        chat = session.find(store, tape_)
        if recorded is not None:
            _print_recalled(session, chat, recorded)
            return
        built = session.at(chat, at).context(budget=budget, branch=branch)
    if manifest:
        _print_manifest(session, built.manifest)
    elif format not in (None, "text"):
        # The request itself is JSON, with or without --json.
        session.out.json(built.to_openai() if format == "openai" else built.to_anthropic())
    elif session.out.as_json:
        session.out.json(
            {
                "tape": chat.id,
                "head": built.head,
                "tokens": built.tokens,
                "budget": budget,
                "prompt": built.prompt,
                "prompt_stale": built.prompt_stale,
                "anchor": None if built.anchor is None else json_shapes.anchor(built.anchor),
                "summaries": [json_shapes.summary(one) for one in built.summaries],
                "messages": [json_shapes.message(one) for one in built.messages],
                "manifest": built.manifest.hash,
            }
        )
    else:
        session.out.lines(context_lines(built))


def context_lines(built: tape.Context) -> Iterator[Any]:
    """Yield a context as text: the prompt, the checkpoint, then the messages."""
    of = f" of {built.manifest.budget}" if built.manifest.budget is not None else ""
    yield [("context ", "head"), f"about {built.tokens} tokens{of}, {len(built.messages)} messages, head {built.head}"]
    yield ""
    if built.prompt:
        yield [("prompt", "head")]
        yield from (f"    {line}" for line in clean(built.prompt).split("\n"))
        yield ""
    if built.anchor is not None:
        yield [(f"anchor {flat(built.anchor.name)}", "head"), (f"  seq {built.anchor.seq}", "quiet")]
        if built.anchor.summary:
            yield from (f"    {line}" for line in clean(built.anchor.summary).split("\n"))
        yield from (f"    next: {flat(step)}" for step in built.anchor.next_steps)
        yield ""
    for message in built.messages:
        yield from message_lines(message)
    for repair in built.repairs:
        yield [("repaired ", "warn"), _repair_line(repair)]


def _print_manifest(session: Session, manifest: tape.Manifest) -> None:
    if session.out.as_json:
        session.out.json(msgspec.to_builtins(manifest))
        return
    session.out.line([("manifest ", "head"), (manifest.hash, "seq")])
    limits = "no budget" if manifest.budget is None else f"budget {manifest.budget}"
    limits += f", about {manifest.tokens} tokens, head {manifest.head}"
    session.out.line(f"{manifest.policy} {manifest.version}, {limits}")
    for part in manifest.included:
        what = _range(*part) if isinstance(part, list) else "a message made or altered for the context"
        session.out.line([("+ ", "add"), what])
    for out in manifest.excluded:
        session.out.line([("- ", "remove"), f"{_range(out.tape, out.first, out.last)}  {out.why}"])
    for repair in manifest.repairs:
        session.out.line([("~ ", "change"), _repair_line(repair)])


def _repair_line(repair: Repair) -> str:
    call = f" {flat(repair.call)}" if repair.call else ""
    only = f" ({', '.join(repair.apis)} only)" if repair.apis else ""
    return f"{flat(repair.what)}{call} in {clean(repair.message_id)}{only}"


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


@command("tape diff chat-1@4 chat-1@9", "tape diff chat-1@booking @20", "tape diff worked failed --json")
def diff(
    session: Session,
    a: Annotated[
        str, typer.Argument(metavar="A", help="A tape, or TAPE@POINT (a seq, a moment, an anchor, a message).")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another; @POINT is a point of the same tape.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when they differ.")] = False,
) -> None:
    """Show what changed from one point, or one tape, to another; of tapes that are no family, where they part."""
    with session.open() as store:
        chat, before = session.place(store, a)
        other, after = session.place(store, b, beside=chat)
        changed = chat.diff(before, after)
        # Tapes that are no family have no ids in common, and are the same only in what they say.
        strangers = chat.id != other.id and _root(chat) != _root(other)
        aligned = align(before.messages(), after.messages()) if strangers else None
        if aligned is not None:
            changed = tape.Diff(aligned.only("+"), [], aligned.only("-"), [], changed.anchored)
    if session.out.as_json:
        session.out.json(json_shapes.diff(changed, aligned.parted if aligned is not None else None))
    elif not changed:
        session.out.note("no difference")
    else:
        session.out.line([(f"--- {clean(a)}", "head")])
        session.out.line([(f"+++ {clean(b)}", "head")])
        session.out.lines(changes(changed) if aligned is None else side_by_side(aligned, changed))
    if exit_code and changed:
        raise typer.Exit(1)


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
    tape_: Annotated[str | None, typer.Option("--tape", metavar="TAPE", help="Only this tape.")] = None,
    kind: KindOption = None,
    after: Annotated[int | None, typer.Option(metavar="POSITION", min=0, help="Go on behind this position.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Begin with all that is there.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="End when nothing came for so long.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after so many.")] = None,
) -> None:
    """Print entries as they are recorded, by whichever process, until interrupted."""
    if everything and after is not None:
        raise Failure("--all begins before every position", "leave out --after", USAGE)
    kinds = _known_kinds(kind)
    with session.open() as store:
        only = None if tape_ is None else session.find(store, tape_).id
        start = 0 if everything else after
        if start is None:
            from tape.db.maintain.inspect import feed_now

            with session.database() as database:
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
                session.out.line([when, *oneline(entry, names={})])
                session.out.flush()
