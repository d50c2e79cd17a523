"""TapeChatStore behind LlamaIndex's own memory and chat engine, with several writers, restarts and hostile content."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from tape.integrations.llama_index import TapeChatStore

HALF = "half \ud83d of a character"


def every_kind() -> list[ChatMessage]:
    call = ToolCallBlock(tool_call_id="call_1", tool_name="weather", tool_kwargs={"city": "Lisbon"})
    return [
        ChatMessage("Be brief.", role="system"),
        ChatMessage(role="user", blocks=[TextBlock(text="Weather?"), ImageBlock(url="https://x.example/a.png")]),
        ChatMessage(role="assistant", blocks=[TextBlock(text="I look."), call]),
        ChatMessage("18 degrees", role="tool", additional_kwargs={"tool_call_id": "call_1"}),
        ChatMessage("18 degrees.", role="assistant", additional_kwargs={"n": [1, None]}),
        ChatMessage("", role="user"),
        ChatMessage(role="user"),
    ]


def ask(store: tape.Store, question: str) -> str:
    """Be a process that asks something of a model that says what it is asked."""
    memory = ChatMemoryBuffer.from_defaults(chat_store=TapeChatStore(store), chat_store_key="trip", token_limit=4000)
    engine = SimpleChatEngine(llm=MockLLM(), memory=memory, prefix_messages=[])
    return str(engine.chat(question))


class TestRunner:
    def test_a_chat_goes_on_after_a_restart(self, backend: Backend) -> None:
        """The second process's model is shown what the first one's said."""
        with backend.open() as store:
            ask(store, "Where?")
        with backend.open() as store:
            assert "Where?" in ask(store, "How?")
            chat = TapeChatStore(store).tape("trip")
            assert [message.role for message in chat.messages()] == ["user", "assistant", "user", "assistant"]
            assert store.search("where")
            assert store.verify().ok

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it promises."""
        lines = printed("llama_index_chat.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "user, assistant, user, assistant"

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("llama_index", monkeypatch, tmp_path)


class TestMessages:
    def test_every_kind_comes_back_as_it_was(self, store: tape.Store) -> None:
        """The tape knows calls and their results; a text is kept once."""
        chats = TapeChatStore(store)
        chats.set_messages("trip", every_kind())
        assert chats.get_messages("trip") == every_kind()
        kept = [(message.meta or {})["llama-index"] for message in chats.tape("trip").messages()]
        assert not any("content" in each for each in kept)
        assert [message.text for message in chats.tape("trip").messages()][:2] == ["Be brief.", "Weather?"]

    def test_it_does_what_the_store_in_memory_does(self, store: tape.Store) -> None:
        """Random calls, sync and async, on both: the same answers and the same messages."""
        for seed in range(4):
            rng = random.Random(seed)
            ours, theirs = TapeChatStore(store), SimpleChatStore()
            for number in range(25):
                key = f"{seed}.{rng.randrange(2)}"
                name, args = some_call(rng, key, number, theirs)
                method = getattr(ours, name)
                if rng.random() < 0.3:
                    method = asynchronous(ours, name)
                # The store in memory takes the list itself.
                answer, expected = method(*args), getattr(theirs, name)(*args)
                assert (answer or None) == (expected or None), f"seed {seed}, call {number}: {name}{args}"
                assert ours.get_messages(key) == theirs.get_messages(key), f"seed {seed}, call {number}"
            full = {key for key in theirs.get_keys() if theirs.get_messages(key)}
            assert {key for key in ours.get_keys() if key.startswith(f"{seed}.")} == full

    def test_forks_are_keys(self, store: tape.Store) -> None:
        """A fork is listed under a key that finds it, or not at all."""
        chats = TapeChatStore(store)
        chats.add_message("a trip", ChatMessage("Where to?"))
        for id in ("llama-index/side", "llama-index/c d", "elsewhere"):
            chats.tape("a trip").fork(id)
        assert sorted(chats.get_keys()) == ["a trip", "side"]
        assert [message.content for message in chats.get_messages("side")] == ["Where to?"]

    def test_setting_more_only_appends(self, store: tape.Store) -> None:
        """A memory that sets its whole history after each turn does not write it again."""
        chats = TapeChatStore(store)
        for count in range(1, 6):
            chats.set_messages("trip", every_kind()[:count])
        assert [entry.kind for entry in chats.tape("trip").entries()] == ["open", *["append"] * 5]

    def test_hostile_content_is_kept(self, store: tape.Store) -> None:
        """Half characters and infinities come back where LlamaIndex can hold them."""
        chats = TapeChatStore(store)
        odd = ChatMessage("fine", additional_kwargs={"text": HALF, "score": float("inf")})
        chats.add_message("trip", odd)
        assert chats.get_messages("trip") == [odd]
        assert chats.tape("trip").messages()[0].text == "fine"

    def test_what_others_write_is_read(self, store: tape.Store) -> None:
        """Messages and revisions that came from elsewhere are LlamaIndex's, too."""
        chats = TapeChatStore(store)
        chats.add_message("trip", ChatMessage("Wher?"))
        chat = chats.tape("trip")
        chat.revise(chat.messages()[0].id, content="Where?")
        chat.append(role="assistant", content="Lisbon.")
        chat.append(role="oracle", content="Perhaps.")
        assert chats.get_messages("trip") == [
            ChatMessage("Where?"),
            ChatMessage("Lisbon.", role=MessageRole.ASSISTANT),
            ChatMessage("Perhaps."),
        ]

    def test_keys_are_told_as_they_were_given(self, store: tape.Store) -> None:
        """Also those that no tape can have as its id, and of a fork; owners do not see each other's."""
        names = ["a", "b" * 400, "c\nd", "half \ud83d"]
        chats = TapeChatStore(store)
        for name in names:
            chats.add_message(name, ChatMessage("hello"))
        chats.tape("a").fork("llama-index/e")
        own = TapeChatStore(store.scoped("ada"))
        own.add_message("a", ChatMessage("mine"))
        assert chats.get_keys()[:5] == [*names, "e"]
        assert own.get_keys() == ["a"]
        assert chats.get_messages("e") == [ChatMessage("hello")]


def some_call(rng: random.Random, key: str, number: int, theirs: SimpleChatStore) -> tuple[str, tuple[Any, ...]]:
    held = theirs.get_messages(key)
    message = rng.choice([ChatMessage(f"message {number}"), *every_kind()])
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("add_message", (key, message)),
        ("add_message", (key, message)),
        ("set_messages", (key, [*held, message])),
        ("set_messages", (key, [*held[1:], message])),
        ("delete_message", (key, rng.randrange(4))),
        ("delete_messages", (key,)),
    ]
    # That of an empty list is an error in memory.
    calls += [("delete_last_message", (key,))] if held else []
    return rng.choice(calls)


def asynchronous(ours: TapeChatStore, name: str) -> Callable[..., Any]:
    awaited = getattr(ours, "async_add_message" if name == "add_message" else f"a{name}")
    return lambda *args: asyncio.run(awaited(*args))


def adapt(store: tape.Store) -> Callable[[str], Any]:
    chats = TapeChatStore(store)
    return lambda mark: chats.async_add_message("one", ChatMessage(mark))


def marks(store: tape.Store) -> list[str]:
    return [str(message.content) for message in TapeChatStore(store).get_messages("one")]


def test_many_processes_share_a_key(backend: Backend, crew: Crew) -> None:
    """Four processes, fifty messages each: every one is there once."""
    assert not hold_together(crew, backend, adapt, marks, least=200)
