"""The statements by which a plan asks the view of its tape, inside the recording transaction."""

from __future__ import annotations

import sqlalchemy as sa

from tape.db.sql.compiler import (
    ZERO,
    Compiler,
    param,
)

__all__ = ["Lookups"]


class Lookups(Compiler):
    """Statements that answer a plan's questions."""

    def _define_lookups(self) -> None:
        """How messages stand, where lanes end, who made and answered which call, which clears are in force."""
        t, make = self.tables, self._make
        m, past, lanes, c, ov = t.live.c, t.past.c, t.lanes.c, t.clears.c, t.overrides.c
        at_place = (m.tape_id == param("t"), m.lane == param("at_lane"), m.ordinal == param("at_ordinal"))
        self.held = make(
            "held",
            sa.select(m.placed, m.since, m.body).where(*at_place),
            ["t", "at_lane", "at_ordinal"],
        )
        self.held_last = make(
            "held_last",
            sa.select(past.placed, past.since, past.body, past.why, past.until)
            .where(
                past.tape_id == param("t"),
                past.lane == param("at_lane"),
                past.ordinal == param("at_ordinal"),
                past.since <= param("at_seq"),
            )
            .order_by(past.since.desc())
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "at_lane", "at_ordinal", "at_seq"],
        )
        self.lane = make(
            "lane",
            sa.select(lanes.base_tape, lanes.base_lane, lanes.base_ordinal).where(
                lanes.tape_id == param("t"), lanes.lane == param("at_lane")
            ),
            ["t", "at_lane"],
        )
        self.lane_tip = make(
            "lane_tip",
            sa.select(
                sa.select(sa.func.max(m.ordinal))
                .where(m.tape_id == param("t"), m.lane == param("at_lane"))
                .scalar_subquery(),
                sa.select(sa.func.max(past.ordinal))
                .where(past.tape_id == param("t"), past.lane == param("at_lane"))
                .scalar_subquery(),
            ),
            ["t", "at_lane"],
        )
        self.makers = make(
            "makers",
            sa.select(t.calls.c.lane, t.calls.c.ordinal)
            .distinct()
            .where(t.calls.c.tape_id == param("t"), t.calls.c.call == param("call")),
            ["t", "call"],
        )
        a = t.answers.c
        self.answers = make(
            "answers",
            sa.select(a.lane, a.ordinal)
            .distinct()
            .where(
                a.tape_id == param("t"),
                a.maker_tape == param("maker_tape"),
                a.maker_lane == param("at_lane"),
                a.maker_ordinal == param("at_ordinal"),
            ),
            ["t", "maker_tape", "at_lane", "at_ordinal"],
        )
        # When a place held something, to tell when it did not; and when a clear that was undone was in force.
        self.held_between = make(
            "held_between",
            sa.select(past.since, past.until)
            .where(
                past.tape_id == param("t"),
                past.lane == param("at_lane"),
                past.ordinal == param("at_ordinal"),
                past.since <= param("at_seq"),
            )
            .order_by(past.since),
            ["t", "at_lane", "at_ordinal", "at_seq"],
        )
        self.undone_clears = make(
            "undone_clears",
            sa.select(c.seq, c.until).where(
                c.tape_id == param("t"), c.seq > param("after"), c.seq <= param("at_seq"), c.until.is_not(None)
            ),
            ["t", "after", "at_seq"],
        )
        self.first_made = make(
            "first_made",
            sa.select(sa.func.min(t.calls.c.seq)).where(
                t.calls.c.tape_id == param("t"),
                t.calls.c.call == param("call"),
                t.calls.c.lane == param("at_lane"),
                t.calls.c.ordinal == param("at_ordinal"),
                t.calls.c.place_tape == ZERO,
            ),
            ["t", "call", "at_lane", "at_ordinal"],
        )
        self.appended_between = make(
            "appended_between",
            sa.select(t.entries.c.seq)
            .where(
                t.entries.c.tape_id == param("t"),
                t.entries.c.seq > param("after"),
                t.entries.c.seq < param("before"),
                t.entries.c.kind == sa.literal_column("'append'"),
            )
            .order_by(t.entries.c.seq)
            .limit(sa.literal_column("1"))
            .offset(ZERO),
            ["t", "after", "before"],
        )
        self.clears = make(
            "clears",
            sa.select(c.seq, c.hidden).where(c.tape_id == param("t"), c.until.is_(None)).order_by(c.seq.desc()),
            ["t"],
        )
        self.returned = make(
            "returned",
            sa.select(past.lane, past.ordinal)
            .distinct()
            .where(past.tape_id == param("t"), past.placed < param("seq"), past.until > param("seq")),
            ["t", "seq"],
        )
        self.returned_inherited = make(
            "returned_inherited",
            sa.select(ov.origin, ov.lane, ov.ordinal)
            .distinct()
            .where(ov.tape_id == param("t"), ov.since > param("seq")),
            ["t", "seq"],
        )
