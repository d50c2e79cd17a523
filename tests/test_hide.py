"""Hiding: a tape that others inherit from is taken out of sight, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.exports import exported
from support.filling import filled
from support.messages import say
from support.sizes import heavy, size
from test_conditions import PATIENCE, crowd
from test_owners import READS, TAPE_READS, TAPE_WRITES

import tape
from tape.core.entries import payloads

pytestmark = pytest.mark.alike

WORD = "pelican"
LATER = datetime(3000, 1, 1, tzinfo=UTC)
HIDDEN, UNWRITTEN = "hidden", "no-such-tape"


def fill(store: tape.Store) -> tape.Tape:
    """Return a tape with something of everything: itself a fork, with forks of its own, one of them merged."""
    root = store.create("root", messages=[{"id": "r1", "role": "user", "content": "heron"}])
    chat = root.fork(HIDDEN, name="Birds")
    chat.append(id="m1", role="user", content=WORD)
    chat.set_block("memory", WORD)
    chat.put("todo", WORD)
    chat.anchor("start", state=WORD)
    chat.label("secret")
    chat.recorded_context()
    chat.append(id="m2", role="assistant", content=f"{WORD} again")
    chat.fork("child").append(id="c1", role="assistant", content="egret")
    merged = chat.fork("bobs-fork")
    merged.append(id="c2", role="assistant", content="stork")
    chat.merge(merged, strategy="link")
    return chat


def told(call: Any, *arguments: Any) -> str:
    """Return what a call gives or raises, as text that names no tape's id."""
    try:
        found = repr(call(*arguments))
    except tape.TapeError as error:
        found = f"{type(error).__name__}: {error}"
    return found.replace(UNWRITTEN, "ID").replace(HIDDEN, "ID")


class TestReads:
    """A hidden tape reads as one that is not there."""

    @pytest.mark.parametrize("name", [name for name in TAPE_READS if name != "verify"])
    def test_each_read_is_that_of_an_unwritten_tape(self, backend: Backend, name: str) -> None:
        """Through a handle made before or after, each read gives, or raises, what it does for an id never written."""
        store = filled(backend, fill)
        chat = store.get(HIDDEN)
        shown = told(TAPE_READS[name], chat)
        chat.hide("tidied")
        expected = told(TAPE_READS[name], store.tape(UNWRITTEN))
        assert told(TAPE_READS[name], chat) == told(TAPE_READS[name], store.tape(HIDDEN)) == expected
        assert WORD not in expected.replace(f"query={WORD}", "")
        chat.unhide()
        if name not in ("info", "entries", "tools", "pointer"):
            # These also tell of the two entries by which it was hidden and shown.
            assert told(TAPE_READS[name], chat) == shown

    def test_its_health_is_told_as_by_get(self, store: tape.Store) -> None:
        """As hidden, and not as if there had never been such a tape."""
        chat = fill(store)
        assert store.health(chat.id).ok
        chat.hide("tidied")
        with pytest.raises(tape.TapeHidden):
            store.health(chat.id)
        with pytest.raises(tape.TapeNotFound):
            store.health(UNWRITTEN)

    def test_snapshots_taken_before_read_nothing_more(self, store: tape.Store) -> None:
        """A frozen point is a view of the tape, and goes out of sight with it."""
        chat = fill(store)
        past = chat.at(4)
        assert past.find("m1") is not None
        chat.hide()
        for name, read in READS.items():
            if name != "id":
                assert WORD not in told(read, past).replace(f"query={WORD}", "")

    def test_the_calls_of_the_store(self, store: tape.Store) -> None:
        """``get`` and what names the tape is TapeHidden, a TapeNotFound; lists, searches and counts leave it out."""
        chat = fill(store)
        assert {hit.tape for hit in store.search(WORD)} == {HIDDEN}
        receipt = chat.hide("tidied")
        calls: dict[str, Callable[[], Any]] = {
            "get": lambda: store.get(HIDDEN),
            "export": lambda: store.export(HIDDEN, io.BytesIO()),
            "split": lambda: store.split(HIDDEN, summary="so far"),
        }
        for call in calls.values():
            with pytest.raises(tape.TapeHidden) as caught:
                call()
            assert isinstance(caught.value, tape.TapeNotFound)
            assert (caught.value.tape, caught.value.reason) == (HIDDEN, "tidied")
            assert "unhide" in str(caught.value)
        with pytest.raises(tape.TapeNotFound):
            store.health(HIDDEN)
        with pytest.raises(tape.TapeExists) as taken:
            store.create(HIDDEN)
        assert taken.value.hidden
        assert "unhide" in str(taken.value)
        with pytest.raises(tape.TapeExists):
            store.get("root").fork(HIDDEN)
        for order in ("created", "updated"):
            assert {info.id for info in store.list(order=order).items} == {"root", "child", "bobs-fork"}
        assert store.list(label="secret").items == store.list(parent="root").items == []
        assert store.search(WORD) == store.search(WORD, tape=HIDDEN) == []
        [info] = store.list(hidden=True).items
        assert (info.id, info.hidden, info.hidden_reason, info.head) == (HIDDEN, True, "tidied", receipt.seq)
        assert store.list(hidden=True, label="secret", parent="root").items == [info]
        assert store.list(hidden=True, status="completed").items == []
        assert [one.tape for one in store.get("root").lineage().descendants] == ["child", "bobs-fork"]
        # What is stored is counted and checked.
        assert store.stats().tapes == 4
        assert store.verify().ok
        assert store.verify(HIDDEN).ok
        chat.unhide()
        assert store.list(hidden=True).items == []
        assert {hit.tape for hit in store.search(WORD)} == {HIDDEN}
        info = store.get(HIDDEN).info()
        assert (info.hidden, info.hidden_reason, info.name) == (False, None, "Birds")

    def test_pages_of_many(self, store: tape.Store) -> None:
        """Pages of shown and of hidden tapes are full and follow each other."""
        for number in range(20):
            chat = store.create(f"t{number:02}")
            if number % 2:
                chat.hide()
        for hidden in (False, True):
            found, cursor = [], None
            while True:
                page = store.list(hidden=hidden, limit=3, cursor=cursor)
                found += [info.id for info in page.items]
                cursor = page.cursor
                if cursor is None:
                    break
                assert len(page.items) == 3
            assert found == [f"t{number:02}" for number in range(19, -1, -1) if number % 2 == hidden]
        with pytest.raises(tape.InvalidEntry):
            store.list(hidden="yes")  # type: ignore[arg-type]

    def test_the_feed_goes_on_telling(self, store: tape.Store) -> None:
        """The feed is the truth: it gives what was recorded, the hiding included, with its reason."""
        chat = fill(store)
        chat.hide("tidied", actor="ann")
        entries = [entry for entry in store.feed() if entry.tape == HIDDEN]
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        assert (entries[-1].kind, entries[-1].actor) == ("label", "ann")
        told = entries[-1].payload
        assert isinstance(told, payloads.Label)
        assert (told.hidden, told.reason) == (True, "tidied")

    def test_search_before_the_index_has_come_so_far(self, store: tape.Store) -> None:
        """What is scanned because it is not indexed yet is left out as well."""
        store.search(WORD)
        chat = fill(store)
        chat.hide()
        assert store.search(WORD) == []
        assert store.search("egret")


class TestForks:
    """Forks go on reading what they inherit."""

    def test_nothing_is_lost_for_them(self, store: tape.Store) -> None:
        """Messages, anchors, state, blocks, context and search of a fork are as they were."""
        fill(store)
        child = store.get("child")

        def seen() -> Any:
            context = child.context()
            hits = [(hit.tape, hit.seq) for hit in child.search(WORD)]
            facts = (child.anchors(), child.states(), child.blocks(), child.lineage().ancestors, child.info())
            return child.messages(), context.to_openai(), context.manifest.hash, hits, facts, child.children("m2")

        before = seen()
        assert before[0][0].content == "heron"
        assert before[3]
        store.get(HIDDEN).hide()
        assert seen() == before
        child.append(role="user", content="more")
        assert child.fork("grandchild").message("m1").content == WORD
        assert [hit.tape for hit in store.get("grandchild").search(WORD)] == [HIDDEN] * 2

    def test_what_writes_to_the_hidden_one_is_refused(self, backend: Backend, store: tape.Store) -> None:
        """A merge into it, or of it, is TapeHidden; a fork of it can be discarded, which only leaves it a receipt."""
        fill(store)
        store.tape(HIDDEN).hide()
        before = contents(backend)
        with pytest.raises(tape.TapeHidden):
            store.tape(HIDDEN).merge("child")
        with pytest.raises(tape.TapeHidden):
            store.get("root").merge(HIDDEN)
        with pytest.raises(tape.TapeHidden):
            store.tape(HIDDEN).discard()
        assert contents(backend) == before
        store.get("child").discard("no use")
        assert store.get("child").info().status == "discarded"
        assert store.verify().ok

    def test_a_purge_is_refused_and_names_the_way_out(self, store: tape.Store) -> None:
        """TapeInUse says to hide it; a hidden tape is still in use, and can be purged once its forks are gone."""
        chat = fill(store)
        for _ in range(2):
            with pytest.raises(tape.TapeInUse) as caught:
                store.purge(HIDDEN)
            assert "hide()" in str(caught.value)
            assert "child" in caught.value.by
            chat.hide()
        assert sorted(store.purge(HIDDEN, forks=True).tapes) == ["bobs-fork", "child", HIDDEN]
        assert store.list(hidden=True).items == []
        with pytest.raises(tape.TapeNotFound) as gone:
            chat.unhide()
        assert not isinstance(gone.value, tape.TapeHidden)
        assert store.create(HIDDEN, reuse=True).info().hidden is False
        assert store.verify().ok

    def test_retention_takes_hidden_tapes(self, store: tape.Store) -> None:
        """What is hidden grows old like everything else."""
        store.create("a").hide()
        store.create("b")
        assert sorted(store.retain(older_than=LATER).tapes) == ["a", "b"]
        assert sorted(store.retain(older_than=LATER, dry_run=False).tapes) == ["a", "b"]
        assert list(store.list(hidden=True).items) == []


class TestWrites:
    """A hidden tape takes nothing but ``hide`` and ``unhide``."""

    # A document is loaded only in a store that declares its provider; it is recorded as ``set_block`` is.
    @pytest.mark.parametrize("name", [name for name in TAPE_WRITES if name not in ("hide", "unhide", "load_block")])
    def test_every_other_write_is_refused(self, backend: Backend, name: str) -> None:
        """TapeHidden and nothing written: by the store that hid it and by one that remembers it from before."""
        store = filled(backend, fill)
        other, chat = backend.open(), store.get(HIDDEN)
        remembered = other.tape(HIDDEN)
        remembered.event("x")
        chat.hide("tidied")
        before = contents(backend)
        for handle in (chat, remembered, store.tape(HIDDEN)):
            with pytest.raises(tape.TapeHidden) as caught:
                TAPE_WRITES[name](handle)
            assert (caught.value.tape, caught.value.reason) == (HIDDEN, "tidied")
        assert contents(backend) == before
        chat.unhide()
        assert remembered.event("x").seq == chat.info().head

    def test_a_repeated_call_is_a_duplicate(self, store: tape.Store) -> None:
        """The key of hide, of unhide, and of what was written before is answered whatever the tape is by now."""
        chat = store.tape("t")
        append = chat.append(role="user", content="x", key="a")
        hide = chat.hide("tidied", key="h")
        assert (chat.hide("tidied", key="h").seq, chat.hide("tidied", key="h").duplicate) == (hide.seq, True)
        assert (chat.append(role="user", content="x", key="a").seq, append.duplicate) == (append.seq, False)
        with pytest.raises(tape.ProvenanceConflict):
            chat.hide("other", key="h")
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(role="user", content="y", key="a")
        unhide = chat.unhide(key="u")
        assert (chat.unhide(key="u").seq, chat.unhide(key="u").duplicate) == (unhide.seq, True)
        # The retry of a hide that was undone since does not hide it again.
        assert chat.hide("tidied", key="h").duplicate
        with pytest.raises(tape.ProvenanceConflict):
            chat.unhide(key="h")
        assert [entry.kind for entry in chat.entries()] == ["open", "append", "label", "label"]

    def test_twice_and_never(self, store: tape.Store) -> None:
        """Hiding a hidden tape gives it another reason; showing a shown one changes nothing."""
        chat = store.create("t")
        chat.hide("one")
        chat.hide()
        assert store.list(hidden=True).items[0].hidden_reason is None
        chat.hide("two")
        assert store.list(hidden=True).items[0].hidden_reason == "two"
        chat.unhide()
        chat.unhide()
        assert chat.info().head == 6
        assert store.verify().ok

    def test_what_was_never_written_cannot_be_hidden(self, backend: Backend, store: tape.Store) -> None:
        """TapeNotFound: neither call makes a tape."""
        before = contents(backend)
        for call in (store.tape("t").hide, store.tape("t").unhide):
            with pytest.raises(tape.TapeNotFound):
                call()
        assert contents(backend) == before

    def test_on_condition(self, store: tape.Store) -> None:
        """``hide`` takes the conditions of every write and moves the head, not the view; also of a closed tape."""
        chat = store.create("t", messages=say("a"))
        chat.complete()
        with pytest.raises(tape.HeadMoved):
            chat.hide(expected_head=2)
        with pytest.raises(tape.ViewMoved):
            chat.hide(expected_view=3)
        assert chat.hide(expected_head=3, expected_view=2).seq == 4
        with pytest.raises(tape.HeadMoved):
            chat.unhide(expected_head=3)
        assert chat.unhide(expected_head=4, expected_view=2).seq == 5
        assert (chat.info().view, chat.info().status) == (2, "completed")
        with pytest.raises(tape.InvalidEntry):
            chat.hide(7)  # type: ignore[arg-type]

    @heavy
    @pytest.mark.parametrize("stores", [1, 4], ids=["one store", "a store each"])
    def test_no_write_comes_behind_the_hiding(self, backend: Backend, stores: int) -> None:
        """Eight writers and one that hides and shows: nothing is ever recorded while it is hidden."""
        opened = [backend.open(durability="normal") for _ in range(stores)]
        chat = opened[0].create("t", messages=say("a"))
        done = threading.Event()
        written: list[int] = []
        refused: list[int] = []

        def write(number: int) -> None:
            mine, turn = opened[number % stores].tape("t"), 0
            while not done.is_set():
                turn += 1
                try:
                    written.append(mine.append(role="user", content=f"{number}.{turn}").seq)
                except tape.TapeHidden:
                    refused.append(number)

        def hide() -> None:
            try:
                for turn in range(size(5, 20)):
                    seen, count = len(refused), len(written)
                    chat.hide(str(turn))
                    for _ in range(20):
                        opened[-1].tape("t").messages()
                    chat.unhide()
                    while len(written) == count and len(refused) == seen:
                        opened[0].tape("t").messages()
            finally:
                done.set()

        crowd([*(partial(write, number) for number in range(8)), hide])
        assert written
        assert refused
        hidden = False
        for entry in chat.entries():
            if isinstance(entry.payload, payloads.Label):
                hidden = entry.payload.hidden is True
            else:
                assert not hidden, f"seq {entry.seq} was written to a hidden tape"
        assert len(chat.messages()) == len(written) + 1
        assert opened[0].verify("t").ok

    def test_in_a_callers_transaction(self, backend: Backend) -> None:
        """Hidden inside it at once, and shown again when it rolls back."""
        store, engine = backend.open(), backend.engine()
        chat = store.create("t", messages=say("a"))
        chat.event("x")
        with engine.connect() as connection:
            bound = store.bind(connection).tape("t")
            bound.hide()
            assert bound.messages() == []
            with pytest.raises(tape.TapeHidden):
                bound.append(role="user", content="x")
            connection.rollback()
        engine.dispose()
        assert chat.append(role="user", content="x").seq == 4


class TestElsewhere:
    """Exports, rebuilds, owners, asyncio."""

    def test_an_export_takes_hidden_relatives_along(self, store: tape.Store, other: Backend) -> None:
        """A fork brings its hidden ancestor, a family its hidden members; where they arrive they are hidden, too."""
        chat = fill(store)
        chat.hide("tidied")
        target = other.open()
        target.import_(io.BytesIO(exported(store, "child")))
        assert [message.content for message in target.get("child").messages()][:2] == ["heron", WORD]
        # Only what the fork inherits came along: it was not hidden at that time.
        assert target.get(HIDDEN).find("m2") is not None
        target.import_(io.BytesIO(exported(store, "root", family=True)))
        assert [(one.id, one.hidden_reason) for one in target.list(hidden=True).items] == [(HIDDEN, "tidied")]
        with pytest.raises(tape.TapeHidden):
            target.tape(HIDDEN).append(role="user", content="x")
        assert target.verify().ok
        # What goes on behind the hiding arrives as well.
        chat.unhide()
        target.import_(io.BytesIO(exported(store, HIDDEN)))
        assert target.get(HIDDEN).messages() == chat.messages()

    def test_a_long_import_arrives_hidden(self, store: tape.Store, other: Backend) -> None:
        """Also one that is written in batches, which nobody sees before all are there."""
        chat = store.create("t", messages=say(*(f"m{n}" for n in range(2_100))))
        chat.fork("c")
        chat.hide()
        target = other.open(durability="normal")
        target.import_(io.BytesIO(exported(store, "c", family=True)))
        assert [info.id for info in target.list().items] == ["c"]
        assert [info.id for info in target.list(hidden=True).items] == ["t"]
        assert target.verify().ok

    def test_verify_and_rebuild(self, backend: Backend, store: tape.Store) -> None:
        """Whether a tape is hidden tell its entries: verify names a row that tells otherwise, rebuild mends it."""
        fill(store).hide("tidied")
        store.get("child")
        for value in ("NULL", "'other'"):
            connection = backend.raw()
            connection.execute(f"UPDATE tape_tapes SET hidden = {value} WHERE tape = '{HIDDEN}'")
            connection.execute(f"UPDATE tape_tapes SET hidden = {value} WHERE tape = 'child'")
            connection.close()
            wrong = {HIDDEN, "child"} if value != "NULL" else {HIDDEN}
            assert {problem.tape for problem in store.verify().problems} == wrong
            for name in wrong:
                assert store.rebuild(name) == 1
            assert store.verify().ok
            assert [info.hidden_reason for info in store.list(hidden=True).items] == ["tidied"]

    def test_owners(self, store: tape.Store) -> None:
        """Only its owner, and a store without one, can hide a tape, list it as hidden, or show it again."""
        ann, bob = store.scoped("ann"), store.scoped("bob")
        ann.create("t", messages=[{"role": "user", "content": WORD}])
        for call in (bob.tape("t").hide, bob.tape("t").unhide):
            with pytest.raises(tape.TapeNotFound) as caught:
                call()
            assert not isinstance(caught.value, tape.TapeHidden)
        store.get("t").hide()
        with pytest.raises(tape.TapeHidden):
            ann.tape("t").append(role="user", content="x")
        with pytest.raises(tape.TapeNotFound) as other:
            bob.get("t")
        assert not isinstance(other.value, tape.TapeHidden)
        found = [[info.id for info in one.list(hidden=True).items] for one in (store, ann, bob)]
        assert found == [["t"], ["t"], []]
        assert store.search(WORD) == ann.search(WORD) == []
        ann.tape("t").unhide()
        assert len(store.search(WORD)) == len(ann.search(WORD)) == 1

    def test_async(self, backend: Backend) -> None:
        """The awaited twin hides, lists, refuses and shows alike."""

        async def work() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await store.create("t", messages=say("a"))
                await chat.hide("tidied", key="h")
                assert (await chat.hide("tidied", key="h")).duplicate
                with pytest.raises(tape.TapeHidden):
                    await chat.append(role="user", content="x")
                with pytest.raises(tape.TapeHidden):
                    await store.get("t")
                assert await chat.messages() == []
                assert [info.id for info in (await store.list(hidden=True)).items] == ["t"]
                await chat.unhide()
                assert len(await (await store.get("t")).messages()) == 1

        asyncio.run(asyncio.wait_for(work(), PATIENCE))
