"""What an attack found about input: promises that must hold for whatever a caller passes, on both engines."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import resource
import signal
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from support.backends import Backend
from support.damage import Tamperer
from support.shell import Shell

import tape
from tape.core.entries import payloads
from tape.db import rls
from tape.db.engine.guests import open_database
from tape.db.maintain.inspect import look, missing_guards
from tape.db.maintain.repair import restore_guards
from tape.db.schema.migrate import upgrade


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


SAID = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]

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


WRONG_FIELDS = (
    b'{"id": 5, "message": 7, "label": 1, "op": null, "name": [], "slot": {}, "tape": 1, "input_tokens": "many", '
    b'"ids": 1, "status": 2, "read_only": null, "parent": 3, "labels": 4, "child": 5, "reason": 6}'
)

DAMAGES: dict[str, tuple[str, Any]] = {
    "no JSON": ("payload", b"\xff not JSON"),
    "another type": ("payload", b"[1, 2]"),
    "nothing of it": ("payload", b"{}"),
    "wrong fields": ("payload", WRONG_FIELDS),
    "meta": ("meta", b"{no JSON"),
    "the head": ("head_tape", 424242),
}
"""What may have become of an entry: the column, and what stands in it."""


def _everything(store: tape.Store, id: str) -> tape.Tape:
    """Return a tape with an entry of nearly every kind, in a family."""
    chat = store.create(
        id, messages=[{"id": "m1", "role": "user", "content": "hello there"}], labels=["l"], meta={"a": 1}
    )
    chat.append({"id": "m2", "role": "assistant", "content": "hello again"})
    chat.revise("m1", content="hello once more")
    chat.retract("m2")
    chat.restore("m2")
    chat.set_block("b", "text")
    chat.put("s", 1)
    chat.record_usage(input_tokens=3, cost=4)
    chat.event("score", {"n": 1})
    chat.extend([{"id": f"n{n}", "role": "user", "content": "hello"} for n in range(3)])
    chat.set_summary("in short", first="n0", last="n1")
    child = chat.fork(f"{id}/child")
    child.append(role="assistant", content="hello from the child")
    chat.merge(child)
    lost = chat.fork(f"{id}/lost")
    lost.discard("no use")
    chat.anchor("a")
    chat.handoff("h", summary="done")
    chat.rename("name")
    chat.label("more")
    chat.switch("n2")
    chat.clear()
    chat.complete()
    chat.reopen()
    return chat


class TestRecordable:
    """E9: no write stores what a read cannot decode."""

    @pytest.mark.parametrize(
        "given",
        [{"read_only": None}, {"read_only": 1}, {"read_only": "yes"}, {"description": 5}, {"max_tokens": 2.5}],
        ids=str,
    )
    def test_e9_a_block_of_no_such_configuration_is_refused(self, chat: tape.Tape, given: dict[str, Any]) -> None:
        """It is InvalidEntry with the parameter, and the tape and the feed can be read as before."""
        chat.set_block("memory", "x")
        before = chat.info()
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.set_block("memory", "y", **given)
        assert caught.value.field == next(iter(given))
        assert chat.info() == before
        assert [block.text for block in chat.blocks()] == ["x"]
        assert len(list(chat.entries())) == before.head

    def test_e9_what_every_kind_records_can_be_read_back(self) -> None:
        """Of every kind, with any field replaced by anything, what is recorded decodes to the same or is refused."""
        values: list[Any] = [
            None,
            5,
            5.0,
            "x",
            "\ud800",
            [1],
            [None],
            {"a": [()]},
            (1,),
            b"x",
            object(),
            float("nan"),
            True,
        ]
        with tape.open(":memory:") as store:
            _everything(store, "a")
            recorded = {entry.kind: entry.payload for entry in store.feed()}
        assert len(recorded) == 19
        refused = 0
        for kind, payload in recorded.items():
            assert payload is not None
            assert payloads.decode(kind, 1, payloads.recordable(payload)) == payload
            for field in payload.__struct_fields__:
                for value in values:
                    changed = msgspec.structs.replace(payload, **{field: value})
                    try:
                        raw = payloads.recordable(changed)
                    except tape.InvalidEntry:
                        refused += 1
                        continue
                    assert payloads.decode(kind, 1, raw) == changed
        assert refused > 500

    def test_e9_a_long_message_is_looked_at_once(self, chat: tape.Tape) -> None:
        """The rest of a long append is checked without its message, which was compared when it was encoded."""
        said = {"role": "user", "content": "long " * 2_000, "more": {"list": [1, 2.5, None, True]}}
        raw = msgspec.Raw(msgspec.json.encode(said))
        fine = payloads.Append(id="m", message=raw)
        assert payloads.decode("append", 1, payloads.recordable(fine)) == payloads.Append(id="m", message=said)
        with pytest.raises(tape.InvalidEntry):
            payloads.recordable(payloads.Append(id="m", message=raw, tokens="many"))  # type: ignore[arg-type]
        chat.append(said)
        assert chat.messages()[0].to_dict() == said


class TestUnreadable:
    """One entry that cannot be read is a fault of its tape, and of no other."""

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_v5_an_unreadable_entry_stops_nothing_for_other_tapes(
        self, backend: Backend, store: tape.Store, damage: str
    ) -> None:
        """Feed, consumers, list, retain, rebuild, search and verify go on, whichever entry is damaged."""
        _everything(store, "good")
        bad = _everything(store, "bad")
        store.search("hello")
        whole = list(store.feed())
        infos = {info.id: info for info in store.list()}
        column, value = DAMAGES[damage]
        attack = Tamperer(backend)
        number = attack.tape_id("bad")
        # Whichever entry it is, what is read of it is the same on both engines: one of them need not try each.
        for seq in range(1, bad.info().head + 1, 6 if backend.postgres else 1):
            kept = attack.entry(number, seq)
            at = {"tape_id": number, "seq": seq}
            assert attack.update("tape_entries", at, {column: value}) == 1
            with backend.open() as other:
                if kept[column] != value:
                    self._holds(other, whole, infos, seq)
                attack.update("tape_entries", at, {column: kept[column]})
                # What could be read, though it was never written, was folded into the view.
                other.rebuild("bad")
        with backend.open() as other:
            assert other.verify().ok
            assert other.rebuild() == 6
        attack.close()

    def _holds(self, store: tape.Store, whole: list[tape.Entry], infos: dict[str, tape.TapeInfo], seq: int) -> None:
        found = list(store.feed())
        assert [(one.tape, one.seq, one.key, one.position) for one in found] == [
            (one.tape, one.seq, one.key, one.position) for one in whole
        ]
        for entry, before in zip(found, whole, strict=True):
            if (entry.tape, entry.seq) != ("bad", seq):
                assert entry == before
            elif entry.unreadable is not None:
                assert entry.payload is None
                assert (entry.kind, entry.hash, entry.stamp) == (before.kind, before.hash, before.stamp)
        assert list(store.follow(timeout=0)) == found
        consumer = store.consumer("c")
        assert list(consumer) == found
        listed = {info.id: info for info in store.list()}
        assert {name: info for name, info in listed.items() if name != "bad"} == {
            name: info for name, info in infos.items() if name != "bad"
        }
        assert "bad" in listed
        told = store.retain(older_than=datetime.timedelta(0))
        assert {"good", "good/child", "good/lost"} <= set(told.tapes)
        assert set(told.tapes) | set(told.kept) == set(infos)
        report = store.verify()
        assert {problem.tape for problem in report.problems} == {"bad"}
        assert seq in {problem.seq for problem in report.problems}
        assert report.tapes == 6
        assert store.rebuild() >= 3
        assert {hit.tape for hit in store.search("hello")} >= {"good/child"}
        good = store.get("good")
        assert good.verify().ok
        good.context()
        store.export("good", io.BytesIO(), family=True)

    def test_v5_an_unreadable_tape_can_be_purged(self, backend: Backend, store: tape.Store) -> None:
        """A tape whose texts cannot be read any more goes with its forks, by ``purge`` and by ``retain``."""
        for call in ("purge", "retain"):
            bad = _everything(store, f"bad-{call}")
            good = _everything(store, f"good-{call}")
            store.search("hello")
            attack = Tamperer(backend, guarded=call == "retain")
            number = attack.tape_id(bad.id)
            for entry in bad.entries(kinds=["append", "revise", "usage", "block"]):
                attack.update("tape_entries", {"tape_id": number, "seq": entry.seq}, {"payload": b"no JSON"})
            attack.close()
            if call == "purge":
                assert store.purge(bad.id, forks=True).tapes == [bad.id, f"{bad.id}/child", f"{bad.id}/lost"]
            else:
                told = store.retain(older_than=datetime.timedelta(0), dry_run=False)
                assert {bad.id, good.id} <= set(told.tapes)
            with pytest.raises(tape.TapeNotFound):
                store.get(bad.id)
            if call == "purge":
                assert {hit.tape for hit in store.search("from the child")} == {f"{good.id}/child"}
            assert store.verify().ok

    def test_v5_the_tape_itself_says_what_is_damaged(self, backend: Backend, store: tape.Store) -> None:
        """Reads of the damaged tape are Corrupt, with the tape and the seq, and never another error."""
        chat = _everything(store, "bad")
        reads: list[Callable[[], Any]] = [
            chat.info,
            chat.messages,
            chat.context,
            chat.blocks,
            chat.states,
            chat.usage,
            chat.summaries,
            chat.anchors,
            chat.heads,
            chat.lineage,
            lambda: list(chat.entries()),
            lambda: chat.search("hello"),
            lambda: store.rebuild("bad"),
            lambda: store.export("bad", io.BytesIO()),
            lambda: chat.at(5).info(),
            lambda: chat.put("s", 2),
            lambda: chat.append_block("b", "x"),
            lambda: chat.fork(),
        ]
        attack = Tamperer(backend)
        number = attack.tape_id("bad")
        caught = []
        for column, value in DAMAGES.values():
            for seq in range(1, 12):
                kept = attack.entry(number, seq)
                at = {"tape_id": number, "seq": seq}
                attack.update("tape_entries", at, {column: value})
                for read in reads:
                    try:
                        read()
                    except tape.Corrupt as error:
                        caught.append((error.tape, error.seq))
                attack.update("tape_entries", at, {column: kept[column]})
        assert set(caught) == {("bad", seq) for seq in range(1, 12)}
        attack.close()

    def test_v5_an_async_feed_goes_on_as_well(self, backend: Backend, store: tape.Store) -> None:
        """The async twins of feed, follow and consumer show the same entries."""
        chat = _everything(store, "bad")
        attack = Tamperer(backend)
        attack.update("tape_entries", {"tape_id": attack.tape_id("bad"), "seq": 3}, {"payload": b"no JSON"})
        attack.close()
        expected = list(store.feed())
        assert [one.seq for one in expected if one.unreadable] == [3]
        assert chat.info().head > 3

        async def read() -> list[list[tape.Entry]]:
            async with tape.open_async(backend.url, **backend.options) as other:
                return [
                    [entry async for entry in other.feed()],
                    [entry async for entry in other.follow(timeout=0)],
                    [entry async for entry in other.consumer("c")],
                ]

        assert asyncio.run(read()) == [expected] * 3


class TestBinding:
    """C5: what a bound store writes commits with the caller's transaction, so there must be one."""

    @pytest.mark.parametrize("how", ["of the engine", "of the connection", "of an engine's options"])
    def test_c5_a_connection_in_autocommit_is_refused(self, backend: Backend, store: tape.Store, how: str) -> None:
        """A receipt that nobody commits is worth nothing: InvalidEntry, at once, and nothing is left open."""
        store.create("a")
        engine = sa.create_engine(backend.url, **({"isolation_level": "AUTOCOMMIT"} if how == "of the engine" else {}))
        if how == "of an engine's options":
            engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            if how == "of the connection":
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(tape.InvalidEntry) as caught:
                store.bind(connection).tape("a").append(role="user", content="x")
            assert caught.value.field == "connection"
            assert not connection.in_transaction()
        engine.dispose()
        assert store.get("a").info().head == 1
        store.get("a").append(role="user", content="still open to others")

    def test_c5_a_driver_that_commits_by_itself_is_refused(self, postgres_url: sa.URL) -> None:
        """SQLAlchemy need not know of it: the connection of the driver tells."""
        engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
        with tape.open(postgres_url, schema="autocommit") as store, engine.connect() as connection:
            connection.connection.driver_connection.autocommit = True  # type: ignore[union-attr]
            with pytest.raises(tape.InvalidEntry):
                store.bind(connection)

    def test_c5_one_that_changes_its_mind_is_refused_as_well(self, backend: Backend, store: tape.Store) -> None:
        """The level is looked at with every call, since a connection can be told another in between."""
        store.create("a")
        engine = backend.engine()
        with engine.connect() as connection:
            bound = store.bind(connection)
            bound.tape("a").append(role="user", content="x")
            connection.commit()
            connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(tape.InvalidEntry):
                bound.tape("a").append(role="user", content="y")
        engine.dispose()
        assert store.get("a").info().message_count == 1


class TestFiles:
    """S14: what a file system refuses is a TapeError, and leaves nothing behind."""

    @pytest.fixture
    def tight(self) -> Callable[[int], contextlib.AbstractContextManager[None]]:
        """Let no file of this process grow beyond a size, as on a disk that is full."""

        @contextlib.contextmanager
        def limited(size: int) -> Iterator[None]:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                signal.signal(signal.SIGXFSZ, before)

        return limited

    @pytest.mark.parametrize("size", [0, 1, 10_000, 300_000])
    def test_s14_an_export_on_a_full_disk_is_told(
        self, anywhere: tape.Store, exported: bytes, tight: Any, tmp_path: Path, size: int
    ) -> None:
        """However far it comes it is StoreFailed, the part is removed, and what had the name is as before."""
        anywhere.import_(io.BytesIO(exported))
        target = tmp_path / "out" / "a.jsonl"
        target.parent.mkdir()
        target.write_bytes(b"before")
        assert len(exported) > 300_000
        with tight(size), pytest.raises(tape.StoreFailed, match="cannot write") as caught:
            anywhere.export("there", target)
        assert isinstance(caught.value.__cause__, OSError)
        assert [path.name for path in target.parent.iterdir()] == ["a.jsonl"]
        assert target.read_bytes() == b"before"
        anywhere.export("there", target)
        assert target.read_bytes() == exported

    def test_s14_an_export_into_a_file_that_is_full_is_told(self, anywhere: tape.Store, exported: bytes) -> None:
        """The same for a file that the caller has opened."""
        anywhere.import_(io.BytesIO(exported))
        with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(tape.StoreFailed, match="cannot write"):
            anywhere.export("there", full)

    def test_s16_a_backup_on_a_full_disk_is_told(self, exported: bytes, tight: Any, tmp_path: Path) -> None:
        """It is StoreFailed and leaves no part behind."""
        with tape.open(":memory:") as store:
            store.import_(io.BytesIO(exported))
            for size in (0, 10_000):
                with tight(size), pytest.raises(tape.StoreFailed):
                    store.backup(tmp_path / "copy.db")
                assert list(tmp_path.iterdir()) == []
            with pytest.raises(tape.StoreFailed, match="cannot write"):
                store.backup(tmp_path)
            assert list(tmp_path.iterdir()) == []

    def test_s14_a_file_that_cannot_be_read_is_told(self, anywhere: tape.Store, exported: bytes) -> None:
        """An error of the file while an import reads it is InvalidEntry, and nothing is imported."""

        class Failing(io.BytesIO):
            def readline(self, size: int | None = -1) -> bytes:
                if self.tell() > 100_000:
                    raise OSError(5, "Input/output error")
                return super().readline(size)

        with pytest.raises(tape.InvalidEntry, match="Input/output"):
            anywhere.import_(Failing(exported))
        assert anywhere.list().items == []


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

    @pytest.mark.parametrize("threads", [0, -1, None, "8", 2.5, True])
    def test_s1_a_number_of_threads_is_one(self, threads: Any) -> None:
        """Without a thread nothing could ever be awaited."""
        with pytest.raises(tape.InvalidEntry, match="threads"):
            tape.open_async(":memory:", threads=threads)

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


class TestCommand:
    """What the command prints can be sent to a terminal."""

    def test_json_holds_no_control_character(self, lite: Shell) -> None:
        """C1, DEL and what turns a line around are escapes in JSON, and read back as they were."""
        said = "".join(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x200E, 0x2028, 0x202E, 0x2066, 0xFEFF])) + "é"
        with lite.backend.open() as store:
            chat = store.create("a", messages=[{"role": "user", "content": said}])
            chat.event("score", {said: said})
        for command in (("log", "a", "--json"), ("show", "a", "2", "--json"), ("context", "a", "--json")):
            printed = lite(*command).out
            shown = [char for char in printed if unicodedata.category(char) in ("Cc", "Cf", "Zl") and char != "\n"]
            assert (command, shown) == (command, [])
        [message] = [entry["payload"]["message"] for entry in lite("log", "a", "--json").json if entry["seq"] == 2]
        assert message["content"] == said
