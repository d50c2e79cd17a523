"""Cutting old tool output, with its shape kept and a visible mark where something is missing. Pure.

Media are shown whole or not at all, in every dialect: a truncated image cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tape.core.messages.dialects import file_in, output, with_result
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
    if str(message.get("type", "")).endswith("_call_output"):
        result["output"] = cut(message.get("output"))
    # With the id of a call, the message itself is the result. So it is if no part names the call that it answers.
    whole = message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str)
    if not whole:
        whole = message.get("role") == "tool" or "tool_call_id" in message
        for name in ("content", "parts"):
            parts = message.get(name)
            if isinstance(parts, list):
                result[name] = [_with_result(part, cut) for part in parts]
                whole = whole and all(a is b for a, b in zip(result[name], parts, strict=True))
    if whole:
        name = "parts" if message.get("content") is None else "content"
        result[name] = cut(message.get(name))
    return result if changed else message


def _with_result(part: Any, cut: Callable[[Any], Any]) -> Any:
    """Return a part with the tool result in it cut; the part itself if it holds none."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if isinstance(kind, str):
        names: tuple[str, ...] = ()
        if kind in ("tool_result", "tool-result"):
            names = ("content", "output", "result")
        elif kind.startswith("tool-") or kind == "dynamic-tool":
            names = ("output",)
        if any(name in part for name in names):
            return {**part, **{name: cut(part[name]) for name in names if name in part}}
    return with_result(part, cut)


def _marked(value: Any, address: str) -> Any:
    """Return the mark that replaces a whole result, in the shape of its API; a small result stays."""
    if isinstance(value, dict) and isinstance(value.get("type"), str) and "value" in value:
        # The AI SDK stores the type of a tool's output beside the output.
        mark = _marked(value["value"], address)
        kind = "error-text" if value["type"].startswith("error") else "text"
        return value if mark is value["value"] else {"type": kind, "value": mark}
    parts = contents(output(value))
    characters = sum(len(part.text) for part in parts if isinstance(part, Text))
    whole = [f"{characters} characters"] if characters else []
    whole += [label(part) if isinstance(part, Media) else "a part" for part in parts if not isinstance(part, Text)]
    mark = f"[{', '.join(whole)} cut{address}]"
    if len(mark) >= characters and len(whole) == bool(characters):
        return value
    return [{"type": "text", "text": mark}] if _has_types(value) else mark


def _has_types(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "type" in part for part in value)


def _media_in(part: dict[str, Any]) -> Media | None:
    return read_media(file_in(part) or part)


def _shorten(value: Any, limit: int, address: str) -> Any:
    media = read_data_url(value) if isinstance(value, str) else _media_in(value) if isinstance(value, dict) else None
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
