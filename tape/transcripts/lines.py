"""Reading a transcript's bytes: numbered JSON lines or one JSON document, and digests that tell records apart. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from tape.errors import ImportFailed

__all__ = ["Digests", "count", "decode", "digest", "documents", "records", "said"]

_BOM = b"\xef\xbb\xbf"
_HALF = re.compile("[\ud800-\udfff]")
_BYTE = re.compile(r"\(byte (\d+)\)")
_canonical = msgspec.json.Encoder(order="sorted").encode


def decode(raw: bytes, line: int, *, mend: bool = False) -> Any:
    """Return the JSON value of a line; one that is broken is ImportFailed with its number.

    Programs that cut texts by length may cut a character in half, and write a half that no text can hold. With
    ``mend`` such halves are replaced, and the object keeps the line as it was under ``tape.raw``.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        value = _halved(raw)
        if isinstance(value, dict) and mend:
            return {**value, "tape.raw": raw.decode().strip()}
        why = f"is not JSON: {error}" if value is None else "holds half of a character, which no text can"
        raise ImportFailed(line, why) from error
    except RecursionError as error:
        raise ImportFailed(line, "is nested too deeply") from error


def _halved(raw: bytes) -> Any:
    """Return the value of a line that is JSON but for halves of characters, with those replaced; otherwise None."""
    try:
        value = json.loads(raw, parse_constant=_refuse)
        return msgspec.json.decode(
            _HALF.sub("\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False)).encode()
        )
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None


def _refuse(name: str) -> None:
    raise ValueError(name)


def records(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number and the JSON object on it; blank lines are passed over."""
    for line, raw in enumerate(lines, 1):
        if line == 1:
            raw = raw.removeprefix(_BOM)
        if raw.strip():
            value = decode(raw, line, mend=True)
            if not isinstance(value, dict):
                raise ImportFailed(line, f"holds a {type(value).__name__}, not an object")
            yield line, value


def documents(lines: Iterable[bytes], *, mend: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield the JSON values of a file: one per line, or the one that spans all of its lines."""
    source = iter(enumerate(lines, 1))
    for line, raw in source:
        raw = raw.removeprefix(_BOM) if line == 1 else raw
        if not raw.strip():
            continue
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if _halved(raw) is not None:
                yield line, decode(raw, line, mend=mend)
                break
            # The first line is no value by itself: the file may be one value that ends further down.
            yield line, _whole(raw, b"".join(more for _, more in source), line)
            return
        except RecursionError:
            decode(raw, line)
        yield line, value
        break
    for line, raw in source:
        if raw.strip():
            yield line, decode(raw, line, mend=mend)


def _whole(top: bytes, rest: bytes, first: int) -> Any:
    raw = top + rest
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if top.strip().startswith(b"{") and top.strip().endswith(b"}"):
            decode(top, first)
        at = _BYTE.search(str(error))
        before = raw[: int(at[1])] if at else raw.rstrip()
        raise ImportFailed(first + before.count(b"\n"), f"is not JSON: {error}") from error
    except RecursionError as error:
        raise ImportFailed(first, "is nested too deeply") from error


def digest(value: Any, before: str = "") -> str:
    """Return a digest of a JSON value, and of all that came before it if that is told."""
    return blake2b(before.encode() + _canonical(value), digest_size=16).hexdigest()


class Digests:
    """Keys for records without an id of their own: their digest, and how often it was met before."""

    def __init__(self) -> None:
        self._met: dict[str, int] = {}

    def key(self, value: Any) -> str:
        """Return the key of a record."""
        told = digest(value)
        self._met[told] = self._met.get(told, 0) + 1
        return told if self._met[told] == 1 else f"{told}#{self._met[told]}"


def count(value: Any) -> int:
    """Return a number of tokens as a transcript tells it; anything else counts as none."""
    return value if type(value) is int and value > 0 else 0


def said(value: Any) -> str | None:
    """Return a text that says something, or None."""
    return value if isinstance(value, str) and value.strip() else None
