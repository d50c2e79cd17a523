"""How many tokens the messages of a context take once they are rendered. Pure.

A plain text costs what was counted when it was recorded. Calls, results and media cost what the API costs most in which
they cost most, with the marks and synthetic results that stand for what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

from tape.core.messages import shapes
from tape.core.messages.tokens import MESSAGE_TOKENS, Counter, estimate, message_tokens, reported
from tape.core.render import requests
from tape.core.render.settle import Mended, mend

__all__ = ["Scale"]

_PLAIN = frozenset({"id", "role", "content", "usage"})

Weighed = tuple[dict[str, Any], int]
"""A message, and the tokens that were counted when it was recorded; 0 for not counted."""


class Scale:
    """Weighs messages with one counter. What it read and counted once it does not read and count again."""

    def __init__(self, counter: Counter | None) -> None:
        self.count: Counter = estimate if counter is None else counter
        self._own = counter is not None
        self._texts: dict[str, int] = {}
        # Messages are kept with what is known of them, so that no other can come to have their address.
        self._read: dict[int, tuple[dict[str, Any], shapes.Neutral]] = {}
        self._alone: dict[int, tuple[dict[str, Any], int]] = {}
        self._mended: tuple[list[shapes.Neutral], Mended] | None = None
        self._rates: dict[type, list[tuple[int, int]]] = {}

    def read(self, messages: Sequence[dict[str, Any]]) -> list[shapes.Neutral]:
        """Return messages in the neutral shape."""
        known = self._read
        new = [message for message in messages if id(message) not in known]
        for message, neutral in zip(new, map(shapes.read, new), strict=True):
            known[id(message)] = (message, neutral)
        return [known[id(message)][1] for message in messages]

    def alone(self, message: dict[str, Any], recorded: int) -> int:
        """Return the tokens of one message as if no other were there."""
        known = self._alone.get(id(message))
        if known is None:
            known = self._alone[id(message)] = (message, self._weight(message, recorded))
        return known[1]

    def _weight(self, message: dict[str, Any], recorded: int) -> int:
        if _plain(message):
            return recorded if recorded and not self._own else message_tokens(message, self.count)
        by_model = reported(message)
        return max(self._rendered(*self.read([message]))) if by_model is None else by_model + MESSAGE_TOKENS

    def weigh(self, messages: Sequence[Weighed]) -> list[int]:
        """Return the tokens of each message among the others, with what has to be added for it."""
        neutrals = self.read([message for message, _ in messages])
        mended = self._mend(neutrals)
        if not _written_alike(mended.messages):
            return self._weigh_each(messages, neutrals)
        return [
            self._among(message, recorded, neutral, shown, missing)
            for (message, recorded), neutral, shown, missing in zip(
                messages, neutrals, mended.messages, mended.missing, strict=True
            )
        ]

    def _among(
        self,
        message: dict[str, Any],
        recorded: int,
        neutral: shapes.Neutral,
        shown: shapes.Neutral,
        missing: Sequence[shapes.Result],
    ) -> int:
        if shown is neutral and not missing:
            return self.alone(message, recorded)
        by_model = reported(message)
        if by_model is not None:
            return by_model + MESSAGE_TOKENS + max(self._rendered(shapes.Neutral("tool", [*missing])))
        return max(self._rendered(shapes.Neutral(shown.role, [*shown.parts, *missing], shown.name)))

    def _weigh_each(self, messages: Sequence[Weighed], neutrals: Sequence[shapes.Neutral]) -> list[int]:
        """Return the weights where the APIs write the ids of calls each in its own way."""
        weights = [0] * len(messages)
        for api, tidy in enumerate(requests.TIDY):
            mended = mend(neutrals, tidy)
            for index, (message, recorded) in enumerate(messages):
                shown, missing = mended.messages[index], mended.missing[index]
                if _plain(message) or reported(message) is not None:
                    weight = self._among(message, recorded, neutrals[index], neutrals[index], missing)
                else:
                    parts = [*shown.parts, *missing]
                    weight = requests.tokens(shapes.Neutral(shown.role, parts, shown.name), self._counted)[api]
                weights[index] = max(weights[index], weight)
        return weights

    def continued(self, messages: Sequence[dict[str, Any]]) -> int:
        """Return what it costs that a user has to speak before an assistant that begins."""
        if not requests.begins_with_assistant(self._mend(self.read(messages)).messages):
            return 0
        return self.count(requests.CONTINUED) + MESSAGE_TOKENS

    def _mend(self, neutrals: list[shapes.Neutral]) -> Mended:
        """Mend what is asked for twice in a row once."""
        known = self._mended
        if known is None or len(known[0]) != len(neutrals) or any(map(is_not, known[0], neutrals)):
            known = self._mended = (neutrals, mend(neutrals))
        return known[1]

    def _counted(self, text: str) -> int:
        """Count a text once, though every API's rendering has it."""
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = self.count(text)
        return known

    def _rendered(self, message: shapes.Neutral) -> tuple[int, ...]:
        return self._simple(message) or requests.tokens(message, self._counted)

    # Most messages with tools are calls of functions or results of text. One of each is rendered to learn what every
    # API puts around it; of the others only the texts are counted.

    def _simple(self, message: shapes.Neutral) -> tuple[int, ...] | None:
        """Return what ``render.tokens`` does, or None for a message that has to be rendered."""
        if message.parts and all(isinstance(part, shapes.Result) and _is_text(part) for part in message.parts):
            texts = sum(self._counted(result.id) + self._counted(result.content) for result in message.results)
            return tuple(around + texts for around in self._around(_RESULT, len(message.parts)))
        said = [part.text for part in message.parts if isinstance(part, shapes.Text)]
        calls = [part for part in message.parts if isinstance(part, shapes.Call) and part.part is None]
        if not calls or len(said) > 1 or len(said) + len(calls) < len(message.parts) or message.name is not None:
            return None
        text = self._counted(said[0]) if said and said[0].strip() else 0
        if said and not text:
            return None
        chat, responses, anthropic = self._around(_CALL, len(calls))
        for call in calls:
            name, to_openai, to_anthropic = requests.as_sent(call)
            named = self._counted(call.id) + self._counted(name)
            chat += named + self._counted(to_openai)
            responses += named + self._counted(to_openai)
            anthropic += named + self._counted(to_anthropic)
        # An item of the Responses API is a call or says something, not both.
        return chat + text, responses + text + (MESSAGE_TOKENS if said else 0), anthropic + text

    def _around(self, sample: shapes.Call | shapes.Result, number: int) -> list[int]:
        """Return what each API puts around so many calls, or results, in one message."""
        rates = self._rates.get(type(sample))
        if rates is None:
            one = requests.tokens(shapes.Neutral("tool", [sample]), self._counted)
            two = requests.tokens(shapes.Neutral("tool", [sample, sample]), self._counted)
            texts = (
                (sample.id, sample.content)
                if isinstance(sample, shapes.Result)
                else (sample.id, *requests.as_sent(sample)[:2])
            )
            inside = sum(self._counted(text) for text in texts)
            rates = self._rates[type(sample)] = [(a - (b - a), b - a - inside) for a, b in zip(one, two, strict=True)]
        return [base + number * each for base, each in rates]


_SAMPLE = "{}"
_CALL = shapes.Call(_SAMPLE, "a", _SAMPLE)
_RESULT = shapes.Result(_SAMPLE, _SAMPLE)


def _is_text(result: shapes.Result) -> bool:
    """Whether a result is a text that every API gets as it is."""
    content = result.content
    return (
        result.part is None
        and not result.error
        and type(content) is str
        and content[:5] != "data:"
        and (not content or not content.isspace())
    )


def _written_alike(messages: Sequence[shapes.Neutral]) -> bool:
    """Whether every API writes the ids of all calls as they are."""
    ids = {part.id for message in messages for part in message.parts if isinstance(part, shapes.Call)}
    return all(tidy(id) == id for id in ids for tidy in requests.TIDY)


def _plain(message: dict[str, Any]) -> bool:
    """Whether a message is nothing but a text, which is sent as it is."""
    content = message.get("content")
    return (
        type(content) is str and message.keys() <= _PLAIN and message.get("role") != "tool" and content[:5] != "data:"
    )
