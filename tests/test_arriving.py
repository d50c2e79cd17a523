"""S14: a long import is written in batches that nobody sees, beside other writers, and shown at once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from support import programs
from support.backends import Backend
from support.damage import contents
from support.processes import Crew

import tape
from tape.db.transfer import importer, staging

COUNT = 300
"""How many messages a long tape has here: more than an import is told to write in one transaction."""
HOUR = 3_600_000_000


@pytest.fixture(autouse=True)
def shorter() -> Iterator[None]:
    """Let tapes count as long, and batches be full, that take no time to write."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Do so in this process."""
    patch.setattr(importer, "_AT_ONCE", COUNT // 2)
    patch.setattr(staging._Arrival, "pending", COUNT // 3)


@pytest.fixture(scope="module")
def long() -> bytes:
    """An export of a long tape and a fork of it that was merged."""
    with tape.open(":memory:") as store:
        chat = store.create("chat", owner="ann", labels=["l"])
        chat.extend([{"role": "user", "content": f"message {n} " + "x" * 3_000} for n in range(COUNT)])
        fork = chat.fork("fork")
        fork.append(role="assistant", content="from the fork")
        chat.merge(fork)
        fork.retract(chat.messages(limit=3)[0].id)
        chat.complete()
        out = io.BytesIO()
        store.export("chat", out, family=True)
        return out.getvalue()


class Child(NamedTuple):
    """An export of a tape, and one of a long fork of it, which holds both."""

    parent: bytes
    both: bytes


@pytest.fixture(scope="module")
def child() -> Child:
    with tape.open(":memory:") as source:
        parent, both = io.BytesIO(), io.BytesIO()
        source.create("chat", messages=[{"role": "user", "content": "x"}])
        source.export("chat", parent)
        fork = source.get("chat").fork("fork")
        fork.extend([{"role": "user", "content": "y" * 3_000} for _ in range(COUNT)])
        source.export("fork", both)
        return Child(parent.getvalue(), both.getvalue())


def once(share: float, act: Callable[[], object]) -> Callable[[int, int], None]:
    """Return a progress callback that acts once, when so much of both readings is done."""
    left = [act]

    def tell(done: int, total: int) -> None:
        if done > share * total and left:
            left.pop()()

    return tell


def left_over(backend: Backend) -> tuple[int, int]:
    """Return how many hidden tapes and waiting entries there are."""
    connection = backend.raw()
    counts = [
        connection.execute(query).fetchone()[0]
        for query in ("SELECT count(*) FROM tape_tapes WHERE tape LIKE '~%'", "SELECT count(*) FROM tape_arrivals")
    ]
    connection.close()
    return counts[0], counts[1]


class TestHidden:
    """Until the last entry is there nothing of the import can be seen, and nobody waits for it."""

    def test_s14_nobody_sees_half_of_an_import(self, backend: Backend, long: bytes) -> None:
        """Halfway no call knows of the tapes while others write; afterwards all of it is there, and in the feed."""
        store, other = backend.open(), backend.open()
        other.create("before")
        seen: list[Any] = []
        places: list[int] = []

        def look() -> None:
            hidden, waiting = left_over(backend)
            assert (hidden, waiting > 0) == (1, True)
            # On SQLite this would wait for ever, if the import held the one lock there is.
            other.tape("before").append(role="user", content="in between")
            seen.append([info.id for info in other.list()])
            seen.append([info.id for info in other.list(label="l")])
            seen.append(other.stats().tapes)
            seen.append(len(other.search("message")))
            seen.append(other.verify().problems)
            seen.append([(entry.tape, entry.seq) for entry in other.feed()])
            places.extend(entry.position or 0 for entry in other.feed())
            for name in ("chat", "fork"):
                with pytest.raises(tape.TapeNotFound):
                    other.get(name)

        moved = store.import_(io.BytesIO(long), progress=once(0.9, look))
        assert seen == [["before"], [], 1, 0, [], [("before", 1), ("before", 2)]]
        later = [(entry.tape, entry.seq) for entry in other.feed(places[-1])]
        heads = {name: other.get(name).info().head for name in moved.tapes}
        assert later == [(name, seq) for name in moved.tapes for seq in range(1, heads[name] + 1)]
        assert moved.entries == sum(heads.values()) == len(later)
        assert other.get("chat").info().status == "completed"
        assert [info.id for info in other.list(label="l")] == ["chat"]
        assert len(other.search("message", tape="chat", limit=10)) == 10
        assert (other.verify().problems, left_over(backend)) == ([], (0, 0))
        out = io.BytesIO()
        store.export("chat", out, family=True)
        assert out.getvalue() == long
        other.get("fork").append(role="user", content="on")
        assert other.get("fork").info().head == heads["fork"] + 1
        assert [(entry.tape, entry.kind) for entry in other.feed()][-1] == ("fork", "append")

    def test_s14_a_failure_halfway_leaves_no_row(self, backend: Backend, long: bytes) -> None:
        """What an exception stops leaves every table as it was."""
        store = backend.open()
        store.tape("before").append(role="user", content="x")
        before = contents(backend)

        def fail() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.import_(io.BytesIO(long), progress=once(0.95, fail))
        assert contents(backend) == before

    def test_s14_a_failure_at_the_last_commit_leaves_no_row(self, backend: Backend, long: bytes) -> None:
        """A failure of the transaction that would show it, too, leaves all as it was, and the next import succeeds."""
        store = backend.open()
        before = contents(backend)

        entries = int(json.loads(long.splitlines()[-1])["entries"])

        class Failed(Exception):
            pass

        def fault(name: str) -> None:
            if name == "commit" and left_over(backend)[1] == entries:
                store._db.fault = None
                raise Failed

        store._db.fault = fault
        with pytest.raises(Failed):
            store.import_(io.BytesIO(long))
        assert contents(backend) == before
        assert store.import_(io.BytesIO(long)).entries == entries
        assert store.verify().problems == []

    def test_s14_another_writer_takes_the_id_during_the_import(self, backend: Backend, long: bytes) -> None:
        """The import fails if another writer creates a tape with its id meanwhile, and that tape stays unchanged."""
        store, other = backend.open(), backend.open()
        with pytest.raises(tape.ImportFailed, match="a different entry is stored at this seq"):
            store.import_(io.BytesIO(long), progress=once(0.9, lambda: other.create("chat")))
        assert (other.get("chat").info().head, left_over(backend)) == (1, (0, 0))

    def test_s14_two_imports_of_one_file(self, backend: Backend, long: bytes) -> None:
        """An import that another one overtakes finds everything there and adds nothing."""
        store, other = backend.open(), backend.open()
        told: list[int] = []

        def overtake() -> None:
            told.append(other.import_(io.BytesIO(long)).entries)

        assert store.import_(io.BytesIO(long), progress=once(0.9, overtake)).entries == 0
        assert (told[0] > COUNT, left_over(backend), other.verify().problems) == (True, (0, 0), [])

    def test_s14_the_id_is_purged_in_the_meantime(self, backend: Backend, long: bytes) -> None:
        """An id that was used and purged meanwhile is refused as one that was purged before."""
        store, other = backend.open(), backend.open()

        def use() -> None:
            other.create("chat")
            other.purge("chat")

        with pytest.raises(tape.ImportFailed, match="reuse=True"):
            store.import_(io.BytesIO(long), progress=once(0.9, use))
        assert (other.list().items, left_over(backend)) == ([], (0, 0))

    def test_s14_what_a_fork_inherits_is_written_to_in_the_meantime(self, backend: Backend, child: Child) -> None:
        """A tape of the file that is there already may go on: what the file has of it is a prefix of what is stored."""
        store, other = backend.open(), backend.open()
        store.import_(io.BytesIO(child.parent))

        def write(done: int, total: int) -> None:
            other.get("chat").append(role="user", content="more")

        assert store.import_(io.BytesIO(child.both), progress=write).entries == COUNT + 1
        assert (other.get("chat").info().head > 5, left_over(backend)) == (True, (0, 0))
        assert store.verify().problems == []

    @pytest.mark.parametrize("share", [0.45, 0.55, 0.9], ids=["during the check", "before a batch", "at the end"])
    def test_s14_what_a_fork_inherits_is_purged_in_the_meantime(
        self, backend: Backend, child: Child, share: float
    ) -> None:
        """A fork does not arrive without the tape that it inherits from, and with ``reuse`` brings it along."""
        store, other = backend.open(), backend.open()
        store.import_(io.BytesIO(child.parent))
        with pytest.raises(tape.ImportFailed, match="was purged"):
            store.import_(io.BytesIO(child.both), progress=once(share, lambda: other.purge("chat")))
        assert (other.list().items, left_over(backend)) == ([], (0, 0))
        store.import_(io.BytesIO(child.parent), reuse=True)
        again = store.import_(io.BytesIO(child.both), reuse=True, progress=once(share, lambda: other.purge("chat")))
        assert (again.tapes, again.entries) == (["chat", "fork"], COUNT + 3)
        assert store.verify().problems == []

    def test_s14_a_hidden_tape_is_never_without_its_sign_of_life(
        self, backend: Backend, long: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A tape is hidden in one transaction, so that no sweep finds it as old as the file."""
        store, seen = backend.open(), list[tuple[int, int]]()
        inherit = staging._Arrival._inherit

        def look(self: Any, opening: Any) -> None:
            seen.append(left_over(backend))
            inherit(self, opening)

        monkeypatch.setattr(staging._Arrival, "_inherit", look)
        store.import_(io.BytesIO(long))
        assert seen[0] == (0, 0)

    def test_s14_large_entries_are_not_kept_in_memory(
        self, backend: Backend, long: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A batch ends with so many bytes, however few entries they are."""
        monkeypatch.setattr(staging._Arrival, "pending", 10**6)
        monkeypatch.setattr(staging._Arrival, "most_bytes", 10_000)
        seen: list[int] = []
        backend.open().import_(io.BytesIO(long), progress=once(0.8, lambda: seen.append(left_over(backend)[1])))
        assert seen[0] > 100

    def test_s4_a_scoped_store_takes_only_its_own(self, backend: Backend, long: bytes) -> None:
        """Another owner's tapes are refused before anything is written."""
        before = contents(backend) if backend.open() else {}
        with pytest.raises(tape.ImportFailed, match="the tape belongs to another owner than 'bob'"):
            backend.open(owner="bob").import_(io.BytesIO(long))
        assert contents(backend) == before
        assert backend.open(owner="ann").import_(io.BytesIO(long)).entries > COUNT

    def test_e14_in_a_callers_transaction(self, backend: Backend, long: bytes) -> None:
        """Through a bound store all of it is part of the caller's transaction."""
        store, engine = backend.open(), backend.engine()
        before = contents(backend)
        with engine.connect() as connection:
            bound = store.bind(connection)
            assert bound.import_(io.BytesIO(long)).entries > COUNT
            assert bound.get("chat").verify().ok
            connection.rollback()
        assert contents(backend) == before
        engine.dispose()


def later_clock(store: tape.Store) -> Callable[[], int]:
    """Return a clock that is two hours ahead."""
    return lambda: store._clock() + 2 * HOUR


class TestDead:
    """An import whose process died."""

    @pytest.mark.parametrize("by", ["import", "retain"])
    def test_s14_is_swept_later(self, backend: Backend, long: bytes, by: str, crew: Crew) -> None:
        """What it left is never seen, is left alone while it may be alive, and goes an hour later."""
        store = backend.open()
        store.create("before")
        order: dict[str, Any] = {"raw": long, "at_once": COUNT // 2, "pending": COUNT // 3}
        assert crew.launch(backend, programs.import_and_die, **order).killed()
        remains = left_over(backend)
        assert (remains[0], remains[1] > 0) == (1, True)
        assert [info.id for info in store.list()] == ["before"]
        assert (store.verify().problems, len(list(store.feed()))) == ([], 1)
        assert store.import_(io.BytesIO(long)).entries > COUNT
        assert left_over(backend) == remains
        store.purge("chat", forks=True)
        later = backend.open(clock=later_clock(store))
        if by == "import":
            later.import_(io.BytesIO(long), reuse=True)
        else:
            later.retain(older_than=timedelta(days=9), dry_run=False)
        # The names that the purged tapes gave up stay with their tombstones.
        assert left_over(backend) == (2 if by == "import" else 0, 0)
        assert later.verify().problems == []

    def test_s4_is_told_to_its_owner_alone(self, backend: Backend, long: bytes) -> None:
        """Another owner does not learn of it, and takes nothing of it away."""
        store = backend.open()

        class Dead(Exception):
            pass

        def die(self: Any) -> None:
            raise Dead

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging.Arriving, "drop", die)
            with pytest.raises(Dead):
                store.import_(io.BytesIO(long), progress=once(0.9, lambda: 1 / 0))
        clock = later_clock(store)
        told = {owner: len(staging.forsaken(store._db, owner, clock())) for owner in ("ann", "bob", None)}
        assert told == {"ann": 1, "bob": 0, None: 1}
        for owner, left in (("bob", 1), ("ann", 0)):
            backend.open(owner=owner, clock=clock).retain(older_than=timedelta(days=9), dry_run=False)
            assert left_over(backend)[0] == left

    def test_s14_a_long_import_stays_alive(self, backend: Backend, child: Child) -> None:
        """The first tape of a file is not taken for dead while the import is busy with the second for hours."""
        now = [backend.open()._clock()]
        store, other = (backend.open(clock=lambda: now[0]) for _ in range(2))

        def hours(done: int, total: int) -> None:
            now[0] += HOUR // 12
            staging.sweep(other._recorder)

        assert store.import_(io.BytesIO(child.both), progress=hours).entries == COUNT + 3
        assert (now[0] > backend.open()._clock() + HOUR, left_over(backend)) == (True, (0, 0))

    @pytest.mark.parametrize("share", [0.55, 0.9])
    def test_s14_one_that_was_swept_alive_begins_again(self, backend: Backend, long: bytes, share: float) -> None:
        """An import that was taken for dead notices, starts anew and leaves nothing of its first attempt."""
        store = backend.open()
        later = backend.open(clock=later_clock(store))

        def sweep() -> None:
            staging.sweep(later._recorder)
            assert left_over(backend) == (0, 0)
            # On SQLite this one gets the number that was the import's.
            later.create("between", messages=[{"role": "user", "content": "mine"}])

        assert store.import_(io.BytesIO(long), progress=once(share, sweep)).entries > COUNT
        assert [message.content for message in store.get("between").messages()] == ["mine"]
        assert (left_over(backend), store.verify().problems) == ((0, 0), [])
