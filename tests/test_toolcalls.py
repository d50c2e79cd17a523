"""Tool calls: found in the shapes that models and frameworks use, kept in the entry, bound to their results."""

from __future__ import annotations

from typing import Any

import pytest
from support.backends import Backend
from support.dialects import DIALECTS, llama_call

import tape
from tape import new_ids
from tape.core.entries import payloads
from tape.core.messages import toolcalls

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

    @pytest.mark.parametrize("forked", [False, True])
    def test_a_later_revision_above_is_no_nearer(self, chat: tape.Tape, forked: bool) -> None:
        """The nearest call is the deepest, however often one above it was written again since."""
        chat.append(openai_call("c1"), id="first")
        chat.append(openai_call("c1"), id="second")
        if forked:
            chat = chat.fork(new_ids.new_id())
        for number in range(20):
            chat.revise("first", {**openai_call("c1"), "content": f"look {number}"})
        chat.append(openai_result("c1"), id="result")
        chat.retract("first")
        assert shown(chat) == ["second", "result"]
        chat.retract("second")
        assert shown(chat) == []

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
