"""TapeSaver holds the contracts of LangGraph, and those that its kit has no test for: exact values, writers, copies."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from support.backends import Backend
from support.processes import Crew
from support.sizes import heavy, size

import tape
from integrations.contention import hold_together
from integrations.langgraph.threads import THREAD, marks, put, turns, values
from tape.integrations.langgraph import TapeSaver


def texts(store: tape.Store, thread: str = "chat") -> list[str]:
    return [message.content for message in store.tape(thread).messages()]


def talk(*words: str) -> list[BaseMessage]:
    kinds = itertools.cycle([HumanMessage, AIMessage])
    return [next(kinds)(content=word, id=f"id-{word}") for word in words]


class TestKit:
    def test_the_kit_passes(self, backend: Backend) -> None:
        """Every test of every capability, the optional ones included."""

        @checkpointer_test(name="TapeSaver")
        async def made() -> AsyncIterator[TapeSaver]:
            with backend.open() as store:
                yield TapeSaver(store)

        report = asyncio.run(validate(made))
        assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
        assert sum(result.tests_passed for result in report.results.values()) >= 81

    def test_an_async_store_and_a_path_will_do(self, tmp_path: Any) -> None:
        """A saver takes each of the three, and sees what another one wrote."""

        async def both() -> None:
            async with await tape.open_async(tmp_path / "agent.db") as store:
                saver = TapeSaver(store)
                await saver.aput_writes(await asyncio.to_thread(put, saver, {"n": 1}), [("n", 2)], "task")
                other = TapeSaver(tmp_path / "agent.db")
                held = await other.aget_tuple(THREAD)
                assert held is not None
                assert held.pending_writes == [("task", "n", 2)]
                assert [each.checkpoint["channel_values"] async for each in other.alist(None)] == [{"n": 1}]
                await other.aclose()

        asyncio.run(both())


class TestMessages:
    def test_messages_of_a_graph_are_messages_of_the_tape(self, store: tape.Store) -> None:
        """They are found, shown to a model and counted like any others; tool calls are bound to their results."""
        call = {"name": "look", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}
        said = [
            SystemMessage("Be brief"),
            HumanMessage("Is it raining?"),
            AIMessage("", tool_calls=[call]),
            ToolMessage("Drizzle", tool_call_id="c1", artifact={"mm": 1}),
            AIMessage("A little.", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
        ]
        saver = TapeSaver(store)
        put(saver, {"messages": said})
        assert values(saver)["messages"] == said
        chat = store.get("chat")
        assert [message.role for message in chat.messages()] == ["system", "user", "assistant", "tool", "assistant"]
        assert [hit.role for hit in store.search("drizzle")] == ["tool"]
        assert [hit.role for hit in store.search("oslo")] == ["assistant"]
        asked = chat.context(budget=1_000).to_openai()
        assert asked[2]["tool_calls"][0]["id"] == asked[3]["tool_call_id"] == "c1"

    def test_odd_messages_come_back_equal(self, store: tape.Store) -> None:
        """Whatever a message holds, and whatever class it is of: as LangGraph's own serializer would have it."""

        class Other(HumanMessage):
            pass

        odd: list[BaseMessage] = [
            HumanMessage("lone \ud800 surrogate"),
            AIMessage("nan", response_metadata={"score": float("nan"), "pair": (1, 2), 3: "number"}),
            AIMessage(
                [{"type": "text", "text": "block"}, "bare"], additional_kwargs={"deep": {"a": [None, True, 1.0]}}
            ),
            AIMessage(
                [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}],
                tool_calls=[{"name": "f", "args": {}, "id": "c1", "type": "tool_call"}],
            ),
            AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": None, "error": "cut"}]),
            AIMessage("", tool_calls=[{"name": "f", "args": {"when": {1, 2}}, "id": None, "type": "tool_call"}]),
            ToolMessage(["a", {"b": 1}], tool_call_id="", status="error", name="f", artifact=object),
            AIMessageChunk("chunk"),
            ChatMessage("said", role="critic"),
            FunctionMessage("done", name="f"),
            HumanMessage("extra", more="field", id="x", name="Ann"),
            HumanMessage("\u0000 null", id=""),
        ]
        odd[6].artifact = {"raw": b"\x00\xff"}  # type: ignore[attr-defined]
        saver, reference = TapeSaver(store), InMemorySaver()
        one = put(saver, {"messages": odd})
        kept = values(saver)["messages"]
        for message, other in zip(kept, reference.serde.loads_typed(reference.serde.dumps_typed(odd)), strict=True):
            assert repr(message) == repr(other)
            assert type(message) is type(other)
        again = put(saver, {"messages": [*kept, HumanMessage("next")]}, one)
        assert len(values(saver, again)["messages"]) == len(odd) + 1

    def test_what_is_read_is_the_readers_own(self, store: tape.Store) -> None:
        """Changing what was read changes nothing that is read later."""
        saver = TapeSaver(store)
        put(saver, {"messages": [AIMessage("a", additional_kwargs={"k": [1]})], "other": {"k": [1]}})
        first = values(saver)
        first["messages"][0].additional_kwargs["k"].append(2)
        first["messages"][0].response_metadata["x"] = 1
        first["other"]["k"].append(2)
        second = values(saver)
        assert second["messages"][0].additional_kwargs == {"k": [1]}
        assert second["messages"][0].response_metadata == {}
        assert second["other"] == {"k": [1]}

    def test_a_changed_or_removed_message_is_a_branch(self, store: tape.Store) -> None:
        """The tape shows the conversation of the latest checkpoint; each checkpoint has what was put, for ever."""
        saver = TapeSaver(store)
        said = talk("a", "b", "c")
        one = put(saver, {"messages": said})
        said[1].content = "B"
        two = put(saver, {"messages": said}, one)
        three = put(saver, {"messages": said[:1]}, two)
        assert texts(store) == ["a"]
        four = put(saver, {"messages": []}, three)
        assert texts(store) == []
        five = put(saver, {"messages": talk("a", "b", "c", "d")}, four)
        assert texts(store) == ["a", "b", "c", "d"]
        seen = [[message.content for message in values(saver, at)["messages"]] for at in (one, two, three, four, five)]
        assert seen == [["a", "b", "c"], ["a", "B", "c"], ["a"], [], ["a", "b", "c", "d"]]
        assert store.get("chat").info().message_count == len("abc" + "Bc" + "d")

    def test_what_a_person_takes_out_of_the_view_is_still_in_the_checkpoints(self, store: tape.Store) -> None:
        """Retracted, revised or cleared on the tape: a checkpoint is as it was put, and the graph goes on."""
        saver, chat = TapeSaver(store), store.tape("chat")
        one = put(saver, {"messages": talk("a", "b")})
        chat.retract(chat.messages()[0].id)
        assert [message.content for message in values(saver)["messages"]] == ["a", "b"]
        chat.clear()
        two = put(saver, {"messages": talk("a", "b", "c")}, one)
        assert texts(store) == ["a", "b", "c"]
        chat.revise(chat.messages()[1].id, content="revised")
        three = put(saver, {"messages": talk("a", "b", "c", "d")}, two)
        for config, words in ((one, "ab"), (two, "abc"), (three, "abcd")):
            assert "".join(message.content[:1] for message in values(saver, config)["messages"])[:1] == words[0]
        assert [message.content for message in values(saver, two)["messages"]] == ["a", "b", "c"]

    def test_subgraphs_share_messages_and_leave_the_conversation_alone(self, store: tape.Store) -> None:
        """What a subgraph writes is on the tape once, beside the conversation of the root."""
        saver = TapeSaver(store)
        one = put(saver, {"messages": talk("a", "b")})
        inner = put(saver, {"messages": talk("a", "b", "c")}, ns="child:1")
        assert texts(store) == ["a", "b"]
        put(saver, {"notes": talk("x"), "messages": talk("a", "b", "c")}, one)
        assert texts(store) == ["a", "b", "c"]
        assert store.get("chat").info().message_count == len("abcx")
        assert len(values(saver, inner)["messages"]) == 3

    def test_an_encrypting_serializer_leaves_nothing_readable(self, store: tape.Store) -> None:
        """Neither messages nor values nor metadata are on the tape as text."""

        class Backwards(CipherProtocol):
            def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
                return "backwards", plaintext[::-1]

            def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
                return ciphertext[::-1]

        strict = JsonPlusSerializer(allowed_msgpack_modules=None)
        saver = TapeSaver(store, serde=EncryptedSerializer(Backwards(), strict))
        config = put(saver, {"messages": talk("secret"), "n": ["secret"] * 20}, note="secret")
        saver.put_writes(config, [("n", "secret")], "task")
        held = saver.get_tuple(THREAD)
        assert held is not None
        assert held.checkpoint["channel_values"] == {"messages": talk("secret"), "n": ["secret"] * 20}
        assert held.metadata["note"] == "secret"  # type: ignore[typeddict-item]
        assert not any("secret" in repr(entry) for entry in store.get("chat").entries())
        assert store.get("chat").messages() == []


class TestValues:
    @pytest.mark.parametrize("seed", range(5))
    def test_lists_that_grow_shrink_and_change(self, store: tape.Store, seed: int) -> None:
        """Every checkpoint of a random history, with branches, has the values that were put; also for a cold saver."""
        chance = random.Random(seed)
        saver = TapeSaver(store)
        put_at: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
        for number in range(60):
            parent = chance.choice(put_at) if put_at and chance.random() < 0.2 else (put_at[-1] if put_at else None)
            items: list[Any] = list(parent[1]["items"]) if parent else []
            if parent:
                saver.get_tuple(parent[0])
            how = chance.random()
            if how < 0.7:
                items += [{"n": number, "raw": b"\x00"} for _ in range(chance.randrange(4))]
            elif how < 0.8 and items:
                items[chance.randrange(len(items))] = number
            elif how < 0.9:
                del items[chance.randrange(len(items) + 1) :]
            new = {"items": items, "same": parent[1]["same"] if parent else {"long": "x" * 500}}
            versions = {"items": f"v{number}", "same": "v"}
            config = put(saver, new, parent and parent[0], versions=versions, new={"items": f"v{number}"})
            put_at.append((config, new, versions))
        cold = TapeSaver(store)
        assert [values(cold, config) for config, _, _ in put_at] == [new for _, new, _ in put_at]

    def test_a_list_that_grows_takes_few_bytes(self, store: tape.Store) -> None:
        """300 puts of a list that grows by one: far less than every list as a whole."""
        saver, config = TapeSaver(store), None
        items: list[Any] = []
        for number in range(300):
            items = [*items, {"number": number, "text": "x" * 100}]
            config = put(saver, {"items": items}, config)
        assert values(saver)["items"] == items
        stored = sum(len(repr(entry.payload)) for entry in store.get("chat").entries(kinds=["event"]))
        assert stored < 300 * 300 * 100 / 2 / 8

    def test_a_checkpoint_put_once_more_holds(self, store: tape.Store) -> None:
        """The last one with an id wins; one that went on from the first keeps its values."""
        saver = TapeSaver(store)
        big = {"k": "x" * 200}
        one = put(saver, {"n": big}, id="1", versions={"n": 1})
        two = put(saver, {"n": big}, one, id="2", versions={"n": 1}, new={})
        put(saver, {"n": {"k": "other"}}, id="1", versions={"n": 1}, again=True)
        assert values(saver, one) == {"n": {"k": "other"}}
        assert values(saver, two) == {"n": big}
        assert [each.metadata.get("again") for each in saver.list(THREAD)] == [None, True]

    def test_writes_are_folded(self, store: tape.Store) -> None:
        """A task's write holds when it is repeated, an error or interrupt is replaced; the order is LangGraph's."""
        saver = TapeSaver(store)
        config = put(saver, {})
        saver.put_writes(config, [("a", 1), ("b", 2)], "t2", "~2")
        saver.put_writes(config, [("a", 9), ("b", 9), ("c", 3)], "t2", "~2")
        saver.put_writes(config, [(INTERRUPT, "x")], "t1", "~3")
        saver.put_writes(config, [(ERROR, "e"), (INTERRUPT, "y")], "t1", "~3")
        saver.put_writes(config, [("a", 0)], "t9")
        held = saver.get_tuple(config)
        assert held is not None
        expected = [
            ("t9", "a", 0),
            ("t2", "a", 1),
            ("t2", "b", 2),
            ("t2", "c", 3),
            ("t1", INTERRUPT, "y"),
            ("t1", ERROR, "e"),
        ]
        assert held.pending_writes == expected


class TestThreads:
    def test_the_latest_is_the_greatest_id_in_whatever_order(self, store: tape.Store) -> None:
        """``list`` and the latest go by id, as in other savers, over namespaces and threads."""
        saver = TapeSaver(store)
        for id in ("3", "1", "5", "2", "4"):
            put(saver, {"n": id}, id=id)
            put(saver, {"n": id}, id=f"{id}i", ns="inner")
            put(saver, {"n": id}, id=f"{id}o", thread="other")

        def ids(*args: Any, **options: Any) -> str:
            return " ".join(each.checkpoint["id"] for each in saver.list(*args, **options))

        assert values(saver)["n"] == "5"
        assert ids(THREAD) == "5 4 3 2 1"
        assert ids(THREAD, limit=2, before={"configurable": {"checkpoint_id": "4"}}) == "3 2"
        assert ids({"configurable": {"thread_id": "chat"}}, limit=3) == "5i 5 4i"
        assert ids(None, limit=4) == "5o 5i 5 4o"

    def test_threads_of_any_name(self, store: tape.Store) -> None:
        """Long or unprintable ids of threads, namespaces and checkpoints are kept apart, and given back."""
        saver = TapeSaver(store)
        for thread, ns in itertools.product(("x" * 300, "x" * 301, "tab\t", "", "é"), ("", "n" * 400, "n" * 401)):
            put(saver, {"n": [thread, ns]}, thread=thread, ns=ns, id="i" * 300)
            config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
            (held,) = saver.list(config)
            assert held == saver.get_tuple(config)
            assert held.checkpoint["channel_values"]["n"] == [thread, ns]
            assert held.config["configurable"] == {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": "i" * 300}

    def test_two_owners_have_threads_of_one_id(self, store: tape.Store) -> None:
        """Each sees, lists, copies and deletes its own; a copy is known by its own id."""
        savers = {owner: TapeSaver(store.scoped(owner)) for owner in ("ann", "bob")}
        for owner, saver in savers.items():
            config = put(saver, {"messages": talk(owner)})
            put(saver, {"messages": talk(owner, "more")}, config)
            assert values(saver, THREAD)["messages"][0].content == owner
            saver.copy_thread("chat", "copy")
        for saver in savers.values():
            listed = [each.config["configurable"]["thread_id"] for each in saver.list(None)]
            assert sorted(listed) == ["chat", "chat", "copy", "copy"]
            configs = [each for each in saver.list({"configurable": {"thread_id": "copy"}}) if each.parent_config]
            assert [each.parent_config["configurable"]["thread_id"] for each in configs if each.parent_config] == [
                "copy"
            ]
        savers["ann"].delete_thread("copy")
        savers["ann"].delete_thread("chat")
        assert list(savers["ann"].list(None)) == []
        assert len(list(savers["bob"].list(None))) == 4
        assert {info.owner for info in store.list()} == {"bob"}

    def test_a_copy_of_a_thread_of_any_name_is_listed_under_its_own(self, store: tape.Store) -> None:
        """An id that no tape can have is given back for the thread, and for the copy of it."""
        saver = TapeSaver(store)
        put(saver, {"n": 1}, thread="tab\t")
        saver.copy_thread("tab\t", "x" * 300)
        listed = [each.config["configurable"]["thread_id"] for each in TapeSaver(store).list(None)]
        assert sorted(listed) == ["tab\t", "x" * 300]

    def test_a_copy_lives_by_itself(self, store: tape.Store) -> None:
        """Both go on; the source may be deleted, and be used again, while the copy keeps all."""
        saver = TapeSaver(store)
        one = put(saver, {"messages": talk("a", "b"), "n": {"k": "x" * 200}}, versions={"messages": 1, "n": 1})
        saver.copy_thread("chat", "copy")
        put(saver, {"messages": talk("a", "b", "source")}, one)
        parent = saver.get_tuple({"configurable": {"thread_id": "copy"}})
        assert parent is not None
        more = {"messages": talk("a", "b", "copy"), "n": parent.checkpoint["channel_values"]["n"]}
        put(saver, more, parent.config, thread="copy", versions={"messages": 2, "n": 1}, new={"messages": 2})
        saver.delete_thread("chat")
        assert saver.get_tuple(THREAD) is None
        assert saver.get_tuple(one) is None
        assert texts(store) == []
        assert values(saver, {"configurable": {"thread_id": "copy"}}) == more
        assert texts(store, "copy") == ["a", "b", "copy"]
        put(saver, {"messages": talk("anew")})
        assert texts(store) == ["anew"]
        assert len(list(saver.list({"configurable": {"thread_id": "copy"}}))) == 2
        assert store.verify().ok
        with pytest.raises(tape.TapeExists):
            saver.copy_thread("chat", "copy")

    def test_a_deleted_thread_may_be_used_again(self, store: tape.Store) -> None:
        """By a checkpoint or by writes; nothing of the old one comes back."""
        saver = TapeSaver(store)
        for begin in range(3):
            if begin == 2:
                saver.put_writes(
                    THREAD | {"configurable": {**THREAD["configurable"], "checkpoint_id": "x"}}, [("n", 1)], "t"
                )
            config = put(saver, {"messages": talk("a")}, n=begin)
            assert [each.metadata["n"] for each in saver.list(THREAD)] == [begin]  # type: ignore[typeddict-item]
            saver.put_writes(config, [("n", 1)], "t")
            saver.delete_thread("chat")
            assert saver.get_tuple(THREAD) is None
            assert saver.get_tuple(config) is None
        saver.delete_thread("never was")

    def test_pruning_hides_and_keeps_what_deltas_need(self, store: tape.Store) -> None:
        """Only the latest is listed and found; the history of a delta channel is whole, and the graph goes on."""
        saver = TapeSaver(store)
        config = put(saver, {"delta": ["seed"]}, run_id="one")
        for number in range(4):
            saver.put_writes(config, [("delta", number)], f"t{number}")
            config = put(
                saver, {"messages": talk(*"abcd"[: number + 1])}, config, run_id="two" if number > 2 else "one"
            )
        before = saver.get_delta_channel_history(config=config, channels=["delta", "none"])
        assert before["delta"]["seed"] == ["seed"]
        assert [value for _, _, value in before["delta"]["writes"]] == [0, 1, 2, 3]
        saver.delete_for_runs(["two"])
        assert texts(store) == ["a", "b", "c"]
        assert len(list(saver.list(THREAD))) == 4
        saver.prune(["chat", "never was"])
        assert len(list(saver.list(THREAD))) == 1
        assert saver.get_tuple(config) is None
        assert saver.get_delta_channel_history(config=config, channels=["delta", "none"]) == before
        with pytest.raises(tape.InvalidEntry):
            saver.prune(["chat"], strategy="most")


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], lambda one, other: one + other]
    asked: str


def graph(saver: Any) -> Any:
    """Return a graph that answers, asks a person, forgets, and counts."""

    def answer(state: State) -> State:
        last = state["messages"][-1].content
        if last == "forget":
            return {"messages": [RemoveMessage(id=each.id) for each in state["messages"][:-2]], "notes": ["forgot"]}
        if last == "ask":
            return {"asked": interrupt("may I?"), "notes": ["asked"]}
        return {"messages": [AIMessage(f"re: {last}", id=f"re-{len(state['messages'])}")], "notes": [str(last)]}

    def count(state: State) -> State:
        return {"notes": [f"{len(state['messages'])} messages"]}

    builder = StateGraph(State).add_node("answer", answer).add_node("count", count)
    return builder.add_edge(START, "answer").add_edge("answer", "count").compile(checkpointer=saver)


def converse(saver: Any, seed: int, reopened: Callable[[], Any]) -> Iterator[Any]:
    """Run a random conversation on a graph, with time travel, edits and questions; yields what can be seen."""
    chance, config = random.Random(seed), {"configurable": {"thread_id": "chat"}}
    agent = graph(saver)
    for number in range(12):
        how = chance.random()
        if agent.get_state(config).interrupts:
            agent.invoke(Command(resume=f"yes {number}"), config)
        elif how < 0.15 and number:
            history = list(agent.get_state_history(config))
            past = history[chance.randrange(len(history))]
            agent.invoke({"messages": [HumanMessage(f"back {number}", id=f"b{number}")]}, past.config)
        elif how < 0.3:
            agent.update_state(
                config, {"messages": [HumanMessage(f"edited {number}", id=f"b{number}")]}, as_node="answer"
            )
        else:
            word = chance.choice(["hello", "ask", "forget", "hello"])
            agent.invoke({"messages": [HumanMessage(word, id=f"h{number}")]}, config)
        if chance.random() < 0.3:
            agent = graph(reopened())
        for state in agent.get_state_history(config):
            tasks = [(task.name, task.error, [each.value for each in task.interrupts]) for task in state.tasks]
            yield state.values, state.next, tasks, state.metadata["step"], state.metadata["source"]


class TestGraphs:
    @pytest.mark.parametrize("seed", range(size(3, 30)))
    @heavy
    def test_graphs_run_as_on_the_saver_in_memory(self, store: tape.Store, seed: int) -> None:
        """All that a graph shows of its history, after every step of a random conversation."""
        print(f"seed {seed}")
        memory = InMemorySaver()
        ours = converse(TapeSaver(store), seed, lambda: TapeSaver(store))
        theirs = converse(memory, seed, lambda: memory)
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, f"state {number}"
        state = graph(TapeSaver(store)).get_state({"configurable": {"thread_id": "chat"}})
        assert texts(store) == [message.content for message in state.values.get("messages", [])]
        assert store.verify().ok

    @heavy
    def test_a_long_conversation_is_small(self, backend: Backend) -> None:
        """1 000 messages in 500 turns take at most 10 MB."""
        turns = size(50, 500)
        with backend.open() as store:
            agent = graph(TapeSaver(store))
            for number in range(turns):
                question = HumanMessage(f"{number} " + "x" * 400, id=f"h{number}")
                agent.invoke({"messages": [question]}, {"configurable": {"thread_id": "chat"}})
            assert len(texts(store)) == 2 * turns
            assert store.stats().bytes <= turns * 20_000


class TestTogether:
    def test_one_of_two_runs_that_go_on_from_the_latest_is_refused(self, store: tape.Store) -> None:
        """Also where there was none; the refusal is typed. A branch from a checkpoint asked for by id is none."""
        one, two = TapeSaver(store), TapeSaver(store)
        assert one.get_tuple(THREAD) is two.get_tuple(THREAD) is None
        first = put(one, {"n": 1})
        with pytest.raises(tape.HeadMoved):
            put(two, {"n": 2})
        latest = two.get_tuple(THREAD)
        assert latest is not None
        second = put(one, {"n": 3}, first)
        with pytest.raises(tape.HeadMoved) as refused:
            put(two, {"messages": talk("lost")}, latest.config)
        assert refused.value.expected < refused.value.actual
        assert texts(store) == []
        put(two, {"n": 4}, latest.config, ns="inner")
        put(two, {"n": 5}, latest.config, source="fork")
        two.get_tuple(first)
        put(two, {"n": 6}, first)
        assert len(list(two.list(THREAD))) == 4
        assert values(one, second) == {"n": 3}

    def test_four_processes_write_one_thread(self, backend: Backend, crew: Crew) -> None:
        """4 times 50 turns of a graph: what was acknowledged is held once, what was refused is not there."""
        refused = hold_together(crew, backend, turns, marks)
        assert set(refused) <= {"HeadMoved"}
        with backend.open() as store:
            state = graph(TapeSaver(store)).get_state({"configurable": {"thread_id": "chat"}})
            assert texts(store) == [message.content for message in state.values["messages"]]
