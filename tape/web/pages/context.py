"""What the model saw at a recorded step, or would see at any other: regions, what is out and why, what moved."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

import tape
from tape.core.messages.tokens import estimate, message_tokens
from tape.web.addresses import reference
from tape.web.page_request import NotThere, PageRequest
from tape.web.pages.diff import marked
from tape.web.parts import card, cut, instant, message_texts, message_view

__all__ = ["TEXT", "cause_of", "common", "context", "is_context", "regions_of", "sources_of"]

_CONTEXT = "tape.context"
_STEPS = 50
"""Recorded contexts that the page lists."""
_REGIONS = 300
"""Regions, excluded ranges and repairs that the page shows."""
_PARTS = 5_000
"""Parts of all messages up to which a context is explained and compared."""
TEXT = 65_536
"""Characters of the prompt, a document or a checkpoint that the page shows: no entry has the rest as a text."""


Clean = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


class _Seen(Struct):
    """A context as the model saw it: its regions in order, and the request that they make."""

    regions: list[dict[str, Any]]
    contents: list[Any]
    """What each region is made of: its text, or its message."""
    manifest: dict[str, Any]
    render: Callable[[], Any]
    """Returns the request that the regions make."""
    built: tape.Context | None = None
    """The context itself, if it was not recorded."""
    partial: bool = False
    """Whether there are earlier messages, which were not read."""

    @property
    def small(self) -> bool:
        """Whether it can be rendered, explained and compared in a moment."""
        parts = sum(
            len(value)
            for each in self.contents
            if isinstance(each, dict)
            for value in each.values()
            if isinstance(value, list)
        )
        return not self.partial and parts <= _PARTS

    def request(self) -> bytes:
        """Return the request that the regions make, as JSON."""
        return msgspec.json.encode(self.render())

    def text(self, place: int) -> str | None:
        """Return the whole text of a region, or None behind the last one."""
        if place >= len(self.contents):
            return None
        content = self.contents[place]
        return content if isinstance(content, str) else "\n\n".join(message_texts(content))


def context(request: PageRequest, clean: Clean = _as_it_is) -> dict[str, Any]:
    """Return what the model saw at a seq: a recorded context as it was, any other as it would be built now.

    ``clean`` takes out of its messages what a report must not show.
    """
    chat = request.chat()
    info = request.snapshot().info()
    seq = info.head
    steps = list(chat.entries(name=_CONTEXT, kinds=["event"], reverse=True, limit=_STEPS))
    recorded = any(step.seq == seq for step in steps) or _is_recorded(chat, seq)
    budget = request.number("budget", 0, 0, 2**31) or None
    try:
        seen = _recalled(chat, seq, clean) if recorded else _built(request.snapshot(), budget, clean)
    except (tape.BudgetExceeded, tape.InvalidEntry, tape.Corrupt) as error:
        raise NotThere(str(error)) from error
    explained = _explained(request, seq, seen) if seen.small else None
    before = next(chat.entries(name=_CONTEXT, kinds=["event"], reverse=True, before=seq, limit=1), None)
    after = next(chat.entries(name=_CONTEXT, kinds=["event"], after=seq, limit=1), None)
    excluded, repairs = seen.manifest.get("excluded", []), seen.manifest.get("repairs", [])
    return {
        "title": f"What the model saw at {seq}",
        "tape": card(info),
        "seq": seq,
        "head": chat.info().head,
        "recorded": recorded,
        "budget": seen.manifest.get("budget"),
        "tokens": seen.manifest.get("tokens"),
        "policy": f"{seen.manifest.get('policy')} {seen.manifest.get('version')}",
        "hash": seen.manifest.get("hash"),
        "regions": seen.regions[-_REGIONS:],
        "left_out": max(0, len(seen.regions) - _REGIONS),
        "partial": seen.partial,
        "explained": seen.small,
        "excluded": [out | {"ref": reference(str(out["tape"]))} for out in excluded[:_REGIONS]],
        "more_excluded": max(0, len(excluded) - _REGIONS),
        "repairs": repairs[:_REGIONS],
        "more_repairs": max(0, len(repairs) - _REGIONS),
        "before": None if before is None else before.seq,
        "after": None if after is None else after.seq,
        "steps": [{"seq": step.seq, "at": instant(step.recorded_at)} for step in steps],
        "moved": None if before is None or not seen.small else _moved(chat, before.seq, seen, clean),
        "cause": None if explained is None else cause_of(explained),
    }


def _explained(request: PageRequest, seq: int, seen: _Seen) -> tape.Explanation | None:
    """Return the explanation of the context, and give each region the step and the actor that put it there."""
    try:
        explained = request.chat().explain(seq) if seen.built is None else request.snapshot().explain(seen.built)
    except tape.TapeError:
        # Without it the page still shows what the manifest tells.
        return None
    if len(explained.regions) == len(seen.regions):
        for shown, region in zip(seen.regions, explained.regions, strict=True):
            shown |= {"step": region.step, "actor": region.actor}
            if shown["source"] is None and region.tape is not None and region.seq is not None:
                shown["source"] = {"ref": reference(region.tape), "seq": region.seq}
    return explained


def cause_of(explained: tape.Explanation) -> dict[str, Any] | None:
    """Return what moved the first byte, and how many tokens the provider's cache lost by it."""
    moved = explained.difference
    if moved is None:
        return None
    names = ("cause", "why", "offset", "actor", "kept_tokens", "lost_tokens", "cost")
    source = None if moved.tape is None or moved.seq is None else {"ref": reference(moved.tape), "seq": moved.seq}
    return {name: getattr(moved, name) for name in names} | {"source": source}


def _is_recorded(chat: tape.Tape, seq: int) -> bool:
    entry = chat.find_entry(seq=seq) if seq else None
    return entry is not None and is_context(entry)


def is_context(entry: tape.Entry) -> bool:
    """Whether an entry records a context."""
    return entry.kind == "event" and getattr(entry.payload, "name", None) == _CONTEXT


def regions_of(built: tape.Context) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the manifest of a context as plain data, and its regions in order."""
    seen = _of(built, _as_it_is)
    return seen.manifest, seen.regions


def _built(chat: tape.Snapshot, budget: int | None, clean: Clean) -> _Seen:
    if budget is not None:
        return _of(chat.context(budget=budget), clean)
    # Without a budget nothing limits the context, but the page shows only its end.
    built, partial = chat._end_of_context(_REGIONS)
    seen = _of(built, clean)
    if partial:
        seen.partial = True
        # The calls of the first results may not have been read.
        seen.manifest |= {"repairs": [], "hash": None}
    return seen


def _of(built: tape.Context, clean: Clean) -> _Seen:
    manifest = msgspec.to_builtins(built.manifest)
    return _seen(clean(manifest), clean([message.data for message in built.messages]), built.to_openai, built)


def _recalled(chat: tape.Tape, seq: int, clean: Clean) -> _Seen:
    recalled = chat.recall(seq)
    return _seen(clean(recalled.manifest), clean(recalled.messages), recalled.to_openai, None)


def _seen(
    manifest: dict[str, Any],
    messages: list[dict[str, Any]],
    render: Callable[[], Any],
    built: tape.Context | None,
) -> _Seen:
    regions: list[dict[str, Any]] = []
    contents: list[Any] = []
    for name in ("prompt", "documents", "checkpoint"):
        if text := manifest.get(name):
            anchor = manifest.get("anchor") if name == "checkpoint" else None
            source = None if anchor is None else {"ref": reference(anchor[0]), "seq": anchor[1]}
            part = {"part": "text", **cut(text, TEXT)}
            regions.append({"region": name, "tokens": estimate(text), "source": source, "parts": [part], "role": name})
            contents.append(text)
    for message, origin in itertools.zip_longest(messages, sources_of(manifest)):
        about = {
            "region": "altered" if origin is None else "message",
            "tokens": message_tokens(message),
            "source": None if origin is None else {"ref": reference(origin[0]), "seq": origin[1]},
        }
        regions.append(message_view(message) | about)
        contents.append(message)
    return _Seen(regions, contents, manifest, render, built)


def sources_of(manifest: dict[str, Any]) -> list[tuple[str, int] | None]:
    """Return for each message the entry that it was recorded with; None for one that was altered for the model."""
    sources: list[tuple[str, int] | None] = []
    for item in manifest.get("included", []):
        if isinstance(item, dict):
            sources.append(None)
        else:
            name, first, last = item
            sources += [(name, seq) for seq in range(first, last + 1)]
    return sources


def _moved(chat: tape.Tape, seq: int, seen: _Seen, clean: Clean) -> dict[str, Any]:
    """Compare with the recorded context before: how much of the request is the same, and what moved first."""
    try:
        before = _recalled(chat, seq, clean)
    except tape.TapeError as error:
        return {"seq": seq, "error": str(error)}
    request, request_before = seen.request(), before.request()
    place = common(before.contents, seen.contents)
    for region in seen.regions[:place]:
        region["same"] = True
    old, new = before.text(place), seen.text(place)
    return {
        "seq": seq,
        "kept_bytes": common(request_before, request),
        "bytes": len(request),
        "bytes_before": len(request_before),
        "kept_regions": place,
        "only_grew": old is None,
        "region": place if new is not None else None,
        "words": marked(old, new) if old is not None and new is not None else None,
        "gone": [region for region in before.regions[place : place + 20] if old is not None],
    }


def common(a: Any, b: Any) -> int:
    """Return how long two sequences are the same."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low
