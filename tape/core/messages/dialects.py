"""Parts of messages in the words of other APIs and frameworks, read as blocks that the rest of the core knows. Pure.

Gemini (``function_call``), Bedrock (``toolUse``), Agent Framework (``function_result``), OpenTelemetry's GenAI
conventions (``tool_call_response``), LangChain (``tool_call``), and those in ``frameworks`` say with other names what
Anthropic's blocks say. A tape keeps each part as it was given. Whoever reads a message reads it ``translated``.

A part is translated only if the fields that make it one are there and of their types. The blocks have what a model is
shown; search reads the other texts of the part as well (``text``). Only the parts of a message's ``content`` and
``parts`` are looked at, and the files in the results among them. Any other data in a tool's input or output, or in
another field, is data, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tape.core.messages import frameworks
from tape.core.messages.blocks import (
    UNNAMED,
    Part,
    Reader,
    call,
    document,
    file,
    is_file,
    is_text,
    json_text,
    result,
    text,
    thinking,
    unnamed,
    url_safe,
)

__all__ = ["ROLES", "blocks", "file_in", "output", "read_parts", "translated", "with_result"]

ROLES = {"model": "assistant", "ai": "assistant", "human": "user"}
"""The roles that have another name elsewhere."""
_IDS = {"tool_use": "id", "tool_result": "tool_use_id"}


def translated(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its parts as blocks; the message itself if they need no translation."""
    unnamed_before: dict[str, int] = {}
    for name in ("content", "parts"):
        parts = message.get(name)
        if isinstance(parts, list) and any(isinstance(part, dict) and blocks(part) is not None for part in parts):
            message = {**message, name: [block for part in parts for block in _known(part, unnamed_before)]}
    return message


def read_parts(parts: Any) -> list[tuple[Any, list[Part] | None]] | None:
    """Return parts of a message, each with its blocks if it is in another dialect; None if none of them is."""
    if not isinstance(parts, list):
        return None
    known = [(part, blocks(part) if isinstance(part, dict) else None) for part in parts]
    return known if any(made is not None for _, made in known) else None


def _known(part: Any, unnamed_before: dict[str, int]) -> list[Any]:
    made = blocks(part) if isinstance(part, dict) else None
    return [part] if made is None else [_numbered(block, unnamed_before) for block in made]


def _numbered(block: Part, unnamed_before: dict[str, int]) -> Part:
    """Return a block under an id that its message has once: calls of one tool without ids are answered in order."""
    field = _IDS.get(block["type"])
    if field is None or not block[field].startswith(UNNAMED):
        return block
    kind = f"{field} {block[field]}"
    unnamed_before[kind] = unnamed_before.get(kind, 0) + 1
    return {**block, field: f"{block[field]}{unnamed_before[kind]}"}


def blocks(part: Part) -> list[Part] | None:
    """Return a part in another dialect as blocks, or None for a part that needs no translation."""
    kind = part.get("type")
    if isinstance(kind, str):
        reader = _BY_TYPE.get(kind)
        return None if reader is None else reader(part)
    made: list[Part] | None = None
    for name in part:
        reader = _BY_FIELD.get(name)
        if reader is not None and (known := reader(part)) is not None:
            if name in _WHOLE:
                # It says what the whole of the part is.
                return known
            made = known if made is None else made + known
    said = _gemini_text(part) if made is not None or not _SIGNS.isdisjoint(part) else None
    return made if said is None else said + (made or [])


def file_in(part: Part) -> Part | None:
    """Return the picture, sound or file that a part in another dialect is, or None."""
    made = frameworks.item(part) or blocks(part)
    return made[0] if made is not None and len(made) == 1 and is_file(made[0]) else None


def output(content: Any) -> Any:
    """Return a tool's output with the files in it as blocks; the output itself if none is in another dialect."""
    if not isinstance(content, list | dict):
        return content
    items = content if isinstance(content, list) else [content]
    files = [file_in(item) if isinstance(item, dict) else None for item in items]
    if not any(files):
        return content
    return [_shown(item) if known is None else known for item, known in zip(items, files, strict=True)]


def _shown(item: Any) -> Part:
    """Return an item of a tool's output as a block: a text, a file, or a value as JSON."""
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if is_text(item) or is_file(item):
        shown: Part = item
        return shown
    return {"type": "text", "text": item["text"]} if _is_bare_text(item) else json_text(item)


def _is_bare_text(item: Any) -> bool:
    return isinstance(item, dict) and len(item) == 1 and isinstance(item.get("text"), str)


# -- results, in their own dialect

_INSIDE = ("function_response", "functionResponse", "toolResult")
_OUTPUTS = ("response", "result", "content", "items", "parts", "exception")
"""Where a part holds its result: in a part of its own, or in one of these fields."""
_RESULTS = frozenset({"function_result", "tool_call_response"})


def with_result(part: Part, change: Callable[[Any], Any]) -> Part:
    """Return a part with the tool result in it changed, in its own dialect; the part itself if it holds none."""
    kind = part.get("type")
    if isinstance(kind, str):
        if kind in _RESULTS:
            return _changed(part, _OUTPUTS, change)
        return _changed(part, ("result",), change) if kind == "tool_call" else part
    for name in _INSIDE:
        if isinstance(part.get(name), dict):
            return {**part, name: _changed(part[name], _OUTPUTS, change)}
    return _changed(part, ("content",), change) if frameworks.has_result(part) else part


def _changed(held: Part, names: tuple[str, ...], change: Callable[[Any], Any]) -> Part:
    return {**held, **{name: change(held[name]) for name in names if name in held}}


# -- Gemini, with the names of its SDK and of its API

_SIGNS = frozenset({"thought", "thought_signature", "thoughtSignature"})


def _inside(name: str, read: Reader) -> Reader:
    def reader(part: Part) -> list[Part] | None:
        inner = part[name]
        return read(inner) if isinstance(inner, dict) else None

    return reader


def _gemini_call(made: Part) -> list[Part] | None:
    name = made.get("name")
    return call(made.get("id"), name, made.get("args"), unnamed(name))


def _gemini_result(held: Part) -> list[Part] | None:
    """Return a result; the files that belong to it stand beside its response."""
    content, files = output(held.get("response")), held.get("parts")
    if files:
        said = content if isinstance(content, list) else [content] if content else []
        beside = output(files)
        content = [_shown(item) for item in (*said, *(beside if isinstance(beside, list) else [beside]))]
    return result(held.get("id"), content, unnamed_as=unnamed(held.get("name")))


def _gemini_data(data: Part) -> list[Part] | None:
    return file(url_safe(data.get("data")), data.get("mime_type", data.get("mimeType")), name=_display_name(data))


def _gemini_file(held: Part) -> list[Part] | None:
    media_type = held.get("mime_type", held.get("mimeType"))
    return file(held.get("file_uri", held.get("fileUri")), media_type, name=_display_name(held))


def _display_name(held: Part) -> Any:
    return held.get("display_name", held.get("displayName"))


def _gemini_text(part: Part) -> list[Part] | None:
    """Return a text without its signature; a thought is none."""
    said, thought = part.get("text"), part.get("thought")
    if not isinstance(said, str) or not isinstance(thought, bool | None):
        return None
    return thinking(said) if thought else text(said)


# -- Bedrock

_DOCUMENTS = {
    "pdf": "application/pdf",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html",
    "md": "text/markdown",
    "csv": "text/csv",
    "txt": "text/plain",
}


def _bedrock_call(made: Part) -> list[Part] | None:
    return call(made.get("toolUseId"), made.get("name"), made.get("input"))


def _bedrock_result(held: Part) -> list[Part] | None:
    content = held.get("content")
    if isinstance(content, list):
        content = [_bedrock_item(item) for item in content]
    return result(held.get("toolUseId"), content, held.get("status") == "error")


def _bedrock_item(item: Any) -> Part:
    known = file_in(item) if isinstance(item, dict) else None
    if known is None and isinstance(item, dict) and len(item) == 1 and "json" in item:
        return json_text(item["json"])
    return known or _shown(item)


def _bedrock_thinking(reasoning: Part) -> list[Part] | None:
    held = reasoning.get("reasoningText")
    if isinstance(held, dict) and isinstance(held.get("text"), str):
        return thinking(held["text"], held.get("signature"))
    return [{"type": "redacted_thinking"}] if "redactedContent" in reasoning else None


def _bedrock_file(family: str) -> Reader:
    def reader(held: Part) -> list[Part] | None:
        source, form, name = held.get("source"), held.get("format"), held.get("name")
        if not isinstance(source, dict) or not isinstance(form, str | None):
            return None
        if family == "document" and (words := _bedrock_words(source)) is not None:
            return document(words, name)
        data, place = source.get("bytes"), source.get("s3Location")
        # Strands has bytes as text beside a mark that they are.
        data = data.get("data") if isinstance(data, dict) else data
        address = place.get("uri") if isinstance(place, dict) else data
        return None if form is None else file(address, _bedrock_type(family, form), family, name)

    return reader


def _bedrock_type(family: str, form: str) -> str:
    if family == "document":
        return _DOCUMENTS.get(form, f"application/{form}")
    return f"{family}/{'jpeg' if form == 'jpg' else form}"


def _bedrock_words(source: Part) -> str | None:
    """Return the text of a document that is given as text, or as parts of text."""
    if isinstance(source.get("text"), str):
        words: str = source["text"]
        return words
    items: Any = source.get("content")
    return "\n".join(item["text"] for item in items) if _are_texts(items) else None


def _are_texts(items: Any) -> bool:
    return isinstance(items, list) and all(
        isinstance(item, dict) and isinstance(item.get("text"), str) for item in items
    )


def _bedrock_cited(cited: Part) -> list[Part] | None:
    items: Any = cited.get("content")
    return [block for item in items for block in text(item["text"])] if _are_texts(items) else None


def _bedrock_cache(point: Part) -> list[Part] | None:
    return [] if isinstance(point.get("type"), str) else None


# -- Agent Framework, the GenAI conventions, and LangChain


def _framework_call(part: Part) -> list[Part] | None:
    return call(part.get("call_id"), part.get("name"), part.get("arguments"))


def _framework_result(part: Part) -> list[Part] | None:
    """Return a result; its items say the same as it does, and have the files in it."""
    content, exception = part.get("result"), part.get("exception")
    items = output(part.get("items"))
    if content is None or (isinstance(items, list) and items and all(is_text(item) or is_file(item) for item in items)):
        content = items
    if isinstance(exception, str) and not _says(content):
        content = exception
    return result(part.get("call_id"), content, exception is not None)


def _says(content: Any) -> bool:
    items = content if isinstance(content, list) else [content]
    return any(not is_text(item) or item["text"] for item in items if item)


def _genai_text(part: Part) -> list[Part] | None:
    held = part.get("content")
    return text(held) if "text" not in part and isinstance(held, str) else None


def _genai_call(part: Part) -> list[Part] | None:
    """Return a call; where its result is in the same part, both."""
    id, name, held = part.get("id"), part.get("name"), part.get("result")
    if not isinstance(name, str) or part.keys().isdisjoint(("id", "arguments", "args")):
        return None
    # LangChain calls them args.
    made = call(id, name, part.get("arguments", part.get("args")), UNNAMED)
    answered = None if held is None else result(id, output(held), unnamed_as=UNNAMED)
    return made if made is None or answered is None else made + answered


def _genai_result(part: Part) -> list[Part] | None:
    held = part.get("response", part.get("result"))
    return result(part.get("id"), output(held), unnamed_as=UNNAMED)


def _address(part: Part) -> list[Part] | None:
    media_type = part.get("mime_type", part.get("media_type"))
    name = next((part[name] for name in ("name", "filename", "title") if isinstance(part.get(name), str)), None)
    return file(part.get("uri"), media_type, part.get("modality"), name)


def _genai_data(part: Part) -> list[Part] | None:
    return file(part.get("content"), part.get("mime_type"), part.get("modality"))


def _pydantic(part: Part) -> list[Part] | None:
    made = frameworks.pydantic(part)
    if made is None:
        return None
    return [
        {**block, "content": output(block["content"])} if block["type"] == "tool_result" else block for block in made
    ]


_WHOLE: dict[str, Reader] = {"part_kind": _pydantic, "block_type": frameworks.llama}
"""The fields that say what the whole of a part is."""
_BY_FIELD: dict[str, Reader] = {
    **_WHOLE,
    **{name: _inside(name, _gemini_call) for name in ("function_call", "functionCall")},
    **{name: _inside(name, _gemini_result) for name in ("function_response", "functionResponse")},
    **{name: _inside(name, _gemini_data) for name in ("inline_data", "inlineData")},
    **{name: _inside(name, _gemini_file) for name in ("file_data", "fileData")},
    **{name: _inside(name, _bedrock_file(name)) for name in ("image", "audio", "video", "document")},
    "toolUse": _inside("toolUse", _bedrock_call),
    "toolResult": _inside("toolResult", _bedrock_result),
    "reasoningContent": _inside("reasoningContent", _bedrock_thinking),
    "citationsContent": _inside("citationsContent", _bedrock_cited),
    "cachePoint": _inside("cachePoint", _bedrock_cache),
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
