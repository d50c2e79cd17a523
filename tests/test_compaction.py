"""Summaries that stand for runs of messages."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.backends import Backend

import tape


def fill(chat: tape.Tape, count: int, start: int = 0) -> None:
    chat.extend(
        {"id": f"m{n}", "role": "assistant" if n % 2 else "user", "content": f"message {n} " + "word " * 20}
        for n in range(start, start + count)
    )


def shown(chat: tape.Tape, **options: Any) -> list[str]:
    return [message.id for message in chat.context(**options).messages]


def plain(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


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
        assert why == ["a message it covers was retracted"]
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
