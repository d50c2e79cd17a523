"""A Citus cluster with a schema per store: the tables of a store are on one worker, all statements go by a coordinator.

Transactions count on the coordinator: their ids are what the feed is ordered by. A statement that only reads is
answered by the worker, whose ids are others. So the ids of running transactions and of one's own are asked by
statements without a table, which the coordinator answers itself, and are passed on as parameters. What a change asks
for, the coordinator works out before it sends the change on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tape.db.engine.failures import Stale
from tape.db.schema.found import is_sharded
from tape.db.sql.rows.feed import Snapshot

if TYPE_CHECKING:
    from tape.db.engine.transaction import Transaction

__all__ = ["Shards", "hot_append", "insert_entries", "recognized", "send", "snapshot", "take_arrivals"]

Row = Sequence[Any]

_PAGE = 200
"""How many entries of an import are read and written at a time."""
_EVERYWHERE = "SET LOCAL citus.propagate_set_commands = 'local'"
"""Lets the settings of a transaction reach the worker, along with its beginning."""


class Shards:
    """What a store keeps of the cluster that it is on."""

    __slots__ = ("base", "brief", "reading", "settings", "since")

    def __init__(self, timeout: float, *, durable: bool) -> None:
        self.base: int | None = None
        """What is added to transaction ids; None until it is asked for."""
        self.since = ""
        """Since when the server was running that was asked."""
        waits = f"SET LOCAL lock_timeout = {max(1, int(timeout * 1000))}"
        self.brief = (_EVERYWHERE, waits, *(() if durable else ("SET LOCAL synchronous_commit = off",)))
        """The settings of an append that is sent as a whole; it may wait for a row on the worker."""
        self.reading = (_EVERYWHERE, "SET LOCAL enable_seqscan = off", "SET LOCAL enable_memoize = off")
        """The settings of a transaction that reads."""
        self.settings = (*self.brief, *self.reading[1:])
        """The settings of every other transaction that writes: those of the session do not reach the worker."""


def recognized(tx: Transaction, schema: str | None, timeout: float) -> Shards | None:
    """Return what is kept of the cluster if the store is on one; None on plain PostgreSQL, or beside the shards."""
    if not is_sharded(tx.execute, schema):
        return None
    (commit,) = tx.execute("SHOW synchronous_commit").fetchone()
    return Shards(timeout, durable=commit != "off")


def send(connection: Any, statements: Sequence[str]) -> None:
    """Send statements without parameters in one trip, but each by itself.

    With a setting Citus passes on to the worker all of the text that it came in.
    """
    with connection.pipeline():
        for statement in statements:
            connection.cursor().execute(statement, prepare=False)


def snapshot(tx: Transaction) -> Snapshot:
    """Return the transactions that are running on the coordinator."""
    running = tx.one(tx.statements.snapshot, ())
    assert running is not None
    return running


def insert_entries(tx: Transaction, entries: Sequence[Row]) -> int:
    """Insert rows of entries in their order, each with the transaction that the feed is to show."""
    own: int | None = None
    rows = []
    for entry in entries:
        tape_id, *_ = entry
        xid = tx.xids.get(tape_id)
        if xid is None:
            own = tx.value(tx.statements.own_xid, ()) if own is None else own
            xid = tx.xids[tape_id] = tx.value(tx.statements.xid_for, (own, tape_id))
        rows.append((*entry, xid))
    return tx.many(tx.statements.insert_entry, rows)


def take_arrivals(tx: Transaction, number: int) -> int:
    """Let the entries of a hidden tape come among the others, through the client; returns how many they are."""
    after = 0
    while True:
        page = tx.all(tx.statements.arrivals_after, (number, after, _PAGE))
        if page:
            insert_entries(tx, page)
            _, after, *_ = page[-1]
        if len(page) < _PAGE:
            # Their seqs begin with 1 and have no gaps, or an index would have refused them.
            return after


def hot_append(
    tx: Transaction,
    shards: Shards,
    head: Row,
    entries: Sequence[Row],
    rows: Sequence[Row],
    lookup: Row,
    *,
    event: bool,
    whole: Sequence[str],
) -> None:
    """Send plain appends, or an event, in one trip; raises Stale if the head is not the expected one.

    ``whole`` begins a transaction that is committed here. All is sent before anything is answered, but for the COMMIT:
    that waits for the first answer, which tells whether the head was moved, and is there before the rest is done.
    """
    import psycopg

    sql, connection = tx.statements, tx.connection
    if shards.base is None:
        # The moment first: if the server is another one from now on, that is noticed.
        shards.since = tx.value(sql.running_since, ())
        shards.base = tx.value(sql.base, ())
    base = shards.base
    key, *moved = head
    move = sql.hot_head_forked if lookup else sql.hot_head
    shown = sql.insert_event if event else sql.open_row

    def send(text: str, params: Row = ()) -> Any:
        # Not prepared: after an error the driver would take statements for prepared that the server never saw.
        return connection.cursor(binary=True).execute(text, params, prepare=False)

    moved_on: Any = None
    failure: psycopg.Error | None = None
    try:
        with connection.pipeline():
            for text in whole:
                send(text)
            send(sql.lock, (key,))
            answer = send(move.sql, move.bind((*moved, base, shards.since, *lookup)))
            send(shown.times(len(rows)), list(chain.from_iterable(rows)))
            send(sql.hot_entry.times(len(entries)), [value for entry in entries for value in (*entry, base)])
            try:
                moved_on = answer.fetchone()
            except psycopg.Error as error:
                # Raised behind the pipeline: one that is left by an error complains of it in the driver's log.
                failure = error
            if whole and moved_on is not None:
                send("COMMIT")
    except psycopg.Error as error:
        failure = failure or error
    if failure is not None and (moved_on is not None or not isinstance(failure, psycopg.IntegrityError)):
        raise failure
    if moved_on is None:
        # Where another has moved the head there is an entry of that seq, with which the statements behind it collide.
        shards.base = None
        raise Stale from failure
