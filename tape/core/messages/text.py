"""The text of a message, for search: everything that a person or a model could read in it, whatever its shape.

Strings are collected wherever they occur (content, parts, blocks, reasoning, tool calls and their results), except
under names that hold no text (ids, types, signatures) and except encoded media. Inside the arguments and results of
tools the names of fields are text, too. A part in another dialect is read as the blocks that it is, and once more as it
was given: what its blocks lack is text, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tape.core import json_text
from tape.core.messages.blocks import Part, is_file, is_text
from tape.core.messages.dialects import read_parts

__all__ = ["data_text", "text_of"]

_IDS = frozenset(
    ("id", "tool_call_id", "tool_use_id", "call_id", "toolCallId", "message_id", "item_id", "response_id", "file_id")
)
_TYPES = frozenset(("media_type", "mediaType", "mime_type", "mimeType"))
_OPAQUE = frozenset(("signature", "encrypted_content", "cache_control", "finish_reason"))
_OPAQUE |= {"thoughtSignature", "thought_signature", "redactedContent"}
_SETTINGS = frozenset(("providerMetadata", "providerOptions", "callProviderMetadata", "state", "status", "detail"))
_NO_TEXT = frozenset(("role", "type")) | _IDS | _TYPES | _OPAQUE | _SETTINGS
_TOOL_DATA = frozenset(("arguments", "input", "args", "output", "result", "results", "structuredContent"))
_MEDIA = _TYPES | {"format"}
_ENCODED = frozenset(("data", "base64", "format", "url"))
_KINDS = frozenset(("part_kind", "block_type", "kind", "format", "modality", "outcome", "timestamp"))
"""Fields that tell what a part in another dialect is."""
_TOOL_NAMES = frozenset(("name", "tool_name"))
_UNSAID = frozenset(("id", "tool_use_id", "url"))


def text_of(message: dict[str, Any]) -> str:
    """Return all text in a message, one piece a line."""
    content = message.get("content")
    if type(content) is str and all(name in _NO_TEXT or name == "content" for name in message):
        return content
    return "\n".join(_message_texts(message))


def data_text(value: Any) -> str:
    """Return all text in data that is no message: every string, name and number in it, one a line."""
    return "\n".join(_texts(value, in_tool=True))


def _message_texts(message: dict[str, Any]) -> Iterator[str]:
    rest = message
    for name in ("content", "parts"):
        parts = read_parts(message.get(name))
        if parts is not None:
            rest = {field: value for field, value in rest.items() if field != name}
            for part, made in parts:
                yield from _texts(part, in_tool=False) if made is None else _translated_texts(part, made)
    yield from _texts(rest, in_tool=False)


def _translated_texts(part: Part, made: list[Part]) -> Iterator[str]:
    """Yield the text of a part in another dialect: that of its blocks, and what they lack."""
    known: set[str] = set()
    for block in made:
        known.update(_unsaid(block))
        for text in _block_texts(block):
            known.add(text)
            yield text
    # A result has the name of its tool only to be bound to the call.
    unread = _KINDS | _TOOL_NAMES if any(block["type"] == "tool_result" for block in made) else _KINDS
    for text in _texts(part, in_tool=False, unread=unread):
        if text not in known:
            known.add(text)
            yield text


def _block_texts(block: Part) -> Iterator[str]:
    if block["type"] != "tool_result":
        yield from _texts(block, in_tool=False)
        return
    content = _decoded(block["content"])
    for item in content if isinstance(content, list) else [content]:
        if is_text(item):
            yield from _texts(_decoded(item["text"]), in_tool=True)
        else:
            yield from _texts(item, in_tool=not is_file(item))


def _unsaid(value: Any) -> Iterator[str]:
    """Yield the ids and the encoded data in a block; addresses are text."""
    if isinstance(value, list):
        for item in value:
            yield from _unsaid(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str):
                if name in _UNSAID and "://" not in item:
                    yield item
            else:
                yield from _unsaid(item)


def _texts(value: Any, *, in_tool: bool, unread: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the text in a message or a part of one; in a tool's input or output, names and numbers are text."""
    if isinstance(value, str):
        if not _is_media(value):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, in_tool=in_tool, unread=unread)
    elif isinstance(value, dict):
        # A document that is text says so.
        media = not _MEDIA.isdisjoint(value) and value.get("type") != "text"
        for name, item in value.items():
            if in_tool:
                if not (media and name in ("data", "base64")):
                    yield name
                    yield from _texts(item, in_tool=True)
            elif name in _TOOL_DATA:
                yield from _texts(_decoded(item), in_tool=True)
            elif not (name in _NO_TEXT or (media and name in _ENCODED) or (name in unread and isinstance(item, str))):
                yield from _texts(item, in_tool=False, unread=unread)
    elif in_tool and isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _decoded(value: Any) -> Any:
    """Return the value of a JSON string, in which letters outside ASCII may be written as escapes."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return json_text.value_of(value)
    return value


def _is_media(text: str) -> bool:
    return text.startswith("data:") and ";base64," in text[:100]
