"""The log of a tape: its entries as git log shows commits, chosen by what they are, who caused them, what they say."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import tape
from tape.command.addresses import own_seq
from tape.command.arguments import at_moment
from tape.command.exit_codes import USAGE, Failure
from tape.command.registry import command, one_of
from tape.command.show import json_shapes
from tape.command.show.describe import entry_failed, entry_lines, entry_text, message_of, oneline
from tape.command.show.history import backwards, drawn, recent, with_tools
from tape.command.show.messages import Look, tools
from tape.command.verbs.find import TapeArgument
from tape.core.entries import payloads

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["KindOption", "known_kinds", "log"]

KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        "-k",
        metavar="KIND",
        help="Show only entries of this kind; may be repeated.",
        autocompletion=one_of(*payloads.KINDS),
    ),
]


def known_kinds(kinds: list[str] | None) -> frozenset[str] | None:
    """Return the kinds that an option names; raises Failure for an unknown one."""
    for kind in kinds or ():
        if kind not in payloads.KINDS:
            raise Failure(f"--kind: unknown kind {kind!r}", f"choose one of: {', '.join(payloads.KINDS)}", USAGE)
    return frozenset(kinds) if kinds else None


class _Filter(NamedTuple):
    """Which entries are shown."""

    kinds: frozenset[str] | None
    after: datetime | None
    before: datetime | None
    text: re.Pattern[str] | None
    actor: str | None
    tool: str | None
    errors: bool
    events: bool

    def takes(self, entry: tape.Entry, calls: dict[str, str]) -> bool:
        """Whether an entry is shown; the cheapest conditions are checked first."""
        at = entry.occurred_at or entry.recorded_at
        return (
            (self.kinds is None or entry.kind in self.kinds)
            and (self.events or entry.kind != "event")
            and (self.actor is None or entry.actor == self.actor)
            and (self.after is None or at >= self.after)
            and (self.before is None or at <= self.before)
            and (self.tool is None or self.tool in tools(message_of(entry) or {}, calls))
            and (not self.errors or entry_failed(entry))
            and (self.text is None or self.text.search(entry_text(entry, Look(calls=calls))) is not None)
        )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    """Return the pattern of --grep; a lowercase pattern ignores case."""
    if text is None:
        return None
    try:
        return re.compile(text, re.IGNORECASE if text == text.lower() else 0)
    except re.error as error:
        raise Failure(
            f"--grep: invalid regular expression {text!r}: {error}", "escape special characters with \\", USAGE
        ) from None


@command(
    "tape log chat-1 --oneline",
    "tape log chat-1 --graph",
    "tape log chat-1@booking --grep 'night train' --no-events",
    "tape log chat-1 --errors --tool Bash --since 2h",
    "tape log chat-1 -n 20 --json | jq '.[].payload'",
    paged=True,
)
def log(
    session: Session,
    tape_: TapeArgument,
    short: Annotated[bool, typer.Option("--oneline", help="Print one line per entry.")] = False,
    graphed: Annotated[bool, typer.Option("--graph", help="Draw forks and merges as a graph.")] = False,
    kind: KindOption = None,
    grep: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Show only entries whose text matches; a lowercase pattern ignores case."),
    ] = None,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Show only entries of this actor.")] = None,
    tool: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show only calls of this tool and their results.")
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Show only failed tool results and failure events.")] = False,
    no_events: Annotated[bool, typer.Option("--no-events", help="Hide events.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Show only entries since then: 2h (2 hours ago), 7d or 2026-03-01."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Show only entries up to then: 2h (2 hours ago), 7d or 2026-03-01."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Show at most N entries.")] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Show the oldest first; -n still selects the newest.")
    ] = False,
) -> None:
    """Show the entries of a tape, newest first, as git log shows commits."""
    if graphed and reverse:
        raise Failure("--graph always shows the newest first", "leave out --reverse", USAGE)
    after = None if since is None else at_moment(since, "--since")
    before = None if until is None else at_moment(until, "--until")
    filter = _Filter(known_kinds(kind), after, before, _pattern(grep), actor, tool, errors, not no_events)
    calls: dict[str, str] = {}
    with session.open(read_only=True) as store:
        named = session.address(store, tape_)
        if graphed:
            if named.point is not None:
                raise Failure("--graph shows the present only", "name the tape without @POINT or :SEQ", USAGE)
            rows, names = drawn(store, named.chat, lambda entry: filter.takes(entry, calls), after)
            _print_graph(session, rows, Look(session.out.columns, calls, names), limit)
            return
        chosen = _chosen(named.chat, own_seq(named), filter, calls, limit, reverse=reverse)
        if session.out.as_json:
            session.out.array(json_shapes.entry(entry) for entry in chosen)
            return
        look = Look(session.out.columns, calls)
        for entry in chosen:
            session.out.lines([oneline(entry, look, when=True)] if short else entry_lines(entry, look))


def _chosen(
    chat: tape.Tape, head: int, filter: _Filter, calls: dict[str, str], limit: int | None, *, reverse: bool
) -> Iterator[tape.Entry]:
    """Yield the entries that are wanted, read page by page in the order in which they are shown."""
    if reverse and limit is None:
        entries: Iterable[tape.Entry] = chat.entries(before=head + 1)
    else:
        entries = recent(backwards(chat, head), filter.after)
    chosen = (entry for entry in with_tools(chat, entries, calls) if filter.takes(entry, calls))
    if not reverse or limit is None:
        return itertools.islice(chosen, limit)
    return reversed(collections.deque(itertools.islice(chosen, limit)))


def _print_graph(
    session: Session, rows: Iterable[tuple[str, tape.Entry | None]], look: Look, limit: int | None
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
        session.out.line(drawing if entry is None else [drawing, " ", *oneline(entry, look, beside=len(drawing) + 1)])
