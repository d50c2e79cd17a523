"""Reading messages of every shape into one: text, media, tool calls and tool results, in order. Pure.

Known shapes: OpenAI chat messages, OpenAI Responses items, Anthropic messages, AI-SDK messages (with parts and with
content parts), and the dialects of ``dialects``. An unknown part becomes ``Other`` and is sent only to the API it came
from; the others get a mark in its place.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tape.core.messages.dialects import ROLES, translated
from tape.core.messages.media import Media, label, read_data_url, read_media

__all__ = [
    "BOUND",
    "Call",
    "Media",
    "Neutral",
    "Other",
    "Part",
    "Result",
    "Text",
    "as_text",
    "contents",
    "is_plain",
    "read",
]

_TEXTS = ("text", "input_text", "output_text")
_PLAIN = frozenset({"id", "role", "content", "usage"})
"""The fields of a message that is nothing but a text."""
_STRUCTURE = frozenset({"step-start"})
"""Parts that a model is never shown."""
_IN_RESULTS = frozenset({"search_result", "tool_reference"})
"""Blocks that Anthropic takes inside a tool result."""
_RUN_BY_OPENAI = frozenset(
    {
        "tool_search_call",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
    }
)
"""Items of calls that the API itself runs: nobody answers them."""


class Text(Struct, frozen=True, gc=False):
    """Plain text."""

    text: str


class Call(Struct, frozen=True, gc=False):
    """A tool call."""

    id: str
    name: str
    arguments: Any
    """The arguments as JSON values, or as the text that the model wrote."""
    part: dict[str, Any] | None = None
    """The call itself where it is not a plain function's: a custom tool's, or an item of the Responses API."""


class Result(Struct, frozen=True, gc=False):
    """The result of a tool call."""

    id: str
    content: Any
    error: bool = False
    name: str | None = None
    part: dict[str, Any] | None = None
    """The item of the Responses API that it was read from."""


class Other(Struct, frozen=True, gc=False):
    """A part that has no counterpart elsewhere, such as a model's reasoning."""

    part: dict[str, Any]


Part = Text | Media | Call | Result | Other
BOUND = (Call, Result)
"""The parts that are bound to each other."""


class Neutral(Struct, frozen=True, gc=False):
    """A message in a shape that no API dictates."""

    role: str
    parts: list[Part]
    name: str | None = None
    """Who of several speakers in this role said it."""

    @property
    def calls(self) -> list[Call]:
        """The tool calls in it."""
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def results(self) -> list[Result]:
        """The tool results in it."""
        return [part for part in self.parts if isinstance(part, Result)]


def as_text(content: Any) -> str:
    """Return any content as the text that a tool result or a message can carry; media are named, not spelled out."""
    lines = []
    for part in contents(content):
        match part:
            case Text():
                lines.append(part.text)
            case Media():
                lines.append(f"[{label(part)}]" if part.text is None else part.text)
            case Other():
                lines.append(_json(part.part))
    return "\n".join(lines)


def contents(content: Any) -> list[Text | Media | Other]:
    """Return a tool's output as parts: text, and the media in it, also media inside of JSON values."""
    if content is None or content in ("", []):
        return []
    if isinstance(content, str):
        return [read_data_url(content) or Text(content)]
    parts = [_content_part(part) for part in (content if isinstance(content, list) else [content])]
    known = [part for part in parts if part is not None]
    if parts and len(known) == len(parts):
        return known
    return _values(content)


def _values(content: Any) -> list[Text | Media | Other]:
    """Return JSON values as text, and the media in them."""
    lifted: list[Text | Media | Other] = []
    return [Text(_json(_lift(content, lifted))), *lifted]


def _content_part(part: Any) -> Text | Media | Other | None:
    if isinstance(part, str):
        return read_data_url(part) or Text(part)
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if isinstance(part.get("text"), str) and ((isinstance(kind, str) and kind in _TEXTS) or len(part) == 1):
        return Text(part["text"])
    if isinstance(kind, str) and kind in _IN_RESULTS:
        return Other(part)
    return read_media(part)


def _lift(value: Any, into: list[Text | Media | Other]) -> Any:
    """Return a value with the data of media in it replaced by their names; the media are added to ``into``."""
    if isinstance(value, str):
        media = read_data_url(value)
    elif isinstance(value, dict):
        media = read_media(value)
        media = media if media is not None and media.url.startswith("data:") else None
        if media is None:
            return {name: _lift(item, into) for name, item in value.items()}
    elif isinstance(value, list):
        return [_lift(item, into) for item in value]
    else:
        return value
    if media is None:
        return value
    into.append(media)
    return f"[{label(media)}]"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def is_plain(message: dict[str, Any]) -> bool:
    """Whether a message is only a text with a role: no tool result, no media, no name."""
    content, role = message.get("content"), message.get("role")
    if type(content) is not str or role == "tool" or content[:5] == "data:":
        return False
    if type(role) is str and role in ROLES:
        return False
    return (role is not None and len(message) == 2) or message.keys() <= _PLAIN


def read(message: dict[str, Any]) -> Neutral:
    """Return a message of any shape in the neutral one."""
    role, content = message.get("role"), message.get("content")
    if type(role) is str and type(content) is str and (len(message) == 2 or message.keys() <= _PLAIN):
        # Most messages are a text and a role.
        return Neutral(ROLES.get(role, role), [Text(content)] if content else [])
    kind = message.get("type")
    if isinstance(kind, str) and role is None and kind != "message":
        return _item(message, kind)
    message = translated(message)
    content = message.get("content")
    role = ROLES.get(role, role) if isinstance(role, str) else "user"
    name = message.get("name")
    name = name if isinstance(name, str) and name else None
    if role == "tool" and isinstance(message.get("tool_call_id"), str):
        held = message.get("parts") if content is None else content
        return Neutral("tool", [Result(message["tool_call_id"], held, False, name)])
    parts: list[Part] = []
    for source in (content, message.get("parts")):
        if isinstance(source, list):
            for part in source:
                parts += _part(part)
        elif source is not None:
            parts += _part(source)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        made = [_chat_call(call) for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)]
        parts += made if content is None or type(content) is str else _beside_content(parts, made)
    refusal, function = message.get("refusal"), message.get("function_call")
    if isinstance(refusal, str) and refusal:
        parts.append(Other({"type": "refusal", "refusal": refusal}))
    if isinstance(function, dict):
        parts.append(Other({**function, "type": "function_call"}))
    return Neutral(role, parts or _beside(message), name)


def _beside_content(parts: list[Part], calls: list[Call]) -> list[Call]:
    """Return the calls that the parts of a message lack.

    LangChain writes each call in the content as its provider has it, and beside it with the arguments as they were read
    in the end: a call of one id in both is one call, whose place is in ``parts``.
    """
    places: dict[str, list[int]] = {}
    for place, part in enumerate(parts):
        if isinstance(part, Call):
            places.setdefault(part.id, []).append(place)
    missing = []
    for call in calls:
        if not places.get(call.id):
            missing.append(call)
            continue
        place = places[call.id].pop(0)
        if call.arguments not in _NO_ARGUMENTS:
            parts[place] = call
    return missing


_NO_ARGUMENTS: tuple[Any, ...] = (None, "", "{}", {})


def _chat_call(call: dict[str, Any]) -> Call:
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        return Call(call["id"], str(custom.get("name") or "tool"), custom.get("input", ""), call)
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    # LangChain calls them args.
    arguments = function.get("arguments", function.get("args", "{}"))
    return Call(call["id"], str(function.get("name") or "tool"), arguments)


def _beside(message: dict[str, Any]) -> list[Part]:
    """Return the parts of a message without content from its other fields, so that a request does not drop it."""
    audio = message.get("audio")
    if isinstance(audio, dict):
        transcript = audio.get("transcript")
        return [Text(transcript) if isinstance(transcript, str) and transcript else Other({"type": "audio"})]
    if "content" in message or "parts" in message:
        return []
    if isinstance(message.get("text"), str):
        return _part(message["text"])
    rest = {name: value for name, value in message.items() if name not in _ENVELOPE and value is not None}
    return [*_values(rest)] if rest else []


_ENVELOPE = frozenset({"id", "type", "role", "name", "tool_calls", "usage"})
"""Fields of a message that mean nothing to a model by themselves."""


def _item(item: dict[str, Any], kind: str) -> Neutral:
    """Read an item of OpenAI's Responses API that has no role, or a part that stands alone."""
    call = item.get("call_id")
    if kind == "local_shell_call_output" and not isinstance(call, str):
        call = item.get("id")
    if isinstance(call, str) and kind.endswith("_call_output"):
        output = item.get("output", item.get("status"))
        return Neutral("tool", [Result(call, output, False, None, None if kind == "function_call_output" else item)])
    if isinstance(call, str) and kind.endswith("_call") and kind not in _RUN_BY_OPENAI:
        name = str(item.get("name") or kind.removesuffix("_call"))
        fields = ("arguments", "input", "action", "actions", "operation")
        arguments = next((item[field] for field in fields if field in item), "{}")
        return Neutral("assistant", [Call(call, name, arguments, None if kind == "function_call" else item)])
    parts = _part(item)
    if any(isinstance(part, Result) for part in parts) and not any(isinstance(part, Call) for part in parts):
        return Neutral("tool", parts)
    own = any(isinstance(part, Call | Other) for part in parts) or kind == "output_text"
    return Neutral("assistant" if own else "user", parts)


def _part(part: Any) -> list[Part]:
    """Read one block or part of a message."""
    if part is None or part == "":
        return []
    if isinstance(part, str):
        return [Text(part)]
    if not isinstance(part, dict):
        return [*_values(part)]
    kind = part.get("type")
    if isinstance(part.get("text"), str) and (not isinstance(kind, str) or kind in _TEXTS):
        return [Text(part["text"])] if part["text"] else []
    if not isinstance(kind, str):
        return [*_values(part)]
    if kind in _STRUCTURE:
        return []
    if kind == "tool_use" and isinstance(part.get("id"), str):
        return [Call(part["id"], str(part.get("name") or "tool"), part.get("input", {}))]
    if kind == "tool_result" and isinstance(part.get("tool_use_id"), str):
        return [Result(part["tool_use_id"], part.get("content"), bool(part.get("is_error")))]
    if kind == "tool-result" and isinstance(part.get("toolCallId"), str):
        output = part.get("output", part.get("result"))
        if isinstance(output, dict) and "value" in output and isinstance(output.get("type"), str):
            return [Result(part["toolCallId"], output["value"], output["type"].startswith("error"))]
        return [Result(part["toolCallId"], output, bool(part.get("isError")))]
    if kind == "tool-call" and isinstance(part.get("toolCallId"), str):
        return [Call(part["toolCallId"], str(part.get("toolName") or "tool"), part.get("input", part.get("args", {})))]
    if kind == "tool-error" and isinstance(part.get("toolCallId"), str):
        return [Result(part["toolCallId"], part.get("error"), True)]
    if (kind.startswith("tool-") and not kind.startswith("tool-approval-")) or kind == "dynamic-tool":
        return _tool_part(part, kind)
    media = read_media(part)
    return [media] if media is not None else [Other(part)]


def _tool_part(part: dict[str, Any], kind: str) -> list[Part]:
    """Read an AI-SDK part that is a call and, once settled, its result."""
    call = part.get("toolCallId")
    if not isinstance(call, str):
        return [Other(part)]
    name = str(part.get("toolName") or kind.removeprefix("tool-"))
    parts: list[Part] = [Call(call, name, part.get("input", {}))]
    state = part.get("state")
    if state == "output-available" or (state is None and "output" in part):
        parts.append(Result(call, part.get("output"), False, name))
    elif state in ("output-error", "output-denied"):
        parts.append(Result(call, part.get("errorText") or "denied", True, name))
    return parts
