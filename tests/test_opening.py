"""S1: what a store can be opened with, and what is refused: schemas of any name, files, wrong options."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from support.backends import CITUS, Backend

import tape
from tape.db import rls
from tape.db.engine.guests import open_database
from tape.db.maintain.inspect import look, missing_guards
from tape.db.maintain.repair import restore_guards
from tape.db.schema.migrate import upgrade

SCHEMAS = {
    "an injection": 'a"; DROP TABLE public.precious; --',
    "mixed case": "MixedCase",
    "blanks": "two words and 'quotes'",
    "a statement": "x CREATE TRIGGER evil; CREATE FUNCTION f",
    "a dollar quote": "x$guard$; DROP TABLE public.precious; $guard$",
    "another dollar quote": "x$tape$) OR true; DROP TABLE public.precious; --",
    "per cent": "100%s %(a)s %% %",
    "a place holder": "@tape :name ? {0}",
    "the longest": "ä" * 31 + "x",
    "a reserved word": "select",
    "of the statements": "tape any schema",
}
"""Names that PostgreSQL takes when they are quoted."""
REVISIONS = ("0001", "0002", "0003", "0004", "0005")


class TestSchemas:
    """A PostgreSQL schema of any name: it is a name and nothing else."""

    @pytest.fixture
    def admin(self, postgres_url: sa.URL) -> Iterator[psycopg.Connection[Any]]:
        """Someone who may do everything, and a table that must survive."""
        dsn = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS public.precious (n int)")
            if os.environ.get(CITUS):
                # Or it refuses to drop the triggers of the store.
                connection.execute("SET citus.enable_unsafe_triggers = on")
            yield connection
            assert connection.execute("SELECT count(*) FROM public.precious").fetchone() == (0,)
            for name in SCHEMAS.values():
                connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))

    @pytest.mark.parametrize("name", SCHEMAS)
    def test_s3_a_store_lives_in_a_schema_of_any_name(
        self, postgres_url: sa.URL, admin: psycopg.Connection[Any], name: str
    ) -> None:
        """Everything that a store does works there, and nothing outside of it is touched."""
        schema = SCHEMAS[name]
        before = admin.execute("SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%'").fetchall()
        with tape.open(postgres_url, schema=schema) as store:
            chat = store.create("a", messages=[{"role": "user", "content": "a word"}], labels=["l"])
            child = chat.fork("b")
            child.append(role="assistant", content="another word")
            chat.merge(child)
            chat.handoff("h", summary="done")
            assert {hit.tape for hit in store.search("another")} == {"a", "b"}
            store._searcher.rebuild()
            store._searcher.index.remake(spoilt=True)
            assert {hit.tape for hit in store.search("another")} == {"a", "b"}
            assert len(list(store.feed())) == chat.info().head + child.info().head
            store.consumer("c").commit(next(store.feed()).position or 0)
            assert store.verify().ok
            assert store.rebuild() == 2
            assert [info.id for info in store.list(label="l")] == ["a"]
            written = io.BytesIO()
            store.export("b", written)
            assert store.purge("a", forks=True).tapes == ["a", "b"]
            written.seek(0)
            assert store.import_(written, reuse=True).tapes == ["a", "b"]
            assert missing_guards(store._db) == []
            with pytest.raises(psycopg.Error, match="immutable"):
                admin.execute(sql.SQL("DELETE FROM {}.tape_entries").format(sql.Identifier(schema)))
            for trigger in ("tape_entries_no_change", "tape_entries_no_truncate"):
                admin.execute(
                    sql.SQL("DROP TRIGGER {} ON {}.tape_entries").format(
                        sql.Identifier(trigger), sql.Identifier(schema)
                    )
                )
            assert len(restore_guards(store._db)) == 2
            assert missing_guards(store._db) == []
        with tape.open(postgres_url, schema=schema) as store:
            assert store.get("a").verify().ok
        after = admin.execute("SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%'").fetchall()
        assert set(after) - set(before) == {(schema,)}

    @pytest.mark.parametrize("name", SCHEMAS)
    @pytest.mark.usefixtures("admin")
    def test_s3_row_level_security_takes_a_schema_of_any_name(self, postgres_url: sa.URL, name: str) -> None:
        schema = SCHEMAS[name]
        with tape.open(postgres_url, schema=schema) as store:
            store.create("a", messages=[{"role": "user", "content": "a word"}])
            with store._db.engine.begin() as connection:
                rls.enable(connection, role=str(postgres_url.username), schema=schema)
                rls.disable(connection, schema=schema)
            assert store.get("a").verify().ok

    @pytest.mark.parametrize("name", SCHEMAS)
    def test_s3_every_revision_takes_a_schema_of_any_name(
        self, postgres_url: sa.URL, admin: psycopg.Connection[Any], name: str
    ) -> None:
        """A store made by an earlier release in such a schema is upgraded as any other."""
        schema = SCHEMAS[name]
        database = open_database(postgres_url, schema=schema, durability="full", timeout=30)
        for revision in REVISIONS:
            with database.engine.connect() as connection:
                connection.exec_driver_sql("BEGIN")
                connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
                upgrade(connection, schema, revision)
                connection.commit()
        database.close()
        with tape.open(postgres_url, schema=schema) as store:
            chat = store.create("a", messages=[{"role": "user", "content": "a word"}])
            assert chat.verify().ok
            assert store.health().ok
            assert missing_guards(store._db) == []
            assert [hit.tape for hit in store.search("word")] == ["a"]

    @pytest.mark.parametrize(
        "schema", ["", "x" * 64, "ä" * 32, "a\0b", "\ud800", 5, b"x", ["x"], object()], ids=lambda one: repr(one)[:10]
    )
    def test_s3_what_is_no_name_of_a_schema_is_refused(self, postgres_url: sa.URL, schema: Any) -> None:
        """A name that PostgreSQL would cut or choke on is InvalidEntry, on both engines."""
        for url in (postgres_url, ":memory:"):
            with pytest.raises(tape.InvalidEntry) as caught:
                tape.open(url, schema=schema)
            assert caught.value.field == "schema"
        for call in (
            lambda: rls.policies("app", schema),
            lambda: look(postgres_url, schema),
        ):
            with pytest.raises(tape.InvalidEntry):
                call()


OPENINGS: dict[str, dict[str, Any]] = {
    "a host": {"url": "sqlite://host/x"},
    "a user": {"url": "sqlite://me@/x"},
    "a port": {"url": "postgresql://localhost:port/x"},
    "no port": {"url": "postgresql://localhost:99999999/x"},
    "NUL": {"url": "a\0b.db"},
    "NUL in a URL": {"url": "sqlite:///a\0b.db"},
    "NUL in a path": {"url": Path("a\0b.db")},
    "a surrogate": {"url": "a\ud800.db"},
    "bytes": {"url": b"a.db"},
    "a name that is too long": {"url": "x" * 5_000},
    "a folder": {"url": "."},
    "timeout NaN": {"timeout": float("nan")},
    "no timeout": {"timeout": None},
    "a negative timeout": {"timeout": -1},
    "slow None": {"slow": None},
    "slow NaN": {"slow": float("nan")},
    "slow text": {"slow": "1"},
    "durability": {"durability": ["full"]},
    "a clock": {"clock": 5},
    "a counter": {"counter": 5},
    "slots": {"slots": ["s"]},
    "a slot without a name": {"slots": [tape.Slot(5)]},  # type: ignore[arg-type]
    "a slot of no type": {"slots": [tape.Slot("s", type=5)]},
    "a slot of no version": {"slots": [tape.Slot("s", version="1")]},  # type: ignore[arg-type]
    "a slot of no migrators": {"slots": [tape.Slot("s", migrate={1: 2})]},  # type: ignore[dict-item]
    "blocks": {"blocks": "memory"},
    "a block without a label": {"blocks": [tape.BlockSpec(None)]},  # type: ignore[arg-type]
    "a block that may be read only": {"blocks": [tape.BlockSpec("b", read_only=None)]},  # type: ignore[arg-type]
    "a block of no limit": {"blocks": [tape.BlockSpec("b", max_tokens="5")]},  # type: ignore[arg-type]
    "a block of no text": {"blocks": [tape.BlockSpec("b", default=None)]},  # type: ignore[arg-type]
    "a block of no description": {"blocks": [tape.BlockSpec("b", description=5)]},  # type: ignore[arg-type]
}
"""What ``open`` has to refuse."""


class TestOpening:
    """S1: opening a store with something that it cannot be opened with."""

    @pytest.mark.parametrize("what", OPENINGS)
    def test_s1_what_cannot_be_opened_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        """It is a TapeError before anything is made, of ``open`` and of its twin."""
        monkeypatch.chdir(tmp_path)
        options = {"url": ":memory:", **OPENINGS[what]}

        async def twin() -> None:
            await tape.open_async(**options)

        for call in (lambda: tape.open(**options), lambda: asyncio.run(twin())):
            with pytest.raises((tape.InvalidEntry, tape.StoreFailed)):
                call()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("driver", "works"),
        [
            ("sqlite+turso", "sqlite:// or sqlite+pysqlite://"),
            ("sqlite+aiosqlite", "sqlite:// or sqlite+pysqlite://"),
            ("sqlite+pysqlcipher", "sqlite:// or sqlite+pysqlite://"),
            ("postgresql+psycopg2", "postgresql:// or postgresql+psycopg://"),
            ("postgresql+asyncpg", "postgresql:// or postgresql+psycopg://"),
            ("postgresql+none", "postgresql:// or postgresql+psycopg://"),
        ],
    )
    def test_s1_another_driver_is_refused_by_name(self, tmp_path: Path, driver: str, works: str) -> None:
        """A store is never opened by another driver than its URL names; the error says what to write."""
        where = f"{tmp_path}/x.db" if driver.startswith("sqlite") else "nobody@nowhere/x"
        for url in (f"{driver}:///{where}", sa.engine.make_url(f"{driver}:///{where}")):
            with pytest.raises(tape.InvalidEntry) as caught:
                tape.open(url)
            assert caught.value.field == "url"
            assert repr(driver) in str(caught.value)
            assert works in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_s1_the_usual_drivers_may_be_named(self, tmp_path: Path) -> None:
        """The driver that works can be written out."""
        tape.open(f"sqlite+pysqlite:///{tmp_path}/x.db").close()
        tape.open(f"sqlite:///{tmp_path}/x.db").close()

    @pytest.mark.parametrize("threads", [0, -1, None, "8", 2.5, True])
    def test_s1_a_number_of_threads_is_one(self, threads: Any) -> None:
        """Without a thread nothing could ever be awaited."""
        with pytest.raises(tape.InvalidEntry, match="threads"):
            tape.open_async(":memory:", threads=threads)

    @pytest.mark.alike
    @pytest.mark.blank
    @pytest.mark.parametrize("timeout", [0, 0.0001, 10**12, float("inf")])
    def test_s1_any_time_can_be_waited(self, backend: Backend, timeout: float) -> None:
        """None at all, less than the engines can tell, or for ever: 0 does not mean for ever on PostgreSQL."""
        store = backend.open(timeout=timeout, slow=float("inf"))
        assert store.create("a").append(role="user", content="x").seq == 2
        if backend.postgres:
            shown = store._db.read(lambda tx: tx.execute("SHOW lock_timeout").fetchone())
            assert shown[0] != "0"

    @pytest.mark.parametrize("clock", [lambda: None, lambda: "now", lambda: 1.5, lambda: 2**62, lambda: 2**70])
    def test_s1_a_clock_tells_the_time(self, clock: Any) -> None:
        """What is no number of microseconds is refused with the write that meets it, and nothing is written."""
        with tape.open(":memory:", clock=clock) as store:
            with pytest.raises(tape.InvalidEntry, match="clock"):
                store.tape("a").append(role="user", content="x")
            assert store.list().items == []

    @pytest.mark.parametrize("count", [None, "5", 1.5, -1])
    def test_s1_a_counter_counts(self, count: Any) -> None:
        """What is no number of tokens is refused with the call that meets it."""
        with tape.open(":memory:", counter=lambda text: count) as store:
            chat = store.create("a", messages=[{"role": "user", "content": "x"}])
            for call in (lambda: chat.set_block("b", "text", max_tokens=5), lambda: chat.context(budget=100)):
                with pytest.raises(tape.InvalidEntry, match="counter"):
                    call()
            assert chat.info().head == 2


@pytest.mark.parametrize("read_only", [False, True])
def test_s1_a_name_that_is_no_utf8_opens_again(tmp_path: Path, read_only: bool) -> None:
    """Names of files are bytes: one that is no text opens as often as any other."""
    path = f"{tmp_path}/x\udcff.db"
    with tape.open(path) as store:
        store.tape("t").append(role="user", content="first")
    with tape.open(path, read_only=read_only) as store:
        assert len(store.tape("t").messages()) == 1
