"""Which media and parts of other APIs each API accepts, and the mark that replaces what it does not accept. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from tape.core.messages.media import Media, inline, label, plain
from tape.core.messages.shapes import Other

__all__ = [
    "ANTHROPIC",
    "APIS",
    "CHAT",
    "RESPONSES",
    "anthropic_media",
    "anthropic_other",
    "chat_media",
    "mark",
    "noun",
    "refusal",
    "responses_media",
    "responses_other",
    "search_text",
]

CHAT, RESPONSES, ANTHROPIC = "chat", "responses", "anthropic"
APIS: Mapping[str, str] = {CHAT: "OpenAI chat", RESPONSES: "OpenAI Responses", ANTHROPIC: "Anthropic"}
"""The APIs that a context can be rendered for, and their names in marks."""

_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}
_GIST = ("name", "tool_name", "query", "queries", "action", "input", "arguments", "code", "title", "url", "file_id")
_LONGEST_GIST = 200

_RESPONSES_ITEMS: Mapping[str, tuple[str, ...]] = {
    "reasoning": ("summary",),
    "web_search_call": ("id",),
    "file_search_call": ("id", "queries"),
    "code_interpreter_call": ("id",),
    "image_generation_call": ("id",),
    "mcp_call": ("id", "name", "arguments", "server_label"),
    "mcp_list_tools": ("id", "server_label", "tools"),
    "mcp_approval_request": ("id", "name", "arguments", "server_label"),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "tool_search_call": ("arguments",),
    "tool_search_output": ("tools",),
    "additional_tools": ("role", "tools"),
    "compaction": ("encrypted_content",),
    "program": ("id", "call_id", "code", "fingerprint"),
    "program_output": ("id", "call_id", "result"),
    "item_reference": ("id",),
}
"""Items of the Responses API that go back to it as they are, and the fields without which it refuses them."""

_ASSISTANT_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "compaction": ("content",),
    "server_tool_use": ("id", "name", "input"),
    "mcp_tool_use": ("id", "name", "input", "server_name"),
    **dict.fromkeys(
        (
            "web_search_tool_result",
            "web_fetch_tool_result",
            "code_execution_tool_result",
            "bash_code_execution_tool_result",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "advisor_tool_result",
            "mcp_tool_result",
        ),
        ("tool_use_id", "content"),
    ),
}
_SEARCH_RESULT = ("content", "source", "title")
_BLOCKS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "assistant": _ASSISTANT_BLOCKS,
    "user": {"search_result": _SEARCH_RESULT, "container_upload": ("file_id",), "mid_conv_system": ("content",)},
    "result": {"search_result": _SEARCH_RESULT, "tool_reference": ("tool_name",)},
}
"""Blocks that go back to Anthropic as they are, by who says them, and the fields without which it refuses them."""


def noun(part: Media | Other) -> str:
    """Return the word for a part that an API does not take."""
    kind = part.kind if isinstance(part, Media) else part.part.get("type")
    return plain(kind) if isinstance(kind, str) and kind.strip() else "part"


def mark(part: Media | Other, api: str, role: str = "user") -> str:
    """Return the text that replaces a part that an API does not accept in a message of this role."""
    what = label(part) if isinstance(part, Media) else " ".join(filter(None, (noun(part), _gist(part.part))))
    kind = f"such {noun(part)}" if isinstance(part, Media) and part.kind in ("image", "file") else noun(part)
    place = f" in {role} messages" if isinstance(part, Media) and role not in ("user", "result") else ""
    return f"[{what}, not shown: {APIS[api]} takes no {kind}{place}]"


def _gist(part: dict[str, Any]) -> str:
    """Return what a part is about in a few words; nothing for a model's thinking."""
    if part.get("type") in ("thinking", "redacted_thinking", "reasoning", "compaction"):
        return ""
    values = []
    for name in _GIST:
        value = part.get(name)
        if value:
            values.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return plain(" ".join(values), _LONGEST_GIST)


def _holds(part: dict[str, Any], names: tuple[str, ...] | None) -> bool:
    return names is not None and all(part.get(name) is not None for name in names)


def search_text(part: dict[str, Any]) -> str | None:
    """Return a search result of Anthropic's as text, or None when the part is none."""
    if part.get("type") != "search_result" or not _holds(part, _SEARCH_RESULT):
        return None
    content = part["content"] if isinstance(part["content"], list) else []
    texts = [block["text"] for block in content if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return "\n".join([f"[search result {plain(str(part['title']))}, {plain(str(part['source']), 200)}]", *texts])


def refusal(part: dict[str, Any]) -> str:
    """Return the text of a refusal, or an empty text when the part is none."""
    text = part.get("refusal") if part.get("type") == "refusal" else None
    return text if isinstance(text, str) else ""


def _document_text(media: Media) -> str:
    return f"[{label(media)}]\n{media.text}" if media.name else media.text or ""


def _remote(media: Media) -> bool:
    return media.url[:8].lower().startswith(("http://", "https://"))


def _picture(media: Media) -> bool:
    """Whether the APIs take this image: by address, or as data of a type that they know."""
    data = inline(media)
    return _remote(media) if data is None else data[0] is None or data[0] in _PICTURES


def chat_media(media: Media) -> dict[str, Any] | None:
    """Return media as a part of a user's chat message, or None when the API does not take them."""
    data = inline(media)
    if media.text is not None:
        return {"type": "text", "text": _document_text(media)}
    if media.kind == "image" and _picture(media):
        return {"type": "image_url", "image_url": {"url": media.url, **_detail(media)}}
    if media.kind == "audio" and data is not None and data[0] in _SOUNDS:
        return {"type": "input_audio", "input_audio": {"data": data[1], "format": _SOUNDS[data[0]]}}
    if media.kind == "file" and media.file_id is not None and media.home == "openai":
        return {"type": "file", "file": {"file_id": media.file_id}}
    if media.kind == "file" and data is not None:
        return {"type": "file", "file": {"filename": _filename(media), "file_data": media.url}}
    return None


def responses_media(media: Media) -> dict[str, Any] | None:
    """Return media as a part of an input message of the Responses API, or None when it does not take them."""
    data = inline(media)
    own = media.file_id is not None and media.home == "openai"
    if media.text is not None:
        return {"type": "input_text", "text": _document_text(media)}
    if media.kind == "image" and (own or _picture(media)):
        where = {"file_id": media.file_id} if own else {"image_url": media.url}
        return {"type": "input_image", **where, **_detail(media)}
    if media.kind == "file":
        if own:
            return {"type": "input_file", "file_id": media.file_id}
        if data is not None:
            return {"type": "input_file", "filename": _filename(media), "file_data": media.url}
        if _remote(media):
            return {"type": "input_file", "file_url": media.url}
    return None


def anthropic_media(media: Media) -> dict[str, Any] | None:
    """Return media as a block of a user's message to Anthropic, or None when the API does not take them."""
    if media.part.get("type") in ("image", "document") and isinstance(media.part.get("source"), dict):
        taken = media.file_id is not None or _picture(media) if media.kind == "image" else _document(media) is not None
        fields = ("type", "source", "title", "context", "citations")
        return {name: media.part[name] for name in fields if media.part.get(name) is not None} if taken else None
    if media.kind == "image" and _picture(media):
        data = inline(media)
        if data is None:
            return {"type": "image", "source": {"type": "url", "url": media.url}}
        return {"type": "image", "source": {"type": "base64", "media_type": data[0] or "image/png", "data": data[1]}}
    source = _document(media) if media.kind == "file" else None
    if source is None:
        return None
    return {"type": "document", "source": source, **({"title": media.name[:255]} if media.name else {})}


def _document(media: Media) -> dict[str, Any] | None:
    """Return the source of a document for Anthropic: a PDF or plain text."""
    data = inline(media)
    if media.text is not None:
        return {"type": "text", "media_type": "text/plain", "data": media.text} if media.text.strip() else None
    if media.file_id is not None:
        return {"type": "file", "file_id": media.file_id} if media.home == "anthropic" else None
    if data is None:
        is_pdf = media.media_type == "application/pdf" or media.url.partition("?")[0].lower().endswith(".pdf")
        return {"type": "url", "url": media.url} if _remote(media) and is_pdf else None
    if data[0] == "application/pdf":
        return {"type": "base64", "media_type": "application/pdf", "data": data[1]}
    if (data[0] or "").startswith("text/"):
        try:
            text = base64.b64decode(data[1], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        return {"type": "text", "media_type": "text/plain", "data": text} if text.strip() else None
    return None


def _detail(media: Media) -> dict[str, Any]:
    """Return the ``detail`` with which OpenAI should read an image, where the part has it."""
    held = media.part.get("image_url")
    detail = held.get("detail") if isinstance(held, dict) else media.part.get("detail")
    return {"detail": detail} if detail in ("auto", "low", "high") else {}


def _filename(media: Media) -> str:
    return media.name or ("file.pdf" if media.media_type == "application/pdf" else "file")


def responses_other(part: dict[str, Any]) -> dict[str, Any] | None:
    """Return an item of the Responses API as it goes back to it, or None when it is none."""
    kind = part.get("type")
    return part if isinstance(kind, str) and _holds(part, _RESPONSES_ITEMS.get(kind)) else None


def anthropic_other(part: dict[str, Any], role: str) -> dict[str, Any] | None:
    """Return a block of Anthropic's as it goes back to it in a message of this role, or None when it is none."""
    kind = part.get("type")
    names = _BLOCKS.get(role, {}).get(kind) if isinstance(kind, str) else None
    if not _holds(part, names):
        return None
    # The caller decides where a request is cached, because an API accepts only a few cache marks.
    return {name: value for name, value in part.items() if name != "cache_control"}
