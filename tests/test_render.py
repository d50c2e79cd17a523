"""What a request shows: never more than the budget, every call under its own id, whatever the messages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.parts import CHECKS, PARTS, PDF, PIXEL, PNG, SEARCH, built, renderings, said, user, view
from support.request_rules import check_all, check_anthropic, check_chat, check_responses, measure
from support.sizes import heavy, size

import tape
from tape.core.context.build import build
from tape.core.context.policy import Item, Shaped
from tape.core.context.shorten import shorten
from tape.core.context.weigh import Scale
from tape.core.messages import shapes
from tape.core.messages.tokens import MEDIA_TOKENS, estimate, message_tokens
from tape.core.records import Anchor
from tape.core.render.requests import settle, tokens

LARGE = "data:image/png;base64," + "A" * 400_000


def result_with(content: Any) -> list[dict[str, Any]]:
    return [
        said({"type": "tool_use", "id": "c1", "name": "look", "input": {}}),
        user({"type": "tool_result", "tool_use_id": "c1", "content": content}),
    ]


IMAGES: dict[str, Any] = {
    "a block of Anthropic's": [
        {"type": "text", "text": "here"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}},
    ],
    "a block of MCP's": [{"type": "image", "data": "A" * 400_000, "mimeType": "image/png"}],
    "media of the AI SDK": [{"type": "media", "data": "A" * 400_000, "mediaType": "image/png"}],
    "a data URL": LARGE,
    "a data URL inside of JSON": {"ok": True, "shots": [LARGE]},
    "a block inside of JSON": {"content": [{"type": "image", "data": "A" * 400_000, "mimeType": "image/png"}]},
    "a part of OpenAI's": [{"type": "input_image", "image_url": LARGE}],
}


class TestBudget:
    @pytest.mark.parametrize("name", IMAGES)
    def test_an_image_in_a_tool_result_is_sent_as_an_image(self, store: tape.Store, name: str) -> None:
        """It costs what an image costs, and no API gets its data as text."""
        chat = store.create("t", messages=[{"role": "user", "content": "look"}, *result_with(IMAGES[name])])
        context = chat.context(budget=2_000)
        check_all(context)
        assert all(MEDIA_TOKENS < taken <= context.tokens <= 2_000 for taken in measure(context).values())
        tool, shown = context.to_openai()[-2:]
        assert tool["role"] == "tool"
        assert len(tool["content"]) < 200
        assert [part["type"] for part in shown["content"]] == ["text", "image_url"]
        output = context.to_openai(api="responses")["input"][-1]["output"]
        assert output[-1] == {"type": "input_image", "image_url": LARGE}
        block = context.to_anthropic()["messages"][-1]["content"][0]["content"][-1]
        assert block["source"] == {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}

    def test_an_image_in_an_error_follows_it(self) -> None:
        """Anthropic takes only text in a result that tells of an error."""
        history = result_with(IMAGES["a block of MCP's"])
        history[1]["content"][0]["is_error"] = True
        context = built(history)
        check_all(context)
        assert [block["type"] for block in context.to_anthropic()["messages"][-1]["content"]] == [
            "tool_result",
            "image",
        ]

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "user", "content": LARGE},
            user({"type": "text", "text": LARGE}),
            said({"type": "tool_use", "id": "c", "name": "f", "input": {"picture": LARGE}}),
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"u": LARGE}}}]},
            user(
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "word " * 90_000}}
            ),
        ],
    )
    def test_what_is_sent_as_text_costs_what_text_costs(self, message: dict[str, Any]) -> None:
        """A data URL that stands as text, or in a call's arguments, and a document that is text."""
        whole = built([message])
        assert all(20_000 < taken <= whole.tokens for taken in measure(whole).values())
        with pytest.raises(tape.BudgetExceeded):
            built([message], 2_000)

    def test_unsettled_calls_cost_the_marks_that_answer_them(self, store: tape.Store) -> None:
        """A hundred of them do not pass a budget that their rendering exceeds."""
        chat = store.create("t")
        calls = [
            {"id": f"call_{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(100)
        ]
        chat.append(role="user", content="go")
        chat.append({"role": "assistant", "content": None, "tool_calls": calls})
        whole = chat.context()
        assert max(measure(whole).values()) == whole.tokens
        with pytest.raises(tape.BudgetExceeded) as caught:
            chat.context(budget=1_499)
        assert caught.value.tokens == whole.tokens
        assert max(measure(chat.context(budget=whole.tokens)).values()) <= whole.tokens
        chat.append(role="user", content="never mind")
        context = chat.context(budget=1_499)
        assert max(measure(context).values()) <= context.tokens <= 1_499
        assert [message.content for message in context.messages] == ["never mind"]

    def test_old_images_are_cut_whole(self) -> None:
        """A picture that is cut is a mark and no broken data, whatever shape it was in."""
        for content in IMAGES.values():
            short = shorten(result_with(content)[1], 500)
            assert "AAAA" not in str(short)
            assert "image/png, 293 KB, cut]" in str(short)
            check_all(built([result_with(content)[0], short]))
        assert shorten(result_with("fine")[1], 500) == result_with("fine")[1]

    def test_what_is_always_shown_is_counted(self, chat: tape.Tape) -> None:
        """Prompt, checkpoint, summaries and the word in front of an assistant that begins."""
        chat.set_block("memory", "likes tea " * 20)
        chat.handoff("h", summary="before " * 20, state={"a": [1, 2, 3]})
        chat.extend({"id": f"m{n}", "role": "assistant", "content": f"said {n} " * 9} for n in range(6))
        chat.set_summary("sum " * 30, first="m1", last="m3")
        context = chat.context()
        assert max(measure(context).values()) <= context.tokens
        assert max(measure(chat.context(budget=context.tokens)).values()) <= context.tokens
        with pytest.raises(tape.BudgetExceeded):
            chat.context(budget=150)
        bare = built([{"role": "assistant", "content": "I begin"}])
        assert measure(bare)["anthropic"] == bare.tokens

    def test_a_policy_that_parts_calls_from_results_is_held_to_the_budget(self) -> None:
        """What its choice makes necessary is counted, too."""

        class Careless:
            name, version = "careless", 1

            def shape(self, items: list[Item], budget: int | None, cost: Any) -> Any:
                return Shaped([item for item in items if not shapes.read(item.message.data).results], [])

        calls = [{"id": f"c{n}", "function": {"name": "f"}} for n in range(20)]
        answers = [{"role": "tool", "tool_call_id": f"c{n}", "content": ""} for n in range(20)]
        history = view([{"role": "assistant", "content": None, "tool_calls": calls}, *answers])
        whole = build(history, None, Careless(), None)
        assert max(measure(whole).values()) <= whole.tokens
        with pytest.raises(tape.BudgetExceeded) as caught:
            build(history, whole.tokens - 1, Careless(), None)
        assert caught.value.tokens == whole.tokens

    def test_a_word_that_does_not_fit_costs_a_turn(self) -> None:
        """When the user's word in front of an assistant does not fit, the turn that needs it goes instead."""
        history = [{"role": "assistant", "content": "welcome back"}, {"role": "user", "content": "thank you"}]
        whole = built(history).tokens
        assert [message.content for message in built(history, whole).messages] == ["welcome back", "thank you"]
        for budget in range(whole - 8, whole):
            context = built(history, budget)
            assert [message.content for message in context.messages] == ["thank you"]
            assert max(measure(context).values()) <= context.tokens <= budget


class TestReusedIds:
    TURNS: ClassVar[list[dict[str, Any]]] = [
        message
        for turn in range(3)
        for message in (
            {"role": "user", "content": f"question {turn}"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": f"[{turn}]"}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": f"answer {turn}"},
        )
    ]

    def test_c1_a_reused_call_id_is_renamed_and_reported(self, store: tape.Store) -> None:
        """Each call goes with its own result under an id of its own; what is stored keeps the id."""
        chat = store.create("t", messages=self.TURNS)
        context = chat.context()
        check_all(context)
        assert [(one.what, one.call) for one in context.repairs] == [("reused call id", "call_1")] * 2
        assert [one.message_id for one in context.repairs] == [chat.messages()[4].id, chat.messages()[7].id]
        tools = [(one["tool_call_id"], one["content"]) for one in context.to_openai() if one["role"] == "tool"]
        assert tools == [("call_1", "answer 0"), ("call_1_2", "answer 1"), ("call_1_3", "answer 2")]
        uses = [
            (block["id"], block["input"])
            for turn in context.to_anthropic()["messages"]
            for block in turn["content"]
            if block["type"] == "tool_use"
        ]
        assert uses == [("call_1", {"input": [0]}), ("call_1_2", {"input": [1]}), ("call_1_3", {"input": [2]})]
        assert [message.to_dict() for message in chat.messages()] == self.TURNS

    def test_a_number_never_takes_an_id_that_is_there(self) -> None:
        """Neither that of an earlier call nor that of a later one."""
        history = []
        for id in ("a", "a_2", "a", "a_3", "a"):
            history += [
                said({"type": "tool_use", "id": id, "name": "f", "input": {}}),
                user({"type": "tool_result", "tool_use_id": id, "content": "ok"}),
            ]
        context = built(history)
        check_all(context)
        ids = [call["id"] for one in context.to_openai() for call in one.get("tool_calls", ())]
        assert ids == ["a", "a_2", "a_4", "a_3", "a_5"]

    def test_ids_that_an_api_writes_alike_stay_apart(self) -> None:
        """Anthropic takes few characters, OpenAI few of them: what is left of two ids must differ."""
        history: list[dict[str, Any]] = []
        for id in ("a.b", "a:b", "x" * 60 + "1", "x" * 60 + "2", "x" * 60 + "1"):
            history += [
                {"role": "assistant", "tool_calls": [{"id": id, "function": {"name": "my.tool", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": id, "content": "ok"},
            ]
        context = built(history)
        check_all(context)
        assert [one.what for one in context.repairs] == ["reused call id"]

    def test_calls_of_one_id_in_one_message(self) -> None:
        """Two that differ are two calls, answered in order; one that is written twice is sent once."""
        call = {"type": "tool_use", "id": "c", "name": "f", "input": {"n": 1}}
        other = {**call, "input": {"n": 2}}
        results = [{"type": "tool_result", "tool_use_id": "c", "content": f"r{n}"} for n in (1, 2)]
        two = built([said(call, other), user(*results)])
        check_all(two)
        assert [one["content"] for one in two.to_openai() if one["role"] == "tool"] == ["r1", "r2"]
        assert [one.what for one in two.repairs] == ["reused call id"]
        once = built([said(call, call), user(results[0])])
        check_all(once)
        assert [one.what for one in once.repairs] == ["repeated call"]

    def test_a_call_of_the_servers_that_came_twice_is_renamed(self) -> None:
        """Its result goes along."""
        context = built([said(*SEARCH), {"role": "user", "content": "again"}, said(*SEARCH)])
        check_all(context)
        last = context.to_anthropic()["messages"][-1]["content"]
        assert [last[0]["id"], last[1]["tool_use_id"]] == ["srvtoolu_1_2"] * 2


_ids = st.sampled_from(["a", "b", "a_2", "a.b", "x" * 50])
_text = st.sampled_from(["", " ", "hello", "東京", "x" * 300, "~~~ fence", PNG, "data:text/plain;base64,aGk="])
_content = st.one_of(
    _text,
    st.sampled_from([None, 7, True, [], {}, {"a": PNG}, [PNG], {"type": "computer_screenshot", "image_url": PNG}]),
    st.lists(
        st.sampled_from(
            [
                {"type": "text", "text": "t"},
                {"type": "image", "data": PIXEL, "mimeType": "image/png"},
                {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
                {"type": "tool_reference", "tool_name": "f"},
                {"type": "input_file", "file_data": PDF, "filename": "a.pdf"},
                {"type": "resource", "resource": {"uri": "a://b", "text": "words"}},
                {"k": 1},
            ]
        ),
        max_size=3,
    ),
)


@st.composite
def _messages(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["part", "part", "say", "call", "result", "block", "answers", "item", "output", "sdk"]))
    ids = draw(st.lists(_ids, min_size=1, max_size=3))
    text = draw(_text)
    if kind == "part":
        message = copy.deepcopy(PARTS[draw(st.sampled_from(sorted(PARTS)))][0])
        if isinstance(message.get("content"), list) and draw(st.booleans()):
            message["content"].append({"type": "text", "text": text})
            message["role"] = draw(st.sampled_from(["user", "assistant", "system", "tool"]))
        return message
    if kind == "say":
        role = draw(st.sampled_from(["user", "assistant", "system", "developer", "tool", "other"]))
        return {"role": role, "content": text}
    if kind == "call":
        made = [{"id": id, "type": "function", "function": {"name": "f", "arguments": text}} for id in ids]
        made += [{"id": ids[0], "type": "custom", "custom": {"name": "g", "input": text}}] if len(ids) > 1 else []
        return {"role": "assistant", "content": text or None, "tool_calls": made}
    if kind == "result":
        return {"role": "tool", "tool_call_id": ids[0], "content": draw(_content)}
    if kind == "block":
        blocks = [{"type": "tool_use", "id": id, "name": "f.g", "input": {"t": text}} for id in ids]
        return said({"type": "text", "text": text}, *blocks)
    if kind == "answers":
        error = draw(st.booleans())
        results = [
            {"type": "tool_result", "tool_use_id": id, "content": draw(_content), "is_error": error} for id in ids
        ]
        return user(*results, {"type": "text", "text": text})
    if kind == "item":
        kind = draw(st.sampled_from(["function_call", "custom_tool_call", "computer_call", "local_shell_call"]))
        given = {"function_call": "arguments", "custom_tool_call": "input"}.get(kind, "action")
        return {"type": kind, "id": "i", "call_id": ids[0], "name": "f", given: text if given != "action" else {}}
    if kind == "output":
        kind = draw(st.sampled_from(["function_call", "custom_tool_call", "computer_call", "local_shell_call"]))
        return {"type": f"{kind}_output", "id": "o", "call_id": ids[0], "output": draw(_content)}
    part = {"type": "tool-f", "toolCallId": ids[0], "input": {}, "state": "output-available", "output": draw(_content)}
    return {"role": "assistant", "parts": [{"type": "step-start"}, part, {"type": "text", "text": text}]}


_anchors = st.sampled_from([None, Anchor("h", 1, {"k": "v"}, "before", None, [], [], None, [], False, "t", 0)])


class TestProperties:
    @heavy
    @given(st.lists(_messages(), max_size=10))
    @settings(max_examples=size(30, 400), deadline=None)
    def test_c1_any_mixed_history_renders_to_valid_requests(self, messages: list[dict[str, Any]]) -> None:
        """Whatever shapes meet, no API would refuse the request; settling twice changes nothing; nothing is mutated."""
        before = copy.deepcopy(messages)
        context = built(messages)
        check_all(context)
        once = settle([shapes.read(message) for message in messages])
        assert settle(once) == once
        assert messages == before
        assert built(messages).repairs == context.repairs

    @heavy
    @given(st.lists(_messages(), max_size=10), st.integers(1, 3_000), _anchors, st.sampled_from([None, "p " * 20]))
    @settings(max_examples=size(30, 400), deadline=None)
    def test_c2_no_rendering_exceeds_the_budget(
        self, messages: list[dict[str, Any]], budget: int, anchor: Anchor | None, prompt: str | None
    ) -> None:
        """Each request, counted as it is rendered, takes at most the tokens told, and those at most the budget."""
        for counter in (None, len):
            whole = build(view(messages, anchor=anchor, prompt=prompt), None, None, counter)
            try:
                context = build(view(messages, anchor=anchor, prompt=prompt), budget, None, counter)
            except tape.BudgetExceeded:
                assert whole.tokens > budget
                continue
            taken = measure(context) if counter is None else measure(context, counter)
            assert max(taken.values()) <= context.tokens <= budget
            check_all(context)

    @given(st.lists(_messages(), min_size=1, max_size=6))
    @settings(max_examples=100, deadline=None)
    def test_no_message_disappears_silently(self, messages: list[dict[str, Any]]) -> None:
        """A message of which nothing is shown is named among the repairs."""
        for api in CHECKS:
            for message in messages:
                context = built([message])
                request = renderings(context)[api]
                told = request if api == "chat" else request["input" if api == "responses" else "messages"]
                shown = bool(told) or bool(api == "anthropic" and request["system"])
                repairs = [one for one in context.repairs if not one.apis or api in one.apis]
                assert shown or repairs

    @given(_messages(), st.sampled_from([estimate, len]))
    @settings(max_examples=150, deadline=None)
    def test_the_short_way_of_weighing_gives_what_rendering_does(
        self, message: dict[str, Any], counter: Callable[[str], int]
    ) -> None:
        """Calls of functions and results of text are counted without being rendered, and to the same number."""
        neutral = shapes.read(message)
        short = Scale(counter)._simple(neutral)
        assert short is None or short == tokens(neutral, counter)
        made = {"id": "c", "function": {"name": "f", "arguments": '{"a": [1]}'}}
        for simple in (
            {"role": "assistant", "content": "so", "tool_calls": [made, {**made, "id": "d"}]},
            {"role": "tool", "tool_call_id": "c", "content": "text"},
        ):
            assert Scale(counter)._simple(shapes.read(simple)) == tokens(shapes.read(simple), counter)

    def test_the_estimate_at_append_knows_media_and_text_apart(self) -> None:
        """What a tool gives is counted as the picture it is shown as; elsewhere a data URL is text."""
        assert message_tokens({"role": "tool", "tool_call_id": "c", "content": LARGE}) < MEDIA_TOKENS + 20
        assert message_tokens({"type": "function_call_output", "call_id": "c", "output": LARGE}) < MEDIA_TOKENS + 20
        assert message_tokens({"role": "user", "content": LARGE}) > 90_000
        text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "word " * 9_000}}
        assert message_tokens(user(text)) > 8_000


ODD: dict[str, dict[str, Any]] = {
    "a type that is no name": {"role": "user", "content": [{"type": ["text"], "text": "hello"}]},
    "a type that is an object": {"role": "user", "content": [{"type": {"a": 1}}, "hello"]},
    "a role that no API has": {"role": "function", "name": "weather", "content": "24 C"},
    "parts that are no objects": {"role": "assistant", "content": [None, 3, "hello", ["x"]]},
    "a call without a name": {"role": "assistant", "tool_calls": [{"id": "c1"}, 5, {"id": 7}]},
    "a call with an empty id": {"role": "assistant", "content": None, "tool_calls": [{"id": "", "function": {}}]},
    "an item that nobody knows": {"type": "dream", "about": ["sheep"]},
    "content that is an object": {"role": "user", "content": {"text": "hello"}},
}


class TestOddMessages:
    @pytest.mark.parametrize("name", ODD)
    def test_it_is_kept_and_rendered(self, name: str) -> None:
        """It comes back equal, and a context with it is one that every API accepts."""
        with tape.open(":memory:") as store:
            chat = store.tape("odd")
            chat.append(role="user", content="Before")
            kept = chat.append(ODD[name])
            chat.append(role="user", content="After")
            assert kept.message_id is not None
            assert chat.message(kept.message_id).to_dict() == ODD[name]
            context = chat.context(budget=1_000)
            check_chat(context.to_openai())
            check_responses(context.to_openai(api="responses"))
            check_anthropic(context.to_anthropic())
            assert [hit.message_id for hit in chat.search("hello")] in ([], [kept.message_id])
            assert chat.verify().ok
