"""Which files are transcripts, and of what format: known by how they begin, not by their names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tape.core import json_text
from tape.core.json_text import NotJson

__all__ = ["NATIVE", "detect", "find_files"]

NATIVE = "tape"
"""The format of a file that ``export`` wrote."""

_SUFFIXES = (".jsonl", ".json", ".ndjson")
_LINES = 30
"""How many lines are looked at for one that tells."""
_WHOLE = 64 << 20
"""Bytes of the largest file that is read as one document to tell its format."""
_ROLLOUT = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_EXEC = ("thread.", "turn.", "item.")
_LANGCHAIN = frozenset({"human", "ai", "constructor"})
_decode = partial(json_text.decode, deepest=json_text.RECORD)
_FOLDERS = {".claude": ("projects",), ".codex": ("sessions", "archived_sessions"), ".gemini": ("tmp",)}
"""Folders of programs that hold much else, and where their transcripts are."""


def find_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[Path, bool]]:
    """Yield the files to look at, and whether each was named itself; those of a folder in an order that is always good.

    The conversation of a subagent comes behind those of sessions, so that it finds the one that it belongs to.
    """
    for named in paths:
        path = Path(named).expanduser()
        if not path.is_dir():
            yield path, True
            continue
        closed: list[OSError] = []
        files = [file for folder in _folders(path) for file in _files_in(folder, closed)]
        for file in sorted(files, key=lambda file: (file.name.startswith("agent-"), file)):
            if file.is_file():
                yield file, False
        # Whoever tries to read a folder that cannot be looked into finds out why.
        yield from ((Path(error.filename), True) for error in closed)


def _files_in(folder: Path, closed: list[OSError]) -> Iterator[Path]:
    """Yield the files that can be transcripts by their names; folders that cannot be listed are added to ``closed``."""
    for parent, _, names in os.walk(folder, onerror=closed.append):
        yield from (Path(parent, name) for name in names if name.endswith(_SUFFIXES))


def _folders(path: Path) -> list[Path]:
    inner = [path / name for name in _FOLDERS.get(path.name, ())]
    return [folder for folder in inner if folder.is_dir()] or [path]


def detect(path: Path) -> str | None:
    """Return the format of a file, or None if it is no transcript that is known; OSError if it cannot be read."""
    from tape.db.transfer.files import is_in_use

    if is_in_use(path):
        return None
    with path.open("rb") as file:
        for _ in range(_LINES):
            raw = file.readline(1 << 24)
            if not raw:
                return None
            text = raw.removeprefix(b"\xef\xbb\xbf").strip(b"\0 \t\r\n")
            if not text:
                continue
            try:
                value = _decode(text)
            except NotJson:
                whole = _document(file, raw) if text[:1] in b"{[" and not text.endswith(b"}") else None
                if whole is not None:
                    return format_of(whole)
                value = _first_of(text)
                if value is None:
                    value = _mended(text)
            format = None if value is None else format_of(value)
            if format is not None:
                return format
    return None


def _document(file: Any, top: bytes) -> Any:
    """Return the value of a file that is one JSON document over many lines, or None."""
    at = file.tell()
    raw = top + file.read(_WHOLE)
    file.seek(at)
    try:
        return _decode(raw.removeprefix(b"\xef\xbb\xbf"))
    except NotJson:
        return None


def _first_of(text: bytes) -> Any:
    """Return the first of several records on one line."""
    end = text.find(b"}{")
    try:
        return _decode(text[: end + 1]) if end > 0 else None
    except NotJson:
        return None


def _mended(text: bytes) -> Any:
    """Return a line that is JSON but for NaN, halves of characters, or bytes that are not UTF-8."""
    try:
        return json_text.decode_loose(text.decode("utf-8", "replace"), deepest=json_text.RECORD)
    except NotJson:
        return None


def format_of(value: Any) -> str | None:
    """Return the format that a JSON value tells, or None."""
    if isinstance(value, list):
        return next((format for item in value[:_LINES] if (format := format_of(item)) is not None), None)
    if not isinstance(value, dict):
        return None
    return _of_program(value) or _of_messages(value)


def _of_program(value: dict[str, Any]) -> str | None:
    """Return the format if a program's own record tells it."""
    kind = value.get("type")
    if value.keys() == {"tape", "entries", "hash", "format"}:
        return NATIVE
    if "resourceSpans" in value or "resourceLogs" in value:
        return "otlp"
    if str(value.get("schema_version", "")).startswith("ATIF") or ({"agent", "steps"} <= value.keys()):
        return "atif"
    if isinstance(value.get("mapping"), dict):
        return "chatgpt"
    if "projectHash" in value or "$set" in value or (isinstance(value.get("parts"), list) and "role" in value):
        return "gemini"
    if isinstance(value.get("history"), list) and format_of(value["history"]) == "gemini":
        return "gemini"
    if isinstance(kind, str):
        if value.keys() & {"sessionId", "parentUuid", "leafUuid"} or kind == "file-history-snapshot":
            return "claude-code"
        if "session_id" in value and kind in ("system", "user", "assistant", "result", "stream_event"):
            return "claude-stream"
        if kind.startswith(_EXEC):
            return "codex-exec"
        if kind in _ROLLOUT and isinstance(value.get("payload"), dict):
            return "codex"
        return None
    if isinstance(value.get("session"), dict) and isinstance(value.get("items"), list):
        return "codex"
    if {"id", "timestamp"} <= value.keys() and value.keys() & {"instructions", "git"}:
        return "codex"
    return None


def _of_messages(value: dict[str, Any]) -> str | None:
    """Return the format of messages, requests and responses: that of the API whose words they use."""
    for name in ("channel_values", "values", "checkpoint"):
        if isinstance(value.get(name), dict) and ("messages" in value[name] or "channel_values" in value[name]):
            return "langgraph"
    kind = value.get("type")
    spoken = isinstance(kind, str) and kind in _LANGCHAIN
    if value.get("lc") == 1 or (spoken and ("content" in value or "data" in value)):
        return "langgraph"
    for name in ("request", "params", "body", "response", "result"):
        inner = value.get(name)
        if isinstance(inner, dict) and (inner := inner.get("body", inner.get("message", inner))) is not value:
            format = _of_messages(inner) if isinstance(inner, dict) else None
            if format is not None:
                return format
    if isinstance(value.get("messages"), list):
        if isinstance(value.get("system"), str | list) and "max_tokens" in value:
            return "anthropic"
        formats = {_of_messages(message) for message in value["messages"] if isinstance(message, dict)} - {None}
        return "anthropic" if "anthropic" in formats else "langgraph" if formats == {"langgraph"} else "openai"
    if isinstance(value.get("choices"), list) or isinstance(value.get("output"), list) or "input" in value:
        return "openai" if value.keys() & {"model", "choices", "object", "usage"} else None
    if isinstance(value.get("role"), str):
        content = value.get("content")
        blocks = content if isinstance(content, list) else []
        kinds = {str(block.get("type")) for block in blocks if isinstance(block, dict)}
        in_blocks = value.get("type") == "message" or kinds & {"tool_use", "tool_result", "thinking"}
        return "anthropic" if in_blocks and not kinds & {"input_text", "output_text"} else "openai"
    return "openai" if str(value.get("type")).endswith(("_call", "_call_output")) else None
