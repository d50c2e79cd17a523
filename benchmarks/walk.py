"""How far a stranger walks: the files and functions that one append, one context and one merge go through.

Run ``python -m benchmarks.walk``. With ``--trace append`` (or ``context``, ``merge``) it lists the functions in the
order in which they are entered. These are counts, not times: they are the same on every machine. A change of file is
a call that enters another file of ``tape/`` than the call before it. Generated code and other libraries do not count.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import tape

PACKAGE = Path(tape.__file__).resolve().parent

Step = tuple[str, str]
"""A file below ``tape/`` and the function in it that was entered."""


def walk(work: Callable[[], object]) -> list[Step]:
    """Return the functions of the package that ``work`` enters, in order."""
    steps: list[Step] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        name = frame.f_code.co_qualname
        if name.endswith(("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")):
            return
        steps.append((str(Path(frame.f_code.co_filename).relative_to(PACKAGE)), name))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return steps


def changes(steps: list[Step]) -> int:
    """Return how often the walk goes from one file to another."""
    return sum(before[0] != after[0] for before, after in itertools.pairwise(steps))


def walks(folder: Path) -> dict[str, list[Step]]:
    """Return the three walks that CONTRIBUTING tells of, on a new SQLite store.

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
        for file, name in found[chosen]:
            print(f"{file}: {name}")
        return
    print(f"{'walk':<10}{'files':>8}{'functions':>12}{'calls':>8}{'changes of file':>18}")
    for name, steps in found.items():
        files, functions = {file for file, _ in steps}, set(steps)
        print(f"{name:<10}{len(files):>8}{len(functions):>12}{len(steps):>8}{changes(steps):>18}")


if __name__ == "__main__":
    main()
