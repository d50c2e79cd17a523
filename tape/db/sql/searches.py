"""The statements of the search index: filling it, asking it, and making it anew.

On SQLite the words are in a contentless FTS5 table whose rowid is the position of the entry; its tokenizer only cuts at
spaces, since the words were made before. It is created with the first search, so that a SQLite without FTS5 works, and
a table that is lost is the same as one that was never there. On PostgreSQL they are a tsvector with a GIN index.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from tape.core.entries.payloads import BODIES
from tape.db.sql.compiler import ZERO, Param, Statement, derived, param, query, statement
from tape.db.sql.feeds import Feeds
from tape.db.sql.rows.search import FoundRow, IndexedBody, IndexedText, TextKept, TextRow

__all__ = ["LARGE", "WORDS", "Searches"]

WORDS = "tape_words"
"""The full-text table of the search index on SQLite."""

LARGE = 65_536
"""Bytes from which on a payload is read by itself and not with its page: a page of such would fill the memory."""
_TEXT = ("position", "tape_id", "seq", "origin", "lane", "ordinal", "excerpt")


class Searches(Feeds):
    """Statements of the search index."""

    # -- what may be indexed

    def _texts(self) -> Any:
        """Return entries with their tapes; the payload only of those that hold a message."""
        t = self.tables
        e, tp = t.entries.c, t.tapes.c
        body = e.kind.in_([sa.literal_column(repr(kind)) for kind in BODIES])
        payload = sa.case((sa.and_(body, self._small(e.payload)), e.payload)).label("payload")
        entry = [e.position, e.xid, e.tape_id, e.seq, e.kind, e.version, payload, e.stamp, e.lane, e.ordinal]
        joined = t.entries.join(t.tapes, tp.id == e.tape_id)
        return sa.select(*entry, tp.tape, tp.owner, tp.status, e.key, tp.hidden).select_from(joined)

    def _small(self, column: Any) -> Any:
        return sa.func.length(column) <= sa.literal_column(str(LARGE))

    @statement
    def large_body(self, t: Param, s: Param) -> Any:
        """The payload of one entry."""
        e = self.tables.entries.c
        return sa.select(e.payload).where(e.tape_id == t, e.seq == s)

    @query(TextRow)
    def tape_bodies(self, t: Param, after: Param, most: Param) -> Any:
        """A page of a tape's entries that hold a text."""
        e = self.tables.entries.c
        body = e.kind.in_([sa.literal_column(repr(kind)) for kind in BODIES])
        page = self._texts().where(e.tape_id == t, e.seq > after, body)
        return page.order_by(e.seq).limit(most).offset(ZERO)

    @query(TextRow)
    def unsearched(self, x: Param, p: Param, most: Param) -> Any:
        """A page of entries behind the index's place, final or not: what a search has to scan."""
        e = self.tables.entries.c
        return self._texts().where(self._past(e, x, p)).order_by(*self._order(e)).limit(most).offset(ZERO)

    @query(TextRow)
    def unindexed(self, x: Param, p: Param, most: Param, oldest: Param) -> Any:
        """A page of entries behind the index's place that may be indexed."""
        e = self.tables.entries.c
        page = self._texts().where(self._past(e, x, p), self._gate(e, oldest))
        return page.order_by(*self._order(e)).limit(most).offset(ZERO)

    @query(IndexedBody)
    def indexed_body(self, t: Param, s: Param) -> Any:
        """One entry that was indexed."""
        e, tp = self.tables.entries.c, self.tables.tapes.c
        joined = self.tables.entries.join(self.tables.tapes, tp.id == e.tape_id)
        body = sa.select(e.kind, e.version, e.payload, tp.owner, e.key).select_from(joined)
        return body.where(e.tape_id == t, e.seq == s)

    # -- what holds

    @statement
    def holds_own(self, t: Param, at_lane: Param, at_ordinal: Param, b: Param) -> Any:
        """Since when a body holds on the tape that wrote it."""
        m, h = self.tables.live.c, self.tables.heads.c
        return (
            sa.select(m.since)
            .select_from(self.tables.live.join(self.tables.heads, h.tape_id == m.tape_id))
            .where(m.tape_id == t, m.lane == at_lane, m.ordinal == at_ordinal, m.body == b, m.since > h.cleared)
        )

    @statement
    def holds_over(self, t: Param, from_tape: Param, at_lane: Param, at_ordinal: Param, b: Param) -> Any:
        """Since when a body holds that a fork gave an inherited message."""
        ov, h = self.tables.overrides.c, self.tables.heads.c
        return (
            sa.select(ov.since)
            .select_from(self.tables.overrides.join(self.tables.heads, h.tape_id == ov.tape_id))
            .where(
                ov.tape_id == t,
                ov.origin == from_tape,
                ov.lane == at_lane,
                ov.ordinal == at_ordinal,
                ov.body_tape == t,
                ov.body == b,
                ov.until.is_(None),
                ov.since > h.cleared,
            )
        )

    # -- what has the words

    @query(FoundRow)
    def matches(self, query: Param, x: Param, p: Param, most: Param) -> Any:
        """A page of texts that have all the words, newest first, and whether each holds on its tape."""
        t = self.tables
        e, tp, h, m, ov = t.entries.c, t.tapes.c, t.heads.c, t.live.c, t.overrides.c
        matches = self._matching_texts(query, x, p, most).cte("found")
        f = matches.c
        own = sa.and_(f.origin == ZERO, m.tape_id == f.tape_id, m.lane == f.lane, m.ordinal == f.ordinal)
        over = sa.and_(f.origin != ZERO, ov.tape_id == f.tape_id, ov.origin == f.origin, ov.lane == f.lane)
        over_holds = sa.and_(
            over, ov.ordinal == f.ordinal, ov.body_tape == f.tape_id, ov.body == f.seq, ov.until.is_(None)
        )
        joins = (
            matches.join(t.tapes, tp.id == f.tape_id)
            .join(t.heads, h.tape_id == f.tape_id)
            .join(t.entries, sa.and_(e.tape_id == f.tape_id, e.seq == f.seq))
            .outerjoin(t.live, sa.and_(own, m.body == f.seq))
            .outerjoin(t.overrides, over_holds)
        )
        payload = sa.case((self._small(e.payload), e.payload)).label("payload")
        entry = [f.position, f.xid, f.tape_id, f.seq, e.kind, e.version, payload, e.stamp, f.origin]
        holds = sa.func.coalesce(m.since, ov.since, ZERO) > h.cleared
        return (
            sa.select(*entry, f.lane, f.ordinal, tp.tape, tp.owner, tp.status, tp.hidden, holds)
            .add_columns(sa.func.length(e.payload), f.excerpt, e.key)
            .select_from(joins)
            .order_by(*(column.desc() for column in self._order(f)))
        )

    def _matching_texts(self, query: Param, x: Param, p: Param, most: Param) -> Any:
        """Return the places of texts that have the words, newest first, from a place of the feed downwards."""
        text = self.tables.texts.c
        if self.postgres:
            return (
                sa.select(text.position, text.xid, *(text[name] for name in _TEXT[1:]))
                .where(
                    text.words.op("@@")(sa.cast(query, self.own.TSQUERY)),
                    sa.tuple_(text.xid, text.position) < sa.tuple_(x, p),
                )
                .order_by(text.xid.desc(), text.position.desc())
                .limit(most)
                .offset(ZERO)
            )
        rowid: sa.ColumnClause[int] = sa.literal_column(f"{WORDS}.rowid")
        rows = (
            sa.select(rowid.label("id"))
            .select_from(sa.table(WORDS))
            .where(sa.literal_column(WORDS).op("MATCH")(query), rowid < p)
            .order_by(rowid.desc())
            .limit(most)
            .offset(ZERO)
            .cte("rows_found")
        )
        columns = [text.position, ZERO.label("xid"), *(text[name] for name in _TEXT[1:])]
        return sa.select(*columns).select_from(rows.join(self.tables.texts, text.position == rows.c.id))

    # -- filling the index, and emptying it of one tape

    @derived
    def insert_text(self) -> Statement[Any]:
        """A text in the index; on PostgreSQL with its words."""
        values: dict[str, Any] = {name: param(name) for name in _TEXT}
        if self.postgres:
            array = sa.cast(param("words"), self.own.ARRAY(sa.Text))
            values |= {"xid": param("xid"), "words": sa.func.array_to_tsvector(array)}
        return Statement("insert_text", sa.insert(self.tables.texts).values(values), self.dialect, list(values))

    @property
    def _words(self) -> Any:
        return sa.table(WORDS, sa.column("rowid"), sa.column("words"), sa.column(WORDS))

    @statement
    def insert_words(self, position: Param, text: Param) -> Any:
        """On SQLite, the words of a text."""
        return sa.insert(self._words).values(rowid=position, words=text)

    @statement
    def drop_words(self, position: Param, text: Param) -> Any:
        """On SQLite: a row is deleted from a contentless table by passing its words again."""
        delete: sa.ColumnClause[str] = sa.literal_column("'delete'")
        return sa.insert(self._words).values({WORDS: delete, "rowid": position, "words": text})

    @query(IndexedText)
    def texts_of(self, t: Param, after: Param, most: Param) -> Any:
        """A page of a tape's texts in the index."""
        x = self.tables.texts.c
        page = sa.select(x.position, x.seq).where(x.tape_id == t, x.seq > after)
        return page.order_by(x.seq).limit(most).offset(ZERO)

    @query(TextKept)
    def texts_between(self, t: Param, after: Param, upto: Param) -> Any:
        """What the index holds of a stretch of a tape; on SQLite without the words, which are found by word only."""
        x = self.tables.texts.c
        columns: list[Any] = [x.position, x.seq, x.origin, x.lane, x.ordinal, x.excerpt]
        columns += [x.xid, sa.func.tsvector_to_array(x.words)] if self.postgres else [ZERO, sa.null()]
        return sa.select(*columns).where(x.tape_id == t, x.seq > after, x.seq <= upto)

    @statement
    def text_positions(self) -> Any:
        """The positions of all texts in the index."""
        return sa.select(self.tables.texts.c.position)

    @statement
    def drop_text(self, t: Param, s: Param) -> Any:
        """Take a text out of the index."""
        x = self.tables.texts.c
        return sa.delete(self.tables.texts).where(x.tape_id == t, x.seq == s)

    # -- making the index anew

    @statement
    def empty_index(self) -> Any:
        """Empty the index row by row.

        Readers keep the state that they began with only if rows are deleted: a table that was dropped or truncated
        is empty for them as well. Grants and policies stay, too.
        """
        return sa.delete(self.tables.texts)

    @property
    def _texts_name(self) -> str:
        return self.dialect.identifier_preparer.format_table(self.tables.texts)

    @derived
    def truncate_index(self) -> str:
        """On PostgreSQL, empty the index at once."""
        return f"TRUNCATE {self._texts_name}" if self.postgres else ""

    @derived
    def index_stands(self) -> str:
        """On PostgreSQL, whether the index's table is there with all its columns."""
        if not self.postgres:
            return ""
        columns = self.tables.texts.c
        names = ", ".join(f"'{column.name}'" for column in columns)
        return (
            f"SELECT count(*) = {len(columns)} FROM pg_attribute WHERE attrelid = to_regclass(%s) "
            f"AND NOT attisdropped AND attname IN ({names})"
        )

    @derived
    def make_words(self) -> list[str]:
        """On SQLite, create the table of words."""
        options = "words, content='', detail=none, columnsize=0, tokenize='ascii'"
        return [] if self.postgres else [f"CREATE VIRTUAL TABLE IF NOT EXISTS {WORDS} USING fts5({options})"]

    @derived
    def remake_index(self) -> list[str]:
        """Drop the index and create it anew."""
        texts = self.tables.texts
        remake: list[Any] = [
            DropTable(texts, if_exists=True),
            CreateTable(texts),
            *(CreateIndex(index) for index in sorted(texts.indexes, key=lambda index: str(index.name))),
        ]
        return [
            *([] if self.postgres else [f"DROP TABLE IF EXISTS {WORDS}"]),
            *(str(ddl.compile(dialect=self.dialect)) for ddl in remake),
            *self.make_words,
        ]
