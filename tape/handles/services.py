"""What handles use of a store: the services behind them, made by the store and shared by all of its handles."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tape.db.engine.log import log
from tape.db.engine.transaction import Database
from tape.db.feed.feed import Feed
from tape.db.forks.branching import Branching
from tape.db.read.contexts import ContextReader
from tape.db.record.recorder import Recorder
from tape.db.search.search import Searcher

__all__ = ["Services"]


class Services(Struct, frozen=True):
    """The services of one store: each does one kind of work on its database, for its owner."""

    database: Database
    owner: str | None
    clock: Callable[[], int]
    recorder: Recorder
    reader: ContextReader
    branching: Branching
    searcher: Searcher
    feed: Feed

    def log_administrative(self, call: str, **facts: str | None) -> None:
        """Log a call that looks across owners."""
        if self.owner is None and not facts.get("owner"):
            log.info("tape.administrative", call=call, **facts)
