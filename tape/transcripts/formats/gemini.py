"""Gemini CLI: chats under ``~/.gemini/tmp/*/chats`` and checkpoints that ``/chat save`` wrote. Pure.

A chat is one JSON document, or since 0.30 a log. The log has a line with the session, lines of messages, where a
repeated id replaces the earlier message, ``$set`` for changes of the session and ``$rewindTo`` where the user went
back. A checkpoint is a list of the API's contents, or an object with that list as its ``history``.

Messages become chat messages: ``gemini`` and ``model`` are ``assistant``, its tool calls and their results are those of
OpenAI's chat messages, and thoughts are items of reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, reasoning, tool_call, without
from tape.transcripts.formats.lines import Reading, count, documents, nonblank, stamp
from tape.transcripts.steps import Start, Step, Title

__all__ = ["parse"]

Body = dict[str, Any]
_SAID = ("user", "gemini")


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a chat or a checkpoint."""
    chat = _Chat(reading)
    for line, value in documents(lines, reading, mend=True):
        yield from chat.take(line, value)
    if not chat.started:
        raise ImportFailed(1, "is not a Gemini CLI chat: no line names a session or a history")
    yield from chat.flush()


class _Chat:
    """A chat as far as it was read."""

    def __init__(self, reading: Reading) -> None:
        self.started = False
        self._reading = reading
        self._conversation = Conversation("gemini")
        self._messages: dict[str, tuple[int, Body]] = {}
        """The messages of the path, in their order."""
        self._calls = 0

    def take(self, line: int, value: Any) -> Iterator[Step]:
        """Read one value of the file."""
        if isinstance(value, list) or (isinstance(value, dict) and isinstance(value.get("history"), list)):
            yield from self._checkpoint(line, value if isinstance(value, list) else value["history"])
            return
        if not isinstance(value, dict):
            self._reading.problem(line, f"holds a {type(value).__name__}, not an object")
            self._reading.keep(line, "value", {"line": line, "value": value})
            return
        session = nonblank(value.get("sessionId"))
        if not self.started:
            # Claude Code's records name a session, too, and each its parent.
            if session is None or "parentUuid" in value:
                raise ImportFailed(line, "is not a Gemini CLI chat: it names no session")
            self.started = True
            meta = {name: value[name] for name in ("projectHash", "startTime", "directories", "kind") if name in value}
            yield Start(line=line, id=session, agent="gemini", meta=meta)
        if isinstance(value.get("messages"), list):
            for message in value["messages"]:
                self._note(line, message)
        updates = value.get("$set")
        fields = updates if isinstance(updates, dict) else value
        if nonblank(fields.get("summary")) is not None:
            key = f"gemini:{session or ''}/{fields['summary'][:80]}"
            yield Title(line=line, key=key, name=fields["summary"])
        if nonblank(value.get("$rewindTo")) is not None:
            yield from self._rewind(line, value["$rewindTo"])
        elif session is None and updates is None:
            self._note(line, value)
        elif "messages" not in value:
            yield self._conversation.event(line, "session", value)

    def flush(self) -> Iterator[Step]:
        """Read the messages of the path from the first to the last."""
        self._conversation.restart()
        for line, message in self._messages.values():
            yield from self._message(line, message)

    def _note(self, line: int, message: Any) -> None:
        id = nonblank(message.get("id")) if isinstance(message, dict) else None
        if id is None:
            self._reading.problem(line, "holds a message without an id")
            self._reading.keep(line, "value", {"line": line, "value": message})
        else:
            self._messages[id] = (line, message)

    def _rewind(self, line: int, id: str) -> Iterator[Step]:
        yield from self.flush()
        yield self._conversation.event(line, "rewind", {"$rewindTo": id})
        ids = list(self._messages)
        for later in ids[ids.index(id) :] if id in self._messages else ():
            del self._messages[later]

    def _message(self, line: int, record: Body) -> Iterator[Step]:
        conversation, at, kind = self._conversation, stamp(record.get("timestamp")), record.get("type")
        if kind not in _SAID:
            yield conversation.event(line, str(kind or "record"), record, at)
            return
        id = record["id"]
        thoughts = record.get("thoughts")
        texts = [_thought(thought) for thought in thoughts] if isinstance(thoughts, list) else []
        if texts:
            yield conversation.message(line, reasoning(*texts), original=[id, "thoughts", texts], at=at)
        calls = record.get("toolCalls")
        made = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        content = record.get("content")
        message: Body = {"role": "user" if kind == "user" else "assistant", "content": _content(content)}
        if made:
            message["tool_calls"] = [
                tool_call(str(call.get("id")), str(call.get("name")), call.get("args") or {}) for call in made
            ]
        rest = without(record, "content", "toolCalls", "thoughts")
        yield conversation.message(line, message, rest, original=[id, message], at=at)
        tokens = record.get("tokens")
        if isinstance(tokens, dict):
            usage = {
                "input_tokens": count(tokens.get("input")),
                "output_tokens": count(tokens.get("output")) + count(tokens.get("thoughts")),
                "input_tokens_details": {"cached_tokens": tokens.get("cached")},
            }
            yield from conversation.usage(line, usage, record.get("model"), at)
        for call in made:
            if call.get("result") is not None or call.get("status") not in (None, "executing", "scheduled"):
                answer = {"role": "tool", "tool_call_id": str(call.get("id")), "content": _result(call)}
                rest = without(call, "args", "result")
                yield conversation.message(line, answer, rest, at=stamp(call.get("timestamp")) or at)

    def _checkpoint(self, line: int, contents: list[Any]) -> Iterator[Step]:
        if not contents or not all(
            isinstance(content, dict) and isinstance(content.get("parts"), list) for content in contents
        ):
            raise ImportFailed(line, "is not a Gemini CLI checkpoint: it is not a list of contents")
        if not self.started:
            self.started = True
            yield Start(line=line, agent="gemini", meta={})
        waiting: dict[str, list[str]] = {}
        for content in contents:
            for message in self._contents(content, waiting):
                yield self._conversation.message(line, message, original=[content, message])

    def _contents(self, content: Body, waiting: dict[str, list[str]]) -> Iterator[Body]:
        """Yield the messages of one content of the API. Calls without an id are numbered, and answered in order."""
        role = "assistant" if content.get("role") == "model" else "user"
        parts = [part for part in content["parts"] if isinstance(part, dict)]
        thoughts = [part["text"] for part in parts if part.get("thought") is True and isinstance(part.get("text"), str)]
        if thoughts:
            yield reasoning(*thoughts)
        calls = []
        for call in (part["functionCall"] for part in parts if isinstance(part.get("functionCall"), dict)):
            self._calls += 1
            id = nonblank(call.get("id")) or f"call-{self._calls}"
            waiting.setdefault(str(call.get("name")), []).append(id)
            calls.append(tool_call(id, str(call.get("name")), call.get("args") or {}))
        others = [part for part in parts if not part.keys() & {"functionCall", "functionResponse"}]
        shown = [part for part in others if part.get("thought") is not True]
        if shown or calls:
            message: Body = {"role": role, "content": _content(shown)}
            yield {**message, "tool_calls": calls} if calls else message
        for answer in (part["functionResponse"] for part in parts if isinstance(part.get("functionResponse"), dict)):
            ids = waiting.get(str(answer.get("name"))) or []
            id = nonblank(answer.get("id")) or (ids[0] if ids else "call")
            if id in ids:
                ids.remove(id)
            yield {"role": "tool", "tool_call_id": id, "content": _response(answer.get("response"))}


def _content(content: Any) -> Any:
    """Return the content of a message: a text, or parts if there is more than texts."""
    parts = content if isinstance(content, list) else [content]
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    if all(isinstance(text, str) for text in texts) and len(texts) == len(parts):
        return "".join(str(text) for text in texts)
    return [_part(part) for part in parts if part is not None]


def _part(part: Any) -> Any:
    data = part.get("inlineData") if isinstance(part, dict) else None
    if isinstance(data, dict) and str(data.get("mimeType")).startswith("image/"):
        url = f"data:{data['mimeType']};base64,{data.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str)):
        return {"type": "text", "text": part if isinstance(part, str) else part["text"]}
    return {"type": "text", "text": msgspec.json.encode(part).decode()}


def _thought(thought: Any) -> str:
    if not isinstance(thought, dict):
        return str(thought)
    return "\n".join(text for name in ("subject", "description") if (text := nonblank(thought.get(name))) is not None)


def _result(call: Body) -> str:
    """Return the result of a tool call as a text."""
    result = call.get("result")
    for part in result if isinstance(result, list) else [result]:
        answer = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(answer, dict):
            return _response(answer.get("response"))
    if result is None:
        return str(call.get("status") or "")
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def _response(response: Any) -> str:
    if isinstance(response, dict) and len(response) == 1:
        response = next(iter(response.values()))
    return response if isinstance(response, str) else msgspec.json.encode(response).decode()
