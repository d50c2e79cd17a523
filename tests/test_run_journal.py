"""The journal: what is known of a call after a crash, effect keys, resuming, and runs that are awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.backends import Backend

import tape
from tape.core.render.settle import NO_RESULT
from tape.runs.pure.effects import MAY_HAVE_RUN
from tape.runs.recording import read_recording


class PowerCut(BaseException):
    """The process ends here."""


@pytest.fixture
def chat(quick: Backend) -> tape.Tape:
    """A tape for what has nothing to do with the engine."""
    return quick.open(durability="normal").tape("chat")


def crashed(chat: tape.Tape, agent: Any, id: str = "r") -> None:
    """Run an agent until the power is cut."""
    with pytest.raises(PowerCut), tape.record(chat, id=id) as run:
        agent(run)


class TestRecover:
    def test_every_state(self, store: tape.Store) -> None:
        """Calls that the model asked for and nobody made, and those that were made: completed, failed or unknown."""
        chat = store.tape("work")
        asked = ("ok", "bad", "cut", "never")
        calls = [
            {"id": f"c-{name}", "type": "function", "function": {"name": name, "arguments": '{"n": 1}'}}
            for name in asked
        ]

        def ok(n: int) -> int:
            return n

        def bad(n: int) -> None:
            raise ValueError("no")

        def cut(n: int) -> None:
            raise PowerCut

        def agent(run: tape.Run) -> None:
            chat.append({"role": "assistant", "content": None, "tool_calls": calls}, id="asks")
            run.tool(ok)(n=1)
            with pytest.raises(ValueError, match="no"):
                run.tool(bad)(n=1)
            run.tool(cut)(n=1)

        crashed(chat, agent)
        head = chat.info().head
        states = {state.name: state for state in tape.recover(chat)}
        assert {name: state.state for name, state in states.items()} == {
            "ok": "completed",
            "bad": "failed",
            "cut": "unknown",
            "never": "not_dispatched",
        }
        assert {state.call_id for state in states.values()} == {f"c-{name}" for name in asked}
        assert {state.message_id for state in states.values()} == {"asks"}
        assert states["bad"].error == "ValueError: no"
        assert states["cut"].request == {"n": 1}
        assert states["never"].key is None
        assert chat.info().head == head

    def test_other_arguments_are_not_taken_for_no_call(self, chat: tape.Tape) -> None:
        """A tool that was given more than the model wrote is still the call that may have run."""
        call = {"id": "c", "type": "function", "function": {"name": "send", "arguments": '{"to": "ann"}'}}
        chat.append({"role": "assistant", "content": None, "tool_calls": [call]})

        def send(to: str, urgent: bool) -> None:
            raise PowerCut

        crashed(chat, lambda run: run.tool(send)(to="ann", urgent=True))
        assert [(state.state, state.call_id) for state in tape.recover(chat)] == [("unknown", "c")]

    def test_the_model_is_told(self, chat: tape.Tape) -> None:
        """A call without a result is shown to the model as one that may have run."""
        call = {"id": "c", "type": "function", "function": {"name": "send", "arguments": "{}"}}
        chat.append(role="user", content="hi")
        chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
        assert "may have run; check" in NO_RESULT
        assert chat.context().to_openai()[-1]["content"] == NO_RESULT
        assert "may have run; check" in str(chat.context().to_anthropic())

    def test_completed_runs_are_left_out(self, chat: tape.Tape) -> None:
        """Only runs that did not complete are looked at, or the one that is named."""
        with tape.record(chat, id="whole") as run:
            run.tool(lambda: 1, name="t")()
        assert tape.recover(chat) == []
        assert [state.state for state in tape.recover(chat, "whole")] == ["completed"]
        with pytest.raises(tape.InvalidEntry, match="no run"):
            tape.recover(chat, "other")


class TestEffects:
    def keys(self, chat: tape.Tape, id: str, amounts: list[int]) -> list[str]:
        seen: list[str] = []

        def pay(amount: int, effect: tape.Effect) -> None:
            seen.append(effect.key)

        with tape.record(chat, id=id) as run:
            for amount in amounts:
                run.tool(pay, effect="write")(amount)
        return seen

    def test_the_key_is_of_run_step_tool_and_arguments(self, store: tape.Store) -> None:
        """The same step of the same run has the same key; another run, step or argument has another."""
        first = self.keys(store.tape("a"), "r", [1, 1, 2])
        assert len(set(first)) == 3
        assert self.keys(store.tape("b"), "r", [1, 1, 2]) == first
        assert not set(self.keys(store.tape("c"), "other", [1, 1, 2])) & set(first)

    def test_the_effect_is_no_argument(self, chat: tape.Tape) -> None:
        """What is recorded as the request is what the agent gave."""
        self.keys(chat, "r", [7])
        with tape.replay(chat, "r") as again:
            assert again.recording is not None
            assert [call.request() for call in again.recording.calls] == [{"amount": 7}]
            again.tool(lambda amount, effect: None, name="pay")(7)

    @pytest.mark.parametrize("live", [{}, {"tools": "live"}])
    def test_a_write_is_never_made_in_a_replay(self, chat: tape.Tape, live: dict[str, Any]) -> None:
        """Whatever the mode, a tool is not called unless the program declares that it reads."""
        made: list[int] = []
        with tape.record(chat) as run:
            run.tool(made.append, name="pay", effect="write")(1)
        for effect in (None, "write", "idempotent"):
            with tape.replay(chat, run.id, **live) as again:
                again.tool(made.append, name="pay", effect=effect)(1)
        assert made == [1]
        with tape.replay(chat, run.id, live_from=1, into=chat.fork()) as refused:
            for effect in (None, "write", "idempotent"):
                with pytest.raises(tape.EffectRefused):
                    refused.tool(made.append, name="pay", effect=effect)(1)
        assert made == [1]
        with tape.replay(chat, run.id, live_from=1, into=chat.fork(), effects="allow") as allowed:
            allowed.tool(made.append, name="pay", effect="write")(1)
        assert made == [1, 1]
        with pytest.raises(tape.InvalidEntry, match="into"):
            tape.replay(chat, run.id, effects="allow")

    def test_requests_of_a_resumed_run_come_back_whole(self, chat: tape.Tape) -> None:
        """Also behind a call that was made twice, and on a fork, which has none of the calls before its own."""
        sent: list[Any] = []

        def agent(run: tape.Run, cut: int) -> None:
            def answer(messages: list[Any]) -> dict[str, str]:
                if len(messages) == cut:
                    raise PowerCut
                return {"role": "assistant", "content": "y" * 300}

            ask = run.model(answer)
            messages: list[Any] = [{"role": "user", "content": "x" * 400}]
            sent.clear()
            for _ in range(4):
                sent.append(list(messages))
                messages.append(ask(messages))

        for attempt, cut in enumerate((2, 3, 0)):
            with (
                pytest.raises(PowerCut) if cut else contextlib.nullcontext(),
                tape.record(chat, id="r", resume=attempt > 0) as run,
            ):
                agent(run, cut)
        assert [call.request()["messages"] for call in read_recording(chat, "r").calls] == sent
        fork = chat.fork()
        with tape.replay(chat, "r", live_from=3, into=fork) as onward:
            agent(onward, 0)
        assert [call.request()["messages"] for call in read_recording(fork, onward.id).calls] == sent

    def test_what_a_resumed_run_does_with_an_unknown_write(self, chat: tape.Tape) -> None:
        """It asks, retries with the same key, skips and tells so, or finds out; once settled it stays settled."""
        made: list[str] = []

        def send(to: str, effect: tape.Effect) -> str:
            made.append(effect.key)
            if len(made) == 1:
                raise PowerCut
            return f"sent, attempt {effect.attempt}"

        def resumed(id: str, on_unknown: Any) -> Any:
            with tape.record(chat, id=id, resume=True) as run:
                return run.tool(send, effect="write", on_unknown=on_unknown)("ann")

        for id in ("retry", "skip", "probe-yes", "probe-lost", "probe-no"):
            made.clear()
            crashed(chat, lambda run: run.tool(send, effect="write")("ann"), id)
            with pytest.raises(tape.EffectUnknown) as caught:
                resumed(id, "ask")
            assert caught.value.key == made[0]
            if id == "retry":
                assert resumed(id, "retry") == "sent, attempt 2"
                assert made == [made[0]] * 2
            elif id == "skip":
                assert "may have run" in resumed(id, "skip")
                assert [state.state for state in tape.recover(chat, id)] == ["unknown"]
            elif id == "probe-yes":
                assert resumed(id, lambda effect: f"found {effect.key}") == f"found {made[0]}"
            elif id == "probe-lost":
                assert resumed(id, lambda effect: True) is None
            else:
                assert resumed(id, lambda effect: None) == "sent, attempt 2"
            assert len(made) == (2 if id in ("retry", "probe-no") else 1)
            with pytest.raises(tape.InvalidEntry, match="completed"):
                resumed(id, "retry")
            with tape.replay(chat, id) as again:
                again.tool(send)("ann")
            assert again.report.ok

    def test_what_a_probe_finds_and_what_a_skip_tells(self, chat: tape.Tape) -> None:
        """The agent gets the value of a probe as it is; a skip gives its text, whatever the tool returns otherwise."""

        def send(effect: tape.Effect) -> tape.Change:
            raise PowerCut

        def redact(value: Any) -> Any:
            return "***" if value == "hunter2" else value

        for id, on_unknown, answer in (("probe", lambda effect: "hunter2", "hunter2"), ("skip", "skip", MAY_HAVE_RUN)):
            crashed(chat, lambda run: run.tool(send)(), id)
            with tape.record(chat, id=id, resume=True, redact=redact) as run:
                assert run.tool(send, on_unknown=on_unknown)() == answer
        with tape.replay(chat, "skip") as again:
            assert again.tool(send)() == MAY_HAVE_RUN
        assert "hunter2" not in repr([entry.payload for entry in chat.entries()])

    def test_what_reads_is_made_again(self, chat: tape.Tape) -> None:
        """Models, values and tools that read or are idempotent need no decision."""
        cuts = {"model", "value", "read", "idempotent"}

        def once(what: str) -> str:
            if what in cuts:
                cuts.discard(what)
                raise PowerCut
            return what

        def agent(run: tape.Run) -> list[str]:
            return [
                run.model(once)("model"),
                run.value("v", lambda: once("value"))(),
                run.tool(once, effect="read", name="r")("read"),
                run.tool(once, effect="idempotent", name="i")("idempotent"),
            ]

        for attempt in range(4):
            with pytest.raises(PowerCut), tape.record(chat, id="r", resume=attempt > 0) as run:
                agent(run)
        with tape.record(chat, id="r", resume=True) as last:
            assert agent(last) == ["model", "value", "read", "idempotent"]
        assert (last.report.matched, last.report.live) == (3, 1)
        with pytest.raises(tape.InvalidEntry, match="resume"):
            tape.record(chat, id="r").__enter__()

    def test_a_bound_tool_that_does_not_settle(self, chat: tape.Tape) -> None:
        """It is recorded and refused: the promise of one commit was not kept."""
        with pytest.raises(tape.InvalidEntry, match="settle"), tape.record(chat, id="r") as run:
            run.tool(lambda: 1, name="t", bound=True)()
        assert [state.state for state in tape.recover(chat, "r")] == ["completed"]

    def test_a_rolled_back_transaction_leaves_no_outcome(self, backend: Backend) -> None:
        """What fails behind ``settle`` is recorded as failed, and its rows are gone."""
        store, engine = backend.open(), backend.engine()
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE paid (amount INTEGER)"))

        def pay(amount: int, effect: tape.Effect) -> None:
            with engine.begin() as connection:
                connection.execute(sa.text("INSERT INTO paid VALUES (1)"))
                effect.settle(store.bind(connection), amount)
                raise ValueError("afterwards")

        chat = store.tape("work")
        with pytest.raises(ValueError, match="afterwards"), tape.record(chat, id="r") as run:
            run.tool(pay, bound=True)(1)
        with engine.connect() as connection:
            assert connection.execute(sa.text("SELECT count(*) FROM paid")).scalar() == 0
        engine.dispose()
        assert [state.state for state in tape.recover(chat, "r")] == ["failed"]


class TestDivergence:
    def test_a_swallowed_divergence_comes_back(self, chat: tape.Tape) -> None:
        """An agent that takes it for an error of its tool gets no further answer, and the block raises it."""
        with tape.record(chat) as run:
            for n in range(3):
                run.tool(lambda n: n, name="t", effect="read")(n)
        seen = []
        with pytest.raises(tape.Diverged) as caught, tape.replay(chat, run.id) as again:
            for n in (0, 9, 2):
                try:
                    again.tool(lambda n: n, name="t")(n)
                except tape.Diverged as error:
                    seen.append(error.given)
        assert seen == [9, 9]
        assert (caught.value.kind, caught.value.n, caught.value.recorded) == ("request_changed", 2, 1)
        assert caught.value.divergence.changes == [tape.Change("/n", 1, 9)]

    def test_extra_unused_and_settings(self, chat: tape.Tape) -> None:
        """Calls behind the end, calls never made, and settings of a model each have a name."""

        def agent(run: tape.Run, questions: str, temperature: int = 0) -> None:
            for question in questions:
                run.model(lambda messages, temperature: "ok")([question], temperature=temperature)

        with tape.record(chat) as run:
            agent(run, "abc")
        kinds = []
        for questions, temperature in (("abcd", 0), ("ab", 0), ("abc", 1)):
            with pytest.raises(tape.Diverged) as caught, tape.replay(chat, run.id) as again:
                agent(again, questions, temperature)
            kinds.append((caught.value.kind, caught.value.n, caught.value.seq is None, caught.value.nearest is None))
        assert kinds == [
            ("extra_call", 4, True, False),
            ("unused", 3, False, True),
            ("settings_changed", 1, False, True),
        ]

    def test_looser_matching(self, chat: tape.Tape) -> None:
        """``request`` takes the same requests in any order, each once; ``order`` takes the next of a name."""

        def agent(run: tape.Run, questions: str) -> list[int]:
            counter = iter(range(9))
            return [run.model(lambda q: next(counter))(question) for question in questions]

        with tape.record(chat) as run:
            agent(run, "abc")
        with tape.replay(chat, run.id, match="request") as again:
            assert agent(again, "cab") == [2, 0, 1]
        with pytest.raises(tape.Diverged), tape.replay(chat, run.id, match="request") as twice:
            agent(twice, "cc")
        with tape.replay(chat, run.id, match="order") as other:
            assert agent(other, "xyz") == [0, 1, 2]

    def test_the_entry_that_made_the_difference(self, store: tape.Store) -> None:
        """Of a message of the tape that was revised since, both entries are named."""
        chat = store.tape("sourced")
        chat.append(role="user", content="Plan the trip", id="m")

        def agent(run: tape.Run) -> None:
            run.model(lambda messages: "ok")(chat.context().to_openai())

        with tape.record(chat) as run:
            agent(run)
        revised = chat.revise("m", content="Plan another trip")
        with pytest.raises(tape.Diverged) as caught, tape.replay(chat, run.id) as again:
            agent(again)
        told = caught.value.divergence
        assert (told.source, told.given_source) == (("sourced", 2), ("sourced", revised.seq))
        assert f"seq {revised.seq} of 'sourced'" in str(told)

    def test_an_agent_that_writes_to_its_tape(self, store: tape.Store) -> None:
        """A replay gives it a copy of the tape as it was then; into a fork, the fork."""
        chat = store.tape("written")
        chat.append(role="user", content="hello")
        chat.set_block("persona", "kind")
        chat.put("step", {"n": 1})

        def agent(run: tape.Run) -> list[Any]:
            ask = run.model(lambda messages: {"role": "assistant", "content": f"{len(messages)} seen"})
            for _ in range(3):
                run.tape.append(ask(run.context().to_openai()))
            return [message.content for message in run.tape.messages()] + [run.tape.state("step")]

        with tape.record(chat) as run:
            first = agent(run)
        head = chat.info().head
        with tape.replay(chat, run.id) as again:
            assert agent(again) == first
        assert chat.info().head == head
        fork = chat.fork(at=run.recording.info.seq if run.recording else 4)
        with tape.replay(chat, run.id, live_from=2, into=fork) as onward:
            assert agent(onward) == first
        with tape.replay(fork, onward.id, base=chat) as once_more:
            assert agent(once_more) == first

    @pytest.mark.parametrize(
        "wrong",
        [
            {"match": "loose"},
            {"live_from": 0},
            {"live_from": 2},
            {"models": "live"},
            {"tools": "yes"},
            {"on_divergence": "ignore"},
            {"normalise": "trace"},
            {"redact": 3},
            {"into": "fork"},
        ],
        ids=str,
    )
    def test_wrong_options_are_refused_before_anything_is_read(self, chat: tape.Tape, wrong: dict[str, Any]) -> None:
        """Each is an InvalidEntry that names the option."""
        with pytest.raises(tape.InvalidEntry):
            tape.replay(chat, "r", **wrong)

    def test_a_run_that_is_not_there(self, chat: tape.Tape) -> None:
        """It is an UnknownEntry, also on a tape that was never written."""
        with pytest.raises(tape.UnknownEntry), tape.replay(chat, "r"):
            pass


class TestAwaited:
    """The same on a tape of an AsyncStore."""

    def test_record_replay_recover_and_check(self, backend: Backend) -> None:
        """Async functions and generators are awaited, plain ones run in a thread and are awaited, too."""
        made: list[str] = []

        async def ask(q: str) -> str:
            made.append(q)
            await asyncio.sleep(0)
            return q.upper()

        async def stream(to: int) -> AsyncIterator[int]:
            for n in range(to):
                yield n

        def plain(n: int) -> int:
            made.append("plain")
            return n * 2

        def plain_stream(to: int) -> Iterator[int]:
            yield from range(to)

        async def agent(run: Any) -> list[Any]:
            model, tool = run.model(ask), run.tool(plain, effect="read")
            parts = await asyncio.gather(*(model(q) for q in "abc"))
            counted = [n async for n in run.model(stream, name="s")(3)]
            also = [n async for n in run.model(plain_stream, name="p")(2)]
            return [*parts, await tool(4), counted, also]

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("awaited")
                async with tape.record(chat, "n") as run:
                    first = await agent(run)
                head = (await chat.info()).head
                made.clear()
                async with tape.replay(chat, run.id) as again:
                    assert await agent(again) == first == ["A", "B", "C", 8, [0, 1, 2], [0, 1]]
                assert made == []
                assert again.report.matched == 6
                assert (await chat.info()).head == head
                assert await tape.recover(chat) == []
                async with tape.replay(chat, run.id, live_from=4, into=await chat.fork("f")) as onward:
                    assert await agent(onward) == first
                assert (onward.report.matched, onward.report.live) == (3, 3)
                with pytest.raises(tape.Diverged):
                    async with tape.replay(chat, run.id) as other:
                        await other.model(ask)("z")

                async def cut() -> None:
                    raise PowerCut

                with pytest.raises(PowerCut):
                    async with tape.record(chat, id="cut") as crashing:
                        await crashing.tool(cut)()
                assert [state.state for state in await tape.recover(chat)] == ["unknown"]
                await store.tape("kept").label("golden")
                async with tape.record(store.tape("kept"), "n") as kept:
                    await kept.model(ask)("q")

                def checked(run: tape.Run) -> Any:
                    return run.model(ask)("q")

                report = await tape.check(store, label="golden", agent=checked)
                assert report.ok, str(report)

        asyncio.run(main())

    def test_a_bound_effect(self, backend: Backend) -> None:
        """An async tool settles with an AsyncStore that is bound to its connection."""
        engine = backend.engine()
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE paid (amount INTEGER)"))

        async def main() -> list[tape.CallState]:
            async with tape.open_async(backend.url, **backend.options) as store:

                async def pay(amount: int, effect: tape.Effect) -> int:
                    with engine.begin() as connection:
                        connection.execute(sa.text("INSERT INTO paid VALUES (1)"))
                        await effect.settle(store.bind(connection), amount)
                    return amount

                async with tape.record(store.tape("work"), id="r") as run:
                    assert await run.tool(pay, bound=True)(5) == 5
                return await tape.recover(store.tape("work"), "r")

        assert [state.state for state in asyncio.run(main())] == ["completed"]
        with engine.connect() as connection:
            assert connection.execute(sa.text("SELECT count(*) FROM paid")).scalar() == 1
        engine.dispose()
