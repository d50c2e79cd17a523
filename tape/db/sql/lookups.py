"""The statements by which a plan asks the view of its tape, inside the recording transaction."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.db.sql.compiler import ZERO, Compiler, Param, only_first, query, statement
from tape.db.sql.rows.view import HeldRow, LaneBase, PastRow, Span

__all__ = ["Lookups"]


class Lookups(Compiler):
    """Statements that answer a plan's questions."""

    @query(HeldRow)
    def held(self, t: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """What holds at a place."""
        m = self.tables.live.c
        return sa.select(m.placed, m.since, m.body).where(m.tape_id == t, m.lane == at_lane, m.ordinal == at_ordinal)

    @query(PastRow)
    def held_last(self, t: Param, at_lane: Param, at_ordinal: Param, at_seq: Param) -> Any:
        """What held last at a place, of what began up to a seq."""
        past = self.tables.past.c
        rows = sa.select(past.placed, past.since, past.body, past.why, past.until).where(
            past.tape_id == t, past.lane == at_lane, past.ordinal == at_ordinal, past.since <= at_seq
        )
        return only_first(rows.order_by(past.since.desc()))

    @query(LaneBase)
    def lane(self, t: Param, at_lane: Param) -> Any:
        """Where a lane branches off."""
        lanes = self.tables.lanes.c
        return sa.select(lanes.base_tape, lanes.base_lane, lanes.base_ordinal).where(
            lanes.tape_id == t, lanes.lane == at_lane
        )

    @statement
    def lane_tip(self, t: Param, at_lane: Param) -> Any:
        """The greatest depth in a lane among what holds, and among what held."""
        return sa.select(
            *(
                sa.select(sa.func.max(rows.c.ordinal))
                .where(rows.c.tape_id == t, rows.c.lane == at_lane)
                .scalar_subquery()
                for rows in (self.tables.live, self.tables.past)
            )
        )

    @statement
    def makers(self, t: Param, call: Param, most: Param) -> Any:
        """The places of messages that ever made a tool call, and the entries that said so, newest first."""
        c = self.tables.calls.c
        rows = sa.select(c.lane, c.ordinal, c.seq).where(c.tape_id == t, c.call == call)
        return rows.order_by(c.seq.desc()).limit(most).offset(ZERO)

    @statement
    def answers(self, t: Param, maker_tape: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """The places of messages that are bound to calls of a message."""
        a = self.tables.answers.c
        return (
            sa.select(a.lane, a.ordinal)
            .distinct()
            .where(
                a.tape_id == t,
                a.maker_tape == maker_tape,
                a.maker_lane == at_lane,
                a.maker_ordinal == at_ordinal,
            )
        )

    @query(Span)
    def held_between(self, t: Param, at_lane: Param, at_ordinal: Param, at_seq: Param) -> Any:
        """When a place held something, to tell when it did not."""
        past = self.tables.past.c
        spans = sa.select(past.since, past.until).where(
            past.tape_id == t, past.lane == at_lane, past.ordinal == at_ordinal, past.since <= at_seq
        )
        return spans.order_by(past.since)

    @query(Span)
    def undone_clears(self, t: Param, after: Param, at_seq: Param) -> Any:
        """When clears that were undone were in force."""
        c = self.tables.clears.c
        return sa.select(c.seq, c.until).where(c.tape_id == t, c.seq > after, c.seq <= at_seq, c.until.is_not(None))

    @statement
    def first_made(self, t: Param, call: Param, at_lane: Param, at_ordinal: Param) -> Any:
        """The first entry by which a message made a tool call."""
        c = self.tables.calls.c
        return sa.select(sa.func.min(c.seq)).where(
            c.tape_id == t, c.call == call, c.lane == at_lane, c.ordinal == at_ordinal, c.place_tape == ZERO
        )

    @statement
    def appended_between(self, t: Param, after: Param, before: Param) -> Any:
        """Whether a message was appended between two seqs."""
        e = self.tables.entries.c
        append: sa.ColumnClause[str] = sa.literal_column("'append'")
        appends = sa.select(e.seq).where(e.tape_id == t, e.seq > after, e.seq < before, e.kind == append)
        return only_first(appends.order_by(e.seq))

    @statement
    def clears(self, t: Param) -> Any:
        """The clears in force: seq and how many messages each hides."""
        c = self.tables.clears.c
        return sa.select(c.seq, c.hidden).where(c.tape_id == t, c.until.is_(None)).order_by(c.seq.desc())

    @statement
    def returned(self, t: Param, seq: Param) -> Any:
        """The places of messages from before a clear that changed by themselves since."""
        past = self.tables.past.c
        rows = sa.select(past.lane, past.ordinal).distinct()
        return rows.where(past.tape_id == t, past.placed < seq, past.until > seq)

    @statement
    def returned_inherited(self, t: Param, seq: Param) -> Any:
        """The places of inherited messages that the tape changed since a clear."""
        ov = self.tables.overrides.c
        return sa.select(ov.origin, ov.lane, ov.ordinal).distinct().where(ov.tape_id == t, ov.since > seq)

    @statement
    def has_overrides(self, t: Param, at_seq: Param) -> Any:
        """Whether a tape had changed any inherited message by a seq."""
        ov = self.tables.overrides.c
        return only_first(sa.select(ov.since).where(ov.tape_id == t, ov.since <= at_seq))
