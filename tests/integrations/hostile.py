"""Files that somebody else wrote, for adapters: what they name must not be imported, called, run or opened."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from support.exports import exported

import tape

__all__ = ["BAIT", "CALLS", "imported", "trap", "watched"]

CALLS: list[Any] = []
"""What reached the trap."""
BAIT = "integrations.bait"
"""A module that nobody imports; that it is looked for shows that a name of the file was followed."""
_ACTS = frozenset(
    {
        "exec",
        "compile",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "os.remove",
        "os.mkdir",
        "subprocess.Popen",
        "pickle.find_class",
        "ctypes.dlopen",
        "socket.connect",
        "socket.getaddrinfo",
    }
)
_watching: list[str] | None = None


def trap(*args: Any, **kwargs: Any) -> str:
    """Be the function that a file wants to be called."""
    CALLS.append((args, kwargs))
    return "called"


class Trap:
    """The class that a file wants to be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CALLS.append((args, kwargs))

    @classmethod
    def model_construct(cls, **kwargs: Any) -> str:
        return trap(**kwargs)

    construct = model_construct


def _importing() -> bool:
    """Whether a module is being loaded, which runs its code: a framework imports some of its own when they are used."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _audit(event: str, args: Sequence[Any]) -> None:
    if _watching is not None:
        if event in _ACTS and not (event in ("exec", "compile") and _importing()):
            _watching.append(f"{event}: {args!r:.200}")
        elif event == "import" and str(args[0]).startswith(("antigravity", "this", BAIT)):
            _watching.append(f"import of {args[0]}")


sys.addaudithook(_audit)


@contextmanager
def watched() -> Iterator[None]:
    """Fail if anything is called, imported, run or connected to that only the file can have asked for."""
    global _watching
    CALLS.clear()
    _watching = []
    try:
        yield
        seen, _watching = [*CALLS, *_watching], None
        assert seen == [], seen
    finally:
        _watching = None


def imported(store: tape.Store, fill: Callable[[tape.Store], Any]) -> None:
    """Import the tapes that ``fill`` writes into another store, as a file."""
    with tape.open(":memory:") as source:
        fill(source)
        files = [exported(source, info.id) for info in source.tapes()]
    for file in files:
        store.import_(io.BytesIO(file))
