"""Fields of requests: their JSON, their digests, and what they add to the same field of an earlier call. Pure.

A conversation of a megabyte is given again with each call. Encoding it each time takes longer than writing to the tape,
so a copy of the last one is kept, and what begins with it is encoded only from there on.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import weakref
from typing import Any

import msgspec

from tape.core.lenient import lenient
from tape.core.messages.objects import dumped
from tape.runs.pure.deltas import SHORTEST, delta_of_list, delta_of_text

__all__ = ["Field", "encoded", "without_addresses"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_decode = msgspec.json.Decoder().decode


def without_addresses(text: str) -> str:
    """Return a text without addresses in memory, which are others in every process."""
    return _ADDRESS.sub("", text)


def _plain(value: Any) -> Any:
    """Return an object of the caller's as something that has a JSON form, the same in every process."""
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if not _describes_itself(type(value)) and dumped(value) is None:
        return f"<{type(value).__module__}.{type(value).__qualname__}>"
    cleaned, _ = lenient(value)
    return without_addresses(cleaned) if isinstance(cleaned, str) else cleaned


def _describes_itself(cls: Any) -> bool:
    """Whether a type says what its objects hold, and not only where they are in memory."""
    return cls.__str__ is not object.__str__ or cls.__repr__ is not object.__repr__


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_encode_sorted = msgspec.json.Encoder(enc_hook=_plain, order="deterministic").encode


def encoded(value: Any) -> bytes:
    """Return any value as JSON, with sorted names. What is no JSON becomes what ``tape.lenient`` makes of it.

    A list keeps the order of names: it may be a long conversation, for which sorting takes as long as all the rest.
    Lists that differ only in that are compared by value.
    """
    encode = _encode if isinstance(value, list | tuple) else _encode_sorted
    try:
        return encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        return encode(lenient(value)[0])


class _NotPlain(Exception):
    """A value is no plain JSON."""


class _Kept:
    """A copy of a list, which nobody can change."""

    def __init__(self, items: list[Any], exact: dict[int, bytes]) -> None:
        self.items = items
        self._exact = exact
        """The JSON of those elements that hold numbers: 1 and True are equal, and not the same."""

    def begins(self, value: Any) -> bool:
        """Whether a list begins with this one."""
        length = len(self.items)
        if type(value) is not list or len(value) < length or value[:length] != self.items:
            return False
        return all(encoded(value[index]) == raw for index, raw in self._exact.items())

    def with_tail(self, tail: list[Any]) -> _Kept | None:
        """Return a copy of this with more elements; None when they are no plain JSON."""
        items, exact = list(self.items), dict(self._exact)
        try:
            for item in tail:
                numbers: list[Any] = []
                copy = _copied(item, numbers)
                if numbers:
                    exact[len(items)] = encoded(item)
                items.append(copy)
        except (_NotPlain, RecursionError):
            return None
        return _Kept(items, exact)


def _copied(value: Any, numbers: list[Any]) -> Any:
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is dict:
        return {name: item if type(item) is str else _copied(item, numbers) for name, item in value.items()}
    if kind is list:
        return [_copied(item, numbers) for item in value]
    if kind in (int, float, bool):
        numbers.append(value)
        return value
    raise _NotPlain


_NOTHING = _Kept([], {})


class Field:
    """One field of a request."""

    def __init__(self, value: Any, before: Field | None) -> None:
        self.value = value
        self.length = len(value) if isinstance(value, list | tuple) else None
        self.added: Any = None
        """What it adds to the field before it, if it begins with that."""
        self._base: weakref.ref[Field] | None = None
        self._raw: bytes | None = None
        self._kept: _Kept | None = None
        if before is not None and before._kept is not None and before._kept.begins(value):
            self._extend(value[before.length :], before)
            return
        self._raw = raw = encoded(value)
        self.size = len(raw)
        # The closing bracket is left out, so that the hash of a longer list goes on from that of a shorter one.
        self._hash: Any = hashlib.sha256(memoryview(raw)[:-1] if self.length is not None else raw)
        if type(value) is list:
            self._kept = _NOTHING.with_tail(value)

    def _extend(self, tail: list[Any], before: Field) -> None:
        raw = encoded(tail)
        self.added = _decode(raw)
        self.size = before.size + len(raw) - 2
        self._base = weakref.ref(before)
        self._kept = before._kept.with_tail(tail) if before._kept is not None else None
        if self._kept is None:
            self._raw = encoded(self.value)
        self._hash = before._hash.copy()
        if tail:
            self._hash.update((b"," if before.length else b"") + raw[1:-1])

    @property
    def raw(self) -> bytes:
        """The field as JSON."""
        if self._raw is None:
            self._raw = encoded(self._kept.items if self._kept is not None else None)
        return self._raw

    @property
    def digest(self) -> bytes:
        """The digest of the field."""
        return bytes(self._hash.digest())

    def json(self) -> Any:
        """Return the field as plain JSON."""
        return _decode(self.raw)

    def stored(self, seq: int, before: Field | None) -> dict[str, Any]:
        """Return the field as it is stored, with as little as possible beside that of the call ``seq``."""
        if before is None or before.size < SHORTEST:
            return {"is": self.json()}
        if self._base is not None and self._base() is before:
            return {"of": seq, "keep": before.length, "add": self.added} if self.added else {"of": seq}
        if before.raw == self.raw:
            return {"of": seq}
        delta = None
        if self.length is not None and before.length is not None:
            delta = _delta(seq, before.json(), self.json())
        elif isinstance(self.value, str) and before.raw[:1] == b'"':
            delta = delta_of_text(seq, before.json(), self.value)
        return delta or {"is": self.json()}


def _delta(seq: int, before: list[Any], items: list[Any]) -> dict[str, Any] | None:
    delta = delta_of_list(seq, [encoded(item) for item in before], [encoded(item) for item in items])
    if delta is None:
        return None
    parts = [{"add": items[part]} if isinstance(part, slice) else part for part in delta["parts"]]
    return {**delta, "parts": parts}
