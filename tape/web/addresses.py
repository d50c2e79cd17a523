"""Addresses of tapes and points: any id as one harmless segment of a path. Pure.

Everything but letters, digits, ``_``, ``-`` and a ``.`` that is not the first becomes ``~XX`` for each byte. So no id
needs percent signs, none is ``..``, and ``@`` always stands between a tape and a point.
"""

from __future__ import annotations

import re
import string

__all__ = ["decode", "encode", "reference", "split"]

_PLAIN = frozenset((string.ascii_letters + string.digits + "_-").encode())
_SEQ = re.compile("[0-9]{1,18}")
_ESCAPED = re.compile(r"~([0-9A-F]{2})")


def encode(id: str) -> str:
    """Return an id as a segment of a path."""
    return "".join(
        chr(byte) if byte in _PLAIN or (byte == ord(".") and place) else f"~{byte:02X}"
        for place, byte in enumerate(id.encode())
    )


def decode(segment: str) -> str:
    """Return the id of a segment. Raises ValueError for one that ``encode`` would never write."""
    raw = bytearray()
    for place, part in enumerate(_ESCAPED.split(segment)):
        raw += bytes.fromhex(part) if place % 2 else part.encode()
    id = raw.decode()
    if encode(id) != segment:
        raise ValueError(segment)
    return id


def reference(id: str, seq: int | None = None) -> str:
    """Return a tape, as it is now or as of a seq, as a segment of a path."""
    return encode(id) if seq is None else f"{encode(id)}@{seq}"


def split(segment: str) -> tuple[str, int | str | None]:
    """Return the tape and the point (a seq, or the name of an anchor) of a segment. Raises ValueError."""
    id, at, point = segment.partition("@")
    if not at:
        return decode(id), None
    return decode(id), int(point) if _SEQ.fullmatch(point) else decode(point)
