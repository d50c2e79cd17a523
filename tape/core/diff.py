"""Comparing two views: what one has that the other has not. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tape.core.plan import same
from tape.core.records import Anchor, Message

__all__ = ["Diff", "Revised", "compare"]


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

    def __bool__(self) -> bool:
        return bool(self.added or self.revised or self.retracted or self.left or self.anchored)

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
    """Return what changed between two paths; ``still_there`` tells whether the later view has a message at all."""
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
