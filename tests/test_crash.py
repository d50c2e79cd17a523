"""Processes die, stop and run out of disk: what was acknowledged is there, and nothing is there by halves."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import interrupting, programs, sizes
from support.backends import Backend
from support.damage import Tamperer
from support.processes import PATIENCE, Crew, Worker, scaled, until

import tape
from tape.db.schema.migrate import LOCK

SEED = 77


def check_tape(chat: tape.Tape) -> list[tape.Entry]:
    """Require a dense and verified tape; returns its entries."""
    entries = list(chat.entries())
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert chat.verify().problems == []
    return entries


class TestKill:
    def killed(self, nest: Worker, count: int, label: str) -> list[dict[str, Any]]:
        """Let a writer append and kill it (-9) after so many acknowledgements; returns all that it acknowledged."""
        nest.tell({"label": label})
        acked: list[dict[str, Any]] = []
        pid = 0
        while True:
            fact = nest.next()
            if "pid" in fact:
                pid = fact["pid"]
            elif "status" in fact:
                assert os.WTERMSIG(fact["status"]) == signal.SIGKILL
                return acked
            else:
                acked.append(fact)
            if pid and len(acked) == count:
                os.kill(pid, signal.SIGKILL)
                count = -1

    @sizes.heavy
    @pytest.mark.parametrize("watched", [False, True], ids=["alone", "beside an open store"])
    def test_e1_killed_in_a_commit_loop(self, backend: Backend, crew: Crew, watched: bool) -> None:
        """Ten times kill -9 in the middle of appends: what was acknowledged is there, and the tape goes on."""
        print("seed", SEED)
        pick = random.Random(SEED)
        nest = crew.start(backend, programs.nest, name="t", options=backend.options)
        beside = backend.open() if watched else None
        acked: list[dict[str, Any]] = []
        for kill in range(scaled(10)):
            acked += self.killed(nest, pick.randint(1, 25), f"k{kill}")
            with backend.open() as store:
                entries = check_tape(store.tape("t"))
                by_seq = {entry.seq: (entry.key, entry.hash) for entry in entries}
                assert [one for one in acked if by_seq.get(one["seq"]) != (one["key"], one["hash"])] == []
                # Of each writer at most one entry was written and not acknowledged.
                assert len(entries) - 1 - len(acked) - kill <= kill + 1
                # A server may still be at the last statement of a client that is gone.
                late = 1 if backend.postgres else 0
                assert 1 <= store.tape("t").append(role="user", content="next").seq - len(entries) <= 1 + late
            if beside is not None:
                assert beside.tape("t").messages()[-1].content == "next"
        nest.tell("enough")
        nest.finish()

    @pytest.mark.alike
    @pytest.mark.parametrize("verb", list(programs.VERBS))
    def test_e12_killed_inside_a_write(self, backend: Backend, crew: Crew, verb: str) -> None:
        """A process that dies at any point of a write, before its commit, leaves nothing of it."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="original", id="m")
        chat.append(role="assistant", content="answer")
        chat.fork("helper").append(role="assistant", content="found")
        nest = crew.start(backend, programs.nest, name="t", options=backend.options)

        def heads() -> dict[str, int]:
            return {name: store.tape(name).info().head for name in ("t", "helper", "brand new")}

        before = heads()
        point = 0
        while True:
            nest.tell({"verb": verb, "point": point})
            nest.next()
            status = nest.next()["status"]
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            assert heads() == before, f"died at point {point}"
            point += 1
        assert point >= 1
        after = heads()
        assert sum(after.values()) > sum(before.values())
        assert store.verify().problems == []
        nest.tell("enough")
        nest.finish()


CUTS = sizes.size(20, 60)
"""How often a WAL is cut at a frame, and how often anywhere."""


class TestTornWal:
    @sizes.heavy
    def test_e1_always_a_prefix(self, tmp_path: Path) -> None:
        """However a copied WAL is cut or garbled, the store opens with some first transactions and nothing else."""
        print("seed", SEED)
        pick = random.Random(SEED)
        path = tmp_path / "live.db"
        with tape.open(path, durability="normal") as store:
            chat = store.tape("t")
            heads = [0]
            for number in range(30):
                chat.append(role="user", content=f"{number} " + "x" * pick.randint(0, 3_000), id=f"m{number}")
                heads.append(chat.info().head)
                if number % 5 == 4:
                    chat.extend([{"role": "user", "content": "y" * pick.randint(0, 2_000)} for _ in range(4)])
                    heads.append(chat.info().head)
                    chat.revise(f"m{number}", content="revised")
                    heads.append(chat.info().head)
            whole = [(entry.seq, entry.hash) for entry in chat.entries()]
            database, wal = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        size = len(wal)
        assert size > 200_000
        # Every frame is a header of 24 bytes and a page: cut at frames, next to them, and anywhere.
        frame = 24 + 4096
        offsets = {0, 31, 32, size - 1, size}
        offsets |= {32 + frame * pick.randrange(size // frame) + pick.choice([0, -1, 1, 24]) for _ in range(CUTS)}
        offsets |= {pick.randrange(size) for _ in range(CUTS)}
        seen = set()
        for number, offset in enumerate(sorted(offsets)):
            torn = tmp_path / f"torn{number}.db"
            torn.write_bytes(database)
            rest = (
                b"" if number % 3 == 0 else bytes(size - offset) if number % 3 == 1 else pick.randbytes(size - offset)
            )
            Path(f"{torn}-wal").write_bytes(wal[:offset] + rest)
            with tape.open(torn, durability="normal") as store:
                chat = store.tape("t")
                entries = [(entry.seq, entry.hash) for entry in chat.entries()]
                assert len(entries) in heads, f"half a transaction at offset {offset}"
                assert entries == whole[: len(entries)]
                assert store.verify().problems == []
                next_seq = chat.append(role="user", content="goes on").seq
                assert next_seq == max(len(entries), 1) + 1
                seen.add(len(entries))
            for part in tmp_path.glob(f"torn{number}.db*"):
                part.unlink()
        assert len(whole) in seen
        assert len(seen) > 5


class TestDiskFull:
    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    @pytest.mark.parametrize("room", [1_000_000, 4_600_000], ids=["the WAL is full", "the file is full"])
    def test_e12_no_room(self, backend: Backend, crew: Crew, room: int) -> None:
        """When files cannot grow a write is StoreFailed and leaves nothing; the tape is readable, and goes on later."""
        worker = crew.start(backend, programs.fill, opening={"durability": "normal"}, name="t", room=room)
        worker.tell("go")
        full, later = worker.finish()
        print(full["error"], full["batches"])
        assert full["typed"] is True
        assert full["batches"] > 5
        assert full["messages"] == 1 + 2 * full["batches"]
        assert full["problems"] == []
        wrote = full["again"].count("wrote")
        assert full["after"] == full["messages"] + wrote
        assert later["ok"] is True
        assert later["messages"] == full["after"] + 1
        assert later["seq"] == later["messages"] + 1
        with backend.open() as store:
            assert len(check_tape(store.tape("t"))) == later["seq"]


class TestBusy:
    def threads(self) -> int:
        return threading.active_count()

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def test_e1_a_stopped_writer(self, backend: Backend, crew: Crew) -> None:
        """While a stopped process holds the lock a writer gets StoreBusy after its timeout, and it leaves no trace."""
        first = backend.open()
        first.tape("t").append(role="user", content="first")
        stopped = crew.start(backend, programs.stop_inside, name="t")
        store = backend.open(timeout=0.4)
        chat = store.tape("t")
        assert [message.content for message in chat.messages()] == ["first"]
        stopped.tell("go")
        assert stopped.next() == "inside"
        waits = []
        left: set[tuple[int, int]] = set()
        for _ in range(6):
            began = time.monotonic()
            with pytest.raises(tape.StoreBusy):
                chat.append(role="user", content="blocked")
            waits.append(time.monotonic() - began)
            left.add((self.threads(), self.descriptors()))
            # Readers are not held up.
            assert [message.content for message in chat.messages()] == ["first"]
        assert min(waits) >= 0.3
        assert max(waits) < 10.0
        assert len(left) == 1, f"threads and descriptors grow with every try: {left}"
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.finish()
        # Who gave up waiting must not keep the turn that it gets later.
        other = crew.start(backend, programs.append, opening={"timeout": 10.0}, name="t", label="other", count=1)
        other.tell("go")
        assert [answer["content"] for answer in other.finish()] == ["other.0.0"]
        assert chat.append(role="user", content="at last").seq == 5
        assert [message.content for message in chat.messages()] == ["first", "stopped", "other.0.0", "at last"]
        assert chat.verify().ok
        if not backend.postgres:
            until(lambda: all(one.name != "tape-turn" for one in threading.enumerate()), "the waiting thread ended")

    def test_e1_nothing_stays_open(self, backend: Backend, crew: Crew) -> None:
        """A store that was busy, had to wait and was closed leaves no thread and no descriptor behind."""
        # Closed first: SQLite keeps descriptors of a file for as long as the process has locks on it.
        with backend.open() as store:
            store.tape("t").append(role="user", content="first")
        stopped = crew.start(backend, programs.stop_inside, name="t")
        before = self.descriptors()
        stopped.tell("go")
        assert stopped.next() == "inside"
        store = tape.open(backend.url, timeout=0.2, **backend.options)
        store.tape("t").messages()
        with pytest.raises(tape.StoreBusy):
            store.tape("t").append(role="user", content="blocked")
        store.close()
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.finish()
        until(lambda: all(one.name != "tape-turn" for one in threading.enumerate()), "the waiting thread ended")
        until(lambda: self.descriptors() <= before, "every descriptor is closed")

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_e1_interrupted_while_waiting(self, backend: Backend, crew: Crew) -> None:
        """A writer that is interrupted while it waits for its turn does not keep the turn it gets afterwards."""
        worker = crew.start(backend, interrupting.interrupted, name="t")
        with open(f"{backend.url.database}-writer", "r+") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            worker.tell("go")
            assert worker.next() == "interrupted"
        store = backend.open(timeout=10.0)
        began = time.monotonic()
        store.tape("t").append(role="user", content="other")
        assert time.monotonic() - began < 9.0
        worker.tell("go on")
        (answer,) = worker.finish()
        assert answer == 4
        assert [message.content for message in store.tape("t").messages()] == ["before", "other", "after"]

    def test_e12_a_foreign_transaction(self, backend: Backend) -> None:
        """Another program's long transaction on the same rows: StoreBusy after the timeout, and nothing written."""
        store = backend.open(timeout=0.3)
        chat = store.tape("t")
        chat.append(role="user", content="first")
        foreign = backend.raw()
        foreign.execute("BEGIN IMMEDIATE" if not backend.postgres else "BEGIN")
        if backend.postgres:
            foreign.execute("SELECT * FROM tape_heads FOR UPDATE")
        writes: list[Callable[[], Any]] = [
            lambda: chat.append(role="user", content="blocked"),
            lambda: chat.extend([{"role": "user", "content": n} for n in range(3)]),
            lambda: chat.event("blocked"),
        ]
        for write in writes:
            began = time.monotonic()
            with pytest.raises(tape.StoreBusy) as busy:
                write()
            assert 0.25 <= time.monotonic() - began < 10.0
            assert busy.value.waited == pytest.approx(0.3, abs=0.05)
        foreign.execute("ROLLBACK")
        foreign.close()
        assert len(check_tape(chat)) == 2
        assert chat.append(role="user", content="second").seq == 3

    def test_e12_busy_in_every_thread(self, backend: Backend) -> None:
        """Eight threads of one store that meet a foreign transaction all give up in time, and all succeed later."""
        store = backend.open(timeout=0.5)
        chat = store.tape("t")
        chat.append(role="user", content="first")
        foreign = backend.raw()
        foreign.execute("BEGIN IMMEDIATE" if not backend.postgres else "BEGIN")
        if backend.postgres:
            foreign.execute("SELECT * FROM tape_heads FOR UPDATE")
        outcomes: list[Any] = []

        def run() -> None:
            began = time.monotonic()
            try:
                outcomes.append(chat.append(role="user", content="later").seq)
            except Exception as error:
                outcomes.append((type(error), time.monotonic() - began))

        def crowd() -> None:
            members = [threading.Thread(target=run) for _ in range(8)]
            for one in members:
                one.start()
            for one in members:
                one.join(PATIENCE)

        crowd()
        assert [kind for kind, _ in outcomes] == [tape.StoreBusy] * 8
        assert max(took for _, took in outcomes) < 10.0
        foreign.execute("ROLLBACK")
        foreign.close()
        outcomes.clear()
        crowd()
        assert sorted(outcomes) == list(range(3, 11))
        check_tape(chat)

    @pytest.mark.blank
    def test_s1_busy_while_opening(self, backend: Backend) -> None:
        """Who opens a new database while another program keeps it locked gets StoreBusy after the timeout."""
        foreign = backend.raw()
        if backend.postgres:
            foreign.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        else:
            foreign.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(tape.StoreBusy):
            backend.open(timeout=0.3)
        assert time.monotonic() - began < 10.0
        foreign.close()
        backend.open().tape("t").append(role="user", content="first")


class TestRestored:
    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_e7_backup_restored_under_an_open_store(self, backend: Backend, tmp_path: Path) -> None:
        """A store under which an older backup was restored goes on from what is there, not from what it remembers."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="first")
        kept = tmp_path / "kept.db"
        with closing(backend.raw()) as live, closing(sqlite3.connect(kept)) as copy:
            live.backup(copy)
        lost = chat.append(role="user", content="lost")
        with closing(backend.raw()) as live, closing(sqlite3.connect(kept)) as copy:
            copy.backup(live)
        with backend.open() as other:
            # As many entries as the first store remembers, but not the same.
            assert other.tape("t").append(role="user", content="other").seq == lost.seq
        assert chat.append(role="user", content="next").seq == lost.seq + 1
        assert [message.content for message in chat.messages()] == ["first", "other", "next"]
        check_tape(chat)

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_e7_server_that_lost_a_commit(self, backend: Backend) -> None:
        """After a failover to a server that lacks the last entry, the store goes on from what is there."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="first")
        tables = ("tape_heads", "tape_live", "tape_entries")
        # Restored as a standby has it: triggers do not fire there.
        with closing(Tamperer(backend)) as server:
            for table in tables:
                server.run(f"CREATE TABLE kept_{table} AS TABLE {table}")
            lost = chat.append(role="user", content="lost")
            for table in tables:
                server.run(f"DELETE FROM {table}")
                server.run(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM kept_{table}")
        with backend.open() as other:
            assert other.tape("t").append(role="user", content="other").seq == lost.seq
        assert chat.append(role="user", content="next").seq == lost.seq + 1
        assert [message.content for message in chat.messages()] == ["first", "other", "next"]
        check_tape(chat)


def test_e1_a_copied_store_is_a_store(backend: Backend, tmp_path: Path) -> None:
    """The lock file beside a SQLite database is not part of it: a copy without it works, and it may vanish or fail."""
    if backend.postgres:
        # There is no such file; the same must hold for a store that is opened a second time.
        backend.open().tape("t").append(role="user", content="first")
        assert len(check_tape(backend.open().tape("t"))) == 2
        return
    path = Path(backend.url.database or "")
    with backend.open() as store:
        store.tape("t").append(role="user", content="first")
        Path(f"{path}-writer").unlink()
        store.tape("t").append(role="user", content="second")
    shutil.copy(path, tmp_path / "copy.db")
    # Something else has its name, and it cannot even be opened.
    (tmp_path / "copy.db-writer").mkdir()
    with tape.open(tmp_path / "copy.db") as copy:
        assert copy.tape("t").append(role="user", content="third").seq == 4
        assert len(check_tape(copy.tape("t"))) == 4
