"""Cursors over several databases: one opaque text that holds a position per database."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from tape.core import strict, typed
from tape.errors import InvalidEntry

__all__ = ["ListCursor", "Positions", "decode_cursor", "encode_cursor"]


class Positions(Struct, tag="feed", frozen=True):
    """Where a reader of all feeds is: the position behind which it goes on, by database."""

    at: dict[str, str]
    """In digits: positions of PostgreSQL have up to 100 bits, which not every reader of JSON takes as a number."""

    @classmethod
    def of(cls, positions: Mapping[str, int]) -> Positions:
        """Return positions as a cursor holds them."""
        return cls({name: str(position) for name, position in positions.items()})

    def numbers(self) -> dict[str, int]:
        """Return the positions; raises InvalidEntry if they are none."""
        try:
            positions = {name: int(text) for name, text in self.at.items()}
        except ValueError as error:
            raise InvalidEntry("cursor", "is not a cursor that this method returned") from error
        if any(not 0 <= position < 2**100 for position in positions.values()):
            raise InvalidEntry("cursor", "is not a cursor that this method returned")
        return positions


class ListCursor(Struct, tag="list", frozen=True):
    """Where a list over all databases is: the cursor of each, None for one that was read to its end."""

    at: dict[str, str | None]
    order: str


C = TypeVar("C", Positions, ListCursor)

_encode = msgspec.json.Encoder(order="sorted").encode


def encode_cursor(cursor: Positions | ListCursor) -> str:
    """Return a cursor as a text that callers keep and pass back."""
    return urlsafe_b64encode(_encode(cursor)).decode().rstrip("=")


def decode_cursor(text: str, kind: type[C], field: str) -> C:
    """Return the cursor that a text holds; raises InvalidEntry for any other text."""
    if isinstance(text, str):
        try:
            return typed.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), kind)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            pass
    raise InvalidEntry(field, f"{strict.shown(text)} is not a cursor that this method returned")
