"""Transcripts in the formats of other programs: what a tape holds, as far as the format can hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from tape.errors import InvalidEntry
from tape.transcripts.exports.losses import Losses

if TYPE_CHECKING:
    from tape.handles.snapshot import Snapshot

__all__ = ["EXPORT_FORMATS", "export_transcript"]

_WRITERS = {
    "claude-code": ("logs", "claude_code"),
    "codex": ("logs", "codex"),
    "openai": ("documents", "openai"),
    "anthropic": ("documents", "anthropic"),
    "chatgpt": ("documents", "chatgpt"),
    "atif": ("runs", "atif"),
    "otlp": ("runs", "otlp"),
}

EXPORT_FORMATS = tuple(_WRITERS)
"""The formats that ``export_transcript`` writes."""


def export_transcript(view: Snapshot, format: str, *, report: Callable[[str], None] | None = None) -> Iterator[bytes]:
    """Yield the lines of a tape, or of a tape as of a point, as another program's transcript.

    Imported sessions of Claude Code and rollouts of Codex are written back record by record. Otherwise the messages are
    converted to the format: those of the whole tree if the format has branches, else those of the path to the head.
    After the last line, ``report`` is called with each kind of item that the format cannot hold, and their number.

    Raises InvalidEntry when there is no such format.
    """
    if format not in _WRITERS:
        raise InvalidEntry("format", f"must be one of {', '.join(EXPORT_FORMATS)}, not {format!r}")
    module, name = _WRITERS[format]
    write: Callable[[Snapshot, Losses], Iterator[Any]] = getattr(import_module(f"{__name__}.{module}"), name)
    losses = Losses()

    def lines() -> Iterator[bytes]:
        for value in write(view, losses):
            yield msgspec.json.encode(value) + b"\n"
        if report is not None:
            for loss in losses.described():
                report(loss)

    return lines()
