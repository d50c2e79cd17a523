"""What recording a run costs, in bytes and in time, and how long it takes to run one again."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import tape
from benchmarks import tapes
from benchmarks.harness import TEXT, Run, each, race

Message = dict[str, Any]

MEGABYTE = 2_000
"""Messages of a conversation of about 1 MB."""


def runs(run: Run) -> None:
    """Measure on both engines."""
    path = run.folder / "runs.db"
    with tape.open(path, durability="normal"):
        pass
    with tapes.engines(run, path) as stores:
        for engine, store in stores.items():
            added_bytes(run, engine, store)
            overhead(run, engine, store)
            replayed(run, engine, store)


def conversation() -> list[Message]:
    """Return a conversation of about 1 MB."""
    return [{"role": "user", "content": f"{n:06d} {TEXT} {TEXT} {TEXT}"} for n in range(MEGABYTE)]


def step(number: int) -> list[Message]:
    """Return what one step of an agent adds: an answer, and the result of a tool."""
    return [
        {"role": "assistant", "content": f"answer {number:06d} {TEXT} {TEXT}"},
        {"role": "user", "content": f"result {number:06d} {TEXT} {TEXT} {TEXT}"},
    ]


def added_bytes(run: Run, engine: str, store: tape.Store) -> None:
    """Make 100 model calls on a conversation of 1 MB, and hold what was recorded against what the steps added."""
    messages, calls, added = conversation(), run.pick(100, 5), 0
    chat = store.tape("bytes")
    with tape.record(chat) as recording:
        numbers = iter(range(calls))
        ask = recording.model(lambda messages: step(next(numbers))[0])
        ask(messages)
        first = store.stats().bytes
        for number in range(1, calls):
            new = [ask(messages), step(number)[1]]
            messages += new
            added += len(json.dumps(new))
    ratio = (store.stats().bytes - first) / added
    note = f"{calls} calls, {added / 1e6:.2f} MB added"
    run.report.bar(f"bytes recorded to bytes that the steps added, 1 MB, {engine}", ratio, most=3, note=note)


def overhead(run: Run, engine: str, store: tape.Store) -> None:
    """Hold a recorded call that does nothing on a conversation of 1 MB against an append of one message."""
    messages, number, keys = conversation(), 0, itertools.count()
    chat, plain = store.tape("calls"), store.tape("appends")
    with tape.record(chat) as recording:
        ask = recording.model(lambda messages: step(0)[0])

        def call() -> None:
            nonlocal number
            number += 1
            ask(messages)
            messages.extend(step(number))

        def append() -> None:
            plain.append(step(0)[1])

        def keyed_append() -> None:
            plain.append(step(0)[1], key=f"key-{next(keys)}")

        contenders = {"recorded call": call, "append": append, "append with a key": keyed_append}
        times = race(run.pick(15, 2), {name: each(contender, 10) for name, contender in contenders.items()})
    for other, most in (("append", 3), ("append with a key", None)):
        shown = {name: times.measured(name) for name in ("recorded call", other)}
        ratio = times.growth("recorded call", other)
        run.report.bar(f"a recorded call, to an {other}, 1 MB, {engine}", ratio, most=most, times=shown)


def replayed(run: Run, engine: str, store: tape.Store) -> None:
    """Run 1 000 calls again."""
    chat, calls = store.tape("long"), run.pick(1_000, 20)

    def agent(this: tape.Run) -> None:
        messages: list[Message] = []
        ask = this.model(lambda messages: step(len(messages))[0])
        for number in range(calls):
            messages += [ask(messages), step(number)[1]]

    with tape.record(chat) as recording:
        agent(recording)
    began, busy = time.perf_counter(), time.process_time()
    with tape.replay(chat, recording.id) as again:
        agent(again)
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    assert again.report.matched == calls
    note = f"{seconds:.2f} s of which {cpu:.2f} s CPU"
    run.report.bar(f"seconds to replay {calls} calls, {engine}", seconds, most=2, note=note)
