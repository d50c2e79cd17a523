"""Claude Code: the session files under ``~/.claude/projects``, one JSON object per line. Pure.

A record has a ``uuid`` and a ``parentUuid``, so that a session is a tree: going back to an earlier prompt makes a
branch. Three things in it are not what they seem:

- One response of the model is written as several records, one per content block, which share ``message.id``. The
  result of each parallel tool call names the record of its own call as its parent, which puts all results but the
  last beside the path that the session went on with. Here the records of a response and the results of its calls
  are one run, and what continues any of them continues the run. ``parentUuid`` stays in the meta as it was.
- System notices, attachments and progress reports stand in the chain of parents between messages. They become events,
  and the messages behind them attach to the message before them.
- After a compaction the chain begins anew; ``logicalParentUuid`` tells what came before. Here the messages stay in one
  path, with an anchor in it where the model's view begins.

Records of subagents (``isSidechain``) are lanes of their own, named by ``agentId`` or by their first record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.errors import ImportFailed
from tape.transcripts.lines import Digests, count, digest, records, said
from tape.transcripts.steps import Event, Message, Restart, Start, Step, Title, Used

__all__ = ["parse"]

_PREFIX = "claude-code:"


def parse(lines: Iterable[bytes]) -> Iterator[Step]:
    """Read a session file."""
    reader = _Reader()
    waiting: list[Step] = []
    started = False
    for line, record in records(lines):
        if not isinstance(record.get("type"), str):
            raise ImportFailed(line, "is no record of Claude Code: it has no type")
        session = said(record.get("sessionId"))
        steps = list(reader.steps(line, record))
        if not started and session is None:
            # Summaries and snapshots at the top of a file do not tell which session it is.
            waiting += steps
            continue
        if not started:
            started = True
            meta = {name: value for name, value in record.items() if name in ("cwd", "version", "gitBranch")}
            yield Start(line=line, id=session, agent="claude-code", meta=meta)
            yield from waiting
        yield from steps
    if not started:
        if not reader.recognised:
            raise ImportFailed(1, "is no transcript of Claude Code: no record has a uuid or a session")
        yield Start(line=1, agent="claude-code", meta={})
        yield from waiting


class _Reader:
    """What has been read of a session so far."""

    def __init__(self) -> None:
        self.recognised = False
        self._digests = Digests()
        self._seen: dict[str, str] = {}
        """The digest of every record that has a uuid."""
        self._behind: dict[str, str | None] = {}
        """For every uuid, the message that a child of it follows."""
        self._run: dict[str, tuple[str, str]] = {}
        """The run that a message is part of."""
        self._last: dict[tuple[str, str], str] = {}
        """The last message of every run."""
        self._lanes: dict[str, str] = {}
        self._used: dict[str, tuple[int, int, int]] = {}
        self._named = False

    def steps(self, line: int, record: dict[str, Any]) -> Iterator[Step]:
        """Read one record."""
        kind = record["type"]
        uuid = said(record.get("uuid"))
        self.recognised |= uuid is not None or any(name in record for name in ("sessionId", "leafUuid", "messageId"))
        if uuid is None:
            key = _PREFIX + self._digests.key(record)
            yield Event(line=line, key=key, name=f"claude-code.{kind}", data=record, lane=self._lane(record, None))
            yield from self._title(line, key, record)
            return
        told = digest(record)
        if self._seen.setdefault(uuid, told) != told:
            # Written again with other content: the first one holds, and the other is kept beside it.
            yield Event(line=line, key=_PREFIX + told, name="claude-code.rewritten", data=record)
            return
        lane = self._lane(record, uuid)
        key = _PREFIX + uuid
        parent = self._follow(record.get("parentUuid"), lane)
        message = record.get("message")
        if kind in ("user", "assistant") and isinstance(message, dict):
            self._join(uuid, record, message, lane)
            yield self._message(line, key, uuid, record, message, parent, lane)
            yield from self._usage(line, key, message, lane)
            return
        if kind == "system" and record.get("subtype") == "compact_boundary":
            parent = parent or self._follow(record.get("logicalParentUuid"), lane)
            yield Restart(line=line, key=key, parent=_key(parent), name="compact", meta=record, lane=lane)
        else:
            yield Event(line=line, key=key, name=f"claude-code.{kind}", data=record, lane=lane)
        self._behind[uuid] = parent

    def _lane(self, record: dict[str, Any], uuid: str | None) -> str:
        lane = ""
        parent = record.get("parentUuid")
        if record.get("isSidechain") is True:
            agent = said(record.get("agentId"))
            if agent is not None:
                lane = f"agent-{agent}"
            else:
                lane = (self._lanes.get(parent) if isinstance(parent, str) else None) or f"sidechain-{uuid}"
        if uuid is not None:
            self._lanes[uuid] = lane
        return lane

    def _follow(self, parent: Any, lane: str) -> str | None:
        """Return the message that a record with this parent comes behind, if it is in the file and in the lane."""
        message = self._behind.get(parent) if isinstance(parent, str) else None
        if message is None or self._lanes[message] != lane:
            return None
        return self._last[self._run[message]]

    def _join(self, uuid: str, record: dict[str, Any], message: dict[str, Any], lane: str) -> None:
        """Make a message the last of its run."""
        run = (lane, uuid)
        response = message.get("id")
        if record["type"] == "assistant" and isinstance(response, str):
            run = (lane, response)
        elif record["type"] == "user" and _answers(record, message):
            parent = record.get("parentUuid")
            before = self._behind.get(parent) if isinstance(parent, str) else None
            if before is not None and self._lanes[before] == lane:
                run = self._run[before]
        self._behind[uuid] = uuid
        self._run[uuid] = run
        self._last[run] = uuid

    def _message(
        self,
        line: int,
        key: str,
        uuid: str,
        record: dict[str, Any],
        message: dict[str, Any],
        parent: str | None,
        lane: str,
    ) -> Message:
        given = {name: value for name, value in message.items() if name in ("role", "content")}
        given.setdefault("role", record["type"])
        rest = {name: value for name, value in message.items() if name not in ("role", "content")}
        return Message(
            line=line,
            key=key,
            parent=_key(parent),
            message=given,
            id=uuid,
            meta={**record, "message": rest},
            actor=said(record.get("agentId")) or record["type"],
            lane=lane,
        )

    def _usage(self, line: int, key: str, message: dict[str, Any], lane: str) -> Iterator[Step]:
        """Tell what a response took; its records repeat and complete the numbers, so only what is more counts."""
        response, usage = message.get("id"), message.get("usage")
        if not isinstance(response, str) or not isinstance(usage, dict):
            return
        cached = count(usage.get("cache_read_input_tokens"))
        given = count(usage.get("input_tokens")) + count(usage.get("cache_creation_input_tokens")) + cached
        now = (given, count(usage.get("output_tokens")), cached)
        before = self._used.get(response, (0, 0, 0))
        more = [max(0, new - old) for new, old in zip(now, before, strict=True)]
        if any(more):
            self._used[response] = tuple(map(max, now, before))  # type: ignore[assignment]
            yield Used(
                line=line,
                key=f"{key}/usage",
                input_tokens=more[0],
                output_tokens=more[1],
                cached_tokens=more[2],
                model=said(message.get("model")),
                lane=lane,
            )

    def _title(self, line: int, key: str, record: dict[str, Any]) -> Iterator[Step]:
        """Tell the session's name; one that the user gave is not replaced by one that was made up."""
        kind = record["type"]
        name = None
        if kind == "custom-title":
            name = said(record.get("customTitle"))
            self._named = self._named or name is not None
        elif kind == "ai-title" and not self._named:
            name = said(record.get("aiTitle"))
        elif kind == "summary" and not self._named and said(record.get("leafUuid")) in self._seen:
            name = said(record.get("summary"))
        if name is not None:
            yield Title(line=line, key=f"{key}/title", name=name)


def _key(uuid: str | None) -> str | None:
    return None if uuid is None else _PREFIX + uuid


def _answers(record: dict[str, Any], message: dict[str, Any]) -> bool:
    """Whether a user's record comes from a tool and not from a person."""
    content = message.get("content")
    if isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    ):
        return True
    return record.get("isMeta") is True and isinstance(record.get("sourceToolUseID"), str)
