"""Parts of Pydantic AI (``part_kind``) and LlamaIndex (``block_type``) as blocks. Pure.

A part of a kind that neither has is data of the caller's. What they have and no model is shown is named by a mark.
"""

from __future__ import annotations

from typing import Any

from tape.core.messages.blocks import Part, call, file, json_text, result, text, thinking, url_safe

__all__ = ["has_result", "item", "llama", "pydantic"]

_RETURNS = frozenset({"builtin-tool-return", "builtin-tool-search-return"})
_UNSHOWN = frozenset(
    {
        "builtin-tool-call",
        "builtin-tool-search-call",
        "capability-load-delta",
        "compaction",
        "instruction-baseline",
        "instruction-delta",
        "instruction-digest",
        "model-settings-delta",
        "speech",
        "tool-availability-delta",
    }
)
"""Parts of Pydantic AI that only it can send."""
_SAID: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("text", "system-prompt", "instruction"), (str,)),
    **dict.fromkeys(("user-prompt", "retry-prompt", "retry-feedback"), (str, list)),
    "file": (dict,),
}
"""Parts of Pydantic AI that are shown, and the types of their content."""
_TEXT_ITEMS = frozenset({"text", "text-content", "structured-content"})
_FILE_ITEMS = frozenset({"binary", "image-url", "audio-url", "video-url", "document-url"})
_LLAMA_FILES = frozenset({"image", "audio", "video", "document"})


def has_result(part: Part) -> bool:
    """Whether a part of Pydantic AI holds what a tool gave back."""
    kind = part.get("part_kind")
    if kind == "retry-prompt":
        return part.get("tool_name") is not None
    return isinstance(kind, str) and (kind == "tool-return" or kind in _RETURNS)


def pydantic(part: Part) -> list[Part] | None:
    """Return a part of Pydantic AI as blocks, or None for one that it does not have."""
    kind, content, id = part["part_kind"], part.get("content"), part.get("tool_call_id")
    if not isinstance(kind, str):
        return None
    if kind == "tool-call":
        return call(id, part.get("tool_name"), part.get("args"))
    if kind == "speech" and isinstance(part.get("transcript"), str):
        return text(part["transcript"])
    if kind in _UNSHOWN:
        return [{**part, "type": f"pydantic-ai.{kind}"}]
    if kind in _RETURNS:
        return [{"type": f"pydantic-ai.{kind}", "tool_name": part.get("tool_name"), "result": content}]
    if has_result(part):
        return result(id, content, kind == "retry-prompt" or part.get("outcome", "success") != "success")
    if kind == "thinking" and isinstance(content, str):
        ours = part.get("provider_name") == "anthropic"
        return thinking(content, part.get("signature") if ours else None)
    if not isinstance(content, _SAID.get(kind, ())):
        return None
    items = content if isinstance(content, list) else [content]
    return [block for held in items if held is not None for block in _said(held)]


def _said(held: Any) -> list[Part]:
    if isinstance(held, str):
        return text(held)
    known = item(held) if isinstance(held, dict) else None
    return [json_text(held)] if known is None else known


def item(held: Part) -> list[Part] | None:
    """Return an item of what a user of Pydantic AI said as blocks, or None for one that it does not have."""
    kind, content = held.get("kind"), held.get("content")
    if not isinstance(kind, str):
        return None
    if kind in _TEXT_ITEMS and isinstance(content, str):
        return text(content)
    if kind in _FILE_ITEMS:
        address = url_safe(held.get("data")) if kind == "binary" else held.get("url")
        return file(address, held.get("media_type"), kind.removesuffix("-url"))
    if kind == "cache-point":
        return []
    return [{**held, "type": f"pydantic-ai.{kind}"}] if kind == "uploaded-file" else None


def llama(part: Part) -> list[Part] | None:
    """Return a block of LlamaIndex as blocks, or None for one that it does not have."""
    kind, content = part["block_type"], part.get("content")
    if not isinstance(kind, str):
        return None
    if kind == "text" and isinstance(part.get("text"), str):
        return text(part["text"])
    if kind == "tool_call":
        return call(part.get("tool_call_id"), part.get("tool_name"), part.get("tool_kwargs"))
    if kind == "thinking" and isinstance(content, str | None):
        return thinking(content or "")
    if kind in _LLAMA_FILES:
        return _llama_file(part, kind)
    if kind == "citable" and isinstance(content, list):
        return _llama_citable(part, content)
    if kind == "citation" and isinstance(part.get("cited_content"), dict):
        return _llama_items([part["cited_content"]])
    return [] if kind == "cache" and "cache_control" in part else None


def _llama_file(part: Part, kind: str) -> list[Part] | None:
    media_type = next((part[name] for name in part if name.endswith("_mimetype")), None)
    if media_type is None and isinstance(part.get("format"), str):
        media_type = f"{kind}/{part['format']}"
    address = part.get("url") or part.get(kind) or part.get("data")
    known = file(address, media_type, kind, part.get("title"))
    # Files that were left on a disk are named, not shown.
    return known or ([{**part, "type": f"llama-index.{kind}"}] if "path" in part else None)


def _llama_citable(part: Part, content: list[Any]) -> list[Part]:
    """Return what may be cited as a search result, with the files in it behind."""
    blocks = _llama_items(content)
    texts = [block for block in blocks if block["type"] == "text"]
    title, source = part.get("title"), part.get("source")
    if not texts or not isinstance(title, str) or not isinstance(source, str):
        return [*(text(title) if isinstance(title, str) and title else []), *blocks]
    found = {"type": "search_result", "title": title, "source": source, "content": texts}
    return [found, *(block for block in blocks if block["type"] != "text")]


def _llama_items(items: list[Any]) -> list[Part]:
    known = [llama(held) if isinstance(held, dict) and "block_type" in held else None for held in items]
    return [block for held, made in zip(items, known, strict=True) for block in made or [json_text(held)]]
