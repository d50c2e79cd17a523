"""One entry with what it changed, and the whole view at a point, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

import tape
from tape.command.output import Line, clean, cut, flat
from tape.command.show.describe import oneline
from tape.command.show.differences import CONTEXT, changes
from tape.command.show.messages import Look, learn_calls, message_lines
from tape.core.amounts import count
from tape.core.entries import payloads

__all__ = ["effect", "step_lines", "view_lines"]

_ALONE = ("open", "state", "block", "usage", "event", "fork", "status", "label", "erase", "discard", "compact")
"""Kinds of entries that change no messages and no anchors."""


def effect(chat: tape.Tape, entry: tape.Entry) -> tape.Diff:
    """Return what an entry changed, reading no more of the tape than it must."""
    nothing = tape.Diff([], [], [], [], [])
    seq, payload = entry.seq, entry.payload
    if payload is None or entry.kind in _ALONE:
        return nothing
    if isinstance(payload, payloads.Append) and payload.parent is UNSET:
        # It was appended to the head, so nothing else changed.
        return tape.Diff([chat.at(seq).message(payload.id)], [], [], [], [])
    if isinstance(payload, payloads.Revise) and not (payload.hides or payload.shows):
        before, after = chat.at(seq - 1).find(payload.id), chat.at(seq).find(payload.id)
        if before is not None and after is not None:
            return tape.Diff([], [tape.Revised(before, after)], [], [], [])
    if isinstance(payload, payloads.Anchor | payloads.Handoff):
        return tape.Diff([], [], [], [], [anchor for anchor in chat.at(seq).anchors(limit=1) if anchor.seq == seq])
    if isinstance(payload, payloads.Merge) and not payload.into:
        return nothing
    return chat.diff(seq - 1, seq)


def step_lines(
    chat: tape.Tape, entry: tape.Entry, look: Look, context: int = CONTEXT, *, color: bool = False
) -> Iterator[Line]:
    """Yield an entry and what it changed. A plain append is shown by its entry alone."""
    yield oneline(entry, look)
    plain = isinstance(entry.payload, payloads.Append | payloads.Anchor | payloads.Handoff)
    changed = effect(chat, entry)
    if not plain or changed.left or changed.revised or changed.retracted:
        narrow = look if look.columns is None else look._replace(columns=look.columns - 4)
        for line in changes(changed, narrow, context, color=color):
            yield ["    ", *([line] if isinstance(line, str) else line)]


def view_lines(chat: tape.Tape, seq: int, look: Look, last: int | None = None) -> Iterator[Line]:
    """Yield the view as of a seq: its messages, or the ``last`` of them, its anchors, summaries, state and blocks.

    Documents that are loaded come last.
    """
    view = chat.at(seq)
    messages = view.messages() if last is None else list(view.messages(limit=last))
    total = len(messages) if last is None else view.info().message_count
    calls = dict(look.calls)
    learn_calls((message.data for message in messages), calls)
    look = look._replace(calls=calls)
    yield [("view ", "head"), (f"{clean(chat.id)}:{seq}", "seq"), f"  {count(total, 'message')}"]
    yield ""
    if last is not None and len(messages) == last:
        yield [(f"the last {count(last, 'message')}", "quiet")]
        yield ""
    for message in messages:
        yield from message_lines(message, look)
    for anchor in view.anchors():
        about = f"{flat(anchor.name)} (seq {anchor.seq}) {anchor.summary or ''}"
        yield [("anchor ", "head"), cut(about, look.room(7))]
    for summary in view.summaries():
        yield [("summary ", "head"), cut(f"of {count(len(summary.covers), 'message')}: {summary.text}", look.room(8))]
    for slot, value in view.states().items():
        yield [("state ", "head"), cut(f"{slot} = {value}", look.room(6))]
    for block in view.blocks():
        yield [("block ", "head"), cut(f"{block.label}: {block.text}", look.room(6))]
    for document in view.loaded():
        yield [("loaded ", "head"), cut(f"{document.label} {document.key}: {document.text}", look.room(7))]
