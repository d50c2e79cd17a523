"""Other processes: what a test starts beside itself, and the small programs that they run.

``start(backend, "append", …)`` runs one of the programs below in a fresh interpreter, so that it works under
pytest-xdist too. A program opens the store, says that it is ready, waits for ``go``, works, and answers with one line
of JSON per fact. Every wait on either side is bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

import tape

PATIENCE = 60.0
"""Seconds after which a process that says nothing has failed the test."""

DONE = "done"

LONGER = float(os.environ.get("TAPE_TEST_LONGER", "1"))
"""Makes the tests that race and crash run this many times as long."""


def scaled(count: int) -> int:
    """Return ``count``, or more of it when the environment asks for a longer run."""
    return max(1, round(count * LONGER))


class Address(Protocol):
    """Where a worker finds the database: a test's backend, or anything that looks like one."""

    @property
    def address(self) -> str: ...

    @property
    def options(self) -> dict[str, Any]: ...


class Worker:
    """Another interpreter, seen from the test. It runs one program after another until it is ended."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        self.program = ""
        self.done = True
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    def next(self, patience: float = PATIENCE) -> Any:
        """Return what the program says next, or None when the process has ended."""
        try:
            line = self._lines.get(timeout=patience)
        except queue.Empty:
            raise AssertionError(f"{self.program} said nothing for {patience} s") from None
        # A process that is killed may leave half a line.
        return json.loads(line) if line is not None and line.endswith("\n") else None

    def rest(self) -> list[Any]:
        """Return all that the program still says, until it is done or the process has ended."""
        found = []
        while (fact := self.next()) is not None:
            if fact == DONE:
                self.done = True
                break
            found.append(fact)
        return found

    def tell(self, word: str) -> None:
        """Send one line to the program."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def finish(self) -> list[Any]:
        """Return what the program still says, and require that it ended well."""
        said = self.rest()
        assert self.done, f"{self.program} ended with {self.process.wait(PATIENCE)}"
        return said

    def kill(self) -> list[Any]:
        """End the process at once, as a power cut would; returns what the program had said by then."""
        self.process.kill()
        self.process.wait(PATIENCE)
        return self.rest()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Crew:
    """The other interpreters of a test run. To start one takes longer than most of what it does, so they are kept."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def launch(
        self, backend: Address, program: str, *, opening: dict[str, Any] | None = None, **arguments: Any
    ) -> Worker:
        """Start a program and do not wait for it; ``opening`` is what its ``tape.open`` takes besides the URL."""
        worker = next((each for each in self._workers if each.done and each.process.poll() is None), None)
        if worker is None:
            worker = Worker()
            self._workers.append(worker)
        worker.done, worker.program = False, program
        options = {**backend.options, **(opening or {})}
        order = {"program": program, "url": backend.address, "options": options, "arguments": arguments}
        worker.tell(json.dumps(order))
        return worker

    def start(
        self, backend: Address, program: str, *, opening: dict[str, Any] | None = None, **arguments: Any
    ) -> Worker:
        """Start a program and wait until its store is open."""
        worker = self.launch(backend, program, opening=opening, **arguments)
        assert worker.next() == "ready"
        return worker

    def race(self, backend: Address, program: str, arguments: Iterable[dict[str, Any]]) -> list[list[Any]]:
        """Run a program in several processes that begin at one moment; returns what each of them said."""
        workers = [self.launch(backend, program, **each) for each in arguments]
        for worker in workers:
            assert worker.next() == "ready"
        for worker in workers:
            worker.tell("go")
        return [worker.finish() for worker in workers]

    def dismiss(self) -> None:
        """End every worker that still runs a program: its test is over."""
        for worker in self._workers:
            if not worker.done:
                worker.close()
        self._workers = [worker for worker in self._workers if worker.process.poll() is None]

    def close(self) -> None:
        """End them all."""
        for worker in self._workers:
            worker.close()


# -- what runs in the other process

Program = Callable[..., None]
_programs: dict[str, Program] = {}


def program(run: Program) -> Program:
    """Make a function something that ``start`` can run by its name."""
    _programs[run.__name__] = run
    return run


def say(fact: Any) -> None:
    """Send one fact to the test, in one write: what was said is said, even if the next thing is the end."""
    os.write(1, json.dumps(fact).encode() + b"\n")


def ready() -> None:
    """Tell that the store is open, and wait for the start."""
    say("ready")
    heard()


def heard() -> str:
    """Return the next line from the test; the end of the test is the end of the program."""
    line = sys.stdin.readline()
    if not line:
        os._exit(3)
    return line.strip()


def _receipt(receipt: tape.Receipt, content: Any = None) -> dict[str, Any]:
    return {"seq": receipt.seq, "key": receipt.key, "hash": receipt.hash, "content": content}


@program
def append(store: tape.Store, *, name: str, label: str, count: int, threads: int = 1) -> None:
    """Append ``count`` messages from each of ``threads`` threads to one tape."""
    chat = store.tape(name)
    answers: list[dict[str, Any]] = []
    begin = threading.Barrier(threads)

    def run(number: int) -> None:
        begin.wait(PATIENCE)
        for index in range(count):
            content = f"{label}.{number}.{index}"
            try:
                answers.append(_receipt(chat.append(role="user", content=content), content))
            except Exception as error:
                answers.append({"error": repr(error)})

    ready()
    crowd = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(PATIENCE)
    for answer in answers:
        say(answer)


@program
def extend(store: tape.Store, *, name: str, label: str, count: int, size: int) -> None:
    """Append batches of ``size`` messages."""
    chat = store.tape(name)
    ready()
    for index in range(count):
        batch = [{"role": "user", "content": f"{label}.{index}.{place}"} for place in range(size)]
        say([_receipt(receipt) for receipt in chat.extend(batch)])


@program
def share(store: tape.Store, *, name: str, seconds: float) -> None:
    """Append for some time and tell how often that worked, and the longest that one append took."""
    chat = store.tape(name)
    ready()
    count, longest = 0, 0.0
    now = began = time.monotonic()
    while now - began < seconds:
        chat.append(role="user", content="x")
        longest = max(longest, time.monotonic() - now)
        now = time.monotonic()
        count += 1
    say({"count": count, "longest": longest})


@program
def mixed(store: tape.Store, *, name: str, seed: int, count: int) -> None:
    """Use every verb at random; what other writers did in between may refuse it, and only with a typed error."""
    chat, pick = store.tape(name), random.Random(seed)
    written = refused = 0
    ready()
    for index in range(count):
        known = [message.id for message in chat.messages()]
        try:
            _any_verb(chat, pick, f"{seed}.{index}", pick.choice(known) if known else None)
            written += 1
        except (tape.UnknownMessage, tape.InvalidEntry):
            refused += 1
    say({"written": written, "refused": refused})


def _any_verb(chat: tape.Tape, pick: random.Random, label: str, one: str | None) -> None:
    verb = pick.randrange(12 if one is not None else 6)
    match verb:
        case 0:
            chat.append(role="user", content=label)
        case 1:
            chat.append(role="user", content=label, id=label)
        case 2:
            chat.extend([{"role": "user", "content": n} for n in range(pick.randint(1, 4))])
        case 3:
            chat.event("note", {"by": label})
        case 4:
            chat.anchor(f"a{pick.randint(0, 3)}", {"by": label})
        case 5:
            chat.handoff("next", summary="so far", next_steps=["go on"])
    if one is not None:
        match verb:
            case 6:
                chat.revise(one, content=label)
            case 7:
                chat.retract(one)
            case 8:
                chat.restore(one)
            case 9:
                chat.switch(one)
            case 10:
                chat.append(role="user", content="branch", parent=one)
            case 11:
                chat.upsert({"id": one, "role": "user", "content": label})


@program
def registers(store: tape.Store, *, name: str, label: str, count: int, seed: int) -> None:
    """Append and read in turn, and tell when each call began and ended and what it saw."""
    chat, pick = store.tape(name), random.Random(seed)
    ready()
    for index in range(count):
        began = time.monotonic_ns()
        if pick.random() < 0.6:
            value = f"{label}.{index}"
            chat.append(role="user", content=value)
            say({"append": value, "began": began, "ended": time.monotonic_ns()})
        else:
            seen = [message.content for message in chat.messages()]
            say({"read": seen, "began": began, "ended": time.monotonic_ns()})


@program
def bound(store: tape.Store, *, name: str, label: str, count: int, seed: int, schema: str | None) -> None:
    """Append inside transactions of the program's own, with a row of its own first; some are rolled back."""
    pick = random.Random(seed)
    engine = sa.create_engine(store._db.engine.url)
    where = f'"{schema}".application' if schema else "application"
    ready()
    with engine.connect() as connection:
        for index in range(count):
            keep = pick.random() < 0.8
            connection.exec_driver_sql(f"INSERT INTO {where} (note) VALUES ('{label}.{index}')")
            receipt = store.bind(connection).tape(name).append(role="user", content=f"{label}.{index}")
            if keep:
                connection.commit()
                say(_receipt(receipt, f"{label}.{index}"))
            else:
                connection.rollback()
    engine.dispose()


@program
def insist(store: tape.Store, *, name: str, label: str) -> None:
    """Append with keys until told to stop, each again and again until it works; tell of every one acknowledged."""
    chat = store.tape(name)
    ready()
    index = failures = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        content = f"{label}.{index}"
        tries = 0
        while True:
            try:
                receipt = chat.append(role="user", content=content, key=content)
                break
            except (tape.CommitUnknown, tape.StoreFailed, tape.StoreBusy):
                failures += 1
                tries += 1
                if tries > 2_000:
                    raise
                # The server is away for a moment; asking at full speed would only slow its return.
                threading.Event().wait(0.02)
        say(_receipt(receipt, content))
        index += 1
    heard()
    say({"failures": failures})


@program
def stop_inside(store: tape.Store, *, name: str) -> None:
    """Stop, as a debugger or a laptop's lid would, in the middle of a write."""

    def stop(point: str) -> None:
        if point == "commit":
            say("inside")
            os.kill(os.getpid(), signal.SIGSTOP)

    ready()
    store._db.fault = stop
    say(_receipt(store.tape(name).append(role="user", content="stopped")))


@program
def fill(store: tape.Store, *, name: str, room: int) -> None:
    """Append until files may grow no further, then with more room again."""
    chat = store.tape(name)
    chat.append(role="user", content="first")
    ready()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    count = 0
    error: BaseException | None = None
    while error is None and count < 10_000:
        try:
            chat.extend([{"role": "user", "content": "x" * 2_000}, {"role": "user", "content": "y" * 2_000}])
            count += 1
        except Exception as caught:
            error = caught
    typed = isinstance(error, tape.StoreFailed)
    held = len(chat.messages())
    again: list[str] = []
    for _ in range(3):
        try:
            chat.append(role="user", content="z" * 200_000)
            again.append("wrote")
        except tape.StoreFailed:
            again.append("StoreFailed")
    problems = [str(problem) for problem in store.verify().problems]
    said = {"typed": typed, "error": repr(error), "batches": count, "messages": held}
    say({**said, "again": again, "problems": problems, "after": len(chat.messages())})
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    receipt = chat.append(role="user", content="room again")
    say({"seq": receipt.seq, "messages": len(chat.messages()), "ok": store.verify().ok})


@program
def nest(store: tape.Store, *, name: str, options: dict[str, Any]) -> None:
    """Put a writer into the world whenever asked, for the test to kill; a fork of this process starts at once.

    With a verb the writer takes its own life, just before it would pass the given one of the points of that write.
    """
    url = store._db.engine.url
    store.close()
    say("ready")
    while (word := heard()) != "enough":
        order = json.loads(word)
        child = os.fork()
        if not child:
            # What was inherited is closed; everything else is opened anew, as a process after a crash does.
            fresh = tape.open(url, **options)
            if "verb" in order:
                _die_within(fresh, name, **order)
                os._exit(0)
            _write_on(fresh.tape(name), order["label"], keyed=False)
        say({"pid": child})
        _, status = os.waitpid(child, 0)
        say({"status": status})


def _die_within(store: tape.Store, name: str, *, verb: str, point: int) -> None:
    left = point

    def pass_by(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    store._db.fault = pass_by
    VERBS[verb](store.tape(name))


VERBS: dict[str, Callable[[tape.Tape], Any]] = {
    "append": lambda chat: chat.append(role="user", content="x"),
    "append as a root": lambda chat: chat.append(role="user", content="x", parent=None),
    "extend": lambda chat: chat.extend([{"role": "user", "content": n} for n in range(3)]),
    "revise": lambda chat: chat.revise("m", content="revised"),
    "retract": lambda chat: chat.retract("m"),
    "clear": lambda chat: chat.clear(),
    "anchor": lambda chat: chat.anchor("here"),
    "complete": lambda chat: chat.complete(),
    "first write": lambda chat: chat._store.tape("brand new").append(role="user", content="x"),
    "fork": lambda chat: chat.fork("brand new"),
    "merge": lambda chat: chat.merge(chat._store.get("helper")),
    "discard": lambda chat: chat._store.get("helper").discard("enough"),
}
"""Writes in the middle of which a process can die; the tape has a message ``m`` and a fork ``helper``."""


def _write_on(chat: tape.Tape, label: str, *, keyed: bool) -> None:
    index = 0
    while True:
        content = f"{label}.{index}"
        receipt = chat.append(role="user", content=content, key=content if keyed else None)
        say(_receipt(receipt, content))
        index += 1


@program
def interrupted(store: tape.Store, *, name: str) -> None:
    """Wait for one's turn to write, be interrupted by a signal, and stay alive."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    chat = store.tape(name)
    chat.append(role="user", content="before")
    ready()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        chat.append(role="user", content="never")
    except Interrupted:
        say("interrupted")
    heard()
    say(_receipt(chat.append(role="user", content="after")))


@program
def divide(store: tape.Store, *, name: str, count: int, threads: bool, options: dict[str, Any]) -> None:
    """Fork with the store open and in use, and go on writing on both sides; the child outlives the parent's store."""
    import gc

    url, chat = store._db.engine.url, store.tape(name)
    chat.append(role="user", content="before")
    assert len(chat.messages()) == 1
    ready()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            chat.append(role="user", content="beside")
            chat.messages(limit=5)

    crowd = [threading.Thread(target=busy, daemon=True) for _ in range(3 if threads else 0)]
    for one in crowd:
        one.start()
    told, tells = os.pipe()
    hears, saying = os.pipe()
    child = os.fork()
    side = "parent" if child else "child"

    def work(label: str) -> None:
        for index in range(count):
            chat.append(role="user", content=f"{label}.{index}")
            if index % 5 == 0:
                chat.messages(limit=3)

    if not child:
        try:
            # Whatever the child lets go of here must not reach into the parent's connections.
            gc.collect()
            work(side)
            os.write(tells, b"+")
            # Now the parent closes its store, as the last one that the kernel knows of if locks were inherited.
            os.read(hears, 1)
            work("late")
            assert store.verify(name).ok
            store.close()
            os.write(tells, b"+")
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os.write(tells, b"-")
        finally:
            os._exit(0)
    work(side)
    first = os.read(told, 1)
    stop.set()
    for one in crowd:
        one.join(PATIENCE)
    assert store.verify(name).ok
    store.close()
    os.write(saying, b".")
    second = os.read(told, 1) if first == b"+" else b""
    _, status = os.waitpid(child, 0)
    with tape.open(url, **options) as again:
        again.tape(name).append(role="user", content="after")
    for end in (told, tells, hears, saying):
        os.close(end)
    say({"child": (first + second).decode(), "status": status})


@program
def divide_in_memory(store: tape.Store) -> None:
    """Fork with a store in memory, and write on both sides."""
    ready()
    with tape.open(":memory:") as inner:
        chat = inner.tape("t")
        chat.append(role="user", content="before")
        told, tells = os.pipe()
        child = os.fork()
        if not child:
            try:
                seq = chat.append(role="user", content="child").seq
                os.write(tells, json.dumps([seq, [message.content for message in chat.messages()]]).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        say(json.loads(os.read(told, 1_000)))
        os.close(told)
        os.close(tells)
        seq = chat.append(role="user", content="parent").seq
        say([seq, [message.content for message in chat.messages()]])


def main() -> None:
    """Run the programs that are asked for, until there is no more to read."""
    while line := sys.stdin.readline():
        order = json.loads(line)
        with tape.open(order["url"], **order["options"]) as store:
            _programs[order["program"]](store, **order["arguments"])
        say(DONE)


if __name__ == "__main__":
    main()
