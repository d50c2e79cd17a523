"""The options of a write, declared once: every write takes them as keywords, and one call carries them on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar

from tape.core import strict
from tape.core.meta import encode as encode_meta
from tape.core.records import micros
from tape.db.record.writing import Call
from tape.errors import InvalidEntry

__all__ = ["WriteOptions", "arguments_of", "call_of", "called", "list_filters", "list_options", "moment_before"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Class = TypeVar("Class", bound=type)


class WriteOptions(TypedDict, total=False):
    """What every write takes besides its own arguments."""

    key: str | None
    actor: str | None
    meta: dict[str, Any] | None
    expected_head: int | None
    occurred_at: datetime | int | None
    expected_view: int | None


def call_of(
    tape: str,
    /,
    *,
    key: str | None = None,
    actor: str | None = None,
    meta: dict[str, Any] | None = None,
    expected_head: int | None = None,
    occurred_at: datetime | int | None = None,
    expected_view: int | None = None,
) -> Call:
    """Return the call that carries the options of a write on ``tape``, checked.

    ``occurred_at`` is kept beside the caller's meta: an entry has one place for what its caller says of it.

    A keyword that is no option is a TypeError, so that a mistyped condition is never ignored.
    """
    return Call(
        tape,
        None if actor is None else strict.identifier(actor, "actor"),
        None if meta is None and occurred_at is None else encode_meta(meta, occurred_at),
        None if expected_head is None else strict.seq(expected_head, "expected_head"),
        None if expected_view is None else strict.seq(expected_view, "expected_view"),
        None if key is None else strict.identifier(key, "key"),
    )


def called(fn: Callable[[S], R], store: S) -> R:
    """Return what a plain function of the caller's returns for a store; raises InvalidEntry if it is none."""
    if not callable(fn):
        raise InvalidEntry("fn", f"must be a function that takes a store, not {strict.shown(fn)}")
    try:
        result = fn(store)
    except StopIteration as error:
        # No future takes it: inside a coroutine it would mean that this ended.
        raise RuntimeError("the function raised StopIteration") from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidEntry("fn", "returned an awaitable; an async function needs an AsyncStore")
    return result


def moment_before(older_than: timedelta | datetime, field: str, clock: Callable[[], int]) -> int:
    """Return the moment that a time before now or a moment names, in microseconds; raises InvalidEntry for others."""
    if isinstance(older_than, timedelta):
        if older_than < timedelta():
            # Meant the other way round it would be everything.
            raise InvalidEntry(field, "must not be negative")
        limit = clock() - older_than // timedelta(microseconds=1)
        if limit < -strict.MAX_INT:
            raise InvalidEntry(field, f"reaches too far back: {older_than} before now is out of range")
        return limit
    if isinstance(older_than, datetime) and older_than.tzinfo is not None:
        return micros(older_than)
    raise InvalidEntry(field, "must be a timedelta or a datetime with a time zone")


_OPTIONS = list(inspect.signature(call_of).parameters.values())[1:]


def list_options(cls: Class) -> Class:
    """Decorate a class so that ``help`` and ``inspect.signature`` list each option of its writes by name."""
    for member in vars(cls).values():
        if inspect.isfunction(member) and "options" in (signature := inspect.signature(member)).parameters:
            own = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
            member.__signature__ = signature.replace(parameters=[*own, *_OPTIONS])  # type: ignore[attr-defined]
    return cls


def list_filters(
    owner: str | None,
    agent: str | None,
    status: str | None,
    parent: str | None,
    label: str | None,
    name: str | None,
    prefix: str | None,
    updated_before: datetime | None,
    updated_after: datetime | None,
) -> dict[str, Any]:
    """Return the filters of a list as the catalog takes them, each checked."""
    filters: dict[str, Any] = {"owner": owner, "agent": agent, "status": status, "parent": parent, "label": label}
    for field, value in filters.items():
        if value is not None:
            filters[field] = strict.identifier(value, field)
    filters["name"] = None if name is None else strict.text(name, "name")
    filters["id_from"] = prefix
    # Ids compare bytewise, and none can begin with the last of all characters.
    filters["id_below"] = None if prefix is None else strict.identifier(prefix, "prefix") + chr(0x10FFFF)
    return {**filters, "updated_before": updated_before, "updated_after": updated_after}


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
