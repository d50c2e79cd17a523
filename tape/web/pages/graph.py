"""The graph of a family: a tape, what it was forked from, its forks and theirs, and what was merged."""

from __future__ import annotations

import itertools
from typing import Any

import tape
from tape.command.show.graph import Forked, Merged, draw
from tape.web.addresses import reference
from tape.web.draw.lanes import row_drawings
from tape.web.page_request import PageRequest
from tape.web.parts import card, entry_row

__all__ = ["graph"]

_TAPES = 100
_ANCHORS = 20
"""Checkpoints of each tape that are drawn."""
_ROWS = 600


def graph(request: PageRequest) -> dict[str, Any]:
    """Return the rows of the graph, newest first: a drawing, and the entry that stands there."""
    chat = request.chat()
    info = request.snapshot().info()
    family = _Family(request.store, chat)
    lines = list(itertools.islice(draw(family.entries, family.forked, family.merged), _ROWS))
    drawings = row_drawings([(text, entry is not None) for text, entry in lines])
    rows = []
    for drawing, (_, entry) in zip(drawings, lines, strict=True):
        row: dict[str, Any] = {"svg": drawing}
        if entry is not None:
            about = family.infos[entry.tape]
            row |= {"entry": entry_row(entry), "id": entry.tape, "ref": reference(entry.tape)}
            row |= {"tape": about.name or about.id, "own": entry.tape == chat.id}
        rows.append(row)
    return {
        "title": f"Family of {info.name or info.id}",
        "tape": card(info),
        "seq": info.head,
        "head": chat.info().head,
        "rows": rows,
        "members": [card(about) for about in family.infos.values()],
        "left_out": max(0, family.size - _TAPES),
    }


class _Family:
    """The tapes of a family that can be read, and of each the entries that tell its story."""

    def __init__(self, store: tape.Store, chat: tape.Tape) -> None:
        lineage = chat.lineage()
        self.ends = {above.tape: above.seq for above in reversed(lineage.ancestors)}
        points = {below.tape: (below.parent, below.seq) for below in lineage.descendants}
        line = [*self.ends, chat.id]
        points |= {below: (above, self.ends[above]) for above, below in itertools.pairwise(line)}
        self.infos: dict[str, tape.TapeInfo] = {}
        self.entries: dict[str, list[tape.Entry]] = {}
        self.forked: list[Forked] = []
        self.merged: list[Merged] = []
        members = [*line, *(below.tape for below in lineage.descendants)]
        self.size = len(members)
        tapes: dict[str, tape.Tape] = {}
        for name in members[:_TAPES]:
            try:
                tapes[name] = store.get(name)
            except tape.TapeNotFound:
                # Purged, or another owner's: its lane is left out.
                continue
            self.infos[name] = tapes[name].info()
        self.forked = [Forked(name, *self._receipt(tapes, *points[name], name)) for name in tapes if name in points]
        for name, member in tapes.items():
            self._read(name, member)

    def _receipt(self, tapes: dict[str, tape.Tape], parent: str, seq: int, child: str) -> tuple[str, int]:
        """Return where a fork's lane ends: at the parent's entry that records the fork, if that follows the point."""
        entry = tapes[parent].find_entry(seq=seq + 1) if parent in tapes else None
        recorded = entry is not None and entry.kind == "fork" and getattr(entry.payload, "child", None) == child
        return parent, seq + 1 if recorded else seq

    def _read(self, name: str, member: tape.Tape) -> None:
        head = self.ends.get(name, self.infos[name].head)
        merges = [merge for merge in member.lineage().merges if merge.seq <= head]
        self.merged += [Merged(name, merge.seq, merge.child, merge.child_head) for merge in merges]
        seqs = {1, head, *(fork.seq for fork in self.forked if fork.parent == name)}
        seqs |= {merge.seq for merge in merges}
        seqs |= {anchor.seq for anchor in member.anchors(limit=_ANCHORS) if anchor.tape == name}
        newest = sorted((seq for seq in seqs if 0 < seq <= head), reverse=True)[:_ROWS]
        entries = (member.find_entry(seq=seq) for seq in newest)
        # Of a merge or discard, which both tapes record, the parent's half is drawn.
        self.entries[name] = [entry for entry in entries if entry is not None and getattr(entry.payload, "into", True)]
