"""The statements over tapes, their heads and their forks: what an append reads first and changes last."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tape.core.view.slots import BLOCKS_AND_PROMPT
from tape.db.schema.tables import REVISION
from tape.db.sql.compiler import ZERO, Param, derived, only_first, query, statement
from tape.db.sql.feeds import Feeds
from tape.db.sql.rows.tapes import HEAD_COLUMNS, TAPE_COLUMNS, ChildRow, ForkRow, HeadRow, InfoRow, TapeRow

__all__ = ["Heads"]

_NEW_HEAD = tuple(f"new_{name}" for name in HEAD_COLUMNS)
_NEW_TAPE = TAPE_COLUMNS[1:]


class Heads(Feeds):
    """Statements over tapes and heads."""

    @property
    def _with_head(self) -> Any:
        t = self.tables
        return sa.join(t.tapes, t.heads, t.heads.c.tape_id == t.tapes.c.id)

    @query(HeadRow.checked)
    def head(self, tape: Param) -> Any:
        """The tape's number, owner, status and head, and its lineage if it is a fork, in one row."""
        t = self.tables
        c, fk, slots = t.tapes.c, t.forks.c, t.slots.c
        low, high = (sa.literal_column(repr(name), sa.Text) for name in BLOCKS_AND_PROMPT)
        return (
            sa.select(
                c.id,
                c.owner,
                c.status,
                c.reason,
                c.completed_at,
                c.hidden,
                fk.lineage,
                sa.exists().where(t.anchors.c.tape_id == c.id),
                sa.exists().where(slots.tape_id == c.id, slots.slot >= low, slots.slot < high),
                sa.exists().where(t.compactions.c.tape_id == c.id),
                sa.select(t.version.c.version_num).scalar_subquery(),
                *(t.heads.c[name] for name in HEAD_COLUMNS),
            )
            # One more row if the tape is a fork; it never changes but for its state.
            .select_from(self._with_head.outerjoin(t.forks, fk.tape_id == c.id))
            .where(c.tape == tape)
        )

    @query(TapeRow)
    def tape_row(self, tape: Param) -> Any:
        """A tape whatever became of its head, for those who check that."""
        c, h = self.tables.tapes.c, self.tables.heads.c
        return (
            sa.select(c.id, c.owner, c.status, c.reason, c.completed_at, sa.func.coalesce(h.seq, ZERO))
            .select_from(self.tables.tapes.outerjoin(self.tables.heads, h.tape_id == c.id))
            .where(c.tape == tape)
        )

    @query(InfoRow)
    def info(self, tape: Param) -> Any:
        """Everything that the rows of a tape and its head say."""
        c, h = self.tables.tapes.c, self.tables.heads.c
        columns = [*(c[name] for name in TAPE_COLUMNS), *(h[name] for name in HEAD_COLUMNS)]
        return sa.select(*columns).select_from(self._with_head).where(c.tape == tape)

    @query(ForkRow)
    def fork(self, t: Param) -> Any:
        """A fork's parent, the seq it was forked at, its state, and up to where and by which entry it was merged."""
        fk, parents = self.tables.forks.c, self.tables.tapes.alias("parents")
        return (
            sa.select(parents.c.tape, fk.seq, fk.state, fk.merged, fk.merge_seq)
            .select_from(self.tables.forks.join(parents, parents.c.id == fk.parent_id))
            .where(fk.tape_id == t)
        )

    @query(ChildRow)
    def forks_of(self, t: Param) -> Any:
        """The forks of a tape that were not purged.

        A fork was made after its parent. Said here, it keeps damaged rows from leading round in a circle.
        """
        c, fk = self.tables.tapes.c, self.tables.forks.c
        return (
            sa.select(c.tape, fk.tape_id, fk.seq, fk.state, fk.merge_seq, c.hidden)
            .select_from(self.tables.forks.join(self.tables.tapes, c.id == fk.tape_id))
            .where(fk.parent_id == t, fk.tape_id > t, c.status != sa.literal_column("'purged'"))
            .order_by(fk.tape_id)
        )

    @statement
    def fork_not_hidden_for(self, t: Param, but: Param, reason: Param) -> Any:
        """One fork of a tape that was not purged and is not hidden for this reason; another than ``but``."""
        c, fk = self.tables.tapes.c, self.tables.forks.c
        forks = sa.select(c.tape).select_from(self.tables.forks.join(self.tables.tapes, c.id == fk.tape_id))
        shown = sa.or_(c.hidden.is_(None), c.hidden != reason)
        unpurged = c.status != sa.literal_column("'purged'")
        return only_first(forks.where(fk.parent_id == t, fk.tape_id > t, fk.tape_id != but, unpurged, shown))

    @statement
    def set_fork(self, new_state: Param, new_merged: Param, new_merge_seq: Param, t: Param) -> Any:
        """What became of a fork; how far it was merged stays when 0 is given."""
        fk = self.tables.forks.c
        merged = sa.func.coalesce(sa.func.nullif(sa.cast(new_merged, sa.BigInteger), ZERO), fk.merged)
        values = {"state": new_state, "merged": merged, "merge_seq": new_merge_seq}
        return sa.update(self.tables.forks).where(fk.tape_id == t).values(values)

    @statement
    def tape_names(self, after: Param) -> Any:
        """A page of the names of all tapes."""
        c = self.tables.tapes.c
        names = sa.select(c.tape).where(c.tape > after).order_by(c.tape)
        return names.limit(sa.literal_column("500")).offset(ZERO)

    @query(columns=_NEW_TAPE)
    def create_tape(self, new: dict[str, Param]) -> Any:
        """A new tape; returns its number."""
        return sa.insert(self.tables.tapes).values(new).returning(self.tables.tapes.c.id)

    @query(columns=("tape_id", *HEAD_COLUMNS))
    def create_head(self, new: dict[str, Param]) -> Any:
        """The head of a new tape."""
        return sa.insert(self.tables.heads).values({**new, "xid": ZERO})

    def _head_values(self, new: dict[str, Param]) -> dict[str, Any]:
        values = {name: new[f"new_{name}"] for name in HEAD_COLUMNS}
        if self.postgres:
            # Never lower than the last one, so that xid order never contradicts seq order inside a tape.
            values["xid"] = sa.func.greatest(self.tables.heads.c.xid, self._own_xid())
        return values

    def _stands(self, of: Param, was: Param) -> tuple[Any, ...]:
        """Whether a head is the expected one, and no other process has migrated the database.

        Heads are compared by hash: after a restored backup the same seq can be another entry's.
        """
        h, version = self.tables.heads.c, self.tables.version.c.version_num
        own: sa.ColumnClause[str] = sa.literal_column(f"'{REVISION}'")
        return h.tape_id == of, h.hash == was, sa.exists(sa.select(version).where(version == own))

    @query(columns=_NEW_HEAD)
    def move_head(self, new: dict[str, Param], of: Param, was: Param) -> Any:
        """The head after an append, if it was the expected one."""
        return sa.update(self.tables.heads).where(*self._stands(of, was)).values(self._head_values(new))

    @query(columns=_NEW_HEAD)
    def set_head(self, new: dict[str, Param], of: Param) -> Any:
        """The head of a tape that is rebuilt or imported."""
        return sa.update(self.tables.heads).where(self.tables.heads.c.tape_id == of).values(self._head_values(new))

    def _set(self, of: Param, **values: Any) -> Any:
        return sa.update(self.tables.tapes).where(self.tables.tapes.c.id == of).values(values)

    @statement
    def set_status(self, new_status: Param, new_reason: Param, new_completed_at: Param, of: Param) -> Any:
        """The tape's status, where listings find it."""
        return self._set(of, status=new_status, reason=new_reason, completed_at=new_completed_at)

    @statement
    def set_name(self, new_name: Param, of: Param) -> Any:
        """The tape's name, where listings find it."""
        return self._set(of, name=new_name)

    @statement
    def set_labels(self, new_labels: Param, of: Param) -> Any:
        """The tape's labels, where reads of it find them."""
        return self._set(of, labels=new_labels)

    @statement
    def set_redirect(self, new_redirect: Param, of: Param) -> Any:
        """The tape on which the work goes on."""
        return self._set(of, redirect=new_redirect)

    @statement
    def set_hidden(self, new_hidden: Param, of: Param) -> Any:
        """Why the tape is hidden, or NULL when it is not."""
        return self._set(of, hidden=new_hidden)

    @statement
    def rename_tape(self, new_tape: Param, of: Param) -> Any:
        """Another id for a tape that was purged."""
        return self._set(of, tape=new_tape)

    @statement
    def labels(self, t: Param) -> Any:
        """The labels of a tape."""
        return sa.select(self.tables.tapes.c.labels).where(self.tables.tapes.c.id == t)

    @statement
    def drop_labels(self, t: Param) -> Any:
        """Take a tape out of the listings by label."""
        return sa.delete(self.tables.labels).where(self.tables.labels.c.tape_id == t)

    @derived
    def insert_label(self) -> Any:
        """Let listings find a tape by a label."""
        return self._insert(self.tables.labels)

    @statement
    def redirect(self, tape: Param) -> Any:
        """Where the work of a tape goes on."""
        return sa.select(self.tables.tapes.c.redirect).where(self.tables.tapes.c.tape == tape)

    @statement
    def tape_status(self, t: Param) -> Any:
        """The status of a tape."""
        return sa.select(self.tables.tapes.c.status).where(self.tables.tapes.c.id == t)

    @statement
    def tape_number(self, tape: Param) -> Any:
        """The number of a tape."""
        return sa.select(self.tables.tapes.c.id).where(self.tables.tapes.c.tape == tape)

    @derived
    def insert_fork(self) -> Any:
        """That a tape is a fork."""
        return self._insert(self.tables.forks)

    @statement
    def lineage_of(self, t: Param) -> Any:
        """The lineage of a fork."""
        fk = self.tables.forks.c
        return sa.select(fk.lineage).where(fk.tape_id == t)
