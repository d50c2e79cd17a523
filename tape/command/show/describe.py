"""Entries, messages and differences as lines of text. Pure: from values to text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

import tape
from tape.command.output import Line, clean, count, cut, flat, moment
from tape.core.entries import payloads
from tape.core.merge.diff import Aligned
from tape.core.messages import shapes

__all__ = ["changes", "entry_lines", "label", "message_line", "message_lines", "oneline", "side_by_side"]

_SHOWN = 80


def _body(data: dict[str, Any]) -> str:
    """Return what a message says, tool calls and results included, whatever its shape."""
    parts = [_part(part) for part in shapes.read(data).parts]
    text = "\n".join(part for part in parts if part)
    return text or ("" if data.get("content") in (None, "") else _short(data.get("content")))


def _part(part: shapes.Part) -> str:
    match part:
        case shapes.Text():
            return part.text
        case shapes.Call():
            return f"calls {part.name}({_short(part.arguments)})"
        case shapes.Result():
            return f"{'error' if part.error else 'result'} of {part.id}: {shapes.as_text(part.content)}"
        case shapes.Media():
            return f"[{part.media_type or part.part.get('type')}]"
        case shapes.Other():
            return f"[{part.part.get('type', 'part')}] {_short(part.part)}"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def message_line(data: dict[str, Any], most: int = _SHOWN) -> str:
    """Return a message on one line: its role and how it begins."""
    return f"{cut(str(data.get('role') or data.get('type') or 'item'), 20)}: {cut(_body(data), most)}"


def label(id: str, name: str | None = None) -> str:
    """Return the short form of a tape's id: a long id is replaced by the name or its end."""
    if len(id) <= 20:
        return clean(id)
    return cut(name, 20) if name else f"..{clean(id[-8:])}"


def _gist(entry: tape.Entry, most: int = _SHOWN, names: Mapping[str, str] | None = None) -> str:
    """Return what an entry says, on one line; ``names`` holds the names of other tapes."""
    payload = entry.payload
    match payload:
        case None:
            return "(erased)" if entry.unreadable is None else f"(unreadable: {cut(entry.unreadable, most)})"
        case payloads.Open():
            start = (
                ""
                if payload.parent is None
                else f"forked from {_called(payload.parent.tape, names)} at {payload.parent.seq}"
            )
            return cut(" ".join(part for part in (payload.name or "", start) if part), most)
        case payloads.Append() if isinstance(payload.message, dict):
            return message_line(payload.message, most)
        case payloads.Revise() if isinstance(payload.message, dict):
            return cut(f"{payload.id} -> {message_line(payload.message, most)}", most + 20)
        case payloads.Retract():
            return cut(", ".join(payload.ids) + _because(payload.reason), most)
        case payloads.Restore():
            return cut(", ".join(payload.ids) or f"the clear at {payload.undoes} undone", most)
        case payloads.Clear():
            return cut("everything" + _because(payload.reason), most)
        case payloads.Switch():
            return cut(f"to {payload.id}", most)
        case payloads.Handoff():
            return cut(f"{payload.name}: {payload.summary}", most)
        case payloads.Anchor():
            return cut(payload.name, most)
        case payloads.Compact():
            return cut(f"{count(len(payload.covers), 'message')}: {payload.text}", most)
        case payloads.State():
            return cut(f"{payload.slot} {'patched with' if payload.patch else '='} {_short(payload.given)}", most)
        case payloads.Block():
            return cut(f"{payload.op} {payload.label} {payload.given or ''}", most)
        case payloads.Usage():
            return f"{payload.input_tokens} in, {payload.output_tokens} out, cost {payload.cost}"
        case payloads.Event():
            return cut(payload.name + ("" if payload.data is None else f" {_short(payload.data)}"), most)
        case payloads.Fork():
            return cut(f"{label(payload.child, payload.name)} at {payload.at}", most)
        case payloads.Merge():
            taken = f", {count(len(payload.messages), 'message')}" if payload.into else ""
            return cut(
                f"{'of' if payload.into else 'into'} {_called(payload.tape, names)} by {payload.strategy}{taken}", most
            )
        case payloads.Discard():
            return cut(
                f"{_called(payload.tape, names) if payload.into else 'this fork'}{_because(payload.reason)}", most
            )
        case payloads.Status():
            onward = f", continued on {_called(payload.redirect, names)}" if payload.redirect else ""
            return cut(payload.status + _because(payload.reason) + onward, most)
        case payloads.Label():
            named = f"named {payload.name}" if payload.name is not UNSET else ""
            marks = [f"+{mark}" for mark in payload.add] + [f"-{mark}" for mark in payload.remove]
            return cut(" ".join([named, *marks]).strip(), most)
        case _:
            return cut(_short(msgspec.to_builtins(payload)), most)


def _called(id: str, names: Mapping[str, str] | None) -> str:
    return (names or {}).get(id) or label(id)


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def oneline(
    entry: tape.Entry, most: int = _SHOWN, names: Mapping[str, str] | None = None
) -> list[str | tuple[str, str]]:
    """Return an entry as one line: seq, kind and gist; with ``names``, that of its tape stands in front."""
    where = f"{entry.seq}" if names is None else f"{_called(entry.tape, names)}:{entry.seq}"
    line: list[str | tuple[str, str]] = [(where, "seq"), " ", (entry.kind, "kind"), " ", _gist(entry, most, names)]
    if entry.source is not None:
        line.append((f"  <- {_called(entry.source.tape, names)}:{entry.source.seq}", "quiet"))
    return line


def entry_lines(entry: tape.Entry) -> list[Line]:
    """Return an entry as ``log`` shows it: a heading, who and when, and what it says."""
    lines: list[Line] = [[("entry ", "head"), (f"{clean(entry.tape)}:{entry.seq}", "seq"), f"  {entry.hash[:16]}"]]
    lines.append(["Kind:   ", (entry.kind, "kind")])
    if entry.actor is not None:
        lines.append(f"Actor:  {clean(entry.actor)}")
    lines.append(f"Date:   {moment(entry.recorded_at)}")
    if entry.source is not None:
        lines.append(f"Source: {clean(entry.source.tape)}:{entry.source.seq}")
    if entry.meta:
        lines.append(f"Meta:   {cut(_short(entry.meta), 100)}")
    lines.append("")
    return [*lines, f"    {_gist(entry, 100)}", ""]


def message_lines(message: tape.Message) -> list[Line]:
    """Return a message in full: a heading, then what it says."""
    revised = f", revised at {message.revision}" if message.revision != message.seq else ""
    role = flat(str(message.role or message.data.get("type") or "item"))
    heading: Line = [(f"{message.seq} ", "seq"), (role, "head"), (f"  {clean(message.id)}{revised}", "quiet")]
    return [heading, *(f"    {line}" for line in clean(_body(message.data)).split("\n")), ""]


def changes(diff: tape.Diff, most: int = _SHOWN) -> list[Line]:
    """Return a difference as a patch is shown: added, changed, gone, left on another branch, anchored."""
    lines: list[Line] = [[(f"+ {_named(message, most)}", "add")] for message in diff.added]
    for change in diff.revised:
        lines += [[(f"- {_named(change.before, most)}", "remove")], [(f"+ {_named(change.after, most)}", "add")]]
    lines += [[(f"- {_named(message, most)}", "remove")] for message in diff.retracted]
    lines += [[(f"< {_named(message, most)}", "quiet")] for message in diff.left]
    return lines + _anchored(diff, most)


def side_by_side(aligned: Aligned, diff: tape.Diff, most: int = _SHOWN) -> list[Line]:
    """Return two tapes that are no family as a patch is shown: where they part, then what only one of them has."""
    first: Line = [("different from the first message on", "quiet")]
    if aligned.parted is not None:
        before, after = aligned.parted
        where = f"{before.seq}" if before.seq == after.seq else f"{before.seq} and {after.seq}"
        first = [(f"  same up to {where} {message_line(before.data, most)}", "quiet")]
    styles = {"-": "remove", "+": "add"}
    lines: list[Line] = [[(f"{side} {_named(message, most)}", styles[side])] for side, message in aligned.changes]
    return [first, *lines, *_anchored(diff, most)]


def _anchored(diff: tape.Diff, most: int) -> list[Line]:
    return [
        [(f"@ {flat(anchor.name)}{f': {cut(anchor.summary, most)}' if anchor.summary else ''}", "change")]
        for anchor in diff.anchored
    ]


def _named(message: tape.Message, most: int) -> str:
    return f"{message.seq} {message_line(message.data, most)}"
