"""S14: tapes move between stores byte for byte, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import history
from support.backends import Backend, MakeBackend
from support.exports import exported
from support.filling import filled

import tape
from tape.core.entries import chain
from tape.core.transfer import export_format as format
from tape.db.transfer import importer, staging


@pytest.fixture(params=["at once", "in batches"])
def manner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short files are imported in one transaction, long ones in hidden batches; here all in either way."""
    if request.param == "in batches":
        monkeypatch.setattr(importer, "_AT_ONCE", 0)
        monkeypatch.setattr(staging._Arrival, "pending", 3)


def everything(store: tape.Store) -> dict[str, Any]:
    """Return all that can be read of every tape."""
    return {info.id: (info, history.describe(store, info.id)) for info in store.list(limit=1000)}


@pytest.mark.alike
@pytest.mark.usefixtures("manner")
class TestRoundTrip:
    @pytest.mark.parametrize("family", [False, True])
    def test_s14_is_byte_identical(self, backend: Backend, other: Backend, family: bool) -> None:
        """What was imported exports to the same bytes, reads the same at every seq, and verifies."""
        store = filled(backend, history.write_checked_and_indexed)
        target = other.open()
        for name in ("plan", "quiet", "chat"):
            raw = exported(store, name, family=family)
            target.import_(io.BytesIO(raw))
            assert exported(target, name, family=family) == raw
            assert history.describe(target, name) == history.describe(store, name)
            assert target.get(name).info() == store.get(name).info()
        assert target.verify().problems == []

    def test_s14_between_engines(self, backend: Backend, make_backend: MakeBackend, tmp_path: Path) -> None:
        """SQLite and PostgreSQL read each other's files."""
        store = filled(backend, history.write_checked_and_indexed)
        raw = exported(store, "chat", family=True)
        with make_backend("postgresql" if not backend.postgres else "sqlite", tmp_path) as elsewhere:
            target = elsewhere.open()
            target.import_(io.BytesIO(raw))
            assert exported(target, "chat", family=True) == raw
            assert target.verify().problems == []

    def test_s14_families_move_together(self, backend: Backend, other: Backend) -> None:
        """``family`` moves every fork with its state; merging and forking go on in the new store."""
        store, target = filled(backend, history.write_checked_and_indexed), other.open()
        moved = target.import_(io.BytesIO(exported(store, "under", family=True)))
        assert sorted(moved.tapes) == ["chat", "gone", "helper", "squashed", "under"]
        assert moved.entries == sum(store.get(name).info().head for name in moved.tapes)
        for name in moved.tapes:
            assert history.describe(target, name) == history.describe(store, name)
            assert target.get(name).lineage() == store.get(name).lineage()
        helper = target.get("helper")
        helper.append(role="assistant", content="more")
        target.get("chat").merge(helper)
        target.get("under").fork("deeper").append(role="user", content="x")
        with pytest.raises(tape.TapeClosed):
            target.get("gone").append(role="user", content="x")
        assert target.verify().problems == []

    def test_s14_a_fork_brings_its_ancestors_up_to_the_fork(self, backend: Backend, other: Backend) -> None:
        """Exported alone, a fork reads the same; its ancestors come as far as it inherits them."""
        store, target = filled(backend, history.write_checked_and_indexed), other.open()
        moved = target.import_(io.BytesIO(exported(store, "under")))
        assert moved.tapes == ["chat", "helper", "under"]
        lineage = {one.tape: one.seq for one in store.get("under").lineage().ancestors}
        assert {name: target.get(name).info().head for name in ("chat", "helper")} == lineage
        assert history.describe(target, "under") == history.describe(store, "under")
        assert target.verify().problems == []
        helper = target.get("helper")
        assert [one.tape for one in target.get("chat").lineage().descendants] == ["helper", "under"]
        helper.merge("under")
        target.get("chat").merge(helper)
        assert target.verify().problems == []

    def test_s14_a_merged_fork_alone_can_be_merged_again(self, backend: Backend, other: Backend) -> None:
        """A fork imported without the part of its parent that merged it is merged there anew."""
        store, target = backend.open(), other.open()
        chat = store.create("chat")
        fork = chat.fork("fork")
        fork.append(role="user", content="x")
        chat.merge(fork)
        target.import_(io.BytesIO(exported(store, "fork")))
        parent = target.get("chat")
        assert (parent.messages(), parent.lineage().merges) == ([], [])
        assert len(parent.merge("fork").message_ids) == 1
        assert (target.verify().problems, len(parent.lineage().merges)) == ([], 1)

    def test_s14_paths_and_progress(self, backend: Backend, other: Backend, tmp_path: Path) -> None:
        """Files are named by path as well; progress rises to the end and counts both readings."""
        store, target = backend.open(), other.open()
        store.create("a", messages=[{"role": "user", "content": "x" * 1000} for _ in range(500)])
        moved = store.export("a", tmp_path / "a.jsonl")
        assert (moved.tapes, moved.entries) == (["a"], 501)
        size = (tmp_path / "a.jsonl").stat().st_size
        told: list[tuple[int, int]] = []
        target.import_(str(tmp_path / "a.jsonl"), progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (2 * size, 2 * size)
        assert (told == sorted(told), len(told) > 10) == (True, True)
        assert sorted(path.name for path in tmp_path.glob("a.jsonl*")) == ["a.jsonl"]

    def test_s14_a_failing_callback_imports_nothing(self, backend: Backend, other: Backend) -> None:
        """An exception of the callback stops the import, at whatever point, and the store is as before."""
        store, target = backend.open(), other.open()
        store.create("a", messages=[{"role": "user", "content": "x" * 1000} for _ in range(500)])
        raw = exported(store, "a")

        class Enough(Exception):
            pass

        for share in (0.2, 0.9):

            def stop(done: int, total: int, share: float = share) -> None:
                if done > share * total:
                    raise Enough

            with pytest.raises(Enough):
                target.import_(io.BytesIO(raw), progress=stop)
            assert target.list().items == []
        assert target.import_(io.BytesIO(raw)).entries == 501

    def test_s14_exports_only_what_verifies(self, backend: Backend) -> None:
        """A tape that was tampered with is Corrupt on the way out, and no file is left behind."""
        from support.damage import Tamperer

        store = filled(backend, history.write_checked_and_indexed)
        hand = Tamperer(backend)
        hand.run("UPDATE tape_entries SET actor = 'x' WHERE tape_id = ? AND seq = 3", hand.tape_id("plan"))
        hand.close()
        with pytest.raises(tape.Corrupt) as caught:
            exported(store, "plan")
        assert (caught.value.tape, caught.value.seq) == ("plan", 3)


@pytest.mark.alike
@pytest.mark.usefixtures("manner")
class TestTwice:
    def test_s14_importing_twice_changes_nothing(self, backend: Backend, other: Backend) -> None:
        """The second import writes no entry, and keys are known as where they came from."""
        store, target = filled(backend, history.write_checked_and_indexed), other.open()
        raw = exported(store, "chat", family=True)
        first = target.import_(io.BytesIO(raw))
        before = everything(target)
        second = target.import_(io.BytesIO(raw))
        assert (first.tapes, first.entries > 0) == (second.tapes, True)
        assert (second.entries, everything(target)) == (0, before)
        again = target.get("chat").append(role="user", content="Tokyo — 東京 🗼", key="client-7", actor="ann")
        assert again.duplicate

    def test_s14_a_file_extends_what_is_stored(self, backend: Backend, other: Backend) -> None:
        """A newer file adds what is new, an older one nothing."""
        store, target = filled(backend, history.write_checked_and_indexed), other.open()
        older = exported(store, "chat", family=True)
        store.get("chat").append(role="user", content="newer")
        store.get("chat").revise("z", content="revised")
        store.get("helper").append(role="user", content="newer")
        store.get("chat").fork("late").append(role="user", content="x")
        newer = exported(store, "chat", family=True)
        target.import_(io.BytesIO(older))
        assert target.import_(io.BytesIO(newer)).entries == 3 + 1 + 2
        assert target.import_(io.BytesIO(older)).entries == 0
        assert exported(target, "chat", family=True) == newer
        assert target.verify().problems == []

    def test_s14_a_tape_that_went_another_way_is_refused(self, backend: Backend, other: Backend) -> None:
        """A stored tape of the same id with other entries is named by the first line that differs."""
        store, target = backend.open(), other.open()
        chat = store.create("a", messages=[{"role": "user", "content": "x"}])
        target.import_(io.BytesIO(exported(store, "a")))
        chat.append(role="user", content="y")
        target.get("a").append(role="user", content="z")
        with pytest.raises(tape.ImportFailed) as caught:
            target.import_(io.BytesIO(exported(store, "a")))
        assert caught.value.line == 4
        assert [message.content for message in target.get("a").messages()] == ["x", "z"]

    def test_s14_a_purged_tape_comes_back_only_on_purpose(self, backend: Backend, other: Backend) -> None:
        """Importing what was purged is refused, and accepted with ``reuse``."""
        store, target = backend.open(), other.open()
        store.create("a", messages=[{"role": "user", "content": "x"}])
        raw = exported(store, "a")
        target.import_(io.BytesIO(raw))
        target.purge("a")
        with pytest.raises(tape.ImportFailed) as caught:
            target.import_(io.BytesIO(raw))
        assert (caught.value.line, target.list().items) == (1, [])
        assert target.import_(io.BytesIO(raw), reuse=True).entries == 2
        assert exported(target, "a") == raw

    def test_s14_of_eight_at_once_one_imports(self, backend: Backend, other: Backend) -> None:
        """Eight simultaneous imports of one file write each entry once."""
        store, target = filled(backend, history.write_checked_and_indexed), other.open()
        raw = exported(store, "chat", family=True)
        counts: list[int] = []
        ready = threading.Barrier(8)

        def go() -> None:
            ready.wait(timeout=30)
            counts.append(target.import_(io.BytesIO(raw)).entries)

        threads = [threading.Thread(target=go) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(counts)[:-1] == [0] * 7
        assert exported(target, "chat", family=True) == raw

    def test_s14_two_exports_to_one_path(self, backend: Backend, tmp_path: Path) -> None:
        """Exports to one path at once do not write into each other: the last one whole stays, and nothing else."""
        store = backend.open()
        for name in ("a", "b"):
            store.create(name, messages=[{"role": "user", "content": name * 1_000} for _ in range(30)])
        target = tmp_path / "out" / "x.jsonl"
        target.parent.mkdir()
        begun = [threading.Event(), threading.Event()]

        def go(me: int) -> None:
            def progress(done: int, total: int) -> None:
                begun[me].set()
                assert begun[1 - me].wait(timeout=30)

            store.export("ab"[me], target, progress=progress)

        threads = [threading.Thread(target=go, args=(me,)) for me in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert target.read_bytes() in (exported(store, "a"), exported(store, "b"))
        assert list(target.parent.iterdir()) == [target]

    def test_s14_async_twin(self, backend: Backend, other: Backend) -> None:
        """The async stores export and import alike."""

        async def go() -> None:
            async with (
                tape.open_async(backend.url, **backend.options) as store,
                tape.open_async(other.url, **other.options) as target,
            ):
                await store.create("a")
                out = io.BytesIO()
                await store.export("a", out)
                out.seek(0)
                assert (await target.import_(out)).tapes == ["a"]

        asyncio.run(go())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An intact export of a family."""
    with tape.open(tmp_path_factory.mktemp("sound") / "a.db") as store:
        chat = store.create("chat", name="N", labels=["l"], meta={"m": 1})
        chat.extend([{"role": "user", "content": f"message {n} 東京"} for n in range(6)], meta={"run": "r"})
        chat.handoff("h", summary="s")
        fork = chat.fork("fork")
        fork.append(role="assistant", content="x")
        chat.merge(fork)
        fork.fork("deep").retract(fork.messages()[0].id)
        return exported(store, "chat", family=True)


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """Return a file with one thing wrong."""
    lines = raw.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    how = draw(
        st.sampled_from(
            [
                "cut",
                "drop",
                "double",
                "swap",
                "byte",
                "bytes",
                "field",
                "hash",
                "bom",
                "crlf",
                "long",
                "utf8",
                "blank",
                "tail",
                "head",
                "insert",
                "format",
            ]
        )
    )
    if how == "cut":
        return raw[: draw(st.integers(0, len(raw) - 1))]
    if how == "drop":
        del lines[at]
    elif how == "double":
        lines.insert(at, lines[at])
    elif how == "swap":
        to = draw(st.integers(0, len(lines) - 1).filter(lambda n: n != at))
        lines[at], lines[to] = lines[to], lines[at]
    elif how == "byte":
        where = draw(st.integers(0, len(raw) - 1))
        bit = draw(st.integers(0, 7))
        return raw[:where] + bytes([raw[where] ^ 1 << bit]) + raw[where + 1 :]
    elif how == "bytes":
        where = draw(st.integers(0, len(raw) - 1))
        return raw[:where] + draw(st.binary(min_size=1, max_size=8)) + raw[where:]
    elif how in ("field", "hash"):
        line = json.loads(lines[at])
        name = "hash" if how == "hash" and "hash" in line else draw(st.sampled_from(sorted(line)))
        odd: st.SearchStrategy[Any] = st.sampled_from(
            [None, True, -1, 0, 2**63, 2**70, 0.5, "", "x", "\0", "~", [], {}, "a" * 64]
        )
        line[name] = draw(odd.filter(lambda value: value != line[name] or type(value) is not type(line[name])))
        lines[at] = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    elif how == "bom":
        return b"\xef\xbb\xbf" + raw
    elif how == "crlf":
        lines[at] = lines[at][:-1] + b"\r\n"
    elif how == "long":
        lines[at] = b'{"tape":"' + b"x" * 10_000_000 + b'"}\n'
    elif how == "utf8":
        where = draw(st.integers(1, len(lines[at]) - 2))
        lines[at] = lines[at][:where] + b"\xff\xfe" + lines[at][where:]
    elif how == "blank":
        lines.insert(at, b"\n")
    elif how == "tail":
        lines.append(draw(st.sampled_from([b"\n", b"x", lines[0], lines[-1], b" "])))
    elif how == "head":
        lines = lines[:at]
    elif how == "insert":
        lines.insert(at, b'{"seq":1}\n')
    else:
        lines[0] = lines[0].replace(b'"format":1', b'"format":2')
    return b"".join(lines)


@pytest.mark.alike
@pytest.mark.usefixtures("manner")
class TestDamage:
    @pytest.mark.parametrize("before", ["empty", "prefix", "whole"])
    def test_s14_every_damage_is_refused(self, backend: Backend, sound: bytes, before: str) -> None:
        """Whatever is wrong with a file: ImportFailed with a line of it, and the store is unchanged."""
        store = backend.open(durability="normal")
        if before == "whole":
            store.import_(io.BytesIO(sound))
        elif before == "prefix":
            first = json.loads(sound.splitlines()[0])["entries"]
            assert first > 3
            with tape.open(":memory:") as source:
                source.import_(io.BytesIO(sound))
                store.import_(io.BytesIO(exported(source, "deep")))
        kept = everything(store)

        @settings(
            max_examples=60,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(raw=damaged(sound))
        def check(raw: bytes) -> None:
            if raw == sound:
                return
            with pytest.raises(tape.ImportFailed) as caught:
                store.import_(io.BytesIO(raw))
            assert 1 <= caught.value.line <= raw.count(b"\n") + 2
            assert caught.value.why

        check()
        assert everything(store) == kept
        assert store.verify().problems == []
        store.import_(io.BytesIO(sound))
        assert exported(store, "chat", family=True) == sound

    @pytest.mark.parametrize(
        ("change", "line"),
        [
            (lambda lines: [], 1),
            (lambda lines: lines[:5], 6),
            (lambda lines: lines[:-1], lambda n: n),
            (lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]], 1),
            (lambda lines: [lines[0].replace(b"\n", b"\r\n"), *lines[1:]], 1),
            (lambda lines: [*lines[:2], lines[2].replace(b"message 0", b"message 9"), *lines[3:]], 3),
            (lambda lines: [*lines[:3], lines[3][:20]], 4),
            (lambda lines: [*lines[:4], lines[3], *lines[4:]], 5),
            (lambda lines: [*lines[:4], b"x" * 10_000_000 + b"\n", *lines[4:]], 5),
            (lambda lines: [*lines, b"\n"], lambda n: n + 1),
        ],
        ids=["empty", "short", "no end", "bom", "crlf", "edited", "cut line", "doubled", "10 MB", "longer"],
    )
    def test_s14_names_the_line(self, store: tape.Store, sound: bytes, change: Any, line: Any) -> None:
        """The number is that of the first line at fault."""
        lines = sound.splitlines(keepends=True)
        with pytest.raises(tape.ImportFailed) as caught:
            store.import_(io.BytesIO(b"".join(change(lines))))
        assert caught.value.line == (line(len(lines)) if callable(line) else line)
        assert store.list().items == []

    def test_s14_a_mixed_file_is_refused(self, backend: Backend, other: Backend) -> None:
        """Entries of two tapes mixed, and a recomputed end, do not pass for one tape."""
        store = backend.open()
        store.create("a", messages=[{"role": "user", "content": "x"}])
        store.create("b", messages=[{"role": "user", "content": "y"}])
        first, second = (exported(store, name).splitlines(keepends=True) for name in ("a", "b"))
        target = other.open()
        for mixed, line in (
            ([first[0], second[1], first[2], first[3]], 2),
            ([*first[:2], second[2], first[3]], 3),
            ([*first[:3], *second], 7),
            ([*first, *second], 5),
        ):
            with pytest.raises(tape.ImportFailed) as caught:
                target.import_(io.BytesIO(b"".join(mixed)))
            assert (caught.value.line, target.list().items) == (line, [])

    def test_s14_a_chain_recomputed_around_nonsense_leaves_nothing(self, backend: Backend, sound: bytes) -> None:
        """A file whose hashes are right but whose entries contradict each other is refused, too."""
        store = backend.open()
        with tape.open(":memory:") as source:
            source.create("a", messages=[{"role": "user", "content": "x"}, {"role": "user", "content": "y"}])
            parsed = [json.loads(line) for line in exported(source, "a").splitlines()]
            raws = [format._entry_line(line) for line in exported(source, "a").splitlines()[1:-1]]
        for twist in ("key", "name"):
            before, out = chain.ZERO, []
            for n, raw in enumerate(raws):
                fields = {name: getattr(raw, name) for name in raw.__struct_fields__}
                if twist == "key" and n == 2:
                    fields["key"] = raws[1].key
                if twist == "name" and n == 0:
                    fields["payload"] = msgspec.Raw(b'{"name":"a\\u0000b"}')
                seal: Any = chain.link
                before = seal(
                    before,
                    chain.commit(bytes.fromhex(raw.salt), bytes(fields["payload"]), raw.meta_bytes),
                    "a",
                    *(fields[name] for name in ("seq", "kind", "key", "actor", "source")),
                    *(fields[name] for name in ("stamp", "version")),
                    raw.place,
                )
                out.append(format.EntryLine(**{**fields, "hash": before.hex()}))
            text = [format.encode(one) for one in (format.TapeLine("a", len(out), before.hex(), 1), *out)]
            body = b"".join(line + b"\n" for line in text)
            digest = hashlib.blake2b(body, digest_size=32).hexdigest()
            body += format.encode(format.End(1, len(out), digest)) + b"\n"
            with pytest.raises(tape.ImportFailed):
                store.import_(io.BytesIO(body))
            assert store.list().items == []
        assert len(parsed) == 5

    def test_s14_a_fork_without_its_parent_is_refused(self, store: tape.Store) -> None:
        """A fork whose ancestors are neither in the file nor in the store is refused at its first entry."""
        with tape.open(":memory:") as source:
            source.create("a").fork("b")
            lines = exported(source, "b").splitlines(keepends=True)
        body = b"".join(lines[2:4])
        digest = hashlib.blake2b(body, digest_size=32).hexdigest()
        body += b'{"tapes":1,"entries":1,"digest":"' + digest.encode() + b'"}\n'
        with pytest.raises(tape.ImportFailed) as caught:
            store.import_(io.BytesIO(body))
        assert (caught.value.line, store.list().items) == (2, [])

    def test_s14_what_is_no_file_is_refused(self, store: tape.Store, tmp_path: Path) -> None:
        """A missing file, a folder and a stream that cannot be read twice are InvalidEntry."""
        for wrong in (tmp_path / "none", tmp_path, object()):
            with pytest.raises(tape.InvalidEntry):
                store.import_(wrong)  # type: ignore[arg-type]
        with pytest.raises(tape.TapeNotFound):
            store.export("never", tmp_path / "out")
        assert not (tmp_path / "out").exists()


class TestBackup:
    def test_s14_a_live_store_is_copied(self, tmp_path: Path) -> None:
        """A backup taken while others write is one consistent state, verifies, and holds all from before it."""
        with tape.open(tmp_path / "a.db", durability="normal") as store:
            chat = store.create("chat", messages=[{"role": "user", "content": str(n)} for n in range(500)])
            done = threading.Event()

            def write() -> None:
                while not done.is_set():
                    chat.append(role="user", content="more")

            thread = threading.Thread(target=write)
            thread.start()
            try:
                for _ in range(3):
                    before = chat.info().head
                    store.backup(tmp_path / "copy.db")
                    with tape.open(tmp_path / "copy.db") as copy:
                        report = copy.verify()
                        assert (report.problems, report.entries >= before) == ([], True)
            finally:
                done.set()
                thread.join(timeout=60)
        assert sorted(path.name for path in tmp_path.glob("*.part")) == []

    def test_s14_a_log_that_was_left_is_not_replayed_over_a_backup(self, tmp_path: Path) -> None:
        """A backup never takes the name of a store whose write-ahead log is still there; opened once, it may."""
        with tape.open(tmp_path / "live.db") as live:
            live.create("lost")
            for end in ("", "-wal"):
                shutil.copy(tmp_path / f"live.db{end}", tmp_path / f"old.db{end}")
        with tape.open(tmp_path / "a.db") as store:
            store.create("chat")
            with pytest.raises(tape.StoreFailed, match="was not closed: open it once, or remove both"):
                store.backup(tmp_path / "old.db")
            assert list(tmp_path.glob("*.part")) == []
            with tape.open(tmp_path / "old.db") as old:
                assert [info.id for info in old.list()] == ["lost"]
            store.backup(tmp_path / "old.db")
        with tape.open(tmp_path / "old.db") as copy:
            assert [info.id for info in copy.list()] == ["chat"]

    @pytest.mark.parametrize("empty", [False, True], ids=["gone", "empty"])
    def test_a_store_does_not_begin_beside_a_log_that_was_left(self, tmp_path: Path, empty: bool) -> None:
        """A file that is gone or empty while its log is there is no new store: the log may be all that is left."""
        with tape.open(tmp_path / "live.db") as live:
            live.create("lost")
            shutil.copy(tmp_path / "live.db-wal", tmp_path / "gone.db-wal")
        if empty:
            (tmp_path / "gone.db").touch()
        before = (tmp_path / "gone.db-wal").read_bytes()
        with pytest.raises(tape.StoreFailed, match=r"was not closed, and .* is gone or empty"):
            tape.open(tmp_path / "gone.db")
        assert (tmp_path / "gone.db-wal").read_bytes() == before

    def test_s14_a_store_in_memory_can_be_kept(self, tmp_path: Path) -> None:
        """A store in memory is written to a file."""
        with tape.open(":memory:") as store:
            store.create("chat")
            store.backup(tmp_path / "kept.db")
        with contextlib.closing(sqlite3.connect(tmp_path / "kept.db")) as connection:
            assert connection.execute("SELECT tape FROM tape_tapes").fetchall() == [("chat",)]

    def test_s14_postgresql_says_what_to_use(self, backend: Backend, tmp_path: Path) -> None:
        """On PostgreSQL the error names pg_dump; on SQLite the file is there."""
        store = backend.open()
        if not backend.postgres:
            store.backup(tmp_path / "copy.db")
            assert (tmp_path / "copy.db").is_file()
            return
        with pytest.raises(tape.StoreFailed, match="pg_dump"):
            store.backup(tmp_path / "copy.db")
