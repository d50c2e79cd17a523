"""Cutting old tool output, with its shape kept and a visible mark where something is missing. Pure."""

from __future__ import annotations

from typing import Any

from tape.core.messages.dialects import with_result
from tape.core.messages.media import label, read_data_url, read_media
from tape.core.messages.shapes import Media, Text, contents

__all__ = ["shorten"]


def shorten(message: dict[str, Any], limit: int, where: str = "") -> dict[str, Any]:
    """Return a message with its tool results cut to about ``limit`` characters each, their shape kept.

    ``where`` is the address of what is cut, and the marks show it. With it, a limit of 0 leaves only a mark of each
    result. The message passed in is not changed; it is returned itself when there was nothing to cut.
    """
    changed = False
    address = f"; recorded at {where}" if where else ""

    def cut(value: Any) -> Any:
        nonlocal changed
        short = _shorten(value, limit, address) if limit or not where else _marked(value, address)
        changed = changed or short is not value
        return short

    result = dict(message)
    if message.get("role") == "tool" or "tool_call_id" in message:
        result["content"] = cut(message.get("content"))
    if str(message.get("type", "")).endswith("_call_output"):
        result["output"] = cut(message.get("output"))
    for name in ("content", "parts"):
        if isinstance(result.get(name), list):
            parts = []
            for part in result[name]:
                kind = part.get("type") if isinstance(part, dict) else None
                if isinstance(part, dict) and isinstance(kind, str):
                    for inner in ("content", "output", "result"):
                        is_result = kind in ("tool_result", "tool-result") or (
                            inner == "output" and (kind.startswith("tool-") or kind == "dynamic-tool")
                        )
                        if is_result and inner in part:
                            part = {**part, inner: cut(part[inner])}
                parts.append(with_result(part, cut) if isinstance(part, dict) else part)
            result[name] = parts
    return result if changed else message


def _marked(value: Any, address: str) -> Any:
    """Return the mark that replaces a whole result, in the shape of its API; a small result stays."""
    if isinstance(value, dict) and isinstance(value.get("type"), str) and "value" in value:
        # The AI SDK stores the type of a tool's output beside the output.
        mark = _marked(value["value"], address)
        kind = "error-text" if value["type"].startswith("error") else "text"
        return value if mark is value["value"] else {"type": kind, "value": mark}
    parts = contents(value)
    characters = sum(len(part.text) for part in parts if isinstance(part, Text))
    whole = [f"{characters} characters"] if characters else []
    whole += [label(part) if isinstance(part, Media) else "a part" for part in parts if not isinstance(part, Text)]
    mark = f"[{', '.join(whole)} cut{address}]"
    if len(mark) >= characters and len(whole) == bool(characters):
        return value
    return [{"type": "text", "text": mark}] if _has_types(value) else mark


def _has_types(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "type" in part for part in value)


def _shorten(value: Any, limit: int, address: str) -> Any:
    # Media are shown whole or not at all: a truncated image cannot be decoded.
    media = read_data_url(value) if isinstance(value, str) else read_media(value) if isinstance(value, dict) else None
    if media is not None and media.text is None:
        mark = f"[{label(media)}, cut{address}]"
        return mark if isinstance(value, str) else {"type": "text", "text": mark}
    if isinstance(value, str):
        if len(value) <= limit:
            return value
        return f"{value[:limit]} … [{len(value) - limit} characters cut{address}]"
    if isinstance(value, list) and value:
        short = [_shorten(item, max(80, limit // min(len(value), 10)), address) for item in value]
        return value if all(a is b for a, b in zip(short, value, strict=True)) else short
    if isinstance(value, dict) and value:
        share = max(80, limit // min(len(value), 10))
        cut = {name: _shorten(item, share, address) for name, item in value.items()}
        return value if all(cut[name] is value[name] for name in value) else cut
    return value
