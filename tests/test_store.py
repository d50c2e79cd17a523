"""S1 and S2: the store around the tapes, and what a tape's status permits."""

from __future__ import annotations

import functools
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.damage import Tamperer, contents
from support.verbs import VERBS, Verb, each_verb

import tape

pytestmark = pytest.mark.alike


class TestTapes:
    """Making and finding tapes."""

    def test_s1_create_and_get(self, store: tape.Store) -> None:
        """A created tape is found with all that it was created with, before anything is written to it."""
        made = store.create("t", name="Trip", owner="ann", agent="planner", labels=["a", "b"], meta={"m": 1})
        assert made.id == "t"
        info = store.get("t").info()
        assert (info.id, info.name, info.owner, info.agent) == ("t", "Trip", "ann", "planner")
        assert (info.labels, info.meta) == (["a", "b"], {"m": 1})
        assert (info.status, info.reason, info.completed_at) == ("active", None, None)
        assert (info.head, info.entry_count, info.message_count) == (1, 1, 0)
        assert info.created_at == info.updated_at
        assert info.last_message_at is None

    def test_s1_ids_are_made_when_none_is_given(self, store: tape.Store) -> None:
        """Tapes without an id get different ones, in ascending order."""
        made = [store.create().id for _ in range(5)]
        assert made == sorted(set(made))
        assert [store.get(name).info().head for name in made] == [1] * 5

    def test_s1_a_taken_id_is_refused(self, backend: Backend) -> None:
        """Creating a tape twice is TapeExists with the id, and the first one stays as it is."""
        store = backend.open()
        store.create("t", name="first")
        store.tape("written").append(role="user", content="x")
        before = contents(backend)
        for name in ("t", "written"):
            with pytest.raises(tape.TapeExists) as caught:
                store.create(name, name="second", messages=[{"content": "y"}])
            assert caught.value.tape == name
        assert contents(backend) == before

    def test_s1_get_of_a_missing_tape_is_not_found(self, store: tape.Store) -> None:
        """``get`` raises TapeNotFound with the id; it never answers with an empty tape."""
        store.tape("handle only")
        for name in ("nobody", "handle only"):
            with pytest.raises(tape.TapeNotFound) as caught:
                store.get(name)
            assert caught.value.tape == name

    def test_s1_a_handle_reads_as_empty_until_the_first_write(self, backend: Backend) -> None:
        """``tape`` makes nothing: reads are empty, and the first write makes the tape."""
        store = backend.open()
        before = contents(backend)
        chat = store.tape("new")
        assert chat.messages() == []
        assert list(chat.entries()) == []
        assert chat.heads() == []
        assert chat.anchors() == []
        assert chat.context().messages == []
        assert (chat.info().head, chat.info().head_hash, chat.info().created_at) == (0, None, None)
        assert chat.find("m") is None
        for read in (chat.message, chat.children):
            with pytest.raises(tape.UnknownMessage):
                read("m")
        assert contents(backend) == before
        assert chat.event("first").seq == 2
        assert store.get("new").info().head == 2

    @pytest.mark.parametrize("verb", [v for v in VERBS if v.name in ("append", "extend", "clear", "event", "end")])
    def test_s1_any_first_write_makes_the_tape(self, store: tape.Store, verb: Verb) -> None:
        """Whatever is written first, its seq is 2, behind the entry that opens the tape."""
        chat = store.tape("new")
        verb.call(chat)
        entries = list(chat.entries())
        assert entries[0].kind == "open"
        assert len(entries) == verb.entries + 1
        assert store.verify().ok

    def test_s1_a_first_write_that_is_refused_makes_nothing(self, backend: Backend) -> None:
        """A tape does not come into being by a write that cannot be made."""
        store = backend.open()
        before = contents(backend)
        chat = store.tape("new")
        refused: list[Callable[[], Any]] = [
            lambda: chat.revise("m", content="x"),
            lambda: chat.retract("m"),
            lambda: chat.restore("m"),
            lambda: chat.switch("m"),
            lambda: chat.append(role="user", content="x", parent="m"),
            lambda: chat.anchor("a", source_ids=["m"]),
            lambda: chat.append(role="user", content="x", expected_head=5),
            lambda: chat.merge("m"),
            lambda: chat.discard(),
        ]
        for call in refused:
            with pytest.raises(tape.TapeError):
                call()
        assert contents(backend) == before

    def test_s1_counts_and_times_follow_the_writes(self, backend: Backend) -> None:
        """Message count, entry count, last message and update times are kept with every write."""
        now = [1_000_000]
        chat = backend.open(clock=lambda: now[0]).tape("t")
        chat.append(id="a", role="user", content="x")
        now[0] = 2_000_000
        chat.append(id="b", role="user", content="y")
        now[0] = 3_000_000
        chat.event("e")
        chat.retract("a")
        info = chat.info()
        assert (info.message_count, info.entry_count, info.head) == (1, 5, 5)
        assert info.created_at is not None
        assert info.last_message_at is not None
        assert info.updated_at is not None
        seconds = [moment.timestamp() for moment in (info.created_at, info.last_message_at, info.updated_at)]
        assert seconds == [1.0, 2.0, 3.0]

    def test_s1_reopening_finds_everything(self, backend: Backend) -> None:
        """What one store wrote, another finds after it was closed."""
        with backend.open() as store:
            store.create("t", messages=[{"id": "m", "content": "x"}])
        with backend.open() as store:
            assert [message.id for message in store.get("t").messages()] == ["m"]
            assert store.get("t").append(role="user", content="y").seq == 3

    def test_s1_a_scoped_store_makes_tapes_of_its_owner(self, backend: Backend) -> None:
        """Tapes made through a store with an owner belong to that owner, created or written."""
        store = backend.open(owner="ann")
        assert store.owner == "ann"
        store.create("a")
        store.tape("b").append(role="user", content="x")
        assert [store.get(name).info().owner for name in ("a", "b")] == ["ann", "ann"]
        with pytest.raises(tape.InvalidEntry) as caught:
            store.create("c", owner="bob")
        assert caught.value.field == "owner"


class TestFailures:
    """An error is never answered with an empty tape."""

    READS: dict[str, Callable[[tape.Tape], Any]] = {
        "messages": lambda t: t.messages(),
        "page": lambda t: t.messages(limit=5),
        "bodies": lambda t: t.bodies(),
        "message": lambda t: t.message("m"),
        "find": lambda t: t.find("m"),
        "context": lambda t: t.context(),
        "heads": lambda t: t.heads(),
    }

    @pytest.mark.parametrize("read", READS)
    def test_s1_a_payload_that_cannot_be_read_is_corrupt(self, backend: Backend, read: str) -> None:
        """A message whose stored bytes are damaged is Corrupt with tape and seq, not left out."""
        chat = backend.open().tape("t")
        chat.append(id="m", role="user", content="x")
        tamperer = Tamperer(backend)
        tamperer.run("UPDATE tape_entries SET payload = ? WHERE seq = 2", b'{"id": "m", "mess')
        tamperer.close()
        with pytest.raises(tape.Corrupt) as caught:
            self.READS[read](chat)
        assert (caught.value.tape, caught.value.seq) == ("t", 2)
        with pytest.raises(tape.Corrupt):
            list(chat.entries())

    def test_s1_a_database_that_fails_is_an_error(self, backend: Backend) -> None:
        """A table that is gone is StoreFailed at every read and write, with the driver's error as its cause."""
        chat = backend.open().tape("t")
        chat.append(id="m", role="user", content="x")
        plain = backend.raw()
        plain.execute("ALTER TABLE tape_live RENAME TO elsewhere")
        calls: list[Callable[[tape.Tape], Any]] = [*self.READS.values(), lambda t: t.append(role="user", content="y")]
        for call in calls:
            with pytest.raises(tape.StoreFailed) as caught:
                call(chat)
            assert caught.value.__cause__ is not None
        plain.execute("ALTER TABLE elsewhere RENAME TO tape_live")
        plain.close()
        assert chat.append(role="user", content="y").seq == 3
        assert chat.verify().ok

    def test_s1_a_closed_store_is_an_error(self, backend: Backend) -> None:
        """Handles of a closed store fail; closing twice is harmless."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(id="m", role="user", content="x")
        store.close()
        store.close()
        for call in (chat.messages, chat.info, lambda: chat.append(role="user", content="y"), store.verify):
            with pytest.raises(tape.StoreFailed, match="closed"):
                call()

    def test_s1_what_is_no_database_is_an_error(self, tmp_path: Path) -> None:
        """A folder that is not there, a folder as the file, a file that is no database: StoreFailed, and untouched."""
        text = tmp_path / "notes.txt"
        text.write_text("not a database, but somebody's notes" * 100)
        for path in (tmp_path / "no" / "such" / "tape.db", tmp_path, text):
            with pytest.raises(tape.StoreFailed):
                tape.open(path)
        assert text.read_text() == "not a database, but somebody's notes" * 100
        assert sorted(os.listdir(tmp_path)) == ["notes.txt"]

    def test_s1_a_server_that_is_not_there_is_an_error(self) -> None:
        """An address where nobody listens is StoreFailed."""
        with pytest.raises(tape.StoreFailed):
            tape.open("postgresql://nobody@127.0.0.1:1/none")

    def test_s1_a_write_inside_a_write_is_an_error(self, backend: Backend) -> None:
        """A write started from inside another one of the same tape fails at once and does not hang."""
        store = backend.open(timeout=1.0)
        chat = store.tape("t")
        chat.append(role="user", content="x")

        def fault(name: str) -> None:
            store._db.fault = None
            chat.append(role="user", content="inner")

        store._db.fault = fault
        with pytest.raises((tape.StoreFailed, tape.StoreBusy)):
            chat.append(role="user", content="outer")
        assert chat.info().head == 2


class TestMemory:
    """A store that lives in the process."""

    def test_s1_memory_is_shared_by_threads_and_gone_after_close(self) -> None:
        """Threads see one database; another ``:memory:`` is another one."""
        with tape.open(":memory:") as store, tape.open(":memory:") as other:
            threads = [
                threading.Thread(target=store.tape("t").append, kwargs={"role": "user", "content": number})
                for number in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            assert sorted(message.content for message in store.get("t").messages()) == list(range(8))
            assert store.verify().ok
            with pytest.raises(tape.TapeNotFound):
                other.get("t")


CLOSINGS: dict[str, tuple[Callable[[tape.Tape], Any], str | None]] = {
    "completed": (lambda t: t.complete(), None),
    "abandoned": (lambda t: t.abandon("no time"), "no time"),
    "ended": (lambda t: t.end("over"), "over"),
}


class TestStatus:
    """What a closed tape accepts and refuses."""

    @each_verb
    @pytest.mark.parametrize("status", [*CLOSINGS, "discarded"])
    def test_s2_a_closed_tape_refuses_what_changes_its_view(
        self, standing: Backend, guest: tape.Store, status: str, verb: Verb
    ) -> None:
        """Every write that changes the view is TapeClosed with status and reason; events, forks and labels pass."""
        chat = verb.start(guest)
        reason: str | None = None
        if status == "discarded":
            if not verb.on_child:
                chat = guest.get(f"{chat.id}/child") if verb.method != "merge" else chat
            if verb.method in ("resolve", "withdraw"):
                # A request is put to the tape itself; a fork does not inherit it.
                chat.request("approve", key="ask")
            reason = "no use"
            guest.get(chat.id if chat.id.endswith("child") else f"{chat.id}/child").discard(reason)
        else:
            close, reason = CLOSINGS[status]
            close(chat)
        before = contents(standing)
        closing = verb.method in ("complete", "abandon", "end", "reopen", "discard")
        if verb.changes_view or (status == "discarded" and closing):
            with pytest.raises(tape.TapeClosed) as caught:
                verb.call(chat)
            assert caught.value.status == status
            assert caught.value.tape in (chat.id, f"{chat.id}/child")
            if verb.changes_view:
                assert caught.value.reason == reason
            assert contents(standing) == before
        else:
            head = chat.info().head
            verb.call(chat)
            assert chat.info().head == head + verb.entries
        assert chat.verify().ok

    @pytest.mark.parametrize("status", CLOSINGS)
    def test_s2_reopening_undoes_it(self, chat: tape.Tape, status: str) -> None:
        """After ``reopen`` the tape is active again, has no reason and no completion time, and takes messages."""
        close, reason = CLOSINGS[status]
        chat.append(role="user", content="x")
        close(chat)
        info = chat.info()
        assert (info.status, info.reason) == (status, reason)
        assert info.completed_at == info.updated_at
        assert [message.content for message in chat.messages()] == ["x"]
        chat.reopen()
        info = chat.info()
        assert (info.status, info.reason, info.completed_at) == ("active", None, None)
        chat.append(role="user", content="y")
        assert [entry.kind for entry in chat.entries(kinds=["status"])] == ["status", "status"]
        assert chat.at(3).info().status == status
        assert (chat.at(2).info().status, chat.at(4).info().status) == ("active", "active")

    def test_s2_closed_survives_reopening_the_store(self, backend: Backend) -> None:
        """A status is in the database: another store refuses too."""
        with backend.open() as store:
            store.tape("t").append(role="user", content="x")
            store.tape("t").end("over")
        with pytest.raises(tape.TapeClosed) as caught:
            backend.open().tape("t").append(role="user", content="y")
        assert (caught.value.tape, caught.value.status, caught.value.reason) == ("t", "ended", "over")

    def test_s2_another_store_notices_a_closing(self, backend: Backend) -> None:
        """A store that kept the head of a tape in memory does not write to it after another one closed it."""
        one, other = backend.open().tape("t"), backend.open().tape("t")
        one.append(role="user", content="x")
        other.complete()
        with pytest.raises(tape.TapeClosed):
            one.append(role="user", content="y")
        assert one.info().message_count == 1

    def test_s2_discarded_is_for_good(self, store: tape.Store) -> None:
        """A discarded fork cannot be reopened, neither at once nor after another status was tried."""
        chat = store.tape("t")
        chat.append(role="user", content="x")
        child = chat.fork("child")
        child.discard("no use")
        end = functools.partial(child.end, "over")
        calls: list[Callable[[], Any]] = [child.reopen, child.complete, child.abandon, child.discard, end]
        for call in calls:
            with pytest.raises(tape.TapeClosed) as caught:
                call()
            assert caught.value.status == "discarded"
        assert child.info().status == "discarded"
        assert child.event("note").seq > 0

    def test_s2_the_error_survives_pickling(self, chat: tape.Tape) -> None:
        """TapeClosed carries its facts into another process."""
        chat.end("over")
        with pytest.raises(tape.TapeClosed) as caught:
            chat.append(role="user", content="x")
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (copy.tape, copy.status, copy.reason, copy.redirect) == ("chat", "ended", "over", None)
