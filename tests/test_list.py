"""S1, S3, S18: finding tapes again, with their names, labels and what is known of them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.backends import Backend

import tape
from tape.db.read import catalog

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return int(self.now.timestamp()) * 1_000_000

    def go(self, days: int) -> None:
        self.now += timedelta(days=days)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(backend: Backend, clock: Clock) -> tape.Store:
    return backend.open(clock=clock)


def names(page: tape.Page[tape.TapeInfo]) -> list[str]:
    return [info.id for info in page]


def pages(store: tape.Store, limit: int, **filters: Any) -> Iterator[list[str]]:
    """Yield the ids on each page."""
    cursor = None
    while True:
        page = store.list(limit=limit, cursor=cursor, **filters)
        yield names(page)
        assert page.truncated == (page.cursor is not None)
        cursor = page.cursor
        if cursor is None:
            return


class TestFilters:
    @pytest.fixture(autouse=True)
    def tapes(self, store: tape.Store, clock: Clock) -> None:
        """Six tapes, a day apart."""
        store.create("a", owner="ann", agent="planner", labels=["urgent", "trip"])
        clock.go(1)
        store.create("b", owner="ann", agent="coder").complete()
        clock.go(1)
        store.create("c", owner="bob", agent="planner", labels=["trip"])
        clock.go(1)
        store.get("c").fork("d").append(role="user", content="x")
        clock.go(1)
        store.create("e", owner="bob").abandon("no money")
        clock.go(1)
        store.tape("f").append(role="user", content="x")

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            ({}, "fedcba"),
            ({"owner": "ann"}, "ba"),
            ({"owner": "nobody"}, ""),
            ({"agent": "planner"}, "dca"),
            ({"status": "active"}, "fdca"),
            ({"status": "completed"}, "b"),
            ({"status": "abandoned"}, "e"),
            ({"parent": "c"}, "d"),
            ({"parent": "a"}, ""),
            ({"label": "trip"}, "ca"),
            ({"label": "urgent"}, "a"),
            ({"updated_before": START + timedelta(days=1)}, "a"),
            ({"updated_after": START + timedelta(days=3)}, "fe"),
            ({"updated_after": START, "updated_before": START + timedelta(days=4)}, "dcb"),
            ({"owner": "bob", "agent": "planner", "status": "active", "label": "trip"}, "c"),
            ({"owner": "bob", "agent": "planner", "status": "active", "parent": "c"}, "d"),
        ],
    )
    def test_s3_every_filter(self, store: tape.Store, filters: dict[str, Any], found: str) -> None:
        """Each filter gives exactly the tapes that meet it, newest first, and filters add up."""
        assert names(store.list(**filters)) == list(found)
        for limit in (1, 2):
            read = list(pages(store, limit, **filters))
            assert [name for page in read for name in page] == list(found)
            assert all(len(page) <= limit for page in read)

    def test_s3_labels_changed_later_are_found(self, store: tape.Store) -> None:
        """A label put on later is found and one taken off no longer is, also on a closed tape."""
        store.get("b").label("trip", "late")
        store.get("a").label(remove=["trip"])
        assert names(store.list(label="trip")) == ["c", "b"]
        assert store.get("b").info().labels == ["trip", "late"]
        assert store.get("a").info().labels == ["urgent"]

    def test_s3_a_reopened_tape_is_active_again(self, store: tape.Store) -> None:
        """Status changes are found at once."""
        store.get("b").reopen()
        assert names(store.list(status="completed")) == []
        assert names(store.list(status="active")) == ["f", "d", "c", "b", "a"]

    def test_s3_order_of_change(self, store: tape.Store, clock: Clock) -> None:
        """In the order of change a tape that is written to comes first; tapes changed at one instant by creation."""
        clock.go(1)
        store.get("a").append(role="user", content="x")
        assert names(store.list(order="updated")) == ["a", "f", "e", "d", "c", "b"]
        assert [name for page in pages(store, 2, order="updated") for name in page] == list("afedcb")
        assert names(store.list(order="updated", owner="ann")) == ["a", "b"]

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"limit": 0}, "limit"),
            ({"limit": 1001}, "limit"),
            ({"limit": True}, "limit"),
            ({"order": "name"}, "order"),
            ({"cursor": "x"}, "cursor"),
            ({"cursor": "1.2"}, "cursor"),
            ({"order": "updated", "cursor": "1"}, "cursor"),
            ({"owner": ""}, "owner"),
            ({"updated_before": datetime(2026, 1, 1)}, "updated_before"),
            ({"updated_after": 7}, "updated_after"),
        ],
    )
    def test_s3_what_makes_no_sense_is_refused(self, store: tape.Store, wrong: dict[str, Any], field: str) -> None:
        """A wrong argument is named."""
        with pytest.raises(tape.InvalidEntry) as caught:
            store.list(**wrong)
        assert caught.value.field == field


class TestPaging:
    def test_s3_neither_skips_nor_repeats_under_concurrent_writes(self, backend: Backend) -> None:
        """While eight threads create, write, label and close tapes, paging gives every tape of the start once."""
        store = backend.open()
        there = [f"t{n}" for n in range(60)]
        for name in there:
            store.create(name, owner="ann")
        done = threading.Event()
        wrong: list[BaseException] = []

        def write(seed: int) -> None:
            chance = random.Random(seed)
            try:
                for n in range(200):
                    if done.is_set():
                        return
                    chat = store.tape(chance.choice(there))
                    what = chance.randrange(4)
                    if what == 0:
                        store.create(f"new-{seed}-{n}", owner="ann")
                    elif what == 1:
                        chat.event("tick")
                    elif what == 2:
                        chat.label(f"l{seed}")
                    else:
                        chat.rename(f"n{seed}")
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                read = [name for page in pages(store, 7, owner="ann") for name in page]
                assert len(read) == len(set(read))
                assert [name for name in read if name in set(there)] == there[::-1]
        finally:
            done.set()
            for thread in threads:
                thread.join(timeout=60)
        assert wrong == []
        assert store.verify().problems == []

    def test_s3_uses_indexes_that_no_append_changes(self, backend: Backend) -> None:
        """No index holds a column of the heads, which every append changes."""
        backend.open()
        connection = backend.raw()
        query = "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'tape_heads' AND sql IS NOT NULL"
        if backend.postgres:
            query = (
                f"SELECT indexdef FROM pg_indexes WHERE schemaname = '{backend.schema}' AND tablename = 'tape_heads'"
                " AND indexname <> 'tape_heads_pkey'"
            )
        assert connection.execute(query).fetchall() == []
        connection.close()


class TestTapes:
    """All tapes, without pages."""

    @pytest.fixture(autouse=True)
    def short_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(catalog, "MOST_AT_ONCE", 3)

    @pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
    def test_all_are_given_in_the_order_of_the_list(self, store: tape.Store, count: int) -> None:
        """However many pages they take; none is missing and none comes twice."""
        for number in range(count):
            store.create(f"t{number}", labels=["odd"] if number % 2 else None)
        store.tape("t0").event("again") if count else None
        for filters in ({}, {"label": "odd"}, {"order": "updated"}, {"prefix": "t1"}, {"hidden": True}):
            wanted: dict[str, Any] = filters
            assert list(store.tapes(**wanted)) == store.list(**wanted).items
        assert len(list(store.tapes())) == count

    def test_an_owner_is_given_its_own(self, store: tape.Store) -> None:
        """A scoped store has no others, and a filter for another finds nothing."""
        for number in range(8):
            store.create(f"t{number}", owner="ann" if number % 2 else "bob")
        assert [info.id for info in store.tapes(owner="ann")] == ["t7", "t5", "t3", "t1"]
        assert [info.id for info in store.scoped("ann").tapes()] == ["t7", "t5", "t3", "t1"]
        assert list(store.scoped("ann").tapes(owner="bob")) == []

    def test_what_is_written_meanwhile_disturbs_nothing(self, store: tape.Store) -> None:
        """Tapes may be made and purged while one goes over them."""
        for number in range(7):
            store.create(f"t{number}")
        seen = []
        for info in store.tapes():
            seen.append(info.id)
            store.create(f"later-{info.id}")
            store.purge(info.id)
        assert seen == [f"t{number}" for number in reversed(range(7))]

    def test_it_is_part_of_a_transaction(self, store: tape.Store) -> None:
        """It sees what the transaction has made."""
        for number in range(4):
            store.create(f"t{number}")

        def fn(inner: tape.Store) -> list[str]:
            inner.create("new")
            return [info.id for info in inner.tapes()]

        assert store.transaction(fn) == ["new", "t3", "t2", "t1", "t0"]

    WRONG = (
        ({"order": "name"}, "order"),
        ({"owner": ""}, "owner"),
        ({"prefix": 7}, "prefix"),
        ({"hidden": 1}, "hidden"),
        ({"updated_before": datetime(2026, 1, 1)}, "updated_before"),
        ({"updated_after": 7}, "updated_after"),
    )

    @pytest.mark.parametrize(("wrong", "field"), WRONG)
    def test_a_wrong_argument_is_refused_at_the_call(
        self, store: tape.Store, wrong: dict[str, Any], field: str
    ) -> None:
        """Not only when the first tape is asked for."""
        with pytest.raises(tape.InvalidEntry) as caught:
            store.tapes(**wrong)
        assert caught.value.field == field
        with pytest.raises(TypeError):
            store.tapes(limit=3)  # type: ignore[call-arg]

    def test_the_async_twin(self, backend: Backend) -> None:
        """An async iterator, whose arguments are checked at the call as well."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                for number in range(7):
                    await store.create(f"t{number}")
                assert [info.id async for info in store.tapes(prefix="t")] == [f"t{n}" for n in reversed(range(7))]
                for wrong, field in self.WRONG:
                    filters: dict[str, Any] = wrong
                    with pytest.raises(tape.InvalidEntry) as caught:
                        store.tapes(**filters)
                    assert caught.value.field == field

        asyncio.run(main())


class TestNames:
    def test_s1_rename(self, store: tape.Store) -> None:
        """A tape can be renamed and lose its name; its id stays, and the past keeps the old name."""
        chat = store.create("chat", name="First")
        second = chat.rename("Second").seq
        third = chat.rename(None).seq
        assert [chat.at(seq).info().name for seq in range(1, third + 1)] == ["First", "Second", None]
        assert (chat.info().name, chat.id, second) == (None, "chat", 2)

    def test_s1_labels_at_every_seq(self, store: tape.Store) -> None:
        """``at(seq).info()`` tells the labels as they were then."""
        chat = store.create("chat", labels=["a", "b", "a"])
        chat.label("c", "a")
        chat.append(role="user", content="x")
        chat.label(remove=["b", "zzz"])
        assert [chat.at(seq).info().labels for seq in (1, 2, 3, 4)] == [
            ["a", "b"],
            ["a", "b", "c"],
            ["a", "b", "c"],
            ["a", "c"],
        ]

    def test_s1_a_retry_with_its_key_is_one_entry(self, store: tape.Store) -> None:
        """The same label call with the same key is a duplicate, and other labels under it are a conflict."""
        chat = store.create("chat")
        first = chat.label("a", key="k")
        chat.label("b")
        again = chat.label("a", key="k")
        assert (again.seq, again.duplicate, chat.info().head) == (first.seq, True, 3)
        with pytest.raises(tape.ProvenanceConflict):
            chat.label("c", key="k")
        renamed = chat.rename("n", key="r")
        assert chat.rename("n", key="r").seq == renamed.seq
        with pytest.raises(tape.ProvenanceConflict):
            chat.rename("m", key="r")

    @pytest.mark.parametrize(
        ("call", "field"),
        [
            (lambda chat: chat.label(), "add"),
            (lambda chat: chat.label(""), "add"),
            (lambda chat: chat.label("a", remove="a"), "remove"),
            (lambda chat: chat.label("a", remove=["a"]), "remove"),
            (lambda chat: chat.label(7), "add"),
            (lambda chat: chat.rename(""), "name"),
            (lambda chat: chat.rename("\0"), "name"),
        ],
    )
    def test_s1_bad_names_are_refused(self, store: tape.Store, call: Any, field: str) -> None:
        """A label or a name that cannot be one is refused and nothing is written."""
        chat = store.create("chat")
        with pytest.raises(tape.InvalidEntry) as caught:
            call(chat)
        assert (caught.value.field, chat.info().head) == (field, 1)

    def test_s2_closed_tapes_take_names_and_labels(self, store: tape.Store) -> None:
        """Renaming and labelling need no open tape; appending does."""
        chat = store.create("chat")
        chat.end("over")
        chat.rename("Kept")
        chat.label("kept")
        assert (chat.info().name, chat.info().labels, chat.info().status) == ("Kept", ["kept"], "ended")
        with pytest.raises(tape.TapeClosed):
            chat.append(role="user", content="x")

    def test_r3_rebuild_makes_names_and_labels_again(self, store: tape.Store, backend: Backend) -> None:
        """Damage to names, labels and redirects is found by verify and undone by rebuild."""
        chat = store.create("chat", name="N", labels=["a"])
        chat.label("b")
        before = chat.info()
        for damage in (
            "UPDATE tape_tapes SET name = 'other'",
            "UPDATE tape_tapes SET labels = NULL",
            "UPDATE tape_tapes SET redirect = 'x'",
            "DELETE FROM tape_labels WHERE label = 'a'",
            "INSERT INTO tape_labels (tape_id, label) SELECT tape_id, 'z' FROM tape_heads",
        ):
            assert store.verify().ok
            connection = backend.raw()
            connection.execute(damage)
            connection.close()
            assert not store.verify().ok, damage
            store.rebuild("chat")
            assert (store.verify().problems, chat.info()) == ([], before)


class TestInfo:
    def test_s18_tells_what_is_known_without_reading(self, store: tape.Store, clock: Clock) -> None:
        """Counts, times, model and source are in the listing, the same as ``info()`` tells."""
        meta = {"model": "m-1", "source": "web"}
        chat = store.create("chat", name="N", owner="ann", agent="a", labels=["l"], meta=meta)
        clock.go(1)
        chat.append(role="user", content="x")
        clock.go(1)
        chat.complete()
        (info,) = store.list()
        assert info == chat.info()
        assert (info.meta, info.message_count, info.entry_count) == (meta, 1, 3)
        assert (info.created_at, info.last_message_at) == (START, START + timedelta(days=1))
        assert (info.completed_at, info.updated_at) == (START + timedelta(days=2),) * 2
        assert chat.at(3).info() == info

    def test_s18_a_listing_tells_what_info_tells(self, store: tape.Store) -> None:
        """Tokens and cost of a tape's own calls are in the listing as they are in ``info``, merged ones too."""
        chat = store.create("a")
        for _ in range(3):
            chat.record_usage(input_tokens=10, output_tokens=2, cost=5)
        fork = chat.fork("b")
        fork.record_usage(input_tokens=1, cost=1)
        store.create("c")
        chat.merge(fork)
        listed = {info.id: info for info in store.list()}
        assert {name: (info.tokens, info.cost) for name, info in listed.items()} == {
            "a": (37, 16),
            "b": (1, 1),
            "c": (0, 0),
        }
        assert all(store.get(name).info() == info for name, info in listed.items())

    def test_s18_a_fork_names_its_parent(self, store: tape.Store) -> None:
        """The listing tells a fork's parent and point, as ``info()`` does."""
        chat = store.create("chat", owner="ann")
        fork = chat.fork("f")
        assert store.list(parent="chat").items == [fork.info()]
        assert (fork.info().parent, fork.info().forked_at, fork.info().owner) == ("chat", 1, "ann")

    async def _twin(self, backend: Backend) -> None:
        async with tape.open_async(backend.url, **backend.options) as store:
            chat = await store.create("chat", labels=["a"])
            await chat.label("b")
            await chat.rename("N")
            page = await store.list(label="b")
            assert (names(page), page[0].name) == (["chat"], "N")

    def test_s3_async_twin(self, backend: Backend) -> None:
        """The async store lists, labels and renames alike."""
        asyncio.run(self._twin(backend))
