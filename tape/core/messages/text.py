"""The text of a message, for search: everything that a person or a model could read in it, whatever its shape.

Strings are collected wherever they occur (content, parts, blocks, reasoning, tool calls and their results), except
under names that hold no text (ids, types, signatures) and except encoded media. Inside the arguments and results of
tools the names of fields are text, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tape.core.messages.dialects import translated

__all__ = ["data_text", "text_of"]

_IDS = frozenset(
    ("id", "tool_call_id", "tool_use_id", "call_id", "toolCallId", "message_id", "item_id", "response_id", "file_id")
)
_TYPES = frozenset(("media_type", "mediaType", "mime_type", "mimeType"))
_OPAQUE = frozenset(("signature", "thoughtSignature", "encrypted_content", "cache_control", "finish_reason"))
_SETTINGS = frozenset(("providerMetadata", "providerOptions", "callProviderMetadata", "state", "status", "detail"))
_NO_TEXT = frozenset(("role", "type")) | _IDS | _TYPES | _OPAQUE | _SETTINGS
_TOOL_DATA = frozenset(("arguments", "input", "args", "output", "result", "results", "structuredContent"))
_MEDIA = _TYPES | {"format"}


def text_of(message: dict[str, Any]) -> str:
    """Return all text in a message, one piece a line."""
    content = message.get("content")
    if type(content) is str and all(name in _NO_TEXT or name == "content" for name in message):
        return content
    return "\n".join(_texts(translated(message), in_tool=False))


def data_text(value: Any) -> str:
    """Return all text in data that is no message: every string, name and number in it, one a line."""
    return "\n".join(_texts(value, in_tool=True))


def _texts(value: Any, *, in_tool: bool) -> Iterator[str]:
    """Yield the text in a message or a part of one; in a tool's input or output, names and numbers are text."""
    if isinstance(value, str):
        if not _is_media(value):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, in_tool=in_tool)
    elif isinstance(value, dict):
        media = not _MEDIA.isdisjoint(value)
        for name, item in value.items():
            if in_tool:
                if not (media and name == "data"):
                    yield name
                    yield from _texts(item, in_tool=True)
            elif name in _TOOL_DATA:
                yield from _texts(_decoded(item), in_tool=True)
            elif name not in _NO_TEXT and not (media and name in ("data", "format", "url")):
                yield from _texts(item, in_tool=False)
    elif in_tool and isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _decoded(value: Any) -> Any:
    """Return the value of a JSON string, in which letters outside ASCII may be written as escapes."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _is_media(text: str) -> bool:
    return text.startswith("data:") and ";base64," in text[:100]
