"""What the full-screen stepper reads of a tape: pages of entries and one pane at a time, however long the tape is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import tape
from tape.command.output import Line
from tape.command.show.contexts import context_lines
from tape.command.show.describe import entry_heading, entry_lines, message_of
from tape.command.show.differences import changes
from tape.command.show.history import with_tools
from tape.command.show.messages import Look, indented
from tape.command.show.views import effect, view_lines

__all__ = ["PANES", "Reading"]

PANES = ("entry", "view", "context", "diff")
_PAGE = 200
_LAST = 50
"""How many messages of a view are shown: the last ones."""
_WHOLE = 500
"""A context of more messages than this is shown within a budget."""
_BUDGET = 100_000


class Reading:
    """The entries of a tape by pages, and the pane beside the list for each of them."""

    def __init__(self, chat: tape.Tape, *, color: bool = True) -> None:
        self.chat = chat
        self.title = chat.info().name or chat.id
        self.calls: dict[str, str] = {}
        self._color = color
        self._page = functools.lru_cache(maxsize=16)(self._read_page)
        self.pane = functools.lru_cache(maxsize=8)(self._pane)

    def entry(self, seq: int) -> tape.Entry:
        """Return an entry; the page that it is on is read once."""
        number, index = divmod(seq - 1, _PAGE)
        page = self._page(number)
        if index < len(page) and page[index].seq == seq:
            return page[index]
        # Only damage leaves a gap.
        return self.chat.entry(seq=seq)

    def _read_page(self, number: int) -> list[tape.Entry]:
        entries = self.chat.entries(after=number * _PAGE, limit=_PAGE)
        return list(with_tools(self.chat, entries, self.calls))

    def next_of(self, seq: int, kinds: tuple[str, ...], *, back: bool) -> int | None:
        """Return the next or the previous entry of these kinds, by an index."""
        if back:
            entries = self.chat.entries(before=seq, kinds=kinds, reverse=True, limit=1)
        else:
            entries = self.chat.entries(after=seq, kinds=kinds, limit=1)
        return next((entry.seq for entry in entries), None)

    def scan(self, seq: int, matches: Callable[[tape.Entry], bool], *, back: bool) -> Iterator[tuple[int, bool]]:
        """Yield how far a search has come, page by page, and last the entry that is wanted, with True."""
        while True:
            if back:
                page = list(self.chat.entries(before=seq, reverse=True, limit=_PAGE))
            else:
                page = list(self.chat.entries(after=seq, limit=_PAGE))
            for entry in with_tools(self.chat, page, self.calls):
                if matches(entry):
                    yield entry.seq, True
                    return
            if len(page) < _PAGE:
                return
            seq = page[-1].seq
            yield seq, False

    def _pane(self, seq: int, pane: str, columns: int) -> list[Line]:
        """Return the pane beside the list: the entry, the view, the context or the diff."""
        look = Look(columns, self.calls)
        entry = self.entry(seq)
        if pane == "view":
            return list(view_lines(self.chat, seq, look, _LAST))
        if pane == "context":
            return list(self._context(seq, look))
        changed = effect(self.chat, entry)
        lines = list(changes(changed, look, color=self._color))
        if pane == "diff":
            return lines or ["no message changed"]
        message = message_of(entry)
        if message is not None and not (changed.revised or changed.retracted or changed.left):
            lines = list(indented(message, look._replace(full=True)))
        return [*entry_heading(entry, look), "", *lines] if lines else entry_lines(entry, look)

    def _context(self, seq: int, look: Look) -> Iterator[Line]:
        view = self.chat.at(seq)
        budget = _BUDGET if view.info().message_count > _WHOLE else None
        try:
            built = view.context(budget=budget)
        except tape.BudgetExceeded as error:
            yield str(error)
            return
        yield from context_lines(built, look)
