"""E9: every public function, called with wrong values of every parameter, raises a TapeError or nothing.

The calls are derived from the signatures: a function that is added fails here until it has a row in ``GOOD``.
When an error comes out the tape is as it was before; when none does, the tape can still be read and verified.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import inspect
import io
import itertools
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.backends import Backend, MakeBackend
from support.sizes import full, heavy, size

import tape

pytestmark = pytest.mark.alike

_names = itertools.count(1)


def _generator() -> Iterator[Any]:
    yield object()


class _Text(str):
    """A string that is not exactly one."""


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "zero": lambda: 0,
    "one": lambda: 1,
    "minus one": lambda: -1,
    "31 bits": lambda: 2**31,
    "63 bits": lambda: 2**63 - 1,
    "64 bits": lambda: 2**63,
    "far below": lambda: -(2**70),
    "far above": lambda: 2**70,
    "past any text": lambda: 10**5000,
    "a whole fraction": lambda: 1.0,
    "a fraction": lambda: 0.5,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "minus infinity": lambda: float("-inf"),
    "a decimal": lambda: decimal.Decimal("NaN"),
    "a complex": lambda: 1j,
    "empty text": lambda: "",
    "blank": lambda: " ",
    "an unknown name": lambda: "unknown",
    "a digit": lambda: "1",
    "an odd digit": lambda: "²",
    "NUL": lambda: "a\0b",
    "a break": lambda: "a\nb",
    "a C1 control": lambda: "a\x85b",
    "a lone surrogate": lambda: "\ud800",
    "reserved": lambda: "~x",
    "too long for an id": lambda: "x" * 256,
    "a quote": lambda: "a'b\"c; --",
    "a kind of text": lambda: _Text("unknown"),
    "bytes": lambda: b"x",
    "no bytes": lambda: b"",
    "a list": lambda: ["unknown"],
    "an empty list": list,
    "a list of None": lambda: [None],
    "a list of lists": lambda: [[]],
    "a list of numbers": lambda: [-1],
    "a list of dicts": lambda: [{}],
    "an empty tuple": lambda: (),
    "a tuple": lambda: (1, "a"),
    "an empty dict": dict,
    "a dict": lambda: {"a": 1},
    "a dict of numbers": lambda: {1: 2},
    "a dict of wrongs": lambda: {"role": 1, "content": object(), "id": []},
    "a set": lambda: {1},
    "a generator": _generator,
    "an object": object,
    "a module": lambda: types,
    "Ellipsis": lambda: ...,
    "unset": lambda: msgspec.UNSET,
    "a naive moment": lambda: datetime.datetime(2026, 1, 1),
    "the first moment": lambda: datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14))),
    "the last moment": lambda: datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-12))),
    "a date": lambda: datetime.date(2026, 1, 1),
    "all of time": lambda: datetime.timedelta.max,
    "less than no time": lambda: datetime.timedelta.min,
    "a UUID": lambda: uuid.UUID(int=7),
    "a path": lambda: Path("missing") / "folder" / "file",
    "an empty path": lambda: Path(),
    "a path with NUL": lambda: Path("a\0b"),
    "a text file": io.StringIO,
    "an empty file": io.BytesIO,
}
"""Values of every sort, each made anew: most are wrong for any one parameter, and some are right."""

FEW = ("None", "minus one", "far above", "NaN", "NUL", "a list of lists", "an object", "the last moment")
"""Enough for a twin that only hands its arguments on, and for what every write takes and one of them tried."""

SOME = (*FEW, "64 bits", "infinity", "past any text", "a lone surrogate", "True", "a fraction", "empty text", "a quote",
        "a kind of text", "bytes", "a dict", "the first moment", "a path with NUL")  # fmt: skip
"""Enough for the plain run, and for PostgreSQL, where only what its driver makes of a value can differ."""

COMMON = ("key", "actor", "meta", "expected_head")

STAYS = {
    "append", "extend", "upsert", "revise", "event", "anchor", "handoff", "put", "patch", "set_block", "append_block",
    "record_usage", "rename", "label", "recorded_context", "fork",
}  # fmt: skip
"""What can be done again to the same tape: making another one is dearer than all of the other calls."""

MESSAGE = {"role": "user", "content": "more"}

GOOD: dict[str, dict[str, Any]] = {
    "Tape.append": {"message": MESSAGE},
    "Tape.extend": {"messages": [MESSAGE, MESSAGE]},
    "Tape.upsert": {"message": MESSAGE},
    "Tape.revise": {"message_id": "m1", "content": "revised"},
    "Tape.retract": {"ids": ("m1",)},
    "Tape.restore": {"ids": ("gone",)},
    "Tape.clear": {},
    "Tape.switch": {"message_id": "m1"},
    "Tape.replace_history": {"messages": [MESSAGE]},
    "Tape.anchor": {"name": "a"},
    "Tape.handoff": {"name": "h", "summary": "done"},
    "Tape.event": {"name": "score"},
    "Tape.request": {"kind": "approve"},
    "Tape.resolve": {"request": "open", "decision": "yes"},
    "Tape.withdraw": {"request": "open"},
    "Tape.decision": {"request": "closed"},
    "Tape.lease": {"name": "run", "seconds": 1},
    "Tape.pointer": {},
    "Tape.complete": {},
    "Tape.abandon": {},
    "Tape.end": {"reason": "over"},
    "Tape.reopen": {},
    "Tape.rename": {"name": "n"},
    "Tape.label": {"add": ("l",)},
    "Tape.hide": {},
    "Tape.unhide": {},
    "Tape.fork": {},
    "Tape.merge": {"child": "{child}", "strategy": "squash"},
    "Tape.discard": {},
    "Tape.lineage": {},
    "Tape.linked": {"child": "{linked}"},
    "Tape.diff": {"a": 2, "b": 4},
    "Tape.verify": {},
    "Tape.at": {"point": 3},
    "Tape.context": {},
    "Tape.explain": {},
    "Tape.recorded_context": {},
    "Tape.recall": {"seq": "{recorded}"},
    "Tape.patch": {"slot": "s", "patch": {"a": 1}},
    "Tape.put": {"slot": "s", "value": 1},
    "Tape.set_block": {"label": "b", "text": "text"},
    "Tape.append_block": {"label": "b", "text": "text"},
    "Tape.remove_block": {"label": "b"},
    "Tape.load_block": {"label": "skills", "document": "two"},
    "Tape.unload_block": {"label": "skills", "document": "one"},
    "Tape.loaded": {},
    "Tape.freeze_prompt": {},
    "Tape.refresh_prompt": {},
    "Tape.record_usage": {"input_tokens": 1},
    "Tape.set_summary": {"text": "in short", "first": "n1", "last": "n2"},
    "Tape.compact": {"summarize": lambda request: "in short", "budget": 0, "head": 0, "min_tail": 0},
    "Tape.tools": {},
    "Tape.info": {},
    "Tape.bodies": {},
    "Tape.messages": {},
    "Tape.message": {"id": "m1"},
    "Tape.find": {"id": "m1"},
    "Tape.children": {"id": "m1"},
    "Tape.heads": {},
    "Tape.entries": {},
    "Tape.entry": {"seq": 1},
    "Tape.find_entry": {"key": "unknown"},
    "Tape.anchors": {},
    "Tape.summary": {},
    "Tape.summaries": {},
    "Tape.state": {"slot": "s"},
    "Tape.state_entry": {"slot": "s"},
    "Tape.states": {},
    "Tape.blocks": {},
    "Tape.usage": {},
    "Tape.needs_compaction": {"threshold": 10},
    "Tape.search": {"query": "one"},
    "Store.create": {},
    "Store.get": {"id": "{tape}"},
    "Store.tape": {"id": "{tape}"},
    "Store.list": {},
    "Store.tapes": {},
    "Store.search": {"query": "one"},
    "Store.messages_by_id": {"id": "m1"},
    "Store.feed": {"limit": 3},
    "Store.follow": {"timeout": 0},
    "Store.consumer": {"name": "c"},
    "Store.verify": {"id": "{tape}"},
    "Store.rebuild": {"id": "{tape}"},
    "Store.split": {"id": "{tape}", "summary": "done"},
    "Store.purge": {"id": "{tape}", "forks": True},
    "Store.retain": {"older_than": datetime.timedelta(days=1)},
    "Store.export": {"id": "{tape}", "file": "{file}"},
    "Store.import_": {"file": "{exported}"},
    "Store.backup": {"file": "{file}"},
    "Store.health": {},
    "Store.doctor": {"quick": True},
    "Store.stats": {},
    "Store.usage": {},
    "Store.requests": {},
    "Store.diff": {"a": "{tape}", "b": "{tape}"},
    "Tape.title": {},
    "Store.tools": {},
    "Store.replica": {},
    "Store.scoped": {"owner": "somebody"},
    "Store.bind": {"connection": "{connection}"},
    "Store.transaction": {"fn": repr},
    "Store.run": {"fn": repr},
    "Store.close": {},
    "Consumer.commit": {"position": 0},
    "Consumer.follow": {"timeout": 0},
    "Context.to_openai": {},
    "Context.to_anthropic": {},
    "Context.explain": {},
}
"""What each function takes when nothing is wrong; a name in braces stands for something that the test has."""

SYNC = (tape.Store, tape.Tape, tape.Snapshot, tape.Fork, tape.Consumer, tape.Context)
TWINS = {
    tape.AsyncStore: tape.Store,
    tape.AsyncTape: tape.Tape,
    tape.AsyncSnapshot: tape.Snapshot,
    tape.AsyncFork: tape.Fork,
    tape.AsyncConsumer: tape.Consumer,
}


def _functions(cls: type) -> dict[str, Any]:
    """Return the public functions of a class by name."""
    return {
        name: found
        for name in dir(cls)
        if not name.startswith("_") and isinstance(found := inspect.getattr_static(cls, name), types.FunctionType)
    }


def _row(cls: type, name: str) -> dict[str, Any]:
    """Return the row of ``GOOD`` for a function; those of a tape serve its snapshots and forks as well."""
    plain = TWINS.get(cls, cls)
    of = "Tape" if issubclass(plain, tape.Snapshot) else plain.__name__
    return GOOD[f"{of}.{name}"]


def _cases(classes: tuple[type, ...]) -> list[tuple[type, str, str]]:
    """Return every class, function and parameter; what a fork has from the tape is not called twice."""
    found = []
    for cls in classes:
        inherited = _functions(cls.__mro__[1]) if cls in (tape.Fork, tape.AsyncFork) else {}
        for name, function in _functions(cls).items():
            if inherited.get(name) is not function:
                found += [(cls, name, parameter) for parameter in list(inspect.signature(function).parameters)[1:]]
    return found


CALLS = list(dict.fromkeys((cls, name) for cls, name, _ in _cases(SYNC)))
ASYNC_CALLS = list(dict.fromkeys((cls, name) for cls, name, _ in _cases(tuple(TWINS))))


class Skills:
    """Documents to load."""

    def list(self) -> list[tuple[str, str]]:
        return [("one", "the first"), ("two", "the second")]

    def load(self, key: str) -> str:
        return f"text of {key}"


class Bench:
    """A store with a tape of its own for every call, and what the calls may be given."""

    def __init__(self, backend: Backend, store: tape.Store, folder: Path) -> None:
        self.backend = backend
        self.store = store
        self._engine = backend.engine()
        self.connection = self._engine.connect()
        self._folder = folder
        self.exported = folder / "exported.jsonl"
        store.export(store.create("exported", messages=[MESSAGE]).id, self.exported)
        self.renew()

    def renew(self) -> None:
        """Make another tape, on which every call of ``GOOD`` is possible."""
        chat = self.chat = self.store.create(
            f"chat-{next(_names)}", messages=[{"id": "m1", "role": "user", "content": "one"}]
        )
        chat.append({"id": "gone", "role": "assistant", "content": "two"})
        chat.retract("gone")
        chat.anchor("start")
        chat.extend([{"id": f"n{number}", "role": "user", "content": "word " * 20} for number in range(1, 5)])
        chat.set_block("b", "text")
        chat.request("approve", key="open")
        chat.resolve(chat.request("approve", key="closed"), "no")
        chat.load_block("skills", "one")
        self.recorded = chat.recorded_context()[1].seq
        self.linked = chat.fork()
        self.linked.append(role="assistant", content="linked")
        chat.merge(self.linked, strategy="link")
        self.child = chat.fork()
        self.child.append(role="assistant", content="from the child")
        self.before = self.facts()
        self._writes = 0

    def facts(self) -> list[tuple[Any, ...]]:
        """Return what must not change when an error comes out: the rows of both tapes, which every entry moves."""
        mark = "%s" if self.backend.postgres else "?"
        rows = self.backend.reader.execute(
            f"SELECT * FROM tape_tapes JOIN tape_heads ON tape_id = id WHERE tape IN ({mark}, {mark})",
            (self.chat.id, self.child.id),
        )
        return sorted(map(tuple, rows))

    def filled(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return arguments with names in braces replaced."""
        known = {
            "{tape}": self.chat.id,
            "{child}": self.child.id,
            "{linked}": self.linked.id,
            "{recorded}": self.recorded,
            "{file}": self._folder / f"out-{next(_names)}",
            "{exported}": self.exported,
            "{connection}": self.connection,
        }
        return {name: known.get(value, value) if isinstance(value, str) else value for name, value in given.items()}

    def face(self, cls: type) -> Any:
        """Return an object of a class to call."""
        made: dict[type, Callable[[], Any]] = {
            tape.Store: lambda: self.store,
            tape.Tape: lambda: self.chat,
            tape.Snapshot: lambda: self.chat.at(self.chat.info().head - 1),
            tape.Fork: lambda: self.child,
            tape.Consumer: lambda: self.store.consumer("c"),
            tape.Context: lambda: self.chat.context(),
        }
        return made[cls]()

    def settle(self, name: str = "") -> None:
        """After a call that was taken: if it wrote, the tape can be read and verified.

        The next call gets another tape, unless what this one did can be done again.
        """
        facts = self.facts()
        if facts == self.before:
            return
        if self.store.list(status="active", limit=10).items and self.chat.info().head:
            self.read()
        self._writes += 1
        if name in STAYS and self._writes < 12:
            self.before = facts
        else:
            self.renew()

    def read(self) -> None:
        """Read the tape in every way."""
        chat = self.chat
        chat.context().to_openai()
        for read in (chat.messages, chat.heads, chat.anchors, chat.summaries, chat.states, chat.blocks, chat.usage):
            read()
        assert chat.lineage() is not None
        assert [entry for entry in chat.entries() if entry.payload is None] == []
        # What was recorded is the same on both engines, and takes ten times as long to verify on the other.
        assert self.backend.postgres or chat.verify().ok

    def close(self) -> None:
        """Let go of the application's connection."""
        self.connection.close()
        self._engine.dispose()


@pytest.fixture(scope="class", params=[pytest.param("sqlite", marks=heavy), pytest.param("postgresql", marks=full)])
def bench(
    request: pytest.FixtureRequest, make_backend: MakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    with make_backend(request.param, folder) as backend:
        store = backend.open(durability="normal", blocks=[tape.BlockSpec("skills", provider=Skills())])
        made = Bench(backend, store, folder)
        yield made
        made.close()


@pytest.fixture(scope="class")
def twin(bench: Bench) -> Iterator[tuple[asyncio.Runner, tape.AsyncStore]]:
    """A loop, and the twin of the store in it."""
    with asyncio.Runner() as loop:
        store = loop.run(tape.open_async(bench.backend.url, **bench.backend.options).__aenter__())
        yield loop, store
        loop.run(store.close())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the values are names of files."""
    monkeypatch.chdir(tmp_path)


def _arguments(function: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments by name as positional and keyword ones."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in given:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += given[name]
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= given[name]
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(given[name])
        else:
            kwargs[name] = given[name]
    return args, kwargs


def _variants(cls: type, name: str, bench: Bench, values: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the good arguments of a function with one of them replaced by each value, and what that was."""
    signature = inspect.signature(_functions(cls)[name])
    for parameter in list(signature.parameters.values())[1:]:
        tried = parameter.name in COMMON and name != "append"
        for title in [title for title in values if title in FEW] if tried else values:
            value = WRONG[title]()
            if parameter.kind is parameter.VAR_POSITIONAL:
                value = (value,)
            elif parameter.kind is parameter.VAR_KEYWORD:
                value = {"more": value}
            yield parameter.name, title, {**bench.filled(_row(cls, name)), parameter.name: value}


def _used_up(result: Any, parameter: str) -> None:
    """Go through what is yielded; one that would wait for entries is left alone."""
    if isinstance(result, Iterator) and parameter != "timeout":
        for _ in itertools.islice(result, 10):
            pass
    if isinstance(result, tape.Store):
        result.close()


def _told(cls: type, name: str, parameter: str, title: str, error: BaseException) -> str:
    return f"{cls.__name__}.{name}({parameter}={title}): {type(error).__name__}: {str(error)[:100]}"


class TestWrongValues:
    """Whatever the function, the parameter and the value."""

    def test_e9_every_public_function_has_a_row(self) -> None:
        """What each function takes when nothing is wrong is written down, with every parameter that it needs."""
        for cls in (*SYNC, *TWINS):
            for name, function in _functions(cls).items():
                needed = {
                    parameter.name
                    for parameter in list(inspect.signature(function).parameters.values())[1:]
                    if parameter.default is parameter.empty
                    and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                }
                assert needed <= set(_row(cls, name)), f"{cls.__name__}.{name}"

    @pytest.mark.parametrize(("cls", "name"), CALLS, ids=lambda one: getattr(one, "__name__", one))
    def test_e9_only_tape_errors_come_out(self, bench: Bench, cls: type, name: str) -> None:
        """An error is a TapeError and the tape is as before; without one it can be read as ever."""
        function = _functions(cls)[name]
        wrong = []
        values = SOME if bench.backend.postgres else size(SOME, tuple(WRONG))
        for parameter, title, given in _variants(cls, name, bench, values):
            args, kwargs = _arguments(function, given)
            try:
                _used_up(getattr(bench.face(cls), name)(*args, **kwargs), parameter)
            except tape.TapeError:
                if bench.facts() != bench.before:
                    wrong.append(f"{cls.__name__}.{name}({parameter}={title}) wrote and raised")
                    bench.renew()
            except Exception as error:
                wrong.append(_told(cls, name, parameter, title, error))
                bench.settle(name)
            else:
                try:
                    bench.settle(name)
                except Exception as error:
                    wrong.append("after " + _told(cls, name, parameter, title, error))
                    bench.renew()
        if name in STAYS:
            # Else the later calls were refused for what the earlier ones had done, and not for their wrong values.
            args, kwargs = _arguments(function, bench.filled(_row(cls, name)))
            _used_up(getattr(bench.face(cls), name)(*args, **kwargs), "")
            bench.settle(name)
        if wrong:
            pytest.fail("\n".join(wrong))

    def test_e9_what_each_function_takes_is_taken(self, bench: Bench) -> None:
        """The rows hold what works: otherwise each call would be refused for another reason than the wrong value."""
        for cls, name in CALLS:
            if (cls, name) == (tape.Store, "backup") and bench.backend.postgres:
                continue
            if (cls, name) == (tape.Store, "replica"):
                # Its tests have a server to follow.
                continue
            args, kwargs = _arguments(_functions(cls)[name], bench.filled(_row(cls, name)))
            face = bench.child if name == "discard" else bench.face(cls)
            _used_up(getattr(face, name)(*args, **kwargs), "")
            bench.settle()

    @pytest.mark.parametrize("function", [tape.open, tape.open_async], ids=lambda one: one.__name__)
    def test_e9_only_tape_errors_come_out_of_open(self, standing: Backend, function: Any, tmp_path: Path) -> None:
        """Whatever is passed to ``open`` or to its twin, a store comes out that can be used, or a TapeError."""
        wrong = []
        for parameter in inspect.signature(function).parameters:
            for title, make in WRONG.items():
                value = make()
                if (parameter == "schema" and _is_name(value)) or (parameter == "threads" and value == 2**31):
                    # It would make a schema of that name, or as many threads.
                    continue
                given = {"url": standing.url, **standing.options, parameter: value}
                if parameter == "url":
                    given = {"url": value}
                try:
                    _opened(function, given)
                except tape.TapeError:
                    pass
                except Exception as error:
                    wrong.append(f"{function.__name__}({parameter}={title}): {type(error).__name__}: {error}"[:300])
        if wrong:
            pytest.fail("\n".join(wrong))


class TestTwins:
    """The same through the async twins, on a store of their own: some calls go through all of a store."""

    @pytest.mark.parametrize(("cls", "name"), ASYNC_CALLS, ids=lambda one: getattr(one, "__name__", one))
    def test_e9_only_tape_errors_come_out_of_the_twins(
        self, bench: Bench, twin: tuple[asyncio.Runner, tape.AsyncStore], cls: type, name: str
    ) -> None:
        """What has code of its own is called with every value, what only hands its arguments on with a few."""
        function = _functions(cls)[name]
        values = FEW if hasattr(function, "__wrapped__") or bench.backend.postgres else size(SOME, tuple(WRONG))
        loop, store = twin
        wrong: list[str] = []

        async def call() -> None:
            for parameter, title, given in _variants(cls, name, bench, values):
                args, kwargs = _arguments(function, given)
                try:
                    face = await _async_face(bench, store, cls)
                    await _awaited(getattr(face, name)(*args, **kwargs), parameter)
                except tape.TapeError:
                    if bench.facts() != bench.before:
                        wrong.append(f"{cls.__name__}.{name}({parameter}={title}) wrote and raised")
                        bench.renew()
                except Exception as error:
                    wrong.append(_told(cls, name, parameter, title, error))
                    bench.settle(name)
                else:
                    bench.settle(name)

        loop.run(call())
        if wrong:
            pytest.fail("\n".join(wrong))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", "a\0b", "\ud800") and len(value) < 64


def _opened(function: Any, given: dict[str, Any]) -> None:
    """Open a store, ask it something, and close it."""
    if function is tape.open:
        with tape.open(**given) as store:
            store.health()
            store.list()
        return

    async def use() -> None:
        async with tape.open_async(**given) as store:
            await store.health()
            await store.list()

    asyncio.run(use())


async def _async_face(bench: Bench, store: tape.AsyncStore, cls: type) -> Any:
    chat = store.tape(bench.chat.id)
    if cls is tape.AsyncSnapshot:
        return await chat.at(bench.chat.info().head - 1)
    made: dict[type, Any] = {tape.AsyncStore: store, tape.AsyncTape: chat}
    return made[cls] if cls in made else store.consumer("c") if cls is tape.AsyncConsumer else await chat.fork()


async def _awaited(result: Any, parameter: str) -> None:
    """Wait for what is awaited, and go through what is yielded."""
    if inspect.isawaitable(result):
        result = await result
    if hasattr(result, "__anext__") and parameter != "timeout":
        count = 0
        async for _ in result:
            count += 1
            if count == 10:
                break
        await result.aclose()
    if isinstance(result, tape.AsyncStore):
        await result.close()
