"""Putting tool calls in order: each followed by its own result, under an id of its own. Pure.

The APIs refuse a request in which a call has no result, a result no call, or two calls the same id. Such faults of a
history are repaired here for all APIs, and every change is reported as a ``Fix``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs

from tape.core.messages.blocks import UNNAMED, tool_of
from tape.core.messages.shapes import BOUND, Call, Neutral, Other, Part, Result, Text, as_text

__all__ = ["NO_RESULT", "Fix", "Mended", "mend", "settle"]

NO_RESULT = "[no result was recorded for this call: it may have run; check before it is run again]"
"""What a call without a result is answered with."""

Tidy = Callable[[str], str]
_Named = TypeVar("_Named", bound=Call | Result)


class Fix(NamedTuple):
    """A repair, and the index of the message that it was made in."""

    what: str
    call: str
    at: int


class Mended(NamedTuple):
    """A history with its calls and results made to match; nothing is moved yet."""

    messages: list[Neutral]
    """One for each input message, the same object where nothing was repaired in it."""
    answers: list[Sequence[Result]]
    """For each message, the results of the calls that it makes, in their order."""
    missing: list[Sequence[Result]]
    """Those of them that the history lacks."""
    fixes: list[Fix]


_CALLS = msgspec.json.Encoder(order="sorted")
_NO_RESULTS: Sequence[Result] = ()


class _Made(Struct, gc=False):
    """A call, with its result and its final id once they are known."""

    index: int
    call: Call
    result: Result | None = None
    id: str = ""


def _same(id: str) -> str:
    return id


def mend(messages: Sequence[Neutral], tidy: Tidy = _same) -> Mended:
    """Return the messages with every call under an id of its own and every result under that of its call.

    A result belongs to the last message before it that makes a call of its id without a result yet. ``tidy`` gives an
    id in the characters that an API accepts. Mending is idempotent.
    """
    if not _has_calls(messages):
        none = [_NO_RESULTS] * len(messages)
        return Mended(list(messages), none, none, [])
    made: list[_Made] = []
    fixes: list[Fix] = []
    unclear = _unclear(messages)
    bound = _bind(messages, made, fixes, unclear)
    server, unanswered = _server_calls(messages, fixes)
    # So far every fix concerns a message that loses something. Renamed ones follow.
    touched = {fix.at for fix in fixes} | {at for at, _ in server}
    _name(made, tidy, fixes)
    touched.update(at for (at, _), made_call in bound.items() if made_call.id != made_call.call.id)
    mended = list(messages)
    for at in touched:
        parts: list[Part] = []
        for position, part in enumerate(messages[at].parts):
            if isinstance(part, Result) and (at, position) in unclear:
                parts.append(Text(f"[{part.name or 'tool'}: {as_text(part.content)}]"))
            elif isinstance(part, BOUND):
                made_call = bound.get((at, position))
                parts += [] if made_call is None else [_renamed(part, made_call.id)]
            else:
                parts += server.get((at, position), [part])
        mended[at] = Neutral(messages[at].role, parts, messages[at].name)
    results: dict[int, list[Result]] = {}
    unsettled: dict[int, list[Result]] = {}
    for made_call in made:
        result = made_call.result
        if result is None:
            fixes.append(Fix("unsettled call", made_call.call.id, made_call.index))
            result = Result(made_call.id, NO_RESULT, True)
            unsettled.setdefault(made_call.index, []).append(result)
        results.setdefault(made_call.index, []).append(_renamed(result, made_call.id))
    answers, missing = ([of.get(at, _NO_RESULTS) for at in range(len(messages))] for of in (results, unsettled))
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


def _unclear(messages: Sequence[Neutral]) -> set[tuple[int, int]]:
    """Return the places of results without ids of which nobody knows which call they answer; they are shown as text.

    Several calls of one tool are told apart by their order alone. That holds for results that came together, one for
    each call; of others one may have been taken out since, or have come again.
    """
    makers: dict[str | None, tuple[int, int]] = {}
    results: dict[tuple[str, int], list[tuple[int, int]]] = {}
    calls: dict[tuple[str, int], int] = {}
    for index, message in enumerate(messages):
        for position, part in enumerate(message.parts):
            tool = tool_of(part.id) if isinstance(part, BOUND) else None
            if tool is None:
                continue
            if isinstance(part, Call):
                known, count = makers.get(tool, (-1, 0))
                count = count + 1 if known == index else 1
                makers[tool] = index, count
                calls[tool, index] = count
            elif tool in makers:
                results.setdefault((tool, makers[tool][0]), []).append((index, position))
    unclear: set[tuple[int, int]] = set()
    for made, places in results.items():
        if calls[made] > 1 and (len(places) != calls[made] or len({index for index, _ in places}) > 1):
            unclear.update(places)
    return unclear


def _bind(
    messages: Sequence[Neutral], made: list[_Made], fixes: list[Fix], unclear: set[tuple[int, int]]
) -> dict[tuple[int, int], _Made]:
    """Return the call for the place of each call and each result; repeated calls and orphan results have none."""
    bound: dict[tuple[int, int], _Made] = {}
    waiting: dict[str, list[_Made]] = {}
    nearest: dict[str | None, int] = {}
    for index, message in enumerate(messages):
        here: set[bytes] = set()
        for position, part in enumerate(message.parts):
            if isinstance(part, Call):
                call = _CALLS.encode(part)
                if call in here:
                    # One call written twice in a message is sent once.
                    fixes.append(Fix("repeated call", part.id, index))
                    continue
                made_call = _Made(index, part)
                made.append(made_call)
                here.add(call)
                waiting.setdefault(part.id, []).append(made_call)
                nearest[tool_of(part.id)] = index
                bound[index, position] = made_call
            elif isinstance(part, Result):
                if (index, position) in unclear:
                    fixes.append(Fix("unclear result", part.id, index))
                    continue
                tool = tool_of(part.id)
                open_calls = (
                    waiting.get(part.id) if tool is None else _unnamed(waiting, tool, part.id, nearest.get(tool, -1))
                )
                if not open_calls:
                    fixes.append(Fix("orphan result", part.id, index))
                    continue
                first = len(open_calls) - 1
                while first and open_calls[first - 1].index == open_calls[-1].index:
                    first -= 1
                made_call = open_calls.pop(first)
                made_call.result = part
                bound[index, position] = made_call
    return bound


def _unnamed(waiting: dict[str, list[_Made]], tool: str, id: str, index: int) -> list[_Made]:
    """Return the open call of a message that a result without an id answers: its own, or the next of its tool."""
    own = waiting.get(id)
    if own and own[-1].index == index:
        return own
    alike = [
        (len(other), other)
        for other, calls in waiting.items()
        if calls and calls[-1].index == index and tool_of(other) == tool
    ]
    return waiting[min(alike)[1]] if alike else []


def _name(made: list[_Made], tidy: Tidy, fixes: list[Fix]) -> None:
    """Give each call a unique id: the first keeps its own, later ones get a number appended."""
    wanted = [tidy(made_call.call.id) for made_call in made]
    free = _Free(wanted)
    seen: set[str] = set()
    for made_call, wanted_id in zip(made, wanted, strict=True):
        if made_call.call.id in seen and not made_call.call.id.startswith(UNNAMED):
            fixes.append(Fix("reused call id", made_call.call.id, made_call.index))
        seen.add(made_call.call.id)
        made_call.id = free.take(wanted_id, tidy)


class _Free:
    """Gives out unique ids. A numbered id is used only if no other call wants exactly that id."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = set(wanted)
        self.taken: set[str] = set()
        self.numbers: dict[str, int] = {}

    def take(self, wanted_id: str, tidy: Tidy) -> str:
        """Return the wanted id, or one like it with a number."""
        id = wanted_id
        while id in self.taken or (id != wanted_id and id in self.wanted):
            number = self.numbers.get(wanted_id, 1) + 1
            self.numbers[wanted_id] = number
            suffix = f"_{number}"
            # If an API accepts short ids only, the id is cut so that the number still fits.
            id = tidy(wanted_id + suffix)
            if not id.endswith(suffix):
                id = tidy(wanted_id[: -len(suffix)] + suffix)
        self.taken.add(id)
        return id


def _server_calls(messages: Sequence[Neutral], fixes: list[Fix]) -> tuple[dict[tuple[int, int], list[Part]], list[Fix]]:
    """Return the replacements of calls that Anthropic ran itself, where they cannot be sent as recorded.

    Their results are in the same message, or in a later assistant message when the turn was paused.
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
            use_id, answered_id = part.part.get("id"), part.part.get("tool_use_id")
            if kind.endswith("_tool_use") and isinstance(use_id, str):
                waiting.setdefault(use_id, []).append(len(uses))
                uses.append((index, position, use_id))
            elif kind.endswith("_tool_result") and isinstance(answered_id, str):
                open_uses = waiting.get(answered_id)
                if open_uses:
                    answered[open_uses.pop()] = (index, position)
                else:
                    fixes.append(Fix("orphan result", answered_id, index))
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
    """Return the index after which there are only results: there the API continues its own call."""
    last = len(messages) - 1
    while last > 0 and all(isinstance(part, Result) for part in messages[last].parts):
        last -= 1
    return last


def settle(messages: Sequence[Neutral], tidy: Tidy = _same) -> list[Neutral]:
    """Return the messages with every call followed by its result, and no other results. It is idempotent."""
    if not _has_calls(messages):
        nonempty = [message for message in messages if message.parts]
        return [
            message if message.role != "tool" else Neutral("user", message.parts, message.name) for message in nonempty
        ]
    mended = mend(messages, tidy)
    settled: list[Neutral] = []
    for message, results in zip(mended.messages, mended.answers, strict=True):
        parts: list[Part] = [part for part in message.parts if not isinstance(part, Result)]
        if results:
            settled.append(Neutral("assistant", parts, message.name))
            settled.append(Neutral("tool", [*results]))
        elif parts:
            settled.append(Neutral("user" if message.role == "tool" else message.role, parts, message.name))
    return settled
