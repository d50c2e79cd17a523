"""Reading messages of every shape into one: text, media, tool calls and tool results, in order. Pure.

Known shapes: OpenAI chat messages, OpenAI Responses items, Anthropic messages, AI-SDK messages (with parts and with
content parts). What is not known is kept as ``Other`` and passed on only to the API it came from.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["Call", "Media", "Neutral", "Other", "Part", "Result", "Text", "as_text", "read"]


class Text(Struct, frozen=True):
    """Plain text."""

    text: str


class Media(Struct, frozen=True):
    """A picture, sound or file, as its URL or data and its media type."""

    url: str
    media_type: str | None
    part: dict[str, Any]


class Call(Struct, frozen=True):
    """A tool call."""

    id: str
    name: str
    arguments: Any
    """The arguments as JSON values, or as the text that the model wrote."""


class Result(Struct, frozen=True):
    """The result of a tool call."""

    id: str
    content: Any
    error: bool = False
    name: str | None = None


class Other(Struct, frozen=True):
    """A part that has no counterpart elsewhere, such as a model's reasoning."""

    part: dict[str, Any]


Part = Text | Media | Call | Result | Other


class Neutral(Struct, frozen=True):
    """A message without the clothes of any API."""

    role: str
    parts: list[Part]

    @property
    def calls(self) -> list[Call]:
        """The tool calls in it."""
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def results(self) -> list[Result]:
        """The tool results in it."""
        return [part for part in self.parts if isinstance(part, Result)]


def as_text(content: Any) -> str:
    """Return any content as the text that a tool result or a message can carry."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts and len(texts) == len(content):
            return "\n".join(str(text) for text in texts)
    return msgspec.json.encode(content).decode()


def read(message: dict[str, Any]) -> Neutral:
    """Return a message of any shape in the neutral one."""
    kind = message.get("type")
    role = message.get("role")
    if isinstance(kind, str) and role is None:
        return _item(message, kind)
    role = role if isinstance(role, str) else "user"
    if role == "tool" and isinstance(message.get("tool_call_id"), str):
        name = message.get("name")
        result = Result(message["tool_call_id"], message.get("content"), False, name if isinstance(name, str) else None)
        return Neutral("tool", [result])
    parts: list[Part] = []
    for source in (message.get("content"), message.get("parts")):
        if isinstance(source, str):
            if source:
                parts.append(Text(source))
        elif isinstance(source, list):
            for part in source:
                parts += _part(part)
        elif isinstance(source, dict):
            parts += _part(source)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                function = call.get("function") if isinstance(call.get("function"), dict) else call
                parts.append(
                    Call(
                        call["id"], str((function or {}).get("name") or "tool"), (function or {}).get("arguments", "{}")
                    )
                )
    return Neutral(role, parts)


def _item(item: dict[str, Any], kind: str) -> Neutral:
    """Read an item of OpenAI's Responses API that has no role."""
    call = item.get("call_id")
    if isinstance(call, str) and kind.endswith("_call_output"):
        return Neutral("tool", [Result(call, item.get("output"))])
    if isinstance(call, str) and kind.endswith("_call"):
        name = str(item.get("name") or kind.removesuffix("_call"))
        given = item.get("arguments", item.get("input", item.get("action", "{}")))
        return Neutral("assistant", [Call(call, name, given)])
    return Neutral("assistant", [Other(item)])


def _part(part: Any) -> list[Part]:
    """Read one block or part of a message."""
    if isinstance(part, str):
        return [Text(part)] if part else []
    if not isinstance(part, dict):
        return []
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return [Text(part["text"])] if part["text"] else []
    if kind == "tool_use" and isinstance(part.get("id"), str):
        return [Call(part["id"], str(part.get("name") or "tool"), part.get("input", {}))]
    if kind == "tool_result" and isinstance(part.get("tool_use_id"), str):
        return [Result(part["tool_use_id"], part.get("content"), bool(part.get("is_error")))]
    if kind == "tool-result" and isinstance(part.get("toolCallId"), str):
        output = part.get("output", part.get("result"))
        if isinstance(output, dict) and "value" in output and isinstance(output.get("type"), str):
            return [Result(part["toolCallId"], output["value"], output["type"].startswith("error"))]
        return [Result(part["toolCallId"], output, bool(part.get("isError")))]
    if kind == "tool-call" and isinstance(part.get("toolCallId"), str):
        return [Call(part["toolCallId"], str(part.get("toolName") or "tool"), part.get("input", part.get("args", {})))]
    if isinstance(kind, str) and (kind.startswith("tool-") or kind == "dynamic-tool"):
        return _tool_part(part, kind)
    media = _media(part)
    return [media] if media is not None else [Other(part)]


def _tool_part(part: dict[str, Any], kind: str) -> list[Part]:
    """Read an AI-SDK part that is a call and, once settled, its result."""
    call = part.get("toolCallId")
    if not isinstance(call, str):
        return [Other(part)]
    name = str(part.get("toolName") or kind.removeprefix("tool-"))
    found: list[Part] = [Call(call, name, part.get("input", {}))]
    state = part.get("state")
    if state == "output-available" or (state is None and "output" in part):
        found.append(Result(call, part.get("output"), False, name))
    elif state in ("output-error", "output-denied"):
        found.append(Result(call, part.get("errorText") or "denied", True, name))
    return found


def _media(part: dict[str, Any]) -> Media | None:
    kind = part.get("type")
    if kind == "image_url" and isinstance(part.get("image_url"), dict):
        return Media(str(part["image_url"].get("url", "")), None, part)
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return Media(part["image_url"], None, part)
    if kind == "image" and isinstance(part.get("source"), dict):
        source = part["source"]
        if source.get("type") == "base64":
            media_type = str(source.get("media_type"))
            return Media(f"data:{media_type};base64,{source.get('data', '')}", media_type, part)
        return Media(str(source.get("url", "")), None, part)
    if kind in ("image", "file") and isinstance(part.get("url", part.get("image")), str):
        given = part.get("mediaType", part.get("mimeType"))
        return Media(str(part.get("url", part.get("image"))), given if isinstance(given, str) else None, part)
    return None
