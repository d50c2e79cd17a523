"""The competitors: appends written by hand for ``sqlite3`` and ``psycopg``, with json, blake2b and uuid4.

They write the same columns into the same tables with the same indexes and triggers, made by opening a store on the
database once. They do what a careful program has to (one writing transaction, a dense seq from the head row, a hash
chain) and nothing else: no keys to compare, no tree, no strictness, no retries.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from hashlib import blake2b
from typing import Any

import psycopg

TAPE = "raw"
_HEAD = "SELECT seq, hash, lane, ordinal, messages FROM {at}tape_heads WHERE tape_id = {p}"
_ENTRY = (
    'INSERT INTO {at}tape_entries (tape_id, seq, kind, "key", actor, source_tape, source_seq, payload, meta, stamp, '
    "version, hash, head_tape, lane, ordinal, xid) VALUES ({p}, {p}, 'append', {p}, NULL, NULL, NULL, {p}, NULL, {p}, "
    "1, {p}, 0, {p}, {p}, {xid})"
)
_ROW = "INSERT INTO {at}tape_live (tape_id, lane, ordinal, placed, since, body) VALUES ({p}, {p}, {p}, {p}, {p}, {p})"
_MOVE = (
    "UPDATE {at}tape_heads SET seq = {p}, hash = {p}, stamp = {p}, lane = {p}, ordinal = {p}, tip = 1, "
    "messages = {p}, last_message = {p} WHERE tape_id = {p}"
)
_TAPE = "INSERT INTO {at}tape_tapes (tape, status, created_at) VALUES ({p}, 'active', {p}) RETURNING id"
_NEW = (
    "INSERT INTO {at}tape_heads (tape_id, seq, hash, stamp, head_tape, lane, ordinal, lo, tip, cleared, messages, "
    "last_message, aliased, xid) VALUES ({p}, 0, {p}, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0)"
)


class Raw:
    """What both competitors do: seal messages behind a head."""

    def __init__(self, cursor: Any, *, begin: str, at: str, mark: str, lock: str, xid: str) -> None:
        def sql(text: str) -> str:
            return text.format(at=at, p=mark, xid=xid)

        self.cursor, self.begin = cursor, begin
        self.head, self.entry, self.row, self.move = sql(_HEAD) + lock, sql(_ENTRY), sql(_ROW), sql(_MOVE)
        self.tape_id = cursor.execute(sql(_TAPE), (TAPE, 0)).fetchone()[0]
        cursor.execute(sql(_NEW), (self.tape_id, bytes(32)))

    def append(self, message: dict[str, Any]) -> tuple[int, str, str]:
        """Append one message in a transaction of its own."""
        execute = self.cursor.execute
        message_id = str(uuid.uuid4())
        key = f"m:{message_id}"
        payload = json.dumps({"id": message_id, "message": message, "generated": True}).encode()
        stamp = time.time_ns() // 1000
        execute(self.begin)
        seq, before, lane, ordinal, messages = execute(self.head, (self.tape_id,)).fetchone()
        seq, ordinal = seq + 1, ordinal + 1
        sealed = _seal(before, payload, seq, key, stamp, lane, ordinal)
        execute(self.entry, (self.tape_id, seq, key, payload, stamp, sealed, lane, ordinal))
        execute(self.row, (self.tape_id, lane, ordinal, seq, seq, seq))
        execute(self.move, (seq, sealed, stamp, lane, ordinal, messages + 1, stamp, self.tape_id))
        execute("COMMIT")
        return seq, message_id, sealed.hex()

    def extend(self, batch: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
        """Append a batch in one transaction, one executemany per table."""
        cursor = self.cursor
        cursor.execute(self.begin)
        seq, sealed, lane, ordinal, messages = cursor.execute(self.head, (self.tape_id,)).fetchone()
        entries, rows, receipts = [], [], []
        for message in batch:
            message_id = str(uuid.uuid4())
            key = f"m:{message_id}"
            payload = json.dumps({"id": message_id, "message": message, "generated": True}).encode()
            stamp = time.time_ns() // 1000
            seq, ordinal = seq + 1, ordinal + 1
            sealed = _seal(sealed, payload, seq, key, stamp, lane, ordinal)
            entries.append((self.tape_id, seq, key, payload, stamp, sealed, lane, ordinal))
            rows.append((self.tape_id, lane, ordinal, seq, seq, seq))
            receipts.append((seq, message_id, sealed.hex()))
        cursor.executemany(self.entry, entries)
        cursor.executemany(self.row, rows)
        cursor.execute(self.move, (seq, sealed, stamp, lane, ordinal, messages + len(batch), stamp, self.tape_id))
        cursor.execute("COMMIT")
        return receipts


def _seal(before: bytes, payload: bytes, seq: int, key: str, stamp: int, lane: int, ordinal: int) -> bytes:
    header = json.dumps([TAPE, seq, "append", key, None, None, stamp, 1, None, lane, ordinal]).encode()
    digest = blake2b(payload, digest_size=32).digest()
    return blake2b(before + digest + header + b"\n", digest_size=32).digest()


class RawSqlite(Raw):
    """A program that writes SQLite by itself."""

    def __init__(self, path: str, durability: str) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        # What the store sets, too.
        for pragma in ("journal_mode = WAL", f"synchronous = {durability}", "cache_size = -32768"):
            connection.execute(f"PRAGMA {pragma}")
        super().__init__(connection.cursor(), begin="BEGIN IMMEDIATE", at="", mark="?", lock="", xid="0")
        self.connection = connection

    def close(self) -> None:
        self.connection.close()


class RawPostgres(Raw):
    """A program that writes PostgreSQL by itself, in six round trips: its statements are prepared by psycopg."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        super().__init__(
            self.connection.cursor(binary=True),
            begin="BEGIN",
            at=f'"{schema}".',
            mark="%s",
            lock=" FOR UPDATE",
            xid="pg_current_xact_id()::text::bigint",
        )

    def close(self) -> None:
        self.connection.close()
