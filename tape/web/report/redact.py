"""Redaction: what is taken out of a report before it is written. Pure.

Patterns are applied to every text, names and keys included; fields are taken out wherever they stand; tool outputs are
taken out whole. An entry of which anything was taken out loses its hash: with it a short secret could be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tape.core.messages.dialects import with_result

__all__ = ["REDACTED", "Redaction"]

REDACTED = "[redacted]"
_OUTPUTS = ("content", "output", "result", "errorText", "structuredContent")
_RESULT = re.compile(r"(^|[_-])(tool|call)[_-]?(result|output)|_output$|^(tool-|dynamic-tool)")
"""The types of parts and items that hold what a tool gave back."""


class Redaction:
    """What is to be taken out."""

    def __init__(self, patterns: Iterable[str] = (), fields: Iterable[str] = (), *, tool_outputs: bool = False) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._fields = frozenset(fields)
        self._tool_outputs = tool_outputs

    def __bool__(self) -> bool:
        return bool(self._patterns or self._fields or self._tool_outputs)

    def __call__(self, value: Any) -> Any:
        """Return a JSON value without what is to be taken out; the value itself is left as it is."""
        if not self:
            return value
        return self._value(value)

    def text(self, text: str) -> str:
        """Return a text without what the patterns match."""
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        return text

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]
        if not isinstance(value, dict):
            # A number may be a secret, too, such as that of a card.
            return value if value is None or isinstance(value, bool) else self._number(value)
        outputs: tuple[str, ...] = ()
        if self._tool_outputs:
            outputs, value = _OUTPUTS if _is_result(value) else (), with_result(value, lambda held: held and REDACTED)
        return {
            self.text(name): REDACTED if name in self._fields or (name in outputs and item) else self._value(item)
            for name, item in value.items()
        }

    def _number(self, value: float) -> Any:
        written = str(value)
        return value if self.text(written) == written else REDACTED


def _is_result(value: dict[str, Any]) -> bool:
    kind = value.get("type")
    return value.get("role") in ("tool", "function") or (isinstance(kind, str) and bool(_RESULT.search(kind)))
