"""Tool calls: found in the shapes that models and frameworks use, kept in the entry, bound to their results."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from support.backends import Backend
from support.parts import APIS, renderings

import tape
from tape import new_ids
from tape.core.context.shorten import shorten
from tape.core.entries import payloads
from tape.core.messages import toolcalls
from tape.core.messages.dialects import with_result
from tape.core.messages.shapes import read

Message = dict[str, Any]


@pytest.fixture(scope="module")
def store(standing: Backend) -> tape.Store:
    return standing.open()


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    return store.tape(new_ids.new_id())


def openai_call(*calls: str) -> Message:
    made = [{"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}} for call in calls]
    return {"role": "assistant", "content": None, "tool_calls": made}


def openai_result(call: str) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": "found"}


def anthropic_call(*calls: str) -> Message:
    made = [{"type": "tool_use", "id": call, "name": "look", "input": {}} for call in calls]
    return {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *made]}


def anthropic_result(*calls: str) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": c, "content": "found"} for c in calls]}


def responses_call(call: str) -> Message:
    return {"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"}


def responses_result(call: str) -> Message:
    return {"type": "function_call_output", "call_id": call, "output": "found"}


def sdk_call(*calls: str) -> Message:
    made = [{"type": "tool-call", "toolCallId": call, "toolName": "look", "input": {}} for call in calls]
    return {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *made]}


def sdk_result(*calls: str) -> Message:
    made = [{"type": "tool-result", "toolCallId": c, "toolName": "look", "output": "found"} for c in calls]
    return {"role": "tool", "content": made}


def gemini_call(*calls: str) -> Message:
    made = [{"function_call": {"id": call, "name": "look", "args": {}}} for call in calls]
    return {"role": "model", "parts": [{"text": "I look."}, *made]}


def gemini_result(*calls: str) -> Message:
    made = [{"functionResponse": {"id": c, "name": "look", "response": {"result": "found"}}} for c in calls]
    return {"role": "user", "parts": made}


def bedrock_call(*calls: str) -> Message:
    made = [{"toolUse": {"toolUseId": call, "name": "look", "input": {}}} for call in calls]
    return {"role": "assistant", "content": [{"text": "I look."}, *made]}


def bedrock_result(*calls: str) -> Message:
    made = [{"toolResult": {"toolUseId": c, "status": "success", "content": [{"text": "found"}]}} for c in calls]
    return {"role": "user", "content": made}


def framework_call(*calls: str) -> Message:
    made = [{"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"} for call in calls]
    return {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *made]}


def framework_result(*calls: str) -> Message:
    return {"role": "tool", "content": [{"type": "function_result", "call_id": c, "result": "found"} for c in calls]}


def genai_call(*calls: str) -> Message:
    made = [{"type": "tool_call", "id": call, "name": "look", "arguments": {}} for call in calls]
    return {"role": "assistant", "parts": [{"type": "text", "content": "I look."}, *made]}


def genai_result(*calls: str) -> Message:
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": c, "response": "found"} for c in calls]}


def pydantic_call(*calls: str) -> Message:
    made = [{"part_kind": "tool-call", "tool_call_id": call, "tool_name": "look", "args": "{}"} for call in calls]
    return {"role": "assistant", "parts": [{"part_kind": "text", "content": "I look."}, *made]}


def pydantic_result(*calls: str) -> Message:
    return {
        "role": "user",
        "parts": [{"part_kind": "tool-return", "tool_call_id": c, "content": "found"} for c in calls],
    }


def llama_call(*calls: str) -> Message:
    made = [{"block_type": "tool_call", "tool_call_id": c, "tool_name": "look", "tool_kwargs": {}} for c in calls]
    return {"role": "assistant", "content": [{"block_type": "text", "text": "I look."}, *made]}


DIALECTS: dict[str, tuple[Any, Any]] = {
    "gemini": (gemini_call, gemini_result),
    "bedrock": (bedrock_call, bedrock_result),
    "agent-framework": (framework_call, framework_result),
    "genai": (genai_call, genai_result),
    "pydantic-ai": (pydantic_call, pydantic_result),
}
"""The shapes of other APIs and frameworks, which are read as Anthropic's blocks are."""


class TestFind:
    """``find`` over single messages."""

    @pytest.mark.parametrize(
        ("message", "made", "answered"),
        [
            pytest.param(openai_call("c1", "c2"), ["c1", "c2"], [], id="OpenAI chat, calls"),
            pytest.param(openai_result("c1"), [], ["c1"], id="OpenAI chat, result"),
            pytest.param(responses_call("c1"), ["c1"], [], id="Responses, call"),
            pytest.param({"id": "fc_1", **responses_call("c1")}, ["c1"], [], id="Responses, call with an item id"),
            pytest.param(responses_result("c1"), [], ["c1"], id="Responses, result"),
            pytest.param(
                {"type": "custom_tool_call", "call_id": "c1", "input": ""}, ["c1"], [], id="Responses, custom"
            ),
            pytest.param(
                {"type": "custom_tool_call_output", "call_id": "c1", "output": ""},
                [],
                ["c1"],
                id="Responses, custom result",
            ),
            pytest.param({"type": "computer_call", "call_id": "c1"}, ["c1"], [], id="Responses, computer"),
            pytest.param({"type": "computer_call_output", "call_id": "c1"}, [], ["c1"], id="Responses, screenshot"),
            pytest.param({"type": "web_search_call", "id": "ws_1"}, [], [], id="Responses, a call that nobody answers"),
            pytest.param(
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
                [],
                [],
                id="Responses, text",
            ),
            pytest.param(
                {"role": "user", "content": [responses_call("c1"), responses_result("c2")]},
                ["c1"],
                ["c2"],
                id="Responses, items gathered in one message",
            ),
            pytest.param(anthropic_call("c1", "c2"), ["c1", "c2"], [], id="Anthropic, calls"),
            pytest.param(anthropic_result("c1", "c2"), [], ["c1", "c2"], id="Anthropic, results"),
            pytest.param(
                {
                    "role": "assistant",
                    "content": [
                        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
                        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
                    ],
                },
                ["s1"],
                [],
                id="Anthropic, a server's call answered in the same message",
            ),
            pytest.param(
                {"role": "assistant", "content": [{"type": "mcp_tool_use", "id": "m1"}]},
                ["m1"],
                [],
                id="Anthropic, MCP",
            ),
            pytest.param(llama_call("c1", "c2"), ["c1", "c2"], [], id="LlamaIndex, calls"),
            pytest.param(sdk_call("c1", "c2"), ["c1", "c2"], [], id="AI-SDK, calls"),
            pytest.param(sdk_result("c1"), [], ["c1"], id="AI-SDK, result"),
            pytest.param(
                {"role": "tool", "content": [{"type": "tool-error", "toolCallId": "c1"}]},
                [],
                ["c1"],
                id="AI-SDK, error",
            ),
            pytest.param(
                {
                    "role": "assistant",
                    "parts": [
                        {"type": "step-start"},
                        {"type": "tool-weather", "toolCallId": "c1", "state": "output-available", "output": 21},
                        {"type": "dynamic-tool", "toolCallId": "c2", "toolName": "look"},
                    ],
                },
                ["c1", "c2"],
                [],
                id="AI-SDK, parts of a chat interface that hold call and result",
            ),
        ],
    )
    def test_known_shapes(self, message: Message, made: list[str], answered: list[str]) -> None:
        """Calls made and calls answered are told apart in every shape, each in the order given."""
        assert toolcalls.find(message) == (made, answered)

    @pytest.mark.parametrize(("call", "result"), DIALECTS.values(), ids=DIALECTS)
    def test_dialects_are_read_alike(self, call: Any, result: Any) -> None:
        """Calls and results are found whatever a framework calls them."""
        assert toolcalls.find(call("c1", "c2")) == (["c1", "c2"], [])
        assert toolcalls.find(result("c1", "c2")) == ([], ["c1", "c2"])

    @pytest.mark.parametrize(
        "message",
        [
            {},
            {"role": "user", "content": "tool_use c1"},
            {"role": "user"},
            {"role": "user", "content": None},
            {"role": "user", "content": 7},
            {"role": "user", "content": ["text", None, 7, [], {"type": "text", "text": "x"}]},
            {"role": "user", "content": {"type": "tool_use", "id": "c1"}},
            {"role": "assistant", "content": "", "tool_calls": None},
            {"role": "assistant", "content": "", "tool_calls": {"id": "c1"}},
            {"role": "assistant", "content": "", "tool_calls": ["c1", None, {}, {"id": None}, {"id": 7}, {"id": ""}]},
            {"role": "tool", "tool_call_id": None, "content": ""},
            {"role": "tool", "tool_call_id": 7, "content": ""},
            {"role": "user", "content": [{"type": "tool_use"}, {"type": "tool_result", "tool_use_id": ""}]},
            {"role": "user", "content": [{"type": None, "id": "c1"}, {"id": "c1"}]},
            {"type": 7, "call_id": "c1"},
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "x"}}]},
            {"role": "assistant", "content": "", "function_call": {"name": "look", "arguments": "{}"}},
            {"role": "model", "parts": [{"function_call": {"id": None}}, {"functionResponse": 7}, {"thought": True}]},
            {"role": "user", "content": [{"toolUse": []}, {"toolResult": {"toolUseId": ""}}, {"type": "data"}]},
            {"role": "user", "parts": [{"part_kind": None}, {"part_kind": "user-prompt", "content": [7, None, {}]}]},
        ],
    )
    def test_anything_else_makes_and_answers_nothing(self, message: Message) -> None:
        """A message of another shape, or with ids that are none, is taken as it is and never an error."""
        assert toolcalls.find(message) == ([], [])

    def test_a_call_named_twice_is_one_call(self) -> None:
        """Calls and answers are listed once each."""
        assert toolcalls.find(openai_call("c1", "c1")) == (["c1"], [])
        assert toolcalls.find(anthropic_result("c1", "c2", "c1")) == ([], ["c1", "c2"])

    def test_a_message_may_answer_one_call_and_make_another(self) -> None:
        """What a message answers of its own calls needs no binding; what it answers of another's does."""
        content = [*anthropic_result("c1", "c2")["content"], *anthropic_call("c2", "c3")["content"]]
        assert toolcalls.find({"role": "user", "content": content}) == (["c2", "c3"], ["c1"])


SHAPES = [
    pytest.param(openai_call, openai_result, id="openai"),
    pytest.param(responses_call, responses_result, id="responses"),
    pytest.param(anthropic_call, anthropic_result, id="anthropic"),
    pytest.param(sdk_call, sdk_result, id="ai-sdk"),
    pytest.param(llama_call, openai_result, id="llama-index"),
    *(pytest.param(call, result, id=name) for name, (call, result) in DIALECTS.items()),
]


def shown(chat: tape.Tape) -> list[str]:
    return [message.id for message in chat.messages()]


class TestBinding:
    """Results come and go with the calls they answer."""

    @pytest.mark.parametrize(("call", "result"), SHAPES)
    def test_a_result_goes_and_returns_with_its_call(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """Retracting the message that made the call takes the result along, and restoring it brings both back."""
        chat.append(role="user", content="look", id="ask")
        chat.append(call("c1"), id="call")
        chat.append(result("c1"), id="result")
        chat.append(role="assistant", content="There.", id="say")
        chat.retract("call")
        assert shown(chat) == ["ask", "say"]
        assert chat.info().message_count == 2
        chat.restore("call")
        assert shown(chat) == ["ask", "call", "result", "say"]
        assert chat.info().message_count == 4
        assert chat.verify().ok

    @pytest.mark.parametrize(("call", "result"), SHAPES)
    def test_a_result_goes_with_the_revision_that_drops_its_call(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """A revision without the call hides its result, and one that makes it again shows it again."""
        chat.append(call("c1"), id="call")
        chat.append(result("c1"), id="result")
        chat.revise("call", call("c2"))
        assert shown(chat) == ["call"]
        chat.revise("call", call("c1"))
        assert shown(chat) == ["call", "result"]

    def test_calls_in_one_shape_and_results_in_another_find_each_other(self, chat: tape.Tape) -> None:
        """Only the call's id binds: a tape that changed its provider in between keeps calls and results together."""
        chat.append(openai_call("c1"), id="call")
        chat.append(anthropic_result("c1"), id="result")
        chat.retract("call")
        assert shown(chat) == []

    def test_a_result_binds_to_the_nearest_call_above_it(self, chat: tape.Tape) -> None:
        """Where an id was used twice, a result belongs to the nearer call, and only that one takes it along."""
        chat.append(openai_call("c1"), id="first")
        chat.append(openai_result("c1"), id="one")
        chat.append(openai_call("c1"), id="second")
        chat.append(openai_result("c1"), id="two")
        chat.retract("second")
        assert shown(chat) == ["first", "one"]
        chat.restore("second")
        chat.retract("first")
        assert shown(chat) == ["second", "two"]

    def test_a_result_binds_only_to_a_call_on_its_own_path(self, chat: tape.Tape) -> None:
        """The same call id on another branch has nothing to do with it."""
        chat.append(role="user", content="look", id="ask")
        chat.append(openai_call("c1"), id="here")
        chat.append(openai_result("c1"), id="result")
        chat.append(openai_call("c1"), id="there", parent="ask")
        chat.retract("there")
        chat.switch("result")
        assert shown(chat) == ["ask", "here", "result"]

    def test_a_result_bound_to_nothing_stays(self, chat: tape.Tape) -> None:
        """A result whose call was never seen, or came after it, is not hidden by anything."""
        chat.append(openai_result("c1"), id="orphan")
        chat.append(openai_call("c1"), id="late")
        chat.retract("late")
        assert shown(chat) == ["orphan"]

    def test_a_result_of_several_calls_goes_with_the_last_of_them(self, chat: tape.Tape) -> None:
        """A message with several results is hidden only when none of the calls is made any more."""
        chat.append(anthropic_call("c1", "c2"), id="call")
        chat.append(anthropic_result("c1", "c2"), id="results")
        chat.revise("call", anthropic_call("c2"))
        assert shown(chat) == ["call", "results"]
        chat.revise("call", anthropic_call("c3"))
        assert shown(chat) == ["call"]
        chat.revise("call", anthropic_call("c1"))
        assert shown(chat) == ["call", "results"]

    def test_what_goes_with_a_result_goes_too(self, chat: tape.Tape) -> None:
        """A result that makes a call takes the result of that one along."""
        chat.append(openai_call("c1"), id="call")
        chat.append({"role": "tool", "tool_call_id": "c1", "tool_calls": openai_call("c2")["tool_calls"]}, id="both")
        chat.append(openai_result("c2"), id="last")
        chat.retract("call")
        assert shown(chat) == []
        chat.restore("call")
        assert shown(chat) == ["call", "both", "last"]

    def test_restore_never_brings_back_what_was_retracted_by_itself(self, chat: tape.Tape) -> None:
        """A result retracted before its call, or while hidden with it, stays out when the call returns."""
        chat.append(openai_call("c1", "c2", "c3"), id="call")
        for number in (1, 2, 3):
            chat.append(openai_result(f"c{number}"), id=f"result{number}")
        chat.retract("result1")
        chat.retract("call")
        chat.retract("result2")
        with pytest.raises(tape.UnknownMessage) as caught:
            chat.retract("result2")
        assert caught.value.retracted
        chat.restore("call")
        assert shown(chat) == ["call", "result3"]
        chat.restore("result1", "result2")
        assert shown(chat) == ["call", "result1", "result2", "result3"]

    def test_a_hidden_result_cannot_be_restored_without_its_call(self, chat: tape.Tape) -> None:
        """A result that only went along is not retracted, so there is nothing to restore but the call."""
        chat.append(openai_call("c1"), id="call")
        chat.append(openai_result("c1"), id="result")
        chat.retract("call")
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.restore("result")
        assert caught.value.field == "ids"
        assert shown(chat) == []

    def test_a_result_restored_before_its_call_waits_for_it(self, chat: tape.Tape) -> None:
        """Restored by itself while its call is out, a result shows as soon as the call does."""
        chat.append(openai_call("c1"), id="call")
        chat.append(openai_result("c1"), id="result")
        chat.retract("result")
        chat.retract("call")
        chat.restore("result")
        assert shown(chat) == []
        chat.restore("call")
        assert shown(chat) == ["call", "result"]

    def test_revising_a_result_does_not_bind_it_anew(self, chat: tape.Tape) -> None:
        """A result keeps the binding it was appended with, whatever its later text names."""
        chat.append(openai_call("c1", "c2"), id="call")
        chat.append(openai_result("c1"), id="result")
        chat.revise("result", openai_result("c2"))
        chat.revise("call", openai_call("c2"))
        assert shown(chat) == ["call"]


class TestDialects:
    """What other APIs and frameworks say is shown, found, counted and cut as if it were said in Anthropic's blocks."""

    @pytest.mark.parametrize(("call", "result"), DIALECTS.values(), ids=DIALECTS)
    def test_they_are_rendered_alike(self, store: tape.Store, call: Any, result: Any) -> None:
        """Every request shows the text, the call and its result, with nothing to repair."""
        contexts: list[tape.Context] = []
        for made, answered in ((call, result), (anthropic_call, anthropic_result)):
            chat = store.tape(new_ids.new_id())
            chat.extend([{"role": "user", "content": "look"}, made("c1"), answered("c1")])
            contexts.append(chat.context())
        theirs, ours = contexts
        assert theirs.repairs == []
        for api in APIS:
            request = repr(renderings(theirs)[api])
            for found in ("{'result': 'found'}", '{"result":"found"}'):
                request = request.replace(found, "found")
            assert request == repr(renderings(ours)[api])
        assert 0 <= theirs.tokens - ours.tokens <= 8

    @pytest.mark.parametrize(("call", "result"), DIALECTS.values(), ids=DIALECTS)
    def test_c3_their_results_are_cut(self, call: Any, result: Any) -> None:
        """A long result is cut inside its own shape; the call is left alone."""
        long = repr(result("c1")).replace("found", "found " * 500)
        message: Message = ast.literal_eval(long)
        short = shorten(message, 100)
        assert "characters cut" in repr(short)
        assert len(repr(short)) < 600
        assert toolcalls.find(short) == ([], ["c1"])
        assert shorten(call("c1"), 100) == call("c1")

    @pytest.mark.parametrize(("call", "result"), DIALECTS.values(), ids=DIALECTS)
    def test_s7_their_words_are_found(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """Texts, tools and results are; what names a part is not."""
        chat.extend([call("c1"), result("c1")])
        assert [hit.role in ("assistant", "model") for hit in chat.search("look")] == [True]
        assert len(chat.search("found")) == 1
        for word in ("function_call", "toolUse", "part_kind", "tool-return", "tool_call_response", "c1"):
            assert chat.search(word) == []
        assert chat.messages()[0].text == "I look."

    @pytest.mark.parametrize(
        "part",
        [
            *(result("c1").get("parts", result("c1").get("content"))[0] for _, result in DIALECTS.values()),
            {"part_kind": "retry-prompt", "tool_name": "look", "tool_call_id": "c1", "content": "found"},
            {"type": "tool_call_response", "id": "c1", "result": "found"},
            {"type": "function_result", "call_id": "c1", "items": [{"type": "text", "text": "found"}]},
            {"toolResult": {"toolUseId": "c1", "content": [{"json": {"was": "found"}}]}},
        ],
    )
    def test_every_result_can_be_changed(self, part: Message) -> None:
        """What is read as a result is what redaction and cutting take out, in the part's own shape."""
        (result,) = read({"role": "user", "content": [part]}).results
        assert "found" in repr(result.content)
        changed = with_result(part, lambda held: "gone")
        assert "found" not in repr(changed)
        assert (part.keys(), "found" in repr(part)) == (changed.keys(), True)

    @pytest.mark.parametrize(
        ("message", "word"),
        [
            (
                anthropic_result("c1") | {"content": [{"type": "uri", "uri": "s3://b", "title": "Quarterly"}]},
                "quarterly",
            ),
            ({"role": "user", "content": [{"type": "data", "uri": "r://a", "description": "Quarterly"}]}, "quarterly"),
            ({"role": "assistant", "content": "The answer", "text": "t", "thought": "because"}, "answer because"),
            ({"role": "user", "type": "text", "content": "hi", "title": "Important"}, "important"),
            ({"role": "user", "content": "x", "source": {"type": "text", "content": "abc", "by": "Ann"}}, "ann abc"),
            ({"role": "user", "content": "x", "layout": {"block_type": {"a": "deep"}}}, "deep"),
            ({"role": "user", "content": [{"block_type": ["x"], "text": "odd"}, {"part_kind": {}}]}, "odd"),
        ],
    )
    def test_what_only_looks_alike_is_data(self, chat: tape.Tape, message: Message, word: str) -> None:
        """Outside of parts, and in parts that tell nothing of a dialect, every text is found as it always was."""
        chat.append(message)
        assert len(chat.search(word)) == 1
        assert chat.messages()[0].to_dict() == message
        assert chat.context().tokens < 100

    def test_calls_of_langchain(self, chat: tape.Tape) -> None:
        """Beside the content, with their arguments under another name: found, and rendered for every API."""
        call = {"type": "tool_call", "id": "c1", "name": "look", "args": {"city": "Oslo"}}
        chat.append({"role": "assistant", "content": "", "tool_calls": [call]})
        chat.append({"role": "tool", "tool_call_id": "c1", "content": "Drizzle"})
        assert [hit.role for hit in chat.search("oslo")] == ["assistant"]
        assert chat.context().to_openai()[0]["tool_calls"][0]["function"]["arguments"] == '{"city":"Oslo"}'

    def test_files_thoughts_and_other_parts(self, chat: tape.Tape) -> None:
        """Pictures become those of each API; a model's thinking is no text of its own."""
        picture = {"inline_data": {"mime_type": "image/png", "data": "-_-_"}}
        chat.append({"role": "user", "parts": [{"text": "See"}, picture]})
        said = {"text": "A cat.", "thought_signature": "c2ln"}
        chat.append({"role": "model", "parts": [{"text": "Hm.", "thought": True}, said]})
        item = {"kind": "image-url", "url": "https://a.b/c.png"}
        chat.append({"role": "user", "parts": [{"part_kind": "user-prompt", "content": ["And", item]}]})
        chat.append(
            {"role": "user", "content": [{"type": "uri", "uri": "https://a.b/d.png", "media_type": "image/png"}]}
        )
        image = {"block_type": "image", "image": "aGk=", "image_mimetype": "image/png"}
        chat.append({"role": "user", "content": [{"block_type": "text", "text": "Here"}, image]})
        first, second, third, fourth, fifth = chat.context().to_openai()
        assert first["content"][1]["image_url"]["url"] == "data:image/png;base64,+/+/"
        assert (second["role"], second["content"][-6:]) == ("assistant", "A cat.")
        assert chat.messages()[1].text == "A cat."
        assert chat.search("c2ln") == []
        assert [part["type"] for part in third["content"]] == ["text", "image_url"]
        assert fourth["content"][0]["image_url"]["url"] == "https://a.b/d.png"
        assert fifth["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="


class TestRecord:
    """What was found is kept in the entry."""

    def test_the_entry_tells_what_was_found(self, chat: tape.Tape) -> None:
        """Calls made, and calls answered with the message that made them, stand in the payloads."""
        first = chat.append(anthropic_call("c1", "c2"))
        second = chat.append(anthropic_result("c2", "unheard of"))
        made, answered = [entry.payload for entry in chat.entries(kinds=["append"])]
        assert isinstance(made, payloads.Append)
        assert isinstance(answered, payloads.Append)
        assert (made.calls, made.answers) == (["c1", "c2"], [])
        assert answered.calls == []
        assert [answer.call for answer in answered.answers] == ["c2"]
        assert [entry.head for entry in chat.entries() if entry.seq == first.seq] == [answered.answers[0].maker]
        assert second.seq == first.seq + 1

    def test_learning_another_shape_never_changes_an_old_tape(
        self, store: tape.Store, chat: tape.Tape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rebuild, verify and restore read what was recorded: they show the same when ``find`` finds something else."""
        chat.append(openai_call("c1"), id="call")
        chat.append(openai_result("c1"), id="result")
        chat.append(role="user", content="thanks", id="thanks")
        chat.retract("call")
        monkeypatch.setattr(toolcalls, "find", lambda message: (["thanks"], ["c9"]))
        assert store.rebuild(chat.id) == 1
        assert chat.verify().ok
        assert shown(chat) == ["thanks"]
        chat.restore("call")
        assert shown(chat) == ["call", "result", "thanks"]

    def test_calls_of_any_length_and_spelling_bind(self, chat: tape.Tape) -> None:
        """Ids of calls come from models: very long ones, and ones with control characters, bind like any other."""
        for number, call in enumerate(["x" * 5_000, "tab\there", "nul\0here", "東京", "~m:a", "100%_"]):
            chat.append(openai_call(call), id=f"call{number}")
            chat.append(openai_result(call), id=f"result{number}")
            chat.retract(f"call{number}")
            assert shown(chat) == []
            assert chat.verify().ok
