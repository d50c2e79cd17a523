"""Reading a transcript's bytes: numbered JSON lines or one JSON document, and digests that identify records. Pure.

Lines that cannot be read go to the ``Reading``, which keeps them as events or, if it is strict, refuses the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b, sha256
from typing import Any

import msgspec

from tape.core import json_text
from tape.core.json_text import NotJson
from tape.core.lenient import lenient
from tape.core.records import FIRST_STAMP, LAST_STAMP, micros
from tape.errors import ImportFailed
from tape.transcripts.steps import Event, ImportProblem

__all__ = [
    "Digests",
    "Reading",
    "count",
    "decode",
    "digest",
    "documents",
    "fingerprint",
    "nonblank",
    "records",
    "stamp",
]

_BOM = b"\xef\xbb\xbf"
_BYTE = re.compile(r"\(byte (\d+)\)")
_BLANK = b"\0 \t\r\n"
_SHOWN = 2000
"""Characters that are kept of a line that cannot be read."""
_TRIES = 50
"""At how many places of a broken line the next record is searched for."""
_LONGEST_BROKEN = 8 << 20
"""Bytes of the longest line in which records are searched for after a broken one."""
_UNITS = ((1e17, 1e-3), (1e14, 1.0), (1e11, 1e3), (0.0, 1e6))
"""From which size on a number is a time in nano-, micro- or milliseconds, and its factor to microseconds."""
_canonical = msgspec.json.Encoder(order="sorted").encode
_decode = partial(json_text.decode, deepest=json_text.RECORD)
_loose = partial(json_text.decode_loose, deepest=json_text.RECORD)


class Reading:
    """One reading of one file: what could not be read of it, and whether that ends the reading."""

    def __init__(self, format: str, *, strict: bool = True, live: bool = False) -> None:
        self.format = format
        self.strict = strict
        self.live = live
        """Whether more will follow, so that undecided records at the end are left for the next reading."""
        self.problems: list[ImportProblem] = []
        self.unfinished: int | None = None
        """The last line, if its end was not written yet."""
        self._aside: list[Event] = []
        self._keys = Digests()

    def problem(self, line: int, reason: str) -> None:
        """Note what is wrong with a line; a strict reading ends with ImportFailed."""
        if self.strict:
            raise ImportFailed(line, reason)
        self.problems.append(ImportProblem(line, reason))

    def unreadable(self, line: int, reason: str, raw: bytes) -> None:
        """Note a line that cannot be read, and keep how it begins."""
        self.problem(line, reason)
        text = raw[: 4 * _SHOWN].decode("utf-8", "backslashreplace").strip()[:_SHOWN]
        self.keep(
            line,
            "unreadable",
            {"line": line, "reason": reason, "bytes": len(raw), "text": text},
            blake2b(raw).hexdigest(),
        )

    def keep(self, line: int, name: str, data: Any, known_by: Any = None) -> None:
        """Keep a value that is no record as an event."""
        key = self._keys.key([name, data if known_by is None else known_by])
        self._aside.append(Event(line=line, key=f"{self.format}:{key}", name=f"{self.format}.{name}", data=data))

    def aside(self) -> list[Event]:
        """Return what was kept since the last call."""
        events, self._aside = self._aside, []
        return events


def decode(raw: bytes, line: int, *, mend: bool = False) -> Any:
    """Return the JSON value of a line; one that is broken is ImportFailed with its number.

    Programs that cut texts by length may split a character and write a lone surrogate; others write NaN. With ``mend``
    such values are replaced as ``tape.lenient`` does, and the object keeps the original line under ``tape.raw``.
    """
    try:
        return _decode(raw)
    except NotJson as error:
        mended = _mended(raw)
        if mended is None:
            raise ImportFailed(line, f"is {error}") from error
        value, replaced = mended
        if isinstance(value, dict) and mend:
            return {**value, "tape.raw": raw.decode().strip()}
        raise ImportFailed(line, f"is not strict JSON: {replaced[0]}") from error


def _mended(raw: bytes | str) -> tuple[Any, list[str]] | None:
    """Return the value of a line that is JSON except for replaceable values, and what was replaced; otherwise None."""
    try:
        value, replaced = lenient(_loose(raw))
    except NotJson:
        return None
    return (value, replaced) if replaced else None


def _values(raw: bytes, line: int, reading: Reading, *, mend: bool) -> Iterator[Any]:
    """Yield the values of a line that is not one valid JSON value: repaired, or several, or the readable rest."""
    if reading.strict:
        yield decode(raw, line, mend=mend)
        return
    text = raw.strip(_BLANK)
    if not text:
        if raw.strip():
            reading.unreadable(line, "contains only NUL characters", raw)
        return
    whole = raw.endswith((b"\n", b"\r"))
    try:
        yield decode(text, line, mend=mend)
        return
    except ImportFailed as error:
        reason = error.why
    plain = text.decode("utf-8", "backslashreplace" if mend else "replace")
    mended = _mended(plain) or _replaced(text)
    if mended is not None:
        value, replaced = mended
        if not mend or not isinstance(value, dict):
            reading.problem(line, f"is not strict JSON: {(replaced or ['its text is not UTF-8'])[0]}")
        yield {**value, "tape.raw": plain} if mend and isinstance(value, dict) else value
        return
    yield from _glued(text, line, reading, reason, whole=whole)


def _replaced(text: bytes) -> tuple[Any, list[str]] | None:
    """Return the value of a line that is JSON except for characters that are not UTF-8."""
    try:
        text.decode()
        return None
    except UnicodeDecodeError:
        pass
    try:
        return lenient(_loose(text.decode("utf-8", "replace")))
    except NotJson:
        return None


def _glued(text: bytes, line: int, reading: Reading, reason: str, *, whole: bool) -> Iterator[Any]:
    """Yield the records on one line, one after the other or after one that was cut off."""
    rest = text.decode("utf-8", "replace")
    values = 0
    while rest:
        try:
            value, end = json_text.decode_first(rest, deepest=json_text.RECORD)
        except NotJson:
            break
        if not isinstance(value, dict):
            break
        yield lenient(value)[0]
        values += 1
        rest = rest[end:].lstrip("\0 \t\r\n,")
    if not rest:
        return
    behind = _behind_broken(rest)
    if behind is None and not whole:
        # The end of a file that is being written: the next reading gets the whole line.
        reading.unfinished = line
        return
    broken = rest if behind is None else rest[: behind[0]]
    reading.unreadable(line, reason, broken.encode("utf-8", "replace"))
    if behind is not None:
        yield behind[1]


def _behind_broken(text: str) -> tuple[int, Any] | None:
    """Return where the next whole record begins after one that was cut off, and the record."""
    if len(text) > _LONGEST_BROKEN:
        return None
    at = 0
    for _ in range(_TRIES):
        at = text.find('{"', at + 1)
        if at < 0:
            return None
        try:
            return at, _decode(text[at:])
        except NotJson:
            continue
    return None


def records(lines: Iterable[bytes], reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number and the JSON object on it; blank lines are passed over.

    A value that is no object is kept as an event.
    """
    for line, raw in enumerate(lines, 1):
        if line == 1:
            raw = raw.removeprefix(_BOM)
        try:
            value = _decode(raw)
        except NotJson:
            if raw.strip():
                yield from ((line, item) for item in _objects(_values(raw, line, reading, mend=True), line, reading))
            continue
        if type(value) is dict:
            yield line, value
        else:
            yield from ((line, item) for item in _objects([value], line, reading))


def _objects(values: Iterable[Any], line: int, reading: Reading) -> Iterator[dict[str, Any]]:
    for value in values:
        if isinstance(value, dict):
            yield value
        else:
            reading.problem(line, f"holds a {type(value).__name__}, not an object")
            reading.keep(line, "value", {"line": line, "value": value})


def documents(lines: Iterable[bytes], reading: Reading, *, mend: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield the JSON values of a file: one per line, or the one that spans all of its lines."""
    source = iter(enumerate(lines, 1))
    for line, raw in source:
        raw = raw.removeprefix(_BOM) if line == 1 else raw
        if not raw.strip():
            continue
        try:
            yield line, _decode(raw)
            break
        except NotJson as error:
            if error.deep or _mended(raw) is not None:
                yield from ((line, value) for value in _values(raw, line, reading, mend=mend))
                break
        # The first line is no value by itself, so the file may be one value over several lines.
        rest = [more for _, more in source]
        try:
            value = _whole(raw, b"".join(rest), line)
        except ImportFailed:
            if reading.strict or not any(_is_object(part) for part in (*_parts(raw), *rest)):
                raise
            source = enumerate([raw, *rest], line)
            break
        yield line, value
        return
    for line, raw in source:
        if raw.strip():
            try:
                value = _decode(raw)
            except NotJson:
                yield from ((line, value) for value in _values(raw, line, reading, mend=mend))
            else:
                yield line, value


def _parts(raw: bytes) -> list[bytes]:
    """Return the first record of a line of several records, if it is one."""
    return [raw[: end + 1] for end in (raw.find(b"}{"),) if end > 0]


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(_decode(raw), dict)
    except NotJson:
        return False


def _whole(top: bytes, rest: bytes, first: int) -> Any:
    raw = top + rest
    try:
        return _decode(raw)
    except NotJson as error:
        if error.deep:
            raise ImportFailed(first, f"is {error}") from error
        if top.strip().startswith(b"{") and top.strip().endswith(b"}"):
            decode(top, first)
        at = _BYTE.search(str(error))
        before = raw[: int(at[1])] if at else raw.rstrip()
        raise ImportFailed(first + before.count(b"\n"), f"is {error}") from error


def digest(value: Any, before: str = "") -> str:
    """Return a digest of a JSON value, chained to the digest ``before`` if there is one."""
    hash = blake2b(before.encode(), digest_size=16)
    hash.update(_canonical(value))
    return hash.hexdigest()


def fingerprint(value: Any) -> bytes:
    """Return what tells a JSON value from others while a file is read; nothing keeps it."""
    return sha256(_canonical(value)).digest()


class Digests:
    """Keys for records without an id of their own: their digest, and a number if it occurred before."""

    def __init__(self) -> None:
        self._met: dict[str, int] = {}

    def key(self, value: Any) -> str:
        """Return the key of a record."""
        fingerprint = digest(value)
        self._met[fingerprint] = self._met.get(fingerprint, 0) + 1
        return fingerprint if self._met[fingerprint] == 1 else f"{fingerprint}#{self._met[fingerprint]}"


def count(value: Any) -> int:
    """Return a number of tokens in a transcript; anything else counts as 0."""
    return value if type(value) is int and value > 0 else 0


def nonblank(value: Any) -> str | None:
    """Return the value if it is a text that is not blank, else None."""
    return value if isinstance(value, str) and value.strip() else None


def stamp(value: Any) -> int | None:
    """Return a time in a transcript, a text or a number, in microseconds since 1970; None if it is no time."""
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
            microseconds = micros(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            return stamp(int(value)) if value.isascii() and value.isdigit() and len(value) < 20 else None
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        microseconds = int(value * next(factor for least, factor in _UNITS if value >= least))
    else:
        return None
    return microseconds if FIRST_STAMP <= microseconds <= LAST_STAMP else None
