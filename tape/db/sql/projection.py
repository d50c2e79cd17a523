"""The statements that change the rows of the view: opening, closing and marking them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ONE, Compiler, Insert, Param, Statement, derived, only_first, param, statement

__all__ = ["Projection"]

_PAST_COLUMNS = ("tape_id", "lane", "ordinal", "since", "placed", "body", "until", "why")


class Projection(Compiler):
    """Statements by which the fold's changes become rows."""

    @derived
    def open_row(self) -> Insert:
        """A body begins to hold at a place."""
        return self._insert(self.tables.live)

    def _at_place(self, t: Param, at_lane: Param, at_ordinal: Param) -> tuple[Any, ...]:
        m = self.tables.live.c
        return m.tape_id == t, m.lane == at_lane, m.ordinal == at_ordinal

    @statement
    def keep_row(self, ended: Param, because: Param, t: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """What holds at a place, among the rows that ended."""
        m = self.tables.live.c
        columns = [m[name] for name in _PAST_COLUMNS[:-2]]
        ending = [sa.cast(ended, sa.BigInteger), sa.cast(because, sa.Text)]
        rows = sa.select(*columns, *ending).where(*self._at_place(t, at_lane, at_ordinal))
        return sa.insert(self.tables.past).from_select(list(_PAST_COLUMNS), rows)

    @statement
    def drop_row(self, t: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """Nothing holds at a place any longer."""
        return sa.delete(self.tables.live).where(*self._at_place(t, at_lane, at_ordinal))

    @statement
    def mark_row(self, at_seq: Param, because: Param, t: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """The newest row once more, holding for no time at all, with another reason why it ended."""
        past, seq = self.tables.past.c, sa.cast(at_seq, sa.BigInteger)
        row = sa.select(
            past.tape_id, past.lane, past.ordinal, seq, past.placed, past.body, seq, sa.cast(because, sa.Text)
        ).where(past.tape_id == t, past.lane == at_lane, past.ordinal == at_ordinal)
        return sa.insert(self.tables.past).from_select(list(_PAST_COLUMNS), only_first(row.order_by(past.since.desc())))

    @derived
    def insert_past(self) -> Insert:
        """A row that ended, as a rebuild writes it."""
        return self._insert(self.tables.past)

    @derived
    def insert_lane(self) -> Insert:
        """A lane branches off."""
        return self._insert(self.tables.lanes)

    @derived
    def insert_alias(self) -> Insert:
        """A message id that no key tells."""
        return self._insert(self.tables.aliases)

    @derived
    def insert_call(self) -> Insert:
        """A message makes a tool call."""
        return self._insert(self.tables.calls)

    @derived
    def insert_answer(self) -> Insert:
        """A message answers a tool call."""
        return self._insert(self.tables.answers)

    @derived
    def insert_anchor(self) -> Insert:
        """An anchor stands at a place."""
        return self._insert(self.tables.anchors)

    @derived
    def insert_event(self) -> Insert:
        """An event of a name."""
        return self._insert(self.tables.events)

    @derived
    def insert_clear(self) -> Insert:
        """A clear."""
        return self._insert(self.tables.clears)

    @derived
    def insert_slot(self) -> Insert:
        """A slot takes a new value."""
        return self._insert(self.tables.slots)

    @derived
    def insert_override(self) -> Insert:
        """Something else holds at an inherited place."""
        return self._insert(self.tables.overrides)

    @derived
    def insert_compaction(self) -> Insert:
        """A summary stands for a run of messages."""
        return self._insert(self.tables.compactions)

    def _open_compaction(self, t: Param, from_tape: Param, at_seq: Param) -> tuple[Any, ...]:
        co = self.tables.compactions.c
        return co.tape_id == t, co.origin == from_tape, co.seq == at_seq, co.until.is_(None)

    @statement
    def change_compaction(
        self,
        began: Param,
        new_gone: Param,
        new_revised: Param,
        new_loose: Param,
        t: Param,
        from_tape: Param,
        at_seq: Param,
    ) -> Any:
        """A compaction once more, with what has become of its sources."""
        co = self.tables.compactions.c
        new = [sa.cast(value, sa.BigInteger) for value in (began, new_gone, new_revised, new_loose)]
        row = sa.select(
            co.tape_id, co.origin, co.seq, new[0], co.head_tape, co.lane, co.ordinal, co.lo, *new[1:], sa.null()
        ).where(*self._open_compaction(t, from_tape, at_seq))
        return sa.insert(self.tables.compactions).from_select([column.name for column in co], row)

    @statement
    def end_compaction(self, ended: Param, t: Param, from_tape: Param, at_seq: Param) -> Any:
        """What was known of a compaction before holds no longer."""
        co = self.tables.compactions
        return sa.update(co).where(*self._open_compaction(t, from_tape, at_seq), co.c.since < ended).values(until=ended)

    @statement
    def end_override(self, ended: Param, t: Param, from_tape: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """What a tape made of an inherited message holds no longer."""
        ov = self.tables.overrides.c
        return (
            sa.update(self.tables.overrides)
            .where(
                ov.tape_id == t,
                ov.origin == from_tape,
                ov.lane == at_lane,
                ov.ordinal == at_ordinal,
                ov.until.is_(None),
            )
            .values(until=ended)
        )

    @statement
    def untally_clear(self, t: Param, at_seq: Param) -> Any:
        """A clear hides one message fewer."""
        c = self.tables.clears.c
        return sa.update(self.tables.clears).where(c.tape_id == t, c.seq == at_seq).values(hidden=c.hidden - ONE)

    @statement
    def touch_clears(self, t: Param) -> Any:
        """Messages came back from under the clears in force."""
        c = self.tables.clears.c
        return sa.update(self.tables.clears).where(c.tape_id == t, c.until.is_(None)).values(touched=ONE)

    @statement
    def end_clear(self, ended: Param, t: Param, at_seq: Param) -> Any:
        """A clear is undone."""
        c = self.tables.clears.c
        return sa.update(self.tables.clears).where(c.tape_id == t, c.seq == at_seq).values(until=ended)

    @statement
    def end_slot(self, ended: Param, t: Param, at_slot: Param) -> Any:
        """What a slot held before holds no longer."""
        s = self.tables.slots.c
        return (
            sa.update(self.tables.slots).where(s.tape_id == t, s.slot == at_slot, s.until.is_(None)).values(until=ended)
        )

    @derived
    def dump(self) -> dict[str, Statement[Any]]:
        """All rows of a tape in each table of the view, by the table's name."""
        statements: dict[str, Statement[Any]] = {}
        for table in self.tables.view:
            columns = [column for column in table.c if column.name != "tape_id"]
            rows = sa.select(*columns).where(table.c.tape_id == param("t"))
            statements[table.name] = Statement(f"dump_{table.name}", rows, self.dialect, ["t"])
        return statements

    @derived
    def wipe(self) -> list[Statement[Any]]:
        """Take all rows of a tape out of each table of the view."""
        return [
            Statement(f"wipe_{table.name}", sa.delete(table).where(table.c.tape_id == param("t")), self.dialect, ["t"])
            for table in self.tables.view
        ]
