"""How many tokens the messages of a context take once they are rendered. Pure.

A plain text costs what was counted when it was recorded. Calls, results and media cost what the API costs most in which
they cost most, with the marks and synthetic results that stand for what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.core import render, shapes
from tape.core.settle import mend
from tape.core.tokens import MESSAGE_TOKENS, Counter, estimate, message_tokens, reported

__all__ = ["Scale"]

_PLAIN = frozenset({"id", "role", "content", "usage"})

Weighed = tuple[dict[str, Any], int]
"""A message, and the tokens that were counted when it was recorded; 0 for not counted."""


class Scale:
    """Weighs messages with one counter. What it counted once it does not count again."""

    def __init__(self, counter: Counter | None) -> None:
        self.count: Counter = estimate if counter is None else counter
        self._own = counter is not None
        self._texts: dict[str, int] = {}
        self._alone: dict[int, tuple[dict[str, Any], int]] = {}

    def _counted(self, text: str) -> int:
        """Count a text once, though every API's rendering has it."""
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = self.count(text)
        return known

    def alone(self, message: dict[str, Any], recorded: int) -> int:
        """Return the tokens of one message as if no other were there."""
        known = self._alone.get(id(message))
        if known is not None:
            return known[1]
        if _plain(message):
            weight = recorded if recorded and not self._own else message_tokens(message, self.count)
        elif (told := reported(message)) is not None:
            weight = told + MESSAGE_TOKENS
        else:
            weight = self._rendered(shapes.read(message))
        # The message is kept with its weight, so that no other can come to have its address.
        self._alone[id(message)] = (message, weight)
        return weight

    def _rendered(self, message: shapes.Neutral) -> int:
        return render.tokens(message, self._counted)

    def weigh(self, messages: Sequence[Weighed]) -> list[int]:
        """Return the tokens of each message among the others, with what has to be added for it."""
        neutrals = [shapes.read(message) for message, _ in messages]
        mended = mend(neutrals)
        weights = []
        for index, (message, recorded) in enumerate(messages):
            shown, missing = mended.messages[index], mended.missing[index]
            if shown is neutrals[index] and not missing:
                weights.append(self.alone(message, recorded))
            elif (told := reported(message)) is not None:
                weights.append(told + MESSAGE_TOKENS + self._rendered(shapes.Neutral("tool", [*missing])))
            else:
                weights.append(self._rendered(shapes.Neutral(shown.role, [*shown.parts, *missing], shown.name)))
        return weights

    def continued(self, messages: Sequence[shapes.Neutral]) -> int:
        """Return what it costs that a user has to speak before an assistant that begins."""
        return self.count(render.CONTINUED) + MESSAGE_TOKENS if render.begins_with_assistant(messages) else 0


def _plain(message: dict[str, Any]) -> bool:
    """Whether a message is nothing but a text, which is sent as it is."""
    content = message.get("content")
    return (
        type(content) is str and message.keys() <= _PLAIN and message.get("role") != "tool" and content[:5] != "data:"
    )
