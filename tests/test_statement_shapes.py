"""The shape of every compiled statement, for what Citus refuses or silently answers wrongly: CI has no cluster.

``python -m pytest tests/test_citus_form.py`` runs the same statements on plain PostgreSQL; ``TAPE_TEST_CITUS_URL``
points the whole suite at a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tape.db.schema.tables import Tables
from tape.db.sql import Statement, Statements
from tape.db.sql.compiler import Insert, derived

TABLES = Tables("postgresql")
OWNED = {table.name for table in TABLES.metadata.sorted_tables if "tape_id" in table.c}
"""The tables whose rows belong to a tape."""
NUMBERED = {TABLES.entries.name, TABLES.tapes.name}
"""The tables whose rows are given a number by the database."""
ALL_TAPES = {
    "empty_index": "the index of all tapes is emptied",
    "feed_end": "the end of the feed of all tapes",
    "matches": "a search over all tapes; which one it is about is among its words",
    "rebase": "the greatest transaction of all tapes",
    "text_positions": "verify looks at the index of all tapes",
    "tombstone": "found by the id that a tape had",
    "unemptied": "the purged tapes whose rows are still to go",
    "xid_state": "the greatest transaction of all tapes",
}
"""The statements that are about no tape in particular, each with its reason."""
ASKED_APART = {"snapshot", "own_xid", "now", "lock", "try_lock"}
"""What the coordinator answers by itself: they read no table."""

_SERVER = re.compile(r"\b(?:clock_timestamp|statement_timestamp|transaction_timestamp|now|nextval|random)\s*\(")
_XIDS = re.compile(r"\bpg_(?:current_xact_id|current_snapshot|snapshot_xm\w+)\b")
_TABLE = re.compile(r"(?:\b(?:FROM|JOIN|UPDATE|INTO)|,)\s+(tape_\w+)(?:\s+AS\s+(\w+))?")


def texts(statements: Statements) -> Iterator[tuple[str, str]]:
    """Yield the name and every text of every statement."""
    names = {name for cls in type(statements).__mro__ for name, made in vars(cls).items() if isinstance(made, derived)}
    for name in sorted(names):
        yield from flattened(name, getattr(statements, name))


def flattened(name: str, made: Any) -> Iterator[tuple[str, str]]:
    if isinstance(made, Statement):
        yield made.name, made.sql
        if isinstance(made, Insert):
            yield made.name, made.times(2)
            if made.arrays:
                yield made.name, made.arrays
    elif isinstance(made, str):
        yield name, made
    elif made is not None:
        for part in made.values() if isinstance(made, dict) else made:
            yield from flattened(name, part)


def values_only(name: str, text: str) -> str | None:
    """Citus takes no sub-select among the values of an INSERT."""
    given = text.partition(" VALUES ")[2]
    return "a sub-select in VALUES" if text.startswith("INSERT") and re.search(r"\bSELECT\b", given) else None


def numbers_on_the_coordinator(name: str, text: str) -> str | None:
    """A worker that inserts what it selects draws numbers of its own, past the bits that a position has for them."""
    for table in re.findall(r"^INSERT INTO (\w+)", text):
        if table in NUMBERED and re.search(r"\bSELECT\b", text):
            return "INSERT … SELECT draws numbers on the worker"
    return None


def xids_on_the_coordinator(name: str, text: str) -> str | None:
    """What reads is answered by a worker, also where it is a part of an INSERT; its transactions are others."""
    plain = text.startswith("INSERT") and "SELECT" not in text
    changes = re.search(r"(?:^|\)\s+)UPDATE ", text) is not None
    asked = _XIDS.search(text) is not None and _TABLE.search(text) is not None
    return "a worker is asked for transaction ids" if asked and not plain and not changes else None


def no_server_clock(name: str, text: str) -> str | None:
    """Each server has a clock and numbers of its own."""
    return "asks the clock or draws a number where rows are" if _SERVER.search(text) and _TABLE.search(text) else None


def no_changing_parts(name: str, text: str) -> str | None:
    """Citus runs a CTE that changes something by itself, and hands its rows over through the coordinator."""
    return "a CTE that changes rows" if re.search(r"AS\s+\(\s*(?:INSERT|UPDATE|DELETE)\b", text) else None


def names_its_tape(name: str, text: str) -> str | None:
    """Rows of a tape are found by its number, unless the statement is about all tapes."""
    if name in ALL_TAPES or name.startswith("sweep_"):
        return None
    for table, alias in _TABLE.findall(text):
        rows = alias or table
        equal = rf"\b{rows}\.tape_id\b\)? (?:=|IN)|= \(?{rows}\.tape_id\b"
        written = re.search(rf"INSERT INTO {table}\b", text)
        if table in OWNED and not written and not re.search(equal, text):
            return f"{rows} is not found by its tape"
    return None


Rule = Callable[[str, str], str | None]
ON_CITUS: tuple[Rule, ...] = (
    values_only,
    numbers_on_the_coordinator,
    xids_on_the_coordinator,
    no_server_clock,
    no_changing_parts,
    names_its_tape,
)
ON_POSTGRESQL: tuple[Rule, ...] = (no_server_clock, names_its_tape)


def broken(rules: tuple[Rule, ...], found: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, wrong) for name, text in found for rule in rules if (wrong := rule(name, text)) is not None]


class TestStatements:
    def test_every_statement_for_citus_keeps_the_rules(self) -> None:
        statements = Statements("postgresql", TABLES, sharded=True)
        assert len(list(texts(statements))) > 250
        assert broken(ON_CITUS, texts(statements)) == []

    def test_every_statement_for_postgresql_keeps_those_that_hold_there(self) -> None:
        assert broken(ON_POSTGRESQL, texts(Statements("postgresql", TABLES))) == []

    def test_only_what_has_no_table_asks_the_coordinator_itself(self) -> None:
        found = texts(Statements("postgresql", TABLES, sharded=True))
        asking = {name for name, text in found if (_XIDS.search(text) or _SERVER.search(text)) and "tape_" not in text}
        assert asking <= ASKED_APART

    def test_the_gate_and_the_rows_of_the_feed_are_one_statement_on_postgresql(self) -> None:
        for name in ("feed_page", "unindexed"):
            assert "pg_snapshot_xmin" in getattr(Statements("postgresql", TABLES), name).sql

    def test_every_table_has_a_primary_key(self) -> None:
        assert [table.name for table in TABLES.metadata.sorted_tables if not table.primary_key.columns] == []

    def test_each_statement_that_is_about_all_tapes_would_break_the_rule(self) -> None:
        """The list of those that may is no longer than it has to be."""
        found = dict(texts(Statements("postgresql", TABLES, sharded=True)))
        assert [name for name in ALL_TAPES if names_its_tape("", found[name]) is None] == []


class TestRules:
    @pytest.mark.parametrize(
        ("rule", "text"),
        [
            (values_only, "INSERT INTO tape_entries (a, xid) VALUES (%s, (SELECT xid FROM tape_heads))"),
            (numbers_on_the_coordinator, "INSERT INTO tape_entries (a) SELECT a FROM tape_arrivals"),
            (numbers_on_the_coordinator, "INSERT INTO tape_tapes (a) SELECT a FROM unnest(%s)"),
            (xids_on_the_coordinator, "SELECT a FROM tape_entries WHERE xid < pg_snapshot_xmin(pg_current_snapshot())"),
            (xids_on_the_coordinator, "INSERT INTO tape_live (x) SELECT pg_current_xact_id() FROM tape_heads"),
            (xids_on_the_coordinator, "WITH a AS (SELECT 1) SELECT pg_current_xact_id() FROM tape_heads"),
            (no_server_clock, "SELECT clock_timestamp(), a FROM tape_entries"),
            (no_server_clock, "UPDATE tape_heads SET stamp = now()"),
            (no_changing_parts, "WITH moved AS \n(UPDATE tape_heads SET seq = 1 RETURNING xid) SELECT xid FROM moved"),
            (names_its_tape, "SELECT tape_live.body FROM tape_live WHERE tape_live.lane = %s"),
            (names_its_tape, "SELECT e.seq FROM tape_heads JOIN tape_entries AS e ON e.seq = tape_heads.seq"),
        ],
    )
    def test_a_statement_that_breaks_it_is_found(self, rule: Rule, text: str) -> None:
        assert broken((rule,), iter([("bad", text)]))

    @pytest.mark.parametrize(
        "name", ["insert_entry", "append_hot", "extend_hot", "take_arrivals", "feed_page", "xid_state"]
    )
    def test_the_form_for_plain_postgresql_is_not_one_for_citus(self, name: str) -> None:
        plain = Statements("postgresql", TABLES)
        assert broken(ON_CITUS, flattened(name, getattr(plain, name)))
