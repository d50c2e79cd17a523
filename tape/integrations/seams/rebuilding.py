"""What seams share to make a framework's objects of recorded data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tape import InvalidEntry

__all__ = ["rebuilding"]


@contextmanager
def rebuilding() -> Iterator[None]:
    """Raise InvalidEntry for data of which no object can be made: a recording may come from a file, and hold anything.

    ``load`` of a tool or model raises the same.
    """
    try:
        yield
    except Exception as error:
        raise InvalidEntry(
            "result", f"cannot be rebuilt from its recorded data: {type(error).__name__}: {error}"
        ) from error
