"""Tapes as transcripts of other programs: what comes back is equal, and what a format cannot hold is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.shell import Shell
from support.transcript_files import DATA, load

import tape
from tape.core.messages.shapes import Other, Text, read
from tape.transcripts import EXPORT_FORMATS, export_transcript, genai_message, import_transcript
from tape.transcripts.exports.losses import Losses
from tape.transcripts.exports.shapes import as_anthropic, as_chat, as_items

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Lisbon?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Lisbon"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "22"},
    {"role": "assistant", "content": "22 degrees."},
]


@pytest.fixture
def store() -> Any:
    with tape.open(":memory:") as opened:
        yield opened


def write(chat: tape.Snapshot, format: str, path: Path) -> list[str]:
    """Write a tape to a file; returns what was lost."""
    lost: list[str] = []
    path.write_bytes(b"".join(export_transcript(chat, format, report=lost.append)))
    return lost


def meaning(chat: tape.Snapshot) -> list[Any]:
    """Return what the messages of a path say, whatever their shape: each part with who says it."""
    said: list[Any] = []
    for message in chat.messages():
        neutral = read(message.data)
        role = {"tool": "user"}.get(neutral.role, neutral.role)
        said += [(role, "call", call.id, call.name, _loaded(call.arguments)) for call in neutral.calls]
        said += [("user", "result", result.id, str(result.content)) for result in neutral.results]
        texts = [part.text for part in neutral.parts if isinstance(part, Text)]
        said += [(role, "text", text) for text in texts]
    return sorted(said, key=str)


def _loaded(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


class TestRoundTrips:
    @pytest.mark.parametrize("format", ["claude-code", "codex", "openai", "anthropic", "atif", "otlp"])
    def test_what_is_imported_again_says_the_same(self, store: tape.Store, tmp_path: Path, format: str) -> None:
        """A conversation with a tool, written and read again, has every text, call and result."""
        chat = store.create("talk", messages=TALK)
        lost = write(chat, format, tmp_path / "out.jsonl")
        with tape.open(":memory:") as other:
            (done,) = import_transcript(other, format, tmp_path / "out.jsonl", strict=True)
            expected = meaning(chat)
            if format == "claude-code":
                assert lost == ["1 system role"]
                expected = [("user", *said[1:]) if said[0] == "system" else said for said in expected]
            else:
                assert lost == []
            assert meaning(other.get(done.tape)) == sorted(expected, key=str)
            if format == "openai":
                assert [message.data for message in other.get(done.tape).messages()] == TALK

    @pytest.mark.parametrize("name", ["claude-code.jsonl", "codex.jsonl", "codex-old.jsonl"])
    def test_logs_come_back_record_by_record(self, store: tape.Store, tmp_path: Path, name: str) -> None:
        """The records of the conversation itself are those that were imported, in their order."""
        done = load(store, DATA / name)
        format = "claude-code" if name.startswith("claude") else "codex"
        write(store.get(done[0].tape), format, tmp_path / name)
        records = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        source = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
        kept = [record for record in source if not record.get("isSidechain")]
        assert sorted(map(json.dumps, records)) == sorted(map(json.dumps, kept)) or records == kept
        with tape.open(":memory:") as other:
            again = import_transcript(other, format, tmp_path / name)
            assert meaning(other.get(again[0].tape)) == meaning(store.get(done[0].tape))

    def test_a_tree(self, store: tape.Store, tmp_path: Path) -> None:
        """ChatGPT's export and Claude Code's sessions hold all branches, with the same path."""
        chat = store.create("talk", messages=[{"role": "user", "content": "Where to?", "id": "q"}])
        for answer in ("Porto.", "Lisbon."):
            chat.append(role="assistant", content=answer, parent="q")
        chat.rename("Trip")
        for format in ("chatgpt", "claude-code"):
            assert write(chat, format, tmp_path / "out.json") == []
            with tape.open(":memory:") as other:
                (done,) = import_transcript(other, format, tmp_path / "out.json", strict=True)
                copy = other.get(done.tape)
                assert {head.text for head in copy.heads()} == {"Porto.", "Lisbon."}
                assert copy.info().name == ("Trip" if format == "chatgpt" else None)
                if format == "chatgpt":
                    assert copy.messages()[-1].text == "Lisbon."

    def test_calls_of_frameworks_become_those_of_the_format(self, store: tape.Store, tmp_path: Path) -> None:
        """LangChain's calls and Gemini's parts are written as OpenAI has them."""
        call = {"name": "look", "args": {"at": 1}, "id": "c1", "type": "tool_call"}
        answer = {"function_response": {"id": "c1", "name": "look", "response": {"result": "found"}}}
        chat = store.create("talk", messages=[{"role": "user", "content": "Look"}])
        chat.append({"role": "assistant", "content": "", "tool_calls": [call]})
        chat.append({"role": "user", "parts": [answer]})
        assert write(chat, "openai", tmp_path / "out.json") == []
        _, asked, answered = json.loads((tmp_path / "out.json").read_text())
        function = {"name": "look", "arguments": '{"at":1}'}
        assert asked["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
        assert (answered["role"], answered["tool_call_id"]) == ("tool", "c1")


GEMINI: list[dict[str, Any]] = [
    {"role": "user", "parts": [{"text": "What is this?"}, {"inlineData": {"mimeType": "image/png", "data": "aGVs"}}]},
    {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "look", "args": {"at": 1}}}]},
    {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "look", "response": {"result": "found"}}}]},
    {"role": "model", "parts": [{"text": "A train."}]},
]
AI_SDK: dict[str, Any] = {
    "role": "assistant",
    "parts": [
        {"type": "step-start"},
        {"type": "text", "text": "I look."},
        {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {"at": 1}, "output": "found"},
    ],
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVs"}}


class TestShapes:
    """What is of another API is converted, however like the wanted one it looks."""

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ({"role": "assistant", "content": None, "tool_calls": [None]}, [{"role": "assistant", "content": ""}]),
            ({"role": "model", "content": "x"}, [{"role": "assistant", "content": "x"}]),
            ({"role": "human", "content": [{"type": "text", "text": "x"}]}, [{"role": "user", "content": "x"}]),
            ({"role": "critic", "content": "x"}, [{"role": "user", "content": "x"}]),
            ({"role": "user", "content": [{"type": "text", "content": "x"}]}, [{"role": "user", "content": "x"}]),
            (
                AI_SDK,
                [
                    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "c1", "content": "found"},
                ],
            ),
            (
                {"role": "user", "content": [{"type": "text", "text": "x"}, PICTURE]},
                [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVs"}},
                        ],
                    }
                ],
            ),
            (
                {"role": "assistant", "content": [{"type": "text", "text": "x"}, PICTURE]},
                [{"role": "assistant", "content": "x\n\n[image/png, 3 bytes]"}],
            ),
        ],
    )
    def test_as_chat(self, message: dict[str, Any], expected: list[Any]) -> None:
        """OpenAI's roles, parts and calls alone are passed on as they are."""
        assert as_chat(message, Losses()) == expected
        for body in expected:
            assert as_chat(body, Losses()) == [body]

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ({"role": "model", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}),
            ({"role": "critic", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}),
            (
                {"role": "user", "content": [{"type": "text", "content": "x"}]},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
            ),
            (
                {"role": "user", "content": [{"type": "image", "image": "https://a/b.png"}]},
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}]},
            ),
            ({"role": "user", "content": [PICTURE]}, {"role": "user", "content": [PICTURE]}),
        ],
    )
    def test_as_anthropic(self, message: dict[str, Any], expected: dict[str, Any]) -> None:
        """Anthropic's roles and blocks alone are passed on as they are."""
        assert as_anthropic(message, Losses()) == expected
        assert as_anthropic(expected, Losses()) == expected

    def test_results_beside_their_calls_are_a_user_s(self, store: tape.Store, tmp_path: Path) -> None:
        """A step of the AI SDK becomes the turns that Anthropic requires."""
        last = {"type": "text", "text": "Found."}
        chat = store.create("talk", messages=[{**AI_SDK, "parts": [*AI_SDK["parts"], last]}])
        assert write(chat, "anthropic", tmp_path / "out.json") == []
        said = json.loads((tmp_path / "out.json").read_text())["messages"]
        assert [(turn["role"], [block["type"] for block in turn["content"]]) for turn in said] == [
            ("assistant", ["text", "tool_use"]),
            ("user", ["tool_result"]),
            ("assistant", ["text"]),
        ]

    def test_as_items(self) -> None:
        """Of the Responses API, too, a message of another role is no item."""
        message = {"type": "message", "role": "model", "content": [{"type": "output_text", "text": "x"}]}
        assert as_items(message, Losses()) == [message | {"role": "assistant"}]
        odd: dict[str, Any] = {"type": "message", "role": "user", "content": [{"type": []}, {"type": "input_text"}]}
        assert as_items(odd, Losses())[0]["role"] == "user"

    @pytest.mark.parametrize(
        ("message", "role", "parts"),
        [
            (
                AI_SDK,
                "assistant",
                [
                    {"type": "text", "content": "I look."},
                    {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": 1}},
                    {"type": "tool_call_response", "id": "c1", "response": "found"},
                ],
            ),
            (
                {"role": "user", "content": [PICTURE]},
                "user",
                [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGVs"}],
            ),
            (
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]},
                "user",
                [{"type": "uri", "modality": "image", "uri": "https://a/b.png"}],
            ),
            (
                {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]},
                "user",
                [{"type": "file", "modality": "image", "file_id": "file-1"}],
            ),
            (
                {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
                "assistant",
                [{"type": "redacted_thinking", "data": "x"}],
            ),
            (
                {"role": "model", "parts": [{"type": "text", "content": "x"}, {"type": "own", "x": 1}]},
                "assistant",
                [{"type": "text", "content": "x"}, {"type": "own", "x": 1}],
            ),
        ],
    )
    def test_genai_message(self, message: dict[str, Any], role: str, parts: list[Any]) -> None:
        """Parts of the conventions are passed on; pictures, files and parts of no counterpart are not lost."""
        with tape.open(":memory:") as store:
            (appended,) = store.create(messages=[message]).messages()
            assert genai_message(appended) == {"role": role, "parts": parts}

    def test_a_tape_of_gemini(self, store: tape.Store, tmp_path: Path) -> None:
        """Each answer of a "model" is a span of a trace, and ChatGPT's tree has its texts and arguments."""
        chat = store.create("talk", messages=GEMINI)
        assert write(chat, "otlp", tmp_path / "out.json") == []
        (resource,) = json.loads((tmp_path / "out.json").read_text())["resourceSpans"]
        assert [span["name"] for span in resource["scopeSpans"][0]["spans"]] == ["invoke_agent", "chat", "chat"]
        assert write(chat, "chatgpt", tmp_path / "out.json") == ["1 tool-call id"]
        (talk,) = json.loads((tmp_path / "out.json").read_text())
        contents = [node["message"]["content"] for node in talk["mapping"].values()]
        assert [content.get("text") or content["parts"] for content in contents] == [
            ["What is this?\n[image/png, 3 bytes]"],
            '{"at":1}',
            '{"result":"found"}',
            ["A train."],
        ]
        assert write(chat, "atif", tmp_path / "out.json") == ["1 attachment"]
        assert write(chat, "openai", tmp_path / "out.json") == []
        assert [body["role"] for body in json.loads((tmp_path / "out.json").read_text())] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]


class TestLosses:
    def test_what_cannot_be_held_is_told(self, store: tape.Store, tmp_path: Path) -> None:
        """Other branches, events, anchors and thoughts are counted by kind."""
        chat = store.create("talk", messages=TALK[:2])
        chat.event("note", {"x": 1})
        chat.anchor("here")
        chat.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]})
        chat.append(role="assistant", content="Sunny.")
        chat.append(role="user", content="elsewhere", parent=None)
        chat.switch(chat.heads()[0].id)
        lost = write(chat, "openai", tmp_path / "out.json")
        assert sorted(lost) == ["1 anchor", "1 event", "1 other-branch message", "1 reasoning"]
        assert [body["content"] for body in json.loads((tmp_path / "out.json").read_text())] == [
            "Be brief.",
            "Weather in Lisbon?",
            "Sunny.",
        ]
        assert any(isinstance(part, Other) for message in chat.messages() for part in read(message.data).parts)

    def test_no_such_format(self, store: tape.Store) -> None:
        """A format that nobody knows is an invalid argument, and the others are named."""
        with pytest.raises(tape.InvalidEntry, match=", ".join(EXPORT_FORMATS)):
            export_transcript(store.create("talk"), "word")


class TestCommand:
    def test_a_file_and_stdout(self, lite: Shell, tmp_path: Path) -> None:
        """The file is whole or not there; losses are told on stderr; stdout is the transcript alone."""
        with lite.backend.open() as store:
            store.create("talk", messages=TALK).event("note")
        out = tmp_path / "out.json"
        done = lite("export", "talk", str(out), "--as", "atif")
        assert (done.code, done.lines, done.err) == (0, ["exported talk as atif"], "atif cannot hold 1 event\n")
        assert len(json.loads(out.read_text())["steps"]) == 4
        assert lite("export", "talk", str(out), "--as", "atif").code == 1
        printed = lite("export", "talk", "-", "--as", "openai")
        assert json.loads(printed.out) == TALK
        assert lite("export", "talk", "-", "--as", "word").code == 2
        assert lite("export", "talk", "-", "--as", "atif", "--family").code == 2
