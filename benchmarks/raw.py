"""The competitors: appends and reads written by hand for ``sqlite3`` and ``psycopg``, with json and blake2b.

They write the same columns into the same tables with the same indexes, made by opening a store on the database once;
the triggers are dropped. They do what a careful program has to (one writing transaction, a dense seq from the head
row, a hash chain, ids that grow with time, prepared statements) and nothing else: no keys to compare, no tree, no
strictness, no retries.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

import tape
from benchmarks.harness import dsn

Receipt = tuple[int, str, str]
"""The seq, the message id and the hash of what was written."""

_HEAD = "SELECT seq, hash, lane, ordinal, messages FROM {at}tape_heads WHERE tape_id = {p}"
_ENTRY = (
    'INSERT INTO {at}tape_entries (tape_id, seq, kind, "key", actor, source_tape, source_seq, payload, meta, salt, '
    "stamp, version, hash, head_tape, lane, ordinal, xid) VALUES ({p}, {p}, 'append', {p}, NULL, NULL, NULL, {p}, "
    "NULL, {p}, {p}, 1, {p}, 0, {p}, {p}, {xid})"
)
_ROW = "INSERT INTO {at}tape_live (tape_id, lane, ordinal, placed, since, body) VALUES ({p}, {p}, {p}, {p}, {p}, {p})"
_MOVE = (
    "UPDATE {at}tape_heads SET seq = {p}, hash = {p}, stamp = {p}, lane = {p}, ordinal = {p}, tip = 1, "
    "messages = {p}, last_message = {p} WHERE tape_id = {p}"
)
_FIND = "SELECT id FROM {at}tape_tapes WHERE tape = {p}"
_TAPE = "INSERT INTO {at}tape_tapes (tape, status, created_at) VALUES ({p}, 'active', 0) ON CONFLICT (tape) DO NOTHING"
_NEW = (
    "INSERT INTO {at}tape_heads (tape_id, seq, hash, stamp, head_tape, lane, ordinal, lo, tip, cleared, messages, "
    "last_message, aliased, xid) VALUES ({p}, 0, {p}, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0) ON CONFLICT (tape_id) DO NOTHING"
)
_COUNT = "SELECT count(*), coalesce(max(seq), 0) FROM {at}tape_entries"

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_noise = random.Random().getrandbits


def _new_id() -> str:
    """Return an id of 36 characters that grows with time."""
    return f"{time.time_ns():018x}{_noise(72):018x}"


class Raw:
    """What both competitors do on one tape: seal messages behind its head."""

    def __init__(self, cursor: Any, name: str, *, begin: str, at: str, mark: str, lock: str, xid: str) -> None:
        def sql(text: str) -> str:
            return text.format(at=at, p=mark, xid=xid)

        self.cursor, self.begin, self.name = cursor, begin, name
        self.head, self.entry, self.row, self.move = sql(_HEAD) + lock, sql(_ENTRY), sql(_ROW), sql(_MOVE)
        self.counts = sql(_COUNT)
        # Several writers may come to a new tape at once.
        cursor.execute(begin)
        cursor.execute(sql(_TAPE), (name,))
        self.tape_id = cursor.execute(sql(_FIND), (name,)).fetchone()[0]
        cursor.execute(sql(_NEW), (self.tape_id, bytes(32)))
        cursor.execute("COMMIT")

    def append(self, message: dict[str, Any]) -> Receipt:
        """Append one message in a transaction of its own."""
        execute, tape_id = self.cursor.execute, self.tape_id
        message_id = _new_id()
        key = f"~m:{message_id}"
        payload = _payload(message)
        stamp = time.time_ns() // 1000
        execute(self.begin)
        seq, before, lane, ordinal, messages = execute(self.head, (tape_id,)).fetchone()
        seq += 1
        ordinal += 1
        salt = os.urandom(16)
        sealed = _seal(self.name, before, salt, payload, seq, key, stamp, lane, ordinal)
        execute(self.entry, (tape_id, seq, key, payload, salt, stamp, sealed, lane, ordinal))
        execute(self.row, (tape_id, lane, ordinal, seq, seq, seq))
        execute(self.move, (seq, sealed, stamp, lane, ordinal, messages + 1, stamp, tape_id))
        execute("COMMIT")
        return seq, message_id, sealed.hex()

    def extend(self, batch: list[dict[str, Any]]) -> list[Receipt]:
        """Append a batch in one transaction, one executemany per table."""
        cursor, tape_id, name = self.cursor, self.tape_id, self.name
        cursor.execute(self.begin)
        seq, sealed, lane, ordinal, messages = cursor.execute(self.head, (tape_id,)).fetchone()
        stamp = time.time_ns() // 1000
        entries, rows, receipts = [], [], []
        for message in batch:
            message_id = _new_id()
            key = f"~m:{message_id}"
            payload = _payload(message)
            seq += 1
            ordinal += 1
            salt = os.urandom(16)
            sealed = _seal(name, sealed, salt, payload, seq, key, stamp, lane, ordinal)
            entries.append((tape_id, seq, key, payload, salt, stamp, sealed, lane, ordinal))
            rows.append((tape_id, lane, ordinal, seq, seq, seq))
            receipts.append((seq, message_id, sealed.hex()))
        cursor.executemany(self.entry, entries)
        cursor.executemany(self.row, rows)
        cursor.execute(self.move, (seq, sealed, stamp, lane, ordinal, messages + len(batch), stamp, tape_id))
        cursor.execute("COMMIT")
        return receipts

    def count(self) -> tuple[int, int]:
        """Return how many entries the database holds, and the greatest seq of a tape."""
        entries, seq = self.cursor.execute(self.counts).fetchone()
        return entries, seq


def _payload(message: dict[str, Any]) -> bytes:
    tokens = len(message["content"]) // 4
    return _encode({"message": message, "generated": True, "tokens": tokens}).encode()


def _seal(
    name: str, before: bytes, salt: bytes, payload: bytes, seq: int, key: str, stamp: int, lane: int, ordinal: int
) -> bytes:
    header = f'["{name}",{seq},"append","{key}",null,null,{stamp},1,null,{lane},{ordinal}]'
    commitment = blake2b(salt + len(payload).to_bytes(8, "big") + payload, digest_size=32).digest()
    return blake2b(before + commitment + header.encode(), digest_size=32).digest()


class RawSqlite(Raw):
    """A program that writes SQLite by itself."""

    def __init__(self, path: Path, durability: str = "full", name: str = "chat") -> None:
        connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        # What the store sets, too.
        for pragma in ("journal_mode = WAL", f"synchronous = {durability}", "cache_size = -32768"):
            connection.execute(f"PRAGMA {pragma}")
        super().__init__(connection.cursor(), name, begin="BEGIN IMMEDIATE", at="", mark="?", lock="", xid="0")
        self.connection = connection

    @staticmethod
    def prepare(path: Path) -> None:
        """Make the tables, without triggers."""
        tape.open(path).close()
        with sqlite3.connect(path) as connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
        connection.close()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class RawPostgres(Raw):
    """A program that writes PostgreSQL by itself, in six round trips with prepared statements."""

    def __init__(self, url: sa.URL, schema: str, name: str = "chat") -> None:
        # Every statement is prepared when it is first run.
        self.connection = psycopg.connect(dsn(url), autocommit=True, prepare_threshold=0)
        super().__init__(
            self.connection.cursor(binary=True),
            name,
            begin="BEGIN",
            at=f'"{schema}".',
            mark="%s",
            lock=" FOR UPDATE",
            xid="pg_current_xact_id()::text::bigint",
        )

    @staticmethod
    def prepare(url: sa.URL, schema: str) -> None:
        """Make the tables, without triggers."""
        tape.open(url, schema=schema).close()
        triggers = (
            "SELECT t.tgname, c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND NOT t.tgisinternal"
        )
        with psycopg.connect(dsn(url), autocommit=True) as connection:
            for trigger, table in connection.execute(triggers, (schema,)).fetchall():
                connection.execute(f'DROP TRIGGER "{trigger}" ON "{schema}"."{table}"'.encode())

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
