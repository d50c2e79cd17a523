"""Forks of the process: what a child writes is kept, or refused at once."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest
from support import forking
from support.backends import Backend
from support.processes import Crew
from support.sizes import heavy, size

import tape

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

SEED = int(os.environ.get("TAPE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)


def forks(backend: Backend, crew: Crew, **order: Any) -> list[dict[str, Any]]:
    """Fork often, hold what is stored against what was acknowledged, and return what each round tells."""
    print("seed", SEED)
    worker = crew.start(backend, forking.fork_often, opened=False, seed=SEED, **order)
    worker.tell("go")
    told: list[dict[str, Any]] = worker.finish()
    assert [(one["ways"], one["engine"], odd) for one in told for odd in one["odd"]] == []
    assert [one["status"] for one in told] == [0] * len(told)
    store = backend.open()
    assert store.verify().problems == []
    stored = Counter(str(message.content) for message in store.tape("t").messages())
    acknowledged = [content for one in told for content in one["acknowledged"]]
    assert [content for content in acknowledged if stored[content] != 1] == []
    assert max(one["fork"] for one in told) < 3
    return told


@heavy
def test_what_a_child_writes_is_there_or_was_refused(backend: Backend, crew: Crew) -> None:
    """Threads follow, wait, read, write and hold transactions at the fork, beside an engine: no write is lost."""
    told = forks(backend, crew, rounds=size(12, 200))
    print(Counter((one["engine"], one["refused"]) for one in told))
    for one in told:
        # A file that an engine has open is refused to all calls. A server knows its connections apart.
        assert one["refused"] == 8 or backend.name != "sqlite" or one["engine"] != "bound"
        assert one["refused"] in (0, 8) if backend.name == "sqlite" else not one["refused"]


@pytest.mark.parametrize("way", ["follow", "follow pool", "lease", "decision", "decision async"])
def test_whoever_waits_does_not_keep_a_child_from_the_store(backend: Backend, crew: Crew, way: str) -> None:
    """A thread that waits for an entry, a lease or a decision has no connection open that a child would inherit."""
    told = forks(backend, crew, rounds=3, ways=[way], engines=False)
    assert [one["refused"] for one in told] == [0] * 3
