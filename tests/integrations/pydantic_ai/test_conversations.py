"""TapeConversationStore answers as the framework's own store in memory, also with other writers and lost replies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationRecord
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from support.backends import Backend
from support.processes import Crew, ready, say
from support.proxy import Proxy
from support.sizes import size

import tape
from integrations.contention import hold_together
from integrations.pydantic_ai.histories import Beside, message
from tape.integrations.pydantic_ai import TapeConversationStore

CALLS = 60


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def asked(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def talk(*texts: str, id: str = "chat") -> Conversation:
    return Conversation(conversation_id=id, messages=[asked(text) for text in texts])


def said(conversation: Conversation | None) -> list[Any]:
    assert conversation is not None
    return [part.content for message in conversation.messages for part in message.parts]


@pytest.mark.heavy
class TestBeside:
    @pytest.mark.parametrize("part", range(4))
    def test_it_answers_as_the_store_in_memory(
        self, store: tape.Store, part: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """60 calls of chance for each seed: equal results and errors, and nothing is left when all is deleted."""
        for seed in range(part, size(8, 100), 4):
            print(f"seed {seed}")
            run(compare(store.scoped(f"tenant-{seed}") if part == 3 else store, seed, monkeypatch))
        assert store.verify().ok


async def compare(store: tape.Store, seed: int, patch: pytest.MonkeyPatch) -> None:
    beside = Beside(lambda: TapeConversationStore(store), random.Random(seed), patch)
    for _ in range(CALLS):
        await beside.call()
    await beside.finish()
    assert store.list().items == store.list(hidden=True).items == []


class TestTapes:
    def test_a_conversation_is_a_tape(self, store: tape.Store) -> None:
        """Its scope is the owner; what is said is found and rendered; calls and results belong together."""
        conversations = TapeConversationStore(store)
        messages: list[ModelMessage] = [
            asked("Which hotel in Lisbon?"),
            ModelResponse(parts=[ThinkingPart("hm"), ToolCallPart("look", {"city": "Lisbon"}, "c1")]),
            ModelRequest(parts=[ToolReturnPart("look", {"best": "Beira Mar"}, "c1")]),
            ModelResponse(parts=[TextPart("The Beira Mar.")]),
        ]
        run(conversations.save(Conversation(conversation_id="a/b", messages=messages), scope="ann"))
        (info,) = store.list().items
        assert (info.id, info.owner, info.agent, info.name) == ("pydantic-ai/a%2Fb", "ann", "pydantic-ai", "a/b")
        chat = store.tape(info.id)
        assert [one.role for one in chat.messages()] == ["user", "assistant", "user", "assistant"]
        assert {hit.message_id for hit in store.search("beira")} == {one.id for one in chat.messages()[2:]}
        context = chat.context()
        assert [repair.what for repair in context.repairs] == ["thinking not shown"]
        assert [each["role"] for each in context.to_openai()] == ["user", "assistant", "tool", "assistant"]

    def test_branches_and_forks_are_those_of_the_tape(self, store: tape.Store) -> None:
        """A branch moves the head, a fork is a fork; nothing is written twice."""
        conversations = TapeConversationStore(store)
        begun = talk("one", "two", "three")
        run(conversations.save(begun))
        run(conversations.branch("chat", at=1, expected_revision=begun.revision))
        run(conversations.fork("chat", new_conversation_id="side"))
        chat, side = store.tape("pydantic-ai/chat"), store.tape("pydantic-ai/side")
        assert [one.text for one in chat.messages()] == [one.text for one in side.messages()] == ["one"]
        assert side.info().parent == chat.id
        assert [one.text for one in chat.heads()] == ["three"]
        loaded = run(conversations.load("side"))
        loaded.messages.append(asked("four"))
        run(conversations.save(loaded))
        assert [one.text for one in side.messages()] == ["one", "four"]
        assert len(list(side.entries(kinds=["append"]))) == 1
        assert store.verify().ok

    def test_what_no_tape_can_hold_comes_back(self, store: tape.Store) -> None:
        """Half characters in messages, in what waits for approval, and in names."""
        conversations = TapeConversationStore(store)
        odd = [*(f"\ud83d{number}" for number in range(3)), "", "~", "x" * 300, "x" * 299 + "y", "\n", "a/b", "a%2Fb"]
        for id in odd:
            given = Conversation(conversation_id=id, messages=[asked(f"half \udc00 of {id}"), asked("whole")])
            run(conversations.save(given, scope=id))
        for id in odd:
            assert said(run(TapeConversationStore(store).load(id, scope=id))) == [f"half \udc00 of {id}", "whole"]
            assert [one.conversation_id for one in run(conversations.list_conversations(scope=id))] == [id]
        assert len(store.search("whole")) == len(odd)
        assert len(store.search("half")) == len(odd)

    def test_every_shape_of_message_comes_back(self, quick: Backend) -> None:
        """Several hundred of chance."""
        conversations = TapeConversationStore(quick.open())
        messages = [message(random.Random(seed)) for seed in range(400)]
        run(conversations.save(Conversation(conversation_id="all", messages=messages)))
        assert run(conversations.load("all")).messages == messages

    def test_a_message_that_was_changed_on_the_tape_comes_as_its_text(self, store: tape.Store) -> None:
        """A revision has no meta of the framework's."""
        conversations = TapeConversationStore(store)
        entries = run(conversations.save(talk("one", "two")))
        store.tape("pydantic-ai/chat").revise(entries[1].id, content="redacted")
        assert said(run(conversations.load("chat"))) == ["one", "redacted"]

    def test_another_fork_of_the_tape_is_no_conversation(self, store: tape.Store) -> None:
        """It does not list, and keeps what it inherits when the conversation is deleted."""
        conversations = TapeConversationStore(store)
        run(conversations.save(talk("one")))
        mine = store.tape("pydantic-ai/chat").fork("mine")
        assert [one.conversation_id for one in run(conversations.list_conversations())] == ["chat"]
        run(conversations.delete("chat"))
        assert run(conversations.load("chat")) is None
        assert store.search("one") == []
        assert [one.text for one in mine.messages()] == ["one"]

    def test_a_kept_tape_does_not_change_its_owner(self, store: tape.Store) -> None:
        """The id of a deleted conversation whose forks are still there can be used again in its scope only."""
        conversations = TapeConversationStore(store)
        run(conversations.save(talk("one"), scope="ann"))
        run(conversations.fork("chat", new_conversation_id="side"))
        run(conversations.delete("chat"))
        with pytest.raises(ConversationConflict):
            run(conversations.save(talk("mine"), scope="bob"))
        run(conversations.save(talk("again"), scope="ann"))
        assert said(run(conversations.load("chat"))) == ["again"]
        assert said(run(conversations.load("side"))) == ["one"]
        assert [hit.snippet for hit in store.search("one", tape="pydantic-ai/chat")] == []

    def test_the_newest_are_listed_first_without_reading_all(self, store: tape.Store) -> None:
        """A fork writes to its source as well, which is not newer for that."""
        conversations = TapeConversationStore(store)
        for number in range(30):
            run(conversations.save(talk("one", id=f"chat-{number}")))
        run(conversations.fork("chat-3", new_conversation_id="side"))
        newest = run(conversations.list_conversations(limit=3))
        assert [one.conversation_id for one in newest] == ["side", "chat-29", "chat-28"]
        assert len(run(conversations.list_conversations())) == 31

    def test_it_takes_a_path_and_an_async_store(self, tmp_path: Path) -> None:
        """As every adapter does."""

        async def go() -> None:
            one = TapeConversationStore(tmp_path / "agent.db")
            await one.save(talk("one"))
            await one.close()
            async with tape.open_async(tmp_path / "agent.db") as store:
                assert said(await TapeConversationStore(store).load("chat")) == ["one"]

        run(go())


class TestAgain:
    def test_a_save_that_is_refused_leaves_nothing(self, store: tape.Store) -> None:
        """Neither entries nor a tape."""
        conversations = TapeConversationStore(store)
        record = ConversationRecord(conversation_id="chat", head_id="nowhere")
        with pytest.raises(ConversationConflict):
            run(conversations.write_record(record, expected_revision=None))
        run(conversations.save(talk("one")))
        head = store.tape("pydantic-ai/chat").info().head
        with pytest.raises(ConversationConflict):
            run(conversations.save(talk("other")))
        assert store.tape("pydantic-ai/chat").info().head == head
        assert store.list().items[1:] == []

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_a_lost_commit_doubles_nothing(self, proxy: Proxy, backend: Backend, reply: bool) -> None:
        """The connection breaks while a turn is saved: it is there once, and is no conflict with itself."""
        with tape.open(proxy.url, **backend.options) as store:
            conversations = TapeConversationStore(store)
            given = talk()
            for number in range(6):
                given.messages = [*given.messages, asked(str(number))]
                proxy.lose("COMMIT", reply=reply)
                run(conversations.save(given))
                assert proxy.lost == number + 1
            assert said(run(conversations.load("chat"))) == [str(number) for number in range(6)]
            assert store.verify().ok


# -- other processes


def writes(store: tape.Store) -> Callable[[str], Any]:
    """Return what loads a conversation that all processes share, and saves a turn to it."""
    conversations = TapeConversationStore(store)

    async def write(mark: str) -> None:
        given = await conversations.load("chat", limit=2) or talk()
        given.messages += [asked(mark), ModelResponse(parts=[TextPart(f"answer to {mark}")])]
        await conversations.save(given)

    return write


def marks(store: tape.Store) -> list[str]:
    told = said(run(TapeConversationStore(store).load("chat")))
    assert told[1::2] == [f"answer to {mark}" for mark in told[::2]]
    return told[::2]


def forks(store: tape.Store, rounds: int) -> None:
    """Begin, fork and delete a conversation as others do at the same time."""
    conversations, pick = TapeConversationStore(store), random.Random(rounds)
    ready()
    refused = 0
    for _ in range(rounds):
        try:
            match pick.randint(0, 3):
                case 0:
                    asyncio.run(conversations.save(talk("one", "two")))
                case 1:
                    asyncio.run(conversations.fork("chat", new_conversation_id=f"side-{pick.randint(0, 2)}"))
                case 2:
                    asyncio.run(conversations.delete("chat"))
                case 3:
                    asyncio.run(conversations.delete(f"side-{pick.randint(0, 2)}"))
        except (ConversationConflict, RuntimeError):
            # Somebody was faster, or there is no conversation to fork.
            refused += 1
    say(refused < rounds)


class TestTogether:
    def test_four_processes_save_one_conversation(self, backend: Backend, crew: Crew) -> None:
        """4 times 50 turns: what is acknowledged is held once, in order, and what is not was a conflict."""
        refused = hold_together(crew, backend, writes, marks, refusals=(ConversationConflict,), least=50)
        assert set(refused) <= {"ConversationConflict"}

    def test_forks_and_deletes_beside_each_other(self, backend: Backend, crew: Crew) -> None:
        """Whatever comes first: only conflicts, and all that is left can be loaded and deleted."""
        told = crew.race(backend, forks, [{"rounds": rounds} for rounds in (40, 41, 42)])
        assert told == [[True]] * 3
        store = backend.open()
        conversations = TapeConversationStore(store)
        for record in run(conversations.list_conversations()):
            assert said(run(conversations.load(record.conversation_id))) == ["one", "two"]
            run(conversations.delete(record.conversation_id))
        assert store.list().items == store.list(hidden=True).items == []
        assert store.verify().ok

    @pytest.mark.parametrize("order", [("chat", "side"), ("side", "chat")])
    def test_nothing_is_left_of_a_conversation_and_its_fork(self, store: tape.Store, order: tuple[str, str]) -> None:
        """In whatever order they are deleted; until the last is gone, the other is whole."""
        conversations = TapeConversationStore(store)
        run(conversations.save(talk("one", "two")))
        run(conversations.fork("chat", new_conversation_id="side"))
        run(conversations.delete(order[0]))
        assert said(run(conversations.load(order[1]))) == ["one", "two"]
        run(conversations.delete(order[1]))
        assert store.list().items == store.list(hidden=True).items == []

    def test_tasks_that_save_one_conversation(self, store: tape.Store) -> None:
        """Of twenty tasks with the same conversation one is first."""
        conversations = TapeConversationStore(store)
        run(conversations.save(talk("one")))

        async def save(number: int) -> bool:
            loaded = await conversations.load("chat")
            assert loaded is not None
            loaded.messages.append(asked(str(number)))
            await asyncio.sleep(0)
            try:
                await conversations.save(loaded)
            except ConversationConflict:
                return False
            return True

        async def go() -> list[bool]:
            return await asyncio.gather(*(save(number) for number in range(20)))

        saved = [str(number) for number, won in enumerate(run(go())) if won]
        assert sorted(said(run(conversations.load("chat")))[1:]) == sorted(saved)
        assert saved
