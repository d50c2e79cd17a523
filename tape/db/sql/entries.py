"""The statements over entries: recording them, and finding them by seq, key or name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from tape.core.entries.payloads import UNSEEN
from tape.db.sql.catalog import PURGED
from tape.db.sql.compiler import ZERO, Insert, Param, Statement, derived, only_first, param, query, statement
from tape.db.sql.feeds import OWN_XID, SINCE
from tape.db.sql.heads import _NEW_HEAD, Heads
from tape.db.sql.lineages import Lineages
from tape.db.sql.rows.entries import BARE_COLUMNS, ENTRY_COLUMNS, BodyRow, EntryRow, Holder, OwnPlace
from tape.db.sql.rows.tapes import HEAD_COLUMNS
from tape.db.sql.rows.view import LIVE_COLUMNS

__all__ = ["Entries"]

_ROW = "row_"
"""What stands before the names of the columns of a row of the view, where those of its entry are named as well."""


class Entries(Heads, Lineages):
    """Statements over the entries of one tape."""

    def _in_transaction(self, new: Mapping[str, Any]) -> dict[str, Any]:
        """Return the transaction that a new entry is given, by which the feed is in order.

        The head moves after the entries are written: its row alone would give the transaction before this one,
        which readers of the feed have long passed.
        """
        if self.sharded:
            return {}
        h = self.tables.heads.c
        last = sa.select(h.xid).where(h.tape_id == new["tape_id"]).scalar_subquery()
        return {"xid": sa.func.greatest(last, self._own_xid()) if self.postgres else ZERO}

    @derived
    def insert_entry(self) -> Insert:
        """An entry with everything that one can have; on Citus with its transaction, which was asked for before."""
        columns = (*ENTRY_COLUMNS, "xid") if self.sharded else ENTRY_COLUMNS
        return self._insert(self.tables.entries, columns, self._in_transaction, drawn=True)

    @derived
    def insert_bare(self) -> Insert:
        """An entry without actor, source and meta."""
        return self._insert(self.tables.entries, BARE_COLUMNS, self._in_transaction, drawn=True)

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
    def family_entry_by_key(self, lineage: Param, key: Param) -> Any:
        """The entry under a key, of the nearest tape of a lineage that has one."""
        lin, e = self._lineage(), self.tables.entries.c
        keyed = lin.join(self.tables.entries, sa.and_(self._visible(lin), e.key == key))
        return only_first(sa.select(*self._entry).select_from(keyed).order_by(lin.c.n))

    # -- pages of entries

    @query(EntryRow)
    def entries_after(self, t: Param, after: Param, to: Param, most: Param) -> Any:
        """A page of a tape's entries."""
        return self._page(self.tables.entries, t, (), after, to, most, last=False)

    @query(EntryRow)
    def entries_before(self, t: Param, after: Param, to: Param, most: Param) -> Any:
        """A page of a tape's entries, newest first."""
        return self._page(self.tables.entries, t, (), after, to, most, last=True)

    @query(EntryRow)
    def events_after(self, t: Param, name: Param, after: Param, to: Param, most: Param) -> Any:
        """A page of the events of a name."""
        events = self.tables.events
        return self._page(events, t, (events.c.name == name,), after, to, most, last=False)

    @query(EntryRow)
    def events_before(self, t: Param, name: Param, after: Param, to: Param, most: Param) -> Any:
        """A page of the events of a name, newest first."""
        events = self.tables.events
        return self._page(events, t, (events.c.name == name,), after, to, most, last=True)

    @query(EntryRow)
    def anchors_after(self, t: Param, name: Param, after: Param, to: Param, most: Param) -> Any:
        """A page of the anchors and handoffs of a name."""
        anchors = self.tables.anchors
        return self._page(anchors, t, (anchors.c.name == name,), after, to, most, last=False)

    @query(EntryRow)
    def anchors_before(self, t: Param, name: Param, after: Param, to: Param, most: Param) -> Any:
        """A page of the anchors and handoffs of a name, newest first."""
        anchors = self.tables.anchors
        return self._page(anchors, t, (anchors.c.name == name,), after, to, most, last=True)

    def _page(
        self, table: sa.Table, t: Param, named: Sequence[Any], after: Param, to: Param, most: Param, *, last: bool
    ) -> Any:
        """Return the entries that rows of a table stand for, within a range of seqs."""
        seq, entries = table.c.seq, self.tables.entries
        query = sa.select(*self._entry)
        if table is not entries:
            names = [column.name for column in self._entry]
            rows, on = self._index_join(entries, names, (entries.c.tape_id == table.c.tape_id, entries.c.seq == seq))
            query = sa.select(*(rows.c[name] for name in names)).select_from(table.join(rows, on))
        page = query.where(table.c.tape_id == t, *named, seq > after, seq <= to)
        return page.order_by(seq.desc() if last else seq).limit(most).offset(ZERO)

    @statement
    def family_named(self, lineage: Param, name: Param) -> Any:
        """Which tapes of a lineage have events or anchors of a name, each within its range of seqs."""
        lin = self._lineage()

        def any_row(table: sa.Table) -> Any:
            within = (table.c.seq > lin.c.cleared, table.c.seq <= lin.c.asof)
            rows = sa.select(table.c.seq).where(table.c.tape_id == lin.c.tape_id, table.c.name == name, *within)
            return rows.correlate(lin).exists()

        return sa.select(lin.c.tape_id).where(sa.or_(any_row(self.tables.events), any_row(self.tables.anchors)))

    # -- one message on many tapes

    @query(Holder)
    def holders(self, key: Param, id: Param, after: Param, most: Param) -> Any:
        """A page of the tapes that hold a message of an id, oldest first."""
        return self._holders(key, id, after, most)

    @query(Holder)
    def holders_of(self, key: Param, id: Param, owner: Param, after: Param, most: Param) -> Any:
        """A page of an owner's tapes that hold a message of an id, oldest first."""
        return self._holders(key, id, after, most, self.tables.tapes.c.owner == owner)

    def _holders(self, key: Param, id: Param, after: Param, most: Param, *owned: Any) -> Any:
        e, al, c = self.tables.entries, self.tables.aliases, self.tables.tapes.c
        parts = []
        for rows, named in ((e, e.c.key == key), (al, al.c.id == id)):
            tapes = rows.join(self.tables.tapes, c.id == rows.c.tape_id)
            where = (named, rows.c.tape_id > after, c.status != PURGED, c.hidden.is_(None), *owned)
            part = sa.select(rows.c.tape_id, c.tape).select_from(tapes).where(*where)
            # Each part by itself, so that neither reads further than the page.
            parts.append(sa.select(part.order_by(rows.c.tape_id).limit(most).offset(ZERO).subquery()))
        return sa.union_all(*parts).order_by(sa.literal_column("1")).limit(most).offset(ZERO)

    @statement
    def stamp_at(self, t: Param, seq: Param) -> Any:
        """When the entry at a seq was recorded."""
        e = self.tables.entries.c
        return sa.select(e.stamp).where(e.tape_id == t, e.seq == seq)

    @query(BodyRow)
    def body(self, t: Param, seq: Param) -> Any:
        """The payload of the entry at a seq."""
        e = self.tables.entries.c
        return sa.select(e.kind, e.version, e.payload, e.stamp, e.key).where(e.tape_id == t, e.seq == seq)

    @statement
    def last_append(self, t: Param, at_seq: Param) -> Any:
        """When the last message up to a seq was recorded."""
        e = self.tables.entries.c
        appends = sa.select(e.stamp).where(e.tape_id == t, e.seq <= at_seq, e.kind == sa.literal_column("'append'"))
        return only_first(appends.order_by(e.seq.desc()))

    @statement
    def last_change(self, t: Param, at_seq: Param) -> Any:
        """The last entry up to a seq that changed what readers see."""
        e = self.tables.entries.c
        kinds: list[sa.ColumnClause[str]] = [sa.literal_column(repr(kind)) for kind in UNSEEN]
        changes = sa.select(e.seq).where(e.tape_id == t, e.seq <= at_seq, e.kind.not_in(kinds))
        return only_first(changes.order_by(e.seq.desc()))

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

    # -- plain appends behind a head that is known

    @property
    def _whole(self) -> bool:
        """Whether such an append is one statement; Citus would run its parts one by one, each with a plan."""
        return self.postgres and not self.sharded

    @derived
    def append_hot(self) -> Statement[Any] | None:
        """The whole of a plain append on PostgreSQL."""
        return self._append_hot("append_hot", self._new_row) if self._whole else None

    @derived
    def append_hot_forked(self) -> Statement[Any] | None:
        """The same on a fork, unless its lineage has a message of that id."""
        further = ("lineage", "own_key", "own_id")
        exists = self._id_exists(*(param(name) for name in further))
        return self._append_hot("append_hot_forked", self._new_row, exists, further) if self._whole else None

    @derived
    def event_hot(self) -> Statement[Any] | None:
        """The whole of an event on PostgreSQL; a key that is taken makes it collide."""
        events = self.tables.events
        return self._append_hot("event_hot", self._new_row, table=events) if self._whole else None

    @derived
    def extend_hot(self) -> Statement[Any] | None:
        """The whole of a plain batch on PostgreSQL, of whose rows each column is an array."""
        return self._append_hot("extend_hot", self._new_rows) if self._whole else None

    def _new_row(self, table: sa.Table, names: Sequence[str], prefix: str, *further: Any) -> Any:
        """Return the row of a table whose values are given, as a query."""
        types = {name: table.c[name].type for name in names}
        return sa.select(*(sa.cast(param(prefix + name, type_=types[name]), types[name]) for name in names), *further)

    def _new_rows(self, table: sa.Table, names: Sequence[str], prefix: str, *further: Any) -> Any:
        """Return the rows of a table whose columns are given, as a query."""
        new = self._unnested(table, names, prefix)
        return sa.select(*(new.c[name] for name in names), *further).select_from(new).order_by(new.c.nth)

    def _append_hot(
        self,
        name: str,
        new: Callable[..., Any],
        unless: Any = None,
        further: tuple[str, ...] = (),
        table: sa.Table | None = None,
    ) -> Statement[Any]:
        """Return the whole of a plain append as one statement: lock, compare the head, write its entries and rows.

        The rows are those of messages, or of another ``table``.

        Without BEGIN and COMMIT around it this is a single round trip. The lock comes before the transaction's xid is
        assigned, or xid order could contradict seq order; a head that moved makes it write nothing, as does anything
        that ``unless`` finds.
        """
        t = self.tables
        lock = sa.select(sa.func.pg_advisory_xact_lock(param("lock")).label("locked")).cte("lock")
        moved = (
            sa.update(t.heads)
            .where(
                *self._stands(param("of"), param("was")),
                sa.select(sa.func.count()).select_from(lock).scalar_subquery() == sa.literal_column("1"),
                *(() if unless is None else (sa.not_(unless),)),
            )
            .values(self._head_values({column: param(column) for column in _NEW_HEAD}))
            .returning(t.heads.c.xid)
            .cte("moved")
        )
        entry = (
            sa.insert(t.entries)
            .from_select([*ENTRY_COLUMNS, "xid"], new(t.entries, ENTRY_COLUMNS, "", moved.c.xid).select_from(moved))
            .returning(t.entries.c.seq)
            .cte("entry")
        )
        view, columns = (t.live, LIVE_COLUMNS) if table is None else (table, tuple(table.c.keys()))
        row = (
            sa.insert(view)
            .from_select(list(columns), new(view, columns, _ROW).select_from(moved))
            .returning(view.c.tape_id)
            .cte("held")
        )
        whole = sa.select(moved.c.xid).add_cte(entry, row)
        rows = [_ROW + column for column in columns]
        return Statement(name, whole, self.dialect, ["lock", *_NEW_HEAD, "of", "was", *ENTRY_COLUMNS, *rows, *further])

    # -- the same on Citus, as statements that are sent together

    def _drawn_xid(self) -> Any:
        """Return this transaction's id, as Citus' coordinator works it out for a change before it sends that on."""
        own: sa.ColumnClause[int] = sa.literal_column(OWN_XID)
        return own + sa.cast(param("base"), sa.BigInteger)

    def _moved(self, *unless: Any) -> Any:
        """Return the change of a head that is the expected one, in a transaction that no greater one came before.

        The base is that of a server which runs since the given moment: it changes only where a backup was restored. To
        ask for it here would take as long again, since Citus plans statements over one table in a short way.
        """
        h = self.tables.heads
        running: sa.ColumnClause[str] = sa.literal_column(SINCE)
        same = (h.c.xid <= self._drawn_xid(), running == sa.cast(param("since"), sa.Text))
        values = {name: param(f"new_{name}") for name in HEAD_COLUMNS} | {"xid": self._drawn_xid()}
        expected = self._stands(param("of"), param("was"))
        return sa.update(h).where(*expected, *same, *unless).values(values).returning(h.c.seq)

    @derived
    def hot_head(self) -> Statement[Any]:
        """Move the head, if it is the expected one."""
        return Statement("hot_head", self._moved(), self.dialect, [*_NEW_HEAD, "of", "was", "base", "since"])

    @derived
    def hot_head_forked(self) -> Statement[Any]:
        """The same on a fork, unless its lineage has a message of that id."""
        further = ("lineage", "own_key", "own_id")
        moved = self._moved(sa.not_(self._id_exists(*(param(name) for name in further))))
        return Statement("hot_head_forked", moved, self.dialect, [*_NEW_HEAD, "of", "was", "base", "since", *further])

    @derived
    def hot_entry(self) -> Insert:
        """An entry of this transaction, which moved the head."""
        columns = (*ENTRY_COLUMNS, "base")
        values = {name: param(name) for name in ENTRY_COLUMNS} | {"xid": self._drawn_xid()}
        entry = sa.insert(self.tables.entries).values(values)
        return Insert("hot_entry", entry, self.dialect, columns, None, ())
