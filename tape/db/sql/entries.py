"""The statements over entries: recording them, and finding one by seq or by key."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ZERO, Param, Statement, derived, only_first, param, query, statement
from tape.db.sql.heads import _NEW_HEAD, Heads
from tape.db.sql.lineages import Lineages
from tape.db.sql.rows.entries import BARE_COLUMNS, ENTRY_COLUMNS, BodyRow, EntryRow, OwnPlace
from tape.db.sql.rows.view import LIVE_COLUMNS

__all__ = ["Entries"]

_NEW_ROW = tuple(f"row_{name}" for name in LIVE_COLUMNS)


class Entries(Heads, Lineages):
    """Statements over the entries of one tape."""

    def _recorded(self, new: dict[str, Param]) -> Any:
        """Return the insert of an entry.

        The head moves after the entries are written: its row alone would give the transaction before this one,
        which readers of the feed have long passed.
        """
        h = self.tables.heads.c
        last = sa.select(h.xid).where(h.tape_id == new["tape_id"]).scalar_subquery()
        xid = sa.func.greatest(last, self._own_xid()) if self.postgres else ZERO
        return sa.insert(self.tables.entries).values({**new, "xid": xid})

    @query(columns=ENTRY_COLUMNS)
    def insert_entry(self, new: dict[str, Param]) -> Any:
        """An entry with everything that one can have."""
        return self._recorded(new)

    @query(columns=BARE_COLUMNS)
    def insert_bare(self, new: dict[str, Param]) -> Any:
        """An entry without actor, source and meta."""
        return self._recorded(new)

    @query(EntryRow)
    def entry(self, t: Param, seq: Param) -> Any:
        """The entry at a seq."""
        e = self.tables.entries.c
        return sa.select(*self._entry).where(e.tape_id == t, e.seq == seq)

    @query(EntryRow)
    def entry_by_key(self, t: Param, key: Param) -> Any:
        """The entry under a key."""
        e = self.tables.entries.c
        return sa.select(*self._entry).where(e.tape_id == t, e.key == key)

    @query(EntryRow)
    def entries_after(self, t: Param, after: Param, to: Param, most: Param) -> Any:
        """A page of a tape's entries."""
        e = self.tables.entries.c
        page = sa.select(*self._entry).where(e.tape_id == t, e.seq > after, e.seq <= to)
        return page.order_by(e.seq).limit(most).offset(ZERO)

    @statement
    def stamp_at(self, t: Param, seq: Param) -> Any:
        """When the entry at a seq was recorded."""
        e = self.tables.entries.c
        return sa.select(e.stamp).where(e.tape_id == t, e.seq == seq)

    @query(BodyRow)
    def body(self, t: Param, seq: Param) -> Any:
        """The payload of the entry at a seq."""
        e = self.tables.entries.c
        return sa.select(e.kind, e.version, e.payload, e.stamp).where(e.tape_id == t, e.seq == seq)

    @statement
    def last_append(self, t: Param, at_seq: Param) -> Any:
        """When the last message up to a seq was recorded."""
        e = self.tables.entries.c
        appends = sa.select(e.stamp).where(e.tape_id == t, e.seq <= at_seq, e.kind == sa.literal_column("'append'"))
        return only_first(appends.order_by(e.seq.desc()))

    @query(OwnPlace)
    def place_by_key(self, t: Param, key: Param) -> Any:
        """The place of the message whose entry has a key."""
        e = self.tables.entries.c
        return sa.select(e.lane, e.ordinal, e.seq).where(e.tape_id == t, e.key == key)

    @query(OwnPlace)
    def place_by_alias(self, t: Param, id: Param) -> Any:
        """The place of a message whose key does not tell its id."""
        e, aliases = self.tables.entries.c, self.tables.aliases
        return (
            sa.select(e.lane, e.ordinal, e.seq)
            .select_from(
                aliases.join(self.tables.entries, sa.and_(e.tape_id == aliases.c.tape_id, e.seq == aliases.c.seq))
            )
            .where(aliases.c.tape_id == t, aliases.c.id == id)
        )

    @derived
    def lock(self) -> str:
        """Exclude other writers of a tape until the transaction ends."""
        return "SELECT pg_advisory_xact_lock(%s)" if self.postgres else ""

    @derived
    def try_lock(self) -> str:
        """Exclude other writers of a tape, unless one is there already."""
        return "SELECT pg_try_advisory_xact_lock(%s)" if self.postgres else ""

    @derived
    def append_hot(self) -> Statement[Any] | None:
        """The whole of a plain append on PostgreSQL."""
        return self._append_hot("append_hot") if self.postgres else None

    @derived
    def append_hot_forked(self) -> Statement[Any] | None:
        """The same on a fork, unless its lineage has a message of that id."""
        further = ("lineage", "own_key", "own_id")
        taken = self._taken(*(param(name) for name in further))
        return self._append_hot("append_hot_forked", taken, further) if self.postgres else None

    def _append_hot(self, name: str, unless: Any = None, further: tuple[str, ...] = ()) -> Statement[Any]:
        """Return the whole of a plain append as one statement: lock, compare the head, write three rows.

        Without BEGIN and COMMIT around it this is a single round trip. The lock comes before the transaction's xid is
        assigned, or xid order could contradict seq order; a head that moved makes it write nothing, as does anything
        that ``unless`` finds.
        """
        t = self.tables
        lock = sa.select(sa.func.pg_advisory_xact_lock(param("lock")).label("locked")).cte("lock")
        moved = (
            sa.update(t.heads)
            .where(
                t.heads.c.tape_id == param("of"),
                t.heads.c.hash == param("was"),
                sa.select(sa.func.count()).select_from(lock).scalar_subquery() == sa.literal_column("1"),
                *(() if unless is None else (sa.not_(unless),)),
            )
            .values(self._head_values({column: param(column) for column in _NEW_HEAD}))
            .returning(t.heads.c.xid)
            .cte("moved")
        )
        types = {column.name: column.type for column in t.entries.c}
        values = [sa.cast(param(column, type_=types[column]), types[column]) for column in ENTRY_COLUMNS]
        entry = (
            sa.insert(t.entries)
            .from_select([*ENTRY_COLUMNS, "xid"], sa.select(*values, moved.c.xid))
            .returning(t.entries.c.seq)
            .cte("entry")
        )
        row = (
            sa.insert(t.live)
            .from_select(
                list(LIVE_COLUMNS),
                sa.select(*(sa.cast(param(column), sa.BigInteger) for column in _NEW_ROW)).select_from(moved),
            )
            .returning(t.live.c.ordinal)
            .cte("held")
        )
        whole = sa.select(moved.c.xid).add_cte(entry, row)
        params = ["lock", *_NEW_HEAD, "of", "was", *ENTRY_COLUMNS, *_NEW_ROW, *further]
        return Statement(name, whole, self.dialect, params)
