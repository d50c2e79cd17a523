"""JSON and data as values of a type, also when many threads want the first of a type at one moment.

What msgspec finds out about a class it keeps with the class, from the moment on at which it begins to look. A second
thread that comes meanwhile is given the unfinished half, and reading with that ends the process. So whoever may be the
first to read values of a class does so by these functions, which look at classes one after another.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["convert", "decode", "decoder"]

T = TypeVar("T")

# Evaluating the annotations of a class may import a module that needs a decoder of its own.
_looking = threading.RLock()

if hasattr(os, "register_at_fork"):
    # No child inherits it from a thread that it does not have.
    os.register_at_fork(before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_looking.release)


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return what reads JSON as values of a type."""
    with _looking:
        return msgspec.json.Decoder(kind)


def decode(raw: bytes | str, kind: type[T]) -> T:
    """Return JSON as a value of a type; raises msgspec.DecodeError for what is none."""
    return decoder(kind).decode(raw)


def convert(data: Any, kind: type[T], *, strict: bool = True) -> T:
    """Return plain data as a value of a type; raises msgspec.ValidationError for what is none."""
    decoder(kind)
    return msgspec.convert(data, kind, strict=strict)
