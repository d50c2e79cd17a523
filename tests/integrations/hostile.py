"""Untrusted files for adapters: nothing that a file names may be imported, called, run or opened."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from support.exports import exported

import tape

__all__ = ["BAIT", "CALLS", "DEEP", "TRAP", "Trap", "VALUES", "imported", "outcomes", "trap", "watched"]

CALLS: list[Any] = []
"""The calls of the trap."""
BAIT = "integrations.bait"
"""A module that only a file names: a search for it shows that an adapter follows the file."""
_ACTS = frozenset(
    {
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
    """The function that a file tries to call."""
    CALLS.append((args, kwargs))
    return "called"


class Trap:
    """The class that a file tries to instantiate."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CALLS.append((args, kwargs))

    @classmethod
    def model_construct(cls, **kwargs: Any) -> str:
        return trap(**kwargs)

    construct = model_construct


def _audit(event: str, args: Sequence[Any]) -> None:
    if _watching is not None:
        if event in _ACTS:
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


TRAP = f"{__name__}.Trap"
DEEP = "[" * 8_000 + "]" * 8_000


def _nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "nothing": None,
    "a number": 1,
    "a text": "x",
    "a list": [1, [2]],
    "an empty object": {},
    "a class by its type": {"type": TRAP, "class": TRAP, "class_name": TRAP, "kind": TRAP, "data": {"a": 1}},
    "a class by its path": {"module": __name__, "name": "Trap", "qualname": "Trap", "cls": TRAP, "args": ["x"]},
    "a constructor of LangChain": {"lc": 1, "type": "constructor", "id": [__name__, "Trap"], "kwargs": {"a": 1}},
    "a jsonpickle": {"py/object": TRAP, "py/reduce": [{"py/type": "os.system"}, {"py/tuple": ["true"]}]},
    "names of Python": {"__class__": TRAP, "__dict__": {"a": 1}, "__reduce__": ["os.system", ["true"]]},
    "names of AG2": {"__dataclass__": TRAP, "__event__": TRAP, "__pydantic__": TRAP, "__enum__": TRAP, "data": {}},
    "a pickle in base64": {
        "__bytes__": "gASVDAAAAAAAAACMCGJ1aWx0aW5zlJOULg==",
        "encoding": "pickle",
        "serde": "pickle",
    },
    "a kept value that is no JSON": {"json": "{"},
    "a kept value that is too deep": {"json": DEEP},
    "a kept value of another type": {"json": [1]},
    "deep": _nested(150),
    "fields of another type": {
        "role": ["user"],
        "content": {"a": 1},
        "type": 1,
        "parts": 1,
        "id": [],
        "timestamp": "x",
    },
    "blocks of another type": {"content": [1, None, {"type": TRAP}, {"block_type": TRAP, "path": "/etc/hostname"}]},
}


def outcomes(
    read: Callable[[tape.Store], Any],
    id: str,
    name: str,
    *,
    slots: Sequence[str] = (),
    events: Sequence[str] = (),
    agent: str | None = None,
    labels: Sequence[str] = (),
    owner: str | None = None,
    key: str = "0",
    wrap: Callable[[Any], Any] = lambda value: value,
) -> set[str]:
    """Read a tape of a file with every value in every place; returns the kinds of errors that came of it.

    ``name`` is the one under which the adapter keeps its objects beside messages and in the tape's own meta.
    """
    kinds: set[str] = set()
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": DEEP}}

    def places(value: Any) -> Iterator[Callable[[tape.Tape], Any]]:
        beside = {name: wrap(value)}
        yield lambda chat: chat.append(role="user", content="x", id="0", key=key, meta=beside)
        yield lambda chat: chat.append(role="user", content=wrap(value), id="0")
        yield lambda chat: chat.append(role="user", content=wrap(value), id="0", meta={name: {}})
        yield lambda chat: chat.append({"role": "assistant", "content": "x", "tool_calls": [call]}, id="0", meta=beside)
        for slot in slots:
            yield lambda chat, slot=slot: chat.put(slot, wrap(value))  # type: ignore[misc]
        for event in events:
            yield lambda chat, event=event: chat.event(event, wrap(value), key=key, meta=beside)  # type: ignore[misc]

    for title, value in VALUES.items():
        for number, write in enumerate(places(value)):

            def fill(source: tape.Store, write: Callable[[tape.Tape], Any] = write, value: Any = value) -> None:
                chat = source.create(id, owner=owner, agent=agent, labels=list(labels), meta={name: wrap(value)})
                write(chat)

            with tape.open(":memory:") as store:
                imported(store, fill)
                try:
                    with watched():
                        read(store)
                except AssertionError:
                    print(f"{title}, place {number}")
                    raise
                except Exception as error:
                    kinds.add(type(error).__name__)
    return kinds
