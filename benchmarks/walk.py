"""How far a stranger walks: the files and functions that one append, one context and one merge go through.

Run ``python -m benchmarks.walk``. With ``--trace append`` (or ``context``, ``merge``) it lists the functions in the
order in which they are entered. These are counts, not times: they are the same on every machine. A change of file is
a call that enters another file of ``tape/`` than the call before it. Generated code and other libraries do not count.

Every change is of one of three sorts: to the database and back (a statement is asked or sent), on the way of an entry
that is planned, sealed and folded, or any other.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import tape

PACKAGE = Path(tape.__file__).resolve().parent

_DATABASE = "db/engine/transaction.py"
_RECORDS = "Writing.record"


class Step(NamedTuple):
    """A file below ``tape/``, the function in it that was entered, and whether that was to record an entry."""

    file: str
    name: str
    recording: bool


class Counts(NamedTuple):
    """How often a walk goes from one file to another: to ask the database, to record entries, for anything else."""

    asking: int
    recording: int
    other: int


def walk(work: Callable[[], object]) -> list[Step]:
    """Return the functions of the package that ``work`` enters, in order."""
    steps: list[Step] = []
    recording = False

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal recording
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        name = frame.f_code.co_qualname
        if name == _RECORDS:
            recording = event == "call"
        if event != "call" or name.endswith(("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")):
            return
        steps.append(Step(str(Path(frame.f_code.co_filename).relative_to(PACKAGE)), name, recording))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return steps


def changes(steps: list[Step]) -> Counts:
    """Return how often the walk goes from one file to another, and what for."""
    asking = recording = other = 0
    for before, after in itertools.pairwise(steps):
        if before.file == after.file:
            continue
        if _DATABASE in (before.file, after.file):
            asking += 1
        elif before.recording or after.recording:
            recording += 1
        else:
            other += 1
    return Counts(asking, recording, other)


def walks(folder: Path) -> dict[str, list[Step]]:
    """Return the walks of an append, a context and a merge, on a new SQLite store.

    The second of each is told: with the first, connections are opened and statements are compiled.
    """
    with tape.open(folder / "walk.db") as store:
        story(store.tape("before"))
        return story(store.tape("chat"))


def story(chat: tape.Tape) -> dict[str, list[Step]]:
    """Write a tape, fork it and merge the fork; return how far the three walks go."""
    chat.extend([{"role": "user", "content": f"message {n}", "id": f"m{n}"} for n in range(3)])
    chat.set_block("memory", "what the parent knows")
    chat.put("plan", {"step": 1})
    chat.append(role="user", content="the head is known from here on")
    found = {"append": walk(lambda: chat.append(role="assistant", content="one append"))}
    helper = chat.fork(name="helper")
    helper.extend([{"role": "assistant", "content": f"found {n}"} for n in range(2)])
    found["context"] = walk(lambda: helper.context(budget=8_000))
    helper.revise("m1", content="revised on the fork")
    helper.append_block("memory", "what the fork found")
    helper.patch("plan", {"step": 2})
    helper.record_usage(input_tokens=100, output_tokens=10)
    found["merge"] = walk(lambda: chat.merge(helper))
    return found


def main() -> None:
    """Print how far each walk goes, or one of them step by step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", choices=("append", "context", "merge"), help="list one walk step by step")
    chosen = parser.parse_args().trace
    with tempfile.TemporaryDirectory() as folder:
        found = walks(Path(folder))
    if chosen is not None:
        for step in found[chosen]:
            print(f"{step.file}: {step.name}")
        return
    titles = ("walk", "files", "functions", "calls", "entries", "changes of file", "database", "recording", "other")
    print("".join([f"{titles[0]:<10}", *(f"{title:>{len(title) + 3}}" for title in titles[1:])]))
    for name, steps in found.items():
        files, functions = {step.file for step in steps}, {step[:2] for step in steps}
        entries, counts = sum(step.name == _RECORDS for step in steps), changes(steps)
        figures = (len(files), len(functions), len(steps), entries, sum(counts), *counts)
        columns = (f"{figure:>{len(title) + 3}}" for title, figure in zip(titles[1:], figures, strict=True))
        print("".join([f"{name:<10}", *columns]))


if __name__ == "__main__":
    main()
