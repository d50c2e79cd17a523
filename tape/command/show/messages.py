"""Messages as text: on one line, or in full with thinking folded and tools named. Pure: from values to text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tape
from tape.command.output import Line, clean, cut, flat, moment, wrapped
from tape.core import json_text
from tape.core.amounts import count
from tape.core.messages import shapes
from tape.core.messages.thinking import thinking

__all__ = [
    "PLAIN",
    "Look",
    "body",
    "failed",
    "happened",
    "indented",
    "learn_calls",
    "message_line",
    "message_lines",
    "speaker",
    "tools",
]

SHOWN = 80
"""How much of a text stands on one line where no terminal tells how much fits."""
_FOLDED = 3
"""So many rows of thinking are shown; the rest is counted."""


class Look(NamedTuple):
    """How things are shown: the width to keep, what is known of tools and tapes, and whether nothing is folded."""

    columns: int | None = None
    calls: Mapping[str, str] = {}
    """The names of tools by the ids of their calls."""
    tapes: Mapping[str, str] | None = None
    """How other tapes are called; None where the tape itself is not named."""
    full: bool = False

    def room(self, used: int) -> int:
        """Return how many columns are left beside ``used`` ones."""
        return SHOWN if self.columns is None else max(self.columns - used, 10)


PLAIN = Look()
"""For output that no terminal shows."""


class Block(NamedTuple):
    """A stretch of a message: ``kind`` is text, call, result, error, thinking or other."""

    kind: str
    title: str
    text: str


def happened(value: tape.Entry | tape.Message) -> str:
    """Return when something happened, or was recorded where that is not known."""
    return moment(value.occurred_at or value.recorded_at)


def learn_calls(messages: Iterable[Any], calls: dict[str, str]) -> None:
    """Note which tool each call is of."""
    for data in messages:
        if isinstance(data, dict) and not shapes.is_plain(data):
            calls.update((call.id, call.name) for call in shapes.read(data).calls)


def tools(data: dict[str, Any], calls: Mapping[str, str]) -> set[str]:
    """Return the tools that a message calls or answers for."""
    read = shapes.read(data)
    return {call.name for call in read.calls} | {
        name for part in read.results if (name := part.name or calls.get(part.id))
    }


def failed(data: dict[str, Any]) -> bool:
    """Whether a message holds the result of a tool that failed."""
    return any(block.kind == "error" for block in _blocks(data, {}))


def speaker(data: dict[str, Any]) -> str:
    """Return who says a message: the tool, where it is nothing but results."""
    read = shapes.read(data)
    if read.parts and all(isinstance(part, shapes.Result) for part in read.parts):
        return "tool"
    role = data.get("role")
    return str(role if isinstance(role, str) and role else read.role if "type" in data else "item")


def body(data: dict[str, Any], calls: Mapping[str, str] | None = None) -> str:
    """Return all that a message says, tool calls and results included, whatever its shape."""
    blocks = _blocks(data, calls or {})
    return "\n".join(f"{title}{': ' if title and text else ''}{text}" for _, title, text in blocks)


def message_line(data: dict[str, Any], most: int = SHOWN, calls: Mapping[str, str] | None = None) -> str:
    """Return a message on one line: who says it, and how it begins. Thinking only if there is nothing else."""
    blocks = list(_blocks(data, calls or {}, brief=True))
    spoken = [block for block in blocks if block.kind != "thinking"]
    spoken = spoken or [block._replace(title="thinking") for block in blocks]
    who = cut(speaker(data), 20)
    texts = (f"{title}{': ' if title and text else ''}{text[: 8 * most]}" for _, title, text in spoken)
    return f"{who}: {cut(' '.join(texts), max(most - len(who) - 2, 8))}"


def message_lines(message: tape.Message, look: Look = PLAIN) -> list[Line]:
    """Return a message in full: a heading, then what it says."""
    revised = f", revised at {message.revision}" if message.revision != message.seq else ""
    about = f"  {clean(message.id)}{revised}  {happened(message)}"
    heading: Line = [(f"{message.seq} ", "seq"), (flat(speaker(message.data)), "head"), (about, "quiet")]
    return [*wrapped(heading, look.columns), *indented(message.data, look), ""]


def indented(data: dict[str, Any], look: Look) -> Iterator[Line]:
    """Yield what a message says, set in; thinking is folded and dim, a call has its arguments a line each."""
    styles = {"thinking": "thinking", "error": "bad", "call": "kind", "result": "quiet"}
    for kind, title, text in _blocks(data, look.calls, pretty=True):
        style = styles.get(kind, "")
        rows: list[Line] = []
        if kind == "thinking":
            rows = [row for line in clean(text).split("\n") for row in wrapped([(line, style)], look.columns, "    ")]
            if look.columns is not None and not look.full and len(rows) > _FOLDED + 1:
                more = f"    [{count(len(rows) - _FOLDED, 'more row')} of thinking: --full]"
                rows = [*rows[:_FOLDED], [(more, "quiet")]]
            yield [("    thinking", "quiet")]
        elif title:
            yield from wrapped([(flat(title), style)], look.columns, "    ")
        inset = "    " if kind in ("text", "other") else "      "
        for line in clean(text).split("\n") if text and kind != "thinking" else ():
            rows += wrapped(line, look.columns, inset)
        yield from rows


def _blocks(
    data: dict[str, Any], calls: Mapping[str, str], *, pretty: bool = False, brief: bool = False
) -> Iterator[Block]:
    """Yield what a message says; of a call the arguments as JSON, ``pretty`` as lines, or ``brief`` as values."""
    parts = shapes.read(data).parts
    for part in parts:
        match part:
            case shapes.Text():
                yield Block("text", "", part.text)
            case shapes.Call() if pretty:
                yield Block("call", f"calls {part.name}", _arguments(part.arguments))
            case shapes.Call():
                arguments = _brief(part.arguments) if brief else _short(part.arguments)
                yield Block("call", f"calls {part.name}({arguments})", "")
            case shapes.Result():
                text, wrong = _output(part)
                name = part.name or calls.get(part.id) or part.id
                yield Block("error" if wrong else "result", f"{'error' if wrong else 'result'} of {name}", text)
            case shapes.Media():
                yield Block("other", f"[{part.media_type or part.part.get('type')}]", "")
            case shapes.Other():
                thought = thinking(part.part)
                if thought is None:
                    yield Block("other", f"[{part.part.get('type', 'part')}]", _short(part.part))
                else:
                    yield Block("thinking", "", thought or "(encrypted by the provider)")
    if not parts and data.get("content") not in (None, ""):
        yield Block("text", "", _short(data.get("content")))


def _brief(arguments: Any) -> str:
    """Return arguments for one line: the value alone where there is but one."""
    value = json_text.value_of(arguments)
    if not isinstance(value, dict):
        return _short(value)
    plain = {
        name: " ".join(argument) if _is_command(argument) else _short(argument) for name, argument in value.items()
    }
    return ", ".join(
        [*plain.values()] if len(plain) == 1 else [f"{name}={argument}" for name, argument in plain.items()]
    )


def _is_command(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def _arguments(arguments: Any) -> str:
    """Return the arguments of a call as lines: a name and its value, which may have lines of its own."""
    value = json_text.value_of(arguments)
    if not isinstance(value, dict):
        return _short(value)
    lines = []
    for name, argument in value.items():
        text = _short(argument)
        lines.append(f"{name}: " + ("\n" + _set_in(text) if "\n" in text.strip() else text))
    return "\n".join(lines)


def _set_in(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip("\n").split("\n"))


_EXIT = re.compile(r"(?:Process exited with code|Exit code:?) (\d+)")


def _output(part: shapes.Result) -> tuple[str, bool]:
    """Return what a tool gave as text, out of the JSON that some programs put around it, and whether it failed."""
    text = shapes.as_text(part.content)
    wrong = part.error
    if text[:1] in "{[" and text[-1:] in "}]" and text:
        value = json_text.value_of(text)
        if isinstance(value, dict) and isinstance(value.get("output"), str) and value.keys() <= {"output", "metadata"}:
            about = value.get("metadata")
            code = about.get("exit_code") if isinstance(about, dict) else None
            failure = isinstance(code, int) and code != 0
            return (f"(exit code {code}) " if failure else "") + value["output"], wrong or failure
        if isinstance(value, list) and value and all(isinstance(item, dict) and "text" in item for item in value):
            text = "\n".join(str(item["text"]) for item in value)
    match = _EXIT.match(text[:200])
    return text, wrong or (match is not None and match[1] != "0")


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
