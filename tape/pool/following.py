"""The feeds of all databases as one: every entry once, those of a tape in order, also when its owner is moved."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from tape.core.entries import payloads
from tape.core.places import RECORDS
from tape.core.records import Entry
from tape.db.feed.pauses import Pauses
from tape.errors import DatabaseDown, StoreBusy, StoreFailed
from tape.pool.copies import ARRIVING, CLOSING, Copies
from tape.pool.cursors import Positions, encode_cursor
from tape.pool.records import records_in

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["FeedReader", "PoolFeed"]

_RETRY = 1.0
"""Seconds after which a database that was down is asked again."""


class _Lane:
    """The feed of one database, as far as it was read."""

    def __init__(self, name: str, position: int) -> None:
        self.name = name
        self.position = position
        """Behind the last entry that was given out, or passed over."""
        self.read = position
        """Behind the last entry that was read."""
        self.pending: deque[Entry] = deque()
        self.waits_for: tuple[str, int] | None = None
        """Another database, and how far it has to be read before this one goes on."""
        self.copies: Copies | None = None
        self.retry_at = 0.0
        self.more = True


class FeedReader:
    """Reads all feeds. The sync or the async feed around it does the waiting."""

    def __init__(
        self, open: Callable[[str], Store], names: list[str], positions: Mapping[str, int], timeout: float | None
    ) -> None:
        self._open = open
        self._lanes = {name: _Lane(name, positions.get(name, 0)) for name in names}
        # Databases that were taken out of the pool. Their entries were read there, so copies of them are left out.
        self._others = {name: position for name, position in positions.items() if name not in self._lanes}
        self._pauses = Pauses(timeout)
        self._turn = 0
        self.down: dict[str, DatabaseDown] = {}
        self.closed = False

    @property
    def cursor(self) -> str:
        """Where to go on behind the last entry that was given out."""
        at = {**self._others, **{name: lane.position for name, lane in self._lanes.items()}}
        return encode_cursor(Positions.of(at))

    def next(self) -> Entry | None:
        """Return the next entry that is at hand, from each database in turn; None when more must be read first."""
        lanes = list(self._lanes.values())
        for index in range(len(lanes)):
            lane = lanes[(self._turn + index) % len(lanes)]
            entry = self._next_of(lane)
            if entry is not None:
                self._turn = (self._turn + index + (not lane.pending)) % len(lanes)
                self._pauses.restart()
                return entry
        return None

    def _next_of(self, lane: _Lane) -> Entry | None:
        while lane.pending and not self._waits(lane):
            entry = lane.pending[0]
            if entry.tape.startswith(RECORDS):
                if lane.waits_for is None and self._must_wait(lane, entry):
                    continue
                lane.waits_for = None
            shown = not entry.tape.startswith(RECORDS) and not self._is_copy(lane, entry)
            lane.pending.popleft()
            lane.position = entry.position or lane.position
            if shown:
                return entry
        if not lane.pending and lane.waits_for is None:
            lane.position = max(lane.position, lane.read)
        return None

    def _waits(self, lane: _Lane) -> bool:
        if lane.waits_for is None:
            return False
        name, position = lane.waits_for
        other = self._lanes.get(name)
        return other is not None and other.position < position

    def _must_wait(self, lane: _Lane, entry: Entry) -> bool:
        """Read a record; returns whether another database must be read further before this one goes on."""
        if not isinstance(entry.payload, payloads.Event):
            return False
        data = entry.payload.data
        if entry.payload.name == ARRIVING and lane.copies is not None:
            lane.copies.learn(data)
        if entry.payload.name == CLOSING:
            lane.waits_for = (data["from"], int(data["position"]))
        return lane.waits_for is not None

    def _is_copy(self, lane: _Lane, entry: Entry) -> bool:
        """Whether the entry is given out from the database where it was first recorded."""
        origin = None if lane.copies is None else lane.copies.origin(entry.tape, entry.seq)
        return origin is not None and (origin in self._lanes or origin in self._others)

    def fill(self) -> bool:
        """Read the next page of every database that has no entries pending; returns whether any had one."""
        filled = False
        now = time.monotonic()
        for lane in self._lanes.values():
            if lane.pending or now < lane.retry_at:
                continue
            try:
                filled |= self._read(lane)
                self.down.pop(lane.name, None)
            except (StoreFailed, StoreBusy) as error:
                lane.more = False
                lane.retry_at = time.monotonic() + _RETRY
                failed = error if isinstance(error, DatabaseDown) else DatabaseDown(lane.name, str(error))
                self.down[lane.name] = failed
        return filled

    def _read(self, lane: _Lane) -> bool:
        store = self._open(lane.name)
        if lane.copies is None:
            lane.copies = learn_copies(store)
        entries, lane.read, lane.more = store._feed.page(lane.read)
        lane.pending.extend(entries)
        return bool(entries) or lane.more

    @property
    def exhausted(self) -> bool:
        """Whether every database that answers was read to its end."""
        # A lane that waits for another database is not read further, however much it has.
        return all(self._waits(lane) if lane.pending else not lane.more for lane in self._lanes.values())

    def pause(self) -> float | None:
        """Return how long to wait before the next read, or None to end."""
        return None if self.closed else self._pauses.next()

    def woken(self) -> None:
        """Read often again: something was committed."""
        self._pauses.shorten()


def learn_copies(store: Store) -> Copies:
    """Return what the records of a database say of copies."""
    copies = Copies()
    for info in records_in(store):
        for entry in store.tape(info.id).entries(name=ARRIVING):
            assert isinstance(entry.payload, payloads.Event)
            copies.learn(entry.payload.data)
    return copies


class PoolFeed:
    """The entries of all databases of a pool, as an iterator that tells where it is.

    ``cursor`` is where to go on behind the last entry; keep it with what you made of the entry. ``down`` names the
    databases that cannot be reached: theirs come later, from where they were.
    """

    def __init__(self, reader: FeedReader, *, wait: bool, stores: Callable[[], list[Store]]) -> None:
        self._reader = reader
        self._entries = self._follow(stores) if wait else self._all()

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    @property
    def cursor(self) -> str:
        """Where to go on behind the last entry that was given out."""
        return self._reader.cursor

    @property
    def down(self) -> dict[str, DatabaseDown]:
        """The databases that could not be reached when they were last asked."""
        return dict(self._reader.down)

    def close(self) -> None:
        """End the iteration; a second close does nothing."""
        self._reader.closed = True
        # Another thread may be inside the generator: it sees the flag at its next look.
        with suppress(ValueError):
            self._entries.close()

    def _all(self) -> Generator[Entry]:
        reader = self._reader
        while not reader.closed:
            while (entry := reader.next()) is not None:
                yield entry
            if not reader.fill() and reader.exhausted:
                return

    def _follow(self, stores: Callable[[], list[Store]]) -> Generator[Entry]:
        reader, committed = self._reader, threading.Event()
        with ExitStack() as watching:
            for store in stores():
                watching.enter_context(store._db.wakeup.following(committed.set))
            while not reader.closed:
                committed.clear()
                while (entry := reader.next()) is not None:
                    yield entry
                if reader.fill():
                    continue
                pause = reader.pause()
                if pause is None:
                    return
                if committed.wait(pause):
                    reader.woken()
