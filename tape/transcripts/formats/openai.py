"""OpenAI: chat messages, Responses items, requests and responses, as JSON or as JSON lines. Pure.

A file holds a list of messages or items, or one per line: that is one conversation. Or it holds requests, responses,
``{"request", "response"}`` pairs or lines of a batch: each of them is a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, exchanges, without
from tape.transcripts.formats.lines import Reading, nonblank
from tape.transcripts.steps import Step

__all__ = ["parse"]

_ITEMS = frozenset({"message", "reasoning", "item_reference", "mcp_list_tools", "compaction"})


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a file of messages, requests or responses."""
    return exchanges("openai", lines, reading, _is_message, _exchange, _request, _response)


def _is_message(value: dict[str, Any]) -> bool:
    if isinstance(value.get("role"), str):
        return "messages" not in value
    kind = value.get("type")
    return isinstance(kind, str) and (kind in _ITEMS or kind.endswith(("_call", "_call_output")))


def _is_request(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and (isinstance(value.get("messages"), list) or "input" in value)
        and "output" not in value
    )


def _is_response(value: Any) -> bool:
    return isinstance(value, dict) and (isinstance(value.get("choices"), list) or isinstance(value.get("output"), list))


def _exchange(value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, Any]]:
    """Return the request and the response that an object is or holds, and what else is in it."""
    if _is_response(value):
        return None, value, {}
    if _is_request(value):
        return value, None, {}
    request = value.get("request", value.get("body"))
    response = value.get("response")
    if isinstance(response, dict) and _is_response(response.get("body")):
        # A line of a batch's results.
        return None, response["body"], {**value, "response": without(response, "body")}
    rest = without(value, "request", "body", "response")
    return request if _is_request(request) else None, response if _is_response(response) else None, rest


def _request(line: int, conversation: Conversation, body: dict[str, Any]) -> Iterator[Step]:
    settings = without(body, "messages", "input", "instructions")
    instructions = nonblank(body.get("instructions"))
    if instructions is not None:
        yield conversation.message(line, {"role": "system", "content": instructions}, {"field": "instructions"})
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        raise ImportFailed(line, "the request's input is neither a string nor a list")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or not _is_message(message):
            raise ImportFailed(line, f"{where} is neither a message nor an item")
        yield conversation.message(line, message, where=where)
    if settings:
        yield conversation.event(line, "request", settings)


def _response(line: int, conversation: Conversation, body: dict[str, Any]) -> Iterator[Step]:
    choices = body.get("choices")
    if isinstance(choices, list):
        # The first choice is written last, which makes it the one that the conversation continues with.
        for index, choice in reversed(list(enumerate(choices))):
            message = choice.get("message") if isinstance(choice, dict) else None
            if not isinstance(message, dict):
                raise ImportFailed(line, f"choices[{index}] has no message")
            yield conversation.message(line, message, without(choice, "message"), aside=index > 0)
    else:
        for index, item in enumerate(body["output"]):
            if not isinstance(item, dict) or not _is_message(item):
                raise ImportFailed(line, f"output[{index}] is not an item")
            yield conversation.message(line, item, where=f"output[{index}]")
    yield conversation.event(line, "response", without(body, "choices", "output"))
    yield from conversation.usage(line, body.get("usage"), body.get("model"))
