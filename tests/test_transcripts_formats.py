"""Transcripts of more programs, each in at least two versions of its format: whole, once, and accepted by the APIs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.request_rules import check_anthropic, check_chat, check_responses
from support.transcript_files import texts

import tape
from tape.transcripts import FORMATS, ImportProblem, import_transcript
from tape.transcripts.detecting import detect

AT = "2026-03-01T10:00:00.000Z"


@pytest.fixture
def store() -> Any:
    with tape.open(":memory:") as opened:
        yield opened


def load(store: tape.Store, format: str, path: Path, problems: int = 0) -> list[str]:
    """Import a file twice; see that it is detected, known again and rendered. Returns the ids of its tapes."""
    assert detect(path) == format
    reported: list[ImportProblem] = []
    done = import_transcript(store, format, path, report=reported.append)
    assert len(reported) == problems, reported
    assert [one.added for one in import_transcript(store, format, path)] == [0] * len(done)
    for one in done:
        for head in store.get(one.tape).heads():
            context = store.get(one.tape).context(branch=head.id)
            check_chat(context.to_openai())
            check_responses(context.to_openai(api="responses"))
            check_anthropic(context.to_anthropic())
    assert store.verify().ok
    return [one.tape for one in done]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


class TestClaudeStream:
    def test_a_run_with_a_subagent(self, store: tape.Store, tmp_path: Path) -> None:
        """Messages are a path, the subagent's a fork at its call, and each response counts once."""
        call = {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": "Look"}}
        usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}

        def said(kind: str, content: Any, **fields: Any) -> dict[str, Any]:
            message = {"role": kind, "content": content, "id": "m1", "model": "claude-sonnet-4-5", "usage": usage}
            if kind == "user":
                message = {"role": kind, "content": content}
            return {"type": kind, "message": message, "parent_tool_use_id": None, "session_id": "s", **fields}

        file = lines(
            tmp_path / "run.jsonl",
            {"type": "system", "subtype": "init", "session_id": "s", "cwd": "/x", "model": "claude-sonnet-4-5"},
            said("assistant", [{"type": "text", "text": "I ask a helper."}]),
            said("assistant", [call]),
            said("user", "Look", parent_tool_use_id="t1"),
            said("assistant", [{"type": "text", "text": "Seen."}], parent_tool_use_id="t1"),
            said("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "Seen."}]),
            {"type": "result", "subtype": "success", "result": "Done", "session_id": "s", "total_cost_usd": 0.1},
        )
        assert load(store, "claude-stream", file) == ["s", "s/agent-t1"]
        assert texts(store.get("s")) == ["I ask a helper.", "t1", "t1"]
        assert texts(store.get("s/agent-t1")) == ["Look", "Seen."]
        assert texts(store.get("s/agent-t1").at(1))[-1] == "t1"
        assert store.get("s").usage().input_tokens == 100


class TestCodexExec:
    def test_a_thread(self, store: tape.Store, tmp_path: Path) -> None:
        """Items of a thread are messages; a command is a call and its output."""
        items = [
            {"id": "item_0", "type": "reasoning", "text": "**Looking**"},
            {
                "id": "item_1",
                "type": "command_execution",
                "command": "ls",
                "aggregated_output": "README\n",
                "exit_code": 0,
            },
            {"id": "item_2", "type": "mcp_tool_call", "server": "docs", "tool": "find", "arguments": {"q": "x"}},
            {"id": "item_3", "type": "todo_list", "items": []},
            {"id": "item_4", "item_type": "assistant_message", "text": "A README."},
        ]
        usage = {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 7}
        file = lines(
            tmp_path / "exec.jsonl",
            {"type": "thread.started", "thread_id": "th"},
            {"type": "turn.started"},
            *({"type": "item.completed", "item": item} for item in items),
            {"type": "turn.completed", "usage": usage},
        )
        assert load(store, "codex-exec", file) == ["th"]
        chat = store.get("th")
        assert [message.role for message in chat.messages()] == ["assistant", *["assistant", "tool"] * 2, "assistant"]
        assert "README" in str(chat.messages()[2].data["output"])
        assert (chat.usage().input_tokens, chat.usage().cached_tokens) == (100, 60)

    def test_the_older_dialect(self, store: tape.Store, tmp_path: Path) -> None:
        """A line with the settings, one with the prompt, and then events."""
        events: list[dict[str, Any]] = [
            {"type": "agent_reasoning", "text": "Looking"},
            {"type": "exec_command_begin", "call_id": "c1", "command": ["ls"], "cwd": "/x"},
            {"type": "exec_command_end", "call_id": "c1", "stdout": "README\n", "exit_code": 0},
            {"type": "agent_message", "message": "A README."},
        ]
        file = lines(
            tmp_path / "old.jsonl",
            {"workdir": "/x", "model": "gpt-5", "provider": "openai"},
            {"prompt": "List"},
            *({"id": str(number), "msg": event} for number, event in enumerate(events)),
        )
        assert import_transcript(store, "codex-exec", file)[0].tape == "old"
        assert texts(store.get("old"))[0] == "List"
        assert [message.role for message in store.get("old").messages()] == [
            "user",
            "assistant",
            "assistant",
            "tool",
            "assistant",
        ]


GEMINI: list[dict[str, Any]] = [
    {"id": "m1", "timestamp": AT, "type": "user", "content": "List the files"},
    {
        "id": "m2",
        "timestamp": AT,
        "type": "gemini",
        "content": "There is a README.",
        "thoughts": [{"subject": "Listing", "description": "I use ls.", "timestamp": AT}],
        "tokens": {"input": 100, "output": 5, "cached": 40, "thoughts": 3, "total": 108},
        "model": "gemini-2.5-pro",
        "toolCalls": [
            {
                "id": "ls-1",
                "name": "list_directory",
                "args": {"path": "."},
                "status": "success",
                "timestamp": AT,
                "result": [{"functionResponse": {"id": "ls-1", "response": {"output": "README"}}}],
            }
        ],
    },
    {"id": "m3", "timestamp": AT, "type": "info", "content": "Update available"},
]


class TestGemini:
    @pytest.mark.parametrize("version", ["document", "log"])
    def test_a_chat(self, store: tape.Store, tmp_path: Path, version: str) -> None:
        """Both forms of a chat make the same messages, with thoughts, the call, its result and the tokens."""
        session = {"sessionId": "g1", "projectHash": "abc", "startTime": AT, "lastUpdated": AT}
        if version == "document":
            file = document(tmp_path / "session-1.json", {**session, "messages": GEMINI, "summary": "Files"})
        else:
            short = {key: value for key, value in GEMINI[1].items() if key != "toolCalls"}
            update = {"$set": {"summary": "Files", "lastUpdated": AT}}
            file = lines(tmp_path / "session-1.jsonl", session, GEMINI[0], short, GEMINI[1], GEMINI[2], update)
        assert load(store, "gemini", file) == ["g1"]
        chat = store.get("g1")
        assert [message.role for message in chat.messages()] == ["user", "assistant", "assistant", "tool"]
        assert (chat.info().name, chat.info().agent) == ("Files", "gemini")
        assert chat.messages()[3].content == "README"
        usage = chat.usage()
        assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (100, 8, 40)
        assert chat.messages()[0].occurred_at is not None

    def test_going_back_is_a_branch(self, store: tape.Store, tmp_path: Path) -> None:
        """What came behind the message that the user went back to stays readable."""
        again = {**GEMINI[0], "id": "m9", "content": "Count the files"}
        session = {"sessionId": "g1", "projectHash": "abc"}
        file = lines(tmp_path / "session-1.jsonl", session, *GEMINI[:2], {"$rewindTo": "m1"}, again)
        load(store, "gemini", file)
        assert texts(store.get("g1")) == ["Count the files"]
        assert len(store.get("g1").heads()) == 2

    @pytest.mark.parametrize("version", ["list", "object"])
    def test_a_checkpoint(self, store: tape.Store, tmp_path: Path, version: str) -> None:
        """The contents of the API, alone or as a history; calls without ids are answered in their order."""
        contents = [
            {"role": "user", "parts": [{"text": "List"}]},
            {
                "role": "model",
                "parts": [{"text": "So.", "thought": True}, {"functionCall": {"name": "ls", "args": {}}}],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "README"}}}]},
            {"role": "model", "parts": [{"text": "A "}, {"text": "README."}]},
        ]
        value = contents if version == "list" else {"history": contents, "authType": "oauth"}
        load(store, "gemini", document(tmp_path / "checkpoint-mine.json", value))
        messages = store.get("checkpoint-mine").messages()
        assert [message.role for message in messages] == ["user", "assistant", "assistant", "tool", "assistant"]
        assert messages[3].data["tool_call_id"] == messages[2].data["tool_calls"][0]["id"]
        assert messages[-1].text == "A README."


class TestChatGPT:
    def conversation(self, *nodes: tuple[str, str | None, str, Any], current: str, **fields: Any) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for id, parent, role, content in nodes:
            told = content if isinstance(content, dict) else {"content_type": "text", "parts": [content]}
            message = {"id": id, "author": {"role": role}, "create_time": 1772359200.5, "content": told, **fields}
            mapping[id] = {"id": id, "parent": parent, "children": [], "message": message if role else None}
        return {"title": "Trip", "conversation_id": "c1", "mapping": mapping, "current_node": current}

    def test_the_path_is_the_current_one(self, store: tape.Store, tmp_path: Path) -> None:
        """Branches are kept; the one that the conversation went on with is the path, wherever it stands."""
        value = self.conversation(
            ("root", None, "", ""),
            ("q", "root", "user", "Where to?"),
            ("a2", "q", "assistant", "Lisbon."),
            ("a1", "q", "assistant", "Porto."),
            ("f", "a2", "user", "Why?"),
            current="f",
        )
        other = {**self.conversation(("x", None, "user", "Hi"), current="x"), "conversation_id": "c2"}
        assert load(store, "chatgpt", document(tmp_path / "conversations.json", [value, other])) == ["c1", "c2"]
        assert texts(store.get("c1")) == ["Where to?", "Lisbon.", "Why?"]
        assert [head.text for head in store.get("c1").heads()] == ["Porto.", "Why?"]
        assert store.get("c1").info().name == "Trip"
        assert store.get("c1").messages()[0].occurred_at is not None

    def test_tools_and_thoughts(self, store: tape.Store, tmp_path: Path) -> None:
        """Code that was sent to a tool is a call, what it gave a result, thoughts are reasoning."""
        value = self.conversation(
            ("q", None, "user", "2+2?"),
            ("t", "q", "assistant", {"content_type": "thoughts", "thoughts": [{"summary": "Sum", "content": "Add."}]}),
            ("p", "t", "assistant", {"content_type": "code", "text": "print(2+2)"}),
            ("r", "p", "tool", {"content_type": "execution_output", "text": "4"}),
            ("a", "r", "assistant", "4."),
            current="a",
        )
        value["mapping"]["p"]["message"]["recipient"] = "python"
        load(store, "chatgpt", document(tmp_path / "conversations.json", [value]))
        messages = store.get("c1").messages()
        assert [message.role for message in messages] == ["user", "assistant", "assistant", "tool", "assistant"]
        assert messages[2].data["tool_calls"][0]["function"]["name"] == "python"

    def test_rings_and_strays(self, store: tape.Store, tmp_path: Path) -> None:
        """Parents in a ring, or missing, or of a wrong type, lose no message."""
        value = self.conversation(
            ("a", "b", "user", "A"), ("b", "a", "assistant", "B"), ("c", "gone", "user", "C"), current="nowhere"
        )
        value["mapping"]["d"] = {"parent": 5, "message": {"author": "?", "content": 3, "create_time": "x"}}
        value["mapping"]["e"] = None
        load(store, "chatgpt", document(tmp_path / "conversations.json", [value, 5]), problems=1)
        assert store.get("c1").info().message_count == 4


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    names = {str: "stringValue", int: "intValue", bool: "boolValue"}
    return [
        {"key": key, "value": {names[type(value)]: str(value) if type(value) is int else value}}
        for key, value in given.items()
    ]


def spans(*given: dict[str, Any], scope: str = "scopeSpans", events: Any = ()) -> dict[str, Any]:
    made = [
        {
            "traceId": "t1",
            "spanId": f"s{number}",
            "name": "chat",
            "startTimeUnixNano": str(1772359200000000000 + number),
            "attributes": attributes(one),
            "events": list(events) if number == len(given) - 1 else [],
        }
        for number, one in enumerate(given)
    ]
    return {"resourceSpans": [{"resource": {"attributes": []}, scope: [{"spans": made}]}]}


class TestOTLP:
    """Spans in each dialect make the same conversation."""

    SAID = ("user", "assistant", "tool", "assistant")

    def check(self, store: tape.Store, id: str) -> None:
        chat = store.get(id)
        assert [message.role for message in chat.messages()] == list(self.SAID)
        assert chat.messages()[2].data["tool_call_id"] == "c1"
        assert texts(chat)[-1] == "22 degrees."
        assert len(chat.heads()) == 1
        assert (chat.usage().input_tokens, chat.usage().output_tokens) == (21, 3)

    def test_the_conventions(self, store: tape.Store, tmp_path: Path) -> None:
        """Each span carries the history; the second adds what is new, as JSON in texts."""
        asked = {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}
        call = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Lisbon"}}
        called = {"role": "assistant", "parts": [call], "finish_reason": "tool_call"}
        result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "22"}]}
        told = {"role": "assistant", "parts": [{"type": "text", "content": "22 degrees."}], "finish_reason": "stop"}
        common = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "conv", "gen_ai.request.model": "gpt-5"}
        first = {
            **common,
            "gen_ai.input.messages": json.dumps([asked]),
            "gen_ai.output.messages": json.dumps([called]),
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 1,
        }
        second = {
            **common,
            "gen_ai.input.messages": json.dumps([asked, called, result]),
            "gen_ai.output.messages": json.dumps([told]),
            "gen_ai.usage.input_tokens": 11,
            "gen_ai.usage.output_tokens": 2,
        }
        file = document(tmp_path / "trace.json", spans(first, second, {"gen_ai.operation.name": "invoke_agent"}))
        assert load(store, "otlp", file) == ["conv"]
        self.check(store, "conv")

    def test_openllmetry(self, store: tape.Store, tmp_path: Path) -> None:
        """Messages as numbered attributes."""
        given = {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Weather?",
            "gen_ai.prompt.1.role": "assistant",
            "gen_ai.prompt.1.tool_calls.0.id": "c1",
            "gen_ai.prompt.1.tool_calls.0.name": "weather",
            "gen_ai.prompt.1.tool_calls.0.arguments": '{"city": "Lisbon"}',
            "gen_ai.prompt.2.role": "tool",
            "gen_ai.prompt.2.tool_call_id": "c1",
            "gen_ai.prompt.2.content": "22",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "22 degrees.",
            "gen_ai.usage.prompt_tokens": 21,
            "gen_ai.usage.completion_tokens": 3,
        }
        value = spans(given, scope="instrumentationLibrarySpans")
        assert load(store, "otlp", document(tmp_path / "trace.json", value)) == ["t1"]
        self.check(store, "t1")

    def test_openinference(self, store: tape.Store, tmp_path: Path) -> None:
        """Messages as numbered attributes of another name, in a session."""
        prefix = "llm.input_messages"
        given = {
            "openinference.span.kind": "LLM",
            "session.id": "sess",
            f"{prefix}.0.message.role": "user",
            f"{prefix}.0.message.content": "Weather?",
            f"{prefix}.1.message.role": "assistant",
            f"{prefix}.1.message.tool_calls.0.tool_call.id": "c1",
            f"{prefix}.1.message.tool_calls.0.tool_call.function.name": "weather",
            f"{prefix}.1.message.tool_calls.0.tool_call.function.arguments": "{}",
            f"{prefix}.2.message.role": "tool",
            f"{prefix}.2.message.tool_call_id": "c1",
            f"{prefix}.2.message.content": "22",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "22 degrees.",
            "llm.token_count.prompt": 21,
            "llm.token_count.completion": 3,
        }
        assert load(store, "otlp", document(tmp_path / "trace.json", spans(given))) == ["sess"]
        self.check(store, "sess")

    def test_events(self, store: tape.Store, tmp_path: Path) -> None:
        """An event per message, as the conventions had them up to 1.36: in the span, or as log records."""
        calls = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
        told: list[tuple[str, dict[str, Any]]] = [
            ("gen_ai.user.message", {"content": "Weather?"}),
            ("gen_ai.assistant.message", {"tool_calls": json.dumps(calls)}),
            ("gen_ai.tool.message", {"id": "c1", "content": "22"}),
            ("gen_ai.choice", {"message": json.dumps({"content": "22 degrees."}), "index": 0}),
        ]
        usage = {"gen_ai.usage.input_tokens": 21, "gen_ai.usage.output_tokens": 3}
        events = [{"name": name, "attributes": attributes(body)} for name, body in told]
        load(store, "otlp", document(tmp_path / "trace.json", spans(usage, events=events)))
        self.check(store, "t1")
        logs = [
            {"spanId": "s0", "eventName": name, "body": {"kvlistValue": {"values": attributes(body)}}}
            for name, body in told
        ]
        value = {**spans({**usage, "session.id": "logs"}), "resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]}
        load(store, "otlp", document(tmp_path / "logs.json", value))
        self.check(store, "logs")


class TestATIF:
    @pytest.mark.parametrize("version", ["ATIF-v1.0", "ATIF-v1.4"])
    def test_a_trajectory(self, store: tape.Store, tmp_path: Path, version: str) -> None:
        """Steps become messages; observations answer the calls of their step."""
        steps: list[dict[str, Any]] = [
            {"step_id": 1, "timestamp": AT, "source": "user", "message": "List"},
            {
                "step_id": 2,
                "timestamp": AT,
                "source": "agent",
                "message": "I look.",
                "reasoning_content": "Use ls.",
                "tool_calls": [{"tool_call_id": "c1", "function_name": "ls", "arguments": {"path": "."}}],
                "observation": {"results": [{"source_call_id": "c1", "content": "README"}]},
                "metrics": {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 4},
            },
            {"step_id": 3, "source": "agent", "message": "Done.", "observation": {"results": [{"content": "bye"}]}},
        ]
        value = {
            "schema_version": version,
            "session_id": "tr",
            "agent": {"name": "mini", "version": "1", "model_name": "gpt-5"},
            "steps": steps,
            "final_metrics": {"total_steps": 3},
        }
        assert load(store, "atif", document(tmp_path / "trajectory.json", value)) == ["tr"]
        chat = store.get("tr")
        assert [message.role for message in chat.messages()] == [
            "user",
            "assistant",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
        assert (chat.info().agent, chat.usage().input_tokens, chat.usage().cached_tokens) == ("mini", 10, 4)


SAMPLES: dict[str, Any] = {
    "gemini": {"sessionId": "g1", "projectHash": "abc", "summary": "Files", "messages": GEMINI},
    "chatgpt": [TestChatGPT().conversation(("q", None, "user", "Hi"), ("a", "q", "assistant", "Ho"), current="a")],
    "otlp": spans(
        {
            "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]',
            "session.id": "o",
        },
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi", "gen_ai.usage.input_tokens": 3},
        events=[{"name": "gen_ai.choice", "attributes": attributes({"message": '{"content": "Ho"}'})}],
    ),
    "atif": {
        "schema_version": "ATIF-v1.4",
        "session_id": "t",
        "agent": {"name": "mini"},
        "steps": [
            {
                "step_id": 1,
                "source": "agent",
                "message": "Hi",
                "reasoning_content": "Hm",
                "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"x": 1}}],
                "observation": {"results": [{"source_call_id": "c", "content": "Ho"}]},
                "metrics": {"prompt_tokens": 1},
            }
        ],
    },
    "claude-stream": {
        "type": "assistant",
        "session_id": "s",
        "parent_tool_use_id": None,
        "message": {"id": "m", "role": "assistant", "content": [{"type": "text", "text": "Hi"}], "usage": {"x": 1}},
    },
    "codex-exec": {
        "type": "item.completed",
        "item": {"id": "i", "type": "command_execution", "command": "ls", "aggregated_output": "x", "exit_code": 0},
        "usage": {"input_tokens": 3},
    },
}


@pytest.mark.parametrize("format", SAMPLES)
def test_any_value_anywhere(tmp_path: Path, format: str) -> None:
    """A wrong value in any field is imported, reported or refused, once, and the context is accepted."""
    values: list[Any] = [None, True, -1, 1.5, "", "x", "\x00", "a" * 300, [], [[1]], {}, [{"type": ["x"], "id": 5}]]
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with tape.open(":memory:") as store:
        for number in range(40):
            sample = json.loads(json.dumps([SAMPLES[format]]))
            holder, place = sample, 0
            while isinstance(holder[place], dict | list) and holder[place] and chance.random() < 0.9:
                holder = holder[place]
                place = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
            holder[place] = chance.choice(values)
            file = tmp_path / f"{number}.json"
            file.write_text(json.dumps(sample[0]))
            try:
                done = import_transcript(store, format, file, tape=f"t{number}")
            except tape.ImportFailed:
                continue
            again = import_transcript(store, format, file, tape=f"t{number}")
            assert sum(one.added for one in again) == 0
            for one in done:
                check_chat(store.get(one.tape).context().to_openai())
        assert store.verify().ok


def test_every_format_is_shown_here_or_with_the_kept_files() -> None:
    """The formats that can be read are these."""
    assert FORMATS[5:] == ("claude-stream", "codex-exec", "gemini", "chatgpt", "otlp", "atif")
