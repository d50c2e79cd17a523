"""What an attack found about input: promises that must hold for whatever a caller passes, on both engines."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from conftest import Backend
from damage import Tamperer
from psycopg import sql

import tape
from tape.db import rls
from tape.db.condition import look, missing_guards
from tape.db.database import open_database
from tape.db.mending import restore_guards
from tape.db.migrate import upgrade


class TestUpsert:
    """T9: an upsert that is equal to what holds writes nothing, however the id was given."""

    @pytest.mark.parametrize("first", ["beside", "inside"])
    @pytest.mark.parametrize("again", ["beside", "inside", "both"])
    def test_t9_an_equal_upsert_is_a_duplicate_wherever_the_id_stands(
        self, chat: tape.Tape, first: str, again: str
    ) -> None:
        """An id is the same whether it stands in the message or beside it."""
        said: dict[str, Any] = {"role": "user", "content": "one"}

        def given(how: str, content: str) -> tuple[dict[str, Any], dict[str, Any]]:
            inside = {"id": "m"} if how in ("inside", "both") else {}
            return {**said, "content": content, **inside}, {"id": "m"} if how in ("beside", "both") else {}

        message, options = given(first, "one")
        receipt = chat.upsert(message, **options)
        for content in ("one", "two", "one"):
            message, options = given(again, content)
            written = chat.upsert(message, **options)
            repeated = chat.upsert(message, **options)
            assert repeated.duplicate
            assert repeated.seq == written.seq
        assert chat.upsert(message, **options).seq == chat.message("m").revision == receipt.seq + 2
        assert chat.revise("m", {"id": "m", **said}).duplicate
        assert chat.revise("m", said).duplicate
        assert chat.info().head == receipt.seq + 2


SAID = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]

STRANGERS: dict[str, Any] = {
    "a message": lambda chat, key: chat.append(role="user", content="a stranger", key=key),
    "an equal message": lambda chat, key: chat.append(SAID[int(key[-1]) % 3], key=key),
    "an upsert": lambda chat, key: chat.upsert({"role": "user", "content": "a stranger"}, key=key),
    "an event": lambda chat, key: chat.event("stranger", key=key),
    "an anchor": lambda chat, key: chat.anchor("stranger", key=key),
}
"""Writes under a key that looks like one of a batch."""


class TestBatchKeys:
    """E2: a keyed batch is one write, whatever other keys look like."""

    @pytest.mark.parametrize("stranger", STRANGERS)
    @pytest.mark.parametrize("number", [0, 1, 2, 3])
    def test_e2_a_batch_can_be_repeated_whoever_uses_a_key_like_its_own(
        self, guest: tape.Store, stranger: str, number: int
    ) -> None:
        """A retry after a lost reply is a duplicate, also when a key like the next of the batch was used since."""
        chat = guest.create()
        if number == 3:
            first = chat.extend(SAID, key="k")
            STRANGERS[stranger](chat, "k#3")
        else:
            STRANGERS[stranger](chat, f"k#{number}")
            first = chat.extend(SAID, key="k")
        assert [receipt.duplicate for receipt in first] == [False] * 3
        head = chat.info().head
        again = chat.extend(SAID, key="k")
        assert [receipt.duplicate for receipt in again] == [True] * 3
        assert [(one.seq, one.key) for one in again] == [(one.seq, one.key) for one in first]
        ordinary = [f"k#{index}" for index in range(3) if index != number]
        assert [one.key for one in first if not one.key.startswith("~")] == ordinary
        for others in (SAID[:2], [*SAID, SAID[0]], [*SAID[:2], {"role": "user", "content": "other"}]):
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend(others, key="k")
        assert chat.info().head == head
        assert chat.verify().ok

    def test_e2_a_stranger_is_repeated_by_its_own_key(self, guest: tape.Store) -> None:
        """A caller's key that looks like one of a batch stays the caller's."""
        chat = guest.create()
        alone = chat.append(role="user", content="alone", key="k#1")
        chat.extend(SAID, key="k")
        again = chat.append(role="user", content="alone", key="k#1")
        assert (again.duplicate, again.seq, again.message_id) == (True, alone.seq, alone.message_id)
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(role="user", content="other", key="k#1")

    @pytest.mark.parametrize("key", ["k", "k" * 255])
    def test_e2_a_history_is_replaced_once_whoever_uses_a_key_like_its_own(self, guest: tape.Store, key: str) -> None:
        """The messages of ``replace_history`` are keyed like a batch, and repeated like one."""
        chat = guest.create()
        kept = {"id": "m", "role": "user", "content": "stays"}
        chat.append(kept, key="k#0")
        first = chat.replace_history([kept, SAID[1]], key=key)
        again = chat.replace_history([kept, SAID[1]], key=key)
        assert [one.seq for one in again] == [one.seq for one in first]
        assert all(one.duplicate for one in again)
        assert [message.content for message in chat.messages()] == ["stays", "two"]

    def test_e2_messages_that_were_there_before_have_no_key_of_the_batch(self, guest: tape.Store) -> None:
        """A batch that continues what is on the tape is repeated as a whole, with the receipts of both."""
        chat = guest.create()
        there = {"id": "m", "role": "user", "content": "there"}
        before = chat.append(there)
        chat.event("stranger", key="k#1")
        first = chat.extend([there, SAID[1]], key="k")
        assert first[0].seq == before.seq
        assert [one.seq for one in chat.extend([there, SAID[1]], key="k")] == [one.seq for one in first]

    def test_e2_batches_of_an_older_release_are_known_by_their_keys(self, backend: Backend, store: tape.Store) -> None:
        """Entries that do not tell their place in a batch are held to belong to it, as they always were."""
        chat = store.create("chat")
        first = chat.extend(SAID, key="k")
        damage = Tamperer(backend)
        for receipt in first:
            row = damage.entry(damage.tape_id("chat"), receipt.seq)
            payload = msgspec.json.decode(row["payload"])
            payload.pop("batch", None)
            damage.update("tape_entries", {"seq": receipt.seq, "key": receipt.key}, {"payload": _json(payload)})
        damage.close()
        assert [one.seq for one in chat.extend(SAID, key="k")] == [one.seq for one in first]
        for others in (SAID[:2], [*SAID, SAID[0]], [*SAID[:2], {"role": "user", "content": "other"}]):
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend(others, key="k")


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


READS: dict[str, Callable[[tape.Store], Any]] = {
    "list": lambda store: store.list().items,
    "feed": lambda store: list(store.feed()),
    "stats": lambda store: store.stats(),
    "health": lambda store: store.health(),
    "info": lambda store: store.tape("here").info(),
    "messages": lambda store: store.get("here").messages(),
    "context": lambda store: store.get("here").context(),
    "search": lambda store: store.search("word"),
    "verify": lambda store: store.get("here").verify().ok,
    "export": lambda store: store.export("here", io.BytesIO()),
}
"""Reads that a callback may make while a call is under way."""


def _exported(count: int) -> bytes:
    """Return a file with a tape of so many messages that an import tells several times how far it is."""
    with tape.open(":memory:") as source:
        chat = source.create("there")
        for _ in range(count):
            chat.append(role="user", content="word " * 400)
        written = io.BytesIO()
        source.export("there", written)
        return written.getvalue()


@pytest.fixture(scope="module")
def exported() -> bytes:
    return _exported(200)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tape.Store]:
    """A store on either engine, or in memory, where one connection serves all."""
    if request.param == "memory":
        with tape.open(":memory:", timeout=2) as store:
            yield store
        return
    backend = request.getfixturevalue("make_backend")(request.param, tmp_path)
    yield backend.open(timeout=2)
    backend.close()


class TestCallbacks:
    """What a callback does while a call is under way neither breaks the call nor is broken by it."""

    @pytest.mark.parametrize("read", READS)
    def test_s14_a_read_inside_an_import_leaves_it_whole(
        self, anywhere: tape.Store, exported: bytes, read: str
    ) -> None:
        """Whatever is read while an import tells how far it is, all of the import is there afterwards."""
        anywhere.create("here", messages=[{"role": "user", "content": "word"}])
        calls = []

        def progress(done: int, total: int) -> None:
            READS[read](anywhere)
            calls.append(done)

        moved = anywhere.import_(io.BytesIO(exported), progress=progress)
        assert len(calls) > 4
        assert moved.entries == 201
        assert anywhere.get("there").info().message_count == 200
        assert anywhere.verify().ok

    def test_s14_a_write_inside_an_import_is_refused_or_done(self, anywhere: tape.Store, exported: bytes) -> None:
        """A write from the callback of an import is recorded, or refused by a TapeError; the import is whole."""
        here = anywhere.create("here")
        done: list[int] = []
        refused: list[tape.TapeError] = []

        def progress(at: int, total: int) -> None:
            try:
                done.append(here.append(role="user", content="meanwhile").seq)
            except tape.TapeError as error:
                refused.append(error)

        assert anywhere.import_(io.BytesIO(exported), progress=progress).entries == 201
        assert len(done) + len(refused) > 4
        assert here.info().message_count == len(done)
        assert anywhere.verify().ok

    def test_s14_what_fails_inside_an_import_leaves_nothing(self, anywhere: tape.Store, exported: bytes) -> None:
        """An error of the callback after a read of its own stops the import, and nothing of it stays."""
        anywhere.create("here")

        def progress(at: int, total: int) -> None:
            anywhere.list()
            if at > total * 0.7:
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            anywhere.import_(io.BytesIO(exported), progress=progress)
        assert [info.id for info in anywhere.list()] == ["here"]
        assert anywhere.import_(io.BytesIO(exported)).entries == 201
        assert anywhere.verify().ok

    @pytest.mark.parametrize("read", READS)
    @pytest.mark.parametrize("call", ["verify", "rebuild", "export"])
    def test_v1_a_read_inside_a_long_call_does_not_disturb_it(
        self, anywhere: tape.Store, exported: bytes, call: str, read: str
    ) -> None:
        """Verify, rebuild and export come to the same, whatever their callbacks read."""
        anywhere.import_(io.BytesIO(exported))
        anywhere.create("here", messages=[{"role": "user", "content": "word"}])
        calls = []

        def progress(done: int, total: int) -> None:
            READS[read](anywhere)
            calls.append(done)

        if call == "verify":
            assert anywhere.verify(progress=progress).ok
        elif call == "rebuild":
            assert anywhere.rebuild(progress=progress) == 2
        else:
            written = io.BytesIO()
            anywhere.export("there", written, progress=progress)
            assert written.getvalue() == exported
        assert calls
        assert anywhere.verify().ok

    def test_v1_a_write_inside_a_check_is_refused_or_done(self, anywhere: tape.Store, exported: bytes) -> None:
        """A write from the callback of ``verify`` is recorded, or refused by a TapeError that changes nothing."""
        anywhere.import_(io.BytesIO(exported))
        here = anywhere.create("here")
        done: list[int] = []

        def progress(at: int, total: int) -> None:
            with contextlib.suppress(tape.TapeError):
                done.append(here.append(role="user", content="meanwhile").seq)

        assert anywhere.verify("there", progress=progress).ok
        assert here.info().message_count == len(done)
        assert anywhere.verify().ok

    def test_c12_counters_and_migrators_may_read(self, tmp_path: Path) -> None:
        """A token counter and a slot's migrator are called inside a transaction, and may read the store."""
        stores: list[tape.Store] = []

        def count(text: str) -> int:
            return len(stores[0].list().items) if stores else 0

        def migrate(value: Any) -> Any:
            return {"was": value, "tapes": len(stores[0].list().items)}

        slot = tape.Slot("s", version=2, migrate={1: migrate})
        for url in (":memory:", str(tmp_path / "a.db")):
            with tape.open(url, counter=count, slots=[slot]) as store:
                stores[:] = [store]
                chat = store.create("a")
                chat.set_block("b", "text", max_tokens=10)
                assert chat.context().tokens >= 1
                assert chat.blocks()[0].tokens == 1

    def test_s14_another_thread_waits_no_longer_than_it_may(self, exported: bytes) -> None:
        """In memory a read waits for the writer, and is StoreBusy when that takes longer than the timeout."""
        with tape.open(":memory:", timeout=0.05) as store:
            told: list[BaseException] = []

            def look() -> None:
                try:
                    store.list()
                except tape.TapeError as error:
                    told.append(error)

            def progress(done: int, total: int) -> None:
                if done > total * 0.6 and not told:
                    other = threading.Thread(target=look)
                    other.start()
                    other.join(30)

            assert store.import_(io.BytesIO(exported), progress=progress).entries == 201
            assert [type(error) for error in told] == [tape.StoreBusy]
            assert store.verify().ok


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
            with store._db.engine.begin() as connection:
                rls.enable(connection, role=str(postgres_url.username), schema=schema)
                rls.disable(connection, schema=schema)
        with tape.open(postgres_url, schema=schema) as store:
            assert store.get("a").verify().ok
        after = admin.execute("SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%'").fetchall()
        assert set(after) - set(before) == {(schema,)}

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
