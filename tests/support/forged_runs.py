"""Forged runs: real recordings with some events changed at random, as anyone with write access can do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

import tape
from tape.command.show import json_shapes
from tape.core.records import Entry
from tape.db.read.recall import CONTEXT
from tape.runs.recording import list_runs, read_recording

__all__ = ["agent", "forge", "read_in_every_way", "record_everything"]

_ERRORS = ["ValueError", "KeyError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "OSError"]
_LARGE = 2**63
_HOSTILE: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        _LARGE,
        -_LARGE,
        10**4000,
        1.5,
        1e300,
        "",
        "x",
        "²",
        "0",
        "0/1",
        "0.a",
        "run:r:0",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"is": 1},
        {"of": 1},
        {"of": 10**12},
        {"bytes": "é"},
        {"bytes": "AA"},
        [[0, 1]],
    ),
    *({"is": 1, "bytes": ""}, {"context": 1, "api": "x"}, {"withheld": 1}, [["a", {"is": 1}]], [[0, {"is": [1]}]]),
    *({"type": f"builtins:{name}", "text": "0", "args": [0]} for name in _ERRORS),
    *({"is": [1, {}], "type": f"builtins:{name}"} for name in ("set", "tuple", "frozenset", "type", "nothing")),
    *("completed", "failed", "partial", "skipped", "model", "tool", "value", "read", "write", "anthropic:nothing"),
    *("x" * 300, "0" + "/1" * 5_000, "a:b", "tape.errors:Diverged", "sys:modules", "é", "0" * 5_000),
]


@dataclass
class Weather:
    """What a tool returns."""

    degrees: int


def agent(run: Any) -> None:
    """Make calls of every kind. Results are not checked: a recording may hold any value."""
    # In a replay ``run.tape`` makes a copy in memory, which takes longer than all the rest.
    chat = run._chat if run.recording is not None else run.tape
    rendered = chat.context(record=run.recording is None).to_openai()

    def weather(city: str) -> Weather:
        return Weather(7)

    def fail() -> None:
        raise ValueError("no")

    def count(to: int) -> Iterator[int]:
        yield from range(to)

    def stop(to: int) -> Iterator[int]:
        yield from range(to)
        raise KeyError("stop")

    def nested(q: str) -> Any:
        return ask(messages=[{"role": "user", "content": q * 300}], model="m")

    ask = run.model(lambda **request: {"role": "assistant", "content": "ok"}, name="ask")
    messages = [{"role": "user", "content": "x" * 300}]
    for step in range(3):
        prompt = "p" * (300 + step)
        _called(partial(ask, messages=messages, model="m", prompt=prompt))
        messages.append({"role": "assistant", "content": "y" * 300})
    messages.insert(0, messages.pop())
    _called(lambda: ask(messages=[*messages, {"role": "user"}], model="m"))
    _called(lambda: ask(messages=rendered))
    _called(lambda: run.tool(weather, effect="read")("Oslo"))
    _called(lambda: run.tool(lambda: {1, 2}, name="set", effect="read")())
    _called(lambda: run.tool(lambda: b"\x00", name="bytes", effect="idempotent")())
    _called(lambda: run.tool(lambda n: n, name="write")(n=1))
    _called(lambda: run.tool(fail, effect="read")())
    _called(lambda: list(run.tool(count, effect="read")(3)))
    _called(lambda: list(run.model(stop, name="stop")(2)))
    _called(lambda: run.tool(nested, effect="read")(q="q"))
    _called(lambda: run.value("clock", lambda: 1.0)())
    with run.lane("research"):
        _called(lambda: ask(messages=[], model="m"))


def _called(call: Callable[[], Any]) -> None:
    """Make a call. Errors from the recording or from the agent's functions are ignored; all others are raised."""
    try:
        value = call()
    except tape.TapeError:
        raise
    except Exception as error:
        if error.__traceback__ is None or not _restored(error):
            raise
    else:
        if hasattr(value, "close"):
            value.close()


def _restored(error: BaseException) -> bool:
    """Whether an error comes from the recording or from the agent's functions."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    code = trace.tb_frame.f_code
    return code.co_name in ("_answer", "_raising", "__next__", "fail", "stop")


def record_everything(chat: tape.Tape) -> list[Entry]:
    """Record a run of the agent, and return the entries of its tape."""
    chat.append(role="user", content="word " * 100)
    with tape.record(chat, "golden", id="r", input={"q": 1}) as run:
        agent(run)
    return list(chat.entries())


def forge(chat: tape.Tape, entries: list[Entry], pick: random.Random) -> None:
    """Write the entries to another tape, with some events of the run changed, left out or duplicated."""
    changed = {pick.randrange(len(entries)) for _ in range(pick.choice((1, 1, 2, 5)))}
    for number, entry in enumerate(entries):
        content = msgspec.json.decode(msgspec.json.encode(entry.payload))
        if entry.kind == "append":
            chat.append(content["message"])
        elif entry.kind == "event" and content["name"] == CONTEXT:
            chat.recorded_context()
        if entry.kind != "event" or content["name"] == CONTEXT:
            continue
        name, data, key = content["name"], content["data"], entry.key
        if number in changed:
            how = pick.random()
            if how < 0.05:
                # So that all others keep their places.
                name, key = "left.out", "left-out"
            elif how < 0.1:
                key = pick.choice((key + "x", key.replace(":1:", ":2:"), f"run:r:{pick.choice(('end:1', 'end:2'))}"))
            elif how < 0.15:
                name = pick.choice(("run.started", "run.call", "run.result", "run.ended"))
            elif how < 0.7:
                others = [other.payload for other in entries if getattr(other.payload, "name", None) == name]
                data = _crossed(data, pick.choice(others).data, pick)  # type: ignore[union-attr]
            else:
                data = _changed(data, pick)
        try:
            chat.event(name, data, key=key)
        except (tape.InvalidEntry, tape.ProvenanceConflict):
            chat.event("refused")


def _crossed(data: dict[str, Any], other: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    """Return the data of an event with a field of another one: the types are right, and the two do not fit."""
    names = sorted({*data, *other} - {"run", "lane", "n"})
    name = pick.choice(names) if names else "run"
    return {**data, **({name: other[name]} if name in other else {})}


def _changed(data: Any, pick: random.Random) -> Any:
    """Return JSON with one part of it changed, somewhere inside."""
    if isinstance(data, dict) and data and pick.random() < 0.85:
        name = pick.choice(sorted(data))
        if pick.random() < 0.15:
            return {other: value for other, value in data.items() if other != name}
        return {**data, name: _changed(data[name], pick)}
    if isinstance(data, list) and data and pick.random() < 0.85:
        index = pick.randrange(len(data))
        return [*data[:index], _changed(data[index], pick), *data[index + 1 :]]
    if isinstance(data, int) and pick.random() < 0.5:
        return data + pick.choice((-10, -1, 1, 10, 10**9))
    return pick.choice(_HOSTILE)


def read_in_every_way(chat: tape.Tape, store: tape.Store, pick: random.Random) -> Iterator[str]:
    """Read a run in six ways of fourteen; yields how each went: "fine", or the name of the library's error."""

    def listed() -> None:
        for info in list_runs(chat):
            msgspec.json.encode(json_shapes.run(info))
        for call in read_recording(chat, "r").calls:
            msgspec.json.encode(json_shapes.call(call))

    def replayed(**options: Any) -> None:
        with tape.replay(chat, "r", **options) as again:
            agent(again)

    def resumed() -> None:
        with tape.record(chat.fork(at=last - 1), id="r", resume=True) as run:
            agent(run)

    def checked() -> None:
        str(tape.check(store, label=chat.id, agent=agent))

    def bisected() -> None:
        tape.bisect(chat, "r", agent=agent, check=lambda fork, value: True, tries=2, effects="allow")

    def copied() -> None:
        with tape.replay(chat, "r") as again:
            again.tape.messages()

    def onward() -> None:
        replayed(live_from=pick.randint(1, 20), into=chat.fork(), effects="allow")

    ways: list[Callable[[], None]] = [
        *(listed, replayed, resumed, checked, bisected, copied, onward),
        *(lambda: replayed(match="request"), lambda: replayed(match="order"), lambda: replayed(tools="live")),
        *(lambda: replayed(on_divergence="collect", normalise=["n"]), lambda: replayed(into=chat.fork())),
        *(lambda: [tape.recover(chat)], lambda: [tape.recover(chat, "r")]),  # type: ignore[list-item]
    ]
    last = chat.info().head
    chat.label(chat.id)
    for way in (ways[0], *pick.sample(ways[1:], 5)):
        try:
            way()
        except tape.TapeError as error:
            yield type(error).__name__
        else:
            yield "fine"
