"""The services of a store: created by the store and shared by all of its handles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from tape.core.plan.keys import Key
from tape.db.engine.log import log
from tape.db.engine.transaction import Database
from tape.db.feed.feed import Feed
from tape.db.read.reader import Reader
from tape.db.record.recorder import Recorder
from tape.new_ids import keyed

if TYPE_CHECKING:
    from tape.db.forks.branching import Branching
    from tape.db.maintain.purge import Purging
    from tape.db.maintain.retention import Retaining
    from tape.db.read.catalog import Catalog
    from tape.db.search.search import Searcher
    from tape.db.transfer.exporter import Exporter
    from tape.db.transfer.importer import Importer

__all__ = ["Services"]


class Services:
    """The services of one store: each does one kind of work on its database, for its owner.

    Services that a program may never need are imported and created on first use.
    """

    def __init__(
        self,
        database: Database,
        owner: str | None,
        clock: Callable[[], int],
        recorder: Recorder,
        reader: Reader,
        feed: Feed,
    ) -> None:
        self.database = database
        self.owner = owner
        self.clock = clock
        self.recorder = recorder
        self.reader = reader
        self.feed = feed
        self.new_id = recorder.shared.new_id
        """The source of generated ids; in a transaction every retry gets the same ones."""

    def keyed(self, key: str | None) -> Key:
        """Return the key that the caller gave, or a random one."""
        return keyed(key, self.new_id)

    @cached_property
    def branching(self) -> Branching:
        """Forks, merges and discards."""
        from tape.db.forks.branching import Branching

        return Branching(self.recorder, self.reader.settings)

    @cached_property
    def searcher(self) -> Searcher:
        """Search, and its index."""
        from tape.db.search.search import Searcher

        return Searcher(self.database, owner=self.owner)

    @cached_property
    def catalog(self) -> Catalog:
        """Listings, counts and health."""
        from tape.db.read.catalog import Catalog
        from tape.db.search.index import Index

        return Catalog(self.database, self.owner, Index(self.database))

    @cached_property
    def purging(self) -> Purging:
        """Purges."""
        from tape.db.maintain.purge import Purging

        return Purging(self.database, self.owner, self.recorder, self.searcher.index)

    @cached_property
    def retaining(self) -> Retaining:
        """Retention."""
        from tape.db.maintain.retention import Retaining

        return Retaining(self.database, self.owner, self.recorder, self.catalog, self.purging)

    @cached_property
    def exporter(self) -> Exporter:
        """Exports."""
        from tape.db.transfer.exporter import Exporter

        return Exporter(self.database, self.owner)

    @cached_property
    def importer(self) -> Importer:
        """Imports."""
        from tape.db.transfer.importer import Importer

        return Importer(self.recorder)

    def log_administrative(self, call: str, **facts: str | None) -> None:
        """Log a call that reads across owners."""
        if self.owner is None and not facts.get("owner"):
            log.info("tape.administrative", call=call, **facts)
