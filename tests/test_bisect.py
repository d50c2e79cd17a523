"""Bisect: the call after which a failed run could not be rescued is found with few live continuations."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.sizes import heavy, size

import tape
from tape.runs.pure.bisection import Search, wilson

FAILURES = size(10, 50)
SEED = 20_260


class Agent:
    """An agent of so many steps whose answer at the fatal one spoils the rest, except by luck.

    Live, a step before the fatal one is right with a likelihood; one behind it saves the run hardly ever.
    """

    def __init__(self, steps: int, fatal: int, rate: float, stray: float, seed: int) -> None:
        self.steps, self.fatal, self.rate, self.stray = steps, fatal, rate, stray
        self.random = random.Random(seed)
        self.live: list[int] = []
        self.failing = True

    def answer(self, step: int) -> str:
        """What the model says at a step: the first time it fails."""
        self.live.append(step)
        if self.failing:
            return "bad" if step == self.fatal else "fine"
        if step == self.fatal:
            return "good" if self.random.random() < self.rate else "bad"
        return "lucky" if step == self.steps and self.random.random() < self.stray else "fine"

    def __call__(self, run: Any) -> bool:
        """Run; the result tells whether it went well."""
        ask = run.model(self.answer)
        said = [ask(step) for step in range(1, self.steps + 1)]
        run.tape.append(role="assistant", content=" ".join(said))
        return "good" in said or "lucky" in said


def failed(store: tape.Store, agent: Agent, name: str = "chat") -> tuple[tape.Tape, str]:
    chat = store.tape(name)
    chat.append(role="user", content="go")
    with tape.record(chat, name="failure") as run:
        assert agent(run) is False
    agent.failing = False
    agent.live.clear()
    return chat, run.id


def right(fork: tape.Tape, value: Any) -> bool:
    return value is True


@heavy
def test_the_point_is_found_within_one_step(quick: Backend) -> None:
    """Of 50 seeded failures, 20 of them stochastic, at least 45 are found within a step, with at most 25 tries each."""
    pick = random.Random(SEED)
    print(f"seed {SEED}")
    hits = most = 0
    with quick.open(durability="normal") as store:
        for number in range(FAILURES):
            steps = pick.randint(4, 30)
            stochastic = number % 5 >= 3
            rate, stray = (pick.uniform(0.6, 0.95), pick.uniform(0.0, 0.05)) if stochastic else (1.0, 0.0)
            agent = Agent(steps, pick.randint(1, steps), rate, stray, SEED + number)
            chat, run = failed(store, agent, f"chat-{number}")
            head = chat.info().head
            found = tape.bisect(chat, run, agent=agent, check=right)
            assert found.continuations <= 25
            assert [entry.kind for entry in chat.entries(after=head) if entry.kind == "append"] == []
            hits += abs(found.point - agent.fatal) <= 1
            most = max(most, found.continuations)
    print(f"{hits} of {FAILURES} within one step, at most {most} continuations")
    assert hits >= FAILURES * 0.9


def test_what_a_bisection_tells(quick: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve, the bounds, the best rescued fork with its first change and its diff, and a test that passes."""
    with quick.open() as store:
        agent = Agent(9, 4, 1.0, 0.0, 1)
        chat, run = failed(store, agent)
        found = tape.bisect(chat, run, agent=agent, check=right)
        assert (found.point, found.calls, found.bounds) == (4, 9, (4, 4))
        assert sum(rate.tries for rate in found.curve) == found.continuations
        assert all(rate.recovered == (rate.tries if rate.call <= 4 else 0) for rate in found.curve)
        assert all(rate.low <= rate.recovered / rate.tries <= rate.high for rate in found.curve)
        assert found.change is not None
        before, after = found.change
        assert (before.number, before.result, after.number) == (4, before.result, 4)
        assert found.rescued is not None
        assert found.diff is not None
        assert [message.content for message in found.diff.added] == ["fine fine fine good" + " fine" * 5]
        # Recorded calls cost nothing.
        assert min(agent.live) >= min(rate.call for rate in found.curve)
        statuses = {info.status for info in store.list(parent="chat").items}
        assert statuses == {"active", "discarded"}
        (tmp_path / "agent_of_test.py").write_text(
            "def main(run):\n    ask = run.model(answer)\n"
            "    said = [ask(step) for step in range(1, 10)]\n\n\ndef answer(step):\n    raise AssertionError\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        text = found.test("agent_of_test:main", str(quick.address), tmp_path / "test_it.py")
        space: dict[str, Any] = {}
        exec(compile(text, "test_it.py", "exec"), space)
        next(value for name, value in space.items() if name.startswith("test_"))()
        sys.modules.pop("agent_of_test", None)


@pytest.mark.parametrize("id", ["x²", "é-1", "a b", "İ", "١", "class"])
def test_a_test_of_any_run_is_python(quick: Backend, id: str) -> None:
    """Whatever letters the id of a run has, the test that is made of it compiles, and pytest finds it."""
    with quick.open():
        found = tape.Bisection(
            run=id,
            tape="chat",
            calls=1,
            point=1,
            bounds=(1, 1),
            curve=[],
            continuations=1,
            rescued="fork",
            rescued_run="r",
            change=None,
            diff=None,
        )
        space: dict[str, Any] = {}
        text = found.test("json:dumps", str(quick.address))
        exec(compile(text, "test_it.py", "exec"), space)
        assert [name for name in space if name.startswith("test_rescued")] != []
        for agent in ("class:dumps", "json:if", "json.²:dumps"):
            with pytest.raises(tape.InvalidEntry, match="module:function"):
                found.test(agent, str(quick.address))


def test_a_run_that_nothing_rescues(quick: Backend) -> None:
    """The point is 0, there is no fork to look at, and no test to write."""
    with quick.open() as store:
        agent = Agent(5, 3, 0.0, 0.0, 1)
        chat, run = failed(store, agent)
        found = tape.bisect(chat, run, agent=agent, check=right)
        assert (found.point, found.rescued, found.change, found.diff) == (0, None, None, None)
        with pytest.raises(tape.InvalidEntry):
            found.test("a:b", "x.db")
        with pytest.raises(tape.UnknownEntry):
            tape.bisect(chat, "nowhere", agent=agent, check=right)
        with pytest.raises(tape.InvalidEntry):
            tape.bisect(chat, run, agent=agent, check=3)  # type: ignore[call-overload]


def test_a_command_checks(quick: Backend) -> None:
    """A command is given the result on its input, and its status tells success."""
    with quick.open() as store:
        agent = Agent(4, 2, 1.0, 0.0, 1)
        chat, run = failed(store, agent)
        code = "import json, os, sys; sys.exit(not (json.load(sys.stdin) and os.environ['TAPE_FORK']))"
        assert tape.bisect(chat, run, agent=agent, check=[sys.executable, "-c", code]).point == 2


def test_an_agent_that_does_not_repeat_itself_diverges(quick: Backend) -> None:
    """What is no continuation of the recorded run is not counted as one."""
    with quick.open() as store:
        agent = Agent(6, 3, 1.0, 0.0, 1)
        chat, run = failed(store, agent)

        def other(run: Any) -> bool:
            ask = run.model(agent.answer)
            return "good" in [ask(step + 100) for step in range(1, 7)]

        with pytest.raises(tape.Diverged):
            tape.bisect(chat, run, agent=other, check=right)


def test_the_async_twin(quick: Backend) -> None:
    """A tape of an AsyncStore is bisected with await."""
    with quick.open() as store:
        agent = Agent(4, 2, 1.0, 0.0, 1)
        _, run = failed(store, agent)

    async def main() -> int:
        async with tape.open_async(quick.address, **quick.options) as opened:
            return (await tape.bisect(opened.tape("chat"), run, agent=agent, check=right)).point

    assert asyncio.run(main()) == 2


def test_the_search_is_sure_only_when_it_can_be() -> None:
    """One lucky continuation does not settle it, and bounds hold what is likely."""
    search = Search(10)
    search.learn(9, recovered=True)
    assert not search.sure(0.9)
    for _ in range(4):
        search.learn(9, recovered=False)
    assert search.bounds()[0] < 9
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(3, 3)
    assert (0.4 < low < 0.5, high) == (True, 1.0)
