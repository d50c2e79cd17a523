"""Lists of messages, as in requests, responses and files of messages. Pure.

Such a list has no reliable ids. Each message is identified by a digest of itself and all messages before it. So a
longer list with the same beginning adds only what is new, and one that was edited in the middle becomes a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tape.core.messages.roles import role_of
from tape.errors import ImportFailed
from tape.transcripts.formats.lines import Reading, count, digest, documents, nonblank
from tape.transcripts.steps import Event, Message, Start, Step, Used

__all__ = ["Conversation", "Conversations", "each_value", "exchanges", "reasoning", "tool_call", "without"]

Body = dict[str, Any]


def tool_call(id: str, name: str, arguments: Any) -> Body:
    """Return a tool call in the shape of a chat message's."""
    encoded = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return {"id": id, "type": "function", "function": {"name": name, "arguments": encoded}}


def reasoning(*texts: str) -> Body:
    """Return a model's thinking as an item."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in texts]}


def without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy of an object without some of its members."""
    return {name: item for name, item in value.items() if name not in names}


class Conversations:
    """The conversations of a file: one that its lines make up together, or one per line."""

    def __init__(self, format: str) -> None:
        self.format = format
        self._open: Conversation | None = None
        self._begun = 0

    def shared(self, line: int, id: str | None = None) -> tuple[list[Step], Conversation]:
        """Return the conversation that all lines of the file share, and its start if this is the first of it."""
        if self._open is not None:
            return [], self._open
        self._open = Conversation(self.format)
        return self._start(line, id, None), self._open

    def single(self, line: int, name: str | None) -> tuple[list[Step], Conversation]:
        """Return a conversation of a request's or response's own, and its start."""
        self._open = None
        return self._start(line, None, name), Conversation(self.format)

    def _start(self, line: int, id: str | None, name: str | None) -> list[Step]:
        self._begun += 1
        # The first one has the file's name, so that it stays the same tape when the file grows.
        part = name or (str(self._begun) if self._begun > 1 else None)
        return [Start(line=line, id=id, part=part, meta={})]


class Conversation:
    """One list of messages, as far as it has been read."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._digest = ""

    def restart(self) -> None:
        """Begin again at the root: the next message is the first of another list."""
        self._digest = ""

    def message(
        self,
        line: int,
        message: dict[str, Any],
        meta: dict[str, Any] | None = None,
        *,
        where: str = "message",
        original: Any = None,
        aside: bool = False,
        at: int | None = None,
    ) -> Message:
        """Return a message after the last one; with ``aside`` the next will be its sibling."""
        role = message.get("role")
        if role is not None and not isinstance(role, str):
            raise ImportFailed(line, f"{where}: the role must be a string, not {type(role).__name__}")
        parent = f"{self._format}:{self._digest}" if self._digest else None
        fingerprint = digest(message if original is None else original, self._digest)
        if not aside:
            self._digest = fingerprint
        return Message(
            line=line,
            key=f"{self._format}:{fingerprint}",
            parent=parent,
            message=message,
            meta=meta or {},
            actor=role_of(message) or "assistant",
            at=at,
        )

    def event(self, line: int, name: str, data: Any, at: int | None = None) -> Event:
        """Return an event after the messages read so far."""
        fingerprint = digest([name, data], self._digest)
        return Event(line=line, key=f"{self._format}:{fingerprint}", name=f"{self._format}.{name}", data=data, at=at)

    def usage(self, line: int, usage: Any, model: Any, at: int | None = None) -> Iterator[Used]:
        """Yield the usage of the last message, from the field names of either API."""
        if not isinstance(usage, dict):
            return
        input_tokens = count(usage.get("input_tokens")) or count(usage.get("prompt_tokens"))
        output_tokens = count(usage.get("output_tokens")) or count(usage.get("completion_tokens"))
        details = usage.get(
            "input_tokens_details", usage.get("prompt_tokens_details", usage.get("input_token_details"))
        )
        details = details if isinstance(details, dict) else {}
        cached = count(details.get("cached_tokens")) or count(details.get("cache_read"))
        if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
            # Here the input does not include cached tokens.
            cached = count(usage.get("cache_read_input_tokens"))
            input_tokens += cached + count(usage.get("cache_creation_input_tokens"))
        if input_tokens or output_tokens:
            yield Used(
                line=line,
                key=f"{self._format}:{digest(usage, self._digest)}",
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cached_tokens=cached,
                model=nonblank(model),
                at=at,
            )


def each_value(
    lines: Iterable[bytes],
    reading: Reading,
    steps: Callable[[int, str, Body], Iterator[Step]],
    arranged: Callable[[list[Any]], list[Any]] = list,
) -> Iterator[Step]:
    """Read every object of a file, also those of a list; ``steps`` gets its line, its name in errors, and the object.

    One that cannot be read is kept as an event, and nothing else of it is imported.
    """
    values = readable = 0
    failed: ImportFailed | None = None
    for line, value in documents(lines, reading):
        for index, item in enumerate(arranged(value) if isinstance(value, list) else [value]):
            values += 1
            where = f"[{index}]" if isinstance(value, list) else "the value"
            item_steps: list[Step] = []
            try:
                if not isinstance(item, dict):
                    raise ImportFailed(line, f"{where} is a {type(item).__name__}, not an object")
                for step in steps(line, where, item):
                    item_steps.append(step)
                readable += 1
            except ImportFailed as error:
                failed = failed or error
                reading.problem(line, error.why)
                reading.keep(line, "value", {"line": line, "value": item})
                item_steps = [step for step in item_steps if isinstance(step, Start)]
            yield from item_steps
    if not values:
        raise ImportFailed(1, "is empty")
    if not readable and failed is not None:
        raise failed


def exchanges(
    format: str,
    lines: Iterable[bytes],
    reading: Reading,
    is_message: Callable[[Body], bool],
    exchange: Callable[[Body], tuple[Body | None, Body | None, Body]],
    request: Callable[[int, Conversation, Body], Iterator[Step]],
    response: Callable[[int, Conversation, Body], Iterator[Step]],
) -> Iterator[Step]:
    """Read a file of messages, requests and responses, given how its provider writes each of them.

    Messages by themselves make up one conversation; a request, a response, or both with what is around them (which
    ``exchange`` takes apart) is a conversation of its own.
    """
    conversations = Conversations(format)

    def steps(line: int, where: str, value: Body) -> Iterator[Step]:
        if is_message(value):
            start, conversation = conversations.shared(line)
            yield from start
            yield conversation.message(line, value, where=where)
            return
        request_body, response_body, rest = exchange(value)
        if request_body is None and response_body is None:
            raise ImportFailed(line, f"{where} is not a message, request or response of the format {format}")
        start, conversation = conversations.single(line, nonblank(value.get("custom_id")))
        yield from start
        if rest:
            yield conversation.event(line, "envelope", rest)
        if request_body is not None:
            yield from request(line, conversation, request_body)
        if response_body is not None:
            yield from response(line, conversation, response_body)

    return each_value(lines, reading, steps)
