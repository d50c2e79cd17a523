"""Pydantic AI's messages as messages of a tape, and back: what is said in the message, everything else in its meta.

Both ways go by the JSON of Pydantic AI's own ``ModelMessagesTypeAdapter``. Its parts stand on the tape as they are,
with the fields that are said to or by a model; search, contexts and renderings know them. Nothing is kept twice.
"""

from __future__ import annotations

from typing import Any

import tape
from tape.integrations.histories import Pair

__all__ = ["NAME", "from_tape", "to_tape"]

NAME = "pydantic-ai"
Json = dict[str, Any]

_SAID = frozenset({"part_kind", "content", "tool_name", "tool_call_id", "args", "outcome"})
_TEXTS = frozenset({"text", "system-prompt", "user-prompt"})


def to_tape(dump: Json) -> Pair:
    """Return a message as a tape has it, and its meta; half characters and the like are kept as well as can be."""
    clean, replaced = tape.lenient(dump)
    if replaced:
        return to_tape(clean)[0], {NAME: tape.to_strict(dump)}
    rest = {name: value for name, value in dump.items() if value is not None and name not in ("kind", "parts", "usage")}
    if rest.get("state") == "complete":
        del rest["state"]
    # A result may be None.
    parts: list[Json] = [{n: v for n, v in part.items() if v is not None or n == "content"} for part in dump["parts"]]
    said = [{name: value for name, value in part.items() if name in _SAID} for part in parts]
    rest["parts"] = [{name: value for name, value in part.items() if name not in _SAID} for part in parts]
    message: Json = {"role": "assistant" if dump["kind"] == "response" else "user", "parts": said}
    if len(said) == 1 and said[0]["part_kind"] in _TEXTS and isinstance(said[0]["content"], str):
        rest["parts"][0]["part_kind"] = said[0]["part_kind"]
        message = {"role": message["role"], "content": said[0]["content"]}
    if usage := {name: value for name, value in dump.get("usage", {}).items() if value}:
        message["usage"] = usage
    return message, {NAME: rest}


def from_tape(message: tape.Message) -> Json:
    """Return the JSON of a message; one that was not written here comes as its text."""
    rest, data = (message.meta or {}).get(NAME), message.data
    answer = message.role == "assistant"
    kind = {"kind": "response" if answer else "request"}
    if rest is None:
        part = {"part_kind": "text" if answer else "user-prompt", "content": message.text}
        return {"parts": [part], "timestamp": message.recorded_at.isoformat(), **kind}
    if (dump := tape.from_strict(rest)) is not rest:
        return dump
    said = data["parts"] if "parts" in data else [{"content": data["content"]}]
    dump = {**rest, **kind, "parts": [{**part, **more} for part, more in zip(said, rest["parts"], strict=True)]}
    return {**dump, "usage": data.get("usage", {})} if answer else dump
