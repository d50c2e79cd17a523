"""A request for a page: a store, a tape, a point of it, and the parameters of the address."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

import tape

__all__ = ["PageRequest", "NotThere"]


class NotThere(Exception):
    """There is no such page: a tape that is not there or of another owner, a seq beyond the end, a wrong address."""


class PageRequest(Struct, frozen=True):
    """One request for a page, without any HTTP in it."""

    store: tape.Store
    query: Mapping[str, str] = {}
    id: str = ""
    point: int | str | None = None

    def chat(self) -> tape.Tape:
        """Return the tape that is asked for. Raises NotThere, also for another owner's."""
        try:
            return self.store.get(self.id)
        except (tape.TapeNotFound, tape.InvalidEntry) as error:
            raise NotThere(f"there is no tape {self.id!r}") from error

    def snapshot(self) -> tape.Snapshot:
        """Return the tape as of the point that is asked for. Raises NotThere for a point that it has not."""
        chat = self.chat()
        if self.point is None:
            return chat
        if isinstance(self.point, int) and not 0 < self.point <= chat.info().head:
            raise NotThere(f"tape {self.id!r} has no seq {self.point}")
        try:
            return chat.at(self.point)
        except tape.InvalidEntry as error:
            raise NotThere(f"tape {self.id!r} has no seq or name {self.point!r}") from error

    def text(self, name: str) -> str | None:
        """Return a parameter, or None when it is missing or empty."""
        return self.query.get(name) or None

    def number(self, name: str, usual: int, least: int, most: int) -> int:
        """Return a parameter as a number within bounds; anything else is the usual one."""
        digits = self.query.get(name, "")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            return usual
        return min(max(int(digits), least), most)
