"""S9: what a purge that takes others along locks, what a lost reply to it means, and what it makes of damaged rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.backends import Backend
from test_purge_when_free import LATER, Boom, chain, check_sound, hidden, shown

import tape
from tape.db.engine.failures import Lost
from tape.db.engine.transaction import Transaction
from tape.db.maintain import purge
from tape.db.maintain.purge_set import PurgeSet, find_purge_set

pytestmark = pytest.mark.alike


class TestLostReplies:
    """The reply to the commit of a purge is lost, and others write before it is made again."""

    def lose(self, store: tape.Store, monkeypatch: pytest.MonkeyPatch, then: Callable[[], Any], *, undo: bool) -> None:
        """Lose the reply to the next write, which is committed unless ``undo``, and do something before it is known."""
        write = store._db.write

        def losing(name: str, work: Callable[[Transaction], Any], **options: Any) -> Any:
            monkeypatch.setattr(store._db, "write", write)

            def undone(tx: Transaction) -> None:
                work(tx)
                raise Boom

            if undo:
                with pytest.raises(Boom):
                    write(name, undone, **options)
            else:
                write(name, work, **options)
            then()
            raise Lost("the reply was lost")

        monkeypatch.setattr(store._db, "write", losing)

    @pytest.mark.parametrize("meanwhile", ["nothing", "purged", "emptied", "shown"])
    def test_s9_what_was_marked_is_told_so(
        self, backend: Backend, store: tape.Store, monkeypatch: pytest.MonkeyPatch, meanwhile: str
    ) -> None:
        """Whatever became of the tape since, and also if its entries are gone by then."""
        chain(store)
        other = backend.open()
        then: dict[str, Callable[[], Any]] = {
            "nothing": lambda: None,
            "purged": lambda: self.only_bury(other, "b"),
            "emptied": lambda: other.purge("b", forks=True),
            "shown": lambda: other.tape("a").unhide(),
        }
        self.lose(store, monkeypatch, then[meanwhile], undo=False)
        done = store.purge("a", when_free=True)
        assert (done.tapes, done.kept) == ([], {"a": "tape 'b' inherits from it"})
        assert store.verify().problems == []

    def only_bury(self, store: tape.Store, name: str) -> None:
        """Purge a tape with its forks and die before the rows are deleted."""

        def interrupted(*args: object) -> None:
            raise Boom

        store._services.purging.empty = interrupted  # type: ignore[method-assign,assignment]
        with pytest.raises(Boom):
            store.purge(name, forks=True)

    @pytest.mark.parametrize("options", [{"when_free": True}, {"forks": True}], ids=["marked", "purged"])
    def test_s9_the_entry_of_another_is_not_taken_for_its_own(
        self, backend: Backend, store: tape.Store, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
    ) -> None:
        """What was not committed is done again, though another has written an entry in its place."""
        chain(store)
        other = backend.open()
        self.lose(store, monkeypatch, lambda: other.get("a").event("seen"), undo=True)
        done = store.purge("a", **options)
        if "forks" in options:
            assert done.tapes == ["a", "b", "c"]
            assert hidden(store) == shown(store) == []
        else:
            assert list(done.kept) == hidden(store) == ["a"]
        check_sound(store, backend)


class TestLocks:
    """What a purge locks, so that what it found is certain."""

    def test_s9_all_that_goes_is_locked(self, store: tape.Store) -> None:
        """Also a marked tape of another branch, on which nobody began."""
        chat = store.create("a")
        chat.merge(chat.fork("b"), strategy="link")
        chat.fork("c")
        for name in "ba":
            store.purge(name, when_free=True)
        found = store._db.read(lambda tx: find_purge_set(tx, "c", None, forks=False))
        assert sorted(found.going) == ["a", "b", "c"]
        assert found.locks == {"a", "b", "c"}

    def test_s9_the_parent_of_one_that_goes_is_locked_though_it_stays(self, store: tape.Store) -> None:
        """Or two who purge its forks would each leave it to the other."""
        chain(store)
        found = store._db.read(lambda tx: find_purge_set(tx, "c", None, forks=False))
        assert (found.going, sorted(found.locks)) == (["c"], ["b", "c"])

    def test_s9_after_many_restarts_the_rest_is_locked_as_it_is_found(
        self, backend: Backend, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While others fork on and on, it does not begin anew for ever, and locks what it has not."""
        chain(store)
        for name in "ab":
            store.purge(name, when_free=True)
        monkeypatch.setattr(purge, "_RESTARTS", 0)
        asked: list[PurgeSet] = []

        def late(*args: Any, **options: Any) -> PurgeSet:
            found = find_purge_set(*args, **options)
            asked.append(found if asked else msgspec.structs.replace(found, locks=frozenset({"c"})))
            return asked[-1]

        monkeypatch.setattr(purge, "find_purge_set", late)
        locked: list[str] = []
        lock = Transaction.lock

        def noting(self: Transaction, name: str) -> None:
            locked.append(name)
            lock(self, name)

        monkeypatch.setattr(Transaction, "lock", noting)
        assert store.purge("c").tapes == ["c", "b", "a"]
        # Looked for once more, since it may have changed until all was locked.
        assert len(asked) == 3
        assert {"a", "b"} <= set(locked)
        check_sound(store, backend)


class TestDamaged:
    """Rows that say what cannot be."""

    def test_s4_a_parent_of_another_owner_does_not_go_along(self, backend: Backend, store: tape.Store) -> None:
        """An owner's purge takes the owner's tapes, whatever the others' rows say."""
        ann = store.scoped("ann")
        ann.create("a").fork("b")
        ann.purge("a", when_free=True)
        connection = backend.raw()
        connection.execute("UPDATE tape_tapes SET owner = 'bob' WHERE tape = 'a'")
        connection.close()
        assert ann.purge("b").tapes == ["b"]
        assert hidden(store) == ["a"]

    def test_s9_a_circle_of_parents_ends(self, backend: Backend, store: tape.Store) -> None:
        """A tape that is said to be a fork of its own fork is as one whose parent is gone."""
        store.create("z").fork("a").fork("b").fork("c")
        for name in "ab":
            store.purge(name, when_free=True)
        connection = backend.raw()
        numbers = dict(connection.execute("SELECT tape, id FROM tape_tapes").fetchall())
        connection.execute(f"UPDATE tape_forks SET parent_id = {numbers['b']} WHERE tape_id = {numbers['a']}")
        connection.close()
        assert store.retain(older_than=LATER).tapes == ["z", "a", "b", "c"]
        assert set(store.purge("c").tapes) == {"c", "b", "a"}
