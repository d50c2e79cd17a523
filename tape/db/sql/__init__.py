"""Every SQL statement that the store runs, each written once in SQLAlchemy Core and compiled once per engine.

SQLAlchemy is the one place where SQL is written and the dialects are told apart; at run time the compiled text goes
straight to the driver's cursor with positional parameters, which is three to eight times as fast as executing the
construct. ``writes`` records, ``lookups`` serve plans, ``reads`` serve readers, ``lineages`` and ``branches``
serve forks, ``memory`` slots and compactions, ``feeds`` and ``searches`` go over all tapes, ``catalog`` is the store
around them.
"""

from __future__ import annotations

from tape.db.schema.tables import Tables
from tape.db.sql.branches import Branches
from tape.db.sql.catalog import Catalog
from tape.db.sql.compiler import BARE_COLUMNS, ENTRY_COLUMNS, HEAD_COLUMNS, LIVE_COLUMNS, TAPE_COLUMNS, Statement
from tape.db.sql.lookups import Lookups
from tape.db.sql.memory import Memory
from tape.db.sql.reads import Reads
from tape.db.sql.searches import Searches
from tape.db.sql.writes import Writes

__all__ = ["BARE_COLUMNS", "ENTRY_COLUMNS", "HEAD_COLUMNS", "LIVE_COLUMNS", "TAPE_COLUMNS", "Statement", "Statements"]


class Statements(Writes, Lookups, Reads, Branches, Memory, Searches, Catalog):
    """All statements of one engine."""

    def __init__(self, dialect: str, tables: Tables) -> None:
        super().__init__(dialect, tables)
        self._define_heads()
        self._define_entries()
        self._define_projection()
        self._define_lookups()
        self._define_reads()
        self._define_lineage()
        self._define_branches()
        further = ["lineage", "own_key", "own_id"]
        self.append_hot_forked = self._append_hot("append_hot_forked", self._taken, further) if self.postgres else None
        self._define_memory()
        self._define_feeds()
        self._define_searches()
        self._define_catalog()
