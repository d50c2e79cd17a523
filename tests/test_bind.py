"""E14: in a caller's transaction, an application's rows and its tape commit or roll back together."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.backends import Backend
from support.damage import contents
from support.verbs import Verb, each_verb, prepare

import tape

TIMEOUT = 60.0
metadata = sa.MetaData()
orders = sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("note", sa.Text))


@pytest.fixture
def engine(backend: Backend, store: tape.Store) -> Iterator[sa.Engine]:
    """An application's own engine on the database, with a table of its own."""
    made = backend.engine()
    metadata.create_all(made)
    yield made
    metadata.drop_all(made)
    made.dispose()


@pytest.fixture
def file_of_store(tmp_path: Path) -> Path:
    """A SQLite file that holds a store: on PostgreSQL nobody waits for a file."""
    file = tmp_path / "tape.db"
    tape.open(f"sqlite:///{file}").close()
    return file


def rows(engine: sa.Engine) -> list[int]:
    """Return what the application's table holds, as another connection sees it."""
    with engine.connect() as connection:
        return list(connection.execute(sa.select(orders.c.id).order_by(orders.c.id)).scalars())


def order(number: int) -> sa.Insert:
    """Return the application's own write."""
    return sa.insert(orders).values(id=number)


class TestTogether:
    """Both or neither."""

    @pytest.mark.parametrize("first", ["order", "entry"])
    def test_e14_commit_keeps_both(self, engine: sa.Engine, store: tape.Store, first: str) -> None:
        """After the caller's commit the row and the entry are there, whichever was written first."""
        with engine.begin() as connection:
            chat = store.bind(connection).tape("chat")
            if first == "order":
                connection.execute(order(1))
                chat.append(role="user", content="bought")
            else:
                chat.append(role="user", content="bought")
                connection.execute(order(1))
        assert rows(engine) == [1]
        assert [message.content for message in store.get("chat").messages()] == ["bought"]
        assert store.verify().ok

    @pytest.mark.parametrize("first", ["order", "entry"])
    def test_e14_rollback_removes_both(
        self, engine: sa.Engine, store: tape.Store, backend: Backend, first: str
    ) -> None:
        """After a rollback neither is there, every table is as before, and the next append continues densely."""
        store.tape("chat").append(role="user", content="before")
        before = contents(backend)
        with engine.connect() as connection:
            bound = store.bind(connection)
            if first == "order":
                connection.execute(order(1))
            bound.tape("chat").extend([{"content": "lost"}, {"content": "lost"}])
            bound.create("other", messages=[{"content": "lost"}])
            if first == "entry":
                connection.execute(order(1))
            assert bound.tape("chat").info().head == 4
            connection.rollback()
        assert contents(backend) == before
        assert store.tape("chat").append(role="user", content="after").seq == 3
        assert [entry.seq for entry in store.tape("chat").entries()] == [1, 2, 3]
        assert store.verify().ok

    @each_verb
    @pytest.mark.alike
    def test_e14_every_write_can_be_bound(
        self, engine: sa.Engine, store: tape.Store, backend: Backend, verb: Verb
    ) -> None:
        """Every write joins the caller's transaction: rolled back it leaves nothing, committed it is there."""
        chat = verb.start(store)
        head = chat.info().head
        before = contents(backend)
        with engine.connect() as connection:
            verb.call(store.bind(connection).get(chat.id))
            connection.rollback()
            assert contents(backend) == before
            verb.call(store.bind(connection).get(chat.id))
            connection.execute(order(1))
            connection.commit()
        assert chat.info().head == head + verb.entries
        assert rows(engine) == [1]
        assert store.verify().ok

    def test_e14_an_error_of_the_application_takes_the_entry_with_it(
        self, engine: sa.Engine, store: tape.Store
    ) -> None:
        """An exception in the caller's block rolls back both."""
        with pytest.raises(ZeroDivisionError), engine.begin() as connection:
            connection.execute(order(1))
            store.bind(connection).tape("chat").append(role="user", content="lost")
            raise ZeroDivisionError
        assert rows(engine) == []
        with pytest.raises(tape.TapeNotFound):
            store.get("chat")

    def test_e14_a_savepoint_of_the_callers_is_respected(self, engine: sa.Engine, store: tape.Store) -> None:
        """Rolling back to the caller's savepoint removes what was recorded since, and only that."""
        with engine.begin() as connection:
            chat = store.bind(connection).tape("chat")
            chat.append(role="user", content="kept")
            nested = connection.begin_nested()
            chat.append(role="user", content="lost")
            connection.execute(order(1))
            nested.rollback()
            assert chat.append(role="user", content="kept too").seq == 3
        assert [message.content for message in store.get("chat").messages()] == ["kept", "kept too"]
        assert rows(engine) == []
        assert store.verify().ok


class TestErrors:
    """An error inside a bound write is the caller's to handle."""

    def test_e14_a_refused_write_leaves_the_transaction_usable(self, engine: sa.Engine, store: tape.Store) -> None:
        """After every sort of refusal the caller's transaction goes on and can be committed."""
        store.tape("chat").append(id="m", role="user", content="x")
        with engine.begin() as connection:
            chat = store.bind(connection).tape("chat")
            connection.execute(order(1))
            with pytest.raises(tape.UnknownMessage):
                chat.revise("nobody", content="y")
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend([{"content": "lost"}, {"id": "m", "content": "other"}])
            with pytest.raises(tape.HeadMoved):
                chat.append(role="user", content="y", expected_head=9)
            with pytest.raises(tape.InvalidEntry):
                chat.append(role="user", content=float("nan"))
            with pytest.raises(tape.TapeExists):
                store.bind(connection).create("chat")
            assert chat.append(role="user", content="y").seq == 3
            connection.execute(order(2))
        assert rows(engine) == [1, 2]
        assert [entry.seq for entry in store.get("chat").entries()] == [1, 2, 3]
        assert store.verify().ok

    def test_e14_a_failure_at_any_point_leaves_the_transaction_usable(
        self, engine: sa.Engine, store: tape.Store
    ) -> None:
        """Wherever inside the write it fails, the savepoint takes back all of it and nothing of the caller's."""
        store.tape("chat").append(role="user", content="x")
        reached: list[str] = []
        with engine.begin() as connection:
            bound = store.bind(connection)
            chat = bound.tape("chat")
            connection.execute(order(1))
            while True:
                left = len(reached)

                def fault(name: str) -> None:
                    nonlocal left
                    if left == 0:
                        reached.append(name)
                        raise ZeroDivisionError
                    left -= 1

                bound._db.fault = fault
                try:
                    chat.extend([{"content": "y"}, {"content": "z"}])
                    break
                except ZeroDivisionError:
                    bound._db.fault = None
                    assert chat.info().head == 2
                    assert len(chat.messages()) == 1
        assert reached == ["entry", "view", "head", "commit"]
        assert rows(engine) == [1]
        assert store.get("chat").info().head == 4
        assert store.verify().ok

    def test_e14_a_connection_that_is_closed_is_told(self, engine: sa.Engine, store: tape.Store) -> None:
        """A bound store whose connection was closed fails, and the store itself goes on."""
        with engine.connect() as connection:
            chat = store.bind(connection).tape("chat")
        with pytest.raises(tape.StoreFailed):
            chat.append(role="user", content="x")
        assert store.tape("chat").append(role="user", content="x").seq == 2

    def test_e14_a_store_that_is_closed_is_told(self, engine: sa.Engine, store: tape.Store) -> None:
        """A bound store ends with the store it is from; the connection stays the caller's."""
        with engine.begin() as connection:
            chat = store.bind(connection).tape("chat")
            store.close()
            with pytest.raises(tape.StoreFailed, match="closed"):
                chat.append(role="user", content="x")
            connection.execute(order(1))
        assert rows(engine) == [1]

    @pytest.mark.parametrize("what", [None, "connection", 5])
    def test_e14_what_is_no_connection_is_refused(self, store: tape.Store, what: Any) -> None:
        """``bind`` takes a SQLAlchemy Connection and nothing else."""
        with pytest.raises(tape.InvalidEntry) as caught:
            store.bind(what)
        assert caught.value.field == "connection"

    def test_e14_a_connection_of_another_engine_is_refused(self, store: tape.Store, backend: Backend) -> None:
        """A connection to another sort of database than the store's is refused."""
        url = "sqlite://" if backend.postgres else "postgresql+psycopg://nobody@127.0.0.1:1/none"
        other = sa.create_engine(url)
        if backend.postgres:
            with other.connect() as connection, pytest.raises(tape.InvalidEntry):
                store.bind(connection)
        other.dispose()


class TestWaiting:
    """Whoever writes the file meanwhile is waited for as the store says, not as the driver does by default."""

    def test_e14_another_writer_is_waited_for(self, file_of_store: Path) -> None:
        """A transaction on a connection without patience of its own waits for the writer, and leaves it as it was."""
        other = sqlite3.connect(file_of_store, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.3, other.execute, ["COMMIT"])
        engine = sa.create_engine(f"sqlite:///{file_of_store}", connect_args={"timeout": 0})
        with tape.open(f"sqlite:///{file_of_store}", timeout=TIMEOUT) as store, engine.connect() as connection:
            release.start()
            store.bind(connection).tape("chat").append(role="user", content="x")
            connection.commit()
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 0
            assert store.get("chat").info().head == 2
        release.join()
        other.close()
        engine.dispose()

    def test_e14_no_longer_than_the_stores_timeout(self, file_of_store: Path) -> None:
        """After the store's timeout it is StoreBusy, which says how long that was; afterwards it works."""
        other = sqlite3.connect(file_of_store, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        engine = sa.create_engine(f"sqlite:///{file_of_store}", connect_args={"timeout": 0})
        with tape.open(f"sqlite:///{file_of_store}", timeout=0.2) as store, engine.connect() as connection:
            chat = store.bind(connection).tape("chat")
            with pytest.raises(tape.StoreBusy, match=r"0\.2 s"):
                chat.append(role="user", content="x")
            other.execute("COMMIT")
            chat.append(role="user", content="x")
            connection.commit()
            assert store.get("chat").info().head == 2
        other.close()
        engine.dispose()

    def test_e14_transactions_of_callers_take_turns(self, file_of_store: Path) -> None:
        """Threads that do nothing but write, each in transactions of its own, all get through."""
        engine = sa.create_engine(f"sqlite:///{file_of_store}", connect_args={"timeout": 0})
        with tape.open(f"sqlite:///{file_of_store}", timeout=TIMEOUT, durability="normal") as store:

            def write(name: str) -> None:
                for _ in range(50):
                    with engine.connect() as connection:
                        store.bind(connection).tape(name).append(role="user", content="bound")
                        connection.commit()
                    store.tape(name).append(role="user", content="the store's own")

            with ThreadPoolExecutor(8) as pool:
                for done in [pool.submit(write, f"t{n % 4}") for n in range(8)]:
                    done.result(TIMEOUT)
            assert [store.tape(f"t{n}").info().head for n in range(4)] == [201] * 4
            assert store.verify().ok
        engine.dispose()


class TestReads:
    """What is seen from inside and from outside."""

    def test_e14_the_caller_sees_its_own_writes_and_others_do_not(self, engine: sa.Engine, store: tape.Store) -> None:
        """Inside the transaction the bound store reads what it wrote; outside it is seen after the commit."""
        store.tape("chat").append(id="a", role="user", content="A")
        with engine.begin() as connection:
            chat = store.bind(connection).tape("chat")
            chat.append(id="b", role="user", content="B")
            chat.revise("a", content="A2")
            assert [message.content for message in chat.messages()] == ["A2", "B"]
            assert [entry.seq for entry in chat.entries()] == [1, 2, 3, 4]
            assert chat.at(2).messages()[0].content == "A"
            assert [message.content for message in store.tape("chat").messages()] == ["A"]
            assert chat.verify().ok
        assert [message.content for message in store.tape("chat").messages()] == ["A2", "B"]

    def test_e14_a_duplicate_is_known_inside_and_outside(self, engine: sa.Engine, store: tape.Store) -> None:
        """Keys recorded in the transaction and before it are both found, by the bound store and by others."""
        first = store.tape("chat").append(role="user", content="x", key="k1")
        with engine.begin() as connection:
            chat = store.bind(connection).tape("chat")
            assert chat.append(role="user", content="x", key="k1").hash == first.hash
            second = chat.append(role="user", content="y", key="k2")
            assert chat.append(role="user", content="y", key="k2").duplicate
        again = store.tape("chat").append(role="user", content="y", key="k2")
        assert (again.duplicate, again.seq, again.hash) == (True, second.seq, second.hash)

    def test_e14_handles_of_the_store_notice_what_was_committed(self, engine: sa.Engine, store: tape.Store) -> None:
        """A handle that kept the head in memory goes on behind what the caller's transaction wrote."""
        chat = store.tape("chat")
        chat.append(role="user", content="a")
        with engine.begin() as connection:
            store.bind(connection).tape("chat").append(role="user", content="b")
        assert chat.append(role="user", content="c").seq == 4
        assert [message.content for message in chat.messages()] == ["a", "b", "c"]

    def test_e14_a_bound_store_keeps_the_owner(self, engine: sa.Engine, backend: Backend) -> None:
        """A scoped store stays scoped on a caller's connection."""
        scoped = backend.open(owner="ann")
        backend.open(owner="bob").create("bobs")
        with engine.begin() as connection:
            bound = scoped.bind(connection)
            assert bound.owner == "ann"
            with pytest.raises(tape.TapeNotFound):
                bound.get("bobs")
            assert bound.create("anns").info().owner == "ann"

    def test_e14_closing_a_bound_store_leaves_the_connection(self, engine: sa.Engine, store: tape.Store) -> None:
        """Closing lets go of the connection and commits nothing; it stays the caller's."""
        with engine.connect() as connection:
            with store.bind(connection) as bound:
                bound.tape("chat").append(role="user", content="x")
            connection.execute(order(1))
            connection.rollback()
        assert rows(engine) == []
        assert store.tape("chat").info().head == 0

    def test_e14_rebuild_and_verify_work_inside(self, engine: sa.Engine, store: tape.Store) -> None:
        """A rebuild in the caller's transaction is rolled back with it."""
        chat = prepare(store)
        with engine.connect() as connection:
            bound = store.bind(connection)
            assert bound.rebuild(chat.id) == 1
            assert bound.verify(chat.id).ok
            connection.rollback()
        assert store.verify().ok


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
