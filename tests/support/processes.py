"""Other processes that a test starts beside itself, and what a program says and hears in one.

``crew.start(backend, programs.append, …)`` runs a top-level function in another process. The process opens the store,
the program says that it is ready, waits for ``go``, works, and says what it found. Every wait on either side is
bounded. Processes are forked from a server that has imported the library once, so that one starts in no time, also
under pytest-xdist, and inherits nothing of the test's own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any, Protocol

import tape
from support.sizes import size

__all__ = ["PATIENCE", "Crew", "Program", "Worker", "heard", "pending", "preload", "ready", "say", "scaled", "until"]

PATIENCE = 60.0
"""Seconds after which a process that says nothing has failed the test."""
LONGER = float(os.environ.get("TAPE_TEST_LONGER", "1"))
"""Makes the tests that race and crash run this many times as long."""
DONE = "done"

Program = Callable[..., None]
"""A top-level function that takes the open store, or if it is to open the store itself the address and the options."""

_server = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """Let the server of processes import these, too; only before the first process is started."""
    _server.set_forkserver_preload(["tape.store", "alembic.command", "psycopg", *modules])


preload()


def scaled(count: int) -> int:
    """Return ``count`` at full size, a third in the usual run, more when the environment asks for a longer one."""
    return max(1, round(count * LONGER * size(0.3, 1)))


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that another thread or process is about to do, and that it tells nobody of."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"still not so: {what}"
        threading.Event().wait(0.001)


class Address(Protocol):
    """Where a worker finds the database: a test's backend, or anything that looks like one."""

    @property
    def address(self) -> str: ...

    @property
    def options(self) -> dict[str, Any]: ...


class Worker:
    """Another process, seen from the test. It runs one program after another until it is ended."""

    def __init__(self) -> None:
        self._connection, other = _server.Pipe()
        self._process = _server.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self.program = ""
        self.done = True
        self._facts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # A process that is killed may leave half a fact.
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._facts.put(self._connection.recv())
        self._facts.put(None)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.is_alive()

    def next(self, patience: float = PATIENCE) -> Any:
        """Return what the program says next, or None when the process has ended."""
        try:
            return self._facts.get(timeout=patience)
        except queue.Empty:
            raise AssertionError(f"{self.program} said nothing for {patience} s") from None

    def rest(self) -> list[Any]:
        """Return all that the program still says, until it is done or the process has ended."""
        found = []
        while (fact := self.next()) is not None:
            if fact == DONE:
                self.done = True
                break
            found.append(fact)
        return found

    def tell(self, word: Any) -> None:
        """Send something to the program."""
        self._connection.send(word)

    def finish(self) -> list[Any]:
        """Return what the program still says, and require that it ended well."""
        said = self.rest()
        assert self.done, f"{self.program} ended with {self.ended()}"
        return said

    def ended(self) -> int | None:
        """Wait for the end of the process and return its exit code, which is negative for a signal."""
        self._process.join(PATIENCE)
        return self._process.exitcode

    def killed(self) -> bool:
        """Wait for the end of the program, and tell whether its process was killed (-9) on the way."""
        self.rest()
        if self.done:
            return False
        assert self.ended() == -signal.SIGKILL
        return True

    def kill(self) -> list[Any]:
        """End the process at once, as a power cut would; returns what the program had said by then."""
        self._process.kill()
        self.ended()
        return self.rest()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self.ended()
        self._reader.join(PATIENCE)
        self._connection.close()


class Crew:
    """The other processes of a test run, which are kept from one test to the next."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def launch(
        self,
        backend: Address,
        run: Program,
        *,
        opening: dict[str, Any] | None = None,
        opened: bool = True,
        **given: Any,
    ) -> Worker:
        """Start a program and do not wait for it; ``opening`` is what its ``tape.open`` takes besides the URL.

        With ``opened=False`` the program opens the store itself: it is given the address and the options.
        """
        worker = next((each for each in self._workers if each.done and each.alive), None)
        if worker is None:
            worker = Worker()
            self._workers.append(worker)
        worker.done, worker.program = False, run.__name__
        worker.tell((run, backend.address, {**backend.options, **(opening or {})}, opened, given))
        return worker

    def start(self, backend: Address, run: Program, **given: Any) -> Worker:
        """Start a program and wait until it is ready."""
        worker = self.launch(backend, run, **given)
        assert worker.next() == "ready"
        return worker

    def race(
        self, backend: Address, run: Program, arguments: Iterable[dict[str, Any]], *, rounds: int = 1
    ) -> list[list[Any]]:
        """Run a program in several processes that begin each round at one moment; returns what each of them said."""
        workers = [self.launch(backend, run, **each) for each in arguments]
        for _ in range(rounds):
            for worker in workers:
                assert worker.next() == "ready"
            for worker in workers:
                worker.tell("go")
        return [worker.finish() for worker in workers]

    def dismiss(self) -> None:
        """End every worker that still runs a program: its test is over."""
        for worker in self._workers:
            if not worker.done or not worker.alive:
                worker.close()
        self._workers = [worker for worker in self._workers if worker.alive]

    def close(self) -> None:
        """End them all."""
        for worker in self._workers:
            worker.close()


# -- in the other process

_test: Connection
"""The way to the test, in a process that serves one."""


def _serve(connection: Connection) -> None:
    """Run the programs that are asked for, until the test is over."""
    global _test
    _test = connection
    while True:
        run, address, options, opened, given = heard()
        if opened:
            with tape.open(address, **options) as store:
                run(store, **given)
        else:
            run(address, options, **given)
        say(DONE)


def say(fact: Any) -> None:
    """Send one fact to the test: what was said is said, even if the next thing is the end."""
    _test.send(fact)


def heard() -> Any:
    """Return what the test says next; the end of the test is the end of the program."""
    try:
        return _test.recv()
    except (EOFError, OSError):
        os._exit(3)


def pending() -> bool:
    """Whether the test has said something that was not heard yet."""
    return _test.poll(0)


def ready() -> None:
    """Tell that the program is ready, and wait for the start."""
    say("ready")
    heard()
