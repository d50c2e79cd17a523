"""Summaries that stand for runs of messages."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.backends import Backend
from support.compacting import call, result, say, states, talk

import tape
from tape.core.messages.tokens import estimate
from tape.core.strict import RESERVED


def fill(chat: tape.Tape, count: int, start: int = 0) -> None:
    chat.extend(
        {"id": f"m{n}", "role": "assistant" if n % 2 else "user", "content": f"message {n} " + "word " * 20}
        for n in range(start, start + count)
    )


def shown(chat: tape.Tape, **options: Any) -> list[str]:
    return [message.id for message in chat.context(**options).messages]


def plain(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


def placed(chat: tape.Tape) -> list[str]:
    """Return the ids in the context, with a summary told as such."""
    return ["summary" if m.id.startswith(RESERVED) else m.id for m in chat.context().messages]


class TestSetSummary:
    def test_a5_a_summary_replaces_exactly_the_covered_run(self, chat: tape.Tape) -> None:
        """Context shows the summary in place of the run and everything else verbatim; the originals stay."""
        fill(chat, 8)
        receipt = chat.set_summary("What was said.", first="m2", last="m4")
        assert shown(chat) == ["m0", "m1", f"~summary:{receipt.seq}", "m5", "m6", "m7"]
        assert "What was said." in chat.context().messages[2].content
        assert [message.id for message in chat.messages()] == plain(*range(8))
        summary = chat.summary()
        assert summary is not None
        assert (summary.text, summary.first, summary.last) == ("What was said.", "m2", "m4")
        assert summary.covers == plain(2, 3, 4)
        assert chat.verify().ok

    @pytest.mark.parametrize(("first", "last"), [("m4", "m2"), ("m1", "nowhere"), ("nowhere", "m2")])
    def test_a5_a_bogus_or_reversed_range_is_refused(self, chat: tape.Tape, first: str, last: str) -> None:
        """A range that is not a run of the active branch is refused at commit and nothing is written."""
        fill(chat, 6)
        before = chat.info()
        with pytest.raises((tape.InvalidEntry, tape.UnknownMessage)):
            chat.set_summary("x", first=first, last=last)
        assert chat.info() == before

    def test_a5_a_range_of_another_branch_is_refused(self, chat: tape.Tape) -> None:
        """A run must lie on the active branch."""
        fill(chat, 3)
        chat.append(role="assistant", content="aside", id="aside", parent="m1")
        chat.append(role="user", content="more", id="more")
        with pytest.raises(tape.InvalidEntry):
            chat.set_summary("x", first="m0", last="m2")

    def test_a6_partly_overlapping_summaries_are_refused(self, chat: tape.Tape) -> None:
        """Two summaries may stand side by side, or one may cover the other whole; never partly."""
        fill(chat, 12)
        one = chat.set_summary("one", first="m1", last="m3")
        two = chat.set_summary("two", first="m6", last="m8", expected=one.seq)
        assert [summary.text for summary in chat.summaries()] == ["one", "two"]
        for first, last in (("m2", "m5"), ("m7", "m7"), ("m5", "m7")):
            with pytest.raises(tape.InvalidEntry):
                chat.set_summary("x", first=first, last=last, expected=two.seq)
        three = chat.set_summary("three", first="m1", last="m9", expected=two.seq)
        assert [summary.text for summary in chat.summaries()] == ["three"]
        assert shown(chat) == ["m0", f"~summary:{three.seq}", "m10", "m11"]

    def test_a6_a_run_may_not_part_a_tool_call_from_its_result(self, chat: tape.Tape) -> None:
        """A run that ends between a call and its result, or begins between them, is refused."""
        chat.append(role="user", content="go", id="u")
        chat.append({"id": "call", "role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]})
        chat.append({"id": "result", "role": "tool", "tool_call_id": "c1", "content": "42"})
        chat.append(role="assistant", content="done", id="done")
        for first, last in (("u", "call"), ("result", "done")):
            with pytest.raises(tape.InvalidEntry):
                chat.set_summary("x", first=first, last=last)
        chat.set_summary("fine", first="call", last="result")
        assert chat.summaries()[0].covers == ["call", "result"]

    def test_a7_a_summary_holds_on_every_path_with_its_run(self, chat: tape.Tape) -> None:
        """Regenerating the last answer keeps the summary; a branch from inside its run does not see it."""
        fill(chat, 6)
        receipt = chat.set_summary("sum", first="m1", last="m3")
        chat.append(role="assistant", content="again", id="again", parent="m4")
        assert shown(chat) == ["m0", f"~summary:{receipt.seq}", "m4", "again"]
        chat.append(role="assistant", content="inside", id="inside", parent="m2")
        assert shown(chat) == ["m0", "m1", "m2", "inside"]
        assert chat.summary() is None
        chat.switch("m5")
        assert shown(chat) == ["m0", f"~summary:{receipt.seq}", "m4", "m5"]

    def test_a8_a_stale_writer_gets_the_current_summary(self, chat: tape.Tape) -> None:
        """A summary made on another basis is SummaryMoved with the current one; equal text and run do not matter."""
        fill(chat, 8)
        one = chat.set_summary("same", first="m1", last="m2")
        before = chat.info()
        with pytest.raises(tape.SummaryMoved) as caught:
            chat.set_summary("late", first="m1", last="m4", expected=None)
        assert caught.value.current.seq == one.seq
        assert chat.info() == before
        two = chat.set_summary("same", first="m1", last="m2", expected=one.seq)
        with pytest.raises(tape.SummaryMoved) as caught:
            chat.set_summary("late", first="m1", last="m4", expected=one.seq)
        assert caught.value.current.seq == two.seq

    def test_a_retry_with_its_key_is_a_duplicate(self, chat: tape.Tape) -> None:
        """The same summary under the same key is recorded once, although the summary has moved by then."""
        fill(chat, 6)
        one = chat.set_summary("sum", first="m1", last="m2", key="k")
        again = chat.set_summary("sum", first="m1", last="m2", key="k")
        assert (again.seq, again.duplicate) == (one.seq, True)

    def test_a11_a_retracted_source_takes_the_summary_out(self, chat: tape.Tape) -> None:
        """The other sources return and the manifest says why; restoring the source brings the summary back."""
        fill(chat, 6)
        receipt = chat.set_summary("sum", first="m1", last="m3")
        chat.retract("m2")
        assert shown(chat) == plain(0, 1, 3, 4, 5)
        why = [one.why for one in chat.context().manifest.excluded if one.first == receipt.seq]
        assert why == ["a message that it covers was retracted"]
        assert [m.id for m in chat.at(receipt.seq).context().messages] == ["m0", f"~summary:{receipt.seq}", "m4", "m5"]
        chat.restore("m2")
        assert shown(chat) == ["m0", f"~summary:{receipt.seq}", "m4", "m5"]
        assert chat.verify().ok

    def test_a11_a_revised_source_marks_the_summary_stale(self, chat: tape.Tape) -> None:
        """The summary stays, marked stale, and its text says so."""
        fill(chat, 6)
        chat.set_summary("sum", first="m1", last="m3")
        assert chat.summaries()[0].stale is False
        chat.revise("m2", content="other")
        assert chat.summaries()[0].stale is True
        assert "changed since" in chat.context().messages[1].content

    def test_a_message_restored_into_a_run_is_shown(self, chat: tape.Tape) -> None:
        """What the summary does not cover is shown verbatim, wherever it stands."""
        fill(chat, 6)
        chat.retract("m2")
        receipt = chat.set_summary("sum", first="m1", last="m3")
        chat.restore("m2")
        assert shown(chat) == ["m0", f"~summary:{receipt.seq}", "m2", "m4", "m5"]

    def test_an_anchor_ends_the_summaries_before_it(self, chat: tape.Tape) -> None:
        """A run may not cross the latest anchor, and context begins after it."""
        fill(chat, 6)
        one = chat.set_summary("sum", first="m1", last="m3")
        chat.anchor("here")
        fill(chat, 3, start=6)
        assert shown(chat) == plain(6, 7, 8)
        assert chat.summaries() == []
        with pytest.raises(tape.InvalidEntry):
            chat.set_summary("x", first="m4", last="m7", expected=None)
        chat.set_summary("after", first="m6", last="m7")
        assert chat.at(one.seq).summaries()[0].text == "sum"

    def test_f2_a_fork_inherits_the_summary_and_may_lose_it_alone(self, chat: tape.Tape) -> None:
        """A fork shows the parent's summary; retracting a source in the fork takes it out there only."""
        fill(chat, 6)
        receipt = chat.set_summary("sum", first="m1", last="m3")
        child = chat.fork("child")
        assert shown(child) == ["m0", f"~summary:chat:{receipt.seq}", "m4", "m5"]
        child.retract("m2")
        assert shown(child) == plain(0, 1, 3, 4, 5)
        assert shown(chat) == ["m0", f"~summary:{receipt.seq}", "m4", "m5"]
        assert chat.verify().ok
        assert child.verify().ok

    def test_a12_reading_twice_gives_equal_bytes(self, chat: tape.Tape) -> None:
        """There is no clock and no chance in a context."""
        fill(chat, 6)
        chat.set_summary("sum", first="m1", last="m3")
        assert chat.context().manifest == chat.context().manifest
        assert chat.context().to_openai() == chat.context().to_openai()


class TestCompact:
    def test_e13_conditions_hold_though_nothing_is_due(self, chat: tape.Tape) -> None:
        """A call that would write nothing is refused as one that writes, and goes on where they are met."""
        fill(chat, 5)
        info = chat.info()
        with pytest.raises(tape.HeadMoved) as moved:
            chat.compact(lambda request: "s", expected_head=999)
        assert (moved.value.expected, moved.value.actual) == (999, info.head)
        with pytest.raises(tape.ViewMoved):
            chat.compact(lambda request: "s", expected_view=999)
        assert chat.compact(lambda request: "s", expected_head=info.head, expected_view=info.view) is None

    def test_head_and_tail_are_kept_and_the_summary_is_continued(self, chat: tape.Tape) -> None:
        """Three messages at the head and a tail by tokens stay; the next compaction covers the first one."""
        fill(chat, 30)
        requests: list[tape.SummaryRequest] = []

        def summarize(request: tape.SummaryRequest) -> str:
            requests.append(request)
            return f"summary {len(requests)}"

        first = chat.compact(summarize, budget=120)
        assert first is not None
        ids = shown(chat)
        assert ids[:4] == [*plain(0, 1, 2), f"~summary:{first.seq}"]
        assert len(ids) >= 6
        assert requests[0].previous is None
        fill(chat, 20, start=30)
        second = chat.compact(summarize, budget=120)
        assert second is not None
        assert requests[1].previous == "summary 1"
        assert shown(chat)[:4] == [*plain(0, 1, 2), f"~summary:{second.seq}"]
        assert [summary.text for summary in chat.summaries()] == ["summary 2"]
        states = [entry.payload.data["state"] for entry in chat.entries(kinds=["event"])]  # type: ignore[union-attr]
        assert states == ["started", "finished", "started", "finished"]
        assert chat.verify().ok

    def test_a6_a_key_makes_it_repeatable(self, chat: tape.Tape) -> None:
        """With the key of a compaction that was recorded its receipt comes back, and the model is not asked again."""
        fill(chat, 30)
        with pytest.raises(tape.HeadMoved):
            chat.compact(lambda request: pytest.fail("called"), budget=120, expected_head=3)
        done = chat.compact(lambda request: "in short", budget=120, key="turn-9", expected_head=chat.info().head)
        assert done is not None
        again = chat.compact(lambda request: pytest.fail("called"), budget=120, key="turn-9")
        assert again is not None
        assert (again.seq, again.hash, again.duplicate) == (done.seq, done.hash, True)
        chat.append(role="user", content="x", key="used")
        with pytest.raises(tape.ProvenanceConflict):
            chat.compact(lambda request: pytest.fail("called"), budget=120, key="used")

    def test_nothing_between_head_and_tail_is_nothing_to_do(self, chat: tape.Tape) -> None:
        """A short tape is left alone, and the summarizer is not called."""
        fill(chat, 4)
        before = chat.info()
        assert chat.compact(lambda request: pytest.fail("called")) is None
        assert chat.info() == before

    @pytest.mark.parametrize("what", ["raises", "nothing", "blank", "number", "enormous", "hangs"])
    def test_a10_a_failing_summarizer_changes_nothing(self, chat: tape.Tape, what: str) -> None:
        """It is recorded as failed, the view is as before, and the tape is usable at once."""
        fill(chat, 30)
        before = chat.context().manifest.included
        release = threading.Event()

        def summarize(request: tape.SummaryRequest) -> Any:
            if what == "raises":
                raise RuntimeError("no model")
            if what == "hangs":
                release.wait(30)
            return {"nothing": None, "blank": "  ", "number": 7, "enormous": "word " * 100_000}.get(what, "late")

        with pytest.raises(tape.TapeError):
            chat.compact(summarize, budget=120, timeout=0.2 if what == "hangs" else 30)
        release.set()
        assert chat.context().manifest.included == before
        states = [entry.payload.data["state"] for entry in chat.entries(kinds=["event"])]  # type: ignore[union-attr]
        assert states == ["started", "failed"]
        assert chat.compact(lambda request: "fine", budget=120) is not None

    def test_a9_of_four_concurrent_compactions_one_wins(self, backend: Backend) -> None:
        """The others find that one is under way, or that the summary moved, and do nothing."""
        store = backend.open()
        chat = store.tape("chat")
        fill(chat, 30)
        ready = threading.Barrier(4)
        results: list[tape.Receipt | None] = []

        def run(number: int) -> None:
            ready.wait(20)
            results.append(chat.compact(lambda request: f"by {number}", budget=120))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(results) == 4
        assert sum(result is not None for result in results) == len(chat.summaries()) == 1
        assert chat.verify().ok

    def test_an_async_summarizer_is_awaited(self, backend: Backend) -> None:
        """A coroutine function may summarise, from sync and from async code."""

        async def summarize(request: tape.SummaryRequest) -> str:
            await asyncio.sleep(0)
            return f"of {len(request.messages)}"

        async def main() -> str:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                await chat.extend({"id": f"m{n}", "role": "user", "content": "word " * 20} for n in range(20))
                assert await chat.compact(summarize, budget=60) is not None
                summary = await chat.summary()
                assert summary is not None
                return summary.text

        assert asyncio.run(main()).startswith("of ")

    def test_needs_compaction_uses_the_same_count(self, chat: tape.Tape) -> None:
        """The trigger and the boundary count alike."""
        fill(chat, 20)
        tokens = chat.context().tokens
        assert chat.needs_compaction(tokens - 1)
        assert not chat.needs_compaction(tokens)


def compacted(chat: tape.Tape, **options: Any) -> list[str] | None:
    """Compact with nothing protected but what is asked for, and return what the new summary covers."""
    receipt = chat.compact(lambda request: "in short", **{"budget": 0, "head": 1, "min_tail": 1, **options})
    if receipt is None:
        return None
    return next(one.covers for one in chat.summaries() if one.seq == receipt.seq)


class TestRuns:
    """What is summarised is a run that the commit accepts."""

    def test_a_user_may_speak_between_a_call_and_its_result(self, chat: tape.Tape) -> None:
        """The run has the call, what was said meanwhile, and the result; or, if the result is in the tail, neither."""
        chat.extend([say("u0"), call("a", "c"), say("u1"), say("u2"), result("r", "c"), say("u3"), say("u4")])
        assert compacted(chat, min_tail=2) == ["a", "u1", "u2", "r"]

    def test_a_result_in_the_tail_keeps_only_its_call_out(self, chat: tape.Tape) -> None:
        """What was said between a call and its late result is summarised without them."""
        chat.extend([say("u0"), call("a", "c"), say("u1"), say("u2"), say("u3"), result("r", "c")])
        assert compacted(chat) == ["u1", "u2", "u3"]
        assert placed(chat) == ["u0", "a", "summary", "r"]

    def test_a_result_whose_call_is_in_the_head_stays_with_it(self, chat: tape.Tape) -> None:
        """Also where it comes in the middle of what could be summarised: the larger side is."""
        chat.extend([call("a", "c", "d"), result("rd", "d"), say("u1"), say("u2"), result("rc", "c")])
        talk(chat, "u3", "u4", "u5", "u6")
        assert compacted(chat) == ["u3", "u4", "u5"]
        assert compacted(chat) == ["u1", "u2"]
        assert placed(chat) == ["a", "rd", "summary", "rc", "summary", "u6"]

    def test_a_call_without_a_result_is_left_alone(self, chat: tape.Tape) -> None:
        """The runs before and behind it are summarised, one after the other."""
        chat.extend([say("u0"), say("u1"), say("u2"), call("a", "c"), say("u3"), say("u4"), say("u5"), say("u6")])
        assert compacted(chat) == ["u3", "u4", "u5"]
        assert compacted(chat) == ["u1", "u2"]
        assert compacted(chat) is None
        assert placed(chat) == ["u0", "summary", "a", "summary", "u6"]

    def test_a_call_settled_inside_its_message_is_no_open_call(self, chat: tape.Tape) -> None:
        """AI-SDK parts and server tools carry their results with them."""
        done = {"type": "tool-weather", "toolCallId": "w", "state": "output-available", "input": {}, "output": "sun"}
        searched = [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        ]
        chat.extend([say("u0"), say("a", "assistant", None, parts=[done]), say("b", "assistant", searched)])
        talk(chat, "u1", "u2")
        assert compacted(chat) == ["a", "b", "u1"]

    def test_a_message_restored_into_a_summarised_run_is_taken_in(self, chat: tape.Tape) -> None:
        """The new summary is made of the old one and of the message, and covers both."""
        talk(chat, *(f"u{n}" for n in range(6)))
        chat.retract("u2")
        chat.set_summary("old", first="u1", last="u3")
        chat.restore("u2")
        requests: list[tape.SummaryRequest] = []

        def summarize(request: tape.SummaryRequest) -> str:
            requests.append(request)
            return "new"

        assert chat.compact(summarize, budget=0, head=1, min_tail=1) is not None
        assert [message.id for message in requests[0].messages] == ["u2", "u4"]
        assert requests[0].previous == "old"
        assert chat.summaries()[0].covers == ["u1", "u2", "u3", "u4"]

    def test_what_is_protected_never_cuts_a_summarised_run(self, chat: tape.Tape) -> None:
        """A summary in the head stays there with the message that came back into its run."""
        talk(chat, *(f"u{n}" for n in range(8)))
        chat.retract("u2")
        chat.set_summary("old", first="u0", last="u3")
        chat.restore("u2")
        assert compacted(chat) == ["u4", "u5", "u6"]
        assert placed(chat) == ["summary", "u2", "summary", "u7"]

    def test_an_anchor_inside_a_summarised_run_ends_the_summary(self, chat: tape.Tape) -> None:
        """Behind the anchor nothing of it is in force: not in the context, not in the list, not for the next one."""
        talk(chat, *(f"u{n}" for n in range(8)))
        chat.set_summary("old", first="u1", last="u4")
        chat.switch("u2")
        chat.anchor("here")
        chat.switch("u7")
        assert placed(chat) == ["u3", "u4", "u5", "u6", "u7"]
        assert chat.summaries() == []
        assert chat.summary() is None
        assert compacted(chat) == ["u4", "u5", "u6"]

    def test_a_result_whose_call_is_before_the_anchor_is_left_alone(self, chat: tape.Tape) -> None:
        """As when a model sets the anchor by a tool call."""
        chat.extend([say("u0"), call("a", "c")])
        chat.anchor("here")
        chat.extend([say("u1"), say("u2"), result("r", "c"), say("u3"), say("u4"), say("u5")])
        assert compacted(chat, head=0) == ["u1", "u2"]
        assert compacted(chat, head=0) == ["u3", "u4"]
        assert compacted(chat, head=0) is None

    def test_parallel_calls_are_taken_with_all_of_their_results(self, chat: tape.Tape) -> None:
        """A message that makes three calls is summarised with the last of the three results, or not at all."""
        chat.extend([say("u0"), say("u1"), call("a", "c", "d", "e"), result("rc", "c"), result("rd", "d"), say("u2")])
        chat.extend([result("re", "e"), say("u3")])
        assert compacted(chat) == ["u1", "a", "rc", "rd", "u2", "re"]

    def test_a_revision_that_makes_a_call_ties_what_answers_it(self, chat: tape.Tape) -> None:
        """The result was bound to nothing, but the context shows the two as a pair."""
        chat.extend([say("u0"), say("a", "assistant"), say("u1"), say("u2"), result("r", "c"), say("u3")])
        chat.revise("a", call("a", "c"))
        before = chat.context().repairs
        compacted(chat, min_tail=2)
        assert chat.context().repairs == before

    def test_one_message_alone_is_not_worth_a_summary(self, chat: tape.Tape) -> None:
        """Summarising comes to an end: every compaction leaves fewer messages to show than before."""
        talk(chat, *(f"u{n}" for n in range(40)))
        sizes = [len(placed(chat))]
        while compacted(chat) is not None:
            sizes.append(len(placed(chat)))
            assert sizes[-1] < sizes[-2]
        assert sizes == [40, 3]
        assert placed(chat) == ["u0", "summary", "u39"]

    def test_a_fork_does_not_wait_for_a_compaction_of_its_parent(self, chat: tape.Tape) -> None:
        """Made while the parent compacts, it can compact at once."""
        talk(chat, *(f"u{n}" for n in range(8)))
        made: list[list[str] | None] = []

        def summarize(request: tape.SummaryRequest) -> str:
            made.append(compacted(chat.fork("child")))
            return "parent"

        assert chat.compact(summarize, budget=0, head=1, min_tail=1) is not None
        assert made == [["u1", "u2", "u3", "u4", "u5", "u6"]]


# -- how much of a summary is shown


class TestSize:
    """What is accepted as a summary is shown whole."""

    @pytest.mark.parametrize("what", ["asked", "twice", "spaces", "wide"])
    def test_15_an_accepted_summary_is_shown_with_its_last_line(self, chat: tape.Tape, what: str) -> None:
        """The open items stand at the end of a summary, and are what the next turn needs."""
        chat.extend(say(f"u{n}", content="word " * 5_000) for n in range(30))
        texts: list[str] = []

        def summarize(request: tape.SummaryRequest) -> str:
            assert request.max_tokens == 4_000
            piece = {"spaces": "a" + " " * 30, "wide": "東"}.get(what, "word ")
            end = "\nOpen items: book the hotel."
            times = 1
            limit = request.max_tokens * (1 if what == "asked" else 2) - estimate(end) - 10
            while times < 40_000 and estimate(piece * (times + 100)) <= limit:
                times += 100
            texts.append((piece * times)[: 40_000 - len(end)] + end)
            return texts[0]

        assert chat.compact(summarize, budget=100) is not None
        assert len(texts[0]) > 7_500
        content = str(chat.context().to_openai())
        assert "Open items: book the hotel." in content
        assert "characters cut]" not in content
        assert chat.summaries()[0].text == texts[0]

    def test_15_a_summary_too_long_to_be_shown_is_not_accepted(self, backend: Backend) -> None:
        """Also where a counter of the caller's finds it short."""
        chat = backend.open(counter=lambda text: 1).tape("chat")
        talk(chat, *(f"u{n}" for n in range(30)))
        with pytest.raises(tape.InvalidEntry):
            chat.compact(lambda request: "x" * 40_001, budget=5)
        assert states(chat) == ["started", "failed"]
        assert chat.compact(lambda request: "x" * 40_000, budget=5) is not None
        assert "characters cut]" not in str(chat.context().to_openai())

    def test_c4_a_longer_one_given_directly_is_cut_with_a_mark(self, chat: tape.Tape) -> None:
        """No summary floods the prompt, and a handoff keeps its own smaller cap."""
        talk(chat, "u0", "u1", "u2")
        chat.set_summary("x" * 100_000, first="u0", last="u1")
        text = chat.context().messages[0].content
        assert "characters cut]" in text
        assert len(text) < 41_000
        chat.handoff("next", summary="y" * 100_000)
        told = chat.context().to_openai()[0]["content"]
        assert "characters cut]" in told
        assert len(told) < 5_000
