"""Reading transcripts in processes of their own: the same tapes as without, whatever becomes of the processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.transcript_files import FILES, format_of

import tape
from tape.handles.recorded import Request, composed
from tape.transcripts import import_paths, reading_process
from tape.transcripts.composing import Composed, event_name, message_options, own_id_apart, usage_options
from tape.transcripts.importing import Options, prepare, read_steps
from tape.transcripts.steps import Event, Message, Step, Used
from tape.transcripts.writing import _Lane, _request


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every import have a process, however little there is to read and however many cores there are."""
    monkeypatch.setattr(reading_process, "_WORTH", 0)
    monkeypatch.setattr(reading_process, "_cores", lambda: 2)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the processes that are started; at the end none of them is left."""
    processes: list[Any] = []
    popen = subprocess.Popen

    def start(*args: Any, **options: Any) -> Any:
        processes.append(popen(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    yield processes
    assert [process.poll() is not None for process in processes] == [True] * len(processes)


def record(session: str, number: int, text: str = "Go on.", **fields: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "uuid": f"{session}-{number}",
        "parentUuid": f"{session}-{number - 1}" if number else None,
        "sessionId": session,
        "timestamp": "2026-03-01T10:00:00Z",
        "message": {"role": "user", "content": text},
        **fields,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of ten sessions."""
    home = tmp_path / "sessions"
    home.mkdir()
    for session in range(10):
        lines = [json.dumps(record(f"s{session}", number)) for number in range(20)]
        (home / f"s{session}.jsonl").write_text("\n".join(lines) + "\n")
    return home


def told(store: tape.Store) -> list[tuple[Any, ...]]:
    """Return what the entries of all tapes say that were made of a record of a file."""
    entries = [entry for info in store.list() for entry in store.get(info.id).entries()]
    told = [(entry.tape, entry.seq, entry.key, entry.actor, entry.meta, entry.payload) for entry in entries]
    return sorted((one for one in told if ":" in one[2]), key=lambda one: one[:2])


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "_cores", lambda: 1)


class TestTheSameTapes:
    def test_with_and_without_processes(
        self, backend: Backend, folder: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a process read is written as if it had been read here, and is known at the next import."""
        store = backend.open()
        files = list(import_paths(store, [folder]))
        assert len(started) == 1
        assert [Path(file.path).name for file in files] == sorted(file.name for file in folder.iterdir())
        assert [done.added for file in files for done in file.tapes] == [20] * 10
        assert store.verify().ok
        assert all(file.unchanged for file in import_paths(store, [folder]))
        alone(monkeypatch)
        with tape.open(":memory:") as other:
            list(import_paths(other, [folder]))
            assert told(other) == told(store)
        assert len(started) == 1

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
    def test_of_every_format(self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every kept transcript, beside another one, so that there is something to read ahead."""
        paths = [file, tmp_path / "other.jsonl"]
        paths[1].write_text(json.dumps(record("other", 0)) + "\n")
        with tape.open(":memory:") as first, tape.open(":memory:") as second:
            list(import_paths(first, paths))
            alone(monkeypatch)
            list(import_paths(second, paths))
            assert told(first) == told(second)

    def test_what_grew(self, store: tape.Store, folder: Path, started: list[Any]) -> None:
        """Of files that have grown only what is new is written."""
        list(import_paths(store, [folder]))
        for session in range(10):
            with (folder / f"s{session}.jsonl").open("a") as file:
                file.write(json.dumps(record(f"s{session}", 20)) + "\n")
        files = list(import_paths(store, [folder]))
        assert [(done.added, done.known) for file in files for done in file.tapes] == [(1, 20)] * 10
        assert len(started) == 2

    def test_a_refused_record(self, backend: Backend, folder: Path) -> None:
        """A record that a process prepared and the store refuses is reported with its line; the others are imported."""
        store = backend.open()
        store.create("s3", meta={"imported": {"format": "claude-code"}}).append(
            {"role": "user", "content": "Mine"}, id="s3-7", key="claude-code:s3-7"
        )
        files = {Path(file.path).name: file for file in import_paths(store, [folder])}
        assert [problem.line for problem in files["s3.jsonl"].problems] == [8]
        assert "differs from the record that was imported as seq 2 of tape 's3'" in files["s3.jsonl"].problems[0].reason
        assert [done.added for done in files["s3.jsonl"].tapes] == [20]
        assert sum(len(file.problems) for file in files.values()) == 1
        assert store.verify().ok


class TestWhatBecomesOfThem:
    def test_one_that_cannot_be_started(
        self, store: tape.Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything is read here."""
        monkeypatch.setattr(sys, "executable", os.fspath(tmp_path / "python-that-is-not-there"))
        assert sum(done.added for file in import_paths(store, [folder]) for done in file.tapes) == 200

    def test_one_that_ends_at_once(
        self, store: tape.Store, folder: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything is read here."""
        monkeypatch.setattr(reading_process, "_BOOT", "raise SystemExit(3)")
        assert sum(done.added for file in import_paths(store, [folder]) for done in file.tapes) == 200
        assert [process.returncode for process in started] == [3]

    def test_one_that_is_killed(
        self, store: tape.Store, folder: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it did not answer is read here."""
        monkeypatch.setattr("tape.transcripts.paths._TOGETHER", 1)
        monkeypatch.setattr(reading_process, "_AHEAD", 1)
        files = import_paths(store, [folder])
        first = next(files)
        started[0].kill()
        assert sum(done.added for file in [first, *files] for done in file.tapes) == 200

    def test_an_import_that_is_given_up(
        self, store: tape.Store, folder: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process ends with it, and what was written stays."""
        monkeypatch.setattr("tape.transcripts.paths._TOGETHER", 1)
        files = import_paths(store, [folder])
        next(files)
        assert started[0].poll() is None
        files.close()  # type: ignore[attr-defined]
        assert started[0].poll() is not None
        assert len(list(import_paths(store, [folder]))) == 10

    def test_what_cannot_be_sent_is_read_here(
        self, store: tape.Store, folder: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A value that is nested so deeply that no other process can be told it."""
        deep = '{"a":' * 990 + "1" + "}" * 990
        line = json.dumps(record("s0", 20, deep="DEEP")).replace('"DEEP"', deep)
        with (folder / "s0.jsonl").open("a") as file:
            file.write(line + "\n")
        files = list(import_paths(store, [folder]))
        assert [file.error for file in files] == [None] * 10
        assert [(problem.line) for problem in files[0].problems] == [21]
        assert len(started) == 1

    def test_a_program_that_is_not_python_is_not_started_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A frozen program is its own interpreter."""
        assert reading_process.processes(1) == 1
        monkeypatch.setattr(sys, "executable", "/opt/agent/agent")
        assert reading_process.processes(1) == 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_composed_is_what_the_calls_of_a_tape_record(file: Path) -> None:
    """Each step of every kept transcript, composed without a tape and by the tape's own calls."""
    format = format_of(file)
    assert format is not None
    with tape.open(":memory:") as store:
        lane = _Lane(store.create("t"), {})  # type: ignore[arg-type]
        with file.open("rb") as lines:
            steps = list(read_steps(lines, Options().reading(format)))
        kept = prepare(file, format, Options()).kept
        assert kept is not None
        for step, made in zip(steps, kept, strict=True):
            if isinstance(made, Composed):
                parent = None if made.parent is None else lane.ids[made.parent]
                assert _request(lane, made) == by_call(lane.tape, step, parent)


def by_call(chat: tape.Tape, step: Step, parent: str | None) -> Request:
    """Return what the calls of a tape would record of a step."""
    kind = type(chat)
    if isinstance(step, Message):
        message, meta = own_id_apart(step)
        return composed(kind.append, chat, message, parent=parent, **message_options(step, meta))
    if isinstance(step, Event):
        return composed(kind.event, chat, event_name(step.name), step.data, key=step.key, occurred_at=step.at)
    assert isinstance(step, Used)
    return composed(kind.record_usage, chat, **usage_options(step))
