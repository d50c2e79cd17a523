"""Batches go to the database as few statements, and come to the same as message after message."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.backends import Backend, dsn
from support.processes import PATIENCE

import tape
from tape.db.engine.postgres.arrays import columns_of, register
from tape.errors import ProvenanceConflict

LENGTHS = (2, 9, 10, 11, 49, 50, 51, 61, 120, 1_001)
"""Around the numbers of rows that one statement takes."""


def texts(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Messages that differ by a number."""
    return [{"role": "user", "content": f"message {start + n} ü\n"} for n in range(count)]


def varied() -> list[dict[str, Any]]:
    """Messages with and without ids, and with tool calls and their results."""
    found: list[dict[str, Any]] = []
    for n in range(23):
        call = {"id": f"call-{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        found += [
            {"id": f"ask-{n}", "role": "user", "content": f"{n} €"},
            {"id": f"use-{n}", "role": "assistant", "content": None, "tool_calls": [call]},
            {"id": f"told-{n}", "role": "tool", "tool_call_id": f"call-{n}", "content": "x" * n},
        ]
    return found


@pytest.mark.parametrize("length", LENGTHS)
def test_a_batch_of_any_length_is_recorded_in_its_order(store: tape.Store, length: int) -> None:
    chat = store.tape("chat")
    chat.append(role="user", content="first")
    receipts = chat.extend(texts(length))
    assert [one.seq for one in receipts] == list(range(3, length + 3))
    assert [one.to_dict() for one in chat.messages()][1:] == texts(length)
    feed = list(store.feed())
    assert [one.seq for one in feed] == list(range(1, length + 3)), "the feed tells entries in their order"
    positions = [one.position or 0 for one in chat.entries()]
    assert positions == sorted(set(positions))
    assert [one.hash for one in chat.entries()][2:] == [one.hash for one in receipts]
    assert store.verify().problems == []


@pytest.mark.parametrize(
    "options", [{}, {"actor": "me", "meta": {"a": 1}}, {"key": "k"}], ids=["bare", "said", "keyed"]
)
def test_a_batch_comes_to_the_same_as_message_after_message(store: tape.Store, options: dict[str, Any]) -> None:
    whole, single = store.tape("whole"), store.tape("single")
    whole.extend(texts(2))
    single.extend(texts(2))
    whole.extend(varied(), **options)
    for n, message in enumerate(varied()):
        single.append(message, **({"key": f"k#{n}"} if options.get("key") else options))
    told = [[(one.kind, one.key, one.actor, one.meta) for one in chat.entries(after=3)] for chat in (whole, single)]
    assert told[0] == told[1]
    assert [one.to_dict() for one in whole.messages()] == [one.to_dict() for one in single.messages()]
    again = whole.extend(varied(), **options)
    assert all(one.duplicate for one in again)
    whole.retract("use-7")
    single.retract("use-7")
    assert [one.id for one in whole.messages()][2:] == [one.id for one in single.messages()][2:]
    assert store.verify().problems == []


def test_a_batch_behind_a_head_that_another_store_moved(backend: Backend) -> None:
    one, other = backend.open().tape("chat"), backend.open().tape("chat")
    one.extend(texts(20))
    other.extend(texts(20, 20))
    one.extend(texts(20, 40))
    other.append(texts(1, 60)[0])
    assert [message.to_dict() for message in one.messages()] == texts(61)
    assert backend.open().verify().problems == []


def test_a_batch_that_repeats_a_recorded_message_records_the_rest(store: tape.Store) -> None:
    chat = store.tape("chat")
    chat.append(role="user", content="first")
    a, b, c = ({"id": name, "role": "user", "content": name} for name in "abc")
    chat.append(a)
    receipts = chat.extend([b, a, c])
    assert [one.duplicate for one in receipts] == [False, True, False]
    with pytest.raises(ProvenanceConflict):
        chat.extend([{"id": "d", "role": "user", "content": "d"}, {**a, "content": "other"}])
    with pytest.raises(tape.InvalidEntry):
        chat.extend([{"id": "d", "role": "user", "content": "d"}] * 2)
    assert chat.info().entry_count == 5
    assert [one.seq for one in store.feed()] == list(range(1, 6))
    assert store.verify().problems == []


def test_a_batch_on_a_fork_finds_what_an_ancestor_has(store: tape.Store) -> None:
    chat = store.tape("chat")
    messages = [{"id": f"m{n}", "role": "user", "content": str(n)} for n in range(30)]
    chat.extend(messages[:20])
    child = chat.fork(id="child")
    child.append(role="user", content="own")
    receipts = child.extend(messages)
    assert [one.duplicate for one in receipts] == [True] * 20 + [False] * 10
    child.extend(texts(12))
    assert [one.to_dict() for one in child.messages()][-12:] == texts(12)
    assert store.verify().problems == []


# SQLite has no round trips to save.
@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_a_plain_batch_behind_a_kept_head_is_one_statement(store: tape.Store, backend: Backend) -> None:
    chat = store.tape("chat")
    chat.extend(texts(3))
    points: list[str] = []
    store._db.fault = points.append
    chat.extend(texts(30))
    # Neither the head nor the commit is a step of its own.
    assert points == ["entry"]
    store._db.fault = None
    assert store.verify().problems == []


# SQLite is given rows, not columns.
@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_columns_arrive_as_they_were(backend: Backend) -> None:
    """Rows of every sort of values, some of them absent, come back equal from PostgreSQL."""
    rows: list[tuple[int | None, str | None, bytes | None]] = [
        (0, "", b""),
        (-(2**63), "ü€𝄞", bytes(range(256))),
        (2**63 - 1, '{"a\\,b"}', b"NULL"),
        (None, None, None),
        (7, "NULL", b"\x00" * 300),
    ]
    with psycopg.connect(dsn(backend.url), autocommit=True) as connection:
        register(connection.adapters)
        query = "SELECT * FROM unnest(%s, %s, %s) WITH ORDINALITY ORDER BY 4"
        for some in (rows, rows[:3], rows[3:4] * 4):
            found = connection.execute(query, columns_of(some, (int, str, bytes))).fetchall()
            assert [row[:3] for row in found] == some


def test_a_batch_too_large_for_one_statement(
    store: tape.Store, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape.db.engine.postgres.arrays.MOST_BYTES", 10_000)
    if backend.postgres:
        assert columns_of([(1, "a", b"b" * 10_000)], (int, str, bytes)) is None
    chat = store.tape("chat")
    chat.extend(texts(3))
    large = [{"role": "user", "content": "x" * 1_000}] * 40
    chat.extend(large)
    assert [one.to_dict() for one in chat.messages()][-40:] == large
    assert store.verify().problems == []


def test_batches_of_many_writers_stay_whole_and_in_order(backend: Backend) -> None:
    stores = [backend.open() for _ in range(4)]
    stores[0].tape("shared").append(role="user", content="first")
    start = threading.Barrier(len(stores))

    def write(number: int) -> None:
        start.wait(PATIENCE)
        for turn in range(6):
            batch = [{"role": "user", "content": f"{number} {turn} {n}"} for n in range(15)]
            stores[number].tape("shared").extend(batch)
            stores[number].tape(f"own-{number}").extend(batch)

    with ThreadPoolExecutor(len(stores)) as threads:
        for one in [threads.submit(write, number) for number in range(len(stores))]:
            one.result(PATIENCE)
    told = [one.text for one in stores[0].tape("shared").messages()][1:]
    runs = [told[n : n + 15] for n in range(0, len(told), 15)]
    assert len(runs) == 24
    assert all(run == [f"{run[0][:-2]} {n}" for n in range(15)] for run in runs), "a batch was torn apart"
    seen: dict[str, int] = {}
    for entry in stores[0].feed():
        assert entry.seq == seen.get(entry.tape, 0) + 1, "the feed tells entries out of order"
        seen[entry.tape] = entry.seq
    assert len(seen) == 5
    assert stores[0].verify().problems == []
