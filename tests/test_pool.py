"""The tests' own databases: nothing that one test does reaches the next one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import history
from support.backends import Backend, dsn
from support.damage import contents
from support.filling import filled
from support.pool import ROOMY, EmptyFile, LeftBehind, SchemaPool

import tape


@pytest.fixture
def pool(postgres_url: sa.URL) -> Iterator[SchemaPool]:
    """A pool with no other tests around."""
    with closing(SchemaPool(postgres_url)) as made:
        yield made


@pytest.fixture
def admin(postgres_url: sa.URL) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn(postgres_url), autocommit=True) as connection:
        yield connection


def whole(backend: Backend) -> Any:
    """Return the rows of every table and what each sequence gives next."""
    with backend.raw() as connection:
        query = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = %s ORDER BY 1"
        counters = connection.execute(query, [backend.schema]).fetchall()
    return contents(backend), counters


class TestSweep:
    def test_the_next_test_finds_what_the_first_one_found(self, pool: SchemaPool, tmp_path: Path) -> None:
        """After a history with every verb, every table and sequence is as it was in a new store."""
        with pool.lend(tmp_path) as first:
            new = whole(first)
            store = filled(first, history.write_checked_and_indexed)
            store.consumer("c").commit(1)
            store.purge("quiet")
            changed = {name for name, held in contents(first).items() if new[0][name] != held}
            assert len(changed) > 15
        with pool.lend(tmp_path) as second:
            assert (second.schema, whole(second)) == (first.schema, new)
            store = second.open()
            assert (store.list().items, list(store.feed()), store.search("trip")) == ([], [], [])
            assert store.tape("chat").append(role="user", content="x").seq == 2
            assert store.verify().ok
        assert pool.dropped == 0

    @pytest.mark.parametrize(
        "change",
        [
            "CREATE TABLE extra (id int)",
            "CREATE VIEW extra AS SELECT 1",
            "CREATE TYPE extra AS ENUM ('a')",
            "CREATE FUNCTION extra() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE INDEX extra ON tape_entries (actor)",
            "CREATE STATISTICS extra ON seq, kind FROM tape_entries",
            "ALTER TABLE tape_entries DISABLE TRIGGER USER",
            "ALTER TABLE tape_heads ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY extra ON tape_heads USING (true)",
            "ALTER TABLE tape_heads ALTER stamp SET DEFAULT 5",
            "ALTER TABLE tape_live RENAME TO tape_gone",
            "ALTER TABLE tape_heads SET (fillfactor = 50)",
            "ALTER SEQUENCE {sequence} INCREMENT 7",
            "GRANT SELECT ON tape_heads TO PUBLIC",
            'GRANT USAGE ON SCHEMA "{schema}" TO PUBLIC',
            'ALTER DEFAULT PRIVILEGES IN SCHEMA "{schema}" GRANT SELECT ON TABLES TO PUBLIC',
            "DROP TABLE tape_version",
            "UPDATE tape_version SET version_num = '9999'",
            "UPDATE tape_epoch SET base = base + 1",
            'DROP SCHEMA "{schema}" CASCADE',
        ],
    )
    def test_a_changed_schema_is_dropped(
        self, schemas: SchemaPool, admin: psycopg.Connection[Any], tmp_path: Path, change: str
    ) -> None:
        """Whatever is changed that is no row of a tape, no other test is given the schema."""
        before = schemas.dropped
        with schemas.lend(tmp_path) as lent, lent.raw() as connection:
            query = "SELECT sequencename FROM pg_sequences WHERE schemaname = %s LIMIT 1"
            [(sequence,)] = connection.execute(query, [lent.schema]).fetchall()
            connection.execute(change.format(schema=lent.schema, sequence=sequence))
        assert schemas.dropped == before + 1
        assert admin.execute("SELECT to_regnamespace(%s)", [lent.schema]).fetchall() == [(None,)]

    def test_a_schema_that_grew_large_is_dropped(self, pool: SchemaPool, tmp_path: Path) -> None:
        """Deleted rows would slow down every test to come."""
        with pool.lend(tmp_path) as first:
            first.open().tape("t").append(role="user", content=random.Random(0).randbytes(ROOMY // 2).hex())
        assert pool.dropped == 1


class TestSessions:
    def test_what_is_still_open_is_ended(
        self, pool: SchemaPool, admin: psycopg.Connection[Any], tmp_path: Path
    ) -> None:
        """An open transaction does not hold up the sweep and cannot commit after it, and no lock of it is left."""
        with pool.lend(tmp_path) as first:
            raw = first.raw()
            raw.execute("SELECT pg_advisory_lock(4711)")
            raw.execute("BEGIN")
            raw.execute("INSERT INTO tape_version VALUES ('late')")
            raw.execute("LOCK TABLE tape_heads IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.OperationalError):
            raw.execute("COMMIT")
        raw.close()
        assert admin.execute("SELECT count(*) FROM pg_locks WHERE objid = 4711").fetchone() == (0,)
        with pool.lend(tmp_path) as second:
            assert (second.schema, pool.dropped) == (first.schema, 0)

    def test_sessions_of_others_go_on(self, pool: SchemaPool, tmp_path: Path) -> None:
        """What another test has open stays open, also where the name of its schema begins alike."""
        lent = pool.lend(tmp_path)
        with Backend("postgresql", pool.url, f"{lent.schema}0", leave=lambda: None).raw() as beside:
            lent.__exit__()
            assert beside.execute("SELECT 1").fetchone() == (1,)

    def test_a_prepared_transaction_is_rolled_back(
        self, pool: SchemaPool, admin: psycopg.Connection[Any], tmp_path: Path
    ) -> None:
        """It has no session, and its rows would appear with its commit."""
        if admin.execute("SHOW max_prepared_transactions").fetchone() == ("0",):
            pytest.skip("the server that was given prepares no transactions")
        with pool.lend(tmp_path) as first, first.raw() as connection:
            name = f"left by {first.schema}"
            connection.execute("BEGIN")
            connection.execute("INSERT INTO tape_version VALUES ('later')")
            connection.execute(f"PREPARE TRANSACTION '{name}'")
        assert admin.execute("SELECT count(*) FROM pg_prepared_xacts WHERE gid = %s", [name]).fetchone() == (0,)
        assert pool.dropped == 1

    @pytest.mark.parametrize("more", ["SELECT 1", "ALTER ROLE {role} SET search_path TO nowhere"])
    def test_a_role_that_outlives_its_test_fails_it(
        self, pool: SchemaPool, admin: psycopg.Connection[Any], tmp_path: Path, more: str
    ) -> None:
        """No schema holds roles and their settings: the test that leaves some is told so, and no test after it."""
        lent = pool.lend(tmp_path)
        role = f"role_{lent.schema}"
        admin.execute(f"CREATE ROLE {role}")
        try:
            admin.execute(more.format(role=role).encode())
            with pytest.raises(LeftBehind, match="nowhere" if "nowhere" in more else role):
                lent.__exit__()
            with pool.lend(tmp_path):
                pass
        finally:
            admin.execute(f"DROP ROLE {role}")


class TestApart:
    def test_two_pools_share_a_server(self, postgres_url: sa.URL, pool: SchemaPool, tmp_path: Path) -> None:
        """Pools never lend each other's schemas, and what one drops at its end is its own."""
        other = SchemaPool(postgres_url)
        with pool.lend(tmp_path) as one, other.lend(tmp_path) as two:
            assert one.schema != two.schema
            one.open().create("mine")
            assert two.open().list().items == []
        with pool.lend(tmp_path) as one:
            other.close()
            assert one.open().list().items == []

    def test_files_are_copies(self, tmp_path: Path) -> None:
        """A copied SQLite file holds the store that opening a new one makes, and is nobody else's."""
        empty = EmptyFile(tmp_path)
        with empty.copy(tmp_path) as one, empty.copy(tmp_path) as two:
            tape.open(tmp_path / "new.db").close()
            new = Backend("sqlite", sa.make_url(f"sqlite:///{tmp_path / 'new.db'}"), None, leave=lambda: None)
            assert contents(one) == contents(new)
            one.open().create("mine")
            assert two.open().list().items == []


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
def test_a_copied_history_is_the_one_that_was_written(backend: Backend, other: Backend) -> None:
    """A filled store holds what the first one of its kind holds, and goes on from there."""
    first, second = (filled(one, history.write_all) for one in (backend, other))
    assert contents(backend) == contents(other)
    for store in (first, second):
        for name in history.TAPES:
            assert history.describe(store, name) == history.describe(first, name)
    assert second.get("chat").event("note").seq == first.get("chat").info().head + 1
    assert second.create("new").append(role="user", content="x").seq == 2
    assert second.verify().ok
    assert first.verify().ok
