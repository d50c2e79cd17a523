"""PgBouncer in transaction mode: whoever uses the store behind it sees no difference, and leaves nothing in a session.

There are fewer sessions than writers, so that each is used by all of them in turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from support.backends import Backend, MakeBackend, dsn
from support.installing import program
from support.processes import PATIENCE, scaled, until
from support.second_release import SECOND, second_release

import tape
from benchmarks.pgbouncer import pooled
from tape.db import rls
from tape.db.engine.connect import _options
from tape.db.engine.transaction import lock_key
from tape.db.schema.tables import REVISION

SESSIONS, WRITERS = 4, 16


@pytest.fixture(scope="module")
def pgbouncer() -> str:
    return program(
        ["pgbouncer"],
        variable="TAPE_TEST_PGBOUNCER",
        package="pgbouncer",
        without="NO PGBOUNCER: the store is not tested behind one.",
    )


@pytest.fixture(scope="module")
def crowded(pgbouncer: str, postgres_url: sa.URL) -> Iterator[sa.URL]:
    """Four sessions for all clients."""
    with pooled(pgbouncer, postgres_url, sessions=SESSIONS) as url:
        yield url


@pytest.fixture(scope="module")
def single(pgbouncer: str, postgres_url: sa.URL) -> Iterator[sa.URL]:
    """One session, which every transaction of every client gets."""
    with pooled(pgbouncer, postgres_url, sessions=1) as url:
        yield url


@pytest.fixture
def direct(make_backend: MakeBackend, tmp_path: Path) -> Iterator[Backend]:
    """A database with an empty store, reached without a pooler."""
    with make_backend("postgresql", tmp_path) as made:
        yield made


def behind(url: sa.URL, direct: Backend) -> Backend:
    """Return the same database as it is reached through a pooler."""
    return Backend("postgresql", url, direct.schema, leave=lambda: None)


@pytest.fixture
def backend(crowded: sa.URL, direct: Backend) -> Iterator[Backend]:
    with behind(crowded, direct) as made:
        yield made


@pytest.fixture
def alone(single: sa.URL, direct: Backend) -> Iterator[Backend]:
    with behind(single, direct) as made:
        yield made


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work`` in so many threads from one shot."""
    shot = threading.Barrier(count)

    def run(number: int) -> Any:
        shot.wait(PATIENCE)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [done.result(PATIENCE) for done in [pool.submit(run, number) for number in range(count)]]


def check_whole(store: tape.Store, acknowledged: list[tape.Receipt]) -> None:
    """Hold that the feed has every acknowledged entry once, each tape's in order, and that all of it verifies."""
    seqs = defaultdict(list)
    for entry in store.feed():
        seqs[entry.tape].append(entry.seq)
    assert all(found == list(range(1, len(found) + 1)) for found in seqs.values())
    assert {(one.tape, one.seq) for one in acknowledged} <= {(name, seq) for name in seqs for seq in seqs[name]}
    assert len({(one.tape, one.seq) for one in acknowledged}) == len(acknowledged)
    assert store.verify().problems == []


def state_of(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return what could be left in a session."""
    names = (
        "lock_timeout enable_seqscan enable_memoize jit synchronous_commit default_transaction_read_only search_path"
    )
    with connection.transaction():
        state = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in [*names.split(), "role"]}
        for what, query in {
            "owner": "SELECT current_setting('tape.owner', true)",
            "channels": "SELECT count(*) FROM pg_listening_channels()",
            "locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
            "tables": "SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()",
            "cursors": "SELECT count(*) FROM pg_cursors WHERE is_holdable",
            "prepared": "SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'tape\\_%'",
        }.items():
            state[what] = connection.execute(query.encode()).fetchone()
    return state


class TestWriting:
    @pytest.mark.heavy
    @pytest.mark.parametrize("tapes", [1, WRITERS])
    def test_sixteen_threads_share_four_sessions(self, backend: Backend, tapes: int) -> None:
        """Every append, batch and event of sixteen threads is recorded once, in order, and verifies."""
        store = backend.open()

        def write(number: int) -> list[tape.Receipt]:
            chat = store.tape(f"chat-{number % tapes}")
            receipts = []
            for turn in range(scaled(12)):
                receipts.append(
                    chat.append(role="user", content=f"100% of {number}'s \\ {turn}", key=f"{number}-{turn}")
                )
                receipts += chat.extend([{"role": "assistant", "content": f"{number} {turn} {n}"} for n in range(3)])
                receipts.append(chat.event("turn", {"number": turn}))
            return receipts

        acknowledged = [receipt for receipts in together(WRITERS, write) for receipt in receipts]
        check_whole(store, acknowledged)
        again = store.tape("chat-0").append(role="user", content="100% of 0's \\ 0", key="0-0")
        assert (again.duplicate, again.seq) == (True, next(one.seq for one in acknowledged if one.key == "0-0"))

    @pytest.mark.heavy
    def test_sixteen_tasks_share_four_sessions(self, backend: Backend) -> None:
        """The same holds for tasks of an async store, and a follower gets all of it."""
        turns = scaled(12)

        async def work() -> tuple[list[tape.Receipt], list[int]]:
            async with tape.open_async(backend.url, **backend.options) as store:

                async def write(number: int) -> list[tape.Receipt]:
                    chat = store.tape(f"chat-{number % 5}")
                    return [await chat.append(role="user", content=f"{number} {turn}") for turn in range(turns)]

                async def follow() -> list[int]:
                    seen = []
                    async for entry in store.follow(timeout=PATIENCE):
                        seen.append(entry.position)
                        if len(seen) == WRITERS * turns + 5:
                            break
                    return [position for position in seen if position is not None]

                following = asyncio.ensure_future(follow())
                written = await asyncio.gather(*(write(number) for number in range(WRITERS)))
                return [one for receipts in written for one in receipts], await following

        acknowledged, positions = asyncio.run(asyncio.wait_for(work(), PATIENCE))
        assert positions == sorted(set(positions))
        check_whole(backend.open(), acknowledged)

    @pytest.mark.heavy
    def test_transactions_and_forks_at_once(self, backend: Backend) -> None:
        """Transactions over two tapes, forks and their merges go on beside each other without a deadlock."""
        store = backend.open()
        store.create("shared", messages=[{"role": "user", "content": "begin"}])

        def write(number: int) -> list[tape.Receipt]:
            def both(inner: tape.Store) -> list[tape.Receipt]:
                first, second = ("shared", f"own-{number}") if number % 2 else (f"own-{number}", "shared")
                return [inner.tape(name).append(role="user", content=f"by {number}") for name in (first, second)]

            receipts = []
            for _ in range(scaled(4)):
                receipts += store.transaction(both)
                with store.tape("shared").fork() as child:
                    receipts.append(child.append(role="assistant", content=f"found by {number}"))
                    receipts.append(child.append(role="assistant", content=f"more by {number}"))
                    store.tape("shared").merge(child)
            return receipts

        receipts = [receipt for found in together(8, write) for receipt in found]
        check_whole(store, receipts)

    @pytest.mark.parametrize(
        "write",
        [
            lambda store: store.tape("chat").append(role="user", content="late"),
            lambda store: store.tape("chat").extend([{"role": "user", "content": "late"}] * 2),
            lambda store: store.tape("chat").fork("child"),
            lambda store: store.transaction(lambda inner: inner.tape("chat").append(role="user", content="late")),
        ],
        ids=["append", "batch", "fork", "transaction"],
    )
    def test_a_wait_for_another_writer_is_bounded(
        self, backend: Backend, direct: Backend, write: Callable[[tape.Store], Any]
    ) -> None:
        """The timeout of the store holds although no session knows of it."""
        store = backend.open(timeout=0.2)
        store.tape("chat").append(role="user", content="first")
        key = lock_key("chat", store._db.tables.lock_space)
        with direct.raw() as other, other.transaction():
            other.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            with pytest.raises(tape.StoreBusy):
                write(store)
        write(store)
        assert store.verify().ok


class TestTrips:
    @pytest.mark.parametrize(
        ("call", "trips"),
        [
            (lambda chat: chat.append(role="user", content="x"), 1),
            (lambda chat: chat.extend([{"role": "user", "content": "x"}] * 3), 1),
            (lambda chat: chat.event("step"), 1),
            # BEGIN, three queries, COMMIT.
            (lambda chat: chat.info(), 5),
        ],
        ids=["append", "batch", "event", "read"],
    )
    def test_settings_take_no_trip_of_their_own(
        self, single: sa.URL, alone: Backend, call: Callable[[tape.Tape], Any], trips: int
    ) -> None:
        """As many answers are waited for as without a pooler, which counts them."""
        store = alone.open()
        chat = store.tape("chat")
        chat.append(role="user", content="first")
        database: Any = store._db
        # Now and then a write tells followers of other processes.
        database._announce_after = float("inf")
        call(chat)
        with psycopg.connect(dsn(single.set(database="pgbouncer")), autocommit=True) as console:

            def answered() -> int:
                # The console knows only plain queries.
                rows = psycopg.ClientCursor(console, row_factory=dict_row).execute("SHOW STATS_TOTALS").fetchall()
                return sum(int(row["query_count"]) for row in rows if row["database"] == single.database)

            before = answered()
            for _ in range(10):
                call(chat)
            assert answered() - before == 10 * trips


class TestReading:
    def test_everything_reads_as_without_a_pooler(self, backend: Backend, direct: Backend, tmp_path: Path) -> None:
        """Views, contexts, searches, exports and the feed are equal on both ways to the same database."""
        store, plain = backend.open(), direct.open()
        chat = store.create("chat", owner="ann", messages=[{"role": "user", "content": "Plan the trip"}])
        chat.handoff("booking", summary="Dates fixed", next_steps=["hotel"])
        chat.put("plan", {"days": 3})
        chat.set_block("persona", "brief")
        chat.record_usage(input_tokens=10, output_tokens=5)
        last = chat.extend([{"role": "assistant", "content": f"Option {n}"} for n in range(30)])[-1]
        chat.revise(str(last.message_id), content="Option of the last resort")
        child = chat.fork("child", at=3)
        child.append(role="assistant", content="Hotels on the pelican coast")
        chat.merge(child)
        for one in (store, plain):
            with (tmp_path / "all.jsonl").open("wb") as file:
                one.export("child", file)
        texts = []
        for one in (store, plain):
            here = one.tape("chat")
            with (tmp_path / "chat.jsonl").open("wb") as file:
                one.export("chat", file)
            texts.append((tmp_path / "chat.jsonl").read_bytes())
            assert [hit.tape for hit in one.search("pelican")] == ["chat", "child"]
            assert here.context(budget=2_000).manifest == chat.context(budget=2_000).manifest
            assert here.at(5).messages() == chat.at(5).messages()
        assert texts[0] == texts[1]
        assert [entry.hash for entry in store.feed()] == [entry.hash for entry in plain.feed()]
        assert store.verify().problems == plain.verify().problems == []

    def test_a_follower_sees_what_others_write(self, backend: Backend, direct: Backend) -> None:
        """Nobody wakes it, so it looks at intervals: what was written before, meanwhile, and by whichever way."""
        store = backend.open()
        seen: list[str] = []

        def follow() -> None:
            for entry in store.follow(timeout=PATIENCE):
                seen.append(entry.tape)
                if len(seen) == 6:
                    return

        store.create("before")
        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        until(lambda: seen == ["before"], "the follower has begun")
        for name, other in (("pooled", backend.open()), ("plain", direct.open())):
            other.create(name, messages=[{"role": "user", "content": "x"}])
            until(lambda name=name: name in seen, "the follower has seen it")  # type: ignore[misc]
        store.create("after")
        follower.join(PATIENCE)
        assert (not follower.is_alive(), seen) == (True, ["before", "pooled", "pooled", "plain", "plain", "after"])

    def test_import_purge_and_a_store_that_is_only_read(
        self, backend: Backend, make_backend: MakeBackend, crowded: sa.URL, tmp_path: Path
    ) -> None:
        """An export is imported through the pooler, purged again, and can be read by a store that may not write."""
        store = backend.open()
        store.create("chat", messages=[{"role": "user", "content": f"heron {n}"} for n in range(700)])
        file = tmp_path / "chat.jsonl"
        with file.open("wb") as out:
            store.export("chat", out)
        with make_backend("postgresql", tmp_path) as elsewhere, behind(crowded, elsewhere) as made:
            other = made.open()
            with file.open("rb") as source:
                other.import_(source)
            with file.open("rb") as source:
                other.import_(source)
            assert other.get("chat").info().head_hash == store.get("chat").info().head_hash
            with made.open(read_only=True) as reader:
                assert len(reader.search("heron", limit=1000)) == 700
                with pytest.raises(tape.ReadOnly):
                    reader.create("more")
            assert other.verify().problems == []
            other.purge("chat")
            assert [info.id for info in other.list()] == []

    def test_an_applications_own_transaction(self, backend: Backend) -> None:
        """A store bound to a connection of the caller's writes in the caller's transaction."""
        store = backend.open()
        engine = sa.create_engine(backend.url, connect_args={"prepare_threshold": None})
        for turn in range(8):
            with engine.begin() as connection:
                store.bind(connection).tape("chat").append(role="user", content=f"kept {turn}")
            with engine.connect() as connection:
                store.bind(connection).tape("chat").append(role="user", content="rolled back")
        engine.dispose()
        assert [one.text for one in store.tape("chat").messages()] == [f"kept {turn}" for turn in range(8)]


class TestOpening:
    @pytest.mark.blank
    @pytest.mark.parametrize("start", ["empty", "older"])
    def test_eight_openers_create_or_upgrade_it_once(
        self, make_backend: MakeBackend, crowded: sa.URL, tmp_path: Path, start: str
    ) -> None:
        """Of eight that open one database at once through the pooler one does the work, and all can write."""
        with make_backend("postgresql", tmp_path, blank=True) as plain, behind(crowded, plain) as made:
            later = start == "older"
            if later:
                plain.open().close()
            with second_release() if later else nullcontext():
                stores = together(8, lambda _: made.open())
                receipts = together(
                    8, lambda number: stores[number].tape("new").append(role="user", content=str(number))
                )
                found = plain.reader.execute("SELECT version_num FROM tape_version").fetchall()
                assert found == [(SECOND if later else REVISION,)]
                assert sorted(one.seq for one in receipts) == list(range(2, 10))
                assert stores[0].verify().problems == []

    def test_settings_of_the_url_hold_in_every_transaction(
        self, pgbouncer: str, direct: Backend, postgres_url: sa.URL
    ) -> None:
        """Row-level security keeps owners apart whose transactions take turns in one session."""
        role = f"app_{direct.schema}"
        direct.open()
        engine = direct.engine()
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
            rls.enable(connection, role=role, schema=direct.schema)
        try:
            with pooled(pgbouncer, postgres_url.set(username=role), sessions=1) as url:
                _check_owners_apart(url, direct)
        finally:
            with engine.begin() as connection:
                rls.disable(connection, schema=direct.schema)
                connection.exec_driver_sql(f"DROP OWNED BY {role}")
                connection.exec_driver_sql(f"DROP ROLE {role}")
            engine.dispose()


def _check_owners_apart(url: sa.URL, direct: Backend) -> None:
    def opened(owner: str) -> tape.Store:
        bound = url.update_query_dict({"options": f"-c tape.owner={owner.replace(' ', chr(92) + ' ')}"})
        return tape.open(bound, schema=direct.schema, owner=owner)

    with opened("ann o'hara") as ann, opened("bob") as bob:
        for turn in range(5):
            for store in (ann, bob):
                name = f"of-{store.owner}"
                store.tape(name).append(role="user", content=f"pelican {turn}", id=f"m{turn}")
                store.tape(name).append(role="assistant", content="seen", parent=f"m{turn}")
                store.tape(name).fork(f"{name}-{turn}").append(role="user", content="heron")
        for store in (ann, bob):
            assert {entry.tape.split("-")[1] for entry in store.feed()} == {store.owner}
            assert (len(store.search("pelican")), len(store.list())) == (5, 6)
            assert store.verify().problems == []
        with pytest.raises(tape.TapeNotFound):
            ann.tape("of-bob").append(role="user", content="x")
    with psycopg.connect(dsn(url), autocommit=True, prepare_threshold=None) as other:
        assert state_of(other)["owner"] in ((None,), ("",))


class TestSessions:
    def test_a_session_of_its_own_is_set_once(self, direct: Backend) -> None:
        """Without a pooler nothing is set per transaction."""
        database: Any = direct.open(timeout=7.0)._db
        connection = database._open_connection()
        try:
            assert connection.execute("SHOW lock_timeout").fetchone() == ("7s",)
            assert (database.local, connection.prepare_threshold) == ("", 5)
        finally:
            connection.close()

    @pytest.mark.parametrize(
        ("options", "settings"),
        [
            ("", {}),
            ("-ctape.owner=ann", {"tape.owner": "ann"}),
            ("-c tape.owner=ann -c  jit=off", {"tape.owner": "ann", "jit": "off"}),
            ("--search-path=a,b --work_mem=1MB", {"search_path": "a,b", "work_mem": "1MB"}),
            (r"-c tape.owner=a\ b\\c=d -B5", {"tape.owner": r"a b\c=d"}),
        ],
    )
    def test_settings_of_a_url(self, options: str, settings: dict[str, str]) -> None:
        """They are read as PostgreSQL reads them."""
        assert _options(options) == settings

    def test_nothing_is_left_in_a_session(self, alone: Backend) -> None:
        """A client that shares the one session finds it as it was, whatever the store did before."""
        with psycopg.connect(dsn(alone.url), autocommit=True, prepare_threshold=None) as other:
            before = state_of(other)
            store = alone.open(durability="normal", timeout=7.0)
            chat = store.tape("chat")
            for turn in range(10):
                chat.append(role="user", content=f"pelican {turn}")
                chat.extend([{"role": "assistant", "content": "heron"}] * 2)
            chat.merge(chat.fork())
            store.search("pelican")
            store.transaction(lambda inner: inner.tape("other").append(role="user", content="x"))
            assert len(list(store.follow(timeout=0.1))) == len(list(store.feed()))
            with alone.open(read_only=True) as reader:
                assert len(reader.list()) == 3
            assert state_of(other) == before
            assert other.execute("SELECT pg_backend_pid()").fetchone() != (other.info.backend_pid,)

    def test_what_others_leave_in_a_session_does_no_harm(self, alone: Backend) -> None:
        """A session that was emptied, or replaced by a new one, is given what an append needs."""
        store = alone.open()
        chat = store.tape("chat")
        with psycopg.connect(dsn(alone.url), autocommit=True, prepare_threshold=None) as other:
            for turn in range(4):
                chat.append(role="user", content=f"first {turn}")
                other.execute("DISCARD ALL" if turn % 2 else "SET enable_indexscan = off")
                chat.append(role="user", content=f"second {turn}")
            other.execute("DISCARD ALL")
            prepared = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
            chat.append(role="user", content="last")
            assert prepared == (0,)
            assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (1,)
        assert (len(chat.messages()), store.verify().ok) == (9, True)

    @pytest.mark.heavy
    def test_sessions_that_are_ended_under_writers(self, backend: Backend, direct: Backend) -> None:
        """Whichever session the server ends, every write is recorded once."""
        store = backend.open()
        turns = scaled(30)
        one_of_them = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = %s AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
        )
        ended = []

        def write(number: int) -> list[tape.Receipt]:
            receipts = []
            for turn in range(turns):
                if number == 0:
                    ended.extend(direct.reader.execute(one_of_them, (direct.schema,)).fetchall())
                receipts.append(store.tape(f"chat-{number % 4}").append(role="user", content=f"{number} {turn}"))
            return receipts

        receipts = [receipt for found in together(WRITERS, write) for receipt in found]
        assert len(ended) > turns // 2
        assert len(receipts) == WRITERS * turns
        check_whole(store, receipts)
