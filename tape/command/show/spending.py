"""Usage and cost on a terminal: a row for each model, day, tape or turn, with a bar."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from tape.command.output import Line, clean, cut, money
from tape.core.memory.prices import UsageRow

__all__ = ["spending_lines"]

_EIGHTHS = " ▏▎▍▌▋▊▉"


def spending_lines(rows: Sequence[UsageRow]) -> Iterator[Line]:
    """Yield a table of usage, its widest bar as long as the line has room."""
    if not rows:
        yield [("no usage is recorded", "quiet")]
        return
    width = shutil.get_terminal_size((100, 24)).columns
    cells = [_cells(row) for row in rows]
    total = UsageRow(
        key="total",
        calls=sum(row.calls for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        cost=sum(row.cost for row in rows),
        unpriced=sum(row.unpriced for row in rows),
        currency=rows[0].currency,
    )
    table = [("", "calls", "in", "out", "cost"), *cells, _cells(total)]
    widths = [max(len(line[index]) for line in table) for index in range(1, 5)]
    name = min(max(len(line[0]) for line in table), max(width - sum(widths) - 10, 12), 40)
    room = max(width - name - sum(widths) - 10, 0)
    most = max(row.cost or row.input_tokens + row.output_tokens for row in rows)
    yield [(_line(table[0], name, widths), "quiet")]
    for row, row_cells in zip(rows, cells, strict=True):
        share = (row.cost if total.cost else row.input_tokens + row.output_tokens) / (most or 1)
        yield [_line(row_cells, name, widths), "  ", (_bar(share, room), "good")]
    yield [(_line(_cells(total), name, widths), "head")]
    if total.unpriced:
        yield [
            (
                f"{total.unpriced:,} of {total.calls:,} calls have no price; set TAPE_PRICES to a price table",
                "warn",
            )
        ]


def _cells(row: UsageRow) -> tuple[str, str, str, str, str]:
    cost = money(row.cost, row.currency) + ("+" if row.unpriced else "")
    return clean(row.key), f"{row.calls:,}", f"{row.input_tokens:,}", f"{row.output_tokens:,}", cost


def _line(cells: tuple[str, ...], name: int, widths: Sequence[int]) -> str:
    numbers = (f"  {cell:>{wide}}" for cell, wide in zip(cells[1:], widths, strict=True))
    return f"{cut(cells[0], name):<{name}}{''.join(numbers)}"


def _bar(share: float, room: int) -> str:
    eighths = round(min(share, 1) * room * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
