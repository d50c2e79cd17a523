"""Codex: the rollout files under ``~/.codex/sessions``, one JSON object per line. Pure.

A line is ``{"timestamp", "type", "payload"}``. Response items are messages in the shape of OpenAI's Responses API; all
else becomes events. Older files have the session on the first line and then bare items; the oldest are one JSON
document with ``session`` and ``items``.

A rollout is a log without ids. Its lines are identified by a digest of each line and all lines before it. After turns
that were rolled back, the next message branches off before them. A compaction becomes an anchor, followed by the
history that Codex continued with, or a handoff with the summary if only that was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.errors import ImportFailed
from tape.transcripts.formats.lines import Reading, count, digest, documents, nonblank, stamp
from tape.transcripts.steps import Event, Message, Restart, Start, Step, Title, Used

__all__ = ["parse"]

_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_CONTEXT = ("<", "# AGENTS.md")
"""The beginnings of messages that Codex itself puts before a user's."""


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a rollout file."""
    reader = _Reader()
    for line, value in documents(lines, reading, mend=True):
        for record in _unfolded(value):
            if isinstance(record, dict):
                yield from reader.steps(line, record)
            else:
                reading.problem(line, f"holds a {type(record).__name__}, not an object")
                reading.keep(line, "value", {"line": line, "value": record})
    if not reader.started:
        raise ImportFailed(1, "is empty")


def _unfolded(value: Any) -> list[Any]:
    """Return the records of a value: itself, or those of a whole session in one document."""
    if isinstance(value, dict) and "type" not in value:
        session, items = value.get("session"), value.get("items")
        if isinstance(session, dict) and isinstance(items, list):
            return [session, *items]
    return [value]


class _Reader:
    """What has been read of a rollout so far."""

    def __init__(self) -> None:
        self.started = False
        self._digest = ""
        self._path: list[tuple[str, bool]] = []
        """The messages of the path, and whether each begins a turn of the user's."""
        self._used = (0, 0, 0)
        self._model: str | None = None
        self._at: int | None = None
        """When the last record was written."""

    def steps(self, line: int, record: dict[str, Any]) -> Iterator[Step]:
        """Read one record."""
        kind, payload = record.get("type"), record.get("payload")
        new = isinstance(payload, dict) and isinstance(kind, str)
        if not self.started:
            session = payload if new and kind == "session_meta" else record if "type" not in record else None
            if session is None and not (new and kind in _TYPES) and not _is_message(record):
                raise ImportFailed(line, "is not a Codex rollout: it begins with neither a session nor an item")
            if session is not None and not new and not {"id", "timestamp"} <= session.keys():
                raise ImportFailed(line, "is not a Codex rollout: its first line names no session")
            self.started = True
            yield Start(line=line, id=nonblank((session or {}).get("id")), agent="codex", meta={})
        self._digest = digest(record, self._digest)
        self._at = stamp(record.get("timestamp"))
        key = f"codex:{self._digest}"
        if not new:
            if _is_message(record):
                yield self._message(line, key, record, {})
            else:
                name = kind or record.get("record_type") or "session_meta"
                yield Event(line=line, key=key, name=f"codex.{name}", data=record, at=self._at)
            return
        assert isinstance(payload, dict)
        outside = {name: value for name, value in record.items() if name != "payload"}
        if kind == "response_item" and _is_message(payload):
            yield self._message(line, key, payload, outside)
        elif kind == "compacted":
            yield from self._compacted(line, key, record, payload, outside)
        else:
            yield Event(line=line, key=key, name=f"codex.{kind}", data=record, at=self._at)
            yield from self._noticed(line, key, kind, payload)

    def _message(self, line: int, key: str, item: dict[str, Any], meta: dict[str, Any]) -> Message:
        parent = self._path[-1][0] if self._path else None
        self._path.append((key, _begins_turn(item)))
        kind = str(item.get("type"))
        actor = nonblank(item.get("role")) or ("tool" if kind.endswith("_output") else "assistant")
        return Message(line=line, key=key, parent=parent, message=item, meta=meta, actor=actor, at=self._at)

    def _compacted(
        self, line: int, key: str, record: dict[str, Any], payload: dict[str, Any], outside: dict[str, Any]
    ) -> Iterator[Step]:
        history = payload.get("replacement_history")
        items = (
            [item for item in history if isinstance(item, dict) and _is_message(item)]
            if isinstance(history, list)
            else []
        )
        yield Restart(
            line=line,
            key=key,
            parent=self._path[-1][0] if self._path else None,
            name="compacted",
            summary=None if items else nonblank(payload.get("message")),
            meta=record,
            at=self._at,
        )
        for index, item in enumerate(items):
            yield self._message(line, f"{key}/{index}", item, {**outside, "replacement": index})

    def _noticed(self, line: int, key: str, kind: str | None, payload: dict[str, Any]) -> Iterator[Step]:
        """Read what a record that is no message changes in the conversation."""
        if kind == "turn_context":
            self._model = nonblank(payload.get("model")) or self._model
        if kind != "event_msg":
            return
        notice = payload.get("type")
        if notice == "thread_rolled_back":
            self._roll_back(count(payload.get("num_turns")))
        elif notice == "thread_name_updated":
            name = nonblank(payload.get("thread_name"))
            if name is not None:
                yield Title(line=line, key=f"{key}/title", name=name)
        elif notice == "token_count" and isinstance(payload.get("info"), dict):
            yield from self._usage(line, key, payload["info"].get("total_token_usage"))

    def _roll_back(self, turns: int) -> None:
        while turns and self._path:
            turns -= self._path.pop()[1]

    def _usage(self, line: int, key: str, total: Any) -> Iterator[Step]:
        """Yield the usage since the last report, because reports are cumulative and repeated."""
        if not isinstance(total, dict):
            return
        now = tuple(count(total.get(name)) for name in ("input_tokens", "output_tokens", "cached_input_tokens"))
        more = [max(0, new - old) for new, old in zip(now, self._used, strict=True)]
        if any(more):
            self._used = (now[0], now[1], now[2])
            yield Used(
                line=line,
                key=f"{key}/usage",
                input_tokens=more[0],
                output_tokens=more[1],
                cached_tokens=more[2],
                model=self._model,
                at=self._at,
            )


def _is_message(item: dict[str, Any]) -> bool:
    """Whether an item is part of what a model reads or writes."""
    kind = item.get("type")
    if not isinstance(kind, str):
        return False
    return kind in ("message", "reasoning") or kind.endswith(("_call", "_call_output"))


def _begins_turn(item: dict[str, Any]) -> bool:
    """Whether a user wrote this, and not Codex on the user's behalf."""
    content = item.get("content")
    if item.get("role") != "user" or not isinstance(content, list):
        return False
    texts = [str(part.get("text", "")) for part in content if isinstance(part, dict)]
    return not (texts and texts[0].lstrip().startswith(_CONTEXT))
