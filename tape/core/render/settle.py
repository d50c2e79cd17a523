"""Putting tool calls in order: each answered right behind it, by its own result, under an id of its own. Pure.

The APIs refuse a request in which a call has no result, a result no call, or two calls one id. What a history lacks is
mended here, once for all of them, and every change is told as a ``Fix``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct, structs

from tape.core.messages.shapes import BOUND, Call, Neutral, Other, Part, Result, Text

__all__ = ["NO_RESULT", "Fix", "Mended", "mend", "settle"]

NO_RESULT = "[no result was recorded for this call: it may have run; check before it is run again]"
"""What a call without a result is answered with."""

Tidy = Callable[[str], str]
_Named = TypeVar("_Named", bound=Call | Result)


class Fix(NamedTuple):
    """Something that was mended, and the index of the message that it was mended in."""

    what: str
    call: str
    at: int


class Mended(NamedTuple):
    """A history with its calls and results made to match; nothing is moved yet."""

    messages: list[Neutral]
    """One for each that was given, the same object where nothing was mended in it."""
    answers: list[Sequence[Result]]
    """For each message, the results of the calls that it makes, in their order."""
    missing: list[Sequence[Result]]
    """Those of them that the history lacks."""
    fixes: list[Fix]


_NO_RESULTS: Sequence[Result] = ()


class _Made(Struct, gc=False):
    """A call as it is followed through the history."""

    index: int
    call: Call
    result: Result | None = None
    id: str = ""


def _same(id: str) -> str:
    return id


def mend(messages: Sequence[Neutral], tidy: Tidy = _same) -> Mended:
    """Return the messages with every call under an id of its own and every result under that of its call.

    A result belongs to the last message before it that makes a call of its id without a result yet. ``tidy`` gives an
    id in the characters that an API takes. Mending twice gives the same.
    """
    if not _has_calls(messages):
        none = [_NO_RESULTS] * len(messages)
        return Mended(list(messages), none, none, [])
    made: list[_Made] = []
    fixes: list[Fix] = []
    bound = _bind(messages, made, fixes)
    server, unanswered = _server_calls(messages, fixes)
    # So far every fix concerns a message that loses something; then come those that are renamed.
    touched = {fix.at for fix in fixes} | {at for at, _ in server}
    _name(made, tidy, fixes)
    touched.update(at for (at, _), one in bound.items() if one.id != one.call.id)
    mended = list(messages)
    for at in touched:
        parts: list[Part] = []
        for position, part in enumerate(messages[at].parts):
            if isinstance(part, BOUND):
                one = bound.get((at, position))
                parts += [] if one is None else [_renamed(part, one.id)]
            else:
                parts += server.get((at, position), [part])
        mended[at] = Neutral(messages[at].role, parts, messages[at].name)
    answers, missing = ([_NO_RESULTS] * len(messages) for _ in range(2))
    for one in made:
        result = one.result
        if result is None:
            fixes.append(Fix("unsettled call", one.call.id, one.index))
            result = Result(one.id, NO_RESULT, True)
            missing[one.index] = [*missing[one.index], result]
        answers[one.index] = [*answers[one.index], _renamed(result, one.id)]
    return Mended(mended, answers, missing, [*fixes, *unanswered])


def _has_calls(messages: Sequence[Neutral]) -> bool:
    """Whether there are calls or results among messages, or parts of other APIs that may be such."""
    for message in messages:
        for part in message.parts:
            if type(part) is not Text and isinstance(part, (Call, Result, Other)):
                return True
    return False


def _renamed(part: _Named, id: str) -> _Named:
    return part if part.id == id else structs.replace(part, id=id)


def _bind(messages: Sequence[Neutral], made: list[_Made], fixes: list[Fix]) -> dict[tuple[int, int], _Made]:
    """Return for the place of each call and each result the call it is; what has no place in a request has none."""
    bound: dict[tuple[int, int], _Made] = {}
    waiting: dict[str, list[_Made]] = {}
    for index, message in enumerate(messages):
        here: list[_Made] = []
        for position, part in enumerate(message.parts):
            if isinstance(part, Call):
                if here and any(one.call == part for one in here):
                    # One call written twice in a message is sent once.
                    fixes.append(Fix("repeated call", part.id, index))
                    continue
                one = _Made(index, part)
                made.append(one)
                here.append(one)
                waiting.setdefault(part.id, []).append(one)
                bound[index, position] = one
            elif isinstance(part, Result):
                found = waiting.get(part.id)
                if not found:
                    fixes.append(Fix("orphan result", part.id, index))
                    continue
                first = len(found) - 1
                while first and found[first - 1].index == found[-1].index:
                    first -= 1
                one = found.pop(first)
                one.result = part
                bound[index, position] = one
    return bound


def _name(made: list[_Made], tidy: Tidy, fixes: list[Fix]) -> None:
    """Give each call an id that no other has: the first keeps its own, later ones get a number behind it."""
    wished = [tidy(one.call.id) for one in made]
    free = _Free(wished)
    seen: set[str] = set()
    for one, wish in zip(made, wished, strict=True):
        if one.call.id in seen:
            fixes.append(Fix("reused call id", one.call.id, one.index))
        seen.add(one.call.id)
        one.id = free.take(wish, tidy)


class _Free:
    """Ids not given away yet. A number is put only where nobody wishes the id that comes of it."""

    def __init__(self, wished: Iterable[str]) -> None:
        self.wished = set(wished)
        self.taken: set[str] = set()
        self.numbers: dict[str, int] = {}

    def take(self, wish: str, tidy: Tidy) -> str:
        """Return the id that is wished, or one like it."""
        id = wish
        while id in self.taken or (id != wish and id in self.wished):
            number = self.numbers.get(wish, 1) + 1
            self.numbers[wish] = number
            suffix = f"_{number}"
            # An API that takes short ids only gets the beginning, cut so that the number still fits.
            id = tidy(wish + suffix)
            if not id.endswith(suffix):
                id = tidy(wish[: -len(suffix)] + suffix)
        self.taken.add(id)
        return id


def _server_calls(messages: Sequence[Neutral], fixes: list[Fix]) -> tuple[dict[tuple[int, int], list[Part]], list[Fix]]:
    """Return what stands in the place of calls that Anthropic ran itself, where they are not as it gave them.

    Their results come in the same message, or in a later one of the assistant's when the turn was paused.
    """
    uses: list[tuple[int, int, str]] = []
    waiting: dict[str, list[int]] = {}
    answered: dict[int, tuple[int, int]] = {}
    changed: dict[tuple[int, int], list[Part]] = {}
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        for position, part in enumerate(message.parts):
            kind = part.part.get("type") if isinstance(part, Other) else None
            if not isinstance(part, Other) or not isinstance(kind, str):
                continue
            made, given = part.part.get("id"), part.part.get("tool_use_id")
            if kind.endswith("_tool_use") and isinstance(made, str):
                waiting.setdefault(made, []).append(len(uses))
                uses.append((index, position, made))
            elif kind.endswith("_tool_result") and isinstance(given, str):
                found = waiting.get(given)
                if found:
                    answered[found.pop()] = (index, position)
                else:
                    fixes.append(Fix("orphan result", given, index))
                    changed[index, position] = []
    free = _Free(id for _, _, id in uses)
    seen: set[str] = set()
    unanswered: list[Fix] = []
    paused = _paused(messages) if uses else 0
    for number, (index, position, id) in enumerate(uses):
        if id in seen:
            fixes.append(Fix("reused call id", id, index))
        seen.add(id)
        own = free.take(id, _same)
        if number in answered:
            if own != id:
                changed[index, position] = [_server_part(messages, (index, position), "id", own)]
                changed[answered[number]] = [_server_part(messages, answered[number], "tool_use_id", own)]
        elif index < paused:
            unanswered.append(Fix("unsettled call", id, index))
            part = messages[index].parts[position]
            name = part.part.get("name") if isinstance(part, Other) else None
            changed[index, position] = [Text(f"[{name if isinstance(name, str) else 'call'}: no result was recorded]")]
    return changed, unanswered


def _server_part(messages: Sequence[Neutral], place: tuple[int, int], field: str, id: str) -> Part:
    part = messages[place[0]].parts[place[1]]
    return Other({**part.part, field: id}) if isinstance(part, Other) else part


def _paused(messages: Sequence[Neutral]) -> int:
    """Return the index behind which there are only results: there the API goes on with its own call."""
    last = len(messages) - 1
    while last > 0 and all(isinstance(part, Result) for part in messages[last].parts):
        last -= 1
    return last


def settle(messages: Sequence[Neutral], tidy: Tidy = _same) -> list[Neutral]:
    """Return the messages with every call answered right behind it, and no other results. Twice gives the same."""
    if not _has_calls(messages):
        said = [message for message in messages if message.parts]
        return [one if one.role != "tool" else Neutral("user", one.parts, one.name) for one in said]
    mended = mend(messages, tidy)
    settled: list[Neutral] = []
    for message, results in zip(mended.messages, mended.answers, strict=True):
        kept: list[Part] = [part for part in message.parts if not isinstance(part, Result)]
        if results:
            settled.append(Neutral("assistant", kept, message.name))
            settled.append(Neutral("tool", [*results]))
        elif kept:
            settled.append(Neutral("user" if message.role == "tool" else message.role, kept, message.name))
    return settled
