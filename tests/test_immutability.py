"""E6 and E8: the database itself keeps entries as they are, whoever writes to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.backends import Backend
from support.damage import Tamperer, contents
from support.verbs import prepare

import tape
from tape.core.entries.payloads import KINDS

REFUSED = (sqlite3.DatabaseError, psycopg.DatabaseError)


class Intruder(Tamperer):
    """Another program with a plain connection, and the rows of a tape that it would like to change."""

    def __init__(self, backend: Backend, name: str) -> None:
        super().__init__(backend, guarded=True)
        self.number = self.tape_id(name)
        self.row = self.entry(self.number, 2)
        self.names = [column for column in self.row if not (backend.postgres and column == "position")]

    def insert_sql(self, verb: str = "INSERT INTO", tail: str = "") -> str:
        """Return an insert of a whole row."""
        return f"{verb} tape_entries ({', '.join(self.names)}) VALUES ({', '.join('?' for _ in self.names)}) {tail}"

    def values(self, **changed: Any) -> list[Any]:
        """Return the row with some columns changed."""
        row = {**self.row, **changed}
        return [row[name] for name in self.names]


@pytest.fixture
def chat(guest: tape.Store) -> tape.Tape:
    return prepare(guest)


@pytest.fixture
def intruder(standing: Backend, chat: tape.Tape) -> Iterator[Intruder]:
    """Someone who comes by another way, and who must leave everything as it is."""
    made = Intruder(standing, chat.id)
    before = contents(standing)
    yield made
    made.close()
    assert contents(standing) == before
    assert chat.verify().ok


COLUMNS = (
    "position",
    "tape_id",
    "seq",
    "kind",
    "key",
    "actor",
    "source_tape",
    "source_seq",
    "payload",
    "meta",
    "salt",
    "stamp",
    "version",
    "hash",
    "head_tape",
    "lane",
    "ordinal",
    "xid",
    "commitment",
)


class TestEntries:
    """Rows of ``tape_entries``, reached through a plain connection of the driver."""

    @pytest.mark.parametrize("column", COLUMNS)
    def test_e6_update_of_any_column_fails(self, intruder: Intruder, column: str) -> None:
        """No column of an entry can be updated, not even to the value that it has."""
        for value in (intruder.row[column], "0", None):
            with pytest.raises(REFUSED):
                intruder.run(
                    f"UPDATE tape_entries SET {column} = ? WHERE tape_id = ? AND seq = 2", value, intruder.number
                )

    def test_e6_columns_are_all_of_them(self, intruder: Intruder) -> None:
        """The columns tried are those that the table has."""
        assert sorted(intruder.columns("tape_entries")) == sorted(COLUMNS)

    def test_e6_update_of_everything_fails(self, intruder: Intruder) -> None:
        """An update without a condition changes no row."""
        with pytest.raises(REFUSED, match="immutable"):
            intruder.run("UPDATE tape_entries SET actor = 'someone else'")

    def test_e6_delete_fails(self, intruder: Intruder) -> None:
        """An entry, a tape's entries, or all of them cannot be deleted."""
        for where in ("WHERE seq = 2", f"WHERE tape_id = {intruder.number}", ""):
            with pytest.raises(REFUSED, match="immutable"):
                intruder.run(f"DELETE FROM tape_entries {where}")

    def test_e6_a_second_row_with_the_seq_or_the_key_fails(self, intruder: Intruder) -> None:
        """A plain insert that meets a taken seq or a taken key is refused."""
        for changed in ({"key": "new"}, {"seq": 1000}):
            with pytest.raises(REFUSED):
                intruder.run(intruder.insert_sql(), *intruder.values(**changed))

    def test_e6_upsert_fails(self, intruder: Intruder) -> None:
        """INSERT … ON CONFLICT DO UPDATE is refused by (tape, seq) and by key."""
        for target, changed in (("tape_id, seq", {"key": "new"}), ("tape_id, key", {"seq": 1000})):
            tail = f"ON CONFLICT ({target}) DO UPDATE SET payload = excluded.payload"
            with pytest.raises(REFUSED):
                intruder.run(intruder.insert_sql(tail=tail), *intruder.values(payload=b"{}", **changed))

    def test_e6_do_nothing_does_nothing(self, intruder: Intruder) -> None:
        """INSERT … ON CONFLICT DO NOTHING, raised or not, leaves the entry."""
        try:
            intruder.run(intruder.insert_sql(tail="ON CONFLICT DO NOTHING"), *intruder.values(payload=b"{}"))
        except REFUSED:
            assert intruder.row["payload"] != b"{}"

    def test_e6_the_order_of_seqs_cannot_be_shifted(self, intruder: Intruder) -> None:
        """Moving all seqs at once is an update like any other."""
        with pytest.raises(REFUSED, match="immutable"):
            intruder.run("UPDATE tape_entries SET seq = seq + 1000")


CONTENT = ("payload", "meta", "salt")
ERASE = "UPDATE tape_entries SET payload = NULL, meta = NULL, salt = NULL, commitment = ?"


class TestErasure:
    """The only permitted update: the content of an entry is removed once an erase entry names it."""

    @pytest.fixture
    def erasing(self, standing: Backend, chat: tape.Tape) -> Iterator[Intruder]:
        """Someone who wrote an erase entry for seq 2; plain inserts are anyone's, verify judges them."""
        made = Intruder(standing, chat.id)
        head = chat.info().head
        values = {"seq": head + 1, "kind": "erase", "key": "e", "source_seq": 2, "source_tape": None}
        made.insert("tape_entries", {**made.row, **values})
        yield made
        made.close()

    def test_e6_an_erased_content_may_go(self, erasing: Intruder) -> None:
        """Payload, meta and salt of a named entry are replaced by the commitment, and cannot come back."""
        where = "WHERE tape_id = ? AND seq = 2"
        for kept in ("payload", "salt"):
            with pytest.raises(REFUSED):
                erasing.run(f"{ERASE.replace(f'{kept} = NULL', f'{kept} = {kept}')} {where}", b"c" * 32, erasing.number)
        with pytest.raises(REFUSED):
            erasing.run(f"{ERASE} {where}", None, erasing.number)
        erasing.run(f"{ERASE} {where}", b"c" * 32, erasing.number)
        row = erasing.entry(erasing.number, 2)
        assert [row[name] for name in (*CONTENT, "commitment")] == [None, None, None, b"c" * 32]
        for column in (*CONTENT, "commitment"):
            with pytest.raises(REFUSED):
                erasing.run(f"UPDATE tape_entries SET {column} = ? {where}", b"x", erasing.number)
        with pytest.raises(REFUSED):
            erasing.run(f"{ERASE} {where}", b"d" * 32, erasing.number)

    @pytest.mark.parametrize("column", [name for name in COLUMNS if name not in (*CONTENT, "commitment")])
    def test_e6_nothing_else_changes_with_it(self, erasing: Intruder, column: str) -> None:
        """An erasure that changes any other column on the way is refused."""
        value = erasing.row[column]
        changed = (value or 0) + 7 if isinstance(value, int) or column == "source_seq" else "x"
        if column == "hash":
            changed = b"x"
        if column == "kind":
            changed = "event"
        with pytest.raises(REFUSED):
            erasing.run(f"{ERASE}, {column} = ? WHERE tape_id = ? AND seq = 2", b"c" * 32, changed, erasing.number)
        assert erasing.entry(erasing.number, 2) == erasing.row

    @pytest.mark.parametrize("commitment", [b"", b"c" * 31, b"c" * 33])
    def test_e6_a_commitment_has_32_bytes(self, erasing: Intruder, commitment: bytes) -> None:
        """Another value would break the chain for good, because the content is gone."""
        with pytest.raises(REFUSED):
            erasing.run(f"{ERASE} WHERE tape_id = ? AND seq = 2", commitment, erasing.number)
        assert erasing.entry(erasing.number, 2) == erasing.row

    def test_e6_an_erase_entry_names_no_later_entry(self, erasing: Intruder) -> None:
        """Only an entry that was recorded before the erase entry can be erased."""
        [(last,)] = erasing.run("SELECT max(seq) FROM tape_entries WHERE tape_id = ?", erasing.number)
        early = {"seq": last + 1, "kind": "erase", "key": "early", "source_seq": last + 2, "source_tape": None}
        erasing.insert("tape_entries", {**erasing.row, **early})
        erasing.insert("tape_entries", {**erasing.row, "seq": last + 2, "key": "later"})
        with pytest.raises(REFUSED):
            erasing.run(f"{ERASE} WHERE tape_id = ? AND seq = ?", b"c" * 32, erasing.number, last + 2)

    def test_e6_other_entries_stay(self, erasing: Intruder) -> None:
        """An entry's content cannot be removed unless an erase entry of the same tape names the entry."""
        for where in (f"tape_id = {erasing.number} AND seq = 3", f"tape_id <> {erasing.number} AND seq = 2"):
            with pytest.raises(REFUSED):
                erasing.run(f"{ERASE} WHERE {where}", b"c" * 32)


class TestPurge:
    """The only permitted deletion: the rows of a purged tape."""

    def test_e6_rows_of_a_purged_tape_may_go(self, standing: Backend, chat: tape.Tape) -> None:
        """Entries can be deleted once their tape is marked as purged, and those of no other tape with them."""
        intruder = Intruder(standing, chat.id)
        intruder.run("UPDATE tape_tapes SET status = 'purged' WHERE id = ?", intruder.number)
        with pytest.raises(REFUSED):
            intruder.run("DELETE FROM tape_entries")
        with pytest.raises(REFUSED, match="immutable"):
            intruder.run("UPDATE tape_entries SET actor = 'x' WHERE tape_id = ?", intruder.number)
        intruder.run("DELETE FROM tape_entries WHERE tape_id = ?", intruder.number)
        assert intruder.run("SELECT count(*) FROM tape_entries WHERE tape_id = ?", intruder.number) == [(0,)]
        assert intruder.run("SELECT count(*) > 0 FROM tape_entries")[0][0]
        intruder.close()


@pytest.mark.parametrize("standing", ["sqlite"], indirect=True)
class TestSqlite:
    """What only SQLite has."""

    @pytest.mark.parametrize("verb", ["INSERT OR REPLACE INTO", "REPLACE INTO", "INSERT OR IGNORE INTO"])
    @pytest.mark.parametrize("by", ["seq", "key", "position"])
    def test_e6_insert_or_replace_fails(self, intruder: Intruder, verb: str, by: str) -> None:
        """A replacement is refused by (tape, seq), by key and by position, though it fires no delete trigger."""
        free = {"seq": 1000, "key": "new", "position": 10**9}
        free.pop(by)
        with pytest.raises(REFUSED, match="immutable"):
            intruder.run(intruder.insert_sql(verb), *intruder.values(payload=b"{}", **free))

    @pytest.mark.parametrize("verb", ["INSERT OR REPLACE INTO", "REPLACE INTO"])
    def test_e6_a_position_in_disguise_fails_too(self, intruder: Intruder, verb: str) -> None:
        """The position given as rowid, as text or as a fraction is still the position."""
        free = {"seq": 1000, "key": "new", "payload": b"{}"}
        position = intruder.row["position"]
        for name in ("rowid", "oid", "_rowid_"):
            sql = intruder.insert_sql(verb).replace("position", name)
            with pytest.raises(REFUSED, match="immutable"):
                intruder.run(sql, *intruder.values(**free))
        for disguised in (str(position), float(position)):
            with pytest.raises(REFUSED, match="immutable"):
                intruder.run(intruder.insert_sql(verb), *intruder.values(position=disguised, **free))

    def test_e6_update_or_replace_fails(self, intruder: Intruder) -> None:
        """An update that would push another row out of its way is refused."""
        with pytest.raises(REFUSED, match="immutable"):
            intruder.run("UPDATE OR REPLACE tape_entries SET seq = 2 WHERE seq = 3")


@pytest.mark.parametrize("standing", ["postgresql"], indirect=True)
class TestPostgresql:
    """What only PostgreSQL has."""

    def test_e6_truncate_fails(self, intruder: Intruder) -> None:
        """TRUNCATE, alone or with everything that depends on it, is refused."""
        for tail in ("", " CASCADE", " RESTART IDENTITY"):
            with pytest.raises(REFUSED, match="immutable"):
                intruder.run(f"TRUNCATE tape_entries{tail}")

    def test_e6_merge_fails(self, intruder: Intruder) -> None:
        """A MERGE that updates or deletes what it matches is refused."""
        for action in ("UPDATE SET actor = 'x'", "DELETE"):
            with pytest.raises(REFUSED):
                intruder.run(
                    f"MERGE INTO tape_entries e USING (SELECT 2 AS seq) s ON e.seq = s.seq WHEN MATCHED THEN {action}"
                )


class TestKinds:
    """The closed set of kinds."""

    def test_e8_the_database_checks_the_kind(self, standing: Backend, chat: tape.Tape) -> None:
        """A row of an unknown kind is refused by the CHECK, and one of each known kind is not."""
        intruder = Intruder(standing, chat.id)
        for kind in ("bogus", "", "APPEND", "append ", None):
            with pytest.raises(REFUSED):
                intruder.run(intruder.insert_sql(), *_free(intruder, kind, 2000))
        for number, kind in enumerate(KINDS):
            intruder.run(intruder.insert_sql(), *_free(intruder, kind, 3000 + number))
        kinds = intruder.run("SELECT kind FROM tape_entries WHERE tape_id = ? AND seq >= 2000", intruder.number)
        assert sorted(row[0] for row in kinds) == sorted(KINDS)
        intruder.close()

    def test_e8_the_code_checks_the_kind(self, chat: tape.Tape) -> None:
        """Asking for entries of an unknown kind is refused, and every entry read has a known one."""
        for kinds in (["bogus"], ["append", "Append"], "append"):
            with pytest.raises(tape.InvalidEntry) as caught:
                chat.entries(kinds=kinds)
            assert caught.value.field == "kinds"
        assert {entry.kind for entry in chat.entries()} <= set(KINDS)
        assert [entry.kind for entry in chat.entries(kinds=["append", "anchor"])] == ["append"] * 3 + ["anchor"]


def _free(intruder: Intruder, kind: str | None, seq: int) -> list[Any]:
    free = {"kind": kind, "seq": seq, "key": f"k{seq}"}
    if "position" in intruder.names:
        free["position"] = 10**6 + seq + intruder.number * 10_000
    return intruder.values(**free)
