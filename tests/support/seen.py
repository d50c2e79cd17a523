"""What can be seen of a tape: told by the models, and shown by the store."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass

import tape

__all__ = ["Seen", "Shown", "compare", "show"]

Shown = tuple[str, str | None, str, int, int, str]
"""A message as it is shown: id, the message above it, the tape and entry that placed it, its revision, its body.

Of a summary that is shown as a message the body is left out: its text is the store's own.
"""


@dataclass
class Seen(ABC):
    """Everything that a reader can see after one entry; a model that knows more adds to it."""

    seq: int
    path: list[Shown]
    heads: list[Shown]
    children: dict[str, list[Shown]]
    hidden: list[str]
    anchor: tuple[str, int] | None
    context: list[Shown]
    anchors: list[tuple[str, int, str, bool]]
    """(tape, seq, name, stale), oldest first."""
    status: str

    @abstractmethod
    def compare_more(self, reads: tape.Snapshot, context: tape.Context, info: tape.TapeInfo) -> None:
        """Compare what this model knows besides."""


def show(message: tape.Message) -> Shown:
    """Return a message of the store as the models show it."""
    body = "" if message.id.startswith("~") else json.dumps(message.to_dict(), sort_keys=True)
    return message.id, message.parent, message.tape, message.seq, message.revision, body


def compare(reads: tape.Snapshot, seen: Seen, *, each: bool = True) -> None:
    """Compare every read with what the model sees, also of each message if asked to."""
    assert [show(m) for m in reads.messages()] == seen.path
    assert [show(m) for m in reads.heads()] == seen.heads
    if each:
        for id, below in seen.children.items():
            assert [show(m) for m in reads.children(id)] == below
            assert reads.message(id).id == id
        for id in seen.hidden:
            assert reads.find(id) is None
    context = reads.context()
    assert [show(m) for m in context.messages] == seen.context
    assert (None if context.anchor is None else (context.anchor.tape, context.anchor.seq)) == seen.anchor
    assert context.head == seen.seq
    assert [(a.tape, a.seq, a.name, a.stale) for a in reads.anchors(limit=1000)] == seen.anchors
    info = reads.info()
    assert (info.head, info.status) == (seen.seq, seen.status)
    seen.compare_more(reads, context, info)
