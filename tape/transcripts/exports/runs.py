"""Runs: ATIF trajectories and OpenTelemetry spans."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from tape.core import json_text
from tape.core.messages.dialects import ROLES
from tape.core.messages.media import inline
from tape.core.messages.shapes import Media, Neutral, Other, Text, as_text, read
from tape.core.records import micros
from tape.transcripts.exports.losses import Losses, path_of
from tape.transcripts.exports.shapes import thought

if TYPE_CHECKING:
    from tape.core.records import Message
    from tape.handles.snapshot import Snapshot

__all__ = ["atif", "genai_message", "otlp"]

_GENAI = {
    "text": ("content",),
    "reasoning": ("content",),
    "tool_call": ("name",),
    "tool_call_response": ("response", "result"),
    "blob": ("content",),
    "file": ("file_id",),
    "uri": ("uri",),
}
"""The parts of the conventions, each with the fields of which one makes it theirs."""
_AI_SDK = ("tool-", "dynamic-tool", "step-", "source-", "data-")
_SOURCES = {"assistant": "agent", "system": "system", "developer": "system"}


def atif(view: Snapshot, losses: Losses) -> Iterator[Any]:
    """Yield one trajectory: a step per message, with the results of its calls as its observation."""
    steps: list[dict[str, Any]] = []
    makers: dict[str, dict[str, Any]] = {}
    thoughts: list[str] = []
    for message in path_of(view, losses):
        neutral = read(message.data)
        for result in neutral.results:
            step = makers.get(result.id) or (steps[-1] if steps else None)
            if step is None:
                losses.add("tool result")
                continue
            observed = step.setdefault("observation", {"results": []})["results"]
            observed.append({"source_call_id": result.id, "content": as_text(result.content)})
        thoughts += _thoughts(neutral, losses)
        losses.add("attachment", sum(isinstance(part, Media) for part in neutral.parts))
        text = _text(neutral)
        if not text and not neutral.calls:
            continue
        step = {"step_id": len(steps) + 1, "timestamp": _at(message).isoformat(), "message": text}
        step["source"] = _SOURCES.get(neutral.role, "user")
        if step["source"] == "agent" and thoughts:
            step["reasoning_content"], thoughts = "\n\n".join(thoughts), []
        if neutral.calls:
            step["tool_calls"] = [
                {"tool_call_id": call.id, "function_name": call.name, "arguments": _loaded(call.arguments)}
                for call in neutral.calls
            ]
            makers.update((call.id, step) for call in neutral.calls)
        steps.append(step)
    losses.add("thought", len(thoughts))
    info, used = view.info(), view.usage()
    yield {
        "schema_version": "ATIF-v1.4",
        "session_id": view.id,
        "agent": {"name": info.agent or "agent", "version": "unknown"},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": used.input_tokens,
            "total_completion_tokens": used.output_tokens,
            "total_cached_tokens": used.cached_tokens,
            "total_steps": len(steps),
        },
    }


def otlp(view: Snapshot, losses: Losses) -> Iterator[Any]:
    """Yield one trace: an agent, and a call of a model for each of its answers.

    Every call references its input by the tape and the seq. Only the last one contains the messages: with them in each
    call, the size of the file would be quadratic in the length of the conversation.
    """
    messages = path_of(view, losses)
    trace = _hex(view.id, 16)
    said = [read(message.data) for message in messages]
    rendered = [_as_parts(neutral, losses) for neutral in said]
    answers = [index for index, neutral in enumerate(said) if neutral.role == "assistant"]
    root = _span(trace, view.id, None, "invoke_agent", messages, {"gen_ai.operation.name": "invoke_agent"})
    spans = [root]
    for index in answers:
        message = messages[index]
        values: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": view.id,
            "gen_ai.response.id": message.id,
            "gen_ai.input.messages_ref": f"tape:{view.id}@{message.seq}",
        }
        if index == answers[-1]:
            behind = [parts for parts in rendered[index + 1 :] if parts is not None]
            losses.add("trailing message", len(behind))
            before = [parts for parts in rendered[:index] if parts is not None]
            values["gen_ai.input.messages"] = msgspec.json.encode(before).decode()
            values["gen_ai.output.messages"] = msgspec.json.encode([rendered[index]]).decode()
        spans.append(_span(trace, message.id, root["spanId"], "chat", [message], values))
    resource = {"attributes": _attributes({"service.name": view.info().agent or "tape"})}
    yield {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "tape"}, "spans": spans}]}]}


def _span(
    trace: str, id: str, parent: str | None, name: str, messages: list[Message], values: dict[str, Any]
) -> dict[str, Any]:
    times = [micros(_at(message)) * 1000 for message in messages] or [0]
    return {
        "traceId": trace,
        "spanId": _hex(f"{name}/{id}", 8),
        **({} if parent is None else {"parentSpanId": parent}),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(min(times)),
        "endTimeUnixNano": str(max(times)),
        "attributes": _attributes(values),
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in values.items()]


def genai_message(message: Message) -> dict[str, Any]:
    """Return a message as OpenTelemetry's GenAI conventions have it; its parts as they are if they were recorded so."""
    parts, role = message.data.get("parts"), message.role or "user"
    if isinstance(parts, list) and all(map(_is_genai, parts)):
        return {"role": ROLES.get(role, role), "parts": parts}
    neutral = read(message.data)
    made = _as_parts(neutral, Losses()) or {"role": neutral.role, "parts": []}
    # The conventions leave room for parts of any other type.
    made["parts"] += [
        part.part
        for part in neutral.parts
        if isinstance(part, Other) and thought(part.part) is None and isinstance(part.part.get("type"), str)
    ]
    return made


def _is_genai(part: Any) -> bool:
    """Whether a part is one of the conventions, and not one of the AI SDK, whose parts have a type as well."""
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
        return False
    needed = _GENAI.get(kind)
    return not kind.startswith(_AI_SDK) if needed is None else any(name in part for name in needed)


def _as_parts(neutral: Neutral, losses: Losses) -> dict[str, Any] | None:
    """Return a message as the conventions of OpenTelemetry have it."""
    parts: list[dict[str, Any]] = [{"type": "reasoning", "content": text} for text in _thoughts(neutral, losses)]
    text = _text(neutral)
    if text:
        parts.append({"type": "text", "content": text})
    parts += [_media(part) for part in neutral.parts if isinstance(part, Media)]
    for call in neutral.calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": _loaded(call.arguments)})
    for result in neutral.results:
        parts.append({"type": "tool_call_response", "id": result.id, "response": as_text(result.content)})
    return {"role": neutral.role, "parts": parts} if parts else None


def _media(media: Media) -> dict[str, Any]:
    """Return a picture, sound or file: its data, the id under which a provider keeps it, or its address."""
    about = {"modality": media.kind, **({"mime_type": media.media_type} if media.media_type else {})}
    data = inline(media)
    if media.text is not None:
        return {"type": "text", "content": media.text}
    if data is not None:
        return {"type": "blob", **about, **({"mime_type": data[0]} if data[0] else {}), "content": data[1]}
    if media.file_id:
        return {"type": "file", **about, "file_id": media.file_id}
    return {"type": "uri", **about, "uri": media.url}


def _thoughts(neutral: Neutral, losses: Losses) -> list[str]:
    made = []
    for part in neutral.parts:
        if isinstance(part, Other):
            text = thought(part.part)
            if text is None:
                losses.add(str(part.part.get("type") or "part"))
            elif text:
                made.append(text)
    return made


def _text(neutral: Neutral) -> str:
    return "\n\n".join(part.text for part in neutral.parts if isinstance(part, Text))


def _loaded(arguments: Any) -> Any:
    value = json_text.value_of(arguments)
    return {"input": value} if value is arguments and isinstance(value, str) else value


def _at(message: Message) -> datetime:
    return message.occurred_at or message.recorded_at


def _hex(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()
