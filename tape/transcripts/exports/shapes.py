"""A message of any shape in the shape of one API: unchanged if it has that shape, otherwise converted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from tape.core import json_text
from tape.core.messages.media import label
from tape.core.messages.shapes import Call, Media, Other, Result, Text, as_text, read
from tape.core.render.convert import anthropic_media, chat_media, responses_media
from tape.transcripts.exports.losses import Losses
from tape.transcripts.formats.conversations import tool_call

__all__ = ["as_anthropic", "as_chat", "as_items", "named", "thought"]

Body = dict[str, Any]

_BLOCKS = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source",),
    "tool_use": ("id",),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": ("data",),
}
_CHAT_PARTS = {name: (name,) for name in ("text", "image_url", "input_audio", "file", "refusal")}
_ITEM_PARTS = {
    **dict.fromkeys(("input_text", "output_text", "summary_text"), ("text",)),
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_id", "file_data", "file_url"),
    "refusal": ("refusal",),
}
"""The parts of each API, with the fields of which a part of that type has one: without, it is of another API."""
_CHAT_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_ITEM_ROLES = frozenset({"system", "developer", "user", "assistant"})
_ANTHROPIC_ROLES = {"assistant": "assistant", "system": "system", "developer": "system"}
"""The roles besides the user's; the results of tools are a user's."""


def _has_parts(message: Body, known: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the content of a message, if it is made of parts, has these alone."""
    content = message.get("content")
    return all(
        isinstance(part, dict)
        and isinstance(kind := part.get("type"), str)
        and any(isinstance(part.get(name), str | dict) for name in known.get(kind, ()))
        for part in (content if isinstance(content, list) else [])
    )


def _spoken(role: str, known: Container[str], losses: Losses) -> str:
    """Return a role as a format has it: others speak to the model as a user does."""
    if role in known:
        return role
    losses.add("role", role != "tool")
    return "user"


def _taken(media: Media, convert: Callable[[Media], Body | None], role: str, losses: Losses) -> Body | None:
    """Return a picture, sound or file as an API takes it; None, and a loss, if it does not in this role."""
    made = convert(media) if role == "user" or media.text is not None else None
    losses.add("attachment", made is None)
    return made


def named(media: Media) -> str:
    """Return a picture, sound or file as a text: its own, or what it is."""
    return media.text if media.text is not None else f"[{label(media)}]"


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
    return not isinstance(calls, list) or all(
        isinstance(call, dict) and call.keys() & {"function", "custom"} for call in calls
    )


def as_chat(message: Body, losses: Losses) -> list[Body]:
    """Return a message as OpenAI's chat messages, with each tool result as a message of its own."""
    role = message.get("role")
    plain = isinstance(role, str) and role in _CHAT_ROLES and "type" not in message and "parts" not in message
    if plain and _has_parts(message, _CHAT_PARTS) and _has_chat_calls(message):
        return [message]
    neutral = read(message)
    own = {call.id for call in neutral.calls}
    parts: list[Body] = []
    made: list[Body] = []
    behind: list[Body] = []
    for part in neutral.parts:
        if isinstance(part, Text):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Result):
            # The AI SDK has the result of a call beside it, other APIs before what a user says to it.
            answers = behind if part.id in own else made
            answers.append({"role": "tool", "tool_call_id": part.id, "content": as_text(part.content)})
        elif isinstance(part, Media):
            parts.append(_taken(part, chat_media, neutral.role, losses) or {"type": "text", "text": named(part)})
        elif isinstance(part, Other):
            losses.add(str(part.part.get("type") or "part"))
    calls = [tool_call(call.id, call.name, call.arguments) for call in neutral.calls]
    if parts or calls or not (made or neutral.parts):
        role = _spoken(neutral.role, _CHAT_ROLES, losses)
        only_text = all(part["type"] == "text" for part in parts)
        content: Any = "\n\n".join(part["text"] for part in parts) if only_text else parts
        body: Body = {"role": role, "content": content if parts or not calls else None}
        made.append({**body, "tool_calls": calls} if calls else body)
    return [*made, *behind]


def as_items(message: Body, losses: Losses) -> list[Body]:
    """Return a message as items of OpenAI's Responses API."""
    kind = message.get("type")
    if isinstance(kind, str) and (kind == "reasoning" or kind.endswith(("_call", "_output"))):
        return [message]
    if kind == "message" and message.get("role") in _ITEM_ROLES and _has_parts(message, _ITEM_PARTS):
        return [message]
    neutral = read(message)
    role = _spoken(neutral.role, _ITEM_ROLES, losses)
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
            content.append(_taken(part, responses_media, role, losses) or {"type": text, "text": named(part)})
        elif (thinking := thought(part.part)) is not None:
            made.insert(0, {"type": "reasoning", "summary": [{"type": "summary_text", "text": thinking}]})
        else:
            losses.add(str(part.part.get("type") or "part"))
    if content or not made:
        made.insert(0 if made and made[0]["type"] != "reasoning" else len(made[:1]), _item(role, content))
    return made


def _item(role: str, content: list[Body]) -> Body:
    return {"type": "message", "role": role, "content": content}


def as_anthropic(message: Body, losses: Losses) -> Body | None:
    """Return a message in Anthropic's shape; None if no part of it can be converted."""
    role, content = message.get("role"), message.get("content")
    plain = role in ("user", "assistant", "system") and not message.keys() & {"type", "parts", "tool_calls"}
    if plain and isinstance(content, str | list) and _has_parts(message, _BLOCKS):
        return {"role": role, "content": content}
    neutral = read(message)
    known = _spoken(neutral.role, (*_ANTHROPIC_ROLES, "user"), losses)
    spoken = _ANTHROPIC_ROLES.get(known, "user")
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
            blocks.append(_taken(part, anthropic_media, spoken, losses) or {"type": "text", "text": named(part)})
        else:
            # A thought without its signature is refused by the API.
            losses.add(str(part.part.get("type") or "part"))
    if not blocks:
        return None
    return {"role": spoken, "content": blocks}


def _as_object(arguments: Any) -> Any:
    """Return the arguments of a call as an object, as Anthropic requires."""
    arguments = json_text.value_of(arguments)
    return arguments if isinstance(arguments, dict) else {"input": arguments}
