"""Claude Code: the session files under ``~/.claude/projects``, one JSON object per line. Pure.

A record has a ``uuid`` and a ``parentUuid``, so that a session is a tree: going back to an earlier prompt makes a
branch. Three things in it are not what they seem:

- One response of the model is written as several records, one per content block, which share ``message.id``. The
  result of each parallel tool call names the record of its own call as its parent, which puts all results but the
  last beside the path that the session continued on. Here the records of a response and the results of its calls
  are one run, and what continues any of them continues the run. ``parentUuid`` stays in the meta as it was.
- System notices, attachments and progress reports are in the chain of parents between messages. They become events,
  and the messages after them attach to the message before them.
- After a compaction a new chain begins, and ``logicalParentUuid`` names what came before. Here the messages stay in one
  path, with an anchor in it where the model's view begins.

- A parent may be missing: the file was cut, or a program removed records. Then the record follows the one that was
  written before it. Prompts that were typed while the model worked are in attachments or only in the queue.

Records of subagents (``isSidechain``) are lanes of their own, named by ``agentId`` or by their first record, and begin
at the call that started the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tape.core.entries import payloads
from tape.core.records import Entry
from tape.errors import ImportFailed
from tape.transcripts.formats.claude.agents import Agents
from tape.transcripts.formats.claude.prompt_queue import Queue, Queued, prompt_text
from tape.transcripts.formats.lines import Digests, Reading, count, digest, fingerprint, nonblank, records, stamp
from tape.transcripts.steps import Event, Message, Restart, Start, Step, Title, Used

__all__ = ["PREFIX", "Reader", "parse", "record_of"]

PREFIX = "claude-code:"
"""The prefix of the keys of all entries from a session file."""

REWRITTEN = "claude-code.rewritten"
"""The event for a record that was written again with other content."""

_NO_ROLE = "tape.no_role"


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a session file."""
    reader = Reader()
    waiting: list[Step] = []
    started = False
    for line, record in records(lines, reading):
        if not isinstance(record.get("type"), str):
            reading.problem(line, "is not a Claude Code record: it has no type")
            reading.keep(line, "record", record)
            continue
        session = nonblank(record.get("sessionId"))
        steps = reader.steps(line, record)
        if not started and session is None:
            # Summaries and snapshots at the top of a file do not name the session.
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
            raise ImportFailed(1, "is not a Claude Code transcript: no record has a uuid or a session")
        yield Start(line=1, agent="claude-code", meta={})
        yield from waiting
    if not reading.live:
        yield from reader.finish()


class Reader:
    """What has been read of a session so far."""

    def __init__(self) -> None:
        self.recognised = False
        self._line = 0
        self._digests = Digests()
        self._seen: dict[str, bytes] = {}
        """The fingerprint of every record that has a uuid."""
        self._rewritten: set[bytes] = set()
        """The fingerprints of those that came later, with a known uuid and other content."""
        self._behind: dict[str, str | None] = {}
        """For every uuid, the message that a child of it follows."""
        self._run: dict[str, tuple[str, str]] = {}
        """The run that a message is part of."""
        self._last: dict[tuple[str, str], str] = {}
        """The last message of every run."""
        self._lanes: dict[str, str] = {}
        self._aside = ""
        """The side conversation whose record was read last."""
        self._tails: dict[str, str] = {}
        """The last record of every lane."""
        self._compacted: set[str] = set()
        """The lanes whose last record but for events is the boundary of a compaction."""
        self._queue = Queue()
        self._agents = Agents()
        self._used: dict[str, tuple[int, int, int]] = {}
        self._named = False
        self._latest: tuple[str, str | None, tuple[str, str], str | None] | None = None
        """Of the last message: its uuid, its parent, its run, and the last message of that run before it."""

    def met(self, record: dict[str, Any]) -> bool:
        """Whether this record was read before: the same uuid with the same content."""
        uuid = nonblank(record.get("uuid"))
        if uuid is None or uuid not in self._seen:
            return False
        known = fingerprint(record)
        return self._seen[uuid] == known or known in self._rewritten

    def leave_out(self) -> None:
        """Treat the last message as no message: what continues it continues the message before."""
        assert self._latest is not None
        uuid, parent, run, last = self._latest
        self._behind[uuid] = parent
        if last is None:
            self._last.pop(run, None)
        else:
            self._last[run] = last

    def steps(self, line: int, record: dict[str, Any], key: str | None = None) -> Iterator[Step]:
        """Read one record; ``key`` names it if it has no uuid, otherwise a digest does."""
        kind = record["type"]
        self._line = line
        uuid = nonblank(record.get("uuid"))
        self.recognised |= uuid is not None or any(name in record for name in ("sessionId", "leafUuid", "messageId"))
        at = stamp(record.get("timestamp"))
        if uuid is None:
            key = self._digests.key(record) if key is None else key
            lane = self._lane(record, None)
            yield Event(line=line, key=PREFIX + key, name=f"claude-code.{kind}", data=record, lane=lane, at=at)
            yield from self._title(line, PREFIX + key, record)
            if kind == "queue-operation" and not lane:
                self._queue.note(key, record)
            return
        known = fingerprint(record)
        if self._seen.setdefault(uuid, known) != known:
            # Written again with other content: the first one counts, and the other is kept as an event.
            self._rewritten.add(known)
            yield Event(line=line, key=PREFIX + digest(record), name=REWRITTEN, data=record, at=at)
            return
        if uuid in self._lanes:
            # Written again as it was.
            return
        lane = self._lane(record, uuid)
        if lane and lane not in self._tails:
            yield self._agents.branch(line, lane, record, PREFIX)
        yield from self._placed(line, uuid, record, lane, at)
        self._tails[lane] = uuid

    def finish(self) -> Iterator[Step]:
        """Read the end: prompts that are still in the queue are the last messages."""
        for queued in self._queue.remaining():
            yield self._queued(self._line, queued, self._follow(self._tails.get(""), ""))

    def _placed(self, line: int, uuid: str, record: dict[str, Any], lane: str, at: int | None) -> Iterator[Step]:
        """Read a record that has a place in the tree."""
        kind, key, message = record["type"], PREFIX + uuid, record.get("message")
        if kind == "attachment":
            self._queue.attached()
            message = _attached_prompt(record)
        if kind in ("user", "assistant", "attachment") and isinstance(message, dict):
            yield from self._message_steps(line, uuid, record, message, lane, at)
            return
        if not lane:
            self._agents.note(uuid, record, None)
        parent = self._parent(record, uuid, lane) or self._follow(self._tails.get(lane), lane)
        if kind == "system" and record.get("subtype") == "compact_boundary":
            self._compacted.add(lane)
            yield Restart(line=line, key=key, parent=_key(parent), name="compact", meta=record, lane=lane, at=at)
        else:
            yield Event(line=line, key=key, name=f"claude-code.{kind}", data=record, lane=lane, at=at)
        self._behind[uuid] = parent

    def _message_steps(
        self, line: int, uuid: str, record: dict[str, Any], message: dict[str, Any], lane: str, at: int | None
    ) -> Iterator[Step]:
        """Read a message, after prompts that were typed meanwhile and after the anchor of a compaction."""
        kind, key = record["type"], PREFIX + uuid
        parent = self._parent(record, uuid, lane)
        if parent is None and (kind != "user" or _answers(record, message)):
            # Only a person starts a new root. An answer without a parent follows the message before it.
            parent = self._follow(self._tails.get(lane), lane)
        if not lane:
            self._agents.note(uuid, record, message.get("content"))
            if kind != "assistant":
                self._queue.recorded(message.get("content"))
            if kind == "assistant" or (kind == "user" and not _answers(record, message)):
                for queued in self._queue.absorbed():
                    step = self._queued(line, queued, parent)
                    yield step
                    parent = step.id
        if record.get("isCompactSummary") is True and lane not in self._compacted:
            # The boundary is not in the file, but the model's view starts again here.
            parent = parent or self._follow(self._tails.get(lane), lane)
            yield Restart(
                line=line, key=f"{key}/compact", parent=_key(parent), name="compact", meta={}, lane=lane, at=at
            )
        self._compacted.discard(lane)
        self._join(uuid, record, message, lane, parent)
        yield self._message(line, key, uuid, record, message, parent, lane, at)
        yield from self._usage(line, key, message, lane, at)

    def _queued(self, line: int, queued: Queued, parent: str | None) -> Message:
        """Return a prompt that only the queue contains as a message."""
        uuid = f"{queued.key}/prompt"
        run = ("", uuid)
        self._latest = (uuid, parent, run, None)
        self._lanes[uuid], self._behind[uuid], self._run[uuid], self._last[run] = "", uuid, run, uuid
        self._tails[""] = uuid
        return Message(
            line=line,
            key=PREFIX + uuid,
            parent=_key(parent),
            message={"role": "user", "content": queued.content},
            id=uuid,
            meta={"queued": queued.key},
            actor="user",
            at=stamp(queued.record.get("timestamp")),
        )

    def _lane(self, record: dict[str, Any], uuid: str | None) -> str:
        lane = ""
        parent = record.get("parentUuid")
        if record.get("isSidechain") is True:
            agent = nonblank(record.get("agentId"))
            if agent is not None:
                lane = f"agent-{agent}"
            elif isinstance(parent, str):
                lane = self._lanes.get(parent, self._aside) or f"sidechain-{uuid}"
            else:
                lane = f"sidechain-{uuid}"
            self._aside = lane
        if uuid is not None:
            self._lanes[uuid] = lane
        return lane

    def _parent(self, record: dict[str, Any], uuid: str, lane: str) -> str | None:
        """Return the message that a record follows; one whose parent is missing follows the one before it."""
        parent = record.get("parentUuid")
        if not isinstance(parent, str):
            parent = record.get("logicalParentUuid")
        if not isinstance(parent, str):
            return None
        if parent == uuid or parent not in self._lanes:
            parent = self._tails.get(lane)
        return self._follow(parent, lane)

    def _follow(self, parent: Any, lane: str) -> str | None:
        """Return the message that a record with this parent follows, if it is in the file and in the lane."""
        message = self._behind.get(parent) if isinstance(parent, str) else None
        if message is None or self._lanes[message] != lane:
            return None
        return self._last[self._run[message]]

    def _join(self, uuid: str, record: dict[str, Any], message: dict[str, Any], lane: str, parent: str | None) -> None:
        """Make a message the last of its run."""
        run = (lane, uuid)
        response = message.get("id")
        if record["type"] == "assistant" and isinstance(response, str):
            run = (lane, response)
        elif record["type"] == "attachment" or _answers(record, message):
            recorded_parent = record.get("parentUuid")
            before = self._behind.get(recorded_parent) if isinstance(recorded_parent, str) else None
            if before is not None and self._lanes[before] == lane:
                run = self._run[before]
        self._latest = (uuid, parent, run, self._last.get(run))
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
        at: int | None,
    ) -> Message:
        body = {name: value for name, value in message.items() if name in ("role", "content")}
        if record["type"] == "attachment":
            meta = {**record, "attachment": {**record["attachment"], "prompt": None}}
        else:
            rest = {name: value for name, value in message.items() if name not in ("role", "content")}
            meta = {**record, "message": rest}
        if "role" not in body:
            body["role"] = record["type"]
            meta[_NO_ROLE] = True
        return Message(
            line=line,
            key=key,
            parent=_key(parent),
            message=body,
            id=uuid,
            meta=meta,
            actor=nonblank(record.get("agentId")) or ("assistant" if record["type"] == "assistant" else "user"),
            lane=lane,
            at=at,
        )

    def _usage(self, line: int, key: str, message: dict[str, Any], lane: str, at: int | None) -> Iterator[Step]:
        """Yield the usage of a response. Its records repeat and complete the numbers, so only increases count."""
        response, usage = message.get("id"), message.get("usage")
        if not isinstance(response, str) or not isinstance(usage, dict):
            return
        cached = count(usage.get("cache_read_input_tokens"))
        input_tokens = count(usage.get("input_tokens")) + count(usage.get("cache_creation_input_tokens")) + cached
        now = (input_tokens, count(usage.get("output_tokens")), cached)
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
                model=nonblank(message.get("model")),
                lane=lane,
                at=at,
            )

    def _title(self, line: int, key: str, record: dict[str, Any]) -> Iterator[Step]:
        """Yield the session's name; a name from the user is not replaced by a generated one."""
        kind = record["type"]
        name = None
        if kind == "custom-title":
            name = nonblank(record.get("customTitle"))
            self._named = self._named or name is not None
        elif kind == "ai-title" and not self._named:
            name = nonblank(record.get("aiTitle"))
        elif kind == "summary" and not self._named and nonblank(record.get("leafUuid")) in self._seen:
            name = nonblank(record.get("summary"))
        if name is not None:
            yield Title(line=line, key=f"{key}/title", name=name)


def record_of(entry: Entry) -> dict[str, Any] | None:
    """Return the record that an entry was made of, or None for an entry that was not made of one record alone."""
    meta, payload = entry.meta, entry.payload
    if not entry.key.startswith(PREFIX):
        return None
    if isinstance(payload, payloads.Event):
        return payload.data if isinstance(payload.data, dict) else None
    if isinstance(payload, payloads.Anchor):
        return meta
    if not isinstance(payload, payloads.Append) or meta is None or "uuid" not in meta:
        return None
    body = payload.message
    assert isinstance(body, dict), "an entry that was read holds its message"
    if meta["type"] == "attachment":
        return {**meta, "attachment": {**meta["attachment"], "prompt": body["content"]}}
    message = dict(meta["message"])
    if "content" in body:
        message["content"] = body["content"]
    record = dict(meta)
    if record.pop(_NO_ROLE, None) is None and "role" in body:
        message["role"] = body["role"]
    record["message"] = message
    return record


def _key(uuid: str | None) -> str | None:
    return None if uuid is None else PREFIX + uuid


def _attached_prompt(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the prompt in an attachment as a message; None for any other attachment."""
    attachment = record.get("attachment")
    if not isinstance(attachment, dict) or attachment.get("type") != "queued_command":
        return None
    prompt = attachment.get("prompt")
    return None if prompt_text(prompt) is None else {"role": "user", "content": prompt}


def _answers(record: dict[str, Any], message: dict[str, Any]) -> bool:
    """Whether a user's record comes from a tool and not from a person."""
    if record["type"] != "user":
        return False
    content = message.get("content")
    if isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    ):
        return True
    return record.get("isMeta") is True and isinstance(record.get("sourceToolUseID"), str)
