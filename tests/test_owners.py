"""S4: a store of one owner treats another owner's tapes as tapes that are not there, through every call there is."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.backends import Backend, MakeBackend, dsn

import tape
from tape.db import rls
from tape.db.record import writing
from tape.db.schema.tables import Tables

# Who may see a tape is decided above the engine.
pytestmark = pytest.mark.alike

HIDDEN, UNWRITTEN = "bobs-tape", "no-such-tape"
WORD = "pelican"
"""What only Bob's tapes say."""
AGO = datetime(2020, 1, 1, tzinfo=UTC)
LATER = datetime(3000, 1, 1, tzinfo=UTC)
Call = Callable[..., Any]


def public(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_")}


READS: dict[str, Call] = {
    "anchors": lambda t: t.anchors(),
    "blocks": lambda t: t.blocks(),
    "bodies": lambda t: (t.bodies(), t.bodies(limit=2)),
    "loaded": lambda t: t.loaded(),
    "children": lambda t: t.children("m1"),
    "context": lambda t: (t.context().messages, t.context().prompt, t.context().anchor),
    "entries": lambda t: (list(t.entries()), list(t.entries(name="start", inherited=True, reverse=True))),
    "entry": lambda t: t.entry(seq=2),
    "find": lambda t: t.find("m1"),
    "find_entry": lambda t: t.find_entry(key="~m:m1", inherited=True),
    "heads": lambda t: t.heads(),
    "id": lambda t: t.id,
    "info": lambda t: t.info(),
    "message": lambda t: t.message("m1"),
    "messages": lambda t: (t.messages(), t.messages(limit=2)),
    "needs_compaction": lambda t: t.needs_compaction(110),
    "search": lambda t: t.search(WORD),
    "state": lambda t: t.state("todo"),
    "state_entry": lambda t: t.state_entry("todo"),
    "states": lambda t: (t.states(), t.states(prefix="to")),
    "summaries": lambda t: t.summaries(),
    "summary": lambda t: t.summary(),
    "usage": lambda t: t.usage(),
    "explain": lambda t: t.explain().regions,
    "pointer": lambda t: t.pointer(),
    "title": lambda t: t.title(),
}
"""How to call everything that reads a tape or a snapshot."""

TAPE_READS: dict[str, Call] = {
    **READS,
    "decision": lambda t: t.decision("ask"),
    "at": lambda t: [call(t.at(6)) for call in READS.values()],
    "diff": lambda t: t.diff(2, 3),
    "lineage": lambda t: t.lineage(),
    "linked": lambda t: t.linked("bobs-fork").messages(),
    "recall": lambda t: t.recall(7),
    "tools": lambda t: [
        t.tools().call(name, arguments)
        for name, arguments in (
            ("tape_info", {}),
            ("tape_search", {"query": WORD}),
            ("tape_context", {"seq": 3}),
            ("tape_anchors", {}),
        )
    ],
    "verify": lambda t: t.verify(),
}

TAPE_WRITES: dict[str, Call] = {
    "abandon": lambda t: t.abandon(),
    "anchor": lambda t: t.anchor("x"),
    "append": lambda t: t.append(role="user", content="x"),
    "append_block": lambda t: t.append_block("memory", "x"),
    "clear": lambda t: t.clear(),
    "compact": lambda t: t._record_start(writing.Call(t.id), 1.0),
    "complete": lambda t: t.complete(),
    "discard": lambda t: t.discard(),
    "end": lambda t: t.end("over"),
    "event": lambda t: t.event("x"),
    "extend": lambda t: t.extend([{"role": "user", "content": "x"}]),
    "fork": lambda t: t.fork("stolen"),
    "lease": lambda t: t.lease("run", 1),
    "request": lambda t: t.request("approve"),
    "resolve": lambda t: t.resolve("ask", "yes"),
    "withdraw": lambda t: t.withdraw("ask"),
    "freeze_prompt": lambda t: t.freeze_prompt(),
    "handoff": lambda t: t.handoff("x", summary="x"),
    "hide": lambda t: t.hide(),
    "label": lambda t: t.label("x"),
    "load_block": lambda t: t.load_block("skills", "pdf"),
    "merge": lambda t: t.merge("bobs-fork"),
    "patch": lambda t: t.patch("todo", {"a": 1}),
    "put": lambda t: t.put("todo", 1),
    "record_usage": lambda t: t.record_usage(input_tokens=1),
    "recorded_context": lambda t: t.recorded_context(),
    "refresh_prompt": lambda t: t.refresh_prompt(),
    "remove_block": lambda t: t.remove_block("memory"),
    "rename": lambda t: t.rename("x"),
    "reopen": lambda t: t.reopen(),
    "replace_history": lambda t: t.replace_history([{"role": "user", "content": "x"}]),
    "restore": lambda t: t.restore("m1"),
    "retract": lambda t: t.retract("m1"),
    "revise": lambda t: t.revise("m1", content="x"),
    "set_block": lambda t: t.set_block("memory", "x"),
    "set_summary": lambda t: t.set_summary("x", first="m1", last="m1"),
    "switch": lambda t: t.switch("m1"),
    "unhide": lambda t: t.unhide(),
    "unload_block": lambda t: t.unload_block("skills", "pdf"),
    "upsert": lambda t: t.upsert({"id": "m1", "role": "user", "content": "x"}),
}
"""How to call everything that writes to a tape."""


class Skills:
    """A document that only those see who load it."""

    def list(self) -> list[tuple[str, str]]:
        return [("pdf", "how to read it")]

    def load(self, key: str) -> str:
        return WORD


class Seen:
    """A store with two tapes of Ann's and two of Bob's, as Ann's store sees it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.root = backend.open(blocks=[tape.BlockSpec("skills", provider=Skills())])
        self.ann = self.root.scoped("ann")
        bob = self.root.scoped("bob")
        chat = bob.create(HIDDEN, name=WORD, agent="planner", labels=["secret"])
        chat.anchor("start", state=WORD)
        chat.append(role="user", content=WORD, id="m1")
        chat.set_block("memory", WORD)
        chat.put("todo", WORD)
        chat.set_summary(WORD, first="m1", last="m1")
        assert chat.recorded_context()[1].seq == 7
        chat.record_usage(input_tokens=7, cost=7)
        fork = chat.fork("bobs-fork")
        fork.append(role="assistant", content=WORD)
        chat.merge(fork, strategy="link")
        chat.load_block("skills", "pdf")
        chat.request("approve", WORD, key="ask")
        self.ann.create("mine", messages=[{"role": "user", "content": "heron"}]).fork("my-fork")
        self.numbers = [
            row[0] for row in self.query("SELECT id FROM tape_tapes WHERE tape IN ('bobs-tape', 'bobs-fork')")
        ]
        assert len(self.numbers) == 2
        self.root.search(WORD)
        self.before = self.bobs()

    def query(self, sql: str) -> list[Any]:
        connection = self.backend.raw()
        try:
            return [tuple(row) for row in connection.execute(sql).fetchall()]
        finally:
            connection.close()

    def bobs(self) -> dict[str, list[str]]:
        """Return every row of Bob's tapes, and the ids that there are."""
        connection = self.backend.raw()
        try:
            inside = f"IN ({self.numbers[0]}, {self.numbers[1]})"
            found = {
                table.name: sorted(
                    repr(tuple(row))
                    for row in connection.execute(f"SELECT * FROM {table.name} WHERE tape_id {inside}").fetchall()
                )
                for table in Tables("sqlite").metadata.sorted_tables
                if "tape_id" in table.c
            }
            found["tape_tapes"] = sorted(repr(tuple(row)) for row in connection.execute("SELECT * FROM tape_tapes"))
            return found
        finally:
            connection.close()

    def unchanged(self) -> None:
        assert self.bobs() == self.before


@pytest.fixture(scope="module")
def seen(standing: Backend) -> Seen:
    return Seen(standing)


def outcome(call: Call, *arguments: Any) -> str:
    """Return what a call gives or raises, as text that names no tape's id."""
    try:
        told = repr(call(*arguments))
    except tape.TapeError as error:
        told = f"{type(error).__name__}: {error}"
    return told.replace(HIDDEN, "ID").replace(UNWRITTEN, "ID")


class TestTapes:
    def test_s4_the_tables_name_every_public_method(self) -> None:
        """A method that is added to a tape, a fork or a snapshot has to be added here, with how it is called."""
        assert public(tape.Snapshot) == set(READS)
        assert public(tape.Tape) == public(tape.Fork) == set(TAPE_READS) | set(TAPE_WRITES)
        assert set(TAPE_READS) & set(TAPE_WRITES) == set()

    @pytest.mark.parametrize("name", TAPE_READS)
    def test_s4_reads_are_those_of_an_unwritten_tape(self, seen: Seen, name: str) -> None:
        """Each read of another owner's tape gives, or raises, exactly what it does for an id never written."""
        told = outcome(TAPE_READS[name], seen.ann.tape(HIDDEN))
        assert told == outcome(TAPE_READS[name], seen.ann.tape(UNWRITTEN))
        assert WORD not in told.replace(f"query={WORD}", "")
        seen.unchanged()

    def test_s4_the_same_reads_do_tell_the_owner(self, backend: Backend) -> None:
        """What the reads are compared with is not always nothing: all but the id tell Bob something else."""
        # A store of its own: Bob's verify leaves a note, which the other tests would see as a change.
        bob = Seen(backend).root.scoped("bob")
        same = [
            name
            for name, call in TAPE_READS.items()
            if outcome(call, bob.tape(HIDDEN)) == outcome(call, bob.tape(UNWRITTEN))
        ]
        assert same == ["id"]

    @pytest.mark.parametrize("name", READS)
    def test_s4_snapshots_are_those_of_an_unwritten_tape(self, seen: Seen, name: str) -> None:
        """A snapshot of another owner's tape, however it was come by, is one of an id never written."""
        told = outcome(READS[name], tape.Snapshot(seen.ann._services, HIDDEN, 6))
        assert told == outcome(READS[name], tape.Snapshot(seen.ann._services, UNWRITTEN, 6))
        assert WORD not in told

    @pytest.mark.parametrize("name", TAPE_WRITES)
    def test_s4_writes_are_refused(self, seen: Seen, name: str) -> None:
        """Each write to another owner's tape is TapeNotFound, and writes nothing anywhere."""
        with pytest.raises(tape.TapeNotFound) as caught:
            TAPE_WRITES[name](seen.ann.tape(HIDDEN))
        assert str(caught.value) in (str(tape.TapeNotFound(HIDDEN)), str(tape.TapeNotFound("bobs-fork")))
        seen.unchanged()

    def test_s4_a_compaction_is_refused(self, seen: Seen) -> None:
        """With nothing to be seen there is nothing to compact, and the summarizer is not asked."""
        asked: list[Any] = []
        assert seen.ann.tape(HIDDEN).compact(lambda request: asked.append(request) or "x", budget=0) is None  # type: ignore[func-returns-value]
        assert asked == []
        seen.unchanged()

    def test_s4_own_tapes_do_not_reach_over(self, seen: Seen) -> None:
        """From a tape of one's own another owner's can be neither merged, linked nor forked onto."""
        mine = seen.ann.get("mine")
        for call in (
            lambda: mine.merge("bobs-fork"),
            lambda: mine.merge(HIDDEN),
            lambda: mine.merge(seen.root.get("bobs-fork")),
            lambda: mine.fork(HIDDEN),
            lambda: mine.fork("bobs-fork"),
        ):
            with pytest.raises(tape.TapeNotFound):
                call()
        assert outcome(mine.linked, HIDDEN) == outcome(mine.linked, UNWRITTEN)
        assert (mine.info().head, [one.id for one in seen.ann.list()]) == (3, ["my-fork", "mine"])
        seen.unchanged()


def _export(store: tape.Store, id: str) -> Any:
    file = io.BytesIO()
    try:
        return store.export(id, file)
    finally:
        assert file.getvalue() == b""


def _import(store: tape.Store, id: str) -> Any:
    """Import onto an id a tape of one's own that was made elsewhere."""
    with tape.open(":memory:", owner="ann") as other:
        other.create(id, messages=[{"role": "user", "content": "x"}])
        file = io.BytesIO()
        other.export(id, file)
    return store.import_(io.BytesIO(file.getvalue()))


def _bind(store: tape.Store, id: str) -> Any:
    engine = sa.create_engine(store._db.engine.url)
    try:
        with engine.connect() as connection:
            bound = store.bind(connection)
            assert (bound.owner, bound.tape(id).messages(), bound.search(WORD)) == ("ann", [], [])
            return bound.get(id)
    finally:
        engine.dispose()


REFUSED: dict[str, Call] = {
    "bind": _bind,
    "create": lambda s, id: s.create(id, reuse=True),
    "export": _export,
    "get": lambda s, id: s.get(id),
    "health": lambda s, id: s.health(id),
    "import_": _import,
    "purge": lambda s, id: s.purge(id, forks=True),
    "rebuild": lambda s, id: s.rebuild(id),
    "split": lambda s, id: s.split(id, summary="x"),
    "transaction": lambda s, id: s.transaction(lambda inner: inner.get(id)),
    "verify": lambda s, id: s.verify(id),
    "diff": lambda s, id: s.diff("mine", id),
}
"""Calls that name a tape: TapeNotFound."""

ACROSS: dict[str, Call] = {
    "consumer": lambda s: {entry.tape for entry in s.consumer("all")},
    "feed": lambda s: {entry.tape for entry in s.feed()},
    "follow": lambda s: {entry.tape for entry in s.follow(timeout=0.05)},
    "list": lambda s: {info.id for info in s.list()},
    "tapes": lambda s: {info.id for info in s.tapes()},
    "doctor": lambda s: (
        {"mine", "my-fork"}
        if any(found.check == "chain" and found.what.endswith("on 2 tapes verified") for found in s.doctor())
        else s.doctor()
    ),
    "retain": lambda s: set(s.retain(older_than=LATER).tapes),
    "stats": lambda s: {"mine", "my-fork"} if s.stats().tapes == 2 else s.stats(),
    "search": lambda s: {hit.tape for word in (WORD, "heron") for hit in s.search(word)} | {"my-fork"},
    "messages_by_id": lambda s: {one.tape for one in s.messages_by_id("m1")} | {"mine", "my-fork"},
    "requests": lambda s: {request.tape for request in s.requests()} | {"mine", "my-fork"},
    "usage": lambda s: {row.key for row in s.usage(by="tape")} | {"mine", "my-fork"},
    "tools": lambda s: (
        {"mine", "my-fork"}
        if "mine" in s.tools().call("search_tapes", {"query": "heron"})
        and s.tools().call("search_tapes", {"query": WORD}) == "Nothing found."
        else "leaks"
    ),
}
"""Calls that look at all tapes: only those of the owner."""

ELSEWHERE = {"backup", "close", "owner", "read_only", "replica", "scoped", "tape"}
"""Calls with a test of their own below, or that give a handle, which the tests of tapes are about."""


TRACED: dict[str, Call] = {
    **{name: call for name, call in ACROSS.items() if name != "tools"},
    "export": lambda s: s.export("mine", io.BytesIO()),
    "rebuild": lambda s: s.rebuild(),
    "verify": lambda s: s.verify(),
}
"""Calls that leave a trace in the log when a store without an owner makes them."""


class TestAudit:
    """Ruling 34: what looks across owners leaves a trace."""

    @pytest.mark.parametrize("name", TRACED)
    def test_s4_calls_across_owners_are_logged(
        self, backend: Backend, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        """A call across all owners logs tape.administrative with its name; the same call for one owner does not."""
        root = backend.open()
        root.create("mine", owner="ann", messages=[{"role": "user", "content": "heron"}])
        with caplog.at_level(logging.INFO, "tape"):
            TRACED[name](root.scoped("ann"))
            assert not [one for one in caplog.messages if "tape.administrative" in one]
            TRACED[name](root)
        assert [one for one in caplog.messages if "tape.administrative" in one and f"call='{name}'" in one]

    def test_s4_a_call_about_one_tape_or_owner_is_not_across_owners(
        self, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A search on one tape or of one owner, and the check of one tape, leave no trace."""
        root = backend.open()
        root.create("mine", owner="ann", messages=[{"role": "user", "content": "heron"}])
        with caplog.at_level(logging.INFO, "tape"):
            assert root.search("heron", tape="mine") == root.search("heron", owner="ann")
            root.verify("mine")
            root.rebuild("mine")
        assert not [one for one in caplog.messages if "tape.administrative" in one]

    def test_s4_the_async_twin_logs_too(self, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
        """Following the feed of all owners is logged by the async store as well."""

        async def go() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                assert [entry async for entry in store.follow(timeout=0.0)] == []
                assert [entry async for entry in store.scoped("ann").follow(timeout=0.0)] == []

        with caplog.at_level(logging.INFO, "tape"):
            asyncio.run(go())
        assert len([one for one in caplog.messages if "call='follow'" in one]) == 1


class TestStores:
    def test_s4_the_tables_name_every_public_method(self) -> None:
        """A method that is added to the store has to be added here, with how it is called."""
        assert public(tape.Store) == set(REFUSED) | set(ACROSS) | ELSEWHERE

    @pytest.mark.parametrize("name", REFUSED)
    def test_s4_calls_that_name_a_tape(self, seen: Seen, tmp_path: Path, name: str) -> None:
        """Another owner's tape is TapeNotFound in every call that names one, and nothing is written."""
        for hidden in (HIDDEN, "bobs-fork"):
            with pytest.raises(tape.TapeNotFound) as caught:
                REFUSED[name](seen.ann, hidden)
            assert str(caught.value) == str(tape.TapeNotFound(hidden))
        seen.unchanged()

    @pytest.mark.parametrize("name", ACROSS)
    def test_s4_calls_without_a_tape_id(self, seen: Seen, name: str) -> None:
        """Calls that take no tape id return only the owner's tapes."""
        assert ACROSS[name](seen.ann) == {"mine", "my-fork"}
        seen.unchanged()

    def test_s4_no_filter_opens_a_listing_or_a_search(self, seen: Seen) -> None:
        """Neither another owner's name nor anything known of the tape finds it; a store without owner finds all."""
        filters: list[dict[str, Any]] = [
            {"owner": "bob"},
            {"agent": "planner"},
            {"label": "secret"},
            {"parent": HIDDEN},
        ]
        assert [len(seen.ann.list(**one)) for one in filters] == [0, 0, 0, 0]
        assert [len(seen.root.list(**one)) for one in filters] == [2, 2, 1, 1]
        searches: list[dict[str, Any]] = [
            {"owner": "bob"},
            {"tape": HIDDEN},
            {"tape": "bobs-fork"},
            {"since": AGO},
        ]
        assert [len(seen.ann.search(WORD, **one)) for one in searches] == [0, 0, 0, 0]
        assert [len(seen.root.search(WORD, **one)) for one in searches] == [2, 1, 2, 2]

    def test_s4_verify_and_rebuild_without_a_name(self, seen: Seen) -> None:
        """A verify or rebuild of all is one of the owner's tapes: it counts these and does not touch the others."""
        report = seen.ann.verify()
        assert (report.problems, report.tapes) == ([], 2)
        assert seen.ann.rebuild() == 2
        seen.unchanged()

    def test_s4_what_stands_for_all_owners_is_refused(self, seen: Seen, tmp_path: Path) -> None:
        """A scoped store makes no backup, is not scoped to another owner, and creates no tape of another's."""
        for call in (
            lambda: seen.ann.backup(tmp_path / "copy.db"),
            lambda: seen.ann.scoped("bob"),
            lambda: seen.ann.create("x", owner="bob"),
        ):
            with pytest.raises(tape.InvalidEntry):
                call()
        assert (list(tmp_path.iterdir()), seen.ann.owner, seen.ann.scoped("ann").owner) == ([], "ann", "ann")
        seen.unchanged()

    def test_s4_closing_a_scoped_store_leaves_the_others_open(self, seen: Seen) -> None:
        """The connections are those of the store that it was made from."""
        seen.root.scoped("carol").close()
        assert seen.root.get(HIDDEN).info().owner == "bob"

    def test_s4_an_import_does_not_bring_another_owner_s_tape(self, seen: Seen) -> None:
        """A file with another owner's tape is refused with the line, also where the tape itself would be new."""
        with tape.open(":memory:", owner="bob") as other:
            other.create("new", messages=[{"role": "user", "content": "x"}])
            file = io.BytesIO()
            other.export("new", file)
        with pytest.raises(tape.ImportFailed):
            seen.ann.import_(io.BytesIO(file.getvalue()))
        seen.unchanged()

    def test_s4_consumers_of_two_owners_are_apart(self, seen: Seen) -> None:
        """The position that one owner's reader commits is not that of another's of the same name."""
        (*_, last) = seen.ann.feed()
        seen.ann.consumer("mail").commit(last.position or 0)
        assert (seen.root.scoped("bob").consumer("mail").position, seen.root.consumer("mail").position) == (0, 0)
        seen.ann.consumer("mail").commit(0)

    def test_s4_a_purged_tape_of_another_owner_is_absent_too(self, backend: Backend) -> None:
        """Its id is not free, ``reuse`` or not; its tombstone is not in the feed; who owned it can use the id again."""
        root = backend.open()
        ann, bob = root.scoped("ann"), root.scoped("bob")
        bob.create("x")
        bob.purge("x")
        for call in (lambda: ann.create("x"), lambda: ann.create("x", reuse=True), lambda: _import(ann, "x")):
            with pytest.raises(tape.TapeNotFound):
                call()
        assert (list(ann.feed()), ann.tape("x").messages(), len(list(bob.feed()))) == ([], [], 1)
        assert bob.create("x", reuse=True).info().head == 1

    def test_s4_two_owners_race_for_an_id(self, backend: Backend) -> None:
        """Who comes second is told that there is no such tape, also when it knew the id to be free a moment ago."""
        ann, bob = backend.open(owner="ann"), backend.open(owner="bob")
        mine = ann.tape("x")
        assert mine.messages() == []
        bob.tape("x").append(role="user", content=WORD)
        with pytest.raises(tape.TapeNotFound):
            mine.append(role="user", content="y")
        bob.purge("x")
        bob.create("x", reuse=True)
        with pytest.raises(tape.TapeNotFound):
            mine.append(role="user", content="y")
        assert bob.get("x").info().head == 1


class TestRowLevelSecurity:
    @pytest.fixture
    def role(self, make_backend: MakeBackend, tmp_path: Path) -> Iterator[tuple[Backend, str]]:
        """A PostgreSQL store on which a role of its own is bound to the owner of its session."""
        with make_backend("postgresql", tmp_path) as made:
            name = f"app_{made.schema}"
            made.open()
            engine = made.engine()
            with engine.begin() as connection:
                connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
                rls.enable(connection, role=name, schema=made.schema)
                rls.enable(connection, role=name, schema=made.schema)
            yield made, name
            with engine.begin() as connection:
                rls.disable(connection, schema=made.schema)
                connection.exec_driver_sql(f"DROP OWNED BY {name}")
                connection.exec_driver_sql(f"DROP ROLE {name}")
            engine.dispose()

    def test_s4_the_database_itself_keeps_owners_apart(self, role: tuple[Backend, str]) -> None:
        """A role bound by the policies sees and changes its session's owner's rows only, with or without the store."""
        made, name = role
        root = made.open()

        def url(owner: str) -> sa.URL:
            return made.url.set(username=name).update_query_dict({"options": f"-ctape.owner={owner}"})

        with (
            tape.open(url("ann"), schema=made.schema, owner="ann") as ann,
            tape.open(url("bob"), schema=made.schema, owner="bob") as bob,
        ):
            bob.create(HIDDEN, messages=[{"role": "user", "content": WORD}]).fork("bobs-fork")
            mine = ann.create("mine", messages=[{"role": "user", "content": "heron"}])
            mine.append(role="user", content="heron")
            for call in (
                lambda: ann.create(HIDDEN),
                lambda: ann.tape(HIDDEN).append(role="user", content="x"),
                lambda: mine.fork(HIDDEN),
                lambda: ann.purge(HIDDEN),
            ):
                with pytest.raises(tape.TapeNotFound):
                    call()
            assert (len(ann.search("heron")), len(ann.search(WORD)), len(bob.search(WORD))) == (2, 0, 1)
            assert len(root.search(WORD)) == 1
            assert (len(ann.search("heron")), len(ann.search(WORD)), len(bob.search(WORD))) == (2, 0, 1)
            assert ({entry.tape for entry in ann.feed()}, len(ann.list())) == ({"mine"}, 1)
            [theirs] = bob.tape(HIDDEN).messages()
            assert (len(bob.messages_by_id(theirs.id)), ann.messages_by_id(theirs.id)) == (1, [])
            mine.event("step")
            assert (len(list(mine.entries(name="step"))), list(bob.tape("mine").entries(name="step"))) == (1, [])
            ann.consumer("mail").commit(1)
            assert (ann.consumer("mail").position, bob.consumer("mail").position) == (1, 0)
            assert ann.verify().problems == []
            bob.purge("bobs-fork")
            assert [one.id for one in root.list()] == ["mine", HIDDEN]
            bob.tape(HIDDEN).hide()
            assert [[one.id for one in store.list(hidden=True)] for store in (ann, bob)] == [[], [HIDDEN]]
            for call in (ann.tape(HIDDEN).unhide, ann.tape(HIDDEN).hide):
                with pytest.raises(tape.TapeNotFound):
                    call()
            assert bob.search(WORD) == []
            assert bob.tape(HIDDEN).unhide(expected_view=2).seq == 5
        # A store that was opened without owner, or plain SQL, gets no further.
        with tape.open(url("ann"), schema=made.schema) as open_to_all:
            assert [one.id for one in open_to_all.list()] == ["mine"]
            assert open_to_all.tape(HIDDEN).messages() == open_to_all.messages_by_id(theirs.id) == []
        with psycopg.connect(dsn(url("ann")), autocommit=True) as plain:
            plain.execute(f'SET search_path TO "{made.schema}"')
            tables = [table.name for table in Tables("postgresql").metadata.sorted_tables if "tape_id" in table.c]
            [(foreign,)] = made_query(made, f"SELECT id FROM tape_tapes WHERE tape = '{HIDDEN}'")
            counts = [
                plain.execute(f"SELECT count(*) FROM {table} WHERE tape_id = {foreign}").fetchall() for table in tables
            ]
            assert counts == [[(0,)]] * len(tables)
            assert plain.execute("UPDATE tape_tapes SET name = 'x' WHERE owner = 'bob'").rowcount == 0
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                plain.execute("UPDATE tape_tapes SET owner = 'bob'")

    def test_s4_an_empty_owner_is_no_owner(self, role: tuple[Backend, str]) -> None:
        """A session with an empty owner sees how far the search index has come, and changes neither that nor a tape."""
        made, name = role
        root = made.open()
        root.create("chat", messages=[{"role": "user", "content": WORD}])
        assert len(root.search(WORD)) == 1
        before = made_query(made, "SELECT * FROM tape_consumers")
        assert len(before) == 1
        empty = made.url.set(username=name).update_query_dict({"options": "-ctape.owner="})
        with psycopg.connect(dsn(empty), autocommit=True) as plain:
            plain.execute(f'SET search_path TO "{made.schema}"')
            assert len(plain.execute("SELECT * FROM tape_consumers").fetchall()) == 1
            for change in ("UPDATE tape_consumers SET position = 0", "DELETE FROM tape_consumers"):
                assert plain.execute(change).rowcount == 0
            for insert in (
                "INSERT INTO tape_consumers (owner, name, xid, position, version) VALUES ('', 'x', 0, 0, 0)",
                "INSERT INTO tape_tapes (tape, owner, status, created_at) VALUES ('x', '', 'active', 0)",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    plain.execute(insert)
            assert plain.execute("SELECT * FROM tape_tapes").fetchall() == []
        assert made_query(made, "SELECT * FROM tape_consumers") == before


def made_query(backend: Backend, sql: str) -> list[Any]:
    connection = backend.raw()
    try:
        return [tuple(row) for row in connection.execute(sql).fetchall()]
    finally:
        connection.close()
