"""Claude Code without a terminal: what ``claude -p --output-format stream-json`` prints, an object a line. Pure.

Messages are written as in a session file, but as a list and not as a tree. Those of a subagent name the call that
started it (``parent_tool_use_id``). The prompt is included only if it was passed as JSON or repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, without
from tape.transcripts.formats.lines import Reading, nonblank, records, stamp
from tape.transcripts.steps import Branch, Start, Step

__all__ = ["parse"]


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a stream."""
    reader = _Reader()
    for line, record in records(lines, reading):
        yield from reader.steps(line, record)
    if reader.session is None:
        raise ImportFailed(1, "is not a Claude Code stream: no line names a session")


class _Reader:
    """What has been read of a stream so far."""

    def __init__(self) -> None:
        self.session: str | None = None
        self._lanes: dict[str, Conversation] = {"": Conversation("claude-stream")}
        self._makers: dict[str, str] = {}
        """The message that makes a call."""
        self._used: set[str] = set()

    def steps(self, line: int, record: dict[str, Any]) -> Iterator[Step]:
        """Read one record."""
        kind, message, at = record.get("type"), record.get("message"), stamp(record.get("timestamp"))
        session = nonblank(record.get("session_id"))
        if self.session is None:
            if session is None or not isinstance(kind, str):
                raise ImportFailed(line, "is not a record of a Claude Code stream")
            self.session = session
            settings = ("cwd", "model", "claude_code_version")
            meta = {name: value for name, value in record.items() if name in settings}
            yield Start(line=line, id=session, agent="claude-code", meta=meta)
        call = nonblank(record.get("parent_tool_use_id"))
        lane = "" if call is None else f"agent-{call}"
        if lane not in self._lanes:
            self._lanes[lane] = Conversation("claude-stream")
            yield Branch(line=line, lane=lane, parent=self._makers.get(call or ""))
        conversation = self._lanes[lane]
        if kind not in ("user", "assistant") or not isinstance(message, dict):
            event = conversation.event(line, str(kind), record, at)
            event.lane = lane
            yield event
            return
        body = {name: message[name] for name in ("role", "content") if name in message}
        body.setdefault("role", kind)
        step = conversation.message(
            line, body, {**record, "message": without(message, "role", "content")}, original=record, at=at
        )
        step.lane = lane
        yield step
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if isinstance(part, dict) and part.get("type") == "tool_use" and isinstance(part.get("id"), str):
                self._makers[part["id"]] = step.key
        response = nonblank(message.get("id"))
        if response is None or response not in self._used:
            for used in conversation.usage(line, message.get("usage"), message.get("model"), at):
                self._used.add(response or "")
                used.lane = lane
                yield used
