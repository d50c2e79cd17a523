"""A context as text: what a model sees. Pure: from values to text."""

from __future__ import annotations

from collections.abc import Iterator

import tape
from tape.command.output import Line, clean, flat, wrapped
from tape.command.show.messages import Look, learn_calls, message_lines
from tape.core.amounts import count
from tape.core.context.manifest import Repair

__all__ = ["context_lines", "repair_line"]


def context_lines(built: tape.Context, look: Look) -> Iterator[Line]:
    """Yield a context as text: the prompt, the checkpoint, then the messages."""
    calls: dict[str, str] = {}
    learn_calls((message.data for message in built.messages), calls)
    look = look._replace(calls=calls)
    of = f" of {built.manifest.budget:,}" if built.manifest.budget is not None else ""
    about = f"about {built.tokens:,} tokens{of}, {count(len(built.messages), 'message')}, head {built.head}"
    yield [("context ", "head"), about]
    yield ""
    if built.prompt:
        yield [("prompt", "head")]
        yield from _set_in(built.prompt, look)
        yield ""
    if built.anchor is not None:
        yield [(f"anchor {flat(built.anchor.name)}", "head"), (f"  seq {built.anchor.seq}", "quiet")]
        yield from _set_in(built.anchor.summary or "", look)
        yield from (row for step in built.anchor.next_steps for row in _set_in(f"next: {flat(step)}", look))
        yield ""
    for message in built.messages:
        yield from message_lines(message, look)
    for repair in built.repairs:
        yield [("repaired ", "warn"), repair_line(repair)]


def _set_in(text: str, look: Look) -> Iterator[Line]:
    for line in clean(text).split("\n") if text else ():
        yield from wrapped(line, look.columns, "    ")


def repair_line(repair: Repair) -> str:
    """Return what was repaired in a context, and where."""
    call = f" {flat(repair.call)}" if repair.call else ""
    only = f" ({', '.join(repair.apis)} only)" if repair.apis else ""
    return f"{flat(repair.what)}{call} in {clean(repair.message_id)}{only}"
