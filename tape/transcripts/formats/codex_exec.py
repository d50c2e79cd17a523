"""Codex without a terminal: what ``codex exec --json`` prints, an object a line. Pure.

Two dialects: events of a thread whose items are completed one by one, and before that (up to 0.43) ``{"id", "msg"}``
after a line with the settings and one with the prompt. A command or a tool becomes a call and its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, reasoning
from tape.transcripts.formats.lines import Reading, nonblank, records, stamp
from tape.transcripts.steps import Start, Step

__all__ = ["parse"]

Body = dict[str, Any]


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a stream."""
    reader = _Reader()
    for line, record in records(lines, reading):
        yield from reader.steps(line, record)
    if not reader.started:
        raise ImportFailed(1, "is empty")


class _Reader:
    """What has been read of a stream so far."""

    def __init__(self) -> None:
        self.started = False
        self._conversation = Conversation("codex-exec")
        self._model: str | None = None
        self._begun: dict[str, Body] = {}
        """The commands of the older dialect that have not ended yet."""

    def steps(self, line: int, record: Body) -> Iterator[Step]:
        """Read one record."""
        kind, old, at = record.get("type"), record.get("msg"), stamp(record.get("timestamp"))
        if not self.started:
            is_event = isinstance(kind, str) and kind.startswith(("thread.", "turn.", "item."))
            if not is_event and not isinstance(old, dict) and not record.keys() & {"prompt", "workdir"}:
                raise ImportFailed(line, "is not a Codex event stream: it does not begin with a thread event")
            self.started = True
            yield Start(line=line, id=nonblank(record.get("thread_id")), agent="codex", meta={})
        self._model = nonblank(record.get("model")) or self._model
        messages = self._old(old) if isinstance(old, dict) else self._new(record)
        if "prompt" in record and nonblank(record["prompt"]) is not None:
            messages = [{"role": "user", "content": record["prompt"]}]
        name = str(old.get("type") if isinstance(old, dict) else kind or "settings")
        for index, message in enumerate(messages):
            meta = {"record": record} if not index else {}
            yield self._conversation.message(line, message, meta, original=[record, index], at=at)
        if not messages:
            yield self._conversation.event(line, name, record, at)
        usage = record.get("usage")
        if isinstance(old, dict) and name == "token_count" and isinstance(old.get("info"), dict):
            usage = old["info"].get("last_token_usage")
        if isinstance(usage, dict):
            details = {"cached_tokens": usage.get("cached_input_tokens")}
            yield from self._conversation.usage(line, {**usage, "input_tokens_details": details}, self._model, at)

    def _new(self, record: Body) -> list[Body]:
        item = record.get("item")
        if record.get("type") != "item.completed" or not isinstance(item, dict):
            return []
        kind = item.get("type", item.get("item_type"))
        text = nonblank(item.get("text"))
        if kind in ("agent_message", "assistant_message") and text is not None:
            return [{"role": "assistant", "content": text}]
        if kind == "reasoning" and text is not None:
            return [reasoning(text)]
        if kind == "command_execution":
            output = f"{item.get('aggregated_output') or ''}\n[exit code {item.get('exit_code')}]"
            return _called(item, "shell", {"command": item.get("command")}, output)
        if kind == "mcp_tool_call":
            name = f"{item.get('server')}__{item.get('tool')}"
            return _called(item, name, item.get("arguments"), item.get("error") or item.get("result"))
        if kind == "file_change":
            return _called(item, "apply_patch", {"changes": item.get("changes")}, item.get("status"))
        if kind == "web_search":
            return _called(item, "web_search", {"query": item.get("query")}, item.get("results") or "done")
        return []

    def _old(self, event: Body) -> list[Body]:
        kind, text = event.get("type"), nonblank(event.get("message")) or nonblank(event.get("text"))
        if kind == "agent_message" and text is not None:
            return [{"role": "assistant", "content": text}]
        if kind == "agent_reasoning" and text is not None:
            return [reasoning(text)]
        call = nonblank(event.get("call_id"))
        if call is not None and isinstance(kind, str):
            if kind.endswith("_begin"):
                self._begun[call] = event
            elif kind.endswith("_end") and call in self._begun:
                begun = self._begun.pop(call)
                name = "shell" if kind.startswith("exec") else kind.removesuffix("_end")
                arguments = {key: value for key, value in begun.items() if key not in ("type", "call_id")}
                output = event.get("aggregated_output") or event.get("formatted_output") or event.get("stdout")
                rest = {key: value for key, value in event.items() if key not in ("type", "call_id")}
                return _called({"id": call}, name, arguments, output or rest)
        return []


def _called(item: Body, name: str, arguments: Any, output: Any) -> list[Body]:
    """Return what a tool did as a call and its output."""
    call = nonblank(item.get("id")) or "call"
    encoded = msgspec.json.encode(arguments if isinstance(arguments, dict) else {"input": arguments}).decode()
    result = output if isinstance(output, str) else msgspec.json.encode(output).decode()
    return [
        {"type": "function_call", "call_id": call, "name": name, "arguments": encoded},
        {"type": "function_call_output", "call_id": call, "output": result},
    ]
