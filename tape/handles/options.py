"""The options of a write, declared once: every write takes them as keywords, and one call carries them on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar

from tape.core import strict
from tape.db.record.writing import Call
from tape.errors import InvalidEntry

__all__ = ["WriteOptions", "arguments_of", "call_of", "encode_meta", "list_options"]

P = ParamSpec("P")
R = TypeVar("R")
Class = TypeVar("Class", bound=type)


class WriteOptions(TypedDict, total=False):
    """What every write takes besides its own arguments."""

    key: str | None
    actor: str | None
    meta: dict[str, Any] | None
    expected_head: int | None


def call_of(
    tape: str,
    /,
    *,
    key: str | None = None,
    actor: str | None = None,
    meta: dict[str, Any] | None = None,
    expected_head: int | None = None,
) -> Call:
    """Return the call that carries the options of a write on ``tape``, checked.

    A keyword that is no option is a TypeError, so that a mistyped condition is never ignored.
    """
    return Call(
        tape,
        None if actor is None else strict.identifier(actor, "actor"),
        None if meta is None else encode_meta(meta),
        None if expected_head is None else strict.seq(expected_head, "expected_head"),
        None if key is None else strict.identifier(key, "key"),
    )


def encode_meta(meta: dict[str, Any]) -> bytes:
    """Return the caller's ``meta`` as it is stored; raises InvalidEntry unless it is a dict of strict JSON."""
    if not isinstance(meta, dict):
        raise InvalidEntry("meta", f"must be a dict, not {type(meta).__name__}")
    return strict.encode(meta, "meta")


_OPTIONS = list(inspect.signature(call_of).parameters.values())[1:]


def list_options(cls: Class) -> Class:
    """Decorate a class so that ``help`` and ``inspect.signature`` list each option of its writes by name."""
    for member in vars(cls).values():
        if inspect.isfunction(member) and "options" in (signature := inspect.signature(member)).parameters:
            own = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
            member.__signature__ = signature.replace(parameters=[*own, *_OPTIONS])  # type: ignore[attr-defined]
    return cls


def arguments_of(
    source: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Decorate a method that hands all its arguments on to ``source``, so that they are declared only there."""

    def declare(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        signature = inspect.signature(source)
        returned = method.__annotations__["return"]
        method.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return method

    return declare
