"""Strict JSON and strict ids: what a tape can hold, and the name of the field that it cannot.

A store that takes NaN as null, 1 as "1" or a tuple as a list gives back something else than it was given.
Here a value passes only if what would be stored decodes to an equal value.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tape.errors import InvalidEntry
from tape.errors.base import shown

__all__ = [
    "ATOMS",
    "MAX_DEPTH",
    "MAX_ID",
    "MAX_INT",
    "RESERVED",
    "callback",
    "copied",
    "distinct",
    "encode",
    "flag",
    "identifier",
    "is_identifier",
    "limit",
    "listed",
    "most",
    "one_of",
    "reason",
    "seconds",
    "seq",
    "shallow",
    "shown",
    "text",
]

MAX_DEPTH = 200
MAX_ID = 255
MAX_INT = 2**63 - 1
"""The greatest integer that a column or a parameter of both engines takes."""
RESERVED = "~"
"""Ids and keys that begin with this are the store's own: derived keys, and messages made by the view."""
LONGEST_WAIT = 2_000_000.0
"""Seconds, about 23 days: more milliseconds than that no lock and no setting of either engine takes."""

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNTEXT = re.compile("[\x00\ud800-\udfff]")
ATOMS = frozenset({str, int, float, bool, type(None)})
"""The types of JSON values that nobody can change."""
_TEXTS = frozenset({str})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def identifier(value: Any, field: str, *, reserved: bool = False) -> str:
    """Return ``value`` if it can be an id or a key: 1 to 255 characters, none of them a control.

    One of the store's own is taken only with ``reserved``, to look up what is there.
    """
    if type(value) is str and 0 < len(value) <= MAX_ID and value[0] != RESERVED and value.isascii():  # noqa: SIM102
        # Most ids. The search below takes longer than all of this.
        if value.isprintable():
            return value
    if not isinstance(value, str):
        raise InvalidEntry(field, f"must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidEntry(field, "must not be empty")
    if len(value) > MAX_ID:
        raise InvalidEntry(field, f"must have at most {MAX_ID} characters, not {len(value)}")
    if _UNFIT.search(value):
        raise InvalidEntry(field, "must not contain control characters or lone surrogates")
    if value[0] == RESERVED and not reserved:
        raise InvalidEntry(field, f"must not begin with {RESERVED!r}, which is reserved for the store")
    # An encoder or a driver takes no string of a class of the caller's.
    return value if type(value) is str else str.__str__(value)


def is_identifier(value: Any) -> bool:
    """Whether ``value`` can be an id at all; one that cannot is never found, and a driver may choke on it."""
    try:
        identifier(value, "id")
    except InvalidEntry:
        return False
    return True


def listed(values: Any, field: str) -> list[Any]:
    """Return ``values`` as a list; a string or a dict is one thing and is not taken apart."""
    if type(values) is list:
        return values.copy()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidEntry(field, f"must be a list, not a {type(values).__name__}")
    return list(values)


def distinct(values: Any, field: str = "ids") -> list[str]:
    """Return ids or labels without repetitions; one string in place of a list of them is refused."""
    return list(dict.fromkeys(identifier(value, field) for value in listed(values, field)))


def reason(value: str | None) -> str | None:
    """Return why something was done, if that was given."""
    return None if value is None else text(value, "reason")


def seq(value: Any, field: str) -> int:
    """Return a seq; 0 stands before the first."""
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise InvalidEntry(field, f"must be a seq (an integer of at least 0), not {shown(value)}")
    return value


def limit(value: Any, field: str = "limit", *, least: int = 1) -> int:
    """Return the length of a page, cut to what every statement takes: no list can be longer."""
    if type(value) is not int or not least <= value <= MAX_INT:
        raise InvalidEntry(
            field, f"must be {'a positive integer' if least else 'an integer of at least 0'}, not {shown(value)}"
        )
    return min(value, 2**31 - 2)


def most(value: Any, field: str = "limit") -> int | None:
    """Return how much of something endless is wanted at most; None stands for all."""
    if value is not None and (type(value) is not int or not 0 <= value <= MAX_INT):
        raise InvalidEntry(field, f"must be an integer of at least 0 or None, not {shown(value)}")
    return None if value is None else int(value)


def text(value: Any, field: str, *, empty: bool = False) -> str:
    """Return ``value`` if it is a string that can be stored; blank ones only with ``empty``."""
    if not isinstance(value, str):
        raise InvalidEntry(field, f"must be a string, not {type(value).__name__}")
    if not empty and not value.strip():
        raise InvalidEntry(field, "must not be empty")
    if _UNTEXT.search(value):
        # PostgreSQL's text has no NUL; both engines take the same input.
        raise InvalidEntry(field, "must not contain NUL or lone surrogates")
    return value if type(value) is str else str.__str__(value)


def flag(value: Any, field: str) -> bool:
    """Return ``value`` if it is True or False: what merely counts as true may have been meant otherwise."""
    if not isinstance(value, bool):
        raise InvalidEntry(field, f"must be True or False, not {shown(value)}")
    return value


def one_of(value: Any, known: Iterable[str], field: str) -> str:
    """Return ``value`` if it is one of a few words."""
    word = next((word for word in known if isinstance(value, str) and value == word), None)
    if word is None:
        raise InvalidEntry(field, f"must be one of {', '.join(known)}, not {shown(value)}")
    return word


def callback(value: Any, field: str) -> None:
    """Refuse what cannot be called; None stands for nothing to call."""
    if value is not None and not callable(value):
        raise InvalidEntry(field, f"must be a function or None, not {shown(value)}")


def seconds(value: Any, field: str, most: float = LONGEST_WAIT) -> float:
    """Return a number of seconds, cut to the longest that can be waited for."""
    with contextlib.suppress(OverflowError):
        # Asked this way round, since NaN is neither below 0 nor above.
        if isinstance(value, int | float) and not isinstance(value, bool) and float(value) >= 0:
            return min(float(value), most)
    raise InvalidEntry(field, f"must be a number of seconds of at least 0, not {shown(value)}")


def encode(value: Any, field: str, *, spare: int = 0) -> bytes:
    """Return ``value`` as JSON bytes that decode to an equal value, or raise naming the part that does not.

    With ``spare`` it has to leave so many levels for what it is put into.
    """
    try:
        raw = _encode(value)
        # NaN, tuples, integer keys, dates and the like encode, but come back as something else.
        if _decode(raw) == value:
            # Brackets bound the depth from above; only a value with many of them needs the walk.
            if len(raw) > 2 * (MAX_DEPTH - spare) and _brackets(raw) > MAX_DEPTH - spare:
                _walk(value, field, spare, set())
            return raw
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        pass
    _walk(value, field, spare, set())
    raise InvalidEntry(field, "does not survive a JSON round trip")


def _brackets(raw: bytes) -> int:
    """Return how many brackets open in JSON, or more than MAX_DEPTH; splitting finds rare ones sooner than counting."""
    return len(raw.split(b"[", MAX_DEPTH + 1)) + len(raw.split(b"{", MAX_DEPTH + 1)) - 2


def encoded(value: Any, field: str) -> tuple[bytes, Any]:
    """Return ``value`` as JSON bytes, and as they will be read: a text of a class of its own becomes a plain one."""
    try:
        if type(value) is dict and _TEXTS.issuperset(map(type, value.values())) and _TEXTS.issuperset(map(type, value)):
            # Most messages. Texts by name are read back as they were given, if they can be written at all.
            return _encode(value), value
    except ValueError:
        # It cannot be written, which is reported below.
        pass
    try:
        return encode(value, field), value
    except InvalidEntry:
        try:
            plain = _decode(_encode_texts(value))
            equal = bool(plain == value)
        except Exception:
            equal = False
        if not equal:
            raise
        return encode(plain, field), plain


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is not JSON")
    return str.__str__(value)


_encode_texts = msgspec.json.Encoder(enc_hook=_text).encode


def shallow(value: Any, field: str, *, more: int = 0) -> None:
    """Raise naming the part of ``value`` that is nested too deep; ``more`` levels than usual are allowed."""
    _walk(value, field, -more, set())


def _walk(value: Any, field: str, depth: int, above: set[int]) -> None:
    """Find the first part of ``value`` that is not strict JSON and raise with its path."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise InvalidEntry(field, "contains a lone surrogate")
        return
    if isinstance(value, int):
        if value.bit_length() > 14_000:
            raise InvalidEntry(field, "is too large an integer for JSON")
        return
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidEntry(field, f"is {value!r}, which JSON cannot represent")
        return
    if not isinstance(value, dict | list):
        raise InvalidEntry(field, f"is a {type(value).__name__}, which JSON cannot represent")
    if id(value) in above:
        raise InvalidEntry(field, "contains itself")
    if depth >= MAX_DEPTH:
        raise InvalidEntry(field, f"is nested more than {MAX_DEPTH} levels deep")
    above.add(id(value))
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidEntry(f"{field}.{shown(key)}", f"is a key of type {type(key).__name__}, not a string")
            if _SURROGATE.search(key):
                raise InvalidEntry(f"{field}.{shown(key)}", "is a key with a lone surrogate")
            _walk(item, f"{field}.{key}", depth + 1, above)
    else:
        for index, item in enumerate(value):
            _walk(item, f"{field}[{index}]", depth + 1, above)
    above.discard(id(value))


def copied(value: Any) -> Any:
    """Return a copy of a JSON value that shares no dict and no list with it."""
    kind = type(value)
    if kind is dict:
        return {name: item if type(item) in ATOMS else copied(item) for name, item in value.items()}
    if kind is list:
        return [item if type(item) in ATOMS else copied(item) for item in value]
    # A message that a policy of the caller's made may hold anything.
    return value if kind in ATOMS else copy.deepcopy(value)
