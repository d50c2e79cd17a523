"""The statements of the store around the tapes: listing, labels, purging, checks, counts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ENTRY_COLUMNS, HEAD_COLUMNS, TAPE_COLUMNS, ZERO, Statement, param
from tape.db.sql.feeds import Feeds

__all__ = ["Catalog"]

PURGED: sa.ColumnClause[str] = sa.literal_column("'purged'")
BATCH = 2_000
"""How many rows one step of a purge takes."""


class Catalog(Feeds):
    """Statements over many tapes, and over what is known of a tape beside its entries."""

    def _define_catalog(self) -> None:
        self._listings: dict[tuple[frozenset[str], str], Statement] = {}
        self._define_facts()
        self._define_purge()
        self._define_imports()
        self._define_checks()

    def _define_facts(self) -> None:
        """Name, labels and redirect of a tape, as listings find them."""
        t, make = self.tables, self._make
        c = t.tapes.c
        self.set_name = make(
            "set_name", sa.update(t.tapes).where(c.id == param("of")).values(name=param("new_name")), ["new_name", "of"]
        )
        self.set_labels = make(
            "set_labels",
            sa.update(t.tapes).where(c.id == param("of")).values(labels=param("new_labels")),
            ["new_labels", "of"],
        )
        self.set_redirect = make(
            "set_redirect",
            sa.update(t.tapes).where(c.id == param("of")).values(redirect=param("new_redirect")),
            ["new_redirect", "of"],
        )
        self.labels = make("labels", sa.select(c.labels).where(c.id == param("t")), ["t"])
        self.drop_labels = make("drop_labels", sa.delete(t.labels).where(t.labels.c.tape_id == param("t")), ["t"])
        self.insert_label = self._insert(t.labels)
        self.redirect = make("redirect", sa.select(c.redirect).where(c.tape == param("tape")), ["tape"])

    def listing(self, filters: frozenset[str], order: str) -> Statement:
        """Return the listing with these filters: a page of tapes with their heads, and where they were forked off.

        One statement per set of filters, so that each can use the index that serves it.
        """
        if (filters, order) not in self._listings:
            self._listings[filters, order] = self._listing(filters, order)
        return self._listings[filters, order]

    def _listing(self, filters: frozenset[str], order: str) -> Statement:
        t = self.tables
        c, h, fk, lb = t.tapes.c, t.heads.c, t.forks.c, t.labels.c
        parents = t.tapes.alias("parents")
        e, s = t.entries.c, t.slots.c
        tables: Any = t.tapes.join(t.heads, h.tape_id == c.id)
        tables = tables.outerjoin(t.forks, fk.tape_id == c.id).outerjoin(parents, parents.c.id == fk.parent_id)
        # The latest entry that counted usage holds the totals.
        usage = sa.select(sa.func.max(s.since)).where(s.tape_id == c.id, s.slot == sa.literal_column("'usage'"))
        tables = tables.outerjoin(
            t.entries, sa.and_(e.tape_id == c.id, e.seq == usage.correlate(t.tapes).scalar_subquery())
        )
        where: list[sa.ColumnElement[bool]] = [c.status != PURGED]
        if "label" in filters:
            tables = tables.join(t.labels, sa.and_(lb.tape_id == c.id, lb.label == param("label")))
        if "parent" in filters:
            above = t.tapes.alias("above")
            number = sa.select(above.c.id).where(above.c.tape == param("parent")).scalar_subquery()
            where.append(fk.parent_id == number)
        for name in ("owner", "agent", "status"):
            if name in filters:
                where.append(c[name] == param(name))
        if "updated_before" in filters:
            where.append(h.stamp < param("updated_before"))
        if "updated_after" in filters:
            where.append(h.stamp > param("updated_after"))
        if "cursor" in filters:
            below = c.id < param("cursor")
            if order == "updated":
                below = sa.or_(h.stamp < param("moment"), sa.and_(h.stamp == param("moment"), below))
            where.append(below)
        ordering: list[sa.ColumnElement[Any]] = [c.id.desc()] if order == "created" else [h.stamp.desc(), c.id.desc()]
        if order == "oldest":
            where[-1] = c.id > param("cursor")
            ordering = [c.id]
        query = (
            sa.select(
                *(c[name] for name in TAPE_COLUMNS),
                *(h[name] for name in HEAD_COLUMNS),
                parents.c.tape,
                fk.seq,
                e.kind,
                e.version,
                e.payload,
            )
            .select_from(tables)
            .where(*where)
            .order_by(*ordering)
            .limit(param("most", type_=sa.Integer))
            .offset(ZERO)
        )
        params = [*sorted(filters), *(["moment"] if "cursor" in filters and order == "updated" else []), "most"]
        return self._make("listing", query, params)

    def _define_purge(self) -> None:
        """Tombstones, and taking away the rows of a purged tape step by step."""
        t, make = self.tables, self._make
        c, tb, e, fk = t.tapes.c, t.tombstones.c, t.entries.c, t.forks.c
        self.bury = make(
            "bury",
            sa.update(t.tapes)
            .where(c.id == param("of"))
            .values(
                {
                    "status": PURGED,
                    **dict.fromkeys(("name", "agent", "labels", "meta", "reason", "redirect"), sa.null()),
                }
            ),
            ["of"],
        )
        self.insert_tombstone = self._insert(t.tombstones)
        self.tombstone = make(
            "tombstone",
            sa.select(tb.tape_id, tb.owner, tb.seq, tb.hash, tb.stamp, tb.emptied)
            .where(tb.tape == param("tape"))
            .order_by(tb.tape_id.desc()),
            ["tape"],
        )
        self.emptied = make(
            "emptied",
            sa.update(t.tombstones).where(tb.tape_id == param("t")).values(emptied=sa.literal_column("1")),
            ["t"],
        )
        self.unemptied = make(
            "unemptied",
            sa.select(tb.tape_id, tb.tape, tb.seq, tb.owner)
            .where(tb.emptied == sa.literal_column("0"))
            .order_by(tb.tape_id),
            [],
        )
        self.rename_tape = make(
            "rename_tape",
            sa.update(t.tapes).where(c.id == param("of")).values(tape=param("new_tape")),
            ["new_tape", "of"],
        )
        # The last entry of a purged tape is its tombstone and stays.
        batch = (
            sa.select(e.seq)
            .where(e.tape_id == param("t"), e.seq < param("last"))
            .order_by(e.seq)
            .limit(sa.literal_column(str(BATCH)))
            .offset(ZERO)
        )
        self.purge_entries = make(
            "purge_entries",
            sa.delete(t.entries).where(e.tape_id == param("t"), e.seq.in_(batch)),
            ["t", "last"],
        )
        # The texts of the search index go with their words, which only the index knows.
        kept = {t.heads, t.entries, t.tombstones, t.texts}
        # Every table with rows of a tape, also those that later revisions add.
        self.purge_rows = [
            self._purge_rows(table) for table in t.metadata.sorted_tables if "tape_id" in table.c and table not in kept
        ]
        self.linking = make(
            "linking",
            sa.select(fk.parent_id, t.tapes.c.tape, fk.merge_seq)
            .select_from(t.forks.join(t.tapes, t.tapes.c.id == fk.parent_id))
            .where(fk.tape_id == param("t"), fk.state == sa.literal_column("'merged'"), c.status != PURGED),
            ["t"],
        )

    def _purge_rows(self, table: sa.Table) -> Statement:
        key = [column for column in table.primary_key.columns if column.name != "tape_id"]
        where: list[Any] = [table.c.tape_id == param("t")]
        if key:
            batch = (
                sa.select(*key).where(table.c.tape_id == param("t")).limit(sa.literal_column(str(BATCH))).offset(ZERO)
            )
            where.append(sa.tuple_(*key).in_(batch) if len(key) > 1 else key[0].in_(batch))
        return self._make(f"purge_{table.name}", sa.delete(table).where(*where), ["t"])

    def _define_imports(self) -> None:
        """How far a tape came from elsewhere, and the hidden tapes of imports that are under way."""
        t, make = self.tables, self._make
        c, e, im, ar = t.tapes.c, t.entries.c, t.imports.c, t.arrivals.c
        self.imported = make("imported", sa.select(im.seq).where(im.tape_id == param("t")), ["t"])
        self.drop_import = make("drop_import", sa.delete(t.imports).where(im.tape_id == param("t")), ["t"])
        self.insert_import = self._insert(t.imports)
        self.hashes_after = make(
            "hashes_after",
            sa.select(e.seq, e.hash)
            .select_from(t.tapes.join(t.entries, e.tape_id == c.id))
            .where(c.tape == param("tape"), e.seq > param("after"), e.seq <= param("to"))
            .order_by(e.seq)
            .limit(sa.literal_column(str(BATCH)))
            .offset(ZERO),
            ["tape", "after", "to"],
        )
        self.insert_arrival = self._insert(t.arrivals)
        self.arrival_hash = make(
            "arrival_hash", sa.select(ar.hash).where(ar.tape_id == param("t"), ar.seq == param("seq")), ["t", "seq"]
        )
        xid = self._own_xid() if self.postgres else sa.literal_column("0")
        # In the order of their seqs, which is the order of the feed from now on.
        waiting = sa.select(*(ar[name] for name in ENTRY_COLUMNS), xid).where(ar.tape_id == param("t")).order_by(ar.seq)
        self.take_arrivals = make(
            "take_arrivals", sa.insert(t.entries).from_select([*ENTRY_COLUMNS, "xid"], waiting), ["t"]
        )
        self.drop_arrivals = make("drop_arrivals", sa.delete(t.arrivals).where(ar.tape_id == param("t")), ["t"])
        # The name tells that the row is still this import's: the number of one that was dropped may be another's now.
        hidden = (c.id == param("of"), c.tape == param("hidden"))
        self.hide_tape = make(
            "hide_tape",
            sa.update(t.tapes).where(*hidden).values(status=PURGED, created_at=param("now")),
            ["now", "of", "hidden"],
        )
        self.show_tape = make(
            "show_tape",
            sa.update(t.tapes).where(*hidden).values(tape=param("new_tape"), created_at=param("created")),
            ["new_tape", "created", "of", "hidden"],
        )
        self.drop_tape = make("drop_tape", sa.delete(t.tapes).where(*hidden), ["of", "hidden"])
        within = (c.tape >= param("low"), c.tape < param("high"))
        self.abandoned = make(
            "abandoned",
            sa.select(c.id, c.tape, c.owner).where(*within, c.created_at < param("before")),
            ["low", "high", "before"],
        )
        self.sign_tapes = make(
            "sign_tapes",
            sa.update(t.tapes).where(*within).values(created_at=param("now")),
            ["now", "low", "high"],
        )

    def _define_checks(self) -> None:
        """What health and stats ask."""
        t, make = self.tables, self._make
        c, h, e, ck = t.tapes.c, t.heads.c, t.entries.c, t.checks.c
        self.drop_check = make("drop_check", sa.delete(t.checks).where(ck.tape_id == param("t")), ["t"])
        self.insert_check = self._insert(t.checks)
        checked = sa.select(c.tape, ck.seq, ck.hash, ck.stamp).select_from(t.checks.join(t.tapes, c.id == ck.tape_id))
        self.last_check = make(
            "last_check",
            checked.order_by(ck.stamp.desc()).limit(sa.literal_column("1")).offset(ZERO),
            [],
        )
        self.last_check_of = make(
            "last_check_of",
            checked.where(c.owner == param("owner"))
            .order_by(ck.stamp.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["owner"],
        )
        self.check = make("check", checked.where(c.tape == param("tape")), ["tape"])
        self.revision = make("revision", sa.select(t.version.c.version_num), [])
        self._define_strays()
        tapes = t.tapes.join(t.heads, h.tape_id == c.id)
        counts = sa.select(c.status, sa.func.count(), sa.func.sum(h.seq), sa.func.sum(h.messages)).select_from(tapes)
        size = sa.func.octet_length if self.postgres else sa.func.length
        weight = sa.select(
            sa.func.coalesce(
                sa.func.sum(size(e.payload) + sa.func.coalesce(size(e.meta), sa.literal_column("0"))),
                sa.literal_column("0"),
            )
        ).select_from(t.entries.join(t.tapes, c.id == e.tape_id))
        live = c.status != PURGED
        self.counts = make("counts", counts.where(live).group_by(c.status), [])
        self.counts_of = make("counts_of", counts.where(live, c.owner == param("owner")).group_by(c.status), ["owner"])
        self.weight = make("weight", weight.where(live), [])
        self.weight_of = make("weight_of", weight.where(live, c.owner == param("owner")), ["owner"])

    def _define_strays(self) -> None:
        """What verify asks beside the tapes: rows that belong to none, and what purged tapes left."""
        t, make = self.tables, self._make
        c, h, e, tb, ar = t.tapes.c, t.heads.c, t.entries.c, t.tombstones.c, t.arrivals.c
        tables = [table for table in t.metadata.sorted_tables if "tape_id" in table.c]

        def counted(table: sa.Table) -> sa.Select[Any]:
            """Return how many rows a table holds of each tape, and the first seq of them if they have one."""
            first = sa.func.min(table.c.seq) if "seq" in table.c else sa.literal_column("0")
            return (
                sa.select(table.c.tape_id, sa.func.count(), first).group_by(table.c.tape_id).order_by(table.c.tape_id)
            )

        self.orphans = {
            table.name: make(
                f"orphans_{table.name}",
                counted(table).where(~sa.exists(sa.select(c.id).where(c.id == table.c.tape_id))),
                [],
            )
            for table in tables
        }
        # A check may be noted of a tape that is being purged, so that one is no sign of damage.
        kept = {t.heads, t.tombstones, t.checks}
        self.remains = {
            table.name: make(
                f"remains_{table.name}",
                counted(table).where(
                    sa.exists(
                        sa.select(tb.tape_id).where(
                            tb.tape_id == table.c.tape_id,
                            tb.emptied == sa.literal_column("1"),
                            *((tb.seq != table.c.seq,) if table is t.entries else ()),
                        )
                    )
                ),
                [],
            )
            for table in tables
            if table not in kept
        }
        gone = sa.select(tb.tape_id).where(tb.emptied == sa.literal_column("1"))
        self.sweep_view = [
            make(
                f"sweep_{table.name}",
                sa.delete(table).where(
                    sa.or_(~sa.exists(sa.select(c.id).where(c.id == table.c.tape_id)), table.c.tape_id.in_(gone))
                ),
                [],
            )
            for table in t.view
        ]
        self.stuck_arrivals = make(
            "stuck_arrivals",
            counted(t.arrivals).where(sa.exists(sa.select(c.id).where(c.id == ar.tape_id, c.status != PURGED))),
            [],
        )
        # Each tombstone with the rows that it must agree with.
        self.tombstones = make(
            "tombstones",
            sa.select(
                *(tb[name] for name in ("tape_id", "tape", "owner", "seq", "hash", "stamp", "emptied")),
                *(c.tape, c.owner, c.status),
                *(h.seq, h.hash),
                *(e.hash, e.stamp, e.kind, e.version, e.payload),
            )
            .select_from(
                t.tombstones.join(t.tapes, c.id == tb.tape_id)
                .outerjoin(t.heads, h.tape_id == tb.tape_id)
                .outerjoin(t.entries, sa.and_(e.tape_id == tb.tape_id, e.seq == tb.seq))
            )
            .order_by(tb.tape_id),
            [],
        )
        self.unburied = make(
            "unburied",
            sa.select(c.id, c.tape, c.owner)
            .where(
                c.status == PURGED,
                sa.not_(sa.and_(c.tape >= param("low"), c.tape < param("high"))),
                ~sa.exists(sa.select(tb.tape_id).where(tb.tape_id == c.id)),
            )
            .order_by(c.id),
            ["low", "high"],
        )
