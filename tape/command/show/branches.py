"""The messages of a path, and what is not on it: those of other branches and roots."""

from __future__ import annotations

from collections.abc import Iterator

import tape
from tape.core.amounts import count

__all__ = ["elsewhere", "path_messages"]

_PAGE = 200
"""Messages that are read at once."""


def elsewhere(view: tape.Snapshot, branch: str | None = None) -> str | None:
    """Return how many messages are on other branches and roots than the path to ``branch`` or the head, as words.

    None if there are none.
    """
    heads = view.heads()
    if len(heads) < 2 and branch is None:
        return None
    path = {message.id for message in path_messages(view, branch)}
    others, roots = 0, set()
    seen = set(path)
    for head in heads:
        if head.id in path:
            continue
        for message in path_messages(view, head.id):
            if message.parent is None and message.id not in path:
                roots.add(message.id)
            others += message.id not in seen
            seen.add(message.id)
    if not others:
        return None
    branches = sum(head.id not in path for head in heads)
    also = f", {count(len(roots), 'root')} among them" if roots else ""
    return f"{count(others, 'message')} on {branches:,} other branch{'es' if branches > 1 else ''}{also}"


def path_messages(view: tape.Snapshot, branch: str | None = None) -> Iterator[tape.Message]:
    """Yield the messages of a path as they were at the first of them, read page by page: however many there are."""
    if isinstance(view, tape.Tape):
        view = view.at(view.info().head)
    after: str | None = ""
    while after is not None:
        page = view.messages(branch=branch, limit=_PAGE, after=after)
        yield from page.items
        after = page.cursor
