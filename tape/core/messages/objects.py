"""Objects of other libraries as messages: what an SDK gives as a model, a store takes as a dict."""

from __future__ import annotations

from typing import Any, Protocol

from tape.errors import InvalidEntry

__all__ = ["MessageLike", "as_dict", "dumped"]


class _ToDict(Protocol):
    """An object of an SDK that returns its fields as a dict."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields."""


class _ModelDump(Protocol):
    """The same by Pydantic's name."""

    def model_dump(self) -> dict[str, Any]:
        """Return the fields."""


MessageLike = dict[str, Any] | _ToDict | _ModelDump
"""What is accepted as a message."""


def as_dict(value: Any, field: str) -> dict[str, Any]:
    """Return an object with ``to_dict()`` or ``model_dump()`` as a dict; InvalidEntry for what is no message."""
    try:
        made = dumped(value)
    except Exception as error:
        raise InvalidEntry(field, f"is a {type(value).__name__} that cannot be converted to a dict: {error}") from error
    if not isinstance(made, dict):
        raise InvalidEntry(
            field, f"must be a dict, or an object with to_dict() or model_dump(), not {type(value).__name__}"
        )
    return made


def dumped(value: Any) -> Any:
    """Return an object's fields; None if it has no ``to_dict()`` and no ``model_dump()``.

    Where an SDK has both, ``to_dict()`` leaves out fields that were never set, as its API wants them.
    """
    kind = type(value)
    if isinstance(value, type):
        return None
    if callable(getattr(kind, "to_dict", None)):
        return value.to_dict()
    if not callable(getattr(kind, "model_dump", None)):
        return None
    try:
        # Of Pydantic: enums, dates and the like as JSON has them.
        return value.model_dump(mode="json")
    except TypeError:
        return value.model_dump()
