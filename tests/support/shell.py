"""Running the ``tape`` command inside this process, as a pipe: what it prints, what it complains of, its exit code."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import tape
from tape.command import main

if TYPE_CHECKING:
    from support.backends import Backend

__all__ = ["Done", "Shell", "family", "tape_command"]


def family(store: tape.Store) -> tape.Tape:
    """Make a tape with three forks and two merges: hotels and trains are merged, spare is given up."""
    chat = store.create("chat", name="Lisbon", agent="planner", labels=["travel"])
    chat.append(role="user", content="Plan two days in Lisbon.", id="ask", actor="user", key="web-1")
    hotels = chat.fork("hotels", name="hotels")
    trains = chat.fork("trains")
    hotels.append(role="assistant", content="Three have rooms.")
    trains.append(role="assistant", content="The night train has berths.")
    chat.merge(hotels)
    chat.append(role="user", content="By train, please.", id="m")
    chat.revise("m", content="By night train, please.")
    spare = chat.fork("spare")
    spare.append(role="assistant", content="Or by plane?")
    chat.merge(trains)
    spare.discard("no flights")
    chat.handoff("booking", summary="Night train; hotel open.", next_steps=["book a hotel"])
    return chat


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, as JSON."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """What was printed, by lines."""
        assert self.code == 0, self.err
        return self.out.splitlines()


def tape_command(*arguments: str, stdin: str | bytes = "", encoding: str = "utf-8") -> Done:
    """Run the command with these arguments and no terminal."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    before = sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(out, encoding=encoding)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8")
    try:
        main(arguments)
        raise AssertionError("the command did not exit")
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        code = ended.code
        assert isinstance(code, int)
        return Done(code, out.getvalue().decode(), err.getvalue().decode())
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


class Shell:
    """The command on one database."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._where = ["--store", backend.address]
        if backend.schema is not None:
            self._where += ["--schema", backend.schema]

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Done:
        return tape_command(*self._where, *arguments, stdin=stdin)

    def state(self) -> list[Any]:
        """Return every tape's head and status: what no command changes that was refused."""
        with tape.open(self.backend.url, **self.backend.options) as store:
            return [(one.id, one.head_hash, one.status, one.updated_at) for one in store.list(limit=1_000)]
