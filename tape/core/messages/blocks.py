"""The blocks that parts of other dialects are read as: Anthropic's, and files by address or with their data. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = [
    "UNNAMED",
    "Part",
    "Reader",
    "call",
    "document",
    "file",
    "is_file",
    "is_text",
    "json_text",
    "result",
    "text",
    "thinking",
    "tool_of",
    "unnamed",
    "url_safe",
]

Part = dict[str, Any]
Reader = Callable[[Part], list[Part] | None]

UNNAMED = "no-id_"
"""What the ids begin with that calls and results without ids are given."""
_URL_SAFE = str.maketrans("-_", "+/")
_TEXTS = ("text", "input_text", "output_text")
_FAMILIES = ("image", "audio", "video")
_FILES = frozenset({*_FAMILIES, "file", "document"})


def unnamed(tool: Any) -> str | None:
    """Return what the id of a call of a tool begins with where it has none; None without the name of a tool."""
    return f"{UNNAMED}{tool}_" if isinstance(tool, str) and tool else None


def tool_of(id: str) -> str | None:
    """Return what the ids of all calls of a tool begin with, given that of one without an id; None for any other."""
    return id[: id.rindex("_") + 1] if id.startswith(UNNAMED) else None


def call(id: Any, name: Any, arguments: Any, unnamed_as: str | None = None) -> list[Part] | None:
    """Return a tool call; None without an id, or a beginning of one."""
    id = _id(id, unnamed_as)
    if id is None:
        return None
    return [{"type": "tool_use", "id": id, "name": name, "input": {} if arguments is None else arguments}]


def result(id: Any, content: Any, failed: bool = False, unnamed_as: str | None = None) -> list[Part] | None:
    """Return the result of a tool call; None without an id, or a beginning of one."""
    id = _id(id, unnamed_as)
    if id is None:
        return None
    return [{"type": "tool_result", "tool_use_id": id, "content": content, **({"is_error": True} if failed else {})}]


def _id(id: Any, unnamed_as: str | None) -> str | None:
    if isinstance(id, str) and id:
        return id
    return unnamed_as if id is None or id == "" else None


def text(said: str) -> list[Part]:
    """Return a text."""
    return [{"type": "text", "text": said}]


def json_text(value: Any) -> Part:
    """Return a value as the text that a model gets of it."""
    return {"type": "text", "text": msgspec.json.encode(value).decode()}


def thinking(thought: Any, signature: Any = None) -> list[Part]:
    """Return a model's thinking, with the signature by which Anthropic takes it back if it is one of theirs."""
    signed = {"signature": signature} if isinstance(signature, str) and signature else {}
    return [{"type": "thinking", "thinking": thought, **signed}]


def file(address: Any, media_type: Any, family: Any = None, name: Any = None) -> list[Part] | None:
    """Return a file by its address or its data; None if nothing tells that it is one."""
    if not isinstance(address, str) or not (isinstance(media_type, str) or family or address[:5] == "data:"):
        return None
    named = {"filename": name} if isinstance(name, str) and name else {}
    return [{"type": family if family in _FAMILIES else "file", "url": address, "mediaType": media_type, **named}]


def url_safe(data: Any) -> str | None:
    """Return data that Pydantic wrote, as Gemini's SDK does, in the alphabet for addresses; None for no text."""
    return data.translate(_URL_SAFE) if isinstance(data, str) else None


def document(words: str, name: Any = None) -> list[Part]:
    """Return a document that is given as text."""
    named = {"title": name} if isinstance(name, str) and name else {}
    return [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words}, **named}]


def is_text(part: Any) -> bool:
    """Whether a part is a text in the blocks' own words."""
    return isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("text"), str)


def is_file(part: Any) -> bool:
    """Whether a part is a picture, a sound or a file in the blocks' own words."""
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _FILES
