"""Merging state and blocks of a fork: its changes are applied to what the parent has now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from tape.core.entries import payloads
from tape.core.memory.state import BlockSpec, Slot, Versioned, check_type, with_line
from tape.core.merge.divergence import Conflict
from tape.core.messages.tokens import Counter
from tape.core.plan.intents import canonical
from tape.errors import InvalidEntry

__all__ = [
    "BlockSide",
    "BlockValue",
    "MergedBlock",
    "MergedState",
    "StateSide",
    "block_entries",
    "block_lines",
    "block_value",
    "changes",
    "filled_in",
    "merge_block",
    "merge_state",
    "merge_values",
    "same_value",
]

Path = tuple[str, ...]


def changes(before: Any, after: Any, path: Path = ()) -> dict[Path, Any]:
    """Return the paths at which two JSON values differ, each with the later value there; UNSET for a missing one."""
    if isinstance(before, dict) and isinstance(after, dict):
        differences: dict[Path, Any] = {}
        for name in {**before, **after}:
            differences |= changes(before.get(name, UNSET), after.get(name, UNSET), (*path, name))
        return differences
    return {} if _equal(before, after) else {path: after}


def merge_values(
    slot: str, theirs: dict[Path, Any], ours: dict[Path, Any], now: Any, on_conflict: str
) -> tuple[Any, list[Conflict], list[str]]:
    """Return the parent's value with the fork's changes in it, the conflicts, and the paths that stayed as they were.

    Two changes overlap when one path is a prefix of the other. Equal changes never conflict.
    """
    conflicts: list[Conflict] = []
    unmerged: list[str] = []
    for path, value in theirs.items():
        against = [other for other in ours if other[: len(path)] == path or path[: len(other)] == other]
        differing = [other for other in against if other != path or not _equal(ours[other], value)]
        if differing and on_conflict != "theirs":
            name = ".".join((slot, *path))
            if on_conflict == "fail":
                conflicts.append(Conflict(name, _shown(_at(now, path)), _shown(value), "state"))
            else:
                unmerged.append(name)
            continue
        now = _put(now, path, value)
    return now, conflicts, unmerged


class StateSide(Struct, frozen=True):
    """What a slot held on one of the two tapes when they last agreed, and what it holds now."""

    before: Versioned
    after: Versioned


class MergedState(Struct, frozen=True):
    """The merged slot, the conflicts, and the paths that stay as the parent has them."""

    result: Versioned
    conflicts: list[Conflict]
    kept: list[str]


def merge_state(slot: str, theirs: StateSide, ours: StateSide, on_conflict: str, spec: Slot | None) -> MergedState:
    """Return the parent's slot with the fork's changes in it, and the version of the merged value.

    Values of one version are merged by path. Values of different versions have no paths in common, so one of them is
    used as a whole. A result that does not fit the declared type is a conflict of the whole slot.
    """
    values = (theirs.before, theirs.after, ours.before, ours.after)
    versions = {side.version or 1 for side in values if side.value is not UNSET}
    if len(versions) > 1:
        merged = _merge_whole(slot, theirs, ours, on_conflict)
    else:
        value, conflicts, kept = merge_values(
            slot,
            changes(theirs.before.value, theirs.after.value),
            changes(ours.before.value, ours.after.value),
            ours.after.value,
            on_conflict,
        )
        merged = MergedState(Versioned(value, max(side.version for side in values)), conflicts, kept)
    if merged.conflicts or spec is None or same_value(merged.result, ours.after):
        return merged
    if _fits(merged.result, spec):
        return merged
    if on_conflict == "fail":
        return MergedState(ours.after, [_slot_conflict(slot, theirs, ours)], [])
    if on_conflict == "ours":
        return MergedState(ours.after, [], [slot])
    if not _fits(theirs.after, spec):
        raise InvalidEntry(slot, "the fork's value does not fit the slot's type; merge with on_conflict='ours'")
    return MergedState(theirs.after, [], [])


def _merge_whole(slot: str, theirs: StateSide, ours: StateSide, on_conflict: str) -> MergedState:
    if same_value(theirs.before, theirs.after) or same_value(theirs.after, ours.after):
        return MergedState(ours.after, [], [])
    if same_value(ours.before, ours.after) or on_conflict == "theirs":
        return MergedState(theirs.after, [], [])
    if on_conflict == "ours":
        return MergedState(ours.after, [], [slot])
    return MergedState(ours.after, [_slot_conflict(slot, theirs, ours)], [])


def _slot_conflict(slot: str, theirs: StateSide, ours: StateSide) -> Conflict:
    return Conflict(slot, _shown(ours.after.value), _shown(theirs.after.value), "state")


def same_value(first: Versioned, second: Versioned) -> bool:
    """Whether two values are equal and have the same version."""
    return _equal(first.value, second.value) and (first.value is UNSET or (first.version or 1) == (second.version or 1))


def _fits(held: Versioned, spec: Slot) -> bool:
    """Whether a value is of the declared type, which says nothing of values of other versions."""
    if held.value is UNSET or held.version != spec.version:
        return True
    try:
        check_type(held.value, spec)
    except InvalidEntry:
        return False
    return True


def _equal(first: Any, second: Any) -> bool:
    return first is second if first is UNSET or second is UNSET else canonical(first) == canonical(second)


def _shown(value: Any) -> dict[str, Any] | None:
    return None if value is UNSET else {"value": value}


def _at(value: Any, path: Path) -> Any | UnsetType:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return UNSET
        value = value[name]
    return value


def _put(value: Any, path: Path, new: Any) -> Any:
    """Return ``value`` with another value at a path, or with that path removed."""
    if not path:
        return new
    held = dict(value) if isinstance(value, dict) else {}
    inner = _put(held.get(path[0], UNSET), path[1:], new)
    if inner is UNSET:
        held.pop(path[0], None)
    else:
        held[path[0]] = inner
    return held


# -- blocks


class BlockValue(Struct, frozen=True):
    """A block of the prompt: its text and its configuration. A ``document`` has its key, which goes with the text."""

    text: str
    description: str | None = None
    max_tokens: int | None = None
    read_only: bool = False
    document: str | None = None


class BlockSide(Struct, frozen=True):
    """The changes to a block on one of the two tapes since they last agreed; None stands for a missing block.

    ``lines`` are the lines appended, or None when the text was replaced or the block removed.
    """

    before: BlockValue | None
    after: BlockValue | None
    lines: list[str] | None
    recorded: BlockValue | None = None
    """The fork's block as its own entry has it, where ``after`` was filled in from a declaration."""


class MergedBlock(Struct, frozen=True):
    """The merged block; or the fields of both that conflict; or that the parent's were kept."""

    value: BlockValue | None
    conflict: tuple[dict[str, Any] | None, dict[str, Any] | None] | None = None
    kept: bool = False


_CONFIG = ("description", "max_tokens", "read_only")


def block_value(payload: Any, spec: BlockSpec | None) -> BlockValue | None:
    """Return a block as readers see it: as its entry has it, or as it is declared while no entry wrote it."""
    if isinstance(payload, payloads.Block):
        if payload.text is None:
            return None
        document = payload.document
        if document is None and payload.loaded:
            document = payload.label.partition("/")[2]
        return BlockValue(payload.text, payload.description, payload.max_tokens, payload.read_only, document)
    if spec is None:
        return None
    return BlockValue(spec.default, spec.description, spec.max_tokens, spec.read_only)


def filled_in(value: BlockValue | None, spec: BlockSpec | None) -> BlockValue | None:
    """Return a block that was written without its declaration, with the declared configuration where it has none."""
    if value is None or spec is None:
        return value
    return BlockValue(
        value.text,
        spec.description if value.description is None else value.description,
        spec.max_tokens if value.max_tokens is None else value.max_tokens,
        value.read_only or spec.read_only,
        value.document,
    )


def block_lines(entries: Sequence[payloads.Block], text: str | None) -> list[str] | None:
    """Return the lines that entries appended to a block with this text, or None when they replaced or removed it.

    A block is configured by setting it again; setting the text that it has is no change of the text.
    """
    lines = []
    for entry in entries:
        if entry.op == "append":
            lines.append(entry.given or "")
        elif entry.text != text:
            return None
        text = entry.text
    return lines


def merge_block(theirs: BlockSide, ours: BlockSide, on_conflict: str, counter: Counter) -> MergedBlock:
    """Return the parent's block with the fork's changes. The table in docs/model.md says the same.

    Text, description, limit and mark are merged separately. Lines appended by both come one after the other. A block
    that one removed and the other changed is a conflict, and so is a text that is over the limit.
    """
    held, wanted = ours.after, theirs.after
    if wanted in (theirs.before, held):
        return MergedBlock(held)
    unchanged = held == ours.before
    fields: list[str] = []
    merged = wanted
    if held is None or wanted is None:
        if not unchanged or (held is None and theirs.before is not None):
            fields = ["text"]
    elif not unchanged or ours.before != theirs.before:
        merged, fields = _merge_fields(theirs, ours, held, wanted)
    keeps_ours = False
    if fields:
        if on_conflict == "fail":
            return MergedBlock(held, (_fields(held, fields), _fields(wanted, fields)))
        keeps_ours = on_conflict == "ours"
        if keeps_ours and (held is None or wanted is None):
            return MergedBlock(held, kept=True)
        merged = _with(merged, held if keeps_ours else wanted, fields)
    if not _over(merged, held, counter):
        return MergedBlock(merged, kept=keeps_ours)
    if on_conflict == "ours":
        return MergedBlock(held, kept=True)
    whole = theirs.recorded or wanted
    if on_conflict == "theirs":
        return MergedBlock(whole)
    fields = ["text"]
    if held is not None and whole is not None and held.max_tokens != whole.max_tokens:
        fields.append("max_tokens")
    return MergedBlock(held, (_fields(held, fields), _fields(whole, fields)))


def _merge_fields(
    theirs: BlockSide, ours: BlockSide, held: BlockValue, wanted: BlockValue
) -> tuple[BlockValue, list[str]]:
    """Return the parent's block with the fork's changes, and the fields that both changed, as the parent has them."""
    base, before = theirs.before or BlockValue(""), ours.before or BlockValue("")
    # Whatever text of a document is a part of the merged one, it stays a document.
    merged: dict[str, Any] = {"document": held.document or wanted.document}
    fields = []
    for name in ("text", *_CONFIG):
        mine, other = getattr(held, name), getattr(wanted, name)
        merged[name] = mine
        if other in (getattr(base, name), mine):
            if name == "text" and other != mine:
                merged["document"] = held.document
            continue
        unchanged = mine == getattr(before, name)
        if name == "text" and theirs.lines is not None and (unchanged or ours.lines is not None):
            for line in theirs.lines:
                merged[name] = with_line(merged[name], line)
        elif unchanged:
            merged[name] = other
            if name == "text":
                merged["document"] = wanted.document
        else:
            fields.append(name)
    return BlockValue(**merged), fields


def _with(value: BlockValue | None, other: BlockValue | None, fields: Sequence[str]) -> BlockValue | None:
    """Return a block with some fields of another one; the other one itself if either is missing."""
    if value is None or other is None:
        return other
    taken = [*fields, "document"] if "text" in fields else fields
    return structs.replace(value, **{name: getattr(other, name) for name in taken})


def _over(value: BlockValue | None, held: BlockValue | None, counter: Counter) -> bool:
    """Whether a change makes a text longer than the block's limit."""
    if value is None or value.max_tokens is None:
        return False
    if held is not None and (held.text, held.max_tokens) == (value.text, value.max_tokens):
        return False
    return counter(value.text) > value.max_tokens


def _fields(value: BlockValue | None, fields: Sequence[str]) -> dict[str, Any] | None:
    return None if value is None else {name: getattr(value, name) for name in fields}


def block_entries(
    label: str, held: BlockValue | None, value: BlockValue | None, lines: Sequence[str] | None, *, declared: bool
) -> list[payloads.Block]:
    """Return the entries that turn what the parent holds into the merged block.

    Appended lines stay separate entries, so that they still commute when the parent itself is merged.
    """
    if value is None:
        config_source = held or BlockValue("")
        op = "remove" if config_source.document is None else "unload"
        return [_entry(label, op, None, None, config_source, declared)]
    if value.document is not None:
        return [_entry(label, "load", None, value.text, value, declared)]
    text = held.text if held is not None else ""
    appended = []
    for line in lines or ():
        text = with_line(text, line)
        appended.append(_entry(label, "append", line, text, value, declared))
    if not appended or text != value.text or (held is None and _config(value) != _config(BlockValue(""))):
        return [_entry(label, "set", value.text, value.text, value, declared)]
    if held is None or _config(held) == _config(value):
        return appended
    return [_entry(label, "set", held.text, held.text, value, declared), *appended]


def _entry(label: str, op: str, change: str | None, text: str | None, value: BlockValue, declared: bool) -> Any:
    return payloads.Block(
        label=label,
        op=op,
        given=change,
        text=text,
        description=value.description,
        max_tokens=value.max_tokens,
        read_only=value.read_only,
        declared=declared,
        document=value.document,
    )


def _config(value: BlockValue) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in _CONFIG)
