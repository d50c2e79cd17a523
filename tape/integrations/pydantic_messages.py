"""Pydantic AI's messages as messages of a tape, and back: what is said in ``content``, everything else in ``meta``.

Both ways go by the JSON of Pydantic AI's own ``ModelMessagesTypeAdapter``. Texts, pictures, tool calls and results
become blocks that search, contexts and renderings know; a part of any other kind stands in a block of its own. Nothing
is kept twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tape
from tape.integrations.histories import Pair, as_json, from_json

__all__ = ["NAME", "from_tape", "to_tape"]

NAME = "pydantic-ai"
Json = dict[str, Any]

_SAID = frozenset({"text", "system-prompt", "user-prompt"})
_MEDIA = frozenset({"image-url", "audio-url", "video-url", "document-url", "binary"})
_FAMILIES = {"image-url": "image", "audio-url": "audio", "video-url": "video"}


def to_tape(dump: Json) -> Pair:
    """Return a message as a tape has it, and its meta; half characters and the like are kept as well as can be."""
    clean, replaced = tape.lenient(dump)
    if replaced:
        return to_tape(clean)[0], {NAME: as_json(dump)}
    rest = {name: value for name, value in dump.items() if value is not None and name not in ("kind", "parts", "usage")}
    if rest.get("state") == "complete":
        del rest["state"]
    blocks: list[Json] = []
    rest["parts"] = [_split(part, blocks) for part in dump["parts"]]
    plain = len(blocks) == 1 and len(blocks[0]) == 2 and blocks[0]["type"] == "text"
    role = "assistant" if dump["kind"] == "response" else "user"
    message: Json = {"role": role, "content": blocks[0]["text"] if plain else blocks}
    if usage := {name: value for name, value in dump.get("usage", {}).items() if value}:
        message["usage"] = usage
    return message, {NAME: rest}


def from_tape(message: tape.Message) -> Json:
    """Return the JSON of a message; one that was not written here comes as its text."""
    rest = (message.meta or {}).get(NAME)
    answer = message.role == "assistant"
    if rest is None:
        part = {"part_kind": "text" if answer else "user-prompt", "content": message.text}
        rest = {"parts": [part], "timestamp": message.recorded_at.isoformat()}
        return {**rest, "kind": "response" if answer else "request"}
    dump: Json = from_json(rest)
    if dump is not rest:
        return dump
    content = message.content
    blocks = iter([{"type": "text", "text": content}] if isinstance(content, str) else content)
    dump = {**rest, "kind": "response" if answer else "request", "parts": [_joined(p, blocks) for p in rest["parts"]]}
    if answer:
        dump["usage"] = message.to_dict().get("usage", {})
    return dump


def _split(part: Json, blocks: list[Json]) -> Json:
    """Add what a part says to the blocks; returns what is left of it."""
    rest = {name: value for name, value in part.items() if value is not None}
    kind: str = part["part_kind"]
    content: Any = part.get("content")
    if kind in _SAID and isinstance(content, str):
        blocks.append({"type": "text", "text": rest.pop("content")})
    elif kind == "user-prompt" and all(map(_is_item, content)):
        blocks += map(_item, rest.pop("content"))
        rest["count"] = len(content)
    elif kind == "tool-call":
        call = {"type": "tool_use", "id": rest.pop("tool_call_id"), "name": rest.pop("tool_name")}
        blocks.append({**call, "input": rest.pop("args")} if "args" in rest else call)
    elif kind == "tool-return":
        failed = {} if rest.get("outcome") == "success" else {"is_error": True}
        rest.pop("content", None)
        answered = {"tool_use_id": rest.pop("tool_call_id"), "content": content}
        blocks.append({"type": "tool_result", **answered, **failed})
    else:
        blocks.append({"type": f"{NAME}.{kind}", "part": part})
        return {}
    return rest


def _joined(rest: Json, blocks: Iterator[Json]) -> Json:
    """Return a part again, of the next block or blocks and what was left of it."""
    if "count" in rest:
        items = [_item_again(next(blocks)) for _ in range(rest["count"])]
        return {**{name: value for name, value in rest.items() if name != "count"}, "content": items}
    block = next(blocks)
    match block["type"]:
        case "text":
            return {**rest, "content": block["text"]}
        case "tool_use":
            return {**rest, "tool_call_id": block["id"], "tool_name": block["name"], "args": block.get("input")}
        case "tool_result":
            return {**rest, "tool_call_id": block["tool_use_id"], "content": block["content"]}
    return block["part"]


def _is_item(item: Any) -> bool:
    return isinstance(item, str) or (item.get("kind") in _MEDIA and "type" not in item)


def _item(item: Any) -> Json:
    """Return a piece of what a user said: a text, or a picture or file beside its address or its data."""
    if isinstance(item, str):
        return {"type": "text", "text": item}
    return {"type": _FAMILIES.get(item["kind"], "file"), **item}


def _item_again(block: Json) -> Any:
    return block["text"] if block["type"] == "text" else {name: v for name, v in block.items() if name != "type"}
