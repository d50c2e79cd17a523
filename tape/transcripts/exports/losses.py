"""What a format cannot hold, counted by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tape.core.records import Message
    from tape.handles.snapshot import Snapshot

__all__ = ["Losses", "path_of", "tree_of"]


class Losses:
    """How many items of each kind were left out."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, kind: str, number: int = 1) -> None:
        """Count a number of items of a kind."""
        if number:
            self._counts[kind] = self._counts.get(kind, 0) + number

    def described(self) -> list[str]:
        """Return what was left out, in words."""
        return [f"{number:,} {kind}{'' if number == 1 else 's'}" for kind, number in self._counts.items()]


def path_of(view: Snapshot, losses: Losses) -> list[Message]:
    """Return the messages of the path; those of other branches, and all that is no message, are left out."""
    path = view.messages()
    losses.add("other-branch message", max(0, len(tree_of(view)) - len(path)))
    _leave_out_entries(view, losses)
    return path


def tree_of(view: Snapshot) -> list[Message]:
    """Return the messages of all branches, parents first, those of the path to the head last where they branch."""
    messages: dict[str, Message] = {}
    heads = view.heads()
    for head in heads:
        messages.update((message.id, message) for message in view.messages(branch=head.id))
    path = {message.id: message for message in view.messages()}
    rest = [message for id, message in messages.items() if id not in path]
    return [*path.values(), *rest]


def _leave_out_entries(view: Snapshot, losses: Losses) -> None:
    for entry in view.entries(kinds=["event", "anchor", "handoff", "compact", "state", "block"]):
        losses.add(entry.kind)
