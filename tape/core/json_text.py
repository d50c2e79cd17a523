"""JSON inside a text: arguments of tool calls, outputs of tools, lines of files. It is read with a bound on depth.

Models and files may nest JSON so deep that whatever walks the value afterwards ends with RecursionError.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["DEEPEST", "RECORD", "NotJson", "decode", "decode_first", "decode_loose", "value_of"]

DEEPEST = 100
"""Levels of a value that is read from a text. With those of what it is put into, it stays within the store's bound."""
RECORD = 300
"""Levels of a record of a file. This is more than a tape holds: a message that is too deep is kept as an event."""
_loose = json.JSONDecoder()


class NotJson(ValueError):
    """A text is not JSON, or its value is too ``deep`` to be used. The message says which, and fits behind "is"."""

    def __init__(self, what: str, *, deep: bool = False) -> None:
        super().__init__(what)
        self.deep = deep


def decode(text: str | bytes, *, deepest: int = DEEPEST) -> Any:
    """Return the value of a text that is strict JSON; raises NotJson."""
    try:
        return _bounded(msgspec.json.decode(text), text, deepest)
    except RecursionError:
        raise NotJson("nested too deeply", deep=True) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise NotJson(f"not JSON: {error}") from error


def decode_loose(text: str | bytes, *, deepest: int = DEEPEST) -> Any:
    """Return the value of a text that is JSON as Python reads it, with NaN and lone surrogates; raises NotJson."""
    try:
        return _bounded(json.loads(text), text, deepest)
    except RecursionError:
        raise NotJson("nested too deeply", deep=True) from None
    except NotJson:
        raise
    except ValueError as error:
        raise NotJson(f"not JSON: {error}") from error


def decode_first(text: str, at: int = 0, *, deepest: int = DEEPEST) -> tuple[Any, int]:
    """Return the value that begins at a place, and where it ends, read as ``decode_loose`` does; raises NotJson."""
    try:
        value, end = _loose.raw_decode(text, at)
    except RecursionError:
        raise NotJson("nested too deeply", deep=True) from None
    except ValueError as error:
        raise NotJson(f"not JSON: {error}") from error
    return _bounded(value, text[at:end], deepest), end


def value_of(value: Any, *, deepest: int = DEEPEST) -> Any:
    """Return the value of a text that is JSON. Anything else comes back as it is, with JSON that is too deep."""
    if isinstance(value, str):
        try:
            return decode(value, deepest=deepest)
        except NotJson:
            pass
    return value


def _bounded(value: Any, text: str | bytes, deepest: int) -> Any:
    """Return a value; raises NotJson if it has more levels than that."""
    lists, dicts = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    # Brackets bound the depth from above; only a value with many of them needs the walk.
    if text.count(lists) + text.count(dicts) <= deepest:  # type: ignore[arg-type]
        return value
    level = [value] if type(value) in (dict, list) else []
    for _ in range(deepest):
        items = (item for each in level for item in (each.values() if type(each) is dict else each))
        level = [item for item in items if type(item) in (dict, list)]
        if not level:
            return value
    if level:
        raise NotJson("nested too deeply", deep=True)
    return value
