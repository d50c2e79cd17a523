"""What a request shows: every part or a mark for it, never more than the budget, and every call under its own id."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.validators import check_all, check_anthropic, check_chat, check_responses, measure

import tape
from tape.core.context.build import Item, Shaped, View, build, shorten
from tape.core.context.weigh import Scale
from tape.core.messages import shapes
from tape.core.messages.tokens import MEDIA_TOKENS, estimate, message_tokens
from tape.core.records import Anchor, Message
from tape.core.render.requests import settle, tokens

APIS = ("chat", "responses", "anthropic")
PIXEL = "iVBORw0KGgo="
PNG = f"data:image/png;base64,{PIXEL}"
PDF = "data:application/pdf;base64,JVBERi0="
LARGE = "data:image/png;base64," + "A" * 400_000


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts)}


def view(messages: list[dict[str, Any]], **more: Any) -> View:
    items = [
        Item(Message(f"m{n}", "t", data, None, n + 2, n + 2, 0), 0) for n, data in enumerate(copy.deepcopy(messages))
    ]
    facts: dict[str, Any] = {
        "anchor": None,
        "summaries": [],
        "excluded": [],
        "prompt": None,
        "prompt_stale": False,
        "head": 9,
        "tape": "t",
    }
    return View(items=items, **{**facts, **more})


def built(messages: list[dict[str, Any]], budget: int | None = None) -> tape.Context:
    return build(view(messages), budget, None, None)


def renderings(context: tape.Context) -> dict[str, Any]:
    return {
        "chat": context.to_openai(),
        "responses": context.to_openai(api="responses"),
        "anthropic": context.to_anthropic(),
    }


AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
SEARCH: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tea houses"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "url": "https://a.b", "title": "T", "encrypted_content": "xyz"}],
    },
]

# Each part, who says it, and for each API a text that its request must have: the part itself, or a mark.
PARTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a PDF of Anthropic's": (
        user(
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                "title": "plan.pdf",
            }
        ),
        {"chat": '"file_data":"data:application/pdf', "responses": '"input_file"', "anthropic": '"document"'},
    ),
    "a text document": (
        user({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "the plan"}}),
        {"chat": "the plan", "responses": "the plan", "anthropic": '"document"'},
    ),
    "a document of blocks": (
        user({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "the plan"}]}}),
        {"chat": "the plan", "responses": "the plan", "anthropic": '"document"'},
    ),
    "a PDF by address": (
        user({"type": "document", "source": {"type": "url", "url": "https://a.b/c.pdf"}}),
        {"chat": "https://a.b/c.pdf, not shown", "responses": '"file_url"', "anthropic": '"document"'},
    ),
    "a file kept by Anthropic": (
        user({"type": "document", "source": {"type": "file", "file_id": "file_011"}}),
        {"chat": "file_011, not shown", "responses": "file_011, not shown", "anthropic": '"file_id":"file_011"'},
    ),
    "audio": (
        user(AUDIO),
        {
            "chat": '"input_audio"',
            "responses": "not shown: OpenAI Responses takes no audio",
            "anthropic": "not shown: Anthropic takes no audio",
        },
    ),
    "a file of chat": (
        user({"type": "file", "file": {"filename": "plan.pdf", "file_data": PDF}}),
        {"chat": '"file_data"', "responses": '"file_data"', "anthropic": '"application/pdf"'},
    ),
    "a file kept by OpenAI": (
        user({"type": "file", "file": {"file_id": "file-1"}}),
        {"chat": '"file-1"', "responses": '"file-1"', "anthropic": "file-1, not shown"},
    ),
    "an input file": (
        user({"type": "input_file", "filename": "plan.pdf", "file_data": PDF}),
        {"chat": '"file_data"', "responses": '"input_file"', "anthropic": '"document"'},
    ),
    "an input file by address": (
        user({"type": "input_file", "file_url": "https://a.b/plan.pdf"}),
        {"chat": "not shown", "responses": '"file_url"', "anthropic": '"url":"https://a.b/plan.pdf"'},
    ),
    "an input file that is text": (
        user({"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}),
        {"chat": '"file_data"', "responses": '"file_data"', "anthropic": '"hello"'},
    ),
    "an image kept by OpenAI": (
        user({"type": "input_image", "file_id": "file-2"}),
        {"chat": "file-2, not shown", "responses": '"file_id":"file-2"', "anthropic": "file-2, not shown"},
    ),
    "an image of no common type": (
        user({"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": PIXEL}}),
        {"chat": "image/tiff", "responses": "not shown", "anthropic": "takes no such image"},
    ),
    "a file of the AI SDK": (
        user({"type": "file", "mediaType": "application/pdf", "url": PDF, "filename": "plan.pdf"}),
        {"chat": '"file_data"', "responses": '"file_data"', "anthropic": '"document"'},
    ),
    "an image of the AI SDK": (
        user({"type": "file", "mediaType": "image/png", "url": PNG}),
        {"chat": '"image_url"', "responses": '"input_image"', "anthropic": '"image/png"'},
    ),
    "an image that an assistant made": (
        said({"type": "file", "mediaType": "image/png", "url": PNG}),
        dict.fromkeys(APIS, "image/png, 9 bytes, not shown"),
    ),
    "a search by the server": (
        said(*SEARCH),
        {"chat": "tea houses", "responses": "tea houses", "anthropic": '"encrypted_content":"xyz"'},
    ),
    "a call of MCP by the server": (
        said(
            {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "add", "server_name": "s", "input": {"a": 17}},
            {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": [{"text": "18"}]},
        ),
        {"chat": "mcp_tool_use add", "responses": "mcp_tool_use add", "anthropic": '"server_name":"s"'},
    ),
    "thinking": (
        said({"type": "thinking", "thinking": "hm", "signature": "sig"}),
        {"chat": "[thinking, not", "responses": "[thinking, not", "anthropic": '"signature":"sig"'},
    ),
    "thinking that nobody signed": (
        said({"type": "thinking", "thinking": "hm"}),
        dict.fromkeys(APIS, "[thinking, not shown"),
    ),
    "a search result": (
        user(
            {
                "type": "search_result",
                "source": "https://a.b",
                "title": "T",
                "content": [{"type": "text", "text": "found"}],
            }
        ),
        {"chat": "found", "responses": "found", "anthropic": '"search_result"'},
    ),
    "an upload to a container": (
        user({"type": "container_upload", "file_id": "file_012"}),
        {"chat": "file_012, not shown", "responses": "file_012, not shown", "anthropic": '"container_upload"'},
    ),
    "a refusal": (
        said({"type": "refusal", "refusal": "I will not."}),
        {"chat": '"refusal"', "responses": '"refusal"', "anthropic": "I will not."},
    ),
    "a refusal beside the content": (
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"chat": '"refusal"', "responses": '"refusal"', "anthropic": "I will not."},
    ),
    "a spoken answer": (
        {"role": "assistant", "content": None, "audio": {"id": "audio_1", "data": "UklG", "transcript": "Good day"}},
        dict.fromkeys(APIS, "Good day"),
    ),
    "a function call of old": (
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
        dict.fromkeys(APIS, "function_call weather"),
    ),
    "reasoning": (
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
        {"chat": "[reasoning, not", "responses": '"encrypted_content":"xyz"', "anthropic": "[reasoning, not"},
    ),
    "a web search of OpenAI's": (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "tea"}},
        {"chat": "tea", "responses": '"ws_1"', "anthropic": "tea"},
    ),
    "a file search": (
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["tea"], "results": None},
        {"chat": "tea", "responses": '"fs_1"', "anthropic": "tea"},
    ),
    "code that was run": (
        {"type": "code_interpreter_call", "id": "ci_1", "code": "print(1)", "container_id": "c", "outputs": None},
        {"chat": "print(1)", "responses": '"ci_1"', "anthropic": "print(1)"},
    ),
    "a call of MCP by OpenAI": (
        {"type": "mcp_call", "id": "mcp_1", "name": "add", "arguments": "{}", "server_label": "s", "output": "18"},
        {"chat": "mcp_call add", "responses": '"mcp_1"', "anthropic": "mcp_call add"},
    ),
    "an image that OpenAI made": (
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "A" * 90},
        {"chat": "[image_generation_call, not", "responses": '"ig_1"', "anthropic": "[image_generation_call, not"},
    ),
    "a part that nobody knows": (
        user({"type": "dream", "about": "sheep"}),
        dict.fromkeys(APIS, "[dream, not shown"),
    ),
    "content that is JSON": (
        {"role": "user", "content": {"rows": [1, 2]}},
        dict.fromkeys(APIS, "rows"),
    ),
    "content that is a number": (
        {"role": "user", "content": 42},
        dict.fromkeys(APIS, "42"),
    ),
}
CHECKS: dict[str, Callable[[Any], None]] = {
    "chat": check_chat,
    "responses": check_responses,
    "anthropic": check_anthropic,
}


class TestParts:
    @pytest.mark.parametrize("name", PARTS)
    @pytest.mark.parametrize("api", CHECKS)
    def test_every_part_is_shown_or_marked(self, name: str, api: str) -> None:
        """No part vanishes: it is there in the API's own shape, or a mark tells of it and a repair names it."""
        message, wanted = PARTS[name]
        context = built([{"role": "user", "content": "before"}, message, {"role": "user", "content": "after"}])
        request = renderings(context)[api]
        CHECKS[api](request)
        # What is inside of a part's own JSON text is compared as it reads.
        text = json.dumps(request, separators=(",", ":"), ensure_ascii=False).replace('\\"', '"')
        assert wanted[api] in text
        marked = ", not shown: " in text
        repairs = [one for one in context.repairs if not one.apis or api in one.apis]
        assert [one.message_id for one in repairs] == ["m1"] * len(repairs)
        assert bool(repairs) == marked
        assert all(one.what.endswith("not shown") for one in repairs)

    @pytest.mark.parametrize("name", PARTS)
    def test_a_message_alone_never_disappears(self, name: str) -> None:
        """Whatever it consists of, something of it stands in every request."""
        context = built([PARTS[name][0]])
        check_all(context)
        shown = renderings(context)
        assert shown["chat"]
        assert shown["responses"]["input"]
        assert shown["anthropic"]["messages"]

    def test_marks_and_repairs_reach_the_manifest(self, store: tape.Store) -> None:
        """They are recorded with the context, name the APIs, and do not make its hash depend on the rendering."""
        chat = store.create("t")
        chat.append(user({"type": "text", "text": "listen"}, AUDIO), id="m")
        context, receipt = chat.recorded_context()
        assert [(one.what, one.message_id, one.apis) for one in context.repairs] == [
            ("audio not shown", "m", ("responses", "anthropic"))
        ]
        before = context.manifest.hash
        renderings(context)
        assert chat.context().manifest.hash == before
        assert chat.recall(receipt.seq).manifest["repairs"] == [
            {"what": "audio not shown", "call": "", "message_id": "m", "apis": ["responses", "anthropic"]}
        ]

    def test_an_empty_message_is_reported(self) -> None:
        """It is left out of the requests, and not silently."""
        context = built([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}])
        assert [(one.what, one.message_id, one.apis) for one in context.repairs] == [("empty message", "m1", ())]
        blank = built([{"role": "user", "content": " \n"}])
        assert [(one.what, one.apis) for one in blank.repairs] == [("empty message", ("anthropic",))]
        assert blank.to_openai() == [{"role": "user", "content": " \n"}]

    def test_a_custom_tools_call_stays_one(self) -> None:
        """Both of OpenAI's APIs take calls of custom tools, whichever of them made it."""
        chat = {"id": "c1", "type": "custom", "custom": {"name": "grep", "input": "x.*y"}}
        history: list[dict[str, Any]] = [
            {"role": "assistant", "content": None, "tool_calls": [chat]},
            {"role": "tool", "tool_call_id": "c1", "content": "none"},
            {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "grep", "input": "z"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "one"},
        ]
        context = built(history)
        check_all(context)
        assert [call["custom"] for one in context.to_openai() for call in one.get("tool_calls", ())] == [
            {"name": "grep", "input": "x.*y"},
            {"name": "grep", "input": "z"},
        ]
        assert [item["type"] for item in context.to_openai(api="responses")["input"]] == [
            "custom_tool_call",
            "custom_tool_call_output",
        ] * 2
        inputs = [block.get("input") for turn in context.to_anthropic()["messages"] for block in turn["content"]]
        assert [one for one in inputs if one] == [{"input": "x.*y"}, {"input": "z"}]

    def test_items_of_responses_go_back_as_they_were(self) -> None:
        """A computer's call and its screenshot are not turned into a function's; a call without one has to be."""
        call = {
            "type": "computer_call",
            "id": "cu_1",
            "call_id": "c1",
            "action": {"type": "screenshot"},
            "pending_safety_checks": [],
            "status": "completed",
        }
        output = {
            "type": "computer_call_output",
            "call_id": "c1",
            "output": {"type": "computer_screenshot", "image_url": PNG},
        }
        settled = built([call, output])
        check_all(settled)
        assert settled.to_openai(api="responses")["input"] == [call, output]
        assert settled.to_anthropic()["messages"][2]["content"][0]["content"][0]["type"] == "image"
        alone = built([call])
        check_all(alone)
        assert [item["type"] for item in alone.to_openai(api="responses")["input"]] == [
            "function_call",
            "function_call_output",
        ]

    def test_a_call_of_the_servers_keeps_its_result_or_is_marked(self) -> None:
        """Without its result it is told in text, unless the turn was paused there; a result alone is left out."""
        use, result = SEARCH
        cut = built([said(use), {"role": "user", "content": "go on"}, said({"type": "text", "text": "yes"})])
        check_all(cut)
        assert "no result was recorded" in str(cut.to_anthropic())
        assert ("unsettled call", "srvtoolu_1") in [(one.what, one.call) for one in cut.repairs]
        paused = built([{"role": "user", "content": "search"}, said(use)])
        assert paused.to_anthropic()["messages"][-1]["content"] == [use]
        resumed = built([{"role": "user", "content": "search"}, said(use), said(result)])
        check_all(resumed)
        assert resumed.to_anthropic()["messages"][-1]["content"] == [use, result]
        orphan = built([{"role": "user", "content": "search"}, said(result, {"type": "text", "text": "found"})])
        check_all(orphan)
        assert [(one.what, one.call) for one in orphan.repairs if not one.apis] == [("orphan result", "srvtoolu_1")]

    def test_speakers_keep_their_names_in_chat(self) -> None:
        """The only API that has a place for them gets them, where they are as it takes them."""
        context = built(
            [{"role": "user", "name": "ada", "content": "a"}, {"role": "user", "name": "two words", "content": "b"}]
        )
        assert context.to_openai() == [
            {"role": "user", "content": "a", "name": "ada"},
            {"role": "user", "content": "b"},
        ]


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
    @given(st.lists(_messages(), max_size=10))
    @settings(max_examples=300, deadline=None)
    def test_c1_any_mixed_history_renders_to_valid_requests(self, messages: list[dict[str, Any]]) -> None:
        """Whatever shapes meet, no API would refuse the request; settling twice changes nothing; nothing is mutated."""
        before = copy.deepcopy(messages)
        context = built(messages)
        check_all(context)
        once = settle([shapes.read(message) for message in messages])
        assert settle(once) == once
        assert messages == before
        assert built(messages).repairs == context.repairs

    @given(st.lists(_messages(), max_size=10), st.integers(1, 3_000), _anchors, st.sampled_from([None, "p " * 20]))
    @settings(max_examples=300, deadline=None)
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
    @settings(max_examples=300, deadline=None)
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
