"""Anchors and handoffs: A1 to A4 and A12 to A14 of the acceptance list; summaries have a file of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from support.backends import Backend
from support.messages import say

import tape
from tape import new_ids


@pytest.fixture(scope="module")
def store(standing: Backend) -> tape.Store:
    return standing.open()


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    return store.tape(new_ids.new_id())


def window(reads: tape.Snapshot, branch: str | None = None) -> tuple[str | None, list[str]]:
    """Return the name of the anchor that the context begins with, and the messages after it."""
    context = reads.context(branch=branch)
    return context.anchor.name if context.anchor else None, [message.id for message in context.messages]


class TestContext:
    """Where context begins."""

    def test_a1_context_starts_after_the_latest_anchor(self, chat: tape.Tape) -> None:
        """Context holds what came after the newest anchor; everything before stays readable."""
        chat.extend(say("a", "b"))
        assert window(chat) == (None, ["a", "b"])
        chat.anchor("first")
        assert window(chat) == ("first", [])
        chat.extend(say("c"))
        chat.handoff("second", summary="a to c are done")
        chat.extend(say("d", "e"))
        assert window(chat) == ("second", ["d", "e"])
        assert [m.id for m in chat.messages()] == ["a", "b", "c", "d", "e"]
        assert chat.message("a").content == "I am a"
        assert chat.context().messages[0].parent == "c"

    def test_a1_an_anchor_before_the_first_message_stands_above_every_path(self, chat: tape.Tape) -> None:
        """Set on an empty tape, an anchor begins the context of every root."""
        chat.anchor("start", {"goal": "travel"})
        chat.extend(say("a"))
        chat.append(say("r")[0], parent=None)
        assert window(chat) == ("start", ["r"])
        assert window(chat, "a") == ("start", ["a"])

    def test_a1_an_anchor_holds_on_the_paths_through_its_message(self, chat: tape.Tape) -> None:
        """A branch that leaves the path above an anchor does not see it, and one below it does."""
        chat.extend(say("a", "b"))
        chat.anchor("at b")
        chat.extend(say("c"))
        chat.append(say("aside")[0], parent="a")
        assert window(chat) == (None, ["a", "aside"])
        chat.append(say("c2")[0], parent="b")
        assert window(chat) == ("at b", ["c2"])
        assert window(chat, "c") == ("at b", ["c"])
        chat.switch("a")
        assert window(chat) == (None, ["a"])

    def test_a1_the_deepest_anchor_is_the_latest_and_then_the_newest(self, chat: tape.Tape) -> None:
        """An anchor set later but higher up does not replace a deeper one; of two at one message the newer counts."""
        chat.extend(say("a", "b", "c"))
        chat.anchor("deep")
        chat.switch("a")
        chat.anchor("high and newer")
        assert window(chat, "c") == ("deep", [])
        assert window(chat, "b") == ("high and newer", ["b"])
        chat.switch("c")
        chat.anchor("deep and newest")
        assert window(chat) == ("deep and newest", [])

    def test_a1_an_anchor_survives_the_retraction_of_its_message(self, chat: tape.Tape) -> None:
        """Context still starts where the anchor was set, whether its message is there or not."""
        chat.extend(say("a", "b"))
        chat.anchor("here")
        chat.extend(say("c"))
        chat.retract("b")
        assert window(chat) == ("here", ["c"])
        chat.retract("a", "c")
        assert window(chat) == ("here", [])
        chat.restore("b")
        assert window(chat) == ("here", [])

    def test_a1_an_anchor_set_behind_a_retracted_head_stands_there(self, chat: tape.Tape) -> None:
        """The anchor takes the place of the head, also while that is out: restored, it is before the anchor."""
        chat.extend(say("a", "b"))
        chat.retract("b")
        chat.anchor("after b")
        chat.extend(say("c"))
        chat.restore("b")
        assert window(chat) == ("after b", ["c"])
        assert [m.id for m in chat.messages()] == ["a", "b", "c"]

    def test_a1_many_branches_between_anchor_and_head(self, chat: tape.Tape) -> None:
        """The latest anchor is found however many branches the path crosses below it."""
        chat.extend(say("top"))
        chat.anchor("top")
        parent = "top"
        for number in range(700):
            receipts = chat.extend(say(f"m{number}", f"left{number}"), parent=parent)
            parent = str(receipts[0].message_id)
        chat.switch(parent)
        name, shown = window(chat)
        assert (name, len(shown), shown[0], shown[-1]) == ("top", 700, "m0", "m699")

    def test_a14_the_latest_anchors_state_is_part_of_the_context(self, chat: tape.Tape) -> None:
        """State and summary come with the context, whatever the anchor is called, and are rendered for the model."""
        chat.extend(say("a"))
        chat.handoff(
            "session/start",
            summary="Dates fixed",
            phase="booking",
            next_steps=["book hotel"],
            source_ids=["a"],
            owner="planner",
            state={"budget": 900},
        )
        chat.extend(say("b"))
        context = chat.context()
        assert context.anchor is not None
        assert context.anchor == chat.anchors()[-1]
        assert (context.anchor.state, context.anchor.summary) == ({"budget": 900}, "Dates fixed")
        assert (context.anchor.phase, context.anchor.next_steps) == ("booking", ["book hotel"])
        assert (context.anchor.owner, context.anchor.source_ids) == ("planner", ["a"])
        first, *rest = context.to_openai()
        assert first["role"] == "user"
        assert [text in first["content"] for text in ("Dates fixed", "booking", "book hotel", "900")] == [True] * 4
        assert [message["content"] for message in rest] == ["I am b"]

    def test_a14_what_is_outside_context_never_enters_it(self, chat: tape.Tape) -> None:
        """Events, status and switches change neither the messages nor the anchor of a context."""
        chat.extend(say("a"))
        chat.anchor("here", {"step": 1})
        chat.extend(say("b"))
        before = chat.context()
        chat.event("score", {"value": 0.9})
        chat.event("here", {"step": 2})
        chat.complete()
        chat.reopen()
        chat.switch("b")
        after = chat.context()
        assert (after.messages, after.anchor, after.tokens) == (before.messages, before.anchor, before.tokens)
        assert after.to_openai() == before.to_openai()
        assert after.head == before.head + 5


class TestHandoff:
    """What a handoff must say."""

    @pytest.mark.parametrize("summary", ["", "   ", "\n\t", None, 7, ["done"]])
    def test_a2_a_handoff_without_a_summary_is_refused(self, store: tape.Store, chat: tape.Tape, summary: Any) -> None:
        """An empty, blank or absent summary is InvalidEntry naming the field, before anything is written."""
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.handoff("booking", summary=summary)
        assert caught.value.field == "summary"
        with pytest.raises(tape.TapeNotFound):
            store.get(chat.id)

    def test_a2_the_summary_is_a_required_argument(self, chat: tape.Tape) -> None:
        """Forgetting it is an error of the call itself."""
        with pytest.raises(TypeError):
            chat.handoff("booking")  # type: ignore[call-arg]
        assert chat.info().head == 0

    def test_a3_two_handoffs_of_one_name_in_one_instant_are_two_entries(
        self, standing: Backend, chat: tape.Tape
    ) -> None:
        """With a clock that stands still, equal handoffs without keys are distinct; a retry with its key is one."""
        with tape.open(standing.url, clock=lambda: 1_700_000_000_000_000, **standing.options) as still:
            there = still.tape(chat.id)
            one, two = (there.handoff("booking", summary="done") for _ in range(2))
            assert (one.seq, two.seq) == (2, 3)
            assert one.key != two.key
            assert (one.duplicate, two.duplicate) == (False, False)
            keyed = there.handoff("booking", summary="done", key="retry-me")
            again = there.handoff("booking", summary="done", key="retry-me")
            assert (keyed.seq, again.seq, again.duplicate, again.hash) == (4, 4, True, keyed.hash)
            with pytest.raises(tape.ProvenanceConflict) as caught:
                there.handoff("booking", summary="not done", key="retry-me")
            assert (caught.value.key, caught.value.seq) == ("retry-me", 4)
        assert [(anchor.seq, anchor.name) for anchor in chat.anchors()] == [(n, "booking") for n in (2, 3, 4)]
        assert len({anchor.recorded_at for anchor in chat.anchors()}) == 1

    @pytest.mark.parametrize("change", ["name", "phase", "next_steps", "source_ids", "owner", "state"])
    def test_a3_every_part_of_a_handoff_is_its_content(self, chat: tape.Tape, change: str) -> None:
        """A key that comes with any other argument is a conflict."""
        chat.extend(say("a", "b"))
        given: dict[str, Any] = {
            "name": "booking",
            "summary": "done",
            "phase": "one",
            "next_steps": ["go"],
            "source_ids": ["a"],
            "owner": "ann",
            "state": {"n": 1},
        }
        other = {"next_steps": ["stop"], "source_ids": ["b"], "state": {"n": 1.0}}.get(change, "another")
        chat.handoff(**given, key="k")
        assert chat.handoff(**given, key="k").duplicate
        with pytest.raises(tape.ProvenanceConflict):
            chat.handoff(**{**given, change: other}, key="k")
        assert chat.info().head == 4


class TestList:
    """Finding anchors."""

    def test_a4_anchors_list_newest_last_with_limit_and_paging(self, chat: tape.Tape) -> None:
        """The last ones come first to hand, oldest of them first; ``before`` gives the page before."""
        seqs = []
        for number in range(7):
            seqs.append(chat.anchor(f"step {number}", number).seq)
            chat.event("between")
        assert [anchor.state for anchor in chat.anchors()] == [0, 1, 2, 3, 4, 5, 6]
        page = chat.anchors(limit=3)
        assert [anchor.seq for anchor in page] == seqs[-3:]
        page = chat.anchors(limit=3, before=page[0].seq)
        assert [anchor.state for anchor in page] == [1, 2, 3]
        page = chat.anchors(limit=3, before=page[0].seq)
        assert [anchor.state for anchor in page] == [0]
        assert chat.anchors(limit=3, before=page[0].seq) == []

    def test_a4_twenty_anchors_are_listed_unless_asked_otherwise(self, chat: tape.Tape) -> None:
        """The default limit is 20, and a limit that is no positive number is refused."""
        for number in range(25):
            chat.anchor("step", number)
        assert [anchor.state for anchor in chat.anchors()] == list(range(5, 25))
        assert [anchor.state for anchor in chat.anchors(limit=100)] == list(range(25))
        for limit in (0, -1, True, "3"):
            with pytest.raises(tape.InvalidEntry):
                chat.anchors(limit=limit)  # type: ignore[arg-type]

    def test_a4_anchors_of_all_branches_are_listed(self, chat: tape.Tape) -> None:
        """The list is the tape's, not the path's."""
        chat.extend(say("a", "b"))
        chat.anchor("one")
        chat.append(say("c")[0], parent="a")
        chat.anchor("two")
        assert [anchor.name for anchor in chat.anchors()] == ["one", "two"]

    def test_a4_lookup_by_name_is_exact(self, chat: tape.Tape) -> None:
        """A name is never a pattern, nor is its case or its end ignored; the newest of that name is found."""
        for name in ("a%", "a_", "ab", "AB", "ab ", "a*"):
            chat.extend([{"role": "user", "content": name}])
            chat.anchor(name)
        for name in ("a%", "a_", "ab", "AB", "ab ", "a*"):
            assert [m.content for m in chat.at(name).messages()][-1] == name
        for name in ("a", "%", "aB", "_b", "a?"):
            with pytest.raises(tape.InvalidEntry) as caught:
                chat.at(name)
            assert caught.value.field == "point"
        chat.extend([{"role": "user", "content": "again"}])
        newest = chat.anchor("ab")
        assert chat.at("ab").info().head == newest.seq


class TestSources:
    """What anchors know of where they came from."""

    def test_a13_anchors_know_their_source_ids(self, chat: tape.Tape) -> None:
        """Source ids are kept in the order given, each once, and each at or before the anchor."""
        chat.extend(say("a", "b", "c"))
        receipt = chat.anchor("here", source_ids=["b", "a", "b"])
        handed = chat.handoff("there", summary="done", source_ids=["c"])
        assert [(anchor.seq, anchor.source_ids) for anchor in chat.anchors()] == [
            (receipt.seq, ["b", "a"]),
            (handed.seq, ["c"]),
        ]
        for anchor in chat.anchors():
            assert all(chat.message(id).seq < anchor.seq for id in anchor.source_ids)

    def test_a13_a_source_that_is_not_on_the_tape_is_refused(self, store: tape.Store, chat: tape.Tape) -> None:
        """An unknown source, or one of another tape, is UnknownMessage, and nothing is written."""
        chat.extend(say("a"))
        store.tape(new_ids.new_id()).extend(say("theirs"))
        for source in ("ghost", "theirs"):
            with pytest.raises(tape.UnknownMessage) as caught:
                chat.anchor("x", source_ids=["a", source])
            assert caught.value.message_id == source
            with pytest.raises(tape.UnknownMessage):
                chat.handoff("x", summary="done", source_ids=[source])
        assert chat.info().head == 2
        assert chat.anchors() == []

    def test_a13_anchor_parents_form_an_acyclic_graph(self, chat: tape.Tape) -> None:
        """Parents are seqs of earlier anchors or handoffs; itself, later ones and other entries are refused."""
        [message] = chat.extend(say("a"))
        first = chat.anchor("first")
        second = chat.handoff("second", summary="done")
        third = chat.anchor("third", parents=[first.seq, second.seq])
        head = third.seq
        for bad in (0, 1, message.seq, head + 1, head + 2, 10**6):
            with pytest.raises(tape.InvalidEntry) as caught:
                chat.anchor("bad", parents=[first.seq, bad])
            assert caught.value.field == "parents"
        assert chat.info().head == head
        known: set[int] = set()
        for anchor in chat.anchors():
            assert set(anchor.parents) <= known
            known.add(anchor.seq)
        assert [anchor.parents for anchor in chat.anchors()] == [[], [], [first.seq, second.seq]]

    def test_a13_an_anchor_is_stale_when_a_source_has_changed_or_gone(self, chat: tape.Tape) -> None:
        """Revising or retracting a source marks the anchor, which stays; restoring the same content lifts the mark."""
        chat.extend(say("a", "b"))
        chat.handoff("from a", summary="done", source_ids=["a"])
        chat.handoff("from b", summary="done", source_ids=["b"])
        chat.handoff("from none", summary="done")

        def stale(reads: tape.Snapshot) -> list[str]:
            return [anchor.name for anchor in reads.anchors() if anchor.stale]

        assert stale(chat) == []
        chat.retract("a")
        assert stale(chat) == ["from a"]
        chat.restore("a")
        assert stale(chat) == []
        chat.revise("b", content="changed")
        assert stale(chat) == ["from b"]
        context = chat.context()
        assert context.anchor is not None
        assert context.anchor.name == "from none"
        chat.handoff("from the new b", summary="done", source_ids=["b"])
        assert stale(chat) == ["from b"]
        assert stale(chat.at(6)) == []

    def test_a13_an_anchor_keeps_its_state_as_given(self, chat: tape.Tape) -> None:
        """State is any JSON, comes back equal, and is a copy: changing it changes nothing stored."""
        state: dict[str, Any] = {"deep": [1, 1.5, None, True, {"東京": ""}], "": {}}
        chat.anchor("here", state)
        [anchor] = chat.anchors()
        assert anchor.state == state
        anchor.state["deep"].append("more")
        state["other"] = 1
        assert chat.anchors()[0].state == {"deep": [1, 1.5, None, True, {"東京": ""}], "": {}}


class TestPurity:
    """Nothing depends on when it is read."""

    def test_a12_reading_twice_gives_equal_bytes(self, standing: Backend, chat: tape.Tape) -> None:
        """Messages, anchors, context and rendering are the same bytes at every read, from every store and clock."""
        chat.extend(say("a", "b"))
        chat.handoff("here", summary="done", state={"n": 1}, source_ids=["a"])
        chat.extend(say("c"))
        chat.retract("b")
        chat.revise("a", content="changed")

        def read(reads: tape.Snapshot) -> bytes:
            context = reads.context()
            told = [
                reads.messages(),
                reads.anchors(),
                reads.heads(),
                context.messages,
                context.anchor,
                context.tokens,
                context.to_openai(),
                reads.info(),
            ]
            return msgspec.json.encode(told)

        first = read(chat)
        assert read(chat) == first
        with tape.open(standing.url, clock=lambda: 4_000_000_000_000_000, **standing.options) as later:
            assert read(later.get(chat.id)) == first
            assert later.rebuild(chat.id) == 1
            assert read(later.get(chat.id)) == first
        assert read(chat.at(chat.info().head)) == first


class TestAsync:
    def test_a1_a2_a4_a14_async(self, standing: Backend) -> None:
        """Anchors begin the context, handoffs need a summary and lists page, awaited all the same."""

        async def work() -> None:
            async with tape.open_async(standing.url, **standing.options) as store:
                chat = store.tape(new_ids.new_id())
                await chat.extend(say("a"))
                await chat.anchor("first", {"n": 1})
                await chat.handoff("second", summary="done", state={"n": 2})
                await chat.extend(say("b"))
                context = await chat.context()
                assert [m.id for m in context.messages] == ["b"]
                assert context.anchor is not None
                assert (context.anchor.name, context.anchor.state) == ("second", {"n": 2})
                with pytest.raises(tape.InvalidEntry):
                    await chat.handoff("third", summary=" ")
                assert [anchor.name for anchor in await chat.anchors(limit=1)] == ["second"]
                [first] = await chat.anchors(limit=5, before=context.anchor.seq)
                assert first.name == "first"
                assert [m.id for m in await (await chat.at("first")).messages()] == ["a"]

        asyncio.run(asyncio.wait_for(work(), 60))
