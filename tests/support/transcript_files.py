"""The kept transcripts of other programs under ``tests/data``, and how one is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tape
from tape.transcripts import FORMATS, ImportedTranscript, import_transcript

__all__ = ["DATA", "FILES", "LINES", "SESSION", "format_of", "load", "texts"]

DATA = Path(__file__).parent.parent / "data" / "transcripts"
FILES = sorted(DATA.iterdir())
LINES = [file for file in FILES if file.suffix == ".jsonl"]
SESSION = "5b0c9a52-7d3e-4c55-9a1e-0c6f5a8d1b11"


def format_of(file: Path) -> str:
    return next(name for name in FORMATS if file.name.startswith(name))


def load(store: tape.Store, file: Path, **options: Any) -> list[ImportedTranscript]:
    return import_transcript(store, format_of(file), file, **options)


def texts(one: tape.Snapshot) -> list[str]:
    """Return what the messages of a tape's path say, tool calls and results by their ids."""
    return [message.text or "/".join(_ids(message.data)) for message in one.messages()]


def _ids(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value[name] for name in ("tool_use_id", "call_id", "tool_call_id") if isinstance(value.get(name), str)]
        if value.get("type") == "tool_use" or "function" in value:
            found.append(value["id"])
        return found + [id for item in value.values() for id in _ids(item)]
    return [id for item in value for id in _ids(item)] if isinstance(value, list) else []
