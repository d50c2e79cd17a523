"""E7 and R3: every change made below the store is found and named, and the view can be rebuilt."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from support import history
from support.backends import Backend, MakeBackend
from support.damage import Tamperer, flip
from support.filling import filled

import tape
from tape.core.entries import chain
from tape.core.entries.payloads import Place
from tape.db.schema.tables import Tables

pytestmark = pytest.mark.alike

ENTRY_COLUMNS = (
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
)
FEED_COLUMNS = ("position", "xid", "commitment")
"""Columns that no hash covers: the place in the feed, and the commitment of an erased entry."""

TAPES = (*history.TAPES, *history.FORKS)
VIEW = {table.name: [column.name for column in table.c] for table in Tables("sqlite").view}


@pytest.fixture
def rich(backend: Backend) -> tape.Store:
    """A store with a history in which everything happens."""
    return filled(backend, history.write_all, durability="normal")


class Kept:
    """Such a store, and someone with all rights on it, for tests that undo what they do. A damaged one is replaced."""

    def __init__(self, make: Callable[[], AbstractContextManager[Backend]]) -> None:
        self._make = make
        self._open = ExitStack()
        self._pair: tuple[tape.Store, Tamperer] | None = None

    def pair(self) -> tuple[tape.Store, Tamperer]:
        """Return the store, made by the first test that asks or after a test damaged it."""
        if self._pair is None:
            made = self._open.enter_context(self._make())
            store = made.open(durability="normal")
            history.write_all(store)
            tamperer = Tamperer(made)
            self._open.callback(tamperer.close)
            self._pair = store, tamperer
        return self._pair

    def drop(self) -> None:
        """Close the store, so that the next test gets a new one."""
        self._pair = None
        self._open.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def kept(
    request: pytest.FixtureRequest,
    make_backend: MakeBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Kept]:
    """A store that the tests of a module share."""
    made = Kept(lambda: make_backend(request.param, tmp_path_factory.mktemp("kept")))
    yield made
    made.drop()


@pytest.fixture
def healed(kept: Kept) -> Iterator[tuple[tape.Store, Tamperer]]:
    """The kept store, which every test leaves as it found it."""
    store, tamperer = kept.pair()
    before = tamperer.digest()
    yield store, tamperer
    # A view that was made again may have its rows in another form: verify tells, and takes a hundred times as long.
    if tamperer.digest() != before and not store.verify().ok:
        kept.drop()
        pytest.fail("the test left the store damaged")


@pytest.fixture
def tamperer(rich: tape.Store, backend: Backend) -> Iterator[Tamperer]:
    """Someone with all rights on the database, after the history was written."""
    made = Tamperer(backend)
    yield made
    made.close()


def other(column: str, value: Any) -> Any:
    """Return what a column of an entry may hold after one bit of it was turned."""
    if column == "kind":
        return "event" if value != "event" else "label"
    if column in ("tape_id", "seq"):
        return value ^ 1024
    if value is None:
        return {"meta": b"{}", "source_seq": 1}.get(column, "x")
    return flip(value)


def more(value: Any) -> Any:
    """Return another value for a column of the view, of the same type."""
    if isinstance(value, int):
        return value + 1_000_003
    return f"{value}x" if isinstance(value, str) else flip(value)


def first(report: tape.Report) -> tuple[str, int]:
    """Return the tape and the seq that a report names first."""
    assert report.problems
    return report.problems[0].tape, report.problems[0].seq


def rehash(tamperer: Tamperer, name: str, since: int) -> None:
    """Make every hash from ``since`` on right again, as someone would who knows how."""
    number = tamperer.tape_id(name)
    before = tamperer.entry(number, since - 1)["hash"]
    [(last,)] = tamperer.run("SELECT max(seq) FROM tape_entries WHERE tape_id = ?", number)
    for seq in range(since, last + 1):
        row = tamperer.entry(number, seq)
        source = None if row["source_seq"] is None else (row["source_tape"], row["source_seq"])
        before = chain.link(
            before,
            chain.commit(row["salt"], row["payload"], row["meta"]),
            name,
            seq,
            row["kind"],
            row["key"],
            row["actor"],
            source,
            row["stamp"],
            row["version"],
            Place(row["lane"], row["ordinal"]),
        )
        tamperer.run("UPDATE tape_entries SET hash = ? WHERE tape_id = ? AND seq = ?", before, number, seq)


class TestEntries:
    """Damage to what was recorded."""

    def test_e7_every_column_is_an_entry_column_or_the_feeds(self, healed: tuple[tape.Store, Tamperer]) -> None:
        """No column of the entries can be added without deciding whether the hash covers it."""
        _, tamperer = healed
        assert sorted(tamperer.columns("tape_entries")) == sorted((*ENTRY_COLUMNS, *FEED_COLUMNS))

    @pytest.mark.parametrize("column", ENTRY_COLUMNS)
    def test_e7_a_flipped_byte_in_any_column_is_named(self, healed: tuple[tape.Store, Tamperer], column: str) -> None:
        """One changed bit in any field of an entry makes verify name that entry first, and undoing it heals."""
        rich, tamperer = healed
        head = rich.get("chat").info().head
        for name, seqs in (("chat", (1, 4, 10, 25, 34, head)), ("helper", (1, 2, 3))):
            number = tamperer.tape_id(name)
            for seq in seqs:
                row = tamperer.entry(number, seq)
                changed = other(column, row[column])
                assert tamperer.update("tape_entries", row, {column: changed}) == 1
                assert first(rich.verify(name)) == (name, seq)
                assert {(problem.tape, problem.seq) for problem in rich.verify().problems} >= {(name, seq)}
                assert tamperer.update("tape_entries", {**row, column: changed}, {column: row[column]}) == 1

    @pytest.mark.parametrize("column", ["payload", "meta", "salt", "hash"])
    def test_e7_a_flip_of_every_single_byte_is_named(self, healed: tuple[tape.Store, Tamperer], column: str) -> None:
        """It does not matter which byte of a payload, a meta or a hash was hit."""
        rich, tamperer = healed
        row = tamperer.entry(tamperer.tape_id("chat"), 4)
        missed = []
        for byte in range(len(row[column])):
            damaged = {**row, column: flip(row[column], byte)}
            tamperer.update("tape_entries", row, {column: damaged[column]})
            report = rich.verify("chat")
            if report.ok or first(report) != ("chat", 4):
                missed.append(byte)
            tamperer.update("tape_entries", damaged, {column: row[column]})
        assert missed == []
        assert rich.verify().ok

    def test_e7_a_payload_that_is_gone_is_named(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """A payload set to nothing, with no erase entry for it, is wrong and not erased."""
        row = tamperer.entry(tamperer.tape_id("chat"), 4)
        tamperer.update("tape_entries", row, {"payload": None})
        report = rich.verify("chat")
        assert first(report) == ("chat", 4)
        assert report.erased == []

    def erase(self, tamperer: Tamperer, kept: dict[str, Any]) -> bytes:
        """Erase seq 3 of the tape "plan" by an erase entry; ``kept`` has columns that differ. Return its commitment."""
        number = tamperer.tape_id("plan")
        row, last = tamperer.entry(number, 3), tamperer.entry(number, 8)
        commitment = chain.commit(row["salt"], row["payload"], row["meta"])
        payload = b'{"commitment":"' + commitment.hex().encode() + b'"}'
        place = Place(last["lane"], last["ordinal"])
        source: Any = (None, 3)
        sealed = (chain.commit(last["salt"], payload, None), "plan", 9, "erase", "e", None, source, 9, 1, place)
        hash = chain.link(last["hash"], *sealed)
        erase = {"seq": 9, "kind": "erase", "key": "e", "source_seq": 3, "payload": payload, "stamp": 9, "hash": hash}
        tamperer.insert("tape_entries", {**last, "actor": None, "meta": None, **erase})
        tamperer.run("UPDATE tape_heads SET seq = 9, hash = ? WHERE tape_id = ?", hash, number)
        erased = {"payload": None, "meta": None, "salt": None, "commitment": commitment}
        tamperer.update("tape_entries", row, {**erased, **kept})
        return commitment

    def test_e7_an_erased_entry_is_listed_as_erased(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """An entry whose content an erase entry accounts for keeps its commitment, and every hash stays valid."""
        self.erase(tamperer, {})
        report = rich.verify("plan")
        assert [(problem.seq, problem.what) for problem in report.erased] == [(3, "erased")]
        assert report.problems == []

    @pytest.mark.parametrize(
        ("kept", "what"),
        [
            ({"salt": b"s" * 16}, "its salt or meta is still stored"),
            ({"meta": b"{}"}, "its salt or meta is still stored"),
            ({"commitment": b"c" * 32}, "not the one in the erase entry"),
            ({"commitment": None}, "not the one in the erase entry"),
        ],
        ids=["salt", "meta", "another commitment", "no commitment"],
    )
    def test_e7_half_an_erasure_is_a_problem(
        self, rich: tape.Store, tamperer: Tamperer, kept: dict[str, Any], what: str
    ) -> None:
        """A salt that is left would confirm a guess; a commitment that differs breaks the chain."""
        self.erase(tamperer, kept)
        report = rich.verify("plan")
        assert report.erased == []
        assert (report.problems[0].seq, what in report.problems[0].what) == (3, True)

    @pytest.mark.parametrize("salt", [b"", b"s" * 15, b"s" * 17], ids=["none", "short", "long"])
    def test_e7_a_salt_has_16_bytes(self, salt: bytes) -> None:
        """With a salt of any size, other content could have the same commitment."""
        with pytest.raises(ValueError, match="16 bytes"):
            chain.commit(salt, b"{}", None)

    def test_e7_a_chosen_salt_makes_no_room_for_other_content(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """Bytes moved from the salt into the payload would keep the hash; the entry is named all the same."""
        number = tamperer.tape_id("plan")
        shifted = b"{      }"
        chosen = len(shifted).to_bytes(8, "big") + shifted
        row = tamperer.entry(number, 3)
        tamperer.update("tape_entries", row, {"salt": chosen, "meta": None})
        rehash(tamperer, "plan", 3)
        row = tamperer.entry(number, 3)
        assert [problem for problem in rich.verify("plan").problems if problem.seq == 3] == []
        tamperer.update("tape_entries", row, {"salt": b"", "payload": shifted, "meta": row["payload"]})
        problem = rich.verify("plan").problems[0]
        assert (problem.seq, problem.what) == (3, "a column of the entry has a value of the wrong type")
        with pytest.raises(tape.Corrupt):
            rich.export("plan", io.BytesIO())

    @pytest.mark.parametrize("place", ["first", "middle", "last"])
    def test_e7_a_removed_entry_is_named(self, rich: tape.Store, tamperer: Tamperer, place: str) -> None:
        """A row that is gone, at the beginning, in the middle or at the end, is the first wrong seq."""
        seq = {"first": 1, "middle": 12, "last": rich.get("chat").info().head}[place]
        tamperer.run("DELETE FROM tape_entries WHERE tape_id = ? AND seq = ?", tamperer.tape_id("chat"), seq)
        assert first(rich.verify("chat")) == ("chat", seq)

    def test_e7_swapped_entries_are_named(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """Two rows that changed places are found at the first of the two."""
        move = "UPDATE tape_entries SET seq = ? WHERE tape_id = ? AND seq = ?"
        number = tamperer.tape_id("chat")
        for new, old in ((1000, 5), (5, 9), (9, 1000)):
            tamperer.run(move, new, number, old)
        assert first(rich.verify("chat")) == ("chat", 5)

    @pytest.mark.parametrize("place", ["between", "behind"])
    def test_e7_an_inserted_entry_is_named(self, rich: tape.Store, tamperer: Tamperer, place: str) -> None:
        """A row put in between, or behind the last, is the first wrong seq, though its content is a true entry's."""
        at = 4 if place == "between" else rich.get("chat").info().head + 1
        number = tamperer.tape_id("chat")
        copy = tamperer.entry(number, 3)
        tamperer.run("UPDATE tape_entries SET seq = -seq - 1 WHERE tape_id = ? AND seq >= ?", number, at)
        tamperer.run("UPDATE tape_entries SET seq = -seq WHERE tape_id = ? AND seq < 0", number)
        tamperer.insert("tape_entries", {**copy, "seq": at, "key": "forged"})
        assert first(rich.verify("chat")) == ("chat", at)

    def test_e7_a_cut_tail_is_found_with_a_receipt(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """Entries cut off the end, with the view made to fit, are found by whoever kept a later receipt."""
        receipts = [rich.tape("chat").event("note", number) for number in range(3)]
        number = tamperer.tape_id("chat")
        tamperer.run("DELETE FROM tape_entries WHERE tape_id = ? AND seq >= ?", number, receipts[1].seq)
        rich.rebuild("chat")
        assert rich.verify("chat").ok
        assert rich.verify("chat", against=receipts[0]).ok
        for receipt in receipts[1:]:
            assert first(rich.verify("chat", against=receipt)) == ("chat", receipts[1].seq)
            assert first(rich.tape("chat").verify(against=receipt)) == ("chat", receipts[1].seq)

    def test_e7_a_tape_that_is_gone_is_found_with_a_receipt(self, backend: Backend) -> None:
        """A tape taken away with all its rows is found by whoever kept a receipt; one that was purged is not missed."""
        store = backend.open()
        kept = store.create("lost", owner="ann").append(role="user", content="x")
        purged = store.create("purged", owner="ann").append(role="user", content="x")
        store.create("other", owner="bob")
        store.purge("purged")
        tamperer = Tamperer(backend)
        number = tamperer.tape_id("lost")
        for table in ("live", "heads", "lanes", "entries"):
            tamperer.run(f"DELETE FROM tape_{table} WHERE tape_id = ?", number)
        tamperer.run("DELETE FROM tape_tapes WHERE id = ?", number)
        tamperer.close()
        for view in (store, store.scoped("ann")):
            assert view.verify().ok
            assert view.verify(against=purged).ok
            (problem,) = view.verify(against=kept).problems
            assert (problem.tape, problem.seq) == ("lost", 1)
            assert "the whole tape is missing" in problem.what
        # What another owner purged is not told either.
        assert not store.scoped("bob").verify(against=purged).ok

    def test_e7_a_recomputed_chain_is_found_with_a_receipt(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """A changed entry with every later hash made right is found by whoever kept a receipt from there on."""
        before, after = rich.tape("chat").event("note", 1), rich.tape("chat").event("note", 2)
        number = tamperer.tape_id("chat")
        row = tamperer.entry(number, after.seq)
        assert row["payload"].endswith(b'"data":2}')
        tamperer.update("tape_entries", row, {"payload": row["payload"].replace(b"2}", b"3}")})
        assert first(rich.verify("chat")) == ("chat", after.seq)
        rehash(tamperer, "chat", after.seq)
        rich.rebuild("chat")
        assert rich.verify("chat").ok
        assert rich.verify("chat", against=before).ok
        assert first(rich.verify("chat", against=after)) == ("chat", after.seq)

    def test_e7_entries_under_another_name_are_found(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """A tape whose row was given another id does not pass for that tape."""
        tamperer.run("UPDATE tape_tapes SET tape = 'chat2' WHERE tape = 'chat'")
        assert first(rich.verify("chat2")) == ("chat2", 1)

    def test_e7_only_the_damaged_tape_is_named(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """A report over the whole store names the damaged tape and no other, and counts all entries."""
        row = tamperer.entry(tamperer.tape_id("plan"), 2)
        tamperer.update("tape_entries", row, {"payload": flip(row["payload"], 30)})
        report = rich.verify()
        assert {problem.tape for problem in report.problems} == {"plan"}
        assert (report.tapes, report.entries) == (len(TAPES), sum(rich.get(name).info().head for name in TAPES))


class TestFile:
    """Damage of a kind that only SQLite lets in: it holds any value in any column, and bytes that are no text."""

    @pytest.fixture
    def backend(self, make_backend: MakeBackend, tmp_path: Path) -> Iterator[Backend]:
        """A SQLite database."""
        with make_backend("sqlite", tmp_path) as made:
            yield made

    @pytest.mark.parametrize(
        "change",
        [
            "payload = CAST(payload AS TEXT)",
            "meta = CAST(meta AS TEXT)",
            "hash = CAST(hex(hash) AS TEXT)",
            "hash = 7",
            "key = CAST(x'ff41' AS TEXT)",
            "key = CAST(key AS BLOB)",
            "actor = CAST(x'c3' AS TEXT)",
            "stamp = 'noon'",
            "version = 'one'",
            "lane = x'00'",
            "ordinal = 1.5",
            "seq = 4.5",
        ],
    )
    def test_e7_a_value_of_another_type_is_named(self, rich: tape.Store, tamperer: Tamperer, change: str) -> None:
        """Text where bytes belong, bytes that are no text, fractions: verify names the entry and does not fail."""
        number = tamperer.tape_id("chat")
        tamperer.run(f"UPDATE tape_entries SET {change} WHERE tape_id = ? AND seq = 4", number)
        assert first(rich.verify("chat")) == ("chat", 4)

    def test_e7_an_unknown_kind_is_named(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """A kind that does not exist, written past the CHECK, is the first wrong seq."""
        tamperer.run("PRAGMA ignore_check_constraints = ON")
        tamperer.run("UPDATE tape_entries SET kind = 'bogus' WHERE tape_id = ? AND seq = 7", tamperer.tape_id("chat"))
        assert first(rich.verify("chat")) == ("chat", 7)

    def test_e7_a_flipped_byte_of_the_file_is_named(self, backend: Backend) -> None:
        """A bit turned in the database file itself, inside a payload, is found although SQLite sees nothing wrong."""
        with backend.open() as store:
            history.write(store)
            needle = store.tape("chat").append(role="user", content="a needle in the file")
        file = Path(backend.url.database or "")
        raw = bytearray(file.read_bytes())
        assert raw.count(b"a needle in the file") == 1
        raw[raw.index(b"needle")] ^= 0x40
        file.write_bytes(raw)
        plain = backend.raw()
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        plain.close()
        assert first(backend.open().verify()) == ("chat", needle.seq)


def dump(tamperer: Tamperer, name: str) -> dict[str, list[str]]:
    """Return every row of a tape's view, and of its head without the transaction number."""
    number = tamperer.tape_id(name)
    found = {
        table: sorted(map(repr, tamperer.run(f"SELECT * FROM {table} WHERE tape_id = ?", number))) for table in VIEW
    }
    head = ", ".join(column for column in tamperer.columns("tape_heads") if column != "xid")
    found["tape_heads"] = list(map(repr, tamperer.run(f"SELECT {head} FROM tape_heads WHERE tape_id = ?", number)))
    return found


class TestView:
    """Damage to derived tables."""

    def test_r3_rebuilding_gives_the_live_view(self, healed: tuple[tape.Store, Tamperer]) -> None:
        """A rebuilt view is row for row the one that the writes left."""
        rich, tamperer = healed
        live = {name: dump(tamperer, name) for name in TAPES}
        assert [table for table in VIEW if not any(live[name][table] for name in TAPES)] == []
        assert rich.rebuild() == len(TAPES)
        assert {name: dump(tamperer, name) for name in TAPES} == live
        described = {name: history.describe(rich, name) for name in TAPES}
        for table in VIEW:
            tamperer.run(f"DELETE FROM {table}")
        assert rich.rebuild("chat") == 1
        assert rich.rebuild() == len(TAPES)
        assert {name: dump(tamperer, name) for name in TAPES} == live
        assert {name: history.describe(rich, name) for name in TAPES} == described

    @pytest.mark.parametrize("table", VIEW)
    def test_r3_a_changed_column_is_found_and_rebuilt(self, healed: tuple[tape.Store, Tamperer], table: str) -> None:
        """Any changed column of any view table is a problem that names the table, and rebuild repairs it."""
        rich, tamperer = healed
        name = tamperer.holder(table)
        live = dump(tamperer, name)
        number = tamperer.tape_id(name)
        for column in VIEW[table]:
            row = tamperer.some(table, number)
            value = row[column]
            changed = 7 if value is None else more(value)
            assert tamperer.update(table, row, {column: changed}) == 1
            found = rich.verify(name).problems
            assert found
            assert {problem.what.split()[3] for problem in found} == {table}
            rich.rebuild(name)
            assert rich.verify(name).ok
            assert dump(tamperer, name) == live
        # Under a number that no tape has, the changed row is not the tape's any more: a rebuild of all sweeps it away.
        rich.rebuild()

    @pytest.mark.parametrize("table", VIEW)
    def test_r3_a_missing_or_added_row_is_found_and_rebuilt(
        self, healed: tuple[tape.Store, Tamperer], table: str
    ) -> None:
        """A missing or an added row of a view table is found, and rebuild repairs it."""
        rich, tamperer = healed
        name = tamperer.holder(table)
        live = dump(tamperer, name)
        number = tamperer.tape_id(name)
        names = VIEW[table]
        row = tamperer.some(table, number)
        where = " AND ".join(f"{column} = ?" for column in names if row[column] is not None)
        tamperer.run(f"DELETE FROM {table} WHERE {where}", *(value for value in row.values() if value is not None))
        assert [problem.what for problem in rich.verify(name).problems] == [f"a row of {table} is missing"]
        rich.rebuild(name)
        # A fork has one row with its fork point. An added one goes to a tape that is not a fork.
        where = "quiet" if table == "tape_forks" else name
        added = {column: more(value) for column, value in row.items() if value is not None}
        tamperer.insert(table, {**added, "tape_id": tamperer.tape_id(where)})
        found = [problem.what for problem in rich.verify(where).problems]
        assert found == [f"a row of {table} does not match the entries"]
        rich.rebuild(where)
        assert rich.verify(name).ok
        assert dump(tamperer, name) == live

    def test_r3_a_changed_head_is_found_and_rebuilt(self, healed: tuple[tape.Store, Tamperer]) -> None:
        """Any changed column of a tape's head is found, and rebuild repairs it."""
        rich, tamperer = healed
        live = dump(tamperer, "chat")
        number = tamperer.tape_id("chat")
        names = [name for name in tamperer.columns("tape_heads") if name not in ("tape_id", "xid")]
        assert len(names) >= 12
        for name in names:
            [(value,)] = tamperer.run(f"SELECT {name} FROM tape_heads WHERE tape_id = ?", number)
            tamperer.run(f"UPDATE tape_heads SET {name} = ? WHERE tape_id = ?", flip(value), number)
            assert not rich.verify("chat").ok, name
            rich.rebuild("chat")
            assert rich.verify("chat").ok
            assert dump(tamperer, "chat") == live

    def test_r3_a_missing_head_is_found_and_rebuilt(self, healed: tuple[tape.Store, Tamperer]) -> None:
        """A tape that lost the row of its head is still verified with all others, and rebuild gives it a new one."""
        rich, tamperer = healed
        live = {name: dump(tamperer, name) for name in TAPES}
        head = rich.get("chat").info().head
        tamperer.run("DELETE FROM tape_heads WHERE tape_id = ?", tamperer.tape_id("chat"))
        found = [(problem.tape, problem.seq, problem.what) for problem in rich.verify().problems]
        assert ("chat", 1, f"the head is missing, but the entries end at seq {head}") in found
        assert rich.rebuild() == len(TAPES)
        assert rich.verify().problems == []
        assert {name: dump(tamperer, name) for name in TAPES} == live
        assert rich.get("chat").info().head == head

    @pytest.mark.parametrize(("column", "value"), [("status", "active"), ("reason", "other"), ("completed_at", 5)])
    def test_r3_a_changed_status_is_found_and_rebuilt(
        self, healed: tuple[tape.Store, Tamperer], column: str, value: Any
    ) -> None:
        """A status that no entry gave is found, and rebuild puts the recorded one back."""
        rich, tamperer = healed
        before = rich.get("plan").info()
        tamperer.run(f"UPDATE tape_tapes SET {column} = ? WHERE tape = 'plan'", value)
        assert first(rich.verify("plan")) == ("plan", 8)
        rich.rebuild("plan")
        assert rich.verify("plan").ok
        assert rich.get("plan").info() == before

    @pytest.mark.parametrize("column", ["owner", "agent", "meta", "created_at"])
    def test_r3_the_opening_facts_are_checked(self, healed: tuple[tape.Store, Tamperer], column: str) -> None:
        """Owner, agent, meta and creation time are those of the first entry."""
        rich, tamperer = healed
        [(value,)] = tamperer.run(f"SELECT {column} FROM tape_tapes WHERE tape = 'chat'")
        tamperer.run(f"UPDATE tape_tapes SET {column} = ? WHERE tape = 'chat'", flip(value))
        assert first(rich.verify("chat")) == ("chat", 1)
        tamperer.run(f"UPDATE tape_tapes SET {column} = ? WHERE tape = 'chat'", value)

    def test_r3_damaged_entries_are_never_rebuilt_from(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """Rebuild refuses entries that cannot be read with Corrupt and their seq, and leaves the view as it was."""
        row = tamperer.entry(tamperer.tape_id("chat"), 10)
        tamperer.update("tape_entries", row, {"payload": row["payload"][:-1]})
        before = dump(tamperer, "chat")
        with pytest.raises(tape.Corrupt) as caught:
            rich.rebuild("chat")
        assert (caught.value.tape, caught.value.seq) == ("chat", 10)
        assert dump(tamperer, "chat") == before

    def test_r3_the_store_goes_on_after_a_rebuild(self, rich: tape.Store, tamperer: Tamperer) -> None:
        """A handle that wrote before a rebuild writes on after it, densely."""
        chat = rich.get("chat")
        head = chat.append(role="user", content="before").seq
        tamperer.run("UPDATE tape_heads SET lane = 999 WHERE tape_id = ?", tamperer.tape_id("chat"))
        rich.rebuild("chat")
        assert chat.append(role="user", content="after").seq == head + 1
        assert rich.verify().ok


def test_verify_of_an_unknown_tape_is_not_found(store: tape.Store) -> None:
    """Neither verify nor rebuild makes a tape up."""
    for call in (store.verify, store.rebuild):
        with pytest.raises(tape.TapeNotFound):
            call("nobody")


class TestProgress:
    def test_verify_rebuild_and_export_tell_how_far_they_are(self, store: tape.Store) -> None:
        """Whoever waits is told the entries done and the entries there are, up to the last."""
        for name in ("a", "b"):
            store.create(name, messages=[{"role": "user", "content": str(n)} for n in range(600)])
        told: list[tuple[int, int]] = []

        def tell(done: int, total: int) -> None:
            told.append((done, total))

        for work, total in (
            (lambda: store.verify(progress=tell), 1_202),
            (lambda: store.verify("a", progress=tell), 601),
            (lambda: store.rebuild(progress=tell), 1_202),
            (lambda: store.export("a", io.BytesIO(), progress=tell), 601),
        ):
            told.clear()
            work()
            assert told[-1] == (total, total)
            assert told == sorted(told)
            assert {whole for _, whole in told} == {total}
