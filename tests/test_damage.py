"""Damage that no tape's own check can see, and damage that must not make a read spin."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from support import history
from support.backends import Backend
from support.damage import Tamperer
from support.exports import exported
from support.filling import filled

import tape
from tape.db.schema.tables import Tables

pytestmark = pytest.mark.alike


class TestDamagedLanes:
    """A database in which a lane branches off from itself, as no import can make one any more."""

    @pytest.mark.parametrize("base", [(2, 1), (2, 3), (2, 10)])
    def test_no_read_follows_a_circle(self, backend: Backend, base: tuple[int, int]) -> None:
        """Every read of a tape with a circle ends, with an answer or with Corrupt, and verify names the lane."""
        store = backend.open()
        chat = store.create("chat", messages=[{"id": f"m{n}", "role": "user", "content": "x"} for n in range(5)])
        chat.append({"id": "b", "role": "user", "content": "y"}, parent="m2")
        fork = chat.fork("fork")
        fork.append(role="user", content="z")
        tamperer = Tamperer(backend)
        tamperer.run("UPDATE tape_lanes SET base_lane = ?, base_ordinal = ? WHERE lane = 2", *base)
        tamperer.close()
        reads: list[Callable[[], Any]] = []
        for one in (chat, fork):
            reads += [one.messages, one.context, one.heads, one.summaries, one.anchors]
            reads += [partial(one.children, "m0"), partial(one.search, "x"), partial(one.messages, limit=2)]
            reads += [partial(one.messages, after="m0", limit=2), one.at(one.info().head - 1).messages]
        for read in reads:
            within(5, read)
        assert {problem.what[:20] for problem in store.verify("chat").problems} == {"a row of tape_lanes "}
        store.rebuild()
        assert store.verify().ok

    def test_no_read_follows_a_circle_of_forks(self, backend: Backend) -> None:
        """Lineage, export, retention and purge end also where damage made a tape its own fork."""
        store = backend.open()
        chat = store.create("chat")
        fork = chat.fork("fork")
        tamperer = Tamperer(backend)
        tamperer.run("UPDATE tape_forks SET parent_id = tape_id")
        tamperer.close()
        for read in (
            fork.lineage,
            chat.lineage,
            lambda: exported(store, "fork", family=True),
            lambda: store.retain(older_than=datetime(2100, 1, 1, tzinfo=UTC)),
        ):
            within(5, read)
        assert not store.verify().ok


def within(seconds: float, work: Callable[[], Any]) -> None:
    """Run something that must end soon, with an answer or with an error of the library."""
    done: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            done.append(None)
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"{work} did not end within {seconds} seconds"
    assert done[0] is None or isinstance(done[0], tape.TapeError), done[0]


# -- 23: verify names all that is wrong, also beside the tapes

OWNED = sorted(table.name for table in Tables("sqlite").metadata.sorted_tables if "tape_id" in table.c)


def _history_and_purged(store: tape.Store) -> None:
    history.write_all(store)
    store.create("away", owner="ann", messages=[{"role": "user", "content": "gone"}])
    store.purge("away")
    store.search("trip")
    assert store.verify().problems == []


class TestUnnoticed:
    """Damage that no tape's own check can see."""

    @pytest.fixture
    def hurt(self, backend: Backend) -> Iterator[tuple[tape.Store, Tamperer]]:
        """A store with a rich history, a purged tape and a full index, and someone with all rights on it."""
        store = filled(backend, _history_and_purged, durability="normal")
        tamperer = Tamperer(backend)
        yield store, tamperer
        tamperer.close()

    @pytest.mark.parametrize(
        ("name", "table"), [("plan", "tape_lanes"), ("chat", "tape_lanes"), ("under", "tape_forks")]
    )
    def test_rows_of_a_missing_tape_are_reported(
        self, hurt: tuple[tape.Store, Tamperer], name: str, table: str
    ) -> None:
        """Rows whose tape does not exist are reported under the number of the tape: entries, heads and derived rows."""
        store, tamperer = hurt
        number = tamperer.tape_id(name)
        tamperer.run("DELETE FROM tape_tapes WHERE tape = ?", name)
        whats = [problem.what for problem in store.verify().problems if problem.tape == f"~{number}"]
        found = {what.split()[0] for what in whats if " has rows of a tape that does not exist (" in what}
        assert {"tape_entries", "tape_heads", table} <= found

    @pytest.mark.parametrize("table", OWNED)
    def test_a_row_of_no_tape_is_named_in_any_table(self, hurt: tuple[tape.Store, Tamperer], table: str) -> None:
        """A row under a number that no tape has is found, whatever table it is in."""
        store, tamperer = hurt
        if table == "tape_arrivals":
            row = tamperer.entry(tamperer.tape_id("chat"), 2)
            row = {name: row[name] for name in tamperer.columns(table)}
        elif table == "tape_imports":
            row = {"tape_id": 0, "seq": 1}
        else:
            row = dict(zip(tamperer.columns(table), tamperer.run(f"SELECT * FROM {table} LIMIT 1")[0], strict=True))
        row["tape_id"] = 4_711
        if table == "tape_texts":
            row["position"] = 4_711
        tamperer.insert(table, row)
        (problem,) = store.verify().problems
        assert (problem.tape, table in problem.what) == ("~4711", True)
        if table in {one.name for one in Tables("sqlite").view} | {"tape_texts"}:
            store.rebuild()
            assert store.verify().problems == []

    @pytest.mark.parametrize("table", ["tape_live", "tape_slots", "tape_entries", "tape_labels", "tape_texts"])
    def test_a_row_of_a_purged_tape_is_named(self, hurt: tuple[tape.Store, Tamperer], table: str) -> None:
        """Of a purged tape only the tombstone is left; anything else is found."""
        store, tamperer = hurt
        row = dict(zip(tamperer.columns(table), tamperer.run(f"SELECT * FROM {table} LIMIT 1")[0], strict=True))
        row["tape_id"] = number = tamperer.tape_id("away")
        if table == "tape_texts":
            row["position"] = 4_711
        tamperer.insert(table, row)
        (problem,) = store.verify().problems
        assert (problem.tape, table in problem.what, "purged" in problem.what) == (f"~{number}", True, True)

    @pytest.mark.parametrize("column", ["tape", "owner", "seq", "hash", "stamp", "emptied"])
    def test_a_changed_tombstone_is_named(self, hurt: tuple[tape.Store, Tamperer], column: str) -> None:
        """Whatever a tombstone says is said elsewhere as well, and must be the same."""
        store, tamperer = hurt
        value = {"tape": "other", "owner": "bob", "seq": 7, "hash": b"x" * 32, "stamp": 7, "emptied": 3}[column]
        tamperer.run(f"UPDATE tape_tombstones SET {column} = ?", value)
        assert store.verify().problems[0].tape == ("other" if column == "tape" else "away")

    @pytest.mark.parametrize(
        "change",
        [
            "DELETE FROM tape_tombstones",
            "DELETE FROM tape_heads WHERE tape_id = (SELECT id FROM tape_tapes WHERE tape = 'away')",
            "DELETE FROM tape_entries WHERE tape_id = (SELECT id FROM tape_tapes WHERE tape = 'away')",
            "UPDATE tape_tapes SET status = 'active' WHERE tape = 'away'",
            "UPDATE tape_tapes SET status = 'purged' WHERE tape = 'plan'",
        ],
        ids=["tombstone", "head", "entry", "raised", "buried"],
    )
    def test_a_purge_that_is_not_whole_is_named(self, hurt: tuple[tape.Store, Tamperer], change: str) -> None:
        """A purged tape without its tombstone, head or last entry is found, as is one that looks purged or not."""
        store, tamperer = hurt
        tamperer.run(change)
        assert ("plan" if "plan" in change else "away") in {problem.tape for problem in store.verify().problems}

    def test_an_owner_is_told_of_own_tombstones_only(self, hurt: tuple[tape.Store, Tamperer]) -> None:
        """A store of one owner finds what is wrong with that owner's purged tapes, and nothing of others."""
        store, tamperer = hurt
        tamperer.run("UPDATE tape_tombstones SET seq = 7")
        assert [problem.tape for problem in store.scoped("ann").verify().problems] == ["away"]
        assert store.scoped("bob").verify().problems == []

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ("DELETE FROM tape_texts WHERE tape_id = {} AND seq = 2", "the search index lacks the text of the entry"),
            (
                "UPDATE tape_texts SET ordinal = 77 WHERE tape_id = {} AND seq = 2",
                "the text in the search index differs from the entry",
            ),
            (
                "UPDATE tape_texts SET lane = 77 WHERE tape_id = {} AND seq = 2",
                "the text in the search index differs from the entry",
            ),
            (
                "UPDATE tape_texts SET origin = 77 WHERE tape_id = {} AND seq = 2",
                "the text in the search index differs from the entry",
            ),
            (
                "UPDATE tape_texts SET seq = 1 WHERE tape_id = {} AND seq = 2",
                "the search index has a text that is not on the tape",
            ),
        ],
        ids=["missing", "depth", "lane", "origin", "added"],
    )
    def test_a_wrong_row_of_the_search_index_is_reported(
        self, hurt: tuple[tape.Store, Tamperer], change: str, says: str
    ) -> None:
        """A missing, misplaced or additional text is reported, also for a single tape, and rebuild() repairs it."""
        store, tamperer = hurt
        tamperer.run(change.format(tamperer.tape_id("plan")))
        for report in (store.verify(), store.verify("plan")):
            assert says in [problem.what for problem in report.problems]
            assert {problem.tape for problem in report.problems} <= {"plan", ""}
        store.rebuild()
        store.search("trip")
        assert store.verify().problems == []

    @pytest.mark.parametrize("change", ["missing", "added", "changed"])
    def test_wrong_words_of_the_search_index_are_reported(
        self, hurt: tuple[tape.Store, Tamperer], backend: Backend, change: str
    ) -> None:
        """Missing, additional and changed words are reported, and rebuild() repairs them."""
        store, tamperer = hurt
        number = tamperer.tape_id("plan")
        [(position,)] = tamperer.run("SELECT position FROM tape_texts WHERE tape_id = ? AND seq = 2", number)
        if backend.postgres:
            words = {"missing": "''", "added": "words || 'bogus'::tsvector", "changed": "'bogus'"}[change]
            tamperer.run(f"UPDATE tape_texts SET words = {words} WHERE position = ?", position)
        else:
            if change != "added":
                found = tamperer.run("SELECT count(*) FROM tape_words WHERE tape_words MATCH 'another'")
                assert found == [(1,)]
                delete = "INSERT INTO tape_words(tape_words, rowid, words) VALUES ('delete', ?, 'another')"
                tamperer.run(delete, position)
            if change != "missing":
                tamperer.run("INSERT INTO tape_words(rowid, words) VALUES (?, 'bogus')", position)
        found = [(problem.tape, problem.seq, problem.what) for problem in store.verify().problems]
        assert found == [("plan", 2, "the text in the search index differs from the entry")]
        store.rebuild()
        assert store.verify().problems == []

    def test_an_index_that_is_behind_or_not_there_is_no_problem(self, backend: Backend) -> None:
        """What was not searched yet is not indexed yet, and that is no damage."""
        store = backend.open()
        chat = store.create("chat", messages=[{"role": "user", "content": "one"}])
        assert store.verify().problems == []
        store.search("one")
        chat.append(role="user", content="two")
        assert store.verify().problems == []

    def test_an_import_under_way_is_no_problem(self, backend: Backend, elsewhere_of: Callable[[], tape.Store]) -> None:
        """The hidden tapes of an import that is being written, or that died, are not taken for damage."""
        store, target = backend.open(), elsewhere_of()
        store.create("long", messages=[{"role": "user", "content": f"{n}"} for n in range(2_500)])
        raw = exported(store, "long")
        found: list[tape.Report] = []

        def look(done: int, total: int) -> None:
            if done > 0.9 * total:
                found.append(target.verify())

        target.import_(io.BytesIO(raw), progress=look)
        assert (len(found) > 0, [report.problems for report in found if not report.ok]) == (True, [])
        assert target.verify().problems == []
