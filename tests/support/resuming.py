"""An agent that several processes resume at one time, and whose effects fail, hang and kill their process."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tape
from support.processes import heard, ready, say

__all__ = ["STEPS", "agent", "happened", "resume", "sender"]

STEPS = 4
_FATES = ("return", "fail", "hang", "kill")


def agent(run: Any, send: Any, on_unknown: Any = "ask") -> list[Any]:
    """Ask a model and write, step by step; an error of the tool is an answer, too."""
    ask = run.model(lambda messages: random.random())
    tool = run.tool(send, name="send", effect="write", on_unknown=on_unknown)
    messages: list[Any] = []
    for step in range(STEPS):
        messages.append(ask(messages=messages))
        try:
            messages.append(tool(step=step, answer=messages[-1]))
        except ValueError as error:
            messages.append(str(error))
    return messages


def happened(file: Path) -> Counter[str]:
    """Return the effects in a file, each with how often it happened."""
    return Counter(file.read_text().split() if file.exists() else [])


def sender(file: Path, fate: Callable[[], None] = lambda: None) -> Callable[..., str]:
    """Return a tool that writes to a file, which knows nothing of transactions; ``fate`` comes before and after."""

    def send(step: int, answer: float, effect: tape.Effect) -> str:
        fate()
        with open(file, "a") as lines:
            lines.write(f"{effect.key}\n")
        fate()
        return f"sent {step}"

    return send


def resume(store: tape.Store, *, id: str, file: str, seed: int, faults: bool) -> None:
    """Resume a run, and tell how that ended. An effect that hangs says so and waits for a word."""
    pick = random.Random(seed)

    def fate() -> None:
        chosen = pick.choice(_FATES) if faults and pick.random() < 0.35 else "return"
        if chosen == "fail":
            raise ValueError("no")
        if chosen == "hang":
            say("hangs")
            heard()
        if chosen == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    ready()
    try:
        with tape.record(store.tape("work"), id=id, resume=True) as run:
            answer = agent(run, sender(Path(file), fate))
    except tape.EffectUnknown as error:
        say(("unknown", error.key))
    except tape.InvalidEntry as error:
        # Another process has completed the run already.
        say(("over", error.why))
    else:
        say(("done", answer))
