"""Documents: messages of the two APIs, and ChatGPT's tree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tape.core.messages.shapes import Media, Neutral, Text, as_text, read
from tape.transcripts.exports.losses import Losses, path_of, tree_of
from tape.transcripts.exports.shapes import as_anthropic, as_chat, named

if TYPE_CHECKING:
    from tape.core.records import Message
    from tape.handles.snapshot import Snapshot

__all__ = ["anthropic", "chatgpt", "openai"]


def openai(view: Snapshot, losses: Losses) -> Iterator[Any]:
    """Yield the path as one list of chat messages."""
    yield [body for message in path_of(view, losses) for body in as_chat(message.data, losses)]


def anthropic(view: Snapshot, losses: Losses) -> Iterator[Any]:
    """Yield the path as one request: the system prompt and the messages."""
    system: list[Any] = []
    messages: list[dict[str, Any]] = []
    for message in path_of(view, losses):
        body = as_anthropic(message.data, losses)
        if body is not None and body["role"] == "system":
            system.append(body["content"])
        elif body is not None:
            messages += _turns(body)
    if not system:
        yield {"messages": messages}
        return
    whole = system[0] if len(system) == 1 else "\n\n".join(as_text(content) for content in system)
    yield {"system": whole, "messages": messages}


def _turns(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in turns as Anthropic has them: results beside their calls, as in the AI SDK, are a user's."""
    if body["role"] != "assistant" or not isinstance(body["content"], list) or not body["content"]:
        yield body
        return
    for results, blocks in itertools.groupby(body["content"], lambda block: block["type"] == "tool_result"):
        yield {"role": "user" if results else "assistant", "content": list(blocks)}


def chatgpt(view: Snapshot, losses: Losses) -> Iterator[Any]:
    """Yield one conversation with all branches."""
    mapping: dict[str, dict[str, Any]] = {}
    messages = tree_of(view)
    for message in messages:
        mapping[message.id] = {"id": message.id, "parent": message.parent, "children": [], **_node(message, losses)}
    for message in messages:
        if message.parent in mapping:
            mapping[message.parent]["children"].append(message.id)
    path = view.messages()
    info = view.info()
    yield [
        {
            "title": info.name,
            "conversation_id": view.id,
            "create_time": info.created_at.timestamp() if info.created_at else None,
            "current_node": path[-1].id if path else None,
            "mapping": mapping,
        }
    ]


def _said(neutral: Neutral) -> str:
    """Return the texts of a message without content, and what is shown between them."""
    return "\n".join(
        part.text if isinstance(part, Text) else named(part) for part in neutral.parts if isinstance(part, Text | Media)
    )


def _node(message: Message, losses: Losses) -> dict[str, Any]:
    neutral = read(message.data)
    if neutral.calls:
        losses.add("tool-call id", len(neutral.calls))
    text = _said(neutral) if message.content is None else as_text(message.content)
    content: dict[str, Any] = {"content_type": "text", "parts": [text]}
    recipient = "all"
    if neutral.calls:
        call = neutral.calls[0]
        arguments = call.arguments
        written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        recipient, content = call.name, {"content_type": "code", "text": written}
        losses.add("tool-call text", any(isinstance(part, Text) for part in neutral.parts))
        losses.add("additional tool call", len(neutral.calls) - 1)
    elif neutral.results:
        content = {"content_type": "execution_output", "text": as_text(neutral.results[0].content)}
    at = message.occurred_at or message.recorded_at
    author = {"role": "tool" if neutral.results else neutral.role}
    fields = {"id": message.id, "author": author, "create_time": at.timestamp(), "content": content}
    return {"message": {**fields, "recipient": recipient}}
