"""Reuse: the id of a purged tape taken again on purpose, and a creation that can be repeated."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
import sqlalchemy as sa
from support.backends import Backend
from support.damage import contents
from support.messages import say
from support.sizes import heavy, size
from test_conditions import PATIENCE, crowd

import tape
from tape.db.read.reader import Reader


class TestReuse:
    """``create(id, reuse=True)`` after a purge."""

    def test_nothing_of_the_old_tape_is_seen(self, store: tape.Store) -> None:
        """The new tape begins at its first entry; the old one is its tombstone in the feed and nowhere else."""
        old = store.create("t", name="Old", labels=["x"], messages=[{"id": "m1", "role": "user", "content": "pelican"}])
        old.put("slot", 1)
        store.search("pelican")
        store.purge("t")
        with pytest.raises(tape.TapeExists) as caught:
            store.create("t")
        assert caught.value.purged
        with pytest.raises(tape.TapeNotFound):
            store.tape("t").append(role="user", content="x")
        new = store.create("t", reuse=True)
        info = new.info()
        assert (info.head, info.view, info.name, info.labels, new.states(), new.messages()) == (1, 0, None, [], {}, [])
        assert store.search("pelican") == []
        # The ids and keys of the old one are free.
        assert not new.append(id="m1", role="user", content="heron").duplicate
        assert [hit.tape for hit in store.search("heron")] == ["t"]
        assert [(entry.seq, entry.kind) for entry in store.feed()] == [(4, "status"), (1, "open"), (2, "append")]
        assert store.verify().ok

    def test_reuse_of_a_free_id_is_a_creation(self, store: tape.Store) -> None:
        """It may be reused, it need not have been used; a tape that is there is never replaced."""
        store.create("t", reuse=True, messages=say("a"))
        with pytest.raises(tape.TapeExists) as caught:
            store.create("t", reuse=True)
        assert not caught.value.purged
        assert len(store.get("t").messages()) == 1

    @heavy
    def test_one_of_eight_gets_it(self, backend: Backend) -> None:
        """Eight stores reuse the id at one moment: one makes the tape, the others are told that it is there."""
        stores = [backend.open(durability="normal") for _ in range(4)]
        for turn in range(size(5, 25)):
            stores[0].create("t", reuse=True)
            stores[0].purge("t")
            made: list[tape.Tape] = []
            refused: list[tape.TapeExists] = []

            def reuse(number: int, turn: int = turn, made: Any = made, refused: Any = refused) -> None:
                try:
                    made.append(stores[number % 4].create("t", reuse=True, messages=say(f"{turn}.{number}")))
                except tape.TapeExists as exists:
                    refused.append(exists)

            crowd([lambda n=n: reuse(n) for n in range(8)])  # type: ignore[misc]
            assert (len(made), len(refused)) == (1, 7)
            assert not any(error.purged for error in refused)
            assert len(made[0].messages()) == 1
            stores[0].purge("t")
        assert stores[0].verify().ok

    def test_a_fork_of_the_new_tape_is_no_fork_of_the_old(self, store: tape.Store) -> None:
        """What a purge looks for is what inherits from the tape that has the id now."""
        store.create("t", messages=say("a")).fork("c")
        store.purge("t", forks=True)
        new = store.create("t", reuse=True, messages=say("b"))
        with pytest.raises(tape.TapeExists):
            new.fork("c")
        new.fork("d")
        with pytest.raises(tape.TapeInUse) as caught:
            store.purge("t")
        assert caught.value.by == ["d"]
        assert store.create("c", reuse=True).lineage().ancestors == []


class TestReusedByFork:
    """``fork(id, reuse=True)`` after a purge."""

    def test_a_fork_takes_the_id_of_a_purged_one(self, backend: Backend, store: tape.Store) -> None:
        """As often as it is purged; the parent has a receipt for each, and nothing of the old one is inherited."""
        chat = store.create("t", messages=say("a", "b"))
        chat.fork("c").append(role="user", content="gone")
        for turn in range(3):
            store.purge("c")
            with pytest.raises(tape.TapeExists) as caught:
                chat.fork("c")
            assert caught.value.purged
            fork = chat.fork("c", at="a", reuse=True)
            assert [message.id for message in fork.messages()] == ["a"]
            # The same call again gives the same fork; one that is there is never replaced.
            assert chat.fork("c", at="a", reuse=True).info().head == 1
            with pytest.raises(tape.TapeExists) as caught:
                chat.fork("c", at="b", reuse=True)
            assert not caught.value.purged
            assert len(list(chat.entries(kinds=["fork"]))) == turn + 2
        file = io.BytesIO()
        store.export("t", file, family=True)
        assert store.verify().ok
        store.purge("t", forks=True)
        assert store.import_(io.BytesIO(file.getvalue()), reuse=True).tapes == ["t", "c"]
        assert store.verify().ok

    def test_an_async_fork_takes_it_too(self, backend: Backend) -> None:
        """The twin has the same option, also with a tape that was no fork before."""

        async def go() -> list[str]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await store.create("t", messages=say("a"))
                await store.create("c")
                await store.purge("c")
                fork = await chat.fork("c", reuse=True)
                return [message.id for message in await fork.messages()]

        assert asyncio.run(go()) == ["a"]


class TestRepeated:
    """``create(key=)``: the same call again gives the tape that it made."""

    def test_the_same_key_gives_the_same_tape(self, backend: Backend, store: tape.Store) -> None:
        """After a lost reply, from another store, and after the tape has gone on: nothing is written twice."""
        store.create("t").append(role="user", content="old")
        store.purge("t")
        facts: dict[str, Any] = {"name": "Trip", "agent": "planner", "labels": ["x"], "messages": say("a", "b")}
        made = store.create("t", reuse=True, key="k", **facts)
        before = contents(backend)
        for again in (store, backend.open()):
            assert again.create("t", reuse=True, key="k", **facts).id == "t"
            assert again.create("t", key="k", **facts).id == "t"
        assert contents(backend) == before
        made.append(role="user", content="c")
        made.retract("a")
        assert store.create("t", reuse=True, key="k", **facts).info().head == 5
        with pytest.raises(tape.TapeExists):
            store.create("t", reuse=True, **facts)
        with pytest.raises(tape.TapeExists):
            store.create("t", reuse=True, key="other", **facts)

    @pytest.mark.parametrize(
        "other",
        [
            {"name": "Other"},
            {"labels": ["y"]},
            {"agent": None},
            {"owner": "ann"},
            {"messages": None},
            {"messages": say("a")},
            {"messages": say("a", "c")},
        ],
        ids=str,
    )
    def test_other_content_is_a_conflict(self, backend: Backend, store: tape.Store, other: dict[str, Any]) -> None:
        """The same key for another tape is ProvenanceConflict, and nothing is written."""
        facts: dict[str, Any] = {"name": "Trip", "agent": "planner", "labels": ["x"], "messages": say("a", "b")}
        store.create("t", key="k", **facts)
        before = contents(backend)
        with pytest.raises(tape.ProvenanceConflict) as caught:
            store.create("t", key="k", **{**facts, **other})
        assert (caught.value.tape, caught.value.stored != caught.value.given) == ("t", True)
        assert contents(backend) == before

    def test_a_tape_without_messages(self, backend: Backend, store: tape.Store) -> None:
        """A call that brings messages is not the one that made an empty tape, even if that has some by now."""
        store.create("t", key="k").append(role="user", content="x")
        before = contents(backend)
        assert store.create("t", key="k").info().head == 2
        with pytest.raises(tape.ProvenanceConflict):
            store.create("t", key="k", messages=say("a"))
        assert contents(backend) == before

    def test_the_key_of_another_entry_is_no_creation(self, store: tape.Store) -> None:
        """Whoever used the key on the tape for something else did not create it."""
        store.create("t").event("x", key="k")
        with pytest.raises(tape.TapeExists):
            store.create("t", key="k")

    def test_messages_with_generated_ids(self, store: tape.Store) -> None:
        """Ids that the store makes differ between two attempts, and do not make them different."""
        messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
        first = store.create("t", key="k", messages=messages).messages()
        assert store.create("t", key="k", messages=messages).messages() == first

    @heavy
    def test_one_of_eight_writes(self, backend: Backend) -> None:
        """Eight at one moment with one key: one tape, and all of them get it."""
        stores = [backend.open(durability="normal") for _ in range(4)]
        for turn in range(size(5, 25)):
            made: list[str] = []

            def create(number: int, turn: int = turn, made: list[str] = made) -> None:
                made.append(stores[number % 4].create(f"t{turn}", key="k", messages=say("a", "b")).id)

            crowd([lambda n=n: create(n) for n in range(8)])  # type: ignore[misc]
            assert made == [f"t{turn}"] * 8
            assert stores[0].get(f"t{turn}").info().head == 3

    @pytest.mark.parametrize("key", ["", "a\nb", "x" * 256, 7], ids=["empty", "control", "long", "number"])
    def test_bad_keys(self, backend: Backend, store: tape.Store, key: Any) -> None:
        """What is no key is InvalidEntry, and no tape is made."""
        with pytest.raises(tape.InvalidEntry) as caught:
            store.create("t", key=key)
        assert caught.value.field == "key"
        assert store.list().items == []

    def test_async(self, backend: Backend) -> None:
        """The awaited twin takes key and reuse alike."""

        async def work() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                await store.create("t")
                await store.purge("t")
                for _ in range(2):
                    assert (await store.create("t", reuse=True, key="k", messages=say("a"))).id == "t"
                with pytest.raises(tape.ProvenanceConflict):
                    await store.create("t", key="k", name="other")

        asyncio.run(asyncio.wait_for(work(), PATIENCE))


class TestExistsOk:
    """``create(id, exists_ok=True)``: the tape is there afterwards, whoever created it."""

    FACTS: dict[str, Any] = {"name": "New", "agent": "other", "labels": ["y"], "meta": {"m": 2}}

    def test_it_creates_what_is_not_there(self, store: tape.Store) -> None:
        """With its facts and messages, as ever; an id that is made up is free."""
        chat = store.create("t", exists_ok=True, messages=say("a", "b"), **self.FACTS)
        assert (chat.info().name, chat.info().labels, len(chat.messages())) == ("New", ["y"], 2)
        assert store.create(exists_ok=True).id != store.create(exists_ok=True).id

    def test_what_is_there_is_left_as_it_is(self, store: tape.Store) -> None:
        """No fact changes and no message is written, also with a key, also on a tape that was closed."""
        old = store.create("t", name="Old", labels=["x"], messages=say("a"), key="k")
        old.end("over")
        before = list(old.entries()), old.info()
        for key in (None, "k", "other"):
            found = store.create("t", exists_ok=True, key=key, messages=say("b", "c"), reuse=True, **self.FACTS)
            assert found.id == "t"
        assert (list(old.entries()), old.info()) == before
        assert store.verify().ok

    @pytest.mark.parametrize("key", [None, "k"])
    def test_another_may_create_it_meanwhile(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, key: str | None
    ) -> None:
        """Between the look and the write: the write finds it, and writes nothing."""
        store, other = backend.open(), backend.open()
        look = Reader.exists

        def late(reader: Reader, id: str, of_owner: str | None) -> bool:
            there = look(reader, id, of_owner)
            if not there:
                other.create(id, name="Old", key=key)
            return there

        monkeypatch.setattr(Reader, "exists", late)
        found = store.create("t", exists_ok=True, key=key, messages=say("a"), **self.FACTS)
        assert (found.info().name, found.info().head) == ("Old", 1)

    @heavy
    def test_eight_at_once_share_one(self, backend: Backend) -> None:
        """All of them get the tape, and it begins with the messages of one of them."""
        stores = [backend.open(durability="normal") for _ in range(4)]
        for turn in range(size(5, 25)):
            made: list[tape.Tape] = []

            def create(number: int, turn: int = turn, made: Any = made) -> None:
                store = stores[number % 4]
                made.append(store.create(f"t{turn}", exists_ok=True, messages=say(f"{number}.0", f"{number}.1")))

            crowd([lambda n=n: create(n) for n in range(8)])  # type: ignore[misc]
            assert [chat.id for chat in made] == [f"t{turn}"] * 8
            first, second = made[0].messages()
            assert str(first.content)[:1] == str(second.content)[:1]
            assert made[0].info().head == 3

    def test_in_a_transaction(self, store: tape.Store) -> None:
        """It finds what was there and what the transaction has made, and the transaction goes on."""
        store.create("old", messages=say("a"))

        def fn(inner: tape.Store) -> list[int]:
            for _ in range(2):
                inner.create("old", exists_ok=True, messages=say("b")).append(role="user", content="c")
                inner.create("new", exists_ok=True, messages=say("b"))
            return [inner.get(id).info().message_count for id in ("old", "new")]

        assert store.transaction(fn) == [3, 1]
        assert store.transaction(lambda inner: inner.transaction(fn)) == [5, 1]
        assert store.verify().ok

    def test_transactions_at_once(self, backend: Backend) -> None:
        """Those that create the same tape wait for each other, and each finds one tape."""
        stores = [backend.open(durability="normal") for _ in range(4)]

        def work(store: tape.Store) -> None:
            store.transaction(lambda inner: inner.create("t", exists_ok=True).append(role="user", content="x"))

        crowd([lambda store=store: work(store) for store in stores])  # type: ignore[misc]
        assert [entry.kind for entry in stores[0].get("t").entries()] == ["open", *["append"] * 4]

    def test_hidden_purged_and_foreign_ones_are_refused_as_ever(self, store: tape.Store) -> None:
        """Nobody is given a tape that would not be shown, nor one of somebody else."""
        store.create("hidden").hide()
        with pytest.raises(tape.TapeExists) as caught:
            store.create("hidden", exists_ok=True)
        assert caught.value.hidden
        store.create("gone")
        store.purge("gone")
        with pytest.raises(tape.TapeExists) as caught:
            store.create("gone", exists_ok=True)
        assert caught.value.purged
        assert store.create("gone", exists_ok=True, reuse=True).info().head == 1
        store.create("anns", owner="ann")
        with pytest.raises(tape.TapeNotFound):
            store.scoped("bob").create("anns", exists_ok=True)
        with pytest.raises(tape.TapeExists):
            store.create("anns", owner="bob", exists_ok=True)
        for found in (
            store.create("anns", exists_ok=True),
            store.create("anns", owner="ann", exists_ok=True),
            store.scoped("ann").create("anns", exists_ok=True),
        ):
            assert found.info().owner == "ann"

    def test_wrong_arguments_are_refused_whether_it_is_there_or_not(self, store: tape.Store) -> None:
        """What would fail the first time fails every time."""
        for _ in range(2):
            wrong: Any
            for wrong in ({"exists_ok": 1}, {"exists_ok": True, "labels": [""]}, {"exists_ok": True, "messages": [7]}):
                with pytest.raises(tape.InvalidEntry):
                    store.create("t", **wrong)
            store.create("t", exists_ok=True)

    def test_a_store_to_be_read_only_finds_it(self, backend: Backend) -> None:
        """Nothing has to be written for a tape that is there; one that is not cannot be made."""
        backend.open().create("t")
        reading = backend.open(read_only=True)
        assert reading.create("t", exists_ok=True).info().head == 1
        with pytest.raises(tape.ReadOnly):
            reading.create("u", exists_ok=True)

    def test_on_a_connection_of_the_caller(self, backend: Backend, store: tape.Store) -> None:
        """It is rolled back with it, or found."""
        store.create("old")
        engine = sa.create_engine(backend.url)
        with engine.connect() as connection, connection.begin() as outer:
            bound = store.bind(connection)
            for _ in range(2):
                assert bound.create("old", exists_ok=True, messages=say("a")).info().head == 1
                assert bound.create("new", exists_ok=True, messages=say("a")).info().head == 2
            outer.rollback()
        engine.dispose()
        with pytest.raises(tape.TapeNotFound):
            store.get("new")

    def test_the_async_twin(self, backend: Backend) -> None:
        """Many tasks at once get one tape."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                made = await asyncio.gather(*(store.create("t", exists_ok=True, messages=say("a")) for _ in range(10)))
                assert {chat.id for chat in made} == {"t"}
                assert [entry.kind async for entry in made[0].entries()] == ["open", "append"]

        asyncio.run(asyncio.wait_for(main(), PATIENCE))
