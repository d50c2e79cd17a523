"""What real transcripts have: prompts typed mid-turn, missing parents, broken lines. Nothing is invisible or stuck."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.request_rules import check_anthropic, check_chat
from support.transcript_files import texts

import tape
from tape.core.entries.payloads import Event
from tape.transcripts import ImportProblem, import_transcript

AT = "2026-03-01T10:00:{:02}.000Z"


class Session:
    """Writes a session of Claude Code as its program does: each record behind the one before."""

    def __init__(self, version: str = "2.1.40", ids: str = "u") -> None:
        self.lines: list[str] = []
        self.version = version
        self.ids = ids
        self.last: str | None = None

    def add(self, record: Any) -> None:
        self.lines.append(record if isinstance(record, str) else json.dumps(record))

    def record(self, kind: str, **fields: Any) -> str:
        uuid = f"{self.ids}{len(self.lines)}"
        whole = {"parentUuid": self.last, "isSidechain": False, "sessionId": "s", "version": self.version, "type": kind}
        self.add({**whole, "uuid": uuid, "timestamp": AT.format(len(self.lines)), **fields})
        self.last = uuid
        return uuid

    def user(self, content: Any, **fields: Any) -> str:
        return self.record("user", message={"role": "user", "content": content}, **fields)

    def assistant(self, *blocks: Any, **fields: Any) -> str:
        content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
        message = {"id": f"m{len(self.lines)}", "role": "assistant", "model": "claude-sonnet-4-5", "content": content}
        return self.record("assistant", message=message, **fields)

    def call(self, id: str, name: str = "Bash", **given: Any) -> str:
        return self.assistant({"type": "tool_use", "id": id, "name": name, "input": given})

    def result(self, id: str, text: str = "ok", **fields: Any) -> str:
        return self.user([{"type": "tool_result", "tool_use_id": id, "content": text}], **fields)

    def queue(self, operation: str, **fields: Any) -> None:
        self.add({"type": "queue-operation", "operation": operation, "sessionId": "s", **fields})

    def attach(self, prompt: Any) -> str:
        return self.record("attachment", attachment={"type": "queued_command", "prompt": prompt})

    def write(self, folder: Path, end: str = "\n") -> Path:
        path = folder / "s.jsonl"
        path.write_text("\n".join(self.lines) + end, encoding="utf-8")
        return path


@pytest.fixture
def store() -> Any:
    with tape.open(":memory:") as opened:
        yield opened


def load(store: tape.Store, session: Session, folder: Path, end: str = "\n") -> list[ImportProblem]:
    """Import a session twice, and see that the second time adds nothing and that its context is accepted."""
    problems: list[ImportProblem] = []
    path = session.write(folder, end)
    import_transcript(store, "claude-code", path, report=problems.append)
    assert [one.added for one in import_transcript(store, "claude-code", path)] == [0] * len(store.list().items)
    for info in store.list().items:
        context = store.get(info.id).context()
        check_chat(context.to_openai())
        check_anthropic(context.to_anthropic())
    assert store.verify().ok
    return problems


class TestTypedMidTurn:
    """Prompts that were typed while the model worked are messages in their place."""

    @pytest.mark.parametrize("prompt", ["And the tests", [{"type": "text", "text": "And the tests"}]])
    def test_an_attached_prompt(self, store: tape.Store, tmp_path: Path, prompt: Any) -> None:
        """A queued command is said behind the tool's result and before what the model answers."""
        session = Session("2.1.179")
        session.user("Fix it")
        session.call("t1")
        session.queue("enqueue", content=prompt, timestamp=AT.format(3))
        session.result("t1")
        session.queue("remove", content=prompt)
        session.attach(prompt)
        session.assistant("Both done.")
        assert load(store, session, tmp_path) == []
        assert texts(store.get("s")) == ["Fix it", "t1", "t1", "And the tests", "Both done."]
        (message,) = [message for message in store.get("s").messages() if message.text == "And the tests"]
        assert (message.role, message.content) == ("user", prompt)
        assert message.occurred_at is not None
        assert [part["text"] for part in store.get("s").context().to_anthropic()["messages"][-2]["content"][1:]] == [
            "And the tests"
        ]

    def test_only_the_queue_tells_it(self, store: tape.Store, tmp_path: Path) -> None:
        """Files of older versions hold no attachments: what was taken from the queue is said before the answer."""
        session = Session("2.0.14")
        session.user("Fix it")
        session.call("t1")
        session.queue("enqueue", content="And the tests", timestamp=AT.format(3))
        session.result("t1")
        session.queue("remove")
        session.assistant("Both done.")
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["Fix it", "t1", "t1", "And the tests", "Both done."]
        assert len(store.get("s").heads()) == 1

    def test_a_prompt_that_becomes_a_turn_is_one_message(self, store: tape.Store, tmp_path: Path) -> None:
        """What is dequeued and then told by a user's record, alone or with others, is there once."""
        session = Session()
        session.user("Fix it")
        for prompt in ("One", "Two", "Three"):
            session.queue("enqueue", content=prompt)
        session.assistant("Fixed.")
        session.queue("dequeue")
        session.user("One")
        session.assistant("1.")
        session.queue("dequeue")
        session.queue("dequeue")
        session.user("Two\nThree")
        session.assistant("2 and 3.")
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["Fix it", "Fixed.", "One", "1.", "Two\nThree", "2 and 3."]

    @pytest.mark.parametrize("operation", ["popAll", "remove"])
    def test_a_withdrawn_prompt_is_no_message(self, store: tape.Store, tmp_path: Path, operation: str) -> None:
        """What the user took back, or what was removed from a queue whose prompts are attached, was never said."""
        session = Session()
        session.user("Fix it")
        session.attach("Use pytest")
        session.queue("enqueue", content="Never mind")
        session.queue(operation, content="Never mind")
        session.assistant("Fixed.")
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["Fix it", "Use pytest", "Fixed."]

    def test_what_is_still_in_the_queue_is_said_last(self, store: tape.Store, tmp_path: Path) -> None:
        """A session that ended with a prompt in its queue ends with that; while it lives, the prompt waits."""
        session = Session()
        session.user("Fix it")
        session.queue("enqueue", content="And the tests")
        session.assistant("Fixed.")
        import_transcript(store, "claude-code", session.write(tmp_path), live=True)
        assert texts(store.get("s")) == ["Fix it", "Fixed."]
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["Fix it", "Fixed.", "And the tests"]


class TestMissingRecords:
    """A file with records taken out is one path all the same."""

    @pytest.mark.parametrize("field", ["parentUuid", "logicalParentUuid"])
    def test_a_parent_that_is_not_there(self, store: tape.Store, tmp_path: Path, field: str) -> None:
        """Such a record comes behind the one before it."""
        session = Session("1.0.51")
        session.user("One")
        session.assistant("1.")
        session.user("Two", **{"parentUuid": None, field: "gone"})
        session.assistant("2.")
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["One", "1.", "Two", "2."]

    def test_each_chain_has_its_own(self, store: tape.Store, tmp_path: Path) -> None:
        """The record before it on the same chain: a subagent's is not the session's."""
        session = Session()
        session.user("One")
        for content, parent in (("Look", None), ("Seen.", "gone")):
            session.user(content, parentUuid=parent, isSidechain=True, agentId="a1")
        session.assistant("1.", parentUuid="gone, too")
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["One", "1."]
        assert texts(store.get("s/agent-a1")) == ["Look", "Seen."]

    def test_a_compaction_without_its_boundary(self, store: tape.Store, tmp_path: Path) -> None:
        """The path goes on, and what the model sees begins with the summary."""
        session = Session()
        session.user("One")
        session.assistant("1.")
        session.user("It said one.", parentUuid=None, isCompactSummary=True)
        session.assistant("On we go.")
        load(store, session, tmp_path)
        chat = store.get("s")
        assert texts(chat) == ["One", "1.", "It said one.", "On we go."]
        assert [message.text for message in chat.context().messages] == ["It said one.", "On we go."]

    def test_a_boundary_without_its_parent(self, store: tape.Store, tmp_path: Path) -> None:
        """A boundary whose logical parent is gone stands behind the record before it."""
        session = Session()
        session.user("One")
        session.assistant("1.")
        session.record("system", subtype="compact_boundary", parentUuid=None, logicalParentUuid="gone")
        session.user("It said one.", isCompactSummary=True)
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["One", "1.", "It said one."]
        assert [anchor.name for anchor in store.get("s").anchors()] == ["compact"]

    def test_cycles_and_repetitions(self, store: tape.Store, tmp_path: Path) -> None:
        """Records that are their own parents, or each other's, or there twice, are a path."""
        session = Session()
        for parent in ("u0", "u2", "u1"):
            session.user(f"from {parent}", parentUuid=parent)
        session.add(session.lines[1])
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["from u0", "from u2", "from u1"]

    def test_an_answer_without_a_parent(self, store: tape.Store, tmp_path: Path) -> None:
        """What a model or a tool says is never a beginning; what a person says without a parent is another root."""
        session = Session()
        session.user("One")
        session.call("t1")
        session.lines[-1] = session.lines[-1].replace('"parentUuid": "u0"', '"parentUuid": null')
        session.result("t1", parentUuid=None)
        session.assistant("1.")
        session.user("Anew", parentUuid=None)
        load(store, session, tmp_path)
        assert [
            [message.text for message in store.get("s").messages(branch=head.id)] for head in store.get("s").heads()
        ] == [
            ["One", "", "", "1."],
            ["Anew"],
        ]

    def test_a_notice_without_a_parent_breaks_no_path(self, store: tape.Store, tmp_path: Path) -> None:
        """A hook's report in the middle of a session has no parent; what follows it goes on."""
        session = Session()
        session.user("One")
        session.record("progress", data={"type": "hook_progress"}, parentUuid=None)
        session.assistant("1.")
        load(store, session, tmp_path)
        assert texts(store.get("s")) == ["One", "1."]


class TestSubagents:
    """A subagent's tape is forked off at the call that started it."""

    @pytest.mark.parametrize("named_by", ["progress", "result", "prompt"])
    def test_in_the_sessions_file(self, store: tape.Store, tmp_path: Path, named_by: str) -> None:
        """Progress, a result or the prompt tells which of several calls it was."""
        session = Session()
        session.user("Go")
        calls = [{"type": "tool_use", "id": f"t{n}", "name": "Task", "input": {"prompt": f"Do {n}"}} for n in (1, 2)]
        first = session.assistant(calls[0])
        session.assistant(calls[1])
        if named_by == "progress":
            session.record("progress", data={"type": "agent_progress", "agentId": "a1"}, parentToolUseID="t1")
        if named_by == "result":
            session.result("t1", toolUseResult={"agentId": "a1"})
        side = {"isSidechain": True, "parentUuid": None, **({} if named_by == "prompt" else {"agentId": "a1"})}
        main = session.last
        session.user("Do 1" if named_by == "prompt" else "Something", **side)
        session.last = main
        session.assistant("All done.")
        load(store, session, tmp_path)
        (agent,) = [info for info in store.list().items if info.parent == "s"]
        assert store.get(agent.id).lineage().ancestors[0].tape == "s"
        assert store.get(agent.id).at(1).messages()[-1].id == first

    def test_in_a_file_of_its_own(self, store: tape.Store, tmp_path: Path) -> None:
        """The session was imported before: its tape tells the call."""
        session = Session()
        session.user("Go")
        first = session.call("t1", "Agent", prompt="Do 1")
        session.record("progress", data={"type": "agent_progress", "agentId": "a1"}, parentToolUseID="t1")
        session.assistant("Meanwhile.")
        load(store, session, tmp_path)
        side = Session(ids="v")
        side.user("Do 1", isSidechain=True, agentId="a1")
        side.assistant("Done.", isSidechain=True, agentId="a1")
        import_transcript(store, "claude-code", side.write(tmp_path))
        agent = store.get("s/agent-a1")
        assert texts(agent) == ["Do 1", "Done."]
        assert agent.at(1).messages()[-1].id == first


class TestBrokenLines:
    """What cannot be read is reported with its line, and all else is imported."""

    def whole(self) -> Session:
        session = Session()
        session.user("One")
        session.assistant("1.")
        session.user("Two")
        return session

    def test_two_records_on_one_line(self, store: tape.Store, tmp_path: Path) -> None:
        """They are read as two, in their order."""
        session = self.whole()
        session.lines[:2] = ["".join(session.lines[:2])]
        assert load(store, session, tmp_path) == []
        assert texts(store.get("s")) == ["One", "1.", "Two"]

    def test_a_record_behind_a_broken_one(self, store: tape.Store, tmp_path: Path) -> None:
        """A program that was killed while it wrote, and went on later, left half a record before a whole one."""
        session = self.whole()
        session.lines[1] = session.lines[0][:60] + session.lines[1]
        (problem,) = load(store, session, tmp_path)
        assert problem.line == 2
        assert texts(store.get("s")) == ["One", "1.", "Two"]

    def test_half_a_last_line_waits(self, store: tape.Store, tmp_path: Path) -> None:
        """The end of a file that is being written is neither a fault nor lost."""
        session = self.whole()
        cut, session.lines[-1] = session.lines[-1], session.lines[-1][:40]
        assert load(store, session, tmp_path, end="") == []
        assert texts(store.get("s")) == ["One", "1."]
        session.lines[-1] = cut
        assert load(store, session, tmp_path) == []
        assert texts(store.get("s")) == ["One", "1.", "Two"]
        assert [entry.kind for entry in store.get("s").entries(kinds=["event"])] == []

    @pytest.mark.parametrize("value", ["3", '"text"', "null", "[1]"])
    def test_a_value_that_is_no_object(self, store: tape.Store, tmp_path: Path, value: str) -> None:
        """It is kept as an event with its line."""
        session = self.whole()
        session.lines.insert(1, value)
        (problem,) = load(store, session, tmp_path)
        assert problem.line == 2
        (event,) = store.get("s").entries(kinds=["event"])
        assert isinstance(event.payload, Event)
        assert event.payload.data == {"line": 2, "value": json.loads(value)}
        assert len(texts(store.get("s"))) == 3

    @pytest.mark.parametrize(
        "line",
        ["hello", "{", "\x00\x00\x00", "[" * 5000, '{"a": ' * 3000 + "1" + "}" * 3000, '{"uuid": 1}', "}{" * 9],
        ids=lambda line: line[:8],
    )
    def test_a_line_that_is_no_record(self, store: tape.Store, tmp_path: Path, line: str) -> None:
        """Its number and the reason are told, how it begins is kept, and the rest is there."""
        session = self.whole()
        session.lines.insert(1, line)
        (problem,) = load(store, session, tmp_path)
        assert problem.line == 2
        assert texts(store.get("s")) == ["One", "1.", "Two"]
        assert len(list(store.get("s").entries(kinds=["event"]))) == 1

    def test_what_a_tape_cannot_hold(self, store: tape.Store, tmp_path: Path) -> None:
        """A record that is nested too deeply for a tape is kept as an event, and what follows it goes on."""
        deep: Any = "bottom"
        for _ in range(250):
            deep = [deep]
        session = self.whole()
        session.user(deep)
        session.assistant("Deep.")
        (problem,) = load(store, session, tmp_path)
        assert (problem.line, "nested" in problem.reason) == (4, True)
        assert texts(store.get("s")) == ["One", "1.", "Two", "Deep."]

    def test_bytes_that_are_no_text(self, store: tape.Store, tmp_path: Path) -> None:
        """Characters that are not UTF-8 are replaced, and the line is kept as it was."""
        path = self.whole().write(tmp_path)
        path.write_bytes(path.read_bytes().replace(b"Two", b"T\xffo\x00".replace(b"\x00", b"\\u0000")))
        problems: list[ImportProblem] = []
        import_transcript(store, "claude-code", path, report=problems.append)
        assert problems == []
        (message,) = store.get("s").messages()[2:]
        assert message.text == "T\N{REPLACEMENT CHARACTER}o\0"
        assert message.meta is not None
        assert "T\\xffo" in message.meta["tape.raw"]

    def test_a_changed_record_is_kept_beside_the_first(self, store: tape.Store, tmp_path: Path) -> None:
        """A message that differs from what was imported is reported and kept as an event; new ones are imported."""
        load(store, self.whole(), tmp_path)
        changed = Session()
        changed.user("Another one")
        changed.assistant("1.")
        changed.user("Two")
        changed.assistant("2.")
        problems: list[ImportProblem] = []
        import_transcript(store, "claude-code", changed.write(tmp_path), report=problems.append)
        assert [problem.line for problem in problems] == [1]
        assert texts(store.get("s")) == ["One", "1.", "Two", "2."]

    def test_other_formats_go_on_as_well(self, store: tape.Store, tmp_path: Path) -> None:
        """Messages of a list, and items of a rollout, that are none are reported, and the others imported."""
        file = tmp_path / "talk.json"
        file.write_text(json.dumps([{"role": "user", "content": "Hi"}, 5, {"role": ["x"]}, {"role": "user"}]))
        problems: list[ImportProblem] = []
        import_transcript(store, "openai", file, report=problems.append)
        assert (len(problems), len(store.get("talk").messages())) == (2, 2)
        rollout = tmp_path / "rollout.jsonl"
        item = {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "Hi"}}
        lines = [json.dumps({"type": "session_meta", "payload": {"id": "c"}}), "[]", "{", json.dumps(item)]
        rollout.write_text("\n".join(lines))
        import_transcript(store, "codex", rollout, report=problems.append)
        assert [problem.line for problem in problems[2:]] == [2, 3]
        assert texts(store.get("c")) == ["Hi"]


class TestRoles:
    def test_items_of_codex_have_a_role(self, store: tape.Store, tmp_path: Path) -> None:
        """Reasoning and calls are the assistant's, outputs the tool's, also in search; rendering adds nothing."""
        items: list[dict[str, Any]] = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Use ls"}]},
            {"type": "function_call", "name": "shell", "arguments": '{"cmd": "ls"}', "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "README"},
        ]
        lines = [{"type": "session_meta", "payload": {"id": "c"}}]
        lines += [{"type": "response_item", "timestamp": AT.format(1), "payload": item} for item in items]
        file = tmp_path / "rollout.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        import_transcript(store, "codex", file)
        chat = store.get("c")
        assert [message.role for message in chat.messages()] == ["user", "assistant", "assistant", "tool"]
        assert [hit.role for hit in store.search("README")] == ["tool"]
        assert ["role" in item for item in chat.context().to_openai(api="responses")["input"][1:]] == [False] * 3
        assert all(message.occurred_at is not None for message in chat.messages())
