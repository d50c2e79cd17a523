"""Word by word, what changed from one text to another. Pure, and close to linear in the length of the texts.

Lines that occur once in both texts are matched first, then words between them, and the little that is left is
compared by Myers' algorithm. The total work is limited. Where the limit is reached, a stretch is shown as replaced
whole, which is always right and only longer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

__all__ = ["Skipped", "Span", "count_words", "hunks", "lines", "spans"]

Kind = Literal["equal", "removed", "added"]


class Span(NamedTuple):
    """A stretch of text that both texts have (``equal``), or that only the first or the second has."""

    kind: Kind
    text: str


class Skipped(NamedTuple):
    """Lines that are equal in both texts and left out between two hunks."""

    lines: int


# A word is a run of letters, digits and marks of at most 64 characters; in scripts without spaces, one character.
_ALONE = r"\u2010-\u2027\u2030-\u205e\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_TOKEN = re.compile(rf"[^\s!-/:-@\[-^`{{-~{_ALONE}]{{1,64}}|\n|[^\S\n]+|.", re.S)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")

_SMALL = 400
"""Up to so many tokens are compared exactly at once; longer stretches are divided first."""
_RUN = 8
_MOST_EDITS = 400
"""With more edits than this, two stretches have too little in common for their common words to help a reader."""


def spans(before: str, after: str) -> list[Span]:
    """Return what is equal, removed and added, in order.

    The texts of the equal and removed spans are ``before``, those of the equal and added spans are ``after``.
    """
    if before == after:
        return [Span("equal", before)] if before else []
    allowance = _Allowance(500_000 + len(before) + len(after))
    a, b = _LINE.findall(before), _LINE.findall(after)
    changes: list[Span] = []
    for equal, left, right in _divide(a, b, allowance):
        if equal:
            changes.append(Span("equal", "".join(left)))
        else:
            changes += _words("".join(left), "".join(right), allowance)
    return _readable(_joined(changes))


class _Allowance:
    """How much work may still be done."""

    def __init__(self, steps: int) -> None:
        self.remaining = steps

    def spend(self, steps: int) -> bool:
        """Take so many steps; False when there are not that many left."""
        self.remaining -= steps
        return self.remaining >= 0


def _words(before: str, after: str, allowance: _Allowance) -> Iterator[Span]:
    for equal, left, right in _divide(_TOKEN.findall(before), _TOKEN.findall(after), allowance):
        if equal:
            yield Span("equal", "".join(left))
        else:
            yield from _exact(left, right, allowance)


def _replaced(left: Sequence[str], right: Sequence[str]) -> Iterator[Span]:
    if left:
        yield Span("removed", "".join(left))
    if right:
        yield Span("added", "".join(right))


def _divide(
    a: Sequence[str], b: Sequence[str], allowance: _Allowance
) -> Iterator[tuple[bool, Sequence[str], Sequence[str]]]:
    """Yield stretches of two lists in order: whether they are equal, and what each list has there."""
    waiting = [(False, 0, len(a), 0, len(b))]
    while waiting:
        equal, low, high, start, end = waiting.pop()
        if equal:
            yield True, a[low:high], b[start:end]
            continue
        first, last = _common_ends(a, b, low, high, start, end)
        if first:
            yield True, a[low : low + first], b[start : start + first]
        if last:
            waiting.append((True, high - last, high, end - last, end))
        low, high, start, end = low + first, high - last, start + first, end - last
        if low == high and start == end:
            continue
        anchors = _anchors(a, b, (low, high, start, end), allowance)
        if not anchors:
            yield False, a[low:high], b[start:end]
            continue
        at, to = high, end
        for i, j, length in reversed(_blocks(anchors)):
            waiting += [(False, i + length, at, j + length, to), (True, i, i + length, j, j + length)]
            at, to = i, j
        waiting.append((False, low, at, start, to))


def _blocks(anchors: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return anchors that follow each other in both lists as one: where it begins in each, and its length."""
    blocks: list[tuple[int, int, int]] = []
    first = length = shift = 0
    for i, j in anchors:
        if length and i == first + length and j - i == shift:
            length += 1
            continue
        if length:
            blocks.append((first, first + shift, length))
        first, length, shift = i, 1, j - i
    return [*blocks, (first, first + shift, length)]


def _common_ends(a: Sequence[str], b: Sequence[str], low: int, high: int, start: int, end: int) -> tuple[int, int]:
    most = min(high - low, end - start)
    first = 0
    while first < most and a[low + first] == b[start + first]:
        first += 1
    last = 0
    while last < most - first and a[high - 1 - last] == b[end - 1 - last]:
        last += 1
    return first, last


def _anchors(
    a: Sequence[str], b: Sequence[str], bounds: tuple[int, int, int, int], allowance: _Allowance
) -> list[tuple[int, int]]:
    """Return where the stretches have a token in common that occurs once in each, or else a run of tokens.

    Only tokens that are in the same order in both count, as many as possible.
    """
    low, high, start, end = bounds
    both = high - low + end - start
    if both <= _SMALL or not allowance.spend(both):
        return []
    for width in (1, _RUN):
        left, right = _runs(a[low:high], width), _runs(b[start:end], width)
        left_counts, right_counts = Counter(left), Counter(right)
        places = {run: j for j, run in enumerate(right, start) if right_counts[run] == 1 and left_counts[run] == 1}
        if places:
            return _rising([(i, places[run]) for i, run in enumerate(left, low) if run in places])
    return []


def _runs(tokens: Sequence[str], width: int) -> Sequence[Any]:
    """Return every run of so many tokens."""
    return tokens if width == 1 else list(zip(*(tokens[shift:] for shift in range(width)), strict=False))


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest run of pairs, given by their first members, whose second members rise."""
    ends: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(j)
            at.append(index)
        else:
            ends[length], at[length] = j, index
    chosen = []
    index = at[-1] if at else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]


def _exact(a: Sequence[str], b: Sequence[str], allowance: _Allowance) -> Iterator[Span]:
    """Yield the shortest way from ``a`` to ``b`` (Myers 1986), or one replacement if it is not worth its work."""
    trace = _trace(a, b, allowance) if a and b else None
    if trace is None:
        yield from _replaced(a, b)
        return
    steps: list[Span] = []
    x, y = len(a), len(b)
    for edits in range(len(trace) - 1, -1, -1):
        furthest, k = trace[edits], x - y
        down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
        came = k + 1 if down else k - 1
        start = furthest[came] if edits else 0
        while x > start and y > start - came and x > 0 and y > 0:
            x, y = x - 1, y - 1
            steps.append(Span("equal", a[x]))
        if edits and down:
            y -= 1
            steps.append(Span("added", b[y]))
        elif edits:
            x -= 1
            steps.append(Span("removed", a[x]))
    yield from reversed(steps)


def _trace(a: Sequence[str], b: Sequence[str], allowance: _Allowance) -> list[dict[int, int]] | None:
    """Return how far each diagonal was reached before each edit; None if there are too many edits."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _MOST_EDITS) + 1):
        trace.append(dict(furthest))
        if not allowance.spend(edits + 1):
            return None
        for k in range(-edits, edits + 1, 2):
            if k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1]):
                x = furthest[k + 1]
            else:
                x = furthest[k - 1] + 1
            y = x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= len(a) and y >= len(b):
                return trace
    return None


def _joined(parts: Iterable[Span]) -> list[Span]:
    """Return spans with what was removed before what was added, and neighbours of one kind as one."""
    joined: list[Span] = []
    texts: dict[Kind, list[str]] = {"removed": [], "added": [], "equal": []}

    def close(*kinds: Kind) -> None:
        for kind in kinds:
            if text := "".join(texts[kind]):
                joined.append(Span(kind, text))
            texts[kind] = []

    for kind, text in parts:
        close(*(("removed", "added") if kind == "equal" else ("equal",)))
        texts[kind].append(text)
    close("equal", "removed", "added")
    return joined


def _readable(parts: list[Span]) -> list[Span]:
    """Return spans without words that two rewritten passages only happen to share.

    An equal stretch within a line, no longer than the changes on both of its sides, counts as changed with them.
    """
    readable: list[Span] = []
    changed = {"removed": 0, "added": 0}
    """How much has changed since the last equal stretch that was kept."""
    for index, span in enumerate(parts):
        if span.kind != "equal":
            changed[span.kind] += len(span.text)
            readable.append(span)
            continue
        size = len(span.text.strip())
        behind = max((len(after.text) for after in parts[index + 1 : index + 3] if after.kind != "equal"), default=0)
        if "\n" not in span.text and behind and size <= min(behind, max(changed.values())):
            readable += [Span("removed", span.text), Span("added", span.text)]
            changed = {kind: length + len(span.text) for kind, length in changed.items()}
        else:
            readable.append(span)
            changed = {"removed": 0, "added": 0}
    return _joined(readable)


def lines(diff: Iterable[Span]) -> Iterator[list[Span]]:
    """Yield spans line by line; a span that goes over a line break is divided there and keeps the break."""
    line: list[Span] = []
    for kind, text in diff:
        for part in _LINE.findall(text):
            line.append(Span(kind, part))
            if part.endswith("\n"):
                yield line
                line = []
    if line:
        yield line


def hunks(diff: Iterable[Span], context: int = 3) -> Iterator[list[Span] | Skipped]:
    """Yield the lines in which something changed, ``context`` lines around them, and how many are left out between.

    Only equal lines are ever left out.
    """
    held: list[list[Span]] = []
    skipped = 0
    shown = 0
    """How many more lines are shown after the last change."""
    for line in lines(diff):
        if all(span.kind == "equal" for span in line):
            if shown:
                shown -= 1
                yield line
            else:
                held.append(line)
                if len(held) > context:
                    del held[0]
                    skipped += 1
            continue
        if skipped:
            yield Skipped(skipped)
        yield from held
        yield line
        held, skipped, shown = [], 0, context
    if skipped + len(held):
        yield Skipped(skipped + len(held))


def count_words(diff: Iterable[Span]) -> tuple[int, int]:
    """Return how many words were removed and how many were added."""
    totals = {"removed": 0, "added": 0, "equal": 0}
    for kind, text in diff:
        if kind != "equal":
            totals[kind] += sum(not token.isspace() for token in _TOKEN.findall(text))
    return totals["removed"], totals["added"]
