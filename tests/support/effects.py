"""An agent whose tools write: to a table in the store's own database (bound), and to a file (not bound).

``nest`` runs it in processes that take their own lives at a given point: a line of the library's or of a tool's, or a
point of a write inside the database layer.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa

import tape
from support.processes import heard, say

__all__ = ["STEPS", "World", "agent", "nest"]

STEPS = 3
_WATCHED = (os.sep + os.path.join("tape", "runs", ""), os.path.join("support", "effects.py"))


class World:
    """Where the effects of one run go."""

    def __init__(self, store: tape.Store, engine: sa.Engine, file: Path) -> None:
        self.store = store
        self.engine = engine
        self.file = file

    def pay(self, amount: int, effect: tape.Effect) -> dict[str, Any]:
        """Write a row, and with it the outcome: one commit."""
        with self.engine.begin() as connection:
            connection.execute(
                sa.text("INSERT INTO payments (effect, amount) VALUES (:effect, :amount)"),
                {"effect": effect.key, "amount": amount},
            )
            result = {"paid": amount}
            effect.settle(self.store.bind(connection), result)
        return result

    def note(self, line: int, effect: tape.Effect) -> str:
        """Write a line to a file, which knows nothing of transactions."""
        with open(self.file, "a") as file:
            file.write(f"{effect.key}\n")
        return f"line {line}"

    def noted(self) -> list[str]:
        """Return the effects in the file."""
        return self.file.read_text().split() if self.file.exists() else []

    def happened(self, effect: tape.Effect) -> bool:
        """Find out whether a line was written."""
        return effect.key in self.noted()

    def paid(self, keys: list[str]) -> list[str]:
        """Return those of the effects that are rows, as often as they are."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT effect FROM payments")).scalars().all()
        return [key for key in rows if key in keys]


def agent(run: tape.Run, world: World, on_unknown: Any = "ask") -> list[Any]:
    """Write in steps, each in both ways."""
    pay = run.tool(world.pay, effect="write", bound=True)
    note = run.tool(world.note, effect="write", on_unknown=on_unknown)
    choose = run.model(lambda messages: {"role": "assistant", "content": len(messages)})
    messages: list[Any] = [{"role": "user", "content": "pay"}]
    for step in range(STEPS):
        messages.append(choose(messages))
        messages.append(pay(amount=step))
        messages.append(note(line=step))
    return messages


def nest(address: str, options: dict[str, Any], *, folder: str) -> None:
    """Run the agent in a fork of this process whenever asked; it dies just before it passes the given point."""
    say("ready")
    while (order := heard()) != "enough":
        child = os.fork()
        if not child:
            # The test learns which points there are from a run that dies at none of them.
            say(_run(address, options, Path(folder), **order))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say({"status": status})


def _run(address: str, options: dict[str, Any], folder: Path, *, id: str, point: int) -> dict[str, Any]:
    passed = 0
    inside: list[int] = []

    def pass_by(_: str = "") -> None:
        nonlocal passed
        passed += 1
        # Its own lines are watched, too, when the database layer calls it.
        if passed >= point > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in _WATCHED):
            return None
        if event == "line":
            pass_by()
            if frame.f_code.co_name == "note":
                inside.append(passed)
        return trace

    store = tape.open(address, **options)
    engine = sa.create_engine(address)
    if (schema := options.get("schema")) is not None:

        @sa.event.listens_for(engine, "connect")
        def _(connection: Any, record: object) -> None:
            connection.execute(f'SET search_path TO "{schema}"')
            connection.commit()

    store._db.fault = pass_by
    world = World(store, engine, folder / id)
    sys.settrace(trace)
    with tape.record(store.tape("work"), id=id, resume=True) as run:
        agent(run, world, world.happened)
    sys.settrace(None)
    return {"points": passed, "inside": inside}
