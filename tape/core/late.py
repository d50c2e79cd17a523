"""Patterns that are compiled when they are first used: one over much of Unicode takes as long as a dozen imports."""

from __future__ import annotations

import re
from typing import Any, cast

__all__ = ["late_pattern"]


class _LatePattern:
    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._text), name)
        # From now on it has this method itself, at no further cost.
        setattr(self, name, value)
        return value


def late_pattern(text: str) -> re.Pattern[str]:
    """Return what can be used as the compiled pattern."""
    return cast("re.Pattern[str]", _LatePattern(text))
