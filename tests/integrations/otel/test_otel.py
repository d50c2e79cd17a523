"""The completion hook with the official utility package, and spans made of tapes: what is said comes back once."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider
from opentelemetry.util.genai.completion_hook import CompletionHook, load_completion_hook
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.types import (
    BlobPart,
    FunctionToolDefinition,
    InputMessage,
    OutputMessage,
    ReasoningPart,
    TextPart,
    ToolCallRequestPart,
    ToolCallResponsePart,
)
from support.backends import Backend
from support.processes import PATIENCE, Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from tape.integrations.otel import TapeCompletionHook, export_spans

TOOL = FunctionToolDefinition(name="trains", description="Trains", parameters={"type": "object"})


def user(text: str) -> InputMessage:
    return InputMessage(role="user", parts=[TextPart(content=text)])


def said(text: str) -> OutputMessage:
    return OutputMessage(role="assistant", parts=[TextPart(content=text)], finish_reason="stop")


def history(message: OutputMessage) -> InputMessage:
    return InputMessage(role=message.role, parts=message.parts)


class Program:
    """An instrumented program: its calls, and the spans that it emits."""

    def __init__(self, hook: CompletionHook | None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.handler = TelemetryHandler(tracer_provider=self.provider, completion_hook=hook)

    @contextmanager
    def trace(self) -> Iterator[None]:
        """Let the calls inside be of one trace."""
        with self.provider.get_tracer("test").start_as_current_span("request"):
            yield

    def ask(self, inputs: list[InputMessage], *outputs: OutputMessage, **options: Any) -> Any:
        with self.handler.inference("openai", request_model="gpt", conversation_id=options.get("conversation")) as call:
            call.input_messages = list(inputs)
            call.output_messages = list(outputs)
            call.system_instruction = [TextPart(content=options.get("system", "Be brief."))]
            call.tool_definitions = options.get("tools")
            call.input_tokens, call.output_tokens = 10, 2
        return self.exporter.get_finished_spans()[-1].attributes


def read(store: tape.Store, reference: Any) -> list[tape.Message]:
    """Return what a reference on a span leads to."""
    id, _, seq = str(reference).removeprefix("tape:").rpartition("@")
    return store.tape(unquote(id)).at(int(seq)).messages()


class TestCapture:
    @pytest.mark.parametrize("conversation", [None, "trip-1"])
    def test_a_growing_history_is_stored_once(self, store: tape.Store, conversation: str | None) -> None:
        """30 calls that each bring all that was said before: every message, the prompt and the tools are kept once."""
        program, told = Program(TapeCompletionHook(store)), []
        with program.trace() if conversation is None else nullcontext():
            for turn in range(30):
                told.append(user(f"question {turn}"))
                program.ask(told, said(f"answer {turn}"), conversation=conversation, tools=[TOOL])
                told.append(history(said(f"answer {turn}")))
        (info,) = store.list().items
        chat = store.tape(info.id)
        assert conversation in (None, info.id)
        lines = [line for turn in range(30) for line in (f"question {turn}", f"answer {turn}")]
        assert [message.text for message in chat.messages()] == ["Be brief.", *lines]
        kinds = [entry.kind for entry in chat.entries()]
        assert (kinds.count("append"), kinds.count("event"), kinds.count("usage")) == (61, 1, 30)
        assert (chat.usage().input_tokens, chat.usage().calls) == (300, 30)
        spans = program.exporter.get_finished_spans()
        for turn, message in enumerate(chat.messages()[2::2]):
            kept = message.meta["otel"] if message.meta else {}
            assert kept["span_id"] == f"{spans[turn].context.span_id:016x}"
            assert kept["trace_id"] == f"{spans[turn].context.trace_id:032x}"
        assert "question 3" not in json.dumps(chat.messages()[-1].meta)
        assert store.verify().ok

    def test_a_span_leads_to_the_tape(self, store: tape.Store) -> None:
        """Each reference on a span names what it stands for; nothing of what was said is on the span itself."""
        program = Program(TapeCompletionHook(store))
        facts = program.ask([user("a"), history(said("b")), user("c")], said("d"), tools=[TOOL])
        assert [one.text for one in read(store, facts["gen_ai.input.messages_ref"])] == ["Be brief.", "a", "b", "c"]
        assert [one.text for one in read(store, facts["gen_ai.output.messages_ref"])][-1] == "d"
        assert [one.text for one in read(store, facts["gen_ai.system_instructions_ref"])] == ["Be brief."]
        id, _, seq = facts["gen_ai.tool.definitions_ref"].removeprefix("tape:").rpartition("@")
        payload: Any = store.tape(unquote(id)).entry(seq=int(seq)).payload
        assert payload.data[0]["name"] == "trains"
        assert "gen_ai.input.messages" not in facts

    def test_another_past_is_a_branch(self, store: tape.Store) -> None:
        """A question that is asked anew, several answers, and a new prompt: all are kept, the last call is the head."""
        program = Program(TapeCompletionHook(store))
        program.ask([user("a")], said("b"), said("other b"), conversation="c")
        assert [one.text for one in store.tape("c").messages()] == ["Be brief.", "a", "b"]
        program.ask([user("a"), history(said("b")), user("c")], said("d"), conversation="c")
        program.ask([user("a"), history(said("b")), user("c2")], said("e"), conversation="c", system="Be long.")
        chat = store.tape("c")
        assert [one.text for one in chat.messages()] == ["Be brief.", "a", "b", "c2", "e"]
        assert {one.text for one in chat.heads()} == {"other b", "d", "Be long.", "e"}
        program.ask([user("a")], conversation="c", system="A third one.")
        assert [one.text for one in chat.messages()] == ["Be brief.", "a"]

    @pytest.mark.parametrize("scoped", [False, True])
    def test_conversations_that_begin_alike_are_kept_apart(self, store: tape.Store, scoped: bool) -> None:
        """Histories of two users begin with one fixed greeting: no word of one is on the tape of the other."""
        program = Program(TapeCompletionHook(store.scoped("ann") if scoped else store))
        greeting = history(said("Hello, how can I help?"))
        for name in ("x", "y"):
            with program.trace():
                told = [greeting, user(f"I am {name}")]
                program.ask(told, said(f"Hello {name}"))
                program.ask([*told, history(said(f"Hello {name}")), user("Bye")], said(f"Bye {name}"))
        held = [[one.text for one in store.tape(info.id).messages()] for info in store.list()]
        greeted = ["Be brief.", "Hello, how can I help?"]
        assert sorted(held) == [[*greeted, f"I am {name}", f"Hello {name}", "Bye", f"Bye {name}"] for name in "xy"]

    def test_conversations_of_one_trace_are_branches(self, store: tape.Store) -> None:
        """Calls without a conversation's id share the tape of their trace, each history whole on a branch."""
        program = Program(TapeCompletionHook(store))
        with program.trace():
            for name in ("x", "y"):
                program.ask([user(f"I am {name}")], said(f"Hello {name}"), system=f"Agent {name}.")
        (info,) = store.list().items
        chat = store.tape(info.id)
        assert info.id.startswith("otel/")
        assert [one.text for one in chat.messages()] == ["Agent y.", "I am y", "Hello y"]
        other = next(one.id for one in chat.heads() if one.text == "Hello x")
        assert [one.text for one in chat.messages(branch=other)] == ["Agent x.", "I am x", "Hello x"]

    def test_a_conversation_that_was_purged_begins_anew(self, store: tape.Store) -> None:
        """Nothing of a later call is lost; and two owners may have conversations of one id."""
        program = Program(TapeCompletionHook(store))
        program.ask([user("a")], said("b"), conversation="c")
        store.purge("c")
        program.ask([user("d")], said("e"), conversation="c")
        assert [one.text for one in store.get("c").messages()] == ["Be brief.", "d", "e"]
        for owner in ("ann", "bob"):
            own = store.scoped(owner)
            Program(TapeCompletionHook(own)).ask([user("of")], said(owner), conversation="c")
            (info,) = own.list().items
            assert [one.text for one in own.get(info.id).messages()] == ["Be brief.", "of", owner]

    def test_without_recorded_spans(self, store: tape.Store) -> None:
        """Where no SDK records spans there are no traces: each call is a tape with the history that it brought."""
        handler = TelemetryHandler(tracer_provider=NoOpTracerProvider(), completion_hook=TapeCompletionHook(store))
        for told, answer in [([user("a")], "b"), ([user("c")], "d"), ([user("a"), history(said("b")), user("e")], "f")]:
            with handler.inference("openai") as call:
                call.input_messages, call.output_messages = told, [said(answer)]
        found = [[one.text for one in store.tape(info.id).messages()] for info in store.list()]
        assert sorted(found) == [["a", "b"], ["a", "b", "e", "f"], ["c", "d"]]

    def test_parts_of_every_kind(self, store: tape.Store) -> None:
        """Tool calls, their results, thoughts and bytes are kept, and a context is made of them."""
        call = ToolCallRequestPart(id="t1", name="trains", arguments={"to": "Lisbon"})
        asked = OutputMessage(role="assistant", parts=[ReasoningPart(content="hm"), TextPart(content="I look"), call])
        result = InputMessage(role="tool", parts=[ToolCallResponsePart(id="t1", response="9:30")])
        photo = InputMessage(role="user", parts=[BlobPart(mime_type="image/png", modality="image", content=b"\xff\0")])
        program = Program(TapeCompletionHook(store))
        program.ask([photo], asked, conversation="c")
        program.ask([photo, history(asked), result], said("The 9:30."), conversation="c")
        chat = store.tape("c")
        assert len(chat.messages()) == 5
        shown = chat.context().to_openai()
        assert shown[2]["tool_calls"][0]["function"]["name"] == "trains"
        assert (shown[3]["role"], shown[3]["tool_call_id"]) == ("tool", "t1")

    @pytest.mark.parametrize("names", [None, ["password"]])
    def test_secrets_are_taken_out_before_anything_is_written(self, store: tape.Store, names: list[str] | None) -> None:
        """The default removes credentials, ``redact=`` named fields: in messages, prompts, tools and attributes."""
        secret = "sk-ant-Zq1a2b3c4d5e6f7a8b9" if names is None else "Zq1a2b3c4d5e6f7a8b9"
        hook = TapeCompletionHook(store) if names is None else TapeCompletionHook(store, redact=names)
        program = Program(hook)
        text = f'call it with {{"password": "{secret}"}} please'
        tool = FunctionToolDefinition(name="t", description=text, parameters={"password": secret})
        call = ToolCallRequestPart(name="t", id="c", arguments=json.dumps({"password": secret, "q": 1}))
        answer = OutputMessage(role="assistant", parts=[call, TextPart(content=text)], finish_reason="stop")
        for _ in range(2):
            program.ask([user(text)], answer, conversation="c", system=text, tools=[tool])
        entries = list(store.tape("c").entries())
        written = "\n".join(f"{entry.key} {entry.payload} {entry.meta}" for entry in entries)
        assert "Zq" not in written
        assert written.count("please") == 4
        assert '"q": 1' in written
        assert [message.role for message in store.tape("c").messages()] == ["system", "user", "assistant"]

    @pytest.mark.parametrize(
        ("redact", "ids"),
        [
            (["id"], ("alice", "bob")),
            (tape.Redact(patterns=[r"[\w.]+@[\w.]+"]), ("alice@x.example/1", "bob@x.example/1")),
            (tape.Redact.CREDENTIALS, ("eyJhbGciOiJI.aaaaaaaaaaaa.bbb", "eyJhbGciOiJI.cccccccccccc.ddd")),
            (
                lambda value: {**value, "gen_ai.conversation.id": None} if type(value) is dict else value,
                ("ann-x", "bob-x"),
            ),
        ],
        ids=["field", "pattern", "token", "function"],
    )
    def test_conversations_stay_apart_when_their_ids_are_secrets(
        self, store: tape.Store, redact: Any, ids: tuple[str, str]
    ) -> None:
        """Each conversation has one tape, which later calls find, and no tape shows the secret."""
        for asked in ("one", "two"):
            for id in ids:
                program = Program(TapeCompletionHook(store, redact=redact))
                program.ask([user("hello")], said(f"{asked} {ids.index(id)}"), conversation=id)
        tapes = [store.tape(info.id) for info in store.list()]
        shown = [f"{chat.id} {[entry.payload for entry in chat.entries()]} {chat.info()}" for chat in tapes]
        assert len(tapes) == 2
        assert sorted(["one 0" in text, "two 0" in text, "one 1" in text] for text in shown) == [
            [False, False, True],
            [True, True, False],
        ]
        assert not any(id in text for id in ids for text in shown)

    def test_four_processes_write(self, backend: Backend, crew: Crew) -> None:
        """4 programs in one conversation, 50 calls each: all answers are held once."""
        assert hold_together(crew, backend, captures, answers, least=200) == {}


def captures(store: tape.Store) -> Callable[[str], None]:
    program = Program(TapeCompletionHook(store))

    def write(mark: str) -> None:
        facts = program.ask([user("go")], said(mark), conversation="shared")
        if "gen_ai.output.messages_ref" not in facts:
            raise AssertionError("not written")

    return write


def answers(store: tape.Store) -> Iterable[str]:
    return [one.text for one in store.tape("shared").heads()]


class TestQuiet:
    def test_nothing_is_raised(self, store: tape.Store, caplog: pytest.LogCaptureFixture) -> None:
        """Whatever it is given, and also when the store is gone, the program goes on; the log says what was lost."""
        hook = TapeCompletionHook(store)
        for junk in (None, 5, "x", [None], [{"role": 1}], [{"role": "user", "parts": [{"type": []}]}], [object()]):
            hook.on_completion(inputs=junk, outputs=junk, system_instruction=junk, span=None)
        odd = InputMessage(role="user", parts=[TextPart(content="half \ud800"), TextPart(content=float("nan"))])  # type: ignore[arg-type]
        hook.on_completion(inputs=[odd], outputs=[], system_instruction=[], tool_definitions=[object()])  # type: ignore[list-item]
        # A part of no known kind is kept as it is.
        assert [len(store.tape(info.id).messages()) for info in store.list()] == [1, 3]
        caplog.clear()
        store.close()
        with caplog.at_level(logging.WARNING):
            Program(hook).ask([user("a")], said("b"))
        assert [record.message for record in caplog.records] == ["a completion was not written to its tape"]

    def test_a_conversation_of_any_name(self, store: tape.Store) -> None:
        """An id that no tape can have is kept as a digest."""
        program = Program(TapeCompletionHook(store))
        for name in ("~x", "x" * 5_000, "a\nb", " ", "ok"):
            assert "gen_ai.input.messages_ref" in program.ask([user("a")], said("b"), conversation=name)
        assert len(store.list().items) == 5


class TestEnvironment:
    def test_two_variables_capture_a_program(self, tmp_path: Path) -> None:
        """The hook is found by its name; the program itself knows nothing of tapes."""
        program = (
            "from opentelemetry.util.genai.handler import TelemetryHandler\n"
            "from opentelemetry.util.genai.completion_hook import load_completion_hook\n"
            "from opentelemetry.util.genai.types import InputMessage, OutputMessage, TextPart\n"
            "with TelemetryHandler(completion_hook=load_completion_hook()).inference('openai') as call:\n"
            "    call.input_messages = [InputMessage('user', [TextPart('ping')])]\n"
            "    call.output_messages = [OutputMessage('assistant', [TextPart('pong')])]\n"
        )
        variables = {"OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK": "tape", "TAPE_STORE": str(tmp_path / "t.db")}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        with tape.open(tmp_path / "t.db") as store:
            (info,) = store.list().items
            assert [one.text for one in store.tape(info.id).messages()] == ["ping", "pong"]

    def test_without_a_store_it_does_nothing(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The package says that the hook is not configured, and the program runs without it."""
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK", "tape")
        monkeypatch.delenv("TAPE_STORE", raising=False)
        with caplog.at_level(logging.ERROR):
            hook = load_completion_hook()
        assert "configuration failed" in caplog.text
        Program(hook).ask([user("a")], said("b"))


class TestExport:
    def test_a_round_trip(self, store: tape.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Spans made of a tape say what the official package's own spans said, to the letter of each part."""
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
        program = Program(TapeCompletionHook(store))
        call = ToolCallRequestPart(id="t1", name="trains", arguments={"to": "Lisbon"})
        asked = OutputMessage(role="assistant", parts=[ReasoningPart(content="hm"), TextPart(content="I look"), call])
        result = InputMessage(role="tool", parts=[ToolCallResponsePart(id="t1", response={"at": "9:30"})])
        told = [user("Plan"), history(asked), result]
        program.ask(told[:1], asked, conversation="c")
        program.ask(told, said("The 9:30."), conversation="c")
        theirs = [dict(span.attributes) for span in program.exporter.get_finished_spans()]
        again = Program(None)
        assert export_spans(store.tape("c"), again.provider.get_tracer("t"), content=True) == 4
        spans = {span.name: span for span in again.exporter.get_finished_spans()}
        assert sorted(spans) == ["chat gpt", "execute_tool trains", "invoke_agent otel"]
        ours = [dict(span.attributes) for span in again.exporter.get_finished_spans() if span.name == "chat gpt"]
        for mine, other in zip(ours, theirs, strict=True):
            for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
                assert plain(mine[name]) == plain(other[name])
            for name in ("gen_ai.provider.name", "gen_ai.request.model", "gen_ai.usage.input_tokens"):
                assert mine[name] == other[name]
            assert mine["gen_ai.output.messages_ref"] == other["gen_ai.output.messages_ref"]
            assert mine["gen_ai.conversation.id"] == "c"
        parent = spans["invoke_agent otel"]
        assert spans["execute_tool trains"].parent.span_id == parent.context.span_id
        assert parent.start_time <= spans["chat gpt"].start_time <= spans["chat gpt"].end_time <= parent.end_time

    def test_without_content_nothing_is_told(self, store: tape.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Spans refer to the tape and hold no word of it, of a tape of any origin; an empty one gives none."""
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
        Program(TapeCompletionHook(store)).ask([user("secret")], said("secret too"), conversation="c")
        own = store.create("own", agent="planner")
        own.append(role="user", content="secret")
        asked = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        own.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        own.append({"role": "tool", "tool_call_id": "t1", "content": "secret"})
        program = Program(None)
        tracer = program.provider.get_tracer("t")
        assert [export_spans(store.tape(id), tracer) for id in ("c", "own", "none")] == [2, 3, 0]
        told = [(span.name, dict(span.attributes)) for span in program.exporter.get_finished_spans()]
        assert "secret" not in json.dumps(told)
        assert [name for name, _ in told][2:] == ["chat", "execute_tool look", "invoke_agent planner"]
        assert [one.text for one in read(store, told[3][1]["gen_ai.tool.call.result_ref"])][-1] == "secret"

    def test_a_tape_of_another_api(self, store: tape.Store) -> None:
        """Gemini's "model" answers in spans of its own, and what was shown to it is told as data."""
        chat = store.create()
        picture = {"inlineData": {"mimeType": "image/png", "data": "aGVs"}}
        chat.extend([{"role": "user", "parts": [picture]}, {"role": "model", "parts": [{"text": "A train."}]}])
        program = Program(None)
        assert export_spans(chat, program.provider.get_tracer("t"), content=True) == 2
        (answered,) = [span for span in program.exporter.get_finished_spans() if span.name == "chat"]
        assert plain(answered.attributes["gen_ai.input.messages"])[0]["parts"] == [
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGVs"}
        ]
        assert plain(answered.attributes["gen_ai.output.messages"])[0]["role"] == "assistant"


def plain(text: str) -> Any:
    """Return messages without what says nothing, and without the finish reason, which has an attribute of its own."""
    messages = json.loads(text)
    return [{"role": one["role"], "parts": one["parts"]} for one in messages]


class TestPage:
    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what its page says."""
        lines = printed("otel.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "as spans: chat gpt, chat gpt, invoke_agent otel"

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("otel", monkeypatch, tmp_path)
