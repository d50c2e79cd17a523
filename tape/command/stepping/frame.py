"""How the full-screen stepper looks: a list of entries, a pane beside it, and a line for what can be done. Pure."""

from __future__ import annotations

import tape
from tape.command.output import Line, clean, cut, moment, width
from tape.command.show.describe import entry_failed, gist
from tape.command.show.messages import Look
from tape.command.stepping.reading import PANES
from tape.command.stepping.steps import HELP, Steps

__all__ = ["frame"]

Cells = list[tuple[str, str]]
"""A row of the screen: texts with their styles."""

_KEYS = "n b step  e error  r revision  a anchor  / search  g go to  svcd pane  h help  q"


def frame(steps: Steps, columns: int, rows: int) -> list[Cells]:
    """Return the rows of a screen of this size, each as wide as the screen."""
    columns, height = max(columns, 20), max(rows - 2, 1)
    left = min(max(columns * 2 // 5, 24), 80)
    right = columns - left - 3
    steps.page = height
    body = [_list_row(steps, seq, left) for seq in _window(steps, height)]
    body += [[(" " * left, "")]] * (height - len(body))
    pane = _pane(steps, right, height)
    middle: list[Cells] = [
        [*cells, (" │ ", "quiet"), *_fit(line, right)] for cells, line in zip(body, pane, strict=True)
    ]
    return [_title(steps, columns), *middle, _footer(steps, columns)]


def _window(steps: Steps, height: int) -> range:
    """Return the seqs that are listed: the current one is in the middle, except near the ends."""
    top = max(min(steps.seq - height // 2, steps.last - height + 1), steps.first)
    return range(top, min(top + height, steps.last + 1))


def _title(steps: Steps, columns: int) -> Cells:
    entry = steps.reading.entry(steps.seq)
    panes = "  ".join(f"[{name}]" if name == steps.pane else name for name in PANES)
    at = moment(entry.occurred_at or entry.recorded_at)
    facts = f" {steps.seq}/{steps.last}  {at} "
    name = " " + cut(steps.reading.title, max(columns - len(facts) - len(panes) - 3, 8))
    text = f"{name}{facts}"
    text += " " * (columns - width(text) - len(panes) - 1) + panes
    return _fit([(text, "bar")], columns, "bar")


def _footer(steps: Steps, columns: int) -> Cells:
    if steps.asking is not None:
        label = "search: " if steps.asking == "/" else "go to: "
        typed = clean(steps.typed)
        return _fit([(label, "head"), typed[-max(columns - 12, 4) :], ("_", "head")], columns)
    if steps.said:
        return _fit([(cut(steps.said, columns), "warn")], columns)
    return _fit([(_KEYS[:columns], "quiet")], columns)


def _list_row(steps: Steps, seq: int, columns: int) -> Cells:
    entry = steps.reading.entry(seq)
    current = seq == steps.seq
    digits = len(str(steps.last))
    style = "here" if current else "bad" if entry_failed(entry) else ""
    text = _short(entry, columns - digits - 2, Look(calls=steps.reading.calls))
    row: Line = [(f"{'>' if current else ' '}{seq:>{digits}} ", style or "seq"), (text, style)]
    return _fit(row, columns, "here" if current else "")


def _short(entry: tape.Entry, room: int, look: Look) -> str:
    """Return an entry for the list, with its kind unless it is a message."""
    kind = "" if entry.kind == "append" else f"{entry.kind} "
    return kind + gist(entry, max(room - len(kind), 4), look)


def _pane(steps: Steps, columns: int, height: int) -> list[Line]:
    lines: list[Line]
    if steps.helping:
        lines = [part for line in HELP.split("\n") for part in _halves(line, columns)]
    else:
        try:
            lines = list(steps.reading.pane(steps.seq, steps.pane, columns))
        except tape.TapeError as error:
            lines = [clean(str(error))]
    steps.offset = min(steps.offset, max(len(lines) - height, 0))
    shown = lines[steps.offset : steps.offset + height]
    below = len(lines) - steps.offset - len(shown)
    if steps.offset > 0:
        shown[0] = [(f"-- {steps.offset + 1} above: PgUp --", "quiet")]
    if below > 0:
        shown[-1] = [(f"-- {below + 1} more: Space --", "quiet")]
    return [*shown, *([""] * (height - len(shown)))]


def _halves(line: str, columns: int) -> list[Line]:
    """Return a line of the help, as two where there is little room."""
    if len(line) <= columns or len(line) <= 40:
        return [line]
    cut_at = line.find("  ", 24)
    return [line[:40].rstrip(), line[40:].strip()] if cut_at > 0 else [line]


def _fit(line: Line, columns: int, rest: str = "") -> Cells:
    """Return a line as exactly so many columns."""
    parts = (
        [(line, "")] if isinstance(line, str) else [part if isinstance(part, tuple) else (part, "") for part in line]
    )
    cells: Cells = []
    room = columns
    for text, style in parts:
        while width(text) > room:
            text = text[: max(min(len(text) - 1, room), 0)]
        room -= width(text)
        if text:
            cells.append((text, style))
    return [*cells, (" " * room, rest)] if room > 0 else cells
