"""Search: from a query to the texts that hold and have all its words, newest first.

The index gives the texts that have all the words, the view tells which of them hold, and the text itself settles
phrases and says where the snippet is. What the index has not reached yet is read entry by entry, so a search sees
everything that was committed before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime

import msgspec
from msgspec import Struct

from tape.core import strict
from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.messages.roles import role_of
from tape.core.messages.text import text_of
from tape.core.records import Hit, micros
from tape.core.search import tokenizer
from tape.core.search.query import Query, parse
from tape.core.search.snippet import WIDTH, snippet
from tape.db.engine.failures import Broken, Collision
from tape.db.engine.guests import Bound
from tape.db.engine.transacting import Transacting
from tape.db.engine.transaction import Database, Transaction
from tape.db.feed.feed import Feed
from tape.db.feed.position import join_position
from tape.db.search.index import Excerpt, Index, large_body, place_of
from tape.db.sql.rows.search import FoundRow, TextRow
from tape.db.view import paths
from tape.db.view.opening import Point, open_view
from tape.db.view.tape_view import TapeView
from tape.errors import Corrupt, InvalidEntry, StoreBusy, StoreFailed

__all__ = ["SearchRequest", "Searcher"]

_FIRST_PAGE = 64
_LARGEST_PAGE = 2_048
_SCANNED = 500
_MOST_TAPES = 100
_AT_ONCE = 1_000_000
"""Bytes of large payloads that PostgreSQL is asked for at once, about."""
_END = 2**63 - 1
_EXCERPT = msgspec.json.Decoder(Excerpt)
_PATIENCE = 0.05
"""Seconds for which a search waits until it can write the index; scanning what is new seldom takes longer."""


class SearchRequest(Struct):
    """A search: the query and what narrows it."""

    query: Query
    owner: str | None
    limit: int
    kind: str | None
    role: str | None
    since: int
    until: int

    def wants(self, kind: str, stamp: int) -> bool:
        """Whether an entry can be a hit, before its text is looked at."""
        return self.since <= stamp <= self.until and self.kind in (None, kind)

    def finds(self, tx: Transaction, row: FoundRow | TextRow, raw: bytes, *, indexed: bool = False) -> Hit | None:
        """Return the hit in an entry with this payload, if it is one.

        A row that the index led to has all the words, though perhaps not in the order of a phrase.
        """
        try:
            body = payloads.body_of(row.kind, row.version, raw, row.key)
            text = text_of(body.message)
        except Corrupt:
            return None
        role = role_of(body.message)
        if self.role is not None and role != self.role:
            return None
        spans = self.query.match(text, indexed=indexed)
        if spans is None:
            return None
        return _hit(row, body.id, role, text, spans)

    def glimpses(self, row: FoundRow) -> Hit | None:
        """Return the hit in a long text by its excerpt, if that suffices."""
        if row.excerpt is None:
            return None
        try:
            excerpt = _EXCERPT.decode(row.excerpt)
        except msgspec.DecodeError:
            # The text itself tells; verify names the damage.
            return None
        spans = self.query.match_excerpt(excerpt.text) if self.role in (None, excerpt.role) else None
        if spans is None:
            return None
        return _hit(row, excerpt.id, excerpt.role, excerpt.text, spans)


def _hit(row: FoundRow | TextRow, id: str, role: str | None, text: str, spans: list[tuple[int, int]]) -> Hit:
    score = round(min(1.0, sum(end - start for start, end in spans) / max(1, min(len(text), WIDTH))), 4)
    return Hit(row.tape, row.seq, id, role, snippet(text, spans), score, row.stamp)


class Sight:
    """What a tape that is searched sees: itself and its ancestors, made ready once for all the hits."""

    def __init__(self, view: TapeView) -> None:
        layers = view.layers()
        # Only tapes that say something of inherited messages are asked whether they do.
        saying = [layer for layer in layers if layer[3]]
        self.view = view
        self.plain = view.now and view.ancestry is None
        self.tapes = dict(view.tapes())
        self.layers = {layer[0]: layer for layer in layers}
        self.overriding = msgspec.json.encode(saying).decode()
        self.cleared = [layer[2] for layer in saying]


class Searcher:
    """Searches the tapes that one owner can see."""

    def __init__(self, database: Database, *, owner: str | None) -> None:
        self._db = database
        self._sql = database.statements
        self._owner = owner
        self._feed = Feed(database, owner=owner)
        self.index = Index(database)

    def search(
        self,
        query: str,
        *,
        tape: str | None = None,
        point: Point = None,
        owner: str | None = None,
        limit: int = 20,
        kind: str | None = None,
        role: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Hit]:
        """Return the newest texts that have all the words."""
        if not isinstance(query, str):
            raise InvalidEntry("query", f"must be a string, not {type(query).__name__}")
        if type(limit) is not int or limit <= 0:
            raise InvalidEntry("limit", f"must be a positive integer, not {strict.shown(limit)}")
        if kind not in (None, *payloads.BODIES):
            raise InvalidEntry(
                "kind", f"must be 'append' or 'revise', the kinds that have text, not {strict.shown(kind)}"
            )
        if owner is not None:
            strict.identifier(owner, "owner")
            if self._owner not in (None, owner):
                return []
        request = SearchRequest(
            parse(query),
            self._owner if owner is None else owner,
            limit,
            kind,
            role,
            _stamp(since, "since", 0),
            _stamp(until, "until", _END),
        )
        if not request.query.phrases:
            return []
        if isinstance(self._db, Bound | Transacting):
            # The caller's transaction is not ours to write an index in; what is behind its place is scanned.
            return self._ask(request, tape, point, indexed=True)
        return self._mended(request, tape, point)

    def rebuild(self) -> None:
        """Make the index anew."""
        self.index.remake()
        self.index.catch_up()

    def _mended(self, request: SearchRequest, tape: str | None, point: Point) -> list[Hit]:
        """Search with the index up to date; if it is damaged make it anew; and if that fails do without."""
        for _ in range(2):
            try:
                self._catch_up()
                return self._ask(request, tape, point, indexed=True)
            except (Broken, Collision) as error:
                try:
                    self.index.mend(error, patience=_PATIENCE)
                except (StoreBusy, StoreFailed, Collision):
                    break
            except StoreFailed:
                # Only others may read it, or the query is too much for it: a scan can still tell, or fail for good.
                break
        return self._ask(request, tape, point, indexed=False)

    def _catch_up(self) -> None:
        """Let the index catch up, if it can be had: what it lacks is scanned."""
        if self._db.read_only:
            return
        try:
            self.index.catch_up(patience=_PATIENCE)
        except Broken:
            raise
        except (StoreBusy, StoreFailed):
            # Somebody else writes, only others may, or it takes longer than is allowed: no fault of the index.
            pass

    def _ask(self, request: SearchRequest, tape: str | None, point: Point, *, indexed: bool) -> list[Hit]:
        def search(tx: Transaction) -> list[Hit]:
            sight = None
            if tape is not None:
                view = open_view(tx, tape, self._owner, point)
                if view is None:
                    return []
                sight = Sight(view)
            place = self.index.place(tx) if indexed else 0
            hits = self._scan(tx, request, sight, place)
            if place and len(hits) < request.limit:
                hits += self._indexed_hits(tx, request, sight, request.limit - len(hits))
            return hits

        return self._db.read(search)

    # -- what is not indexed yet

    def _scan(self, tx: Transaction, request: SearchRequest, sight: Sight | None, place: int) -> list[Hit]:
        """Return the newest hits behind a position, newest first."""
        hits: deque[Hit] = deque(maxlen=request.limit)
        while True:
            rows = tx.all(self._sql.unsearched, (*self._feed.at(place), _SCANNED))
            for row in rows:
                if not self._may_match(request, sight, row):
                    continue
                raw = large_body(tx, row.tape_id, row.seq, row.kind) if row.payload is None else row.payload
                if raw is None:
                    continue
                hit = request.finds(tx, row, raw)
                if hit is not None:
                    try:
                        at = place_of(tx, row, raw)
                    except Corrupt:
                        continue
                    if self._holds(tx, sight, row.tape_id, row.seq, *at):
                        hits.append(hit)
            if len(rows) < _SCANNED:
                return list(hits)[::-1]
            place = join_position(rows[-1].xid, rows[-1].position)

    def _may_match(self, request: SearchRequest, sight: Sight | None, row: FoundRow | TextRow) -> bool:
        """Whether an entry may be a hit at all, before its text is looked at."""
        if row.status == "purged" or request.owner not in (None, row.owner) or not request.wants(row.kind, row.stamp):
            return False
        # What a hidden tape wrote is still found where a fork inherits it.
        return row.hidden is None if sight is None else row.tape_id in sight.tapes

    # -- what is

    def _indexed_hits(self, tx: Transaction, request: SearchRequest, sight: Sight | None, limit: int) -> list[Hit]:
        """Return the newest hits that the index leads to, newest first."""
        plain = sight is None or sight.plain
        query = self._query(request, sight)
        if self._db.postgres and not isinstance(self._db, Bound | Transacting):
            # A rare word is best looked up, a common one met on the way down the feed: which, depends on the word, and
            # a plan made once for all of them goes down the feed for each.
            tx.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        hits: list[Hit] = []
        before = (_END, _END)
        page = max(_FIRST_PAGE, limit)
        while True:
            rows = tx.all(self._sql.matches, (query, *before, page))
            for hit in self._hits(tx, request, self._in_view(tx, request, sight, rows, plain=plain), limit):
                hits.append(hit)
                if len(hits) == limit:
                    return hits
            if len(rows) < page:
                return hits
            before = (rows[-1].xid, rows[-1].position)
            page = min(2 * page, _LARGEST_PAGE)

    def _in_view(
        self, tx: Transaction, request: SearchRequest, sight: Sight | None, rows: list[FoundRow], *, plain: bool
    ) -> Iterator[FoundRow]:
        """Yield the rows of a page that hold and are wanted."""
        for row in rows:
            if (plain and not row.holds) or not self._may_match(request, sight, row):
                continue
            if plain or self._holds(tx, sight, row.tape_id, row.seq, row.origin, row.lane, row.ordinal):
                yield row

    def _hits(self, tx: Transaction, request: SearchRequest, rows: Iterator[FoundRow], limit: int) -> Iterator[Hit]:
        """Yield the hits among the rows of a page.

        Large payloads did not come with the page, since all of them at once could fill the memory. The excerpt of a
        long text did, and mostly suffices. The others are read one by one, or from PostgreSQL, where each would cost a
        round trip, a few at a time.
        """
        enough = _AT_ONCE if self._db.postgres else 0
        waiting: list[tuple[FoundRow, Hit | None]] = []
        size = 0
        for row in rows:
            hit = request.glimpses(row)
            waiting.append((row, hit))
            large = hit is None and row.payload is None
            size += (row.size or 0) if large else 0
            if size >= enough or len(waiting) >= limit or (len(waiting) == 1 and not large):
                yield from self._read_hits(tx, request, waiting)
                waiting, size = [], 0
        yield from self._read_hits(tx, request, waiting)

    def _read_hits(
        self, tx: Transaction, request: SearchRequest, rows: list[tuple[FoundRow, Hit | None]]
    ) -> Iterator[Hit]:
        missing = [row for row, hit in rows if hit is None and row.payload is None and row.size is not None]
        places = msgspec.json.encode([(row.tape_id, row.seq) for row in missing]).decode()
        bodies = tx.all(self._sql.bodies_of, (places,)) if missing else ()
        payload_at = {missing[body.n].position: body.payload for body in bodies}
        for row, hit in rows:
            raw = payload_at.pop(row.position, None) if row.payload is None else row.payload
            if hit is None and raw is not None:
                hit = request.finds(tx, row, raw, indexed=True)
            if hit is not None:
                yield hit

    def _query(self, request: SearchRequest, sight: Sight | None) -> str:
        """Return what the engine is asked for: every word, and the tapes or the owner by words of their own."""
        either: list[str] = []
        if sight is not None and len(sight.tapes) <= _MOST_TAPES:
            either = [tokenizer.tape_word(number) for number in sight.tapes]
        elif request.owner is not None:
            either = [tokenizer.owner_word(request.owner)]
        tokens = request.query.tokens()
        # No word holds a quote of either engine: it is letters, digits and marks.
        if self._db.postgres:
            parts = [f"'{token.text}'{':*' if token.prefix else ''}" for token in tokens]
            group = " | ".join(f"'{word}'" for word in either)
            return " & ".join([*([f"({group})"] if group else []), *parts])
        parts = [f'"{token.text}"{"*" if token.prefix else ""}' for token in tokens]
        group = " OR ".join(f'"{word}"' for word in either)
        return " AND ".join([*([f"({group})"] if group else []), *parts])

    # -- what holds

    def _holds(
        self, tx: Transaction, sight: Sight | None, tape_id: int, seq: int, origin: int, lane: int, ordinal: int
    ) -> bool:
        """Whether a body holds: on the tape that wrote it, or as the tape searched sees it."""
        if sight is None or sight.plain:
            if origin:
                return tx.one(self._sql.holds_over, (tape_id, origin, lane, ordinal, seq)) is not None
            return tx.one(self._sql.holds_own, (tape_id, lane, ordinal, seq)) is not None
        if sight.view.ancestry is None:
            rows = paths.rows(sight.view, Place(lane, ordinal), ordinal - 1)
            return bool(rows) and rows[0].body == seq
        home = origin or tape_id
        if seq > sight.tapes[tape_id]:
            return False
        override = tx.one(self._sql.overrides_at, (sight.overriding, home, lane, ordinal))
        if override is not None:
            # The nearest tape that says something of an inherited message decides.
            holds = override.body is not None and override.since > sight.cleared[override.n]
            return holds and (override.body_tape, override.body) == (tape_id, seq)
        if home not in sight.layers:
            # Behind a clear, from under which a nearer tape would have had to say that it came back.
            return False
        _, asof, cleared, _ = sight.layers[home]
        row = tx.one(self._sql.rows_then, (home, lane, ordinal - 1, ordinal, cleared, asof, 1))
        return row is not None and home == tape_id and row.body == seq


def _stamp(at: datetime | None, field: str, default: int) -> int:
    if at is None:
        return default
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidEntry(field, "must be a datetime with a time zone")
    return micros(at)
