"""What does it cost to begin? Importing the library, listing a small store, asking for the version: fresh processes.

python benchmarks/startup.py [--quick]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tape

SQLALCHEMY, NOTHING = "import sqlalchemy", "pass"


class Figure(NamedTuple):
    """How many times as long one process takes as another; the medians in milliseconds, and the bar if there is one."""

    what: str
    ratio: float
    taken: float
    against: float
    most: float | None


QUESTIONS: list[tuple[str, str, str, float | None]] = [
    ("import tape, to import sqlalchemy", "import tape", SQLALCHEMY, 1.2),
    ("tape ls on a small store, to import sqlalchemy", "tape ls", SQLALCHEMY, 1.6),
    ("tape --version, to python -c pass", "tape --version", NOTHING, 3.0),
    # Without a bar: what the import leaves to the first call, and what is not to be loaded with it.
    ("import tape and tape.Store, to import sqlalchemy", "import tape; tape.Store", SQLALCHEMY, None),
    ("tape.open of a small store, to import sqlalchemy", "import tape; tape.open('tape.db')", SQLALCHEMY, None),
    ("tape --help, to import sqlalchemy", "tape --help", SQLALCHEMY, None),
]


def measure(rounds: int, folder: Path) -> list[Figure]:
    """Run every process in turns, ``rounds`` times, and return the medians of the ratios of each round.

    All run on one interpreter and on compiled modules, as an installed program does.
    """
    with tape.open(folder / "tape.db") as store:
        for number in range(5):
            store.tape(f"chat-{number}").extend([{"role": "user", "content": "Plan the trip"}] * 5)
    names = dict.fromkeys(name for _, one, other, _ in QUESTIONS for name in (one, other))
    contenders = {name: _command(name) for name in names}
    taken = _race(rounds, contenders, folder)
    return [
        Figure(
            what,
            statistics.median(a / b for a, b in zip(taken[one], taken[other], strict=True)),
            statistics.median(taken[one]) * 1e3,
            statistics.median(taken[other]) * 1e3,
            most,
        )
        for what, one, other, most in QUESTIONS
    ]


def _command(name: str) -> list[str]:
    if name.startswith("tape "):
        # As the script that an installer makes, whatever folder it lies in.
        script = "import re, sys; from tape.command import main; sys.exit(main())"
        return [sys.executable, "-c", script, *name.split()[1:]]
    return [sys.executable, "-c", name]


def _race(rounds: int, contenders: Mapping[str, Sequence[str]], folder: Path) -> dict[str, list[float]]:
    """Time each process once per round; who begins alternates, and the first round, which compiles, is not counted."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TAPE_", "PYTHON"))}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(rounds + 1):
        for name in order if turn % 2 else reversed(order):
            began = time.perf_counter()
            subprocess.run(contenders[name], cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
            if turn:
                taken[name].append(time.perf_counter() - began)
    return taken


def main() -> int:
    """Print the figures with their bars; the status tells whether all are met."""
    parser = argparse.ArgumentParser(description="What does it cost to begin?")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    rounds = 5 if parser.parse_args().quick else 25
    with tempfile.TemporaryDirectory(prefix="tape-bench-") as folder:
        figures = measure(rounds, Path(folder))
    for what, ratio, taken, against, most in figures:
        verdict = "–" if most is None else "PASS" if ratio <= most else "FAIL"
        bar = "–" if most is None else f"≤ {most:g}"
        print(f"{verdict:5}{ratio:7.2f}  {bar:7} {what}   ({taken:.0f} ms, {against:.0f} ms)")
    return int(any(most is not None and ratio > most for _, ratio, _, _, most in figures))


if __name__ == "__main__":
    sys.exit(main())
