"""The pytest plugin: tests of agents that run against recorded runs.

    @pytest.mark.tape("runs.db", "checkout")
    def test_checkout(tape_run):
        assert main(tape_run) == "paid"

``--tape=replay``, which is the default, runs the agent against the recording and calls nothing. ``--tape=record``
records what is not recorded yet, and ``--tape=update`` records everything anew. Both are refused where ``CI`` is set.
The store lies beside the test's module. A call that is not as recorded, and a recorded one that is not made, fail the
test.

pytest loads this module in every project that has the package installed, so it imports nothing of it at its top.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tape.handles.tape import Tape
    from tape.runs.run import Run

__all__ = ["tape_run"]

_MODES = ("replay", "record", "update")
_ENTERED = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tape``."""
    group = parser.getgroup("tape", "recorded runs of agents")
    group.addoption(
        "--tape",
        choices=_MODES,
        default="replay",
        help="replay recorded runs (default), record missing runs, or update all; only replay works when CI is set",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and refuse to record where nobody looks at what is recorded."""
    config.addinivalue_line(
        "markers", "tape(store, tape, **options): replay a recorded agent run; see the fixture tape_run"
    )
    mode = config.getoption("--tape", default="replay")
    if mode != "replay" and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise pytest.UsageError(
            f"--tape={mode} is refused because CI is set: record on your own machine and commit the store"
        )


@pytest.fixture
def tape_run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """The run of a test marked ``@pytest.mark.tape(store, tape)``: a recording or a replay, depending on ``--tape``."""
    mark = request.node.get_closest_marker("tape")
    if mark is None or not mark.args:
        raise pytest.UsageError("tape_run needs @pytest.mark.tape(store, tape)")
    store, *rest = mark.args
    name = str(rest[0]) if rest else request.node.name
    if (parameters := getattr(request.node, "callspec", None)) is not None and rest:
        # Each case has a recording of its own.
        name = f"{name}[{parameters.id}]"
    with ExitStack() as entered:
        run = _begun(entered, _address(request, str(store)), name, request.config.getoption("--tape"), mark.kwargs)
        request.node.stash[_ENTERED] = entered
        yield run


def _address(request: pytest.FixtureRequest, store: str) -> str:
    """Return where the store is: a URL as it is, a path beside the module of the test."""
    return store if "://" in store else str(request.path.parent / store)


def _begun(entered: ExitStack, address: str, name: str, mode: str, options: dict[str, Any]) -> Run:
    import tape

    known = _recorded(address, name) if mode != "update" else None
    if known is None and mode == "replay":
        pytest.fail(
            f"tape {name!r} in {address} has no completed run; record one with: pytest --tape=record", pytrace=False
        )
    store = entered.enter_context(tape.open(address, read_only=known is not None))
    chat = store.tape(name)
    if known is not None:
        return entered.enter_context(tape.replay(chat, known, **options))
    kept = {option: value for option, value in options.items() if option in ("redact", "normalise")}
    return entered.enter_context(tape.record(chat, name, **kept))


def _recorded(address: str, name: str) -> str | None:
    """Return the newest completed run of a tape, or None."""
    import tape
    from tape.runs.recording import list_runs

    try:
        with tape.open(address, read_only=True) as store:
            chat: Tape = store.tape(name)
            return next((info.id for info in list_runs(chat) if info.status == "completed"), None)
    except tape.NotAStore:
        return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """End the run with the test itself, so that what was not asked for fails the test and not its teardown."""
    try:
        result = yield
    except BaseException as error:
        entered = item.stash.get(_ENTERED, None)
        if entered is not None:
            # A recording that was interrupted is no recording: it ends as failed, and is not used.
            entered.__exit__(type(error), error, error.__traceback__)
        raise
    entered = item.stash.get(_ENTERED, None)
    if entered is not None:
        entered.close()
    return result
