"""TapeStore behind Bub's own tapes and framework: its queries, its hook, several writers, restarts, hostile content."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bub.framework import BubFramework
from bub.store import AsyncTapeStoreAdapter, FileTapeStore, ForkTapeStore, TapeQuery
from bub.tape import TapeEntry
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from tape.integrations.bub import TapePlugin, TapeStore

HALF = "half \ud83d of a character"
DATE = "2026-03-01T10:00:00+00:00"


def every_kind() -> list[TapeEntry]:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    return [
        TapeEntry.anchor("session/start", {"owner": "human"}),
        TapeEntry.system("Be brief."),
        TapeEntry.message({"role": "user", "content": "Weather in Lisbon?", "id": "m1"}, run="r1"),
        TapeEntry.message({"role": "user", "content": "Weather in Lisbon?", "id": "m1"}),
        TapeEntry.tool_call([call], content="I look."),
        TapeEntry.tool_result(["18 degrees", None]),
        TapeEntry.anchor("phase/two"),
        TapeEntry.event("run", {"status": "ok", "tokens": 3}),
        TapeEntry.message({"role": "assistant", "content": "18 degrees."}),
        TapeEntry.message({}),
    ]


def told(entries: Any) -> list[tuple[Any, ...]]:
    return [(entry.id, entry.kind, entry.payload, entry.meta, entry.date) for entry in entries]


def query(store: Any, name: str = "a__b") -> Any:
    return TapeQuery(tape=name, store=store)


class TestRunner:
    def test_bub_uses_it_by_its_hook(self, backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The plugin gives Bub the store that the environment names, and nothing when it names none."""
        framework = BubFramework()
        monkeypatch.delenv("BUB_TAPE_STORE", raising=False)
        assert TapePlugin(framework).provide_tape_store() is None
        monkeypatch.setenv("BUB_TAPE_STORE", str(tmp_path / "agent.db"))
        store = TapePlugin(framework).provide_tape_store()
        assert store is not None
        store.append("a__b", every_kind()[2])
        store.close()
        again = TapeStore(tmp_path / "agent.db")
        assert [entry.payload["content"] for entry in again.read("a__b")] == ["Weather in Lisbon?"]
        again.close()

    def test_a_fork_is_merged_back_after_a_restart(self, backend: Backend) -> None:
        """Bub's own forks, which gather entries and write them at the end, on what another process left."""
        with backend.open() as store:
            TapeStore(store).append("a__b", every_kind()[0])

        async def turn(store: tape.Store) -> None:
            fork = ForkTapeStore(AsyncTapeStoreAdapter(TapeStore(store)), "a__b")
            for entry in every_kind()[2:]:
                await fork.append("a__b", entry)
            await fork.merge_back()

        with backend.open() as store:
            asyncio.run(turn(store))
            ours = TapeStore(store)
            assert [entry.kind for entry in ours.read("a__b")] == [
                entry.kind for entry in [every_kind()[0], *every_kind()[2:]]
            ]
            said = [message.text for message in ours.tape("a__b").messages() if message.text]
            assert said == ["Weather in Lisbon?", "Weather in Lisbon?", "18 degrees."]
            assert [anchor.name for anchor in ours.tape("a__b").anchors()] == ["session/start", "phase/two"]
            assert store.search("lisbon")
            assert store.verify().ok

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what it promises."""
        lines = printed("bub_tapes.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "user: Where to? | assistant: Lisbon."

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("bub", monkeypatch, tmp_path)


class TestEntries:
    def test_it_answers_as_the_store_of_files(self, store: tape.Store, tmp_path: Path) -> None:
        """Random entries, resets and queries on both: the same answers."""
        questions: list[Callable[[Any], Any]] = [
            lambda asked: asked,
            lambda asked: asked.last_anchor(),
            lambda asked: asked.after_anchor("phase/two").kinds("message").limit(2),
            lambda asked: asked.between_anchors("session/start", "phase/two"),
            lambda asked: asked.query("lisbon"),
            lambda asked: asked.query("weathr").limit(1),
            lambda asked: asked.between_dates("2026-01-01", "2099-01-01").kinds("event", "tool_call"),
        ]
        for seed in range(3):
            rng, name = random.Random(seed), f"{seed}__x"
            ours, theirs = TapeStore(store), FileTapeStore(tmp_path / str(seed))
            for number in range(30):
                entry = rng.choice(every_kind())
                for each in (ours, theirs):
                    if number == 20:
                        each.reset(name)
                    each.append(name, entry)
            assert [one for one in ours.list_tapes() if one.startswith(str(seed))] == theirs.list_tapes()
            for number, ask in enumerate(questions):
                one, other = answered(ask(query(ours, name))), answered(ask(query(theirs, name)))
                assert one == other, f"seed {seed}, question {number}"

    def test_reset_keeps_the_tape(self, store: tape.Store) -> None:
        """It is no longer listed until it is written to; numbers begin at 1 again."""
        ours = TapeStore(store)
        ours.reset("a__b")
        assert store.list().items == []
        for entry in every_kind():
            ours.append("a__b", entry)
        ours.reset("a__b")
        assert ours.list_tapes() == []
        assert ours.read("a__b") == []
        ours.append("a__b", every_kind()[1])
        assert [entry.id for entry in ours.read("a__b")] == [1]
        assert sum(entry.kind == "append" for entry in ours.tape("a__b").entries()) == 4

    def test_names_and_hostile_content_come_back(self, store: tape.Store) -> None:
        """Long names, half characters, infinities; what is odd is replaced only where it is read."""
        ours, long = TapeStore(store), "n" * 400
        odd = [
            TapeEntry(0, "message", {"role": "user", "content": HALF}, {"score": float("inf")}, DATE),
            TapeEntry(0, "event", {"name": HALF, "data": {HALF: float("-inf")}}, {}, DATE),
            TapeEntry(0, "anchor", {"name": "", "state": {"text": HALF}}, {}, DATE),
            TapeEntry(0, "anchor", {"name": "x" * 999}, {}, DATE),
        ]
        for entry in odd:
            ours.append(long, entry)
        assert ours.list_tapes() == [long]
        assert told(ours.read(long)) == [(number + 1, *each[1:]) for number, each in enumerate(told(odd))]
        assert ours.tape(long).messages()[0].text == "half � of a character"

    def test_what_others_write_is_read(self, store: tape.Store) -> None:
        """Messages that came from elsewhere are Bub's, too; what is retracted is gone."""
        ours = TapeStore(store)
        for entry in every_kind()[2:4]:
            ours.append("a__b", entry)
        chat = ours.tape("a__b")
        chat.retract(chat.messages()[0].id)
        chat.append(role="assistant", content="18 degrees.")
        chat.event("note")
        assert [entry.payload["content"] for entry in ours.read("a__b")] == ["Weather in Lisbon?", "18 degrees."]


def answered(asked: Any) -> Any:
    try:
        return told(asked.all())
    except Exception as error:
        return type(error), str(error)


def adapt(store: tape.Store) -> Callable[[str], Any]:
    ours = AsyncTapeStoreAdapter(TapeStore(store))
    return lambda mark: ours.append("a__b", TapeEntry.message({"role": "user", "content": mark}))


def marks(store: tape.Store) -> list[str]:
    entries = TapeStore(store).read("a__b")
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    return [entry.payload["content"] for entry in entries]


def test_many_processes_share_a_tape(backend: Backend, crew: Crew) -> None:
    """Four processes, fifty entries each: every one is there once."""
    assert not hold_together(crew, backend, adapt, marks, least=200)
