"""Fields of requests: their JSON, their digests, and what they add to the same field of an earlier call. Pure.

A conversation of a megabyte is given again with each call. Encoding it each time takes longer than writing to the tape,
so a copy of the last one is kept, and what begins with it is encoded only from there on.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import weakref
from collections.abc import Iterable
from typing import Any

import msgspec

from tape.core.lenient import lenient
from tape.core.messages.objects import dumped
from tape.runs.pure.deltas import SHORTEST, Added, StoredField, parts_of_list, shared_length

__all__ = ["Field", "digest_of", "encoded", "without_addresses"]

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


def digest_of(value: Any) -> bytes:
    """Return the digest of a field, of which nothing else is wanted."""
    return bytes(_hash_of(value, encoded(value)).digest())


def _hash_of(value: Any, raw: bytes) -> Any:
    # The closing bracket is left out, so that the hash of a longer list goes on from that of a shorter one.
    return hashlib.sha256(memoryview(raw)[:-1] if isinstance(value, list | tuple) else raw)


class _NotPlain(Exception):
    """A value is no plain JSON."""


class _Element:
    """An element that is no plain JSON. It is compared by the JSON that it comes to, apart from the others."""

    __slots__ = ("data",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return True


class _Kept:
    """A copy of a list, which nobody can change. The copy of a longer list goes on where this one ends."""

    __slots__ = ("_exact", "_items", "_places", "length")

    def __init__(self, items: list[Any], places: list[int], exact: bytes) -> None:
        self._items = items
        """The elements, and behind them possibly those of a longer list."""
        self._places = places
        """The elements that are compared by their JSON: objects, and numbers, since 1 and True are equal."""
        self._exact = exact
        """The JSON of those."""
        self.length = len(items)

    def extended(self, value: Any) -> _Kept | None:
        """Return the copy of a list that begins with this one; None if it does not."""
        length, items = self.length, self._items
        if type(value) is not list or len(value) < length or not self._may_begin(value):
            return None
        if len(items) != length:
            # Another list goes on there already.
            items = items[:length]
        places = self._copy(items, value)
        # All at once, since any of them may have been changed in place. This takes longer than all the rest.
        if not _equal(items, value) or (self._places and _exact(value, self._places) != self._exact):
            del items[length:]
            return None
        if not places:
            return _Kept(items, self._places, self._exact)
        places = self._places + places
        return _Kept(items, places, _exact(value, places))

    def _may_begin(self, value: list[Any]) -> bool:
        """Whether the ends are equal, which saves copying a list that has nothing to do with this one."""
        return not self.length or all(_equal(self._items[at], value[at]) for at in (0, self.length - 1))

    def _copy(self, items: list[Any], value: list[Any]) -> list[int]:
        """Add what a list has behind this one to ``items``; return the places of what is compared by its JSON."""
        places = []
        for index in range(self.length, len(value)):
            numbers: list[Any] = []
            try:
                copy = _copied(value[index], numbers)
            except (_NotPlain, RecursionError):
                copy, numbers = _Element(_decode(encoded(value[index]))), [None]
            items.append(copy)
            if numbers:
                places.append(index)
        return places

    def items(self) -> list[Any]:
        """Return the elements as plain JSON."""
        return [item.data if type(item) is _Element else item for item in self._items[: self.length]]


def _equal(items: Any, value: Any) -> bool:
    try:
        return bool(items == value)
    except Exception:
        # An object of the caller's that cannot be compared.
        return False


def _exact(value: list[Any], places: list[int]) -> bytes:
    return encoded([value[place] for place in places])


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


class Field:
    """One field of a request."""

    def __init__(self, value: Any, before: Iterable[Field] = ()) -> None:
        self.value = value
        self.length = len(value) if isinstance(value, list | tuple) else None
        self._added = b"[]"
        """The JSON of what it adds to the field that it goes on from, if there is one."""
        self._base: weakref.ref[Field] | None = None
        self._raw: bytes | None = None
        self._digest: bytes | None = None
        self._kept: _Kept | None
        for field in before if type(value) is list else ():
            self._kept = None if field._kept is None else field._kept.extended(value)
            if self._kept is not None:
                self._extend(value[field.length :], field)
                return
        self._raw = raw = encoded(value)
        self.size = len(raw)
        self._hash: Any = _hash_of(value, raw)
        self._kept = _Kept([], [], b"").extended(value)

    def _extend(self, tail: list[Any], before: Field) -> None:
        self._added = raw = encoded(tail)
        self.size = before.size + len(raw) - 2
        self._base = weakref.ref(before)
        self._hash = before._hash.copy()
        if tail:
            self._hash.update((b"," if before.length else b"") + raw[1:-1])

    @property
    def raw(self) -> bytes:
        """The field as JSON."""
        if self._raw is None:
            self._raw = encoded(self._kept.items() if self._kept is not None else None)
        return self._raw

    @property
    def digest(self) -> bytes:
        """The digest of the field."""
        if self._digest is None:
            self._digest = bytes(self._hash.digest())
        return self._digest

    def json(self) -> Any:
        """Return the field as plain JSON."""
        return _decode(self.raw)

    def extends(self, before: Field | None) -> bool:
        """Whether it was read as another field and what was added to that."""
        return before is not None and self._base is not None and self._base() is before

    def stored(self, seq: int, before: Field | None) -> StoredField:
        """Return the field as it is stored, with as little as possible beside that of the call ``seq``."""
        if before is None or before.size < SHORTEST:
            return StoredField(value=self.json())
        if self.extends(before):
            added = _decode(self._added)
            return StoredField(of=seq, keep=before.length, add=added) if added else StoredField(of=seq)
        if before.raw == self.raw:
            return StoredField(of=seq)
        if self.length is not None and before.length is not None:
            items = self.json()
            parts = parts_of_list([encoded(item) for item in before.json()], [encoded(item) for item in items])
            if parts is not None:
                stored_parts = [Added(items[part]) if isinstance(part, slice) else part for part in parts]
                return StoredField(of=seq, parts=stored_parts)
        elif isinstance(self.value, str) and before.raw[:1] == b'"':
            text = self.json()
            if (keep := shared_length(before.json(), text)) >= SHORTEST:
                return StoredField(of=seq, keep=keep, add=text[keep:])
        return StoredField(value=self.json())
