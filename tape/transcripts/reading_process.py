"""Reading transcripts in processes beside the one that writes: parsing and composing take as long as the database.

A process is given jobs over its standard input and answers each over its standard output, in their order. It loads no
database. One that cannot be started, or that dies, costs no more than its help: the caller then reads by itself.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, TypeVar, cast

__all__ = ["answered", "processes"]

J = TypeVar("J")
R = TypeVar("R")

_WORTH = 8 << 20
"""Bytes to read for which a process is started: it takes as long to start as to read some of them."""
_AHEAD = 32 << 20
"""Bytes of the files that are being read or that wait to be written."""
_MOST = 2
"""Processes that can read as fast as one can write."""
_PIPE = 1 << 20
"""Bytes that a pipe holds."""
_LENGTH = struct.Struct("<Q")
_BOOT = (
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from tape.transcripts.reading_process import serve; serve()"
)


def processes(size: int) -> int:
    """Return how many processes are to help with reading so many bytes: one core is left for the writer."""
    # A program that is not Python itself, such as a frozen one, would be started a second time.
    python = Path(sys.executable or "").name.lower().startswith(("python", "pypy")) and not hasattr(sys, "frozen")
    return min(_MOST, _cores() - 1) if python and size >= _WORTH else 0


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def answered(
    jobs: Iterable[J], weigh: Callable[[J], int], function: Callable[[J], R], count: int
) -> Iterator[tuple[J, R]]:
    """Yield each job with what ``function``, one of a module, returns for it; ``count`` processes work ahead.

    What fails there is done here, so that its error is raised here. ``weigh`` tells the bytes of a job.
    """
    with ExitStack() as stack:
        helpers = [stack.enter_context(_Helper[J, R](function)) for _ in range(count)]
        waiting: deque[tuple[J, _Helper[J, R]]] = deque()
        ahead = 0
        for number, job in enumerate(jobs):
            if not helpers:
                yield job, function(job)
                continue
            helper = helpers[number % count]
            helper.send(job)
            waiting.append((job, helper))
            ahead += weigh(job)
            while ahead > _AHEAD and len(waiting) > count:
                first, helper = waiting.popleft()
                yield first, helper.receive(first)
                ahead -= weigh(first)
        for first, helper in waiting:
            yield first, helper.receive(first)


class _Helper(Generic[J, R]):
    """One process, and the thread that takes its answers, so that it never waits for somebody to read them."""

    def __init__(self, function: Callable[[J], R]) -> None:
        self._function = function
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Helper[J, R]:
        home = os.fspath(Path(__file__).parents[2])
        with suppress(OSError):
            # The path says where all is; what a start of Python adds to it by itself only takes time.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            _widen(cast(BinaryIO, self._process.stdout))
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()
            self._say([*sys.path, home])
            self._say(self._function)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._thread.join()
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    cast(BinaryIO, pipe).close()

    def send(self, job: J) -> None:
        """Give the process a job."""
        self._say(job)

    def receive(self, job: J) -> R:
        """Return the answer to the oldest job, which is this one."""
        answer = None if self._process is None else self._answers.get()
        if answer is None:
            # It ended; whoever asks next is to find that out, too.
            self._answers.put(None)
            return self._function(job)
        result: R | None = pickle.loads(answer)
        return self._function(job) if result is None else result

    def _say(self, value: Any) -> None:
        if self._process is not None:
            pipe = cast(BinaryIO, self._process.stdin)
            with suppress(OSError):
                pickle.dump(value, pipe)
                pipe.flush()

    def _listen(self) -> None:
        pipe = cast(BinaryIO, cast("subprocess.Popen[bytes]", self._process).stdout)
        try:
            while True:
                length = pipe.read(_LENGTH.size)
                answer = pipe.read(_LENGTH.unpack(length)[0]) if len(length) == _LENGTH.size else b""
                if len(length) < _LENGTH.size or len(answer) < _LENGTH.unpack(length)[0]:
                    return
                self._answers.put(answer)
        finally:
            # Whatever ended it, nobody waits for an answer that does not come.
            self._answers.put(None)


def _widen(pipe: BinaryIO) -> None:
    """Let a pipe hold a whole answer, where that can be told: two processes then change places less often."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[attr-defined,unused-ignore]


def serve() -> None:
    """Answer jobs until there are no more: what a process does that was started here."""
    # Whoever started it decides when it ends, also when a person interrupts both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    function = pickle.load(jobs)
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        try:
            answer = pickle.dumps(function(job), pickle.HIGHEST_PROTOCOL)
        except Exception:
            answer = pickle.dumps(None)
        answers.write(_LENGTH.pack(len(answer)))
        answers.write(answer)
        answers.flush()
