"""TapeChatMessageHistory behind LangChain's own runnables, with several writers, restarts and hostile content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from tape.integrations.langchain import TapeChatMessageHistory

HALF = "half \ud83d of a character"


def every_kind() -> list[BaseMessage]:
    call = {"name": "weather", "args": {"city": "Lisbon", "days": [1, 2.5]}, "id": "call_1", "type": "tool_call"}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    return [
        SystemMessage("Be brief.", id="m0"),
        HumanMessage(
            [{"type": "text", "text": "Weather?"}, {"type": "image_url", "image_url": {"url": "x:y"}}], name="Ada"
        ),
        AIMessage("", tool_calls=[call], usage_metadata=usage, response_metadata={"model": "m"}, id="m0"),
        ToolMessage("18 degrees", tool_call_id="call_1", artifact={"raw": [1, None]}, status="error"),
        AIMessage(
            [{"type": "tool_use", "id": "call_2", "name": "weather", "input": {}}],
            tool_calls=[{**call, "id": "call_2"}],
        ),
        ToolMessage([{"type": "text", "text": "sun"}], tool_call_id="call_2"),
        AIMessageChunk("It is"),
        ChatMessage("As a critic.", role="critic"),
        HumanMessage("", additional_kwargs={"json": True}),
    ]


def chain(answers: list[str], history: Callable[[str], TapeChatMessageHistory]) -> tuple[Any, list[list[str]]]:
    """Return a chain with a scripted model, and what the model is asked."""
    asked: list[list[str]] = []

    def note(prompt: Any) -> Any:
        asked.append([str(message.content) for message in prompt.to_messages()])
        return prompt

    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
    model = GenericFakeChatModel(messages=iter(answers))
    runnable: Any = RunnableWithMessageHistory(
        prompt | note | model, history, input_messages_key="question", history_messages_key="history"
    )
    return runnable, asked


SESSION = {"configurable": {"session_id": "trip"}}


class TestRunner:
    def test_the_tools_of_a_store_are_tools(self, store: tape.Store) -> None:
        """The functions behind them are tools of the framework as they are, with the schema of each."""
        store.tape("a").append(role="user", content="To Lisbon")
        tools = {each.name: tool(each.run) for each in store.tools("write")}
        assert tools["search"].invoke({"query": "lisbon"})["items"][0]["seq"] == 2
        assert tools["append"].invoke({"tape": "a", "content": "By train", "role": "assistant"})["seq"] == 3

    def test_a_chain_goes_on_after_a_restart(self, backend: Backend) -> None:
        """The second process's model is shown what the first one's said, in sync and async code alike."""
        with backend.open() as store:
            runnable, asked = chain(["Lisbon."], lambda id: TapeChatMessageHistory(id, store))
            runnable.invoke({"question": "Where?"}, SESSION)
        with backend.open() as store:
            runnable, asked = chain(["By train.", "At 9:30."], lambda id: TapeChatMessageHistory(id, store))
            asyncio.run(runnable.ainvoke({"question": "How?"}, SESSION))
            "".join(chunk.content for chunk in runnable.stream({"question": "When?"}, SESSION))
            assert asked == [["Where?", "Lisbon.", "How?"], ["Where?", "Lisbon.", "How?", "By train.", "When?"]]
            said = [(message.role, message.text) for message in TapeChatMessageHistory("trip", store).tape.messages()]
            assert said[:3] == [("user", "Where?"), ("assistant", "Lisbon."), ("user", "How?")]
            assert said[-1] == ("assistant", "At 9:30.")
            assert [hit.role for hit in store.search("lisbon")] == ["assistant"]
            assert store.verify().ok

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it promises."""
        lines = printed("langchain_history.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "user: Where to? | assistant: Lisbon. | user: And how? | assistant: By train."

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("langchain", monkeypatch, tmp_path)


class TestMessages:
    def test_every_kind_comes_back_as_it_was(self, store: tape.Store) -> None:
        """Equal ids, parts, calls, artifacts and classes; the tape holds what any reader understands."""
        history = TapeChatMessageHistory("trip", store)
        history.add_messages(every_kind())
        assert history.messages == every_kind()
        assert [type(message) for message in history.messages] == [type(message) for message in every_kind()]
        roles = [message.role for message in history.tape.messages()]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant", "critic", "user"]
        # What the message says is not kept a second time.
        assert all("content" not in (message.meta or {})["langchain"] for message in history.tape.messages())
        history.tape.retract(history.tape.messages()[2].id)
        assert history.messages == every_kind()[:2] + every_kind()[4:], "with the result of the call"

    def test_async_twins_do_the_same(self, store: tape.Store) -> None:
        """Read, write and clear."""

        async def go() -> None:
            history = TapeChatMessageHistory("trip", store)
            await history.aclear()
            await history.aadd_messages([])
            assert store.list().items == []
            await history.aadd_messages(every_kind())
            assert await history.aget_messages() == every_kind()
            await history.aclear()
            assert await history.aget_messages() == []

        asyncio.run(go())

    def test_clear_keeps_the_tape(self, store: tape.Store) -> None:
        """The history is empty and goes on; what was there can be brought back."""
        history = TapeChatMessageHistory("trip", store)
        history.add_user_message("one")
        history.clear()
        history.clear()
        history.add_ai_message("two")
        assert history.messages == [AIMessage("two")]
        assert [entry.kind for entry in history.tape.entries()].count("clear") == 1
        assert history.tape.verify().ok if hasattr(history.tape, "verify") else store.verify().ok

    def test_hostile_content_is_kept(self, store: tape.Store) -> None:
        """Half characters, NaN and objects are replaced where they are read, and come back where they can."""
        history = TapeChatMessageHistory("trip", store)
        odd = AIMessage(
            "fine", additional_kwargs={"text": HALF, "score": float("inf"), "tuple": (1, 2), "raw": b"\xff"}
        )
        history.add_messages([odd, HumanMessage.model_construct(content=HALF)])
        one, two = history.messages
        assert one.additional_kwargs == {"text": HALF, "score": float("inf"), "tuple": [1, 2], "raw": "/w=="}
        assert history.tape.messages()[1].text == "half � of a character"
        assert two.content in (HALF, "half � of a character")
        # NaN equals nothing, not itself.
        history.add_message(AIMessage("", response_metadata={"score": float("nan")}))
        assert repr(history.messages[-1].response_metadata["score"]) == "nan"

    def test_what_others_write_is_read(self, store: tape.Store) -> None:
        """Messages, revisions and summaries that came from elsewhere are LangChain's, too."""
        history = TapeChatMessageHistory("trip", store)
        history.add_user_message("Wher?")
        history.tape.revise(history.tape.messages()[0].id, content="Where?")
        history.tape.append(role="assistant", content="Lisbon.")
        history.tape.append({"role": "oracle", "content": [{"type": "odd"}, {"type": "text", "text": "Perhaps."}]})
        assert history.messages == [
            HumanMessage("Where?"),
            AIMessage("Lisbon."),
            ChatMessage("Perhaps.", role="oracle"),
        ]

    def test_owners_and_odd_names_are_apart(self, store: tape.Store) -> None:
        """One session id of two owners, and names that no tape can have, are different sessions."""
        names = ["s", "s" * 400, "s" * 400 + "t", "a\nb", "ab", "\ud800", "", " ", "~x"]
        places = [(store.scoped("ada"), "s"), (store.scoped("bob"), "s"), *((store, name) for name in names)]
        for number, (own, name) in enumerate(places):
            TapeChatMessageHistory(name, own).add_user_message(str(number))
        for number, (own, name) in enumerate(places):
            assert [message.content for message in TapeChatMessageHistory(name, own).messages] == [str(number)]

    def test_a_batch_is_written_whole_or_not_at_all(self, store: tape.Store) -> None:
        """A message that cannot be written leaves the others out."""
        history = TapeChatMessageHistory("trip", store)
        bad: Any = "no message"
        with pytest.raises(Exception, match="has no attribute"):
            history.add_messages([HumanMessage("one"), bad])
        assert history.messages == []
        assert store.list().items == []


def adapt(store: tape.Store) -> Callable[[str], Any]:
    history = TapeChatMessageHistory("one", store)
    return lambda mark: history.aadd_messages([HumanMessage(mark), AIMessage("noted")])


def marks(store: tape.Store) -> list[str]:
    contents = [str(message.content) for message in TapeChatMessageHistory("one", store).messages]
    assert contents[1::2] == ["noted"] * (len(contents) // 2), "a turn was torn apart"
    return contents[::2]


def test_many_processes_share_a_session(backend: Backend, crew: Crew) -> None:
    """Four processes, fifty turns each: every one is there once, question and answer together."""
    assert not hold_together(crew, backend, adapt, marks, least=200)
