"""S9, F12: a purge whose reply is lost, one that others race with, and retention over random families."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.backends import Backend
from support.processes import scaled
from test_conditions import crowd
from test_list import Clock

import tape
from tape.db.engine.failures import Lost
from tape.db.engine.transaction import Transaction

pytestmark = pytest.mark.alike


class Undone(Exception):
    """Rolls a transaction back."""


def ids(store: tape.Store) -> list[str]:
    return sorted(info.id for info in store.list(limit=1_000).items)


def check_sound(store: tape.Store, backend: Backend) -> None:
    """Nothing is damaged, and purged tapes have left their tombstones only."""
    assert store.verify().problems == []
    connection = backend.raw()
    [(unfinished,)] = connection.execute("SELECT count(*) FROM tape_tombstones WHERE emptied = 0").fetchall()
    connection.close()
    assert unfinished == 0


class TestLostReplies:
    """The reply to the commit of a purge is lost, and others write before the purge is attempted again."""

    def lose(self, store: tape.Store, monkeypatch: pytest.MonkeyPatch, then: Callable[[], Any], *, undo: bool) -> None:
        """Lose the reply to the next write, which is committed unless ``undo``, and call ``then`` before the retry."""
        write = store._db.write

        def losing(name: str, work: Callable[[Transaction], Any], **options: Any) -> Any:
            monkeypatch.setattr(store._db, "write", write)

            def undone(tx: Transaction) -> None:
                work(tx)
                raise Undone

            if undo:
                with pytest.raises(Undone):
                    write(name, undone, **options)
            else:
                write(name, work, **options)
            then()
            raise Lost("the reply was lost")

        monkeypatch.setattr(store._db, "write", losing)

    def test_s9_a_committed_purge_is_not_made_twice(
        self, backend: Backend, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The retry finds its own tombstone."""
        store.create("a").fork("b")
        self.lose(store, monkeypatch, lambda: None, undo=False)
        assert store.purge("a", forks=True).tapes == ["a", "b"]
        check_sound(store, backend)

    def test_s9_the_entry_of_another_is_not_taken_for_a_tombstone(
        self, backend: Backend, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A purge that was not committed is made again, though another has written an entry at its seq."""
        store.create("a").fork("b")
        other = backend.open()
        self.lose(store, monkeypatch, lambda: other.get("a").event("seen"), undo=True)
        assert store.purge("a", forks=True).tapes == ["a", "b"]
        assert ids(store) == []
        check_sound(store, backend)


class TestRaces:
    def test_f12_forks_against_purges(self, backend: Backend) -> None:
        """Eight threads fork tapes of a family and purge them: a fork that was made is whole until it is purged."""
        stores = [backend.open(durability="normal") for _ in range(8)]
        stores[0].create("root", messages=[{"role": "user", "content": "root"}])
        made, lock = ["root"], threading.Lock()

        def work(number: int) -> None:
            rng = random.Random(number)
            store = stores[number]
            for turn in range(scaled(20)):
                with lock:
                    parent = rng.choice(made)
                name = f"{number}.{turn}"
                try:
                    fork = store.get(parent).fork(name)
                    fork.append(role="user", content=name)
                    contents = [message.content for message in fork.messages()]
                    assert (contents[0], contents[-1]) == ("root", name)
                except tape.TapeNotFound:
                    # Another thread purged it.
                    continue
                with lock:
                    made.append(name)
                if rng.random() < 0.6:
                    with lock:
                        chosen = made[rng.randrange(1, len(made))]
                    with contextlib.suppress(tape.TapeInUse, tape.TapeNotFound):
                        gone = store.purge(chosen, forks=rng.random() < 0.2).tapes
                        with lock:
                            made[:] = [name for name in made if name not in gone]

        crowd([partial(work, number) for number in range(8)])
        store = stores[0]
        assert [store.get(name).messages()[0].content for name in ids(store)] == ["root"] * len(ids(store))
        store.purge("root", forks=True)
        assert ids(store) == []
        check_sound(store, backend)


class TestRetention:
    def test_s10_a_dry_run_names_what_the_run_purges(self) -> None:
        """Of random families: the dry run agrees with the run, every reason holds, and a second run finds nothing."""
        for seed in range(scaled(120)):
            rng, clock = random.Random(seed), Clock()
            with tape.open(":memory:", clock=clock) as store:
                names, users = ["0"], {"0": set[str]()}
                store.create("0")
                for n in range(1, rng.randint(2, 9)):
                    parent, name = rng.choice(names), str(n)
                    fork = store.get(parent).fork(name)
                    users[parent].add(name)
                    users[name] = set()
                    if rng.random() < 0.4:
                        store.get(parent).merge(fork, strategy="link")
                        users[name].add(parent)
                    names.append(name)
                clock.go(10)
                young = {name for name in names if rng.random() < 0.35}
                for name in young:
                    store.get(name).event("seen")
                planned = store.retain(older_than=timedelta(days=5))
                done = store.retain(older_than=timedelta(days=5), dry_run=False)
                assert (planned.tapes, planned.entries, planned.kept) == (done.tapes, done.entries, done.kept), seed
                going = set(names) - young
                while needed := {name for name in going if users[name] - going}:
                    going -= needed
                assert set(done.tapes) == going, f"seed {seed}"
                for name, why in done.kept.items():
                    assert why.split("'")[1] in set(names) - going, f"seed {seed}: {name}, {why}"
                assert store.retain(older_than=timedelta(days=5)).tapes == [], f"seed {seed}"
                assert store.verify().problems == []
