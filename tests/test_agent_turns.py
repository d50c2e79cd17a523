"""A budget serves an agent whose last turn is larger than the budget: outputs are cut, then steps, pairs stay whole."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from support.agent_turns import SHAPES, agent_session
from support.backends import Backend
from support.request_rules import check_all, check_anthropic, check_chat, check_responses, measure
from support.sizes import heavy, size

import tape
from tape.core.context.turns import turn_facts
from tape.core.entries import payloads
from tape.core.plan.intents import Plain
from tape.db.record.writing import Call

BUDGET = 8_000
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def steps(count: int, text: str = "word " * 200, first: int = 0) -> list[dict[str, Any]]:
    """Return so many calls, each with its result."""
    found: list[dict[str, Any]] = []
    for number in range(first, first + count):
        found.append(
            {"id": f"a{number}", "role": "assistant", "content": None, "tool_calls": [{**CALL, "id": f"c{number}"}]}
        )
        found.append({"id": f"t{number}", "role": "tool", "tool_call_id": f"c{number}", "content": text})
    return found


def paired(context: tape.Context) -> None:
    """Every call that is shown has its result, and every result its call."""
    assert [one for one in context.repairs if one.what in ("unsettled call", "orphan result")] == []
    told = [turn_facts(message.data) for message in context.messages]
    assert sum(len(one.calls) for one in told) == sum(len(one.results) for one in told)


def explained(chat: Any, context: tape.Context) -> None:
    """Everything is shown as it is, or named as altered, or named as left out; a mark leads to the whole."""
    manifest, shown = context.manifest, {message.seq for message in context.messages}
    recorded = {message.seq: message.data for message in chat.messages()}
    for seq in recorded:
        assert (seq in shown) != any(one.first <= seq <= one.last for one in manifest.excluded)
    cut = {one.seq: one.why for one in manifest.altered}
    assert len(cut) == sum(isinstance(one, dict) for one in manifest.included)
    for message in context.messages:
        assert (message.seq in cut) == (message.data != recorded[message.seq])
        if message.seq in cut:
            assert f"cut; recorded at {chat.id}:{message.seq}]" in str(message.data)
    assert set(cut.values()) <= {"the last turn's tool output is cut"}


def recalled(chat: tape.Tape, context: tape.Context, seq: int) -> None:
    """What was recorded comes back byte for byte."""
    again = chat.recall(seq)
    encode = msgspec.json.encode
    assert encode(again.to_openai()) == encode(context.to_openai())
    assert encode(again.to_openai(api="responses")) == encode(context.to_openai(api="responses"))
    assert encode(again.to_anthropic()) == encode(context.to_anthropic())


class TestSessions:
    @pytest.mark.alike
    @heavy
    @pytest.mark.parametrize("part", range(4))
    def test_every_long_turn_is_served(self, guest: tape.Store, standing: Backend, part: int) -> None:
        """Whatever the shape: within the budget, by the rules of every API, each pair whole, and the same each time."""
        many = size(1, 3) if standing.postgres else size(2, 50)
        for seed in range(part * many, (part + 1) * many):
            session = agent_session(seed)
            chat = guest.create(f"session-{seed}", messages=session)
            context, receipt = chat.recorded_context(budget=BUDGET)
            # What is served is within its budget and worth it.
            assert BUDGET // 2 < context.tokens <= BUDGET, f"seed {seed}"
            check_all(context)
            paired(context)
            explained(chat, context)
            assert [context.messages[0].data, context.messages[-1].seq] == [session[0], len(session) + 1]
            recalled(chat, context, receipt.seq)
            if seed % 5 == 0:
                assert max(measure(context).values()) <= context.tokens, f"seed {seed}"
                assert chat.context(budget=BUDGET).manifest.hash == context.manifest.hash, f"seed {seed}"

    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_budget_is_served_or_refused_with_what_it_needs(self, guest: tape.Store, shape: str) -> None:
        """From the smallest that can hold the request and the last step; one token less is refused."""
        chat = guest.create(f"budgets-{shape}", messages=agent_session(7, shape, calls=25))
        with pytest.raises(tape.BudgetExceeded) as caught:
            chat.context(budget=20)
        least = caught.value.tokens
        assert chat.context(budget=least).tokens <= least
        with pytest.raises(tape.BudgetExceeded):
            chat.context(budget=least - 1)
        for budget in (least, least + 7, 400, 1_000, 3_000, 20_000, 60_000):
            context = chat.context(budget=budget)
            assert context.tokens <= budget
            check_all(context)
            paired(context)
            assert context.messages[0].role == "user"

    def test_the_async_twin_gives_the_same(self, backend: Backend) -> None:
        """One implementation behind both."""
        session = agent_session(11)
        with backend.open() as store:
            wanted = store.create("chat", messages=session).context(budget=BUDGET).manifest.hash

        async def work() -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                context, receipt = await chat.recorded_context(budget=BUDGET)
                return context.manifest.hash, context.to_openai(), (await chat.recall(receipt.seq)).to_openai()

        hash, shown, again = asyncio.run(work())
        assert hash == wanted
        assert shown == again


class TestOrder:
    def test_outputs_go_first_the_oldest_first(self, chat: tape.Tape) -> None:
        """As long as marks are enough no step is dropped, and the newest outputs stay whole."""
        chat.extend([{"role": "user", "content": "go"}, *steps(20)])
        context = chat.context(budget=2_000)
        assert len(context.messages) == 41
        cut = [message.content.startswith("[") for message in context.messages if message.role == "tool"]
        assert cut == sorted(cut, reverse=True)
        assert 0 < cut.count(True) < 20
        assert context.messages[2].content == "[1000 characters cut; recorded at chat:4]"
        assert context.manifest.excluded == []

    def test_then_older_steps_go(self, chat: tape.Tape) -> None:
        """The request and the last steps stay; of the last output there is more than a mark."""
        chat.extend([{"id": "go", "role": "user", "content": "go"}, *steps(60)])
        context = chat.context(budget=1_000)
        ids = [message.id for message in context.messages]
        assert ids[0] == "go"
        assert ids[1:] == [f"{kind}{number}" for number in range(60 - len(ids) // 2, 60) for kind in "at"]
        assert len(context.messages[-1].content) > 500
        assert [(one.first, one.last, one.why) for one in context.manifest.excluded] == [
            (3, context.messages[1].seq - 1, "over budget")
        ]

    def test_the_last_output_keeps_what_fits(self, chat: tape.Tape) -> None:
        """An output that is larger than the budget is shown as far as there is room."""
        chat.extend([{"role": "user", "content": "go"}, *steps(2, "word " * 10_000)])
        context = chat.context(budget=4_000)
        assert 8_000 < len(context.messages[-1].content) < 16_100
        assert context.messages[-1].content.endswith("cut; recorded at chat:6]")
        assert chat.context(budget=80).messages[-1].content == "[50000 characters cut; recorded at chat:6]"

    def test_earlier_turns_go_before_the_last_is_cut(self, chat: tape.Tape) -> None:
        """Nothing of them is left when the last turn does not fit by itself."""
        chat.extend([{"role": "user", "content": "first"}, *steps(3)])
        chat.extend([{"id": "go", "role": "user", "content": "second"}, *steps(20, first=3)])
        context = chat.context(budget=2_000)
        assert context.messages[0].id == "go"
        assert [(one.first, one.last) for one in context.manifest.excluded] == [(2, 8)]

    def test_a_late_result_keeps_its_call(self, chat: tape.Tape) -> None:
        """A call answered many steps later is shown with its result or not at all."""
        chat.append(role="user", content="go")
        chat.append({"id": "slow", "role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "slow"}]})
        chat.extend(steps(60))
        chat.append({"id": "late", "role": "tool", "tool_call_id": "slow", "content": "done"})
        chat.extend(steps(1, first=60))
        gone = chat.context(budget=800)
        assert {"slow", "late"}.isdisjoint(message.id for message in gone.messages)
        paired(gone)
        chat.retract("t60", "a60")
        last = chat.context(budget=800)
        assert [last.messages[1].id, last.messages[-1].id] == ["slow", "late"]
        paired(last)

    def test_reasoning_goes_with_what_follows_it(self, chat: tape.Tape) -> None:
        """OpenAI refuses reasoning without the item that it led to."""
        chat.extend(agent_session(5, "responses"))
        items = chat.context(budget=2_000).to_openai(api="responses")["input"]
        kinds = [item["type"] for item in items]
        assert "reasoning" in kinds
        for kind, following in zip(kinds, [*kinds[1:], ""], strict=True):
            assert kind != "reasoning" or following == "function_call"

    def test_a_turn_without_a_user(self, chat: tape.Tape) -> None:
        """The last steps are shown; a user's word is put in front for Anthropic."""
        chat.extend(steps(60))
        context = chat.context(budget=1_000)
        assert context.messages[-1].id == "t59"
        check_all(context)
        assert context.to_anthropic()["messages"][0]["content"][0]["text"] == "(continued)"

    def test_what_the_user_asked_for_is_never_cut(self, chat: tape.Tape) -> None:
        """A request that does not fit with the last step is refused, with the number of tokens that it takes."""
        chat.extend([{"role": "user", "content": "word " * 2_000}, *steps(30)])
        with pytest.raises(tape.BudgetExceeded) as caught:
            chat.context(budget=1_000)
        assert 2_000 < caught.value.tokens < 4_000
        context = chat.context(budget=caught.value.tokens)
        assert [message.role for message in context.messages] == ["user", "assistant", "tool"]

    def test_a_summary_stays_longer_than_steps_and_goes_before_it_is_refused(self, chat: tape.Tape) -> None:
        """It stands for what was asked; a budget that holds the last step only is served without it."""
        chat.extend([{"id": "go", "role": "user", "content": "go"}, *steps(60)])
        chat.set_summary("all of it " * 100, first="go", last="t20")
        assert chat.context(budget=1_000).messages[0].id.startswith("~summary")
        assert [message.id for message in chat.context(budget=100).messages] == ["a59", "t59"]

    def test_pictures_of_the_turn_are_cut_to_a_mark(self, chat: tape.Tape) -> None:
        """In the shape that the API gives results, so that the request is taken."""
        source = {"type": "base64", "media_type": "image/png", "data": "A" * 40_000}
        chat.append(role="user", content="look")
        for number in range(12):
            chat.append(
                {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{number}", "name": "f", "input": {}}]}
            )
            block = {
                "type": "tool_result",
                "tool_use_id": f"c{number}",
                "content": [{"type": "image", "source": source}],
            }
            chat.append({"role": "user", "content": [block]})
        context = chat.context(budget=3_000)
        check_chat(context.to_openai())
        check_responses(context.to_openai(api="responses"))
        check_anthropic(context.to_anthropic())
        assert context.messages[2].content[0]["content"] == [
            {"type": "text", "text": "[image/png, 29 KB cut; recorded at chat:4]"}
        ]
        assert context.messages[-1].content[0]["content"][0]["type"] == "image"

    def test_a_fork_says_on_which_tape_the_whole_is(self, store: tape.Store) -> None:
        """An output that it inherits is read where it was recorded."""
        parent = store.create("parent", messages=[{"role": "user", "content": "go"}, *steps(10)])
        child = parent.fork("child")
        child.extend(steps(10, first=10))
        context = child.context(budget=1_500)
        check_all(context)
        assert context.messages[2].content == "[1000 characters cut; recorded at parent:4]"
        assert any("recorded at child:" in str(message.content) for message in context.messages)

    def test_a_context_recorded_by_the_policy_before_is_recalled(self, chat: tape.Tape) -> None:
        """Its manifest tells nothing of why messages were altered."""
        chat.extend([{"role": "user", "content": "go"}, *steps(2)])
        data = msgspec.json.decode(msgspec.json.encode(chat.context().manifest))
        del data["altered"]
        data["version"] = 1
        event = Plain(key=chat._services.keyed(None), payload=payloads.Event(name="tape.context", data=data))
        old = chat._services.recorder.record(Call("chat"), [event])[0]
        assert chat.recall(old.seq).to_openai() == chat.context().to_openai()
