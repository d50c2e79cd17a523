"""Several workers resume one run: one of them makes each call, and the others answer with what it recorded."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import resuming
from support.backends import Backend
from support.processes import Crew
from support.proxy import Proxy
from support.resuming import FATES, STEPS, agent, happened
from support.sizes import heavy, size

import tape
from tape.runs.recording import list_runs

SEED = 27
ROUNDS = size(4, 20)


def interrupted(chat: tape.Tape, id: str = "r") -> None:
    """Start a run that is interrupted before its first call."""
    with pytest.raises(KeyboardInterrupt), tape.record(chat, id=id):
        raise KeyboardInterrupt


class Cut(BaseException):
    """The worker dies here."""


class TestTwoWorkers:
    def test_a_write_is_made_by_one_of_them(self, store: tape.Store) -> None:
        """The second one gets the recorded outcome; both end, and the run is completed."""
        chat, made = store.tape("work"), list[str]()
        interrupted(chat)
        with tape.record(chat, id="r", resume=True) as one, tape.record(chat, id="r", resume=True) as two:
            for run, name in ((one, "one"), (two, "two")):

                def send(to: str, name: str = name) -> str:
                    made.append(name)
                    return f"by {name}"

                sent = run.tool(send, name="send")(to="ann")
                assert sent == "by one"
        assert made == ["one"]
        assert (two.report.matched, two.report.live) == (1, 0)
        assert [state.state for state in tape.recover(chat, "r")] == ["completed"]
        with pytest.raises(tape.InvalidEntry, match="completed"):
            tape.record(chat, id="r", resume=True).__enter__()

    def test_a_write_without_an_outcome_is_unknown(self, store: tape.Store) -> None:
        """While one worker is inside a write, the other one gets EffectUnknown. The effect happens once."""
        chat, made = store.tape("work"), list[str]()
        interrupted(chat)

        def send(to: str, effect: tape.Effect) -> str:
            made.append(effect.key)
            with pytest.raises(tape.EffectUnknown) as caught, tape.record(chat, id="r", resume=True) as other:
                other.tool(send)(to=to)
            assert caught.value.key == effect.key
            return "sent"

        with tape.record(chat, id="r", resume=True) as run:
            assert run.tool(send)(to="ann") == "sent"
        assert len(made) == 1
        assert [(state.state, state.key) for state in tape.recover(chat, "r")] == [("completed", made[0])]

    def test_a_run_that_two_start_at_once(self, store: tape.Store) -> None:
        """The second worker resumes the run; without ``resume`` it is refused."""
        chat, made = store.tape("work"), list[str]()
        first = tape.record(chat, id="r", input=1)
        second, refused = tape.record(chat, id="r", input=1, resume=True), tape.record(chat, id="r", input=1)
        with first, second:
            with pytest.raises(tape.InvalidEntry, match="resume=True"):
                refused.__enter__()
            for run in (first, second):
                run.tool(made.append, name="send")("x")
        assert made == ["x"]

    def test_a_worker_that_resumes_later_than_it_read(self, store: tape.Store) -> None:
        """Calls that another worker made since are answered from the tape, streams and errors as well."""
        chat, made = store.tape("work"), list[str]()
        interrupted(chat)

        def use(run: tape.Run, name: str) -> list[Any]:
            def count(to: int) -> Any:
                made.append(name)
                yield from range(to)

            def fail() -> None:
                made.append(name)
                raise ValueError(name)

            seen: list[Any] = [list(run.tool(count)(3)), run.value("v", lambda: name)()]
            try:
                run.tool(fail)()
            except ValueError as error:
                seen.append(str(error))
            return seen

        with tape.record(chat, id="r", resume=True) as late:
            with tape.record(chat, id="r", resume=True) as early:
                assert use(early, "early") == [[0, 1, 2], "early", "early"]
            assert use(late, "late") == [[0, 1, 2], "early", "early"]
        assert made == ["early", "early"]

    def test_the_first_outcome_of_a_call_that_reads_holds(self, store: tape.Store) -> None:
        """Both may make it; both get what was recorded first, plain or awaited."""
        chat = store.tape("work")
        interrupted(chat)

        async def said(name: str) -> str:
            return name

        def outer(q: int) -> str:
            with pytest.raises(Cut), tape.record(chat, id="r", resume=True) as other:
                assert other.model(lambda q: "inner", name="m")(q) == "inner"
                raise Cut
            return "outer"

        async def awaited(q: int) -> str:
            with pytest.raises(Cut), tape.record(chat, id="r", resume=True) as other:
                assert other.model(lambda q: "inner", name="m")(1) == "inner"
                assert await other.model(lambda q: said("inner"), name="m")(q) == "inner"
                raise Cut
            return "outer"

        with tape.record(chat, id="r", resume=True) as run:
            assert run.model(outer, name="m")(1) == "inner"
            assert asyncio.run(run.model(lambda q: awaited(q), name="m")(2)) == "inner"

    def test_retry_skip_and_a_probe_decide_for_each_worker(self, store: tape.Store) -> None:
        """Each attempt has a separate entry, even when two workers would begin the same one."""
        chat, made = store.tape("work"), list[int]()

        def send(effect: tape.Effect) -> str:
            made.append(effect.attempt)
            if len(made) == 1:
                raise Cut
            return f"attempt {effect.attempt}"

        for id, on_unknown, answer in (
            ("retry", "retry", "attempt 3"),
            ("skip", "skip", "may have run"),
            ("probe", lambda effect: "found", "found"),
            ("lost", lambda effect: None, "attempt 3"),
        ):
            made.clear()
            with pytest.raises(Cut), tape.record(chat, id=id) as run:
                run.tool(send)()
            with tape.record(chat, id=id, resume=True) as late:
                # Another worker takes the second attempt, and dies in it.
                with pytest.raises(Cut), tape.record(chat, id=id, resume=True) as dying:
                    made.clear()
                    dying.tool(send, on_unknown="retry")()
                assert answer in late.tool(send, on_unknown=on_unknown)()
            assert made == ([2, 3] if answer == "attempt 3" else [2])

    def test_workers_that_part(self, store: tape.Store) -> None:
        """A worker that makes a different call instead of a recorded one stops, and calls nothing."""
        chat, made = store.tape("work"), list[str]()
        interrupted(chat)
        with pytest.raises(tape.Diverged), tape.record(chat, id="r", resume=True) as late:
            with pytest.raises(Cut), tape.record(chat, id="r", resume=True) as early:
                early.tool(made.append, name="send")("ann")
                raise Cut
            with pytest.raises(tape.Diverged) as caught:
                late.tool(made.append, name="send")("bob")
            # An agent that goes on gets no answer, and its run does not end as completed.
            with pytest.raises(tape.Diverged):
                late.tool(made.append, name="send")("ann")
        assert (caught.value.kind, caught.value.n, made) == ("request_changed", 1, ["ann"])
        assert [info.status for info in list_runs(chat)] == ["failed"]

    @pytest.mark.parametrize("ended", [True, False])
    def test_parallel_lanes_that_begin_in_another_order(self, store: tape.Store, ended: bool) -> None:
        """Two workers number their threads differently; still each write is made once, by one of them."""
        chat, made = store.tape("work"), list[str]()
        interrupted(chat)
        begun, go_on = threading.Event(), threading.Event()

        def send(to: str) -> str:
            made.append(to)
            if to == "bob" and not ended:
                raise Cut
            return f"sent to {to}"

        def start(run: tape.Run, to: str) -> tuple[threading.Thread, list[Any]]:
            outcome: list[Any] = []

            def call() -> None:
                try:
                    outcome.append(run.tool(send)(to=to))
                except BaseException as error:
                    outcome.append(type(error))

            thread = threading.Thread(target=call)
            thread.start()
            return thread, outcome

        with (
            contextlib.suppress(tape.Diverged),
            tape.record(chat, id="r", resume=True) as one,
            tape.record(chat, id="r", resume=True) as two,
        ):
            write = one._calls._port.write

            def late(event: Any) -> Any:
                if event.event == "run.call" and event.request["to"].value == "ann":
                    begun.set()
                    go_on.wait(30)
                return write(event)

            one._calls._port.write = late  # type: ignore[method-assign]
            ann, of_ann = start(one, "ann")
            assert begun.wait(30)
            outcomes = []
            for run, to in ((one, "bob"), (two, "bob"), (two, "ann")):
                thread, outcome = start(run, to)
                thread.join(30)
                outcomes += outcome
            go_on.set()
            ann.join(30)
            assert outcomes == (
                ["sent to bob", "sent to bob", tape.Diverged] if ended else [Cut, tape.EffectUnknown, tape.Diverged]
            )
            assert of_ann == ["sent to ann"]
        assert made == ["bob", "ann"]
        states = {state.request["to"]: state.state for state in tape.recover(chat, "r")}
        assert states == {"bob": "completed" if ended else "unknown", "ann": "completed"}

    def test_equal_writes_in_parallel_lanes(self, store: tape.Store) -> None:
        """Each is made, once: a worker that resumes the run makes the one that the first did not."""
        chat, made = store.tape("work"), list[str]()

        def both(run: tape.Run, fail_at: int) -> list[Any]:
            outcomes: list[Any] = []

            def send(to: str) -> int:
                made.append(to)
                return len(made)

            def call() -> None:
                outcomes.append(run.tool(send)(to="ann"))

            for number in range(2):
                if number == fail_at:
                    raise Cut
                thread = threading.Thread(target=call)
                thread.start()
                thread.join(30)
            return outcomes

        with pytest.raises(Cut), tape.record(chat, id="r") as run:
            both(run, 1)
        with tape.record(chat, id="r", resume=True) as one, tape.record(chat, id="r", resume=True) as two:
            assert both(one, 2) == [1, 2]
            assert both(two, 2) == [1, 2]
        assert made == ["ann", "ann"]
        calls = [entry.payload.data for entry in chat.entries(name="run.call")]  # type: ignore[union-attr]
        assert [call["claim"] for call in calls] == [1, 2]
        assert len({call["key"] for call in calls}) == 2

    def test_tasks_that_begin_in_another_order(self, backend: Backend) -> None:
        """Two workers number their tasks differently; still each write is made once."""
        made: list[str] = []

        async def send(to: str) -> str:
            made.append(to)
            return f"sent to {to}"

        async def main() -> list[Any]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("work")
                with pytest.raises(Cut):
                    async with tape.record(chat, id="r"):
                        raise Cut
                outcomes: list[Any] = []
                with contextlib.suppress(tape.Diverged):
                    async with tape.record(chat, id="r", resume=True) as one:
                        with contextlib.suppress(tape.Diverged):
                            async with tape.record(chat, id="r", resume=True) as two:
                                write, go_on = one._calls._port.write, asyncio.Event()

                                async def late(event: Any) -> Any:
                                    if event.event == "run.call" and event.request["to"].value == "ann":
                                        await go_on.wait()
                                    return await write(event)

                                one._calls._port.write = late  # type: ignore[method-assign]
                                ann = asyncio.create_task(one.tool(send)(to="ann"))
                                await asyncio.sleep(0)
                                for run in (one, two):
                                    outcomes.append(await asyncio.create_task(run.tool(send)(to="bob")))
                                go_on.set()
                                outcomes.append(await ann)
                return outcomes

        assert asyncio.run(main()) == ["sent to bob", "sent to bob", "sent to ann"]
        assert made == ["bob", "ann"]

    def test_a_claim_without_its_call(self, store: tape.Store) -> None:
        """A forged claim is Corrupt, and nothing is written for it."""
        chat, forged, made = store.tape("work"), store.tape("forged"), list[str]()

        def sent(run: tape.Run) -> BaseException | None:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(run.tool(made.append, name="send"), "ann").exception(30)

        with tape.record(chat, id="r") as run:
            assert sent(run) is None
        for name in ("run.started", "run.claim"):
            for entry in chat.entries(name=name):
                forged.event(name, entry.payload.data, key=entry.key)  # type: ignore[union-attr]
        with tape.record(forged, id="r", resume=True) as run:
            assert isinstance(sent(run), tape.Corrupt)
        assert made == ["ann"]

    def test_a_write_that_moved_within_its_run(self, store: tape.Store) -> None:
        """Threads that begin alike change places in a resumed run; what one of them wrote is not written again."""
        chat, made = store.tape("work"), list[str]()

        def work(run: tape.Run, names: list[str]) -> list[Any]:
            look = run.tool(lambda: "seen", name="look", effect="read")

            def write(to: str) -> str:
                made.append(to)
                return f"to {to}"

            send = run.tool(write, name="send")
            with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
                lanes = {name: (pool, contextvars.copy_context()) for name, pool in zip(names, (one, two), strict=True)}
                outcomes = [pool.submit(context.run, look).result(30) for pool, context in lanes.values()]
                pool, context = lanes["ann"]
                return [*outcomes, pool.submit(context.run, send, "ann").result(30)]

        with pytest.raises(Cut), tape.record(chat, id="r") as run:
            work(run, ["ann", "bob"])
            raise Cut
        with tape.record(chat, id="r", resume=True) as run:
            assert work(run, ["bob", "ann"]) == ["seen", "seen", "to ann"]
        assert made == ["ann"]

    def test_calls_after_another_worker_ended_the_run(self, store: tape.Store) -> None:
        """They are known to ``recover``, and a run that one worker completed stays completed."""
        chat = store.tape("work")
        interrupted(chat)

        def cut() -> None:
            raise Cut

        with pytest.raises(Cut), tape.record(chat, id="r", resume=True) as slow:
            with pytest.raises(ValueError, match="no"), tape.record(chat, id="r", resume=True):
                raise ValueError("no")
            slow.tool(cut, name="send")()
        assert [(state.name, state.state) for state in tape.recover(chat)] == [("send", "unknown")]
        with pytest.raises(ValueError, match="late"), tape.record(chat, id="r", resume=True):
            with tape.record(chat, id="r", resume=True) as quick:
                quick.tool(cut, name="send", on_unknown="skip")()
            raise ValueError("late")
        assert tape.recover(chat) == []

    def test_awaited_runs(self, backend: Backend) -> None:
        """Two tasks that resume one run make each write once, and agree on what a model said."""
        made: list[str] = []

        async def main() -> list[Any]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat, all_begun = store.tape("work"), asyncio.Barrier(3)

                async def work(name: str) -> list[Any]:
                    async def send(to: str) -> str:
                        made.append(to)
                        return f"by {name}"

                    async with tape.record(chat, id="r", resume=True) as run:
                        await all_begun.wait()
                        said = await run.model(lambda: name, name="m")()
                        try:
                            return [said, await run.tool(send)(to=said)]
                        except tape.EffectUnknown:
                            return [said]

                return list(await asyncio.gather(*(work(name) for name in "abc")))

        answers = asyncio.run(main())
        assert len(made) == 1
        assert {answer[0] for answer in answers} == set(made)
        assert len({answer[1] for answer in answers if len(answer) == 2}) == 1


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
@pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
def test_a_lost_reply_is_no_other_worker(backend: Backend, proxy: Proxy, reply: bool) -> None:
    """When the connection breaks while the start of a call is recorded, the worker finds its own entry and goes on."""
    made: list[int] = []
    with tape.open(proxy.url, **backend.options) as store, tape.record(store.tape("work"), id="r") as run:
        tool = run.tool(lambda n: made.append(n), name="send")
        for number in range(3):
            proxy.lose(("COMMIT", "WITH lock AS"), reply=reply)
            tool(number)
            assert proxy.lost == number + 1
        assert made == [0, 1, 2]
        assert run.report.live == 3


@heavy
def test_many_processes_resume_one_run(backend: Backend, crew: Crew, tmp_path: Path) -> None:
    """Workers fail, hang and are killed: each write happens once or is reported as unknown, and never twice."""
    print("seed", SEED)
    pick = random.Random(SEED)
    store = backend.open(durability="normal")
    chat, met = store.tape("work"), Counter[str]()
    for number in range(ROUNDS):
        id, file = f"run-{number}", tmp_path / f"effects-{number}"
        fates = [pick.choice(FATES) if pick.random() < 0.15 else "return" for _ in range(2 * STEPS)]
        # Each fate is met once in four rounds, before the first effect or after it.
        fates[:2] = [FATES[number % 4], "return"] if number // 4 % 2 == 0 else ["return", FATES[number % 4]]
        for wave in range(3):
            given: dict[str, Any] = {
                "id": id,
                "file": str(file),
                "fates": fates if wave < 2 else ["return"] * 2 * STEPS,
            }
            workers = [
                crew.launch(backend, resuming.resume, opening={"durability": "normal"}, **given)
                for _ in range(pick.randint(2, 5))
            ]
            answers, waiting = [], []
            for worker in workers:
                assert worker.next() == "ready"
            for worker in workers:
                worker.tell("go")
            while workers:
                # Those that hang go on when all others have ended.
                for worker in workers:
                    fact = worker.next()
                    if fact == "hangs":
                        waiting.append(worker)
                    elif fact is not None:
                        answers.append(fact)
                        worker.finish()
                    met[fact if isinstance(fact, str) else "killed" if fact is None else fact[0]] += 1
                for worker in waiting:
                    worker.tell("go")
                workers, waiting = waiting, []
            states = {state.key: state for state in tape.recover(chat, id) if state.name == "send"}
            effects = happened(file)
            assert set(effects.values()) <= {1}
            assert set(effects) <= set(states)
            assert [key for key, state in states.items() if state.state == "completed" and key not in effects] == []
            assert {answer[1] for answer in answers if answer[0] == "unknown"} <= set(states)
            assert len({str(answer[1]) for answer in answers if answer[0] == "done"}) <= 1
        if (info := tape.recover(chat)) != []:
            met["settled"] += len([state for state in info if state.state == "unknown" and state.name == "send"])

            with tape.record(chat, id=id, resume=True) as run:
                agent(run, resuming.sender(file), lambda effect, file=file: effect.key in happened(file))
        states = {state.key: state for state in tape.recover(chat, id) if state.name == "send"}
        assert len(states) == STEPS
        assert {state.state for state in states.values()} <= {"completed", "failed"}
        assert set(happened(file).values()) == {1}
        assert [key for key, state in states.items() if state.state == "completed" and key not in happened(file)] == []
    print("met", met)
    assert {"done", "unknown", "hangs", "killed"} <= set(met)
    store.close()
