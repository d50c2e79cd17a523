"""S9, F12: ``purge(when_free=True)`` hides a tape on which others rest, and it is purged with the last of them."""

from __future__ import annotations

import asyncio
import io
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import permutations
from typing import Any

import pytest
from support import programs
from support.backends import Backend
from support.damage import contents
from support.exports import exported
from support.processes import Crew, scaled
from support.shell import Shell
from test_conditions import PATIENCE, crowd

import tape
from tape.command.verbs.maintain import _what_goes
from tape.core.entries.tape_kinds import WHEN_FREE
from tape.db.engine.transaction import Transaction

pytestmark = pytest.mark.alike


LATER = datetime(3000, 1, 1, tzinfo=UTC)


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def hidden(store: tape.Store) -> list[str]:
    return sorted(info.id for info in store.list(hidden=True).items)


def shown(store: tape.Store) -> list[str]:
    return sorted(info.id for info in store.list().items)


def chain(store: tape.Store, *, link: bool = False) -> None:
    """Make a tape "a", its fork "b" and that one's fork "c"; with ``link``, each parent links to its fork."""
    chat = store.create("a", messages=said("in a"))
    for name in ("b", "c"):
        fork = chat.fork(name)
        fork.append(role="user", content=f"in {name}")
        if link:
            chat.merge(fork, strategy="link")
        chat = fork


def check_sound(store: tape.Store, backend: Backend) -> None:
    """Nothing is damaged, and of purged tapes nothing is left but the tombstones."""
    assert store.verify().problems == []
    connection = backend.raw()
    [(left,)] = connection.execute("SELECT count(*) FROM tape_tombstones WHERE emptied = 0").fetchall()
    connection.close()
    assert left == 0


LAST: dict[str, Callable[[tape.Store, str], tape.Retention]] = {
    "when free": lambda store, id: store.purge(id, when_free=True),
    "plain": lambda store, id: store.purge(id),
    "with forks": lambda store, id: store.purge(id, forks=True),
    "all of it": lambda store, id: store.purge(id, forks=True, when_free=True),
    "retain": lambda store, id: store.retain(older_than=LATER, status="completed", dry_run=False),
}
"""The calls that may take the last tape; the last one takes what is completed."""


class TestOne:
    def test_s9_a_tape_on_which_nothing_rests_goes_at_once(self, store: tape.Store) -> None:
        """It is purged as without the option."""
        store.create("a", messages=said("x"))
        done = store.purge("a", when_free=True)
        assert (done.tapes, done.entries, done.kept, done.dry_run) == (["a"], 2, {}, False)
        assert shown(store) == hidden(store) == []
        with pytest.raises(tape.TapeNotFound):
            store.purge("a", when_free=True)
        with pytest.raises(tape.InvalidEntry):
            store.purge("a", when_free="yes")  # type: ignore[arg-type]

    def test_f12_one_with_forks_is_hidden_and_goes_with_the_last(self, backend: Backend, store: tape.Store) -> None:
        """Until then the forks read what they inherit, and the answers tell what became of which tape."""
        chat = store.create("a", messages=said("pelican"))
        forks = [chat.fork("one"), chat.fork("two")]
        done = store.purge("a", when_free=True)
        assert (done.tapes, done.entries, done.kept) == ([], 0, {"a": "tape 'one' inherits from it"})
        assert (shown(store), hidden(store)) == (["one", "two"], ["a"])
        assert [fork.messages()[0].content for fork in forks] == ["pelican"] * 2
        assert store.search("pelican") == []
        with pytest.raises(tape.TapeHidden) as caught:
            chat.append(role="user", content="more")
        assert caught.value.reason == WHEN_FREE
        with pytest.raises(tape.TapeHidden):
            chat.fork("three")
        assert store.purge("one").tapes == ["one"]
        # A second call changes nothing while something rests on it.
        before = contents(backend)
        assert store.purge("a", when_free=True).kept == {"a": "tape 'two' inherits from it"}
        with pytest.raises(tape.TapeInUse):
            store.purge("a")
        assert contents(backend) == before
        done = store.purge("two")
        assert (done.tapes, done.kept) == (["two", "a"], {})
        # Of the parent: its own two entries, two receipts of forks, and the one that hid it.
        assert done.entries == 1 + 5
        assert shown(store) == hidden(store) == []
        check_sound(store, backend)

    def test_f12_one_that_is_hidden_already_is_marked(self, store: tape.Store) -> None:
        """The reason of the hiding becomes that of the purge; what is only hidden stays for ever."""
        for name in ("kept", "marked"):
            chat = store.create(name)
            chat.fork(f"{name}/fork")
            chat.hide("tidied")
        assert store.purge("marked", when_free=True).tapes == []
        assert store.purge("kept/fork").tapes == ["kept/fork"]
        assert store.purge("marked/fork").tapes == ["marked/fork", "marked"]
        assert hidden(store) == ["kept"]

    def test_f12_it_can_be_brought_back(self, backend: Backend, store: tape.Store) -> None:
        """``unhide`` takes the mark off, as does hiding it for another reason; the mark itself is no caller's."""
        chat = store.create("a", messages=said("x"))
        for name in ("one", "two", "three"):
            chat.fork(name)
        store.purge("a", when_free=True)
        chat.unhide()
        assert [message.content for message in chat.messages()] == ["x"]
        assert store.purge("one").tapes == ["one"]
        store.purge("a", when_free=True)
        chat.hide("tidied")
        assert store.purge("two").tapes == ["two"]
        with pytest.raises(tape.InvalidEntry):
            chat.hide(WHEN_FREE)
        assert store.list(hidden=True).items[0].hidden_reason == "tidied"
        assert store.purge("three").tapes == ["three"]
        # Purged like any other hidden tape.
        assert store.purge("a").tapes == ["a"]
        check_sound(store, backend)

    def test_s9_a_dry_run_tells_what_a_purge_does(self, backend: Backend) -> None:
        """It changes nothing, refuses what the purge refuses, and asks for no more than reading."""
        store = backend.open()
        chain(store)
        looking = backend.open(read_only=True)
        calls: list[dict[str, Any]] = [{"id": "c"}, {"id": "a", "when_free": True}, {"id": "b", "forks": True}]
        for options in calls:
            before = contents(backend)
            planned = looking.purge(**options, dry_run=True)
            assert contents(backend) == before
            done = store.purge(**options) if options["id"] != "c" else planned
            assert (planned.dry_run, planned.tapes, planned.kept) == (True, done.tapes, done.kept)
            assert planned.entries == done.entries
        assert shown(store) == hidden(store) == []
        store.create("t").fork("fork")
        refused: list[tuple[type[Exception], dict[str, Any]]] = [
            (tape.TapeInUse, {"id": "t"}),
            (tape.HeadMoved, {"id": "t", "when_free": True, "expected_head": 1}),
            (tape.TapeNotFound, {"id": "a"}),
            (tape.InvalidEntry, {"id": ""}),
        ]
        for kind, options in refused:
            for dry_run in (True, False):
                with pytest.raises(kind):
                    store.purge(**options, dry_run=dry_run)

    def test_s9_on_condition(self, backend: Backend, store: tape.Store) -> None:
        """``expected_head`` holds for the hiding as for the purge: HeadMoved, and nothing is changed."""
        chat = store.create("a", messages=said("x"))
        head = chat.info().head
        chat.fork("fork")
        before = contents(backend)
        for options in ({}, {"forks": True}):
            with pytest.raises(tape.HeadMoved) as caught:
                store.purge("a", expected_head=head, when_free=True, **options)
            assert (caught.value.expected, caught.value.actual) == (head, head + 1)
        assert contents(backend) == before
        assert "a" in store.purge("a", expected_head=head + 1, when_free=True).kept
        with pytest.raises(tape.HeadMoved):
            store.purge("a", expected_head=head + 1, when_free=True)
        # Of the tape itself, not of those that go along.
        assert store.purge("fork", expected_head=1, when_free=True).tapes == ["fork", "a"]

    def test_s9_async_twin(self, backend: Backend) -> None:
        """The awaited purge has the option."""

        async def work() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                await (await store.create("a")).fork("fork")
                assert list((await store.purge("a", when_free=True)).kept) == ["a"]
                assert (await store.purge("fork", when_free=True)).tapes == ["fork", "a"]

        asyncio.run(asyncio.wait_for(work(), PATIENCE))

    def test_s9_where_a_purge_is_refused(self, backend: Backend, store: tape.Store) -> None:
        """In a transaction, and on a store that is only read, it is what a purge is."""
        store.create("a").fork("fork")
        with pytest.raises(tape.NotInTransaction):
            store.transaction(lambda inside: inside.purge("a", when_free=True))
        with pytest.raises(tape.ReadOnly):
            backend.open(read_only=True).purge("a", when_free=True)
        assert hidden(store) == []

    def test_s9_in_a_callers_transaction(self, backend: Backend, store: tape.Store) -> None:
        """On a bound store the hiding and the purge are undone with what else the caller did."""
        store.create("a").fork("fork")
        engine = backend.engine()
        for purged in ([], ["fork", "a"]):
            with engine.connect() as connection:
                bound = store.bind(connection)
                assert list(bound.purge("a", when_free=True).kept) == ["a"]
                if purged:
                    assert bound.purge("fork").tapes == purged
                connection.rollback()
            assert (shown(store), hidden(store)) == (["a", "fork"], [])
        engine.dispose()


class TestFamilies:
    @pytest.mark.parametrize("link", [False, True], ids=["forks", "links"])
    @pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
    def test_f12_three_in_every_order(self, backend: Backend, order: tuple[str, ...], link: bool) -> None:
        """Each is out of sight at once, what is left reads as before, and with the last one all are gone."""
        store = backend.open()
        chain(store, link=link)
        seen = {name: [message.content for message in store.get(name).messages()] for name in "abc"}
        left, purged = list("abc"), []
        for name in order:
            done = store.purge(name, when_free=True)
            left.remove(name)
            purged += done.tapes
            assert shown(store) == left
            # A linked one stays with its parent, and a parent with all that descends from it.
            free = [one for one in "abc" if not [rest for rest in left if link or rest >= one]]
            assert sorted(purged) == free
            assert hidden(store) == sorted(set("abc") - set(left) - set(purged))
            assert set(done.kept) == ({name} if name in hidden(store) else set())
            for rest in left:
                assert [message.content for message in store.get(rest).messages()] == seen[rest]
            assert store.verify().problems == []
        assert sorted(purged) == ["a", "b", "c"]
        check_sound(store, backend)

    @pytest.mark.parametrize("link", [False, True], ids=["forks", "links"])
    @pytest.mark.parametrize("last", LAST)
    def test_f12_whichever_call_takes_the_last(self, backend: Backend, last: str, link: bool) -> None:
        """Every call that purges takes the marked ancestors along, from another store and without being told."""
        store = backend.open()
        chain(store, link=link)
        store.get("c").complete()
        for name in ("a", "b"):
            store.purge(name, when_free=True)
        if last == "retain":
            foreseen = store.retain(older_than=LATER, status="completed")
            assert (foreseen.tapes, foreseen.kept) == (["a", "b", "c"], {})
        done = LAST[last](backend.open(), "c")
        assert (sorted(done.tapes), done.kept) == (["a", "b", "c"], {})
        if last == "retain":
            assert done.entries == foreseen.entries
        assert shown(store) == hidden(store) == []
        check_sound(store, backend)

    def test_f12_what_went_along_is_gone_for_its_writers(self, store: tape.Store) -> None:
        """Nothing is kept in memory of a tape that another's purge took along: to a writer it is no hidden tape."""
        chain(store)
        chat = store.get("a")
        store.purge("a", when_free=True)
        with pytest.raises(tape.TapeHidden):
            chat.append(role="user", content="more")
        store.purge("b", forks=True)
        with pytest.raises(tape.TapeNotFound) as caught:
            chat.append(role="user", content="more")
        assert type(caught.value) is tape.TapeNotFound

    def test_f12_the_branches_of_a_family(self, backend: Backend, store: tape.Store) -> None:
        """A marked tape waits for every branch below it, also where those in between are marked."""
        root = store.create("root")
        left, right = root.fork("left"), root.fork("right")
        for parent in (left, right):
            parent.fork(f"{parent.id}/1")
            parent.fork(f"{parent.id}/2")
        assert store.purge("root", when_free=True).kept == {"root": "tape 'left' inherits from it"}
        assert store.purge("left", when_free=True).kept == {"left": "tape 'left/1' inherits from it"}
        assert store.purge("right", when_free=True).tapes == []
        assert store.purge("left/1").tapes == ["left/1"]
        assert store.purge("left/2").tapes == ["left/2", "left"]
        assert store.purge("right/1", when_free=True).tapes == ["right/1"]
        assert store.purge("root", when_free=True).kept == {"root": "tape 'right/2' inherits from it"}
        assert store.purge("right/2", when_free=True).tapes == ["right/2", "right", "root"]
        check_sound(store, backend)

    def test_f12_with_forks_only_what_is_linked_stays(self, backend: Backend, store: tape.Store) -> None:
        """``forks`` and ``when_free``: what the parent links to is hidden, with what that links to; the rest goes."""
        root = store.create("root")
        linked = root.fork("linked")
        root.merge(linked, strategy="link")
        linked.fork("plain").fork("plain/deep")
        below = linked.fork("below")
        linked.merge(below, strategy="link")
        below.fork("below/deep")
        done = store.purge("linked", forks=True, when_free=True)
        assert sorted(done.tapes) == ["below/deep", "plain", "plain/deep"]
        assert done.kept == {"linked": "tape 'root' links to it", "below": "tape 'linked' links to it"}
        assert (shown(store), hidden(store)) == (["root"], ["below", "linked"])
        with pytest.raises(tape.TapeInUse) as caught:
            store.purge("linked", forks=True)
        assert caught.value.by == ["root"]
        assert sorted(store.purge("root").tapes) == ["below", "linked", "root"]
        check_sound(store, backend)

    def test_f12_a_random_family_in_a_random_order(self, scratch: tape.Store) -> None:
        """After each call exactly those deleted tapes are left that something else rests on."""
        for seed in range(scaled(120)):
            rng = random.Random(seed)
            names, parents, links = [f"s{seed}/0"], {}, set()
            scratch.create(names[0])
            for n in range(1, rng.randint(2, 9)):
                name, parent = f"s{seed}/{n}", rng.choice(names)
                fork = scratch.get(parent).fork(name)
                if rng.random() < 0.5:
                    scratch.get(parent).merge(fork, strategy="link")
                    links.add(name)
                parents[name] = parent
                names.append(name)
            resting = {name: {fork for fork, parent in parents.items() if parent == name} for name in names}
            for name in links:
                resting[name].add(parents[name])
            there, wanted = set(names), set()
            for name in rng.sample(names, len(names)):
                wanted.add(name)
                if name not in there:
                    continue
                done = scratch.purge(name, when_free=True)
                going = wanted & there
                while held := {one for one in going if (resting[one] & there) - going}:
                    going -= held
                there -= going
                assert sorted(done.tapes) == sorted(going), f"seed {seed}, {name}"
                assert set(done.kept) == {name} - going, f"seed {seed}, {name}"
                prefix = f"s{seed}/"
                assert {info.id for info in scratch.list(prefix=prefix)} == there - wanted
                assert {info.id for info in scratch.list(prefix=prefix, hidden=True)} == there & wanted
            assert there == set(), f"seed {seed}"

    def test_f12_a_fork_of_a_tape_with_many_is_purged_by_a_few_rows(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether a marked tape is free is not found out by reading all of its forks."""
        chat = store.create("a")
        for n in range(60):
            chat.fork(f"f{n}")
        store.purge("a", when_free=True)
        read: list[int] = []
        every = Transaction.all

        def counting(self: Transaction, *args: Any) -> Any:
            rows = every(self, *args)
            read.append(len(rows))
            return rows

        monkeypatch.setattr(Transaction, "all", counting)
        assert store.purge("f30").tapes == ["f30"]
        assert sum(read) < 10


class TestElsewhere:
    def test_s9_verify_and_rebuild(self, backend: Backend, store: tape.Store) -> None:
        """The mark comes from the entry that hid the tape: verify misses it in the row, rebuild brings it back."""
        chain(store)
        store.purge("a", when_free=True)
        assert store.verify().ok
        connection = backend.raw()
        connection.execute("UPDATE tape_tapes SET hidden = 'tidied' WHERE tape = 'a'")
        connection.close()
        assert {problem.tape for problem in store.verify().problems} == {"a"}
        assert store.rebuild("a") == 1
        assert store.rebuild() == 3
        assert store.verify().ok
        assert store.purge("b", forks=True).tapes == ["b", "c", "a"]

    def test_s9_export_and_import(self, store: tape.Store, other: Backend) -> None:
        """A family that arrives elsewhere is marked there, too, and goes there with its last fork."""
        chain(store)
        store.purge("a", when_free=True)
        target = other.open()
        target.import_(io.BytesIO(exported(store, "c", family=True)))
        assert [(info.id, info.hidden_reason) for info in target.list(hidden=True)] == [("a", WHEN_FREE)]
        assert target.verify().ok
        assert target.purge("b", forks=True, when_free=True).tapes == ["b", "c", "a"]
        assert hidden(store) == ["a"]

    def test_s9_the_export_of_a_fork_alone_has_no_mark(self, store: tape.Store, other: Backend) -> None:
        """It has its ancestors up to where it was made. They are shown where they arrive, and can be marked there."""
        chain(store)
        store.purge("a", when_free=True)
        target = other.open()
        target.import_(io.BytesIO(exported(store, "c")))
        assert (shown(target), hidden(target)) == (["a", "b", "c"], [])
        assert list(target.purge("a", when_free=True).kept) == ["a"]
        assert target.purge("b", forks=True).tapes == ["b", "c", "a"]

    def test_s4_owners(self, store: tape.Store) -> None:
        """An owner deletes own tapes only; what goes along has the same owner."""
        ann, bob = store.scoped("ann"), store.scoped("bob")
        ann.create("a").fork("fork")
        for id in ("a", "fork"):
            with pytest.raises(tape.TapeNotFound):
                bob.purge(id, when_free=True)
        assert hidden(store) == []
        ann.purge("a", when_free=True)
        assert (hidden(ann), hidden(bob)) == (["a"], [])
        assert ann.purge("fork", when_free=True).tapes == ["fork", "a"]
        assert {row.owner for row in store._db.read(lambda tx: tx.all(tx.statements.tombstone, ("a",)))} == {"ann"}

    def test_s9_the_command(self, fresh: Shell) -> None:
        """``--when-free`` reports what it hid and why; the last purge reports the tapes that it purged as well."""
        store = fresh.backend.open()
        chain(store)
        assert fresh("purge", "a", "--when-free").err == (
            "tape: a purge cannot be undone, and there is no terminal to confirm it on; add --yes\n"
        )
        done = fresh("purge", "a", "--when-free", "--yes")
        assert (done.code, done.out) == (0, "hidden a: tape 'b' inherits from it\n")
        assert done.err == "purged 0 tapes, 0 entries\n"
        told = fresh("purge", "b", "--when-free", "--yes", "--json").json
        assert (told["tapes"], told["kept"]) == ([], {"b": "tape 'c' inherits from it"})
        assert fresh("purge", "c", "--yes").out == "c\nb\na\n"

    def test_s9_the_question_names_all_that_goes(self, store: tape.Store) -> None:
        """The command asks about what a purge takes along and about what it hides, hidden forks included."""

        def question(name: str, **options: bool) -> str:
            return _what_goes(store.purge(name, dry_run=True, **options))

        chain(store)
        assert question("c") == "Purge tape 'c', 2 entries?"
        assert question("a", when_free=True) == "Hide tape 'a', since tape 'b' inherits from it?"
        for name in "ab":
            store.purge(name, when_free=True)
        assert question("c") == "Purge 3 tapes ('c', 'b', 'a'), 10 entries?"
        assert question("a", forks=True) == "Purge 3 tapes ('a', 'b', 'c'), 10 entries?"
        for n in range(3):
            store.get("c").fork(f"f{n}")
        assert question("c", forks=True) == "Purge 6 tapes ('c', 'f0', 'f1', 'f2', 'b', …), 16 entries?"
        linked = store.create("root").fork("linked")
        linked.fork("plain")
        store.get("root").merge(linked, strategy="link")
        told = "Purge tape 'plain', 1 entry; hide tape 'linked', since tape 'root' links to it?"
        assert question("linked", forks=True, when_free=True) == told

    def test_s9_each_is_an_audit_event(self, store: tape.Store, caplog: pytest.LogCaptureFixture) -> None:
        """Also the purge of one that goes along."""
        chain(store)
        for name in "abc":
            store.purge(name, when_free=True)
        told = [record.getMessage() for record in caplog.records if "tape.purged" in record.getMessage()]
        assert [event.split("tape='")[1][0] for event in told] == ["c", "b", "a"]


class Boom(Exception):
    """What a test lets fail."""


class TestCrashes:
    def test_s9_the_last_fork_and_its_ancestors_vanish_in_one_transaction(
        self, backend: Backend, store: tape.Store
    ) -> None:
        """Whenever the purge dies, all of them are there as before, or none is, and later calls empty them."""
        chain(store)
        for name in ("a", "b"):
            store.purge(name, when_free=True)
        before = contents(backend)
        for number in range(1, 100):
            left = number

            def fault(point: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Boom

            store._db.fault = fault
            try:
                store.purge("c")
                break
            except Boom:
                store._db.fault = None
            if hidden(store):
                assert (hidden(store), shown(store)) == (["a", "b"], ["c"])
                assert contents(backend) == before
            else:
                assert shown(store) == []
        store._db.fault = None
        assert number > 5
        assert hidden(store) == shown(store) == []
        check_sound(store, backend)
        with pytest.raises(tape.TapeNotFound):
            store.purge("c")

    @pytest.mark.parametrize("forks", [False, True])
    def test_s9_the_next_call_empties_what_went_along(self, backend: Backend, store: tape.Store, forks: bool) -> None:
        """A purge that dies before any row is deleted is finished by the same call, also those that it took along."""
        chain(store)
        store.purge("a", when_free=True)

        def interrupted(*args: object) -> None:
            raise Boom

        store._services.purging.empty = interrupted  # type: ignore[method-assign,assignment]
        with pytest.raises(Boom):
            store.purge("b", forks=True)
        again = backend.open()
        assert sorted(again.purge("b", forks=forks).tapes) == ["a", "b", "c"]
        check_sound(again, backend)
        for name in "abc":
            with pytest.raises(tape.TapeNotFound):
                again.purge(name, forks=forks)

    def test_s9_the_hiding_is_one_transaction(self, backend: Backend, store: tape.Store) -> None:
        """A call that dies while it hides leaves the tape as it was, and can be repeated."""
        chain(store)
        before = contents(backend)

        def fault(point: str) -> None:
            if point == "commit":
                raise Boom

        store._db.fault = fault
        with pytest.raises(Boom):
            store.purge("a", when_free=True)
        store._db.fault = None
        assert contents(backend) == before
        assert list(store.purge("a", when_free=True).kept) == ["a"]


class TestRaces:
    """Nobody leaves it to another to take a parent along."""

    @pytest.mark.parametrize("link", [False, True], ids=["forks", "links"])
    def test_f12_all_of_a_family_at_once(self, backend: Backend, link: bool) -> None:
        """Threads with a store each delete the tapes of a family at one moment: nothing of it is left."""
        stores = [backend.open(durability="normal") for _ in range(7)]
        for turn in range(scaled(20)):
            names = [f"t{turn}/{n}" for n in range(7)]
            stores[0].create(names[0])
            for n in range(1, 7):
                parent = stores[0].get(names[(n - 1) // 2])
                fork = parent.fork(names[n])
                if link and n % 2:
                    parent.merge(fork, strategy="link")

            def delete(store: tape.Store, name: str) -> None:
                try:
                    store.purge(name, when_free=True)
                except tape.TapeNotFound as error:
                    raise AssertionError(f"{name} was purged before it was deleted") from error

            crowd([partial(delete, store, name) for store, name in zip(stores, names, strict=True)])
            assert (shown(stores[0]), hidden(stores[0])) == ([], [])
        check_sound(stores[0], backend)

    def test_f12_forks_against_deletes(self, backend: Backend) -> None:
        """Eight threads fork tapes of a family and delete them: a fork that was made is whole until it is deleted."""
        stores = [backend.open(durability="normal") for _ in range(8)]
        stores[0].create("root", messages=said("root"))
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
                    # Deleted by another.
                    continue
                with lock:
                    made.append(name)
                if rng.random() < 0.6:
                    with lock:
                        gone = made.pop(rng.randrange(len(made))) if len(made) > 1 else None
                    if gone is not None:
                        store.purge(gone, when_free=True)

        crowd([partial(work, number) for number in range(8)])
        store = stores[0]
        for name in made:
            assert store.get(name).messages()[0].content == "root"
        for name in list(made):
            store.purge(name, when_free=True)
        assert shown(store) == hidden(store) == []
        check_sound(store, backend)

    def test_f12_processes_delete_one_family(self, backend: Backend, crew: Crew) -> None:
        """Four processes delete the tapes of families, each its share of every one: nothing is left."""
        store = backend.open(durability="normal")
        families = [[f"p{turn}/{n}" for n in range(8)] for turn in range(scaled(15))]
        for names in families:
            store.create(names[0])
            for n in range(1, 8):
                store.get(names[(n - 1) // 2]).fork(names[n])
        shares = [[names[n] for names in families for n in (7 - k, k)] for k in range(4)]
        answers = crew.race(backend, programs.delete, [{"names": share} for share in shares])
        purged = [name for facts in answers for tapes in facts for name in tapes]
        assert sorted(purged) == sorted(name for names in families for name in names)
        assert shown(store) == hidden(store) == []
        check_sound(store, backend)
