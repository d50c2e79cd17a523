"""A pool: owners over several databases, calls over all of them, and moving an owner."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend, MakeBackend

import tape
from tape.core.places import Away, locate, owner_record
from tape.pool import pool as pools
from tape.pool.copies import Copies, Span, arriving_spans
from tape.pool.cursors import ListCursor, Positions, decode_cursor, encode_cursor

NAMES = ("north", "south", "west")


def home(owner: str) -> str:
    """Return where an owner begins: by its last digit."""
    return NAMES[int(owner[-1]) % len(NAMES)]


class Databases:
    """Three databases on one engine, and pools over them."""

    def __init__(self, backends: dict[str, Backend], stack: ExitStack) -> None:
        self.backends = backends
        self._stack = stack

    def pool(self, *names: str, **options: Any) -> tape.Pool:
        """Open a pool over the named databases, or over all."""
        return self._stack.enter_context(
            tape.open_pool(self.addresses(*names), **{"place": home, "recheck": 0.0, "durability": "normal", **options})
        )

    def addresses(self, *names: str) -> dict[str, Any]:
        """Return how to open the named databases, or all."""
        return {
            name: {"url": self.backends[name].url, **self.backends[name].options} for name in names or self.backends
        }


@pytest.fixture(params=["sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest, make_backend: MakeBackend, tmp_path: Path) -> Iterator[Databases]:
    with ExitStack() as stack:
        backends = {}
        for name in NAMES:
            (tmp_path / name).mkdir()
            backends[name] = stack.enter_context(make_backend(request.param, tmp_path / name))
        yield Databases(backends, stack)


@pytest.fixture
def pool(databases: Databases) -> tape.Pool:
    return databases.pool()


def fill(pool: tape.Pool, owners: int = 6) -> None:
    """Give each of some owners a tape with two messages."""
    for number in range(owners):
        owner = f"owner{number}"
        pool.scoped(owner).create(f"chat{number}", messages=[{"role": "user", "content": f"hello {number}"}])
        append(pool, owner, f"chat{number}", "more")


def append(pool: tape.Pool, owner: str, name: str, content: str) -> tape.Receipt:
    """Append a message where the owner's tapes are."""
    return pool.write(owner, lambda store: store.tape(name).append(role="user", content=content))


def followed(feed: tape.PoolFeed) -> dict[str, list[int]]:
    """Return the seqs of each tape in the order in which they came."""
    seqs: dict[str, list[int]] = {}
    for entry in feed:
        seqs.setdefault(entry.tape, []).append(entry.seq)
    return seqs


class TestPlacing:
    """Where an owner is, from the records of each database."""

    @pytest.mark.parametrize(
        ("records", "place"),
        [
            ({}, "a"),
            ({"b": Away("a", arriving=True)}, "a"),
            ({"a": Away("b", arriving=False), "b": Away("a", arriving=True)}, "a"),
            ({"a": Away("b", arriving=False)}, "b"),
            ({"a": Away("b", arriving=False), "b": Away("c", arriving=False)}, "c"),
            ({"a": Away("c", arriving=True)}, "c"),
        ],
    )
    def test_the_records_lead_to_one_database(self, records: dict[str, Away], place: str) -> None:
        """Nothing recorded, copying, closing, moved, moved on, and a map that is ahead of the move."""
        assert locate("a", records.get) == place

    def test_a_circle_is_an_error(self) -> None:
        """Records that refer to each other are no place."""
        with pytest.raises(tape.Corrupt):
            locate("a", {"a": Away("b", arriving=False), "b": Away("a", arriving=False)}.get)

    def test_records_of_long_owners_differ(self) -> None:
        """Ids have at most 255 characters, whatever the owner is called."""
        long = "x" * 254
        assert len({owner_record(long + end) for end in "ab"}) == 2
        assert len(owner_record(long + "a")) <= 255


class TestCursors:
    """One opaque text for all positions."""

    def test_a_cursor_comes_back(self) -> None:
        """Positions of PostgreSQL have up to a hundred bits."""
        positions = {"a": 0, "b": 2**99}
        assert decode_cursor(encode_cursor(Positions.of(positions)), Positions, "cursor").numbers() == positions
        for wrong in ("x", "-1", str(2**100)):
            with pytest.raises(tape.InvalidEntry):
                Positions({"a": wrong}).numbers()

    @pytest.mark.parametrize("text", ["", "x", "é", "bm9wZQ", encode_cursor(ListCursor({}, "created")), None, 7])
    def test_anything_else_is_refused(self, text: Any) -> None:
        """Also the cursor of another call."""
        with pytest.raises(tape.InvalidEntry):
            decode_cursor(text, Positions, "cursor")


class TestCopies:
    """Which entries of a database are copies."""

    def test_spans_keep_where_entries_were_first_recorded(self) -> None:
        """A tape that is moved on tells of both databases that it comes from."""
        assert arriving_spans([], "a", 0, 5) == [Span(0, 5, "a")]
        assert arriving_spans([Span(0, 3, "z")], "a", 0, 5) == [Span(0, 3, "z"), Span(3, 5, "a")]
        assert arriving_spans([Span(2, 4, "z")], "a", 1, 6) == [Span(1, 2, "a"), Span(2, 4, "z"), Span(4, 6, "a")]
        assert arriving_spans([Span(0, 9, "z")], "a", 3, 6) == [Span(3, 6, "z")]

    def test_an_entry_is_a_copy_within_a_span(self) -> None:
        """Before and behind it the database has entries of its own."""
        copies = Copies()
        copies.learn({"tapes": {"t": [[2, 4, "a"]]}})
        assert [copies.origin("t", seq) for seq in range(2, 6)] == [None, "a", "a", None]
        assert copies.origin("u", 3) is None


class TestOwners:
    """An owner's store is a plain one, on the right database."""

    def test_an_owner_s_tapes_are_in_its_database(self, pool: tape.Pool) -> None:
        """Nothing of them is in another."""
        fill(pool)
        assert pool.locate("owner4") == "south"
        assert pool.scoped("owner4").get("chat4").info().owner == "owner4"
        assert sorted(info.id for info in pool.database("south").list()) == ["chat1", "chat4"]

    def test_a_map_may_be_a_dictionary(self, databases: Databases) -> None:
        """An owner that it does not have is refused, as is a database that is not there."""
        pool = databases.pool(place={"ann": "north", "bob": "nowhere"})
        pool.scoped("ann").tape("a").append(role="user", content="x")
        for owner in ("bob", "cid"):
            with pytest.raises(tape.InvalidEntry):
                pool.scoped(owner)

    @pytest.mark.parametrize(
        "options",
        [{"databases": {}}, {"databases": {"a": ":memory:"}, "owner": "x"}, {"databases": {"a": 1}, "place": 7}],
    )
    def test_what_is_no_pool_is_refused(self, options: dict[str, Any]) -> None:
        """At once, and not when it is first used."""
        with pytest.raises(tape.InvalidEntry):
            tape.open_pool(**{"place": home, **options})

    def test_s4_an_owner_cannot_move_another_owner_s_tapes(self, databases: Databases, pool: tape.Pool) -> None:
        """Owners cannot write the records of the pool, and a record written around the pool has no effect."""
        pool.scoped("owner0").tape("chat").append(role="user", content="mine")
        record = owner_record("owner0")
        other = pool.scoped("owner3")
        with tape.open(":memory:", owner="owner3") as elsewhere:
            elsewhere.create(record)
            file = io.BytesIO()
            elsewhere.export(record, file)
        for call in (
            lambda: other.tape(record).append(role="user", content="x"),
            lambda: other.create(record),
            lambda: other.import_(io.BytesIO(file.getvalue())),
        ):
            with pytest.raises(tape.InvalidEntry, match="reserved for the records of a pool"):
                call()
        around = databases.backends["north"].open(owner="owner3")
        around.create(record).end("moved to south")
        assert (pool.locate("owner0"), pool.locate("owner3")) == ("north", "north")
        assert pool.scoped("owner0").tape("chat").append(role="user", content="still here").seq == 3


class TestAll:
    """Calls over all databases."""

    def test_list_pages_over_all(self, pool: tape.Pool) -> None:
        """Newest first over all databases, none left out and none twice, whatever the page."""
        fill(pool, 7)
        every = [f"chat{number}" for number in reversed(range(7))]
        assert [info.id for info in pool.list()] == every
        for limit in (1, 2, 3, 7):
            listed, cursor = [], None
            while True:
                page = pool.list(limit=limit, cursor=cursor)
                listed += [info.id for info in page]
                cursor = page.cursor
                if cursor is None:
                    break
                assert len(page) == limit
            assert listed == every
        assert [info.id for info in pool.list(owner="owner3")] == ["chat3"]
        assert pool.list(order="updated")[0].id == "chat6"

    def test_tapes_are_all_of_all(self, pool: tape.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those of every page of the list, with its filters; a wrong one is refused at the call."""
        monkeypatch.setattr(pools, "MOST_AT_ONCE", 2)
        fill(pool, 7)
        assert [info.id for info in pool.tapes()] == [f"chat{number}" for number in reversed(range(7))]
        assert [info.id for info in pool.tapes(owner="owner3", prefix="chat")] == ["chat3"]
        assert [info.id for info in pool.tapes(order="updated")][:2] == ["chat6", "chat5"]
        for wrong in ({"order": "name"}, {"hidden": 1}, {"updated_after": 7}, {"label": ""}):
            filters: dict[str, Any] = wrong
            with pytest.raises(tape.InvalidEntry, match=next(iter(wrong))):
                pool.tapes(**filters)

    def test_search_goes_over_all(self, pool: tape.Pool) -> None:
        """The newest hits of all databases, or of one owner's."""
        fill(pool)
        assert [hit.tape for hit in pool.search("hello")] == [f"chat{number}" for number in reversed(range(6))]
        assert [hit.tape for hit in pool.search("hello", limit=2)] == ["chat5", "chat4"]
        assert [hit.tape for hit in pool.search("hello", owner="owner2")] == ["chat2"]

    def test_feed_and_cursor(self, pool: tape.Pool) -> None:
        """A feed that is taken up at a cursor goes on behind the last entry; each comes once."""
        fill(pool)
        whole = followed(pool.feed())
        assert whole == {f"chat{number}": [1, 2, 3] for number in range(6)}
        pieces: dict[str, list[int]] = {}
        cursor = None
        while True:
            feed = pool.feed(cursor)
            entries = [*islice(feed, 4)]
            for entry in entries:
                pieces.setdefault(entry.tape, []).append(entry.seq)
            if not entries:
                break
            cursor = feed.cursor
        assert {name: sorted(seqs) for name, seqs in pieces.items()} == whole

    def test_follow_waits_for_every_database(self, pool: tape.Pool) -> None:
        """A follower is given what is written meanwhile, and ends when nothing came."""
        fill(pool, 3)
        feed = pool.follow(timeout=20)
        assert sorted({next(feed).tape for _ in range(9)}) == ["chat0", "chat1", "chat2"]
        writer = threading.Thread(target=lambda: pool.scoped("owner2").tape("chat2").append(role="user", content="x"))
        writer.start()
        assert (entry := next(feed)).tape == "chat2"
        assert entry.seq == 4
        writer.join(20)
        assert list(pool.follow(feed.cursor, timeout=0.05)) == []

    def test_health_stats_verify_and_doctor_name_each(self, pool: tape.Pool) -> None:
        """One answer per database."""
        fill(pool, 3)
        health, stats, reports, findings = pool.health(), pool.stats(), pool.verify(), pool.doctor()
        for name in NAMES:
            one, two, three, four = health[name], stats[name], reports[name], findings[name]
            assert isinstance(four, list)
            assert {"schema", "guards", "chain", "view"} <= {found.check for found in four if found.level == "ok"}
            assert not [found for found in four if found.level == "error"]
            assert isinstance(one, tape.Health)
            assert one.ok
            assert isinstance(two, tape.Stats)
            assert two.entries == 3
            assert isinstance(three, tape.Report)
            assert three.ok


class TestDown:
    """A database that cannot be reached is named, and the others serve."""

    @pytest.fixture
    def lame(self, databases: Databases) -> tape.Pool:
        """A pool in which the database of owner 1 and 4 is at an address where nobody answers."""
        fill(databases.pool())
        nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=1"
        return tape.open_pool({**databases.addresses("north", "west"), "south": nowhere}, place=home, timeout=1.0)

    def test_the_others_serve(self, lame: tape.Pool) -> None:
        """Lists, searches and feeds give what they can reach and name what they cannot."""
        with lame as pool:
            page, hits, feed = pool.list(), pool.search("hello"), pool.feed()
            assert sorted(info.id for info in page) == ["chat0", "chat2", "chat3", "chat5"]
            assert len(hits) == 4
            assert sorted(followed(feed)) == ["chat0", "chat2", "chat3", "chat5"]
            for down in (page.down, hits.down, feed.down):
                assert [*down] == ["south"]
                assert down["south"].database == "south"
            for answers in (pool.health(), pool.doctor(quick=True)):
                assert isinstance(answers["south"], tape.DatabaseDown)
                assert not isinstance(answers["north"], tape.DatabaseDown)
            assert pool.scoped("owner0").get("chat0").info().head == 3
            with pytest.raises(tape.DatabaseDown):
                pool.scoped("owner1")

    def test_all_tapes_without_those_of_one_database_are_not_all(
        self, lame: tape.Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others come first, on however many pages, and then it is told which database is missing."""
        monkeypatch.setattr(pools, "MOST_AT_ONCE", 2)
        with lame as pool:
            seen = []
            with pytest.raises(tape.DatabaseDown) as caught:
                for info in pool.tapes():
                    seen.append(info.id)
            assert caught.value.database == "south"
            assert sorted(seen) == ["chat0", "chat2", "chat3", "chat5"]
            assert [info.id for info in pool.tapes(owner="owner0")] == ["chat0"]

    def test_what_was_down_comes_later(self, lame: tape.Pool, databases: Databases) -> None:
        """The cursors of a list and of a feed keep the place of a database that was down."""
        with lame as pool:
            page, feed = pool.list(), pool.feed()
            followed(feed)
        whole = databases.pool()
        assert page.cursor is not None
        assert [info.id for info in whole.list(cursor=page.cursor)] == ["chat4", "chat1"]
        assert followed(whole.feed(feed.cursor)) == {"chat1": [1, 2, 3], "chat4": [1, 2, 3]}

    def test_a_feed_ends_while_the_source_of_a_move_is_down(self, databases: Databases) -> None:
        """What waits for a database that is down is not given out, and is not waited for either."""
        pool = databases.pool()
        fill(pool, 2)
        pool.move("owner1", "north")
        pool.scoped("owner1").tape("chat1").extend([{"role": "user", "content": str(n)} for n in range(1_200)])
        nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=1"
        with tape.open_pool({**databases.addresses("north", "west"), "south": nowhere}, place=home) as lame:
            feed = lame.feed()
            assert (followed(feed), [*feed.down]) == ({"chat0": [1, 2, 3]}, ["south"])
        whole = databases.pool()
        assert followed(whole.feed(feed.cursor))["chat1"][-1] == pool.scoped("owner1").tape("chat1").info().head


class TestClosing:
    """Feeds end with their pool."""

    def test_a_follower_in_another_thread(self, databases: Databases) -> None:
        """Closing the feed or the pool ends a follower that waits, without an error on either side."""
        for close_pool in (True, False):
            pool = databases.pool()
            pool.scoped("owner0").tape("chat").append(role="user", content="x")
            feed = pool.follow()
            first, ended = threading.Event(), threading.Event()

            def read(feed: tape.PoolFeed = feed, first: threading.Event = first, ended: Any = ended) -> None:
                for _ in feed:
                    first.set()
                ended.set()

            threading.Thread(target=read, daemon=True).start()
            assert first.wait(20)
            (pool.close if close_pool else feed.close)()
            assert ended.wait(20)

    def test_an_async_follower(self, databases: Databases) -> None:
        """The twin's follower ends with its pool, too."""

        async def go() -> int:
            pool = tape.open_pool_async(databases.addresses(), place=home, durability="normal")
            north = await pool.database("north")
            await north.tape("chat").append(role="user", content="x")
            first, count = asyncio.Event(), 0

            async def read() -> None:
                nonlocal count
                async for _ in pool.follow():
                    count += 1
                    first.set()

            task = asyncio.create_task(read())
            await asyncio.wait_for(first.wait(), 20)
            await pool.close()
            await asyncio.wait_for(task, 20)
            return count

        assert asyncio.run(go()) > 0


class TestMoving:
    """An owner is moved with everything it has."""

    def test_a_move_takes_everything(self, pool: tape.Pool) -> None:
        """Messages, forks, hidden tapes, state and keys; nothing of it is shown twice."""
        fill(pool)
        ann = pool.scoped("owner1")
        child = ann.tape("chat1").fork("child")
        child.append(role="user", content="in the fork", key="k1")
        ann.tape("secret").append(role="user", content="hidden words")
        ann.tape("secret").hide()
        before = {name: ann.tape(name).messages() for name in ("chat1", "child")}
        move = pool.move("owner1", "west")
        assert (move.source, move.target, sorted(move.tapes)) == ("south", "west", ["chat1", "child", "secret"])
        assert move.report is not None
        assert move.report.ok
        there = pool.scoped("owner1")
        assert pool.locate("owner1") == "west"
        assert {name: there.tape(name).messages() for name in before} == before
        assert there.tape("child").append(role="user", content="in the fork", key="k1").duplicate
        assert there.tape("secret").unhide().seq == 4
        assert sorted(info.id for info in pool.list(limit=100)) == sorted(
            [*(f"chat{number}" for number in range(6)), "child", "secret"]
        )
        assert [hit.tape for hit in pool.search("fork")] == ["child"]
        assert all(isinstance(report, tape.Report) and report.ok for report in pool.verify().values())

    def test_writers_of_the_source_are_refused(self, pool: tape.Pool, databases: Databases) -> None:
        """A store from before the move can no longer write, create, fork, unhide or purge, nor can a late process."""
        fill(pool)
        old = pool.scoped("owner1")
        old.tape("gone").append(role="user", content="x")
        old.tape("gone").hide()
        buffer = io.BytesIO()
        old.export("chat1", buffer)
        other = databases.pool(recheck=600.0)
        late = other.scoped("owner1")
        late.tape("chat1").append(role="user", content="kept head")
        pool.move("owner1", "north")
        for store in (old, late, pool.database("south").scoped("owner1")):
            writes: list[Callable[[tape.Store], object]] = [
                lambda store: store.tape("chat1").append(role="user", content="x"),
                lambda store: store.tape("chat1").extend([{"role": "user", "content": "x"}] * 2),
                lambda store: store.create("new"),
                lambda store: store.tape("other").append(role="user", content="x"),
                lambda store: store.tape("chat1").fork("fork"),
                lambda store: store.tape("gone").unhide(),
                lambda store: store.split("chat1", summary="s"),
                lambda store: store.purge("chat1"),
                lambda store: store.transaction(lambda inner: inner.tape("chat1").event("e")),
            ]
            for write in writes:
                with pytest.raises(tape.OwnerMoved) as caught:
                    write(store)
                assert (caught.value.owner, caught.value.database) == ("owner1", "north")
        # The other process still believes the old place, and is led to the new one.
        assert other.write("owner1", lambda store: store.tape("chat1").append(role="user", content="y")).seq == 6
        assert pool.database("south").get("chat1").info().head == 5

    def test_an_import_at_the_source_is_refused(self, pool: tape.Pool) -> None:
        """Also a long one, which is staged."""
        fill(pool)
        for count in (1, 2_100):
            owner = pool.scoped("owner1")
            name = f"long{count}"
            owner.create(name, messages=[{"role": "user", "content": "x"}] * count)
        files = {}
        for name in ("long1", "long2100"):
            files[name] = io.BytesIO()
            pool.scoped("owner1").export(name, files[name])
            files[name].seek(0)
            pool.scoped("owner1").purge(name)
        pool.move("owner1", "north")
        for file in files.values():
            with pytest.raises(tape.OwnerMoved):
                pool.database("south").import_(file, reuse=True)
            file.seek(0)
            assert pool.scoped("owner1").import_(file).entries > 1

    def test_followers_are_given_each_entry_once(self, pool: tape.Pool, databases: Databases) -> None:
        """From the start, from any cursor, and after moves to and fro; the entries of a tape in order."""
        fill(pool)
        cursors: list[str | None] = [None]
        for step, place in enumerate(("north", "west", "south", "north", "south")):
            feed = pool.feed(cursors[-1])
            followed(feed)
            cursors.append(feed.cursor)
            pool.move("owner1", place)
            append(pool, "owner1", "chat1", f"step {step}")
            append(pool, "owner4", "chat4", f"step {step}")
        head = pool.scoped("owner1").get("chat1").info().head
        assert head == 3 + 2 * 5
        whole = followed(pool.feed())
        assert whole["chat1"] == [*range(1, head + 1)]
        assert whole["chat4"] == [*range(1, 9)]
        assert {len(seqs) for name, seqs in whole.items() if name not in ("chat1", "chat4")} == {3}
        for cursor in cursors[1:]:
            rest = followed(pool.feed(cursor))
            assert rest["chat1"] == [*range(head + 1 - len(rest["chat1"]), head + 1)]
            assert rest["chat4"] == [*range(9 - len(rest["chat4"]), 9)]

    def test_a_database_may_leave_the_pool(self, pool: tape.Pool, databases: Databases) -> None:
        """Who has read it goes on; who begins afterwards is given the entries where they are now."""
        fill(pool)
        feed = pool.feed()
        followed(feed)
        for owner in ("owner1", "owner4"):
            pool.move(owner, "north")
        after = pool.feed(feed.cursor)
        # The entry that ended each tape in its first database.
        assert followed(after) == {"chat1": [4], "chat4": [4]}
        smaller = databases.pool(
            "north", "west", place=lambda owner: "north" if owner in ("owner1", "owner4") else home(owner)
        )
        assert followed(smaller.feed(after.cursor)) == {}
        assert followed(smaller.feed())["chat1"] == [1, 2, 3, 4]
        smaller.scoped("owner1").tape("chat1").append(role="user", content="x")
        assert followed(smaller.feed(after.cursor)) == {"chat1": [5]}

    def test_a_move_that_fails_leaves_the_owner_where_it_was(
        self, pool: tape.Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It can be written there, and the move can be run again."""
        fill(pool)
        from tape.pool.moving import Mover

        def fails(self: Mover, tapes: Any) -> None:
            raise tape.StoreFailed("the target went away")

        with monkeypatch.context() as patch:
            patch.setattr(Mover, "_compare", fails)
            with pytest.raises(tape.StoreFailed):
                pool.move("owner1", "west")
        assert pool.locate("owner1") == "south"
        assert pool.scoped("owner1").tape("chat1").append(role="user", content="x").seq == 5
        assert len([info for info in pool.list(limit=100) if info.id == "chat1"]) == 1
        assert len(pool.search("hello")) == 6
        pool.move("owner1", "west")
        assert pool.scoped("owner1").get("chat1").info().head == 6
        assert followed(pool.feed())["chat1"] == [1, 2, 3, 4, 5, 6]

    def test_a_move_that_was_killed_goes_on_or_is_cancelled(
        self, pool: tape.Pool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until then the owner is read where it was, and writing waits."""
        fill(pool)
        from tape.pool import moving

        class Killed(BaseException):
            pass

        def dies(*_: Any) -> Any:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(moving.Mover, "_compare", dies)
            patch.setattr(tape.Tape, "reopen", dies)
            with pytest.raises(Killed):
                pool.move("owner1", "west")
        assert pool.locate("owner1") == "south"
        assert len([info for info in pool.list(limit=100) if info.id == "chat1"]) == 1
        with pytest.raises(tape.OwnerMoved):
            pool.write("owner1", lambda store: store.tape("chat1").append(role="user", content="x"), timeout=0.05)
        with pytest.raises(tape.StoreFailed, match="cancel_move"):
            pool.move("owner1", "north")
        assert pool.cancel_move("owner1") == "south"
        assert pool.scoped("owner1").tape("chat1").append(role="user", content="x").seq == 5
        assert pool.move("owner1", "north").report is not None
        assert pool.scoped("owner1").get("chat1").info().head == 6

    def test_retention_keeps_records_and_what_was_moved(self, pool: tape.Pool) -> None:
        """A record that is gone would open the old database to writers again."""
        fill(pool)
        pool.move("owner1", "west")
        later = datetime.now(UTC) + timedelta(days=1)
        kept = pool.database("south").retain(older_than=later, dry_run=False)
        assert kept.tapes == ["chat4"]
        assert sorted(kept.kept) == ["chat1", owner_record("owner1")]
        assert pool.locate("owner1") == "west"
        assert followed(pool.feed())["chat1"] == [1, 2, 3, 4]

    def test_moving_to_where_it_is_does_nothing(self, pool: tape.Pool) -> None:
        """Neither an entry nor a record is written."""
        fill(pool)
        assert pool.move("owner1", "south").tapes == []
        assert pool.scoped("owner1").get("chat1").info().head == 3

    def test_an_owner_without_tapes_can_be_moved(self, pool: tape.Pool) -> None:
        """What it writes first is written at its new place."""
        pool.move("owner1", "west")
        pool.write("owner1", lambda store: store.tape("first").append(role="user", content="x"))
        assert pool.database("west").get("first").info().owner == "owner1"


class TestTwin:
    """The same, awaited."""

    def test_the_async_pool_does_the_same(self, databases: Databases) -> None:
        """Scoped stores, writes that wait for a move, lists, searches, feeds and moves."""

        async def work() -> None:
            options: dict[str, Any] = {"place": home, "recheck": 0.0, "durability": "normal"}
            async with tape.open_pool_async(databases.addresses(), **options) as pool:
                store = await pool.scoped("owner1")
                await store.tape("chat1").append(role="user", content="hello")

                async def more(store: tape.AsyncStore) -> tape.Receipt:
                    return await store.tape("chat1").append(role="user", content="more", key="more")

                assert (await pool.write("owner1", more)).seq == 3
                assert (await pool.move("owner1", "west")).tapes == ["chat1"]
                assert (await pool.write("owner1", more)).duplicate
                assert (await pool.write("owner1", lambda store: store.tape("chat1").event("done"))).seq == 5
                assert [info.id for info in await pool.list()] == ["chat1"]
                assert [info.id async for info in pool.tapes(owner="owner1")] == ["chat1"]
                with pytest.raises(tape.InvalidEntry, match="order"):
                    pool.tapes(order="name")
                assert [hit.tape for hit in await pool.search("hello")] == ["chat1"]
                feed = pool.feed()
                assert [entry.seq async for entry in feed] == [1, 2, 3, 4, 5]
                follow = pool.follow(feed.cursor, timeout=20)
                await (await pool.scoped("owner1")).tape("chat1").event("again")
                assert (await anext(follow)).seq == 6
                await follow.close()
                assert await pool.locate("owner1") == "west"
                health = await pool.health()
                assert [*health] == [*NAMES]

        asyncio.run(work())
