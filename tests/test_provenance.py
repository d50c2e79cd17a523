"""E2, E3, E4, E13: keys make writes repeatable, and expected heads make them conditional."""

from __future__ import annotations

import datetime
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import programs
from support.backends import Backend
from support.damage import contents
from support.processes import Crew
from support.verbs import Verb, each_keyed_verb, each_verb

import tape

pytestmark = pytest.mark.alike


def facts(receipts: Any) -> list[tuple[Any, ...]]:
    """Return what a receipt promises, without whether it is a repetition."""
    listed = receipts if isinstance(receipts, list) else [receipts]
    return [(one.tape, one.seq, one.key, one.message_id, one.hash) for one in listed]


def duplicates(receipts: Any) -> list[bool]:
    """Return which receipts are repetitions."""
    return [one.duplicate for one in (receipts if isinstance(receipts, list) else [receipts])]


class TestRepetition:
    """The same key with the same content."""

    @each_keyed_verb
    def test_e2_same_key_and_content_is_recorded_once(self, standing: Backend, guest: tape.Store, verb: Verb) -> None:
        """The second time nothing at all is written and the first receipt comes back, marked as a duplicate."""
        chat = verb.start(guest)
        first = verb.call(chat, key="k")
        assert not any(duplicates(first))
        before = contents(standing)
        again = verb.call(chat, key="k")
        assert all(duplicates(again))
        assert facts(again) == facts(first)
        assert contents(standing) == before

    @each_keyed_verb
    def test_e2_another_store_is_known_too(self, standing: Backend, guest: tape.Store, verb: Verb) -> None:
        """A store opened anew, with another actor and meta, after the tape moved on, still gets the first receipt."""
        chat = verb.start(guest)
        first = verb.call(chat, key="k", actor="ann", meta={"try": 1})
        if verb.method != "discard":
            chat.event("later")
        before = contents(standing)
        with standing.open() as other:
            again = verb.call(other.get(chat.id), key="k", actor="bob", meta={"try": 2}, expected_head=1)
        assert all(duplicates(again))
        assert facts(again) == facts(first)
        assert contents(standing) == before

    @each_keyed_verb
    def test_e2_a_repetition_is_answered_on_a_closed_tape(
        self, standing: Backend, guest: tape.Store, verb: Verb
    ) -> None:
        """A retry that comes after the tape was closed is a duplicate, not TapeClosed."""
        chat = verb.start(guest)
        first = verb.call(chat, key="k")
        if verb.method != "discard":
            chat.end("over")
        assert facts(verb.call(chat, key="k")) == facts(first)

    def test_e2_a_message_id_is_a_key(self, chat: tape.Tape) -> None:
        """Without a key the message id tells a repetition; the count of messages and entries stays."""
        first = chat.append({"id": "m", "role": "user", "content": "x"})
        again = chat.append({"content": "x", "role": "user", "id": "m"})
        assert (first.duplicate, again.duplicate) == (False, True)
        assert facts(again) == facts(first)
        info = chat.info()
        assert (info.entry_count, info.message_count) == (2, 1)
        assert len(list(chat.entries())) == 2

    def test_e2_a_revision_equal_to_what_holds_is_a_duplicate_of_it(self, chat: tape.Tape) -> None:
        """Revising a message to what it says already returns the receipt of the entry that said it."""
        placed = chat.append(id="m", role="user", content="x")
        assert facts(chat.revise("m", content="x")) == facts(placed)
        revised = chat.revise("m", content="y")
        again = chat.revise("m", content="y")
        assert again.duplicate
        assert facts(again) == facts(revised)
        assert chat.info().head == 3

    def test_e2_a_message_twice_in_one_batch_is_refused(self, store: tape.Store, chat: tape.Tape) -> None:
        """Whoever gives two messages of one id wants two: neither is dropped, and the error says how to keep both."""
        one = {"id": "m", "role": "user", "content": "x"}
        for other in (dict(one), {**one, "content": "y"}):
            with pytest.raises(tape.InvalidEntry, match="ids="):
                chat.extend([one, other, {"id": "n", "role": "user", "content": "y"}])
        with pytest.raises(tape.TapeNotFound):
            store.get(chat.id)

    def test_e2_a_batch_is_repeated_as_a_whole(self, chat: tape.Tape) -> None:
        """A keyed batch repeated is all duplicates; a longer, shorter or reordered one is a conflict."""
        batch = [{"role": "user", "content": str(number)} for number in range(3)]
        first = chat.extend(batch, key="b")
        assert [receipt.key for receipt in first] == ["b#0", "b#1", "b#2"]
        assert facts(chat.extend(batch, key="b")) == facts(first)
        for other in (batch[:2], [*batch, batch[0]], batch[::-1]):
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend(other, key="b")
        assert chat.info().head == 4

    def test_e2_what_the_store_decides_is_no_content(self, chat: tape.Tape) -> None:
        """The resolved parent and a generated id do not make a retry another write."""
        chat.append(role="user", content="first")
        first = chat.append(role="user", content="x", key="k")
        chat.append(role="user", content="in between")
        again = chat.append(role="user", content="x", key="k")
        assert facts(again) == facts(first)
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(role="user", content="x", key="k", parent=None)

    def test_e2_key_order_is_no_content_but_types_are(self, chat: tape.Tape) -> None:
        """Contents are compared as JSON values: keys in any order, but 1, 1.0 and true all differ."""
        chat.event("e", {"a": 1, "b": [1]}, key="k")
        assert chat.event("e", {"b": [1], "a": 1}, key="k").duplicate
        for other in ({"a": 1.0, "b": [1]}, {"a": True, "b": [1]}, {"a": "1", "b": [1]}, {"a": 1}, None):
            with pytest.raises(tape.ProvenanceConflict):
                chat.event("e", other, key="k")

    def test_e2_threads_with_one_key_write_one_entry(self, store: tape.Store) -> None:
        """Eight threads that append with one key at once get one receipt, and seven of them as duplicates."""
        chat = store.tape("chat")
        found = _at_once(8, lambda index: chat.append(role="user", content="x", key="k"))
        assert len({tuple(facts(receipt)) for receipt in found}) == 1
        assert sorted(duplicates(found)) == [False] + [True] * 7
        assert chat.info().head == 2


class TestConflict:
    """The same key with other content."""

    @each_keyed_verb
    def test_e3_same_key_other_content_is_a_conflict(self, standing: Backend, guest: tape.Store, verb: Verb) -> None:
        """A key that holds something else is a ProvenanceConflict that names both contents; nothing is written."""
        assert verb.other is not None
        chat = verb.start(guest)
        first = verb.call(chat, key="k")
        before = contents(standing)
        with pytest.raises(tape.ProvenanceConflict) as caught:
            verb.other(chat, key="k")
        error = caught.value
        assert (error.tape, error.key.split("#")[0]) == (chat.id, "k")
        assert error.seq in [fact[1] for fact in facts(first)]
        assert len(error.stored) == len(error.given) == 64
        assert error.stored != error.given
        assert contents(standing) == before

    @each_keyed_verb
    def test_e3_another_kind_under_the_key_is_a_conflict(
        self, standing: Backend, guest: tape.Store, verb: Verb
    ) -> None:
        """A key is used once per tape, whatever it was used for; a batch finds other keys beside those of others."""
        chat = verb.start(guest)
        if verb.method == "extend":
            chat.event("first", key="k#0")
            assert [verb.call(chat, key="k")[0].duplicate for _ in range(2)] == [False, True]
            return
        chat.event("first", key="k")
        before = contents(standing)
        with pytest.raises(tape.ProvenanceConflict):
            verb.call(chat, key="k")
        assert contents(standing) == before

    def test_e3_a_message_id_with_other_content_is_a_conflict(self, chat: tape.Tape) -> None:
        """A taken message id with other content is refused, never silently kept nor overwritten."""
        chat.append(id="m", role="user", content="old")
        for message in ({"content": "new"}, {"content": "old", "more": 1}, {"content": "old", "role": "tool"}):
            with pytest.raises(tape.ProvenanceConflict) as caught:
                chat.append({"id": "m", "role": "user", **message})
            assert caught.value.seq == 2
        assert chat.message("m").content == "old"
        assert chat.info().head == 2

    def test_e3_a_message_id_under_a_callers_key_is_taken_too(self, chat: tape.Tape) -> None:
        """The id of a message recorded under a key of the caller's cannot be used for another message."""
        chat.append(id="m", role="user", content="old", key="k")
        assert chat.append(id="m", role="user", content="old").duplicate
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(id="m", role="user", content="new")
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(id="m", role="user", content="new", key="k2")
        assert chat.info().head == 2

    def test_e3_a_conflict_in_a_batch_writes_none_of_it(self, chat: tape.Tape) -> None:
        """One taken id in a batch refuses all of it."""
        chat.append(id="m", role="user", content="old")
        with pytest.raises(tape.ProvenanceConflict):
            chat.extend([{"id": "a", "content": 1}, {"id": "m", "content": "new"}, {"id": "b", "content": 2}])
        assert chat.info().head == 2
        assert [message.id for message in chat.messages()] == ["m"]

    def test_e3_keys_of_different_tapes_do_not_meet(self, store: tape.Store) -> None:
        """A key is one per tape: the same key on another tape is another entry."""
        for name in ("a", "b"):
            receipt = store.tape(name).append(role="user", content=name, key="k")
            assert (receipt.duplicate, receipt.seq) == (False, 2)


YEAR_9999 = 253_402_300_799_000_000
CLOCKS: dict[str, Callable[[int], int]] = {
    "frozen": lambda tick: 1_000_000,
    "backwards": lambda tick: 1_000_000_000 - tick * 1_000,
    "far future": lambda tick: YEAR_9999 if tick < 6 else 1_000_000,
    "zero": lambda tick: 0,
    "before 1970": lambda tick: -1_000_000 + tick,
}


class TestClock:
    """Clocks decide nothing."""

    @pytest.mark.parametrize("clock", CLOCKS)
    def test_e4_entries_without_keys_are_distinct_under_any_clock(self, backend: Backend, clock: str) -> None:
        """Equal writes in one instant, or while the clock runs back, are entries of their own, in order of seq."""
        ticks = iter(range(1_000))
        store = backend.open(clock=lambda: CLOCKS[clock](next(ticks)))
        chat = store.tape("chat")
        for _ in range(3):
            chat.append(role="user", content="same")
            chat.event("same", 1)
            chat.handoff("same", summary="same")
            chat.clear()
        entries = list(chat.entries())
        assert [entry.seq for entry in entries] == list(range(1, 14))
        assert len({entry.key for entry in entries}) == 13
        assert len({entry.hash for entry in entries}) == 13
        stamps = [entry.stamp for entry in entries]
        assert stamps == sorted(stamps)
        assert stamps[0] >= 0
        assert chat.info().entry_count == 13
        assert store.verify().ok

    def test_e4_time_never_runs_back_on_a_tape(self, backend: Backend) -> None:
        """A clock that steps back leaves the stamp where it was and is itself kept in the meta, beside the caller's."""
        now = [5_000_000]
        store = backend.open(clock=lambda: now[0])
        chat = store.tape("chat")
        chat.append(role="user", content="a")
        now[0] = 3_000_000
        chat.append(role="user", content="b", meta={"run": 1})
        chat.append(role="user", content="c")
        now[0] = 6_000_000
        chat.append(role="user", content="d", meta={"run": 2})
        told = [(entry.stamp, entry.meta) for entry in chat.entries(after=1)]
        assert told == [
            (5_000_000, None),
            (5_000_000, {"run": 1, "tape.clock": 3_000_000}),
            (5_000_000, {"tape.clock": 3_000_000}),
            (6_000_000, {"run": 2}),
        ]
        assert [message.content for message in chat.messages()] == ["a", "b", "c", "d"]

    def test_e4_a_clock_in_the_far_future_does_not_stop_the_tape(self, backend: Backend) -> None:
        """After one entry from the year 9999 a tape goes on, and its times can be read."""
        now = [YEAR_9999]
        chat = backend.open(clock=lambda: now[0]).tape("chat")
        chat.append(role="user", content="a")
        now[0] = 1_700_000_000_000_000
        chat.append(role="user", content="b")
        assert [entry.recorded_at.year for entry in chat.entries()] == [9999] * 3
        assert chat.info().updated_at == datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
        assert [message.content for message in chat.messages()] == ["a", "b"]


def _at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work`` in threads that start together, and return what each gave or raised."""
    barrier = threading.Barrier(count)
    found: list[Any] = [None] * count

    def run(index: int) -> None:
        barrier.wait(30)
        try:
            found[index] = work(index)
        except tape.TapeError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def _write(stores: list[tape.Store], head: int, index: int) -> tape.Receipt:
    return stores[index % len(stores)].tape("chat").append(role="user", content=str(index), expected_head=head)


class TestExpectedHead:
    """Writes on condition that nobody wrote in between."""

    @each_verb
    def test_e13_a_wrong_expected_head_writes_nothing(self, standing: Backend, guest: tape.Store, verb: Verb) -> None:
        """HeadMoved tells the expected and the actual head, and every table stays as it was."""
        chat = verb.start(guest)
        head = chat.info().head
        before = contents(standing)
        for wrong in (0, head - 1, head + 1, 10**9):
            with pytest.raises(tape.HeadMoved) as caught:
                verb.call(chat, expected_head=wrong)
            assert (caught.value.tape, caught.value.expected, caught.value.actual) == (chat.id, wrong, head)
        assert contents(standing) == before

    @each_verb
    def test_e13_the_right_expected_head_is_accepted(self, standing: Backend, guest: tape.Store, verb: Verb) -> None:
        """A write that expects the head that is there is made, and moves it by as many entries as it writes."""
        chat = verb.start(guest)
        head = chat.info().head
        verb.call(chat, expected_head=head)
        assert chat.info().head == head + verb.entries
        assert chat.verify().ok

    def test_e13_an_unwritten_tape_has_head_zero(self, chat: tape.Tape) -> None:
        """``expected_head=0`` means that the tape must not exist yet."""
        with pytest.raises(tape.HeadMoved) as caught:
            chat.append(role="user", content="x", expected_head=1)
        assert caught.value.actual == 0
        assert chat.info().head == 0
        assert chat.append(role="user", content="x", expected_head=0).seq == 2

    def test_e13_a_stale_handle_is_told(self, backend: Backend) -> None:
        """A store that kept a head in memory does not go by it when another one wrote in between."""
        one, other = backend.open().tape("chat"), backend.open().tape("chat")
        seq = one.append(role="user", content="x").seq
        other.append(role="user", content="y", expected_head=seq)
        with pytest.raises(tape.HeadMoved) as caught:
            one.append(role="user", content="z", expected_head=seq)
        assert caught.value.actual == seq + 1
        assert one.append(role="user", content="z", expected_head=seq + 1).seq == seq + 2

    def test_e13_of_eight_threads_exactly_one_wins(self, backend: Backend) -> None:
        """Eight threads that expect one head write one entry; seven are told where the head is."""
        stores = [backend.open() for _ in range(2)]
        head = stores[0].tape("chat").append(role="user", content="x").seq
        for _ in range(5):
            found = _at_once(8, functools.partial(_write, stores, head))
            won = [one for one in found if isinstance(one, tape.Receipt)]
            lost = [one for one in found if isinstance(one, tape.HeadMoved)]
            assert (len(won), len(lost)) == (1, 7)
            assert {(error.expected, error.actual) for error in lost} == {(head, head + 1)}
            head = won[0].seq
        assert stores[0].verify().ok
        assert stores[0].tape("chat").info().message_count == 6

    def test_e13_of_eight_processes_exactly_one_wins(self, backend: Backend, crew: Crew) -> None:
        """Eight processes that expect one head write one entry; seven are told where the head is."""
        store = backend.open()
        head = store.tape("chat").append(role="user", content="x").seq
        orders = [{"name": "chat", "label": f"from {number}", "expected": head} for number in range(8)]
        answers = [answer for [answer] in crew.race(backend, programs.write_if_head, orders)]
        assert sorted(answers) == [("lost", head + 1)] * 7 + [("won", head + 1)]
        assert store.tape("chat").info().head == head + 1
        assert store.verify().ok


SAID = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]
STRANGERS: dict[str, Any] = {
    "a message": lambda chat, key: chat.append(role="user", content="a stranger", key=key),
    "an equal message": lambda chat, key: chat.append(SAID[int(key[-1]) % 3], key=key),
    "an upsert": lambda chat, key: chat.upsert({"role": "user", "content": "a stranger"}, key=key),
    "an event": lambda chat, key: chat.event("stranger", key=key),
    "an anchor": lambda chat, key: chat.anchor("stranger", key=key),
}
"""Writes under a key that looks like one of a batch."""


class TestBatchKeys:
    """E2: a keyed batch is one write, whatever other keys look like."""

    @pytest.mark.parametrize("stranger", STRANGERS)
    @pytest.mark.parametrize("number", [0, 1, 2, 3])
    def test_e2_a_batch_can_be_repeated_whoever_uses_a_key_like_its_own(
        self, guest: tape.Store, stranger: str, number: int
    ) -> None:
        """A retry after a lost reply is a duplicate, also when a key like the next of the batch was used since."""
        chat = guest.create()
        if number == 3:
            first = chat.extend(SAID, key="k")
            STRANGERS[stranger](chat, "k#3")
        else:
            STRANGERS[stranger](chat, f"k#{number}")
            first = chat.extend(SAID, key="k")
        assert [receipt.duplicate for receipt in first] == [False] * 3
        head = chat.info().head
        again = chat.extend(SAID, key="k")
        assert [receipt.duplicate for receipt in again] == [True] * 3
        assert [(one.seq, one.key) for one in again] == [(one.seq, one.key) for one in first]
        ordinary = [f"k#{index}" for index in range(3) if index != number]
        assert [one.key for one in first if not one.key.startswith("~")] == ordinary
        for others in (SAID[:2], [*SAID, SAID[0]], [*SAID[:2], {"role": "user", "content": "other"}]):
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend(others, key="k")
        assert chat.info().head == head
        assert chat.verify().ok

    def test_e2_a_stranger_is_repeated_by_its_own_key(self, guest: tape.Store) -> None:
        """A caller's key that looks like one of a batch stays the caller's."""
        chat = guest.create()
        alone = chat.append(role="user", content="alone", key="k#1")
        chat.extend(SAID, key="k")
        again = chat.append(role="user", content="alone", key="k#1")
        assert (again.duplicate, again.seq, again.message_id) == (True, alone.seq, alone.message_id)
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(role="user", content="other", key="k#1")

    @pytest.mark.parametrize("key", ["k", "k" * 255])
    def test_e2_a_history_is_replaced_once_whoever_uses_a_key_like_its_own(self, guest: tape.Store, key: str) -> None:
        """The messages of ``replace_history`` are keyed like a batch, and repeated like one."""
        chat = guest.create()
        kept = {"id": "m", "role": "user", "content": "stays"}
        chat.append(kept, key="k#0")
        first = chat.replace_history([kept, SAID[1]], key=key)
        again = chat.replace_history([kept, SAID[1]], key=key)
        assert [one.seq for one in again] == [one.seq for one in first]
        assert all(one.duplicate for one in again)
        assert [message.content for message in chat.messages()] == ["stays", "two"]

    def test_e2_messages_that_were_there_before_have_no_key_of_the_batch(self, guest: tape.Store) -> None:
        """A batch that continues what is on the tape is repeated as a whole, with the receipts of both."""
        chat = guest.create()
        there = {"id": "m", "role": "user", "content": "there"}
        before = chat.append(there)
        chat.event("stranger", key="k#1")
        first = chat.extend([there, SAID[1]], key="k")
        assert first[0].seq == before.seq
        assert [one.seq for one in chat.extend([there, SAID[1]], key="k")] == [one.seq for one in first]
