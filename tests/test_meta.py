"""Meta beside messages: read back with them, never counted, searched or shown to a model."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from support.backends import Backend

import tape

pytestmark = pytest.mark.alike

SECRET = "xylophone"
"""A word that stands in meta only."""


def say(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


class TestBeside:
    """What is said is read back."""

    @pytest.mark.parametrize("said", [None, {}, {"run": 1}, {"a": {"b": [None, 1.5, True, "x"]}, "": 0}], ids=str)
    def test_a_message_gives_its_meta_back(self, chat: tape.Tape, said: Any) -> None:
        """Equal to what was given, by every read that gives a message."""
        chat.append(say(), id="m", meta=said)
        chat.append(say("next"), id="n")
        found = [chat.messages()[0], chat.message("m"), chat.messages(limit=5)[0], chat.context().messages[0]]
        found += [chat.at(2).messages()[0], chat.fork("child").messages()[0]]
        assert [message.meta for message in found] == [said] * len(found)
        chat.switch("m")
        assert chat.heads()[-1].meta is None
        assert chat.at(2).heads()[0].meta == said

    def test_the_content_that_holds_says_it(self, chat: tape.Tape) -> None:
        """A revision brings its own or none; the past, and what was restored, have theirs."""
        chat.append(say(), id="m", meta={"n": 1})
        chat.revise("m", content="two", meta={"n": 2})
        assert chat.message("m").meta == {"n": 2}
        chat.retract("m", meta={"n": 9})
        chat.restore("m")
        assert chat.message("m").meta == {"n": 2}
        chat.upsert(say("three"), id="m")
        assert chat.message("m").meta is None
        assert [chat.at(seq).message("m").meta for seq in (2, 3, 5)] == [{"n": 1}, {"n": 2}, {"n": 2}]

    def test_metas_of_a_batch_are_added_to_that_of_the_call(self, chat: tape.Tape) -> None:
        """Each message has its own, together with what is said of all; its own wins."""
        chat.extend([say("a"), say("b"), say("c")], metas=[{"n": 1}, None, {"run": 2}], meta={"run": 1})
        assert [message.meta for message in chat.messages()] == [{"run": 1, "n": 1}, {"run": 1}, {"run": 2}]
        chat.extend([say("d"), say("e")], metas=[{"n": 1}, None])
        assert [message.meta for message in chat.messages()[3:]] == [{"n": 1}, None]
        chat.replace_history([say("f"), say("g")], metas=[{"n": 2}, None], meta={"run": 3})
        assert [message.meta for message in chat.messages()] == [{"run": 3, "n": 2}, {"run": 3}]
        assert next(iter(chat.entries(kinds=["clear"]))).meta == {"run": 3}

    @pytest.mark.parametrize(
        ("metas", "field"),
        [
            ([{}], "metas"),
            ([{}, {}, {}], "metas"),
            ({"a": 1}, "metas"),
            (5, "metas"),
            ([{}, [1]], "metas[1]"),
            ([{}, {"a": (1,)}], "metas[1].a"),
            ([{}, {"a": float("nan")}], "metas[1].a"),
            ([{}, {"\ud800": 1}], "metas[1]."),
        ],
        ids=str,
    )
    def test_bad_metas_are_refused(self, store: tape.Store, chat: tape.Tape, metas: Any, field: str) -> None:
        """As many as messages, each a dict of strict JSON or None; the error names which, and nothing is written."""
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.extend([say("a"), say("b")], metas=metas)
        assert caught.value.field.startswith(field)
        with pytest.raises(tape.TapeNotFound):
            store.get("chat")

    def test_it_makes_no_two_writes_differ(self, chat: tape.Tape) -> None:
        """Like an actor, meta is no content: a repeated call with another one is a duplicate."""
        chat.extend([say("a")], metas=[{"n": 1}], key="k")
        assert chat.extend([say("a")], metas=[{"n": 2}], key="k")[0].duplicate
        assert chat.messages()[0].meta == {"n": 1}

    def test_a_held_back_clock_is_no_part_of_it(self, backend: Backend) -> None:
        """With several writers clocks are held back now and then; a message's meta is still what was given."""
        clock = iter([5_000_000, 5_000_000, 3_000_000, 2_000_000])
        chat = backend.open(clock=lambda: next(clock)).tape("chat")
        chat.append(say("a"))
        chat.append(say("b"), meta={"run": 1})
        chat.append(say("c"))
        assert [message.meta for message in chat.messages()] == [None, {"run": 1}, None]
        assert [entry.meta for entry in chat.entries()][2:] == [
            {"run": 1, "tape.clock": 3_000_000},
            {"tape.clock": 2_000_000},
        ]

    @pytest.mark.parametrize("name", ["tape.clock", "tape.occurred_at"])
    def test_names_of_the_store_are_refused(self, backend: Backend, name: str) -> None:
        """Beside a call and beside a message of several: what is taken comes back, so these are not taken."""
        chat = backend.open().tape("chat")
        with pytest.raises(tape.InvalidEntry, match=f"meta.{name}"):
            chat.append(say("a"), meta={name: 5})
        with pytest.raises(tape.InvalidEntry, match=rf"metas\[1\].{name}"):
            chat.extend([say("a"), say("b")], metas=[None, {name: 5}])
        assert chat.info().head == 0


class TestMoved:
    """Merges, exports and rebuilds keep it."""

    def test_a_merge_carries_it(self, store: tape.Store, chat: tape.Tape) -> None:
        """Copies and revisions bring what was said on the fork, together with what is said of the merge."""
        chat.append(say("top"), id="top", meta={"n": 0})
        child = chat.fork("child")
        child.extend([say("a"), say("b"), say("taken")], ids=["a", "b", "t"], metas=[{"n": 1}, None, {"n": 3}])
        child.revise("b", content="b2", meta={"n": 2})
        child.revise("top", content="top2", meta={"n": 4})
        chat.append(say("mine"), id="t")
        receipt = chat.merge(child, meta={"merge": True})
        named = [chat.message(id).meta for id in receipt.message_ids]
        assert named == [{"merge": True, "n": 1}, {"merge": True, "n": 2}, {"merge": True, "n": 3}]
        assert chat.message("top").meta == {"merge": True, "n": 4}
        child.append(say("d"), id="d", meta={"n": 5})
        chat.merge(child)
        assert chat.message("d").meta == {"n": 5}
        assert store.verify().ok

    def test_export_import_and_rebuild(self, store: tape.Store, chat: tape.Tape) -> None:
        """The file round-trips with the meta of each message."""
        chat.extend([say("a"), say("b")], metas=[{"tag": SECRET}, {"tag": "dull"}])
        chat.append(say("c"), meta={"tag": SECRET})
        file, again = io.BytesIO(), io.BytesIO()
        store.export("chat", file)
        with tape.open(":memory:") as other:
            other.import_(io.BytesIO(file.getvalue()))
            there = other.get("chat")
            assert [message.meta for message in there.messages()] == [message.meta for message in chat.messages()]
            other.export("chat", again)
        assert again.getvalue() == file.getvalue()


class TestUnseen:
    """No model sees it, and no budget counts it."""

    def test_contexts_and_requests_are_those_without_it(self, store: tape.Store) -> None:
        """The same messages with and without meta give the same tokens, manifest and requests."""
        plain, beside = store.tape("plain"), store.tape("beside")
        for chat, said in ((plain, None), (beside, {"note": SECRET * 100})):
            chat.append(say("one"), id="a", meta=said)
            chat.append({"role": "assistant", "content": "two"}, id="b", meta=said)
            chat.append(say("three"), id="c", meta=said, occurred_at=1)
        one, two = plain.context(budget=1_000), beside.context(budget=1_000)
        assert one.tokens == two.tokens
        assert one.to_openai() == two.to_openai()
        assert one.to_openai("responses") == two.to_openai("responses")
        assert one.to_anthropic() == two.to_anthropic()
        assert SECRET not in json.dumps([two.to_openai(), two.to_anthropic()])
        assert [message.tokens for message in plain.messages()] == [message.tokens for message in beside.messages()]
        assert plain.info().tokens == beside.info().tokens

    def test_no_search_finds_it(self, store: tape.Store, chat: tape.Tape) -> None:
        """Neither the store's search nor the model's tools do."""
        chat.append(say("quiet words"), id="a", meta={"note": SECRET})
        assert store.search(SECRET) == chat.search(SECRET) == []
        tools = chat.tools()
        for name, arguments in (
            ("tape_search", {"query": SECRET}),
            ("tape_search", {"query": "words"}),
            ("tape_context", {"seq": 2}),
            ("tape_info", {}),
        ):
            assert SECRET not in tools.call(name, arguments)
