"""Divergences: where a run that is run again differs from its recording, and how that is reported. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field

__all__ = ["KINDS", "Change", "Divergence", "RunReport", "changes_between", "kind_of_change", "pointer"]

KINDS = (
    "request_changed",
    "tool_schema_changed",
    "model_changed",
    "settings_changed",
    "extra_call",
    "missing_call",
    "order_changed",
    "result_changed",
    "unused",
)
"""Every kind of divergence."""

_SCHEMAS = {"tools", "functions", "tool_schemas", "tool_config"}
_SETTINGS = {
    *("temperature", "top_p", "top_k", "max_tokens", "max_output_tokens", "max_completion_tokens", "seed", "stop"),
    *("stop_sequences", "frequency_penalty", "presence_penalty", "reasoning", "reasoning_effort", "thinking"),
    *("response_format", "text", "tool_choice", "parallel_tool_calls", "stream", "generation_config", "config"),
    *("settings", "model_settings", "metadata", "n", "logprobs", "service_tier", "store", "user", "timeout"),
}
_MOST = 50
"""Changes that a divergence lists."""


class _Absent:
    """Stands for a value that is not there."""

    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


class Change(Struct, frozen=True):
    """One value that differs: the JSON pointer to it, what was recorded, and what is there now.

    A value that is not there reads as None, and its name is in ``absent``: "recorded" or "given".
    """

    path: str
    recorded: Any
    given: Any
    absent: str | None = None

    def __str__(self) -> str:
        recorded, given = (
            "absent" if self.absent == side else _short(value)
            for side, value in (("recorded", self.recorded), ("given", self.given))
        )
        return f"{self.path or '/'}: recorded {recorded}, given {given}"


class Divergence(Struct, frozen=True, kw_only=True):
    """The place at which a run differs from its recording, and the facts about it."""

    kind: str
    """One of request_changed, tool_schema_changed, model_changed, settings_changed, extra_call, missing_call,
    order_changed, result_changed and unused."""
    call: str
    """"model", "tool" or "value"."""
    name: str
    lane: str
    n: int
    """The ordinal of the call in its lane, from 1."""
    number: int | None = None
    """The number of the recorded call in the run, from 1, as ``live_from`` takes it."""
    seq: int | None = None
    """The entry of the recorded call."""
    changes: list[Change] = field(default_factory=list)
    nearest: int | None = None
    """The entry of the recorded call that is most like the one made, where none is at its place."""
    source: tuple[str, int] | None = None
    """The tape and the seq of the entry from which the recorded value came, where that is a message of a tape."""
    given_source: tuple[str, int] | None = None
    """The same for the value that was given: the entry that made the difference."""
    why: str = ""

    @property
    def path(self) -> str | None:
        """The JSON pointer to the first value that differs."""
        return self.changes[0].path if self.changes else None

    @property
    def recorded(self) -> Any:
        """What was recorded there."""
        return self.changes[0].recorded if self.changes else None

    @property
    def given(self) -> Any:
        """What is there now."""
        return self.changes[0].given if self.changes else None

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number}"
        seq = "" if self.seq is None else f", seq {self.seq}"
        text = f"{self.kind}: {self.call} call{number} {self.name!r} (lane {self.lane}, n {self.n}{seq})"
        if self.why:
            text += f": {self.why}"
        if self.changes:
            text += f"; {self.changes[0]}"
        if len(self.changes) > 1:
            text += f"; and {len(self.changes) - 1} more"
        if self.given_source is not None:
            text += f"; the value now comes from seq {self.given_source[1]} of {self.given_source[0]!r}"
        elif self.source is not None:
            text += f"; the recorded value came from seq {self.source[1]} of {self.source[0]!r}"
        return text


class RunReport(Struct, kw_only=True):
    """What came of running a run again: how many calls matched, what diverged, and what was never asked for."""

    run: str
    matched: int = 0
    """Calls that were answered from the tape."""
    live: int = 0
    """Calls that were made."""
    diverged: list[Divergence] = field(default_factory=list)
    unused: list[Divergence] = field(default_factory=list)
    """Recorded calls that nobody made."""
    dropped: dict[str, int] = field(default_factory=dict)
    """What normalisers left out of the comparison, and how often."""

    @property
    def ok(self) -> bool:
        """Whether everything was as recorded."""
        return not self.diverged and not self.unused

    @property
    def first(self) -> Divergence | None:
        """The first divergence, or None."""
        return next(iter([*self.diverged, *self.unused]), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def pointer(path: Sequence[str | int]) -> str:
    """Return a path as a JSON pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def changes_between(recorded: Any, given: Any) -> list[Change]:
    """Return what differs between two JSON values, by JSON pointer, in the order of the recorded one."""
    changes: list[Change] = []
    for change in _differences(recorded, given, ()):
        changes.append(change)
        if len(changes) == _MOST:
            break
    return changes


def _differences(recorded: Any, given: Any, path: tuple[str | int, ...]) -> Iterator[Change]:
    if isinstance(recorded, dict) and isinstance(given, dict):
        for name in [*recorded, *(name for name in given if name not in recorded)]:
            yield from _at(recorded.get(name, _ABSENT), given.get(name, _ABSENT), (*path, name))
    elif isinstance(recorded, list) and isinstance(given, list):
        for index in range(max(len(recorded), len(given))):
            left = recorded[index] if index < len(recorded) else _ABSENT
            right = given[index] if index < len(given) else _ABSENT
            yield from _at(left, right, (*path, index))
    elif type(recorded) is not type(given) or recorded != given:
        yield Change(pointer(path), recorded, given)


def _at(recorded: Any, given: Any, path: tuple[str | int, ...]) -> Iterator[Change]:
    if recorded is _ABSENT:
        yield Change(pointer(path), None, given, "recorded")
    elif given is _ABSENT:
        yield Change(pointer(path), recorded, None, "given")
    else:
        yield from _differences(recorded, given, path)


def kind_of_change(call: str, changes: Sequence[Change]) -> str:
    """Return which kind of divergence changes of a request are: the one that explains the others comes first."""
    if call != "model":
        return "request_changed"
    fields = {change.path.split("/", 2)[1] if change.path else "" for change in changes}
    if "model" in fields:
        return "model_changed"
    if fields & _SCHEMAS:
        return "tool_schema_changed"
    return "settings_changed" if fields and fields <= _SETTINGS else "request_changed"
