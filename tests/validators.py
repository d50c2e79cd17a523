"""Strict validators of what the APIs document about a request's messages. A context that fails one would be refused."""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["check_anthropic", "check_chat", "check_responses"]


def check_chat(messages: list[dict[str, Any]]) -> None:
    """OpenAI chat: known roles and fields, every tool call answered right after it, no other tool message."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        role = message["role"]
        assert role in ("system", "developer", "user", "assistant"), f"a {role} message where none may stand"
        if role != "assistant":
            assert set(message) <= {"role", "content", "name"}
            _chat_content(message["content"])
            continue
        assert set(message) <= {"role", "content", "tool_calls", "name", "refusal"}
        calls = message.get("tool_calls")
        if calls is None:
            assert isinstance(message["content"], str)
            assert message["content"]
            continue
        assert calls, "tool_calls may be left out, but not be empty"
        assert message["content"] is None or isinstance(message["content"], str)
        wanted = []
        for call in calls:
            assert set(call) == {"id", "type", "function"}
            assert call["type"] == "function"
            assert isinstance(call["function"]["name"], str)
            assert isinstance(call["function"]["arguments"], str)
            wanted.append(call["id"])
        assert len(wanted) == len(set(wanted)), "a call id twice in one message"
        answered = []
        while index < len(messages) and messages[index]["role"] == "tool":
            result = messages[index]
            assert set(result) == {"role", "tool_call_id", "content"}
            assert isinstance(result["content"], str)
            answered.append(result["tool_call_id"])
            index += 1
        assert sorted(answered) == sorted(wanted), "every call has exactly one result, right behind it"


def _chat_content(content: Any) -> None:
    if isinstance(content, str):
        assert content
        return
    assert isinstance(content, list)
    assert content
    for part in content:
        if part["type"] == "text":
            assert isinstance(part["text"], str)
        else:
            assert part["type"] in ("image_url", "input_audio", "file")
            if part["type"] == "image_url":
                assert isinstance(part["image_url"]["url"], str)


def check_responses(request: dict[str, Any]) -> None:
    """OpenAI Responses: items of known types, and an output for every call and for nothing else."""
    assert set(request) == {"instructions", "input"}
    called: list[str] = []
    answered: list[str] = []
    for item in request["input"]:
        if item["type"] == "message":
            assert item["role"] in ("user", "assistant", "system", "developer")
            kinds = {"output_text"} if item["role"] == "assistant" else {"input_text", "input_image", "input_file"}
            assert item["content"]
            assert {part["type"] for part in item["content"]} <= kinds
        elif item["type"] == "function_call":
            assert isinstance(item["arguments"], str)
            called.append(item["call_id"])
        elif item["type"] == "function_call_output":
            assert isinstance(item["output"], str)
            assert called.count(item["call_id"]) > answered.count(item["call_id"]), "an output before its call"
            answered.append(item["call_id"])
        else:
            assert item["type"] == "reasoning"
    assert sorted(called) == sorted(answered)


def check_anthropic(request: dict[str, Any]) -> None:
    """Anthropic: roles alternate, a user begins, results stand first in the turn right after their calls."""
    assert set(request) == {"system", "messages"}
    assert isinstance(request["system"], str)
    messages = request["messages"]
    waiting: list[str] = []
    for index, message in enumerate(messages):
        assert message["role"] == ("assistant" if index % 2 else "user"), "roles must alternate and a user begins"
        assert message["content"], "no empty message"
        kinds = [block["type"] for block in message["content"]]
        if message["role"] == "user":
            results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
            assert kinds[: len(results)] == ["tool_result"] * len(results), "results come first"
            assert sorted(results) == sorted(waiting), "every call is answered in the next turn, and nothing else"
            waiting = []
        else:
            waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
            assert len(waiting) == len(set(waiting))
        for block in message["content"]:
            _anthropic_block(block, message["role"])
    assert not waiting, "the last call has no result"


def _anthropic_block(block: dict[str, Any], role: str) -> None:
    kind = block["type"]
    if kind == "text":
        assert block["text"].strip(), "no blank text"
    elif kind == "tool_use":
        assert role == "assistant"
        assert re.fullmatch(r"[A-Za-z0-9_-]+", block["id"])
        assert isinstance(block["input"], dict)
    elif kind == "tool_result":
        assert role == "user"
        assert isinstance(block["content"], str)
    elif kind == "image":
        assert role == "user"
        assert block["source"]["type"] in ("base64", "url")
    else:
        assert kind in ("thinking", "redacted_thinking")
        assert role == "assistant"
    msgspec.json.encode(block)
