"""Anthropic: messages, requests and responses of the Messages API, as JSON or as JSON lines. Pure.

A file holds a list of messages, or one per line: that is one conversation. Or it holds requests (with their
``system``), responses, ``{"request", "response"}`` pairs or lines of a batch: each is a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.errors import ImportFailed
from tape.transcripts.conversations import Conversation, Conversations, without
from tape.transcripts.lines import documents, said
from tape.transcripts.steps import Step

__all__ = ["parse"]

_ROLES = ("user", "assistant", "system")


def parse(lines: Iterable[bytes]) -> Iterator[Step]:
    """Read a file of messages, requests or responses."""
    found = Conversations("anthropic")
    line = 0
    for line, value in documents(lines):
        values = value if isinstance(value, list) else [value]
        for index, one in enumerate(values):
            where = f"[{index}]" if isinstance(value, list) else "the value"
            if not isinstance(one, dict):
                raise ImportFailed(line, f"{where} is a {type(one).__name__}, not an object")
            if _is_message(one) and not _is_response(one):
                start, conversation = found.shared(line)
                yield from start
                yield conversation.message(line, one, where=where)
                continue
            request, response, rest = _exchange(one)
            if request is None and response is None:
                raise ImportFailed(line, f"{where} is neither a message nor a request or a response of Anthropic")
            start, conversation = found.single(line, said(one.get("custom_id")))
            yield from start
            if rest:
                yield conversation.event(line, "envelope", rest)
            if request is not None:
                yield from _request(line, conversation, request)
            if response is not None:
                yield from _response(line, conversation, response)
    if not line:
        raise ImportFailed(1, "is empty")


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in _ROLES
        and isinstance(value.get("content"), str | list)
        and "messages" not in value
    )


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
            raise ImportFailed(line, "the request's system prompt is neither a text nor a list")
        yield conversation.message(line, {"role": "system", "content": system}, {"field": "system"})
    for index, message in enumerate(body["messages"]):
        where = f"messages[{index}]"
        if not _is_message(message):
            raise ImportFailed(line, f"{where} is no message")
        yield conversation.message(line, message, where=where)
    settings = without(body, "system", "messages")
    if settings:
        yield conversation.event(line, "request", settings)


def _response(line: int, conversation: Conversation, body: dict[str, Any]) -> Iterator[Step]:
    message = {"role": body["role"], "content": body["content"]}
    yield conversation.message(line, message, without(body, "role", "content"), original=body)
    yield from conversation.usage(line, body.get("usage"), body.get("model"))
