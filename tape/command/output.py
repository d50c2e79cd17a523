"""Output: lines for people, JSON for programs, progress for those who wait.

Whatever a model or a user wrote can end up on a terminal here, so control characters are shown and never sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

__all__ = ["Line", "Out", "clean", "columns", "count", "cut", "flat", "moment", "progress", "size", "width"]

Line = str | Sequence[str | tuple[str, str]]
"""A line of output: text, or parts of it, each alone or with a style."""

_STYLES = {
    "seq": "yellow",
    "kind": "cyan",
    "head": "bold",
    "quiet": "bright_black",
    "good": "green",
    "bad": "red",
    "warn": "yellow",
    "add": "green",
    "remove": "red",
    "change": "magenta",
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def clean(text: str) -> str:
    """Return text with every character that could move a cursor or turn a line around shown as an escape."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def flat(text: str) -> str:
    """Return text as ``clean`` does, with breaks of lines shown as well: it stands on one line with other facts."""
    return clean(text).replace("\n", "\\n")


def cut(text: str, most: int) -> str:
    """Return text on one line and not longer than ``most``."""
    line = " ".join(clean(text).split())
    return line if len(line) <= most else line[: max(most - 3, 0)] + "..."


def width(text: str) -> int:
    """Return how many columns a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def moment(at: datetime | None, *, exact: bool = False) -> str:
    """Return a moment as text, always in UTC: ``2026-03-01 09:30:00Z``."""
    if at is None:
        return "-"
    text = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{text if exact else text[:-7]}Z"


def count(number: int, what: str) -> str:
    """Return ``1 entry``, ``2 entries``."""
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what[:-1]}ies" if what.endswith("y") else f"{number:,} {what}s"


def size(number: int) -> str:
    """Return a number of bytes as a person reads it."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def columns(header: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()) -> list[Line]:
    """Return a table as lines: a header, and columns as wide as they need to be."""
    table = [list(header), *([flat(cell) for cell in row] for row in rows)]
    widths = [max(width(row[index]) for row in table) for index in range(len(header))]
    lines: list[Line] = []
    for number, row in enumerate(table):
        parts = []
        for index, cell in enumerate(row):
            last = index == len(row) - 1
            text = cell if last else cell + " " * (widths[index] - width(cell) + 2)
            style = "head" if number == 0 else styles[index] if index < len(styles) else ""
            parts.append((text, style))
        lines.append(parts)
    return lines


class Out:
    """Where a command prints. Data goes to stdout, everything else to stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.terminal = sys.stdout.isatty()
        self._console: Any = None

    def line(self, line: Line = "") -> None:
        """Print a line; on a terminal in colour."""
        if not self.terminal or isinstance(line, str):
            parts = [line] if isinstance(line, str) else line
            self._write("".join(part if isinstance(part, str) else part[0] for part in parts) + "\n")
            return
        from rich.console import Console
        from rich.text import Text

        if self._console is None:
            self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        styled = [part if isinstance(part, str) else (part[0], _STYLES.get(part[1], part[1])) for part in line]
        self._console.print(Text.assemble(*styled), soft_wrap=True)

    def lines(self, lines: Iterable[Line]) -> None:
        """Print lines."""
        for line in lines:
            self.line(line)

    def note(self, text: str) -> None:
        """Print a remark to stderr, beside the data."""
        print(text, file=sys.stderr)

    def json(self, value: Any) -> None:
        """Print one JSON document."""
        self._write(self._encoded(value, 2) + "\n")

    def json_line(self, value: Any) -> None:
        """Print one JSON document on one line, at once."""
        self._write(self._encoded(value, None) + "\n")
        self.flush()

    def flush(self) -> None:
        """Send all that was printed to the reader."""
        sys.stdout.flush()

    def array(self, values: Iterable[Any]) -> None:
        """Print a JSON array with an element a line, as the elements come: however many there are."""
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
        # They stand in strings only, where an escape is the same character.
        return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        # A terminal without Unicode shows what it cannot as an escape, rather than ending the command.
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr while work goes on; without a terminal, nothing at all."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
