"""Many writers of one store at the same moment: what each of them does, and what must be stored of it.

What a writer does follows from its number alone, so that whoever knows what was acknowledged can check a store that
somebody else wrote. Run as a program it writes in a folder whose changes are logged, see ``disk.py``:
``python -m support.crowd threads STORE full 7 MARKS``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

import tape

__all__ = ["TAPES", "Step", "answered", "call", "faults_of", "plan", "plans_of", "refused", "text", "write"]

PATIENCE = 60.0

TAPES = ("a", "b", "c")
BATCH = 3
_NEVER = 1_000_000
"""A head that no tape reaches."""
_MAY_FAIL = ("guess", "refused")
"""The verbs that expect a head, which others may have moved or nobody has reached."""


class Step(NamedTuple):
    """One call of a writer."""

    verb: str
    tape: str
    key: str
    id: str | None = None
    """The message that is made or revised, or the fork that is made or merged."""

    @property
    def keys(self) -> list[str]:
        """The keys of the entries that the call records on its tape under keys of its own."""
        return [f"{self.key}#{place}" for place in range(BATCH)] if self.verb == "extend" else [self.key]


def plan(writer: int, count: int, seed: int, *, repeats: bool) -> list[Step]:
    """Return what a writer does, one call after the other: about ``count`` of them, some of them twice."""
    pick = random.Random(f"{seed}.{writer}")
    steps: list[Step] = []
    while len(steps) < count:
        key, name = f"{seed}.{writer}.{len(steps)}", pick.choice(TAPES)
        verbs = ["append"] * 5 + ["extend"] * 4 + ["revise", "event", "put", "patch", "guess", "refused"]
        verbs += ["fork"] * (writer % 8 == 0) + ["again"] * (3 * repeats)
        verb = pick.choice(verbs)
        if verb == "again" and any(step.verb not in _MAY_FAIL for step in steps):
            steps.append(pick.choice([step for step in steps if step.verb not in _MAY_FAIL]))
        elif verb == "revise":
            steps += [Step("append", name, key, f"m{key}"), Step("revise", name, f"{key}r", f"m{key}")]
        elif verb == "fork":
            child = f"child-{key}"
            steps += [Step("fork", name, key, child), Step("extend", child, f"{key}e")]
            steps.append(Step("merge", name, f"{key}m", child))
        elif verb != "again":
            steps.append(Step(verb, name, key))
    return steps


def plans_of(kind: str, seed: int) -> list[list[Step]]:
    """Return the plans of sixteen threads, or of two hundred tasks.

    Few repeat a call: one that was recorded before may take those who share a transaction with it out of their group.
    """
    writers, count, few = (16, 25, 16) if kind == "threads" else (200, 3, 100)
    return [plan(writer, count, seed, repeats=writer % few == 1) for writer in range(writers)]


def text(key: str) -> str:
    """Return the content that belongs to a key; messages are of all sizes, some of more than a page."""
    luck = zlib.crc32(key.encode())
    return f"{key} " + "x" * (luck % 400 if luck % 10 else luck % 9_000)


def call(chat: Any, step: Step, head: int) -> Any:
    """Make the call of a step on a handle, or on its async twin; ``head`` is where a guess expects the tape."""
    message = {"role": "user", "content": text(step.key)}
    calls: dict[str, Callable[[], Any]] = {
        "append": lambda: chat.append(message, id=step.id, key=step.key),
        "extend": lambda: chat.extend([{"role": "user", "content": text(key)} for key in step.keys], key=step.key),
        "revise": lambda: chat.revise(step.id, content=text(step.key), key=step.key),
        "event": lambda: chat.event("note", {"text": text(step.key)}, key=step.key),
        "put": lambda: chat.put("kept", {"text": text(step.key)}, key=step.key),
        "patch": lambda: chat.patch("patched", {"text": text(step.key)}, key=step.key),
        "guess": lambda: chat.append(message, key=step.key, expected_head=head),
        "refused": lambda: chat.append(message, key=step.key, expected_head=_NEVER),
        "fork": lambda: chat.fork(step.id, key=step.key),
        "merge": lambda: chat.merge(step.id, key=step.key),
    }
    return calls[step.verb]()


Tell = Callable[[dict[str, Any]], None]
"""Takes what became of a step: told when its call has returned."""


def answered(step: Step, result: Any) -> dict[str, Any]:
    """Return what a call acknowledged, as data."""
    receipts = result if isinstance(result, list) else [result]
    stored = [[r.tape, r.seq, r.key, r.hash] for r in receipts if hasattr(r, "seq")]
    return {"key": step.key, "stored": stored}


def refused(step: Step, error: BaseException) -> dict[str, Any]:
    """Return that a call failed, as data: nothing of it may be there."""
    return {"key": step.key, "refused": type(error).__name__}


def write(url: Any, kind: str, seed: int, tell: Tell, **options: Any) -> None:
    """Open a store, and let all writers of a kind write at once until they are done."""
    plans = plans_of(kind, seed)
    if kind == "threads":
        with tape.open(url, timeout=PATIENCE, **options) as store:
            _write_in_threads(store, plans, tell)
    else:

        async def run() -> None:
            async with tape.open_async(url, timeout=PATIENCE, **options) as store:
                await asyncio.wait_for(_write_in_tasks(store, plans, tell), PATIENCE)

        asyncio.run(run())


def _write_in_threads(store: tape.Store, plans: list[list[Step]], tell: Tell) -> None:
    begin = threading.Barrier(len(plans))

    def run(steps: list[Step]) -> None:
        begin.wait(PATIENCE)
        for step in steps:
            chat = store.tape(step.tape)
            try:
                answer = answered(step, call(chat, step, chat.info().head if step.verb == "guess" else 0))
            except tape.HeadMoved as error:
                answer = refused(step, error)
            tell(answer)

    crowd = [threading.Thread(target=run, args=(steps,), daemon=True) for steps in plans]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(PATIENCE)
        assert not one.is_alive()


async def _write_in_tasks(store: tape.AsyncStore, plans: list[list[Step]], tell: Tell) -> None:
    async def run(steps: list[Step]) -> None:
        for step in steps:
            chat = store.tape(step.tape)
            head = (await chat.info()).head if step.verb == "guess" else 0
            try:
                answer = answered(step, await call(chat, step, head))
            except tape.HeadMoved as error:
                answer = refused(step, error)
            tell(answer)

    await asyncio.gather(*(run(steps) for steps in plans))


# -- what must be stored


def faults_of(store: tape.Store, plans: Iterable[list[Step]], told: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with a store that was written by writers with these plans, who had told so much.

    Everything acknowledged is there once, nothing refused is there, nothing is there by halves, all that is there has
    its content, and of each writer there is a first part: nobody's second call is there without the first.
    """
    found = [f"verify: {problem}" for problem in store.verify().problems]
    tapes = {info.id: list(store.tape(info.id).entries()) for info in _every(store)}
    for name, entries in tapes.items():
        if [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
            found.append(f"tape {name} is not dense")
    stored = {(entry.tape, entry.key): entry for entries in tapes.values() for entry in entries}
    if len(stored) != sum(map(len, tapes.values())):
        found.append("a key is there twice")
    planned = {step.key: step for steps in plans for step in steps}
    for answer in told:
        found += _untrue(answer, planned[answer["key"]], stored)
    for steps in plans:
        found += _out_of_order(steps, stored)
    for step in planned.values():
        found += _halves(step, tapes, stored)
    known = {(step.tape, key) for step in planned.values() for key in step.keys}
    for place, entry in stored.items():
        # An opening comes with the first write; what a merge copies has a source, and its other side no plan.
        if place not in known and entry.kind not in ("open", "merge") and entry.source is None:
            found.append(f"from nowhere: {place}")
    return found


Stored = dict[tuple[str, str], tape.Entry]


def _untrue(answer: dict[str, Any], step: Step, stored: Stored) -> Iterator[str]:
    """Give what does not hold of what a writer was told."""
    there = [key for key in step.keys if (step.tape, key) in stored]
    if "refused" in answer:
        if there:
            yield f"refused, but there: {there} of {step.tape}"
        return
    if there != step.keys:
        yield f"lost: {step.verb} {step.key} of {step.tape}"
    for name, seq, key, hash in answer["stored"]:
        entry = stored.get((name, key))
        if entry is not None and (entry.seq, entry.hash) != (seq, hash):
            yield f"changed: {key} of {name}"


def _every(store: tape.Store) -> Iterator[tape.TapeInfo]:
    cursor = None
    while True:
        page = store.list(cursor=cursor, limit=500)
        yield from page.items
        if (cursor := page.cursor) is None:
            return


def _out_of_order(steps: list[Step], stored: Stored) -> Iterator[str]:
    """Give the calls of one writer that are there although an earlier one is not."""
    missing = None
    # A repeated call stands where it was made first.
    for step in dict.fromkeys(steps):
        if any((step.tape, key) in stored for key in step.keys):
            if missing is not None:
                yield f"out of order: {step.key} is there, and {missing} before it is not"
        elif step.verb not in _MAY_FAIL:
            missing = missing or step.key


def _halves(step: Step, tapes: dict[str, list[tape.Entry]], stored: Stored) -> Iterator[str]:
    """Give what is missing or wrong of a call of which something is there."""
    entries = [entry for key in step.keys if (entry := stored.get((step.tape, key))) is not None]
    there = bool(entries)
    seqs = [entry.seq for entry in entries]
    if there and (len(seqs) != len(step.keys) or seqs != list(range(seqs[0], seqs[0] + len(seqs)))):
        yield f"half of {step.key}: {seqs}"
    if step.verb == "fork" and there != (step.id in tapes):
        yield f"half of {step.key}: the fork {'is not' if there else 'is'} there"
    if step.verb == "merge":
        other = [entry for entry in tapes.get(str(step.id), ()) if entry.kind == "merge"]
        copies = [e for e in tapes.get(step.tape, ()) if e.source is not None and e.source.tape == step.id]
        if (len(other), len(copies)) != (int(there), BATCH * int(there)):
            yield f"half of {step.key}: {len(other)} receipts, {len(copies)} copies"
    if step.verb not in ("fork", "merge"):
        yield from (f"other content: {entry.key}" for entry in entries if _said(entry.payload) != text(entry.key))


def _said(payload: Any) -> Any:
    for part in ("message", "data", "given"):
        if (value := getattr(payload, part, None)) is not None:
            return value.get("content", value.get("text"))
    return None


# -- as a program


def main(kind: str, path: str, durability: str, seed: str, marks: str) -> None:
    """Write a new store, and say in the file of marks what was acknowledged."""
    # A checkpoint every hundred pages, so that the power can go in the middle of one.
    sa.event.listen(
        sa.pool.Pool, "connect", lambda connection, _: connection.execute("PRAGMA wal_autocheckpoint = 100")
    )
    file = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(answer: dict[str, Any]) -> None:
        os.write(file, json.dumps(answer).encode())

    write(path, kind, int(seed), tell, durability=durability)


if __name__ == "__main__":
    main(*sys.argv[1:])
