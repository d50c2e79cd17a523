"""Redaction: what is taken out of a report before it is written. Pure.

Fields, patterns and tokens are those of a ``tape.Redact``. Tool outputs are taken out whole, also of JSON in a text. An
entry of which anything was taken out loses its hash: with it a short secret could be guessed.

What a tool gave back is recognised by its shape alone. Whoever reads messages needs the id of the call that a result
answers and skips a result without one; here such a result would be a secret that stays.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from tape.core import json_text, typed
from tape.core.redact import REDACTED, Redact
from tape.runs.pure.values import StoredValue, redacted

__all__ = ["REDACTED", "Redaction"]

_ROLES = frozenset({"tool", "function", "toolresult", "toolresponse", "ipython"})
"""The roles in which only tools speak."""
_SPEAKERS = frozenset({"user", "human", "system", "developer", "assistant", "model", "ai"})
"""Those in which others do."""
_TYPES = ("type", "part_kind", "block_type")
_RESULT = re.compile(r"(^|_)(tool|call|function|execution)_?(result|response|return|output|error)s?(_|$)|_output$")
"""The types of parts and items that are what a tool gave back."""
_CALL_WITH_RESULT = re.compile(r"^tool(_|$)|^dynamic_tool$|_call$|_execution$")
"""The types of those that are a call, and may hold its result as well."""
# The names of fields below are in lower case and without what is no letter: ``errorText`` and ``error_text`` are one.
_OF_CALL = re.compile("(source|tool)?(call|use)id")
"""The fields that name a call, in it or in what answers it. Libraries write them as null where there is none."""
_ASKED = re.compile("args|arguments")
"""What a call asks; what somebody says may have such a field, too."""
_HOLDER = re.compile(r"(tool|function|execution)(use|call)?(result|response|return|output)s?$")
"""The fields that hold a result as a part of their own, or the bare output."""
_OUTPUT = re.compile(
    "artifact|contents?|error(text)?|exception|items|logs|[a-z]*outputs?|parts|response|[a-z]*results?(display)?"
    "|returnvalue|stderr|stdout|structuredcontent|text|value"
)
"""Where a result stands beside other fields."""
_NAME = re.compile(
    "args|arguments|blocktype|callid|id|input|iserror|kind|name|outcome|partkind|role|state|status|type"
    "|tool(call|use)?(id|name)"
)
"""The fields of a part that is a result which tell what it answers: all others are what the tool gave back."""
_NAMES_INSIDE = {
    "functionresponse": re.compile("id|name"),
    "toolresult": re.compile("tooluseid|status"),
    "codeexecutionresult": re.compile("id|outcome"),
}
"""The same for a result in a field of its own, as Gemini and Bedrock have it."""
_SHOWN = frozenset({"call", "media", "other", "result", "text", "thinking"})
_NAME_SHOWN = re.compile("part|call|name|kind|length|error")
"""Parts as a page shows them: what they are, and which of their fields are no text."""
_LAYOUTS: list[dict[str, Any]] = [
    {**layout, "ensure_ascii": escaped}
    for layout in ({"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 4})
    for escaped in (False, True)
]
"""How JSON is written in texts."""
_OPENING = re.compile(r"[{\[]|\"(?=(?:\\+[\"nrt]|\s)*[{\[])")
"""Where JSON may begin: an object, a list, or a string that is JSON itself."""
_TRIES = 1_000
"""How many brackets of a text may turn out to begin no JSON before the rest of it is taken out."""


class Redaction:
    """What is to be taken out: what a ``tape.Redact`` takes out, and with ``tool_outputs`` what tools gave back.

    As soon as anything is to be taken out, known tokens are as well.
    """

    def __init__(
        self, patterns: Iterable[str | re.Pattern[str]] = (), fields: Iterable[str] = (), *, tool_outputs: bool = False
    ) -> None:
        patterns, fields = list(patterns), list(fields)
        self._redact = Redact(fields, patterns, tokens=bool(patterns or fields or tool_outputs))
        self._tool_outputs = tool_outputs
        self._kinds: dict[str, Any] = {}
        """What each call of a run that was seen was a call of."""

    def __bool__(self) -> bool:
        return bool(self._redact)

    def __call__(self, value: Any) -> Any:
        """Return a JSON value without what is to be taken out; the value itself is left as it is."""
        return self._redact(self._prepared(value)) if self else value

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self._redact.text(text)

    def _prepared(self, value: Any) -> Any:
        """Return a value without the outputs of tools, and without secrets that chunks of a stream share."""
        if isinstance(value, str):
            return self._json(value) if self._tool_outputs else value
        if isinstance(value, list | tuple):
            return [self._prepared(item) for item in value]
        if not isinstance(value, dict):
            return value
        if self._tool_outputs:
            value = self._without_outputs(value)
        if value.keys() >= {"run", "lane", "n"} and isinstance(value.get("chunks"), list):
            value = {**value, "chunks": self._without_secrets(value["chunks"])}
        return {name: self._prepared(item) for name, item in value.items()}

    def _without_secrets(self, chunks: list[Any]) -> Any:
        try:
            values = typed.convert([value for _, value in chunks], list[StoredValue])
            cleaned = redacted(values, self._redact)
            return [[at, msgspec.to_builtins(value)] for (at, _), value in zip(chunks, cleaned, strict=True)]
        except (ValueError, TypeError):
            # Not as a run writes them.
            return REDACTED

    def _json(self, text: str) -> str:
        """Return a text without the outputs of tools in the JSON that it is or holds."""
        if "{" not in text:
            return text
        parts: list[str] = []
        last = tries = 0
        match = _OPENING.search(text)
        while match is not None:
            start, end = match.span()
            try:
                held, after = json_text.decode_first(text, start, deepest=json_text.RECORD)
                cleaned = self._prepared(held)
            except (RecursionError, json_text.NotJson) as error:
                tries += 1
                if isinstance(error, RecursionError) or error.deep or tries > _TRIES:
                    # The rest may contain an output.
                    parts, last = [*parts, text[last:start], REDACTED], len(text)
                    break
            else:
                if cleaned != held:
                    layout = next((one for one in _LAYOUTS if json.dumps(held, **one) == text[start:after]), {})
                    parts += [text[last:start], json.dumps(cleaned, **layout)]
                    last = end = after
                elif not isinstance(held, str):
                    # What looks like a string may stand between two others.
                    end = after
            match = _OPENING.search(text, end)
        return "".join([*parts, text[last:]])

    # -- what tools gave back

    def _without_outputs(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return an object without the outputs of tools that are its own; objects in it are looked at later."""
        kinds = [_words(value[name]) for name in _TYPES if isinstance(value.get(name), str)]
        if any(map(_RESULT.search, kinds)) or ("retry_prompt" in kinds and value.get("tool_name")):
            return _bare(value, _NAME)
        role = value.get("role")
        spoken = isinstance(role, str) and _letters(role) in _ROLES
        if (
            spoken
            or any(map(_CALL_WITH_RESULT.search, kinds))
            or any(item not in (None, "") and _OF_CALL.fullmatch(_letters(name)) for name, item in value.items())
            or (
                not (isinstance(role, str) and _letters(role) in _SPEAKERS)
                and any(_ASKED.fullmatch(_letters(name)) for name in value)
            )
        ):
            value = {name: _taken(item) if _OUTPUT.fullmatch(_letters(name)) else item for name, item in value.items()}
        elif value.keys() >= {"run", "lane", "n"}:
            value = self._without_result_of_run(value)
        return {name: _inside(name, item) for name, item in value.items()}

    def _without_result_of_run(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return what a run recorded of a call, without the result unless the call is known not to be a tool's."""
        call = (value["run"], value["lane"], value["n"])
        if "kind" in value:
            self._kinds[str(call)] = value["kind"]
        if self._kinds.get(str(call), "tool") != "tool":
            return value
        return {name: _taken(item) if name in ("value", "error", "chunks") else item for name, item in value.items()}


def _words(name: str) -> str:
    """Return a name in one spelling: ``tool-result``, ``toolResult`` and ``tool_result`` are one."""
    return re.sub("[^a-z0-9]+", "_", re.sub("([a-z0-9])([A-Z])", r"\1_\2", name).lower())


@functools.lru_cache(1_000)
def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _taken(item: Any) -> Any:
    """Return what stands in place of an output; parts that a page shows stay parts."""
    if isinstance(item, list) and all(isinstance(part, dict) and part.get("part") in _SHOWN for part in item):
        return [_bare(part, _NAME_SHOWN) for part in item]
    return item and REDACTED


def _inside(name: str, item: Any) -> Any:
    """Return the value of a field; one that is named as a result is taken out."""
    letters = _letters(name)
    if not isinstance(item, dict | list | str) or not _HOLDER.search(letters):
        return item
    names = _NAMES_INSIDE.get(letters)
    return _taken(item) if names is None or not isinstance(item, dict) else _bare(item, names)


def _bare(result: dict[str, Any], names: re.Pattern[str]) -> dict[str, Any]:
    """Return a result with these of its fields alone."""
    return {name: item if names.fullmatch(_letters(name)) else _taken(item) for name, item in result.items()}
