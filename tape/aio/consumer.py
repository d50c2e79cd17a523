"""The feed, awaited: following it, and a consumer of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from tape.aio.hop import Hop, hop_write, pages
from tape.aio.wakeup import wait, woken_by
from tape.core.records import Entry
from tape.db.feed.feed import Following
from tape.handles.consumer import Consumer, check_timeout
from tape.handles.services import Services

__all__ = ["AsyncConsumer", "follow"]


async def follow(
    face: Hop, services: Services, after: int | Callable[[], int], timeout: float | None
) -> AsyncIterator[Entry]:
    """Follow the feed: every read is a hop to a thread, and the waiting in between takes none."""
    services.log_administrative("follow")
    start = after if isinstance(after, int) else await face._read(after)
    following = Following(services.feed, start, timeout)
    with woken_by([services.database.wakeup]) as committed:
        while True:
            committed.clear()
            for entry in await face._read(following.step):
                yield entry
            pause = following.pause()
            if pause is None:
                return
            if pause and await wait(committed, pause):
                following.woken()


class AsyncConsumer(Hop):
    """A named reader of the feed, awaited; see ``Consumer``."""

    _inner: Consumer

    def __repr__(self) -> str:
        return f"<tape.AsyncConsumer {self.name!r}>"

    @property
    def name(self) -> str:
        """The name under which the position is kept, for each owner apart."""
        return self._inner.name

    @property
    def position(self) -> Awaitable[int]:
        """The position that was last committed, to be awaited; 0 before the first."""
        return self._read(lambda: self._inner.position)

    def __aiter__(self) -> AsyncIterator[Entry]:
        """Yield every entry behind the committed position that there is now."""
        return pages(self, lambda: iter(self._inner))

    def follow(self, *, timeout: float | None = None) -> AsyncIterator[Entry]:
        """Yield every entry behind the committed position and wait for more; see ``Store.follow``."""
        return follow(self, self._inner._services, lambda: self._inner.position, check_timeout(timeout))

    commit = hop_write(Consumer.commit)
