"""The search index: it follows the feed behind the appends, with a place of its own.

An append never touches it, so damage to it can block none. A search first lets it catch up, in batches that are read
and cut into words without any lock and stored in a short transaction each. What holds is not its business: every body
is indexed once, when it was written, and whoever searches asks the view whether it holds.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct

from tape.core import meta
from tape.core.entries import payloads
from tape.core.messages.roles import role_of
from tape.core.messages.text import data_text, text_of
from tape.core.search import tokenizer
from tape.db.engine.failures import Broken, Collision, Denied
from tape.db.engine.log import log
from tape.db.engine.transaction import Database, Transaction
from tape.db.feed.feed import Feed
from tape.db.feed.position import join_position
from tape.db.schema.guards import in_schema
from tape.db.sql.rows.search import TextRow
from tape.errors import Corrupt, StoreBusy

__all__ = ["Excerpt", "Index", "large_body", "meta_text", "place_of"]

_BATCH = 500
_MOST_WORDS = 200_000
"""Words of a batch, after which it ends: of texts with very many, fewer are stored at a time."""
_NAME = "\x01index"
"""Of the index among the readers of the feed: no caller can use a control character."""
_LOCK = "\0index"


class Indexed(NamedTuple):
    """One body, ready to be stored."""

    position: int
    xid: int
    tape_id: int
    seq: int
    origin: int
    lane: int
    ordinal: int
    excerpt: bytes | None
    words: list[str]


class Excerpt(Struct, frozen=True, array_like=True):
    """The beginning of a long text, with the other fields of a hit."""

    id: str
    role: str | None
    text: str


class Index:
    """Fills and repairs the search index of one database."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = database.statements
        self._feed = Feed(database, owner=None)

    def place(self, tx: Transaction) -> int:
        """Return the position up to which everything is indexed; 0 when the index is of another version."""
        row = tx.one(self._sql.consumer, ("", _NAME))
        return 0 if row is None or row.version != tokenizer.VERSION else join_position(row.xid, row.position)

    def lag(self) -> int:
        """Return about how many entries are not indexed yet, without counting them."""

        def measure(tx: Transaction) -> int:
            end, row = tx.one(self._sql.feed_end, ()), tx.one(self._sql.consumer, ("", _NAME))
            if end is None:
                return 0
            return max(0, end.position - (row.position if row is not None and row.version == tokenizer.VERSION else 0))

        return self._db.read(measure)

    def catch_up(self, most: int | None = None, *, patience: float | None = None) -> int:
        """Index all that is final and not indexed yet, or about ``most`` of it; returns how many entries that were.

        With ``patience`` it is StoreBusy as soon as other writers have to be waited for longer.
        """
        brief = patience is not None
        total = 0
        while True:
            place, rows, ready = self._db.read(self._batch)
            if rows:
                last = rows[-1]
                stored = self._db.repeat(
                    _LOCK,
                    lambda tx, p=place, r=ready, e=last: self._store(tx, p, r, e, brief=brief),  # type: ignore[misc]
                    patience=patience,
                )
                total += len(rows) if stored else 0
            finished = len(rows) < _BATCH and sum(len(text.words) for text in ready) <= _MOST_WORDS
            if finished or (most is not None and total >= most):
                return total

    def _batch(self, tx: Transaction) -> tuple[int, list[TextRow], list[Indexed]]:
        """Read the next entries and cut their bodies into words, until there are too many words to keep."""
        place = self.place(tx)
        rows = tx.all(self._sql.unindexed, (*self._feed.at(place), _BATCH, tx.snapshot().oldest))
        ready = []
        words = 0
        for count, row in enumerate(rows, 1):
            indexed = None if row.status == "purged" else self.ready(tx, row)
            if indexed is not None:
                ready.append(indexed)
                words += len(indexed.words)
            if words > _MOST_WORDS:
                return place, rows[:count], ready
        return place, rows, ready

    def ready(self, tx: Transaction, row: TextRow) -> Indexed | None:
        """Return what the index keeps of an entry; None if it has no text."""
        raw = large_body(tx, row.tape_id, row.seq, row.kind) if row.payload is None else row.payload
        if raw is None:
            return None
        try:
            origin, lane, ordinal = place_of(tx, row, raw)
            body = payloads.body_of(row.kind, row.version, raw, row.key)
            text, more = text_of(body.message), meta_text(tx, row.tape_id, row.seq, body, row.meta)
        except Corrupt:
            # A message that cannot be read is not indexed; verify names it.
            return None
        excerpt, words = _excerpt(body, text), _words(text + more, row.tape_id, row.owner)
        return Indexed(row.position, row.xid, row.tape_id, row.seq, origin, lane, ordinal, excerpt, words)

    def _hold(self, tx: Transaction, *, brief: bool) -> None:
        """Be the only one to write the index, or be refused at once if there is no time to wait."""
        if not brief:
            tx.lock(_LOCK)
        elif not tx.try_lock(_LOCK):
            raise StoreBusy(0.0)

    def _store(self, tx: Transaction, place: int, ready: list[Indexed], last: TextRow, *, brief: bool = False) -> bool:
        """Store a batch, unless another process was faster."""
        self._hold(tx, brief=brief)
        row = tx.one(self._sql.consumer, ("", _NAME))
        if row is not None and row.version != tokenizer.VERSION:
            self._remake(tx)
        if self.place(tx) != place:
            return False
        for ddl in self._sql.make_words if place == 0 else ():
            tx.execute(ddl, ())
        # A tape may have been purged since the batch was read: what is stored now no purge would take away.
        purged = {number for number in {text.tape_id for text in ready} if self._purged(tx, number)}
        ready = [text for text in ready if text.tape_id not in purged]
        if not tx.postgres:
            tx.many(self._sql.insert_text, [text[:1] + text[2:8] for text in ready])
            tx.many(self._sql.insert_words, [(text.position, " ".join(text.words)) for text in ready])
        else:
            tx.many(self._sql.insert_text, [(text.position, *text[2:8], text.xid, text.words) for text in ready])
        tx.run(self._sql.put_consumer, ("", _NAME, last.xid, last.position, tokenizer.VERSION))
        tx.check_revision()
        return True

    def remake(self, *, spoilt: bool = False, patience: float | None = None) -> None:
        """Empty the index, whatever is left of it, and begin a new one; the next search fills it.

        What is ``spoilt`` on disk cannot be emptied row by row.
        """

        def replace(tx: Transaction) -> None:
            self._hold(tx, brief=patience is not None)
            self._remake(tx, spoilt=spoilt)

        self._db.repeat(_LOCK, replace, patience=patience)
        log.info("tape.index_remade")

    def mend(self, error: Broken | Collision, *, patience: float | None = None) -> None:
        """Make the index anew after an error that means that it is damaged."""
        log.warning("tape.index_broken", error=str(error))
        self.remake(spoilt=isinstance(error, Broken) and error.spoilt, patience=patience)

    def _remake(self, tx: Transaction, *, spoilt: bool = False) -> None:
        known = tx.one(self._sql.consumer, ("", _NAME)) is not None
        # The tables of a newer release may be others than would be made here.
        tx.check_revision()
        if not tx.run(self._sql.drop_consumer, ("", _NAME)) and known:
            # Row-level security: its own rows this role could delete, but not what says that they are there.
            raise Denied("the search index is shared by all owners, and this role may not rebuild it")
        table = f"{in_schema(self._db.tables.schema)}{self._db.tables.texts.name}"
        if self._sql.index_stands and tx.execute(self._sql.index_stands, (table,)).fetchone() == (True,):
            if spoilt:
                tx.execute(self._sql.truncate_index, ())
            else:
                tx.run(self._sql.empty_index, ())
            return
        for ddl in self._sql.remake_index:
            tx.execute(ddl, ())

    def _purged(self, tx: Transaction, tape_id: int) -> bool:
        return tx.value(self._sql.tape_status, (tape_id,)) in (None, "purged")

    def drop(self, tape_id: int) -> None:
        """Take a purged tape out of the index, in batches, before its entries go; a broken index is made anew."""
        after = 0
        while True:
            try:
                after = self._db.repeat(_LOCK, lambda tx, a=after: self.forget(tx, tape_id, a))  # type: ignore[misc]
            except (Broken, Collision) as error:
                self.mend(error)
                return
            if not after:
                return

    def forget(self, tx: Transaction, tape_id: int, after: int = 0, most: int = _BATCH) -> int:
        """Take texts of one tape out of the index, before its entries go; returns the seq reached, 0 at the end."""
        tx.lock(_LOCK)
        rows = tx.all(self._sql.texts_of, (tape_id, after, most))
        for row in rows:
            if not tx.postgres:
                stored = tx.one(self._sql.indexed_body, (tape_id, row.seq))
                if stored is not None and stored.payload is not None:
                    try:
                        body = payloads.body_of(stored.kind, stored.version, stored.payload, stored.key)
                        text = text_of(body.message) + meta_text(tx, tape_id, row.seq, body, stored.meta)
                    except Corrupt as error:
                        # Its words cannot be worked out any more, so the index is made anew without it.
                        raise Broken(error.what) from error
                    tx.run(self._sql.drop_words, (row.position, " ".join(_words(text, tape_id, stored.owner))))
            tx.run(self._sql.drop_text, (tape_id, row.seq))
        return rows[-1].seq if len(rows) == most else 0


def meta_text(tx: Transaction, tape_id: int, seq: int, body: payloads.Body, stored: bytes | None) -> str:
    """Return the text by which a message is found besides its own: that of its meta, if it was to be indexed.

    ``stored`` is the meta, if that was small enough to be read along. Raises Corrupt.
    """
    if not body.index_meta:
        return ""
    try:
        fields, _ = meta.of_message(tx.value(tx.statements.meta_of, (tape_id, seq)) if stored is None else stored)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Corrupt("", seq, f"the meta of the entry cannot be read: {error}") from error
    return f"\n{data_text(fields)}"


def _excerpt(body: payloads.Body, text: str) -> bytes | None:
    """Return what is kept of a long text, of which a hit shows a line only."""
    if len(text) <= tokenizer.LONG:
        return None
    return msgspec.json.encode(Excerpt(body.id, role_of(body.message), text[: tokenizer.EXCERPT]))


def _words(text: str, tape_id: int, owner: str | None) -> list[str]:
    """Return what a text is found by: its words, and those that stand for its tape and its owner."""
    own = [] if owner is None else [tokenizer.owner_word(owner)]
    return [*tokenizer.vocabulary(text), tokenizer.tape_word(tape_id), *own]


def large_body(tx: Transaction, tape_id: int, seq: int, kind: str) -> bytes | None:
    """Return the payload of an entry that was too large to be read with others; None if it holds no text."""
    payload: bytes | None = tx.value(tx.statements.large_body, (tape_id, seq)) if kind in payloads.BODIES else None
    return payload


def place_of(tx: Transaction, row: TextRow, raw: bytes) -> tuple[int, int, int]:
    """Return the place of the message that a body belongs to: the number of its tape (0 for its own), lane, depth."""
    if row.kind == "append":
        return 0, row.lane, row.ordinal
    payload = payloads.decode(row.kind, row.version, raw, key=row.key)
    if not isinstance(payload, payloads.Revise):
        raise Corrupt("", 0, f"an entry of kind {row.kind!r} has no message")
    place = payload.place
    if place.tape is None:
        return 0, place.lane, place.ordinal
    number = tx.value(tx.statements.tape_number, (place.tape,))
    if number is None:
        raise Corrupt(place.tape, 0, "the tape does not exist")
    return int(number), place.lane, place.ordinal
