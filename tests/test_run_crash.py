"""Processes die in the middle of runs that write: what is recorded tells what happened, and nothing happens twice."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support import effects
from support.backends import Backend
from support.effects import STEPS, World, agent
from support.processes import Crew, Worker
from support.sizes import heavy, size

import tape

SEED = 15
KILLS = size(6, 100)
"""How often the agent is killed, on each engine."""


class Killing:
    """An agent that is killed again and again."""

    def __init__(self, backend: Backend, crew: Crew, folder: Path) -> None:
        self.store = backend.open(durability="normal")
        self.chat = self.store.tape("work")
        self.engine = backend.engine()
        with self.engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE payments (effect TEXT, amount INTEGER)"))
        self.folder = folder
        options = {"opening": {"durability": "normal"}, "opened": False}
        self.nest: Worker = crew.start(backend, effects.nest, folder=str(folder), **options)

    def world(self, id: str) -> World:
        """Return where the effects of a run go."""
        return World(self.store, self.engine, self.folder / id)

    def run(self, id: str, point: int) -> dict[str, Any] | None:
        """Run the agent, to die at a point; returns which points there are, or None when it died."""
        self.nest.tell({"id": id, "point": point})
        fact = self.nest.next()
        status = fact["status"] if "status" in fact else self.nest.next()["status"]
        lived = "points" in fact
        assert status == 0 if lived else os.WTERMSIG(status) == signal.SIGKILL
        return fact if lived else None

    def states(self, id: str) -> list[tape.CallState]:
        """Return what is known of the calls of a run; nothing of one that died before it began."""
        if self.chat.find_entry(key=f"run:{id}:start") is None:
            return []
        head = self.chat.info().head
        states = tape.recover(self.chat, id)
        assert self.chat.info().head == head
        return states

    def check_facts(self, id: str) -> Counter[str]:
        """Hold what is known of a run that died against what happened; returns how often each state was met."""
        states, world = self.states(id), self.world(id)
        notes = {state.key: state.state for state in states if state.name == "note"}
        pays = {state.key: state.state for state in states if state.name == "pay"}
        written, paid = world.noted(), world.paid([key for key in pays if key])
        # Of a line in the file nobody may say that it was not written.
        assert [key for key in written if notes.get(key) not in ("completed", "unknown")] == []
        assert [key for key, state in notes.items() if state == "completed" and key not in written] == []
        # A row is there exactly if its outcome is.
        assert sorted(paid) == sorted(key for key, state in pays.items() if state == "completed" and key)
        assert set(pays.values()) <= {"completed", "not_dispatched"}
        return Counter(notes.values())

    def check_once(self, id: str) -> None:
        """Require that a run that was resumed to its end has had every effect once."""
        states, world = self.states(id), self.world(id)
        keys = [state.key or "" for state in states if state.name == "pay"]
        assert len(set(keys)) == STEPS
        assert sorted(world.paid(keys)) == sorted(keys)
        assert Counter(world.noted()) == Counter([state.key for state in states if state.name == "note"])
        assert {state.state for state in states} == {"completed"}


@heavy
def test_killed_at_every_point_of_a_run_that_writes(backend: Backend, crew: Crew, tmp_path: Path) -> None:
    """A bound effect happens exactly once, however often its run dies; one that is not bound is reported as unknown."""
    print("seed", SEED)
    pick = random.Random(SEED)
    killing = Killing(backend, crew, tmp_path)
    whole = killing.run("whole", 0)
    assert whole is not None
    points, inside = whole["points"], whole["inside"]
    assert points > 200
    killing.check_once("whole")
    met: Counter[str] = Counter()
    for kill in range(KILLS):
        id = f"run-{kill}"
        # One from each stretch of the run, and as many in or shortly behind a tool that is not bound.
        point = pick.randrange(points * kill // KILLS, points * (kill + 1) // KILLS) + 1
        if kill % 2:
            point = pick.choice(inside) + pick.randrange(1, 25)
        assert killing.run(id, point) is None
        met += killing.check_facts(id)
        if kill % 3 == 0 and killing.run(id, pick.randrange(1, points)) is None:
            # It dies again while it is resumed.
            met += killing.check_facts(id)
        unknown = [state for state in killing.states(id) if state.state == "unknown" and state.effect == "write"]
        if unknown:
            with pytest.raises(tape.EffectUnknown) as caught, tape.record(killing.chat, id=id, resume=True) as asking:
                agent(asking, killing.world(id))
            assert caught.value.key == unknown[0].key
        if killing.states(id) == [] or killing.chat.find_entry(key=f"run:{id}:end:1") is None or unknown:
            with tape.record(killing.chat, id=id, resume=True) as run:
                agent(run, killing.world(id), killing.world(id).happened)
        killing.check_once(id)
    print("states met", met)
    assert met["unknown"] >= KILLS // 6
    killing.nest.tell("enough")
    killing.nest.finish()
    killing.engine.dispose()


def test_a_second_process_that_settles_rolls_back(backend: Backend, tmp_path: Path) -> None:
    """Two that make the same bound call at once commit one effect, and both return its outcome."""
    store, engine = backend.open(), backend.engine()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE payments (effect TEXT, amount INTEGER)"))
    chat, world = store.tape("work"), World(store, engine, tmp_path / "none")
    with pytest.raises(KeyboardInterrupt), tape.record(chat, id="r") as run:
        run.tool(_interrupted, name="pay", effect="write", bound=True)(amount=1)
    overtaken: list[Any] = []

    def pay(amount: int, effect: tape.Effect) -> Any:
        if not overtaken:
            overtaken.append(effect.key)
            with tape.record(chat, id="r", resume=True) as other:
                other.tool(world.pay, name="pay", effect="write", bound=True)(amount=amount)
        return world.pay(amount, effect)

    with tape.record(chat, id="r", resume=True) as slow:
        assert slow.tool(pay, name="pay", effect="write", bound=True)(amount=1) == {"paid": 1}
    assert world.paid(overtaken) == overtaken
    assert [state.state for state in tape.recover(chat, "r")] == ["completed"]
    engine.dispose()


def _interrupted(amount: int, effect: tape.Effect) -> None:
    raise KeyboardInterrupt
