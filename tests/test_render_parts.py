"""What a request shows of each part of a message: the part itself, or a mark for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.parts import AUDIO, CHECKS, PARTS, PNG, SEARCH, built, renderings, said, user
from support.request_rules import check_all

import tape


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
