"""The rules that OpenAI and Anthropic document for a request's messages. A context that breaks one would be refused."""

from __future__ import annotations

import re
from typing import Any

import msgspec

import tape
from tape.core.messages.tokens import MESSAGE_TOKENS, Counter, estimate, message_tokens

__all__ = ["check_all", "check_anthropic", "check_chat", "check_responses", "measure"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def check_all(context: tape.Context) -> None:
    """Hold every rendering of a context against its API's rules."""
    check_chat(context.to_openai())
    check_responses(context.to_openai(api="responses"))
    check_anthropic(context.to_anthropic())


def measure(context: tape.Context, counter: Counter = estimate) -> dict[str, int]:
    """Return about how many tokens each rendering takes, counted over what is rendered."""
    responses, anthropic = context.to_openai(api="responses"), context.to_anthropic()

    def prompt(text: str | None) -> int:
        return counter(text) + MESSAGE_TOKENS if text else 0

    return {
        "chat": sum(message_tokens(message, counter) for message in context.to_openai()),
        "responses": prompt(responses["instructions"])
        + sum(message_tokens(item, counter) for item in responses["input"]),
        "anthropic": prompt(anthropic["system"])
        + sum(message_tokens(message, counter) for message in anthropic["messages"]),
    }


def check_chat(messages: list[dict[str, Any]]) -> None:
    """OpenAI chat: known roles and fields, every tool call answered right after it, no other tool message."""
    index = 0
    ids: list[str] = []
    while index < len(messages):
        message = messages[index]
        index += 1
        role = message["role"]
        assert role in ("system", "developer", "user", "assistant"), f"a {role} message where none may stand"
        if "name" in message:
            assert re.fullmatch(r"[^\s<|\\/>]{1,64}", message["name"])
        if role != "assistant":
            assert set(message) <= {"role", "content", "name"}
            _chat_content(message["content"], role)
            continue
        assert set(message) <= {"role", "content", "tool_calls", "name", "refusal"}
        calls = message.get("tool_calls")
        if calls is None:
            _chat_content(message["content"], role)
            continue
        assert calls, "tool_calls may be left out, but not be empty"
        if message["content"] is not None:
            _chat_content(message["content"], role)
        wanted = [_chat_call(call) for call in calls]
        ids += wanted
        answered = []
        while index < len(messages) and messages[index]["role"] == "tool":
            result = messages[index]
            assert set(result) == {"role", "tool_call_id", "content"}
            assert isinstance(result["content"], str)
            answered.append(result["tool_call_id"])
            index += 1
        assert sorted(answered) == sorted(wanted), "every call has exactly one result, right behind it"
    assert len(ids) == len(set(ids)), "a call id twice in one request"
    msgspec.json.encode(messages)


def _chat_call(call: dict[str, Any]) -> str:
    assert set(call) == {"id", "type", call["type"]}
    assert call["type"] in ("function", "custom")
    held = call[call["type"]]
    assert set(held) == {"name", "arguments" if call["type"] == "function" else "input"}
    assert _NAME.fullmatch(held["name"])
    assert all(isinstance(value, str) for value in held.values())
    assert 1 <= len(call["id"]) <= 40
    assert isinstance(call["id"], str)
    return str(call["id"])


def _chat_content(content: Any, role: str) -> None:
    if isinstance(content, str):
        assert content
        return
    assert isinstance(content, list)
    assert content
    kinds = {"user": {"text", "image_url", "input_audio", "file"}, "assistant": {"text", "refusal"}}.get(role, {"text"})
    for part in content:
        kind = part["type"]
        assert kind in kinds, f"{kind} in a message of {role}"
        assert set(part) == {"type", kind}
        held = part[kind]
        if kind in ("text", "refusal"):
            assert isinstance(held, str)
        elif kind == "image_url":
            assert set(held) <= {"url", "detail"}
            _image_url(held["url"])
        elif kind == "input_audio":
            assert set(held) == {"data", "format"}
            assert held["format"] in ("wav", "mp3")
        else:
            assert set(held) in ({"file_id"}, {"filename", "file_data"})


def _image_url(url: str) -> None:
    assert url.startswith(("https://", "http://")) or re.match(rf"data:({'|'.join(_PICTURES)});base64,", url), url[:60]


def check_responses(request: dict[str, Any]) -> None:
    """OpenAI Responses: items of known types, and an output of its kind for every call and for nothing else."""
    assert set(request) == {"instructions", "input"}
    called: list[tuple[str, str]] = []
    answered: list[tuple[str, str]] = []
    for item in request["input"]:
        kind = item["type"]
        if kind == "message":
            assert set(item) == {"type", "role", "content"}
            assert item["role"] in ("user", "assistant", "system", "developer")
            assert item["content"]
            for part in item["content"]:
                _responses_part(part, item["role"])
        elif kind in ("function_call", "custom_tool_call"):
            assert _NAME.fullmatch(item["name"])
            assert set(item) == {"type", "call_id", "name", "arguments" if kind == "function_call" else "input"}
            assert all(isinstance(value, str) for value in item.values())
            called.append((kind, item["call_id"]))
        elif kind in ("computer_call", "local_shell_call", "shell_call", "apply_patch_call"):
            called.append((kind, item["call_id"]))
        elif kind.endswith("_call_output"):
            assert (kind.removesuffix("_output"), item["call_id"]) in called, "an output before its call"
            answered.append((kind.removesuffix("_output"), item["call_id"]))
            _responses_output(item)
        else:
            _responses_item(item)
    assert sorted(called) == sorted(answered)
    ids = [id for _, id in called]
    assert len(ids) == len(set(ids)), "a call id twice in one request"
    assert all(1 <= len(id) <= 64 for id in ids)
    msgspec.json.encode(request)


def _responses_part(part: dict[str, Any], role: str) -> None:
    kind = part["type"]
    if role == "assistant":
        assert kind in ("output_text", "refusal")
        assert isinstance(part["text" if kind == "output_text" else "refusal"], str)
        return
    assert kind in ("input_text", "input_image", "input_file")
    if kind == "input_text":
        assert isinstance(part["text"], str)
        return
    assert role == "user", f"{kind} in a message of {role}"
    if kind == "input_image":
        assert len({"image_url", "file_id"} & set(part)) == 1
        if "image_url" in part:
            _image_url(part["image_url"])
    else:
        assert len({"file_data", "file_id", "file_url"} & set(part)) == 1
        assert ("file_data" in part) == ("filename" in part)


def _responses_output(item: dict[str, Any]) -> None:
    output = item.get("output")
    if item["type"] in ("function_call_output", "custom_tool_call_output"):
        assert isinstance(output, str | list)
        for part in output if isinstance(output, list) else []:
            _responses_part(part, "user")
    elif item["type"] == "computer_call_output":
        assert item["output"]["type"] == "computer_screenshot"


def _responses_item(item: dict[str, Any]) -> None:
    needed = {
        "reasoning": {"summary"},
        "web_search_call": {"id"},
        "file_search_call": {"id", "queries"},
        "code_interpreter_call": {"id"},
        "image_generation_call": {"id"},
        "mcp_call": {"id", "name", "arguments", "server_label"},
        "mcp_list_tools": {"id", "server_label", "tools"},
        "mcp_approval_request": {"id", "name", "arguments", "server_label"},
        "mcp_approval_response": {"approval_request_id", "approve"},
        "compaction": {"encrypted_content"},
        "item_reference": {"id"},
    }
    assert item["type"] in needed
    assert needed[item["type"]] <= set(item)


def check_anthropic(request: dict[str, Any]) -> None:
    """Anthropic: roles alternate, a user begins, results stand first in the turn right after their calls."""
    assert set(request) == {"system", "messages"}
    assert isinstance(request["system"], str)
    messages = request["messages"]
    waiting: list[str] = []
    ids: list[str] = []
    served: list[str] = []
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
            ids += waiting
        for block in message["content"]:
            if block["type"] in ("server_tool_use", "mcp_tool_use"):
                ids.append(block["id"])
            elif block["type"].endswith("_tool_result"):
                assert block["tool_use_id"] in ids, "a result of a call that was not made"
                served.append(block["tool_use_id"])
            _anthropic_block(block, message["role"])
    assert not waiting, "the last call has no result"
    assert len(ids) == len(set(ids)), "a tool_use id twice in one request"
    assert len(served) == len(set(served))
    later = [block for message in messages[:-2] for block in message["content"]]
    for block in later:
        if block["type"] in ("server_tool_use", "mcp_tool_use"):
            assert block["id"] in served, "a call of the server's without a result"


_SERVED = {
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "mcp_tool_result",
}


def _anthropic_block(block: dict[str, Any], role: str) -> None:
    kind = block["type"]
    assert "cache_control" not in block
    if kind == "text":
        assert set(block) == {"type", "text"}
        assert block["text"].strip(), "no blank text"
    elif kind == "tool_use":
        assert role == "assistant"
        assert re.fullmatch(r"[A-Za-z0-9_-]+", block["id"])
        assert _NAME.fullmatch(block["name"])
        assert isinstance(block["input"], dict)
    elif kind == "tool_result":
        assert role == "user"
        _anthropic_result(block)
    elif kind in ("image", "document"):
        assert role == "user"
        _anthropic_source(kind, block["source"])
    elif kind in ("search_result", "container_upload"):
        assert role == "user"
    elif kind == "thinking":
        assert role == "assistant"
        assert isinstance(block["thinking"], str)
        assert isinstance(block["signature"], str)
    else:
        assert kind in {"redacted_thinking", "server_tool_use", "mcp_tool_use"} | _SERVED
        assert role == "assistant"
    msgspec.json.encode(block)


def _anthropic_result(block: dict[str, Any]) -> None:
    assert set(block) <= {"type", "tool_use_id", "content", "is_error"}
    content = block["content"]
    assert isinstance(content, str | list)
    for inner in content if isinstance(content, list) else []:
        assert inner["type"] in ("text", "image", "document", "search_result", "tool_reference")
        assert inner["type"] == "text" or not block.get("is_error"), "an error is told in text"
        if inner["type"] in ("text", "image", "document"):
            _anthropic_block(inner, "user")


def _anthropic_source(kind: str, source: dict[str, Any]) -> None:
    match source["type"]:
        case "base64":
            assert source["media_type"] in (_PICTURES if kind == "image" else ("application/pdf",))
            assert "," not in source["data"]
        case "url":
            assert source["url"].startswith(("https://", "http://"))
        case "file":
            assert source["file_id"]
        case "text":
            assert kind == "document"
            assert source["media_type"] == "text/plain"
            assert source["data"].strip()
        case _:
            assert kind == "document"
            assert source["type"] == "content"
