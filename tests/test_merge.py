"""What a merge promises of versioned state, of blocks, and of tool calls that the parent still waits for."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.asking import asked, work
from support.backends import Backend

import tape
from tape import BlockSpec, Slot
from tape.core.entries import payloads
from tape.core.merge.three_way import BlockSide, BlockValue, block_lines, merge_block
from tape.core.messages import toolcalls

POLICIES = ("fail", "ours", "theirs")

Open = Callable[..., tape.Store]


def grow(value: Any) -> Any:
    """Migrate a value so that doing it twice shows."""
    return {"all": value["n"]} if isinstance(value, dict) else value * 10


def version(number: int, **options: Any) -> Slot:
    """Declare the slot ``form`` in one of its versions."""
    return Slot("form", version=number, migrate=dict.fromkeys(range(1, number), grow), **options)


@pytest.fixture
def opened(backend: Backend) -> Iterator[Open]:
    """Open the same database with other declarations, one program after the other."""
    stores: list[tape.Store] = []

    def opened(**options: Any) -> tape.Store:
        stores.append(backend.open(**options))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def schema_of(chat: tape.Tape) -> int:
    """Return the version recorded with the newest state."""
    *_, last = chat.entries(kinds=["state"])
    assert isinstance(last.payload, payloads.State)
    return last.payload.schema


class TestVersionedState:
    """Issue 8: a merged value keeps the version that it has."""

    def test_a_merged_slot_is_not_migrated_again(self, opened: Open) -> None:
        """A number put by a fork under version 2 reads the same on the parent, now and under version 3."""
        store = opened(slots=[version(2)])
        chat = store.tape("chat")
        child = chat.fork("child")
        child.put("form", 7)
        chat.merge(child)
        assert chat.state("form") == 7
        assert schema_of(chat) == 2
        assert opened(slots=[version(3)]).tape("chat").state("form") == 70

    def test_a_migrator_of_objects_is_never_called_on_its_own_result(self, opened: Open) -> None:
        """A migrator that needs the old shape finds it, or is not called."""
        store = opened(slots=[version(2)])
        chat = store.tape("chat")
        chat.put("form", {"all": 1, "other": 1})
        child = chat.fork("child")
        child.patch("form", {"all": 2})
        chat.patch("form", {"other": 2})
        chat.merge(child)
        assert chat.state("form") == {"all": 2, "other": 2}

    def test_a_fork_of_the_new_version_merges_into_a_parent_of_the_old_one(self, opened: Open) -> None:
        """What the parent holds is migrated once to compare it, and the result has the new version."""
        old = opened(slots=[version(1)]).tape("chat")
        old.put("form", {"n": 1})
        new = opened(slots=[version(2)])
        child = new.tape("chat").fork("child")
        child.patch("form", {"all": 5})
        new.tape("chat").merge(child)
        assert new.tape("chat").state("form") == {"all": 5}
        assert schema_of(new.tape("chat")) == 2

    def test_a_parent_of_the_new_version_takes_a_fork_of_the_old_one(self, opened: Open) -> None:
        """The fork's value is migrated once; what only one side changed comes together, the rest conflicts."""
        old = opened(slots=[version(1)])
        old.tape("chat").put("form", 1)
        old.tape("chat").fork("child").put("form", 2)
        new = opened(slots=[version(2)]).tape("chat")
        new.put("form", 30)
        with pytest.raises(tape.MergeConflict) as caught:
            new.merge("child")
        assert [(one.message_id, one.ours, one.theirs) for one in caught.value.conflicts] == [
            ("form", {"value": 30}, {"value": 20})
        ]
        new.merge("child", on_conflict="theirs")
        assert (new.state("form"), schema_of(new)) == (20, 2)

    def test_a_program_that_declares_nothing_keeps_the_version(self, opened: Open) -> None:
        """It can compare values of one version by path, and what it writes reads the same for the others."""
        declared = opened(slots=[version(2)])
        declared.tape("chat").put("form", {"all": 1, "other": 1})
        declared.tape("chat").fork("child").patch("form", {"all": 2})
        declared.tape("chat").patch("form", {"other": 2})
        opened().tape("chat").merge("child")
        chat = declared.tape("chat")
        assert chat.state("form") == {"all": 2, "other": 2}
        assert schema_of(chat) == 2

    def test_versions_that_cannot_be_brought_together_are_compared_whole(self, opened: Open) -> None:
        """Without migrators a value is taken as it is with its version, and conflicts if the parent changed its own."""
        for policy in POLICIES:
            opened(slots=[version(1)]).tape(policy).put("form", {"n": 1})
            new = opened(slots=[version(2)]).tape(policy)
            new.fork(f"{policy}-child").patch("form", {"all": 2})
            plain = opened().tape(policy)
            if policy != "fail":
                plain.patch("form", {"m": 1})
                with pytest.raises(tape.MergeConflict) as caught:
                    plain.merge(f"{policy}-child")
                assert [one.message_id for one in caught.value.conflicts] == ["form"]
            plain.merge(f"{policy}-child", on_conflict=policy)
            assert new.state("form") == ({"all": 1} if policy == "ours" else {"all": 2})

    def test_an_older_program_leaves_the_version_of_what_it_patches(self, opened: Open) -> None:
        """What a newer program wrote is not migrated again after a patch by one that does not know its version."""
        new = opened(slots=[version(2)]).tape("chat")
        new.put("form", {"all": 1})
        for number, slots in enumerate(([], [version(1)])):
            opened(slots=slots).tape("chat").patch("form", {"by": number})
            assert new.state("form") == {"all": 1, "by": number}

    def test_a_merged_value_fits_the_declared_type(self, opened: Open) -> None:
        """Two changes that are each allowed but not together are a conflict; ours and theirs resolve it."""
        kinds = dict[str, int | str] | int
        for policy in ("ours", "theirs"):
            store = opened(slots=[Slot("form", type=kinds)])
            chat = store.tape(policy)
            chat.put("form", {"a": 1})
            child = chat.fork(f"{policy}-child")
            child.patch("form", {"b": 2})
            narrow = opened(slots=[Slot("form", type=dict[str, int])]).tape(policy)
            opened().tape(f"{policy}-child").patch("form", {"b": [1]})
            with pytest.raises(tape.MergeConflict) as caught:
                narrow.merge(f"{policy}-child")
            assert [one.message_id for one in caught.value.conflicts] == ["form"]
            if policy == "ours":
                assert narrow.merge(f"{policy}-child", on_conflict=policy).kept == ["form"]
                assert narrow.state("form") == {"a": 1}
            else:
                with pytest.raises(tape.InvalidEntry, match="type"):
                    narrow.merge(f"{policy}-child", on_conflict=policy)

    def test_every_strategy_and_the_async_store_keep_the_version(self, backend: Backend) -> None:
        """State travels with squash and link too, and from the asynchronous store as from the other."""

        async def work() -> None:
            async with await tape.open_async(backend.url, slots=[version(2)], **backend.options) as store:
                for strategy in ("replay", "squash", "link"):
                    chat = store.tape(strategy)
                    child = await chat.fork(f"{strategy}-child")
                    await child.put("form", 7)
                    await chat.merge(child, strategy=strategy)
                    assert await chat.state("form") == 7

        asyncio.run(work())


MEMORY = BlockSpec("memory", "what to keep", max_tokens=40, default="The user likes tea.")


def shown(chat: tape.Tape, label: str = "memory") -> tuple[str, str | None, int | None, bool] | None:
    """Return a block's text, description, limit and whether it is read-only; None when it is not there."""
    for block in chat.blocks():
        if block.label == label:
            return block.text, block.description, block.max_tokens, block.read_only
    return None


class TestBlocks:
    """Issue 9: a block is merged as a whole, with its declaration, its limit and its configuration."""

    def test_a_declared_block_keeps_its_default_and_its_configuration(self, opened: Open) -> None:
        """A line that a fork appends to a block that nobody wrote before lands behind the default text."""
        chat = opened(blocks=[MEMORY]).tape("chat")
        child = chat.fork("child")
        child.append_block("memory", "And cake.")
        chat.merge(child)
        assert shown(chat) == shown(child) == ("The user likes tea.\nAnd cake.", "what to keep", 40, False)

    def test_a_declared_limit_holds_for_lines_of_both(self, opened: Open) -> None:
        """Two appends that fit alone but not together are a conflict, which both policies resolve."""
        spec = BlockSpec("memory", max_tokens=10)
        for policy, text in (("ours", "parent 4"), ("theirs", "child 67")):
            chat = opened(blocks=[spec], counter=len).tape(policy)
            child = chat.fork(f"{policy}-child")
            child.append_block("memory", "child 67")
            chat.append_block("memory", "parent 4")
            with pytest.raises(tape.MergeConflict) as caught:
                chat.merge(child)
            (one,) = caught.value.conflicts
            assert (one.message_id, one.ours, one.theirs) == ("memory", {"text": "parent 4"}, {"text": "child 67"})
            receipt = chat.merge(child, on_conflict=policy)
            assert receipt.kept == (["memory"] if policy == "ours" else [])
            assert shown(chat) == (text, None, 10, False)

    def test_a_declared_limit_holds_for_a_fork_that_was_written_without_it(self, opened: Open) -> None:
        """A fork written by a program without the declaration meets the limit when it is merged."""
        text = "word " * 50
        for policy in ("ours", "theirs"):
            child = opened().tape(policy).fork(f"{policy}-child")
            child.set_block("memory", text)
            chat = opened(blocks=[MEMORY]).tape(policy)
            with pytest.raises(tape.MergeConflict):
                chat.merge(child)
            chat.merge(child, on_conflict=policy)
            assert shown(chat) == (
                ("The user likes tea.", "what to keep", 40, False) if policy == "ours" else (text, None, None, False)
            )
        child = opened().tape("chat").fork("child")
        child.set_block("memory", "short")
        chat = opened(blocks=[MEMORY]).tape("chat")
        chat.merge(child)
        assert shown(chat) == ("short", "what to keep", 40, False)

    def test_a_limit_lifted_by_the_fork_is_lifted_on_the_parent(self, opened: Open) -> None:
        """Taking a declared limit or mark away is a change like any other."""
        spec = BlockSpec("memory", "what to keep", max_tokens=4, read_only=True, default="tea")
        chat = opened(blocks=[spec]).tape("chat")
        child = chat.fork("child")
        child.set_block("memory", "word " * 20, description=None, max_tokens=None, read_only=False)
        grandchild = child.fork("grandchild")
        grandchild.append_block("memory", "more")
        child.merge(grandchild)
        chat.merge(child)
        assert shown(chat) == ("word " * 20 + "\nmore", None, None, False)

    def test_the_removal_of_a_declared_block_travels(self, opened: Open) -> None:
        """What the fork removed is gone on the parent, though the store declares it."""
        chat = opened(blocks=[MEMORY]).tape("chat")
        child = chat.fork("child")
        child.remove_block("memory")
        chat.merge(child)
        assert chat.blocks() == []
        assert chat.context().prompt is None

    @pytest.mark.parametrize("declared", [False, True])
    @pytest.mark.parametrize("how", ["set", "remove"])
    def test_what_replaces_a_block_conflicts_with_a_line_added_to_it(
        self, opened: Open, how: str, declared: bool
    ) -> None:
        """Whichever side appended: a conflict that names both; ours and theirs give one side's block with its limit."""
        store = opened(blocks=[MEMORY] if declared else [])
        for number, (swapped, policy) in enumerate(itertools.product((False, True), ("ours", "theirs"))):
            chat = store.tape(f"chat-{number}")
            if not declared:
                chat.set_block("memory", "The user likes tea.", description="what to keep", max_tokens=40)
            child = chat.fork(f"child-{number}")
            appending, replacing = (chat, child) if swapped else (child, chat)
            appending.append_block("memory", "And cake.")
            if how == "set":
                replacing.set_block("memory", "Other.")
            else:
                replacing.remove_block("memory")
            sides = {"ours": shown(chat), "theirs": shown(child)}
            before = chat.info().head
            with pytest.raises(tape.MergeConflict) as caught:
                chat.merge(child)
            (one,) = caught.value.conflicts
            assert one.message_id == "memory"
            for side, value in sides.items():
                named = getattr(one, side)
                assert (None if value is None else value[0]) == (None if named is None else named["text"])
            assert chat.info().head == before
            chat.merge(child, on_conflict=policy)
            assert shown(chat) == sides[policy]
            assert chat.merge(child).duplicate

    def test_lines_of_both_come_together(self, opened: Open) -> None:
        """Appends commute on a block of the tape's own, through two levels of forks."""
        chat = opened().tape("chat")
        chat.set_block("memory", "base", max_tokens=50)
        child = chat.fork("child")
        grandchild = child.fork("grandchild")
        grandchild.append_block("memory", "deepest")
        child.append_block("memory", "deep")
        chat.append_block("memory", "here")
        child.merge(grandchild)
        chat.merge(child)
        assert shown(chat) == ("base\nhere\ndeep\ndeepest", None, 50, False)

    @pytest.mark.parametrize(
        ("field", "other", "third"),
        [("description", "new", "newer"), ("max_tokens", 90, 80), ("read_only", True, None)],
    )
    @pytest.mark.parametrize("declared", [False, True])
    def test_a_change_of_configuration_alone_travels(
        self, opened: Open, field: str, other: Any, third: Any, declared: bool
    ) -> None:
        """It comes together with a line of the parent's; two different changes of one field conflict."""
        store = opened(blocks=[MEMORY] if declared else [])

        def begin(name: str) -> tuple[tape.Tape, tape.Tape]:
            chat = store.tape(name)
            if not declared:
                chat.set_block("memory", "The user likes tea.", description="what to keep", max_tokens=40)
            return chat, chat.fork(f"{name}-child")

        place = ["description", "max_tokens", "read_only"].index(field) + 1
        chat, child = begin("alone")
        child.set_block("memory", "The user likes tea.", **{field: other})
        chat.append_block("memory", "And cake.")
        chat.merge(child)
        wanted: list[Any] = ["The user likes tea.\nAnd cake.", "what to keep", 40, False]
        wanted[place] = other
        assert shown(chat) == tuple(wanted)
        chat, child = begin("parent")
        chat.set_block("memory", "The user likes tea.", **{field: other})
        child.append_block("memory", "And cake.")
        chat.merge(child)
        assert shown(chat) == tuple(wanted)
        if third is None:
            return
        for policy, value in (("ours", third), ("theirs", other)):
            chat, child = begin(policy)
            child.set_block("memory", "The user likes tea.", **{field: other})
            chat.set_block("memory", "The user likes tea.", **{field: third})
            with pytest.raises(tape.MergeConflict) as caught:
                chat.merge(child)
            (one,) = caught.value.conflicts
            assert (one.message_id, one.ours, one.theirs) == ("memory", {field: third}, {field: other})
            chat.merge(child, on_conflict=policy)
            wanted = ["The user likes tea.", "what to keep", 40, False]
            wanted[place] = value
            assert shown(chat) == tuple(wanted)

    def test_a_limit_lowered_on_the_parent_conflicts_with_what_the_fork_wrote(self, opened: Open) -> None:
        """The fork's text does not slip past a limit that it did not know."""
        for policy, wanted in (("ours", ("abc", None, 5, False)), ("theirs", ("abc\ndefghi", None, 20, False))):
            chat = opened(counter=len).tape(policy)
            chat.set_block("memory", "abc", max_tokens=20)
            child = chat.fork(f"{policy}-child")
            child.append_block("memory", "defghi")
            chat.set_block("memory", "abc", max_tokens=5)
            with pytest.raises(tape.MergeConflict) as caught:
                chat.merge(child)
            (one,) = caught.value.conflicts
            assert one.ours == {"text": "abc", "max_tokens": 5}
            assert one.theirs == {"text": "abc\ndefghi", "max_tokens": 20}
            chat.merge(child, on_conflict=policy)
            assert shown(chat) == wanted

    def test_what_was_kept_is_not_undone_by_the_next_line(self, opened: Open) -> None:
        """After ``ours`` a later line of the fork is added to the parent's text, and conflicts where there is none."""
        chat = opened().tape("chat")
        chat.set_block("memory", "base")
        child = chat.fork("child")
        chat.set_block("memory", "the parent's")
        child.set_block("memory", "the child's")
        chat.merge(child, on_conflict="ours")
        child.append_block("memory", "more")
        chat.merge(child)
        assert shown(chat) == ("the parent's\nmore", None, None, False)
        chat.remove_block("memory")
        child.append_block("memory", "and more")
        chat.merge(child, on_conflict="ours")
        child.append_block("memory", "still more")
        with pytest.raises(tape.MergeConflict):
            chat.merge(child)
        chat.merge(child, on_conflict="theirs")
        assert shown(chat) == shown(child)

    def test_a_merged_block_verifies_and_travels(self, opened: Open, tmp_path: Any) -> None:
        """What a merge wrote is rebuilt, verified, exported and imported like everything else."""
        store = opened(blocks=[MEMORY])
        chat = store.tape("chat")
        child = chat.fork("child")
        child.set_block("memory", "The user likes tea.", max_tokens=30)
        child.append_block("memory", "And cake.")
        chat.merge(child)
        assert chat.verify().ok
        store.export("chat", tmp_path / "chat.jsonl", family=True)
        with tape.open(":memory:", blocks=[MEMORY]) as other:
            other.import_(tmp_path / "chat.jsonl")
            assert (
                shown(other.tape("chat"))
                == shown(chat)
                == ("The user likes tea.\nAnd cake.", "what to keep", 30, False)
            )


class TestRules:
    """The pure rules, without a store."""

    def test_the_table(self) -> None:
        """Each row of the table in the docs: what the fork did, what the parent did, and what comes of it."""
        base = BlockValue("a", None, 20, False)
        held = {
            "nothing": BlockSide(base, base, []),
            "append": BlockSide(base, BlockValue("a\nx", None, 20, False), ["x"]),
            "append other": BlockSide(base, BlockValue("a\ny", None, 20, False), ["y"]),
            "set": BlockSide(base, BlockValue("b", None, 20, False), None),
            "set other": BlockSide(base, BlockValue("c", None, 20, False), None),
            "limit": BlockSide(base, BlockValue("a", None, 9, False), []),
            "limit other": BlockSide(base, BlockValue("a", None, 8, False), []),
            "remove": BlockSide(base, None, None),
        }
        conflict = object()
        rows: list[tuple[str, str, Any]] = [
            ("append", "append other", BlockValue("a\ny\nx", None, 20, False)),
            ("append", "append", held["append"].after),
            ("append", "set", conflict),
            ("append", "remove", conflict),
            ("append", "limit", BlockValue("a\nx", None, 9, False)),
            ("set", "append", conflict),
            ("set", "set other", conflict),
            ("set", "set", held["set"].after),
            ("set", "remove", conflict),
            ("set", "limit", BlockValue("b", None, 9, False)),
            ("limit", "append", BlockValue("a\nx", None, 9, False)),
            ("limit", "set", BlockValue("b", None, 9, False)),
            ("limit", "limit other", conflict),
            ("limit", "remove", conflict),
            ("remove", "append", conflict),
            ("remove", "set", conflict),
            ("remove", "limit", conflict),
            ("remove", "remove", None),
        ]
        for name, side in held.items():
            rows += [(name, "nothing", side.after), ("nothing", name, side.after)]
        for fork, parent, wanted in rows:
            theirs, ours = held[fork], held[parent]
            merged = merge_block(theirs, ours, "fail", len)
            assert (merged.conflict is not None) is (wanted is conflict), (fork, parent)
            if wanted is not conflict:
                assert merged.value == wanted, (fork, parent)
                assert not merged.kept
            for policy, side in (("ours", ours), ("theirs", theirs)):
                resolved = merge_block(theirs, ours, policy, len)
                assert resolved.conflict is None
                assert resolved.kept is (wanted is conflict and policy == "ours")
                assert resolved.value == (side.after if wanted is conflict else wanted), (fork, parent, policy)

    def test_a_set_to_the_same_text_is_no_change_of_it(self) -> None:
        """Only what was appended and what kept the text counts as lines."""

        def entry(op: str, text: str | None) -> payloads.Block:
            return payloads.Block(label="m", op=op, given=text, text=text)

        longer = payloads.Block(label="m", op="append", given="x", text="a\nx")
        assert block_lines([], "a") == []
        assert block_lines([entry("set", "a"), longer], "a") == ["x"]
        assert block_lines([longer, entry("set", "a\nx")], "a") == ["x"]
        assert block_lines([entry("set", "b")], "a") is None
        assert block_lines([entry("remove", None), entry("append", "x")], "a") is None


class TestForksOfNothing:
    """Found by the machine of families: a fork from before its parent's first entry moves like any other."""

    @pytest.mark.parametrize("family", [False, True])
    def test_a_fork_of_a_fork_at_its_beginning_is_imported(self, store: tape.Store, family: bool) -> None:
        """It inherits nothing, neither from its parent nor from that one's, and says the same after the journey."""
        chat = store.tape("chat")
        chat.append(role="user", content="a", id="a")
        child = chat.fork("child")
        child.append(role="user", content="b", id="b")
        for parent, name in ((chat, "early"), (child, "earlier")):
            young = parent.fork(name, at=0)
            young.append(role="user", content=name, id="own")
            file = io.BytesIO()
            store.export(name, file, family=family)
            file.seek(0)
            with tape.open(":memory:") as other:
                other.import_(file)
                assert [message.id for message in other.tape(name).messages()] == ["own"]
                assert other.verify().ok
                again = io.BytesIO()
                other.export(name, again, family=family)
                assert again.getvalue() == file.getvalue()


def call(*names: str) -> dict[str, Any]:
    """Return a message that makes calls."""
    return {"role": "assistant", "content": None, "tool_calls": [{"id": name} for name in names]}


def result(name: str) -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": name, "content": "done"}


class TestUnsettledCalls:
    """Issue 27: a replay is refused while the path ends with a call that has no result, however far back that is."""

    @pytest.mark.parametrize("calls", [2, 64, 65, 200])
    def test_one_open_call_among_many_is_found(self, chat: tape.Tape, calls: int) -> None:
        """The parent waits for the first of many calls of one message, all others of which were answered."""
        names = [f"c{n}" for n in range(calls)]
        chat.append(call(*names))
        chat.extend(result(name) for name in names[1:])
        child = chat.fork("child")
        child.append(role="assistant", content="found")
        head = chat.info().head
        with pytest.raises(tape.InvalidEntry, match="'c0'") as caught:
            chat.merge(child)
        assert caught.value.field == "strategy"
        assert chat.info().head == head
        chat.append(result("c0"))
        assert chat.merge(child).message_ids == [child.messages()[-1].id]

    @pytest.mark.parametrize("calls", [2, 100])
    def test_calls_made_by_messages_of_their_own_are_found(self, chat: tape.Tape, calls: int) -> None:
        """Parallel calls as separate items, as the Responses API has them, are waited for all together."""
        chat.append(role="user", content="look")
        names = [f"c{n}" for n in range(calls)]
        chat.extend({"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in names)
        chat.extend({"type": "function_call_output", "call_id": name, "output": "x"} for name in names[1:])
        child = chat.fork("child")
        child.append(role="assistant", content="found")
        with pytest.raises(tape.InvalidEntry, match="'c0'"):
            chat.merge(child)
        chat.append({"type": "function_call_output", "call_id": "c0", "output": "x"})
        chat.merge(child)

    def test_a_fork_waits_for_the_call_of_its_parent(self, chat: tape.Tape) -> None:
        """The path leads through forks; a result that was retracted is none."""
        names = [f"c{n}" for n in range(80)]
        chat.append(call(*names))
        chat.extend(result(name) for name in names[:40])
        middle = chat.fork("middle")
        receipts = middle.extend(result(name) for name in names[40:])
        child = middle.fork("child")
        child.append(role="assistant", content="found")
        middle.retract(str(receipts[0].message_id))
        with pytest.raises(tape.InvalidEntry, match="'c40'"):
            middle.merge(child)
        middle.restore(str(receipts[0].message_id))
        middle.merge(child)

    def test_a_call_of_a_shape_that_was_not_known_then_is_not_waited_for(
        self, chat: tape.Tape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On an older tape no call of a shape learnt since was recorded, nor is the parent held up by one."""
        with monkeypatch.context() as older:
            older.setattr(toolcalls, "find", lambda message: ([], []))
            chat.append({"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "look", "args": {}}}]})
        child = chat.fork("child")
        child.append(role="assistant", content="found")
        assert chat.merge(child).message_ids == [child.messages()[-1].id]

    def test_a_call_with_its_result_is_not_waited_for(self, chat: tape.Tape) -> None:
        """A part that is call and result in one waits for nothing."""
        part = {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {}, "output": "done"}
        chat.append({"role": "assistant", "parts": [part]})
        child = chat.fork("child")
        child.append(role="assistant", content="found")
        assert chat.merge(child).message_ids == [child.messages()[-1].id]

    def test_what_was_left_behind_is_not_waited_for(self, chat: tape.Tape) -> None:
        """A call that the conversation went on without does not stop a merge, nor does one under a clear."""
        chat.append(call("c1"))
        chat.append(role="user", content="never mind")
        child = chat.fork("child")
        child.append(role="assistant", content="found")
        chat.merge(child)
        chat.append(call("c2"))
        chat.clear()
        child.append(role="assistant", content="more")
        chat.merge(child)


class TestSlotsAtOnce:
    """What slots held and hold is asked of each tape once, and what else the tape has costs nothing."""

    def test_more_slots_are_not_more_questions(self, store: tape.Store) -> None:
        """Six slots are asked for as one is, before the first merge and after it."""
        counts: list[list[int]] = []
        for slots in (1, 6):
            chat = store.tape(f"chat{slots}")
            for n in range(slots):
                chat.put(f"s{n}", {"a": 1})
            child = chat.fork(f"child{slots}")
            counts.append([])
            for value in (2, 3):
                for n in range(slots):
                    child.patch(f"s{n}", {"a": value})
                child.record_usage(input_tokens=value)
                counts[-1].append(len(asked(lambda chat=chat, child=child: chat.merge(child))))  # type: ignore[misc]
                assert [chat.state(f"s{n}") for n in range(slots)] == [{"a": value}] * slots
            assert chat.usage().input_tokens == 5
        assert counts[0] == counts[1]

    def test_other_entries_are_not_read(self, backend: Backend, store: tape.Store) -> None:
        """A slot is found as quickly on a tape with many entries, and many values of another slot."""
        found = []
        for times in (1, 400):
            chat = store.tape(f"chat{times}")
            chat.put("slot", {"a": 1})
            chat.extend([{"role": "user", "content": "hello"}] * times)
            for n in range(times // 10):
                chat.put("other", {"a": n})
            child = chat.fork(f"child{times}")
            child.patch("slot", {"b": 1})
            asking = asked(lambda chat=chat, child=child: chat.merge(child))  # type: ignore[misc]
            found.append(work(backend, [(sql, params) for sql, params in asking if "names.name" in sql]))
        assert 0 < found[1] <= 2 * found[0]
