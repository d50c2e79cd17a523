"""Output: lines for people, JSON for programs, and progress bars.

Text of a model or a user is printed to terminals here, so control characters are escaped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from tape.command.pager import Pager, pager_command

__all__ = [
    "COLORS",
    "Line",
    "Out",
    "clean",
    "columns",
    "cut",
    "flat",
    "moment",
    "money",
    "plain",
    "progress",
    "width",
    "wrapped",
]

Line = str | Sequence[str | tuple[str, str]]
"""A line of output: text, or parts of it, each alone or with a style."""

COLORS = ("auto", "always", "never")

_STYLES = {
    "seq": "33",
    "kind": "36",
    "head": "1",
    "quiet": "90",
    "good": "32",
    "bad": "31",
    "warn": "33",
    "add": "32",
    "remove": "31",
    "change": "35",
    "thinking": "2;3",
    "added": "32",
    "removed": "31;9",
}
"""How each style looks on a terminal: the numbers of its escape sequence."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""Characters that move the cursor, change the writing direction, or are invisible."""


def clean(text: str) -> str:
    """Return text with control, bidirectional and invisible characters as escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def flat(text: str) -> str:
    """Return text as ``clean`` does, with line breaks escaped as well, for a line with other facts."""
    return clean(text).replace("\n", "\\n")


def cut(text: str, most: int) -> str:
    """Return text on one line and not longer than ``most``."""
    # Only as much of a long text is read as can be shown.
    line = " ".join(clean(text[: 8 * most + 64]).split())
    whole = len(text) <= 8 * most + 64
    if whole and width(line) <= most:
        return line
    return line[: _fitting(line, 0, max(most - 3, 0))] + "..."


def width(text: str) -> int:
    """Return how many columns a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if char < "\u0300":
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _fitting(text: str, start: int, most: int) -> int:
    """Return the end of what fits into so many columns from ``start`` on."""
    if text.isascii():
        return min(start + most, len(text))
    used = 0
    for index in range(start, len(text)):
        used += _cells(text[index])
        if used > most:
            return index
    return len(text)


def _hanging(text: str, most: int) -> str:
    """Return the indent of the further rows of a line: that of the line itself, and the width of its bullet."""
    match = re.match(r" *([-*+] |\d+[.)] )?", text)
    return " " * (match.end() if match is not None and match.end() < most // 3 else 0)


def _breaks(text: str, most: int, hanging: str = "") -> Iterator[tuple[int, int]]:
    """Yield where the rows of a text begin and end: broken at spaces, and inside of words longer than a row."""
    start = 0
    while (end := _fitting(text, start, most - (len(hanging) if start else 0))) < len(text):
        space = text.rfind(" ", start, end + 1)
        if space > start and text[start:space].strip():
            yield start, space
            start = space + 1
        else:
            end = max(end, start + 1)
            yield start, end
            start = end
    yield start, len(text)


def wrapped(line: Line, most: int | None, indent: str = "") -> list[Line]:
    """Return a line as rows of at most ``most`` columns, each behind an indent; without a limit, as one row."""
    parts = [line] if isinstance(line, str) else line
    if most is None:
        return [[indent, *parts] if plain(line) else ""]
    cells = [part if isinstance(part, tuple) else (part, "") for part in parts]
    cells = [(text.expandtabs(4), style) for text, style in cells]
    rows: list[Line] = []
    whole = "".join(text for text, _ in cells)
    if not whole.strip():
        return [""]
    inset = ""
    for start, end in _breaks(whole, max(most - width(indent), 8), hanging := _hanging(whole, most)):
        row: list[str | tuple[str, str]] = [indent + inset]
        inset = hanging
        at = 0
        for text, style in cells:
            if at < end and at + len(text) > start:
                row.append((text[max(start - at, 0) : end - at], style))
            at += len(text)
        rows.append(row)
    return rows


def plain(line: Line) -> str:
    """Return the text of a line."""
    return line if isinstance(line, str) else "".join(part if isinstance(part, str) else part[0] for part in line)


def money(millionths: int, currency: str = "USD") -> str:
    """Return an amount in its currency: ``$1.25``, or ``$0.000042`` where two digits would hide it."""
    sign = {"USD": "$", "EUR": "€", "GBP": "£"}.get(currency, f"{currency} ")
    amount = abs(millionths)
    if amount < 1_000_000:
        shown = f"0.{f'{amount:06d}'.rstrip('0'):0<2}"
    else:
        cents = (amount + 5_000) // 10_000
        shown = f"{cents // 100:,}.{cents % 100:02d}"
    return f"{'-' if millionths < 0 else ''}{sign}{shown}"


def moment(at: datetime | None, *, exact: bool = False) -> str:
    """Return a moment as text, always in UTC: ``2026-03-01 09:30:00Z``."""
    if at is None:
        return "-"
    text = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{text if exact else text[:-7]}Z"


def columns(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    styles: Sequence[str] = (),
    *,
    most: int | None = None,
    shrink: Sequence[int] = (),
) -> list[Line]:
    """Return a table as lines: a header, and columns as wide as they need to be.

    Where that is wider than ``most``, the columns of ``shrink`` are cut, the first of them first.
    """
    table = [list(header), *([flat(cell) for cell in row] for row in rows)]
    widths = [max(width(row[index]) for row in table) for index in range(len(header))]
    for index in shrink if most is not None else ():
        over = sum(widths) + 2 * (len(widths) - 1) - (most or 0)
        widths[index] = max(widths[index] - max(over, 0), min(widths[index], 12))
    lines: list[Line] = []
    for number, row in enumerate(table):
        parts = []
        for index, cell in enumerate(row):
            text = cell if width(cell) <= widths[index] else cut(cell, widths[index])
            if index < len(row) - 1:
                text += " " * (widths[index] - width(text) + 2)
            style = "head" if number == 0 else styles[index] if index < len(styles) else ""
            parts.append((text, style))
        lines.append(parts)
    return lines


class Out:
    """Where a command prints. Data goes to stdout, or to the pager on a terminal; everything else to stderr."""

    def __init__(self, *, as_json: bool, color: str | None = None, pager: bool = True) -> None:
        self.as_json = as_json
        self.terminal = sys.stdout.isatty()
        self.columns = shutil.get_terminal_size().columns if self.terminal or "COLUMNS" in os.environ else None
        """The width of the terminal; None when output goes to a file or a program, where nothing has to fit."""
        self.color = _colored(color, self.terminal)
        self.pageable = False
        """Whether the output of a command may go to the pager."""
        self._allowed = pager
        self._pager: Pager | None = None
        self._notes: list[str] = []

    def room(self, used: int, otherwise: int = 80) -> int:
        """Return how many columns of a row are left beside ``used`` ones; without a terminal, ``otherwise``."""
        return otherwise if self.columns is None else max(self.columns - used, 10)

    def line(self, line: Line = "") -> None:
        """Print a line; on a terminal in colour."""
        if not self.color or isinstance(line, str):
            self._write(plain(line) + "\n")
            return
        parts = [part if isinstance(part, tuple) else (part, "") for part in line]
        styled = (f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text else text for text, style in parts)
        self._write("".join(styled) + "\n")

    def lines(self, lines: Iterable[Line]) -> None:
        """Print lines."""
        for line in lines:
            self.line(line)

    def note(self, text: str) -> None:
        """Print a remark to stderr, beside the data; while a pager has the screen, after it."""
        if self._pager is not None:
            self._notes.append(text)
        else:
            print(text, file=sys.stderr)

    def close(self) -> None:
        """Wait until the pager ends, then print the remarks that were held back."""
        if self._pager is not None:
            self._pager.close()
            self._pager = None
        for text in self._notes:
            print(text, file=sys.stderr)
        self._notes = []

    def json(self, value: Any) -> None:
        """Print one JSON document."""
        self._write(self._encoded(value, 2) + "\n")

    def json_line(self, value: Any) -> None:
        """Print one JSON document on one line, at once."""
        self._write(self._encoded(value, None) + "\n")
        self.flush()

    def flush(self) -> None:
        """Flush all that was printed."""
        (self._pager or sys.stdout).flush()

    def array(self, values: Iterable[Any]) -> None:
        """Print a JSON array with one element per line, as the elements arrive, of any number."""
        self._write("[")
        separator = "\n"
        for value in values:
            self._write(separator + self._encoded(value, None))
            separator = ",\n"
        self._write("\n]\n")

    def _encoded(self, value: Any, indent: int | None) -> str:
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf8")
        import msgspec

        text = json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=indent, ensure_ascii=not utf8)
        # Such characters occur only in strings, where an escape means the same character.
        return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        if self._pager is None and self.pageable and self._allowed and self.terminal and (command := pager_command()):
            self._pager = Pager(command)
        # On a terminal without Unicode, unknown characters are escaped instead of raising an error.
        (self._pager or sys.stdout).write(text.encode(encoding, "backslashreplace").decode(encoding))


def _colored(option: str | None, terminal: bool) -> bool:
    """Whether to print in colour: as the option says, else as the environment does, else on terminals."""
    if option in ("always", "never"):
        return option == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if forced := os.environ.get("FORCE_COLOR"):
        return forced not in ("0", "false")
    return terminal and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on stderr during the work; without a terminal, show nothing."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
