"""Searching the point of no return by experiments that may go either way. Pure.

If the point is call k, going on live from call k or an earlier one recovers with some likelihood, and from a later one
hardly ever. Each experiment shifts what is believed of k, and the next is made where it tells most.
"""

from __future__ import annotations

import math

from msgspec import Struct

__all__ = ["Rate", "Search", "wilson"]

RECOVERS, STRAYS = 0.7, 0.03
"""How likely a continuation is taken to succeed from before the point of no return, and from behind it."""
Z = 1.96
"""Of an interval of 95 percent."""


class Rate(Struct, frozen=True):
    """How often going on live from a call succeeded, with the bounds of the true rate at 95 percent."""

    call: int
    tries: int
    recovered: int
    low: float
    high: float


def wilson(recovered: int, tries: int) -> tuple[float, float]:
    """Return the bounds of a rate, which hold for few tries, too."""
    if not tries:
        return 0.0, 1.0
    rate, spread = recovered / tries, Z * Z / tries
    middle = (rate + spread / 2) / (1 + spread)
    margin = Z * math.sqrt(rate * (1 - rate) / tries + spread / (4 * tries)) / (1 + spread)
    return max(0.0, middle - margin), min(1.0, middle + margin)


class Search:
    """What is believed of the point of no return among so many calls; 0 stands for one before the first call."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.beliefs = [1 / (calls + 1)] * (calls + 1)
        self._tries: dict[int, list[bool]] = {}

    def next(self) -> int:
        """Return the call from which to go on next: where either outcome is as likely as the other."""
        best, gap, above = 1, 2.0, 0.0
        for call in range(self.calls, 0, -1):
            above += self.beliefs[call]
            if abs(above - 0.5) < gap:
                best, gap = call, abs(above - 0.5)
        return best

    def learn(self, call: int, *, recovered: bool) -> None:
        """Take in what came of going on from a call."""
        self._tries.setdefault(call, []).append(recovered)
        for point, belief in enumerate(self.beliefs):
            rate = RECOVERS if call <= point else STRAYS
            self.beliefs[point] = belief * (rate if recovered else 1 - rate)
        total = sum(self.beliefs)
        self.beliefs = [belief / total for belief in self.beliefs]

    @property
    def point(self) -> int:
        """The likeliest point."""
        return max(range(self.calls + 1), key=lambda point: self.beliefs[point])

    def sure(self, confidence: float) -> bool:
        """Whether the likeliest point is that likely."""
        return self.beliefs[self.point] >= confidence

    def bounds(self) -> tuple[int, int]:
        """Return the shortest stretch around the likeliest point that holds it at 95 percent."""
        low = high = self.point
        while sum(self.beliefs[low : high + 1]) < 0.95:
            below = self.beliefs[low - 1] if low else -1.0
            above = self.beliefs[high + 1] if high < self.calls else -1.0
            if below < 0 and above < 0:
                break
            low, high = (low - 1, high) if below >= above else (low, high + 1)
        return low, high

    def curve(self) -> list[Rate]:
        """Return the rates of the calls that were tried, in their order."""
        return [
            Rate(call, len(tries), sum(tries), *wilson(sum(tries), len(tries)))
            for call, tries in sorted(self._tries.items())
        ]
