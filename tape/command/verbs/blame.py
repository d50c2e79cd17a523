"""Blaming a context: where each part of it comes from, what is out, and which entry moved the request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

import tape
from tape.command.arguments import check_choice
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import Line, clean, columns, cut, flat, money
from tape.command.registry import command, one_of
from tape.command.show.describe import label
from tape.command.verbs.find import AtOption, TapeArgument
from tape.core.amounts import count

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["blame"]

_APIS = ("chat", "responses", "anthropic")
_EXCERPT = 60


@command(
    "tape blame chat-1",
    "tape blame chat-1 --recorded 42",
    "tape blame chat-1 --budget 8000 --against 42 --api anthropic",
    "tape blame chat-1 --json | jq .difference",
)
def blame(
    session: Session,
    tape_: TapeArgument,
    at: AtOption = None,
    recorded: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Explain the context that this entry recorded.")
    ] = None,
    against: Annotated[
        int | None,
        typer.Option(metavar="SEQ", help="Compare with the context that this entry recorded [default: the last one]."),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="The most tokens the context may take.")
    ] = None,
    branch: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="Use the branch that ends with this message.")
    ] = None,
    api: Annotated[
        str,
        typer.Option(
            metavar="API",
            help="The API whose request is compared: chat, responses or anthropic.",
            autocompletion=one_of(*_APIS),
        ),
    ] = "chat",
) -> None:
    """Show which entry each part of a context comes from, which parts are left out, and what changed."""
    check_choice(api, _APIS, "--api")
    if recorded is not None and any(option is not None for option in (at, budget, branch)):
        raise Failure("--recorded shows the recorded context unchanged", "leave out --at, --budget and --branch", USAGE)
    with session.open(read_only=True) as store:
        chat = session.find(store, tape_)
        for seq in (recorded, against):
            if seq is not None:
                session.within(chat, seq)
        if recorded is not None:
            explanation = chat.explain(recorded, against=against, api=api)
        else:
            view = session.at(chat, at)
            explanation = view.explain(view.context(budget=budget, branch=branch), against=against, api=api)
    if session.out.as_json:
        session.out.json(explanation.to_dict())
    else:
        session.out.lines(_lines(explanation))


def _lines(explanation: tape.Explanation) -> Iterator[Line]:
    origin = f"recorded at {explanation.recorded}" if explanation.recorded is not None else f"head {explanation.head}"
    limits = "no budget" if explanation.budget is None else f"budget {explanation.budget}"
    parts = f"{count(len(explanation.regions), 'part')}, about {explanation.tokens} tokens"
    yield [
        ("blame ", "head"),
        f"{clean(explanation.tape)}, {origin}: {parts}; {flat(explanation.policy)} {explanation.version}, {limits}",
    ]
    rows = [
        (
            str(region.tokens),
            _address(region.tape, region.seq),
            region.entry_kind or "-",
            region.actor or "-",
            _subject(region),
            region.step,
        )
        for region in explanation.regions
    ]
    yield from columns(("TOKENS", "ENTRY", "BY", "ACTOR", "WHAT", "WHY"), rows, ("", "seq", "kind"))
    for out in explanation.left_out:
        last = f"-{out.last}" if out.last != out.first else ""
        yield [("- ", "remove"), f"{label(out.tape)}:{out.first}{last}  {flat(out.why)}"]
    if explanation.against is None:
        yield "no earlier context was recorded to compare with"
    elif explanation.difference is None:
        yield f"the context starts with all of the request recorded at {explanation.against}"
    else:
        yield from _moved(explanation.against, explanation.difference)


def _subject(region: tape.Region) -> str:
    if region.kind != "message":
        return region.kind
    return " ".join(filter(None, (region.role, region.message_id and cut(region.message_id, 16))))


def _address(name: str | None, seq: int | None) -> str:
    return "-" if name is None else f"{label(name)}:{seq}"


def _moved(against: int, moved: tape.Difference) -> Iterator[Line]:
    """Yield where the request differs from the one before, the entry that moved it, and what that loses."""
    by = f" by {flat(moved.actor)}" if moved.actor else ""
    entry = [(f"{_address(moved.tape, moved.seq)} ", "seq")] if moved.seq is not None else []
    yield [
        (f"the context differs at byte {moved.offset} ", "head"),
        f"from the request recorded at {against}: ",
        *entry,
        (f"{moved.cause}{by}", "kind"),
    ]
    yield f"    {flat(moved.why)}"
    if moved.before or moved.after:
        yield [("  - ", "remove"), cut(moved.before, _EXCERPT)]
        yield [("  + ", "add"), cut(moved.after, _EXCERPT) or "(the request ends here)"]
    cost = f", {money(moved.cost, moved.currency)} more" if moved.cost is not None and moved.currency else ""
    kept_tokens = f"about {moved.kept_tokens} tokens before it are unchanged"
    yield f"    {kept_tokens}, {moved.lost_tokens} can no longer come from the cache{cost}"
    if moved.cached_before is not None or moved.cached_after is not None:
        yield f"    reported usage: {moved.cached_before or 0} cached tokens then, {moved.cached_after or 0} now"
