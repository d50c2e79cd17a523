"""Anthropic: messages, requests and responses of the Messages API, as JSON or as JSON lines. Pure.

A file holds a list of messages, or one per line: that is one conversation. Or it holds requests (with their
``system``), responses, ``{"request", "response"}`` pairs or lines of a batch: each is a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, exchanges, without
from tape.transcripts.formats.lines import Reading
from tape.transcripts.steps import Step

__all__ = ["parse"]

_ROLES = ("user", "assistant", "system")


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a file of messages, requests or responses."""
    return exchanges("anthropic", lines, reading, _is_single, _exchange, _request, _response)


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in _ROLES
        and isinstance(value.get("content"), str | list)
        and "messages" not in value
    )


def _is_single(value: dict[str, Any]) -> bool:
    return _is_message(value) and not _is_response(value)


def _is_request(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("messages"), list)


def _is_response(value: Any) -> bool:
    return _is_message(value) and value.get("type") == "message"


def _exchange(value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, Any]]:
    """Return the request and the response that an object is or holds, and what else is in it."""
    if _is_response(value):
        return None, value, {}
    if _is_request(value):
        return value, None, {}
    request = value.get("request", value.get("params"))
    response, result = value.get("response"), value.get("result")
    if isinstance(result, dict) and _is_response(result.get("message")):
        # A line of a batch's results.
        return None, result["message"], {**value, "result": without(result, "message")}
    rest = without(value, "request", "params", "response")
    return request if _is_request(request) else None, response if _is_response(response) else None, rest


def _request(line: int, conversation: Conversation, body: dict[str, Any]) -> Iterator[Step]:
    system = body.get("system")
    if system:
        if not isinstance(system, str | list):
            raise ImportFailed(line, "the request's system prompt is neither a string nor a list")
        yield conversation.message(line, {"role": "system", "content": system}, {"field": "system"})
    for index, message in enumerate(body["messages"]):
        where = f"messages[{index}]"
        if not _is_message(message):
            raise ImportFailed(line, f"{where} is not a message")
        yield conversation.message(line, message, where=where)
    settings = without(body, "system", "messages")
    if settings:
        yield conversation.event(line, "request", settings)


def _response(line: int, conversation: Conversation, body: dict[str, Any]) -> Iterator[Step]:
    message = {"role": body["role"], "content": body["content"]}
    yield conversation.message(line, message, without(body, "role", "content"), original=body)
    yield from conversation.usage(line, body.get("usage"), body.get("model"))
