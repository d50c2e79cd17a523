"""The options of a write, declared once: every write takes them as keywords, and one call carries them on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar

from tape.core import strict
from tape.core.meta import encode as encode_meta
from tape.core.records import micros
from tape.db.record.writing import Call
from tape.errors import InvalidEntry

__all__ = [
    "WriteOptions",
    "arguments_of",
    "call_of",
    "called",
    "explained",
    "list_filters",
    "misfit",
    "moment_before",
    "public_as",
]

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


def public_as(name: str) -> Callable[[Class], Class]:
    """Decorate a class, or a part of one, whose methods users know as those of ``name``.

    Errors about their arguments name the method so, and ``help`` lists each option of a write by name.
    """

    def declare(cls: Class) -> Class:
        for method, member in list(vars(cls).items()):
            if not inspect.isfunction(member) or method.startswith("_"):
                continue
            member.__qualname__ = f"{name}.{method}"
            signature = inspect.signature(member)
            if "options" not in signature.parameters:
                continue
            own = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
            member.__signature__ = signature.replace(parameters=[*own, *_OPTIONS])  # type: ignore[attr-defined]
            if not hasattr(member, "compose"):
                setattr(cls, method, explained(member))
        return cls

    return declare


def explained(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method so that a call whose arguments do not fit is a TypeError that names the method itself."""
    if inspect.iscoroutinefunction(method):
        awaited: Any = method

        @functools.wraps(method)
        async def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return await awaited(*args, **kwargs)
            except TypeError:
                if (wrong := misfit(method, args, kwargs)) is not None:
                    raise wrong from None
                raise

        made: Any = wrapped
        return made  # type: ignore[no-any-return]

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except TypeError:
            if (wrong := misfit(method, args, kwargs)) is not None:
                raise wrong from None
            raise

    return call


def misfit(method: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], name: str = "") -> TypeError | None:
    """Return the error of a call if its arguments do not fit the signature of ``method``; None if they do."""
    signature = inspect.signature(method)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        keyword = "unexpected keyword" in str(error) and _MESSAGES & signature.parameters.keys()
        hint = "; pass other fields of a message in a dict" if keyword else ""
        return TypeError(f"{name or method.__qualname__}() {error}{hint}")
    return None


_MESSAGES = {"message", "messages"}
"""Parameters that take messages."""


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
