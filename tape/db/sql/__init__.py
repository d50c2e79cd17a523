"""Every SQL statement that the store runs, each written once in SQLAlchemy Core and compiled once per engine.

SQLAlchemy is the one place where SQL is written and the dialects are told apart; at run time the compiled text goes
straight to the driver's cursor with positional parameters, which is three to eight times as fast as executing the
construct. ``rows`` names what comes back. ``heads``, ``entries`` and ``projection`` record, ``lookups`` serve plans,
``reads`` serve readers, ``lineages`` and ``branches`` serve forks, ``memory`` slots and compactions, ``feeds`` and
``searches`` go over all tapes, ``catalog``, ``removal`` and ``strays`` are the store around them.
"""

from __future__ import annotations

from tape.db.sql.branches import Branches
from tape.db.sql.catalog import Catalog
from tape.db.sql.compiler import Statement
from tape.db.sql.entries import Entries
from tape.db.sql.lookups import Lookups
from tape.db.sql.memory import Memory
from tape.db.sql.projection import Projection
from tape.db.sql.reads import Reads
from tape.db.sql.removal import Removal
from tape.db.sql.searches import Searches
from tape.db.sql.strays import Strays

__all__ = ["Statement", "Statements"]


class Statements(Entries, Projection, Lookups, Reads, Branches, Memory, Searches, Catalog, Removal, Strays):
    """All statements of one engine."""
