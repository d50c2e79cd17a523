"""Packing: entries in chunks of columns, each deflated and written as text that a page unpacks when it is needed. Pure.

Four bytes become five characters of ASCII, so that the text survives every transport. None of them is "<".
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

from tape.web.parts import message_view

__all__ = ["CHUNK", "Chunk", "pack"]

CHUNK = 1_000
"""Entries of one chunk."""
_WHOLE = 2**40


def pack(value: Any) -> str:
    """Return a JSON value as deflated text."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    raw = packer.compress(msgspec.json.encode(value)) + packer.flush()
    return base64.b85encode(raw).decode().replace("<", ",")


class Chunk:
    """Entries that follow each other, by columns: what is alike stands together and takes little room."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("kind", "body", "actor", "stamp", "more", "key", "hash")
        }
        self._stamp = 0

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def add(self, raw: dict[str, Any], stamp: int, gist: str, *, failed: bool) -> None:
        """Add an entry as ``raw_entry`` gives it, redacted already."""
        columns = self.columns
        payload = raw["payload"]
        message = payload.get("message") if isinstance(payload, dict) else None
        shown = _shown(payload, message) if isinstance(message, dict) else gist
        columns["kind"].append(raw["kind"])
        columns["key"].append(raw["key"])
        columns["actor"].append(raw["actor"])
        columns["stamp"].append(stamp - self._stamp)
        columns["hash"].append(raw["hash"])
        columns["body"].append([payload, shown])
        more = {name: raw[name] for name in ("source", "occurred_at", "meta", "unreadable") if raw[name] is not None}
        if raw["version"] != 1:
            more["version"] = raw["version"]
        columns["more"].append(more | ({"failed": 1} if failed else {}) or 0)
        self._stamp = stamp


def _shown(payload: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Return what is shown of a message; a text that the payload holds as it is stands there only."""
    shown = message_view(message, _WHOLE)
    texts = {text: place for place, text in reversed(list(enumerate(_texts(payload))))}
    for part in shown["parts"]:
        if part["text"] in texts:
            part["text"] = texts[part["text"]]
    return {name: value for name, value in shown.items() if value}


def _texts(value: Any) -> list[str]:
    """Return every text of a JSON value in the order in which it stands there; names are none."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    return []
