"""Counting the messages of other branches and roots than the path that is shown."""

from __future__ import annotations

import tape
from tape.command.output import count

__all__ = ["elsewhere"]


def elsewhere(view: tape.Snapshot, branch: str | None = None) -> str | None:
    """Return how many messages are on other branches and roots than the path to ``branch`` or the head, as words.

    None if there are none.
    """
    heads = view.heads()
    if len(heads) < 2 and branch is None:
        return None
    path = {message.id for message in view.messages(branch=branch)}
    others, roots = 0, set()
    seen = set(path)
    for head in heads:
        if head.id in path:
            continue
        for message in view.messages(branch=head.id):
            if message.parent is None and message.id not in path:
                roots.add(message.id)
            others += message.id not in seen
            seen.add(message.id)
    if not others:
        return None
    branches = sum(head.id not in path for head in heads)
    also = f", {count(len(roots), 'root')} among them" if roots else ""
    return f"{count(others, 'message')} on {branches:,} other branch{'es' if branches > 1 else ''}{also}"
