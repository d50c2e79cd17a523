"""The statements of the search index: filling it, asking it, and making it anew.

On SQLite the words are in a contentless FTS5 table whose rowid is the position of the entry; its tokenizer only cuts at
spaces, since the words were made before. It is created with the first search, so that a SQLite without FTS5 works, and
a table that is lost is the same as one that was never there. On PostgreSQL they are a tsvector with a GIN index.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from tape.core.entries.payloads import BODIES
from tape.db.sql.compiler import ZERO, param
from tape.db.sql.feeds import Feeds

__all__ = ["Searches"]

WORDS = "tape_words"
LARGE = 65_536
"""Bytes from which on a payload is read by itself and not with its page: a page of such would fill the memory."""


class Searches(Feeds):
    """Statements of the search index."""

    def _define_searches(self) -> None:
        """What is not yet indexed, what is, and whether it holds."""
        t, make = self.tables, self._make
        e, tp, h, m, ov = t.entries.c, t.tapes.c, t.heads.c, t.live.c, t.overrides.c
        most = param("most", type_=sa.Integer)
        body = e.kind.in_([sa.literal_column(repr(kind)) for kind in BODIES])
        small: sa.ColumnElement[bool] = sa.func.length(e.payload) <= sa.literal_column(str(LARGE))
        columns = [
            e.position,
            e.xid,
            e.tape_id,
            e.seq,
            e.kind,
            e.version,
            sa.case((sa.and_(body, small), e.payload)).label("payload"),
            e.stamp,
            e.lane,
            e.ordinal,
            tp.tape,
            tp.owner,
            tp.status,
        ]
        joined = t.entries.join(t.tapes, tp.id == e.tape_id)
        # A page of entries behind the index's place: what may be indexed, and what a search has to scan.
        page = (
            sa.select(*columns)
            .select_from(joined)
            .where(self._past(e))
            .order_by(*self._order(e))
            .limit(most)
            .offset(ZERO)
        )
        self.unsearched = make("unsearched", page, [*self._at, "most"])
        self.unindexed = make("unindexed", page.where(self._gate(e)), [*self._at, "most"])
        one = (e.tape_id == param("t"), e.seq == param("s"))
        self.large_body = make("large_body", sa.select(e.payload).where(*one), ["t", "s"])
        self.indexed_body = make(
            "indexed_body",
            sa.select(e.kind, e.version, e.payload, tp.owner).select_from(joined).where(*one),
            ["t", "s"],
        )
        self.tape_bodies = make(
            "tape_bodies",
            sa.select(*columns)
            .select_from(joined)
            .where(e.tape_id == param("t"), e.seq > param("after"), body)
            .order_by(e.seq)
            .limit(most)
            .offset(ZERO),
            ["t", "after", "most"],
        )
        self.tape_status = make("tape_status", sa.select(tp.status).where(tp.id == param("t")), ["t"])
        self.tape_number = make("tape_number", sa.select(tp.id).where(tp.tape == param("tape")), ["tape"])
        own = sa.and_(
            m.tape_id == param("t"), m.lane == param("at_lane"), m.ordinal == param("at_ordinal"), m.body == param("b")
        )
        self.holds_own = make(
            "holds_own",
            sa.select(m.since)
            .select_from(t.live.join(t.heads, h.tape_id == m.tape_id))
            .where(own, m.since > h.cleared),
            ["t", "at_lane", "at_ordinal", "b"],
        )
        self.holds_over = make(
            "holds_over",
            sa.select(ov.since)
            .select_from(t.overrides.join(t.heads, h.tape_id == ov.tape_id))
            .where(
                ov.tape_id == param("t"),
                ov.origin == param("from_tape"),
                ov.lane == param("at_lane"),
                ov.ordinal == param("at_ordinal"),
                ov.body_tape == param("t"),
                ov.body == param("b"),
                ov.until.is_(None),
                ov.since > h.cleared,
            ),
            ["t", "from_tape", "at_lane", "at_ordinal", "b"],
        )
        found = self._found().cte("found")
        f = found.c
        zero: sa.ColumnClause[int] = sa.literal_column("0")
        joins = (
            found.join(t.tapes, tp.id == f.tape_id)
            .join(t.heads, h.tape_id == f.tape_id)
            .join(t.entries, sa.and_(e.tape_id == f.tape_id, e.seq == f.seq))
            .outerjoin(
                t.live,
                sa.and_(
                    f.origin == zero,
                    m.tape_id == f.tape_id,
                    m.lane == f.lane,
                    m.ordinal == f.ordinal,
                    m.body == f.seq,
                ),
            )
            .outerjoin(
                t.overrides,
                sa.and_(
                    f.origin != zero,
                    ov.tape_id == f.tape_id,
                    ov.origin == f.origin,
                    ov.lane == f.lane,
                    ov.ordinal == f.ordinal,
                    ov.body_tape == f.tape_id,
                    ov.body == f.seq,
                    ov.until.is_(None),
                ),
            )
        )
        # A page of texts that have all the words, newest first, each with the seq since which it holds, if it does.
        self.found = make(
            "found",
            sa.select(
                f.position,
                f.xid,
                f.tape_id,
                f.seq,
                e.kind,
                e.version,
                sa.case((small, e.payload)).label("payload"),
                e.stamp,
                f.origin,
                f.lane,
                f.ordinal,
                tp.tape,
                tp.owner,
                tp.status,
                sa.func.coalesce(m.since, ov.since, zero) > h.cleared,
                sa.func.length(e.payload),
                f.excerpt,
            )
            .select_from(joins)
            .order_by(*(column.desc() for column in self._order(f))),
            ["query", *self._at, "most"],
        )
        self._define_index()

    def _found(self) -> Any:
        """Return the places of texts that have the words, newest first, from a place of the feed downwards."""
        x = self.tables.texts.c
        most = param("most", type_=sa.Integer)
        if self.postgres:
            return (
                sa.select(x.position, x.xid, x.tape_id, x.seq, x.origin, x.lane, x.ordinal, x.excerpt)
                .where(
                    x.words.op("@@")(sa.cast(param("query"), postgresql.TSQUERY)),
                    sa.tuple_(x.xid, x.position) < sa.tuple_(param("x"), param("p")),
                )
                .order_by(x.xid.desc(), x.position.desc())
                .limit(most)
                .offset(ZERO)
            )
        rowid: sa.ColumnClause[int] = sa.literal_column(f"{WORDS}.rowid")
        rows = (
            sa.select(rowid.label("id"))
            .select_from(sa.table(WORDS))
            .where(sa.literal_column(WORDS).op("MATCH")(param("query")), rowid < param("p"))
            .order_by(rowid.desc())
            .limit(most)
            .offset(ZERO)
            .cte("rows_found")
        )
        return sa.select(
            x.position, sa.literal_column("0").label("xid"), x.tape_id, x.seq, x.origin, x.lane, x.ordinal, x.excerpt
        ).select_from(rows.join(self.tables.texts, x.position == rows.c.id))

    def _define_index(self) -> None:
        """Filling the index, emptying it of one tape, and making it anew."""
        t, make = self.tables, self._make
        x = t.texts.c
        names = ["position", "tape_id", "seq", "origin", "lane", "ordinal", "excerpt"]
        values: dict[str, Any] = {name: param(name) for name in names}
        if self.postgres:
            array = sa.cast(param("words"), postgresql.ARRAY(sa.Text))
            values |= {"xid": param("xid"), "words": sa.func.array_to_tsvector(array)}
            names = [*names, "xid", "words"]
        self.insert_text = make("insert_text", sa.insert(t.texts).values(values), names)
        self.texts_of = make(
            "texts_of",
            sa.select(x.position, x.seq)
            .where(x.tape_id == param("t"), x.seq > param("after"))
            .order_by(x.seq)
            .limit(param("most", type_=sa.Integer))
            .offset(ZERO),
            ["t", "after", "most"],
        )
        # What the index holds of a stretch of a tape; on SQLite without the words, which are found by word only.
        kept: list[Any] = [x.position, x.seq, x.origin, x.lane, x.ordinal, x.excerpt]
        kept += [x.xid, sa.func.tsvector_to_array(x.words)] if self.postgres else []
        self.texts_between = make(
            "texts_between",
            sa.select(*kept).where(x.tape_id == param("t"), x.seq > param("after"), x.seq <= param("upto")),
            ["t", "after", "upto"],
        )
        self.text_positions = make("text_positions", sa.select(x.position), [])
        self.drop_text = make(
            "drop_text", sa.delete(t.texts).where(x.tape_id == param("t"), x.seq == param("s")), ["t", "s"]
        )
        words = sa.table(WORDS, sa.column("rowid"), sa.column("words"), sa.column(WORDS))
        self.insert_words = self.drop_words = None
        remake: list[Any] = [
            DropTable(t.texts, if_exists=True),
            CreateTable(t.texts),
            *(CreateIndex(index) for index in sorted(t.texts.indexes, key=lambda index: str(index.name))),
        ]
        self.make_words: list[str] = []
        if not self.postgres:
            self.insert_words = make(
                "insert_words",
                sa.insert(words).values(rowid=param("position"), words=param("text")),
                ["position", "text"],
            )
            # A contentless table forgets a row when it is told again what was in it.
            self.drop_words = make(
                "drop_words",
                sa.insert(words).values(
                    {WORDS: sa.literal_column("'delete'"), "rowid": param("position"), "words": param("text")}
                ),
                ["position", "text"],
            )
            options = "words, content='', detail=none, columnsize=0, tokenize='ascii'"
            self.make_words = [f"CREATE VIRTUAL TABLE IF NOT EXISTS {WORDS} USING fts5({options})"]
        # Readers keep the state that they began with only if rows are deleted: a table that was dropped or truncated is
        # empty for them as well. Grants and policies stay, too.
        self.empty_index = make("empty_index", sa.delete(t.texts), [])
        self.truncate_index = self.index_stands = ""
        if self.postgres:
            name = self._dialect.identifier_preparer.format_table(t.texts)
            columns = ", ".join(f"'{column.name}'" for column in x)
            self.truncate_index = f"TRUNCATE {name}"
            self.index_stands = (
                f"SELECT count(*) = {len(x)} FROM pg_attribute WHERE attrelid = to_regclass(%s) "
                f"AND NOT attisdropped AND attname IN ({columns})"
            )
        self.remake_index = [
            *([] if self.postgres else [f"DROP TABLE IF EXISTS {WORDS}"]),
            *(str(ddl.compile(dialect=self._dialect)) for ddl in remake),
            *self.make_words,
        ]
