"""The root of every error, and how an error shows a value."""

from __future__ import annotations

from typing import Any

__all__ = ["TapeError", "shown"]


def shown(value: Any) -> str:
    """Return the repr of any value for an error message: shortened, and safe for a repr that raises."""
    try:
        text = repr(value)
    except Exception:
        # An integer of more than 4 300 digits has none, nor have some objects of callers.
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 300 else f"{text[:300]}…"


def _revive(cls: type[TapeError], message: str, facts: dict[str, Any]) -> TapeError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(facts)
    return error


class TapeError(Exception):
    """Any error of this library. Nothing was written unless the class says otherwise."""

    # Advice to the caller, at the end of the message. The command line replaces it with its matching option.
    _advice = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds from ``args``, which holds only the text: an error that crosses a process
        # boundary would lose its facts or fail to load.
        return _revive, (type(self), str(self), dict(self.__dict__))
