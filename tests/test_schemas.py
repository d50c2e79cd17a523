"""PostgreSQL schemas keep stores apart, and a store leaves another program's tables as they are."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.backends import Backend
from support.damage import contents
from support.processes import PATIENCE
from support.shell import tape_command

import tape
from tape.db.schema.tables import REVISION

pytestmark = pytest.mark.blank

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


class TestSchemas:
    """Two stores in schemas of one database know nothing of each other."""

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

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_a_follower_hears_its_own_store(self, store: tape.Store, backend: Backend) -> None:
        """Commits in another schema are not followed, and those of the store are."""
        other = tape.open(backend.url, schema=f"{backend.schema}_other")
        followed: list[tape.Entry] = []

        def follow() -> None:
            for entry in store.follow(timeout=PATIENCE):
                followed.append(entry)
                if entry.kind == "anchor":
                    return

        follower = threading.Thread(target=follow)
        try:
            follower.start()
            other.create("x").append(role="user", content="other")
            store.create("y").anchor("end")
            follower.join(PATIENCE)
            assert [(entry.tape, entry.kind) for entry in followed] == [("y", "open"), ("y", "anchor")]
        finally:
            other.close()
            with closing(backend.raw()) as connection:
                connection.execute(f'DROP SCHEMA "{backend.schema}_other" CASCADE')


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
    """Tables of another program that have our names are left as they are."""

    @pytest.mark.alike
    @pytest.mark.parametrize("what", FOREIGN)
    def test_they_are_refused_and_left(self, backend: Backend, what: str) -> None:
        """The error names what helps, and nothing is changed."""
        with closing(backend.raw()) as connection:
            if backend.postgres:
                connection.execute(f'CREATE SCHEMA "{backend.schema}"')
            for statement in FOREIGN[what].split(";"):
                connection.execute(statement)
        if "a key's name" in what and not backend.postgres:
            # SQLite generates the name of a key's index.
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
            assert ("another schema=" if backend.postgres else "another file") in str(caught.value)
            assert caught.value.tables
            assert all(name.startswith("tape_") for name in caught.value.tables)
        assert (names(backend), contents(backend)) == before
        # A file that was refused has no write-ahead log either.
        assert file is None or Path(backend.url.database or "").read_bytes() == file

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

    def test_the_command_names_its_own_options(self, tmp_path: Path) -> None:
        """The error is one line with exit code 1."""
        path = tmp_path / "x.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE tape_version (major INTEGER)")
        done = tape_command("ls", "--store", str(path))
        assert done.code == 1
        assert "--schema" in done.err
        assert "Traceback" not in done.err
