"""Tools for models: plain callables with JSON schemas that let a model read its own tape and keep notes.

A failure is returned as text, never raised, so that the model can read what is wrong. Arguments are checked against
the schema before anything is run. A number above its maximum counts as the maximum, null stands for an optional
argument that is left out, and everything else that does not fit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tape.core import json_text
from tape.core.entries import payloads
from tape.core.memory.loading import fetched, listed
from tape.core.memory.state import BlockSpec
from tape.core.records import Entry, Hit
from tape.core.strict import MAX_INT
from tape.errors import InvalidEntry, TapeError
from tape.handles.memory import MemoryWriter
from tape.handles.snapshot import Snapshot

__all__ = ["Tool", "ToolResult", "Toolset", "cut", "schema", "search_tool", "tape_tools"]

_MOST = 16_000
"""Characters of an answer; a longer one is cut, with a mark."""
_MARK = 40
"""Characters of that mark, at most."""
_MOST_HITS = 50
_MOST_AROUND = 20
_SEQ = re.compile("[1-9][0-9]{0,17}")
_SHOWN = 4_000
"""Characters shown of an entry that was asked for; those around it share what is left of the answer."""


class ToolResult(str):
    """The answer of a tool: a text, and whether it reports a failure."""

    __slots__ = ("failed",)

    failed: bool

    def __new__(cls, text: str, *, failed: bool = False) -> ToolResult:
        """Make an answer of a text."""
        made = super().__new__(cls, text)
        made.failed = failed
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, bool]]:
        return (str(self),), {"failed": self.failed}


def _failure(text: str) -> ToolResult:
    return ToolResult(cut(f"Error: {text}"), failed=True)


class _Refused(Exception):
    """A call that a tool refuses; its text is for the model."""


class Tool(Struct, frozen=True):
    """A tool: its name, what it is for, the JSON schema of its arguments, and the function behind it."""

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[..., Any]
    """Raises what the store refuses; its answer is a text, or JSON values."""
    effect: str = "reads"
    """What it does to the store: "reads", "adds", "sets" (may be repeated), or "takes" something out of the view."""

    def __call__(self, /, **arguments: Any) -> ToolResult:
        """Run the tool; errors are returned as text, with ``failed`` set."""
        try:
            answer = self.run(**_fitting(self.parameters, arguments))
            # JSON that was cut would be none.
            return ToolResult(cut(answer) if isinstance(answer, str) else msgspec.json.encode(answer).decode())
        except (TapeError, _Refused) as error:
            return _failure(str(error))
        except Exception as error:
            # A model can send any JSON, and the program between it and the tape must not crash.
            return _failure(f"the arguments do not fit {self.name}: {error}")

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

    def call(self, name: str, arguments: dict[str, Any] | str | None = None) -> ToolResult:
        """Run a tool as a model called it; an unknown tool or bad arguments are answered with a text.

        The ``failed`` of the answer says whether it reports a failure.
        """
        if not isinstance(name, str) or name not in self._tools:
            shown = cut(repr(name), 100) if isinstance(name, str) else f"named by a {type(name).__name__}"
            return _failure(f"there is no tool {shown}; the tools are: {', '.join(self._tools) or 'none'}")
        if isinstance(arguments, str):
            try:
                arguments = json_text.decode(arguments or "{}")
            except json_text.NotJson as error:
                return _failure(f"the arguments are {error}")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict) or not all(isinstance(argument, str) for argument in arguments):
            return _failure("the arguments must be an object")
        return self._tools[name](**arguments)

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
        notes = "" if all(tool.effect == "reads" for tool in self) else " and keep notes"
        return f"Your history is kept on a tape. These tools read it{notes}:\n" + "\n".join(lines)


def schema(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of arguments."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _fitting(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as a schema allows them; raises InvalidEntry that names the first that does not fit."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    fitting = {}
    for name, value in arguments.items():
        if name not in properties and schema.get("additionalProperties") is False:
            known = ", ".join(properties) or "none"
            raise InvalidEntry(cut(name, 100), f"is not an argument of this tool; its arguments are: {known}")
        if value is not None or name in required:
            fitting[name] = _value(properties.get(name, {}), name, value)
    for name in required:
        if name not in fitting:
            raise InvalidEntry(name, "is missing")
    return fitting


_KINDS = {"integer": "a whole number", "string": "a string", "array": "a list", "object": "an object"}


def _value(schema: dict[str, Any], field: str, value: Any) -> Any:
    """Return one argument as its schema allows it; kinds that no tool here uses are not checked."""
    # Null was taken for an argument that is left out.
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    kinds = [kind for choice in choices for kind in _kinds(choice)]
    if not _KINDS.keys() >= set(kinds) or (isinstance(value, str) and "string" in kinds):
        return value
    if isinstance(value, dict) and "object" in kinds:
        return value
    if isinstance(value, list) and "array" in kinds:
        items: dict[str, Any] = next((choice["items"] for choice in choices if "items" in choice), {})
        return [_value(items, f"{field}[{n}]", item) for n, item in enumerate(value)]
    if "integer" in kinds and type(value) in (int, float) and value % 1 == 0:
        least = schema.get("minimum", -MAX_INT)
        if value < least:
            raise InvalidEntry(field, f"must be at least {least}")
        return int(min(value, schema.get("maximum", MAX_INT)))
    # Without the value itself, which may be too deep or too long to be shown.
    raise InvalidEntry(field, f"must be {' or '.join(_KINDS[kind] for kind in kinds)}, not a {type(value).__name__}")


def _kinds(schema: dict[str, Any]) -> list[str]:
    kinds = schema.get("type", "any")
    return kinds if isinstance(kinds, list) else [kinds]


def cut(text: str, most: int = _MOST) -> str:
    """Return a text with at most so many of its characters, and a mark if it was cut."""
    return text if len(text) <= most else f"{text[:most]} … [{len(text) - most} characters cut]"


def _number(least: int, most: int) -> dict[str, Any]:
    """Return the schema of a whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


_STRING = {"type": "string"}


def tape_tools(tape: MemoryWriter) -> Toolset:
    """Return the tools for one tape; those that write only if the store can be written."""
    tools = [
        Tool(
            "tape_info", "Describe this tape: its messages, entries, anchors and status.", schema(), lambda: _info(tape)
        ),
        Tool(
            "tape_search",
            "Search the text of this tape, including tool calls and results. All words must match.",
            schema(("query",), query=_STRING, limit=_number(1, _MOST_HITS)),
            lambda query, limit=10: _search(tape, query, limit),
        ),
        Tool(
            "tape_context",
            "Read the entries around a seq of this tape, for example around a search hit.",
            schema(
                ("seq",),
                seq={
                    "type": ["integer", "string"],
                    "minimum": 1,
                    "description": "A seq, or tape:seq for an inherited entry, as at the start of a search hit.",
                },
                before=_number(0, _MOST_AROUND),
                after=_number(0, _MOST_AROUND),
            ),
            lambda seq, before=2, after=2: _around(tape, seq, before, after),
        ),
        Tool(
            "tape_anchors",
            "List the latest checkpoints and handoffs with their summaries.",
            schema(limit=_number(1, 100)),
            lambda limit=20: _anchors(tape, limit),
        ),
        Tool(
            "tape_handoff",
            "Record a handoff: from then on, the conversation continues from its summary.",
            schema(("name", "summary"), name=_STRING, summary=_STRING, next_steps={"type": "array", "items": _STRING}),
            lambda name, summary, next_steps=(): _handoff(tape, name, summary, next_steps),
            "adds",
        ),
    ]
    labels = [block.label for block in tape.blocks() if not block.read_only]
    if labels:
        tools.append(_block_tool(tape, labels))
    tools += _loading_tools(tape)
    read_only = tape._services.database.read_only
    return Toolset([tool for tool in tools if tool.effect == "reads" or not read_only])


def _loading_tools(tape: MemoryWriter) -> list[Tool]:
    """Return the tools for the documents of providers, if there are any."""
    specs = {spec.label: spec for spec in tape._reader.settings.blocks if spec.provider is not None}
    if not specs:
        return []
    label, named = {"type": "string", "enum": list(specs)}, ", ".join(specs)
    held = ", ".join(f"{document.key} of {document.label}" for document in tape.loaded()) or "nothing"
    tools = [
        Tool(
            "load_block",
            f"Load a document into your context ({named}). Keys are listed in your prompt. Currently loaded: {held}.",
            schema(("label", "key"), label=label, key=_STRING),
            lambda label, key: _load(tape, specs, label, key),
            "sets",
        ),
        Tool(
            "unload_block",
            f"Remove a loaded document from your context ({named}) to make room. You can load it again later.",
            schema(("label", "key"), label=label, key=_STRING),
            lambda label, key: _unload(tape, label, key),
            "sets",
        ),
    ]
    searchable = {name: spec for name, spec in specs.items() if callable(getattr(spec.provider, "search", None))}
    if searchable:
        tools.append(
            Tool(
                "search_block",
                f"Search the documents that can be loaded ({', '.join(searchable)}).",
                schema(("label", "query"), label={"type": "string", "enum": list(searchable)}, query=_STRING),
                lambda label, query: _search_block(searchable, label, query),
            )
        )
    return tools


def _load(tape: MemoryWriter, specs: dict[str, BlockSpec], label: str, key: str) -> str:
    spec = specs.get(label)
    if spec is None:
        raise _Refused(f"there is no block {label!r} with documents; the blocks are: {', '.join(specs)}")
    if any((document.label, document.key) == (label, key) for document in tape.loaded()):
        return f"{key} of {label} is already loaded."
    known = [listed for listed, _ in listed(spec)]
    # A provider with a search may have documents that it does not list.
    if key not in known and not callable(getattr(spec.provider, "search", None)):
        raise _Refused(f"{label} has no document {cut(key, 100)!r}; it has {cut(', '.join(known) or 'none', 2_000)}")
    tape.load_block(label, key)
    tokens = [document.tokens for document in tape.loaded() if document.label == label]
    limit = "" if spec.max_tokens is None else f" of {spec.max_tokens}"
    return f"Loaded {key} of {label}; it now follows your prompt. Loaded in total: {sum(tokens)}{limit} tokens."


def _unload(tape: MemoryWriter, label: str, key: str) -> str:
    tape.unload_block(label, key)
    return f"Unloaded {key} of {label}."


def _search_block(specs: dict[str, BlockSpec], label: str, query: str) -> str:
    if label not in specs:
        raise _Refused(f"block {label!r} cannot be searched; these can: {', '.join(specs)}")
    results = fetched(specs[label], "search", query)
    if isinstance(results, str):
        return results or "Nothing found."
    lines = [result if isinstance(result, str) else ": ".join(str(part) for part in result) for result in results]
    return "\n".join(lines) or "Nothing found."


def _block_tool(tape: MemoryWriter, labels: list[str]) -> Tool:
    return Tool(
        "set_block",
        f"Write to a block of your prompt ({', '.join(labels)}).",
        schema(
            ("label", "text"),
            label={"type": "string", "enum": labels},
            text=_STRING,
            action={"type": "string", "enum": ["replace", "append"]},
        ),
        lambda label, text, action="replace": _set_block(tape, label, text, action),
        "adds",
    )


def search_tool(search: Callable[..., list[Hit]]) -> Tool:
    """Return the tool that searches all tapes that a store sees, on which ``search`` finds messages."""
    return Tool(
        "search_tapes",
        "Search the text of all your tapes, including tool calls and results. All words must match.",
        schema(
            ("query",),
            query=_STRING,
            limit=_number(1, _MOST_HITS),
            tape={"type": "string", "description": "Search only the tape with this id."},
        ),
        lambda query, limit=10, tape=None: _search_tapes(search, query, limit, tape),
    )


def _search_tapes(search: Callable[..., list[Hit]], query: str, limit: int, tape: str | None) -> str:
    hits = search(query, tape=tape, limit=limit)
    lines = [f"{hit.tape} {hit.seq} {hit.role or ''} {hit.message_id}: {hit.snippet}" for hit in hits]
    return "\n".join(lines) or "Nothing found."


def _info(tape: MemoryWriter) -> str:
    info = tape.info()
    anchors = [anchor.name for anchor in tape.anchors(limit=5)]
    return (
        f"Tape {info.id}: {info.message_count} messages, {info.entry_count} entries, status {info.status}. "
        f"Last anchors: {', '.join(anchors) or 'none'}."
    )


def _around(tape: MemoryWriter, where: int | str, before: int, after: int) -> str:
    name, seq, end = _address(tape, where)
    first = max(seq - before, 1)
    last = seq + after if end is None else min(seq + after, end)
    entries = list(Snapshot(tape._services, name).entries(after=first - 1, limit=last - first + 1))
    if not any(entry.seq == seq for entry in entries):
        raise InvalidEntry("seq", f"there is no entry at {where}")
    share = min(_SHOWN // 2, (_MOST - _SHOWN) // len(entries)) - _MARK
    return "\n".join(cut(_line(tape, entry), _SHOWN if entry.seq == seq else share) for entry in entries)


def _address(tape: MemoryWriter, where: int | str) -> tuple[str, int, int | None]:
    """Return the tape and the seq that an address names, and the seq up to which that tape is inherited, if it is."""
    name, _, number = where.rpartition(":") if isinstance(where, str) else ("", "", str(where))
    if not _SEQ.fullmatch(number):
        raise InvalidEntry("seq", "must be a seq, or tape:seq as at the start of a search hit")
    seq = int(number)
    if name in ("", tape.id):
        return tape.id, seq, None
    inherited = tape._services.reader.inherited(tape.id)
    if seq > inherited.get(name, 0):
        raise InvalidEntry("seq", f"this tape does not inherit the entry {cut(str(where), 300)}")
    return name, seq, inherited[name]


def _line(tape: MemoryWriter, entry: Entry) -> str:
    """Return an entry in a line, with the text that its message has now."""
    where = _reference(tape, entry.tape, entry.seq)
    payload = entry.payload
    if not isinstance(payload, payloads.Append | payloads.Revise):
        return f"{where} {entry.kind}"
    shown = tape.find(payload.id)
    text = "(removed from the conversation)" if shown is None else shown.text or str(shown.content)
    return f"{where} {entry.kind} {payload.id}: {text}"


def _reference(tape: MemoryWriter, name: str, seq: int) -> str:
    """Return an entry's address for the model: its seq, with the tape in front if it is inherited."""
    return str(seq) if name == tape.id else f"{name}:{seq}"


def _anchors(tape: MemoryWriter, limit: int) -> str:
    lines = [
        f"{_reference(tape, anchor.tape, anchor.seq)} {anchor.name}: {anchor.summary or ''}".rstrip(": ")
        for anchor in tape.anchors(limit=limit)
    ]
    if sum(map(len, lines)) + len(lines) > _MOST:
        # Each gets a share, since the end of the answer would be the newest.
        lines = [cut(line, _MOST // len(lines) - _MARK) for line in lines]
    return "\n".join(lines) or "This tape has no anchors."


def _handoff(tape: MemoryWriter, name: str, summary: str, next_steps: Sequence[str]) -> str:
    receipt = tape.handoff(name, summary=summary, next_steps=list(next_steps))
    return f"Handoff {name!r} recorded at seq {receipt.seq}."


def _search(tape: MemoryWriter, query: str, limit: int) -> str:
    lines = [
        f"{_reference(tape, hit.tape, hit.seq)} {hit.role or ''} {hit.message_id}: {hit.snippet}"
        for hit in tape.search(query, limit=limit)
    ]
    return "\n".join(lines) or "Nothing found."


def _set_block(tape: MemoryWriter, label: str, text: str, action: str) -> str:
    blocks = {block.label: block for block in tape.blocks()}
    if label not in blocks:
        raise _Refused(f"there is no block {label!r}")
    if blocks[label].read_only:
        raise _Refused(f"block {label!r} is read-only")
    if action == "append":
        tape.append_block(label, text)
    elif action == "replace":
        tape.set_block(label, text)
    else:
        raise _Refused("action must be 'replace' or 'append'")
    block = next(block for block in tape.blocks() if block.label == label)
    used = (
        f"{block.tokens}/{block.max_tokens} tokens ({block.percent}%)" if block.max_tokens else f"{block.tokens} tokens"
    )
    return f"Written to {label}. Usage: {used}."
