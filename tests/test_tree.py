"""The message tree: T1 to T16 of the acceptance list."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from support.backends import Backend
from support.messages import CALL, RESULT, say

import tape
from tape import new_ids


@pytest.fixture(scope="module")
def store(standing: Backend) -> tape.Store:
    return standing.open()


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    return store.tape(new_ids.new_id())


def shown(reads: tape.Snapshot, branch: str | None = None) -> list[str]:
    return [message.id for message in reads.messages(branch=branch)]


def links(reads: tape.Snapshot) -> list[tuple[str, str | None]]:
    return [(message.id, message.parent) for message in reads.messages()]


def state(chat: tape.Tape) -> tuple[Any, ...]:
    """Return everything that a write could change, to tell that a refused one changed nothing."""
    info = chat.info()
    return info.head, info.head_hash, info.message_count, links(chat), [m.id for m in chat.heads()]


class TestPaths:
    def test_t1_a_new_tape_has_no_messages_and_no_head(self, store: tape.Store, chat: tape.Tape) -> None:
        """A tape that was never written reads as empty, and reading it does not create it."""
        assert chat.messages() == []
        assert chat.heads() == []
        assert chat.context().messages == []
        assert list(chat.entries()) == []
        assert (chat.info().head, chat.info().message_count) == (0, 0)
        with pytest.raises(tape.TapeNotFound):
            store.get(chat.id)

    def test_t1_a_created_tape_has_one_entry_and_no_messages(self, store: tape.Store) -> None:
        """Creating a tape records its opening, which is no message."""
        made = store.create()
        assert made.messages() == []
        assert made.heads() == []
        assert (made.info().head, made.info().message_count) == (1, 0)

    def test_t2_order_is_root_to_head(self, chat: tape.Tape) -> None:
        """Messages come root first, each with the one before it as its parent and the seq that placed it."""
        receipts = chat.extend(say("a", "b", "c"))
        assert links(chat) == [("a", None), ("b", "a"), ("c", "b")]
        assert [message.seq for message in chat.messages()] == [receipt.seq for receipt in receipts] == [2, 3, 4]

    def test_t2_a_missing_id_is_unknown(self, chat: tape.Tape) -> None:
        """A message that is not there is UnknownMessage with its id, or None from ``find``."""
        chat.extend(say("a"))
        for read in (chat.message, chat.children, lambda id: chat.messages(branch=id)):
            with pytest.raises(tape.UnknownMessage) as caught:
                read("ghost")
            assert (caught.value.message_id, caught.value.retracted) == ("ghost", False)
        assert chat.find("ghost") is None
        found = chat.find("a")
        assert found is not None
        assert found == chat.message("a")

    def test_t2_a_retracted_id_is_unknown_and_says_so(self, chat: tape.Tape) -> None:
        """A message that was retracted is not found either, and the error tells that it can be restored."""
        chat.extend(say("a"))
        chat.retract("a")
        with pytest.raises(tape.UnknownMessage) as caught:
            chat.message("a")
        assert caught.value.retracted
        assert chat.find("a") is None

    def test_t3_parent_omitted_continues_the_head(self, chat: tape.Tape) -> None:
        """A message without a parent goes behind the head, wherever that is."""
        chat.extend(say("a", "b"))
        chat.switch("a")
        chat.append(say("c")[0])
        assert links(chat) == [("a", None), ("c", "a")]

    def test_t3_parent_none_starts_a_root(self, chat: tape.Tape) -> None:
        """``parent=None`` starts a second root, which becomes the head; the first stays readable."""
        chat.extend(say("a", "b"))
        chat.append(role="user", content="afresh", id="r", parent=None)
        assert links(chat) == [("r", None)]
        assert shown(chat, "b") == ["a", "b"]
        assert [m.id for m in chat.heads()] == ["b", "r"]

    def test_t3_the_newest_leaf_is_the_head_unless_switched(self, chat: tape.Tape) -> None:
        """Every append moves the head to what it wrote, on whatever branch; only ``switch`` moves it elsewhere."""
        chat.extend(say("a", "b"))
        chat.append(say("c")[0], parent="a")
        assert shown(chat) == ["a", "c"]
        chat.append(say("d")[0], parent="b")
        assert shown(chat) == ["a", "b", "d"]
        chat.switch("c")
        assert shown(chat) == ["a", "c"]
        chat.event("noted")
        chat.revise("d", content="changed")
        assert shown(chat) == ["a", "c"]

    def test_t3_retract_and_restore_never_move_the_head(self, chat: tape.Tape) -> None:
        """With its message retracted the head shows the nearest live one above; the next message goes behind both."""
        chat.extend(say("a", "b", "c"))
        chat.retract("b", "c")
        assert shown(chat) == ["a"]
        chat.append(say("d")[0])
        assert links(chat) == [("a", None), ("d", "a")]
        chat.restore("c")
        assert links(chat) == [("a", None), ("c", "a"), ("d", "c")]
        chat.restore("b")
        assert links(chat) == [("a", None), ("b", "a"), ("c", "b"), ("d", "c")]

    def test_t4_two_children_of_one_parent_are_both_listed(self, chat: tape.Tape) -> None:
        """Children come in the order in which they were placed, and each history follows only its own path."""
        chat.extend(say("ask", "one", "more"))
        chat.append(say("two")[0], parent="ask")
        chat.append(say("three")[0], parent="ask")
        assert [m.id for m in chat.children("ask")] == ["one", "two", "three"]
        assert [m.parent for m in chat.children("ask")] == ["ask"] * 3
        assert shown(chat, "more") == ["ask", "one", "more"]
        assert shown(chat, "two") == ["ask", "two"]
        assert [m.id for m in chat.heads()] == ["more", "two", "three"]
        assert [m.id for m in chat.children("more")] == []

    def test_t4_regenerating_an_answer_keeps_the_old_one(self, chat: tape.Tape) -> None:
        """A second answer is a sibling of the first, which can be switched back to and continued."""
        chat.extend(say("ask", "first"))
        chat.append(say("second")[0], parent="ask")
        assert shown(chat) == ["ask", "second"]
        assert chat.message("first").content == "I am first"
        chat.switch("first")
        chat.append(say("next")[0])
        assert shown(chat) == ["ask", "first", "next"]
        assert chat.info().message_count == 4

    def test_t4_branches_of_branches(self, chat: tape.Tape) -> None:
        """A branch can begin anywhere on another, also inside it, and every path is its own."""
        chat.extend(say("a", "b", "c", "d"))
        chat.extend(say("c2", "d2", "e2"), parent="b")
        chat.extend(say("d3", "e3"), parent="c2")
        chat.extend(say("r", "s"), parent=None)
        assert shown(chat, "d") == ["a", "b", "c", "d"]
        assert shown(chat, "e2") == ["a", "b", "c2", "d2", "e2"]
        assert shown(chat, "e3") == ["a", "b", "c2", "d3", "e3"]
        assert shown(chat) == ["r", "s"]
        assert [m.id for m in chat.heads()] == ["d", "e2", "e3", "s"]

    def test_t5_an_unknown_parent_is_an_error(self, chat: tape.Tape) -> None:
        """An unknown or a retracted parent is UnknownMessage, and nothing is written."""
        chat.extend(say("a", "b"))
        chat.retract("b")
        before = state(chat)
        for parent, retracted in (("ghost", False), ("b", True)):
            for write in (
                lambda parent=parent: chat.append(say("x")[0], parent=parent),
                lambda parent=parent: chat.extend(say("x", "y"), parent=parent),
            ):
                with pytest.raises(tape.UnknownMessage) as caught:
                    write()
                assert (caught.value.message_id, caught.value.retracted) == (parent, retracted)
        assert state(chat) == before

    def test_t5_a_parent_in_another_tape_is_unknown(self, store: tape.Store, chat: tape.Tape) -> None:
        """Messages of another tape are no parents here, and a tape that does not exist is not made by the attempt."""
        other = store.tape(new_ids.new_id())
        other.extend(say("theirs"))
        with pytest.raises(tape.UnknownMessage):
            chat.append(say("x")[0], parent="theirs")
        with pytest.raises(tape.TapeNotFound):
            store.get(chat.id)

    def test_t6_a_batch_continues_the_head(self, chat: tape.Tape) -> None:
        """Messages of a batch follow each other, the first behind the head or the given parent."""
        chat.extend(say("a", "b"))
        chat.extend(say("c", "d"))
        assert links(chat) == [("a", None), ("b", "a"), ("c", "b"), ("d", "c")]
        chat.extend(say("e", "f"), parent="b")
        assert shown(chat) == ["a", "b", "e", "f"]
        assert chat.extend([]) == []

    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            ({"role": "user", "content": float("nan")}, tape.InvalidEntry),
            ({"role": 7, "content": "x"}, tape.InvalidEntry),
            ({"role": "user", "content": "x", "id": ""}, tape.InvalidEntry),
            ({"role": "user", "content": "other than before", "id": "a"}, tape.ProvenanceConflict),
            ("not a message", tape.InvalidEntry),
        ],
    )
    def test_t6_one_bad_message_and_nothing_is_written(
        self, chat: tape.Tape, bad: Any, error: type[tape.TapeError]
    ) -> None:
        """A batch is all or nothing, wherever the bad message stands."""
        chat.extend(say("a", "b"))
        before = state(chat)
        for place in range(3):
            batch: list[Any] = say("x", "y")
            batch.insert(place, bad)
            with pytest.raises(error):
                chat.extend(batch)
            assert state(chat) == before

    def test_t6_a_bad_batch_does_not_create_the_tape(self, store: tape.Store, chat: tape.Tape) -> None:
        """A first write that is refused leaves no tape behind."""
        with pytest.raises(tape.InvalidEntry, match="ids="):
            chat.extend([*say("a", "b"), {"role": "user", "content": "another a", "id": "a"}])
        with pytest.raises(tape.TapeNotFound):
            store.get(chat.id)

    def test_t6_a_batch_goes_on_behind_what_was_there(self, chat: tape.Tape) -> None:
        """A message that is on the tape already is a duplicate, and the rest of the batch goes behind it."""
        chat.extend(say("a", "b", "c"))
        receipts = chat.extend(say("b", "x"))
        assert [receipt.duplicate for receipt in receipts] == [True, False]
        assert shown(chat) == ["a", "b", "x"]

    def test_t13_the_same_message_id_in_two_tapes_is_legal(self, store: tape.Store, chat: tape.Tape) -> None:
        """An id belongs to its tape: another tape holds another message under it."""
        other = store.tape(new_ids.new_id())
        chat.append(role="user", content="here", id="m")
        other.append(role="user", content="there", id="m")
        other.revise("m", content="still there")
        chat.retract("m")
        assert [m.content for m in other.messages()] == ["still there"]
        assert chat.messages() == []

    def test_t15_switch_selects_a_branch(self, standing: Backend, chat: tape.Tape) -> None:
        """The chosen branch is the head for every reader, and still after the store was opened anew."""
        chat.extend(say("ask", "first", "more"))
        chat.append(say("second")[0], parent="ask")
        receipt = chat.switch("first")
        assert receipt.message_id == "first"
        with tape.open(standing.url, **standing.options) as again:
            there = again.get(chat.id)
            assert shown(there) == ["ask", "first"]
            there.append(say("third")[0])
            assert shown(there) == ["ask", "first", "third"]
        assert shown(chat) == ["ask", "first", "third"]
        assert [m.id for m in chat.heads()] == ["more", "second", "third"]

    def test_t15_switch_to_none(self, standing: Backend, chat: tape.Tape) -> None:
        """No message is the head: reads are empty, the next message is a new root, and every branch is still there."""
        chat.extend(say("a", "b"))
        receipt = chat.switch(None)
        assert (receipt.message_id, chat.info().message_count) == (None, 2)
        with tape.open(standing.url, **standing.options) as again:
            there = again.get(chat.id)
            assert shown(there) == []
            assert (there.context().messages, there.heads()[0].id) == ([], "b")
            there.append(say("c")[0])
            assert there.message("c").parent is None
        assert shown(chat) == ["c"]
        assert [m.id for m in chat.heads()] == ["b", "c"]
        chat.switch("b")
        assert shown(chat) == ["a", "b"]
        assert [shown(chat.at(seq)) for seq in (3, 4, 5)] == [["a", "b"], [], ["c"]]
        assert chat.verify().ok

    def test_t15_switch_to_none_in_a_family(self, store: tape.Store, chat: tape.Tape) -> None:
        """A fork may leave what it inherits and begin anew; a merge continues the parent with it. Anchors stay."""
        chat.anchor("start", {"n": 1})
        chat.extend(say("a", "b"))
        child = chat.fork(f"{chat.id}/child")
        child.switch(None)
        assert shown(child) == []
        anchor = child.context().anchor
        assert anchor is not None
        assert anchor.name == "start"
        child.append(say("new")[0])
        assert (shown(child), child.message("a").id) == (["new"], "a")
        chat.merge(child)
        assert shown(chat) == ["a", "b", "new"]
        chat.switch(None)
        young = chat.fork(f"{chat.id}/young")
        assert shown(young) == []
        young.append(say("fresh")[0])
        chat.merge(young)
        assert shown(chat) == ["fresh"]
        file = io.BytesIO()
        store.export(chat.id, file, family=True)
        with tape.open(":memory:") as other:
            other.import_(io.BytesIO(file.getvalue()))
            assert shown(other.get(chat.id)) == ["fresh"]
            assert other.verify().ok
        for one in (chat, child, young):
            store.rebuild(one.id)
            assert one.verify().ok

    def test_t15_switch_to_none_of_an_unwritten_tape(self, chat: tape.Tape) -> None:
        """There is nothing to leave, and that is recorded like any other choice; with its key it is repeatable."""
        first = chat.switch(None, key="k")
        assert chat.switch(None, key="k").seq == first.seq
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(say("a")[0])
            chat.switch("a", key="k")

    def test_t15_switch_to_what_is_not_there_is_refused(self, chat: tape.Tape) -> None:
        """An unknown and a retracted message cannot be the head; the head stays."""
        chat.extend(say("a", "b"))
        chat.retract("a")
        before = state(chat)
        for id, retracted in (("ghost", False), ("a", True)):
            with pytest.raises(tape.UnknownMessage) as caught:
                chat.switch(id)
            assert caught.value.retracted == retracted
        assert state(chat) == before

    def test_t15_a_switched_head_outlives_its_retraction(self, chat: tape.Tape) -> None:
        """The head stays on the message that was chosen: retracted, it shows what is above, and restored, itself."""
        chat.extend(say("a", "b", "c"))
        chat.switch("b")
        chat.retract("b")
        assert shown(chat) == ["a"]
        chat.restore("b")
        assert shown(chat) == ["a", "b"]


class TestChanges:
    def test_t7_retracting_an_inner_message_splices_its_children(self, chat: tape.Tape) -> None:
        """The children of a retracted message attach to its nearest live ancestor; nothing else disappears."""
        chat.extend(say("a", "b", "c", "d"))
        chat.append(say("c2")[0], parent="b")
        chat.switch("d")
        chat.retract("b")
        assert links(chat) == [("a", None), ("c", "a"), ("d", "c")]
        assert [(m.id, m.parent) for m in chat.children("a")] == [("c", "a"), ("c2", "a")]
        chat.retract("a")
        assert links(chat) == [("c", None), ("d", "c")]
        assert chat.message("c2").parent is None
        assert [m.id for m in chat.heads()] == ["d", "c2"]
        assert chat.info().message_count == 3
        chat.restore("a", "b")
        assert links(chat) == [("a", None), ("b", "a"), ("c", "b"), ("d", "c")]

    def test_t7_several_are_retracted_by_one_entry(self, chat: tape.Tape) -> None:
        """``retract`` of many is one entry, all or none, and so is ``restore``."""
        chat.extend(say("a", "b", "c", "d"))
        receipt = chat.retract("b", "d", reason="off topic")
        assert (receipt.seq, receipt.message_id) == (6, None)
        assert shown(chat) == ["a", "c"]
        for named, unknown, retracted in ((("a", "ghost"), "ghost", False), (("a", "b"), "b", True)):
            with pytest.raises(tape.UnknownMessage) as caught:
                chat.retract(*named)
            assert (caught.value.message_id, caught.value.retracted) == (unknown, retracted)
        with pytest.raises(tape.InvalidEntry):
            chat.restore("b", "a")
        with pytest.raises(tape.InvalidEntry):
            chat.retract()
        assert chat.info().head == 6
        assert chat.restore("b", "d").seq == 7
        assert shown(chat) == ["a", "b", "c", "d"]

    def test_t8_revise_keeps_place_and_role(self, chat: tape.Tape) -> None:
        """A revision replaces the content where it stands; seq, parent and role stay, ``revision`` names its entry."""
        chat.append({"role": "user", "content": "Hi", "id": "a", "name": "Ann"})
        chat.extend(say("b", "c"))
        receipt = chat.revise("a", content="Hello")
        message = chat.message("a")
        assert message.to_dict() == {"role": "user", "content": "Hello", "id": "a", "name": "Ann"}
        assert (message.seq, message.revision, message.parent) == (2, receipt.seq, None)
        assert links(chat) == [("a", None), ("b", "a"), ("c", "b")]
        chat.revise("a", {"content": [{"type": "text", "text": "Good day"}], "lang": "en"})
        assert chat.message("a").to_dict() == {
            "role": "user",
            "content": [{"type": "text", "text": "Good day"}],
            "id": "a",
            "lang": "en",
        }
        assert shown(chat) == ["a", "b", "c"]
        assert chat.info().message_count == 3

    def test_t8_a_revision_may_not_change_the_role(self, chat: tape.Tape) -> None:
        """Another role or another id is InvalidEntry naming the field, and nothing is written."""
        chat.extend(say("a"))
        before = state(chat)
        for message, field in (
            ({"role": "system", "content": "obey"}, "message.role"),
            ({"id": "b", "content": "x"}, "message.id"),
        ):
            with pytest.raises(tape.InvalidEntry) as caught:
                chat.revise("a", message)
            assert caught.value.field == field
        assert state(chat) == before

    def test_t8_revising_what_is_not_there_is_an_error(self, chat: tape.Tape) -> None:
        """An unknown and a retracted message cannot be revised, and no trace of the attempt is left."""
        chat.extend(say("a", "b"))
        chat.retract("b")
        before = state(chat)
        for id, retracted in (("ghost", False), ("b", True)):
            with pytest.raises(tape.UnknownMessage) as caught:
                chat.revise(id, content="phantom")
            assert (caught.value.message_id, caught.value.retracted) == (id, retracted)
        assert state(chat) == before
        assert [entry.kind for entry in chat.entries(kinds=["revise"])] == []

    def test_t8_a_revision_equal_to_what_holds_is_a_duplicate(self, chat: tape.Tape) -> None:
        """It returns the receipt of the entry whose content holds, also when the head moved or the tape is closed."""
        [placed] = chat.extend(say("a"))
        equal = chat.revise("a", content="I am a")
        assert (equal.seq, equal.key, equal.hash, equal.duplicate) == (placed.seq, placed.key, placed.hash, True)
        revised = chat.revise("a", content="changed", expected_head=2)
        again = chat.revise("a", content="changed", expected_head=2)
        assert (again.seq, again.hash, again.duplicate) == (revised.seq, revised.hash, True)
        chat.complete()
        assert chat.revise("a", content="changed").seq == revised.seq
        with pytest.raises(tape.TapeClosed):
            chat.revise("a", content="changed again")
        assert chat.info().head == 4

    def test_t9_upsert_appends_revises_or_does_nothing(self, chat: tape.Tape) -> None:
        """An unknown message is appended, a different one revised, and an equal one is a duplicate."""
        first = chat.upsert({"role": "user", "content": "draft", "id": "a"})
        same = chat.upsert({"role": "user", "content": "draft", "id": "a"})
        assert (same.seq, same.duplicate) == (first.seq, True)
        changed = chat.upsert({"role": "user", "content": "final", "id": "a"})
        assert (changed.seq, changed.duplicate) == (3, False)
        assert chat.upsert({"role": "user", "content": "final", "id": "a"}).seq == 3
        assert [entry.kind for entry in chat.entries()] == ["open", "append", "revise"]
        assert [m.content for m in chat.messages()] == ["final"]
        generated = [chat.upsert({"role": "user", "content": "no id"}) for _ in range(2)]
        assert generated[0].message_id != generated[1].message_id

    def test_t9_upsert_never_moves_a_message(self, chat: tape.Tape) -> None:
        """A message keeps its parent, and the head stays, when an upsert revises it from another branch."""
        chat.extend(say("a", "b", "c"))
        chat.append(say("x")[0], parent="a")
        chat.upsert({"role": "user", "content": "changed", "id": "b"})
        assert shown(chat) == ["a", "x"]
        assert chat.message("b").parent == "a"
        assert shown(chat, "c") == ["a", "b", "c"]

    def test_t9_an_upsert_with_its_key_again_is_a_duplicate(self, chat: tape.Tape) -> None:
        """Whether it appended or revised, the same call with the same key returns the first receipt."""
        appended = chat.upsert({"role": "user", "content": "one", "id": "a"}, key="first")
        revised = chat.upsert({"role": "user", "content": "two", "id": "a"}, key="second")
        for key, content, receipt in (("first", "one", appended), ("second", "two", revised)):
            again = chat.upsert({"role": "user", "content": content, "id": "a"}, key=key, expected_head=1)
            assert (again.seq, again.key, again.duplicate) == (receipt.seq, key, True)
            with pytest.raises(tape.ProvenanceConflict):
                chat.upsert({"role": "user", "content": "three", "id": "a"}, key=key)
        assert chat.info().head == 3

    def test_t9_upsert_of_a_retracted_message_is_refused(self, chat: tape.Tape) -> None:
        """What was taken out does not come back by an upsert, equal or not: restore it first."""
        chat.extend(say("a"))
        chat.retract("a")
        for content in ("I am a", "changed"):
            with pytest.raises(tape.UnknownMessage) as caught:
                chat.upsert({"role": "user", "content": content, "id": "a"})
            assert caught.value.retracted
        assert chat.info().head == 3

    def test_t10_retraction_hides_and_takes_tool_results_along(self, chat: tape.Tape) -> None:
        """A retracted message is in no read, nor are the results of its calls; restore brings all of it back."""
        chat.extend(say("a"))
        chat.append(CALL, id="call")
        chat.append(RESULT, id="result")
        chat.append(role="assistant", content="It rains.", id="say")
        chat.retract("call")
        assert links(chat) == [("a", None), ("say", "a")]
        assert [m.id for m in chat.context().messages] == ["a", "say"]
        assert [m.id for m in chat.children("a")] == ["say"]
        assert (chat.find("call"), chat.find("result")) == (None, None)
        assert chat.info().message_count == 2
        chat.restore("call")
        assert links(chat) == [("a", None), ("call", "a"), ("result", "call"), ("say", "result")]
        assert chat.info().message_count == 4

    def test_t10_restore_brings_back_the_last_content(self, chat: tape.Tape) -> None:
        """A message comes back as it was when it went, in its own place."""
        chat.extend(say("a", "b", "c"))
        receipt = chat.revise("b", content="changed")
        chat.retract("b")
        chat.restore("b")
        message = chat.message("b")
        assert (message.content, message.revision, message.parent) == ("changed", receipt.seq, "a")

    def test_t10_what_is_not_retracted_cannot_be_restored(self, chat: tape.Tape) -> None:
        """Restoring a live message, or undoing a clear that never was, is InvalidEntry and writes nothing."""
        chat.extend(say("a"))
        before = state(chat)
        with pytest.raises(tape.InvalidEntry):
            chat.restore("a")
        with pytest.raises(tape.InvalidEntry):
            chat.restore()
        with pytest.raises(tape.UnknownMessage):
            chat.restore("ghost")
        assert state(chat) == before

    def test_t11_a_revision_that_drops_a_tool_call_drops_its_result(self, chat: tape.Tape) -> None:
        """The result goes with the revision that no longer makes the call, and returns with one that does."""
        chat.append(CALL, id="call")
        chat.append(RESULT, id="result")
        chat.append(role="assistant", content="It rains.", id="say")
        chat.revise("call", {"content": "Never mind."})
        assert links(chat) == [("call", None), ("say", "call")]
        assert chat.find("result") is None
        chat.revise("call", CALL)
        assert links(chat) == [("call", None), ("result", "call"), ("say", "result")]

    def test_t11_content_alone_keeps_the_call(self, chat: tape.Tape) -> None:
        """``revise(content=…)`` leaves every other field as it was, and so the call and its result."""
        chat.append(CALL, id="call")
        chat.append(RESULT, id="result")
        chat.revise("call", content="Let me look.")
        assert shown(chat) == ["call", "result"]


class TestClear:
    def test_t12_clear_empties_the_view_of_one_tape_only(self, store: tape.Store, chat: tape.Tape) -> None:
        """All messages on all branches go by one entry; another tape is not touched; the past stays readable."""
        other = store.tape(new_ids.new_id())
        other.extend(say("a"))
        chat.extend(say("a", "b", "c"))
        chat.append(say("x")[0], parent="a")
        receipt = chat.clear("start over")
        assert receipt.seq == 6
        assert (chat.messages(), chat.heads(), chat.info().message_count) == ([], [], 0)
        assert (chat.find("a"), chat.find("c")) == (None, None)
        assert shown(other) == ["a"]
        assert shown(chat.at(5)) == ["a", "x"]
        assert shown(chat.at(4)) == ["a", "b", "c"]
        assert [entry.kind for entry in chat.entries()] == ["open", *["append"] * 4, "clear"]

    def test_t12_what_comes_after_a_clear_stands_alone(self, chat: tape.Tape) -> None:
        """New messages begin at the top; what was cleared is no parent, no target and no head any more."""
        chat.extend(say("a", "b"))
        chat.clear()
        chat.append(say("c")[0])
        assert links(chat) == [("c", None)]
        writes: list[Callable[[], object]] = [
            lambda: chat.append(say("x")[0], parent="a"),
            lambda: chat.revise("a", content="x"),
            lambda: chat.switch("b"),
            lambda: chat.retract("b"),
        ]
        for write in writes:
            with pytest.raises(tape.UnknownMessage) as caught:
                write()
            assert caught.value.retracted

    def test_t12_restore_without_ids_undoes_the_last_clear(self, chat: tape.Tape) -> None:
        """The cleared messages return to their places above what came after; earlier clears are undone in turn."""
        chat.extend(say("a", "b"))
        chat.clear()
        chat.extend(say("c"))
        chat.clear()
        chat.extend(say("d"))
        chat.restore()
        assert shown(chat) == ["c", "d"]
        chat.restore()
        assert links(chat) == [("a", None), ("b", "a"), ("c", "b"), ("d", "c")]
        with pytest.raises(tape.InvalidEntry):
            chat.restore()

    def test_t12_undoing_a_clear_brings_back_only_what_it_took(self, chat: tape.Tape) -> None:
        """A message that was retracted before the clear stays retracted."""
        chat.extend(say("a", "b", "c"))
        chat.retract("b")
        chat.clear()
        chat.restore()
        assert shown(chat) == ["a", "c"]

    def test_t12_single_messages_return_from_under_a_clear(self, chat: tape.Tape) -> None:
        """``restore(id)`` brings back one message that a clear took, or that was retracted before it."""
        chat.extend(say("a", "b", "c", "d"))
        chat.retract("b")
        chat.clear()
        chat.restore("b")
        assert links(chat) == [("b", None)]
        chat.restore("d")
        assert links(chat) == [("b", None), ("d", "b")]
        chat.restore()
        assert shown(chat) == ["a", "b", "c", "d"]
        assert chat.info().message_count == 4
        assert chat.verify().ok

    def test_t12_clear_ends_anchors(self, chat: tape.Tape) -> None:
        """Anchors set before a clear no longer begin the context nor are listed, until the clear is undone."""
        chat.extend(say("a"))
        chat.anchor("start", {"step": 1})
        chat.extend(say("b"))
        chat.clear()
        assert chat.anchors() == []
        assert chat.context().anchor is None
        chat.extend(say("c"))
        chat.restore()
        assert [anchor.name for anchor in chat.anchors()] == ["start"]
        assert [m.id for m in chat.context().messages] == ["b", "c"]


class TestUpsert:
    """T9: an upsert that is equal to what holds writes nothing, however the id was given."""

    @pytest.mark.parametrize("first", ["beside", "inside"])
    @pytest.mark.parametrize("again", ["beside", "inside", "both"])
    def test_t9_an_equal_upsert_is_a_duplicate_wherever_the_id_stands(
        self, chat: tape.Tape, first: str, again: str
    ) -> None:
        """An id is the same whether it stands in the message or beside it."""
        said: dict[str, Any] = {"role": "user", "content": "one"}

        def given(how: str, content: str) -> tuple[dict[str, Any], dict[str, Any]]:
            inside = {"id": "m"} if how in ("inside", "both") else {}
            return {**said, "content": content, **inside}, {"id": "m"} if how in ("beside", "both") else {}

        message, options = given(first, "one")
        receipt = chat.upsert(message, **options)
        for content in ("one", "two", "one"):
            message, options = given(again, content)
            written = chat.upsert(message, **options)
            repeated = chat.upsert(message, **options)
            assert repeated.duplicate
            assert repeated.seq == written.seq
        assert chat.upsert(message, **options).seq == chat.message("m").revision == receipt.seq + 2
        assert chat.revise("m", {"id": "m", **said}).duplicate
        assert chat.revise("m", said).duplicate
        assert chat.info().head == receipt.seq + 2
