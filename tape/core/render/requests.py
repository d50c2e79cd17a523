"""Rendering: a context as the request of an API. Pure.

All APIs demand that every tool call is followed directly by its result. The neutral messages are put in that order
first (``settle``), and then rendered one by one, so the tokens of a request are at most the sum of its messages. What
an API does not accept is replaced by a mark in the text, and ``untaken`` lists it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from tape.core import json_text
from tape.core.messages.media import label
from tape.core.messages.shapes import BOUND, Call, Media, Neutral, Other, Part, Result, Text, contents
from tape.core.messages.tokens import MESSAGE_TOKENS, Counter, message_tokens
from tape.core.render.convert import (
    ANTHROPIC,
    CHAT,
    RESPONSES,
    anthropic_media,
    anthropic_other,
    chat_media,
    mark,
    noun,
    refusal,
    responses_media,
    responses_other,
    search_text,
)
from tape.core.render.settle import NO_RESULT, mend, settle

__all__ = [
    "CONTINUED",
    "NO_RESULT",
    "TIDY",
    "as_sent",
    "begins_with_assistant",
    "mend",
    "settle",
    "to_anthropic",
    "to_chat",
    "to_responses",
    "tokens",
    "untaken",
    "written_alike",
]

CONTINUED = "(continued)"
"""The user message before an assistant that begins, because Anthropic wants a user to begin."""

_ROLES = frozenset({"system", "developer", "assistant"})
"""The roles that OpenAI's APIs know besides the user's and the tools'."""
_ANTHROPIC_ROLES = {"system": "system", "developer": "system", "assistant": "assistant"}
_NAME = re.compile(r"[^A-Za-z0-9_-]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}")
_CHAT_ID, _RESPONSES_ID = 40, 64
_NATIVE_PAIRS = frozenset({"computer_call", "local_shell_call", "shell_call", "apply_patch_call"})
"""Items of the Responses API that only an output of their own kind answers."""
_SHOWS_MEDIA = ("user", "result")
"""The roles that may show media: a user, and a tool's result, though chat puts them after the result."""
_KEEPS_ID = frozenset({"computer_call", "local_shell_call", "local_shell_call_output"})


def _short(limit: int, id: str) -> str:
    """Return an id that is not empty and within an API's limit; the same id always gives the same result."""
    if len(id) > limit:
        digest = blake2b(id.encode("utf-8", "replace"), digest_size=4).hexdigest()
        id = f"{id[: limit - 9]}_{digest}"
    return id or "_"


def _chat_id(id: str) -> str:
    return _short(_CHAT_ID, id)


def _responses_id(id: str) -> str:
    return _short(_RESPONSES_ID, id)


def _anthropic_id(id: str) -> str:
    return _NAME.sub("_", id) or "_"


@lru_cache(maxsize=1_024)
def _tidy_name(name: str) -> str:
    return _NAME.sub("_", name)[:64] or "tool"


def _tool_name(call: Call) -> str:
    return _tidy_name(call.name)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _arguments(call: Call) -> str:
    if isinstance(call.arguments, str):
        return call.arguments
    return _json({} if call.arguments is None else call.arguments)


def _input(call: Call) -> dict[str, Any]:
    value = call.arguments
    if isinstance(value, str):
        if _custom(call):
            return {"input": value}
        value = json_text.value_of(value) if value.strip() else {}
    return value if isinstance(value, dict) else {"input": value}


def _custom(call: Call) -> bool:
    return call.part is not None and call.part.get("type") in ("custom", "custom_tool_call")


def _joined(parts: Sequence[dict[str, Any]]) -> str:
    return "\n\n".join(part["text"] for part in parts)


# -- OpenAI chat


def to_chat(prompt: str | None, messages: Sequence[Neutral]) -> list[dict[str, Any]]:
    """Return the messages of OpenAI's chat completions API."""
    out: list[dict[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
    for message in settle(messages, _chat_id):
        parts = message.parts
        if len(parts) == 1 and message.name is None and type(part := parts[0]) is Text and part.text:
            # A fast path for most messages; the general path gives the same.
            out.append({"role": message.role if message.role in _ROLES else "user", "content": part.text})
        else:
            out += _chat_messages(message)
    return out


def _chat_messages(message: Neutral) -> list[dict[str, Any]]:
    if message.role == "tool":
        return _chat_results(message.results)
    role = message.role if message.role in _ROLES else "user"
    content = [_chat_part(part, role) for part in message.parts if not isinstance(part, BOUND)]
    body = content if any(part["type"] != "text" for part in content) else _joined(content)
    rendered: dict[str, Any] = {"role": role, "content": body or None}
    if message.name is not None and _SPEAKER.fullmatch(message.name):
        rendered["name"] = message.name
    if message.calls:
        rendered["tool_calls"] = [_chat_call(call) for call in message.calls]
    return [rendered] if body or message.calls else []


def _chat_part(part: Part, role: str) -> dict[str, Any]:
    if isinstance(part, (Media, Other)):
        return _chat_taken(part, role) or {"type": "text", "text": mark(part, CHAT, role)}
    return {"type": "text", "text": part.text if isinstance(part, Text) else ""}


def _chat_taken(part: Media | Other, role: str) -> dict[str, Any] | None:
    """Return what chat takes for a part in a message of this role; only a user may show media."""
    if isinstance(part, Media):
        accepted = chat_media(part)
        return accepted if accepted is not None and (role in _SHOWS_MEDIA or accepted["type"] == "text") else None
    refused = refusal(part.part)
    if refused and role == "assistant":
        return {"type": "refusal", "refusal": refused}
    text = refused or search_text(part.part)
    return {"type": "text", "text": text} if text else None


def _chat_call(call: Call) -> dict[str, Any]:
    if _custom(call):
        return {"id": call.id, "type": "custom", "custom": {"name": _tool_name(call), "input": _arguments(call)}}
    return {"id": call.id, "type": "function", "function": {"name": _tool_name(call), "arguments": _arguments(call)}}


def _chat_results(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return tool messages. They hold text only: media follow in a message of the user's."""
    out: list[dict[str, Any]] = []
    attached: list[dict[str, Any]] = []
    for result in results:
        texts: list[str] = []
        media: list[dict[str, Any]] = []
        for part in contents(result.content):
            rendered = _chat_part(part, "result")
            if rendered["type"] == "text":
                texts.append(rendered["text"])
            elif isinstance(part, Media):
                texts.append(f"[{label(part)}, shown below]")
                media.append(rendered)
        out.append({"role": "tool", "tool_call_id": result.id, "content": "\n".join(texts)})
        if media:
            attached += [{"type": "text", "text": f"[from the result of {result.id}]"}, *media]
    return [*out, {"role": "user", "content": attached}] if attached else out


# -- OpenAI Responses


def to_responses(prompt: str | None, messages: Sequence[Neutral]) -> dict[str, Any]:
    """Return ``instructions`` and ``input`` of OpenAI's Responses API."""
    items: list[dict[str, Any]] = []
    settled = settle(messages, _responses_id)
    kinds: list[str] = []
    for index, message in enumerate(settled):
        if message.calls:
            results = settled[index + 1].results
            kinds = [_kind(call, result) for call, result in zip(message.calls, results, strict=True)]
        items += _responses_items(message, kinds)
    return {"instructions": prompt or None, "input": items}


def _kind(call: Call, result: Result) -> str:
    """Return the type of item that a call is sent as: its own, if the result is of that kind, too."""
    if _custom(call):
        return "custom_tool_call"
    kind = call.part.get("type") if call.part is not None else None
    if kind not in _NATIVE_PAIRS or result.part is None or result.part.get("type") != f"{kind}_output":
        return "function_call"
    output = result.part.get("output")
    match kind:
        case "computer_call":
            own = isinstance(output, dict) and output.get("type") == "computer_screenshot"
        case "local_shell_call":
            own = isinstance(output, str)
        case "shell_call":
            own = isinstance(output, list) and all(isinstance(item, dict) and "outcome" in item for item in output)
        case _:
            own = result.part.get("status") in ("completed", "failed") and isinstance(output, str | None)
    return kind if own else "function_call"


def _responses_items(message: Neutral, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the items of a message; ``kinds`` are the types of the calls that it makes or answers."""
    if message.role == "tool":
        return [_responses_output(result, kind) for result, kind in zip(message.results, kinds, strict=True)]
    role = message.role if message.role in _ROLES else "user"
    items: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Other) and responses_other(part.part) is not None:
            items.append(part.part)
        elif not isinstance(part, BOUND):
            content.append(_responses_part(part, role))
    if content:
        items.append({"type": "message", "role": role, "content": content})
    return [*items, *(_responses_call(call, kind) for call, kind in zip(message.calls, kinds, strict=False))]


def _responses_part(part: Part, role: str) -> dict[str, Any]:
    taken: dict[str, Any] | None = None
    text = part.text if isinstance(part, Text) else ""
    if isinstance(part, (Media, Other)):
        taken, text = _responses_taken(part, role), mark(part, RESPONSES, role)
    return taken or {"type": "output_text" if role == "assistant" else "input_text", "text": text}


def _responses_taken(part: Media | Other, role: str) -> dict[str, Any] | None:
    """Return what the Responses API takes for a part in a message of this role, or the item that the part is."""
    if isinstance(part, Other) and (item := responses_other(part.part)) is not None:
        return item
    text: str | None
    if isinstance(part, Media):
        accepted = responses_media(part)
        if accepted is None or accepted["type"] != "input_text":
            return accepted if role in _SHOWS_MEDIA else None
        text = accepted["text"]
    else:
        refused = refusal(part.part)
        if refused and role == "assistant":
            return {"type": "refusal", "refusal": refused}
        text = refused or search_text(part.part)
    return {"type": "output_text" if role == "assistant" else "input_text", "text": text} if text else None


def _responses_call(call: Call, kind: str) -> dict[str, Any]:
    if kind == "custom_tool_call":
        return {"type": kind, "call_id": call.id, "name": _tool_name(call), "input": _arguments(call)}
    if kind == "function_call" or call.part is None:
        return {"type": "function_call", "call_id": call.id, "name": _tool_name(call), "arguments": _arguments(call)}
    return _native(call.part, call.id)


def _responses_output(result: Result, kind: str) -> dict[str, Any]:
    if kind in _NATIVE_PAIRS and result.part is not None:
        return _native(result.part, result.id)
    parts = [_responses_part(part, "result") for part in contents(result.content)]
    texts = [part["text"] for part in parts if part["type"] == "input_text"]
    output = "\n".join(texts) if len(texts) == len(parts) else parts
    return {"type": f"{kind}_output", "call_id": result.id, "output": output}


def _native(item: dict[str, Any], call: str) -> dict[str, Any]:
    """Return an item as it was recorded. Its own id is sent only where the API requires one."""
    fields = {name: value for name, value in item.items() if name != "id" or item.get("type") in _KEEPS_ID}
    return {**fields, "call_id": call}


# -- Anthropic


def to_anthropic(prompt: str | None, messages: Sequence[Neutral]) -> dict[str, Any]:
    """Return ``system`` and ``messages`` of Anthropic's messages API: roles alternate, and a user begins."""
    system = [prompt] if prompt else []
    turns: list[dict[str, Any]] = []
    for message in settle(messages, _anthropic_id):
        role, blocks = _anthropic_blocks(message)
        if not blocks:
            continue
        if role == "system":
            system.append(_joined(blocks))
        elif turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    if turns and turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": CONTINUED}]})
    for turn in turns:
        if len(turn["content"]) == 1:
            continue
        # Results must come before anything else in a user message.
        turn["content"].sort(key=lambda block: block["type"] != "tool_result" if turn["role"] == "user" else False)
        if turn["role"] == "assistant":
            turn["content"].sort(key=lambda block: block["type"] == "tool_use")
    return {"system": "\n\n".join(system), "messages": turns}


def _anthropic_blocks(message: Neutral) -> tuple[str, list[dict[str, Any]]]:
    """Return the role of a message and its blocks; a system message has blocks of text only."""
    role = _ANTHROPIC_ROLES.get(message.role, "user")
    return role, [block for part in message.parts for block in _anthropic_part(part, role)]


def _anthropic_part(part: Part, role: str) -> Iterator[dict[str, Any]]:
    match part:
        case Text():
            if part.text.strip():
                yield {"type": "text", "text": part.text}
        case Call():
            yield {"type": "tool_use", "id": part.id, "name": _tool_name(part), "input": _input(part)}
        case Result():
            yield from _anthropic_result(part)
        case _:
            yield _anthropic_taken(part, role) or {"type": "text", "text": mark(part, ANTHROPIC, role)}


def _anthropic_taken(part: Media | Other, role: str) -> dict[str, Any] | None:
    """Return the block that Anthropic takes for a part in a message of this role; only a user may show media."""
    text: str | None
    if isinstance(part, Media):
        block = anthropic_media(part) if role in _SHOWS_MEDIA else None
        text = part.text
    else:
        block = anthropic_other(part.part, role)
        text = refusal(part.part) or search_text(part.part)
    return block or ({"type": "text", "text": text} if text and text.strip() else None)


def _anthropic_result(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a result. An error holds text only, so media in it follow."""
    inside: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    for part in contents(result.content):
        for block in _anthropic_part(part, "user" if result.error else "result"):
            if result.error and block["type"] != "text":
                behind.append(block)
            else:
                inside.append(block)
    body = "\n".join(block["text"] for block in inside) if all(block["type"] == "text" for block in inside) else inside
    rendered: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.id, "content": body}
    yield {**rendered, "is_error": True} if result.error else rendered
    yield from behind


# -- what a rendering takes, and what it leaves out


def begins_with_assistant(messages: Iterable[Neutral]) -> bool:
    """Whether Anthropic's rendering of mended messages has to add a user message in front."""
    for message in messages:
        role, blocks = _anthropic_blocks(message)
        if blocks and role != "system":
            return role == "assistant" or bool(message.calls)
    return False


def tokens(message: Neutral, counter: Counter) -> tuple[int, int, int]:
    """Return about how many tokens a mended message takes in chat, Responses and Anthropic, its own results too."""
    role = "assistant" if message.calls else "user" if message.role == "tool" else message.role
    rest = Neutral(role, [part for part in message.parts if not isinstance(part, Result)], message.name)
    pieces = [piece for piece in (rest, Neutral("tool", [*message.results])) if piece.parts]
    chat = sum(message_tokens(rendered, counter) for piece in pieces for rendered in _chat_messages(piece))
    responses = max(_responses_tokens(pieces, own, counter) for own in _ways(message))
    anthropic = 0
    for piece in pieces:
        role, blocks = _anthropic_blocks(piece)
        if role == "system" and blocks:
            anthropic += MESSAGE_TOKENS + counter(_joined(blocks))
        elif blocks:
            anthropic += message_tokens({"role": role, "content": blocks}, counter)
    return chat, responses, anthropic


def as_sent(call: Call) -> tuple[str, str, str]:
    """Return the name of a tool that is called, and the arguments as OpenAI and as Anthropic get them."""
    return _tool_name(call), _arguments(call), _json(_input(call))


TIDY = (_chat_id, _responses_id, _anthropic_id)
"""How each API wants ids written, in the order of ``tokens``."""


def written_alike(id: str) -> bool:
    """Whether every API writes an id as it is."""
    return _ID.fullmatch(id) is not None


def _ways(message: Neutral) -> tuple[bool, ...]:
    """Return the ways to send calls and results: as functions only, or also as the items that they were."""
    own = any(part.part is not None for part in message.parts if isinstance(part, BOUND))
    return (False, True) if own else (False,)


def _responses_tokens(pieces: Sequence[Neutral], own: bool, counter: Counter) -> int:
    total = 0
    for piece in pieces:
        made = [part for part in piece.parts if isinstance(part, BOUND)]
        kinds = [_own_kind(part) if own else "function_call" for part in made]
        total += sum(message_tokens(item, counter) for item in _responses_items(piece, kinds))
    return total


def _own_kind(part: Call | Result) -> str:
    kind = str(part.part.get("type")).removesuffix("_output") if part.part is not None else ""
    return kind if kind in _NATIVE_PAIRS else "custom_tool_call"


def untaken(message: Neutral) -> dict[str, list[str]]:
    """Return the parts that not every API accepts: the word for each, and the APIs that show a mark instead."""
    apis_by_word: dict[str, list[str]] = {}
    for part in message.parts:
        if isinstance(part, (Media, Other)):
            inner: Sequence[Part] = [part]
            role = message.role if message.role in _ROLES else "user"
        elif isinstance(part, Result):
            inner, role = contents(part.content), "user" if part.error else "result"
        else:
            continue
        for inner_part in inner:
            if isinstance(inner_part, (Media, Other)):
                apis = apis_by_word.setdefault(noun(inner_part), [])
                apis += [api for api, taken in _TAKEN.items() if api not in apis and taken(inner_part, role) is None]
    return {word: apis for word, apis in apis_by_word.items() if apis}


_TAKEN = {CHAT: _chat_taken, RESPONSES: _responses_taken, ANTHROPIC: _anthropic_taken}
