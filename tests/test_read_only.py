"""A store that is only read: every write is refused, nothing is written or left behind, others' commits are seen."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import programs
from support.backends import Backend, MakeBackend, dsn, new_server
from support.damage import contents
from support.processes import PATIENCE, Crew
from support.second_release import SECOND, second_release
from support.shell import tape_command

import tape
from tape.db.schema.tables import REVISION

pytestmark = pytest.mark.blank

NOBODY = 65534
Reads = dict[str, Callable[[Any], Any]]


def fill(store: tape.Store) -> None:
    """Write a tape with a fork, of which the index lacks the end."""
    chat = store.create("chat", owner="ann", labels=["x"])
    chat.extend([{"id": f"m{n}", "role": "user", "content": f"number {n}"} for n in range(30)])
    store.search("number")
    chat.anchor("begin")
    chat.set_block("memory", "likes tea")
    chat.put("slot", {"a": 1})
    chat.record_usage(input_tokens=3)
    chat.recorded_context(budget=4_000)
    helper = chat.fork("helper")
    for number in range(10):
        helper.append(role="assistant", content=f"of the helper, {number}")
    chat.append(role="user", content="the tail", id="tail")
    store.create("plain")
    store.get("plain").append(role="user", content="alone")


STORE_READS: Reads = {
    "owner": lambda store: store.owner,
    "read_only": lambda store: store.read_only,
    "backup": lambda store: None if store._db.postgres else store.backup(_beside(store, "copy.db")),
    "bind": lambda store: store.bind,
    "replica": lambda store: store.replica,
    "consumer": lambda store: (store.consumer("c").position, list(store.consumer("c"))),
    "doctor": lambda store: store.doctor(),
    "export": lambda store: store.export("helper", io.BytesIO()),
    "feed": lambda store: list(store.feed()),
    "follow": lambda store: list(store.follow(timeout=0)),
    "get": lambda store: store.get("chat"),
    "health": lambda store: (store.health(), store.health("chat")),
    "list": lambda store: (store.list(), store.list(hidden=True)),
    "messages_by_id": lambda store: store.messages_by_id("m1"),
    "scoped": lambda store: store.scoped("ann").get("chat").messages(),
    "search": lambda store: (store.search("number"), store.search("tail"), store.search("helper")),
    "diff": lambda store: store.diff("chat", "helper"),
    "requests": lambda store: store.requests(),
    "stats": lambda store: store.stats(),
    "tape": lambda store: store.tape("new").messages(),
    "tapes": lambda store: list(store.tapes()),
    "tools": lambda store: [
        *(tool(**dict.fromkeys(tool.parameters["required"], "chat")) for tool in store.tools("read")),
        store.tools().call("search_tapes", {"query": "tail"}),
    ],
    "usage": lambda store: (store.usage(by="model"), store.usage(by="turn", tape="chat")),
    "verify": lambda store: (store.verify(), store.verify("chat")),
}
STORE_WRITES: Reads = {
    "create": lambda store: store.create("new"),
    "import_": lambda store: store.import_(io.BytesIO(b"{}")),
    "purge": lambda store: store.purge("plain"),
    "rebuild": lambda store: store.rebuild(),
    "retain": lambda store: store.retain(older_than=timedelta(), dry_run=False),
    "split": lambda store: store.split("chat", summary="so far"),
    "transaction": lambda store: store.transaction(lambda one: one.get("chat").anchor("a")),
}
TAPE_READS: Reads = {
    "id": lambda chat: chat.id,
    "anchors": lambda chat: chat.anchors(),
    "at": lambda chat: (chat.at(3).messages(), chat.at(3).context(budget=4_000), chat.at(5).search("number")),
    "blocks": lambda chat: chat.blocks(),
    "children": lambda chat: chat.children("m1"),
    "context": lambda chat: chat.context(budget=4_000),
    "diff": lambda chat: chat.diff(2, 9),
    "entries": lambda chat: (list(chat.entries()), list(chat.entries(reverse=True, limit=2))),
    "entry": lambda chat: chat.entry(seq=1),
    "find_entry": lambda chat: chat.find_entry(key="none"),
    "bodies": lambda chat: chat.bodies(),
    "find": lambda chat: chat.find("m1"),
    "heads": lambda chat: chat.heads(),
    "info": lambda chat: chat.info(),
    "lineage": lambda chat: chat.lineage(),
    "loaded": lambda chat: chat.loaded(),
    "linked": lambda chat: chat.linked,
    "message": lambda chat: chat.message("m1"),
    "messages": lambda chat: (chat.messages(), chat.messages(limit=3)),
    "needs_compaction": lambda chat: chat.needs_compaction(10),
    "recall": lambda chat: chat.recall([e.seq for e in chat.entries(kinds=["event"])][-1]),
    "search": lambda chat: chat.search("tail"),
    "state": lambda chat: chat.state("slot"),
    "state_entry": lambda chat: chat.state_entry("slot"),
    "states": lambda chat: (chat.states(), chat.states(prefix="s")),
    "summaries": lambda chat: chat.summaries(),
    "summary": lambda chat: chat.summary(),
    "tools": lambda chat: chat.tools().call("tape_info", {}),
    "usage": lambda chat: chat.usage(),
    "explain": lambda chat: chat.explain().regions,
    "pointer": lambda chat: chat.pointer(),
    "decision": lambda chat: chat.decision(chat.find_entry(key="ask").key) if chat.find_entry(key="ask") else None,
    "title": lambda chat: chat.title(),
    "verify": lambda chat: chat.verify(),
}
TAPE_WRITES: Reads = {
    "abandon": lambda chat: chat.abandon(),
    "anchor": lambda chat: chat.anchor("a"),
    "append": lambda chat: chat.append(role="user", content="x"),
    "append_block": lambda chat: chat.append_block("memory", "x"),
    "clear": lambda chat: chat.clear(),
    "compact": lambda chat: chat.compact(lambda request: "short", budget=10),
    "complete": lambda chat: chat.complete(),
    "discard": lambda chat: chat.discard(),
    "end": lambda chat: chat.end("over"),
    "event": lambda chat: chat.event("e"),
    "extend": lambda chat: chat.extend([{"role": "user", "content": "x"}]),
    "fork": lambda chat: chat.fork("other"),
    "lease": lambda chat: chat.lease("run", 1),
    "request": lambda chat: chat.request("approve"),
    "resolve": lambda chat: chat.resolve("ask", "yes"),
    "withdraw": lambda chat: chat.withdraw("ask"),
    "freeze_prompt": lambda chat: chat.freeze_prompt(),
    "handoff": lambda chat: chat.handoff("h", summary="s"),
    "hide": lambda chat: chat.hide(),
    "label": lambda chat: chat.label("y"),
    "load_block": lambda chat: chat.load_block("skills", "x"),
    "merge": lambda chat: chat.merge("helper"),
    "patch": lambda chat: chat.patch("slot", {"b": 2}),
    "put": lambda chat: chat.put("slot", 1),
    "record_usage": lambda chat: chat.record_usage(input_tokens=1),
    "recorded_context": lambda chat: chat.recorded_context(budget=4_000),
    "refresh_prompt": lambda chat: chat.refresh_prompt(),
    "remove_block": lambda chat: chat.remove_block("memory"),
    "rename": lambda chat: chat.rename("n"),
    "reopen": lambda chat: chat.reopen(),
    "replace_history": lambda chat: chat.replace_history([{"role": "user", "content": "x"}]),
    "restore": lambda chat: chat.restore("m1"),
    "retract": lambda chat: chat.retract("m1"),
    "revise": lambda chat: chat.revise("m1", content="x"),
    "set_block": lambda chat: chat.set_block("memory", "x"),
    "set_summary": lambda chat: chat.set_summary("s", first="m1", last="m2"),
    "switch": lambda chat: chat.switch("m1"),
    "unhide": lambda chat: chat.unhide(),
    "unload_block": lambda chat: chat.unload_block("skills", "x"),
    "upsert": lambda chat: chat.upsert({"id": "m1", "role": "user", "content": "x"}),
}


MEANINGLESS = {"chat": {"discard"}, "helper": {"merge"}, "new": {"discard", "merge"}}
"""Calls that are wrong on these tapes whoever makes them."""


def _beside(store: tape.Store, name: str) -> Path:
    """Return a file in a folder of its own, so that the store's is as it was."""
    folder = Path(str(store._db.engine.url.database)).parent / "elsewhere"
    return folder / name


def state_of(backend: Backend) -> Any:
    """Return all that a write would change: the rows on a server, or every byte of the file and what lies beside it."""
    if backend.postgres:
        return contents(backend)
    path = Path(str(backend.url.database))
    return path.read_bytes(), sorted(one.name for one in path.parent.iterdir())


@pytest.fixture
def kept(backend: Backend) -> Backend:
    """A database that holds a store, which nobody has open."""
    with tape.open(backend.url, **backend.options) as store:
        fill(store)
    if not backend.postgres:
        _beside_folder(backend).mkdir()
    return backend


def _beside_folder(backend: Backend) -> Path:
    return Path(str(backend.url.database)).parent / "elsewhere"


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


class TestSurface:
    """Every public call is a read that works, or a write that is ReadOnly; none changes a byte."""

    def test_every_call_is_known_here(self) -> None:
        """A call that is added must be put into one of the two lists."""
        assert public(tape.Store) - {"close"} == set(STORE_READS) | set(STORE_WRITES)
        assert public(tape.Tape) == set(TAPE_READS) | set(TAPE_WRITES)
        assert public(tape.Snapshot) <= set(TAPE_READS)

    def test_every_read_works_and_changes_nothing(self, kept: Backend) -> None:
        """Reads of the store, of a tape and of a fork give what a store that can write gives."""
        before = state_of(kept)
        found: list[str] = []
        with tape.open(kept.url, read_only=True, **kept.options) as store:
            assert store.read_only
            for name, read in STORE_READS.items():
                found.append(_shown(read(store)))
                assert state_of(kept) == before, name
            for chat in (store.get("chat"), store.get("helper")):
                for name, read in TAPE_READS.items():
                    if name != "recall" or chat.id == "chat":
                        found.append(_shown(read(chat)))
                        assert state_of(kept) == before, name
        assert state_of(kept) == before
        assert any("the tail" in one for one in found)

    def test_every_write_is_refused_and_changes_nothing(self, kept: Backend) -> None:
        """Of the store, of a tape, of a fork, of a tape that is not there, and of a bound store."""
        before = state_of(kept)
        engine = kept.engine()
        with tape.open(kept.url, read_only=True, **kept.options) as store, engine.connect() as connection:
            for name, write in STORE_WRITES.items():
                with pytest.raises(tape.ReadOnly):
                    write(store)
                    pytest.fail(name)
            for chat in (store.get("chat"), store.get("helper"), store.tape("new"), store.bind(connection).get("chat")):
                for name, write in TAPE_WRITES.items():
                    if name not in MEANINGLESS[chat.id]:
                        with pytest.raises(tape.ReadOnly):
                            write(chat)
                            pytest.fail(name)
            with pytest.raises(tape.ReadOnly):
                store.consumer("c").commit(0)
            assert store.bind(connection).get("chat").messages()[-1].id == "tail"
            assert store.retain(older_than=timedelta()).tapes
            said = store.get("chat").tools().call("tape_handoff", {"name": "x", "summary": "y"})
            assert "no tool 'tape_handoff'" in said
        engine.dispose()
        assert state_of(kept) == before

    def test_the_twin_does_the_same(self, kept: Backend) -> None:
        """Awaited, and many at once."""
        before = state_of(kept)

        async def ended(result: Any) -> Any:
            return await result if inspect.isawaitable(result) else result

        async def run() -> None:
            async with await tape.open_async(kept.url, read_only=True, **kept.options) as store:
                assert store.read_only
                chat = await store.get("chat")
                assert (await chat.messages())[-1].id == "tail"
                assert [hit.message_id for hit in await store.search("tail")] == ["tail"]
                for one in (chat, await store.get("helper")):
                    for name, write in TAPE_WRITES.items():
                        if name not in MEANINGLESS[one.id]:
                            with pytest.raises(tape.ReadOnly):
                                await ended(write(one))
                                pytest.fail(name)
                calls = [chat.append(role="user", content=str(n)) for n in range(20)]
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(one) for one in outcomes} == {tape.ReadOnly}

        asyncio.run(run())
        assert state_of(kept) == before

    def test_the_reading_commands_change_nothing(self, kept: Backend) -> None:
        """Those that only read leave every byte as it is."""
        before = state_of(kept)
        place = ["--store", kept.address, *(["--schema", kept.schema] if kept.schema else [])]
        for words in (
            ["ls"],
            ["info", "chat"],
            ["log", "chat"],
            ["log", "chat", "--graph"],
            ["show", "chat", "3"],
            ["cat", "chat"],
            ["context", "chat"],
            ["diff", "chat@3", "chat"],
            ["replay", "chat"],
            ["anchors", "chat"],
            ["tree", "chat"],
            ["stats"],
            ["search", "tail"],
            ["search", "nothing", "--tape", "chat", "--json"],
            ["export", "helper", "-"],
            ["retain", "--older-than", "1d"],
            ["migrate", "--check"],
        ):
            done = tape_command(*words, *place)
            assert done.code == 0, (words, done.err)
            assert state_of(kept) == before, words
        for words in (["verify"], ["doctor"]):
            assert tape_command(*words, *place).code == 0, words
        assert "never" not in next(
            line for line in tape_command("info", "chat", *place).lines if line.startswith("verified")
        )


def _shown(value: Any) -> str:
    return repr(value)


class TestOpening:
    """What cannot be read is told, and nothing is created for it."""

    @pytest.mark.parametrize("what", ["absent", "folder", "empty", "no database", "another database", "memory"])
    def test_what_is_no_store_is_told(self, tmp_path: Path, what: str) -> None:
        """A typed error, and the folder is as it was."""
        path = tmp_path / "a" / "x.db"
        path.parent.mkdir()
        if what == "folder":
            path.mkdir()
        elif what == "empty":
            path.touch()
        elif what == "no database":
            path.write_bytes(b"this is not a database, whatever its name may say" * 100)
        elif what == "another database":
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE notes (text TEXT)")
        found = [(one.name, one.stat().st_size) for one in path.parent.iterdir()]
        with pytest.raises(tape.NotAStore):
            tape.open(":memory:" if what == "memory" else path, read_only=True)
        assert [(one.name, one.stat().st_size) for one in path.parent.iterdir()] == found

    def test_the_folder_may_be_absent_too(self, tmp_path: Path) -> None:
        """No folder is made."""
        with pytest.raises(tape.NotAStore):
            tape.open(tmp_path / "none" / "x.db", read_only=True)
        assert list(tmp_path.iterdir()) == []

    def test_a_schema_without_a_store_is_told(self, make_backend: MakeBackend, tmp_path: Path) -> None:
        """PostgreSQL's schema is not created."""
        with make_backend("postgresql", tmp_path, blank=True) as backend:
            with pytest.raises(tape.NotAStore):
                backend.open(read_only=True)
            with psycopg.connect(dsn(backend.url)) as connection:
                query = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
                assert connection.execute(query, (backend.schema,)).fetchone() == (0,)

    def test_an_older_schema_is_refused_and_left(self, tmp_path: Path) -> None:
        """A store of an older release is not upgraded by an opener that only reads."""
        path = tmp_path / "old.db"
        tape.open(path).close()
        before = path.read_bytes()
        names = sorted(one.name for one in tmp_path.iterdir())
        with second_release(), pytest.raises(tape.SchemaTooOld) as caught:
            tape.open(path, read_only=True)
        assert (caught.value.found, caught.value.known) == (REVISION, SECOND)
        assert "tape migrate" in str(caught.value)
        assert path.read_bytes() == before
        assert sorted(one.name for one in tmp_path.iterdir()) == names

    def test_a_newer_schema_is_told(self, kept: Backend) -> None:
        """As when it is opened to be written."""
        with closing(kept.raw()) as connection:
            connection.execute("UPDATE tape_version SET version_num = '9999'")
        with pytest.raises(tape.SchemaTooNew):
            kept.open(read_only=True)

    def test_what_is_no_flag_is_refused(self, tmp_path: Path) -> None:
        """``read_only="no"`` must not mean yes."""
        value: Any = "no"
        with pytest.raises(tape.InvalidEntry):
            tape.open(tmp_path / "x.db", read_only=value)


AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
READER = """
import sys, tape
with tape.open(sys.argv[1], read_only=True) as store:
    chat = store.get("chat")
    for line in sys.stdin:
        hits = [hit.message_id for hit in store.search("tail")]
        print(len(chat.messages()), hits, store.verify().ok, len(chat.context(budget=4000).messages) > 0, flush=True)
"""


def can_be_another() -> bool:
    """Whether this process may run others as a user to whom file permissions apply."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    probe = [*AS_NOBODY, sys.executable, "-c", "import tape, sqlalchemy"]
    return subprocess.run(probe, capture_output=True, timeout=PATIENCE, check=False).returncode == 0


def as_another(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a user to whom file permissions apply."""
    whose = AS_NOBODY if os.geteuid() == 0 else []
    command = [*whose, sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that every user may enter, for a store that only its owner may write."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="tape-ro-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


class Asked:
    """A process that reads a store whenever it is asked."""

    def __init__(self, path: Path) -> None:
        # Root may write whatever the bits say; then somebody else reads.
        whose = AS_NOBODY if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [*whose, sys.executable, "-c", READER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().strip()
        if not said:
            _, err = self._process.communicate(timeout=PATIENCE)
            raise AssertionError(err)
        return said

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=PATIENCE)


@pytest.mark.skipif(os.geteuid() == 0 and not can_be_another(), reason="permission bits do not bind this process")
class TestFiles:
    """A file that can only be read, in a folder where nothing can be made."""

    def test_a_file_and_folder_of_another(self, locked: Path) -> None:
        """Mode 0444 in a folder of mode 0555: all can be read, and nothing appears."""
        path = locked / "store.db"
        with tape.open(path) as store:
            fill(store)
        (locked / "store.db-writer").unlink()
        path.chmod(0o444)
        locked.chmod(0o555)
        before = path.read_bytes()
        with closing(Asked(path)) as reader:
            assert reader.ask() == "31 ['tail'] True True"
            assert [one.name for one in locked.iterdir()] == ["store.db"]
        assert path.read_bytes() == before

    def test_a_live_writer_beside_it(self, locked: Path) -> None:
        """Every commit is seen by the next read: while the writer is there, when it has gone, when another came."""
        path = locked / "store.db"
        store = tape.open(path)
        fill(store)
        path.chmod(0o444)
        locked.chmod(0o555)
        chat = store.get("chat")
        with closing(Asked(path)) as reader:
            assert reader.ask() == "31 ['tail'] True True"
            for number in range(32, 35):
                chat.append(role="user", content="more")
                assert reader.ask() == f"{number} ['tail'] True True"
            store.close()
            assert reader.ask() == "34 ['tail'] True True"
            for number in range(35, 38):
                with tape.open(path) as again:
                    again.get("chat").append(role="user", content="more")
                assert reader.ask() == f"{number} ['tail'] True True"

    def test_a_writer_that_comes_after(self, locked: Path) -> None:
        """What was opened as a file that nobody changes sees the commits of whoever opens it later."""
        path = locked / "store.db"
        with tape.open(path) as store:
            fill(store)
        path.chmod(0o444)
        locked.chmod(0o555)
        with closing(Asked(path)) as reader:
            assert reader.ask() == "31 ['tail'] True True"
            for number in range(32, 36):
                with tape.open(path) as store:
                    store.get("chat").append(role="user", content="more")
                    if number % 2:
                        assert reader.ask() == f"{number} ['tail'] True True"
                assert reader.ask() == f"{number} ['tail'] True True"

    def test_a_log_without_its_shm_file_is_an_error(self, locked: Path) -> None:
        """Commits that are in a log alone are never left out silently: they are read, or it is an error."""
        path = locked / "store.db"
        with tape.open(path) as store:
            fill(store)
            folder = locked / "copy"
            folder.mkdir()
            for end in ("", "-wal"):
                shutil.copy(f"{path}{end}", f"{folder / 'store.db'}{end}")
        folder.chmod(0o555)
        told = r"UnreadableLog.*-wal' holds commits.*copy both files"
        with closing(Asked(folder / "store.db")) as reader, pytest.raises(AssertionError, match=told):
            reader.ask()
        done = as_another("-m", "tape.command", "--store", str(folder / "store.db"), "ls")
        assert (done.returncode, done.stdout) == (6, "")
        assert f"{str(folder / 'store.db-wal')!r} holds commits" in done.stderr
        assert done.stderr.endswith("copy both files to a folder that you can write to\n")
        folder.chmod(0o755)
        with tape.open(folder / "store.db", read_only=True) as store:
            assert len(store.get("chat").messages()) == 31

    def test_to_open_it_to_write_says_what_to_do(self, locked: Path) -> None:
        """The error names the option."""
        path = locked / "store.db"
        tape.open(path).close()
        path.chmod(0o444)
        locked.chmod(0o555)
        code = "import sys, tape; tape.open(sys.argv[1])"
        done = as_another("-c", code, str(path))
        assert "tape.errors.ReadOnly" in done.stderr
        assert "read_only=True" in done.stderr

    def test_the_command_reads_it(self, locked: Path) -> None:
        """Also what would note something by the way: search, verify and the doctor."""
        path = locked / "store.db"
        with tape.open(path) as store:
            fill(store)
        (locked / "store.db-writer").unlink()
        path.chmod(0o444)
        locked.chmod(0o555)
        for words in (["search", "tail"], ["verify"], ["doctor"]):
            done = as_another("-m", "tape.command", *words, "--store", str(path))
            assert done.returncode == 0, (words, done.stderr)
        assert [one.name for one in locked.iterdir()] == ["store.db"]


class TestBesideWriters:
    """Reads beside writers of every kind are true to one moment, and to a late one."""

    def test_writers_that_come_and_go(self, quick: Backend, tmp_path: Path) -> None:
        """Every read sees at least what was acknowledged before it, and a tape that verifies."""
        path = tmp_path / "x.db"
        with tape.open(path, durability="normal") as store:
            store.create("chat").append(role="user", content="0")
        done, failures, over = [1], [], threading.Event()

        def write() -> None:
            try:
                for number in range(1, 60):
                    with tape.open(path, durability="normal") as store:
                        chat = store.get("chat")
                        chat.append(role="user", content=str(number))
                        chat.append(role="user", content="x" * 5_000)
                    done.append(2 * number + 1)
            except BaseException as error:
                failures.append(error)
            finally:
                over.set()

        writer = threading.Thread(target=write)
        with tape.open(path, read_only=True) as store:
            chat = store.get("chat")
            writer.start()
            rounds = 0
            while not over.is_set() or rounds < 3:
                least = done[-1]
                found = chat.messages()
                assert len(found) >= least
                assert [one.content for one in found if one.content[0] != "x"] == [
                    str(number) for number in range((len(found) + 2) // 2)
                ]
                assert store.verify().ok
                rounds += 1
            writer.join(PATIENCE)
            assert failures == []
            assert len(chat.messages()) == 119

    def test_a_writer_in_another_process(self, kept: Backend, crew: Crew) -> None:
        """Followers are woken, or look by themselves, and see what another process commits."""
        with tape.open(kept.url, read_only=True, **kept.options) as store:
            seen = max(entry.position or 0 for entry in store.feed())
            worker = crew.start(kept, programs.append, name="chat", label="w", count=5)
            worker.tell("go")
            found = []
            for entry in store.follow(seen, timeout=PATIENCE):
                found.append(entry)
                if len(found) == 5:
                    break
            worker.finish()
            assert [entry.kind for entry in found] == ["append"] * 5
            assert len(store.get("chat").messages()) == 36

    def test_a_damaged_index_is_done_without(self, kept: Backend) -> None:
        """Nothing is mended, and everything is found by reading it."""
        with closing(kept.raw()) as connection:
            connection.execute("DROP TABLE tape_texts")
        before = state_of(kept)
        with tape.open(kept.url, read_only=True, **kept.options) as store:
            assert [hit.message_id for hit in store.search("tail")] == ["tail"]
            assert len(store.search("number", limit=50)) == 30
        assert state_of(kept) == before


class TestServer:
    """PostgreSQL: a role that may only read, sessions that only read, and a standby."""

    @pytest.fixture
    def server(self, make_backend: MakeBackend, tmp_path: Path) -> Iterator[Backend]:
        with make_backend("postgresql", tmp_path, blank=True) as backend:
            with tape.open(backend.url, **backend.options) as store:
                fill(store)
            yield backend

    def test_a_role_with_select_only(self, server: Backend) -> None:
        """It reads everything; opened to be written, each write is an error of the store's."""
        role = f"reader_{server.schema}"
        before = contents(server)
        with closing(server.raw()) as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
            try:
                admin.execute(f'GRANT USAGE ON SCHEMA "{server.schema}" TO {role}')
                admin.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{server.schema}" TO {role}')
                url = server.url.set(username=role, password="x")
                with tape.open(url, read_only=True, schema=server.schema) as store:
                    for read in STORE_READS.values():
                        read(store)
                    for read in TAPE_READS.values():
                        read(store.get("chat"))
                    with pytest.raises(tape.ReadOnly):
                        store.get("chat").append(role="user", content="x")
                with tape.open(url, schema=server.schema) as store:
                    assert [hit.message_id for hit in store.search("tail")] == ["tail"]
                    with pytest.raises(tape.StoreFailed):
                        store.get("chat").append(role="user", content="x")
            finally:
                admin.execute(f"DROP OWNED BY {role}")
                admin.execute(f"DROP ROLE {role}")
        assert contents(server) == before

    def test_the_server_refuses_as_well(self, server: Backend) -> None:
        """Even a statement that goes around the store is refused on its connections."""
        with tape.open(server.url, read_only=True, schema=server.schema) as store:
            with store._db.engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as caught:
                connection.execute(sa.text(f'DELETE FROM "{server.schema}".tape_checks'))
            assert getattr(caught.value.orig, "sqlstate", None) == "25006"

    def test_a_standby(self) -> None:
        """Read only it can be read; opened to be written it can be read as well, and a write is ReadOnly."""
        server = new_server("delete")
        url = sa.make_url(str(server.get_uri())).set(drivername="postgresql+psycopg")
        with tape.open(url) as store:
            fill(store)
        server.stop()
        signal = Path(str(server.pgdata)) / "standby.signal"
        signal.touch()
        owner = signal.parent.stat()
        os.chown(signal, owner.st_uid, owner.st_gid)
        server.start()
        try:
            with psycopg.connect(dsn(url)) as connection:
                assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            with tape.open(url, read_only=True) as store:
                for read in STORE_READS.values():
                    read(store)
                for read in TAPE_READS.values():
                    read(store.get("chat"))
                with pytest.raises(tape.ReadOnly):
                    store.get("chat").append(role="user", content="x")
            with tape.open(url) as store:
                chat = store.get("chat")
                assert [hit.message_id for hit in store.search("tail")] == ["tail"]
                for name, write in TAPE_WRITES.items():
                    if name not in {"compact", "load_block", *MEANINGLESS["chat"]}:
                        with pytest.raises(tape.ReadOnly):
                            write(chat)
                            pytest.fail(name)
        finally:
            server.stop()
