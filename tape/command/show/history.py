"""A tape and its family as the log shows them: entries from the newest on, and the graph of forks and merges."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import tape
from tape.command.show import graph
from tape.command.show.describe import label, message_of
from tape.command.show.messages import learn_calls
from tape.core.entries import payloads
from tape.core.messages import shapes

__all__ = ["backwards", "drawn", "recent", "with_tools"]

_FIRST, _PAGE = 60, 500
"""How many entries are read at once: first what a screen shows, then more."""
_NEAR = 40
"""How many messages before a result are searched for its call."""
_STRUCTURE = ("open", "fork", "merge", "discard")
"""The kinds that a graph is made of."""


def backwards(chat: tape.Snapshot, head: int) -> Iterator[tape.Entry]:
    """Yield a tape's entries from a seq down to the first, reading a page at a time: a short one first."""
    most, high = _FIRST, head
    while high > 0:
        page = list(chat.entries(before=high + 1, reverse=True, limit=most))
        yield from page
        if len(page) < most:
            return
        most, high = _PAGE, page[-1].seq - 1


def with_tools(chat: tape.Snapshot, entries: Iterable[tape.Entry], calls: dict[str, str]) -> Iterator[tape.Entry]:
    """Yield entries in either order, and note in ``calls`` the tools of those that a result answers.

    A call comes shortly before its result. If it is not among these entries, it is read from the tape.
    """
    for entry in entries:
        message = message_of(entry)
        if message is not None:
            learn_calls([message], calls)
            unknown = [part.id for part in shapes.read(message).results if part.name is None and part.id not in calls]
            if unknown:
                before = chat.entries(
                    before=(entry.tape, entry.seq),
                    kinds=("append", "revise"),
                    inherited=True,
                    reverse=True,
                    limit=_NEAR,
                )
                learn_calls((message_of(earlier) for earlier in before), calls)
                # A call that is not near is not searched for again.
                calls.update((id, id) for id in unknown if id not in calls)
        yield entry


def recent(entries: Iterable[tape.Entry], after: datetime | None) -> Iterator[tape.Entry]:
    """Yield entries until they are too old; times never decrease along a tape."""
    return itertools.takewhile(lambda entry: after is None or entry.recorded_at >= after, entries)


def drawn(
    store: tape.Store,
    chat: tape.Tape,
    is_chosen: Callable[[tape.Entry], bool] = lambda _: True,
    after: datetime | None = None,
) -> tuple[Iterator[tuple[str, tape.Entry | None]], dict[str, str]]:
    """Return the lines of the graph of a tape, its ancestors and all its forks, and the label of each of them."""
    family = chat.lineage()
    ends = {up.tape: up.seq for up in reversed(family.ancestors)}
    members = [chat.id, *(down.tape for down in family.descendants)]
    entries: dict[str, Iterable[tape.Entry]] = {}
    names: dict[str, str] = {}
    forked: list[graph.Forked] = []
    merged: list[graph.Merged] = []
    points = {down.tape: (down.parent, down.seq) for down in family.descendants}
    line = [*ends, chat.id]
    points.update((below, (above, ends[above])) for above, below in itertools.pairwise(line))
    for name in [*ends, *members]:
        try:
            member = store.get(name)
            about = member.info()
        except tape.TapeNotFound:
            # Purged, or another owner's: its lane is left out.
            continue
        names[name] = label(name, about.name)
        head = ends.get(name, about.head)
        young = recent(backwards(member, head), after)
        entries[name] = (entry for entry in young if _shown(entry) and (entry.kind in _STRUCTURE or is_chosen(entry)))
        merged += [graph.Merged(name, m.seq, m.child, m.child_head) for m in member.lineage().merges if m.seq <= head]
        if name in points:
            forked.append(graph.Forked(name, *_fork_point(store, name, *points[name])))
    return graph.draw(entries, forked, merged), names


def _shown(entry: tape.Entry) -> bool:
    """Whether an entry is drawn: of a merge or discard, which both tapes record, the parent's half is."""
    payload = entry.payload
    return not isinstance(payload, payloads.Merge | payloads.Discard) or payload.into


def _fork_point(store: tape.Store, child: str, parent: str, seq: int) -> tuple[str, int]:
    """Return where a fork's lane ends: at the parent's entry that records the fork, if that follows the point."""
    receipt = next(store.get(parent).entries(after=seq, limit=1), None)
    recorded = receipt is not None and isinstance(receipt.payload, payloads.Fork) and receipt.payload.child == child
    return parent, seq + 1 if recorded else seq
