"""Counting tokens without a tokenizer: an estimate that is cheap enough to store with every message.

A linear rule over what a text is made of: so many tokens per letter, digit, punctuation mark, line break, CJK character
and other non-ASCII character, fitted to a byte-pair tokenizer on English, code, JSON and CJK text. Pictures, sounds and
files cost a fixed number each, however large they are. A caller's own counter replaces it everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from tape.core.late import late_pattern
from tape.core.messages.dialects import translated
from tape.core.messages.media import read_data_url

__all__ = ["MEDIA_TOKENS", "MESSAGE_TOKENS", "Counter", "estimate", "message_tokens", "reported"]

Counter = Callable[[str], int]

MESSAGE_TOKENS = 4
"""What every message costs besides its content: role and separators."""
MEDIA_TOKENS = 1_000
"""What a picture, sound, video or file costs, whatever its size."""

_WIDE = late_pattern(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = b"0123456789"
_BLANKS = b" \t\n\r\v\f"
_LETTER, _DIGIT, _MARK, _BREAK, _WIDE_CHAR, _OTHER = 0.245, 0.45, 0.6, 0.35, 1.05, 0.5
_PICTURES = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
_MEDIA_TYPES = _PICTURES | {"input_audio", "audio", "video", "media", "file", "input_file", "document"}
_UNCOUNTED = frozenset({"id", "role", "usage"})
_ARGUMENTS = ("input", "arguments", "args")
_TEXT_TYPES = ("text", "input_text", "output_text")


def estimate(text: str) -> int:
    """Return about how many tokens a text takes; 0 for the empty one, and never less for a longer one."""
    if not text:
        return 0
    total = 0.0
    plain = text.encode("ascii", "ignore")
    if len(plain) != len(text):
        wide = len(_WIDE.findall(text))
        total = wide * _WIDE_CHAR + (len(text) - len(plain) - wide) * _OTHER
    rest = plain.translate(None, _LETTERS)
    dense = rest.translate(None, _BLANKS)
    marks = dense.translate(None, _DIGITS) if dense else dense
    total += (len(plain) - len(rest)) * _LETTER + (len(dense) - len(marks)) * _DIGIT + rest.count(b"\n") * _BREAK
    total += len(marks) * _MARK
    return math.ceil(total) or 1


def reported(message: dict[str, Any]) -> int | None:
    """Return the number of tokens that the model itself reported for a message, if it carries that."""
    usage = message.get("usage")
    if isinstance(usage, dict):
        for name in ("output_tokens", "completion_tokens", "outputTokens"):
            value = usage.get(name)
            if type(value) is int and value >= 0:
                return value
    return None


def message_tokens(message: dict[str, Any], counter: Counter = estimate) -> int:
    """Return about how many tokens a message takes when it is sent to a model."""
    text = message.get("content")
    if len(message) == 2 and type(text) is str and "role" in message and text[:5] not in ("", "data:"):
        # Most are a text and who says it, which every append counts: the general case costs as much as the counting.
        return MESSAGE_TOKENS + counter(text)
    if "usage" in message:
        by_model = reported(message)
        if by_model is not None:
            return by_model + MESSAGE_TOKENS
    total = MESSAGE_TOKENS
    for name, value in translated(message).items():
        if name in _UNCOUNTED or (name == "type" and value == "message"):
            continue
        # A fast path for plain text, which every append counts: the general case would double the cost.
        if type(value) is str and value[:5] not in ("", "data:"):
            # The result of such an item is a picture that the API made.
            picture = name == "result" and message.get("type") == "image_generation_call"
            total += MEDIA_TOKENS if picture else counter(value)
        else:
            is_result = message.get("role") == "tool" or str(message.get("type", "")).endswith("_call_output")
            total += _value(value, counter, is_result)
    return total


def _value(value: Any, counter: Counter, in_result: bool) -> int:
    if value is None or value == "":
        return 0
    if isinstance(value, str):
        # A data URL in a tool's output is shown as the media it is. Elsewhere it is sent as text, and costs as much.
        return MEDIA_TOKENS if in_result and read_data_url(value) is not None else counter(value)
    if isinstance(value, list):
        total = 0
        for item in value:
            # What most lists hold, looked at here: a call for each takes as long as the counting.
            if type(item) is dict and item.get("type") in _TEXT_TYPES and type(item.get("text")) is str:
                total += counter(item["text"])
            else:
                total += _value(item, counter, in_result)
        return total
    if isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str):
            if kind in _MEDIA_TYPES:
                return _media(value, counter)
            if kind in _TEXT_TYPES and isinstance(value.get("text"), str):
                return counter(value["text"])
            in_result = in_result or kind.endswith("_result") or kind.startswith("tool-")
        # Tool calls and results are sent as JSON, including keys.
        total = 0
        for name, item in value.items():
            if item is not None:
                total += counter(name)
                total += _json(item, counter) if name in _ARGUMENTS else _value(item, counter, in_result)
        return total
    return _json(value, counter)


def _json(value: Any, counter: Counter) -> int:
    """Return what a value costs as JSON text."""
    return counter(value if isinstance(value, str) else msgspec.json.encode(value).decode()) if value != "" else 0


def _media(part: dict[str, Any], counter: Counter) -> int:
    """Return what media cost: a fixed number and their names; a document that is text costs what the text does."""
    held = part.get("file")
    names = [part.get(name) for name in ("title", "context", "filename")]
    names += [held.get("filename")] if isinstance(held, dict) else []
    total = sum(counter(name) for name in names if isinstance(name, str) and name)
    source = part.get("source")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        return total + _value(source.get("data", source.get("content")), counter, False)
    return total + MEDIA_TOKENS
