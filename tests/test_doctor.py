"""``tape doctor``: every finding, and that what it says mends it does so."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from support.backends import Backend
from support.damage import Tamperer, contents
from support.second_release import second_release
from support.shell import Shell, family, tape_command

import tape
from tape.command.session import Session
from tape.core.records import IndexProblem, ViewProblem
from tape.db.engine.connect import parse_url, sqlite_loses_pages
from tape.db.engine.file_lock import FileLock
from tape.db.maintain.inspect import Oldest, look, oldest_transaction, wal_size
from tape.db.maintain.repair import fold_wal
from tape.db.schema.tables import REVISION
from tape.db.transfer import importer, staging
from tape.handles import doctor as examination


def findings(done: Any) -> dict[str, dict[str, Any]]:
    """Return what was found, by check; the first of each."""
    found: dict[str, dict[str, Any]] = {}
    for one in json.loads(done.out)["findings"]:
        found.setdefault(one["check"], one)
    return found


class TestHealthy:
    def test_an_import_that_died_is_told_and_mended(self, fresh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        """The hidden rows of an import that died an hour ago are a warning, and gone after what is named for it."""
        source = fresh.backend.open()
        source.create("a", messages=[{"role": "user", "content": "x"}])
        out = io.BytesIO()
        source.export("a", out)
        source.purge("a")
        monkeypatch.setattr(importer, "_AT_ONCE", 0)
        monkeypatch.setattr(staging.Arriving, "drop", lambda self: None)
        monkeypatch.setattr(staging.Arriving, "show", lambda self, tx: 1 / 0)
        long_ago = fresh.backend.open(clock=lambda: source._clock() - 7_200_000_000)
        with pytest.raises(ZeroDivisionError):
            long_ago.import_(io.BytesIO(out.getvalue()), reuse=True)
        told = findings(fresh("doctor", "--quick", "--json"))["purges"]
        assert (told["level"], told["mend"]) == ("warning", examination.FINISH)
        assert "an interrupted import left hidden rows of 1 tape" in told["what"]
        assert fresh(*told["mend"].split()[1:]).code == 0
        assert findings(fresh("doctor", "--quick", "--json"))["purges"]["level"] == "ok"

    def test_every_check_reports(self, fresh: Shell) -> None:
        """A healthy store gets one line for each check and exit code 0, and the store is not changed."""
        family(fresh.backend.open())
        fresh("doctor")
        before = contents(fresh.backend)
        done = fresh("doctor", "--json")
        assert (done.code, done.json["ok"]) == (0, True)
        found = findings(done)
        shared = ["schema", "engine", "guards", "purges", "index", "chain", "view"]
        own = ["transactions"] if fresh.backend.postgres else ["log", "integrity"]
        assert sorted(found) == sorted(shared + own)
        levels = {name: one["level"] for name, one in found.items()}
        faulty = not fresh.backend.postgres and sqlite_loses_pages()
        assert levels == {name: "warning" if name == "engine" and faulty else "ok" for name in found}
        assert found["schema"]["what"] == f"revision {REVISION}"
        assert found["chain"]["what"] == "22 entries on 4 tapes verified"
        # Of all tables only the notes of the last verification may differ.
        assert {name for name, rows in contents(fresh.backend).items() if rows != before[name]} <= {"tape_checks"}

    def test_as_text(self, lite: Shell) -> None:
        """As text, each finding is one line, followed by a line that says how to fix it."""
        lines = lite("doctor").lines
        assert lines[0] == f"ok      schema       revision {REVISION}"
        for line in lines:
            assert line.startswith(("ok ", "warning ", " " * 21 + "fix: "))

    def test_quick(self, lite: Shell) -> None:
        """--quick reads no tape."""
        found = findings(lite("doctor", "--quick", "--json"))
        assert "chain" not in found
        assert found["integrity"]["what"] == "not checked (quick)"

    def test_a_closed_store_is_not_a_damaged_one(self, store: tape.Store) -> None:
        """It raises, as every other call does, and tells nobody to restore a backup."""
        assert {found.level for found in store.doctor(quick=True)} <= {"ok", "note", "warning"}
        store.close()
        with pytest.raises(tape.StoreFailed, match="closed"):
            store.doctor()

    def test_one_owner_is_told_nothing_of_the_others(self, store: tape.Store) -> None:
        """Neither of transactions nor of the log, the file and the index that all share."""
        found = {finding.check for finding in store.scoped("ann").doctor()}
        assert found == {"schema", "engine", "guards", "purges", "chain", "view"}

    def test_the_address_is_shown_without_the_password(self, tmp_path: Path) -> None:
        """A URL is told, its password is not."""
        session = Session("postgresql://ann:secret@host/db", None, None)
        assert "secret" not in session.shown
        assert session.shown.startswith("postgresql")


class TestDamage:
    def test_view_drift_is_mended_by_what_it_says(self, fresh: Shell) -> None:
        """A view that is not what the entries give is an error, and rebuild mends it."""
        family(fresh.backend.open())
        raw = fresh.backend.raw()
        raw.execute("DELETE FROM tape_anchors")
        raw.close()
        done = fresh("doctor", "--json")
        view = findings(done)["view"]
        assert (done.code, view["level"], view["mend"]) == (4, "error", "tape rebuild chat")
        assert findings(done)["chain"]["level"] == "ok"
        assert fresh(*view["mend"].split()[1:]).code == 0
        assert fresh("doctor").code == 0

    def test_a_changed_entry(self, fresh: Shell) -> None:
        """An entry that was tampered with is an error of the chain; the missing guards are told as well."""
        family(fresh.backend.open())
        tamperer = Tamperer(fresh.backend, guarded=True)
        tamperer.unguard()
        tamperer.run("UPDATE tape_entries SET actor = 'x' WHERE seq = 2")
        tamperer.close()
        done = fresh("doctor", "--json")
        found = findings(done)
        assert (done.code, found["chain"]["level"], found["guards"]["level"]) == (4, "error", "error")
        assert "the hash does not match the entry" in found["chain"]["what"]
        assert found["guards"]["mend"] == "tape migrate, then: tape verify"
        assert fresh("migrate").code == 0
        assert findings(fresh("doctor", "--json"))["guards"]["level"] == "ok"

    def test_a_file_with_a_torn_page(self, tmp_path: Path) -> None:
        """A page overwritten in the file is found, told in a line, and nothing is raised."""
        file = tmp_path / "a.db"
        with tape.open(file) as store:
            store.create("c", messages=[{"role": "user", "content": "x" * 3_000}] * 200)
        size = file.stat().st_size
        with file.open("r+b") as raw:
            raw.seek(size // 2 // 4096 * 4096)
            raw.write(b"\xff" * 4096 * 4)
        done = tape_command("-s", str(file), "doctor", "--json")
        assert done.code == 4
        assert findings(done)["integrity"]["level"] == "error"
        assert "Traceback" not in done.err

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        """It is told as such, as JSON, too."""
        (tmp_path / "x").write_bytes(b"no database at all" * 300)
        done = tape_command("-s", str(tmp_path / "x"), "doctor", "--json")
        assert (done.code, findings(done)["schema"]["mend"]) == (4, "restore the file from a backup")

    def test_every_problem_of_the_view_is_listed(self) -> None:
        """These problems lie in the view, and a rebuild repairs them; all other problems lie in the entries."""
        source = (Path(tape.__file__).parent / "db" / "maintain" / "verify_tape.py").read_text(encoding="utf-8")
        texts = [line.split('"')[1] for line in source.splitlines() if "self._drifted(" in line and '"' in line]
        assert texts == [
            "the head is missing, but the entries end at seq {last}",
            "the head does not match the entries",
            "the status does not match the entries",
            "a row of {table} {which}",
            "name, labels or redirect do not match the entries",
            "the hidden flag does not match the entries",
        ]

    def test_a_problem_is_what_it_says(self) -> None:
        """Which part a problem lies in is told by its class, and changes neither equality nor JSON."""
        plain, view, other = tape.Problem("t", 1, "x"), ViewProblem("t", 1, "x"), IndexProblem("t", 1, "y")
        assert plain == view
        assert (plain != view) is False
        assert view != other
        assert len({plain, view, other}) == 2
        assert msgspec.json.encode(plain) == msgspec.json.encode(view)


class TestSchema:
    def test_an_older_store(self, tmp_path: Path) -> None:
        """An older schema is an error with the command that upgrades it, which then does."""
        file = str(tmp_path / "old.db")
        tape.open(file).close()
        with second_release():
            done = tape_command("-s", file, "doctor", "--json")
            assert (done.code, "tape migrate" in findings(done)["schema"]["mend"]) == (5, True)
            assert tape_command("-s", file, "migrate").code == 0
            assert tape_command("-s", file, "doctor").code == 0

    def test_a_newer_store(self, fresh: Shell) -> None:
        """A newer schema is an error that an upgrade of the package mends."""
        raw = fresh.backend.raw()
        raw.execute("UPDATE tape_version SET version_num = '9999'")
        raw.close()
        done = fresh("doctor", "--json")
        assert (done.code, findings(done)["schema"]["mend"]) == (5, "pip install --upgrade tape-store")


class TestThresholds:
    @pytest.mark.parametrize(
        ("version", "level"),
        [("3.40.1", "warning"), ("3.44.6", "ok"), ("3.50.6", "warning"), ("3.50.7", "ok"), ("3.51.3", "ok")],
    )
    def test_the_fault_of_sqlite(self, version: str, level: str) -> None:
        """A version that can lose pages is a warning; PostgreSQL never is."""
        assert examination.engine_finding("SQLite", version).level == level
        assert examination.engine_finding("PostgreSQL", "3.40").level == "ok"

    def test_a_long_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A long write-ahead log is a warning, and --checkpoint folds it in, unless a reader keeps it."""
        monkeypatch.setattr(examination, "LONG_WAL", 1_000)
        file = str(tmp_path / "a.db")
        with tape.open(file) as store:
            store.create("c", messages=[{"role": "user", "content": "x" * 500}] * 20)
            assert (wal_size(store._db) or 0) > 1_000
            found = findings(tape_command("-s", file, "doctor", "--json"))["log"]
            assert (found["level"], found["mend"]) == ("warning", "end long reads, then: tape doctor --checkpoint")
            reader = sqlite3.connect(file, isolation_level=None)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM tape_entries").fetchone()
            store.get("c").append(role="user", content="y")
            monkeypatch.setattr("tape.command.verbs.doctor._PATIENCE", 0.1)
            held = tape_command("-s", file, "doctor", "--checkpoint", "--json")
            assert held.err == "a long read is using the write-ahead log; end it, then run this again\n"
            reader.close()
            done = findings(tape_command("-s", file, "doctor", "--checkpoint", "--json"))["log"]
            assert (done["level"], done["what"]) == ("ok", "write-ahead log of 0 B")

    def test_a_log_beside_a_writer_is_not_folded(self, tmp_path: Path) -> None:
        """While another process has the turn to write the log is left alone, and the caller is told."""
        with tape.open(tmp_path / "a.db", timeout=0.2) as store:
            store.create("c")
            turn = FileLock(f"{tmp_path / 'a.db'}-writer")
            assert turn.take(1.0)
            before = wal_size(store._db)
            with pytest.raises(tape.StoreBusy):
                fold_wal(store._db, 0.1)
            assert before
            assert wal_size(store._db) == before
            turn.give()
            turn.close()
            assert fold_wal(store._db, 0.1)
            assert wal_size(store._db) == 0

    def test_an_index_that_is_behind(self, fresh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        """An index far behind is a note, also of a search, which catches up if it may write."""
        family(fresh.backend.open())
        monkeypatch.setattr(examination, "LONG_LAG", 5)
        found = findings(fresh("doctor", "--quick", "--json"))["index"]
        assert (found["level"], found["mend"]) == ("note", "tape search --index anything")
        assert "the search index is about" in fresh("search", "train").err
        assert findings(fresh("doctor", "--quick", "--json"))["index"]["level"] == "note"
        assert "behind" not in fresh(*found["mend"].split()[1:]).err
        assert findings(fresh("doctor", "--quick", "--json"))["index"]["level"] == "ok"

    def test_s7_the_search_command_finds_what_is_not_indexed(self, fresh: Shell) -> None:
        """Without a write it finds the newest message; with --index it leaves nothing to be scanned."""
        with fresh.backend.open() as store:
            family(store).append(role="user", content="a pelican at last")
            lag = store.health().index_lag
        for options, behind in (([], lag), (["--index"], 0)):
            assert ["pelican" in line for line in fresh("search", "pelican", *options).lines] == [True]
            with fresh.backend.open() as store:
                assert store.health().index_lag == behind
        assert lag

    def test_an_interrupted_purge(self, fresh: Shell) -> None:
        """A purged tape with rows left is a warning, and what mends it spares a tape that has the id by now."""
        store = fresh.backend.open()

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        store._services.purging.empty = interrupted  # type: ignore[method-assign,assignment]
        for name in ("a", "b"):
            store.create(name, messages=[{"role": "user", "content": "x"}])
            with pytest.raises(KeyboardInterrupt):
                store.purge(name)
        store.create("b", reuse=True)
        told = [one for one in fresh("doctor", "--quick", "--json").json["findings"] if one["check"] == "purges"]
        assert [(one["level"], one["mend"]) for one in told] == [
            ("warning", "tape purge a"),
            ("warning", examination.FINISH),
        ]
        for one in told:
            assert fresh(*one["mend"].split()[1:]).code == 0
        assert findings(fresh("doctor", "--quick", "--json"))["purges"]["level"] == "ok"
        assert [info.id for info in store.list().items] == ["b"]
        assert fresh("purge", "a").code != 0

    def test_an_open_transaction(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """On PostgreSQL the transaction that has been open for longest is named, with how to end it."""
        store = backend.open()
        if not backend.postgres:
            assert oldest_transaction(store._db) is None
            return
        monkeypatch.setattr(examination, "LONG_TRANSACTION", 0.0)
        raw = backend.raw()
        raw.execute("BEGIN")
        raw.execute("SELECT txid_current()")
        (pid,) = raw.execute("SELECT pg_backend_pid()").fetchone()
        found = findings(Shell(backend)("doctor", "--quick", "--json"))["transactions"]
        raw.execute("ROLLBACK")
        raw.close()
        assert found["level"] == "warning"
        assert f"pg_terminate_backend({pid})" in found["mend"]

    def test_what_stalls_the_feed_is_named(self, backend: Backend, postgres_url: sa.URL) -> None:
        """On PostgreSQL it is the lowest id that counts, whichever database has it; who only reads is not blamed."""
        store = backend.open()
        if not backend.postgres:
            return
        reader, low, high, admin = (backend.raw() for _ in range(4))
        name = f"other_{backend.schema}"
        admin.execute(f"CREATE DATABASE {name}")
        other = psycopg.connect(postgres_url.set(drivername="postgresql", database=name).render_as_string(False))
        try:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT count(*) FROM tape_entries")
            high.execute("BEGIN")
            idle = [reader.info.backend_pid, high.info.backend_pid]
            assert getattr(oldest_transaction(store._db), "pid", 0) not in idle
            (pid,) = other.execute("SELECT pg_backend_pid() FROM pg_current_xact_id()").fetchone() or (0,)
            low.execute("BEGIN")
            low.execute("SELECT pg_current_xact_id()")
            high.execute("SELECT pg_current_xact_id()")
            for end, expected in ((other.rollback, pid), (low.rollback, low.info.backend_pid)):
                # The server's own housekeeping may have been there first, for a moment.
                deadline = time.monotonic() + 30
                while getattr(oldest_transaction(store._db), "pid", 0) != expected:
                    assert time.monotonic() < deadline
                end()
        finally:
            for connection in (reader, low, high, other):
                connection.close()
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
            admin.close()

    def test_a_prepared_transaction_is_named(self) -> None:
        """One that was prepared has no process to end, so it is rolled back by its name."""
        found = examination.transaction_finding(Oldest(0, 90.0, "prepared", "db", "it's"))
        assert found.mend == """psql -d db -c "ROLLBACK PREPARED 'it''s'\""""
        assert found.what == "transaction \"it's\" has been prepared in database 'db' for 90 s and blocks the feed"

    def test_a_short_transaction_is_fine(self) -> None:
        """A transaction of a few seconds is work, not a fault."""
        assert examination.transaction_finding(Oldest(1, 5.0, "active", "app")).level == "ok"
        assert examination.transaction_finding(None).level == "ok"


class TestLooking:
    def test_looking_leaves_nothing_behind(self, tmp_path: Path) -> None:
        """A look at a store in use, at a foreign file and at nothing makes no file and changes none."""
        with tape.open(tmp_path / "a.db") as store:
            store.create("c")
            assert look(parse_url(tmp_path / "a.db")).current
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert look(parse_url(tmp_path / "a.db")).revision == REVISION
        assert not look(parse_url(tmp_path / "none.db")).there
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_looking_sees_what_is_only_in_the_log(self, tmp_path: Path) -> None:
        """A store whose tables are still in the write-ahead log is a store."""
        store = tape.open(tmp_path / "a.db")
        store.create("c")
        for name in ("a.db", "a.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / name.replace("a.db", "copy.db"))
        store.close()
        assert look(parse_url(tmp_path / "copy.db")).current
        assert tape_command("-s", str(tmp_path / "copy.db"), "verify").code == 0
