"""Stores with names of their own: several in one database, beside each other and beside another program's tables."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import history
from support.backends import Backend
from support.damage import contents
from support.processes import PATIENCE
from support.shell import tape_command

import tape
from tape.db import rls
from tape.db.engine.connect import LONGEST_PREFIX
from tape.db.engine.transaction import lock_key
from tape.db.maintain.inspect import look, missing_guards
from tape.db.maintain.repair import restore_guards
from tape.db.schema.migrate import upgrade
from tape.db.schema.tables import PREFIX, REVISION, Tables

pytestmark = pytest.mark.blank

LONGEST = "p" * (LONGEST_PREFIX - 1) + "_"
NAMES_OF_POSTGRES = (
    "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s)",
    "SELECT conname FROM pg_constraint WHERE connamespace = to_regnamespace(%(schema)s)",
    "SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)",
    """SELECT tgname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
       WHERE c.relnamespace = to_regnamespace(%(schema)s) AND NOT tgisinternal""",
)


def names(backend: Backend) -> list[str]:
    """Return the name of every table, index, sequence, constraint, trigger and function."""
    with closing(backend.raw()) as connection:
        if not backend.postgres:
            return sorted(name for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall())
        given = {"schema": backend.schema}
        return sorted(name for query in NAMES_OF_POSTGRES for (name,) in connection.execute(query, given).fetchall())


def usual(names: list[str], prefix: str) -> list[str]:
    """Return names of a store with a prefix as those of one without."""
    own = r"^(sqlite_autoindex_)?" + prefix
    return sorted(re.sub(own, rf"\g<1>{PREFIX}", name) for name in names)


def word_of(prefix: str) -> str:
    """Return a word that only the store with this prefix has."""
    return f"w{prefix.replace('_', '')}"


def talk(store: tape.Store, word: str) -> None:
    """Write a tape with a fork that is merged."""
    chat = store.create("chat")
    chat.append(role="user", content=f"the word is {word}", id="m")
    with chat.fork("helper") as helper:
        helper.append(role="assistant", content=f"and again {word}")
    chat.put("word", word)


class TestBesideEachOther:
    """Two stores in one database, or in one schema of it, know nothing of each other."""

    def test_each_has_tapes_of_its_own(self, backend: Backend) -> None:
        """The same ids, other contents: reads, search, feed, verify, rebuild and purge are of one store."""
        stores = {prefix: backend.open(prefix=prefix) for prefix in (PREFIX, "a_", "b_tape_")}
        for prefix, store in stores.items():
            talk(store, word_of(prefix))
        for prefix, store in stores.items():
            word = word_of(prefix)
            assert store.get("chat").state("word") == word
            assert [hit.tape for hit in store.search(word)] == ["chat", "helper", "chat"]
            assert store.stats().tapes == 2
            assert {entry.tape for entry in store.feed()} == {"chat", "helper"}
            assert len([entry for entry in store.feed() if entry.kind == "open"]) == 2
            others = [word_of(other) for other in stores if other != prefix]
            assert [store.search(other) for other in others] == [[], []]
            assert store.verify().ok
            assert store.rebuild() == 2
            assert store.search(word)
        stores["a_"].purge("chat", forks=True)
        assert stores["a_"].stats().tapes == 0
        assert stores["a_"].verify().ok
        for prefix in (PREFIX, "b_tape_"):
            assert len(stores[prefix].get("chat").messages()) == 2
            assert stores[prefix].verify().ok

    def test_a_whole_history_reads_the_same(self, backend: Backend) -> None:
        """What is recorded does not depend on the names of tables."""
        found = []
        for prefix in (PREFIX, "other_"):
            store = backend.open(prefix=prefix, clock=history.counting_clock())
            history.write_all(store)
            found.append([(entry.tape, entry.seq, entry.kind, entry.recorded_at) for entry in store.feed()])
            assert store.verify().ok
        assert found[0] == found[1]
        assert len(found[0]) > 50

    def test_writers_of_two_stores_do_not_wait_for_each_other(self, backend: Backend) -> None:
        """On PostgreSQL the lock of a tape is that of one store; SQLite has one for the file."""
        one, two = backend.open(prefix="a_", timeout=5.0), backend.open(prefix="b_", timeout=5.0)
        for store in (one, two):
            store.create("chat")
        if not backend.postgres:
            assert one._db.tables.lock_space != two._db.tables.lock_space
            return
        engine = backend.engine()
        with engine.connect() as connection:
            one.bind(connection).get("chat").anchor("held")
            assert two.get("chat").anchor("free").seq == 2
            with pytest.raises(tape.StoreBusy):
                backend.open(prefix="a_", timeout=0.2).get("chat").anchor("waits")
            connection.commit()
        engine.dispose()
        channels = {store._db._channel for store in (one, two, backend.open())}  # type: ignore[attr-defined]
        assert len(channels) == 3

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_writers_of_two_schemas_do_not_wait_for_each_other(self, store: tape.Store, backend: Backend) -> None:
        """A transaction on one store can write to a tape of the same id in another schema of the same database."""
        other = tape.open(backend.url, schema=f"{backend.schema}_other", timeout=2.0)
        try:

            def fn(inside: tape.Store) -> None:
                inside.tape("chat").append(role="user", content="here")
                other.tape("chat").append(role="user", content="there")

            store.transaction(fn)
            assert [len(one.get("chat").messages()) for one in (store, other)] == [1, 1]
        finally:
            other.close()
            with closing(backend.raw()) as connection:
                connection.execute(f'DROP SCHEMA "{backend.schema}_other" CASCADE')

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_a_schema_is_the_same_however_it_is_named(self, store: tape.Store, backend: Backend) -> None:
        """Said as an option or by the search path: its writers exclude each other, and hear each other's commits."""
        url = backend.url.update_query_dict({"options": f"-csearch_path={backend.schema}"})
        with tape.open(url, timeout=0.2) as same:

            def fn(inside: tape.Store) -> None:
                inside.tape("chat").append(role="user", content="held")
                with pytest.raises(tape.StoreBusy):
                    same.tape("chat").append(role="user", content="waits")

            store.transaction(fn)
            assert len(same.get("chat").messages()) == 1
            assert same._db._channel == store._db._channel  # type: ignore[attr-defined]

    def test_a_follower_hears_its_own_store(self, backend: Backend) -> None:
        """Commits of another store do not come, those of its own do."""
        one, two = backend.open(prefix="a_"), backend.open(prefix="b_")
        found: list[tape.Entry] = []

        def follow() -> None:
            for entry in one.follow(timeout=PATIENCE):
                found.append(entry)
                if entry.kind == "anchor":
                    return

        follower = threading.Thread(target=follow)
        follower.start()
        two.create("x").append(role="user", content="other")
        backend.open(prefix="a_").create("y").anchor("end")
        follower.join(PATIENCE)
        assert [(entry.tape, entry.kind) for entry in found] == [("y", "open"), ("y", "anchor")]

    def test_the_database_guards_the_entries(self, backend: Backend) -> None:
        """Of every store, and a guard that is gone is put back under its own name."""
        store, other = backend.open(prefix="a_"), backend.open()
        for one in (store, other):
            talk(one, "word")
        with closing(backend.raw()) as connection:
            for statement in ("UPDATE a_entries SET stamp = 1", "DELETE FROM a_entries"):
                with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
                    connection.execute(statement)
            trigger = "a_entries_no_change" if backend.postgres else "a_entries_no_delete"
            connection.execute(f"DROP TRIGGER {trigger}{' ON a_entries' if backend.postgres else ''}")
            assert missing_guards(store._db) == [trigger]
            assert missing_guards(other._db) == []
            assert restore_guards(store._db) == [trigger]
            with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
                connection.execute("DELETE FROM a_entries")

    def test_the_twin_and_the_command_take_it(self, backend: Backend) -> None:
        """``open_async(prefix=)`` and ``--prefix``."""

        async def run() -> None:
            async with await tape.open_async(backend.url, prefix="a_", **backend.options) as store:
                await (await store.create("chat")).append(role="user", content="hello")

        asyncio.run(run())
        assert look(backend.url, backend.schema, prefix="a_").revision == REVISION
        assert look(backend.url, backend.schema).revision is None
        place = ["--store", backend.address, *(["--schema", backend.schema] if backend.schema else [])]
        assert "hello" in tape_command("cat", "chat", "--prefix", "a_", *place).out
        assert tape_command("verify", "--prefix", "a_", *place).code == 0
        assert tape_command("doctor", "--prefix", "a_", *place).code == 0
        assert tape_command("ls", *place).code == 3
        assert tape_command("ls", "--prefix", "A b", *place).code == 2


@pytest.mark.alike
class TestNames:
    """Every name begins with the prefix, and PostgreSQL keeps all of each."""

    @pytest.mark.parametrize("prefix", ["a_", "b_tape_", "x", LONGEST])
    def test_every_name_has_the_prefix_and_all_its_letters(self, backend: Backend, other: Backend, prefix: str) -> None:
        """The names are those of a usual store, but for the prefix, and no longer than PostgreSQL keeps."""
        for one, given in ((backend, prefix), (other, PREFIX)):
            with one.open(prefix=given) as store:
                talk(store, "word")
                store.search("word")
        found = names(backend)
        assert usual(found, prefix) == names(other)
        assert all(prefix in name for name in found)
        assert max(len(name.encode()) for name in found) <= 63
        assert len(found) > 30

    def test_the_words_of_sqlite_have_room_too(self) -> None:
        """Names that are made on the way fit as well."""
        tables = Tables("postgresql", None, LONGEST)
        assert len(f"{tables.words}_by_document") <= 63

    @pytest.mark.parametrize("prefix", ["a_", "b_tape_", LONGEST])
    def test_revisions_lead_to_the_same_names(self, backend: Backend, other: Backend, prefix: str) -> None:
        """A store of the first revision with these names is upgraded, and has the catalog of a new one."""
        engine = sa.create_engine(backend.url)
        with engine.connect() as connection:
            if backend.schema is not None:
                connection.execute(sa.schema.CreateSchema(backend.schema))
            upgrade(connection, backend.schema, "0001", prefix)
            connection.commit()
        engine.dispose()
        assert look(backend.url, backend.schema, prefix=prefix).revision == "0001"
        with pytest.raises(tape.SchemaTooOld):
            backend.open(prefix=prefix, read_only=True)
        with backend.open(prefix=prefix) as store:
            talk(store, "word")
            assert store.verify().ok
        other.open(prefix=prefix).search("nothing")
        assert [one for one in names(backend) if "words" not in one] == [
            one for one in names(other) if "words" not in one
        ]

    def test_a_schema_with_our_name_in_it_stays_as_it_is(self, postgres_url: sa.URL) -> None:
        """Only names of ours are renamed in the revisions, never that of the schema."""
        schema = f'tape_entries {lock_key(str(postgres_url)) & 0xFFFF} "tape_x"'
        engine = sa.create_engine(postgres_url)
        try:
            with engine.connect() as connection:
                connection.execute(sa.schema.CreateSchema(schema))
                upgrade(connection, schema, "0001", "a_")
                connection.commit()
            with tape.open(postgres_url, schema=schema, prefix="a_") as store:
                talk(store, "word")
                assert store.verify().ok
        finally:
            with engine.begin() as connection:
                connection.execute(sa.schema.DropSchema(schema, cascade=True, if_exists=True))
            engine.dispose()

    @pytest.mark.parametrize(
        "prefix",
        [
            "",
            "A_",
            "a b",
            "1a",
            "_a",
            "é_",
            "a-",
            'a"',
            "a;",
            "pg_x",
            "sqlite_x",
            "tape_x",
            "a\n",
            LONGEST + "a",
            7,
            None,
            b"a_",
        ],
    )
    def test_what_is_no_prefix_is_refused(self, tmp_path: Path, prefix: Any) -> None:
        """A typed error, and nothing is created."""
        with pytest.raises(tape.InvalidEntry, match="prefix"):
            tape.open(tmp_path / "x.db", prefix=prefix)
        with pytest.raises(tape.InvalidEntry, match="prefix"):
            rls.policies("app", prefix=prefix)
        assert list(tmp_path.iterdir()) == []

    def test_row_level_security_takes_it(self, backend: Backend) -> None:
        """The statements name the store's own tables only, and can be run."""
        if not backend.postgres:
            assert all("tape_tapes" not in ddl for ddl in rls.policies("app", prefix="a_"))
            return
        backend.open(prefix="a_")
        role = f"role_{backend.schema}"
        with closing(backend.raw()) as admin:
            admin.execute(f"CREATE ROLE {role}")
            engine = sa.create_engine(backend.url)
            try:
                with engine.begin() as connection:
                    rls.enable(connection, role=role, schema=backend.schema, prefix="a_")
                query = "SELECT count(*) FROM pg_policies WHERE schemaname = %s AND starts_with(tablename, 'a_')"
                (count,) = admin.execute(query, (backend.schema,)).fetchone()
                assert count > 15
                with engine.begin() as connection:
                    rls.disable(connection, schema=backend.schema, prefix="a_")
                assert admin.execute(query, (backend.schema,)).fetchone() == (0,)
            finally:
                engine.dispose()
                admin.execute(f"DROP OWNED BY {role}")
                admin.execute(f"DROP ROLE {role}")


FOREIGN = {
    "entries of another": "CREATE TABLE tape_entries (id INTEGER, body TEXT)",
    "tapes of another": "CREATE TABLE tape_tapes (serial INTEGER)",
    "another's version": "CREATE TABLE tape_version (major INTEGER); INSERT INTO tape_version VALUES (3)",
    "another's Alembic": "CREATE TABLE tape_version (version_num VARCHAR(32)); "
    "INSERT INTO tape_version VALUES ('ae1027a6acf'); CREATE TABLE tape_tapes (serial INTEGER)",
    "another's numbered Alembic": "CREATE TABLE tape_version (version_num VARCHAR(32)); "
    "INSERT INTO tape_version VALUES ('0001'); CREATE TABLE tape_entries (id INTEGER)",
    "another's version of today": f"CREATE TABLE tape_version (version_num VARCHAR(32)); "
    f"INSERT INTO tape_version VALUES ('{REVISION}'); CREATE TABLE tape_entries (id INTEGER)",
    "an empty version": "CREATE TABLE tape_version (version_num VARCHAR(32))",
    "an index": "CREATE TABLE other (x INTEGER); CREATE INDEX tape_forks_parent ON other (x)",
    "an index of a key's name": "CREATE TABLE other (x INTEGER); CREATE INDEX tape_entries_key ON other (x)",
    "a view": "CREATE TABLE other (x INTEGER); CREATE VIEW tape_heads AS SELECT 1 AS one",
}


class TestForeignTables:
    """Another program has tables of our names: told, and left as they are."""

    @pytest.mark.alike
    @pytest.mark.parametrize("what", FOREIGN)
    def test_they_are_refused_and_left(self, backend: Backend, what: str) -> None:
        """The error names what helps, nothing is changed, and with a prefix a store fits in beside them."""
        with closing(backend.raw()) as connection:
            if backend.postgres:
                connection.execute(f'CREATE SCHEMA "{backend.schema}"')
            for statement in FOREIGN[what].split(";"):
                connection.execute(statement)
        if "a key's name" in what and not backend.postgres:
            # SQLite gives the index of a key a name of its own.
            backend.open().close()
            return
        before = names(backend), contents(backend)
        file = None if backend.postgres else Path(backend.url.database or "").read_bytes()
        for read_only in (False, True):
            if read_only and ("tape_version" not in FOREIGN[what] or what == "an empty version"):
                # There is no store to be read, whatever else there is.
                with pytest.raises(tape.NotAStore):
                    backend.open(read_only=True)
                continue
            with pytest.raises(tape.TablesTaken) as caught:
                backend.open(read_only=read_only)
            assert "prefix=" in str(caught.value)
            assert ("schema=" in str(caught.value)) == backend.postgres
            assert caught.value.tables
            assert all(name.startswith("tape_") for name in caught.value.tables)
        assert (names(backend), contents(backend)) == before
        # A file that was refused has no write-ahead log either.
        assert file is None or Path(backend.url.database or "").read_bytes() == file
        with backend.open(prefix="mine_") as store:
            talk(store, "word")
            assert store.verify().ok
        mine = [name for name in names(backend) if "mine_" not in name]
        assert mine == before[0]

    def test_a_function_of_another(self, backend: Backend) -> None:
        """On PostgreSQL the guard's function has a name as well."""
        if not backend.postgres:
            backend.open()
            return
        with closing(backend.raw()) as connection:
            connection.execute(f'CREATE SCHEMA "{backend.schema}"')
            body = "RETURNS int LANGUAGE sql AS 'SELECT 1'"
            connection.execute(f'CREATE FUNCTION "{backend.schema}".tape_entries_guard() {body}')
        with pytest.raises(tape.TablesTaken) as caught:
            backend.open()
        assert caught.value.tables == ["tape_entries_guard"]

    def test_two_prefixes_that_meet_in_a_name(self, backend: Backend) -> None:
        """A prefix that makes the name of something that is there already is refused, and nothing is half made."""
        with closing(backend.raw()) as connection:
            if backend.postgres:
                connection.execute(f'CREATE SCHEMA "{backend.schema}"')
            connection.execute("CREATE TABLE x_texts_tapes (x INTEGER)")
        with pytest.raises(tape.TablesTaken) as caught:
            backend.open(prefix="x_texts_")
        assert caught.value.tables == ["x_texts_tapes"]

    def test_the_command_tells_it(self, tmp_path: Path) -> None:
        """With its own options, and exit code 1."""
        path = tmp_path / "x.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE tape_version (major INTEGER)")
        done = tape_command("ls", "--store", str(path))
        assert done.code == 1
        assert "--prefix" in done.err
        assert "Traceback" not in done.err
