"""A message of any shape in the shape of one API: unchanged if it has that shape, otherwise converted. Pure."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from tape.core.messages.shapes import Call, Media, Other, Result, Text, as_text, read
from tape.transcripts.exports.losses import Losses
from tape.transcripts.formats.conversations import tool_call

__all__ = ["as_anthropic", "as_chat", "as_items", "thought"]

Body = dict[str, Any]

_BLOCKS = frozenset({"text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking"})
_CHAT_PARTS = frozenset({"text", "image_url", "input_audio", "file", "refusal"})
_ITEM_PARTS = frozenset({"input_text", "output_text", "input_image", "input_file", "refusal", "summary_text"})


def _kinds(message: Body) -> set[Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return {part.get("type") if isinstance(part, dict) else None for part in parts}


def thought(part: Body) -> str | None:
    """Return the text of a part that is a model's thinking, unchanged; None for any other part, also a redacted one.

    ``tape.core.messages.thinking`` is for people to read: it trims the texts and leaves out repeated ones.
    """
    if isinstance(part.get("thinking"), str):
        return str(part["thinking"])
    if part.get("type") != "reasoning":
        return None
    summary = part.get("summary")
    texts = [item.get("text") for item in summary if isinstance(item, dict)] if isinstance(summary, list) else []
    text = part.get("text", part.get("content"))
    texts += [text] if isinstance(text, str) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def _has_chat_calls(message: Body) -> bool:
    """Whether the calls of a message, if it makes any, are OpenAI's: those of LangChain hold no function."""
    calls = message.get("tool_calls")
    return not isinstance(calls, list) or all(call.keys() & {"function", "custom"} for call in calls)


def as_chat(message: Body, losses: Losses) -> list[Body]:
    """Return a message as OpenAI's chat messages, with each tool result as a message of its own."""
    plain = isinstance(message.get("role"), str) and "type" not in message and "parts" not in message
    if plain and _kinds(message) <= _CHAT_PARTS and _has_chat_calls(message):
        return [message]
    neutral = read(message)
    parts: list[Body] = []
    made: list[Body] = []
    for part in neutral.parts:
        if isinstance(part, Text):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Result):
            made.append({"role": "tool", "tool_call_id": part.id, "content": as_text(part.content)})
        elif isinstance(part, Media):
            parts.append({"type": "text", "text": as_text([part])})
            losses.add("attachment")
        elif isinstance(part, Other):
            losses.add(str(part.part.get("type") or "part"))
    calls = [tool_call(call.id, call.name, call.arguments) for call in neutral.calls]
    if parts or calls or not (made or neutral.parts):
        texts = [part["text"] for part in parts]
        body: Body = {"role": neutral.role, "content": "\n\n".join(texts) if texts else None}
        made.append({**body, "tool_calls": calls} if calls else body)
    return made


def as_items(message: Body, losses: Losses) -> list[Body]:
    """Return a message as items of OpenAI's Responses API."""
    kind = message.get("type")
    if isinstance(kind, str) and (kind == "reasoning" or kind.endswith(("_call", "_output"))):
        return [message]
    if kind == "message" and _kinds(message) <= _ITEM_PARTS:
        return [message]
    neutral = read(message)
    text = "output_text" if neutral.role == "assistant" else "input_text"
    made: list[Body] = []
    content: list[Body] = []
    for part in neutral.parts:
        if isinstance(part, Text):
            content.append({"type": text, "text": part.text})
        elif isinstance(part, Call):
            function = tool_call(part.id, part.name, part.arguments)["function"]
            made.append({"type": "function_call", "call_id": part.id, **function})
        elif isinstance(part, Result):
            made.append({"type": "function_call_output", "call_id": part.id, "output": as_text(part.content)})
        elif isinstance(part, Media):
            content.append({"type": text, "text": as_text([part])})
            losses.add("attachment")
        elif (thinking := thought(part.part)) is not None:
            made.insert(0, {"type": "reasoning", "summary": [{"type": "summary_text", "text": thinking}]})
        else:
            losses.add(str(part.part.get("type") or "part"))
    if content or not made:
        made.insert(0 if made and made[0]["type"] != "reasoning" else len(made[:1]), _item(neutral.role, content))
    return made


def _item(role: str, content: list[Body]) -> Body:
    return {"type": "message", "role": role, "content": content}


def as_anthropic(message: Body, losses: Losses) -> Body | None:
    """Return a message in Anthropic's shape; None if no part of it can be converted."""
    role, content = message.get("role"), message.get("content")
    plain = role in ("user", "assistant", "system") and not message.keys() & {"type", "parts", "tool_calls"}
    if plain and isinstance(content, str | list) and _kinds(message) <= _BLOCKS:
        return {"role": role, "content": content}
    neutral = read(message)
    blocks: list[Body] = []
    for part in neutral.parts:
        if isinstance(part, Text):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, Call):
            blocks.append({"type": "tool_use", "id": part.id, "name": part.name, "input": _as_object(part.arguments)})
        elif isinstance(part, Result):
            result: Body = {"type": "tool_result", "tool_use_id": part.id, "content": as_text(part.content)}
            blocks.append({**result, "is_error": True} if part.error else result)
        elif isinstance(part, Media):
            blocks.append({"type": "text", "text": as_text([part])})
            losses.add("attachment")
        else:
            # A thought without its signature is refused by the API.
            losses.add(str(part.part.get("type") or "part"))
    if not blocks:
        return None
    spoken = {"tool": "user", "developer": "system"}.get(neutral.role, neutral.role)
    return {"role": spoken, "content": blocks}


def _as_object(arguments: Any) -> Any:
    """Return the arguments of a call as an object, as Anthropic requires."""
    if isinstance(arguments, str):
        with contextlib.suppress(msgspec.DecodeError):
            arguments = msgspec.json.decode(arguments)
    return arguments if isinstance(arguments, dict) else {"input": arguments}
