"""Finding a tape, and seeing what it is: ls, info, search, anchors, tree, stats."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

import tape
from tape.command.arguments import at_moment, check_choice
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import Line, Out, clean, columns, cut, flat, moment, money, wrapped
from tape.command.registry import command, complete_tape, one_of
from tape.command.show import json_shapes
from tape.command.show.branches import elsewhere
from tape.command.show.describe import label
from tape.command.show.messages import learn_calls, message_line
from tape.command.show.spending import spending_lines
from tape.core.amounts import count, size
from tape.core.view.fold import CLOSED

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["anchors", "info", "ls", "search", "stats", "tree"]

ORDERS = ("created", "updated")
_SPENT_BY = ("model", "day", "tape", "turn")
_NARROW = 76
"""In a terminal narrower than this a list of tapes has fewer columns."""
_LONG, _SHORTEST = 20, 8
"""Ids longer than this are shortened where there is little room, and to no less than this."""
STATUSES = ("active", *sorted(CLOSED))

TapeArgument = Annotated[
    str,
    typer.Argument(
        metavar="TAPE",
        help="A tape by id, id prefix or name; or a point of it: TAPE:SEQ, TAPE@POINT.",
        autocompletion=complete_tape,
    ),
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="POINT", help="Show the tape as of a seq, a time, an anchor or a message.")
]


@command(
    "tape ls",
    "tape ls --status active --agent planner",
    "tape ls --since 2d --order updated --json | jq -r '.tapes[].id'",
    paged=True,
)
def ls(
    session: Session,
    status: Annotated[
        str | None, typer.Option(help="Filter by status: active, completed, ...", autocompletion=one_of(*STATUSES))
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Filter by agent.")] = None,
    label_: Annotated[str | None, typer.Option("--label", help="Filter by label.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="TAPE", help="Show only forks of this tape.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Show only tapes changed since then: 2h (2 hours ago), 7d or 2026-03-01."),
    ] = None,
    order: Annotated[
        str,
        typer.Option(metavar="ORDER", help="Sort newest first by: created or updated.", autocompletion=one_of(*ORDERS)),
    ] = "created",
    hidden: Annotated[bool, typer.Option("--hidden", help="Show only hidden tapes.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Show at most N.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after the previous page.")] = None,
) -> None:
    """List the tapes of a store, newest first."""
    check_choice(status, STATUSES, "--status")
    with session.open(read_only=True) as store:
        page = store.list(
            status=status,
            agent=agent,
            label=label_,
            parent=None if parent is None else session.find(store, parent).id,
            updated_after=None if since is None else at_moment(since, "--since"),
            limit=limit,
            cursor=cursor,
            order=order,
            hidden=hidden,
        )
        times = {} if session.out.as_json else {t.id: _last_message(store, t) for t in page}
    if session.out.as_json:
        session.out.json({"tapes": [json_shapes.members(about) for about in page], "cursor": page.cursor})
        return
    ids = _short_ids([about.id for about in page], session.out.columns)
    facts: dict[str, Callable[[tape.TapeInfo], str]] = {
        "TAPE": lambda about: ids[about.id],
        "NAME": lambda about: about.name or "-",
        "STATUS": lambda about: about.status,
        "ENTRIES": lambda about: f"{about.entry_count:,}",
        "MESSAGES": lambda about: f"{about.message_count:,}",
        "LAST MESSAGE": lambda about: times[about.id],
    }
    if session.out.columns is not None and session.out.columns < _NARROW:
        for name in ("STATUS", "ENTRIES", "MESSAGES"):
            del facts[name]
    rows = [[fact(about) for fact in facts.values()] for about in page]
    styles = ["seq", *[""] * (len(facts) - 2), "quiet"]
    session.out.lines(columns([*facts], rows, styles, most=session.out.columns, shrink=(1,)))
    if page.cursor is not None:
        session.out.note(session.with_store_options(f"next page: tape ls --cursor {shlex.quote(page.cursor)}"))


def _short_ids(ids: list[str], most: int | None) -> dict[str, str]:
    """Return ids as they are shown: in a narrow terminal, long ones are shortened as far as they stay unique."""
    widest = max(map(len, ids), default=0)
    if most is None or widest <= (most - 55):
        return {id: id for id in ids}
    needed = _SHORTEST
    roots: list[str] = []
    for id in sorted(ids):
        if not roots or not id.startswith(roots[-1]):
            roots.append(id)
    for before, after in itertools.pairwise(roots):
        differing = (index for index, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
        needed = max(needed, next(differing, -1) + 1)
    # A fork's id may begin with its parent's id, so the beginning alone would name the parent.
    shown = {id: f"..{id[-_LONG // 2 :]}" if id not in roots else id[:needed] for id in ids}
    return {id: shown[id] if len(id) > _LONG else id for id in ids}


def _last_message(store: tape.Store, about: tape.TapeInfo) -> str:
    """Return when the last message happened, or was recorded where that is not known."""
    if not about.message_count:
        return "-"
    last = next(iter(store.get(about.id).messages(limit=1)), None) if not about.hidden else None
    return moment(about.last_message_at if last is None else last.occurred_at or last.recorded_at)[:16]


@command("tape info chat-1", "tape info chat-1 --json | jq .usage", paged=True)
def info(session: Session, tape_: TapeArgument) -> None:
    """Show a tape's status, forks, last anchor and token usage."""
    with session.open(read_only=True) as store:
        named = session.address(store, tape_)
        chat = named.chat
        about, family, used = chat.info(), chat.lineage(), chat.usage()
        last = next(reversed(chat.anchors(limit=1)), None)
        checked = store.health(chat.id).verified
        others = elsewhere(chat)
    if session.out.as_json:
        session.out.json(
            {
                **json_shapes.members(about),
                "usage": json_shapes.members(used),
                "lineage": json_shapes.lineage(family),
                "anchor": None if last is None else json_shapes.anchor(last),
                "verified": None
                if checked is None
                else {"seq": checked.seq, "hash": checked.hash, "at": moment(checked.at)},
            }
        )
        return
    facts: list[tuple[str, str]] = [
        ("tape", about.id),
        ("name", about.name or "-"),
        ("status", about.status + (f" ({about.reason})" if about.reason else "")),
        ("head", f"seq {about.head}, {about.head_hash}"),
        ("entries", f"{about.entry_count:,}"),
        ("messages", f"{about.message_count:,} in the view" + (f", {others}" if others else "")),
        ("owner", about.owner or "-"),
        ("agent", about.agent or "-"),
        ("labels", ", ".join(about.labels) or "-"),
        ("created", moment(about.created_at)),
        ("updated", moment(about.updated_at)),
    ]
    facts += [("inherits", f"{up.tape} up to seq {up.seq}") for up in family.ancestors]
    facts += [("fork", f"{down.tape} at seq {down.seq} of {down.parent}, {down.state}") for down in family.descendants]
    if about.redirect is not None:
        facts.append(("continued", f"on {about.redirect}"))
    if last is not None:
        facts.append(
            ("anchor", f"{last.name} at seq {last.seq}" + (f": {cut(last.summary, 80)}" if last.summary else ""))
        )
    if used.calls:
        tokens = f"{used.input_tokens:,} in, {used.output_tokens:,} out"
        cost = f", {money(used.cost)}" if used.cost else ""
        facts.append(("usage", f"{tokens}, {count(used.calls, 'call')}{cost}"))
    facts.append(("verified", "never" if checked is None else f"up to seq {checked.seq} at {moment(checked.at)}"))
    for name, value in facts:
        first, *more = wrapped(flat(value), session.out.columns and session.out.columns - 10)
        session.out.line([(f"{name:<10}", "quiet"), *first])
        session.out.lines([" " * 10, *row] for row in more)


@command(
    "tape search 'night train'",
    "tape search 'time*' --tape chat-1 --role tool",
    "tape search refund --since 7d --json | jq -r '.[].tape' | sort -u",
    paged=True,
)
def search(
    session: Session,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help='Words to find; "quoted words" are a phrase, word* is a prefix.')
    ],
    tape_: Annotated[
        str | None,
        typer.Option(
            "--tape",
            metavar="TAPE",
            help="Search only this tape, with the messages it inherits.",
            autocompletion=complete_tape,
        ),
    ] = None,
    role: Annotated[str | None, typer.Option(help="Filter by role.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Show only messages recorded since then: 2h (2 hours ago), 7d or 2026-03-01."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Show only messages recorded up to then.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most N.")] = 20,
    index: Annotated[
        bool, typer.Option("--index", help="Update the search index first. This writes to the store.")
    ] = False,
) -> None:
    """Search messages for words, newest first, on one tape or all."""
    from tape.handles.doctor import LONG_LAG

    with session.open(read_only=not index) as store:
        hits = store.search(
            query,
            tape=None if tape_ is None else session.find(store, tape_).id,
            limit=limit,
            role=role,
            since=None if since is None else at_moment(since, "--since"),
            until=None if until is None else at_moment(until, "--until"),
        )
        lag = store.health().index_lag or 0
    if lag > LONG_LAG:
        session.out.note(
            f"the search index is about {count(lag, 'entry')} behind, which slows down searches; update it with --index"
        )
    if session.out.as_json:
        session.out.array(json_shapes.hit(hit) for hit in hits)
        return
    for hit in hits:
        where, role = f"{clean(hit.tape)}:{hit.seq}", flat(hit.role or "item")
        line: Line = [(where, "seq"), " ", (role, "kind"), " ", flat(hit.snippet)]
        session.out.lines(wrapped(line, session.out.columns))
    if not hits:
        session.out.note("no matches")


@command("tape anchors chat-1", "tape anchors chat-1 --limit 5 --json", paged=True)
def anchors(
    session: Session,
    tape_: TapeArgument,
    at: AtOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show only the last N.")] = 20,
) -> None:
    """List a tape's anchors and handoffs, oldest first."""
    with session.open(read_only=True) as store:
        listed = session.address(store, tape_, at).view.anchors(limit=limit)
    if session.out.as_json:
        session.out.array(json_shapes.anchor(anchor) for anchor in listed)
        return
    for anchor in listed:
        stale = " (stale: a message it was made from has changed)" if anchor.stale else ""
        session.out.line([(f"{label(anchor.tape)}:{anchor.seq}", "seq"), " ", (flat(anchor.name), "head"), stale])
        if anchor.summary:
            session.out.lines(wrapped(cut(anchor.summary, 1000), session.out.columns, "    "))
        for step in anchor.next_steps:
            session.out.lines(wrapped(f"next: {cut(step, 1000)}", session.out.columns, "    "))
    if not listed:
        session.out.note("no anchors")


@command("tape tree chat-1", "tape tree chat-1@12", "tape tree chat-1 --forks", paged=True)
def tree(
    session: Session,
    tape_: TapeArgument,
    at: AtOption = None,
    forks: Annotated[bool, typer.Option("--forks", help="Show the tree of forks instead of the messages.")] = False,
) -> None:
    """Draw the messages of a tape, or its forks, as a tree."""
    if forks and at is not None:
        raise Failure("--forks shows the present only", "leave out --at", USAGE)
    with session.open(read_only=True) as store:
        named = session.address(store, tape_, at)
        chat, view = named.chat, named.view
        if forks:
            _print_family(session, chat)
            return
        active = view.messages()
        messages = {message.id: message for message in active}
        for end in view.heads():
            if end.id not in messages:
                messages.update((message.id, message) for message in view.messages(branch=end.id))
    on_path = {message.id for message in active}
    if session.out.as_json:
        ordered = sorted(messages.values(), key=lambda message: (message.tape != chat.id, message.seq))
        session.out.array({**json_shapes.message(message), "active": message.id in on_path} for message in ordered)
        return
    children: dict[str | None, list[tape.Message]] = {}
    for message in messages.values():
        children.setdefault(message.parent if message.parent in messages else None, []).append(message)
    session.out.lines(_branch_lines(children, on_path, session.out))
    if not messages:
        session.out.note("no messages")


def _branch_lines(children: dict[str | None, list[tape.Message]], active: set[str], out: Out) -> list[Line]:
    """Return the tree as lines. Only a branching indents, so that a long conversation does not run off to the right."""
    lines: list[Line] = []
    calls: dict[str, str] = {}
    # The branch that continues without an indent is drawn last, or it would run through the others.
    waiting = [(message, 0) for message in reversed(children.get(None, []))]
    while waiting:
        message, depth = waiting.pop()
        mark = "*" if message.id in active else "o"
        marked = (f"{mark} {message.seq}", "seq" if mark == "*" else "quiet")
        learn_calls([message.data], calls)
        room = out.room(2 * depth + len(marked[0]) + 1)
        lines.append(["| " * depth, marked, " ", message_line(message.data, room, calls)])
        below = sorted(children.get(message.id, []), key=lambda child: (child.id not in active, child.seq))
        for index, child in enumerate(below):
            waiting.append((child, depth + (index > 0)))
    return lines


def _print_family(session: Session, chat: tape.Tape) -> None:
    about, family = chat.info(), chat.lineage()
    if session.out.as_json:
        session.out.json({"tape": about.id, **json_shapes.lineage(family)})
        return
    for depth, up in enumerate(reversed(family.ancestors)):
        session.out.line(["  " * depth, (clean(up.tape), "head"), (f"  inherited up to {up.seq}", "quiet")])
    depths = {about.id: len(family.ancestors)}
    session.out.line(
        ["  " * depths[about.id], ("* ", "seq"), (clean(about.id), "head"), f"  {about.status}, head {about.head}"]
    )
    below: dict[str, list[tape.Descendant]] = {}
    for down in family.descendants:
        below.setdefault(down.parent, []).append(down)
    waiting = list(reversed(below.get(about.id, [])))
    while waiting:
        down = waiting.pop()
        depths[down.tape] = depths[down.parent] + 1
        session.out.line(
            ["  " * depths[down.tape], clean(down.tape), (f"  forked at {down.seq}, {down.state}", "quiet")]
        )
        waiting += reversed(below.get(down.tape, []))


@command("tape stats", "tape stats --by model", "tape stats --by turn --tape chat-1", "tape stats --json | jq .entries")
def stats(
    session: Session,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="Show tokens and cost by model, day, tape or turn; turn needs --tape.",
            autocompletion=one_of(*_SPENT_BY),
        ),
    ] = None,
    tape_: Annotated[
        str | None, typer.Option("--tape", metavar="TAPE", help="With --by: count only this tape.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="With --by: count from then on: 2h (2 hours ago), 7d or 2026-03-01."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="With --by: count up to then.")] = None,
    prices: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --by: the price table to use [default: $TAPE_PRICES, or built in]."),
    ] = None,
) -> None:
    """Count tapes, entries, messages and bytes, or show token usage and cost."""
    if by is None and (tape_ or since or until or prices):
        raise Failure("--tape, --since, --until and --prices need --by", f"add one, as in --by {_SPENT_BY[0]}", USAGE)
    with session.open(read_only=True) as store:
        if by is not None:
            check_choice(by, _SPENT_BY, "--by")
            spent = store.usage(
                by=by,
                tape=None if tape_ is None else session.find(store, tape_).id,
                since=None if since is None else at_moment(since, "--since"),
                until=None if until is None else at_moment(until, "--until"),
                prices=None if prices is None else tape.load_prices(prices),
            )
            if session.out.as_json:
                session.out.array(json_shapes.members(row) for row in spent)
            else:
                session.out.lines(spending_lines(spent))
            return
        counts = store.stats()
    if session.out.as_json:
        session.out.json(json_shapes.members(counts))
        return
    rows = [("tapes", f"{counts.tapes:,}"), *((f"  {name}", f"{n:,}") for name, n in counts.by_status.items())]
    rows += [("entries", f"{counts.entries:,}"), ("messages", f"{counts.messages:,}"), ("payloads", size(counts.bytes))]
    for name, value in rows:
        session.out.line([(f"{name:<12}", "quiet"), value])
