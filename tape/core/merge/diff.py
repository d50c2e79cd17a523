"""Comparing two views: what one has that the other has not. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

import msgspec
from msgspec import Struct

from tape.core import json_text
from tape.core.messages import shapes
from tape.core.plan.intents import same
from tape.core.records import Anchor, Message

__all__ = ["Aligned", "Diff", "Revised", "align", "compare", "says"]


class Revised(Struct, frozen=True):
    """A message that is in both views with different content."""

    before: Message
    after: Message


class Diff(Struct, frozen=True):
    """What changed from one view to another, along the active path of each. ``str()`` of it reads like a patch."""

    added: list[Message]
    revised: list[Revised]
    retracted: list[Message]
    left: list[Message]
    """Messages that are still there, but on a branch that is no longer the active one."""
    anchored: list[Anchor]
    parted: tuple[Message, Message] | None = None
    """Of unrelated tapes: the last message of each before they differ; None if they differ from the first."""

    def _repr_html_(self) -> str:
        """Return the diff as HTML for notebooks."""
        from tape.web.report.notebook import diff_frame

        return diff_frame(self)

    def __bool__(self) -> bool:
        return bool(self.added or self.revised or self.retracted or self.left or self.anchored)

    def __repr__(self) -> str:
        counts = ((name, len(getattr(self, name))) for name in ("added", "revised", "retracted", "left", "anchored"))
        return f"<tape.Diff: {', '.join(f'{count} {name}' for name, count in counts if count) or 'no difference'}>"

    def __str__(self) -> str:
        lines = [f"+ {_line(message)}" for message in self.added]
        for change in self.revised:
            lines += [f"~ {_line(change.before)}", f"  {_line(change.after)}"]
        lines += [f"- {_line(message)}" for message in self.retracted]
        lines += [f"< {_line(message)}" for message in self.left]
        lines += [f"@ {anchor.name} (seq {anchor.seq})" for anchor in self.anchored]
        return "\n".join(lines) or "no difference"


def _line(message: Message) -> str:
    text = " ".join((message.text or repr(message.content)).split())
    return f"{message.role or 'item'} {message.id}: {text if len(text) <= 70 else text[:69] + '…'}"


def compare(
    before: Sequence[Message],
    after: Sequence[Message],
    anchors_before: Sequence[Anchor],
    anchors_after: Sequence[Anchor],
    still_there: Callable[[str], bool],
) -> Diff:
    """Return what changed between two paths; ``still_there`` says whether the later view has a message at all."""
    old = {message.id: message for message in before}
    new = {message.id: message for message in after}
    gone = [message for message in before if message.id not in new]
    known = {(anchor.tape, anchor.seq) for anchor in anchors_before}
    return Diff(
        added=[message for message in after if message.id not in old],
        revised=[
            Revised(old[message.id], message)
            for message in after
            if message.id in old and not same(old[message.id].data, message.data)
        ],
        retracted=[message for message in gone if not still_there(message.id)],
        left=[message for message in gone if still_there(message.id)],
        anchored=[anchor for anchor in anchors_after if (anchor.tape, anchor.seq) not in known],
    )


class Aligned(Struct, frozen=True):
    """Two paths of tapes that share no ids, aligned by the content of their messages."""

    parted: tuple[Message, Message] | None
    """The last message of each before they diverge; None when they differ from the first on."""
    changes: list[tuple[str, Message]]
    """What only one has, in order: ``-`` is of the first path, ``+`` of the second."""

    def only(self, side: str) -> list[Message]:
        """Return the messages that only one path has."""
        return [message for of, message in self.changes if of == side]


def align(before: Sequence[Message], after: Sequence[Message]) -> Aligned:
    """Compare two paths by role, content and tool calls, whatever ids the messages and the calls have."""
    old, new = [says(message) for message in before], [says(message) for message in after]
    begun = 0
    while begun < min(len(old), len(new)) and old[begun] == new[begun]:
        begun += 1
    changes: list[tuple[str, Message]] = []
    # The autojunk heuristic ignores items that repeat often, and repeated messages do count here.
    matcher = SequenceMatcher(None, old[begun:], new[begun:], autojunk=False)
    for what, a, b, c, d in matcher.get_opcodes():
        if what != "equal":
            changes += [("-", message) for message in before[begun + a : begun + b]]
            changes += [("+", message) for message in after[begun + c : begun + d]]
    return Aligned((before[begun - 1], after[begun - 1]) if begun else None, changes)


def says(message: Message) -> bytes:
    """Return a message's content as bytes, equal for messages that differ in ids only."""
    read = shapes.read(message.data)
    parts = [_part(part) for part in read.parts]
    if not parts:
        parts = [{name: value for name, value in message.data.items() if name != "id"}]
    return msgspec.json.encode([read.role, parts], order="sorted")


def _part(part: shapes.Part) -> Any:
    match part:
        case shapes.Call():
            # Equal arguments may be written with different spaces.
            return ["call", part.name, json_text.value_of(part.arguments)]
        case shapes.Result():
            return ["result", part.content, part.error]
        case shapes.Other():
            return ["other", {name: value for name, value in part.part.items() if name not in ("id", "signature")}]
        case _:
            return msgspec.to_builtins(part)
