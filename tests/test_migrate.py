"""R4: schema versions at open, and payload versions at read."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support import history, programs
from support.backends import Backend
from support.damage import contents
from support.processes import Crew
from support.second_release import SECOND, second_release, upgrade_elsewhere

import tape
from tape.core.entries import payloads as stored
from tape.db.schema.migrate import upgrade
from tape.db.schema.tables import KNOWN, REVISION, Tables
from tape.db.sql import Statement, Statements
from tape.db.sql.compiler import derived

pytestmark = pytest.mark.blank


def version(backend: Backend) -> str | None:
    """Return the revision that the database is at, or None when it has no table of ours."""
    connection = backend.raw()
    try:
        if not tables(connection, backend):
            return None
        [(found,)] = connection.execute("SELECT version_num FROM tape_version").fetchall()
        return str(found)
    finally:
        connection.close()


def tables(connection: Any, backend: Backend) -> list[str]:
    """Return the names of all tables in the database, or in the backend's schema."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    if backend.postgres:
        query = f"SELECT tablename FROM pg_tables WHERE schemaname = '{backend.schema}'"
    return sorted(row[0] for row in connection.execute(query).fetchall())


def catalog(backend: Backend) -> list[str]:
    """Return every table, column, key, index, check, trigger and function, as the database itself tells them."""
    connection = backend.raw()
    try:
        return sorted(_postgresql_catalog(connection, backend) if backend.postgres else _sqlite_catalog(connection))
    finally:
        connection.close()


def _sqlite_catalog(connection: Any) -> Iterator[str]:
    for kind, name, table, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall():
        text = re.sub(r"\s*([(),])\s*", r"\1", re.sub(r'\s+|"', lambda m: "" if m[0] == '"' else " ", sql or ""))
        yield f"{kind} {name} on {table}: {text.strip()}"
        for pragma in ("table_xinfo", "index_list", "foreign_key_list") if kind == "table" else ("index_xinfo",):
            for row in connection.execute(f"PRAGMA {pragma}({name})").fetchall():
                # The list of indexes is numbered in the order in which they were made, which means nothing.
                yield f"{name} {pragma} {row[1:] if pragma == 'index_list' else row}"


_POSTGRESQL_CATALOG = (
    """SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text, a.attidentity,
              coalesce(l.collname, ''), coalesce(pg_get_expr(d.adbin, d.adrelid), '')
       FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_collation l ON l.oid = a.attcollation
       LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
       WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped""",
    """SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
       FROM pg_constraint WHERE connamespace = to_regnamespace(%s)""",
    """SELECT 'index', pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class c ON c.oid = indexrelid
       WHERE c.relnamespace = to_regnamespace(%s)""",
    """SELECT 'trigger', pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
       WHERE c.relnamespace = to_regnamespace(%s) AND NOT tgisinternal""",
    """SELECT 'function', pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = to_regnamespace(%s)""",
    """SELECT 'sequence', relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'S'""",
)


def _postgresql_catalog(connection: Any, backend: Backend) -> Iterator[str]:
    for query in _POSTGRESQL_CATALOG:
        for row in connection.execute(query, [backend.schema]).fetchall():
            yield " ".join(row).replace(f'"{backend.schema}"', "@").replace(backend.schema or "", "@")


class TestUpgrade:
    """A later release, with one more revision, opens a store that this release filled."""

    def test_r4_nothing_is_lost(self, backend: Backend) -> None:
        """Everything that could be read, at every seq, reads the same, and every stored byte stays."""
        names = [*history.TAPES, *history.FORKS]
        with history.counting_ids(), backend.open(clock=history.counting_clock()) as store:
            history.write_all(store)
            heads = [(info.id, info.head, info.head_hash or "") for info in store.list(limit=100).items]
            receipts = [tape.Receipt(name, seq, "", None, hash) for name, seq, hash in heads]
            before = {name: history.describe(store, name) for name in names}
        entries = rows(backend, "SELECT * FROM tape_entries ORDER BY tape_id, seq")
        with second_release():
            store = backend.open()
            assert version(backend) == SECOND
            assert {name: history.describe(store, name) for name in names} == before
            assert rows(backend, "SELECT * FROM tape_entries ORDER BY tape_id, seq") == entries
            assert [problem for kept in receipts for problem in store.verify(kept.tape, against=kept).problems] == []
            assert rows(backend, "SELECT count(*) FROM tape_counted") == [
                (len(rows(backend, "SELECT 1 FROM tape_heads")),)
            ]

    def test_r4_goes_on_densely(self, backend: Backend) -> None:
        """The upgraded store takes new entries behind the old ones, and knows the old keys."""
        with backend.open() as store:
            first = store.tape("chat").append(role="user", content="before", key="client-7")
        with second_release():
            store = backend.open()
            chat = store.get("chat")
            assert chat.append(role="user", content="after").seq == first.seq + 1
            again = chat.append(role="user", content="before", key="client-7")
            assert (again.duplicate, again.seq) == (True, first.seq)
            assert store.rebuild() == 1
            assert store.verify().ok


def rows(backend: Backend, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, with plain bytes."""
    connection = backend.raw()
    try:
        found = connection.execute(query).fetchall()
        return [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row) for row in found]
    finally:
        connection.close()


class TestRevisions:
    """What opening does to the schema."""

    def test_r4_creating_equals_running_every_revision(self, backend: Backend, other: Backend) -> None:
        """The tables made at once for a new store are those that the Alembic revisions make one after the other."""
        backend.open()
        engine = sa.create_engine(other.url)
        with engine.connect() as connection:
            if other.schema is not None:
                connection.execute(sa.schema.CreateSchema(other.schema))
            upgrade(connection, other.schema, REVISION)
            connection.commit()
        engine.dispose()
        made = catalog(backend)
        assert len(made) > 50
        assert made == catalog(other)

    def test_r4_revisions_are_one_line_that_ends_at_the_present(self) -> None:
        """Every known revision has a script, in one line, and the newest is the one the tables are at."""
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        from tape.db.schema.migrate import scripts

        config = Config()
        config.set_main_option("script_location", str(scripts()))
        line = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        assert line == list(reversed(KNOWN))
        assert line[0] == REVISION

    def test_r4_opening_again_changes_nothing(self, backend: Backend) -> None:
        """A second open finds the schema as it is and leaves it."""
        backend.open().close()
        before = catalog(backend)
        backend.open().close()
        assert catalog(backend) == before

    @pytest.mark.parametrize("start", ["empty", "older"])
    def test_r4_eight_processes_upgrade_once(self, backend: Backend, start: str, crew: Crew) -> None:
        """Of eight processes that open one database at once exactly one creates or upgrades it, and all can write."""
        later = start == "older"
        if later:
            backend.open().close()
        orders = [{"name": "race", "label": f"from {number}", "opened": False, "later": later} for number in range(8)]
        answers = [answer for [answer] in crew.race(backend, programs.open_and_append, orders)]
        assert sorted(seq for seq, _ in answers) == list(range(2, 10))
        assert sum(migrated for _, migrated in answers) == 1
        assert version(backend) == (SECOND if later else REVISION)
        with second_release() if later else nullcontext():
            assert backend.open().verify().ok

    def test_r4_new_files_opened_by_many_at_once(self, quick: Backend, tmp_path: Path, crew: Crew) -> None:
        """However often eight processes open a new SQLite file at one instant, none is told that it is busy.

        SQLite does not wait when two connections switch a file to the write-ahead log: one in sixty opens failed.
        """
        order = {"folder": str(tmp_path), "count": 25, "opened": False}
        assert crew.race(quick, programs.open_new_files, [order] * 8, rounds=25) == [[]] * 8

    def test_r4_newer_schema_is_refused_and_not_touched(self, backend: Backend) -> None:
        """A database of a newer release is SchemaTooNew with both versions, and stays as it is."""
        backend.open().tape("chat").append(role="user", content="x")
        backend.close()
        connection = backend.raw()
        connection.execute("UPDATE tape_version SET version_num = '9999'")
        if not backend.postgres:
            # As a copy made with VACUUM INTO has it, which has no write-ahead log.
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        before = catalog(backend), contents(backend)
        file = None if backend.postgres else Path(backend.url.database or "").read_bytes()
        with pytest.raises(tape.SchemaTooNew) as caught:
            backend.open()
        assert (caught.value.found, caught.value.known) == ("9999", REVISION)
        assert (catalog(backend), contents(backend)) == before
        assert file is None or Path(backend.url.database or "").read_bytes() == file

    @pytest.mark.parametrize("start", ["empty", "older"])
    def test_r4_killed_in_the_middle_leaves_it_whole_or_absent(self, backend: Backend, start: str, crew: Crew) -> None:
        """Killed before its 1st, 2nd, 4th … statement or before its commit, an opener leaves all its work or none."""
        later = start == "older"
        if later:
            backend.open().close()
        absent = catalog(backend)
        left = []
        for statement in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256):
            if crew.launch(backend, programs.open_and_die, opened=False, statement=statement, later=later).killed():
                left.append(catalog(backend))
            elif statement:
                break
        whole = catalog(backend)
        assert len(left) >= (5 if start == "empty" else 2)
        assert [state for state in left if state not in (absent, whole)] == []
        assert version(backend) == (SECOND if later else REVISION)
        with second_release() if later else nullcontext():
            store = backend.open()
            assert store.tape("after").append(role="user", content="x").seq == 2
            assert store.verify().ok

    def test_r4_lives_beside_the_tables_of_an_application(self, backend: Backend) -> None:
        """Opening adds tables named tape_* only, and leaves the application's own and its Alembic version alone."""
        connection = backend.raw()
        if backend.postgres:
            connection.execute(f'CREATE SCHEMA "{backend.schema}"')
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('abc')")
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        backend.open()
        found = tables(connection, backend)
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("abc",)]
        connection.close()
        assert [name for name in found if not name.startswith("tape_")] == ["alembic_version", "users"]
        assert len(found) > 10


class TestPayloadVersions:
    """A payload keeps the version it was written in; readers turn it into the present one."""

    @pytest.fixture
    def second(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Any], None]]:
        """Return a function that makes the next version the present one of a kind, with an upcaster from this one."""
        undo = []

        def introduce(kind: str, upcast: Any) -> None:
            version = stored._TYPES[kind].version
            monkeypatch.setattr(stored._TYPES[kind], "version", version + 1)
            undo.append(stored.register_upcaster(kind, version, upcast))

        yield introduce
        for forget in undo:
            forget()

    def test_r4_old_payload_is_upcast_on_read(
        self, chat: tape.Tape, second: Callable[[str, Any], None], backend: Backend
    ) -> None:
        """An event of version 1 reads as version 2, its stored bytes and its hash stay, and new ones are version 2."""
        first = chat.event("score", 5)
        second("event", lambda old: {**old, "data": {"value": old["data"]}})
        chat.event("score", {"value": 6})
        events = list(chat.entries(kinds=["event"]))
        assert [(event.version, event.payload and event.payload.data) for event in events] == [  # type: ignore[attr-defined]
            (1, {"value": 5}),
            (2, {"value": 6}),
        ]
        assert events[0].hash == first.hash
        connection = backend.raw()
        raw = connection.execute("SELECT payload FROM tape_entries WHERE kind = 'event' ORDER BY seq").fetchall()
        connection.close()
        assert [json.loads(bytes(payload)) for (payload,) in raw] == [
            {"name": "score", "data": 5},
            {"name": "score", "data": {"value": 6}},
        ]
        assert chat.verify(against=first).ok

    def test_r4_old_message_is_upcast_in_the_view(
        self, chat: tape.Tape, store: tape.Store, second: Callable[[str, Any], None]
    ) -> None:
        """Messages, revisions and a rebuild all read an old append through the upcaster."""
        chat.append(id="m", role="user", content="old")
        second("append", lambda old: {**old, "message": {**old["message"], "content": [old["message"]["content"]]}})
        assert chat.message("m").content == ["old"]
        assert chat.messages()[0].content == ["old"]
        assert chat.revise("m", content=["old"]).duplicate
        assert chat.append(id="n", role="user", content="new").seq == 3
        assert [message.content for message in chat.messages()] == [["old"], "new"]
        store.rebuild("chat")
        assert chat.verify().ok

    def test_r4_an_unknown_version_is_not_guessed(
        self, chat: tape.Tape, second: Callable[[str, Any], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A payload newer than this release, or one that no upcaster knows, is Corrupt with its seq."""
        monkeypatch.setattr(stored.Event, "version", 3)
        chat.event("from the future")
        monkeypatch.setattr(stored.Event, "version", 1)
        with pytest.raises(tape.Corrupt, match="version 3") as caught:
            list(chat.entries(kinds=["event"]))
        assert (caught.value.tape, caught.value.seq) == ("chat", 2)
        assert [(problem.seq, problem.tape) for problem in chat.verify().problems] == [(2, "chat")]


class TestSchemas:
    """A PostgreSQL schema of any name."""

    @pytest.mark.parametrize("name", ["history", 'Strange % "name"', "order", "a.b"])
    def test_statements_are_those_compiled_for_it(self, name: str) -> None:
        """Statements are compiled once and renamed for each schema, with the very text that compiling would give."""
        tables = Tables("postgresql", name)
        fresh = declared(Statements("postgresql", tables))
        assert len(fresh) > 150
        another = Statements("postgresql", Tables("postgresql", "another"))
        assert declared(Statements("postgresql", tables, another)) == fresh


def declared(statements: Statements) -> list[tuple[str, Any]]:
    """Return every statement that is declared, compiled."""
    names = {name for cls in type(statements).__mro__ for name, one in vars(cls).items() if isinstance(one, derived)}
    return [text for name in sorted(names) for text in texts(getattr(statements, name))]


def texts(held: Any) -> list[tuple[str, Any]]:
    """Return every statement in what is given, and in lists and dicts within it."""
    if isinstance(held, Statement):
        return [(held.sql, held.order)]
    if isinstance(held, str):
        return [(held, None)]
    if isinstance(held, dict):
        return [text for value in held.values() for text in texts(value)]
    return [text for value in held for text in texts(value)] if isinstance(held, list) else []


class TestOlderReleases:
    """A process of an older release that has the store open while another process upgrades it."""

    WRITES: dict[str, Callable[[tape.Store], Any]] = {
        "append": lambda store: store.tape("chat").append(role="user", content="late"),
        "keyed": lambda store: store.tape("chat").append(role="user", content="late", key="late"),
        "extend": lambda store: store.tape("chat").extend([{"content": "late"}, {"content": "late"}]),
        "event": lambda store: store.tape("chat").event("late"),
        "revise": lambda store: store.tape("chat").revise("m", content="late"),
        "put": lambda store: store.tape("chat").put("slot", "late"),
        "create": lambda store: store.create("late"),
        "first append": lambda store: store.tape("late").append(role="user", content="late"),
        "fork": lambda store: store.tape("chat").fork("late"),
        "append on a fork": lambda store: store.tape("child").append(role="user", content="late"),
        "merge": lambda store: store.tape("chat").merge("child"),
        "transaction": lambda store: store.transaction(lambda inside: inside.tape("chat").event("late")),
        "purge": lambda store: store.purge("child"),
        "rebuild": lambda store: store.rebuild(),
        "lease": lambda store: store.tape("chat").lease("late", 5),
        "commit of a position": lambda store: store.consumer("late").commit(1),
        "import": lambda store: store.import_(io.BytesIO(elsewhere_exported())),
    }
    READS: dict[str, Callable[[tape.Store], Any]] = {
        "messages": lambda store: store.tape("chat").messages(),
        "context": lambda store: store.tape("chat").context(),
        "state": lambda store: store.tape("chat").state("slot"),
        "search": lambda store: store.search("begin", tape="chat"),
        "verify": lambda store: store.verify(),
        "feed": lambda store: list(store.feed()),
        "follow": lambda store: list(store.follow(timeout=0)),
        "a page of the feed with nothing in it": lambda store: list(store.feed(2**40)),
        "consumer": lambda store: list(store.consumer("late")),
        "list": lambda store: store.list(),
        "list of an empty page": lambda store: store.list(owner="nobody"),
        "tapes": lambda store: list(store.tapes()),
        "usage": lambda store: store.usage(),
        "stats": lambda store: store.stats(),
        "requests": lambda store: store.requests(),
    }

    @staticmethod
    def fill(store: tape.Store) -> None:
        """Write a tape with a fork, and search, so that the store keeps heads and an index."""
        chat = store.tape("chat")
        chat.append(role="user", content="begin", id="m")
        chat.fork("child").append(role="user", content="on the fork")
        store.search("begin")

    @pytest.mark.parametrize("name", WRITES)
    def test_r4_a_write_of_an_older_release_is_refused(self, backend: Backend, name: str) -> None:
        """Each write is SchemaTooNew with both revisions, at once and again, and leaves nothing."""
        store = backend.open()
        self.fill(store)
        assert upgrade_elsewhere(backend) == SECOND
        before = contents(backend)
        for _ in range(2):
            with pytest.raises(tape.SchemaTooNew) as caught:
                self.WRITES[name](store)
            assert (caught.value.found, caught.value.known) == (SECOND, REVISION)
        after = contents(backend)
        if name == "import":
            # What an import sends ahead is hidden, and goes with the next cleaning up.
            before, after = ({key: rows for key, rows in all_.items() if key in SHOWN} for all_ in (before, after))
        assert after == before

    @pytest.mark.parametrize("name", READS)
    def test_r4_a_read_of_an_older_release_is_refused(self, backend: Backend, name: str) -> None:
        """A tape that may have been upgraded is not read as if it had not."""
        store = backend.open()
        self.fill(store)
        upgrade_elsewhere(backend)
        with pytest.raises(tape.SchemaTooNew):
            self.READS[name](store)

    def test_r4_an_older_release_is_refused_in_transactions_of_the_application(self, backend: Backend) -> None:
        """A store bound to a caller's connection is refused as well."""
        store = backend.open()
        self.fill(store)
        upgrade_elsewhere(backend)
        engine = backend.engine()
        with engine.begin() as connection, pytest.raises(tape.SchemaTooNew):
            store.bind(connection).tape("chat").append(role="user", content="late")
        engine.dispose()

    def test_r4_an_async_store_that_is_open_is_refused(self, backend: Backend) -> None:
        """Writes of many tasks are refused one by one, with the same error."""

        async def run() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                await chat.append(role="user", content="begin")
                upgrade_elsewhere(backend)
                writes = [chat.append(role="user", content=str(number)) for number in range(20)]
                outcomes = await asyncio.gather(*writes, return_exceptions=True)
                assert {type(outcome) for outcome in outcomes} == {tape.SchemaTooNew}

        asyncio.run(run())

    def test_r4_a_missing_column_is_told_as_the_upgrade_that_it_is(self, backend: Backend) -> None:
        """Where the later release renamed a column that a statement needs, the error names the revisions."""
        store = backend.open()
        self.fill(store)
        rename = 'op.get_bind().exec_driver_sql(f"ALTER TABLE {at}tape_slots RENAME COLUMN since TO begun")'
        upgrade_elsewhere(backend, rename)
        for call in (lambda: store.tape("chat").put("slot", 1), lambda: store.list().items):
            with pytest.raises(tape.SchemaTooNew):
                call()

    def test_r4_health_tells_of_the_later_revision(self, backend: Backend) -> None:
        """``health`` raises nothing: it is not ok, and names both revisions."""
        store = backend.open()
        self.fill(store)
        upgrade_elsewhere(backend)
        for health in (store.health(), store.health("chat")):
            assert (health.ok, health.schema, health.expected_schema, health.head) == (False, SECOND, REVISION, None)

    def test_r4_writes_race_an_upgrade(self, backend: Backend) -> None:
        """Of threads that append during an upgrade every acknowledged write is before it, and the rest is refused."""
        store = backend.open()
        self.fill(store)
        ends: list[tape.TapeError] = []
        receipts: list[tape.Receipt] = []

        def write(number: int) -> None:
            for index in range(100_000):
                try:
                    receipts.append(store.tape(f"t{number}").append(role="user", content=f"{number}.{index}"))
                except tape.TapeError as error:
                    ends.append(error)
                    return

        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        upgrade_elsewhere(backend)
        for thread in threads:
            thread.join(60)
        assert [type(error) for error in ends] == [tape.SchemaTooNew] * 4
        assert receipts
        connection = backend.raw()
        counted = dict(connection.execute("SELECT tape_id, entries FROM tape_counted").fetchall())
        heads = dict(connection.execute("SELECT tape_id, seq FROM tape_heads").fetchall())
        [(chat,)] = connection.execute("SELECT id FROM tape_tapes WHERE tape = 'chat'").fetchall()
        connection.close()
        # The later release has written one entry behind its upgrade, on one tape.
        assert heads == {number: seq + (number == chat) for number, seq in counted.items()}
        assert sum(heads.values()) >= len(receipts)


SHOWN = ("tape_entries", "tape_heads", "tape_live", "tape_texts")


def elsewhere_exported() -> bytes:
    """Return the export of a tape of another store."""
    with tape.open(":memory:") as other:
        other.tape("far").append(role="user", content="from afar")
        file = io.BytesIO()
        other.export("far", file)
    return file.getvalue()
