"""How many tokens the messages of a context take once they are rendered. Pure.

A plain text costs what was counted when it was recorded. Calls, results and media are counted for every API, and the
largest count is their cost. It includes the marks and synthetic results that replace what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tape.core.context.policy import Item, readings_of
from tape.core.context.turns import Reading
from tape.core.messages import shapes
from tape.core.messages.tokens import MESSAGE_TOKENS, Counter, estimate, message_tokens, reported
from tape.core.render import requests
from tape.core.render.settle import Mended, mend

__all__ = ["Scale", "Weighed"]


Rates = dict[type, list[tuple[int, int]]]
"""The tokens that each API adds around one call or result of a message, and around each further one."""
_RATES: Rates = {}
"""The rates by the standard estimate."""


class Weighed(Struct):
    """Messages that were weighed together, and the cost of each among the others, including repairs."""

    readings: list[Reading]
    weights: list[int]
    mended: Mended | None
    """The messages as rendered, if some of them are not plain."""

    def least(self) -> list[int]:
        """Return the least that each message costs, whatever else is shown with these."""
        if self.mended is None:
            return self.weights
        # A result that is left out without its call costs nothing. A call without a result costs more than alone.
        return [min(weight, reading.alone) for reading, weight in zip(self.readings, self.weights, strict=True)]

    def begins_with_assistant(self) -> bool:
        """Whether a user message has to be added before them."""
        if self.mended is None:
            for reading in self.readings:
                role, text = reading.data.get("role"), reading.data["content"]
                if role not in ("user", "assistant"):
                    break
                if text and not text.isspace():
                    return bool(role == "assistant")
        shown = (reading.neutral for reading in self.readings) if self.mended is None else self.mended.messages
        return requests.begins_with_assistant(shown)


class Scale:
    """Weighs messages with one counter, and caches what it read and counted."""

    def __init__(self, counter: Counter | None) -> None:
        self.count: Counter = estimate if counter is None else counter
        self._own = counter is not None
        self._texts: dict[str, int] = {}
        self._known: dict[int, Reading] = {}
        """By the ``id()`` of its data. The reading keeps the data alive, so the id cannot be reused."""
        self._unnoted: list[list[Reading]] = []
        self._last: Weighed | None = None
        self._rates: Rates = {} if counter is not None else _RATES

    def alone(self, message: dict[str, Any]) -> int:
        """Return the tokens of one message without any other."""
        while self._unnoted:
            for reading in self._unnoted.pop():
                self._known[id(reading.data)] = reading
        known = self._known.get(id(message))
        if known is None:
            known = self._known[id(message)] = Reading(message, shapes.is_plain(message))
            known.alone = self._alone(known)
        return known.alone

    def _alone(self, reading: Reading) -> int:
        if reading.plain:
            return message_tokens(reading.data, self.count)
        by_model = reported(reading.data)
        return max(self._rendered(reading.neutral)) if by_model is None else by_model + MESSAGE_TOKENS

    def weigh(self, items: Sequence[Item]) -> Weighed:
        """Weigh messages, each among the others."""
        readings = readings_of(items)
        last = self._last
        if last is not None and last.readings == readings:
            return last
        plain, seen, own = True, self._known, self._own
        for index, reading in enumerate(readings):
            if reading.alone < 0:
                recorded = 0 if own else items[index].tokens
                known = seen.get(id(reading.data)) if seen else None
                if known is not None:
                    # A message that a policy made was read and weighed when the policy asked for its cost.
                    readings[index] = items[index].reading = known
                elif recorded and reading.plain:
                    reading.alone = recorded
                else:
                    reading.alone = self._alone(reading)
            if not reading.plain:
                plain = False
        self._unnoted.append(readings)
        mended, weights = None, [reading.alone for reading in readings]
        if not plain:
            mended = mend([reading.neutral for reading in readings])
            weights = self._among(readings, weights, mended)
        self._last = Weighed(readings, weights, mended)
        return self._last

    def price(self, items: Sequence[Item]) -> None:
        """Set what each of these items costs at least, whatever else is shown with them."""
        for item, weight in zip(items, self.weigh(items).least(), strict=True):
            item.tokens = weight

    def _among(self, readings: Sequence[Reading], alone: Sequence[int], mended: Mended) -> list[int]:
        """Return the costs of messages that are repaired because of each other."""
        if not _written_alike(mended.messages):
            return self._weigh_each(readings)
        return [
            weight if shown is reading.neutral and not missing else self._mended(reading, shown, missing)
            for reading, weight, shown, missing in zip(readings, alone, mended.messages, mended.missing, strict=True)
        ]

    def _mended(self, reading: Reading, shown: shapes.Neutral, missing: Sequence[shapes.Result]) -> int:
        if shown is reading.neutral and not missing:
            return reading.alone
        by_model = reported(reading.data)
        if by_model is not None:
            return by_model + MESSAGE_TOKENS + max(self._rendered(shapes.Neutral("tool", [*missing])))
        return max(self._rendered(shapes.Neutral(shown.role, [*shown.parts, *missing], shown.name)))

    def _weigh_each(self, readings: Sequence[Reading]) -> list[int]:
        """Return the weights where the APIs write the ids of calls differently."""
        neutrals = [reading.neutral for reading in readings]
        weights = [0] * len(readings)
        for api, tidy in enumerate(requests.TIDY):
            mended = mend(neutrals, tidy)
            for index, reading in enumerate(readings):
                shown, missing = mended.messages[index], mended.missing[index]
                if reading.plain or reported(reading.data) is not None:
                    weight = self._mended(reading, reading.neutral, missing)
                else:
                    parts = [*shown.parts, *missing]
                    weight = requests.tokens(shapes.Neutral(shown.role, parts, shown.name), self.counted)[api]
                weights[index] = max(weights[index], weight)
        return weights

    def counted(self, text: str) -> int:
        """Count a text once, though the rendering for every API contains it."""
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = self.count(text)
        return known

    def _rendered(self, message: shapes.Neutral) -> tuple[int, ...]:
        return self._simple(message) or requests.tokens(message, self.counted)

    # Most messages with tools are calls of functions or results of text. One of each is rendered to learn how many
    # tokens every API adds around it. For the others only the texts are counted.

    def _simple(self, message: shapes.Neutral) -> tuple[int, ...] | None:
        """Return what ``render.tokens`` does, or None for a message that has to be rendered."""
        counted, parts = self.counted, message.parts
        text_part: str | None = None
        calls: list[shapes.Call] = []
        results: list[shapes.Result] = []
        for part in parts:
            if type(part) is shapes.Call and part.part is None:
                calls.append(part)
            elif type(part) is shapes.Result and _is_text(part):
                results.append(part)
            elif type(part) is shapes.Text and text_part is None:
                text_part = part.text
            else:
                return None
        if results:
            if len(results) < len(parts):
                return None
            texts = sum([counted(result.id) + counted(result.content) for result in results])
            return tuple([around + texts for around in self._around(_RESULT, len(results))])
        if not calls or message.name is not None:
            return None
        text = 0
        if text_part is not None:
            text = counted(text_part) if text_part.strip() else 0
            if not text:
                return None
        chat, responses, anthropic = self._around(_CALL, len(calls))
        for call in calls:
            name, to_openai, to_anthropic = requests.as_sent(call)
            named = counted(call.id) + counted(name)
            openai = named + counted(to_openai)
            chat += openai
            responses += openai
            anthropic += named + counted(to_anthropic)
        # An item of the Responses API is a call or a text, not both.
        return chat + text, responses + text + (MESSAGE_TOKENS if text_part else 0), anthropic + text

    def _around(self, sample: shapes.Call | shapes.Result, number: int) -> list[int]:
        """Return the tokens that each API adds around so many calls, or results, in one message."""
        rates = self._rates.get(type(sample))
        if rates is None:
            single = requests.tokens(shapes.Neutral("tool", [sample]), self.counted)
            double = requests.tokens(shapes.Neutral("tool", [sample, sample]), self.counted)
            texts = (
                (sample.id, sample.content)
                if isinstance(sample, shapes.Result)
                else (sample.id, *requests.as_sent(sample)[:2])
            )
            inside = sum(self.counted(text) for text in texts)
            rates = self._rates[type(sample)] = [
                (a - (b - a), b - a - inside) for a, b in zip(single, double, strict=True)
            ]
        return [base + number * per_part for base, per_part in rates]


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
    return all(
        requests.written_alike(part.id)
        for message in messages
        for part in message.parts
        if isinstance(part, shapes.Call)
    )
