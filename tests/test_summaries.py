"""What summaries promise when messages go and come back under clears, across forks, and around tool calls."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from support.backends import Backend
from support.sizes import heavy, size

import tape

pytestmark = pytest.mark.alike


def fill(chat: tape.Tape, ids: str) -> None:
    chat.extend({"id": id, "role": "user", "content": f"message {id}"} for id in ids)


def call(id: str, *calls: str) -> dict[str, Any]:
    return {"id": id, "role": "assistant", "content": None, "tool_calls": [{"id": name} for name in calls]}


def result(id: str, name: str) -> dict[str, Any]:
    return {"id": id, "role": "tool", "tool_call_id": name, "content": "42"}


def shown(chat: tape.Tape | tape.Snapshot, **options: Any) -> list[str]:
    """Return the ids in the context, with the text of a summary in the place of its id."""
    context = chat.context(**options)
    texts = {
        message.id: one.text for message in context.messages for one in context.summaries if one.text in message.text
    }
    return [texts.get(message.id, message.id) for message in context.messages]


def sound(*tapes: tape.Tape) -> None:
    for one in tapes:
        report = one.verify()
        assert report.ok, report.problems


class TestUnderAClear:
    def test_a_source_retracted_under_a_clear_takes_the_summary_out(self, chat: tape.Tape) -> None:
        """Undoing the clear does not show a summary that quotes what was retracted in between."""
        fill(chat, "abcd")
        chat.set_summary("SUM", first="a", last="c")
        chat.clear()
        chat.restore("b")
        chat.retract("b")
        chat.restore()
        assert shown(chat) == ["a", "c", "d"]
        assert chat.summaries() == []
        chat.restore("b")
        assert shown(chat) == ["SUM", "d"]
        sound(chat)

    def test_a_source_revised_under_a_clear_marks_the_summary_stale(self, chat: tape.Tape) -> None:
        """A revision under the clear is a revision."""
        fill(chat, "abcd")
        chat.set_summary("SUM", first="a", last="c")
        chat.clear()
        chat.restore("b")
        chat.revise("b", content="other")
        chat.restore()
        assert shown(chat) == ["SUM", "d"]
        assert [one.stale for one in chat.summaries()] == [True]
        sound(chat)

    def test_a_source_retracted_before_a_clear_and_restored_under_it_is_back(self, chat: tape.Tape) -> None:
        """The summary stands again once the clear is undone, since all that it covers is there."""
        fill(chat, "abcd")
        chat.set_summary("SUM", first="a", last="c")
        chat.retract("b")
        chat.clear()
        chat.restore("b")
        assert shown(chat) == ["b"]
        chat.restore()
        assert shown(chat) == ["SUM", "d"]
        sound(chat)

    def test_a_source_restored_under_a_clear_changes_nothing_else(self, chat: tape.Tape) -> None:
        """Restored and taken again by a second clear, the source is one that is there when both are undone."""
        fill(chat, "abcd")
        chat.set_summary("SUM", first="a", last="c")
        chat.clear()
        chat.restore("b")
        chat.clear()
        chat.restore()
        assert shown(chat) == ["b"]
        chat.restore()
        assert shown(chat) == ["SUM", "d"]
        chat.retract("b")
        assert shown(chat) == ["a", "c", "d"]
        sound(chat)

    def test_messages_that_a_summary_does_not_cover_are_shown_when_a_clear_is_undone(self, chat: tape.Tape) -> None:
        """A summary made under a clear does not swallow what the clear had taken from within its run."""
        fill(chat, "abcd")
        chat.clear()
        chat.restore("a", "c")
        chat.set_summary("SUM", first="a", last="c")
        assert shown(chat) == ["SUM"]
        chat.restore()
        assert shown(chat) == ["SUM", "b", "d"]
        assert chat.summaries()[0].covers == ["a", "c"]
        sound(chat)

    def test_a_message_restored_under_a_clear_is_shown_beside_the_summary(self, chat: tape.Tape) -> None:
        """Not covered since it was retracted then, and back when the clear is undone."""
        fill(chat, "abcd")
        chat.retract("b")
        chat.set_summary("SUM", first="a", last="c")
        chat.clear()
        chat.restore("b")
        chat.restore()
        assert shown(chat) == ["SUM", "b", "d"]
        sound(chat)

    def test_a_result_hidden_under_a_clear_brings_its_summary_back(self, chat: tape.Tape) -> None:
        """A result that was restored without its call is back when the clear is undone, and so is the summary."""
        chat.extend([call("A", "c1"), result("R", "c1"), {"id": "z", "role": "user", "content": "z"}])
        chat.set_summary("SUM", first="A", last="R")
        chat.clear()
        chat.restore("R")
        assert shown(chat) == []
        chat.restore()
        assert shown(chat) == ["SUM", "z"]
        chat.retract("R")
        assert shown(chat) == ["A", "z"]
        chat.restore("R")
        chat.retract("A")
        assert shown(chat) == ["z"]
        chat.restore("A")
        assert shown(chat) == ["SUM", "z"]
        sound(chat)

    def test_a_call_retracted_under_a_clear_takes_summary_and_result_out(self, chat: tape.Tape) -> None:
        """The result that the clear had taken does not come back without its call."""
        chat.extend([call("A", "c1"), result("R", "c1"), {"id": "z", "role": "user", "content": "z"}])
        chat.set_summary("SUM", first="A", last="R")
        chat.clear()
        chat.restore("A")
        chat.retract("A")
        chat.restore()
        assert shown(chat) == ["z"]
        chat.restore("A")
        assert shown(chat) == ["SUM", "z"]
        sound(chat)

    def test_a_fork_keeps_the_account_of_inherited_summaries_under_its_own_clear(self, chat: tape.Tape) -> None:
        """What a fork does to inherited sources under its clear counts when it undoes the clear, and there only."""
        fill(chat, "abcd")
        chat.set_summary("SUM", first="a", last="c")
        child = chat.fork("child")
        child.clear()
        child.restore("b")
        child.retract("b")
        child.restore()
        assert shown(child) == ["a", "c", "d"]
        child.restore("b")
        assert shown(child) == ["SUM", "d"]
        child.clear()
        child.restore("a")
        child.revise("a", content="other")
        grandchild = child.fork("grandchild")
        child.restore()
        assert shown(child) == ["SUM", "d"]
        assert child.summaries()[0].stale
        assert not chat.summaries()[0].stale
        assert shown(grandchild) == ["a"]
        sound(chat, child, grandchild)

    @heavy
    def test_every_order_of_few_steps_shows_a_summary_only_when_its_sources_are_there(
        self, standing: Backend, guest: tape.Store
    ) -> None:
        """All sequences of five steps around one summary agree with what follows from them one by one."""
        steps = ["clear", "undo", "retract b", "restore b", "revise b"]
        # Some of them are enough for one run, and the same ones every time.
        apart = size(199, 13) if standing.postgres else size(31, 3)
        for number, order in enumerate(itertools.product(steps, repeat=5)):
            if number % apart:
                continue
            chat = guest.tape(f"order-{number}")
            fill(chat, "abc")
            chat.set_summary("SUM", first="a", last="b")
            clears: list[int] = []
            out, taken, revised = False, {"a": 0, "b": 0, "c": 0}, False
            for at, step in enumerate(order, 1):
                try:
                    match step:
                        case "clear":
                            chat.clear()
                            taken = {id: was or (0 if id == "b" and out else at) for id, was in taken.items()}
                            clears.append(at)
                        case "undo":
                            chat.restore()
                            undone = clears.pop()
                            taken = {id: 0 if was == undone else was for id, was in taken.items()}
                        case "retract b":
                            chat.retract("b")
                            out = True
                        case "restore b":
                            chat.restore("b")
                            out, taken["b"] = False, 0
                        case "revise b":
                            chat.revise("b", content=f"step {at}")
                            revised = True
                except tape.TapeError:
                    continue
            there = [id for id in "abc" if not taken[id] and not (id == "b" and out)]
            stands = not clears and not out
            assert shown(chat) == (["SUM", "c"] if stands else there), order
            assert [one.stale for one in chat.summaries()] == ([revised] if stands else []), order


class TestResults:
    def test_a_result_restored_under_a_clear_comes_back_with_its_call(self, chat: tape.Tape) -> None:
        """Retracted before the clear and restored under it, it follows its call when the clear is undone."""
        chat.extend([call("A", "c1"), result("R", "c1")])
        chat.retract("R")
        chat.clear()
        chat.restore("R")
        assert [m.id for m in chat.messages()] == []
        chat.restore()
        assert [m.id for m in chat.messages()] == ["A", "R"]
        assert chat.info().message_count == 2
        sound(chat)

    def test_a_result_follows_its_call_through_two_clears(self, chat: tape.Tape) -> None:
        """It stays hidden as long as its call is under a clear, and no longer."""
        chat.extend([call("A", "c1"), result("R", "c1")])
        chat.retract("R")
        chat.clear()
        chat.clear()
        chat.restore("R")
        chat.restore()
        assert [m.id for m in chat.messages()] == []
        chat.restore()
        assert [m.id for m in chat.messages()] == ["A", "R"]
        sound(chat)

    def test_a_result_of_a_result_comes_back_as_well(self, chat: tape.Tape) -> None:
        """A result that makes a call itself brings the result of that call along."""
        both = {**result("B", "c1"), "tool_calls": [{"id": "c2"}]}
        chat.extend([call("A", "c1"), both, result("C", "c2")])
        chat.retract("B")
        chat.clear()
        chat.restore("B")
        chat.restore()
        assert [m.id for m in chat.messages()] == ["A", "B", "C"]
        assert chat.info().message_count == 3
        sound(chat)

    def test_an_inherited_result_comes_back_in_a_fork(self, chat: tape.Tape) -> None:
        """The same holds for what a fork inherits, and the parent does not change."""
        chat.extend([call("A", "c1"), result("R", "c1")])
        chat.retract("R")
        child = chat.fork("child")
        child.clear()
        child.restore("R")
        child.restore()
        assert [m.id for m in child.messages()] == ["A", "R"]
        assert [m.id for m in chat.messages()] == ["A"]
        sound(chat, child)


class TestLineage:
    def _forks(self, chat: tape.Tape) -> tuple[tape.Tape, tape.Tape, tape.Summary, tape.Summary]:
        """Return a fork and its fork, with a summary of the tape's whose seq is greater than the fork's newer one."""
        fill(chat, "abcdef")
        old = chat.set_summary("OLD", first="a", last="b")
        child = chat.fork("child")
        new = child.set_summary("NEW", first="a", last="c", expected=old.seq)
        assert new.seq < old.seq
        return child, child.fork("grandchild"), *(s for one in (chat, child) for s in one.summaries())  # type: ignore[return-value]

    def test_a_fork_of_a_fork_sees_the_summary_that_its_parent_sees(self, chat: tape.Tape) -> None:
        """The nearer tape's summary is the newer one, whatever the seqs are."""
        child, grandchild, _, new = self._forks(chat)
        assert shown(child) == shown(grandchild) == ["NEW", "d", "e", "f"]
        for one in (child, grandchild):
            newest = one.summary()
            assert newest is not None
            assert (newest.tape, newest.seq) == (new.tape, new.seq)
            assert one.context().summary == newest
        sound(chat, child, grandchild)

    def test_the_newest_of_two_beside_each_other_is_that_of_the_nearer_tape(self, chat: tape.Tape) -> None:
        """``summary()`` and ``context().summary`` name the one on which the next must be based."""
        fill(chat, "abcdef")
        chat.set_summary("OLD", first="a", last="b")
        child = chat.fork("child")
        child.set_summary("NEW", first="c", last="d", expected=chat.summary())
        grandchild = child.fork("grandchild")
        for one in (child, grandchild):
            newest = one.summary()
            assert newest is not None
            assert newest.text == "NEW"
            assert one.context().summary == newest
        grandchild.set_summary("NEXT", first="a", last="e", expected=grandchild.summary())
        assert shown(grandchild) == ["NEXT", "f"]
        sound(chat, child, grandchild)

    def test_compact_works_on_a_fork_of_a_fork(self, chat: tape.Tape) -> None:
        """The summary to continue is known by tape and seq, so that compaction never waits for another one."""
        chat.extend({"id": f"m{n}", "role": "user", "content": "word " * 40} for n in range(30))
        chat.compact(lambda request: "one", budget=200)
        child = chat.fork("child")
        child.extend({"id": f"n{n}", "role": "user", "content": "word " * 40} for n in range(9))
        assert child.compact(lambda request: "two", budget=200) is not None
        grandchild = child.fork("grandchild")
        grandchild.extend({"id": f"o{n}", "role": "user", "content": "word " * 40} for n in range(9))
        previous: list[str | None] = []

        def summarize(request: tape.SummaryRequest) -> str:
            previous.append(request.previous)
            return "three"

        assert grandchild.compact(summarize, budget=200) is not None
        assert previous == ["two"]
        assert [one.text for one in grandchild.summaries()] == ["three"]
        sound(chat, child, grandchild)

    def _same_seq(self, chat: tape.Tape) -> tuple[tape.Tape, tape.Summary, tape.Summary]:
        """Return a fork, and two summaries of the same seq: the inherited one and its own."""
        fill(chat, "abcd")
        chat.set_summary("OLD", first="a", last="b")
        child = chat.fork("child")
        inherited = child.summary()
        assert inherited is not None
        while child.info().head < inherited.seq - 1:
            child.event("tick")
        child.set_summary("NEW", first="c", last="d", expected=inherited.seq)
        own = child.summary()
        assert own is not None
        assert own.seq == inherited.seq
        return child, inherited, own

    def test_a8_a_stale_writer_on_a_fork_is_refused_although_the_seqs_are_equal(self, chat: tape.Tape) -> None:
        """Whoever expects the inherited summary gets SummaryMoved with the fork's own, and nothing is written."""
        child, inherited, own = self._same_seq(chat)
        fill(child, "efgh")
        before = child.info()
        for expected in (inherited, (inherited.tape, inherited.seq), inherited.seq):
            with pytest.raises(tape.SummaryMoved) as caught:
                child.set_summary("late", first="e", last="f", expected=expected)
            assert (caught.value.current.tape, caught.value.current.seq) == ("child", own.seq)
            assert child.info() == before
        child.set_summary("fine", first="e", last="f", expected=caught.value.current)
        child.set_summary("and", first="g", last="h", expected=("child", child.summaries()[-1].seq))
        assert shown(child) == ["OLD", "NEW", "fine", "and"]
        sound(chat, child)

    def test_a_seq_is_enough_when_only_one_summary_has_it(self, chat: tape.Tape) -> None:
        """The seq that ``summary()`` tells may be passed on, be the summary inherited or the tape's own."""
        fill(chat, "abcdef")
        chat.set_summary("OLD", first="a", last="b")
        child = chat.fork("child")
        newest = child.summary()
        assert newest is not None
        with pytest.raises(tape.SummaryMoved):
            child.set_summary("x", first="c", last="d", expected=newest.seq + 1)
        with pytest.raises(tape.SummaryMoved):
            child.set_summary("x", first="c", last="d", expected=("child", newest.seq))
        with pytest.raises(tape.SummaryMoved):
            child.set_summary("x", first="c", last="d")
        receipt = child.set_summary("NEW", first="c", last="d", expected=newest.seq)
        child.set_summary("NEXT", first="a", last="e", expected=receipt.seq)
        assert shown(child) == ["NEXT", "f"]
        sound(chat, child)

    @pytest.mark.parametrize(
        "expected", [True, 1.0, "5", ("chat",), ("chat", "5"), (5, 5), ("chat", True), [], object()]
    )
    def test_what_names_no_summary_is_refused(self, chat: tape.Tape, expected: Any) -> None:
        """``expected`` is a summary, a pair of tape and seq, a seq, or None."""
        fill(chat, "abc")
        before = chat.info()
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.set_summary("x", first="a", last="b", expected=expected)
        assert caught.value.field == "expected"
        assert chat.info() == before

    def test_e11_no_two_summaries_of_a_context_share_an_id(self, chat: tape.Tape) -> None:
        """The tape's own have their seq, inherited ones their tape as well, and neither can be appended."""
        child, inherited, own = self._same_seq(chat)
        ids = [message.id for message in child.context().messages]
        assert ids == [f"~summary:chat:{inherited.seq}", f"~summary:{own.seq}"]
        grandchild = child.fork("grandchild")
        ids = [message.id for message in grandchild.context().messages]
        assert ids == [f"~summary:chat:{inherited.seq}", f"~summary:child:{own.seq}"]
        for id in ids:
            with pytest.raises(tape.InvalidEntry):
                grandchild.append(role="user", content="echo", id=id)

    def test_the_id_of_a_summary_keeps_within_the_limit_of_ids(self, store: tape.Store) -> None:
        """However long the names of the tapes are, ids have at most 255 characters and differ."""
        chat = store.tape("x" * 255)
        fill(chat, "abcd")
        first = chat.set_summary("one", first="a", last="b")
        chat.set_summary("two", first="c", last="d", expected=first.seq)
        ids = [message.id for message in chat.fork("child").context().messages]
        assert len(set(ids)) == 2
        assert all(id.startswith("~") and len(id) <= 255 for id in ids)

    def test_async_takes_the_same_names_of_summaries(self, backend: Backend) -> None:
        """A summary, its tape and seq, or its seq."""

        async def main() -> list[str]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                await chat.extend({"id": id, "role": "user", "content": id} for id in "abcdef")
                await chat.set_summary("one", first="a", last="b")
                child = await chat.fork("child")
                await child.set_summary("two", first="c", last="d", expected=await child.summary())
                newest = await child.summary()
                assert newest is not None
                with pytest.raises(tape.SummaryMoved):
                    await child.set_summary("x", first="e", last="f", expected=("chat", newest.seq))
                await child.set_summary("three", first="e", last="f", expected=(newest.tape, newest.seq))
                return [one.text for one in await child.summaries()]

        assert asyncio.run(main()) == ["one", "two", "three"]


class TestCalls:
    def test_a5_a_run_may_not_cover_a_call_without_its_result(self, chat: tape.Tape) -> None:
        """The result would come after the summary, with nothing in the context that it answers."""
        fill(chat, "a")
        chat.append(call("A", "c1", "c2"))
        fill(chat, "b")
        for first, last in (("a", "A"), ("a", "b"), ("A", "b")):
            with pytest.raises(tape.InvalidEntry, match="no result"):
                chat.set_summary("SUM", first=first, last=last)
        chat.append(result("R1", "c1"))
        with pytest.raises(tape.InvalidEntry, match="no result"):
            chat.set_summary("SUM", first="a", last="R1")
        chat.append(result("R2", "c2"))
        fill(chat, "z")
        chat.set_summary("SUM", first="a", last="R2")
        assert shown(chat) == ["SUM", "z"]
        assert chat.context().repairs == []
        sound(chat)

    def test_a_retracted_result_leaves_its_call_open(self, chat: tape.Tape) -> None:
        """What was retracted may come back, so the call is not settled; retracting the call as well settles it."""
        fill(chat, "a")
        chat.extend([call("A", "c1"), result("R", "c1"), {"id": "z", "role": "user", "content": "z"}])
        chat.retract("R")
        with pytest.raises(tape.InvalidEntry):
            chat.set_summary("SUM", first="a", last="z")
        chat.retract("A")
        chat.set_summary("SUM", first="a", last="z")
        chat.restore("A")
        assert shown(chat) == ["SUM", "A"]
        chat.restore("R")
        assert shown(chat) == ["SUM", "A", "R"]
        sound(chat)

    def test_a_result_of_another_branch_does_not_settle_a_call(self, chat: tape.Tape) -> None:
        """On this path the call is open."""
        fill(chat, "a")
        chat.extend([call("A", "c1"), result("R", "c1")])
        chat.append(role="user", content="b", id="b", parent="A")
        with pytest.raises(tape.InvalidEntry):
            chat.set_summary("SUM", first="a", last="b")
        chat.switch("R")
        chat.set_summary("SUM", first="a", last="R")

    @pytest.mark.parametrize(
        "content",
        [
            [
                {"type": "server_tool_use", "id": "c1", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "c1", "content": []},
            ],
            [{"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {}, "output": 1}],
            [{"type": "dynamic-tool", "toolName": "look", "toolCallId": "c1", "state": "output-error", "input": {}}],
        ],
        ids=["server tool", "settled part", "failed part"],
    )
    def test_a_call_with_its_result_in_the_same_message_is_settled(self, chat: tape.Tape, content: Any) -> None:
        """Such a message may be covered like any other."""
        fill(chat, "a")
        chat.append({"id": "A", "role": "assistant", "content": content})
        chat.set_summary("SUM", first="a", last="A")
        assert shown(chat) == ["SUM"]

    def test_a_part_that_waits_for_its_result_is_open(self, chat: tape.Tape) -> None:
        """A part of the AI SDK's that has its input only is a call without a result, until it is revised."""
        part = {"type": "tool-look", "toolCallId": "c1", "state": "input-available", "input": {}}
        fill(chat, "a")
        chat.append({"id": "A", "role": "assistant", "parts": [part]})
        with pytest.raises(tape.InvalidEntry):
            chat.set_summary("SUM", first="a", last="A")
        chat.revise("A", {"parts": [{**part, "state": "output-available", "output": 1}]})
        chat.set_summary("SUM", first="a", last="A")

    def test_a_source_revised_to_make_a_call_is_shown_with_its_result(self, chat: tape.Tape) -> None:
        """The summary leaves the context as long as a message that it covers waits for a result."""
        fill(chat, "abc")
        chat.set_summary("SUM", first="a", last="b")
        chat.revise("b", {"content": "look", "tool_calls": [{"id": "c1"}]})
        assert shown(chat) == ["a", "b", "c"]
        chat.append(result("R", "c1"))
        assert shown(chat) == ["a", "b", "c", "R"]
        assert chat.context().repairs == []
        chat.retract("b")
        assert shown(chat) == ["a", "c"]
        chat.restore("b")
        chat.revise("b", content="look again")
        assert shown(chat) == ["a", "b", "c", "R"]
        chat.revise("b", {"content": "looked", "tool_calls": []})
        assert shown(chat) == ["SUM", "c"]
        assert chat.summaries()[0].stale
        sound(chat)

    def test_a_result_goes_with_the_calls_that_are_still_made(self, chat: tape.Tape) -> None:
        """A call that was retracted or revised away keeps no run from being summarised."""
        both = {"id": "R", "role": "user", "content": [{"type": "tool_result", "tool_use_id": c} for c in ("c1", "c2")]}
        chat.extend([call("A", "c1"), call("B", "c2"), both, {"id": "z", "role": "user", "content": "z"}])
        with pytest.raises(tape.InvalidEntry):
            chat.set_summary("SUM", first="B", last="R")
        with pytest.raises(tape.InvalidEntry):
            chat.set_summary("SUM", first="A", last="B")
        chat.revise("A", {"content": "never mind", "tool_calls": []})
        chat.set_summary("ONE", first="A", last="A")
        chat.set_summary("TWO", first="B", last="R", expected=chat.summary())
        assert shown(chat) == ["ONE", "TWO", "z"]
        chat.revise("A", {"content": "after all", "tool_calls": [{"id": "c1"}]})
        assert shown(chat) == ["A", "B", "R", "z"]
        assert chat.context().repairs == []
        chat.retract("A")
        assert shown(chat) == ["TWO", "z"]
        chat.restore("A")
        assert shown(chat) == ["A", "B", "R", "z"]
        chat.revise("A", {"content": "no", "tool_calls": []})
        assert shown(chat) == ["ONE", "TWO", "z"]
        sound(chat)

    def test_a_call_settled_within_the_run_may_be_revised(self, chat: tape.Tape) -> None:
        """As long as each call has its result in the run the summary stays, marked stale."""
        chat.extend([call("A", "c1"), result("R", "c1"), {"id": "z", "role": "user", "content": "z"}])
        chat.set_summary("SUM", first="A", last="R")
        chat.revise("A", {"content": "looking", "tool_calls": [{"id": "c1"}]})
        assert shown(chat) == ["SUM", "z"]
        assert chat.summaries()[0].stale
        sound(chat)


class TestAnchors:
    def test_a_summary_that_an_anchor_divides_is_not_in_force(self, chat: tape.Tape) -> None:
        """Every read says the same, and a run behind the anchor can be summarised."""
        fill(chat, "abcdef")
        chat.set_summary("SUM", first="a", last="d")
        chat.switch("b")
        chat.anchor("here")
        chat.switch("f")
        assert shown(chat) == ["c", "d", "e", "f"]
        assert chat.summaries() == []
        assert chat.summary() is None
        chat.set_summary("NEXT", first="c", last="e")
        assert shown(chat) == ["NEXT", "f"]
        sound(chat)
