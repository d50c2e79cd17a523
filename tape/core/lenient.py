"""Lenient JSON: real output of models and SDKs made into what a tape can hold, and a list of what that changed."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime, time
from enum import Enum
from typing import Any

import msgspec

from tape.core import strict
from tape.core.messages.objects import dumped
from tape.errors import InvalidEntry

__all__ = ["from_strict", "lenient", "to_strict"]

_HALF = re.compile("[\ud800-\udfff]")
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SPARE = 8
"""Levels that are left for what the value is put into."""
_DEEPEST = strict.MAX_DEPTH - _SPARE
_LONGEST = 10_000
"""Characters kept of the ``str()`` of an object that is no data."""
_CONSTANTS = {None: "null", True: "true", False: "false"}
_JSON = "json"
"""The one field of a value that is kept as the text of its JSON, as Python writes it."""


def lenient(value: Any) -> tuple[Any, list[str]]:
    """Return a value as strict JSON, which every write takes, and what had to be replaced for that, each with its path.

    What is strict JSON already comes back equal, with nothing to report. Two halves of a character that follow each
    other become that character, as when chunks of a stream are joined; other halves become U+FFFD, NaN and infinities
    None, tuples and sets lists, bytes base64, keys strings, objects with ``to_dict()`` or ``model_dump()``, dataclasses
    and msgspec structs dicts, and any other object a text. The value itself is not changed.
    """
    try:
        return msgspec.json.decode(strict.encode(value, "value")), []
    except InvalidEntry:
        cleaning = _Cleaning()
        return cleaning.clean(value, "", 0), cleaning.replaced


def to_strict(value: Any) -> Any:
    """Return a value as strict JSON, which every write takes and from which ``from_strict`` makes the value again.

    What is strict JSON already comes back equal. A value with NaN, infinities or halves of characters, or one that is
    nested too deeply to be put into another, is kept as ``{"json": text}``, and so is one that looks like that;
    Python's json makes it again. Two halves that follow each other come back as their character. What JSON has no form
    for (objects, tuples, sets, bytes, keys that are no strings) comes back as ``lenient`` makes it. The value itself is
    not changed.
    """
    try:
        made = msgspec.json.decode(strict.encode(value, "value", spare=_SPARE))
    except InvalidEntry:
        keeping = _Keeping()
        made = keeping.clean(value, "", 0)
        if keeping.kept:
            try:
                return {_JSON: _with_names_apart(json.dumps(made, default=lambda other: lenient(other)[0]))}
            except (TypeError, ValueError, RecursionError):
                # Something deep inside contains itself, has keys that are no texts, or goes deeper than Python does.
                made = lenient(value)[0]
    # A value of the caller's that looks like a kept one is kept as well.
    return {_JSON: json.dumps(made)} if _is_kept(made) else made


def from_strict(value: Any) -> Any:
    """Return the value of which ``to_strict`` made this; raises InvalidEntry for what it never makes."""
    if not _is_kept(value):
        return value
    try:
        return json.loads(value[_JSON])
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEntry("value", f"has a {_JSON!r} field that to_strict() did not write: {error}") from error


def _is_kept(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and _JSON in value


def _joined(text: str) -> str:
    """Return a text in which two halves of a character that follow each other are that character."""
    return _HALVES.sub(lambda halves: halves[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def _whole(text: str) -> str:
    """Return a text that has characters alone."""
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", _joined(text))


def _with_names_apart(text: str) -> str:
    """Return JSON in which names that Python keeps apart, and JSON does not, differ: ``True`` and ``"true"``."""
    renamed = False

    def apart(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal renamed
        made: dict[str, Any] = {}
        for name, item in pairs:
            while name in made:
                name, renamed = f"{name}'", True
            made[name] = item
        return made

    held = json.loads(text, object_pairs_hook=apart)
    return json.dumps(held) if renamed else text


class _Cleaning:
    """One value being made strict."""

    def __init__(self) -> None:
        self.replaced: list[str] = []
        self._above: set[int] = set()

    def clean(self, value: Any, path: str, depth: int) -> Any:
        """Return a part of the value as strict JSON."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(str.__str__(value), path)
        if isinstance(value, int):
            return self._integer(int.__int__(value), path)
        if isinstance(value, float):
            return self._float(float.__float__(value), path)
        if id(value) in self._above:
            return self._report(path, "contains itself", None)
        if depth >= _DEEPEST:
            return self._deep(value, path)
        self._above.add(id(value))
        try:
            return self._whole(value, path, depth)
        except Exception as error:
            # An object of the caller may raise anything when its content is read.
            return self._report(path, f"is a {type(value).__name__} that cannot be read ({type(error).__name__})", None)
        finally:
            self._above.discard(id(value))

    def _whole(self, value: Any, path: str, depth: int) -> Any:
        """Return something that may hold other values."""
        if isinstance(value, Mapping):
            if not isinstance(value, dict):
                self._report(path, f"is a {type(value).__name__}")
            return self._mapping(value, path, depth)
        if isinstance(value, bytes | bytearray | memoryview):
            text = base64.b64encode(bytes(value)).decode()
            return self._report(path, f"is {type(value).__name__} and is now base64", text)
        if isinstance(value, Sequence | Set):
            if not isinstance(value, list):
                self._report(path, f"is a {type(value).__name__}")
            cleaned = [self.clean(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
            # The order of a set depends on its hashes, which differ in every process.
            return sorted(cleaned, key=self._order) if isinstance(value, Set) else cleaned
        self._report(path, f"is a {type(value).__name__}")
        fields = _fields(value)
        return self.clean(_as_text(value) if fields is value else fields, path, depth + 1)

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in value.items():
            name = self._name(key, path)
            while name in made:
                self._report(f"{path}.{name}".lstrip("."), "is a duplicate key")
                name += "'"
            made[name] = self.clean(item, f"{path}.{name}".lstrip("."), depth + 1)
        return made

    def _name(self, key: Any, path: str) -> str:
        if isinstance(key, str):
            return self._text(str.__str__(key), f"{path}.{key}".lstrip("."), "key ")
        kind = type(key).__name__
        if isinstance(key, Enum) and isinstance(key.value, str):
            key = key.value
        name = _CONSTANTS[key] if key is None or isinstance(key, bool) else key if type(key) is str else _as_text(key)
        self._report(f"{path}.{name}".lstrip("."), f"is a key of type {kind}")
        return _whole(name)

    @staticmethod
    def _order(value: Any) -> Any:
        return msgspec.json.encode(value)

    def _deep(self, value: Any, path: str) -> Any:
        return self._report(path, "is nested too deeply and is now a string", _as_text(value))

    def _text(self, text: str, path: str, prefix: str = "") -> str:
        if not _HALF.search(text):
            return text
        joined = _joined(text)
        held = "a lone surrogate" if _HALF.search(joined) else "a split surrogate pair"
        return str(self._report(path, f"{prefix}holds {held}", _whole(joined)))

    def _integer(self, number: int, path: str) -> int | str:
        try:
            strict.encode(number, path)
        except InvalidEntry:
            return str(self._report(path, "is too large an integer for JSON and is now a hex string", hex(number)))
        return number

    def _float(self, number: float, path: str) -> float | None:
        if number != number or number in (float("inf"), float("-inf")):
            self._report(path, f"is {number!r}")
            return None
        return number

    def _report(self, path: str, problem: str, replacement: Any = None) -> Any:
        self.replaced.append(_whole(f"{path or 'value'} {problem}"))
        return replacement


class _Keeping(_Cleaning):
    """One value being made into what Python's json writes and reads again, which is more than strict JSON."""

    kept = False
    """Whether something was left as it is that is not strict JSON."""

    @staticmethod
    def _order(value: Any) -> Any:
        # As ``lenient`` would sort them; what it makes equal has an order as well.
        return msgspec.json.encode(lenient(value)[0]), json.dumps(value, default=repr)

    def _keep(self, value: Any) -> Any:
        self.kept = True
        return value

    def _deep(self, value: Any, path: str) -> Any:
        # Python's own encoder, which is no Python code, goes deeper than this one can.
        return self._keep(value)

    def _text(self, text: str, path: str, prefix: str = "") -> str:
        joined = _joined(text)
        return str(self._keep(joined)) if _HALF.search(joined) else joined

    def _float(self, number: float, path: str) -> float | None:
        return number if math.isfinite(number) else float(self._keep(number))


def _fields(value: Any) -> Any:
    """Return an object's content as a dict or another plain value; the object itself if there is no way to get it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, type):
        return value
    if callable(getattr(type(value), "tolist", None)):
        # Arrays and numbers of numpy and its kin.
        return value.tolist()
    try:
        made = dumped(value)
    except Exception:
        # Pydantic cannot write everything as JSON, but it can always dump to Python values.
        made = value.model_dump() if callable(getattr(type(value), "model_dump", None)) else None
    if made is not None:
        return made
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value


def _as_text(value: Any) -> str:
    """Return an object's ``str()``, or its type's name if that fails."""
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return _whole(text[:_LONGEST])
