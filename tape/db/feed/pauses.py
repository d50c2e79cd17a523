"""How long to wait between two reads of something that another process may write."""

from __future__ import annotations

import time

__all__ = ["Pauses"]

_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.25
"""Seconds between two reads without a wakeup: a bound transaction sends none, nor does an expiry."""


class Pauses:
    """Pauses that double up to a limit, and end ``timeout`` seconds after the last progress. The caller waits."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self.restart()

    def restart(self) -> None:
        """Begin again, timeout included: something was read."""
        self._progress = time.monotonic()
        self.shorten()

    def shorten(self) -> None:
        """Read often again: something was committed, though it may not be final yet."""
        self._pause = _FIRST_PAUSE

    def next(self) -> float | None:
        """Return how long to wait before the next read, or None when the timeout has passed."""
        pause = self._pause
        self._pause = min(2 * pause, _LAST_PAUSE)
        if self._timeout is None:
            return pause
        remaining = self._timeout - (time.monotonic() - self._progress)
        return min(pause, remaining) if remaining > 0 else None
