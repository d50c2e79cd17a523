"""Conditions: a write on condition that the view, or a purge on condition that the head, is still what was read."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support import history
from support.backends import Backend
from support.damage import contents
from support.exports import exported
from support.filling import filled
from support.messages import say
from support.sizes import heavy, size
from support.verbs import Verb, each_keyed_verb, each_verb

import tape
from tape.core.entries import payloads

pytestmark = pytest.mark.alike

PATIENCE = 60.0
UNSEEN = {"open", "event", "usage", "label", "status", "fork", "merge", "discard"}
"""The kinds of entries that change nothing that a reader sees."""


def last_change(entries: list[tape.Entry]) -> int:
    """Return what the view must be after these entries of one tape: what the words of the manual say, by hand."""
    view = 0
    for entry in entries:
        forked = isinstance(entry.payload, payloads.Open) and entry.payload.parent is not None
        if forked or entry.kind not in UNSEEN:
            view = entry.seq
    return view


def crowd(works: list[Callable[[], Any]]) -> None:
    """Run each in a thread of its own, all beginning at one moment; raises what any of them raises."""
    begin, errors = threading.Barrier(len(works)), []

    def run(work: Callable[[], Any]) -> None:
        try:
            begin.wait(PATIENCE)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


class TestExpectedView:
    """``expected_view=`` on every write."""

    @each_verb
    def test_moves_with_what_changes_what_readers_see(self, guest: tape.Store, verb: Verb) -> None:
        """The view is at the last entry that changed it: messages, anchors, summaries, state, blocks or the prompt."""
        chat = verb.start(guest)
        before = chat.info().view
        assert before == last_change(list(chat.entries()))
        verb.call(chat)
        after = chat.info().view
        assert after == last_change(list(chat.entries()))
        assert (after > before) == verb.changes_view
        assert chat.verify().ok

    @each_verb
    def test_a_wrong_one_writes_nothing(self, standing: Backend, guest: tape.Store, verb: Verb) -> None:
        """ViewMoved, which is a HeadMoved, tells the expected and the actual seq, and every table stays as it was."""
        chat = verb.start(guest)
        view = chat.info().view
        chat.event("note")
        before = contents(standing)
        for wrong in (0, view - 1, view + 1, 10**9):
            with pytest.raises(tape.ViewMoved) as caught:
                verb.call(chat, expected_view=wrong)
            assert isinstance(caught.value, tape.HeadMoved)
            assert (caught.value.tape, caught.value.expected, caught.value.actual) == (chat.id, wrong, view)
        assert contents(standing) == before

    @each_verb
    def test_notes_do_not_stand_in_its_way(self, guest: tape.Store, verb: Verb) -> None:
        """Events, usage, labels, names and receipts of forks move the head, and a write on the view goes through."""
        chat = verb.start(guest)
        view, head = chat.info().view, chat.info().head
        chat.event("note")
        chat.record_usage(input_tokens=1)
        chat.label("seen")
        chat.rename("noted")
        chat.fork()
        chat.complete()
        chat.reopen()
        assert (chat.info().view, chat.info().head) == (view, head + 7)
        verb.call(chat, expected_view=view)
        assert chat.info().head == head + 7 + verb.entries

    @each_keyed_verb
    def test_a_repeated_call_is_a_duplicate_and_not_refused(self, guest: tape.Store, verb: Verb) -> None:
        """The key is looked up before the condition, as after a lost reply, whatever was written since."""
        chat = verb.start(guest)
        view = chat.info().view
        first = verb.call(chat, key="k", expected_view=view)
        chat.reopen() if not verb.on_child else None
        guest.tape(chat.id).event("more")
        again = verb.call(chat, key="k", expected_view=view)
        one, two = (first, again) if not isinstance(first, list) else (first[0], again[0])
        assert (one.seq, one.duplicate, two.seq, two.duplicate) == (one.seq, False, one.seq, True)

    def test_both_conditions_hold(self, store: tape.Store) -> None:
        """With both, the head is compared first."""
        chat = store.create("t", messages=say("a"))
        chat.event("note")
        with pytest.raises(tape.HeadMoved) as caught:
            chat.append(role="user", content="x", expected_head=2, expected_view=1)
        assert not isinstance(caught.value, tape.ViewMoved)
        with pytest.raises(tape.ViewMoved):
            chat.append(role="user", content="x", expected_head=3, expected_view=1)
        assert chat.append(role="user", content="x", expected_head=3, expected_view=2).seq == 4

    def test_an_empty_tape_has_view_zero(self, store: tape.Store) -> None:
        """Whether it was never written, created, or given nothing but notes: there is nothing to see."""
        chat = store.tape("t")
        assert (chat.info().view, chat.context().view) == (0, 0)
        chat.event("note", expected_view=0)
        assert (chat.info().view, chat.context().view, chat.info().head) == (0, 0, 2)
        assert store.create("u").info().view == 0
        assert chat.append(role="user", content="x", expected_view=0).seq == 3
        with pytest.raises(tape.ViewMoved):
            chat.append(role="user", content="y", expected_view=0)
        with pytest.raises(tape.ViewMoved):
            store.tape("v").append(role="user", content="y", expected_view=1)
        assert store.tape("v").info().head == 0

    def test_a_store_with_a_kept_head_is_told(self, backend: Backend) -> None:
        """A store that kept a head in memory goes by the true one: refused when it moved, let through when not."""
        mine, other = backend.open(), backend.open()
        chat = mine.tape("t")
        view = chat.append(role="user", content="1").seq
        other.tape("t").event("note")
        assert chat.append(role="user", content="2", expected_view=view).seq == 4
        other.tape("t").append(role="user", content="3")
        with pytest.raises(tape.ViewMoved) as caught:
            chat.append(role="user", content="4", expected_view=4)
        assert caught.value.actual == 5
        other.tape("t").put("slot", 1)
        with pytest.raises(tape.ViewMoved):
            chat.event("x", expected_view=5)
        assert chat.event("x", expected_view=6).seq == 7

    @pytest.mark.parametrize("wrong", [-1, True, 1.0, "1", 2**63], ids=str)
    def test_what_is_no_seq_is_refused(self, store: tape.Store, wrong: Any) -> None:
        """A condition that cannot be meant is InvalidEntry and names the field."""
        with pytest.raises(tape.InvalidEntry) as caught:
            store.tape("t").append(role="user", content="x", expected_view=wrong)
        assert caught.value.field == "expected_view"
        with pytest.raises(tape.InvalidEntry):
            store.purge("t", expected_head=wrong)

    def test_in_a_callers_transaction(self, backend: Backend) -> None:
        """A bound store goes by what the caller's transaction wrote itself, and leaves nothing when it rolls back."""
        store, engine = backend.open(), backend.engine()
        chat = store.create("t", messages=say("a"))
        with engine.connect() as connection:
            bound = store.bind(connection).tape("t")
            assert bound.append(role="user", content="x", expected_view=2).seq == 3
            with pytest.raises(tape.ViewMoved):
                bound.append(role="user", content="y", expected_view=2)
            connection.rollback()
        engine.dispose()
        assert chat.append(role="user", content="z", expected_view=2).seq == 3

    def test_a_compaction_expects_it_when_it_begins(self, store: tape.Store) -> None:
        """``compact`` takes the condition too; its own start does not move the view."""
        chat = store.create("t", messages=say(*(f"m{n}" for n in range(30))))
        view = chat.info().view
        with pytest.raises(tape.ViewMoved):
            chat.compact(lambda request: "short", budget=1, expected_view=view - 1)
        assert chat.info().head == view
        assert chat.compact(lambda request: "short", budget=1, expected_view=view) is not None
        assert chat.info().view == last_change(list(chat.entries())) > view


class TestRaces:
    """Exactly one of those who read the same view may answer it."""

    @heavy
    @pytest.mark.parametrize("stores", [1, 8], ids=["one store", "a store each"])
    def test_of_eight_threads_one_wins_per_view(self, backend: Backend, stores: int) -> None:
        """Eight threads answer what they read while two only take notes: no view is answered twice."""
        opened = [backend.open(durability="normal") for _ in range(stores)]
        opened[0].create("t", messages=say("start"))
        won: list[tuple[int, int]] = []
        lost: Counter[str] = Counter()
        rounds = size(5, 40)

        def answer(number: int) -> None:
            chat = opened[number % stores].tape("t")
            for turn in range(rounds):
                view = chat.context().view
                try:
                    receipt = chat.append(role="user", content=f"{number}.{turn}", expected_view=view)
                except tape.ViewMoved as moved:
                    lost["moved" if moved.actual > view else "wrong"] += 1
                else:
                    won.append((view, receipt.seq))

        def note(number: int) -> None:
            chat = opened[number % stores].tape("t")
            for turn in range(rounds):
                chat.event("note", turn)

        crowd([*(partial(answer, number) for number in range(8)), *(partial(note, number) for number in range(2))])
        entries = list(opened[0].tape("t").entries())
        answers = [entry.seq for entry in entries if entry.kind == "append"]
        # All that were not first were told so.
        assert lost == Counter(moved=8 * rounds - len(won))
        assert len({view for view, _ in won}) == len(won) == len(answers) - 1
        # Each answer is to the one before it: the chain of those who won has no gap.
        assert sorted(won) == list(itertools.pairwise(answers))
        assert opened[0].verify("t").ok

    def test_of_eight_tasks_one_wins_per_view(self, backend: Backend) -> None:
        """The same with asyncio, whose writes share commits."""

        async def work() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await store.create("t", messages=say("start"))

                async def answer(number: int, view: int) -> int | None:
                    try:
                        receipt = await chat.append(role="user", content=str(number), expected_view=view)
                    except tape.ViewMoved:
                        return None
                    return receipt.seq

                for _ in range(10):
                    view = (await chat.info()).view
                    told = await asyncio.gather(*(answer(number, view) for number in range(8)))
                    winners = [seq for seq in told if seq is not None]
                    assert len(winners) == 1
                    assert (await chat.info()).view == (await chat.context()).view == winners[0] > view
                with pytest.raises(tape.ViewMoved):
                    await chat.merge(await chat.fork(), expected_view=1)

        asyncio.run(asyncio.wait_for(work(), PATIENCE))


class TestWhereItIsTold:
    """``info().view`` and ``Context.view``, now and in the past, here and elsewhere."""

    def test_as_of_every_seq(self, backend: Backend) -> None:
        """At every seq of a varied family the view is that of the entries up to there."""
        store = filled(backend, history.write_all)
        for info in store.list(limit=100).items:
            chat = store.get(info.id)
            entries = list(chat.entries())
            assert info.view == chat.info().view == chat.context().view == last_change(entries)
            for seq in range(len(entries) + 1):
                past = chat.at(seq)
                assert (seq, past.info().view, past.context().view) == (seq, *[last_change(entries[:seq])] * 2)

    def test_comes_along_with_an_import_and_a_rebuild(self, backend: Backend, other: Backend) -> None:
        """The column is folded from the entries: an import has it, rebuild mends it, verify names a wrong one."""
        store, target = filled(backend, history.write_all), other.open()
        names = [info.id for info in store.list(limit=100).items]
        for name in names:
            target.import_(io.BytesIO(exported(store, name, family=True)))
        assert {name: target.get(name).info().view for name in names} == {
            name: store.get(name).info().view for name in names
        }
        connection = other.raw()
        connection.execute("UPDATE tape_heads SET view = view + 1")
        connection.close()
        assert {problem.tape for problem in target.verify().problems} == set(names)
        target.rebuild()
        assert target.verify().ok

    def test_the_view_of_a_fork_is_its_own(self, store: tape.Store) -> None:
        """It begins with its first entry, and what the parent records later does not move it."""
        chat = store.create("t", messages=say("a"))
        child = chat.fork("c")
        assert (child.info().view, child.context().view, chat.info().view) == (1, 1, 2)
        chat.append(role="user", content="b")
        assert child.append(role="user", content="c", expected_view=1).seq == 2
        grandchild = child.fork("g")
        assert (grandchild.info().view, child.info().view) == (1, 2)
        child.discard()
        assert child.info().view == 2

    def test_a_merge_moves_it_by_what_it_brings(self, store: tape.Store) -> None:
        """Messages and state that come over are the change; the receipts of a merge or a link are none."""
        chat = store.create("t", messages=say("a"))
        child = chat.fork("c")
        chat.merge(child, strategy="link")
        assert (chat.info().view, chat.info().head, child.info().view) == (2, 4, 1)
        child.put("slot", 1)
        view = child.append(role="user", content="c").seq
        with pytest.raises(tape.ViewMoved):
            chat.merge(child, expected_view=4)
        receipt = chat.merge(child, expected_view=2)
        assert chat.info().view == last_change(list(chat.entries())) == receipt.seq - 1
        assert child.info().view == view
        # Nothing new: the receipt of before, whatever is expected.
        assert chat.merge(child, expected_view=2).duplicate

    def test_a_split_expects_it(self, store: tape.Store) -> None:
        """``split`` takes the condition, and ending a tape does not move its view."""
        chat = store.create("t", messages=say("a"))
        chat.put("slot", 1)
        with pytest.raises(tape.ViewMoved):
            store.split("t", summary="so far", expected_view=2)
        following = store.split("t", summary="so far", expected_view=3)
        assert chat.info().view == 3
        assert following.info().view == last_change(list(following.entries())) == 3

    def test_an_answer_to_a_recorded_context(self, store: tape.Store) -> None:
        """The record of a context moves the head and not the view: either condition lets the answer through."""
        one, two = store.create(messages=say("a")), store.create(messages=say("a"))
        context, receipt = one.recorded_context()
        assert (context.view, context.head) == (2, receipt.seq)
        assert one.append(role="assistant", content="b", expected_view=context.view).seq == 4
        assert two.append(role="assistant", content="b", expected_head=two.recorded_context()[0].head).seq == 4
        unwritten = store.tape("new")
        context = unwritten.context(record=True)
        assert unwritten.append(role="assistant", content="b", expected_view=context.view).seq == 3


class TestPurgeOnCondition:
    """``purge(expected_head=)``."""

    def test_a_moved_head_keeps_the_tape(self, backend: Backend, store: tape.Store) -> None:
        """Whoever wrote since the purge was decided on loses nothing; with the right head it goes."""
        chat = store.create("t", messages=say("a"))
        seen = chat.info().head
        chat.event("note")
        before = contents(backend)
        with pytest.raises(tape.HeadMoved) as caught:
            store.purge("t", expected_head=seen)
        assert (caught.value.tape, caught.value.expected, caught.value.actual) == ("t", 2, 3)
        assert contents(backend) == before
        assert store.purge("t", expected_head=3).tapes == ["t"]
        with pytest.raises(tape.TapeNotFound):
            store.purge("t", expected_head=3)

    def test_with_forks_it_is_the_tape_itself_that_is_expected(self, store: tape.Store) -> None:
        """The heads of its forks are their own; a wrong one of the tape keeps the whole family."""
        chat = store.create("t", messages=say("a"))
        chat.fork("c").append(role="user", content="x")
        with pytest.raises(tape.HeadMoved):
            store.purge("t", forks=True, expected_head=2)
        assert len(store.list().items) == 2
        assert sorted(store.purge("t", forks=True, expected_head=3).tapes) == ["c", "t"]

    @heavy
    def test_an_append_or_the_purge_wins_and_never_both(self, backend: Backend) -> None:
        """Eight writers and a purge on condition: something was written and the tape stays, or all are refused."""
        store, other = backend.open(durability="normal"), backend.open(durability="normal")
        for turn in range(size(5, 40)):
            name = f"t{turn}"
            store.create(name, messages=say("a"))
            kept: list[int] = []
            purged: list[tape.Retention] = []

            def write(name: str = name, kept: list[int] = kept) -> None:
                with contextlib.suppress(tape.TapeNotFound):
                    kept.append(other.tape(name).append(role="user", content="x").seq)

            def purge(name: str = name, purged: list[tape.Retention] = purged) -> None:
                with contextlib.suppress(tape.HeadMoved):
                    purged += [store.purge(name, expected_head=2)]

            crowd([*[write] * 8, purge])
            assert (len(kept), len(purged)) in ((8, 0), (0, 1))
            assert store.tape(name).info().head == (10 if kept else 0)

    def test_async(self, backend: Backend) -> None:
        """The awaited twin takes it as well."""

        async def work() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                await store.create("t", messages=say("a"))
                with pytest.raises(tape.HeadMoved):
                    await store.purge("t", expected_head=1)
                assert (await store.purge("t", expected_head=2)).tapes == ["t"]

        asyncio.run(asyncio.wait_for(work(), PATIENCE))
