"""Snippets: the part of a text around what a search found."""

from __future__ import annotations

__all__ = ["MARKS", "WIDTH", "snippet"]

MARKS = ("«", "»")
"""The marks around matching words in a snippet."""
WIDTH = 160
"""About how many characters of a text a snippet shows."""


def snippet(text: str, spans: list[tuple[int, int]], width: int = WIDTH) -> str:
    """Return the part of ``text`` around the first words found, on one line, with marks around all that it shows."""
    first = spans[0][0] if spans else 0
    begin = max(0, first - width // 4)
    if begin:
        # Begin at a word, if there is one to begin at before the first hit.
        space = text.find(" ", begin, first)
        begin = space + 1 if space >= 0 else begin
    end = min(len(text), max(begin + width, min(spans[0][1], first + width) if spans else 0))
    if end < len(text):
        space = text.rfind(" ", max(begin, spans[0][1] if spans else 0), end)
        end = space if space > begin else end
    parts: list[str] = []
    at = begin
    for start, stop in _joined(spans):
        start, stop = max(start, at), min(stop, end)
        if start < stop:
            parts += [text[at:start], MARKS[0], text[start:stop], MARKS[1]]
            at = stop
    parts.append(text[at:end])
    shown = " ".join("".join(parts).split())
    return f"{'…' if begin else ''}{shown}{'…' if end < len(text) else ''}"


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
