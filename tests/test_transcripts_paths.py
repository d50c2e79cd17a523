"""Files and folders of transcripts: detected, taken once, and kept up with while they grow."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.shell import Shell
from support.transcript_files import DATA, FILES, format_of, texts

import tape
from tape.transcripts import ImportedFile, import_paths, watch_paths
from tape.transcripts.detecting import detect, find_files
from tape.transcripts.formats.claude.agents import Agents


def message(id: str, parent: str | None, text: str, **fields: Any) -> str:
    record = {"type": "user", "uuid": id, "parentUuid": parent, "sessionId": "s", **fields}
    return json.dumps({**record, "message": {"role": "user", "content": text}}) + "\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home folder with transcripts of two programs, and much else."""
    claude, codex = tmp_path / ".claude", tmp_path / ".codex"
    (claude / "projects" / "-home-x" / "s" / "subagents").mkdir(parents=True)
    (claude / "projects" / "-home-x" / "s.jsonl").write_text(message("u1", None, "One") + message("u2", "u1", "Two"))
    agent = message("v1", None, "Look", isSidechain=True, agentId="a1")
    (claude / "projects" / "-home-x" / "s" / "subagents" / "agent-a1.jsonl").write_text(agent)
    (claude / "settings.json").write_text('{"model": "opus"}')
    (claude / "projects" / "notes.json").write_text('{"a": 1}')
    (codex / "sessions" / "2026" / "03").mkdir(parents=True)
    shutil.copy(DATA / "codex.jsonl", codex / "sessions" / "2026" / "03" / "rollout-1.jsonl")
    (codex / "history.jsonl").write_text('{"session_id": "x", "text": "hi"}\n')
    return tmp_path


def added(files: list[ImportedFile]) -> dict[str, int]:
    return {done.tape: done.added for file in files for done in file.tapes if done.added}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_format_is_detected(file: Path) -> None:
    """Every kept transcript is known by how it begins."""
    assert detect(file) == format_of(file)


class TestFolders:
    def test_everything_is_taken_once(self, backend: Backend, home: Path) -> None:
        """Transcripts of all programs under the folders; the second time nothing is read again."""
        store = backend.open()
        first = list(import_paths(store, [home / ".claude", home / ".codex"]))
        assert [file.error for file in first] == [None] * 3
        assert sorted(added(first)) == sorted(["s", "s/agent-a1", first[2].tapes[0].tape])
        assert store.get("s/agent-a1").info().parent == "s"
        again = list(import_paths(store, [home / ".claude", home / ".codex"]))
        assert [file.unchanged for file in again] == [True] * 3
        assert store.verify().ok

    def test_a_file_that_grew_adds_what_is_new(self, backend: Backend, home: Path) -> None:
        """Only the new lines are written; a file that was only touched is not written at all."""
        store = backend.open()
        list(import_paths(store, [home]))
        file = home / ".claude" / "projects" / "-home-x" / "s.jsonl"
        with file.open("a") as more:
            more.write(message("u3", "u2", "Three"))
        (grown,) = [one for one in import_paths(store, [home]) if not one.unchanged]
        assert [(done.added, done.known) for done in grown.tapes] == [(1, 2)]
        assert texts(store.get("s")) == ["One", "Two", "Three"]
        head = store.get("s").info().head
        os.utime(file, ns=(1, 1))
        (touched,) = [one for one in import_paths(store, [home]) if not one.unchanged]
        assert [(done.added, done.known) for done in touched.tapes] == [(0, 3)]
        assert store.get("s").info().head - head <= 1

    def test_a_file_that_was_rewritten_is_read_from_its_beginning(self, store: tape.Store, home: Path) -> None:
        """What is known is known by a digest: of a file with another beginning every line is looked at."""
        list(import_paths(store, [home]))
        file = home / ".claude" / "projects" / "-home-x" / "s.jsonl"
        file.write_text(message("u0", None, "Zero") + message("u2", "u1", "Two") + message("u3", "u2", "Three"))
        list(import_paths(store, [home]))
        assert {head.text for head in store.get("s").heads()} == {"Zero", "Three"}

    def test_one_bad_file_stops_no_other(self, store: tape.Store, home: Path) -> None:
        """A named file that is none, and a session whose tape is somebody's, are told; the others are there."""
        store.create("s", messages=[{"role": "user", "content": "mine"}])
        missing, other = home / "missing.jsonl", home / ".claude" / "settings.json"
        files = list(import_paths(store, [missing, other, home]))
        errors = {Path(file.path).name: file.error for file in files if file.error is not None}
        assert sorted(errors) == ["agent-a1.jsonl", "missing.jsonl", "s.jsonl", "settings.json"]
        assert texts(store.get("s")) == ["mine"]
        assert len(added(files)) == 1

    def test_progress_ends_at_the_whole(self, store: tape.Store, home: Path) -> None:
        """The bytes done only grow, up to the bytes of all files."""
        told: list[tuple[int, int]] = []
        list(import_paths(store, [home], progress=lambda done, total: told.append((done, total))))
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] > 0


class TestWatch:
    def test_it_keeps_up(self, store: tape.Store, home: Path) -> None:
        """Lines that are written between two looks are taken at the next; half a line waits for its other half."""
        file = home / ".claude" / "projects" / "-home-x" / "s.jsonl"
        new = message("u3", "u2", "Three")
        writes = iter([new[:40], new[40:], ""])
        rounds: list[int] = []

        def sleep(seconds: float) -> None:
            rounds.append(1)
            with file.open("a") as more:
                more.write(next(writes))

        seen = list(watch_paths(store, [home], stop=lambda: len(rounds) == 3, sleep=sleep))
        assert [added([one]) for one in seen if one.path.endswith("s.jsonl")] == [{"s": 2}, {"s": 1}]
        assert texts(store.get("s")) == ["One", "Two", "Three"]
        assert [problem for one in seen for problem in one.problems] == []


class TestCommand:
    def test_folders_in_one_command(self, lite: Shell, home: Path) -> None:
        """What is new is printed by tape, a summary beside it, and the second time there is nothing."""
        done = lite("import", str(home / ".claude"), str(home / ".codex"))
        assert (done.code, done.lines[0]) == (0, "s 2 entries added")
        assert "from 3 files" in done.err
        again = lite("import", str(home))
        assert (again.code, again.out, again.err) == (0, "", "0 entries added from 0 files, 3 unchanged\n")

    def test_what_cannot_be_read_is_told(self, lite: Shell, home: Path) -> None:
        """The file, the line and the reason on stderr; with --strict the file is refused."""
        file = home / ".claude" / "projects" / "-home-x" / "s.jsonl"
        file.write_text(message("u1", None, "One") + "{broken\n" + message("u2", "u1", "Two"))
        refused = lite("import", str(file), "--strict")
        assert (refused.code, "line 2" in refused.err) == (4, True)
        done = lite("import", str(file))
        assert (done.code, f"{file}:2: is not JSON" in done.err) == (0, True)
        both = lite("import", str(file), str(home / "missing"), "--json")
        assert both.code == 4
        assert [len(one["problems"]) for one in json.loads(both.out)] == [0, 1]

    def test_other_branches_are_counted(self, lite: Shell, home: Path) -> None:
        """info and cat say how many messages are not on the path."""
        file = home / "s.jsonl"
        file.write_text(message("u1", None, "One") + message("u2", "u1", "Two") + message("u3", None, "Three"))
        lite("import", str(file))
        assert "3 in the view, 2 messages on 1 other branch, 1 root among them" in lite("info", "s").out
        assert lite("cat", "s").err == (
            "2 messages on 1 other branch, 1 root among them; print one with --branch MESSAGE\n"
        )


class TestNeverStuck:
    """Files and folders that cannot be what they seem are reported, and everything beside them is imported."""

    def test_a_pipe_is_not_waited_for(self, store: tape.Store, home: Path) -> None:
        """Nobody may ever write to it: named, it is reported, and in a folder it is passed over."""
        os.mkfifo(home / "pipe.jsonl")
        (pipe,) = import_paths(store, [home / "pipe.jsonl"])
        assert pipe.error == "is not a regular file; save it to a file and import that file"
        assert [file.error for file in import_paths(store, [home])] == [None] * 3

    def test_links_that_lead_nowhere_or_in_a_circle(self, store: tape.Store, home: Path) -> None:
        """They are passed over in a folder, and reported if they are named."""
        (home / "circle").symlink_to(home)
        (home / "itself.jsonl").symlink_to(home / "itself.jsonl")
        (home / "nowhere.jsonl").symlink_to(home / "not-there.jsonl")
        assert [file.error for file in import_paths(store, [home])] == [None] * 3
        for name in ("itself.jsonl", "nowhere.jsonl"):
            (file,) = import_paths(store, [home / name])
            assert file.error is not None

    @pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
    def test_a_folder_that_cannot_be_opened(self, home: Path) -> None:
        """It is among what is looked at, so that whoever reads it says why that cannot be."""
        closed = home / ".claude" / "projects" / "closed"
        closed.mkdir(mode=0)
        root = os.geteuid() == 0
        for folder in (home, *home.parents):
            if root and folder != Path("/"):
                folder.chmod(folder.stat().st_mode | (0o055 if folder == home else 0o011))
        if root:
            os.seteuid(65534)
        try:
            files = list(find_files([home]))
        finally:
            if root:
                os.seteuid(0)
        assert files[-1] == (closed, True)
        assert len(files) > 3

    def test_a_transcript_that_is_refused_is_reported_in_a_folder_too(self, store: tape.Store, home: Path) -> None:
        """Its format was known; that nothing of it was taken must not go unseen."""
        (home / "odd.json").write_text('{"messages": [{"role": "user", "content": "Hi"}, 5]}')
        refused = [file for file in import_paths(store, [home]) if file.error is not None]
        assert [(Path(file.path).name, file.format) for file in refused] == [("odd.json", "openai")]
        assert refused[0].error == "line 1: messages[1] is neither a message nor an item"

    @pytest.mark.parametrize("content", [r'"\ud83d cut"', "NaN", '"caf\xe9"'])
    def test_the_format_of_a_file_whose_only_line_has_to_be_mended(
        self, store: tape.Store, tmp_path: Path, content: str
    ) -> None:
        """Half a character, NaN, and bytes that are not UTF-8."""
        file = tmp_path / "cut.jsonl"
        file.write_bytes(message("u1", None, "HERE").replace('"HERE"', content).encode("latin-1"))
        (imported,) = import_paths(store, [file])
        assert (imported.format, [done.added for done in imported.tapes]) == ("claude-code", [1])
        assert len(store.get("s").messages()) == 1


class TestSubagents:
    def test_an_import_of_subagents_reads_the_session_once(self, store: tape.Store, tmp_path: Path) -> None:
        """Four times the subagents and four times the session are four times the work: what is decoded is counted."""
        counts: list[int] = []
        for name, agents in (("small", 15), ("large", 60)):
            folder = tmp_path / name
            folder.mkdir()
            lines: list[dict[str, Any]] = [
                {"type": "user", "uuid": f"{name}-0", "sessionId": name, "message": {"role": "user", "content": "Go"}}
            ]
            for number in range(agents * 4):
                call = {"type": "tool_use", "id": f"c{number}", "name": "Task", "input": {"prompt": f"Look {number}"}}
                body = {"role": "assistant", "content": [call]}
                above = {"uuid": f"{name}-{number + 1}", "parentUuid": f"{name}-{number}", "sessionId": name}
                lines.append({"type": "assistant", **above, "message": body})
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
            for number in range(agents):
                line: dict[str, Any] = {
                    "type": "user",
                    "uuid": f"{name}-a{number}",
                    "sessionId": name,
                    "agentId": f"a{number}",
                }
                line |= {"isSidechain": True, "message": {"role": "user", "content": f"Look {number}"}}
                (folder / f"agent-a{number}.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
            with pytest.MonkeyPatch.context() as patch:
                read, seen = Agents.read, list[int]()
                patch.setattr(
                    Agents, "read", lambda self, entry, read=read, seen=seen: (seen.append(1), read(self, entry))
                )
                done = list(import_paths(store, [folder]))
            assert [each.error for each in done if each.error] == []
            side = store.get(f"{name}/agent-a7")
            assert side.info().parent == name
            assert side.at(1).messages()[-1].id == f"{name}-8"
            assert [message.text for message in side.messages()] == ["Look 7"]
            counts.append(len(seen))
            assert agents * 4 <= len(seen) <= agents * 5 + 3
        assert counts[1] < 5 * counts[0]
        assert store.verify().ok

    def test_subagents_that_are_imported_later_find_their_calls(self, store: tape.Store, tmp_path: Path) -> None:
        """The session grows between two imports, and what it says since is known."""
        session = tmp_path / "s.jsonl"
        text = ""
        for number in range(3):
            call = {"type": "tool_use", "id": f"c{number}", "name": "Task", "input": {"prompt": f"Look {number}"}}
            line: dict[str, Any] = {"type": "assistant", "uuid": f"u{number}", "sessionId": "s"}
            line |= {"parentUuid": f"u{number - 1}" if number else None}
            text += json.dumps({**line, "message": {"role": "assistant", "content": [call]}}) + "\n"
            session.write_text(text, "utf-8")
            line = {
                "type": "user",
                "uuid": f"a{number}",
                "sessionId": "s",
                "agentId": f"a{number}",
                "isSidechain": True,
            }
            line |= {"message": {"role": "user", "content": f"Look {number}"}}
            (tmp_path / f"agent-a{number}.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
            list(import_paths(store, [tmp_path]))
            side = store.get(f"s/agent-a{number}")
            assert side.at(1).messages()[-1].id == f"u{number}"
            assert [message.id for message in side.messages()] == [f"a{number}"]
