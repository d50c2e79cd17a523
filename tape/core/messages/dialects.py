"""Parts of messages in the words of other APIs and frameworks, read as blocks that the rest of the core knows. Pure.

Gemini (``function_call``), Bedrock (``toolUse``), Agent Framework (``function_result``), OpenTelemetry's GenAI
conventions (``tool_call_response``), Pydantic AI (``part_kind``) and LlamaIndex (``block_type``) say with other names
what Anthropic's blocks say. A tape keeps each part as it was given. Whoever reads a message reads it ``translated``.

Only the parts of a message's ``content`` and ``parts`` are looked at. What is inside of a tool's input or output, or in
any other field, is data, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ROLES", "blocks", "translated", "with_result"]

Part = dict[str, Any]
Reader = Callable[[Part], list[Part] | None]

ROLES = {"model": "assistant", "ai": "assistant", "human": "user"}
"""The roles that have another name elsewhere."""
_URL_SAFE = str.maketrans("-_", "+/")
_FAMILIES = ("image", "audio", "video")


def translated(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its parts as blocks; the message itself if they need no translation."""
    for name in ("content", "parts"):
        parts = message.get(name)
        if isinstance(parts, list) and any(isinstance(part, dict) and blocks(part) is not None for part in parts):
            message = {**message, name: [block for part in parts for block in _known(part)]}
    return message


def _known(part: Any) -> list[Any]:
    made = blocks(part) if isinstance(part, dict) else None
    return [part] if made is None else made


def blocks(part: Part) -> list[Part] | None:
    """Return a part in another dialect as blocks, or None for a part that needs no translation."""
    kind = part.get("type")
    if isinstance(kind, str):
        reader = _BY_TYPE.get(kind)
        return None if reader is None else reader(part)
    for name in part:
        if name in _BY_FIELD and (known := _BY_FIELD[name](part)) is not None:
            return known
    return None


def with_result(part: Part, change: Callable[[Any], Any]) -> Part:
    """Return a part with the tool result in it changed, in its own dialect; the part itself if it holds none."""
    known = blocks(part)
    if known is None or not any(block["type"] == "tool_result" for block in known):
        return part
    inner = next((name for name in _INSIDE if isinstance(part.get(name), dict)), None)
    held = part if inner is None else part[inner]
    changed = {**held, **{name: change(held[name]) for name in _OUTPUTS if name in held}}
    return changed if inner is None else {**part, inner: changed}


_INSIDE = ("function_response", "functionResponse", "toolResult")
_OUTPUTS = ("response", "result", "content", "items", "parts")
"""Where a part holds its result: in a part of its own, or in one of these fields."""


def _call(id: Any, name: Any, arguments: Any) -> list[Part] | None:
    if not isinstance(id, str) or not id:
        return None
    return [{"type": "tool_use", "id": id, "name": name, "input": {} if arguments is None else arguments}]


def _result(id: Any, content: Any, failed: bool = False) -> list[Part] | None:
    if not isinstance(id, str) or not id:
        return None
    return [{"type": "tool_result", "tool_use_id": id, "content": content, **({"is_error": True} if failed else {})}]


def _thinking(text: Any) -> list[Part]:
    return [{"type": "thinking", "thinking": text}]


def _file(address: Any, media_type: Any, family: Any = None) -> list[Part] | None:
    """Return a file by its address or its data; None if nothing tells that it is one."""
    if not isinstance(address, str) or not (isinstance(media_type, str) or family or address[:5] == "data:"):
        return None
    return [{"type": family if family in _FAMILIES else "file", "url": address, "mediaType": media_type}]


# -- Gemini, with the names of its SDK and of its API; and Bedrock


def _inside(name: str, read: Reader) -> Reader:
    def reader(part: Part) -> list[Part] | None:
        inner = part[name]
        return read(inner) if isinstance(inner, dict) else None

    return reader


def _gemini_call(call: Part) -> list[Part] | None:
    return _call(call.get("id"), call.get("name"), call.get("args"))


def _gemini_result(result: Part) -> list[Part] | None:
    made, files = _result(result.get("id"), result.get("response")), result.get("parts")
    if made is None or not isinstance(files, list):
        return made
    return made + [block for file in files if isinstance(file, dict) for block in blocks(file) or ()]


def _gemini_data(data: Part) -> list[Part] | None:
    held = data.get("data")
    # Its SDK writes bytes in the alphabet for addresses.
    plain = held.translate(_URL_SAFE) if isinstance(held, str) else None
    return _file(plain, data.get("mime_type", data.get("mimeType")))


def _gemini_file(file: Part) -> list[Part] | None:
    return _file(file.get("file_uri", file.get("fileUri")), file.get("mime_type", file.get("mimeType")))


def _gemini_text(part: Part) -> list[Part] | None:
    """Return a text without its signature; a thought is none."""
    text = part.get("text")
    if not isinstance(text, str):
        return None
    return _thinking(text) if part.get("thought") is True else [{"type": "text", "text": text}]


def _bedrock_call(call: Part) -> list[Part] | None:
    return _call(call.get("toolUseId"), call.get("name"), call.get("input"))


def _bedrock_result(result: Part) -> list[Part] | None:
    return _result(result.get("toolUseId"), result.get("content"), result.get("status") == "error")


def _bedrock_thinking(reasoning: Part) -> list[Part] | None:
    text = reasoning.get("reasoningText")
    return _thinking(text.get("text")) if isinstance(text, dict) else None


def _bedrock_file(family: str) -> Reader:
    def reader(file: Part) -> list[Part] | None:
        source, form = file.get("source"), file.get("format")
        data = source.get("bytes") if isinstance(source, dict) else None
        # Strands has bytes as text beside a mark that they are.
        data = data.get("data") if isinstance(data, dict) else data
        kind = {"pdf": "application/pdf"}.get(str(form), f"{family if family in _FAMILIES else 'text'}/{form}")
        return _file(data, kind, family)

    return reader


# -- Agent Framework and the GenAI conventions


def _framework_call(part: Part) -> list[Part] | None:
    return _call(part.get("call_id"), part.get("name"), part.get("arguments"))


def _framework_result(part: Part) -> list[Part] | None:
    content = part.get("items") if part.get("result") is None else part["result"]
    return _result(part.get("call_id"), content, part.get("exception") is not None)


def _genai_text(part: Part) -> list[Part] | None:
    text = part.get("content")
    return [{"type": "text", "text": text}] if "text" not in part and isinstance(text, str) else None


def _genai_call(part: Part) -> list[Part] | None:
    return _call(part.get("id"), part.get("name"), part.get("arguments"))


def _genai_result(part: Part) -> list[Part] | None:
    return _result(part.get("id"), part.get("response", part.get("result")))


def _address(part: Part) -> list[Part] | None:
    return _file(part.get("uri"), part.get("mime_type", part.get("media_type")), part.get("modality"))


def _genai_data(part: Part) -> list[Part] | None:
    return _file(part.get("content"), part.get("mime_type"), part.get("modality"))


# -- Pydantic AI


def _pydantic(part: Part) -> list[Part] | None:
    kind, content, call = part["part_kind"], part.get("content"), part.get("tool_call_id")
    if not isinstance(kind, str):
        return None
    if kind == "tool-call":
        return _call(call, part.get("tool_name"), part.get("args"))
    if kind == "tool-return":
        return _result(call, content, part.get("outcome", "success") != "success")
    if kind == "retry-prompt" and part.get("tool_name") is not None:
        return _result(call, content, True)
    if kind == "thinking":
        return _thinking(content)
    if kind in ("text", "system-prompt", "user-prompt", "retry-prompt", "file"):
        items = content if isinstance(content, list) else [content]
        return [block for item in items for block in _pydantic_item(item)]
    return [{**part, "type": f"pydantic-ai.{kind}"}]


def _pydantic_item(item: Any) -> list[Part]:
    if isinstance(item, str):
        return [{"type": "text", "text": item}]
    if not isinstance(item, dict):
        return []
    family = str(item.get("kind")).removesuffix("-url")
    file = _file(item.get("url", item.get("data")), item.get("media_type"), family)
    return file or [{"type": f"pydantic-ai.{family}", **item}]


# -- LlamaIndex


def _llama(part: Part) -> list[Part] | None:
    kind = part["block_type"]
    if not isinstance(kind, str):
        return None
    if kind == "text":
        return [{"type": "text", "text": part.get("text")}]
    if kind == "tool_call":
        return _call(part.get("tool_call_id"), part.get("tool_name"), part.get("tool_kwargs"))
    if kind == "thinking":
        return _thinking(part.get("content"))
    media_type = next((part[name] for name in part if name.endswith("_mimetype")), None)
    file = _file(part.get("url") or part.get(kind) or part.get("data"), media_type, kind)
    return file or [{**part, "type": f"llama-index.{kind}"}]


_BY_FIELD: dict[str, Reader] = {
    "part_kind": _pydantic,
    "block_type": _llama,
    **dict.fromkeys(("thought", "thought_signature", "thoughtSignature"), _gemini_text),
    **{name: _inside(name, _gemini_call) for name in ("function_call", "functionCall")},
    **{name: _inside(name, _gemini_result) for name in ("function_response", "functionResponse")},
    **{name: _inside(name, _gemini_data) for name in ("inline_data", "inlineData")},
    **{name: _inside(name, _gemini_file) for name in ("file_data", "fileData")},
    **{name: _inside(name, _bedrock_file(name)) for name in ("image", "video", "document")},
    "toolUse": _inside("toolUse", _bedrock_call),
    "toolResult": _inside("toolResult", _bedrock_result),
    "reasoningContent": _inside("reasoningContent", _bedrock_thinking),
}
"""How a part without a type is read, by a field that tells what it is."""
_BY_TYPE: dict[str, Reader] = {
    "text": _genai_text,
    "function_call": _framework_call,
    "function_result": _framework_result,
    "tool_call": _genai_call,
    "tool_call_response": _genai_result,
    "uri": _address,
    "data": _address,
    "blob": _genai_data,
}
"""How a part is read whose type may be another dialect's."""
