"""Rendering: a context as the request of an API. Pure.

Both APIs demand that every tool call is answered right after it, and nothing else is. The neutral messages are put in
that order first (``settle``), and then dressed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tape.core.shapes import Call, Media, Neutral, Other, Part, Result, Text, as_text

__all__ = ["NO_RESULT", "settle", "to_anthropic", "to_chat", "to_responses"]

NO_RESULT = "[no result was recorded for this call]"
"""What a call without a result is answered with."""

_DATA_URL = re.compile(r"^data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,(.*)$", re.DOTALL)
_ANTHROPIC_ID = re.compile(r"[^A-Za-z0-9_-]")


def settle(messages: Sequence[Neutral]) -> list[Neutral]:
    """Return the messages with every call answered right behind it, and no other results. Twice gives the same."""
    # Each result belongs to the last call before it with its id that has none yet.
    open_calls: dict[str, list[int]] = {}
    answers: dict[tuple[int, str], Result] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, Call):
                open_calls.setdefault(part.id, []).append(index)
            elif isinstance(part, Result):
                waiting = [at for at in open_calls.get(part.id, ()) if (at, part.id) not in answers]
                if waiting:
                    answers[waiting[-1], part.id] = part
    settled: list[Neutral] = []
    for index, message in enumerate(messages):
        kept: list[Part] = [part for part in message.parts if not isinstance(part, Result)]
        calls = [part for part in kept if isinstance(part, Call)]
        if calls:
            kept = list({_identity(part): part for part in kept}.values())
            settled.append(Neutral("assistant", kept))
            ids = list(dict.fromkeys(call.id for call in calls))
            settled.append(Neutral("tool", [answers.get((index, id), Result(id, NO_RESULT, True)) for id in ids]))
        elif kept:
            settled.append(Neutral("user" if message.role == "tool" else message.role, kept))
    return settled


def _identity(part: Part) -> Any:
    """Calls are told apart by their ids, so that one made twice in a message is sent once."""
    return ("call", part.id) if isinstance(part, Call) else id(part)


def _arguments(call: Call) -> str:
    if isinstance(call.arguments, str):
        return call.arguments
    return msgspec.json.encode({} if call.arguments is None else call.arguments).decode()


def _input(call: Call) -> dict[str, Any]:
    value = call.arguments
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value.encode()) if value.strip() else {}
        except (msgspec.DecodeError, UnicodeEncodeError):
            return {"input": call.arguments}
    return value if isinstance(value, dict) else {"input": value}


def to_chat(prompt: str | None, messages: Sequence[Neutral]) -> list[dict[str, Any]]:
    """Return the messages of OpenAI's chat completions API."""
    out: list[dict[str, Any]] = []
    if prompt:
        out.append({"role": "system", "content": prompt})
    for message in settle(messages):
        if message.role == "tool":
            out += [
                {"role": "tool", "tool_call_id": result.id, "content": as_text(result.content)}
                for result in message.results
            ]
        elif message.role == "assistant":
            dressed: dict[str, Any] = {"role": "assistant", "content": _joined(message.parts) or None}
            if message.calls:
                dressed["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": _arguments(call)},
                    }
                    for call in message.calls
                ]
            if dressed["content"] is None and not message.calls:
                continue
            out.append(dressed)
        else:
            content = _chat_content(message.parts)
            if content:
                role = message.role if message.role in ("system", "developer", "user") else "user"
                out.append({"role": role, "content": content})
    return out


def _joined(parts: Sequence[Part]) -> str:
    return "\n\n".join(part.text for part in parts if isinstance(part, Text))


def _chat_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, Media) for part in parts):
        return _joined(parts)
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            found.append({"type": "text", "text": part.text})
        elif isinstance(part, Media):
            found.append(part.part if part.part.get("type") == "image_url" else _image(part.url))
    return found


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def to_responses(prompt: str | None, messages: Sequence[Neutral]) -> dict[str, Any]:
    """Return ``instructions`` and ``input`` of OpenAI's Responses API."""
    items: list[dict[str, Any]] = []
    for message in settle(messages):
        if message.role == "tool":
            items += [
                {"type": "function_call_output", "call_id": result.id, "output": as_text(result.content)}
                for result in message.results
            ]
            continue
        content: list[dict[str, Any]] = []
        out = message.role == "assistant"
        for part in message.parts:
            if isinstance(part, Text):
                content.append({"type": "output_text" if out else "input_text", "text": part.text})
            elif isinstance(part, Media) and not out:
                content.append({"type": "input_image", "image_url": part.url})
            elif isinstance(part, Other) and part.part.get("type") == "reasoning" and "summary" in part.part:
                items.append(part.part)
        if content:
            role = message.role if message.role in ("system", "developer", "assistant") else "user"
            items.append({"type": "message", "role": role, "content": content})
        items += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": _arguments(call)}
            for call in message.calls
        ]
    return {"instructions": prompt or None, "input": items}


def to_anthropic(prompt: str | None, messages: Sequence[Neutral]) -> dict[str, Any]:
    """Return ``system`` and ``messages`` of Anthropic's messages API: roles alternate, and a user begins."""
    system = [prompt] if prompt else []
    turns: list[dict[str, Any]] = []
    for message in settle(messages):
        if message.role in ("system", "developer"):
            system += [text for text in [_joined(message.parts)] if text]
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts for block in _block(part, role)]
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    if turns and turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": "(continued)"}]})
    for turn in turns:
        # Results must come before anything else that a user says.
        turn["content"].sort(key=lambda block: block["type"] != "tool_result" if turn["role"] == "user" else False)
        if turn["role"] == "assistant":
            turn["content"].sort(key=lambda block: block["type"] == "tool_use")
    return {"system": "\n\n".join(system), "messages": turns}


def _block(part: Part, role: str) -> list[dict[str, Any]]:
    if isinstance(part, Text):
        return [{"type": "text", "text": part.text}] if part.text.strip() else []
    if isinstance(part, Call):
        return [{"type": "tool_use", "id": _safe(part.id), "name": part.name, "input": _input(part)}]
    if isinstance(part, Result):
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": _safe(part.id), "content": as_text(part.content)}
        return [{**block, "is_error": True} if part.error else block]
    if isinstance(part, Media) and role == "user":
        if part.part.get("type") == "image" and isinstance(part.part.get("source"), dict):
            return [part.part]
        data = _DATA_URL.match(part.url)
        if data is not None:
            source = {"type": "base64", "media_type": data[1], "data": data[2]}
        else:
            source = {"type": "url", "url": part.url}
        return [{"type": "image", "source": source}]
    if isinstance(part, Other) and role == "assistant" and part.part.get("type") in ("thinking", "redacted_thinking"):
        return [part.part]
    return []


def _safe(call: str) -> str:
    """Return a call's id in the characters that Anthropic takes; the same id gives the same."""
    return _ANTHROPIC_ID.sub("_", call) or "_"
