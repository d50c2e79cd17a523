"""TapeSessionRepository behind Strands' own agents, with a scripted model, several writers and restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.models.model import Model
from strands.session.repository_session_manager import RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from tape.integrations.strands import TapeSessionRepository

HALF = "half \ud83d of a character"


class Scripted(Model):
    """Says what it was told to, and notes what it is asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.asked.append([message["content"][0]["text"] for message in messages])
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": self.answers.pop(0)}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def ask(store: tape.Store, model: Scripted, question: str, state: dict[str, Any] | None = None) -> Agent:
    """Be a process that asks an agent something."""
    sessions = RepositorySessionManager("trip", session_repository=TapeSessionRepository(store))
    agent = Agent(model=model, agent_id="guide", session_manager=sessions, callback_handler=None)
    for name, value in (state or {}).items():
        agent.state.set(name, value)
    agent(question)
    return agent


def said(text: Any, number: int, role: Any = "user") -> SessionMessage:
    content = text if isinstance(text, list) else [{"text": text}]
    return SessionMessage.from_message({"role": role, "content": content}, number)


@pytest.fixture
def repository(store: tape.Store) -> TapeSessionRepository:
    made = TapeSessionRepository(store)
    made.create_session(Session("trip", SessionType.AGENT))
    made.create_agent("trip", SessionAgent("guide", {"mood": "calm"}, {"removed": 0}))
    return made


class TestRunner:
    def test_an_agent_goes_on_after_a_restart(self, backend: Backend) -> None:
        """The second process's model is shown what the first one's said, and its agent has the first one's state."""
        with backend.open() as store:
            ask(store, Scripted("Lisbon."), "Where?", {"mood": "calm"})
        with backend.open() as store:
            model = Scripted("By train.")
            agent = ask(store, model, "How?")
            assert model.asked == [["Where?", "Lisbon.", "How?"]]
            assert agent.state.get("mood") == "calm"
            chat = TapeSessionRepository(store).tape("trip", "guide")
            assert [message.text for message in chat.messages()] == ["Where?", "Lisbon.", "How?", "By train."]
            assert [hit.role for hit in store.search("lisbon")] == ["assistant"]
            assert store.verify().ok

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it promises."""
        lines = printed("strands_sessions.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "user: Where to? | assistant: Lisbon. | user: And how? | assistant: By train."

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("strands", monkeypatch, tmp_path)


class TestRepository:
    def test_messages_come_back_as_they_were(self, repository: TapeSessionRepository) -> None:
        """Calls, results, bytes, infinities and half characters; the tape knows what answers what."""
        use = {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Lisbon"}}}
        result = {"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "18 degrees"}]}}
        image = {"image": {"format": "png", "source": {"bytes": b"\x00\xff"}}}
        odd = {"json": {"score": float("inf"), HALF: HALF}}
        messages = [
            said([{"text": "Weather?"}, image], 0),
            said([use], 1, "assistant"),
            said([result], 2),
            said([{"text": HALF}, odd], 3, "assistant"),
        ]
        for message in messages:
            repository.create_message("trip", "guide", message)
            repository.create_message("trip", "guide", message)
        assert repository.list_messages("trip", "guide") == messages
        assert repository.list_messages("trip", "guide", limit=2, offset=1) == messages[1:3]
        assert repository.read_message("trip", "guide", 2) == messages[2]
        assert repository.read_message("trip", "guide", 9) is None
        chat = repository.tape("trip", "guide")
        assert chat.messages()[3].text.startswith("half �")
        chat.retract("1")
        assert repository.list_messages("trip", "guide") == [messages[0], messages[3]]

    def test_a_number_is_taken_once(self, repository: TapeSessionRepository) -> None:
        """What another process wrote is not overwritten, as it would be in files."""
        repository.create_message("trip", "guide", said("one", 0))
        with pytest.raises(tape.ProvenanceConflict):
            repository.create_message("trip", "guide", said("two", 0))
        assert [message.message["content"] for message in repository.list_messages("trip", "guide")] == [
            [{"text": "one"}]
        ]

    def test_a_message_is_redacted(self, repository: TapeSessionRepository) -> None:
        """Readers of the tape see the new text; the time of its making stays."""
        first = said("secret", 0)
        repository.create_message("trip", "guide", first)
        changed = said("secret", 0)
        changed.redact_message = {"role": "user", "content": [{"text": "redacted"}]}
        repository.update_message("trip", "guide", changed)
        held = repository.read_message("trip", "guide", 0)
        assert held is not None
        assert (held.created_at, held.to_message()["content"]) == (first.created_at, [{"text": "redacted"}])
        assert [message.text for message in repository.tape("trip", "guide").messages()] == ["redacted"]
        with pytest.raises(SessionException):
            repository.update_message("trip", "guide", said("none", 7))

    def test_sessions_agents_and_graphs(self, repository: TapeSessionRepository) -> None:
        """Made once, read, written anew; what is not there is None or an error, as with Strands' files."""

        class Graph:
            id = "graph"

            def serialize_state(self) -> dict[str, Any]:
                return {"status": "executing", "half": HALF}

        with pytest.raises(SessionException):
            repository.create_session(Session("trip", SessionType.AGENT))
        assert repository.read_session("trip") is not None
        assert repository.read_session("other") is None
        agent = SessionAgent("guide", {"mood": HALF}, {"removed": 1})
        before = repository.read_agent("trip", "guide")
        repository.update_agent("trip", agent)
        after = repository.read_agent("trip", "guide")
        assert before is not None
        assert after is not None
        assert (after.state, after.created_at) == ({"mood": HALF}, before.created_at)
        assert repository.read_agent("trip", "other") is None
        with pytest.raises(SessionException):
            repository.update_agent("trip", SessionAgent("other", {}, {}))
        assert repository.read_multi_agent("trip", "graph") is None
        repository.create_multi_agent("trip", Graph())
        repository.update_multi_agent("trip", Graph())
        assert repository.read_multi_agent("trip", "graph") == {"status": "executing", "half": HALF}

    def test_what_others_write_is_read(self, repository: TapeSessionRepository) -> None:
        """Messages and revisions that came from elsewhere are Strands', too."""
        repository.create_message("trip", "guide", said("Wher?", 0))
        chat = repository.tape("trip", "guide")
        chat.revise("0", content="Where?")
        chat.append(role="assistant", content="Lisbon.")
        held = repository.list_messages("trip", "guide")
        assert [(message.message_id, message.message["content"]) for message in held] == [
            (0, [{"text": "Where?"}]),
            (1, [{"text": "Lisbon."}]),
        ]


def adapt(store: tape.Store) -> Callable[[str], Any]:
    repository = TapeSessionRepository(store)

    def write(mark: str) -> None:
        for _ in range(200):
            held = repository.tape("one", "guide").messages(limit=1)
            try:
                repository.create_message("one", "guide", said(mark, int(held[-1].id) + 1 if held else 0))
            except tape.ProvenanceConflict:
                continue
            return
        raise TimeoutError(mark)

    return write


def marks(store: tape.Store) -> list[str]:
    held = TapeSessionRepository(store).list_messages("one", "guide")
    assert [message.message_id for message in held] == list(range(len(held)))
    return [message.message["content"][0]["text"] for message in held]


def test_many_processes_share_a_session(backend: Backend, crew: Crew) -> None:
    """Four processes, fifty messages each, with a new number after a refusal: every one is there once."""
    assert not hold_together(crew, backend, adapt, marks, least=200)
