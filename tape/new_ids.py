"""New ids and random keys: the one place that reads entropy, and a clock to keep ids in order."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

from tape.core import strict
from tape.core.entries.chain import SALT_SIZE
from tape.core.plan.keys import GIVEN, RANDOM, Key

__all__ = ["FixedIds", "keyed", "new_id", "new_salt"]

_lock = threading.Lock()
_random = random.Random(os.urandom(32))
_last = 0
_MILLISECONDS = (1 << 48) - 1


def _reseed() -> None:
    """Give a forked process random numbers of its own, or parent and child would make the same ids."""
    global _lock, _last
    _lock = threading.Lock()
    _last = 0
    _random.seed(os.urandom(32))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed)


def new_id() -> str:
    """Return a UUIDv7: random, and ascending within the process so that indexes grow at one end.

    The clock only orders the ids for the benefit of the index; nothing is ever decided by it.
    """
    global _last
    with _lock:
        # 48 bits of milliseconds, of whatever clock, and 12 of a counter within them that never repeats nor runs back.
        stamp = (max(time.time_ns(), 0) // 1_000_000 & _MILLISECONDS) << 12
        if stamp <= _last:
            stamp = _last + 1
        _last = stamp
        noise = _random.getrandbits(62)
    # Cut from one string of digits: formatting five numbers takes twice as long as all the rest.
    digits = (stamp << 64 | 1 << 63 | noise).to_bytes(16, "big").hex()
    return f"{digits[1:9]}-{digits[9:13]}-7{digits[13:16]}-{digits[16:20]}-{digits[20:]}"


def new_salt() -> bytes:
    """Return the random salt of an entry."""
    return os.urandom(SALT_SIZE)


class FixedIds:
    """New ids for what may be run more than once: every run is given the same ones, in the same order."""

    def __init__(self) -> None:
        self._made: list[str] = []
        self._given = 0

    def rewind(self) -> None:
        """Begin another run."""
        self._given = 0

    def __call__(self) -> str:
        """Return the next id of this run."""
        if self._given == len(self._made):
            self._made.append(new_id())
        self._given += 1
        return self._made[self._given - 1]


def keyed(key: str | None, new_id: Callable[[], str] = new_id) -> Key:
    """Return the key that the caller gave, or a random one."""
    if key is None:
        return Key(new_id(), RANDOM)
    return Key(strict.identifier(key, "key"), GIVEN)
