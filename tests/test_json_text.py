"""JSON inside a text, as models write it: a value, or a text like any other. No depth stops a reader of a tape."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.backends import Backend
from support.browsing import served
from support.shell import Shell

import tape
from tape.core import json_text
from tape.core.json_text import DEEPEST, NotJson
from tape.transcripts import EXPORT_FORMATS, export_transcript
from tape.web.report.redact import Redaction
from tape.web.report.report import write

DEPTHS = (DEEPEST, DEEPEST + 1, 250, 900, 8_000, 100_000)


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels


def texts(levels: int) -> dict[str, str]:
    """Return texts of JSON that are nested that deep, in every way."""
    return {
        "lists": nested(levels),
        "objects": nested(levels - 1, '{"a":', "}").replace(":}", ":{}}", 1),
        "an argument": f'{{"a": {nested(levels - 1)}}}',
        "cut off": "[" * levels,
        "with spaces": f" {nested(levels, '[ ', ' ]')}\n",
    }


class TestTexts:
    @pytest.mark.parametrize("levels", DEPTHS)
    @pytest.mark.parametrize("shape", texts(2))
    def test_a_value_has_a_bound_on_its_levels(self, levels: int, shape: str) -> None:
        """Up to the bound it is the value; past it, the text stays a text, and the error says why."""
        text = texts(levels)[shape]
        for each in (text, text.encode()):
            if levels <= DEEPEST and shape != "cut off":
                written = json.dumps(json_text.decode(each))
                assert written.count("[") + written.count("{") == levels
                continue
            with pytest.raises(NotJson) as refused:
                json_text.decode(each)
            assert refused.value.deep or shape == "cut off"
            assert str(refused.value).startswith(("nested too deeply", "not JSON: "))
        assert (json_text.value_of(text) == text) == (levels > DEEPEST or shape == "cut off")

    @pytest.mark.parametrize("levels", DEPTHS)
    def test_the_bound_is_the_same_for_python_s_own_json(self, levels: int) -> None:
        """Also for the first of several values, and for a text with NaN."""
        deep = f"[NaN, {nested(levels - 1)}]"
        for read in (json_text.decode_loose, lambda text: json_text.decode_first(text + "{}")[0]):
            if levels > DEEPEST:
                with pytest.raises(NotJson, match="nested too deeply"):
                    read(deep)
            else:
                assert len(read(deep)) == 2

    def test_brackets_in_strings_and_beside_each_other_are_no_depth(self) -> None:
        """Only what is inside something else counts."""
        wide = json.dumps([[[]] for _ in range(5_000)] + ["[" * 5_000, {"{" * 500: 1}])
        assert json_text.decode(wide) == json.loads(wide)
        assert json_text.value_of(wide) == json.loads(wide)

    @pytest.mark.parametrize(
        "text", ["", " ", "x", "{", "[1,]", "NaN", "'a'", '"\\ud800"', "\ud800", "1" * 5_000, "\0"]
    )
    def test_what_is_no_json_is_a_text(self, text: str) -> None:
        """Nothing else is raised, and the text comes back."""
        assert json_text.value_of(text) == text
        with pytest.raises(NotJson):
            json_text.decode(text)

    @pytest.mark.parametrize("value", [None, 1, [], {"a": "{}"}, b"[]"])
    def test_only_a_text_is_read(self, value: Any) -> None:
        """Any other value comes back as it is."""
        assert json_text.value_of(value) is value


def conversation(chat: tape.Tape, text: str) -> None:
    """Write a conversation in which a model and a tool say this text, in the shapes of each API."""
    function = {"name": "f", "arguments": text}
    chat.append(role="user", content="Do it.")
    chat.append(
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    )
    chat.append({"role": "tool", "tool_call_id": "a", "content": text})
    chat.append({"type": "function_call", "call_id": "b", "name": "f", "arguments": text})
    chat.append({"type": "function_call_output", "call_id": "b", "output": text})
    chat.append({"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": text}]})
    chat.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": text}]})
    chat.append(
        {
            "role": "assistant",
            "parts": [{"part_kind": "tool-call", "tool_name": "f", "args": text, "tool_call_id": "d"}],
        }
    )
    part = {"type": "tool-f", "toolCallId": "e", "state": "output-available", "input": text, "output": text}
    chat.append({"role": "assistant", "parts": [part]})
    chat.append({"role": "assistant", "content": text})


READERS: dict[str, Callable[[tape.Store, tape.Tape], Any]] = {
    "chat": lambda store, chat: chat.context().to_openai(),
    "responses": lambda store, chat: chat.context().to_openai(api="responses"),
    "anthropic": lambda store, chat: chat.context().to_anthropic(),
    "a budget": lambda store, chat: chat.context(budget=2_000_000).tokens,
    "a small budget": lambda store, chat: chat.context(budget=350_000).to_anthropic(),
    "a recorded context": lambda store, chat: chat.recorded_context()[0].to_anthropic(),
    "explain": lambda store, chat: chat.explain(chat.recorded_context()[0]).to_dict(),
    "explain for anthropic": lambda store, chat: chat.explain(chat.recorded_context()[0], api="anthropic").to_dict(),
    "tools": lambda store, chat: list(chat.tools()),
    "the tools of a store": lambda store, chat: store.tools("read").call("messages", {"tape": chat.id}),
    "a call of a tool": lambda store, chat: chat.tools().call(
        "search", chat.messages()[1].data["tool_calls"][0]["function"]["arguments"]
    ),
    "messages": lambda store, chat: [(message.text, message.to_dict()) for message in chat.messages()],
    "search": lambda store, chat: chat.search("it"),
    "a notebook's tape": lambda store, chat: chat._repr_html_(),
    "a notebook's context": lambda store, chat: chat.context()._repr_html_(),
    "a notebook's messages": lambda store, chat: [message._repr_html_() for message in chat.messages()],
    "a diff": lambda store, chat: chat.diff(2, chat.fork(tape.new_id()))._repr_html_(),
    "a report": lambda store, chat: write(store, [chat.id], io.BytesIO().write, Redaction(["secret"], ["password"])),
    "recover": lambda store, chat: tape.recover(chat),
    "verify": lambda store, chat: chat.verify().problems,
    "an export": lambda store, chat: store.export(chat.id, io.BytesIO()),
    **{
        f"an export as {name}": lambda store, chat, name=name: b"".join(export_transcript(chat, name))  # type: ignore[misc]
        for name in EXPORT_FORMATS
    },
}


@pytest.fixture(params=[250, 8_000, 100_000])
def deep(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class TestReaders:
    @pytest.mark.parametrize("reader", READERS)
    def test_deep_arguments_leave_every_reader_working(self, deep: int, reader: str) -> None:
        """Eight kilobytes of model output make no tape unreadable."""
        for name, text in texts(deep).items():
            with tape.open(":memory:") as store:
                chat = store.create("chat", name=name)
                conversation(chat, text)
                READERS[reader](store, chat)

    def test_deep_arguments_go_to_anthropic_as_a_text(self, store: tape.Store) -> None:
        """The request has an object, as the API wants it, with the text that the model wrote."""
        chat, text = store.create("chat"), nested(8_000)
        conversation(chat, text)
        blocks = [block for message in chat.context().to_anthropic()["messages"] for block in message["content"]]
        inputs = [block["input"] for block in blocks if isinstance(block, dict) and block.get("type") == "tool_use"]
        assert inputs[:2] == [{"input": text}] * 2
        run_again = chat.recorded_context()[0].to_anthropic()
        with tape.record(chat) as run:
            assert run.model(lambda **request: {"content": "x"}, name="m")(**run_again)

    def test_every_page_of_the_inspector_shows_deep_arguments(self, quick: Backend, deep: int) -> None:
        """Each page of the tape, as data and as a document."""
        with quick.open() as store:
            chat = store.create("chat")
            conversation(chat, nested(deep))
            seq = chat.recorded_context()[1].seq
            with served(store) as site:
                for path in ("", "/log", "/graph", "/usage", "/context", f"/context/{seq}"):
                    for accept in ("application/json", "text/html"):
                        assert site.ask(f"/t/chat{path}", known=True, accept=accept).status == 200, path
                for number in range(2, 12):
                    assert site.ask(f"/e/chat/{number}", known=True, accept="application/json").status == 200

    @pytest.mark.parametrize("verb", ["cat", "log", "context", "show"])
    def test_the_command_shows_deep_arguments(self, lite: Shell, verb: str) -> None:
        """It prints the tape."""
        with tape.open(lite.backend.url, **lite.backend.options) as store:
            conversation(store.create("chat"), nested(8_000))
        assert lite(verb, "chat").lines
