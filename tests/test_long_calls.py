"""Imports, exports and checks that take long: what a callback does meanwhile, and what a full disk does."""

from __future__ import annotations

import contextlib
import io
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tape

READS: dict[str, Callable[[tape.Store], Any]] = {
    "list": lambda store: store.list().items,
    "feed": lambda store: list(store.feed()),
    "stats": lambda store: store.stats(),
    "health": lambda store: store.health(),
    "info": lambda store: store.tape("here").info(),
    "messages": lambda store: store.get("here").messages(),
    "context": lambda store: store.get("here").context(),
    "search": lambda store: store.search("word"),
    "verify": lambda store: store.get("here").verify().ok,
    "export": lambda store: store.export("here", io.BytesIO()),
}
"""Reads that a callback may make while a call is under way."""


def _exported(count: int) -> bytes:
    """Return a file with a tape of so many messages that an import tells several times how far it is."""
    with tape.open(":memory:") as source:
        chat = source.create("there")
        for _ in range(count):
            chat.append(role="user", content="word " * 400)
        written = io.BytesIO()
        source.export("there", written)
        return written.getvalue()


@pytest.fixture(scope="module")
def exported() -> bytes:
    return _exported(200)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tape.Store]:
    """A store on either engine, or in memory, where one connection serves all."""
    if request.param == "memory":
        with tape.open(":memory:", timeout=2) as store:
            yield store
        return
    backend = request.getfixturevalue("make_backend")(request.param, tmp_path)
    yield backend.open(timeout=2)
    backend.close()


@pytest.mark.alike
class TestCallbacks:
    """What a callback does while a call is under way neither breaks the call nor is broken by it."""

    @pytest.mark.parametrize("read", READS)
    def test_s14_a_read_inside_an_import_leaves_it_whole(
        self, anywhere: tape.Store, exported: bytes, read: str
    ) -> None:
        """Whatever is read while an import tells how far it is, all of the import is there afterwards."""
        anywhere.create("here", messages=[{"role": "user", "content": "word"}])
        calls = []

        def progress(done: int, total: int) -> None:
            READS[read](anywhere)
            calls.append(done)

        moved = anywhere.import_(io.BytesIO(exported), progress=progress)
        assert len(calls) > 4
        assert moved.entries == 201
        assert anywhere.get("there").info().message_count == 200
        assert anywhere.verify().ok

    def test_s14_a_write_inside_an_import_is_refused_or_done(self, anywhere: tape.Store, exported: bytes) -> None:
        """A write from the callback of an import is recorded, or refused by a TapeError; the import is whole."""
        here = anywhere.create("here")
        done: list[int] = []
        refused: list[tape.TapeError] = []

        def progress(at: int, total: int) -> None:
            try:
                done.append(here.append(role="user", content="meanwhile").seq)
            except tape.TapeError as error:
                refused.append(error)

        assert anywhere.import_(io.BytesIO(exported), progress=progress).entries == 201
        assert len(done) + len(refused) > 4
        assert here.info().message_count == len(done)
        assert anywhere.verify().ok

    def test_s14_what_fails_inside_an_import_leaves_nothing(self, anywhere: tape.Store, exported: bytes) -> None:
        """An error of the callback after a read of its own stops the import, and nothing of it stays."""
        anywhere.create("here")

        def progress(at: int, total: int) -> None:
            anywhere.list()
            if at > total * 0.7:
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            anywhere.import_(io.BytesIO(exported), progress=progress)
        assert [info.id for info in anywhere.list()] == ["here"]
        assert anywhere.import_(io.BytesIO(exported)).entries == 201
        assert anywhere.verify().ok

    @pytest.mark.parametrize("call", ["verify", "rebuild", "export"])
    def test_v1_a_read_inside_a_long_call_does_not_disturb_it(
        self, anywhere: tape.Store, exported: bytes, call: str
    ) -> None:
        """Verify, rebuild and export come to the same, whatever their callbacks read."""
        anywhere.import_(io.BytesIO(exported))
        anywhere.create("here", messages=[{"role": "user", "content": "word"}])
        for name, read in READS.items():
            calls = []

            def progress(done: int, total: int, read: Callable[[tape.Store], Any] = read) -> None:
                read(anywhere)
                calls.append(done)  # noqa: B023

            if call == "verify":
                assert anywhere.verify(progress=progress).ok, name
            elif call == "rebuild":
                assert anywhere.rebuild(progress=progress) == 2, name
            else:
                written = io.BytesIO()
                anywhere.export("there", written, progress=progress)
                assert written.getvalue() == exported, name
            assert calls, name
        assert anywhere.verify().ok

    def test_v1_a_write_inside_a_check_is_refused_or_done(self, anywhere: tape.Store, exported: bytes) -> None:
        """A write from the callback of ``verify`` is recorded, or refused by a TapeError that changes nothing."""
        anywhere.import_(io.BytesIO(exported))
        here = anywhere.create("here")
        done: list[int] = []

        def progress(at: int, total: int) -> None:
            with contextlib.suppress(tape.TapeError):
                done.append(here.append(role="user", content="meanwhile").seq)

        assert anywhere.verify("there", progress=progress).ok
        assert here.info().message_count == len(done)
        assert anywhere.verify().ok

    def test_c12_counters_and_migrators_may_read(self, tmp_path: Path) -> None:
        """A token counter and a slot's migrator are called inside a transaction, and may read the store."""
        stores: list[tape.Store] = []

        def count(text: str) -> int:
            return len(stores[0].list().items) if stores else 0

        def migrate(value: Any) -> Any:
            return {"was": value, "tapes": len(stores[0].list().items)}

        slot = tape.Slot("s", version=2, migrate={1: migrate})
        for url in (":memory:", str(tmp_path / "a.db")):
            with tape.open(url, counter=count, slots=[slot]) as store:
                stores[:] = [store]
                chat = store.create("a")
                chat.set_block("b", "text", max_tokens=10)
                assert chat.context().tokens >= 1
                assert chat.blocks()[0].tokens == 1

    def test_s14_another_thread_waits_no_longer_than_it_may(self, exported: bytes) -> None:
        """In memory a read waits for the writer, and is StoreBusy when that takes longer than the timeout."""
        with tape.open(":memory:", timeout=0.05) as store:
            told: list[BaseException] = []

            def look() -> None:
                try:
                    store.list()
                except tape.TapeError as error:
                    told.append(error)

            def progress(done: int, total: int) -> None:
                if done > total * 0.6 and not told:
                    other = threading.Thread(target=look)
                    other.start()
                    other.join(30)

            assert store.import_(io.BytesIO(exported), progress=progress).entries == 201
            assert [type(error) for error in told] == [tape.StoreBusy]
            assert store.verify().ok


class TestFiles:
    """S14: what a file system refuses is a TapeError, and leaves nothing behind."""

    @pytest.fixture
    def tight(self) -> Callable[[int], contextlib.AbstractContextManager[None]]:
        """Let no file of this process grow beyond a size, as on a disk that is full."""

        @contextlib.contextmanager
        def limited(size: int) -> Iterator[None]:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                signal.signal(signal.SIGXFSZ, before)

        return limited

    @pytest.mark.parametrize("size", [0, 1, 10_000, 300_000])
    def test_s14_an_export_on_a_full_disk_is_told(
        self, anywhere: tape.Store, exported: bytes, tight: Any, tmp_path: Path, size: int
    ) -> None:
        """However far it comes it is StoreFailed, the part is removed, and what had the name is as before."""
        anywhere.import_(io.BytesIO(exported))
        target = tmp_path / "out" / "a.jsonl"
        target.parent.mkdir()
        target.write_bytes(b"before")
        assert len(exported) > 300_000
        with tight(size), pytest.raises(tape.StoreFailed, match="cannot write") as caught:
            anywhere.export("there", target)
        assert isinstance(caught.value.__cause__, OSError)
        assert [path.name for path in target.parent.iterdir()] == ["a.jsonl"]
        assert target.read_bytes() == b"before"
        anywhere.export("there", target)
        assert target.read_bytes() == exported

    def test_s14_an_export_into_a_file_that_is_full_is_told(self, anywhere: tape.Store, exported: bytes) -> None:
        """The same for a file that the caller has opened."""
        anywhere.import_(io.BytesIO(exported))
        with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(tape.StoreFailed, match="cannot write"):
            anywhere.export("there", full)

    def test_s16_a_backup_on_a_full_disk_is_told(self, exported: bytes, tight: Any, tmp_path: Path) -> None:
        """It is StoreFailed and leaves no part behind."""
        with tape.open(":memory:") as store:
            store.import_(io.BytesIO(exported))
            for size in (0, 10_000):
                with tight(size), pytest.raises(tape.StoreFailed):
                    store.backup(tmp_path / "copy.db")
                assert list(tmp_path.iterdir()) == []
            with pytest.raises(tape.StoreFailed, match="cannot write"):
                store.backup(tmp_path)
            assert list(tmp_path.iterdir()) == []

    def test_s14_a_file_that_cannot_be_read_is_told(self, anywhere: tape.Store, exported: bytes) -> None:
        """An error of the file while an import reads it is InvalidEntry, and nothing is imported."""

        class Failing(io.BytesIO):
            def readline(self, size: int | None = -1) -> bytes:
                if self.tell() > 100_000:
                    raise OSError(5, "Input/output error")
                return super().readline(size)

        with pytest.raises(tape.InvalidEntry, match="Input/output"):
            anywhere.import_(Failing(exported))
        assert anywhere.list().items == []
