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
        # Set as an attribute of its own, so that later calls skip __getattr__.
        setattr(self, name, value)
        return value


def late_pattern(text: str) -> re.Pattern[str]:
    """Return a stand-in for the compiled pattern, which is compiled on first use."""
    return cast("re.Pattern[str]", _LatePattern(text))
