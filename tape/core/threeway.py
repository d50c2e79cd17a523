"""Merging state and blocks of a fork: what it changed, laid over what the parent has now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from tape.core import payloads
from tape.core.merge import Conflict
from tape.core.plan import same

__all__ = ["appended", "changes", "merge_values"]

Path = tuple[str, ...]


def changes(before: Any, after: Any, path: Path = ()) -> dict[Path, Any]:
    """Return the paths at which two JSON values differ, each with what the later one has there; UNSET where nothing."""
    if isinstance(before, dict) and isinstance(after, dict):
        found: dict[Path, Any] = {}
        for name in {**before, **after}:
            found |= changes(before.get(name, UNSET), after.get(name, UNSET), (*path, name))
        return found
    if before is UNSET or after is UNSET:
        return {} if before is after else {path: after}
    return {} if same(before, after) else {path: after}


def merge_values(
    slot: str, theirs: dict[Path, Any], ours: dict[Path, Any], now: Any, on_conflict: str
) -> tuple[Any, list[Conflict], list[str]]:
    """Return the parent's value with the fork's changes in it, the conflicts, and the paths that stayed as they were.

    Two changes meet when one path leads through the other; equal changes never conflict.
    """
    conflicts: list[Conflict] = []
    kept: list[str] = []
    for path, value in theirs.items():
        against = [other for other in ours if other[: len(path)] == path or path[: len(other)] == other]
        differing = [other for other in against if other != path or not _equal(ours[other], value)]
        if differing and on_conflict != "theirs":
            name = ".".join((slot, *path))
            if on_conflict == "fail":
                conflicts.append(Conflict(name, _shown(_at(now, path)), _shown(value)))
            else:
                kept.append(name)
            continue
        now = _put(now, path, value)
    return now, conflicts, kept


def _equal(one: Any, other: Any) -> bool:
    return one is other if one is UNSET or other is UNSET else same(one, other)


def _shown(value: Any) -> dict[str, Any] | None:
    return None if value is UNSET else {"value": value}


def _at(value: Any, path: Path) -> Any | UnsetType:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return UNSET
        value = value[name]
    return value


def _put(value: Any, path: Path, new: Any) -> Any:
    """Return ``value`` with something else at a path, or with nothing there."""
    if not path:
        return new
    held = dict(value) if isinstance(value, dict) else {}
    inner = _put(held.get(path[0], UNSET), path[1:], new)
    if inner is UNSET:
        held.pop(path[0], None)
    else:
        held[path[0]] = inner
    return held


def appended(entries: Sequence[payloads.Block]) -> list[str] | None:
    """Return the lines that a fork added to a block, or None when it did anything else to it."""
    if all(entry.op == "append" for entry in entries):
        return [entry.given or "" for entry in entries]
    return None
