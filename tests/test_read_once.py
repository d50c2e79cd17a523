"""What is read is decoded and weighed once; what is handed out is the caller's own all the same."""

from __future__ import annotations

import collections
import copy
import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.messages import say
from support.random_messages import messages as any_messages
from support.sizes import heavy, size

import tape
from tape.core.context.policy import Item, Shaped
from tape.core.messages import shapes
from tape.core.messages.tokens import estimate
from tape.core.records import Message
from tape.core.render import requests, settle
from tape.core.strict import copied

NESTED: dict[str, Any] = {
    "role": "assistant",
    "content": [{"type": "text", "text": "see"}, {"type": "tool_use", "id": "c", "name": "look", "input": {"a": [1]}}],
    "more": {"list": [[], {}, None, True, 1, 1.5, "x"]},
}
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def _spoil(value: Any) -> None:
    """Change every dict and every list in a value."""
    for inner in list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()):
        _spoil(inner)
    if isinstance(value, dict):
        value["spoilt"] = True
    elif isinstance(value, list):
        value.append("spoilt")


def _tools(count: int) -> list[dict[str, Any]]:
    """Return turns in which a tool is called and answers at length, every text another."""
    found: list[dict[str, Any]] = []
    for n in range(count):
        call = {"id": f"c{n}", "type": "function", "function": {"name": f"look{n}", "arguments": json.dumps({"at": n})}}
        found += [
            {"role": "user", "content": f"question {n}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"answer {n}: " + "row " * 200},
            {"role": "assistant", "content": f"conclusion {n}"},
        ]
    return found


class TestOwnCopies:
    """Changing what a read returned changes nothing that another read returns."""

    def test_every_dict_is_the_callers_own(self, chat: tape.Tape) -> None:
        """At every depth, of one message asked twice and of two reads."""
        chat.append({**NESTED, "id": "m"})
        message = chat.message("m")
        for given_out in (message.to_dict, lambda: chat.messages()[0].to_dict(), lambda: chat.messages()[0].data):
            _spoil(given_out())
        _spoil(chat.context(budget=10_000).to_anthropic())
        expected = {**NESTED, "id": "m"}
        assert message.to_dict() == message.data == expected
        assert chat.messages()[0].to_dict() == chat.messages(limit=1)[0].to_dict() == expected
        assert list(message.to_dict()) == list(expected)

    @heavy
    @given(_json)
    @settings(max_examples=size(40, 120), deadline=None)
    def test_a_copy_is_equal_and_shares_nothing(self, value: Any) -> None:
        """It is what a deep copy gives, to the type of every number and the order of the keys."""
        before = json.dumps(value)
        made = copied(value)
        assert json.dumps(made) == before == json.dumps(copy.deepcopy(value))
        _spoil(made)
        assert json.dumps(value) == before

    def test_a_message_of_a_policys_making_is_copied_too(self) -> None:
        """What is no JSON in it is copied as deeply."""
        data = {"role": "user", "content": ({"a": []},), "when": {1, 2}}
        message = Message("m", "t", data, None, 1, 1, 0)
        made = message.to_dict()
        assert made == data
        made["content"][0]["a"].append(1)
        made["when"].add(3)
        assert data == {"role": "user", "content": ({"a": []},), "when": {1, 2}}

    def test_messages_are_compared_copied_and_pickled(self, chat: tape.Tape) -> None:
        """Equal messages of two reads are equal, as are a copy, a deep copy and a pickle; and none can be set."""
        chat.append({**NESTED, "id": "m"}, meta={"run": 1})
        one, two = chat.message("m"), chat.messages()[0]
        assert one == two
        assert repr(one) == repr(two)
        for made in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert made == one
            assert made.to_dict() == one.to_dict()
            assert made.more == NESTED["more"]
        with pytest.raises(AttributeError):
            one.data = {}  # type: ignore[misc]
        chat.revise("m", content="other")
        assert chat.message("m") != one

    def test_threads_may_share_a_message(self, chat: tape.Tape) -> None:
        """Each gets dicts of its own, whatever the others do with theirs."""
        chat.append({**NESTED, "id": "m"})
        message, start = chat.message("m"), threading.Barrier(8)

        def use(_: int) -> list[dict[str, Any]]:
            start.wait(30)
            found = []
            for _ in range(200):
                made = message.to_dict()
                found.append(copy.deepcopy(made))
                _spoil(made)
            return found

        with ThreadPoolExecutor(8) as pool:
            seen = [one for found in pool.map(use, range(8)) for one in found]
        assert len(seen) == 1_600
        assert all(one == {**NESTED, "id": "m"} for one in seen)


class TestParents:
    """A message has the same parent however it was read."""

    def _check(self, view: tape.Tape) -> None:
        parents = {message.id: message.parent for message in view.messages()}
        ids = list(parents)
        assert list(parents.values()) == [None, *ids[:-1]]
        for limit in range(1, len(ids) + 2):
            for page in (
                view.messages(limit=limit),
                view.messages(limit=limit, before=ids[-2]),
                view.messages(limit=limit, after=ids[1]),
                view.messages(max_bytes=limit * 90),
            ):
                assert {message.id: message.parent for message in page}.items() <= parents.items()
                assert len(page) > 0
        for budget in (60, 120, 300, 10_000):
            shown = view.context(budget=budget).messages
            assert {message.id: message.parent for message in shown}.items() <= parents.items()

    def test_of_pages_and_contexts(self, chat: tape.Tape) -> None:
        """With retracted messages between them, on a branch, and on a fork that changed what it inherits."""
        chat.extend(say(*(f"m{n}" for n in range(12))))
        chat.retract("m3", "m8")
        self._check(chat)
        chat.extend(say(*(f"b{n}" for n in range(5))), parent="m6")
        chat.retract("b1")
        self._check(chat)
        fork = chat.fork("fork")
        fork.extend(say("f0", "f1"))
        fork.retract("m5", "b4")
        fork.revise("m2", content="otherwise")
        self._check(fork)
        fork.append(say("g")[0], parent="b0")
        self._check(fork)


class Replacing(msgspec.Struct):
    """Shows other texts in the place of some messages, as dear as it was told they are."""

    name: str = "replacing"
    version: int = 1

    def shape(self, items: list[Item], budget: int | None, cost: Callable[[Message], int]) -> Shaped:
        for item in items[::2]:
            item.message = msgspec.structs.replace(item.message, data={"role": "user", "content": "something else"})
            item.tokens, item.altered = cost(item.message), True
        return Shaped(items, [])


class TestWeighedOnce:
    """Building a context reads and counts each message once."""

    @pytest.mark.parametrize("budget", [600, 2_000, 100_000])
    def test_every_message_is_read_once_and_every_text_counted_once(
        self, backend: Any, budget: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With many tool messages, whether all of it fits, or old output is cut and turns are dropped."""
        texts: collections.Counter[str] = collections.Counter()

        def counter(text: str) -> int:
            texts[text] += 1
            return estimate(text)

        with backend.open(counter=counter) as store:
            chat = store.tape("chat")
            chat.extend(_tools(30))
            texts.clear()
            reads: collections.Counter[str] = collections.Counter()
            read = shapes.read

            def noted(message: dict[str, Any]) -> shapes.Neutral:
                reads[json.dumps(message)] += 1
                return read(message)

            monkeypatch.setattr(shapes, "read", noted)
            context = chat.context(budget=budget)
            assert context.tokens <= budget
            monkeypatch.undo()
        assert len(context.messages) == 120 or context.manifest.excluded
        assert len(reads) >= 3
        assert max(reads.values()) == 1, reads.most_common(3)
        long = {text: times for text, times in texts.items() if text.startswith(("answer", "question", "conclusion"))}
        assert len(long) >= 3
        assert max(long.values()) == 1, texts.most_common(3)

    def test_what_a_policy_puts_in_costs_what_it_is(self, chat: tape.Tape) -> None:
        """A message that the policy replaced is weighed as it is now, not as it was, and not by what was set for it."""
        chat.extend(_tools(3)[:-2])
        context = chat.context(budget=100_000, policy=Replacing())
        fresh = chat.context(policy=Replacing())
        assert [message.to_dict() for message in context.messages] == [m.to_dict() for m in fresh.messages]
        assert context.tokens == fresh.tokens
        said = estimate("something else") + 4
        assert context.tokens < sum(message.tokens for message in chat.messages())
        alone = chat.fork("alone")
        alone.clear()
        alone.append(role="user", content="x")
        assert alone.context(budget=1_000, policy=Replacing()).tokens == said


class TestShortWays:
    """What is most often asked for goes a short way, which leads to the same."""

    @given(
        st.sampled_from(["user", "assistant", "system", "tool", "critic", None, 5]),
        st.text(max_size=6) | st.sampled_from(["data:image/png;base64,AAAA", "data:"]),
        st.sets(st.sampled_from(["id", "usage"])),
    )
    @settings(max_examples=100, deadline=None)
    def test_plain_messages_are_read_like_any_other(self, role: Any, content: str, more: set[str]) -> None:
        """A field that says nothing makes the message take the long way."""
        message = {"role": role, "content": content, **dict.fromkeys(more, "x")}
        if role is None:
            del message["role"]
        assert shapes.read(message) == shapes.read({**message, "note": None})
        if shapes.is_plain(message):
            assert all(isinstance(part, shapes.Text) for part in shapes.read(message).parts)
            assert not content.startswith("data:")

    @given(st.lists(any_messages, max_size=6))
    @settings(max_examples=100, deadline=None)
    def test_messages_without_calls_are_settled_like_any_other(self, messages: list[dict[str, Any]]) -> None:
        """A call with its result behind them makes them take the long way."""
        neutral = [one for one in map(shapes.read, messages) if not one.calls and not one.results]
        end = [
            shapes.read({"role": "assistant", "tool_calls": [{"id": "z", "function": {"name": "f"}}]}),
            shapes.read({"role": "tool", "tool_call_id": "z", "content": "done"}),
        ]
        assert settle.settle(neutral) == settle.settle([*neutral, *end])[:-2]
        assert requests.to_chat(None, neutral) == requests.to_chat(None, [*neutral, *end])[:-2]
        dressed = [one for message in settle.settle(neutral) for one in requests._chat_messages(message)]
        assert requests.to_chat(None, neutral) == dressed

    @given(st.text(max_size=70) | st.text(alphabet="aZ9_-", max_size=70))
    @settings(max_examples=120, deadline=None)
    def test_ids_that_every_api_writes_alike(self, id: str) -> None:
        """They are told without asking each."""
        assert requests.written_alike(id) == all(tidy(id) == id for tidy in requests.TIDY)
