"""State, blocks, the frozen prompt, usage, and the tools for models."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.backends import Backend

import tape
from tape import BlockSpec, Slot
from tape.core.memory.state import merge_patch


class TestState:
    def test_s5_patch_merges_and_put_replaces(self, chat: tape.Tape) -> None:
        """A patch follows RFC 7396; put replaces and may hold nulls."""
        chat.put("form", {"name": "Ann", "city": None})
        chat.patch("form", {"city": "Kyoto", "name": None, "nights": {"n": 3}})
        assert chat.state("form") == {"city": "Kyoto", "nights": {"n": 3}}
        chat.put("form", {"city": None})
        assert chat.state("form") == {"city": None}
        assert chat.states() == {"form": {"city": None}}

    def test_s5_states_come_by_name(self, chat: tape.Tape) -> None:
        """Whatever was written first, on a fork and on the tape, in the order of their characters' numbers."""
        for slot in ("b", "a_", "é", "aB", "Z", "a.b", "ab"):
            chat.put(slot, 1)
        child = chat.fork()
        child.put("a", 2)
        assert list(chat.states()) == ["Z", "a.b", "aB", "a_", "ab", "b", "é"]
        assert list(child.states(prefix="a")) == ["a", "a.b", "aB", "a_", "ab"]

    def test_s5_absent_and_null_differ(self, chat: tape.Tape) -> None:
        """A slot that holds null is there; one that was never written or was deleted is not."""
        assert chat.state("a", "absent") == "absent"
        chat.put("a", None)
        assert chat.state("a", "absent") is None
        chat.patch("a", None)
        assert chat.state("a", "absent") == "absent"
        assert chat.states() == {}

    @pytest.mark.parametrize(
        ("value", "patch", "result"),
        [
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b"}, {"a": None}, {}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            (["a", "b"], ["c", "d"], ["c", "d"]),
            ({"a": "foo"}, "bar", "bar"),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ],
    )
    def test_s5_the_examples_of_rfc_7396(self, value: Any, patch: Any, result: Any) -> None:
        """The RFC's own table."""
        assert merge_patch(value, patch) == result

    def test_s5_a_declared_slot_is_checked_and_migrated(self, backend: Backend) -> None:
        """A value that does not fit is refused; an old version is brought up to date when it is read."""
        old = backend.open(slots=[Slot("form", dict[str, int], version=1)])
        old.tape("chat").put("form", {"n": 1})
        before = old.tape("chat").info()
        with pytest.raises(tape.InvalidEntry) as caught:
            old.tape("chat").patch("form", {"n": "many"})
        assert caught.value.field == "form"
        assert old.tape("chat").info() == before
        steps = {1: lambda value: {**value, "unit": 0}, 2: lambda value: {**value, "n": value["n"] * 10}}
        new = backend.open(slots=[Slot("form", dict[str, int], version=3, migrate=steps)])
        chat = new.tape("chat")
        assert chat.state("form") == {"n": 10, "unit": 0}
        chat.patch("form", {"unit": 5})
        assert chat.state("form") == {"n": 10, "unit": 5}
        assert old.tape("chat").at(2).state("form") == {"n": 1}

    def test_s5_messages_usage_and_status_never_make_a_state_change_conflict(self, backend: Backend) -> None:
        """State has no version of its own that other writes could move; concurrent patches all land."""
        store = backend.open()
        chat = store.tape("chat")
        ready = threading.Barrier(4)

        def work(number: int) -> None:
            ready.wait(20)
            for n in range(5):
                chat.patch("form", {f"{number}.{n}": n})
                chat.append(role="user", content="noise")
                chat.record_usage(input_tokens=1)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(chat.state("form")) == 20
        assert chat.usage().calls == 20

    def test_state_is_temporal_and_inherited(self, chat: tape.Tape) -> None:
        """A past view and a fork see the state of their point."""
        chat.put("s", 1)
        seq = chat.put("s", 2).seq
        child = chat.fork("child")
        chat.put("s", 3)
        assert (chat.at(seq - 1).state("s"), chat.at(seq).state("s"), chat.state("s")) == (1, 2, 3)
        assert child.state("s") == 2
        child.patch("s", None)
        assert child.state("s", "absent") == "absent"
        assert chat.verify().ok
        assert child.verify().ok


class TestBlocks:
    def test_c8_append_joins_and_limits_are_refused(self, chat: tape.Tape) -> None:
        """An append adds a line; over the limit nothing is written."""
        chat.set_block("memory", "likes tea", description="facts", max_tokens=12)
        chat.append_block("memory", "hates rain")
        (block,) = chat.blocks()
        assert block.text == "likes tea\nhates rain"
        assert (block.description, block.max_tokens, block.read_only) == ("facts", 12, False)
        assert block.percent == round(100 * block.tokens / 12)
        before = chat.info()
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.append_block("memory", "word " * 50)
        assert caught.value.field == "text"
        assert chat.info() == before

    def test_c8_two_concurrent_appends_both_land(self, backend: Backend) -> None:
        """An append is no read-modify-write of the caller's."""
        store = backend.open()
        chat = store.tape("chat")
        chat.set_block("notes", "")
        ready = threading.Barrier(8)

        def work(number: int) -> None:
            ready.wait(20)
            chat.append_block("notes", f"line {number}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(chat.blocks()[0].text.split("\n")) == [f"line {number}" for number in range(8)]

    def test_c8_labels_of_two_tapes_never_collide(self, store: tape.Store) -> None:
        """A block belongs to its tape, however labels and ids are spelt."""
        store.tape("b").set_block("memory_a", "one")
        store.tape("a_b").set_block("memory", "two")
        assert [block.text for block in store.tape("b").blocks()] == ["one"]
        assert [block.text for block in store.tape("a_b").blocks()] == ["two"]

    def test_s17_blocks_are_declared_once_with_defaults(self, backend: Backend) -> None:
        """Every tape has them without writing anything; a write keeps their configuration."""
        store = backend.open(
            blocks=[BlockSpec("persona", read_only=True, default="Be kind."), BlockSpec("memory", max_tokens=100)]
        )
        chat = store.tape("chat")
        assert [(block.label, block.text, block.seq) for block in chat.blocks()] == [
            ("persona", "Be kind.", None),
            ("memory", "", None),
        ]
        chat.append_block("memory", "tea")
        assert chat.blocks()[1].max_tokens == 100
        assert "100 tokens" in chat.tools().call("set_block", {"label": "memory", "text": "coffee"})

    def test_c7_the_frozen_prompt_never_changes_by_itself(self, backend: Backend) -> None:
        """It is byte-identical across reopening and block writes, and changes on refresh."""
        store = backend.open(blocks=[BlockSpec("memory")])
        chat = store.tape("chat")
        chat.set_block("memory", "tea")
        frozen = chat.freeze_prompt()
        assert "tea" in frozen
        chat.set_block("memory", "coffee")
        assert chat.freeze_prompt() == frozen
        again = backend.open(blocks=[BlockSpec("memory")]).tape("chat")
        assert again.freeze_prompt() == frozen
        assert again.context().prompt == frozen
        assert again.context().prompt_stale is False
        assert "coffee" in again.refresh_prompt()
        keyed = again.refresh_prompt(key="turn-9")
        again.set_block("human", "likes water")
        assert again.refresh_prompt(key="turn-9") == keyed
        assert "water" in again.refresh_prompt()
        assert "coffee" in (again.context().prompt or "")

    def test_c7_empty_and_absent_differ(self, chat: tape.Tape) -> None:
        """A prompt frozen as empty stays empty, although there are blocks by now."""
        assert chat.freeze_prompt() == ""
        chat.set_block("memory", "tea")
        assert chat.freeze_prompt() == ""
        assert chat.context().prompt == ""

    def test_c7_a_changed_configuration_is_noticed(self, backend: Backend) -> None:
        """A block declared after the prompt was frozen marks it stale; content does not."""
        first = backend.open(blocks=[BlockSpec("memory")])
        first.tape("chat").freeze_prompt()
        second = backend.open(blocks=[BlockSpec("memory"), BlockSpec("todo")])
        assert second.tape("chat").context().prompt_stale is True
        second.tape("chat").refresh_prompt()
        assert second.tape("chat").context().prompt_stale is False

    def test_an_unfrozen_prompt_is_rendered_live(self, chat: tape.Tape) -> None:
        """It is recorded nowhere."""
        chat.set_block("memory", "tea")
        head = chat.info().head
        assert "tea" in (chat.context().prompt or "")
        assert chat.info().head == head
        assert chat.context().to_openai()[0]["role"] == "system"


class TestUsage:
    def test_s6_totals_are_the_sum_of_the_entries(self, backend: Backend) -> None:
        """Also under eight concurrent writers, and at any past seq."""
        store = backend.open()
        chat = store.tape("chat")
        ready = threading.Barrier(8)

        def work(number: int) -> None:
            ready.wait(20)
            for n in range(10):
                chat.record_usage(input_tokens=number, output_tokens=n, cached_tokens=1, cost=3, key=f"{number}-{n}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        expected = tape.Usage(10 * sum(range(8)), 8 * sum(range(10)), 80, 240, 80)
        assert chat.usage() == expected
        assert (chat.info().tokens, chat.info().cost) == (expected.input_tokens + expected.output_tokens, 240)
        entries = [entry.payload for entry in chat.entries(kinds=["usage"])]
        assert sum(entry.input_tokens for entry in entries) == expected.input_tokens  # type: ignore[union-attr]
        assert chat.at(2).usage().calls == 1
        assert chat.record_usage(input_tokens=0, output_tokens=0, cached_tokens=1, cost=3, key="0-0").duplicate
        assert chat.usage() == expected

    @pytest.mark.parametrize("value", [-1, 1.5, "7", True])
    def test_bad_numbers_are_refused(self, chat: tape.Tape, value: Any) -> None:
        """Tokens and cost are whole numbers of at least nothing."""
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.record_usage(cost=value)
        assert caught.value.field == "cost"

    def test_a_closed_tape_takes_usage_but_no_state(self, chat: tape.Tape) -> None:
        """Usage does not change the view; state and blocks do."""
        chat.append(role="user", content="a")
        chat.complete()
        chat.record_usage(input_tokens=1)
        for write in (lambda: chat.put("s", 1), lambda: chat.set_block("b", "x"), lambda: chat.freeze_prompt()):
            with pytest.raises(tape.TapeClosed):
                write()


class TestMergeCarries:
    def test_f7_state_merges_by_path_and_blocks_by_line(self, chat: tape.Tape) -> None:
        """What the two changed apart from each other comes together; usage travels with the merge."""
        chat.put("form", {"a": 1, "b": {"c": 1}})
        chat.set_block("memory", "base")
        chat.record_usage(input_tokens=10)
        child = chat.fork("child")
        child.patch("form", {"b": {"c": 2}})
        chat.patch("form", {"a": 5})
        child.append_block("memory", "from the child")
        chat.append_block("memory", "from the parent")
        child.record_usage(input_tokens=3)
        chat.merge(child)
        assert chat.state("form") == {"a": 5, "b": {"c": 2}}
        assert chat.blocks()[0].text == "base\nfrom the parent\nfrom the child"
        assert (chat.usage().input_tokens, child.usage().input_tokens) == (13, 3)
        assert chat.merge(child).duplicate
        assert chat.usage().input_tokens == 13
        assert chat.verify().ok

    def test_f7_the_same_path_changed_by_both_conflicts(self, chat: tape.Tape) -> None:
        """Every conflict is named; ours and theirs resolve it; nothing is written by a failed merge."""
        for policy, expected in (("ours", 7), ("theirs", 9)):
            chat.put(policy, {"n": 1, "m": 1})
            child = chat.fork(f"child-{policy}")
            chat.patch(policy, {"n": 7})
            child.patch(policy, {"n": 9, "m": 2})
            before = (chat.info(), child.info())
            with pytest.raises(tape.MergeConflict) as caught:
                chat.merge(child)
            assert [one.message_id for one in caught.value.conflicts] == [f"{policy}.n"]
            assert (chat.info(), child.info()) == before
            chat.merge(child, on_conflict=policy)
            assert chat.state(policy) == {"n": expected, "m": 2}
