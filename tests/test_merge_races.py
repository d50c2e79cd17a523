"""Merges of several processes at once, and merges that are killed."""

from __future__ import annotations

import os

from support import programs
from support.backends import Backend
from support.processes import Crew
from support.sizes import heavy, size

ROUNDS = int(os.environ.get("TAPE_TEST_MERGES", size(15, 100)))


@heavy
def test_two_processes_merge_two_children_of_one_parent(backend: Backend, crew: Crew) -> None:
    """Both deltas are present exactly once, in each child's order, without a deadlock."""
    store = backend.open(durability="normal")
    chat = store.tape("chat")
    chat.append(role="user", content="go", id="go")
    for index in range(2):
        chat.fork(f"child-{index}")
    orders = [{"index": index, "rounds": ROUNDS, "opening": {"durability": "normal"}} for index in range(2)]
    said = crew.race(backend, programs.merge_child, orders)
    assert said == [[[f"{index}-{number}"] for number in range(ROUNDS)] for index in range(2)]
    found = [message.id for message in chat.messages()][1:]
    for index in range(2):
        mine = [one for one in found if one.startswith(f"{index}-")]
        assert mine == [f"{index}-{number}" for number in range(ROUNDS)]
    assert len(found) == 2 * ROUNDS
    assert store.verify().ok


@heavy
def test_f4_a_killed_merge_is_wholly_there_or_wholly_absent(backend: Backend, crew: Crew) -> None:
    """kill -9 during merges: whatever is on the parent came in whole threes, and every acknowledged merge is there."""
    store = backend.open()
    chat = store.tape("chat")
    chat.append(role="user", content="go", id="go")
    chat.fork("child")
    acknowledged: list[int] = []
    for kill in range(size(2, 6)):
        worker = crew.start(backend, programs.merge_on)
        worker.tell("go")
        acknowledged += [worker.next() for _ in range(3 + kill)]
        acknowledged += worker.kill()
        merged = [message.id for message in chat.messages()][1:]
        assert len(merged) % 3 == 0
        assert {f"{number}-0" for number in acknowledged} <= set(merged)
        assert store.verify().ok
        chat.merge("child")
        child = [message.id for message in store.get("child").messages()][1:]
        assert [message.id for message in chat.messages()][1:] == child
