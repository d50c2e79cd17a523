"""Calls and results in the words of other APIs and frameworks."""

from __future__ import annotations

from typing import Any

__all__ = ["DIALECTS", "MEDIA", "NAMELESS", "Message", "framework_call", "llama_call"]

Message = dict[str, Any]


def gemini_call(*calls: str) -> Message:
    made = [{"function_call": {"id": call, "name": "look", "args": {}}} for call in calls]
    return {"role": "model", "parts": [{"text": "I look."}, *made]}


def gemini_result(*calls: str, value: Any = "found") -> Message:
    response = {"result": value} if isinstance(value, str) else value
    made = [{"functionResponse": {"id": c, "name": "look", "response": response}} for c in calls]
    return {"role": "user", "parts": made}


def bedrock_call(*calls: str) -> Message:
    made = [{"toolUse": {"toolUseId": call, "name": "look", "input": {}}} for call in calls]
    return {"role": "assistant", "content": [{"text": "I look."}, *made]}


def bedrock_result(*calls: str, value: Any = "found") -> Message:
    content = [{"text": value} if isinstance(value, str) else {"json": value}]
    made = [{"toolResult": {"toolUseId": c, "status": "success", "content": content}} for c in calls]
    return {"role": "user", "content": made}


def framework_call(*calls: str) -> Message:
    made = [{"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"} for call in calls]
    return {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *made]}


def framework_result(*calls: str, value: Any = "found") -> Message:
    return {"role": "tool", "content": [{"type": "function_result", "call_id": c, "result": value} for c in calls]}


def genai_call(*calls: str) -> Message:
    made = [{"type": "tool_call", "id": call, "name": "look", "arguments": {}} for call in calls]
    return {"role": "assistant", "parts": [{"type": "text", "content": "I look."}, *made]}


def genai_result(*calls: str, value: Any = "found") -> Message:
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": c, "response": value} for c in calls]}


def pydantic_call(*calls: str) -> Message:
    made = [{"part_kind": "tool-call", "tool_call_id": call, "tool_name": "look", "args": "{}"} for call in calls]
    return {"role": "assistant", "parts": [{"part_kind": "text", "content": "I look."}, *made]}


def pydantic_result(*calls: str, value: Any = "found") -> Message:
    made = [{"part_kind": "tool-return", "tool_call_id": c, "tool_name": "look", "content": value} for c in calls]
    return {"role": "user", "parts": made}


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


def nameless_gemini_call(*cities: str) -> Message:
    made = [{"functionCall": {"name": "look", "args": {"city": c}}, "thoughtSignature": "c2ln"} for c in cities]
    return {"role": "model", "parts": made}


def nameless_gemini_result(*values: str) -> Message:
    return {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"r": v}}} for v in values]}


def nameless_genai_call(*cities: str) -> Message:
    made = [{"type": "tool_call", "id": None, "name": "look", "arguments": {"city": city}} for city in cities]
    return {"role": "assistant", "parts": made}


def nameless_genai_result(*values: str) -> Message:
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": None, "response": v} for v in values]}


NAMELESS: dict[str, tuple[Any, Any]] = {
    "gemini": (nameless_gemini_call, nameless_gemini_result),
    "genai": (nameless_genai_call, nameless_genai_result),
}
"""Calls by what they look for, and results by what was found, in the shapes that do without ids."""


def _gemini_media(data: str) -> Message:
    picture = {"inlineData": {"mimeType": "image/png", "data": data}}
    held = {"id": "c1", "name": "look", "response": {"r": "seen"}, "parts": [picture]}
    return {"role": "user", "parts": [{"functionResponse": held}]}


def _bedrock_media(data: str) -> Message:
    content = [{"text": "seen"}, {"image": {"format": "png", "source": {"bytes": data}}}]
    return {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": content}}]}


def _framework_media(data: str) -> Message:
    items = [
        {"type": "text", "text": "seen"},
        {"type": "data", "uri": f"data:image/png;base64,{data}", "media_type": "image/png"},
    ]
    return {"role": "tool", "content": [{"type": "function_result", "call_id": "c1", "result": "seen", "items": items}]}


def _pydantic_media(data: str) -> Message:
    items = ["seen", {"kind": "binary", "data": data, "media_type": "image/png", "identifier": "a1"}]
    return pydantic_result("c1", value=items)


MEDIA: dict[str, tuple[Any, Any]] = {
    "gemini": (gemini_call, _gemini_media),
    "bedrock": (bedrock_call, _bedrock_media),
    "agent-framework": (framework_call, _framework_media),
    "pydantic-ai": (pydantic_call, _pydantic_media),
}
"""Results of a text and a picture, by the base64 text of the picture."""
