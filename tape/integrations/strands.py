"""Strands Agents: a ``SessionRepository`` whose sessions are tapes, for ``RepositorySessionManager``."""

from __future__ import annotations

from typing import Any

from strands.session.session_repository import SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage

from tape import Message, Tape, from_strict, to_strict
from tape.integrations.histories import Histories, Pair, keep, kept, readable

__all__ = ["TapeSessionRepository"]

_NAME = "strands"
_SESSION = "strands.session"
_AGENT = "strands.agent"
_MULTI = "strands.multi-agent/"


class TapeSessionRepository(Histories, SessionRepository):
    """Sessions on tapes: ``RepositorySessionManager("s1", session_repository=TapeSessionRepository("agent.db"))``.

    ``store`` is a Store, an AsyncStore or a URL. Each agent of a session has a tape, with its state in a slot; the
    session has one for itself. A message number that is taken by another message is a ProvenanceConflict: nothing that
    another process wrote is overwritten.
    """

    _framework = _NAME

    def tape(self, session_id: str, agent_id: str | None = None) -> Tape:
        """Return the tape of a session or of its agent: to search, fork, look at, or build a context from."""
        return self._tape(session_id) if agent_id is None else self._tape(session_id, agent_id)

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Make a session. Raises SessionException if it exists."""

        def write(chat: Tape) -> None:
            if chat.state(_SESSION) is not None:
                raise SessionException(f"Session {session.session_id} already exists")
            chat.put(_SESSION, to_strict(session.to_dict()))

        self._write(write, session.session_id)
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """Return a session, or None."""
        chat = self.tape(session_id)
        with readable(chat.id, 0):
            value = from_strict(chat.state(_SESSION))
            return None if value is None else Session.from_dict(value)

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Make an agent of a session."""
        self._put(_AGENT, session_agent.to_dict(), session_id, session_agent.agent_id)

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """Return an agent of a session, or None."""
        chat = self.tape(session_id, agent_id)
        with readable(chat.id, 0):
            value = from_strict(chat.state(_AGENT))
            return None if value is None else SessionAgent.from_dict(value)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Write an agent's state. Raises SessionException if there is no such agent."""
        before = self.read_agent(session_id, session_agent.agent_id)
        if before is None:
            raise SessionException(f"Agent {session_agent.agent_id} in session {session_id} does not exist")
        session_agent.created_at = before.created_at
        self.create_agent(session_id, session_agent)

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Write a message. The same one again changes nothing."""
        message, meta = _from_strands(session_message)
        id = str(session_message.message_id)
        self._write(lambda chat: chat.append(message, id=id, meta=meta), session_id, agent_id)

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> SessionMessage | None:
        """Return a message by its number, or None."""
        message = self.tape(session_id, agent_id).find(str(message_id))
        return None if message is None else _to_strands(message, message_id)

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Revise a message; what it said stays on the tape. Raises SessionException if there is no such message."""
        before = self.read_message(session_id, agent_id, session_message.message_id)
        if before is None:
            raise SessionException(f"Message {session_message.message_id} does not exist")
        session_message.created_at = before.created_at
        message, meta = _from_strands(session_message)
        self.tape(session_id, agent_id).revise(str(session_message.message_id), message, meta=meta)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        """Return the messages of an agent by number, from ``offset`` on."""
        messages = self.tape(session_id, agent_id).messages()
        held = (_to_strands(message, number) for number, message in enumerate(messages))
        return sorted(held, key=lambda message: message.message_id)[offset:][:limit]

    def create_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:
        """Write the state of a graph or swarm."""
        self._put(_MULTI + multi_agent.id, multi_agent.serialize_state(), session_id)

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        """Return the state of a graph or swarm, or None."""
        chat = self.tape(session_id)
        with readable(chat.id, 0):
            return from_strict(chat.state(_MULTI + multi_agent_id))

    update_multi_agent = create_multi_agent

    def _put(self, slot: str, value: dict[str, Any], *names: str) -> None:
        self._write(lambda chat: chat.put(slot, to_strict(value)), *names)


def _from_strands(session_message: SessionMessage) -> Pair:
    """Return a message with its blocks as they are, and beside it all else that Strands says of it."""
    whole = session_message.to_dict()
    whole |= whole.pop("message")
    shown = whole["redact_message"] or whole
    return keep(_NAME, {"role": shown["role"], "content": shown["content"]}, whole)


def _to_strands(message: Message, number: int) -> SessionMessage:
    with readable(message.tape, message.seq):
        return _made(message, number)


def _made(message: Message, number: int) -> SessionMessage:
    whole = kept(_NAME, message, "role", "content")
    if whole is None:
        # Written, or revised, by somebody else.
        role = "assistant" if message.role == "assistant" else "user"
        whole = {"message_id": number, "role": role, "content": [{"text": message.text}]}
        whole |= dict.fromkeys(("created_at", "updated_at"), message.recorded_at.isoformat())
    fields = {"message_id", "redact_message", "created_at", "updated_at"}
    inner = {name: value for name, value in whole.items() if name not in fields}
    return SessionMessage.from_dict({"message": inner, **{name: whole[name] for name in fields if name in whole}})
