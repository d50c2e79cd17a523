"""Two points of a tape, or two tapes, side by side, with the words that differ marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import tape
from tape.core.merge.diff import says
from tape.core.worddiff import spans
from tape.web.addresses import reference, split
from tape.web.page_request import NotThere, PageRequest
from tape.web.parts import card, message_texts, message_view

__all__ = ["diff", "marked"]

_ROWS = 300
_WORDS = 200_000
"""Characters of two texts up to which their words are compared."""
Pair = tuple[tape.Message | None, tape.Message | None]


def diff(request: PageRequest) -> dict[str, Any]:
    """Return rows of what one side, the other, or both have from the first difference on; equal runs are counted."""
    a, b = request.text("a"), request.text("b")
    if a is None or b is None:
        return {"title": "Compare", "a": a, "b": b, "rows": None}
    left, right = _side(request, a), _side(request, b)
    before, after = left.messages(), right.messages()
    # Tapes that are no family have no ids in common, and are the same only in what they say.
    shared = bool({message.id for message in before} & {message.id for message in after})
    keys = ([m.id for m in before], [m.id for m in after]) if shared else ([*map(says, before)], [*map(says, after)])
    rows: list[dict[str, Any]] = []
    differing = 0
    for change, pair in _pairs(before, after, *keys):
        same = change == "equal" and pair[0] is not None and pair[1] is not None and says(pair[0]) == says(pair[1])
        if same and rows and "same" in rows[-1]:
            rows[-1]["same"] += 1
        elif same:
            rows.append({"same": 1, "a": _short(pair[0])})
        elif len(rows) < _ROWS:
            rows.append(_row(pair))
        differing += not same
    return {
        "title": "Compare",
        "a": a,
        "b": b,
        "left": card(left.info()),
        "right": card(right.info()),
        "differing": differing,
        "rows": rows,
    }


def _side(request: PageRequest, named: str) -> tape.Snapshot:
    try:
        id, point = split(named)
    except ValueError as error:
        raise NotThere(f"there is no tape {named!r}") from error
    return PageRequest(request.store, id=id, point=point).snapshot()


def _pairs(
    before: Sequence[tape.Message], after: Sequence[tape.Message], old: Sequence[Any], new: Sequence[Any]
) -> Iterator[tuple[str, Pair]]:
    """Yield the messages of both sides in order, those that stand for each other together."""
    for change, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for place in range(max(b - a, d - c)):
            left = before[a + place] if a + place < b else None
            right = after[c + place] if c + place < d else None
            yield change, (left, right)


def _short(message: tape.Message | None) -> dict[str, Any] | None:
    if message is None:
        return None
    return {"id": message.id, "seq": message.revision, "ref": reference(message.tape)} | message_view(message.data)


def _row(pair: Pair) -> dict[str, Any]:
    left, right = pair
    row: dict[str, Any] = {"a": _short(left), "b": _short(right)}
    if left is not None and right is not None:
        row["words"] = marked("\n\n".join(message_texts(left.data)), "\n\n".join(message_texts(right.data)))
    return row


def marked(before: str, after: str) -> list[list[str]] | None:
    """Return the words of two texts as equal, removed and added; None for texts too long to compare in a moment."""
    if len(before) + len(after) > _WORDS:
        return None
    return [[span.kind, span.text] for span in spans(before, after)]
