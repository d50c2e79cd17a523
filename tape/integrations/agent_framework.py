"""Agent Framework: a ``HistoryProvider`` whose sessions are tapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_framework import HistoryProvider, Message

import tape
from tape import Tape
from tape.integrations.histories import Histories, Pair, keep, kept, readable
from tape.integrations.opening import StoreLike, awaited

__all__ = ["TapeHistoryProvider"]

_NAME = "agent-framework"
_DEFAULT = "default"
State = dict[str, Any] | None


class TapeHistoryProvider(Histories, HistoryProvider):
    """The history of an agent's sessions: ``Agent(client, context_providers=[TapeHistoryProvider("agent.db")])``.

    ``store`` is a Store, an AsyncStore or a URL. The messages of a run are written in one step, behind whatever others
    have written. The flags are those of ``HistoryProvider``.
    """

    _framework = _NAME

    def __init__(self, store: StoreLike, source_id: str = "tape", **flags: Any) -> None:
        HistoryProvider.__init__(self, source_id, **flags)
        Histories.__init__(self, store)

    def tape(self, session_id: str | None = None) -> Tape:
        """Return the tape of a session: to search, fork, look at, or build a context from."""
        return self._tape(session_id or _DEFAULT)

    @awaited
    def get_messages(self, /, session_id: str | None, *, state: State = None, **kwargs: Any) -> list[Message]:
        """Return the messages of a session."""
        return [_to_framework(message) for message in self.tape(session_id).messages()]

    @awaited
    def save_messages(
        self, /, session_id: str | None, messages: Sequence[Message], *, state: State = None, **kwargs: Any
    ) -> None:
        """Write the messages of a run, all of them or none."""
        self._extend(session_id or _DEFAULT, [_from_framework(message) for message in messages])


def _from_framework(message: Message) -> Pair:
    """Return a message with its parts as they are, and beside it all else that the framework says of it."""
    whole = message.to_dict()
    whole["content"] = whole.pop("contents", [])
    return keep(_NAME, {"role": whole["role"], "content": whole["content"]}, whole)


def _to_framework(message: tape.Message) -> Message:
    with readable(message.tape, message.seq):
        whole = kept(_NAME, message, "role", "content")
        if whole is None:
            return Message(message.role or "user", [message.text])
        whole["contents"] = whole.pop("content")
        return Message.from_dict(whole)
