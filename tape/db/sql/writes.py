"""The statements that record: tapes, heads, entries, and the rows of the view that an entry changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import (
    BARE_COLUMNS,
    ENTRY_COLUMNS,
    HEAD_COLUMNS,
    LIVE_COLUMNS,
    TAPE_COLUMNS,
    ZERO,
    Statement,
    param,
)
from tape.db.sql.feeds import Feeds

__all__ = ["Writes"]


class Writes(Feeds):
    """Statements that change something."""

    def _define_heads(self) -> None:
        """Tapes and their heads."""
        t, make = self.tables, self._make
        h, fk = t.heads.c, t.forks.c
        tape_columns = [t.tapes.c[name] for name in TAPE_COLUMNS]
        head_columns = [t.heads.c[name] for name in HEAD_COLUMNS]
        joined = sa.join(t.tapes, t.heads, h.tape_id == t.tapes.c.id)
        # One more row if the tape is a fork; it never changes but for its state.
        forked = joined.outerjoin(t.forks, fk.tape_id == t.tapes.c.id)
        # The tape's number, name and everything an append needs, in one row.
        self.head = make(
            "head",
            sa.select(
                t.tapes.c.id,
                t.tapes.c.owner,
                t.tapes.c.status,
                t.tapes.c.reason,
                t.tapes.c.completed_at,
                fk.lineage,
                *head_columns,
            )
            .select_from(forked)
            .where(t.tapes.c.tape == param("tape")),
            ["tape"],
        )
        # A tape whatever became of its head, for those who check that.
        self.tape_row = make(
            "tape_row",
            sa.select(
                t.tapes.c.id,
                t.tapes.c.owner,
                t.tapes.c.status,
                t.tapes.c.reason,
                t.tapes.c.completed_at,
                sa.func.coalesce(h.seq, ZERO),
            )
            .select_from(t.tapes.outerjoin(t.heads, h.tape_id == t.tapes.c.id))
            .where(t.tapes.c.tape == param("tape")),
            ["tape"],
        )
        self.info = make(
            "info",
            sa.select(*tape_columns, *head_columns).select_from(joined).where(t.tapes.c.tape == param("tape")),
            ["tape"],
        )
        parents = t.tapes.alias("parents")
        # A fork's parent, the seq it was forked at, its state, and up to where and by which entry it was merged.
        self.fork = make(
            "fork",
            sa.select(parents.c.tape, fk.seq, fk.state, fk.merged, fk.merge_seq)
            .select_from(t.forks.join(parents, parents.c.id == fk.parent_id))
            .where(fk.tape_id == param("t")),
            ["t"],
        )
        self.forks_of = make(
            "forks_of",
            sa.select(t.tapes.c.tape, fk.tape_id, fk.seq, fk.state, fk.merge_seq)
            .select_from(t.forks.join(t.tapes, t.tapes.c.id == fk.tape_id))
            # A fork was made after its parent. Said here, it keeps damaged rows from leading round in a circle.
            .where(
                fk.parent_id == param("t"),
                fk.tape_id > param("t"),
                t.tapes.c.status != sa.literal_column("'purged'"),
            )
            .order_by(fk.tape_id),
            ["t"],
        )
        self.set_fork = make(
            "set_fork",
            sa.update(t.forks)
            .where(fk.tape_id == param("t"))
            .values(
                state=param("new_state"),
                merged=sa.func.coalesce(
                    sa.func.nullif(sa.cast(param("new_merged"), sa.BigInteger), sa.literal_column("0")), fk.merged
                ),
                merge_seq=param("new_merge_seq"),
            ),
            ["new_state", "new_merged", "new_merge_seq", "t"],
        )
        self.tape_names = make(
            "tape_names",
            sa.select(t.tapes.c.tape)
            .where(t.tapes.c.tape > param("after"))
            .order_by(t.tapes.c.tape)
            .limit(sa.literal_column("500"))
            .offset(ZERO),
            ["after"],
        )
        self.create_tape = make(
            "create_tape",
            sa.insert(t.tapes)
            .values({name: param(name) for name in TAPE_COLUMNS if name != "id"})
            .returning(t.tapes.c.id),
            [name for name in TAPE_COLUMNS if name != "id"],
        )
        self.create_head = make(
            "create_head",
            sa.insert(t.heads).values(
                {
                    "tape_id": param("tape_id"),
                    **{name: param(name) for name in HEAD_COLUMNS},
                    "xid": sa.literal_column("0"),
                }
            ),
            ["tape_id", *HEAD_COLUMNS],
        )
        head_values: dict[str, Any] = {name: param(f"new_{name}") for name in HEAD_COLUMNS}
        if self.postgres:
            # Never lower than the last one, so that xid order never contradicts seq order inside a tape.
            head_values["xid"] = sa.func.greatest(h.xid, self._own_xid())
        self._head_values = head_values
        # Compared by hash: after a failover or a restored backup the same seq can be another entry's.
        self.move_head = make(
            "move_head",
            sa.update(t.heads).where(h.tape_id == param("of"), h.hash == param("was")).values(head_values),
            [*(f"new_{name}" for name in HEAD_COLUMNS), "of", "was"],
        )
        self.set_head = make(
            "set_head",
            sa.update(t.heads).where(h.tape_id == param("of")).values(head_values),
            [*(f"new_{name}" for name in HEAD_COLUMNS), "of"],
        )
        self.set_status = make(
            "set_status",
            sa.update(t.tapes)
            .where(t.tapes.c.id == param("of"))
            .values(status=param("new_status"), reason=param("new_reason"), completed_at=param("new_completed_at")),
            ["new_status", "new_reason", "new_completed_at", "of"],
        )

    def _define_entries(self) -> None:
        """Entries: recording one, and finding one by seq or key."""
        t, make = self.tables, self._make
        e, h = t.entries.c, t.heads.c
        entry_values: dict[str, Any] = {name: param(name) for name in ENTRY_COLUMNS}
        last = sa.select(h.xid).where(h.tape_id == param("tape_id")).scalar_subquery()
        # The head moves after the entries are written: its row alone would give the transaction before this one,
        # which readers of the feed have long passed.
        entry_values["xid"] = sa.func.greatest(last, self._own_xid()) if self.postgres else sa.literal_column("0")
        self.insert_entry = make("insert_entry", sa.insert(t.entries).values(entry_values), ENTRY_COLUMNS)
        bare_values = {name: entry_values[name] for name in (*BARE_COLUMNS, "xid")}
        self.insert_bare = make("insert_bare", sa.insert(t.entries).values(bare_values), BARE_COLUMNS)
        full = self._entry
        self.entry = make("entry", sa.select(*full).where(e.tape_id == param("t"), e.seq == param("seq")), ["t", "seq"])
        self.entry_by_key = make(
            "entry_by_key", sa.select(*full).where(e.tape_id == param("t"), e.key == param("key")), ["t", "key"]
        )
        self.entries_after = make(
            "entries_after",
            sa.select(*full)
            .where(e.tape_id == param("t"), e.seq > param("after"), e.seq <= param("to"))
            .order_by(e.seq)
            .limit(param("most", type_=sa.Integer))
            .offset(ZERO),
            ["t", "after", "to", "most"],
        )
        self.stamp_at = make(
            "stamp_at", sa.select(e.stamp).where(e.tape_id == param("t"), e.seq == param("seq")), ["t", "seq"]
        )
        self.body = make(
            "body",
            sa.select(e.kind, e.version, e.payload, e.stamp).where(e.tape_id == param("t"), e.seq == param("seq")),
            ["t", "seq"],
        )
        self.place_by_key = make(
            "place_by_key",
            sa.select(e.lane, e.ordinal, e.seq).where(e.tape_id == param("t"), e.key == param("key")),
            ["t", "key"],
        )
        self.place_by_alias = make(
            "place_by_alias",
            sa.select(e.lane, e.ordinal, e.seq)
            .select_from(t.aliases.join(t.entries, sa.and_(e.tape_id == t.aliases.c.tape_id, e.seq == t.aliases.c.seq)))
            .where(t.aliases.c.tape_id == param("t"), t.aliases.c.id == param("id")),
            ["t", "id"],
        )
        self.lock = "SELECT pg_advisory_xact_lock(%s)" if self.postgres else ""
        self.try_lock = "SELECT pg_try_advisory_xact_lock(%s)" if self.postgres else ""
        self.append_hot = self._append_hot() if self.postgres else None

    def _define_projection(self) -> None:
        """The rows of the view: opening, closing and marking them."""
        t, make = self.tables, self._make
        m, past, c, s, ov = t.live.c, t.past.c, t.clears.c, t.slots.c, t.overrides.c
        at_place = (m.tape_id == param("t"), m.lane == param("at_lane"), m.ordinal == param("at_ordinal"))
        self.open_row = make(
            "open_row",
            sa.insert(t.live).values({name: param(name) for name in LIVE_COLUMNS}),
            LIVE_COLUMNS,
        )
        self.keep_row = make(
            "keep_row",
            sa.insert(t.past).from_select(
                ["tape_id", "lane", "ordinal", "since", "placed", "body", "until", "why"],
                sa.select(
                    m.tape_id,
                    m.lane,
                    m.ordinal,
                    m.since,
                    m.placed,
                    m.body,
                    sa.cast(param("ended"), sa.BigInteger),
                    sa.cast(param("because"), sa.Text),
                ).where(*at_place),
            ),
            ["ended", "because", "t", "at_lane", "at_ordinal"],
        )
        self.drop_row = make("drop_row", sa.delete(t.live).where(*at_place), ["t", "at_lane", "at_ordinal"])
        # The newest row once more, holding for no time at all, with another reason why it ended.
        self.mark_row = make(
            "mark_row",
            sa.insert(t.past).from_select(
                ["tape_id", "lane", "ordinal", "since", "placed", "body", "until", "why"],
                sa.select(
                    past.tape_id,
                    past.lane,
                    past.ordinal,
                    sa.cast(param("at_seq"), sa.BigInteger),
                    past.placed,
                    past.body,
                    sa.cast(param("at_seq"), sa.BigInteger),
                    sa.cast(param("because"), sa.Text),
                )
                .where(
                    past.tape_id == param("t"),
                    past.lane == param("at_lane"),
                    past.ordinal == param("at_ordinal"),
                )
                .order_by(past.since.desc())
                .limit(sa.literal_column("1"))
                .offset(ZERO),
            ),
            ["at_seq", "because", "t", "at_lane", "at_ordinal"],
        )
        self.insert_lane = self._insert(t.lanes)
        self.insert_alias = self._insert(t.aliases)
        self.insert_call = self._insert(t.calls)
        self.insert_answer = self._insert(t.answers)
        self.insert_anchor = self._insert(t.anchors)
        self.insert_clear = self._insert(t.clears)
        self.insert_slot = self._insert(t.slots)
        self.insert_past = self._insert(t.past)
        self.insert_fork = self._insert(t.forks)
        self.insert_override = self._insert(t.overrides)
        self.insert_compaction = self._insert(t.compactions)
        co = t.compactions.c
        open_one = (
            co.tape_id == param("t"),
            co.origin == param("from_tape"),
            co.seq == param("at_seq"),
            co.until.is_(None),
        )
        self.change_compaction = make(
            "change_compaction",
            sa.insert(t.compactions).from_select(
                [column.name for column in t.compactions.c],
                sa.select(
                    co.tape_id,
                    co.origin,
                    co.seq,
                    sa.cast(param("began"), sa.BigInteger),
                    co.head_tape,
                    co.lane,
                    co.ordinal,
                    co.lo,
                    sa.cast(param("new_gone"), sa.BigInteger),
                    sa.cast(param("new_revised"), sa.BigInteger),
                    sa.cast(param("new_loose"), sa.BigInteger),
                    sa.null(),
                ).where(*open_one),
            ),
            ["began", "new_gone", "new_revised", "new_loose", "t", "from_tape", "at_seq"],
        )
        self.end_compaction = make(
            "end_compaction",
            sa.update(t.compactions).where(*open_one, co.since < param("ended")).values(until=param("ended")),
            ["ended", "t", "from_tape", "at_seq"],
        )
        self.end_override = make(
            "end_override",
            sa.update(t.overrides)
            .where(
                ov.tape_id == param("t"),
                ov.origin == param("from_tape"),
                ov.lane == param("at_lane"),
                ov.ordinal == param("at_ordinal"),
                ov.until.is_(None),
            )
            .values(until=param("ended")),
            ["ended", "t", "from_tape", "at_lane", "at_ordinal"],
        )
        self.has_overrides = make(
            "has_overrides",
            sa.select(ov.since)
            .where(ov.tape_id == param("t"), ov.since <= param("at_seq"))
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "at_seq"],
        )
        self.untally_clear = make(
            "untally_clear",
            sa.update(t.clears)
            .where(c.tape_id == param("t"), c.seq == param("at_seq"))
            .values(hidden=c.hidden - sa.literal_column("1")),
            ["t", "at_seq"],
        )
        self.touch_clears = make(
            "touch_clears",
            sa.update(t.clears)
            .where(c.tape_id == param("t"), c.until.is_(None))
            .values(touched=sa.literal_column("1")),
            ["t"],
        )
        self.end_clear = make(
            "end_clear",
            sa.update(t.clears).where(c.tape_id == param("t"), c.seq == param("at_seq")).values(until=param("ended")),
            ["ended", "t", "at_seq"],
        )
        self.end_slot = make(
            "end_slot",
            sa.update(t.slots)
            .where(s.tape_id == param("t"), s.slot == param("at_slot"), s.until.is_(None))
            .values(until=param("ended")),
            ["ended", "t", "at_slot"],
        )
        self.dump = {
            table.name: make(
                f"dump_{table.name}",
                sa.select(*[col for col in table.c if col.name != "tape_id"]).where(table.c.tape_id == param("t")),
                ["t"],
            )
            for table in t.view
        }
        self.wipe = [
            make(f"wipe_{table.name}", sa.delete(table).where(table.c.tape_id == param("t")), ["t"]) for table in t.view
        ]

    def _append_hot(self, name: str = "append_hot", unless: Any = None, further: Sequence[str] = ()) -> Statement:
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
            .values(self._head_values)
            .returning(t.heads.c.xid)
            .cte("moved")
        )
        types = {column.name: column.type for column in t.entries.c}
        values = [sa.cast(param(name, type_=types[name]), types[name]) for name in ENTRY_COLUMNS]
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
                sa.select(*(sa.cast(param(f"row_{name}"), sa.BigInteger) for name in LIVE_COLUMNS)).select_from(moved),
            )
            .returning(t.live.c.ordinal)
            .cte("held")
        )
        whole = sa.select(moved.c.xid).add_cte(entry, row)
        params = [
            "lock",
            *(f"new_{name}" for name in HEAD_COLUMNS),
            "of",
            "was",
            *ENTRY_COLUMNS,
            *(f"row_{column}" for column in LIVE_COLUMNS),
            *further,
        ]
        return self._make(name, whole, params)
