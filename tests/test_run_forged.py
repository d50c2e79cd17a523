"""Forged and damaged runs: reading one raises only TapeErrors, and no recording decides what a program does."""

from __future__ import annotations

import asyncio
import random
import sys
import types
from collections import Counter
from typing import Any

import pytest
from support.backends import Backend
from support.forged_runs import agent, forge, read_in_every_way, record_everything
from support.sizes import heavy, size

import tape
from tape.runs.recording import list_runs, read_recording

SEED = 1_010
RUNS = size(60, 2_000)

STARTED: dict[str, Any] = {"run": "r", "name": "n"}
CALL: dict[str, Any] = {"run": "r", "lane": "0", "n": 1, "kind": "tool", "name": "f", "digest": "d", "request": {}}
RESULT: dict[str, Any] = {"run": "r", "lane": "0", "n": 1, "status": "completed", "value": {"is": 1}}
ENDED: dict[str, Any] = {"run": "r", "status": "completed"}


def write(chat: tape.Tape, started: Any = STARTED, call: Any = CALL, result: Any = RESULT, ended: Any = ENDED) -> None:
    """Write a run of one call event by event; None leaves one out."""
    keys = ("run:r:start", "run:r:0:1:call", "run:r:0:1:result", "run:r:end:1")
    names = ("run.started", "run.call", "run.result", "run.ended")
    for name, data, key in zip(names, (started, call, result, ended), keys, strict=True):
        if data is not None:
            chat.event(name, data, key=key)


@pytest.fixture
def chat(quick: Backend) -> tape.Tape:
    """A tape for what has nothing to do with the engine."""
    return quick.open(durability="normal").tape("chat")


class TestDamagedEvents:
    @pytest.mark.parametrize(
        ("seq", "events"),
        [
            (2, {"started": 5}),
            (2, {"started": {**STARTED, "run": "other"}}),
            (2, {"started": {**STARTED, "name": ["n"]}}),
            (2, {"started": {**STARTED, "normalise": "n"}}),
            (2, {"started": {**STARTED, "base": {"tape": "chat"}}}),
            (2, {"started": {**STARTED, "base": {"tape": "chat", "run": "r", "before": 1}}}),
            (3, {"call": {"run": "r"}}),
            (3, {"call": {**CALL, "lane": ["0"]}}),
            (3, {"call": {**CALL, "n": 0}}),
            (3, {"call": {**CALL, "kind": "agent"}}),
            (3, {"call": {**CALL, "effect": "none"}}),
            (3, {"call": {**CALL, "request": {"a": 1}}}),
            (3, {"call": {**CALL, "request": {"a": {}}}}),
            (3, {"call": {**CALL, "request": {"a": {"of": 2}}}}),
            (3, {"call": {**CALL, "request": {"a": {"of": 1, "parts": [[0, 2], [1, 3]]}}}}),
            (3, {"call": {**CALL, "request": {"a": {"context": 1, "api": "chat"}}}}),
            (4, {"result": {**RESULT, "status": "unknown"}}),
            (4, {"result": {**RESULT, "value": None}}),
            (4, {"result": {**RESULT, "value": {"bytes": "!"}}}),
            (4, {"result": {**RESULT, "status": "failed", "value": None, "error": {"type": "E"}}}),
            (4, {"result": {**RESULT, "status": "failed"}}),
            (4, {"result": {**RESULT, "value": None, "chunks": [1]}}),
            (3, {"call": None}),
            (5, {"ended": {**ENDED, "status": "fine"}}),
            (5, {"ended": {**ENDED, "error": "SystemExit: 0"}}),
        ],
    )
    def test_each_is_corrupt_by_tape_and_seq(self, store: tape.Store, seq: int, events: dict[str, Any]) -> None:
        """A wrong type, a contradiction, or a reference to nothing: the error names the entry that is at fault."""
        chat = store.tape("chat")
        write(chat, **events)
        with pytest.raises(tape.Corrupt) as caught:
            for call in read_recording(chat, "r").calls:
                call.request()
        assert (caught.value.tape, caught.value.seq) == ("chat", seq)

    def test_events_of_another_program_are_left_alone(self, chat: tape.Tape) -> None:
        """An event that has the name of a run's, but no key of one, belongs to no run."""
        with tape.record(chat, id="r") as run:
            for name in ("run.started", "run.call", "run.result", "run.ended"):
                chat.event(name, {"mine": True})
            run.tool(lambda: 1, name="t")()
        assert [info.id for info in list_runs(chat)] == ["r"]
        assert [call.name for call in read_recording(chat, "r").calls] == ["t"]

    def test_a_run_that_cannot_be_read_is_listed(self, chat: tape.Tape) -> None:
        """The list has the other runs, and the unreadable one with its id and the error."""
        for id in ("a", "b"):
            with tape.record(chat, id=id):
                pass
        chat.event("run.started", {"run": 5}, key="run:broken:start")
        infos = list(list_runs(chat))
        assert [(info.id, info.status) for info in infos] == [
            ("broken", "unreadable"),
            ("b", "completed"),
            ("a", "completed"),
        ]
        assert "damaged" in str(infos[0].error)
        with pytest.raises(tape.Corrupt, match="broken"):
            tape.recover(chat)
        assert tape.recover(chat, "a") == []

    def test_runs_that_continue_each_other(self, chat: tape.Tape) -> None:
        """A circle of runs is found, however many there are."""
        for number in range(50):
            base = {"tape": "chat", "run": f"r{(number + 1) % 50}", "before": 1}
            chat.event("run.started", {"run": f"r{number}", "base": base}, key=f"run:r{number}:start")
        with pytest.raises(tape.Corrupt, match="continues itself"):
            read_recording(chat, "r7")

    def test_a_long_chain_of_runs_is_read(self, chat: tape.Tape) -> None:
        """It takes no more of the stack than a short one."""
        for number in range(1_500):
            base = {"base": {"tape": "chat", "run": f"r{number - 1}", "before": 1}} if number else {}
            chat.event("run.started", {"run": f"r{number}", **base}, key=f"run:r{number}:start")
        assert read_recording(chat, "r1499").calls == []

    @heavy
    def test_forged_runs_raise_only_errors_of_the_library(self, quick: Backend) -> None:
        """Forged runs (2 000 at full size) are read in every way; what is refused is a TapeError, and check goes on."""
        print("seed", SEED)
        pick, met = random.Random(SEED), Counter[str]()
        for batch in range(0, RUNS, 100):
            with tape.open(":memory:") as store:
                entries = record_everything(store.tape("original"))
                for number in range(min(100, RUNS - batch)):
                    chat = store.tape(f"forged-{number}")
                    forge(chat, entries, pick)
                    met.update(read_in_every_way(chat, store, pick))
                report = tape.check(store, agent=agent)
                assert len(report.runs) >= min(100, RUNS - batch)
        print(met)
        assert min(met["fine"], met["Corrupt"], met["Diverged"]) >= RUNS // 6

    def test_forged_runs_on_each_engine(self, store: tape.Store) -> None:
        """A few of them where the engine is not SQLite in memory."""
        pick, entries = random.Random(SEED), record_everything(store.tape("original"))
        for number in range(5):
            forge(store.tape(f"forged-{number}"), entries, pick)
            assert list(read_in_every_way(store.tape(f"forged-{number}"), store, pick))


class TestWhatARecordingDoesNotDecide:
    @pytest.mark.parametrize("effect", ["read", "idempotent", None])
    def test_whether_a_tool_is_called(self, store: tape.Store, effect: str | None) -> None:
        """A tool of which the program says nothing is not called in a replay, whatever the recording says of it."""
        chat, made = store.tape("chat"), list[str]()
        with tape.record(chat, id="r") as run:
            run.tool(lambda to: None, name="send", effect=effect)("ann")
        for declared in (None, "write", "idempotent"):
            with tape.replay(chat, "r", tools="live") as again:
                again.tool(lambda to: made.append(to), name="send", effect=declared)("ann")
        with tape.replay(chat, "r", tools="live") as again:
            again.tool(lambda to: made.append(f"read {to}"), name="send", effect="read")("ann")
        assert made == ["read ann"]

    def test_whether_a_tool_is_called_in_an_awaited_run(self, backend: Backend) -> None:
        """The same holds for an AsyncStore."""
        made: list[str] = []

        async def send(to: str) -> None:
            made.append(to)

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                async with tape.record(chat, id="r") as run:
                    await run.tool(send, effect="read")("ann")
                made.clear()
                async with tape.replay(chat, "r", tools="live") as again:
                    await again.tool(send)("ann")
                with pytest.raises(tape.EffectRefused):
                    async with tape.replay(chat, "r", live_from=1, into=await chat.fork("f")) as onward:
                        await onward.tool(send, effect="idempotent")("ann")

        asyncio.run(main())
        assert made == []

    @pytest.mark.parametrize("forged", [{"effect": "read"}, {"effect": "write", "bound": True}])
    def test_whether_a_write_is_made_again(self, chat: tape.Tape, forged: dict[str, Any]) -> None:
        """A resumed run asks about a write without an outcome, even if the recording says that it read or was bound."""
        made: list[int] = []
        with tape.record(chat, id="first") as run:
            run.tool(lambda: None, name="f")()
        digest = read_recording(chat, "first").calls[0].digest
        write(chat, call={**CALL, **forged, "digest": digest}, result=None, ended=None)
        with pytest.raises(tape.EffectUnknown), tape.record(chat, id="r", resume=True) as run:
            run.tool(lambda: made.append(1), name="f")()
        assert made == []

    @pytest.mark.parametrize(
        "name",
        ["builtins:SystemExit", "builtins:KeyboardInterrupt", "builtins:GeneratorExit", "builtins:StopIteration"],
    )
    def test_how_a_program_ends(self, chat: tape.Tape, name: str) -> None:
        """A recorded error that is more than an Exception is raised as RecordedError."""
        with pytest.raises(ZeroDivisionError), tape.record(chat, id="first") as run:
            run.tool(lambda: 1 / 0, name="f", effect="read")()
        digest = read_recording(chat, "first").calls[0].digest
        error = {"type": name, "text": "0", "args": [0]}
        write(
            chat, call={**CALL, "digest": digest}, result={**RESULT, "status": "failed", "value": None, "error": error}
        )
        with pytest.raises(tape.RecordedError, match="0"), tape.replay(chat, "r") as again:
            again.tool(lambda: 1, name="f")()

    def test_what_a_check_says(self, store: tape.Store) -> None:
        """A run that cannot be read, an agent that exits, and a run without an agent fail; the others are checked."""

        def answer(run: tape.Run) -> Any:
            return run.tool(lambda: 1, name="f", effect="read")()

        for name in ("a", "b", "c"):
            with tape.record(store.tape(name), "good") as run:
                answer(run)
        write(store.tape("broken"), ended={**ENDED, "calls": "many"})
        write(store.tape("damaged"), started={**STARTED, "name": "good"}, call={**CALL, "n": "one"})
        base = {"tape": "nowhere", "run": "r", "before": 2}
        write(store.tape("based"), started={**STARTED, "name": "good", "base": base})
        with tape.record(store.tape("exits"), "exits"):
            pass
        with tape.record(store.tape("unknown"), "unknown"):
            pass
        report = tape.check(store, agent={"good": answer, "exits": lambda run: sys.exit(0)})
        assert {row.tape: row.status for row in report.runs} == {
            **dict.fromkeys(("a", "b", "c"), "same"),
            **dict.fromkeys(("broken", "damaged", "based", "exits", "unknown"), "failed"),
        }
        assert report.exit_code == 1
        assert "broken" in str(report)

    def test_which_code_is_run(self, chat: tape.Tape, monkeypatch: pytest.MonkeyPatch) -> None:
        """The name of a type is looked up among what is loaded; no module is asked to make it."""
        asked: list[str] = []
        module = types.ModuleType("lazy_module_of_test")
        module.__getattr__ = asked.append  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        with tape.record(chat, id="first") as run:
            run.tool(lambda: 1, name="f")()
        digest = read_recording(chat, "first").calls[0].digest
        value = {"is": {"x": 1}, "type": f"{module.__name__}:made"}
        write(chat, call={**CALL, "digest": digest}, result={**RESULT, "value": value})
        with tape.replay(chat, "r") as again:
            assert again.tool(lambda: 1, name="f")() == {"x": 1}
        assert asked == []
