"""A consumer: a named reader of the feed that finds its place again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tape.core import strict
from tape.core.records import Entry
from tape.db.feed.feed import check_position

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["Consumer"]


class Consumer:
    """A reader of the feed whose position is kept in the database under its name.

    Entries come at least once: what was read but not committed comes again. For exactly once, commit the position in
    the transaction that holds what was made of the entries: ``store.bind(connection).consumer(name).commit(…)``.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def __repr__(self) -> str:
        return f"<tape.Consumer {self._name!r}>"

    @property
    def name(self) -> str:
        """The name under which the position is kept, for each owner apart."""
        return self._name

    @property
    def position(self) -> int:
        """The position that was last committed; 0 before the first."""
        return self._store._feed.committed(self._name)

    def __iter__(self) -> Iterator[Entry]:
        """Yield every entry behind the committed position that there is now."""
        return self._store.feed(self.position)

    def follow(self, *, timeout: float | None = None) -> Iterator[Entry]:
        """Yield every entry behind the committed position and wait for more; see ``Store.follow``."""
        return self._store.follow(self.position, timeout=timeout)

    def commit(self, position: int) -> None:
        """Keep ``position``, that of the last entry dealt with. A lower one than before rewinds."""
        self._store._feed.commit(self._name, check_position(position, "position", postgres=self._store._db.postgres))


def check_timeout(timeout: float | None) -> float | None:
    """Return ``timeout`` if it is a number of seconds or None; raises InvalidEntry otherwise."""
    return None if timeout is None else strict.seconds(timeout, "timeout", math.inf)
