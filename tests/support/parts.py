"""Parts of messages in every shape that the APIs have, and requests made of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import tape
from support.request_rules import check_anthropic, check_chat, check_responses
from tape.core.context.build import ContextInputs, build
from tape.core.context.policy import Item
from tape.core.records import Message

__all__ = [
    "APIS",
    "AUDIO",
    "CHECKS",
    "PARTS",
    "PDF",
    "PIXEL",
    "PNG",
    "SEARCH",
    "built",
    "renderings",
    "said",
    "user",
    "view",
]

APIS = ("chat", "responses", "anthropic")
PIXEL = "iVBORw0KGgo="
PNG = f"data:image/png;base64,{PIXEL}"
PDF = "data:application/pdf;base64,JVBERi0="


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts)}


def view(messages: list[dict[str, Any]], **more: Any) -> ContextInputs:
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
    return ContextInputs(items=items, **{**facts, **more})


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
