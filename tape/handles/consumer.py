"""A consumer: a named reader of the feed with a stored position."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tape.core import strict
from tape.core.records import Entry
from tape.db.feed.feed import check_position
from tape.handles.services import Services

__all__ = ["Consumer", "check_timeout"]


class Consumer:
    """A reader of the feed whose position is stored in the database under its name.

    Delivery is at least once: entries that were read but not committed come again. For exactly once, commit the
    position in the transaction with the results: ``store.bind(connection).consumer(name).commit(…)``.
    """

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._name = name

    def __repr__(self) -> str:
        return f"<tape.Consumer {self._name!r}>"

    @property
    def name(self) -> str:
        """The name under which the position is stored, separately for each owner."""
        return self._name

    @property
    def position(self) -> int:
        """The position that was last committed; 0 before the first."""
        return self._services.feed.committed(self._name)

    def __iter__(self) -> Iterator[Entry]:
        """Yield every entry after the committed position that exists now."""
        self._services.log_administrative("feed")
        return self._services.feed.entries(self.position, None)

    def follow(self, *, timeout: float | None = None) -> Iterator[Entry]:
        """Yield every entry after the committed position and wait for more; see ``Store.follow``."""
        most = check_timeout(timeout)
        self._services.log_administrative("follow")
        return self._services.feed.follow(self.position, most)

    def commit(self, position: int) -> None:
        """Store ``position``, that of the last processed entry. A lower one than before rewinds."""
        checked = check_position(position, "position", postgres=self._services.database.postgres)
        self._services.feed.commit(self._name, checked)


def check_timeout(timeout: float | None) -> float | None:
    """Return ``timeout`` if it is a number of seconds or None; raises InvalidEntry otherwise."""
    return None if timeout is None else strict.seconds(timeout, "timeout", math.inf)
