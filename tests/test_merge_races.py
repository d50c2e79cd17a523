"""Merges of several processes at once, and merges that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.backends import Backend
from support.racing import TIMEOUT, race

import tape

ROUNDS = int(os.environ.get("TAPE_TEST_MERGES", "100"))


def merge_child(index: int, address: str, options: dict[str, Any], rounds: int) -> int:
    """Append a message to one's own child and merge it, so many times; both processes write the same parent."""
    with tape.open(address, durability="normal", **options) as store:
        chat, child = store.tape("chat"), store.tape(f"child-{index}")
        for number in range(rounds):
            child.append(role="assistant", content="found", id=f"{index}-{number}")
            receipt = chat.merge(child)
            assert receipt.message_ids == [f"{index}-{number}"]
        return rounds


def test_two_processes_merge_two_children_of_one_parent(backend: Backend) -> None:
    """Both deltas are present exactly once, in each child's order, without a deadlock."""
    store = backend.open(durability="normal")
    chat = store.tape("chat")
    chat.append(role="user", content="go", id="go")
    for index in range(2):
        chat.fork(f"child-{index}")
    assert race(merge_child, backend.address, backend.options, ROUNDS, count=2) == [ROUNDS, ROUNDS]
    found = [message.id for message in chat.messages()][1:]
    for index in range(2):
        mine = [one for one in found if one.startswith(f"{index}-")]
        assert mine == [f"{index}-{number}" for number in range(ROUNDS)]
    assert len(found) == 2 * ROUNDS
    assert store.verify().ok


_LOOP = """
import sys, json, tape
address, options = sys.argv[1], json.loads(sys.argv[2])
with tape.open(address, **options) as store:
    chat, child = store.tape("chat"), store.tape("child")
    number = len(list(child.entries(kinds=["append"])))
    while True:
        child.extend([{"id": f"{number}-{part}", "role": "user", "content": "x"} for part in range(3)])
        chat.merge(child)
        print(number, flush=True)
        number += 1
"""


def test_f4_a_killed_merge_is_wholly_there_or_wholly_absent(backend: Backend) -> None:
    """kill -9 during merges: whatever is on the parent came in whole threes, and every acknowledged merge is there."""
    store = backend.open()
    chat = store.tape("chat")
    chat.append(role="user", content="go", id="go")
    chat.fork("child")
    acknowledged: list[str] = []
    for kill in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", _LOOP, backend.address, json.dumps(backend.options)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert process.stdout is not None
        for _ in range(3 + kill):
            acknowledged.append(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
        process.stdout.close()
        merged = [message.id for message in chat.messages()][1:]
        assert len(merged) % 3 == 0
        assert {f"{number}-0" for number in acknowledged} <= set(merged)
        assert store.verify().ok
        chat.merge("child")
        child = [message.id for message in store.get("child").messages()][1:]
        assert [message.id for message in chat.messages()][1:] == child
