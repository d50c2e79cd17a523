"""TapeHistoryProvider behind Agent Framework's own agents, with a scripted client, several writers and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, BaseChatClient, ChatResponse, Content, Message
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from tape.integrations.agent_framework import TapeHistoryProvider

HALF = "half \ud83d of a character"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


class Scripted(BaseChatClient):
    """Says what it was told to, and notes what it is asked."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        self.asked.append([message.text for message in messages])
        return ChatResponse(messages=[Message("assistant", [self.answers.pop(0)])])


async def ask(store: tape.Store, session: str, client: Scripted, question: str) -> str:
    """Be a process that asks an agent something."""
    agent = Agent(client, context_providers=[TapeHistoryProvider(store)])
    return (await agent.run(question, session=agent.create_session(session_id=session))).text


def every_kind() -> list[Message]:
    return [
        Message("system", ["Be brief."]),
        Message(
            "user", ["Weather?", Content.from_uri("https://x.example/a.png", media_type="image/png")], author_name="Ada"
        ),
        Message("assistant", [Content.from_function_call("call_1", "weather", arguments='{"city": "Lisbon"}')]),
        Message("tool", [Content.from_function_result("call_1", result="18 degrees")]),
        Message("assistant", ["18 degrees."], message_id="m1", additional_properties={"n": [1, None]}),
    ]


def told(messages: list[Message]) -> list[dict[str, Any]]:
    return [message.to_dict() for message in messages]


class TestRunner:
    def test_an_agent_goes_on_after_a_restart(self, backend: Backend) -> None:
        """The second process's model is shown what the first one's said."""
        with backend.open() as store:
            assert run(ask(store, "trip", Scripted("Lisbon."), "Where?")) == "Lisbon."
        with backend.open() as store:
            client = Scripted("By train.")
            run(ask(store, "trip", client, "How?"))
            assert client.asked == [["Where?", "Lisbon.", "How?"]]
            said = [(message.role, message.text) for message in TapeHistoryProvider(store).tape("trip").messages()]
            assert said == [("user", "Where?"), ("assistant", "Lisbon."), ("user", "How?"), ("assistant", "By train.")]
            assert [hit.role for hit in store.search("lisbon")] == ["assistant"]
            assert store.verify().ok

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it promises."""
        lines = printed("agent_framework_history.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "user: Where to? | assistant: Lisbon. | user: And how? | assistant: By train."

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("agent_framework", monkeypatch, tmp_path)


class TestMessages:
    def test_every_kind_comes_back_as_it_was(self, store: tape.Store) -> None:
        """The tape knows calls and their results; text is kept once."""
        provider = TapeHistoryProvider(store)
        run(provider.save_messages("trip", []))
        assert store.list().items == []
        run(provider.save_messages("trip", every_kind()))
        assert told(run(provider.get_messages("trip"))) == told(every_kind())
        chat = provider.tape("trip")
        kept = [(message.meta or {})["agent-framework"] for message in chat.messages()]
        assert not any("content" in each for each in kept)
        chat.retract(chat.messages()[2].id)
        assert told(run(provider.get_messages("trip"))) == told(every_kind()[:2] + every_kind()[4:])

    def test_sessions_are_apart(self, store: tape.Store) -> None:
        """One without an id has a tape, too; owners do not see each other's."""
        places = [(store, None), (store, "a"), (store, "a/b"), (store.scoped("ada"), "a"), (store.scoped("bob"), "a")]
        for number, (own, session) in enumerate(places):
            run(TapeHistoryProvider(own).save_messages(session, [Message("user", [str(number)])]))
        for number, (own, session) in enumerate(places):
            (message,) = run(TapeHistoryProvider(own).get_messages(session))
            assert message.text == str(number)

    def test_hostile_content_comes_back(self, store: tape.Store) -> None:
        """Half characters and infinities are replaced only where they are read."""
        provider = TapeHistoryProvider(store)
        odd = [
            Message("assistant", [HALF], additional_properties={"score": float("inf"), "text": HALF}),
            Message("assistant", [Content.from_function_call("c", "f", arguments="{broken" + HALF)]),
        ]
        run(provider.save_messages("trip", odd))
        assert told(run(provider.get_messages("trip"))) == told(odd)
        assert provider.tape("trip").messages()[0].text == "half � of a character"

    def test_what_others_write_is_read(self, store: tape.Store) -> None:
        """Messages and revisions that came from elsewhere are the framework's, too."""
        provider = TapeHistoryProvider(store)
        run(provider.save_messages("trip", [Message("user", ["Wher?"])]))
        chat = provider.tape("trip")
        chat.revise(chat.messages()[0].id, content="Where?")
        chat.append(role="assistant", content="Lisbon.")
        held = run(provider.get_messages("trip"))
        assert [(message.role, message.text) for message in held] == [("user", "Where?"), ("assistant", "Lisbon.")]


def adapt(store: tape.Store) -> Callable[[str], Any]:
    provider = TapeHistoryProvider(store)
    return lambda mark: provider.save_messages("one", [Message("user", [mark]), Message("assistant", ["noted"])])


def marks(store: tape.Store) -> list[str]:
    texts = [message.text for message in run(TapeHistoryProvider(store).get_messages("one"))]
    assert texts[1::2] == ["noted"] * (len(texts) // 2), "a turn was torn apart"
    return texts[::2]


def test_many_processes_share_a_session(backend: Backend, crew: Crew) -> None:
    """Four processes, fifty turns each: every one is there once, question and answer together."""
    assert not hold_together(crew, backend, adapt, marks, least=200)
