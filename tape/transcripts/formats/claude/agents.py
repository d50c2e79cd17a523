"""Claude Code's subagents: which tool call started each. Pure.

Progress reports and results of the session name the agent and the call. Older files do not. There the agent's
conversation begins with the prompt in the call's arguments.
"""

from __future__ import annotations

from typing import Any

from tape.core.entries import payloads
from tape.core.records import Entry
from tape.transcripts.formats.claude.prompt_queue import prompt_text
from tape.transcripts.formats.lines import nonblank
from tape.transcripts.steps import Branch

__all__ = ["Agents"]


class Agents:
    """The calls of a session that can start an agent, and the agents that were named."""

    def __init__(self) -> None:
        self._makers: dict[str, str] = {}
        """The message that makes a call, by the call's id."""
        self._prompts: dict[str, str] = {}
        """The message whose call gives a prompt."""
        self._calls: dict[str, str] = {}
        """The call that started an agent."""

    def note(self, uuid: str, record: dict[str, Any], content: Any) -> None:
        """Add a record: the calls that it makes, and the agent that it names."""
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        for part in parts:
            arguments = part.get("input")
            if part.get("type") == "tool_use" and isinstance(part.get("id"), str) and isinstance(arguments, dict):
                self._makers[part["id"]] = uuid
                prompt = prompt_text(arguments.get("prompt"))
                if prompt is not None:
                    self._prompts[prompt] = uuid
        data, result = record.get("data"), record.get("toolUseResult")
        if isinstance(data, dict):
            self._name(data.get("agentId"), record.get("parentToolUseID"))
        if isinstance(result, dict):
            for part in parts:
                self._name(result.get("agentId"), part.get("tool_use_id"))

    def read(self, entry: Entry) -> None:
        """Add an entry of the session's tape; its messages are then known by their ids."""
        payload, meta = entry.payload, entry.meta
        if isinstance(payload, payloads.Append) and isinstance(payload.message, dict) and meta is not None:
            self.note(payload.id, meta, payload.message.get("content"))
        elif isinstance(payload, payloads.Event) and isinstance(payload.data, dict):
            self.note("", payload.data, None)

    def started(self, agent: str | None, prompt: str | None) -> str | None:
        """Return the message whose call started an agent, if it is known."""
        call = None if agent is None else self._calls.get(agent)
        maker = None if call is None else self._makers.get(call)
        return maker or (None if prompt is None else self._prompts.get(prompt))

    def branch(self, line: int, lane: str, record: dict[str, Any], prefix: str) -> Branch:
        """Return where the conversation of an agent begins, given its first record."""
        agent, message = nonblank(record.get("agentId")), record.get("message")
        prompt = prompt_text(message.get("content")) if isinstance(message, dict) else None
        maker = self.started(agent, prompt)
        return Branch(
            line=line,
            lane=lane,
            parent=None if maker is None else prefix + maker,
            agent=agent,
            prompt=prompt,
        )

    def _name(self, agent: Any, call: Any) -> None:
        if isinstance(agent, str) and isinstance(call, str):
            self._calls.setdefault(agent, call)
