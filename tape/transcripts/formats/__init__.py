"""The formats: each a module that reads lines into steps and does nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module

from tape.errors import InvalidEntry
from tape.transcripts.formats.lines import Reading
from tape.transcripts.steps import Step

__all__ = ["FORMATS", "Parser", "parser_of"]

Parser = Callable[[Iterable[bytes], Reading], Iterator[Step]]

_MODULES = {
    "claude-code": "claude.session",
    "codex": "codex",
    "openai": "openai",
    "anthropic": "anthropic",
    "langgraph": "langgraph",
    "claude-stream": "claude.stream",
    "codex-exec": "codex_exec",
    "gemini": "gemini",
    "chatgpt": "chatgpt",
    "otlp": "otel.spans",
    "atif": "atif",
}

FORMATS = tuple(_MODULES)
"""The formats that ``import_transcript`` reads."""


def parser_of(format: str) -> Parser:
    """Return what reads a format; InvalidEntry if there is none of that name."""
    if format not in _MODULES:
        raise InvalidEntry("format", f"must be one of {', '.join(FORMATS)}, not {format!r}")
    parse: Parser = import_module(f"{__name__}.{_MODULES[format]}").parse
    return parse
