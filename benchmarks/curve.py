"""What the n-th message costs: the store and others grow side by side, and append in turns at every power of ten."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.against import STEP, installed, load, opened, repeated
from benchmarks.harness import Run, numbered, race
from benchmarks.peers import OURS, PEERS, Kind, Peer
from benchmarks.report import Series

SLOW = 0.05
"""A store whose append takes longer than this many seconds grows no further."""
_message = numbered()


@dataclass
class Climber:
    """One store on its way up."""

    kind: Kind
    peer: Peer
    bound: float
    held: int = 0
    spent: float = 0
    note: str = ""
    points: list[tuple[int, float]] = field(default_factory=list)

    def climb(self, loop: asyncio.AbstractEventLoop, goal: int) -> None:
        """Grow to so many messages, unless the time is used up on the way."""
        while self.held < goal and not self.note:
            # A store that saves everything each time is filled at once.
            size = goal - self.held if self.kind.limit else min(STEP, goal - self.held)
            began = time.perf_counter()
            load(loop, self.peer, [_message() for _ in range(size)])
            self.held += size
            self.spent += time.perf_counter() - began
            if self.kind is not OURS and self.spent > self.bound:
                self.note = f"stopped at {self.held:,}: {self.bound:.0f} s to get there"

    def arrive(self, microseconds: float) -> None:
        """Take down what one append costs here."""
        self.points.append((self.held, microseconds))
        if microseconds > SLOW * 1e6:
            self.note = self.note or f"stopped at {self.held:,}: {microseconds / 1000:.0f} ms each"


def curve(run: Run, end: int) -> Path:
    """Grow to ``end`` messages and draw what each store's next one costs; return the file of ours."""
    kinds = [OURS, *(kind for kind in PEERS if run.peers and kind.engine == "SQLite" and installed(run, kind))]
    loop = asyncio.new_event_loop()
    with opened(run, loop, kinds, "curve") as stores:
        climbers = [Climber(kind, stores[kind.name], run.pick(20, 1)) for kind in kinds]
        goal = 10
        while goal <= end:
            climbing = [one for one in climbers if not one.note]
            for one in climbing:
                one.climb(loop, goal)
            contenders = {
                one.kind.name: repeated(loop, one.peer, lambda p: p.append(_message()), 2 if one.kind.limit else 10)
                for one in climbing
            }
            times = race(run.pick(5, 1), contenders)
            for one in climbing:
                one.arrive(times.measured(one.kind.name).median)
            goal *= 10
    loop.close()
    run.report.series += [Series(one.kind.name, one.points, one.note) for one in climbers]
    return run.folder / "bench_curve_0.db"
