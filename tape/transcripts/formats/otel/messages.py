"""The messages that a span carries, in any dialect, as chat messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tape.transcripts.formats.conversations import reasoning, tool_call
from tape.transcripts.formats.lines import nonblank
from tape.transcripts.formats.otel.values import loaded, unflattened

__all__ = ["Body", "inputs", "outputs"]

Body = dict[str, Any]

_ROLES = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.tool.message": "tool"}
_ROLES |= {"gen_ai.assistant.message": "assistant"}


def inputs(attributes: Body, events: list[Body]) -> list[Body]:
    """Return the input of the model, from the newest dialect that the span has."""
    messages = list(_system(loaded(attributes.get("gen_ai.system_instructions"))))
    recorded = _list(loaded(attributes.get("gen_ai.input.messages")))
    for message in recorded:
        messages += _parts(message)
    if messages and recorded:
        return messages
    for event in events:
        details = event.get("attributes", {})
        if event.get("name") == "gen_ai.client.inference.operation.details":
            return inputs({**details, **_body(event)}, [])
        if str(event.get("name")) in _ROLES:
            messages += _plain({"role": _ROLES[str(event["name"])], **details, **_body(event)})
        elif event.get("name") == "gen_ai.content.prompt":
            messages += _texts(details.get("gen_ai.prompt"), "user")
    if messages:
        return messages
    for message in unflattened(attributes, "gen_ai.prompt") or unflattened(attributes, "llm.input_messages"):
        messages += _plain(message)
    return messages or _texts(attributes.get("gen_ai.prompt"), "user")


def outputs(attributes: Body, events: list[Body]) -> list[Body]:
    """Return the output of the model."""
    messages: list[Body] = []
    for message in _list(loaded(attributes.get("gen_ai.output.messages"))):
        messages += _parts(message)
    if messages:
        return messages
    for event in events:
        details = event.get("attributes", {})
        if event.get("name") == "gen_ai.client.inference.operation.details":
            return outputs({**details, **_body(event)}, [])
        if event.get("name") == "gen_ai.choice":
            body = {**details, **_body(event)}
            inner = loaded(body.get("message"))
            messages += _plain({"role": "assistant", **(inner if isinstance(inner, dict) else body)})
        elif event.get("name") == "gen_ai.content.completion":
            messages += _texts(details.get("gen_ai.completion"), "assistant")
    if messages:
        return messages
    for message in unflattened(attributes, "gen_ai.completion") or unflattened(attributes, "llm.output_messages"):
        messages += _plain({"role": "assistant", **message} if isinstance(message, dict) else message)
    return messages or _texts(attributes.get("gen_ai.completion"), "assistant")


def _body(event: Body) -> Body:
    body = loaded(event.get("body"))
    return body if isinstance(body, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _system(value: Any) -> Iterator[Body]:
    if nonblank(value) is not None:
        yield {"role": "system", "content": value}
    contents = [part.get("content", part.get("text")) for part in _list(value) if isinstance(part, dict)]
    texts = [text for text in contents if isinstance(text, str)]
    if texts:
        yield {"role": "system", "content": "\n\n".join(texts)}


def _texts(value: Any, role: str) -> list[Body]:
    """Return the messages in one attribute: messages as JSON, or a text."""
    decoded = loaded(value)
    if isinstance(decoded, list):
        return [message for item in decoded if isinstance(item, dict) for message in _plain({"role": role, **item})]
    return [] if nonblank(value) is None else [{"role": role, "content": value}]


def _plain(message: Any) -> list[Body]:
    """Return a message with a role, a content and calls, whatever its dialect calls these."""
    inner = message.get("message") if isinstance(message, dict) else None
    message = inner if isinstance(inner, dict) else message
    if not isinstance(message, dict):
        return []
    if isinstance(message.get("parts"), list):
        return _parts(message)
    role = nonblank(message.get("role")) or "user"
    content = loaded(message.get("content"))
    if content is None and isinstance(message.get("contents"), list):
        content = [_inner(part.get("message_content", part)) for part in message["contents"] if isinstance(part, dict)]
    if isinstance(content, dict):
        content = content["content"] if isinstance(content.get("content"), str) else _json(content)
    made: Body = {"role": role, "content": content}
    call = nonblank(message.get("tool_call_id")) or (nonblank(message.get("id")) if role == "tool" else None)
    if role == "tool" and call is not None:
        made["tool_call_id"] = call
    calls = [_call(call, index) for index, call in enumerate(_list(loaded(message.get("tool_calls"))))]
    if any(calls):
        made["tool_calls"] = [call for call in calls if call is not None]
    return [made]


def _inner(part: Body) -> Body:
    """Return a part of OpenInference's as one of a chat message's."""
    image = part.get("image")
    if isinstance(image, dict) and isinstance(image.get("image"), dict):
        return {"type": "image_url", "image_url": {"url": str(image["image"].get("url"))}}
    return {"type": "text", "text": part["text"]} if isinstance(part.get("text"), str) else part


def _call(call: Any, index: int) -> Body | None:
    inner = call.get("tool_call") if isinstance(call, dict) else None
    call = inner if isinstance(inner, dict) else call
    if not isinstance(call, dict):
        return None
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    arguments = function.get("arguments")
    return tool_call(
        nonblank(call.get("id")) or f"call-{index}", str(function.get("name")), {} if arguments is None else arguments
    )


def _parts(message: Any) -> list[Body]:
    """Return a message of the conventions, with its parts, as chat messages."""
    if not isinstance(message, dict):
        return []
    if not isinstance(message.get("parts"), list):
        return _plain(message)
    role = nonblank(message.get("role")) or "user"
    content: list[Body] = []
    calls: list[Body] = []
    made: list[Body] = []
    for part in (part for part in message["parts"] if isinstance(part, dict)):
        kind, text = part.get("type"), part.get("content", part.get("text"))
        if kind == "text":
            content.append({"type": "text", "text": text if isinstance(text, str) else _json(text)})
        elif kind == "reasoning" and isinstance(text, str):
            made.append(reasoning(text))
        elif kind == "tool_call":
            arguments = part.get("arguments")
            calls.append(tool_call(str(part.get("id")), str(part.get("name")), {} if arguments is None else arguments))
        elif kind == "tool_call_response":
            response = part.get("response", part.get("result"))
            answer = response if isinstance(response, str) else _json(response)
            made.append({"role": "tool", "tool_call_id": str(part.get("id")), "content": answer})
        elif kind == "blob" and part.get("modality") == "image":
            url = f"data:{part.get('mime_type')};base64,{text}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        elif kind == "uri" and part.get("modality") == "image":
            content.append({"type": "image_url", "image_url": {"url": str(part.get("uri"))}})
        else:
            content.append(part)
    if content or calls or not made:
        text_or_parts = (
            content[0]["text"] if len(content) == 1 and content[0].get("type") == "text" else content or None
        )
        body: Body = {"role": role, "content": text_or_parts}
        if nonblank(message.get("name")) is not None:
            body["name"] = message["name"]
        made.append({**body, "tool_calls": calls} if calls else body)
    return made


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
