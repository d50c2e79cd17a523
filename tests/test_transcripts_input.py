"""Transcripts that cannot be imported, and names and ids in them that somebody chose: nothing else is harmed."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.request_rules import check_chat
from support.transcript_files import DATA, FILES, LINES, SESSION, format_of, load, texts

import tape
from tape.transcripts import FORMATS, ImportedTranscript, import_transcript

# -- 7: a transcript is not grafted on a tape that no transcript made


class TestTranscripts:
    """Ids in a transcript are chosen by whoever wrote it."""

    def _session(self, folder: Path, session: str, *, agent: str | None = None) -> Path:
        """Write a small log of Claude Code."""
        record: dict[str, Any] = {"type": "user", "uuid": "u1", "parentUuid": None, "sessionId": session}
        record |= {"timestamp": "2026-01-01T00:00:00Z", "message": {"role": "user", "content": "Obey me."}}
        record["isSidechain"] = agent is not None
        if agent is not None:
            record["agentId"] = agent
        path = folder / "log.jsonl"
        path.write_text(json.dumps(record) + "\n")
        return path

    def test_a_session_with_the_id_of_another_tape_is_refused(self, backend: Backend, tmp_path: Path) -> None:
        """A transcript whose session has the id of a tape that no transcript made leaves that tape as it is."""
        store = backend.open()
        chat = store.create("chat-1", messages=[{"role": "user", "content": "mine"}])
        kept = contents(backend)
        for agent in (None, "helper"):
            with pytest.raises(tape.ImportFailed, match="'chat-1'"):
                import_transcript(store, "claude-code", self._session(tmp_path, "chat-1", agent=agent))
        assert contents(backend) == kept
        assert [message.content for message in chat.messages()] == ["mine"]

    def test_a_side_conversation_with_the_id_of_another_tape_is_refused(self, backend: Backend, tmp_path: Path) -> None:
        """The tape of a subagent is not grafted on another tape either."""
        store = backend.open()
        import_transcript(store, "claude-code", self._session(tmp_path, "s"))
        store.create("s/agent-helper", messages=[{"role": "user", "content": "mine"}])
        with pytest.raises(tape.ImportFailed, match="'s/agent-helper'"):
            import_transcript(store, "claude-code", self._session(tmp_path, "s", agent="helper"))
        assert [message.content for message in store.get("s/agent-helper").messages()] == ["mine"]

    def test_a_session_of_another_format_is_refused(self, backend: Backend, tmp_path: Path) -> None:
        """A session's tape is continued only by transcripts of the format that made it."""
        store = backend.open()
        import_transcript(store, "claude-code", self._session(tmp_path, "s"))
        path = tmp_path / "rollout.jsonl"
        record = {"type": "session_meta", "payload": {"id": "s"}, "timestamp": "2026-01-01T00:00:00Z"}
        path.write_text(json.dumps(record))
        with pytest.raises(tape.ImportFailed, match="'s'"):
            import_transcript(store, "codex", path)

    def test_a_session_is_imported_again_and_onto_a_tape_that_is_named(self, backend: Backend, tmp_path: Path) -> None:
        """A session's own tape is continued, and a tape that the caller names is written to, whatever it is."""
        store = backend.open()
        path = self._session(tmp_path, "s")
        assert [one.added for one in import_transcript(store, "claude-code", path)] == [1]
        assert [one.known for one in import_transcript(store, "claude-code", path)] == [1]
        side = self._session(tmp_path, "s", agent="helper")
        assert [one.tape for one in import_transcript(store, "claude-code", side)] == ["s/agent-helper"]
        assert [one.known for one in import_transcript(store, "claude-code", side)] == [1]
        store.create("mine")
        path = self._session(tmp_path, "s")
        assert [one.tape for one in import_transcript(store, "claude-code", path, tape="mine")] == ["mine"]


JUNK: list[Any] = [None, True, -1, 1.5, "", "x", "~a", "\x00", "a" * 300, [], [[1]], {}, [{"type": ["x"], "id": 5}]]


def damaged(file: Path, chance: random.Random) -> str:
    """Return a transcript with some of its values replaced by junk or taken out, and some of its lines moved."""
    text = file.read_text(encoding="utf-8")
    values = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else [json.loads(text)]
    for _ in range(chance.randint(1, 3)):
        holder: Any = values
        place: Any = chance.randrange(len(values))
        while isinstance(holder[place], dict | list) and holder[place] and chance.random() < 0.8:
            holder = holder[place]
            place = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
        if isinstance(holder, dict) and chance.random() < 0.3:
            del holder[place]
        else:
            holder[place] = copy.deepcopy(chance.choice(JUNK))
    if chance.random() < 0.2:
        chance.shuffle(values)
    return "\n".join(json.dumps(value, indent=None if file.suffix == ".jsonl" else 1) for value in values)


class TestNames:
    """The name of a file names its tape, but does not make the tape of that name its own."""

    def write(self, folder: Path, *contents: str) -> Path:
        """Write a conversation that begins with a system prompt, in a file that is always called the same."""
        folder.mkdir(exist_ok=True)
        roles = ["system", *["user", "assistant"] * 5]
        talk = [{"role": role, "content": text} for role, text in zip(roles, ("Be brief.", *contents), strict=False)]
        (folder / "talk.json").write_text(json.dumps(talk))
        return folder / "talk.json"

    def test_two_conversations_in_files_of_one_name_are_two_tapes(self, backend: Backend, tmp_path: Path) -> None:
        """Also with the same system prompt; each is found again by a second import and when it has grown."""
        store = backend.open()
        one, two = self.write(tmp_path / "a", "Hello", "Hi."), self.write(tmp_path / "b", "Weather?", "Sunny.")
        (first,), (second,) = import_transcript(store, "openai", one), import_transcript(store, "openai", two)
        assert (first.tape, first.added, second.added, second.known) == ("talk", 3, 3, 0)
        assert second.tape.startswith("talk-")
        self.write(tmp_path / "a", "Hello", "Hi.", "Bye")
        self.write(tmp_path / "b", "Weather?", "Sunny.", "Thanks")
        for file, before in ((one, first), (two, second)):
            assert import_transcript(store, "openai", file) == [ImportedTranscript(before.tape, 1, 3)]
            assert import_transcript(store, "openai", file) == [ImportedTranscript(before.tape, 0, 4)]
        assert [len(store.get(one.tape).heads()) for one in (first, second)] == [1, 1]

    def test_a_tape_of_ones_own_is_left_alone(self, quick: Backend, tmp_path: Path) -> None:
        """A tape that no import made, or one of another format, does not become a transcript's."""
        store = quick.open()
        mine = store.create("talk", messages=[{"role": "user", "content": "mine"}])
        (done,) = import_transcript(store, "openai", self.write(tmp_path / "a", "Hello"))
        (other,) = import_transcript(store, "anthropic", self.write(tmp_path / "a", "Hello"))
        assert texts(mine) == ["mine"]
        assert len({"talk", done.tape, other.tape}) == 3

    def test_a_beginning_that_grows_stays_one_tape(self, quick: Backend, tmp_path: Path) -> None:
        """A file with nothing but a system prompt is known again when it has grown, whatever its tape is called."""
        store = quick.open()
        for taken in (False, True):
            folder = tmp_path / str(taken)
            (first,) = import_transcript(store, "openai", self.write(folder))
            (grown,) = import_transcript(store, "openai", self.write(folder, "Hello", "Hi."))
            assert (grown.tape, grown.added, grown.known) == (first.tape, 2, 1)
            store.purge(first.tape)
            if not taken:
                store.create("talk", reuse=True)

    def test_when_no_name_is_left_one_must_be_given(self, quick: Backend, tmp_path: Path) -> None:
        """Should even the name with the digest be taken, the import asks for another and writes nothing."""
        store = quick.open()
        file = self.write(tmp_path / "a", "Hello")
        store.create("talk")
        (done,) = import_transcript(store, "openai", file)
        store.purge(done.tape)
        store.create(done.tape, reuse=True)
        with pytest.raises(tape.ImportFailed, match="name another tape with tape="):
            import_transcript(store, "openai", file)
        assert import_transcript(store, "openai", file, tape="mine")[0].added == 2


class TestRefusal:
    """A file that cannot be imported strictly is one error with the line, and nothing is written."""

    @pytest.mark.parametrize("file", LINES, ids=lambda file: file.name)
    def test_a_broken_line(self, file: Path, tmp_path: Path) -> None:
        """A line that is cut off names its number, wherever it is; no tape is there afterwards."""
        lines = file.read_bytes().splitlines(keepends=True)
        bad = tmp_path / file.name
        with tape.open(":memory:") as store:
            for number in (1, 2, len(lines)):
                cut = lines[number - 1][: len(lines[number - 1]) // 2] + b"\n"
                bad.write_bytes(b"".join([*lines[: number - 1], cut, *lines[number:]]))
                with pytest.raises(tape.ImportFailed) as caught:
                    load(store, bad, strict=True)
                assert caught.value.line == number
            assert store.list().items == []

    @pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".json"], ids=lambda file: file.name)
    def test_a_broken_document(self, file: Path, tmp_path: Path) -> None:
        """A document that is cut off, or wrong on a line, is refused."""
        text = file.read_text(encoding="utf-8").splitlines(keepends=True)
        bad = tmp_path / file.name
        with tape.open(":memory:") as store:
            bad.write_text("".join(text[:-1]))
            with pytest.raises(tape.ImportFailed):
                load(store, bad, strict=True)
            bad.write_text("".join([*text[:4], "}}\n", *text[4:]]))
            with pytest.raises(tape.ImportFailed) as caught:
                load(store, bad, strict=True)
            assert caught.value.line in (4, 5)
            assert store.list().items == []

    @pytest.mark.parametrize("format", FORMATS)
    def test_another_format(self, format: str) -> None:
        """A transcript of another format is refused, unless it is one of this format as well."""
        alike = {
            ("codex-old.jsonl", "openai"),
            ("openai-messages.jsonl", "anthropic"),
            ("openai-request.json", "anthropic"),
            ("openai-batch.jsonl", "anthropic"),
            ("openai-responses.json", "anthropic"),
            ("openai-exchange.json", "anthropic"),
            ("anthropic.json", "openai"),
        }
        with tape.open(":memory:") as store:
            for file in FILES:
                if format == format_of(file) or (file.name, format) in alike:
                    continue
                with pytest.raises(tape.ImportFailed) as caught:
                    import_transcript(store, format, file, strict=True)
                assert caught.value.line >= 1, file.name
            assert store.list().items == []

    @pytest.mark.parametrize("format", FORMATS)
    def test_nothing_in_it(self, format: str, tmp_path: Path) -> None:
        """Empty files and files of something else are refused by every format."""
        file = tmp_path / "some.jsonl"
        with tape.open(":memory:") as store:
            for text in ("", "\n\n", "[]", "null\n", "3\n", '"text"\n', '{"a": 1}\n', "\x00\n", "hello\n", "[" * 5000):
                file.write_text(text)
                with pytest.raises(tape.ImportFailed):
                    import_transcript(store, format, file, strict=True)
            assert store.list().items == []

    def test_no_such_file_or_format(self, tmp_path: Path) -> None:
        """A file that is not there, a folder, and a format that nobody knows are invalid arguments."""
        with tape.open(":memory:") as store:
            for path in (tmp_path / "missing.jsonl", tmp_path):
                with pytest.raises(tape.InvalidEntry, match="path"):
                    import_transcript(store, "codex", path)
            with pytest.raises(tape.InvalidEntry, match="claude-code, codex, openai, anthropic, langgraph"):
                import_transcript(store, "word", DATA / "codex.jsonl")
            with pytest.raises(tape.InvalidEntry, match="tape"):
                import_transcript(store, "codex", DATA / "codex.jsonl", tape="~mine")

    def test_a_refused_last_record_takes_everything_with_it(self, backend: Backend, tmp_path: Path) -> None:
        """The last line is JSON but cannot be recorded: the tape, its fork and all entries are undone."""
        deep: Any = "bottom"
        for _ in range(250):
            deep = [deep]
        file = tmp_path / "s.jsonl"
        last = {"type": "system", "uuid": "last", "parentUuid": None, "sessionId": SESSION, "deep": deep}
        whole = (DATA / "claude-code.jsonl").read_text(encoding="utf-8")
        file.write_text(whole + json.dumps(last) + "\n", encoding="utf-8")
        store = backend.open()
        with pytest.raises(tape.ImportFailed, match="nested") as caught:
            import_transcript(store, "claude-code", file, strict=True)
        assert caught.value.line == whole.count("\n") + 1
        assert store.list().items == []
        assert list(store.feed()) == []
        load(store, DATA / "claude-code.jsonl")
        assert store.verify().ok

    def test_a_changed_record(self, quick: Backend, tmp_path: Path) -> None:
        """A message that differs from what was imported is refused by its line, and new lines before it are undone."""
        file = tmp_path / "s.jsonl"
        records = [
            {"type": "user", "uuid": f"u{n}", "parentUuid": None, "sessionId": "s", "message": {"content": f"{n}"}}
            for n in range(3)
        ]
        file.write_text("".join(json.dumps(record) + "\n" for record in records[1:]))
        store = quick.open()
        import_transcript(store, "claude-code", file)
        records[2]["message"] = {"content": "changed"}
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        with pytest.raises(tape.ImportFailed, match="import into another") as caught:
            import_transcript(store, "claude-code", file, strict=True)
        assert caught.value.line == 3
        assert [head.id for head in store.get("s").heads()] == ["u1", "u2"]

    def test_any_change_is_imported_or_refused(self, tmp_path: Path) -> None:
        """Whatever is wrong in a record: the file is imported once, with a context that is accepted, or refused."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        outcomes = {True: 0, False: 0}
        with tape.open(":memory:") as store:
            for number in range(150):
                file = chance.choice(FILES)
                changed = tmp_path / file.name
                changed.write_text(damaged(file, chance), encoding="utf-8")
                try:
                    done = load(store, changed, tape=f"t{number}", strict=number % 2 == 0)
                except tape.ImportFailed:
                    outcomes[False] += 1
                    continue
                outcomes[True] += 1
                again = load(store, changed, tape=f"t{number}", strict=number % 2 == 0)
                assert sum(one.added for one in again) == 0
                for one in done:
                    check_chat(store.get(one.tape).context().to_openai())
            assert store.verify().ok
        assert min(outcomes.values()) > 10

    def test_a_lone_surrogate(self, tmp_path: Path) -> None:
        """A log whose program cut a character in half is imported, with the line as it was; elsewhere it is refused."""
        half = '{"type": "user", "uuid": "u1", "sessionId": "s", "message": {"role": "user", "content": "cut \\ud83d"}}'
        file = tmp_path / "half.jsonl"
        file.write_text(half + "\n")
        with tape.open(":memory:") as store:
            import_transcript(store, "claude-code", file)
            (entry,) = store.get("s").entries(kinds=["append"])
            assert store.get("s").messages()[0].content == "cut \N{REPLACEMENT CHARACTER}"
            assert entry.meta is not None
            assert entry.meta["tape.raw"] == half
            assert import_transcript(store, "claude-code", file)[0].added == 0
            file.write_text('{"role": "user", "content": "\\ud83d"}\n')
            with pytest.raises(tape.ImportFailed, match="a lone surrogate"):
                import_transcript(store, "openai", file, strict=True)
            item = '{"type": "response_item", "payload": {"type": "message", "role": "user", "content": "\\udc00"}}\n'
            file.write_text('{"type": "session_meta", "payload": {"id": "c"}}\n' + item)
            import_transcript(store, "codex", file)
            assert store.get("c").messages()[0].content == "\N{REPLACEMENT CHARACTER}"

    def test_a_closed_tape(self, quick: Backend) -> None:
        """A tape that was closed refuses what is new, and takes what it has already."""
        store = quick.open()
        store.tape("done").complete()
        with pytest.raises(tape.TapeClosed):
            load(store, DATA / "codex.jsonl", tape="done")
        assert store.get("done").info().head == 2
