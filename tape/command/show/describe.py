"""Entries as lines of text. Pure: from values to text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

import tape
from tape.command.output import Line, clean, cut, moment, money, wrapped
from tape.command.show.events import event_failed, event_sentence
from tape.command.show.messages import PLAIN, Look, body, failed, happened, indented, message_line, speaker
from tape.core.amounts import count
from tape.core.entries import payloads

__all__ = ["entry_failed", "entry_heading", "entry_lines", "entry_text", "gist", "label", "message_of", "oneline"]

_ROWS = 12
"""How many rows of a message the log shows; ``show`` prints all of them."""


def message_of(entry: tape.Entry) -> dict[str, Any] | None:
    """Return the message in an entry, if it has one."""
    payload = entry.payload
    message = payload.message if isinstance(payload, payloads.Append | payloads.Revise) else None
    return message if isinstance(message, dict) else None


def entry_text(entry: tape.Entry, look: Look = PLAIN) -> str:
    """Return the whole text of an entry, for searching."""
    message = message_of(entry)
    if message is not None:
        return body(message, look.calls)
    return gist(entry, 1_000_000, look)


def entry_failed(entry: tape.Entry) -> bool:
    """Whether an entry records a failure: a tool's error, or a failed event."""
    if isinstance(entry.payload, payloads.Event):
        return event_failed(entry.payload.name, entry.payload.data)
    message = message_of(entry)
    return message is not None and failed(message)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def label(id: str, name: str | None = None) -> str:
    """Return the short form of a tape's id: a long id is replaced by the name or its end."""
    if len(id) <= 20:
        return clean(id)
    return cut(name, 20) if name else f"..{clean(id[-8:])}"


def gist(entry: tape.Entry, most: int, look: Look = PLAIN) -> str:
    """Return the content of an entry on one line."""
    payload, names = entry.payload, look.tapes
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
            return message_line(payload.message, most, look.calls)
        case payloads.Revise() if isinstance(payload.message, dict):
            return cut(f"{payload.id} -> {message_line(payload.message, most, look.calls)}", most)
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
            return cut(_used(payload), most)
        case payloads.Event():
            return cut(event_sentence(payload.name, payload.data), most)
        case payloads.Fork():
            return cut(f"{label(payload.child, payload.name)} at {payload.at}", most)
        case payloads.Merge():
            merged = f", {count(len(payload.messages), 'message')}" if payload.into else ""
            return cut(
                f"{'of' if payload.into else 'into'} {_called(payload.tape, names)} by {payload.strategy}{merged}", most
            )
        case payloads.Discard():
            return cut(
                f"{_called(payload.tape, names) if payload.into else 'this fork'}{_because(payload.reason)}", most
            )
        case payloads.Status():
            onward = f", continued on {_called(payload.redirect, names)}" if payload.redirect else ""
            return cut(payload.status + _because(payload.reason) + onward, most)
        case payloads.Label():
            return cut(_labelled(payload), most)
        case _:
            return cut(_short(msgspec.to_builtins(payload)), most)


def _labelled(payload: payloads.Label) -> str:
    if payload.hidden is not UNSET:
        return f"hidden{_because(payload.reason)}" if payload.hidden else "shown again"
    named = f"named {payload.name}" if payload.name is not UNSET else ""
    marks = [f"+{mark}" for mark in payload.add] + [f"-{mark}" for mark in payload.remove]
    return " ".join([named, *marks]).strip()


def _called(id: str, names: Mapping[str, str] | None) -> str:
    return (names or {}).get(id) or label(id)


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _used(payload: payloads.Usage) -> str:
    of = f"{payload.model}: " if payload.model else ""
    cached = f", {payload.cached_tokens:,} cached" if payload.cached_tokens else ""
    cost = f", {money(payload.cost)}" if payload.cost else ""
    return f"{of}{payload.input_tokens:,} tokens in, {payload.output_tokens:,} out{cached}{cost}"


def oneline(entry: tape.Entry, look: Look = PLAIN, *, when: bool = False, beside: int = 0) -> Line:
    """Return an entry as one line: seq, when it happened, kind and gist. Where tapes are named, its own is in front.

    ``beside`` columns of the row are taken by something else.
    """
    where = f"{entry.seq}" if look.tapes is None else f"{_called(entry.tape, look.tapes)}:{entry.seq}"
    source = "" if entry.source is None else f"  <- {_called(entry.source.tape, look.tapes)}:{entry.source.seq}"
    at = f"{happened(entry)[:16]} " if when else ""
    room = look.room(beside + len(where) + len(at) + len(entry.kind) + 2 + len(source))
    line: list[str | tuple[str, str]] = [(where, "seq"), " ", (at, "quiet"), (entry.kind, "kind"), " "]
    return [*line, (gist(entry, room, look), "bad" if entry_failed(entry) else ""), (source, "quiet")]


def entry_lines(entry: tape.Entry, look: Look = PLAIN) -> list[Line]:
    """Return an entry as ``log`` shows it: a heading, the actor, the time and the content."""
    lines = [*entry_heading(entry, look), ""]
    message = message_of(entry)
    if message is None:
        return [*lines, *wrapped(gist(entry, 1000, look), look.columns, "    "), ""]
    if isinstance(entry.payload, payloads.Revise):
        lines.append([(f"    {clean(entry.payload.id)} ->", "quiet")])
    rows = list(indented(message, look))
    if len(rows) > _ROWS + 1:
        more = f"[{count(len(rows) - _ROWS, 'more line')}: tape show {shlex.quote(f'{entry.tape}:{entry.seq}')}]"
        rows = [*rows[:_ROWS], *wrapped([(clean(more), "quiet")], look.columns, "    ")]
    return [*lines, *rows, ""]


def entry_heading(entry: tape.Entry, look: Look = PLAIN) -> list[Line]:
    """Return the address of an entry, its kind, its actor and its time."""
    where = (f"{clean(entry.tape)}:{entry.seq}", "seq")
    lines: list[Line] = [[("entry ", "head"), where, (f"  {entry.hash[:16]}", "quiet")]]
    message = message_of(entry)
    role = "" if message is None else f" {cut(speaker(message), 20)}"
    lines.append(["Kind:   ", (entry.kind, "kind"), role])
    if entry.actor is not None:
        lines.append(f"Actor:  {clean(entry.actor)}")
    recorded = "" if entry.occurred_at is None else f"  (recorded {moment(entry.recorded_at)})"
    lines.append([f"Date:   {happened(entry)}", (recorded, "quiet")])
    if entry.source is not None:
        lines.append(f"Source: {clean(entry.source.tape)}:{entry.source.seq}")
    if entry.meta:
        lines.append(f"Meta:   {cut(_short(entry.meta), look.room(8))}")
    return [row for line in lines for row in wrapped(line, look.columns)]
