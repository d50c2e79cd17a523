"""Runs: an agent recorded once and run again from its tape, without a model and without writing anything."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import gc
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from support.backends import Backend
from support.changes import CHANGES, changed, example
from support.sizes import heavy, size

import tape
from tape.core.context.build import LISTENERS
from tape.runs.recording import read_recording

TIMES = size(5, 100)
SEEDS = size(2, 38) * len(CHANGES)
Message = dict[str, Any]


@pytest.fixture
def chat(quick: Backend) -> tape.Tape:
    """A tape for what has nothing to do with the engine."""
    return quick.open(durability="normal").tape("chat")


def entries_of(chat: tape.Tape) -> list[tuple[int, str, str]]:
    """Return the tape as it is stored."""
    return [(entry.seq, entry.key, entry.hash) for entry in chat.entries()]


class TestTheExample:
    """The agent in examples/recorded_agent.py: tools, parallel calls, a subagent, a stream."""

    def recorded(self, store: tape.Store) -> tuple[tape.Tape, str, str]:
        chat = store.tape("trip")
        with tape.record(chat, "trip", input="To the fjords.") as run:
            answer = asyncio.run(example().agent(run))
        return chat, run.id, answer

    @heavy
    def test_replayed_again_and_again(self, store: tape.Store) -> None:
        """Every replay gives the same answer, makes no call, and leaves the tape byte for byte as it was."""
        chat, run_id, answer = self.recorded(store)
        before = entries_of(chat)
        example().made.clear()
        for _ in range(TIMES):
            with tape.replay(chat, run_id) as again:
                assert asyncio.run(example().agent(again)) == answer
            assert (again.report.ok, again.report.matched, again.report.live) == (True, 15, 0)
        assert example().made == []
        assert entries_of(chat) == before
        assert chat.verify().ok

    @heavy
    def test_the_first_difference_is_named(self, store: tape.Store) -> None:
        """Whatever is changed about the agent, the first divergence has the right kind, call and value."""
        chat, run_id, _ = self.recorded(store)
        wrong = []
        for seed in range(SEEDS):
            setup, (kind, name, path, recorded) = changed(seed)
            with pytest.raises(tape.Diverged) as caught, tape.replay(chat, run_id) as again:
                asyncio.run(example().agent(again, setup))
            told = caught.value.divergence
            assert again.recording is not None
            calls = [call for call in again.recording.calls if call.seq == told.seq]
            values = calls[0].request().values() if calls else ()
            right = (told.kind, told.name) == (kind, name) and (recorded is None or recorded in values)
            if not right or (path is not None and not str(told.path).startswith(path)):
                wrong.append((seed, kind, name, path, recorded, str(told)))
        assert wrong == []

    def test_live_from_a_call_into_a_fork(self, store: tape.Store) -> None:
        """Left of the cursor answers come from the tape, right of it they are made and written to the fork."""
        chat, run_id, _ = self.recorded(store)
        before = chat.info().head
        for number in (1, 6, 9, 15):
            fork = chat.fork(name=f"from {number}")
            example().made.clear()
            with tape.replay(chat, run_id, live_from=number, into=fork, effects="allow") as onward:
                answer = asyncio.run(example().agent(onward))
            assert (onward.report.matched, onward.report.live) == (number - 1, 16 - number)
            assert len(list(fork.entries(name="run.call"))) == 16 - number
            example().made.clear()
            with tape.replay(fork, onward.id) as again:
                assert asyncio.run(example().agent(again)) == answer
            assert again.report.matched == 15
            assert example().made == []
        forks = [entry.kind for entry in chat.entries(after=before)]
        assert set(forks) == {"fork"}

    def test_models_recorded_and_tools_live(self, store: tape.Store) -> None:
        """The same decisions in the world of today: what tools give otherwise is named, and writes are not made."""
        chat, run_id, answer = self.recorded(store)
        example().made.clear()
        with tape.replay(chat, run_id, tools="live", on_divergence="collect") as today:
            assert asyncio.run(example().agent(today)) == answer
        assert {told.kind for told in today.report.diverged} == {"result_changed"}
        assert {told.name for told in today.report.diverged} <= {"weather", "price"}
        assert sorted(set(example().made)) == ["price", "weather"]

    def test_kept_runs_are_checked_in_one_call(self, store: tape.Store) -> None:
        """Every tape with the label has a row; one that differs makes the exit code 1."""
        for name in ("a", "b"):
            with tape.record(store.tape(name), "trip", input=name) as run:
                asyncio.run(example().agent(run))
            store.tape(name).label("golden")
        store.tape("c").label("golden")
        report = tape.check(store, label="golden", agent=example().agent)
        assert [(row.tape, row.status, row.matched) for row in report.runs] == [("b", "same", 15), ("a", "same", 15)]
        assert (report.without, report.exit_code) == (["c"], 0)
        setup = dataclasses.replace(example().Setup(), model="another")
        worse = tape.check(store, label="golden", agent={"trip": lambda run: example().agent(run, setup)})
        assert [row.first.kind for row in worse.runs if row.first] == ["model_changed", "model_changed"]
        assert worse.exit_code == 1
        assert [line.split()[:2] for line in str(worse).splitlines()] == [
            ["tape", "run"],
            ["b", "trip"],
            ["a", "trip"],
            ["c", "no"],
        ]
        assert tape.check(store, label="none", agent=example().agent).exit_code == 1


@dataclasses.dataclass
class Answer:
    """What an SDK returns."""

    text: str
    tokens: int


class Usage(msgspec.Struct):
    """What another SDK returns."""

    total: int


class Oddity(Exception):
    """An error that cannot be made of what was recorded."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class TestCalls:
    """Whatever a call returns, raises or yields comes back."""

    def again(self, chat: tape.Tape, agent: Any) -> tuple[Any, Any]:
        with tape.record(chat) as run:
            first = agent(run)
        with tape.replay(chat, run.id) as replayed:
            second = agent(replayed)
        assert replayed.report.ok
        return first, second

    @pytest.mark.parametrize(
        "value",
        [None, 0, "text", [1, {"a": None}], b"\x00\xff", (1, "two"), {3, 4}, Answer("hi", 3), Usage(7), {"deep": [[]]}],
        ids=lambda value: type(value).__name__,
    )
    def test_values_come_back_as_they_were(self, chat: tape.Tape, value: Any) -> None:
        """JSON, bytes, tuples and sets, and objects of types that are loaded are equal, and of the same type."""
        first, second = self.again(chat, lambda run: run.tool(lambda: value, name="t", effect="read")())
        assert first == second == value
        assert type(second) is type(value)

    def test_load_makes_the_value(self, chat: tape.Tape) -> None:
        """``load`` gets the recorded data; without it the annotation tells the type."""

        def answers() -> list[Answer]:
            return [Answer("a", 1)]

        first, second = self.again(chat, lambda run: run.tool(answers, effect="read")())
        assert first == second == [Answer("a", 1)]
        _, loaded = self.again(chat, lambda run: run.model(lambda: Answer("b", 2), name="m", load=dict)())
        assert loaded == {"text": "b", "tokens": 2}

    def test_what_cannot_be_kept_is_told(self, chat: tape.Tape) -> None:
        """A value that is no JSON comes back as what was kept of it, and the entry says what was replaced."""
        with tape.record(chat) as run:
            run.tool(lambda: {"at": float("nan"), "what": object()}, name="t", effect="read")()
        result = next(chat.entries(name="run.result")).payload
        assert result.data["value"]["replaced"] == ["at is nan", "what is a object"]  # type: ignore[union-attr]
        with tape.replay(chat, run.id) as again:
            assert again.tool(lambda: 0, name="t")()["at"] is None

    def test_errors_are_raised_again(self, chat: tape.Tape) -> None:
        """An error of a known type is raised as it was; one that cannot be made is a RecordedError."""

        def fail(what: str) -> None:
            raise {"value": ValueError("no"), "odd": Oddity(1, 2), "key": KeyError("k")}[what]

        def agent(run: tape.Run) -> list[str]:
            seen = []
            for what in ("value", "odd", "key"):
                try:
                    run.tool(fail, effect="read")(what)
                except Exception as error:
                    seen.append(f"{type(error).__name__}: {error}")
            return seen

        first, second = self.again(chat, agent)
        assert first == ["ValueError: no", "Oddity: 1 and 2", "KeyError: 'k'"]
        assert second == ["ValueError: no", "RecordedError: Oddity: 1 and 2", "KeyError: 'k'"]

    def test_streams_keep_chunks_and_times(self, chat: tape.Tape) -> None:
        """A generator yields the same chunks; one that was not read to its end is recorded so, one that fails fails."""

        def count(to: int) -> Iterator[int]:
            yield from range(to)
            if to == 3:
                raise ValueError("three")

        def agent(run: tape.Run) -> list[Any]:
            stream = run.model(count)
            seen: list[Any] = [list(stream(2))]
            partial = stream(9)
            seen.append([next(partial), next(partial)])
            partial.close()
            try:
                for item in stream(3):
                    seen.append(item)
            except ValueError as error:
                seen.append(str(error))
            return seen

        first, second = self.again(chat, agent)
        assert first == second == [[0, 1], [0, 1], 0, 1, 2, "three"]
        results = [entry.payload.data for entry in chat.entries(name="run.result")]  # type: ignore[union-attr]
        assert [result["status"] for result in results] == ["completed", "partial", "failed"]
        times = [at for at, _ in results[2]["chunks"]]
        assert times == sorted(times)

    def test_a_stream_that_a_client_returns(self, chat: tape.Tape) -> None:
        """What returns an iterator is recorded as it is read, with its own attributes in reach."""

        class Stream:
            headers = "yes"

            def __init__(self) -> None:
                self._left = iter("ab")

            def __iter__(self) -> Stream:
                return self

            def __next__(self) -> str:
                return next(self._left)

        def create(stream: bool) -> Any:
            return Stream()

        with tape.record(chat) as run, run.model(create)(stream=True) as live:
            assert live.headers == "yes"
            assert list(live) == ["a", "b"]
        with tape.replay(chat, run.id) as again, again.model(create)(stream=True) as recorded:
            assert list(recorded) == ["a", "b"]
            assert len(recorded.times) == 2

    def test_async_functions_and_generators(self, chat: tape.Tape) -> None:
        """Coroutines and async generators are wrapped, also behind plain functions that return something to await."""

        async def double(n: int) -> int:
            await asyncio.sleep(0)
            return 2 * n

        async def count(to: int) -> AsyncIterator[int]:
            for n in range(to):
                yield n

        async def use(run: tape.Run) -> list[Any]:
            plain = run.tool(lambda n: double(n), name="plain", effect="read")
            counted = [n async for n in run.model(count, name="count")(3)]
            return [await run.tool(double, effect="read")(2), await plain(3), counted]

        first, second = self.again(chat, lambda run: asyncio.run(use(run)))
        assert first == second == [4, 6, [0, 1, 2]]

    def test_a_call_inside_a_call_is_answered_with_it(self, chat: tape.Tape) -> None:
        """A tool that asks a model itself is answered as a whole; run live, what it asks is found in its own lane."""
        made: list[str] = []

        def agent(run: tape.Run) -> str:
            def answer(q: str) -> str:
                made.append(q)
                return q.upper()

            ask = run.model(answer)

            def research(topic: str) -> str:
                return "".join(ask(q) for q in topic)

            return str(run.tool(research, effect="read")("abc")) + str(ask("d"))

        first, second = self.again(chat, agent)
        assert first == second == "ABCD"
        assert made == ["a", "b", "c", "d"]
        run_id = next(chat.entries(name="run.started")).payload.data["run"]  # type: ignore[union-attr]
        with tape.replay(chat, run_id, tools="live") as live:
            assert agent(live) == "ABCD"
        assert (live.report.ok, live.report.matched, live.report.live) == (True, 4, 1)
        assert made == ["a", "b", "c", "d"]

    def test_a_call_by_position_and_by_name_is_one(self, chat: tape.Tape) -> None:
        """Arguments are compared by their names."""
        with tape.record(chat) as run:
            run.tool(lambda city, days=1: 7, name="t", effect="read")("Oslo", days=2)
        with tape.replay(chat, run.id) as again:
            assert again.tool(lambda city, days=1: 8, name="t")(days=2, city="Oslo") == 7


class TestParallel:
    """Parallel calls keep their places."""

    def test_threads_in_any_order(self, chat: tape.Tape) -> None:
        """Eight threads, whichever comes first, each get the answers of their own, however they were started."""
        chance = random.Random(8)

        def agent(run: tape.Run, *, copies: bool) -> list[str]:
            ask = run.model(lambda who, turn: f"{who} {turn} {chance.random()}")

            def work(who: int) -> str:
                time.sleep(chance.random() / 200)
                return "; ".join(ask(who, turn) for turn in range(3))

            with ThreadPoolExecutor(4) as pool:
                jobs = [
                    pool.submit(contextvars.copy_context().run, work, who) if copies else pool.submit(work, who)
                    for who in range(8)
                ]
                return [job.result() for job in jobs] + [ask("end", 0)]

        for copies in (True, False):
            with tape.record(chat) as run:
                first = agent(run, copies=copies)
            for _ in range(5):
                with tape.replay(chat, run.id) as again:
                    assert agent(again, copies=copies) == first

    def test_tasks_that_ask_the_same(self, chat: tape.Tape) -> None:
        """Tasks that begin with the same request get the answers in the order in which they were started."""
        counter = iter(range(1000))

        async def ask(q: str) -> int:
            await asyncio.sleep(0)
            return next(counter)

        async def agent(run: tape.Run) -> list[list[int]]:
            model = run.model(ask)

            async def work() -> list[int]:
                return [await model("same"), await model("same")]

            return await asyncio.gather(*(work() for _ in range(5)))

        with tape.record(chat) as run:
            first = asyncio.run(agent(run))
        with tape.replay(chat, run.id) as again:
            assert asyncio.run(agent(again)) == first

    def test_two_runs_on_one_tape_at_once(self, store: tape.Store) -> None:
        """Runs that were recorded at the same time are told apart, and each is run again by itself."""
        chat, begin = store.tape("both"), threading.Barrier(2)
        ids: dict[str, str] = {}

        def agent(run: tape.Run, who: str) -> list[str]:
            return [run.model(lambda q: f"{who} {q}")(f"q{n}") for n in range(10)]

        def work(who: str) -> None:
            begin.wait(30)
            with tape.record(chat, who) as run:
                agent(run, who)
            ids[who] = run.id

        threads = [threading.Thread(target=work, args=(who,)) for who in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for who, run_id in ids.items():
            with tape.replay(chat, run_id) as again:
                assert agent(again, who) == [f"{who} q{n}" for n in range(10)]


class TestStored:
    """What is on the tape, and how much of it."""

    def test_a_dispatch_before_and_an_outcome_after(self, chat: tape.Tape) -> None:
        """The entry of a call is there while it runs; its outcome follows, both under the keys of their place."""
        seen: list[list[str]] = []

        def look() -> None:
            seen.append([entry.key for entry in chat.entries(kinds=["event"])])

        with tape.record(chat, id="r") as run:
            run.tool(look, effect="read")()
        assert seen == [["run:r:start", "run:r:0:1:call"]]
        keys = [entry.key for entry in chat.entries(kinds=["event"])]
        assert keys == ["run:r:start", "run:r:0:1:call", "run:r:0:1:result", "run:r:end:1"]

    @pytest.mark.parametrize("tools", [[], [{"name": "t", "schema": "x" * 300}]], ids=["no tools", "tools"])
    def test_conversations_side_by_side_with_the_same_tools(self, chat: tape.Tape, tools: list[Message]) -> None:
        """A list of tools that never changes does not make a conversation go on from another one."""
        with tape.record(chat) as run:
            ask = run.model(lambda messages, tools: "ok")
            talks = [[{"role": "system", "content": name * 400}] for name in "AB"]
            for n in range(20):
                for talk in talks:
                    talk.append({"role": "user", "content": f"{n} {talk[0]['content']}"})
                    ask(talk, tools=tools)
        calls = [entry.payload.data["request"] for entry in chat.entries(name="run.call")]  # type: ignore[union-attr]
        assert sum(len(json.dumps(call)) for call in calls) < 40 * 1_000

    def test_a_resumed_run_with_patterns_keeps_what_was_sent(self, chat: tape.Tape) -> None:
        """What a pattern drops may differ when a run is resumed: the requests after it are those that were sent."""
        sent: list[str] = []

        def agent(run: tape.Run, now: str, *, fail: bool) -> None:
            ask = run.model(lambda prompt, turn: sent.append(prompt), name="m")
            prompt = f"now={now} " + "ctx " * 100
            ask(prompt=prompt, turn=1)
            if fail:
                raise ZeroDivisionError
            ask(prompt=prompt + " more", turn=2)

        with pytest.raises(ZeroDivisionError), tape.record(chat, id="r", normalise=["prompt"]) as run:
            agent(run, "9:59", fail=True)
        with tape.record(chat, id="r", resume=True) as run:
            agent(run, "10:00:00", fail=False)
        recorded = [call.request()["prompt"] for call in read_recording(chat, "r").calls]
        assert recorded == sent

    def test_an_inherited_run_is_replayed_on_a_fork(self, chat: tape.Tape) -> None:
        """The tape that its agent sees is the one on which it was recorded, as it was then."""
        chat.append(role="user", content="hi")

        def agent(run: tape.Run) -> list[Message]:
            rendered: list[Message] = run.context().to_openai()
            run.model(lambda messages: "ok", name="m")(rendered)
            return rendered

        with tape.record(chat, id="r") as run:
            first = agent(run)
        fork = chat.fork()
        for n in range(5):
            fork.append(role="user", content=str(n))
        with tape.replay(fork, "r") as again:
            assert agent(again) == first
        assert (again.report.matched, again.report.live) == (1, 0)

    def test_a_conversation_is_stored_once(self, store: tape.Store) -> None:
        """Requests that extend the one before store what was added, and come back whole."""
        chat = store.tape("long")
        messages = [{"role": "user", "content": f"{n} " * 250} for n in range(200)]
        sent: list[list[Message]] = []
        with tape.record(chat) as run:
            ask = run.model(lambda messages, tools: {"role": "assistant", "content": "ok " * 100})
            for n in range(20):
                sent.append(list(messages))
                messages.append(ask(messages, tools=[{"name": "t", "schema": "x" * 900}]))
                if n == 10:
                    # A marker that moves, and a message in the middle that is rewritten.
                    messages[50] = {"role": "user", "content": "rewritten"}
        calls = [entry.payload.data["request"] for entry in chat.entries(name="run.call")]  # type: ignore[union-attr]
        assert sum(len(json.dumps(call)) for call in calls[1:]) < 20 * 900
        with tape.replay(chat, run.id, on_divergence="collect") as again:
            assert again.recording is not None
            assert [call.request()["messages"] for call in again.recording.calls] == sent

    def test_a_request_of_a_recorded_context_is_a_pointer(self, store: tape.Store) -> None:
        """What ``run.context()`` was rendered to is stored as the seq of its manifest, for each API, and is rebuilt."""
        chat = store.tape("pointed")
        chat.append(role="user", content="word " * 400)
        sent: list[Any] = []

        def ask(**request: Any) -> str:
            sent.append(request)
            return "ok"

        with tape.record(chat) as run:
            model = run.model(ask)
            model(messages=run.context().to_openai())
            model(**run.context().to_anthropic())
            model(**run.context().to_openai("responses"))
            model(messages=[*run.context().to_openai(), {"role": "user", "content": "more"}])
        stored = [entry.payload.data["request"] for entry in chat.entries(name="run.call")]  # type: ignore[union-attr]
        assert ["context" in str(request) for request in stored] == [True, True, True, False]
        assert sum(len(json.dumps(request)) for request in stored) < 2500
        with tape.replay(chat, run.id, on_divergence="collect") as again:
            assert again.recording is not None
            assert [call.request() for call in again.recording.calls] == [
                json.loads(json.dumps(request)) for request in sent
            ]

    def test_any_recorded_context_is_pointed_to(self, store: tape.Store) -> None:
        """A request that equals a context of the tape, however that was recorded; not one of another tape or store."""
        chat, aside = store.tape("seen"), store.tape("aside")
        chat.append(role="user", content="word " * 400)
        aside.append(role="user", content="aside " * 400)
        sent: list[Any] = []

        def answer(messages: Any) -> str:
            sent.append(json.loads(json.dumps(messages)))
            return "ok"

        with tape.open(":memory:") as elsewhere, tape.record(chat) as run:
            elsewhere.tape("seen").append(role="user", content="other " * 400)
            ask = run.model(answer)
            ask(chat.context(record=True).to_openai())
            ask(chat.context(record=True).to_openai())
            changed = chat.context(record=True).to_openai()
            changed[0]["content"] = "changed " * 200
            ask(changed)
            ask(elsewhere.tape("seen").context(record=True).to_openai())
            ask(aside.context(record=True).to_openai())
            chat.append(role="user", content="more " * 400)
            ask(chat.context(record=True).to_openai())
            chat.append(role="user", content="again " * 400)
            with ThreadPoolExecutor(1) as pool:
                ask(pool.submit(run.context().to_openai).result(10))
        stored = [entry.payload.data["request"] for entry in chat.entries(name="run.call")]  # type: ignore[union-attr]
        assert ["context" in str(request) for request in stored] == [True, False, False, False, False, True, True]
        # The second is the first one once more.
        assert stored[1] == {"messages": {"of": next(chat.entries(name="run.call")).seq}}
        assert [call.request()["messages"] for call in read_recording(chat, run.id).calls] == sent
        assert [call.request()["messages"] for call in read_recording(chat.fork(), run.id).calls] == sent
        chat.context(record=True).to_openai()
        assert LISTENERS.get() == ()

    def test_conversations_side_by_side_are_stored_once(self, chat: tape.Tape) -> None:
        """A request stores what its own conversation adds, also when several take turns with one model."""
        talks = [[{"role": "user", "content": f"{lane} " * 2000}] for lane in range(3)]
        sent: list[Any] = []
        with tape.record(chat) as run, ThreadPoolExecutor(1) as pool:
            ask = run.model(lambda messages: {"role": "assistant", "content": "ok"})
            for _ in range(10):
                for talk in talks:
                    sent.append(list(talk))
                    talk.append(pool.submit(ask, talk).result(10))
        requests = [entry.payload.data["request"] for entry in chat.entries(name="run.call")]  # type: ignore[union-attr]
        assert len(json.dumps(requests)) < len(json.dumps(talks)) + 4000
        assert [call.request()["messages"] for call in read_recording(chat, run.id).calls] == sent

    def test_a_conversation_that_is_changed_in_place(self, chat: tape.Tape) -> None:
        """What was sent is stored, whatever an agent does to messages that it has sent already."""

        class Said:
            def __init__(self, text: str) -> None:
                self.text = text

            def to_dict(self) -> Message:
                return {"role": "assistant", "content": self.text}

            def __eq__(self, other: object) -> bool:
                raise ValueError("neither equal nor not")

        said = Said("a " * 200)
        messages: list[Any] = [{"role": "user", "content": "u " * 200}, {"role": "tool", "exit": 1}, said]
        sent: list[Any] = []
        changes: list[Callable[[], Any]] = [
            lambda: messages.append({"role": "user", "content": "next"}),
            lambda: messages[1].update(exit=True),
            lambda: setattr(said, "text", "b " * 200),
            lambda: messages[0].update(content="v " * 200),
            lambda: messages.__setitem__(0, said),
            lambda: messages.pop(),
            lambda: messages.append(Said("last")),
            lambda: None,
        ]
        with tape.record(chat) as run:
            ask = run.model(lambda messages: "ok")
            for change in changes:
                ask(messages)
                sent.append(json.loads(json.dumps(messages, default=lambda it: it.to_dict())))
                change()
        calls = read_recording(chat, run.id).calls
        assert [json.dumps(call.request()["messages"]) for call in calls] == [json.dumps(each) for each in sent]
        assert len({call.digest for call in calls}) == len({json.dumps(each) for each in sent})

    def test_secrets_are_not_stored(self, chat: tape.Tape) -> None:
        """Fields by name, or whatever a function takes out, of requests, results and errors; replays still match."""

        def hide(value: Any) -> Any:
            return json.loads(json.dumps(value).replace("hunter2", "***"))

        def login(password: str) -> Message:
            if password == "bad hunter2":
                raise ValueError("hunter2 is wrong")
            return {"token": "hunter2"}

        def agent(run: tape.Run) -> str:
            tool = run.tool(login, effect="read")
            tool("hunter2")
            try:
                return str(tool("bad hunter2"))
            except Exception as error:
                return str(error)

        with tape.record(chat, redact=hide) as run:
            assert agent(run) == "hunter2 is wrong"
        assert "hunter2" not in repr([entry.payload for entry in chat.entries()])
        with tape.replay(chat, run.id, redact=hide) as again:
            assert agent(again) == "*** is wrong"
        with tape.record(chat, redact=["Password", "token"]) as by_name:
            by_name.tool(login, effect="read")("hunter2")
        assert "hunter2" not in repr(list(chat.entries(name="run.call")) + list(chat.entries(name="run.result"))[2:])

    def test_what_changes_from_run_to_run_is_not_compared(self, chat: tape.Tape) -> None:
        """Normalisers drop named paths, and the report tells which and how often."""

        def agent(run: tape.Run, salt: str) -> None:
            ask = run.model(lambda messages, trace: "ok")
            ask([{"id": salt, "content": "hi"}], trace=salt)

        with tape.record(chat, normalise=["/messages/*/id", "trace"]) as run:
            agent(run, "one")
        with tape.replay(chat, run.id) as again:
            agent(again, "two")
        assert again.report.dropped == {"/messages/*/id": 1, "trace": 1}
        with pytest.raises(tape.Diverged) as caught, tape.replay(chat, run.id, normalise=["trace"]) as stricter:
            agent(stricter, "two")
        assert (caught.value.path, caught.value.recorded, caught.value.given) == ("/messages/0/id", "one", "two")


def test_nothing_is_kept_of_a_run_that_is_over(chat: tape.Tape) -> None:
    """A run that ended refuses further calls, and no context variable holds on to it."""
    with tape.record(chat) as run:
        tool = run.tool(lambda: 1, name="t", effect="read")
        tool()
    with pytest.raises(tape.InvalidEntry, match="has ended"):
        tool()
    gc.collect()
    with pytest.raises(tape.InvalidEntry, match="has not started"):
        tape.record(chat).tool(lambda: 1)
