"""Tools for models: plain callables with JSON schemas that let a model read its own tape and keep notes.

A failure is an answer in words, never an exception: a model that asks for something that is not there should be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from tape.core import payloads
from tape.errors import TapeError

if TYPE_CHECKING:
    from tape.handle import Tape

__all__ = ["Tool", "Toolset", "tape_tools"]

_MOST = 4_000


class Tool(Struct, frozen=True):
    """A tool: its name, what it is for, the JSON schema of its arguments, and the function behind it."""

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[..., str]

    def __call__(self, **arguments: Any) -> str:
        """Run the tool; whatever goes wrong comes back as text."""
        try:
            text = self.run(**arguments)
        except TapeError as error:
            return f"Error: {error}"
        except (TypeError, ValueError, KeyError) as error:
            return f"Error: the arguments do not fit {self.name}: {error}"
        return text if len(text) <= _MOST else f"{text[:_MOST]} … [{len(text) - _MOST} characters cut]"

    def openai(self) -> dict[str, Any]:
        """Return the tool as OpenAI's chat API takes it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def anthropic(self) -> dict[str, Any]:
        """Return the tool as Anthropic's API takes it."""
        return {"name": self.name, "description": self.description, "input_schema": self.parameters}


class Toolset:
    """The tools that apply. Iterate over them, look one up by name, or hand a model's call to ``call``."""

    def __init__(self, tools: list[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    @property
    def names(self) -> list[str]:
        """The names of the tools."""
        return list(self._tools)

    def call(self, name: str, arguments: dict[str, Any] | str | None = None) -> str:
        """Run a tool as a model called it; an unknown tool or bad arguments are answered in words."""
        if name not in self._tools:
            return f"Error: there is no tool {name!r}; there are {', '.join(self._tools) or 'none'}"
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments or "{}")
            except msgspec.DecodeError as error:
                return f"Error: the arguments are not JSON: {error}"
        given = arguments or {}
        if not isinstance(given, dict):
            return "Error: the arguments must be an object"
        return self._tools[name](**given)

    def openai(self) -> list[dict[str, Any]]:
        """Return the tools as OpenAI's chat API takes them."""
        return [tool.openai() for tool in self]

    def anthropic(self) -> list[dict[str, Any]]:
        """Return the tools as Anthropic's API takes them."""
        return [tool.anthropic() for tool in self]

    def prompt(self) -> str:
        """Return a section for the system prompt that describes these tools and no others."""
        if not self._tools:
            return ""
        lines = [f"- {tool.name}: {tool.description}" for tool in self]
        return "Your history is kept on a tape. These tools read it and keep notes:\n" + "\n".join(lines)


def _schema(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def tape_tools(tape: Tape) -> Toolset:
    """Return the tools for one tape."""
    tools = [
        Tool("tape_info", "What this tape holds: messages, entries, anchors, status.", _schema(), lambda: _info(tape)),
        Tool(
            "tape_context",
            "Read the entries around a seq of the tape, for instance of a search hit.",
            _schema(
                ("seq",),
                seq={"type": "integer", "minimum": 1},
                before={"type": "integer", "minimum": 0, "maximum": 20},
                after={"type": "integer", "minimum": 0, "maximum": 20},
            ),
            lambda seq, before=2, after=2: _around(tape, seq, before, after),
        ),
        Tool(
            "tape_anchors",
            "List the last checkpoints and handoffs with their summaries.",
            _schema(limit={"type": "integer", "minimum": 1, "maximum": 100}),
            lambda limit=20: _anchors(tape, limit),
        ),
        Tool(
            "tape_handoff",
            "Set a checkpoint: from then on the conversation continues from its summary.",
            _schema(
                ("name", "summary"),
                name={"type": "string"},
                summary={"type": "string"},
                next_steps={"type": "array", "items": {"type": "string"}},
            ),
            lambda name, summary, next_steps=(): _handoff(tape, name, summary, next_steps),
        ),
    ]
    search = getattr(tape, "search", None)
    if search is not None:
        tools.insert(
            1,
            Tool(
                "tape_search",
                "Search the text of this tape, also of tool calls and results. All words must match.",
                _schema(("query",), query={"type": "string"}, limit={"type": "integer", "minimum": 1, "maximum": 50}),
                lambda query, limit=10: _search(search, query, limit),
            ),
        )
    writable = [block for block in tape.blocks() if not block.read_only]
    if writable:
        labels = [block.label for block in writable]
        tools.append(
            Tool(
                "set_block",
                f"Write to a block of your prompt ({', '.join(labels)}).",
                _schema(
                    ("label", "text"),
                    label={"type": "string", "enum": labels},
                    text={"type": "string"},
                    action={"type": "string", "enum": ["replace", "append"]},
                ),
                lambda label, text, action="replace": _set_block(tape, label, text, action),
            )
        )
    return Toolset(tools)


def _info(tape: Tape) -> str:
    info = tape.info()
    anchors = [anchor.name for anchor in tape.anchors(limit=5)]
    return (
        f"Tape {info.id}: {info.message_count} messages, {info.entry_count} entries, status {info.status}. "
        f"Last anchors: {', '.join(anchors) or 'none'}."
    )


def _around(tape: Tape, seq: int, before: int, after: int) -> str:
    if type(seq) is not int or seq < 1:
        return "Error: seq must be a whole number of at least 1"
    first = max(seq - max(0, min(int(before), 20)), 1)
    count = seq + max(0, min(int(after), 20)) - first + 1
    lines = []
    for entry in tape.entries(after=first - 1, limit=count):
        payload = entry.payload
        if isinstance(payload, payloads.Append | payloads.Revise):
            shown = tape.find(payload.id)
            text = "(no longer in the view)" if shown is None else shown.text or str(shown.content)
            lines.append(f"{entry.seq} {entry.kind} {payload.id}: {text[:2000]}")
        else:
            lines.append(f"{entry.seq} {entry.kind}")
    return "\n".join(lines) or f"Error: there is no entry at seq {seq}"


def _anchors(tape: Tape, limit: int) -> str:
    found = tape.anchors(limit=limit)
    lines = [f"{anchor.seq} {anchor.name}: {anchor.summary or ''}".rstrip(": ") for anchor in found]
    return "\n".join(lines) or "There are no anchors."


def _handoff(tape: Tape, name: str, summary: str, next_steps: Any) -> str:
    receipt = tape.handoff(name, summary=summary, next_steps=list(next_steps))
    return f"Handoff {name!r} recorded at seq {receipt.seq}."


def _search(search: Callable[..., Any], query: str, limit: int) -> str:
    hits = search(query)[: max(1, min(int(limit), 50))]
    return "\n".join(f"{hit.seq} {hit.role or ''} {hit.message_id}: {hit.snippet}" for hit in hits) or "Nothing found."


def _set_block(tape: Tape, label: str, text: str, action: str) -> str:
    held = {block.label: block for block in tape.blocks()}
    if label not in held:
        return f"Error: there is no block {label!r}"
    if held[label].read_only:
        return f"Error: block {label!r} is read-only"
    if action == "append":
        tape.append_block(label, text)
    elif action == "replace":
        tape.set_block(label, text)
    else:
        return "Error: action must be 'replace' or 'append'"
    block = {one.label: one for one in tape.blocks()}[label]
    used = (
        f"{block.tokens}/{block.max_tokens} tokens ({block.percent}%)" if block.max_tokens else f"{block.tokens} tokens"
    )
    return f"Written to {label}. Usage: {used}."
