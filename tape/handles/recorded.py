"""Writes in two steps: a method composes what is to be recorded, and a recorder records it.

The two are apart so that an async store can compose many calls and record them together.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from tape.core.plan.intents import Intent
from tape.core.records import Receipt
from tape.db.record.writing import Call
from tape.handles.options import misfit

__all__ = ["Request", "composed", "record_in_order", "recorded", "recorded_batch"]

P = ParamSpec("P")
R = TypeVar("R")


class Request(Struct, gc=False):
    """What one write is to record."""

    call: Call
    intents: Sequence[Intent]


def composed(write: Callable[Concatenate[Any, P], Any], tape: Any, /, *args: P.args, **kwargs: P.kwargs) -> Request:
    """Return what a write would record, without recording it."""
    described: Any = write
    request: Request = described.compose(tape, *args, **kwargs)
    return request


def record_in_order(tape: Any, requests: Sequence[Request]) -> list[Receipt]:
    """Record what was composed for one tape, one behind the other, all or none; each has a key of its own."""
    receipts: list[Receipt] = tape._services.recorder.in_order(
        [(request.call, request.intents) for request in requests]
    )
    return receipts


def recorded(compose: Callable[Concatenate[Any, P], Request]) -> Callable[Concatenate[Any, P], Receipt]:
    """Make a write of a method that composes one entry: it returns the receipt."""
    return _writes(compose, itemgetter(0), "Receipt")


def recorded_batch(compose: Callable[Concatenate[Any, P], Request]) -> Callable[Concatenate[Any, P], list[Receipt]]:
    """Make a write of a method that composes any number of entries: it returns a receipt of each."""
    return _writes(compose, list, "list[Receipt]")


def _writes(
    compose: Callable[Concatenate[Any, P], Request], result: Callable[[list[Receipt]], R], returned: str
) -> Callable[Concatenate[Any, P], R]:
    @functools.wraps(compose)
    def write(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            request = compose(self, *args, **kwargs)
        except TypeError:
            if (wrong := misfit(write, (self, *args), kwargs)) is not None:
                raise wrong from None
            raise
        intents = request.intents
        return result(self._services.recorder.record(request.call, intents) if intents else [])

    described: Any = write
    described.__signature__ = inspect.signature(compose).replace(return_annotation=returned)
    described.compose, described.result = compose, result
    return write
