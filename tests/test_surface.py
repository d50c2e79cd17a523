"""The public surface: names, signatures, docstrings and errors, by reflection."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
import pkgutil
import types
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from integrations.groups import GROUPS
from support.verbs import VERBS

import tape
from tape import errors

CLASSES = [getattr(tape, name) for name in tape.__all__ if inspect.isclass(getattr(tape, name))]
TWINS = [(getattr(tape, name[5:]), getattr(tape, name)) for name in tape.__all__ if name.startswith("Async")]
"""Every async class, with the class that it is the twin of."""

NAMED_IN_THE_CONTRACT = [
    "TapeError",
    "TapeNotFound",
    "TapeClosed",
    "UnknownMessage",
    "ProvenanceConflict",
    "HeadMoved",
    "SummaryMoved",
    "MergeConflict",
    "TapeExists",
    "BudgetExceeded",
    "InvalidEntry",
    "Corrupt",
    "SchemaTooNew",
    "StoreBusy",
    "CommitUnknown",
    "ImportFailed",
    "open",
    "open_async",
    "Store",
    "Tape",
    "Receipt",
    "Entry",
    "Message",
    "TapeInfo",
    "Anchor",
    "Summary",
    "Usage",
    "Context",
    "Page",
    "Report",
    "MergeReceipt",
]

TAPE_METHODS = [
    "append",
    "extend",
    "upsert",
    "revise",
    "retract",
    "restore",
    "clear",
    "switch",
    "anchor",
    "handoff",
    "set_summary",
    "compact",
    "patch",
    "put",
    "set_block",
    "append_block",
    "remove_block",
    "freeze_prompt",
    "refresh_prompt",
    "record_usage",
    "event",
    "fork",
    "merge",
    "discard",
    "complete",
    "abandon",
    "end",
    "reopen",
    "info",
    "messages",
    "message",
    "find",
    "children",
    "heads",
    "entries",
    "anchors",
    "summary",
    "summaries",
    "state",
    "blocks",
    "usage",
    "lineage",
    "context",
    "at",
    "diff",
    "verify",
    "tools",
    "replace_history",
    "needs_compaction",
    "recall",
]


def public(cls: type) -> dict[str, Any]:
    """Return the public methods and properties of a class, its own and inherited ones of this library."""
    return {
        name: inspect.getattr_static(cls, name)
        for name in dir(cls)
        if not name.startswith("_") and any(name in vars(base) for base in cls.__mro__ if base.__module__[:4] == "tape")
    }


class TestNames:
    """What can be imported."""

    def test_all_is_exactly_what_is_importable(self) -> None:
        """``tape.__all__`` names every public attribute of the package and nothing else, once and in order."""
        modules = {module.name for module in pkgutil.iter_modules(tape.__path__)}
        found = {
            name
            for name in dir(tape)
            if not name.startswith("_") and not (isinstance(getattr(tape, name), types.ModuleType) and name in modules)
        }
        assert found == set(tape.__all__)
        assert len(tape.__all__) == len(set(tape.__all__))
        assert all(hasattr(tape, name) for name in tape.__all__)

    def test_star_import_gives_the_same(self) -> None:
        """``from tape import *`` works and brings in the whole surface."""
        space: dict[str, Any] = {}
        exec("from tape import *", space)
        assert set(tape.__all__) <= set(space)

    def test_the_names_of_the_contract_are_there(self) -> None:
        """Every name and every method that programs are written against exists."""
        assert [name for name in NAMED_IN_THE_CONTRACT if name not in tape.__all__] == []
        assert [name for name in TAPE_METHODS if name not in public(tape.Tape)] == []

    def test_every_module_names_its_surface(self) -> None:
        """Every module that holds anything can be imported and has an ``__all__`` whose names exist.

        An adapter is looked at where its framework is installed.
        """
        silent, missing = [], []
        for module in pkgutil.walk_packages(tape.__path__, "tape."):
            if "_alembic" in module.name or module.name.endswith("__main__"):
                continue
            adapter = module.name.removeprefix("tape.integrations.").removeprefix("seams.")
            group = GROUPS.get(adapter.partition(".")[0])
            if group is not None and group.lacks is not None:
                continue
            imported = __import__(module.name, fromlist=["__all__"])
            names = getattr(imported, "__all__", None)
            if names is None and len(ast.parse(inspect.getsource(imported)).body) > 1:
                silent.append(module.name)
            missing += [f"{module.name}.{name}" for name in names or () if not hasattr(imported, name)]
        assert silent == []
        assert missing == []

    def test_the_package_is_typed(self) -> None:
        """The marker for type checkers lies in the package."""
        assert (Path(tape.__file__).parent / "py.typed").is_file()


class TestDocstrings:
    """What is written about it."""

    def test_every_public_name_has_a_docstring(self) -> None:
        """Functions and classes each have a docstring of their own that ends a sentence."""
        bare = [name for name in tape.__all__ if not (inspect.getdoc(getattr(tape, name)) or "").strip()]
        assert bare == []
        unfinished = [
            name
            for name in tape.__all__
            if not (inspect.getdoc(getattr(tape, name)) or "").split("\n\n")[0].endswith(".")
        ]
        assert unfinished == []

    def test_every_public_method_has_a_docstring(self) -> None:
        """Every method and property of every public class has a docstring."""
        bare = []
        for cls in CLASSES:
            for name, member in public(cls).items():
                if isinstance(member, types.MemberDescriptorType) or name in getattr(cls, "__struct_fields__", ()):
                    continue
                if not callable(member) and not isinstance(member, property | classmethod | staticmethod):
                    continue
                if not inspect.getdoc(getattr(cls, name)):
                    bare.append(f"{cls.__name__}.{name}")
        assert bare == []


class TestWrites:
    """Every write takes the same four arguments."""

    def test_every_write_has_a_row_in_the_table_of_verbs(self) -> None:
        """A method that takes ``expected_head`` is tested by every test that goes over ``verbs.VERBS``."""
        writes = {name for name, member in public(tape.Tape).items() if "expected_head" in _parameters(member)}
        # A compaction is three writes with a model's answer between them.
        # ``hide`` is tested in test_hide.py: what it was done to can no longer be read.
        # ``load_block`` needs a provider and is tested in test_loaded_blocks.py.
        without = {"compact", "hide", "load_block"}
        assert writes - {verb.method for verb in VERBS} == without, "add a row to tests/verbs.py"
        assert {verb.method for verb in VERBS} - writes == set()

    def test_every_write_takes_key_actor_meta_and_expected_head(self) -> None:
        """They are keywords only, optional, and none of them is left out."""
        calls = [public(tape.Tape)[name] for name in {verb.method for verb in VERBS} | {"compact"}]
        for call in (*calls, tape.Store.split):
            given = _parameters(call)
            for argument in ("key", "actor", "meta", "expected_head"):
                assert given[argument].kind is inspect.Parameter.KEYWORD_ONLY, (call.__qualname__, argument)
                assert given[argument].default is None, (call.__qualname__, argument)


def _parameters(member: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(member).parameters) if callable(member) else {}


class TestTwins:
    """The async classes are the sync ones, awaited."""

    def test_every_handle_has_a_twin(self) -> None:
        """What a program reads, writes and follows with is there for both."""
        handles = {"Consumer", "Fork", "Lease", "Pool", "PoolFeed", "Run", "Snapshot", "Store", "Tape"}
        assert {sync.__name__ for sync, _ in TWINS} == handles

    @pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda cls: cls.__name__)
    def test_the_names_are_the_same(self, sync: type, twin: type) -> None:
        """Neither has a public name that the other lacks, but for the hop itself and the way back."""
        assert sorted(public(sync)) == sorted(set(public(twin)) - {"run", "sync"})

    @pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda cls: cls.__name__)
    def test_the_signatures_are_the_same(self, sync: type, twin: type) -> None:
        """Parameters have the same names, kinds and defaults."""
        different = []
        for name, member in public(sync).items():
            if not callable(member):
                continue
            one = inspect.signature(getattr(sync, name)).parameters.values()
            other = inspect.signature(getattr(twin, name)).parameters.values()
            if [(p.name, p.kind, p.default) for p in one] != [(p.name, p.kind, p.default) for p in other]:
                different.append(name)
        assert different == []

    def test_open_and_its_twin_take_the_same(self) -> None:
        """``open_async`` takes all that ``open`` takes, and the number of threads."""
        one = dict(inspect.signature(tape.open).parameters)
        other = dict(inspect.signature(tape.open_async).parameters)
        assert list(other) == [*one, "threads"]
        assert [other[name].default for name in one] == [parameter.default for parameter in one.values()]
        one = dict(inspect.signature(tape.open_pool).parameters)
        other = dict(inspect.signature(tape.open_pool_async).parameters)
        assert sorted(other) == sorted([*one, "threads"])
        assert [other[name].default for name in one] == [parameter.default for parameter in one.values()]

    def test_what_does_not_wait_is_no_coroutine(self) -> None:
        """Handles are made without waiting; everything that asks the database is awaited or iterated."""
        at_once = {"tape", "tapes", "bind", "scoped", "fork", "entries", "feed", "follow", "consumer", "lease", "tools"}
        at_once |= {"holder", "id", "name", "owner", "position", "read_only", "remaining", "sync", "token"}
        at_once |= {"cursor", "down", "names"}
        # What a run wraps is awaited when it is called.
        at_once |= {"model", "tool", "value", "lane", "begun", "input", "recording", "report"}
        plain = set()
        for _, twin in TWINS:
            for name, member in public(twin).items():
                if not (callable(member) and inspect.iscoroutinefunction(member)):
                    plain.add(name)
        assert plain <= at_once


NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUMMARY = tape.Summary(
    text="so far", seq=3, first="m1", last="m2", covers=["m1", "m2"], stale=False, tape="t", span=(1, 2), lo=1, hi=2
)

FACTS: dict[str, tuple[Any, ...]] = {
    "InvalidEntry": ("field", "why"),
    "TapeNotFound": ("t",),
    "TapeHidden": ("t", "tidied"),
    "TapeExists": ("t",),
    "TapeInUse": ("t", ["a", "b"]),
    "TapeClosed": ("t", "ended", "over", "next"),
    "UnknownMessage": ("t", "m"),
    "UnknownEntry": ("t", 3, "k"),
    "ProvenanceConflict": ("t", "k", 3, "stored", "given"),
    "HeadMoved": ("t", 1, 2),
    "ViewMoved": ("t", 1, 2),
    "SummaryMoved": ("t", None, SUMMARY),
    "MergeConflict": ("t", "child", ["a", "b"]),
    "BudgetExceeded": (10, 20),
    "Corrupt": ("t", 3, "what"),
    "SchemaTooOld": ("0001", "0007"),
    "NotAStore": ("there is none",),
    "ReadOnly": ("only to be read",),
    "ProcessForked": ("the file",),
    "TablesTaken": (["tape_entries"],),
    "SchemaTooNew": ("0009", "0001"),
    "NotInTransaction": ("purge",),
    "StoreBusy": (1.5,),
    "StoreFailed": ("why",),
    "RequestClosed": (tape.Request("r", "t", 2, "approve", None, "resolved", None, NOW, None, "yes", "ana", NOW, 3),),
    "LeaseHeld": ("t", "run", "worker", 4, 5),
    "LeaseLost": ("t", "run", 4),
    "CommitUnknown": ("t", "k"),
    "ImportFailed": (7, "why"),
    "Diverged": (tape.Divergence(kind="unused", call="tool", name="t", lane="0", n=1),),
    "RecordedError": ("module:Error", "text"),
    "EffectRefused": ("r", "t"),
    "EffectUnknown": ("r", "t", "k", 3),
    "AlreadySettled": ("r", "t", "k"),
    "DatabaseDown": ("north", "refused"),
    "OwnerMoved": ("ann", "north"),
    "ReplicaBehind": ("t", 3, 1.5),
}


class TestErrors:
    """One tree, with facts."""

    def test_every_error_is_a_tape_error(self) -> None:
        """Every exception class of the surface derives from TapeError, which is an Exception."""
        found = [cls for cls in CLASSES if issubclass(cls, BaseException)]
        assert [cls for cls in found if not issubclass(cls, tape.TapeError)] == []
        assert issubclass(tape.TapeError, Exception)
        assert {cls.__name__ for cls in found} == {"TapeError", *FACTS} == set(errors.__all__)

    @pytest.mark.parametrize("name", FACTS)
    def test_an_error_carries_its_facts_through_pickling(self, name: str) -> None:
        """Its facts are attributes, in its text where they help, and the same in another process."""
        cls: Callable[..., tape.TapeError] = getattr(tape, name)
        error = cls(*FACTS[name])
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(error, protocol))
            assert type(copy) is type(error)
            assert str(copy) == str(error)
            assert vars(copy) == vars(error)
            assert copy.args == error.args
        if name not in ("StoreFailed", "NotAStore", "ReadOnly"):
            parameters = inspect.signature(cls).parameters
            assert set(parameters) <= set(vars(error))
            assert [getattr(error, parameter) for parameter in parameters][: len(FACTS[name])] == list(FACTS[name])

    def test_a_keyword_fact_survives_too(self) -> None:
        """The mark of a retracted message is kept."""
        error = tape.UnknownMessage("t", "m", retracted=True)
        assert pickle.loads(pickle.dumps(error)).retracted is True
        assert "retracted" in str(error)

    def test_every_error_says_what_to_do(self) -> None:
        """Each class has a docstring, and the module draws the tree with every class in it."""
        for name in FACTS:
            assert len(getattr(tape, name).__doc__ or "") > 30, name
            assert name in (errors.__doc__ or ""), name

    def test_internal_exceptions_do_not_leave(self) -> None:
        """What the shell uses to talk to itself is no part of the surface."""
        assert not {"Collision", "Again", "Lost", "Taken", "Unchanged"} & set(tape.__all__)


def test_values_can_be_shown() -> None:
    """Stores and tapes have a repr that tells what they are, without a password."""

    async def shown() -> list[str]:
        async with tape.open_async(":memory:") as store:
            return [repr(store.tape("chat"))]

    with tape.open(":memory:") as store:
        told = [repr(store), repr(store.tape("chat"))]
    assert [text[:11] for text in told] == ["<tape.Store", "<tape.Tape "]
    assert asyncio.run(shown()) == ["<tape.AsyncTape 'chat'>"]
