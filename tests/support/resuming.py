"""An agent that several processes resume concurrently. Its effects fail, hang or kill their process."""

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

__all__ = ["FATES", "STEPS", "agent", "happened", "resume", "sender"]

STEPS = 4
FATES = ("return", "fail", "hang", "kill")
"""What may become of an effect, before it happens and after it."""


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


def sender(file: Path, meet: Callable[[int], None] = lambda at: None) -> Callable[..., str]:
    """Return a tool that writes to a file, which knows nothing of transactions; it meets two fates at each step."""

    def send(step: int, answer: float, effect: tape.Effect) -> str:
        meet(2 * step)
        with open(file, "a") as lines:
            lines.write(f"{effect.key}\n")
        meet(2 * step + 1)
        return f"sent {step}"

    return send


def resume(store: tape.Store, *, id: str, file: str, fates: list[str]) -> None:
    """Resume a run, and tell how that ended. An effect that hangs says so and waits for a word."""

    def meet(at: int) -> None:
        if fates[at] == "fail":
            raise ValueError("no")
        if fates[at] == "hang":
            say("hangs")
            heard()
        if fates[at] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    ready()
    try:
        with tape.record(store.tape("work"), id=id, resume=True) as run:
            answer = agent(run, sender(Path(file), meet))
    except tape.EffectUnknown as error:
        say(("unknown", error.key))
    except tape.InvalidEntry as error:
        # Another process has completed the run already.
        say(("over", error.why))
    else:
        say(("done", answer))
